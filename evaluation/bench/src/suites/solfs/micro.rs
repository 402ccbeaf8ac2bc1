//! The log by itself: search time by number of versions (Fig. 15a), conversion and merging by
//! number of mlogs (Fig. 15b), memory by granularity and the excess that each granularity reports
//! at equal memory (section 5.3), bytes of an mlog on disk (section 3.2.1).

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Instant;

use byteback_extents::{ByteRange, ExtentSet};
use byteback_oplog::{Granularity, LogOptions, mlog};

use super::log_test_bed::{LogTestBed, log_options};
use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::random::Random;
use crate::rig::scratch::{self, Scratch};

const FILE_BYTES: u64 = 10 << 20;
const CHANGED_BYTES: u64 = 2 << 20;
const WRITE_BYTES: u64 = 1024;
const PAGE_BYTES: NonZeroU64 = NonZeroU64::new(4096).unwrap();
const DEPTHS: [usize; 7] = [1, 2, 4, 6, 8, 10, 1000];
const DEPTHS_QUICK: [usize; 3] = [1, 10, 1000];
const MLOGS: [usize; 4] = [1000, 2500, 5000, 10_000];

fn range(offset: u64, len: u64) -> Result<ByteRange, SuiteError> {
    ByteRange::from_offset_len(offset, len).ok_or_else(|| "an empty range".into())
}

/// 1 KiB writes at any byte of the file.
fn random_writes(random: &mut Random, count: u64) -> Result<Vec<ByteRange>, SuiteError> {
    (0..count)
        .map(|_| range(random.below(FILE_BYTES - WRITE_BYTES), WRITE_BYTES))
        .collect()
}

fn sequential_writes(count: u64) -> Result<Vec<ByteRange>, SuiteError> {
    (0..count)
        .map(|index| range(index * WRITE_BYTES, WRITE_BYTES))
        .collect()
}

/// Runs `work`. Returns its duration in milliseconds and its result.
fn timed<T>(work: impl FnOnce() -> Result<T, SuiteError>) -> Result<(f64, T), SuiteError> {
    let started = Instant::now();
    let result = black_box(work()?);
    Ok((started.elapsed().as_secs_f64() * 1e3, result))
}

/// Measures everything of this module.
///
/// # Errors
/// If a log cannot be read or written.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 1 << 30)?;
    let mut findings = Findings::default();
    for part in [versions, mlogs, granularity, density] {
        findings.add(part(setting, scratch.path())?);
    }
    scratch.remove()?;
    Ok(findings)
}

/// Fig. 15a.
fn versions(setting: &Setting<'_>, place: &Path) -> Result<Findings, SuiteError> {
    let depths: &[usize] = if setting.options.quick { &DEPTHS_QUICK } else { &DEPTHS };
    let mut panel = Panel::new(
        "Search time by number of versions",
        "versions",
        "ms",
        &[
            "after a restart, cold cache",
            "the daemon runs",
            "paper: SolFS, cold cache",
        ],
    )
    .drawn_as(Chart::Lines { logarithmic: true });
    let mut goal = None;
    for &depth in depths {
        tell(&format!("search over {depth} versions"));
        let (mut cold, mut warm) = (Samples::default(), Samples::default());
        for round in 0..setting.options.runs {
            let folder = place.join(format!("versions {depth} {round}"));
            let mut test_bed = LogTestBed::create(&folder, FILE_BYTES, LogOptions::default())?;
            let mut random = Random::new((depth * 100 + round) as u64);
            let since = test_bed.mark("reader")?;
            let per_version = CHANGED_BYTES / WRITE_BYTES / depth as u64;
            for version in 0..depth {
                test_bed.write(&random_writes(&mut random, per_version)?)?;
                if version + 1 < depth {
                    test_bed.mark(&format!("other {version}"))?;
                }
            }
            let cut = test_bed.log.cut_held(|| ())?;
            let expected = test_bed.ranges_of(&cut, since)?;
            drop(cut);
            test_bed = test_bed.reopened_cold()?;
            let cut = test_bed.log.cut_held(|| ())?;
            let (cold_ms, found) = timed(|| test_bed.ranges_of(&cut, since))?;
            if found != expected {
                return Err("after a restart the log reports other ranges".into());
            }
            cold.push(cold_ms);
            drop(cut);
            // A new cut each time, as for each getdiff.
            let cut = test_bed.log.cut_held(|| ())?;
            warm.push(timed(|| test_bed.ranges_of(&cut, since))?.0);
            drop((cut, test_bed));
            scratch::remove(&folder)?;
        }
        let paper = match depth {
            1 => Some(Cell::from(1.67)),
            10 => Some(Cell::from(7.6)),
            _ => None,
        };
        panel.push(
            depth.to_string(),
            vec![Some(Cell::from(&cold)), Some(Cell::from(&warm)), paper],
        );
        if depth == 10 {
            goal = Some(GoalRow::new(
                "search over 10 versions, cold cache",
                "ms",
                Limit::AtMost(1.7),
                &cold,
            ));
        }
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-15a",
            title: "Search time by number of versions (Fig. 15a)".to_owned(),
            about: "2 MiB of 1 KiB writes anywhere in a file of 10 MiB, spread over the given number of \
                    versions, each kept by a consumer of its own; \
                    then the changes of the file since before the first. Cold: the log was closed and its files dropped from the page \
                    cache; the time is that of the search after the log is open again."
                .to_owned(),
            panels: vec![panel],
        }],
        goals: goal.into_iter().collect(),
    })
}

/// Fig. 15b, and the other costs by number of mlogs.
fn mlogs(setting: &Setting<'_>, place: &Path) -> Result<Findings, SuiteError> {
    let mut panel = Panel::new(
        "Cost by number of mlogs",
        "mlogs",
        "ms",
        &[
            "byte to page",
            "closest gaps joined, to half",
            "inserted",
            "merged with as many on disk",
            "paper: byte to page",
            "paper: merged",
        ],
    )
    .drawn_as(Chart::Lines { logarithmic: true });
    let rounds = setting.options.runs * 3;
    for count in MLOGS {
        tell(&format!("{count} mlogs"));
        let mut samples: BTreeMap<usize, Samples> = BTreeMap::new();
        for round in 0..rounds {
            let mut random = Random::new(round as u64);
            // Apart and unordered, so that each is an mlog of its own. The places are at least 4
            // KiB apart, in a file with room for all.
            let places = random.clone().scattered(count, 1024, count as u64 * 8192);
            let mut ranges: Vec<ByteRange> = places
                .into_iter()
                .map(|offset| range(offset, 700))
                .collect::<Result<_, _>>()?;
            shuffle(&mut ranges, &mut random);
            let (insert_ms, set) = timed(|| Ok(ranges.iter().copied().collect::<ExtentSet>()))?;
            let (convert_ms, _) = timed(|| Ok(set.aligned_out(PAGE_BYTES)))?;
            let mut joined = set.clone();
            let (join_ms, _) = timed(|| Ok(joined.join_closest(count / 2)))?;
            for (column, value) in [(0, convert_ms), (1, join_ms), (2, insert_ms)] {
                samples.entry(column).or_default().push(value);
            }
        }
        for round in 0..setting.options.runs {
            let folder = place.join(format!("mlogs {count} {round}"));
            // Room for both halves, so that no extents are joined.
            let options = log_options(Granularity::Byte, 4 * count as u32);
            let file_bytes = count as u64 * 16384;
            let test_bed = LogTestBed::create(&folder, file_bytes, options)?;
            test_bed.mark("reader")?;
            let mut random = Random::new(round as u64);
            let mut ranges: Vec<ByteRange> = random
                .scattered(2 * count, 1024, file_bytes)
                .into_iter()
                .map(|offset| range(offset, 700))
                .collect::<Result<_, _>>()?;
            shuffle(&mut ranges, &mut random);
            let (old, new) = ranges.split_at(count);
            test_bed.write(old)?;
            // The first half goes to the database, then the second half on top of it.
            test_bed.log.look()?;
            test_bed.write(new)?;
            let (merge_ms, _) = timed(|| Ok(test_bed.log.look()?))?;
            samples.entry(3).or_default().push(merge_ms);
            drop(test_bed);
            scratch::remove(&folder)?;
        }
        let (paper_convert, paper_merge) = match count {
            1000 => (Some(0.95), None),
            10_000 => (Some(10.0), Some(30.0)),
            _ => (None, None),
        };
        let mut cells: Vec<Option<Cell>> = samples.values().map(|samples| Some(Cell::from(samples))).collect();
        cells.extend([paper_convert, paper_merge].map(|value| value.map(Cell::from)));
        panel.push(count.to_string(), cells);
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-15b",
            title: "Converting, inserting and merging by number of mlogs (Fig. 15b)".to_owned(),
            about: "Mlogs of 700 bytes that lie apart, in random order. Merging is a checkpoint: read the layer from the database, merge, \
                    write, and make it durable."
                .to_owned(),
            panels: vec![panel],
        }],
        goals: Vec::new(),
    })
}

fn shuffle(ranges: &mut [ByteRange], random: &mut Random) {
    for last in (1..ranges.len()).rev() {
        let other = random.below(last as u64 + 1) as usize;
        ranges.swap(last, other);
    }
}

/// Length of the file that [`patterns`] write to.
const PATTERN_FILE_BYTES: u64 = 64 << 20;

/// The write patterns of three kinds of programs.
fn patterns() -> Result<[(&'static str, Vec<ByteRange>); 3], SuiteError> {
    const FILE: u64 = PATTERN_FILE_BYTES;
    const WRITES: u64 = 8000;
    const CLUSTERS: u64 = 12;
    let mut random = Random::new(53);
    let anywhere = (0..WRITES).map(|_| {
        let len = 64 + random.below(1985);
        range(random.below(FILE - len), len)
    });
    let anywhere = anywhere.collect::<Result<_, _>>()?;
    let hot: Vec<u64> = (0..CLUSTERS).map(|_| random.below(FILE - (1 << 20))).collect();
    let clustered = (0..WRITES).map(|_| {
        let len = 64 + random.below(1985);
        // Sums of uniform numbers: dense in the middle of a cluster of 1 MiB.
        let spread =
            (random.below(1 << 18) + random.below(1 << 18) + random.below(1 << 18) + random.below(1 << 18)) & !7;
        range(hot[random.below(CLUSTERS) as usize] + spread, len)
    });
    let clustered = clustered.collect::<Result<_, _>>()?;
    // Pages of 4 KiB: some that every transaction changes, an end that grows, and random leaves
    // with their neighbours.
    let pages = FILE / 4096;
    let mut end = pages / 2;
    let mut sqlite = Vec::new();
    while (sqlite.len() as u64) < WRITES {
        sqlite.push(range(0, 4096)?);
        sqlite.push(range(random.below(200) * 4096, 4096)?);
        let leaf = random.below(pages / 2);
        for page in leaf..leaf + 1 + random.below(3) {
            sqlite.push(range(page * 4096, 4096)?);
        }
        sqlite.push(range(end * 4096, 4096)?);
        end += 1;
    }
    Ok([("random", anywhere), ("clustered", clustered), ("like SQLite", sqlite)])
}

/// Section 5.3.
fn granularity(_: &Setting<'_>, place: &Path) -> Result<Findings, SuiteError> {
    tell("granularity");
    let count = CHANGED_BYTES / WRITE_BYTES;
    let mut memory = Panel::new(
        "Memory for 2 MiB of 1 KiB writes in a file of 10 MiB",
        "writes, granularity",
        "KB",
        &["byteback", "extents", "paper"],
    );
    for (name, writes, papers) in [
        ("sequential", sequential_writes(count)?, [Some(0.133), None]),
        (
            "random",
            random_writes(&mut Random::new(3), count)?,
            [Some(102.6), Some(20.35)],
        ),
    ] {
        for (granularity, told, paper) in [
            (Granularity::Byte, "bytes", papers[0]),
            (Granularity::Page, "pages", papers[1]),
        ] {
            let folder = place.join(format!("memory {name} {told}"));
            let test_bed = LogTestBed::create(&folder, FILE_BYTES, log_options(granularity, 5000))?;
            test_bed.mark("reader")?;
            test_bed.write(&writes)?;
            let usage = test_bed.log.usage()?;
            let cells = [
                Some(usage.extent_bytes as f64 / 1000.0),
                Some(usage.pending_extents as f64),
                paper,
            ];
            memory.push(
                format!("{name}, {told}"),
                cells.map(|value| value.map(Cell::from)).to_vec(),
            );
            drop(test_bed);
            scratch::remove(&folder)?;
        }
    }

    let mut extra = Panel::new(
        "Bytes reported beyond those written, at equal memory",
        "writes, limit as a share of the extents that exactness needs",
        "% of the bytes written",
        &[
            "closest gaps joined (ours)",
            "pages from the start",
            "pages past the limit (the paper's)",
        ],
    )
    .drawn_as(Chart::Bars { logarithmic: true });
    for (name, writes) in patterns()? {
        let exact: ExtentSet = writes.iter().copied().collect();
        let (extents, exact) = (exact.len(), exact.total_len_bytes());
        for (told, limit) in [("3/4", extents * 3 / 4), ("1/2", extents / 2)] {
            let limit = u32::try_from(limit)?;
            let mut cells = Vec::new();
            for granularity in [Granularity::Byte, Granularity::Page, Granularity::Adaptive] {
                let folder = place.join(format!("extra {name} {limit} {granularity:?}"));
                let options = log_options(granularity, limit);
                let test_bed = LogTestBed::create(&folder, PATTERN_FILE_BYTES, options)?;
                let since = test_bed.mark("reader")?;
                test_bed.write(&writes)?;
                let cut = test_bed.log.cut_held(|| ())?;
                let reported = test_bed.ranges_of(&cut, since)?;
                if reported.len() > limit as usize {
                    return Err(format!("{} extents where {limit} are allowed", reported.len()).into());
                }
                let more = reported.total_len_bytes().saturating_sub(exact);
                cells.push(Some(Cell::from(more as f64 / exact as f64 * 100.0)));
                drop((cut, test_bed));
                scratch::remove(&folder)?;
            }
            extra.push(format!("{name}, {told} of {extents}"), cells);
        }
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "granularity",
            title: "Granularity, memory and precision (section 5.3)".to_owned(),
            about: "Memory is the heap of the extents, as counted. For precision 8,000 writes to a file of 64 MiB: anywhere, in 12 clusters \
                    of 1 MiB, and as SQLite makes them; none of the three may keep more extents than the limit."
                .to_owned(),
            panels: vec![memory, extra],
        }],
        goals: Vec::new(),
    })
}

/// The bytes of an mlog on disk, in the paper's format and in ours.
fn density(_: &Setting<'_>, _: &Path) -> Result<Findings, SuiteError> {
    let mut panel = Panel::new(
        "Bytes of an mlog on disk",
        "writes",
        "bytes",
        &["ours", "paper's compact form", "mlogs"],
    );
    let count = CHANGED_BYTES / WRITE_BYTES;
    let mut logs: Vec<(&str, Vec<ByteRange>)> = vec![
        ("2 MiB sequential in 10 MiB", sequential_writes(count)?),
        ("2 MiB random in 10 MiB", random_writes(&mut Random::new(3), count)?),
    ];
    logs.extend(patterns()?.map(|(name, writes)| (name, writes)));
    for (name, writes) in logs {
        let density = mlog::density(&writes.into_iter().collect());
        let each = |bytes: u64| Some(Cell::from(bytes as f64 / density.mlogs as f64));
        panel.push(
            name,
            vec![
                each(density.layer_bytes),
                density.paper_bytes.and_then(each),
                Some(Cell::from(density.mlogs as f64)),
            ],
        );
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "density",
            title: "Bytes of an mlog on disk (section 3.2.1)".to_owned(),
            about: "The paper's form takes 4 bytes where offset and length are small, otherwise 8. Ours keeps gaps and lengths, in the \
                    largest unit that divides all of them. Without what frames a file's log."
                .to_owned(),
            panels: vec![panel],
        }],
        goals: Vec::new(),
    })
}
