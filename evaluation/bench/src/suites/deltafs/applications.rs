//! Programs at work (Fig. 9 to 12 and 14, Table 2): the bytes that reach the device, the time
//! taken, and the number of pages kept as deltas.
//!
//! Each replay begins on a freshly mounted file system, and must end in the recorded tree after
//! another mount. Then the files that the program wrote to are read once from the device and again
//! from memory, in pages and in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use byteback_host::block::BLOCK_LEN_BYTES;
use byteback_volume::{DeltaMode, OpenOptions, VolumeStats};

use super::on_directory::{FileSystem, Mounted, OnDirectory, forget_image};
use super::on_volume::{self, OnVolume};
use super::stage::{self, Took};
use super::{database, guest, tell};
use crate::alternate::Samples;
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::random::Random;
use crate::rig::interrupt;
use crate::rig::scratch::{self, Scratch};
use crate::traces::operation::Operation;
use crate::traces::{self, Pace, Trace, Unmasked};
use crate::{Options, SuiteError};

/// The length of the volume and of each file system beside it.
const LEN_BYTES: u64 = 1 << 30;
/// The number of pages, of those that a program wrote to, that are read at most.
const READS_MAX: usize = 20_000;
/// The programs that overwrite much, to which the goals apply.
pub(super) const OVERWRITING: [&str; 4] = [
    "sqlite-chat-delete",
    "sqlite-chat-wal-40m",
    "chromium-social",
    database::NAME,
];
const MEAN_SAVED_PERCENT: f64 = 55.0;
const BEST_SAVED_PERCENT: f64 = 65.0;
const MIB: f64 = (1 << 20) as f64;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    /// The volume without deltas.
    Plain,
    /// With deltas in the inode.
    Inode,
    /// With deltas in the main area.
    Main,
    /// With both, the default.
    Both,
    /// With both, and compressed pages.
    BothCompressed,
    /// A file system of the kernel.
    Kernel(FileSystem),
}

impl Variant {
    /// The volume with deltas.
    const WITH_DELTAS: [Self; 4] = [Self::Inode, Self::Main, Self::Both, Self::BothCompressed];

    const ALL: [Self; 11] = [
        Self::Plain,
        Self::Inode,
        Self::Main,
        Self::Both,
        Self::BothCompressed,
        Self::Kernel(FileSystem::Ext4),
        Self::Kernel(FileSystem::Btrfs),
        Self::Kernel(FileSystem::BtrfsZstd),
        Self::Kernel(FileSystem::F2fs),
        Self::Kernel(FileSystem::F2fsLfs),
        Self::Kernel(FileSystem::F2fsCompressed),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "no deltas",
            Self::Inode => "inode",
            Self::Main => "main area",
            Self::Both => "both",
            Self::BothCompressed => "both, compressed",
            Self::Kernel(system) => system.name(),
        }
    }

    fn options(self) -> OpenOptions {
        let delta_mode = match self {
            Self::Inode => DeltaMode::Inode,
            Self::Main => DeltaMode::Main,
            Self::Both | Self::BothCompressed => DeltaMode::Both,
            Self::Plain | Self::Kernel(_) => DeltaMode::Off,
        };
        OpenOptions {
            delta_mode,
            ..OpenOptions::default()
        }
    }
}

/// The results of one replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) written_bytes: u64,
    took: Took,
    cold_read_ns: f64,
    warm_read_ns: f64,
    /// Bytes read from the device when each page was read for the first time.
    pub(super) cold_read_bytes: u64,
    stats: VolumeStats,
}

/// The results of one program and variant.
#[derive(Default)]
struct Results {
    written: Samples,
    write_ns: Samples,
    sync_ns: Samples,
    wall_s: Samples,
    cold_read_ns: Samples,
    warm_read_ns: Samples,
    stats: VolumeStats,
}

impl Results {
    fn add(&mut self, seen: &Seen) {
        let mean = |ns: u64, count: u64| ns as f64 / count.max(1) as f64;
        self.written.push(seen.written_bytes as f64 / MIB);
        self.write_ns.push(mean(seen.took.write_ns, seen.took.writes) / 1e3);
        self.sync_ns.push(mean(seen.took.sync_ns, seen.took.syncs) / 1e3);
        self.wall_s.push(seen.took.wall_s);
        self.cold_read_ns.push(seen.cold_read_ns / 1e3);
        self.warm_read_ns.push(seen.warm_read_ns / 1e3);
        self.stats = seen.stats;
    }
}

/// A program, with its initial tree unpacked.
pub(super) struct Program<'a> {
    pub(super) trace: &'a Trace,
    /// The folder of the initial tree, in `tree`.
    folder: PathBuf,
    /// The pages to read at the end, by path.
    pub(super) reads: Vec<(PathBuf, u64)>,
    final_hash: String,
}

/// Replays all programs on all variants, or on volumes only and once.
///
/// # Errors
/// If anything fails, or a replay ends in another tree than the recorded one.
pub(crate) fn run(options: Options, is_volumes_only: bool, traces: &[Trace]) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 4 << 30)?;
    let unmasked = Unmasked::begin();
    let mut table: Table<'_> = BTreeMap::new();
    for trace in traces {
        let program = prepare(&scratch, trace, &unmasked)?;
        table.insert(program.trace.name.clone(), (program, BTreeMap::new()));
    }
    let rounds = if is_volumes_only { 1 } else { options.runs };
    for round in 0..rounds {
        for (name, (program, results)) in &mut table {
            tell(&format!("{name}: round {} of {rounds}", round + 1));
            for turn in 0..Variant::ALL.len() {
                let variant = Variant::ALL[(turn + round) % Variant::ALL.len()];
                if matches!(variant, Variant::Kernel(system) if is_volumes_only || FileSystem::IN_GUEST.contains(&system))
                {
                    continue;
                }
                interrupt::check()?;
                let seen = match variant {
                    Variant::Kernel(system) => on_kernel(&scratch, system, program)?,
                    ours => on_volume(&scratch, &ours.options(), ours == Variant::BothCompressed, program)?,
                };
                results.entry(variant).or_default().add(&seen);
            }
        }
    }
    if is_volumes_only {
        tell("other file systems are left out");
    } else if guest::is_there() {
        for (name, (program, results)) in &mut table {
            tell(&format!("{name}: in a virtual machine"));
            for (system, counted) in guest::count(&scratch, program.trace, &program.folder, LEN_BYTES)? {
                if counted.tree != program.final_hash {
                    return Err(format!("{name} on {} ended in another tree", system.name()).into());
                }
                let written = counted.written_bytes as f64 / MIB;
                let results = results.entry(Variant::Kernel(system)).or_default();
                results.written.push(written);
            }
        }
    } else {
        tell("F2FS is left out: run 'evaluation/systems/machine install', and this from the root of the repository");
    }
    drop(unmasked);
    scratch.remove()?;
    Ok(tell_of(&table))
}

/// Unpacks a program's initial tree, and determines the pages to read at its end.
pub(super) fn prepare<'a>(scratch: &Scratch, trace: &'a Trace, unmasked: &Unmasked) -> Result<Program<'a>, SuiteError> {
    let folder = scratch.folder(&trace.name)?;
    fs::create_dir(folder.join("tree"))?;
    trace.unpack_initial(&folder.join("tree"))?;
    let plain = scratch.folder("plain")?;
    trace.unpack_initial(&plain)?;
    traces::replay(trace, &plain, Pace::FullSpeed, false, unmasked)?;
    let final_hash = traces::tree_hash(&plain)?;
    if trace
        .final_hash
        .as_ref()
        .is_some_and(|recorded| *recorded != final_hash)
    {
        return Err(format!("{}: the replay does not end in the recorded tree", trace.name).into());
    }
    let reads = pages_to_read(trace, &plain)?;
    scratch::remove(&plain)?;
    Ok(Program {
        trace,
        folder,
        reads,
        final_hash,
    })
}

/// Pages of files that were written to under their name at that time and still exist, in random
/// order.
fn pages_to_read(trace: &Trace, end: &Path) -> Result<Vec<(PathBuf, u64)>, SuiteError> {
    let mut open: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut written: BTreeSet<(PathBuf, u64)> = BTreeSet::new();
    for timed in &trace.operations {
        match &timed.operation {
            Operation::Create { path, handle, .. }
            | Operation::Open {
                path: Some(path),
                handle,
                ..
            } => {
                open.insert(*handle, path.clone());
            }
            Operation::Write { handle, offset, data } => {
                let Some(path) = open.get(handle).filter(|_| data.len > 0) else {
                    continue;
                };
                let page = |byte: u64| byte / BLOCK_LEN_BYTES as u64;
                let pages = page(*offset)..=page(offset + data.len as u64 - 1);
                written.extend(pages.map(|page| (path.clone(), page)));
            }
            _ => {}
        }
    }
    let mut reads = Vec::new();
    for (path, page) in written {
        let Ok(metadata) = fs::symlink_metadata(end.join(&path)) else {
            continue;
        };
        if metadata.is_file() && page * (BLOCK_LEN_BYTES as u64) < metadata.len() {
            reads.push((path, page));
        }
    }
    let mut random = Random::new(9);
    for index in (1..reads.len()).rev() {
        let other = usize::try_from(random.below(index as u64 + 1))?;
        reads.swap(index, other);
    }
    reads.truncate(READS_MAX);
    Ok(reads)
}

/// The mean time to read a page, in nanoseconds, over one read of all pages.
fn time_of_reads<F>(
    reads: &[(PathBuf, u64)],
    mut open: impl FnMut(&Path) -> Result<F, SuiteError>,
    mut read: impl FnMut(&F, u64, &mut [u8]) -> Result<(), SuiteError>,
) -> Result<f64, SuiteError> {
    let mut files: BTreeMap<&Path, F> = BTreeMap::new();
    for (path, _) in reads {
        if !files.contains_key(path.as_path()) {
            files.insert(path, open(path)?);
        }
    }
    let mut page_bytes = [0; BLOCK_LEN_BYTES];
    let started = Instant::now();
    for (path, page) in reads {
        let file = files.get(path.as_path()).ok_or("a file that was not opened")?;
        read(file, page * BLOCK_LEN_BYTES as u64, &mut page_bytes)?;
    }
    Ok(started.elapsed().as_nanos() as f64 / reads.len().max(1) as f64)
}

fn check_tree(program: &Program<'_>, variant: &str, tree: &Path) -> Result<(), SuiteError> {
    if traces::tree_hash(tree)? == program.final_hash {
        return Ok(());
    }
    Err(format!("{} on {variant} ended in another tree", program.trace.name).into())
}

/// Replays a program on a volume opened with these options, with or without compression of pages.
///
/// # Errors
/// If anything fails, or it ends in another tree than the recorded one.
pub(super) fn on_volume(
    scratch: &Scratch,
    options: &OpenOptions,
    is_compressed: bool,
    program: &Program<'_>,
) -> Result<Seen, SuiteError> {
    let image = scratch.path().join("volume.image");
    on_volume::make(&image, LEN_BYTES, is_compressed, &program.folder.join("tree"))?;
    forget_image(&image)?;
    let mut volume = OnVolume::open(&image, options, program.trace)?;
    let before = volume.counters();
    let took = stage::replay(program.trace, &mut volume)?;
    let written_bytes = volume.counters().written_bytes - before.written_bytes;
    let stats = volume.volume().stats();
    volume.close()?;
    forget_image(&image)?;
    let volume = OnVolume::open(&image, options, program.trace)?;
    let read = || {
        time_of_reads(
            &program.reads,
            |path| volume.find(path),
            |ino, offset, bytes| {
                volume.volume().read(*ino, offset, bytes)?;
                Ok(())
            },
        )
    };
    let before = volume.counters();
    let cold_read_ns = read()?;
    let cold_read_bytes = volume.counters().read_bytes - before.read_bytes;
    let warm_read_ns = read()?;
    let end = scratch.folder("end")?;
    volume.lay_out(&end)?;
    check_tree(program, "a volume", &end)?;
    scratch::remove(&end)?;
    volume.close()?;
    fs::remove_file(&image)?;
    Ok(Seen {
        written_bytes,
        took,
        cold_read_ns,
        warm_read_ns,
        cold_read_bytes,
        stats,
    })
}

fn on_kernel(scratch: &Scratch, system: FileSystem, program: &Program<'_>) -> Result<Seen, SuiteError> {
    let mut mounted = Mounted::make(scratch, system, LEN_BYTES)?;
    // Not the root: some file systems keep files of their own there.
    let tree = mounted.point().join("tree");
    fs::create_dir(&tree)?;
    program.trace.unpack_initial(&tree)?;
    mounted.mount_again()?;
    let before = mounted.written_bytes()?;
    let took = stage::replay(program.trace, &mut OnDirectory::begin(program.trace, &tree)?)?;
    let written_bytes = mounted.written_bytes()? - before;
    mounted.mount_again()?;
    let read = || {
        time_of_reads(
            &program.reads,
            |path| Ok(File::open(tree.join(path))?),
            |file, offset, bytes| {
                file.read_at(bytes, offset)?;
                Ok(())
            },
        )
    };
    let (cold_read_ns, warm_read_ns) = (read()?, read()?);
    check_tree(program, system.name(), &tree)?;
    Ok(Seen {
        written_bytes,
        took,
        cold_read_ns,
        warm_read_ns,
        ..Seen::default()
    })
}

type Table<'a> = BTreeMap<String, (Program<'a>, BTreeMap<Variant, Results>)>;

fn panel(title: &str, unit: &str, table: &Table<'_>, value: impl Fn(&Results) -> Option<Cell>) -> Panel {
    let columns: Vec<&str> = Variant::ALL.iter().map(|variant| variant.name()).collect();
    let mut panel = Panel::new(title, "program", unit, &columns).drawn_as(Chart::Bars { logarithmic: false });
    for (name, (_, results)) in table {
        let cells = Variant::ALL.iter().map(|variant| results.get(variant).and_then(&value));
        panel.push(name, cells.collect());
    }
    panel
}

fn tell_of(table: &Table<'_>) -> Findings {
    let cell = |samples: &Samples| (samples.len() > 0).then(|| Cell::from(samples));
    let written = Figure {
        id: "written",
        title: "Bytes that reach the device (Fig. 9)".to_owned(),
        about: "What was written while a program worked, with its syncs, and everything else synced once in thirty seconds of recorded time and at the end."
            .to_owned(),
        panels: vec![
            panel("written", "MiB", table, |results| cell(&results.written)),
            saved(table),
            blocks(table, Variant::Plain),
            blocks(table, Variant::Both),
            blocks(table, Variant::BothCompressed),
        ],
    };
    let latency = Figure {
        id: "latency",
        title: "Latency of writes and reads (Fig. 10)".to_owned(),
        about: "The volume is called as a library here, the others through system calls. Reads are of single pages of what the program wrote to, in random order, first after mounting, then once more."
            .to_owned(),
        panels: vec![
            panel("a write", "us, mean", table, |results| cell(&results.write_ns)),
            panel("a sync of a file", "us, mean", table, |results| cell(&results.sync_ns)),
            panel("a page read from the device", "us, mean", table, |results| cell(&results.cold_read_ns)),
            panel("a page read again", "us, mean", table, |results| cell(&results.warm_read_ns)),
            panel("the whole replay", "s", table, |results| cell(&results.wall_s)),
        ],
    };
    let kept = Figure {
        id: "deltas",
        title: "Deltas (Fig. 11 and 12)".to_owned(),
        about: "What became of overwritten pages whose old content was on the device: kept as deltas, in the inode \
                or packed into the main area; pushed out for other deltas, with their pages written; restored in idle \
                time."
            .to_owned(),
        panels: Variant::WITH_DELTAS
            .into_iter()
            .map(|variant| deltas(table, variant))
            .chain([hits(table)])
            .collect(),
    };
    let room = Figure {
        id: "room",
        title: "Making room in inodes (Fig. 14)".to_owned(),
        about: "Deltas that had to leave an inode for others or for addresses: how many, and how long programs waited until each was restored and set aside, to be packed or written as a page with the file.".to_owned(),
        panels: Variant::WITH_DELTAS.map(|variant| making_room(table, variant)).to_vec(),
    };
    Findings {
        figures: vec![workload(table), written, latency, kept, room],
        goals: goals(table),
    }
}

/// The share of bytes that a variant saves, compared with the volume without deltas, in percent.
fn saved_percent(results: &BTreeMap<Variant, Results>, variant: Variant) -> Option<f64> {
    let (with, without) = (results.get(&variant)?, results.get(&Variant::Plain)?);
    Some(100.0 * (1.0 - with.written.median() / without.written.median()))
}

fn saved(table: &Table<'_>) -> Panel {
    let columns = Variant::WITH_DELTAS.map(Variant::name);
    let mut panel = Panel::new("saved by deltas", "program", "% of what is written without", &columns)
        .drawn_as(Chart::Bars { logarithmic: false });
    for (name, (_, results)) in table {
        let percents = Variant::WITH_DELTAS.map(|variant| saved_percent(results, variant).map(Cell::from));
        panel.push(name, percents.to_vec());
    }
    panel
}

/// The blocks that the volume wrote, by kind.
fn blocks(table: &Table<'_>, variant: Variant) -> Panel {
    let title = format!("blocks of 4 KiB, {}", variant.name());
    let columns = ["contents", "directories", "moved", "nodes", "tables"];
    let mut panel = Panel::new(title, "program", "", &columns).drawn_as(Chart::Stacks);
    for (name, (_, results)) in table {
        let written = results
            .get(&variant)
            .map(|results| results.stats.written)
            .unwrap_or_default();
        let counts = [
            written.data,
            written.directories,
            written.moved,
            written.nodes,
            written.tables,
        ];
        panel.push(name, counts.map(|count| Some(Cell::from(count as f64))).to_vec());
    }
    panel
}

/// The fate of pages that were overwritten and whose base was on the device.
fn deltas(table: &Table<'_>, variant: Variant) -> Panel {
    let columns = [
        "overwritten",
        "kept",
        "in the inode",
        "packed",
        "pushed out",
        "restored",
    ];
    let mut panel = Panel::new(variant.name(), "program", "pages", &columns);
    for (name, (_, results)) in table {
        let counts = results
            .get(&variant)
            .map(|results| results.stats.deltas)
            .unwrap_or_default();
        let counts = [
            counts.overwritten,
            counts.kept,
            counts.kept_in_inode,
            counts.packed,
            counts.pushed_out,
            counts.restored,
        ];
        panel.push(name, counts.map(|count| Some(Cell::from(count as f64))).to_vec());
    }
    panel
}

/// How often a page's base is found in memory when it is compared (Fig. 11): programs that read it
/// first are not replayed.
fn hits(table: &Table<'_>) -> Panel {
    let columns = Variant::WITH_DELTAS.map(Variant::name);
    let mut panel = Panel::new("what pages were, found in memory", "program", "%", &columns);
    for (name, (_, results)) in table {
        let rate = |variant| {
            let counts = results.get(&variant)?.stats.deltas;
            (counts.looked_for > 0).then(|| 100.0 * counts.found_in_memory as f64 / counts.looked_for as f64)
        };
        panel.push(
            name,
            Variant::WITH_DELTAS
                .map(|variant| rate(variant).map(Cell::from))
                .to_vec(),
        );
    }
    panel
}

fn making_room(table: &Table<'_>, variant: Variant) -> Panel {
    let columns = ["deltas", "all, us", "each, us", "longest, us"];
    let mut panel = Panel::new(variant.name(), "program", "", &columns);
    for (name, (_, results)) in table {
        let counts = results.get(&variant).map(|results| results.stats.deltas);
        let counts = counts.unwrap_or_default();
        let left = counts.pushed_out + counts.moved_to_main;
        let us = |ns: u64| ns as f64 / 1e3;
        let each = us(counts.making_room_ns) / left.max(1) as f64;
        let cells = [
            left as f64,
            us(counts.making_room_ns),
            each,
            us(counts.making_room_longest_ns),
        ];
        panel.push(name, cells.map(|cell| Some(Cell::from(cell))).to_vec());
    }
    panel
}

/// The work of the programs (Table 2), as far as it was recorded: reads were not.
fn workload(table: &Table<'_>) -> Figure {
    let columns = [
        "written, MiB",
        "writes",
        "bytes in a write",
        "syncs",
        "pages overwritten, %",
    ];
    let mut panel = Panel::new("programs", "program", "", &columns);
    for (name, (program, results)) in table {
        let (mut bytes, mut writes, mut syncs) = (0, 0u64, 0u64);
        for timed in &program.trace.operations {
            match &timed.operation {
                Operation::Write { data, .. } => {
                    bytes += data.len;
                    writes += 1;
                }
                Operation::Fsync { .. } | Operation::FsyncDir { .. } => syncs += 1,
                _ => {}
            }
        }
        let overwritten = results.get(&Variant::Both).and_then(|both| {
            let contents = results.get(&Variant::Plain)?.stats.written.data;
            Some(100.0 * both.stats.deltas.overwritten as f64 / contents.max(1) as f64)
        });
        let cells = [
            Some(bytes as f64 / MIB),
            Some(writes as f64),
            Some(bytes as f64 / writes.max(1) as f64),
            Some(syncs as f64),
            overwritten,
        ];
        panel.push(name, cells.map(|cell| cell.map(Cell::from)).to_vec());
    }
    Figure {
        id: "workload",
        title: "Programs (Table 2)".to_owned(),
        about: "What was recorded of each program. Of pages of content that reach the device without deltas, those that replace one that is on the device.".to_owned(),
        panels: vec![panel],
    }
}

fn goals(table: &Table<'_>) -> Vec<GoalRow> {
    let variants = [Variant::Both, Variant::BothCompressed];
    variants
        .into_iter()
        .flat_map(|variant| goals_of(table, variant))
        .collect()
}

fn goals_of(table: &Table<'_>, variant: Variant) -> Vec<GoalRow> {
    let saved = |name: &str| {
        let (_, results) = table.get(name)?;
        saved_percent(results, variant)
    };
    let named = |what: &str| format!("{}: {what}", variant.name());
    let overwriting: Vec<f64> = OVERWRITING.iter().filter_map(|name| saved(name)).collect();
    let all = table.keys().filter_map(|name| saved(name));
    let mut goals = Vec::new();
    if overwriting.len() == OVERWRITING.len() {
        let mean = overwriting.iter().sum::<f64>() / overwriting.len() as f64;
        let best = overwriting.iter().copied().fold(f64::NAN, f64::max);
        goals.push(GoalRow::new(
            named("bytes saved, mean of programs that overwrite much"),
            "%",
            Limit::AtLeast(MEAN_SAVED_PERCENT),
            mean,
        ));
        goals.push(GoalRow::new(
            named("bytes saved, the best of them"),
            "%",
            Limit::AtLeast(BEST_SAVED_PERCENT),
            best,
        ));
    }
    let least = all.fold(f64::NAN, f64::min);
    goals.push(GoalRow::new(
        named("bytes saved, the least of all programs"),
        "%",
        Limit::AtLeast(0.0),
        least,
    ));
    goals
}
