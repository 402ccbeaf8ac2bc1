//! A changed file reaches the server: time, traffic and CPU, by kind and size of the change (Fig.
//! 10, 11) and by part of the time (Fig. 12).
//!
//! As in the paper: a file of 10 MiB is on the server. It is changed at random places, in one run,
//! or by an insertion in its middle (the program then rewrites the whole file), in pieces of 1 KiB,
//! 1 KiB to 1 MiB in all. Then each contender transfers the change over a link of 100 Mbit/s. The
//! change is made through our mount; the others read the file in its backing folder. The proxy that
//! counts the bytes is the slow link. Afterwards each contender's copy on the server is compared
//! with the file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::{Contender, Measures, Results, alternate_after};
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::random::Random;
use crate::report::OURS;
use crate::rig::byteback::{Byteback, Mount, Server};
use crate::rig::rdiff::Rdiff;
use crate::rig::rsync::Rsync;
use crate::rig::scratch::{self, Scratch};

/// The peers: two programs, and two of the paper's that cannot be installed. For those two, our own
/// finders of their kinds are run by our program in a folder that is not mounted.
const PEERS: [&str; 4] = ["rsync", "rdiff", "HashSync", "WebR2sync+"];
/// The peers that are programs of others.
const PROGRAMS: [&str; 2] = ["rsync", "rdiff"];
/// Our names of the remaining peers, in the order of [`PEERS`].
const FINDERS: [&str; 2] = ["hash", "webr"];
const FILE: &str = "file";
const FILE_BYTES: usize = 10 << 20;
const PIECE_BYTES: usize = 1024;
/// The paper's chunk size, for all contenders that cut the file into blocks.
const BLOCK_BYTES: u32 = 2048;
const LINK_MBIT_PER_S: u64 = 100;
const LINKS_MBIT_PER_S: [u64; 3] = [50, 100, 200];
const SIZES_KIB: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const SIZES_KIB_QUICK: [usize; 3] = [1, 64, 1024];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Random,
    Sequential,
    Insert,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Random, Self::Sequential, Self::Insert];

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random update",
            Self::Sequential => "sequential update",
            Self::Insert => "insertion",
        }
    }
}

/// The equipment of all cases. Fields are dropped in order: the mount before the server, and the
/// folder last.
struct TestBed {
    mount: Mount,
    server: Server,
    byteback: Byteback,
    /// The backing folder of the file.
    folder: PathBuf,
    rsync_copy: PathBuf,
    rdiff_copy: PathBuf,
    /// The folders of [`FINDERS`].
    finder_folders: [PathBuf; 2],
    /// The number of changes so far: no change writes the bytes of an earlier one.
    changes: std::cell::Cell<u64>,
    scratch: Scratch,
}

impl TestBed {
    fn make() -> Result<Self, SuiteError> {
        let scratch = Scratch::create(&Scratch::default_parent()?, 1 << 30)?;
        let byteback = Byteback::locate(scratch.folder("home")?)?;
        let (folder, point) = (scratch.folder("data")?, scratch.folder("mounted")?);
        fs::write(folder.join(FILE), original())?;
        let (rsync_copy, rdiff_copy) = (scratch.folder("rsync")?, scratch.folder("rdiff")?);
        for copy in [&rsync_copy, &rdiff_copy] {
            fs::copy(folder.join(FILE), copy.join(FILE))?;
        }
        let server = byteback.serve(&scratch.folder("store")?)?;
        byteback.init(&server, &folder, "solfs")?;
        let mount = byteback.mount(&folder, Some(&point))?;
        byteback.backup(&server, &mount, |_| ())?;
        let finder_folders = [scratch.folder("hash")?, scratch.folder("webr")?];
        for (finder, of_finder) in FINDERS.iter().zip(&finder_folders) {
            fs::copy(folder.join(FILE), of_finder.join(FILE))?;
            byteback.init(&server, of_finder, finder)?;
            byteback.backup_unmounted(&server, of_finder, "full")?;
        }
        Ok(Self {
            finder_folders,
            mount,
            server,
            byteback,
            folder,
            rsync_copy,
            rdiff_copy,
            changes: std::cell::Cell::new(0),
            scratch,
        })
    }

    fn transfer_ours(&self) -> Result<(Measures, Option<u64>), SuiteError> {
        let backup = self.byteback.backup(&self.server, &self.mount, |_| ())?;
        let measures = measures(
            backup.wall_s,
            backup.wire.total(),
            backup.client_cpu_s(),
            backup.server.cpu_s,
        );
        Ok((measures, backup.summary.snapshot_id))
    }

    fn transfer_rsync(&self, bits_per_s: u64) -> Result<Measures, SuiteError> {
        let rsync = Rsync::new(&self.rsync_copy, self.scratch.path()).over_link(bits_per_s);
        let block = format!("--block-size={BLOCK_BYTES}");
        // Without this option rsync misses changes within one second.
        let options = ["-a", "--no-whole-file", "--modify-window=-1", &block];
        let transfer = rsync.transfer(&self.folder, &options)?;
        Ok(measures(
            transfer.wall_s,
            transfer.wire.total(),
            transfer.client.cpu_s,
            transfer.server.cpu_s,
        ))
    }

    /// Transfers by one of our finders. Also returns the snapshot.
    fn transfer_found(&self, finder: usize) -> Result<(Measures, Option<u64>), SuiteError> {
        let folder = &self.finder_folders[finder];
        let backup = self.byteback.backup_unmounted(&self.server, folder, FINDERS[finder])?;
        let measures = measures(
            backup.wall_s,
            backup.wire.total(),
            backup.client_cpu_s(),
            backup.server.cpu_s,
        );
        Ok((measures, backup.summary.snapshot_id))
    }

    /// Copies the present file to the finders' folders.
    fn copy_to_finders(&self) -> Result<(), SuiteError> {
        for folder in &self.finder_folders {
            fs::copy(self.folder.join(FILE), folder.join(FILE))?;
        }
        Ok(())
    }

    fn transfer_rdiff(&self, bits_per_s: u64) -> Result<Measures, SuiteError> {
        let rdiff = Rdiff::new(&self.rdiff_copy.join(FILE), self.scratch.path(), BLOCK_BYTES);
        let update = rdiff.update(&self.folder.join(FILE))?;
        let travel_s = update.wire.total() as f64 * 8.0 / bits_per_s as f64;
        Ok(measures(
            update.wall_s + travel_s,
            update.wire.total(),
            update.client_cpu_s,
            update.server_cpu_s,
        ))
    }
}

fn measures(wall_s: f64, wire_bytes: u64, client_cpu_s: f64, server_cpu_s: f64) -> Measures {
    Measures::from([
        ("time", wall_s * 1e3),
        ("traffic", wire_bytes as f64 / 1024.0),
        ("client CPU", client_cpu_s * 1e3),
        ("server CPU", server_cpu_s * 1e3),
        ("CPU", (client_cpu_s + server_cpu_s) * 1e3),
    ])
}

/// Fig. 10 and 11.
///
/// # Errors
/// If a program fails, or a contender's copy on the server differs from the file.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let test_bed = TestBed::make()?;
    let sizes: &[usize] = if setting.options.quick {
        &SIZES_KIB_QUICK
    } else {
        &SIZES_KIB
    };
    let columns = [&[OURS][..], &PEERS].concat();
    let panel = |what: &str, kind: Kind, unit: &str| {
        let title = format!("{what}: {}", kind.name());
        Panel::new(title, "size of the change (KiB)", unit, &columns).drawn_as(Chart::Lines { logarithmic: true })
    };
    let (mut times, mut traffic, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    let mut summary = Panel::new(
        "Less than the others",
        "what",
        "%",
        &[
            "against rsync",
            "against rdiff",
            "against HashSync",
            "against WebR2sync+",
            "paper: SolFS against hash-based ones",
        ],
    );
    let mut goals = Vec::new();
    for kind in Kind::ALL {
        let mut panels = [
            panel("Sync time", kind, "ms"),
            panel("Traffic", kind, "KiB"),
            panel("CPU", kind, "ms"),
        ];
        let mut saved_time = PEERS.map(|_| Vec::new());
        let mut last = None;
        for &size_kib in sizes {
            tell(&format!("{}, {size_kib} KiB", kind.name()));
            let results = measure(&test_bed, kind, size_kib, LINK_MBIT_PER_S, setting.options.runs)?;
            for (panel, metric) in panels.iter_mut().zip(["time", "traffic", "CPU"]) {
                panel.push(size_kib.to_string(), cells(&results, &columns, metric));
            }
            for (saved, peer) in saved_time.iter_mut().zip(PEERS) {
                saved.push(less(&results, "time", peer));
            }
            last = Some(results);
        }
        let paper = |what: &str| match (what, kind) {
            ("time", Kind::Random) => Some(Cell::from(88.8)),
            ("traffic", Kind::Random) => Some(Cell::from(100.0 - 12.3)),
            _ => None,
        };
        let mean = |values: &Vec<f64>| Some(Cell::from(values.iter().sum::<f64>() / values.len() as f64));
        summary.push(
            format!("sync time, {}, mean over sizes", kind.name()),
            saved_time.iter().map(mean).chain([paper("time")]).collect(),
        );
        if let Some(results) = last {
            let of = |metric: &'static str| PEERS.map(|peer| Some(Cell::from(less(&results, metric, peer))));
            for (metric, what) in [
                ("traffic", "traffic, 1 MiB"),
                ("CPU", "CPU of client and server, 1 MiB"),
            ] {
                let cells = of(metric).into_iter().chain([paper(metric)]);
                summary.push(format!("{what}, {}", kind.name()), cells.collect());
            }
            if kind != Kind::Insert {
                for peer in PROGRAMS {
                    let name = format!(
                        "CPU of client and server below {peer}: {}, 1 MiB in 10 MiB",
                        kind.name()
                    );
                    goals.push(GoalRow::new(
                        name,
                        "%",
                        Limit::AtLeast(95.0),
                        less(&results, "CPU", peer),
                    ));
                }
            }
        }
        let [time, wire, processor] = panels;
        times.push(time);
        traffic.push(wire);
        cpu.push(processor);
    }
    test_bed.mount.unmount()?;
    let figure = |id, title: &str, about: &str, panels| Figure {
        id,
        title: title.to_owned(),
        about: about.to_owned(),
        panels,
    };
    let how = format!(
        "A file of 10 MiB (random bytes), changed in pieces of 1 KiB, over a link of {LINK_MBIT_PER_S} Mbit/s; block size {BLOCK_BYTES} bytes, for HashSync and WebR2sync+ as we choose it (3232). \
         Time and CPU include the start of every command."
    );
    Ok(Findings {
        figures: vec![
            figure(
                "figure-10",
                "Sync time by kind and size of the change (Fig. 10)",
                &how,
                times,
            ),
            figure(
                "figure-11",
                "Traffic by kind and size of the change (Fig. 11)",
                &how,
                traffic,
            ),
            figure(
                "sync-cpu",
                "CPU by kind and size of the change",
                "Of client and server together, in the same runs.",
                cpu,
            ),
            figure(
                "sync-summary",
                "Against the others, in a line each",
                &how,
                vec![summary],
            ),
        ],
        goals,
    })
}

/// Fig. 12.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_parts(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let test_bed = TestBed::make()?;
    let parts = ["client CPU", "server CPU", "network", "waiting"];
    let mut panel =
        Panel::new("A random update of 1 MiB, by part", "link, contender", "ms", &parts).drawn_as(Chart::Stacks);
    let mut shares = Panel::new(
        "Share of client and server in the sync time",
        "link (Mbit/s)",
        "%",
        &[
            "byteback",
            "rsync",
            "rdiff",
            "HashSync",
            "WebR2sync+",
            "paper: SolFS",
            "paper: rsync",
            "paper: HashSync",
        ],
    );
    for link in LINKS_MBIT_PER_S {
        tell(&format!("by part, {link} Mbit/s"));
        let results = measure(&test_bed, Kind::Random, 1024, link, setting.options.runs)?;
        let mut row = Vec::new();
        for name in [&[OURS][..], &PEERS].concat() {
            let median = |metric| results[name][metric].median();
            let (time, client, server) = (median("time"), median("client CPU"), median("server CPU"));
            let network = median("traffic") * 1024.0 * 8.0 / (link as f64 * 1e6) * 1e3;
            // Computing that overlaps the network leaves no waiting.
            let waiting = (time - client - server - network).max(0.0);
            panel.push(
                format!("{link} {name}"),
                [client, server, network, waiting]
                    .map(|part| Some(Cell::from(part)))
                    .to_vec(),
            );
            row.push(Some(Cell::from((client + server) / time * 100.0)));
        }
        row.extend(match link {
            50 => [10.8, 49.3, 21.8].map(|share| Some(Cell::from(share))),
            200 => [32.7, 79.5, 52.7].map(|share| Some(Cell::from(share))),
            _ => [None; 3],
        });
        shares.push(link.to_string(), row);
    }
    test_bed.mount.unmount()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-12",
            title: "Sync time by part (Fig. 12)".to_owned(),
            about: "1 MiB in pieces of 1 KiB anywhere in a file of 10 MiB. Network is what the bytes need on the link; waiting is the \
                    rest: the start of programs, round trips, the disks."
                .to_owned(),
            panels: vec![panel, shares],
        }],
        goals: Vec::new(),
    })
}

fn cells(results: &Results, columns: &[&'static str], metric: &str) -> Vec<Option<Cell>> {
    columns
        .iter()
        .map(|name| Some(Cell::from(results.get(name)?.get(metric)?)))
        .collect()
}

/// The percentage by which our median is less than the peer's.
fn less(results: &Results, metric: &str, peer: &str) -> f64 {
    let median = |name: &str| results[name][metric].median();
    (1.0 - median(OURS) / median(peer)) * 100.0
}

/// Measures the transfers of one kind and size of change in turn, and checks the copies in the end.
fn measure(
    test_bed: &TestBed,
    kind: Kind,
    size_kib: usize,
    link_mbit_per_s: u64,
    runs: usize,
) -> Result<Results, SuiteError> {
    let bits_per_s = link_mbit_per_s * 1_000_000;
    let mut last_snapshot = None;
    let found_snapshots = [std::cell::Cell::new(None), std::cell::Cell::new(None)];
    let found = |finder: usize| {
        let (measures, snapshot) = test_bed.transfer_found(finder)?;
        found_snapshots[finder].set(snapshot);
        Ok(measures)
    };
    let mut contenders = [
        Contender::new(OURS, || {
            let (measures, snapshot) = test_bed.transfer_ours()?;
            last_snapshot = snapshot;
            Ok(measures)
        }),
        Contender::new(PEERS[0], || test_bed.transfer_rsync(bits_per_s)),
        Contender::new(PEERS[1], || test_bed.transfer_rdiff(bits_per_s)),
        Contender::new(PEERS[2], || found(0)),
        Contender::new(PEERS[3], || found(1)),
    ];
    let before = |_| {
        if kind == Kind::Insert {
            // Otherwise the file would grow from round to round.
            test_bed.server.limit_link(None);
            write_whole(&test_bed.mount.point().join(FILE), &original())?;
            test_bed.transfer_ours()?;
            test_bed.transfer_rsync(u64::MAX)?;
            test_bed.transfer_rdiff(u64::MAX)?;
            test_bed.copy_to_finders()?;
            test_bed.transfer_found(0)?;
            test_bed.transfer_found(1)?;
        }
        test_bed.server.limit_link(Some(bits_per_s));
        test_bed.changes.set(test_bed.changes.get() + 1);
        change(
            &test_bed.mount.point().join(FILE),
            kind,
            size_kib,
            test_bed.changes.get(),
        )?;
        test_bed.copy_to_finders()
    };
    let results = alternate_after(runs, before, &mut contenders)?;
    drop(contenders);
    test_bed.server.limit_link(None);

    let file = fs::read(test_bed.folder.join(FILE))?;
    let restored = test_bed.scratch.path().join("restored");
    let snapshot = last_snapshot.ok_or("a backup made no snapshot")?;
    test_bed
        .byteback
        .restore(&test_bed.folder, snapshot, &restored, |_| ())?;
    let mut copies = vec![
        (OURS, restored),
        (PEERS[0], test_bed.rsync_copy.clone()),
        (PEERS[1], test_bed.rdiff_copy.clone()),
    ];
    for (finder, snapshot) in found_snapshots.iter().enumerate() {
        let restored = test_bed
            .scratch
            .path()
            .join(format!("restored from {}", FINDERS[finder]));
        let snapshot = snapshot.get().ok_or("a backup made no snapshot")?;
        test_bed
            .byteback
            .restore(&test_bed.finder_folders[finder], snapshot, &restored, |_| ())?;
        copies.push((PEERS[2 + finder], restored));
    }
    for (name, folder) in &copies {
        if fs::read(folder.join(FILE))? != file {
            return Err(format!(
                "{}, {size_kib} KiB: the copy of {name} on the server differs from the file",
                kind.name()
            )
            .into());
        }
    }
    for (name, folder) in copies {
        if !PROGRAMS.contains(&name) {
            scratch::remove(&folder)?;
        }
    }
    Ok(results)
}

fn original() -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    Random::new(10).fill(&mut bytes);
    bytes
}

/// Writes as a program that saves a document: the file is truncated and rewritten.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), SuiteError> {
    let mut file = File::create(path)?;
    bytes.chunks(64 * 1024).try_for_each(|chunk| file.write_all(chunk))?;
    Ok(())
}

fn change(path: &Path, kind: Kind, size_kib: usize, seed: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(seed);
    let pieces = size_kib * 1024 / PIECE_BYTES;
    if kind == Kind::Insert {
        let mut bytes = fs::read(path)?;
        let mut inserted = vec![0; pieces * PIECE_BYTES];
        random.fill(&mut inserted);
        let middle = FILE_BYTES / 2;
        bytes.splice(middle..middle, inserted);
        return write_whole(path, &bytes);
    }
    let file = OpenOptions::new().write(true).open(path)?;
    let offsets: Vec<u64> = if kind == Kind::Random {
        random.clone().scattered(pieces, PIECE_BYTES as u64, FILE_BYTES as u64)
    } else {
        let room = FILE_BYTES - pieces * PIECE_BYTES;
        let start = random.below(room as u64);
        (0..pieces).map(|piece| start + (piece * PIECE_BYTES) as u64).collect()
    };
    let mut piece = [0; PIECE_BYTES];
    for offset in offsets {
        random.fill(&mut piece);
        file.write_all_at(&piece, offset)?;
    }
    Ok(())
}
