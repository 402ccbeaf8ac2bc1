//! Throughput of the mounted folder (Table III), and the cost of the checksums for a write.
//!
//! The three programs are filebench's fileserver, varmail and webserver, with their sequences of
//! calls and sizes, scaled down to suit a laptop: some threads, each with files of its own. As in
//! the paper, data to be sent is read and dropped, so that no server or network takes part. The
//! variants run one at a time, in turns. The daemon's CPU time, to its end, is reported beside the
//! throughput, because it says more on a machine with few processors.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

use byteback_mount::CacheMode;

use super::tell;
use crate::alternate::Samples;
use crate::figure::{Cell, Chart, Figure, Panel};
use crate::findings::Findings;
use crate::random::Random;
use crate::rig::hold::{Held, HeldMount, Sync};
use crate::rig::interrupt;
use crate::rig::scheduling::Placement;
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Native,
    PassThrough,
    Ours,
    OursWithChecksums,
}

impl Variant {
    const ALL: [Self; 4] = [Self::Native, Self::PassThrough, Self::Ours, Self::OursWithChecksums];

    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::PassThrough => "FUSE",
            Self::Ours => "byteback",
            Self::OursWithChecksums => "byteback with checksums",
        }
    }
}

/// A program with some threads.
struct Program {
    name: &'static str,
    /// The values of Table III, in the order of [`Variant::ALL`], MB/s.
    paper: [f64; 4],
    files: usize,
    file_bytes: usize,
    loops: usize,
    /// Runs one loop. Returns the number of bytes read and written. The files are `0`, `1` and so
    /// on.
    once: fn(&Path, &mut Worker) -> std::io::Result<u64>,
}

/// A thread of a program.
struct Worker {
    random: Random,
    files: usize,
    file_bytes: usize,
    /// The number of files that it has created.
    made: usize,
    buffer: Vec<u8>,
}

impl Worker {
    fn any(&mut self) -> usize {
        self.random.below(self.files as u64) as usize
    }

    fn read(&mut self, path: &Path) -> std::io::Result<u64> {
        self.buffer.clear();
        Ok(File::open(path)?.read_to_end(&mut self.buffer)? as u64)
    }

    fn content(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    fn append(&mut self, path: &Path, len: usize) -> std::io::Result<File> {
        let bytes = self.content(len);
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(&bytes)?;
        Ok(file)
    }
}

const THREADS: usize = 6;
const APPENDED_BYTES: usize = 16 << 10;

const PROGRAMS: [Program; 3] = [
    Program {
        name: "fileserver",
        paper: [116.0, 114.7, 78.3, 66.9],
        files: 60,
        file_bytes: 128 << 10,
        loops: 80,
        once: |folder, worker| {
            let new = folder.join(format!("new {}", worker.made));
            worker.made += 1;
            let (len, old, other) = (worker.file_bytes, worker.any(), worker.any());
            let content = worker.content(len);
            fs::write(&new, content)?;
            drop(worker.append(&folder.join(old.to_string()), APPENDED_BYTES)?);
            let read = worker.read(&folder.join(other.to_string()))?;
            fs::remove_file(&new)?;
            fs::metadata(folder.join(other.to_string()))?;
            Ok((len + APPENDED_BYTES) as u64 + read)
        },
    },
    Program {
        name: "varmail",
        paper: [5.5, 6.5, 4.6, 4.6],
        files: 60,
        file_bytes: 16 << 10,
        loops: 40,
        once: |folder, worker| {
            let (gone, old, other) = (worker.any(), worker.any(), worker.any());
            let gone = folder.join(gone.to_string());
            fs::remove_file(&gone)?;
            worker.append(&gone, APPENDED_BYTES)?.sync_all()?;
            let old = folder.join(old.to_string());
            let mut bytes = worker.read(&old)?;
            worker.append(&old, APPENDED_BYTES)?.sync_all()?;
            bytes += worker.read(&folder.join(other.to_string()))?;
            Ok(bytes + 2 * APPENDED_BYTES as u64)
        },
    },
    Program {
        name: "webserver",
        paper: [18.8, 19.6, 19.6, 19.5],
        files: 150,
        file_bytes: 16 << 10,
        loops: 300,
        once: |folder, worker| {
            let mut bytes = APPENDED_BYTES as u64;
            for _ in 0..10 {
                let file = worker.any();
                bytes += worker.read(&folder.join(file.to_string()))?;
            }
            drop(worker.append(&folder.join("log"), APPENDED_BYTES)?);
            Ok(bytes)
        },
    },
];

const WRITES: usize = 20_000;
const WRITES_FILE_BYTES: u64 = 64 << 20;

/// The result of a run.
#[derive(Clone, Copy)]
struct Ran {
    mb_per_s: f64,
    daemon_cpu_s: f64,
}

/// Measures all programs and variants.
///
/// # Errors
/// If anything fails.
pub(super) fn run(options: Options) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 2 << 30)?;
    let names = Variant::ALL.map(Variant::name);
    let mut speeds = Panel::new("Throughput", "program", "MB/s", &names).drawn_as(Chart::Bars { logarithmic: true });
    let mut costs = Panel::new("CPU time of the daemon", "program", "ms", &names);
    let mut paper = Panel::new("Table III of the paper", "program", "MB/s", &names);
    for program in &PROGRAMS {
        let rounds = rounds(options, |variant, round| {
            tell(&format!("{}: {}, round {}", program.name, variant.name(), round + 1));
            one(program, variant, &scratch, options.quick)
        })?;
        let row = |value: fn(&Ran) -> f64| cells(&rounds, value);
        speeds.push(program.name, row(|ran| ran.mb_per_s));
        costs.push(program.name, row(|ran| ran.daemon_cpu_s * 1e3));
        paper.push(
            program.name,
            program.paper.map(|value| Some(Cell::from(value))).to_vec(),
        );
    }
    let mut writes = Panel::new("CPU time of the daemon for one write", "writes", "us", &names);
    for (title, len) in [("4 KiB on page boundaries", 4096), ("1 KiB anywhere", 1024)] {
        let rounds = rounds(options, |variant, round| {
            tell(&format!("{title}: {}, round {}", variant.name(), round + 1));
            write(variant, len, &scratch)
        })?;
        writes.push(title, cells(&rounds, |ran| ran.daemon_cpu_s * 1e6 / WRITES as f64));
    }
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "table-3",
            title: "Speed of the folder while it is kept in sync (Table III)".to_owned(),
            about: format!(
                "{THREADS} threads, each with files of its own; what is to be sent is read and dropped, as in the paper."
            ),
            panels: vec![speeds, costs, paper, writes],
        }],
        goals: Vec::new(),
    })
}

fn rounds(
    options: Options,
    mut run: impl FnMut(Variant, usize) -> Result<Ran, SuiteError>,
) -> Result<BTreeMap<Variant, Vec<Ran>>, SuiteError> {
    let mut rounds: BTreeMap<Variant, Vec<Ran>> = BTreeMap::new();
    for round in 0..options.runs {
        for turn in 0..Variant::ALL.len() {
            interrupt::check()?;
            let variant = Variant::ALL[(turn + round) % Variant::ALL.len()];
            rounds.entry(variant).or_default().push(run(variant, round)?);
        }
    }
    Ok(rounds)
}

fn cells(rounds: &BTreeMap<Variant, Vec<Ran>>, value: fn(&Ran) -> f64) -> Vec<Option<Cell>> {
    let of = |variant| {
        rounds
            .get(&variant)
            .map(|rans| rans.iter().map(value).collect::<Samples>())
    };
    Variant::ALL
        .map(|variant| of(variant).as_ref().map(Cell::from))
        .to_vec()
}

/// Mounts the filled folder below `work` as this variant, runs `work_on` in it, and unmounts it.
fn in_variant(
    variant: Variant,
    work: &Path,
    folder: &Path,
    work_on: impl FnOnce(&Path) -> Result<u64, SuiteError>,
) -> Result<Ran, SuiteError> {
    let state = work.join("state");
    let is_ours = matches!(variant, Variant::Ours | Variant::OursWithChecksums);
    let held = Held {
        directory: folder,
        state: is_ours.then_some(state.as_path()),
        mode: CacheMode::Exact,
        placement: Placement::Free,
        sync: match variant {
            Variant::Native | Variant::PassThrough => None,
            Variant::Ours => Some(Sync { with_checksums: false }),
            Variant::OursWithChecksums => Some(Sync { with_checksums: true }),
        },
    };
    let mount = match variant {
        Variant::Native => None,
        _ => Some(HeldMount::start(&held, &work.join("log"))?),
    };
    let before_s = mount
        .as_ref()
        .map_or(Ok(0.0), |mount| mount.cost().map(|cost| cost.cpu_s))?;
    let started = Instant::now();
    let bytes = work_on(folder)?;
    let wall_s = started.elapsed().as_secs_f64();
    let daemon_cpu_s = match mount {
        Some(mount) => mount.end()?.cpu_s - before_s,
        None => 0.0,
    };
    Ok(Ran {
        mb_per_s: bytes as f64 / 1e6 / wall_s,
        daemon_cpu_s,
    })
}

fn one(program: &Program, variant: Variant, scratch: &Scratch, is_quick: bool) -> Result<Ran, SuiteError> {
    let work = scratch.folder("turn")?;
    let folder = work.join("folder");
    let loops = if is_quick {
        program.loops.div_ceil(4)
    } else {
        program.loops
    };
    let mut random = Random::new(11);
    for thread in 0..THREADS {
        let own = folder.join(thread.to_string());
        fs::create_dir_all(&own)?;
        for file in 0..program.files {
            let mut bytes = vec![0; program.file_bytes];
            random.fill(&mut bytes);
            fs::write(own.join(file.to_string()), bytes)?;
        }
    }
    let ran = in_variant(variant, &work, &folder, |folder| {
        let done: Result<Vec<u64>, String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|index| {
                    let own = folder.join(index.to_string());
                    let mut worker = Worker {
                        random: Random::new(index as u64),
                        files: program.files,
                        file_bytes: program.file_bytes,
                        made: 0,
                        buffer: Vec::new(),
                    };
                    scope.spawn(move || -> Result<u64, String> {
                        let mut bytes = 0;
                        for _ in 0..loops {
                            let once = (program.once)(&own, &mut worker);
                            bytes += once.map_err(|error| format!("{} in {}: {error}", program.name, own.display()))?;
                        }
                        Ok(bytes)
                    })
                })
                .collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|done| done.unwrap_or_else(|_| Err("a thread panicked".to_owned())))
                .collect()
        });
        Ok(done?.into_iter().sum())
    })?;
    scratch::remove(&work)?;
    Ok(ran)
}

/// Overwrites pieces of `len` bytes of a file that is in the page cache.
fn write(variant: Variant, len: usize, scratch: &Scratch) -> Result<Ran, SuiteError> {
    let work = scratch.folder("turn")?;
    let folder = work.join("folder");
    fs::create_dir(&folder)?;
    let mut random = Random::new(12);
    let mut bytes = vec![0; usize::try_from(WRITES_FILE_BYTES)?];
    random.fill(&mut bytes);
    fs::write(folder.join("file"), bytes)?;
    let ran = in_variant(variant, &work, &folder, |folder| {
        let file = OpenOptions::new().write(true).open(folder.join("file"))?;
        let mut piece = vec![0; len];
        for _ in 0..WRITES {
            random.fill(&mut piece);
            let at = match len {
                4096 => random.below(WRITES_FILE_BYTES / 4096) * 4096,
                _ => random.below(WRITES_FILE_BYTES - len as u64),
            };
            file.write_all_at(&piece, at)?;
        }
        Ok((WRITES * len) as u64)
    })?;
    scratch::remove(&work)?;
    Ok(ran)
}
