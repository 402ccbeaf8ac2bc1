//! Contents that land in files while programs read, map and write them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use byteback_control::{Expected, WatchedFile, overtaken_in};
use byteback_delta::{Base, Target};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::ByteString;
use byteback_mount::CacheMode;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

use super::*;
use crate::coverage::assert_saved;
use crate::fixture::Fixture;
use crate::live::check_tree;
use crate::operations::{look, seed};
use crate::other_mount::OtherMount;
use crate::saved::{OpenBackup, Saved};

const UNQUEUED: Expected<'static> = Expected::Unqueued;

/// A shared mapping of the front of a file, which need not be as long.
struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is only used through volatile accesses and the kernel.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(file: &File, len: usize) -> Self {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), len, flags, MapFlags::SHARED, file, 0) }.unwrap();
        // The watchers of mounts that other tests make meanwhile would hold the mapping, and the
        // mount be busy. SAFETY: the new mapping.
        unsafe { madvise(start, len, Advice::LinuxDontFork) }.unwrap();
        Self {
            start: start.cast(),
            len,
        }
    }

    /// `at` lies within the file.
    fn load(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }

    fn bytes(&self, from: usize, to: usize) -> Vec<u8> {
        (from..to).map(|at| self.load(at)).collect()
    }

    fn store(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: the mapping.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // So that there is nothing to be waited for with the lock of the address space held, see
        // below.
        self.sync();
        // SAFETY: nobody has it any more.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn range(from: u64, to: u64) -> ByteRange {
    ByteRange::new(from, to).unwrap()
}

#[test]
fn landing_is_seen_at_once_by_open_files_and_mappings() {
    let mut random = SplitMix64::new(seed());
    let mut model = random.bytes(100_000);
    let content = model.clone();
    let mut rig = Rig::new(|tree| fs::write(tree.join("file"), &content).unwrap());
    let (path, landing) = (rig.fixture.tree().join("file"), rig.landing());
    let client = rig.fixture.client();
    let mut saved = Saved::default();
    OpenBackup::cut(&client, "other").save(&client, &mut saved);
    let cut = byteback_control::TreeService::open_cut(&client, &ByteString::from(b"before".to_vec())).unwrap();
    let cut = Path::new(std::ffi::OsStr::from_bytes(cut.path.as_bytes())).join("file");
    let opened = open(&path);
    let mapping = Mapping::of(&opened, 256 << 10);
    assert!(mapping.bytes(0, model.len()) == model);
    let check = |model: &[u8], what: &str| {
        assert_eq!(opened.metadata().unwrap().len(), model.len() as u64, "{what}");
        let mut read = vec![0; model.len() + 10];
        assert_eq!(opened.read_at(&mut read, 0).unwrap(), model.len(), "{what}");
        assert!(read[..model.len()] == *model, "{what}");
        assert!(mapping.bytes(0, model.len()) == model, "{what}");
        assert!(fs::read(&path).unwrap() == model, "{what}");
    };
    let node = rig.node("file");
    let mut file = done(landing.watch_file(node, UNQUEUED));
    let mut read = vec![0; 100];
    file.read_range(99_900, &mut read).unwrap();
    assert_eq!(read, model[99_900..]);
    let bytes = random.bytes(10_000);
    file.write_range(5_000, &bytes).unwrap();
    model[5_000..15_000].copy_from_slice(&bytes);
    check(&model, "write");
    file.set_len_bytes(200_001).unwrap();
    model.resize(200_001, 0);
    // The file has grown once all of a landing is there.
    drop(file);
    // Only the mapping is used: nothing else makes the kernel look how long the file is.
    assert_eq!(mapping.load(200_000), 0);
    check(&model, "grow");
    let mut file = done(landing.watch_file(node, UNQUEUED));
    let bytes = random.bytes(30_001);
    file.write_range(170_000, &bytes).unwrap();
    model[170_000..].copy_from_slice(&bytes);
    check(&model, "write behind");
    file.punch_hole(range(3_000, 50_000)).unwrap();
    model[3_000..50_000].fill(0);
    check(&model, "punch");
    file.set_len_bytes(30_000).unwrap();
    model.truncate(30_000);
    check(&model, "shrink");
    assert!(!file.was_changed() && file.overtaken().is_none());
    drop(file);
    rig.assert_silent();
    landing.sync().unwrap();
    assert!(fs::read(&cut).unwrap() == content);
    OpenBackup::cut(&client, "other").save(&client, &mut saved);
    assert_saved(CacheMode::Exact, &saved, &look(&rig.fixture.tree()), &String::new);
    // A sender that goes on knows where the file ends.
    rig.drain.server.nodes.get_mut(&node).unwrap().content = model.clone();
    let mut appending = File::options().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut appending, b"appended").unwrap();
    model.extend_from_slice(b"appended");
    check(&model, "append");
    rig.drain.finish();
    check_tree(&rig.drain.server, &rig.fixture.tree());
    drop((opened, mapping, appending));
    rig.end();
}

#[test]
fn zeros_that_land_on_a_hole_of_four_tebibytes_are_no_work() {
    const LEN: u64 = 4 << 40;
    let bytes = vec![b'b'; 600_000];
    let rig = Rig::new(|tree| fs::write(tree.join("file"), "begin").unwrap());
    let (path, landing) = (rig.fixture.tree().join("file"), rig.landing());
    let mut file = done(landing.watch_file(rig.node("file"), UNQUEUED));
    file.set_len_bytes(LEN).unwrap();
    for at in [LEN / 2, LEN - 600_000] {
        file.write_range(at, &bytes).unwrap();
    }
    // Piece by piece, as programs have to wait for each, this would take an hour.
    file.punch_hole(range(2, LEN - 600_000)).unwrap();
    assert!(!file.was_changed() && file.overtaken().is_none());
    drop(file);
    let opened = open(&path);
    let read = |at: u64, len: usize| {
        let mut read = vec![1; len];
        opened.read_exact_at(&mut read, at).unwrap();
        read
    };
    assert_eq!(read(0, 6), b"be\0\0\0\0");
    assert!(read(LEN / 2, bytes.len()) == vec![0; bytes.len()]);
    assert!(read(LEN - 600_000, bytes.len()) == bytes);
    assert!(opened.metadata().unwrap().blocks() * 512 < 1 << 20);
    drop(opened);
    rig.assert_silent();
    rig.end();
}

#[test]
fn landing_leaves_a_file_changed_before_its_first_piece() {
    let rig = Rig::new(|tree| fs::write(tree.join("file"), vec![b'a'; 50_000]).unwrap());
    let (path, landing) = (rig.fixture.tree().join("file"), rig.landing());
    let node = rig.node("file");
    let opened = open(&path);
    let mapping = Mapping::of(&opened, 50_000);
    let doings: [(&str, &dyn Fn()); 5] = [
        ("write", &|| opened.write_all_at(b"write", 100).unwrap()),
        // Also with the bytes that are there already: the program meant them to be there.
        ("write the same", &|| opened.write_all_at(b"write", 100).unwrap()),
        ("truncate", &|| opened.set_len(40_000).unwrap()),
        ("store", &|| mapping.store(20_000, b's')),
        ("punch", &|| {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&opened, mode, 0, 10).unwrap();
        }),
    ];
    let mut drain = Drain::new(rig.served(), 2, Trouble::default());
    drain.server = rig.drain.server.clone();
    for (what, doing) in doings {
        drain.finish();
        let mut file = done(landing.watch_file(node, UNQUEUED));
        doing();
        let expected = mapping.bytes(0, opened.metadata().unwrap().len() as usize);
        let error = file.write_range(10, b"from afar").unwrap_err();
        assert!(overtaken_in(&error).is_some(), "{what}: {error}");
        let error = file.set_len_bytes(7).unwrap_err();
        assert!(overtaken_in(&error).is_some(), "{what}: {error}");
        assert!(
            overtaken_in(&file.punch_hole(range(0, 5)).unwrap_err()).is_some(),
            "{what}"
        );
        assert!(file.overtaken().is_some(), "{what}");
        assert!(fs::read(&path).unwrap() == expected, "{what}");
    }
    drop((opened, mapping));
    drain.leave();
    rig.end();
}

/// A step of a landing, in the order in which a delta is applied in place: grown first, shrunk
/// last.
#[derive(Clone, Debug)]
enum Piece {
    Bytes(u64, Vec<u8>),
    Zeros(ByteRange),
    Len(u64),
}

fn pieces(random: &mut SplitMix64, base_len: u64) -> Vec<Piece> {
    let new_len = match random.below(3) {
        0 => base_len,
        1 => base_len + random.below(40_000),
        _ => random.below(base_len + 1),
    };
    let mut pieces = Vec::new();
    if new_len > base_len {
        pieces.push(Piece::Len(new_len));
    }
    let mut at = 0;
    for _ in 0..3 + random.below(12) {
        at += random.below(9_000);
        let len = (1 + random.below(9_000)).min(new_len.saturating_sub(at));
        if len == 0 {
            break;
        }
        pieces.push(match random.below(4) {
            0 => Piece::Zeros(range(at, at + len)),
            _ => Piece::Bytes(at, random.bytes(len as usize)),
        });
        at += len;
    }
    if new_len < base_len {
        pieces.push(Piece::Len(new_len));
    }
    pieces
}

fn land(file: &mut Box<dyn WatchedFile + '_>, piece: &Piece) -> std::io::Result<()> {
    match piece {
        Piece::Bytes(at, bytes) => file.write_range(*at, bytes),
        Piece::Zeros(range) => file.punch_hole(*range),
        Piece::Len(len) => file.set_len_bytes(*len),
    }
}

fn apply(content: &mut Vec<u8>, piece: &Piece) {
    match piece {
        Piece::Bytes(at, bytes) => content[*at as usize..][..bytes.len()].copy_from_slice(bytes),
        Piece::Zeros(range) => content[range.start() as usize..range.end() as usize].fill(0),
        Piece::Len(len) => content.resize(*len as usize, 0),
    }
}

/// A change that a program makes.
#[derive(Clone, Debug)]
enum Local {
    Write(u64, Vec<u8>),
    SetLen(u64),
    /// Zeros, as far as the file reached then.
    Punch(u64, u64),
    Store(u64, u8),
}

fn apply_local(content: &mut Vec<u8>, local: &Local) {
    let reach = |content: &mut Vec<u8>, end: u64| {
        if content.len() < end as usize {
            content.resize(end as usize, 0);
        }
    };
    match local {
        Local::Write(at, bytes) => {
            reach(content, at + bytes.len() as u64);
            content[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Local::SetLen(len) => content.resize(*len as usize, 0),
        Local::Punch(from, to) => {
            reach(content, *to);
            content[*from as usize..*to as usize].fill(0);
        }
        Local::Store(at, byte) => {
            reach(content, at + 1);
            content[*at as usize] = *byte;
        }
    }
}

const MAPPED_LEN: usize = 512 << 10;

/// Does something at random, or only reads.
fn do_locally(random: &mut SplitMix64, file: &File, mapping: &Mapping) -> Option<Local> {
    let now_len = file.metadata().unwrap().len();
    match random.below(12) {
        0..=3 => {
            let at = random.below(now_len + 6_000);
            let mut bytes = vec![0; 1 + random.below(6_000) as usize];
            match random.below(3) {
                // The bytes that are there already, as far as there are any.
                0 => {
                    let _ = file.read_at(&mut bytes, at).unwrap();
                }
                _ => bytes = random.bytes(bytes.len()),
            }
            file.write_all_at(&bytes, at).unwrap();
            Some(Local::Write(at, bytes))
        }
        4 => {
            let len = random.below(now_len + 20_000);
            file.set_len(len).unwrap();
            Some(Local::SetLen(len))
        }
        5 if now_len > 0 => {
            let from = random.below(now_len);
            let to = from + 1 + random.below(5_000);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, mode, from, to - from).unwrap();
            Some(Local::Punch(from, to.min(now_len)))
        }
        6 | 7 if now_len > 0 => {
            let at = random.below(now_len);
            let byte = mapping.load(at as usize).wrapping_add(1 + random.below(255) as u8);
            mapping.store(at as usize, byte);
            if random.below(3) == 0 {
                mapping.sync();
            }
            Some(Local::Store(at, byte))
        }
        _ => {
            // So that the kernel holds pages from before.
            let _ = mapping.bytes(0, now_len as usize);
            None
        }
    }
}

#[test]
fn landing_file_changed_meanwhile_ends_as_if_landed_before() {
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let mut rig = Rig::new(|_| {});
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let (mut changed, mut given_up) = (0, 0);
    for round in 0..120 {
        let name = format!("file{}", round % 7);
        let path = tree.join(&name);
        if round < 7 || random.below(10) == 0 {
            let len = 1 + random.below(80_000) as usize;
            fs::write(&path, random.bytes(len)).unwrap();
        }
        rig.drain.finish();
        let base = fs::read(&path).unwrap();
        let node = rig.node(&name);
        let (opened, pieces) = (open(&path), pieces(&mut random, base.len() as u64));
        let mapping = Mapping::of(&opened, MAPPED_LEN);
        let _ = mapping.bytes(0, base.len());
        let mut file = done(landing.watch_file(node, UNQUEUED));
        let (mut landed, mut locals) = (base.clone(), Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            land(&mut file, piece).unwrap_or_else(|error| panic!("round {round}: {piece:?}: {error}"));
            apply(&mut landed, piece);
            assert_eq!(Target::len_bytes(&file).unwrap(), landed.len() as u64);
            if index + 1 < pieces.len() {
                for _ in 0..random.below(3) {
                    locals.extend(do_locally(&mut random, &opened, &mapping));
                }
            }
        }
        drop(file);
        let mut model = landed.clone();
        for local in &locals {
            apply_local(&mut model, local);
        }
        let seen = fs::read(&path).unwrap();
        let first = seen.iter().zip(&model).position(|(seen, model)| seen != model);
        let reported: Vec<String> = locals.iter().map(brief).chain(pieces.iter().map(brief)).collect();
        assert!(
            first.is_none() && seen.len() == model.len(),
            "seed {seed}, round {round}: {} instead of {} bytes, first at {first:?}: base {}; {reported:#?}",
            seen.len(),
            model.len(),
            base.len()
        );
        assert!(mapping.bytes(0, model.len()) == model, "round {round}");
        drop((mapping, opened));
        assert!(fs::read(&path).unwrap() == model, "round {round}: after the last close");
        // The next group is based on what landed.
        rig.drain.server.nodes.get_mut(&node).unwrap().content = landed;
        rig.drain.finish();
        assert!(
            rig.drain.server.nodes[&node].content == model,
            "seed {seed}, round {round}: sent; {reported:#?}"
        );
        changed += usize::from(!locals.is_empty());
        given_up += usize::from(pieces.is_empty());
    }
    check_tree(&rig.drain.server, &tree);
    println!("{changed} of 120 were changed meanwhile, {given_up} had nothing to land");
    rig.end();
}

fn brief(of: &impl std::fmt::Debug) -> String {
    let text = format!("{of:?}");
    text.chars().take(60).collect()
}

/// Set for a process that is to use a file: its path.
const USED: &str = "BYTEBACK_TEST_USED";

/// The body of processes that use a file until nobody listens to them any more. They are processes
/// of their own: unmapping pages that the daemon is to write waits for it with the lock of the
/// address space held, for which a daemon in the same process may wait.
#[test]
#[ignore = "it is run by another test, in processes of its own"]
fn use_a_file() {
    let Some(path) = std::env::var_os(USED).map(std::path::PathBuf::from) else {
        return;
    };
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let stopping = std::sync::Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::read_to_string(std::io::stdin());
        stopping.store(true, Ordering::SeqCst);
    });
    let seed = seed();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || work(path, seed + thread, stop));
        }
    });
}

/// Reads, writes, stores and truncates until it is told to stop.
fn work(path: &Path, seed: u64, stop: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    while !stop.load(Ordering::SeqCst) {
        let opened = open(path);
        let mapping = Mapping::of(&opened, MAPPED_LEN);
        for _ in 0..random.below(60) {
            if random.below(20) == 0 {
                std::thread::sleep(Duration::from_millis(random.below(20)));
            }
            let now_len = opened.metadata().unwrap().len();
            match random.below(10) {
                0..=2 => {
                    let at = random.below(200_000);
                    let len = 1 + random.below(9_000) as usize;
                    let bytes = random.bytes(len);
                    opened.write_all_at(&bytes, at).unwrap();
                }
                3..=5 => {
                    let mut bytes = vec![0; 10_000];
                    let _ = opened.read_at(&mut bytes, random.below(200_000)).unwrap();
                }
                6 => {
                    let len = 1 + random.below(8_000) as usize;
                    let mut appending = File::options().append(true).open(path).unwrap();
                    std::io::Write::write_all(&mut appending, &random.bytes(len)).unwrap();
                    if now_len > 300_000 {
                        opened.set_len(FLOOR_LEN + random.below(190_000)).unwrap();
                    }
                }
                // Where no program cuts the file off: that would kill this process.
                7..=8 => mapping.store(random.below(FLOOR_LEN) as usize, random.below(256) as u8),
                _ => drop(mapping.bytes(0, FLOOR_LEN as usize)),
            }
        }
    }
}

/// Files that several processes map are never shorter.
const FLOOR_LEN: u64 = 60_000;

fn start_to_use(path: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "landing::contents::use_a_file",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(USED, path)
        .env("BYTEBACK_SEED", seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn landing_neither_hangs_busy_programs_nor_loses_their_writes() {
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let content = random.bytes(150_000);
    let mut rig = Rig::new(|tree| {
        for name in ["one", "two"] {
            fs::write(tree.join(name), &content).unwrap();
        }
    });
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let (mut landings, mut overtaken, mut changed) = (0, 0, 0);
    let mut programs = ["one", "two"].map(|name| start_to_use(&tree.join(name), seed));
    let signal = |programs: &[Child], signal| {
        for program in programs {
            rustix::process::kill_process(rustix::process::Pid::from_child(program), signal).unwrap();
        }
    };
    let began = Instant::now();
    let (mut landed_at, mut are_stopped) = (began, false);
    // At least this many, and at least this long.
    while landings < 10 || began.elapsed() < Duration::from_secs(5) {
        assert!(
            began.elapsed() < Duration::from_secs(600),
            "{landings} landed, {overtaken} overtaken"
        );
        // On a busy machine they may write faster than everything is taken; then there is never a
        // moment in which nothing waits.
        if !are_stopped && landed_at.elapsed() > Duration::from_secs(1) {
            signal(&programs, rustix::process::Signal::STOP);
            are_stopped = true;
        }
        rig.drain.step();
        let node = rig.node(["one", "two"][random.below(2) as usize]);
        let Landed::Done(mut file) = landing.watch_file(node, UNQUEUED).unwrap() else {
            continue;
        };
        // Nothing waits: the server has what is there.
        let mut content = rig.drain.server.nodes[&node].content.clone();
        let mut pieces = pieces(&mut random, content.len() as u64);
        for piece in &mut pieces {
            if let Piece::Len(len) = piece {
                *len = (*len).max(FLOOR_LEN);
            }
        }
        let mut has_started = false;
        for piece in &pieces {
            match land(&mut file, piece) {
                Ok(()) => {
                    has_started = true;
                    apply(&mut content, piece);
                }
                Err(error) => {
                    assert!(overtaken_in(&error).is_some() && !has_started, "{error}");
                    overtaken += 1;
                    break;
                }
            }
        }
        if has_started {
            landings += 1;
            changed += usize::from(file.was_changed());
            rig.drain.server.nodes.get_mut(&node).unwrap().content = content;
            landed_at = Instant::now();
            if std::mem::take(&mut are_stopped) {
                signal(&programs, rustix::process::Signal::CONT);
            }
        }
    }
    signal(&programs, rustix::process::Signal::CONT);
    for program in &mut programs {
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }
    rig.drain.finish();
    check_tree(&rig.drain.server, &tree);
    println!("{landings} landed, {changed} of them changed meanwhile, {overtaken} overtaken");
    rig.end();
}

/// A direct append comes in parts, each of a megabyte and at once. Where something landed in the
/// file before, they stay in their order.
#[test]
fn long_direct_append_stays_in_order_where_others_landed() {
    const APPENDED_LEN: usize = 4 << 20;
    let rig = Rig::new(|tree| fs::write(tree.join("file"), [b'a'; 8192]).unwrap());
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    let mut file = done(landing.watch_file(node, UNQUEUED));
    file.write_range(0, &[b'b'; 4096]).unwrap();
    drop(file);
    let mut opened = File::options();
    opened.append(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    let program = opened.open(&path).unwrap();
    let mut expected = fs::read(&path).unwrap();
    for round in 0..8_u64 {
        let buffer = noise(round, APPENDED_LEN + 4096);
        let aligned = buffer.as_ptr().align_offset(4096);
        let bytes = &buffer[aligned..][..APPENDED_LEN];
        assert_eq!(rustix::io::write(&program, bytes).unwrap(), APPENDED_LEN);
        expected.extend(bytes);
    }
    drop(program);
    assert!(fs::read(&path).unwrap() == expected);
    rig.end();
}

/// The lines of a file, each with its end.
fn lines_of(path: &Path) -> Vec<String> {
    let content = String::from_utf8(fs::read(path).unwrap()).unwrap();
    content.split_inclusive('\n').map(str::to_owned).collect()
}

/// Three programs read a file again and again while `act` runs; returns how often they did, and how
/// often there were zeros in it.
fn read_while(path: &Path, act: impl FnOnce()) -> (usize, usize) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let (mut seen, mut zeros) = (0usize, 0usize);
            while !stop.load(Ordering::SeqCst) {
                seen += 1;
                zeros += usize::from(fs::read(path).unwrap().contains(&0));
            }
            (seen, zeros)
        };
        let readers = [(); 3].map(|()| scope.spawn(read));
        {
            scopeguard::defer! { stop.store(true, Ordering::SeqCst) }
            act();
        }
        let reported = readers.map(|reader| reader.join().unwrap());
        let sum = |(seen, zeros): (usize, usize), more: (usize, usize)| (seen + more.0, zeros + more.1);
        reported.into_iter().fold((0, 0), sum)
    })
}

/// A program that reads while others cut the file off sees the old end, or the new one: it may
/// write back whatever it takes for the content. The kernel itself lets a reader see the new length
/// and a page from before, when it is interrupted between both: one read in some hundred thousand.
/// Where the kernel hears of the new end only after reads have shown it, that is one in two
/// thousand; where it is not told of the old one, one in eighty.
#[test]
fn readers_see_no_zeros_where_others_cut_a_file_off() {
    const ROUNDS: usize = 4000;
    let line = |number: usize| format!("line {number:033}\n");
    let long: String = (0..30).map(line).collect();
    let rig = Rig::new(|tree| fs::write(tree.join("file"), &long).unwrap());
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    let (seen, zeros) = read_while(&path, || {
        for round in 0..ROUNDS {
            let mut file = done(landing.watch_file(node, UNQUEUED));
            match round % 2 {
                0 => file.set_len_bytes(39 * (round as u64 % 29)).unwrap(),
                _ => file.write_range(0, long.as_bytes()).unwrap(),
            }
        }
    });
    println!("{zeros} of {seen} reads saw zeros");
    assert!(zeros <= 1 + seen / 20_000, "{zeros} of {seen} reads saw zeros");
    rig.end();
}

/// A file that others lengthen grows by zeros first, and its bytes land in pieces: readers see the
/// previous file until all is there.
#[test]
fn readers_see_no_zeros_where_others_lengthen_a_file() {
    const ROUNDS: usize = 1000;
    let line = |number: usize| format!("line {number:033}\n");
    let long: String = (0..30).map(line).collect();
    let rig = Rig::new(|tree| fs::write(tree.join("file"), &long[..39]).unwrap());
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    let (seen, zeros) = read_while(&path, || {
        for round in 0..ROUNDS {
            let mut file = done(landing.watch_file(node, UNQUEUED));
            let len = 39 * (1 + round % 29);
            file.set_len_bytes(39).unwrap();
            drop(file);
            let mut file = done(landing.watch_file(node, UNQUEUED));
            file.set_len_bytes(len as u64 + 39).unwrap();
            file.write_range(39, &long.as_bytes()[39..len]).unwrap();
            file.write_range(len as u64, &long.as_bytes()[len..len + 39]).unwrap();
            drop(file);
            assert_eq!(fs::metadata(&path).unwrap().len(), len as u64 + 39);
        }
    });
    println!("{zeros} of {seen} reads saw zeros");
    assert!(zeros <= 1 + seen / 20_000, "{zeros} of {seen} reads saw zeros");
    assert_eq!(
        fs::read(&path).unwrap(),
        &long.as_bytes()[..39 * (2 + (ROUNDS - 1) % 29)]
    );
    rig.end();
}

#[test]
fn file_that_cannot_be_lengthened_keeps_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let _small = OtherMount::new(&["-t", "tmpfs", "-o", "size=24m", "tmpfs"], folder.path());
    let prepare = |tree: &Path| fs::write(tree.join("file"), vec![b'a'; 5000]).unwrap();
    let rig = Rig::of(Fixture::inside(folder.path(), CacheMode::Exact), prepare);
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    let mut file = done(landing.watch_file(node, UNQUEUED));
    file.set_len_bytes(40 << 20).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5000);
    let error = file.write_range(5000, &vec![b'b'; 40 << 20][5000..]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert_eq!(Base::len_bytes(&file).unwrap(), 5000);
    drop(file);
    assert!(fs::read(&path).unwrap() == vec![b'a'; 5000]);
    rig.end();
}

/// A cut below the part that was gained in the same landing is true at once.
#[test]
fn file_that_is_lengthened_and_cut_ends_where_it_was_cut() {
    let rig = Rig::new(|tree| fs::write(tree.join("file"), vec![b'a'; 5000]).unwrap());
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    let len = || fs::metadata(&path).unwrap().len();
    let mut file = done(landing.watch_file(node, UNQUEUED));
    for (len_bytes, seen_bytes) in [
        (9000, 5000),
        (7000, 5000),
        (3000, 3000),
        (6000, 3000),
        (3000, 3000),
        (8000, 3000),
    ] {
        file.set_len_bytes(len_bytes).unwrap();
        assert_eq!(len(), seen_bytes, "after {len_bytes}");
    }
    file.write_range(3000, &[b'b'; 5000]).unwrap();
    assert_eq!(len(), 3000);
    drop(file);
    let expected: Vec<u8> = [vec![b'a'; 3000], vec![b'b'; 5000]].concat();
    assert!(fs::read(&path).unwrap() == expected);
    rig.end();
}

#[test]
fn lines_that_programs_append_while_others_land_are_all_there() {
    const LANDED: usize = 3000;
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let mut rig = Rig::new(|tree| fs::write(tree.join("file"), "the first line\n").unwrap());
    let (path, landing, node) = (rig.fixture.tree().join("file"), rig.landing(), rig.node("file"));
    // As where others changed a file that waits here: only the watch knows who was first.
    rig.served().live.give_up("the test says so");
    let stop = AtomicBool::new(false);
    let (landings, mut overtaken) = (AtomicUsize::new(0), 0);
    let mut expected: Vec<String> = Vec::new();
    std::thread::scope(|scope| {
        let programs: Vec<_> = (0..2)
            .map(|program| {
                let (path, stop, landings) = (&path, &stop, &landings);
                scope.spawn(move || {
                    let mut lines = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        let line = format!("program {program}, line {}\n", lines.len());
                        let mut file = File::options().append(true).open(path).unwrap();
                        std::io::Write::write_all(&mut file, line.as_bytes()).unwrap();
                        drop(file);
                        lines.push(line);
                        // The longer the file is, the longer others need for it: they must have
                        // their turn.
                        while lines.len() > landings.load(Ordering::SeqCst) + 40 && !stop.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    }
                    lines
                })
            })
            .collect();
        scopeguard::defer! { stop.store(true, Ordering::SeqCst) }
        let mut landed = 0;
        while landed < LANDED {
            landings.store(landed, Ordering::SeqCst);
            let mut file = done(landing.watch_file(node, Expected::Folded(&[])));
            let len = Base::len_bytes(&file).unwrap();
            let mut now = vec![0; len as usize];
            if file.read_range(0, &mut now).is_err() {
                continue;
            }
            // The others add a line, or rewrite the file: of their own lines only the last one
            // stays.
            let now = String::from_utf8(now).unwrap();
            let mut new = match random.below(3) {
                0 => now
                    .split_inclusive('\n')
                    .filter(|line| !line.starts_with("others"))
                    .collect(),
                _ => now.clone(),
            };
            new.push_str(&format!("others, line {landed}\n"));
            let same = now.bytes().zip(new.bytes()).take_while(|(now, new)| now == new).count();
            let land = |file: &mut Box<dyn WatchedFile + '_>| {
                file.set_len_bytes(new.len() as u64)?;
                file.write_range(same as u64, &new.as_bytes()[same..])
            };
            match land(&mut file) {
                Ok(()) => landed += 1,
                Err(error) => {
                    assert!(overtaken_in(&error).is_some(), "{error}");
                    overtaken += 1;
                }
            }
        }
        stop.store(true, Ordering::SeqCst);
        for program in programs {
            expected.extend(program.join().unwrap());
        }
    });
    println!(
        "{LANDED} landed, {overtaken} overtaken, {} lines were appended",
        expected.len()
    );
    let there: HashSet<String> = lines_of(&path).into_iter().collect();
    let lost: Vec<_> = expected.iter().filter(|line| !there.contains(*line)).collect();
    assert!(lost.is_empty(), "seed {seed}: {} lines are lost: {lost:?}", lost.len());
    let last = format!("others, line {}\n", LANDED - 1);
    assert!(there.contains(&last), "seed {seed}: what landed last is lost");
    let made_up: Vec<_> = there
        .iter()
        .filter(|line| !line.starts_with("program ") && !line.starts_with("others") && *line != "the first line\n")
        .collect();
    assert!(made_up.is_empty(), "seed {seed}: nobody wrote {made_up:?}");
    rig.drain.finish();
    check_tree(&rig.drain.server, &rig.fixture.tree());
    rig.end();
}
