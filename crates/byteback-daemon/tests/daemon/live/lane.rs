//! A lane: one thread that works in a directory of its own, step by step, and notes the number of
//! each operation in a ledger before it begins it.
//!
//! The work of a lane follows from its seed alone, so that its ledger tells what the directory must
//! be like. With each number it notes how far the other lanes were: its state may depend on that.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use byteback_host::random::SplitMix64;
use byteback_model::NodeKind;
use rustix::fs::{CWD, FallocateFlags, RenameFlags};

use super::server::Server;

pub(crate) const LEDGER: &str = "ledger";

/// A system call.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(PathBuf),
    /// Through a handle of its own, closed at once.
    Write(PathBuf, u64, Vec<u8>),
    SetLen(PathBuf, u64),
    Punch(PathBuf, u64, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf),
    Mkdir(PathBuf),
    Rmdir(PathBuf),
    Chmod(PathBuf, u32),
    /// Opens a file and keeps it open.
    Hold(PathBuf),
    /// Writes through that file, whatever its name is by now.
    HeldWrite(u64, Vec<u8>),
    LetGo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inode {
    kind: NodeKind,
    content: Vec<u8>,
    mode: u32,
}

/// A directory as it must be.
#[derive(Clone, Debug)]
pub(crate) struct Sim {
    names: BTreeMap<PathBuf, u64>,
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    held: Option<u64>,
}

const MODE_FILE: u32 = 0o644;
const MODE_DIR: u32 = 0o755;

impl Sim {
    pub(crate) fn new() -> Self {
        Self {
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            next: 0,
            held: None,
        }
    }

    fn add(&mut self, path: &Path, kind: NodeKind, mode: u32, content: Vec<u8>) {
        self.next += 1;
        self.names.insert(path.to_owned(), self.next);
        self.inodes.insert(self.next, Inode { kind, content, mode });
    }

    fn content(&mut self, inode: u64) -> &mut Vec<u8> {
        &mut self.inodes.get_mut(&inode).unwrap().content
    }

    fn write(&mut self, inode: u64, at: u64, bytes: &[u8]) {
        let (content, at) = (self.content(inode), usize::try_from(at).unwrap());
        if content.len() < at + bytes.len() {
            content.resize(at + bytes.len(), 0);
        }
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn move_below(&mut self, from: &Path, to: &Path) {
        let moved = self
            .names
            .keys()
            .filter(|path| path.starts_with(from))
            .cloned()
            .collect::<Vec<_>>();
        for path in moved {
            let inode = self.names.remove(&path).unwrap();
            let rest = path.strip_prefix(from).unwrap();
            let target = match rest.as_os_str().is_empty() {
                true => to.to_owned(),
                false => to.join(rest),
            };
            self.names.insert(target, inode);
        }
    }

    pub(crate) fn perform(&mut self, step: &Step) {
        match step {
            Step::Create(path) => self.add(path, NodeKind::File, MODE_FILE, Vec::new()),
            Step::Write(path, at, bytes) => self.write(self.names[path], *at, bytes),
            Step::SetLen(path, len) => {
                let inode = self.names[path];
                self.content(inode).resize(usize::try_from(*len).unwrap(), 0);
            }
            Step::Punch(path, at, len) => {
                let inode = self.names[path];
                let content = self.content(inode);
                let (at, end) = (usize::try_from(*at).unwrap(), usize::try_from(at + len).unwrap());
                let (at, end) = (at.min(content.len()), end.min(content.len()));
                content[at..end].fill(0);
            }
            Step::Unlink(path) | Step::Rmdir(path) => {
                self.names.remove(path);
            }
            Step::Rename(from, to, flags) if flags.contains(RenameFlags::EXCHANGE) => {
                let aside = PathBuf::from("\u{1}aside");
                self.move_below(from, &aside);
                self.move_below(to, from);
                self.move_below(&aside, to);
            }
            Step::Rename(from, to, _) => {
                if self.names[from] != self.names.get(to).copied().unwrap_or(0) {
                    self.names.remove(to);
                    self.move_below(from, to);
                }
            }
            Step::Link(from, to) => {
                let inode = self.names[from];
                self.names.insert(to.clone(), inode);
            }
            Step::Symlink(path) => self.add(path, NodeKind::Symlink, 0, b"somewhere".to_vec()),
            Step::Mkdir(path) => self.add(path, NodeKind::Directory, MODE_DIR, Vec::new()),
            Step::Chmod(path, mode) => {
                let inode = self.names[path];
                self.inodes.get_mut(&inode).unwrap().mode = *mode;
            }
            Step::Hold(path) => self.held = Some(self.names[path]),
            Step::HeldWrite(at, bytes) => self.write(self.held.unwrap(), *at, bytes),
            Step::LetGo => self.held = None,
        }
    }

    fn of_kind(&self, kind: NodeKind) -> Vec<PathBuf> {
        let all = self.names.iter().filter(|(_, inode)| self.inodes[inode].kind == kind);
        all.map(|(path, _)| path.clone()).collect()
    }

    /// The first difference from what the server has below `under`.
    pub(crate) fn difference(&self, server: &Server, under: &str) -> Option<String> {
        let mut seen = server.paths(under);
        seen.retain(|path, _| path.file_name() != Some(OsStr::new(LEDGER)) && path != Path::new(under));
        let mut inodes = BTreeMap::new();
        for (path, inode) in &self.names {
            let Some(node) = seen.remove(&Path::new(under).join(path)) else {
                return Some(format!("{} is missing", path.display()));
            };
            if *inodes.entry(*inode).or_insert(node) != node {
                return Some(format!("{} is another file", path.display()));
            }
            let (wanted, node) = (&self.inodes[inode], &server.nodes[&node]);
            let attributes = node.attributes.as_ref().unwrap();
            if node.kind != Some(wanted.kind) {
                return Some(format!("{} is {:?}", path.display(), node.kind));
            }
            if wanted.kind != NodeKind::Symlink && attributes.mode & 0o777 != wanted.mode {
                let (seen, wanted) = (attributes.mode & 0o777, wanted.mode);
                return Some(format!("{} has mode {seen:o} and not {wanted:o}", path.display()));
            }
            if wanted.kind == NodeKind::File && node.content != wanted.content {
                let first = node
                    .content
                    .iter()
                    .zip(&wanted.content)
                    .position(|(one, two)| one != two);
                let (seen, wanted) = (node.content.len(), wanted.content.len());
                return Some(format!(
                    "{} has {seen} bytes, not {wanted}; first {first:?}",
                    path.display()
                ));
            }
            if wanted.kind == NodeKind::Symlink && attributes.target.as_ref().unwrap().as_bytes() != wanted.content {
                return Some(format!("{} points elsewhere", path.display()));
            }
        }
        seen.keys().next().map(|path| format!("{} is too much", path.display()))
    }
}

fn in_pages(at: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (offset, byte) in (at..).zip(bytes) {
        match pieces.last_mut().filter(|_| offset % 4096 != 0) {
            Some((_, piece)) => piece.push(*byte),
            None => pieces.push((offset, vec![*byte])),
        }
    }
    pieces
}

/// Draws the steps of the next operation.
pub(crate) fn next_operation(sim: &Sim, random: &mut SplitMix64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut push = |step: Step| match step {
        // The kernel cuts writes at borders of pages: a program's write is no single step.
        Step::Write(path, at, bytes) => {
            for (at, piece) in in_pages(at, &bytes) {
                steps.push(Step::Write(path.clone(), at, piece));
            }
        }
        Step::HeldWrite(at, bytes) => {
            for (at, piece) in in_pages(at, &bytes) {
                steps.push(Step::HeldWrite(at, piece));
            }
        }
        step => steps.push(step),
    };
    let (files, dirs) = (sim.of_kind(NodeKind::File), sim.of_kind(NodeKind::Directory));
    let pick = |random: &mut SplitMix64, of: &[PathBuf]| of[random.below(of.len() as u64) as usize].clone();
    let place = |random: &mut SplitMix64| {
        let name = format!("n{}", random.below(7));
        match dirs.is_empty() || random.below(3) > 0 {
            true => PathBuf::from(name),
            false => pick(random, &dirs).join(name),
        }
    };
    let is_free = |path: &Path| !sim.names.contains_key(path);
    let bytes = |random: &mut SplitMix64| {
        let len = match random.below(4) {
            0 => random.below(12_000),
            _ => random.below(300),
        };
        random.bytes(len as usize + 1)
    };
    let content_len = |path: &Path| sim.inodes[&sim.names[path]].content.len() as u64;
    let target = place(random);
    match random.below(22) {
        0..=1 if is_free(&target) => {
            push(Step::Create(target.clone()));
            push(Step::Write(target, 0, bytes(random)));
        }
        2..=6 if !files.is_empty() => {
            let file = pick(random, &files);
            let at = random.below(content_len(&file) + 100);
            push(Step::Write(file, at, bytes(random)));
        }
        7 if !files.is_empty() => {
            let file = pick(random, &files);
            let len = random.below(content_len(&file) * 2 + 10);
            push(Step::SetLen(file, len));
        }
        8 if !files.is_empty() => {
            let file = pick(random, &files);
            let at = random.below(content_len(&file) + 1);
            push(Step::Punch(file, at, random.below(3000) + 1));
        }
        9 if !files.is_empty() => push(Step::Unlink(pick(random, &files))),
        10..=11 if !files.is_empty() => {
            let file = pick(random, &files);
            let is_dir = sim
                .names
                .get(&target)
                .is_some_and(|inode| sim.inodes[inode].kind == NodeKind::Directory);
            let flags = match (is_free(&target), random.below(3)) {
                (false, 0) if !is_dir => RenameFlags::EXCHANGE,
                _ => RenameFlags::empty(),
            };
            if file != target && !is_dir {
                push(Step::Rename(file, target, flags));
            }
        }
        12 if !files.is_empty() && is_free(&target) => push(Step::Link(pick(random, &files), target)),
        13 if is_free(&target) => match random.below(2) {
            0 => push(Step::Symlink(target)),
            _ if dirs.len() < 4 => push(Step::Mkdir(target)),
            _ => {}
        },
        14 if !dirs.is_empty() => {
            let dir = pick(random, &dirs);
            let is_empty = !sim.names.keys().any(|path| path != &dir && path.starts_with(&dir));
            if is_empty {
                push(Step::Rmdir(dir));
            } else if is_free(&target) && !target.starts_with(&dir) {
                push(Step::Rename(dir, target, RenameFlags::empty()));
            }
        }
        15 if !files.is_empty() => {
            let mode = [0o600, 0o644, 0o755][random.below(3) as usize];
            push(Step::Chmod(pick(random, &files), mode));
        }
        // A careful save: a new file with mostly the old bytes, renamed over the old one; perhaps
        // with a backup.
        16..=17 if !files.is_empty() => {
            let file = pick(random, &files);
            let temporary = PathBuf::from(format!("save{}", random.below(2)));
            if is_free(&temporary) {
                let mut content = sim.inodes[&sim.names[&file]].content.clone();
                let at = random.below(content.len() as u64 + 1) as usize;
                let len = random.below(50) as usize;
                let inserted = random.bytes(len);
                content.splice(at..at, inserted);
                push(Step::Create(temporary.clone()));
                for (number, piece) in content.chunks(4096).enumerate() {
                    push(Step::Write(temporary.clone(), number as u64 * 4096, piece.to_vec()));
                }
                let is_removed_first = random.below(3) == 0;
                if is_removed_first {
                    push(Step::Unlink(file.clone()));
                }
                push(Step::Rename(temporary, file, RenameFlags::empty()));
            }
        }
        // A careless one: in place, mostly the old bytes at other places; perhaps emptied before,
        // cut off behind, or given up midway.
        18..=19 if !files.is_empty() => {
            let file = pick(random, &files);
            let mut content = sim.inodes[&sim.names[&file]].content.clone();
            for _ in 0..=random.below(2) {
                let at = random.below(content.len() as u64 + 1) as usize;
                let end = (at + random.below(60) as usize).min(content.len());
                let len = random.below(60) as usize;
                let inserted = random.bytes(len);
                content.splice(at..end, inserted);
            }
            match random.below(4) {
                0 => push(Step::SetLen(file.clone(), 0)),
                1 => content.truncate(random.below(content.len() as u64 + 1) as usize),
                _ => {}
            }
            let piece_len = 1 + random.below(4096) as usize;
            for (number, piece) in content.chunks(piece_len).enumerate() {
                push(Step::Write(file.clone(), (number * piece_len) as u64, piece.to_vec()));
            }
            if random.below(2) == 0 {
                push(Step::SetLen(file, content.len() as u64));
            }
        }
        _ => match (sim.held, files.is_empty()) {
            (None, false) => push(Step::Hold(pick(random, &files))),
            (Some(_), _) if random.below(4) == 0 => push(Step::LetGo),
            (Some(_), _) => push(Step::HeldWrite(random.below(5000), bytes(random))),
            _ => {}
        },
    }
    steps
}

/// The other end: performs steps.
struct Hand {
    dir: PathBuf,
    held: Option<File>,
}

impl Hand {
    fn perform(&mut self, step: &Step) {
        let at = |path: &Path| self.dir.join(path);
        let open = |path: &Path| File::options().read(true).write(true).open(at(path)).unwrap();
        match step {
            Step::Create(path) => {
                let mut options = File::options();
                options
                    .write(true)
                    .create_new(true)
                    .mode(MODE_FILE)
                    .open(at(path))
                    .unwrap();
            }
            Step::Write(path, offset, bytes) => open(path).write_all_at(bytes, *offset).unwrap(),
            Step::SetLen(path, len) => open(path).set_len(*len).unwrap(),
            Step::Punch(path, offset, len) => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(open(path), mode, *offset, *len).unwrap();
            }
            Step::Unlink(path) => fs::remove_file(at(path)).unwrap(),
            Step::Rename(from, to, flags) => rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *flags).unwrap(),
            Step::Link(from, to) => fs::hard_link(at(from), at(to)).unwrap(),
            Step::Symlink(path) => std::os::unix::fs::symlink("somewhere", at(path)).unwrap(),
            Step::Mkdir(path) => fs::DirBuilder::new().mode(MODE_DIR).create(at(path)).unwrap(),
            Step::Rmdir(path) => fs::remove_dir(at(path)).unwrap(),
            Step::Chmod(path, mode) => fs::set_permissions(at(path), fs::Permissions::from_mode(*mode)).unwrap(),
            Step::Hold(path) => self.held = Some(open(path)),
            Step::HeldWrite(offset, bytes) => self.held.as_ref().unwrap().write_all_at(bytes, *offset).unwrap(),
            Step::LetGo => self.held = None,
        }
    }
}

/// Works until `stop`, from operation 1 on. `done`: how many operations each lane has completed.
pub(crate) fn work(dir: &Path, lane: usize, seed: u64, done: &[AtomicU64], stop: &dyn Fn(u64) -> bool) {
    let mut random = SplitMix64::new(seed);
    let mut sim = Sim::new();
    let mut hand = Hand {
        dir: dir.to_owned(),
        held: None,
    };
    let mut ledger = File::options()
        .append(true)
        .create(true)
        .open(dir.join(LEDGER))
        .unwrap();
    let mut number: u64 = 0;
    while !stop(number) {
        number += 1;
        let mut record = number.to_le_bytes().to_vec();
        for other in done {
            record.extend(other.load(Ordering::SeqCst).to_le_bytes());
        }
        ledger.write_all(&record).unwrap();
        for step in next_operation(&sim, &mut random) {
            hand.perform(&step);
            sim.perform(&step);
        }
        done[lane].store(number, Ordering::SeqCst);
    }
}

/// The server's version of a lane's ledger: the last number, and how far the other lanes were when
/// it was noted.
pub(crate) fn ledger(server: &Server, under: &str, lanes: usize) -> (u64, Vec<u64>) {
    let paths = server.paths(under);
    let Some(node) = paths.get(&Path::new(under).join(LEDGER)) else {
        return (0, vec![0; lanes]);
    };
    let content = &server.nodes[node].content;
    let record_len = 8 * (lanes + 1);
    assert_eq!(content.len() % record_len, 0, "a torn record");
    let records = content.chunks_exact(record_len).collect::<Vec<_>>();
    for (index, record) in records.iter().enumerate() {
        assert_eq!(
            record[..8],
            (index as u64 + 1).to_le_bytes(),
            "{under}: a record is missing"
        );
    }
    let Some(last) = records.last() else {
        return (0, vec![0; lanes]);
    };
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    (number(&last[..8]), last[8..].chunks_exact(8).map(number).collect())
}

fn first_of(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Follows a lane as the server sees it.
pub(crate) struct Follower {
    under: String,
    random: SplitMix64,
    /// After the operation with this number.
    sim: Sim,
    number: u64,
}

impl Follower {
    pub(crate) fn new(under: &str, seed: u64) -> Self {
        Self {
            under: under.to_owned(),
            random: SplitMix64::new(seed),
            sim: Sim::new(),
            number: 0,
        }
    }

    /// Checks that the server's directory is one that the lane had: after its last noted operation,
    /// before it, or in it.
    pub(crate) fn check(&mut self, server: &Server, noted: u64) -> Result<(), String> {
        if noted < self.number {
            return Err(format!("{}: operation {noted} follows {}", self.under, self.number));
        }
        while self.number + 1 < noted {
            for step in next_operation(&self.sim, &mut self.random) {
                self.sim.perform(&step);
            }
            self.number += 1;
        }
        let Some(before) = self.sim.difference(server, &self.under) else {
            return Ok(());
        };
        let mut differences = vec![before];
        if noted > self.number {
            let mut sim = self.sim.clone();
            let steps = next_operation(&sim, &mut self.random.clone());
            for step in &steps {
                sim.perform(step);
                match sim.difference(server, &self.under) {
                    None => return Ok(()),
                    Some(difference) => {
                        differences.push(format!("after {}: {difference}", first_of(&format!("{step:?}"))))
                    }
                }
            }
        }
        Err(format!(
            "{} is nothing that it was around operation {noted}: {differences:#?}",
            self.under
        ))
    }

    /// Checks that the server's directory is as the lane has left it.
    pub(crate) fn check_end(&mut self, server: &Server, noted: u64) {
        while self.number < noted {
            for step in next_operation(&self.sim, &mut self.random) {
                self.sim.perform(&step);
            }
            self.number += 1;
        }
        assert_eq!(
            self.sim.difference(server, &self.under),
            None,
            "{} at the end",
            self.under
        );
    }
}
