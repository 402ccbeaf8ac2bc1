//! The micro-benchmarks (SkySync, section 4.2; Fig. 7 to 13 and 17): every finder by itself, beside
//! rsync, rdiff and plain dsync.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use byteback_checksums::source::Kind;
use byteback_delta::leaves::LeafKind;

use super::content::{Edit, edited, real_bytes};
use super::finders::{self, BLOCK_LEN, CLIENT_READ, Ends, KeptSums, PARTS, SERVER_READ, TO_CLIENT, TO_SERVER, cpu_ms};
use super::sources::{self, Source};
use super::{Findings, tell};
use crate::alternate::{Contender, Measures, Results, Samples, alternate};
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::rig::rdiff::Rdiff;
use crate::rig::rsync::Rsync;
use crate::rig::scratch::Scratch;
use crate::{Options, SuiteError};

const RSYNC: &str = "rsync (program)";
const RDIFF: &str = "rdiff (program)";
const PLAIN: &str = "FastCDC + SHA-1";
const OUR_RSYNC: &str = "our rsync";
const OUR_HASH: &str = "our hash";
const OUR_WEBR: &str = "our webr";
const OUR_CDC: &str = "our cdc";
const SKY_F: [&str; 3] = ["sky-f btrfs sha256", "sky-f btrfs crc32c", "sky-f kept"];
const SKY_C: [&str; 3] = ["sky-c btrfs sha256", "sky-c btrfs crc32c", "sky-c kept"];

pub(crate) const CLIENT_CPU: &str = "client CPU";
pub(crate) const SERVER_CPU: &str = "server CPU";
const CPU: &str = "CPU";
/// The CPU of finding alone, without proofs and without the programs' other work.
const FINDING_CPU: &str = "CPU of finding";
const TRAFFIC: &str = "traffic";
const TOTAL_100: &str = "total at 100 Mbit/s";
const TOTAL_500: &str = "total at 500 Mbit/s";

/// A file size and its changes.
struct Size {
    name: &'static str,
    len: usize,
    edits: &'static [usize],
}

const KIB: usize = 1024;
const SIZES: [Size; 2] = [
    Size {
        name: "10 MB",
        len: 10_000_000,
        edits: &[256, 2 * KIB, 16 * KIB, 128 * KIB, 1024 * KIB],
    },
    Size {
        name: "100 MB",
        len: 100_000_000,
        edits: &[2 * KIB, 16 * KIB, 128 * KIB, 1024 * KIB, 8192 * KIB],
    },
];
const SIZES_QUICK: [Size; 1] = [Size {
    name: "10 MB",
    len: 10_000_000,
    edits: &[2 * KIB, 1024 * KIB],
}];

/// The files of all contenders.
pub(crate) struct TestBed {
    ends: Ends,
    /// The copies that rsync and rdiff update.
    rsync: PathBuf,
    rsync_source: PathBuf,
    rdiff: PathBuf,
    /// Places with checksums, as far as this machine has them.
    sources: [Option<Source>; 3],
    scratch: Scratch,
}

impl TestBed {
    /// A stand for contents of up to `len_max` bytes.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn make(len_max: u64) -> Result<Self, SuiteError> {
        let scratch = Scratch::create(&Scratch::default_parent()?, 16 * len_max + (1 << 30))?;
        let folder = scratch.folder("ends")?;
        let disk = |kind| match Source::btrfs(&scratch, kind, len_max) {
            Ok(source) => Some(source),
            Err(error) => {
                tell(&format!("without btrfs, which cannot be mounted here: {error}"));
                None
            }
        };
        let sources = [disk(Kind::Sha256), disk(Kind::Crc32c), Some(Source::kept(&scratch)?)];
        Ok(Self {
            ends: Ends {
                old: folder.join("old"),
                new: folder.join("new"),
            },
            rsync: scratch.folder("rsync")?,
            rsync_source: scratch.folder("rsync source")?,
            rdiff: scratch.folder("rdiff")?,
            sources,
            scratch,
        })
    }

    /// Runs a transfer of each contender `runs` times in turn.
    ///
    /// # Errors
    /// If a contender cannot run, or its result is not the new content.
    pub(crate) fn measure(&self, old: &[u8], new: &[u8], runs: usize) -> Result<Results, SuiteError> {
        fs::write(&self.ends.old, old)?;
        fs::write(&self.ends.new, new)?;
        for source in self.sources.iter().flatten() {
            source.put(new)?;
        }
        let kept = [LeafKind::Sha256, LeafKind::Blake3].map(|kind| KeptSums::of(&self.ends.old, kind));
        let [sha256, blake3] = kept;
        let (sha256, blake3) = (sha256?, blake3?);
        let kept_for = |source: &Source| match source.leaf_kind() {
            LeafKind::Sha256 => &sha256,
            _ => &blake3,
        };
        let mut contenders: Vec<Contender<'_>> = vec![
            Contender::new(RSYNC, || self.rsync(old, new)),
            Contender::new(RDIFF, || self.rdiff(old, new)),
        ];
        let ends = &self.ends;
        contenders.push(finder(PLAIN, |check| finders::plain_dsync(ends, check)));
        contenders.push(finder(OUR_RSYNC, |check| finders::by_blocks(ends, true, check)));
        contenders.push(finder(OUR_HASH, |check| finders::by_blocks(ends, false, check)));
        contenders.push(finder(OUR_WEBR, |check| finders::webr(ends, check)));
        contenders.push(finder(OUR_CDC, |check| finders::cdc(ends, check)));
        for ((source, fixed), chunked) in self.sources.iter().zip(SKY_F).zip(SKY_C) {
            let Some(source) = source else { continue };
            let kept = kept_for(source);
            contenders.push(finder(fixed, move |check| {
                finders::sky_fixed(ends, kept, source, check)
            }));
            contenders.push(finder(chunked, move |check| {
                finders::sky_chunked(ends, kept, source, check)
            }));
        }
        alternate(runs, &mut contenders)
    }

    /// Fetching the existing checksums of the new content, and making them by reading (Fig. 18).
    fn extraction(&self, title: &str, runs: usize) -> Result<Panel, SuiteError> {
        const NAMES: [[&str; 2]; 3] = [
            ["btrfs sha256, fetched", "btrfs sha256, summed"],
            ["btrfs crc32c, fetched", "btrfs crc32c, summed"],
            ["kept BLAKE3 and CRC-32C, fetched", "BLAKE3, summed"],
        ];
        let mut contenders = Vec::new();
        type Work = fn(&Source, &File) -> Result<u64, SuiteError>;
        let ways: [Work; 2] = [sources::extract, sources::sum];
        for (source, names) in self.sources.iter().zip(NAMES) {
            let Some(source) = source else { continue };
            for (name, way) in names.into_iter().zip(ways) {
                contenders.push(Contender::new(name, move || {
                    let file = File::open(source.path())?;
                    let (begun, begun_ms) = (Instant::now(), cpu_ms());
                    let len_bytes = way(source, &file)?;
                    Ok(Measures::from([
                        (CPU, cpu_ms() - begun_ms),
                        ("wall", begun.elapsed().as_secs_f64() * 1e3),
                        ("checksums", len_bytes as f64 / 1024.0),
                    ]))
                }));
            }
        }
        let results = alternate(runs, &mut contenders)?;
        let mut panel = Panel::new(title, "checksums", "", &["CPU (ms)", "wall (ms)", "checksums (KiB)"]);
        for name in NAMES.into_iter().flatten() {
            let Some(measures) = results.get(name) else { continue };
            let cell = |metric| measures.get(metric).map(Cell::from);
            panel.push(name, [CPU, "wall", "checksums"].map(cell).to_vec());
        }
        Ok(panel)
    }

    fn rsync(&self, old: &[u8], new: &[u8]) -> Result<Measures, SuiteError> {
        let (source, copy) = (self.rsync_source.join("file"), self.rsync.join("file"));
        fs::write(&source, new)?;
        fs::write(&copy, old)?;
        let block = format!("--block-size={BLOCK_LEN}");
        let options = ["-a", "-I", "--no-whole-file", &block];
        let transfer = Rsync::new(&self.rsync, self.scratch.path()).transfer(&self.rsync_source, &options)?;
        compare(&copy, new, RSYNC)?;
        Ok(measures(
            transfer.client.cpu_s,
            transfer.server.cpu_s,
            None,
            [transfer.wire.to_server, transfer.wire.to_client],
            [transfer.file_read_bytes(), transfer.server_file_read_bytes()],
        ))
    }

    fn rdiff(&self, old: &[u8], new: &[u8]) -> Result<Measures, SuiteError> {
        let copy = self.rdiff.join("file");
        fs::write(&copy, old)?;
        let update = Rdiff::new(&copy, self.scratch.path(), BLOCK_LEN).update(&self.ends.new)?;
        compare(&copy, new, RDIFF)?;
        Ok(measures(
            update.client_cpu_s,
            update.server_cpu_s,
            Some(update.client_cpu_s + update.signature_cpu_s),
            [update.wire.to_server, update.wire.to_client],
            // Signature and patch each read the copy.
            [new.len() as u64, 2 * old.len() as u64],
        ))
    }
}

/// A finder that runs in this process. The result of its discarded first run is compared.
fn finder<'a>(name: &'static str, run: impl Fn(bool) -> Result<Measures, SuiteError> + 'a) -> Contender<'a> {
    let mut is_checked = true;
    Contender::new(name, move || {
        let measures = run(std::mem::take(&mut is_checked));
        let measures = measures.map_err(|error| -> SuiteError { format!("{name}: {error}").into() })?;
        Ok(with_sums(measures))
    })
}

fn compare(copy: &Path, new: &[u8], who: &str) -> Result<(), SuiteError> {
    match fs::read(copy)? == new {
        true => Ok(()),
        false => Err(format!("{who} did not make the new content").into()),
    }
}

fn measures(client_s: f64, server_s: f64, finding_s: Option<f64>, wire: [u64; 2], read: [u64; 2]) -> Measures {
    let mut measures = Measures::from([
        (CLIENT_CPU, client_s * 1e3),
        (SERVER_CPU, server_s * 1e3),
        (TO_SERVER, wire[0] as f64),
        (TO_CLIENT, wire[1] as f64),
        (CLIENT_READ, read[0] as f64),
        (SERVER_READ, read[1] as f64),
    ]);
    measures.extend(finding_s.map(|finding_s| (FINDING_CPU, finding_s * 1e3)));
    totals(measures)
}

/// Adds the values that follow from the parts of a finder.
fn with_sums(mut measures: Measures) -> Measures {
    let [checksums, search, proof, their_checksums, their_search, their_proof] = PARTS.map(|part| measures[part]);
    measures.insert(CLIENT_CPU, checksums + search + proof);
    measures.insert(SERVER_CPU, their_checksums + their_search + their_proof);
    measures.insert(FINDING_CPU, checksums + search + their_checksums + their_search);
    totals(measures)
}

fn totals(mut measures: Measures) -> Measures {
    let cpu_ms = measures[CLIENT_CPU] + measures[SERVER_CPU];
    let bytes = measures[TO_SERVER] + measures[TO_CLIENT];
    measures.insert(CPU, cpu_ms);
    measures.insert(TRAFFIC, bytes / 1024.0);
    // The steps in sequence, as in the paper; a link of N Mbit/s carries N kilobits in a
    // millisecond.
    measures.insert(TOTAL_100, cpu_ms + bytes * 8.0 / 100e3);
    measures.insert(TOTAL_500, cpu_ms + bytes * 8.0 / 500e3);
    measures
}

const COLUMNS: [&str; 13] = [
    RSYNC, RDIFF, PLAIN, OUR_RSYNC, OUR_HASH, OUR_WEBR, OUR_CDC, SKY_F[0], SKY_F[1], SKY_F[2], SKY_C[0], SKY_C[1],
    SKY_C[2],
];

/// The measures, their units, and their names in titles.
const SHOWN: [(&str, &str, &str); 8] = [
    (CLIENT_CPU, "ms", "Client CPU (Fig. 7 to 9)"),
    (SERVER_CPU, "ms", "Server CPU (Fig. 10, 11)"),
    (TOTAL_100, "ms", "Total at 100 Mbit/s (Fig. 12)"),
    (TOTAL_500, "ms", "Total at 500 Mbit/s (Fig. 12)"),
    (FINDING_CPU, "ms", "CPU of finding, both ends, without proofs"),
    (TRAFFIC, "KiB", "Traffic (Fig. 17)"),
    (CLIENT_READ, "bytes", "Read by the client"),
    (SERVER_READ, "bytes", "Read by the server"),
];

fn cells(results: &Results, metric: &str) -> Vec<Option<Cell>> {
    let cell = |name: &&str| Some(Cell::from(results.get(*name)?.get(metric)?));
    COLUMNS.iter().map(cell).collect()
}

fn ratio(results: &Results, metric: &str, ours: &str, theirs: &str) -> Option<Samples> {
    Some(results.get(ours)?.get(metric)?.over(results.get(theirs)?.get(metric)?))
}

/// Runs the part.
///
/// # Errors
/// If a program fails, or a result differs from the new content.
pub(crate) fn run(options: Options) -> Result<Findings, SuiteError> {
    let sizes: &[Size] = if options.quick { &SIZES_QUICK } else { &SIZES };
    let mut findings = Findings::default();
    for size in sizes {
        findings.add(run_size(size, options)?);
    }
    Ok(findings)
}

fn run_size(size: &Size, options: Options) -> Result<Findings, SuiteError> {
    // The largest insertions make the largest contents.
    let test_bed = TestBed::make(size.len as u64 + (16 << 20))?;
    let old = real_bytes(size.len)?;
    let mut figures: Vec<Figure> = SHOWN
        .into_iter()
        .map(|(_, _, title)| Figure {
            id: id_of(title),
            title: format!("{title}, {}", size.name),
            about: about(size),
            panels: Vec::new(),
        })
        .collect();
    let mut goals = Vec::new();
    tell(&format!("{}, unmodified", size.name));
    let unmodified = test_bed.measure(&old, &old, options.runs)?;
    goals.extend(goals_of(size, "unmodified", &unmodified));
    let extraction = test_bed.extraction(&format!("All checksums of a file of {}", size.name), options.runs)?;
    let mut parts = Vec::new();
    for edit in Edit::ALL {
        let mut panels: Vec<Panel> = SHOWN
            .into_iter()
            .map(|(_, unit, title)| {
                let title = format!("{title}: {}, {}", edit.name(), size.name);
                let panel = Panel::new(title, "changed (KiB)", unit, &COLUMNS);
                panel.drawn_as(Chart::Lines { logarithmic: true })
            })
            .collect();
        for &edit_len in size.edits {
            tell(&format!("{}, {} of {edit_len} bytes", size.name, edit.name()));
            let new = edited(&old, edit, edit_len, edit_len as u64);
            let results = test_bed.measure(&old, &new, options.runs)?;
            for (panel, (metric, ..)) in panels.iter_mut().zip(SHOWN) {
                let label = format!("{}", edit_len as f64 / 1024.0);
                panel.push(label, cells(&results, metric));
            }
            if edit_len == 1024 * KIB {
                goals.extend(goals_of(size, edit.name(), &results));
            }
            if edit == Edit::Insert {
                parts.push((edit_len, results));
            }
        }
        for (figure, panel) in figures.iter_mut().zip(panels) {
            figure.panels.push(panel);
        }
    }
    for (figure, (metric, unit, title)) in figures.iter_mut().zip(SHOWN) {
        let mut panel = Panel::new(format!("{title}: unmodified, {}", size.name), "content", unit, &COLUMNS)
            .drawn_as(Chart::Bars { logarithmic: true });
        panel.push("unmodified", cells(&unmodified, metric));
        figure.panels.push(panel);
    }
    figures.push(by_part(size, &parts));
    figures.push(Figure {
        id: "extraction",
        title: format!("Fetching checksums (Fig. 18), {}", size.name),
        about: "From storage, and by reading the same file from the page cache.".to_owned(),
        panels: vec![extraction],
    });
    Ok(Findings { figures, goals })
}

fn id_of(title: &str) -> &'static str {
    match title.split([' ', ',']).next() {
        Some("Client") => "client-cpu",
        Some("Server") => "server-cpu",
        Some("Traffic") => "traffic",
        Some("CPU") => "finding-cpu",
        _ if title.contains("100") => "total-100",
        _ if title.contains("500") => "total-500",
        _ if title.contains("client") => "client-read",
        _ => "server-read",
    }
}

fn about(size: &Size) -> String {
    format!(
        "{} of real files of this machine, changed in pieces of 256 bytes; blocks of {BLOCK_LEN} bytes, chunks of 4, 8 and 12 KiB. Finders run by \
         themselves, both ends in one process, each step on its own clock; their proofs are in client and server CPU; \
         nothing is compressed. The programs' CPU includes \
         their start and the writing of the new content. Totals are CPU of both ends, one after the other, and the time that the bytes take on the link.",
        size.name
    )
}

/// Fig. 13: insertions, by part.
fn by_part(size: &Size, insertions: &[(usize, Results)]) -> Figure {
    let columns = [&PARTS[..], &["network at 500 Mbit/s"]].concat();
    let panels = insertions.iter().map(|(edit_len, results)| {
        let title = format!("By part: insert of {} KiB, {}", *edit_len as f64 / 1024.0, size.name);
        let mut panel = Panel::new(title, "finder", "ms", &columns).drawn_as(Chart::Stacks);
        for name in COLUMNS {
            let Some(measures) = results.get(name).filter(|measures| measures.contains_key(PARTS[0])) else {
                continue;
            };
            let mut row: Vec<Option<Cell>> = PARTS.iter().map(|part| measures.get(part).map(Cell::from)).collect();
            let network = measures
                .get(TRAFFIC)
                .map(|traffic| traffic.map(|kib| kib * 8192.0 / 500e3));
            row.push(network.as_ref().map(Cell::from));
            panel.push(name, row);
        }
        panel
    });
    Figure {
        id: "parts",
        title: format!("Time by part (Fig. 13), {}", size.name),
        about: "Of the finders; programs do not report what they spend on each part.".to_owned(),
        panels: panels.collect(),
    }
}

/// The goals that a case has.
fn goals_of(size: &Size, case: &str, results: &Results) -> Vec<GoalRow> {
    let mut goals = Vec::new();
    let mut goal = |what: &str, limit, measured: Option<Samples>| {
        if let Some(measured) = measured {
            let name = format!("{what}: {case}, {}", size.name);
            goals.push(GoalRow::new(name, "x", limit, Cell::from(&measured)));
        }
    };
    goal(
        "our rsync finder's CPU over rdiff's (signature and delta)",
        Limit::AtMost(0.5),
        ratio(results, FINDING_CPU, OUR_RSYNC, RDIFF),
    );
    goal(
        "our dsync's CPU over plain FastCDC + SHA-1",
        Limit::AtMost(0.5),
        ratio(results, FINDING_CPU, OUR_CDC, PLAIN),
    );
    let is_inserted = matches!(case, "insert" | "cut");
    let less = match case {
        "unmodified" => 50.0,
        "inverse" => 20.0,
        _ => 2.0,
    };
    // The goals for SkySync are for 100 MB.
    let is_large = size.len >= 100_000_000;
    for name in SKY_F.into_iter().filter(|_| is_large) {
        goal(
            &format!("rsync's CPU over that of {name}"),
            Limit::AtLeast(less),
            ratio(results, CPU, RSYNC, name),
        );
    }
    for name in SKY_C.into_iter().filter(|_| is_large) {
        goal(
            &format!("our dsync's CPU over that of {name}"),
            Limit::AtLeast(2.0),
            ratio(results, CPU, OUR_CDC, name),
        );
    }
    // Only where the change itself dominates the traffic.
    if is_inserted || case == "inverse" {
        goal(
            "traffic of our rsync over rsync's",
            Limit::AtMost(1.05),
            ratio(results, TRAFFIC, OUR_RSYNC, RSYNC),
        );
        for name in SKY_F {
            goal(
                &format!("traffic of {name} over our rsync's"),
                Limit::AtMost(1.05),
                ratio(results, TRAFFIC, name, OUR_RSYNC),
            );
        }
        for name in SKY_C {
            goal(
                &format!("traffic of {name} over our dsync's"),
                Limit::AtMost(1.05),
                ratio(results, TRAFFIC, name, OUR_CDC),
            );
        }
    }
    goals
}

/// The measures of all contenders for a pair of versions, as rows of a table.
pub(crate) fn table(title: &str, results: &Results) -> Panel {
    let metrics = [
        CLIENT_CPU,
        SERVER_CPU,
        FINDING_CPU,
        TOTAL_100,
        TOTAL_500,
        TRAFFIC,
        CLIENT_READ,
    ];
    let columns = [
        "client CPU (ms)",
        "server CPU (ms)",
        "finding (ms)",
        "total at 100 Mbit/s (ms)",
        "total at 500 Mbit/s (ms)",
        "traffic (KiB)",
        "client read (bytes)",
    ];
    let mut panel = Panel::new(title, "finder", "", &columns);
    for name in COLUMNS {
        let Some(measures) = results.get(name) else { continue };
        panel.push(
            name,
            metrics.map(|metric| measures.get(metric).map(Cell::from)).to_vec(),
        );
    }
    panel
}
