//! The cost of a mount and of tracking: single operations, in short slices by turns, and whole
//! jobs.
//!
//! A slice lasts some milliseconds, so that all variants meet the same state of the machine. A
//! ratio is computed within each round, and the median of the ratios is reported. Ratios are of
//! speeds: 1 is equally fast, 0.5 half as fast.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::AtFlags;

use super::jobs;
use super::test_bed::{self, Ready, Variant};
use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::random::Random;
use crate::rig::interrupt;
use crate::rig::scratch::Scratch;

const FILE_BYTES: u64 = 64 << 20;
const STAT_FILES: usize = 500;

/// A timed operation or job in a folder.
struct Workload {
    name: &'static str,
    unit: &'static str,
    rounds: usize,
    /// Runs it once below the root and returns the time of one operation in `unit`. Each round has
    /// another number.
    run: fn(&Path, u64) -> Result<f64, String>,
}

const fn operation(name: &'static str, run: fn(&Path, u64) -> Result<f64, String>) -> Workload {
    Workload {
        name,
        unit: "us",
        rounds: 21,
        run,
    }
}

const WORKLOADS: [Workload; 12] = [
    operation("write 4 KiB, one after the other", |root, round| {
        writes(root, round, 4096, Order::Sequential)
    }),
    operation("write 4 KiB, anywhere", |root, round| {
        writes(root, round, 4096, Order::Anywhere)
    }),
    operation("write 100 B, one after the other", |root, round| {
        writes(root, round, 100, Order::Sequential)
    }),
    operation("write 1 KiB, anywhere", |root, round| {
        writes(root, round, 1024, Order::Anywhere)
    }),
    operation("append 100 B", |root, round| appends(root, round, 100)),
    operation("read 4 KiB, anywhere, warm", |root, round| reads(root, round, 4096)),
    operation("read 1 MiB, warm", |root, round| reads(root, round, 1 << 20)),
    operation("stat, warm", |root, _| stats(root)),
    operation("create, write 4 KiB, close, unlink", |root, _| creates(root)),
    Workload {
        name: "compile 50 files",
        unit: "s",
        rounds: 7,
        run: |root, _| jobs::compile(root),
    },
    Workload {
        name: "SQLite WAL commit, synchronous=normal",
        unit: "us",
        rounds: 11,
        run: |root, _| Ok(jobs::commit(root, 1000, "normal")? * 1e3),
    },
    Workload {
        name: "SQLite WAL commit, synchronous=full",
        unit: "us",
        rounds: 11,
        run: |root, _| Ok(jobs::commit(root, 200, "full")? * 5e3),
    },
];

/// Measures all workloads in all variants.
///
/// # Errors
/// If anything fails.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 1 << 30)?;
    let place = scratch.folder("speed")?;
    let mut variants = test_bed::make(&place, &Variant::ALL, setting.placement, |backing| {
        make_file(&backing.join("file"))?;
        fs::create_dir(backing.join("many"))?;
        for index in 0..STAT_FILES {
            fs::write(backing.join(format!("many/{index}")), b"small")?;
        }
        jobs::write_sources(backing)?;
        jobs::make_database(backing)
    })?;
    // All variants have the file in the page cache, as after writing it.
    for ready in &variants {
        fs::read(ready.root().join("file"))?;
    }
    let names = Variant::ALL.map(Variant::name);
    let mut panel = Panel::new("Time of one operation", "operation", "", &names);
    let mut ratios = Panel::new(
        "Speed, as a ratio",
        "operation",
        "1 = as fast",
        &[
            "tracking on / off",
            "exact / native",
            "fast / native",
            "untracked / native",
        ],
    );
    let mut goals = Vec::new();
    for workload in &WORKLOADS {
        tell(workload.name);
        let rounds = if setting.options.quick {
            workload.rounds.div_ceil(3)
        } else {
            workload.rounds
        };
        let times = measure(&variants, workload, rounds, setting)?;
        let cells = Variant::ALL
            .iter()
            .map(|variant| times.get(variant).map(Cell::from))
            .collect();
        panel.push(format!("{} ({})", workload.name, workload.unit), cells);
        let ratio = |slow: Variant, base: Variant| times[&base].over(&times[&slow]);
        let of = [
            ratio(Variant::Tracked, Variant::Untracked),
            ratio(Variant::Tracked, Variant::Native),
            ratio(Variant::Fast, Variant::Native),
            ratio(Variant::Untracked, Variant::Native),
        ];
        ratios.push(
            workload.name,
            of.iter().map(|samples| Some(Cell::from(samples))).collect(),
        );
        goals.extend(goals_of(workload.name, &of));
    }
    for variant in &mut variants {
        variant.unmount()?;
    }
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "speed",
            title: "What a mount and tracking cost".to_owned(),
            about: format!(
                "Slices of a few milliseconds by turns; threads: {}. Ratios are taken within each round.",
                setting.placement
            ),
            panels: vec![panel, ratios],
        }],
        goals,
    })
}

/// The goals of a workload, given the ratios on/off, exact/native and fast/native.
fn goals_of(name: &str, [on_off, exact, fast, _]: &[Samples; 4]) -> Vec<GoalRow> {
    let goal = |what: &str, limit, samples: &Samples| {
        GoalRow::new(format!("{what}: {name}"), "", Limit::AtLeast(limit), samples)
    };
    match name {
        "write 4 KiB, one after the other" | "write 4 KiB, anywhere" => {
            vec![
                goal("tracking on / off", 0.95, on_off),
                goal("mode fast / native", 0.8, fast),
            ]
        }
        "write 100 B, one after the other" | "write 1 KiB, anywhere" => vec![goal("mode fast / native", 0.8, fast)],
        "read 4 KiB, anywhere, warm" | "read 1 MiB, warm" | "stat, warm" => {
            vec![goal("mode exact / native", 0.9, exact)]
        }
        "compile 50 files" => {
            vec![
                goal("tracking on / off", 0.985, on_off),
                goal("mode exact / native", 0.95, exact),
            ]
        }
        "SQLite WAL commit, synchronous=normal" | "SQLite WAL commit, synchronous=full" => {
            vec![goal("mode exact / native", 0.5, exact)]
        }
        _ => Vec::new(),
    }
}

fn measure(
    variants: &[Ready],
    workload: &Workload,
    rounds: usize,
    setting: &Setting<'_>,
) -> Result<BTreeMap<Variant, Samples>, SuiteError> {
    let mut times: BTreeMap<Variant, Samples> = BTreeMap::new();
    // The first round warms up.
    for round in 0..=rounds {
        interrupt::check()?;
        for turn in 0..variants.len() {
            let ready = &variants[(turn + round) % variants.len()];
            let time = setting.placement.run(|| (workload.run)(ready.root(), round as u64))?;
            if round > 0 {
                times.entry(ready.variant).or_default().push(time);
            }
        }
    }
    Ok(times)
}

/// Creates the file that is read and written, page by page, so that the kernel caches it as single
/// pages. A file written in large pieces is cached in large folios, of which an overwritten page
/// costs several times as much, so that a mount seems to cost less.
fn make_file(path: &Path) -> Result<(), SuiteError> {
    let file = File::create(path)?;
    let mut random = Random::new(1);
    let mut page = [0; 4096];
    for place in 0..FILE_BYTES / 4096 {
        random.fill(&mut page);
        file.write_all_at(&page, place * 4096)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Order {
    Sequential,
    Anywhere,
}

fn told<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

/// Overwrites pieces of the file. Returns the microseconds of one.
fn writes(root: &Path, round: u64, len: usize, order: Order) -> Result<f64, String> {
    const COUNT: u64 = 1500;
    let path = root.join("file");
    let file = told(&path, OpenOptions::new().write(true).open(&path))?;
    let mut random = Random::new(round);
    let mut piece = vec![0; len];
    random.fill(&mut piece);
    let places = FILE_BYTES / len as u64;
    let offsets: Vec<u64> = (0..COUNT)
        .map(|index| match order {
            Order::Sequential => (round * COUNT + index) % places,
            Order::Anywhere => random.below(places),
        })
        .map(|place| place * len as u64)
        .collect();
    // The first write to a clean file makes its intent durable, once.
    told(&path, file.write_all_at(&piece, 0))?;
    let started = Instant::now();
    for &offset in &offsets {
        told(&path, file.write_all_at(&piece, offset))?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / COUNT as f64)
}

fn appends(root: &Path, round: u64, len: usize) -> Result<f64, String> {
    use std::io::Write;
    const COUNT: u32 = 1500;
    let path = root.join(format!("appended {round}"));
    let mut file = told(&path, OpenOptions::new().append(true).create(true).open(&path))?;
    let piece = vec![b'a'; len];
    told(&path, file.write_all(&piece))?;
    let started = Instant::now();
    for _ in 0..COUNT {
        told(&path, file.write_all(&piece))?;
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    drop(file);
    told(&path, fs::remove_file(&path))?;
    Ok(elapsed_s * 1e6 / f64::from(COUNT))
}

fn reads(root: &Path, round: u64, len: usize) -> Result<f64, String> {
    let count: u32 = if len > 4096 { 64 } else { 4000 };
    let path = root.join("file");
    let file = told(&path, File::open(&path))?;
    let mut random = Random::new(round);
    let mut piece = vec![0; len];
    let places = FILE_BYTES / len as u64;
    // Warm: the first pass over the file is not timed.
    for place in 0..FILE_BYTES >> 20 {
        let mut block = vec![0; 1 << 20];
        told(&path, file.read_exact_at(&mut block, place << 20))?;
    }
    let started = Instant::now();
    for _ in 0..count {
        told(&path, file.read_exact_at(&mut piece, random.below(places) * len as u64))?;
    }
    black_box(&piece);
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

fn stats(root: &Path) -> Result<f64, String> {
    const PASSES: u32 = 6;
    // Relative to their folder, like programs that look at many files.
    let path = root.join("many");
    let folder = told(&path, File::open(&path))?;
    let names: Vec<String> = (0..STAT_FILES).map(|index| index.to_string()).collect();
    let pass = || -> Result<(), String> {
        for name in &names {
            let stat = rustix::fs::statat(&folder, name.as_str(), AtFlags::empty());
            black_box(told(&path, stat.map_err(std::io::Error::from))?);
        }
        Ok(())
    };
    pass()?;
    let started = Instant::now();
    for _ in 0..PASSES {
        pass()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(PASSES) / STAT_FILES as f64)
}

fn creates(root: &Path) -> Result<f64, String> {
    const COUNT: u32 = 150;
    let piece = [7; 4096];
    let started = Instant::now();
    for index in 0..COUNT {
        let path = root.join(format!("many/new {index}"));
        told(&path, fs::write(&path, piece))?;
        told(&path, fs::remove_file(&path))?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(COUNT))
}
