//! A tree in memory, and random operations on it and on a volume.

use super::super::*;
use byteback_host::random::SplitMix64;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;

/// A content, by pages; what is not there is zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) len: u64,
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Content {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let in_page = (at % PAGE) as usize;
            let len = (PAGE as usize - in_page).min(data.len() - done);
            let page = self
                .pages
                .entry(at / PAGE)
                .or_insert_with(|| Arc::new(vec![0; PAGE as usize]));
            Arc::make_mut(page)[in_page..in_page + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        self.len = self.len.max(offset + data.len() as u64);
    }

    fn zero(&mut self, from: u64, end: u64) {
        let pages = from / PAGE..end.div_ceil(PAGE).max(from / PAGE);
        let mut empty = Vec::new();
        for (page, bytes) in self.pages.range_mut(pages) {
            let start = page * PAGE;
            let place = from.max(start)..end.min(start + PAGE);
            Arc::make_mut(bytes)[(place.start - start) as usize..(place.end - start) as usize].fill(0);
            if bytes.iter().all(|byte| *byte == 0) {
                empty.push(*page);
            }
        }
        for page in empty {
            self.pages.remove(&page);
        }
    }

    fn set_len(&mut self, len: u64) {
        self.zero(len, u64::MAX);
        self.len = len;
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(offset + len as u64);
        let mut read = vec![0; end.saturating_sub(offset) as usize];
        let pages = offset / PAGE..end.div_ceil(PAGE).max(offset / PAGE);
        for (page, bytes) in self.pages.range(pages) {
            let start = page * PAGE;
            let place = offset.max(start)..end.min(start + PAGE);
            read[(place.start - offset) as usize..(place.end - offset) as usize]
                .copy_from_slice(&bytes[(place.start - start) as usize..(place.end - start) as usize]);
        }
        read
    }
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) content: Content,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) entries: BTreeMap<Vec<u8>, u32>,
    parent: u32,
}

impl Node {
    pub(super) fn is_directory(&self) -> bool {
        self.mode >> 12 == 4
    }
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Make(u32, Vec<u8>, u32),
    Symlink(u32, Vec<u8>, Vec<u8>),
    Link(u32, u32, Vec<u8>),
    Unlink(u32, Vec<u8>, bool),
    RemoveDirectory(u32, Vec<u8>),
    Rename((u32, Vec<u8>), (u32, Vec<u8>), Rename),
    Write(u32, u64, Vec<u8>),
    Read(u32, u64, usize),
    SetLen(u32, u64),
    Allocate(u32, Allocate, u64, u64),
    SetXattr(u32, Vec<u8>, Vec<u8>),
    RemoveXattr(u32, Vec<u8>),
    Chmod(u32, u32),
    SyncFile(u32),
    Sync,
    LetGo,
}

/// See the module. Numbers of files are those of the volume.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) nodes: BTreeMap<u32, Node>,
    held: BTreeSet<u32>,
}

fn pick<T: Clone>(random: &mut SplitMix64, from: &[T]) -> Option<T> {
    let index = random.below(from.len() as u64);
    from.get(index as usize).cloned()
}

fn offset(random: &mut SplitMix64, node: &Node) -> u64 {
    match random.below(12) {
        0 => random.below(6_000_000),
        1 => random.below(1 << 40),
        2 => node.content.len,
        3 | 4 => random.below(3_600),
        _ => random.below(node.content.len.min(200_000) + 10_000),
    }
}

impl Step {
    pub(super) fn draw(random: &mut SplitMix64, model: &Model) -> Self {
        let dirs = model.of(Node::is_directory);
        let files = model.of(|node| node.mode >> 12 == 8);
        let any = model.of(|_| true);
        let dir = pick(random, &dirs).unwrap();
        let new_name = |random: &mut SplitMix64| match random.below(12) {
            0 => random.bytes(200).iter().map(|byte| b'a' + byte % 26).collect(),
            _ => format!("name {}", random.below(60)).into_bytes(),
        };
        let a_name = |random: &mut SplitMix64, dir: u32| {
            let names: Vec<_> = model.nodes[&dir].entries.keys().cloned().collect();
            let old = pick(random, &names);
            match (random.coin(), old) {
                (true, Some(name)) => name,
                _ => new_name(random),
            }
        };
        let attribute = format!("user.{}", random.below(6)).into_bytes();
        let file = pick(random, &files);
        match (random.below(40), file) {
            (0..=5, _) | (_, None) => Self::Make(dir, a_name(random, dir), 0o100_644),
            (6 | 7, _) => Self::Make(dir, a_name(random, dir), 0o040_755),
            (8, _) => {
                let longest = if random.coin() { 100 } else { 4_095 };
                let len = 1 + random.below(longest) as usize;
                Self::Symlink(dir, a_name(random, dir), random.bytes(len))
            }
            (9, _) => Self::Link(pick(random, &any).unwrap(), dir, a_name(random, dir)),
            (10..=12, _) => Self::Unlink(dir, a_name(random, dir), random.below(4) == 0),
            (13, _) => Self::RemoveDirectory(dir, a_name(random, dir)),
            (14..=17, _) => {
                let to = pick(random, &dirs).unwrap();
                let how = [Rename::Replace, Rename::Replace, Rename::NoReplace, Rename::Exchange];
                let (from_name, to_name) = (a_name(random, dir), a_name(random, to));
                Self::Rename((dir, from_name), (to, to_name), pick(random, &how).unwrap())
            }
            // A program that keeps records: it overwrites a few bytes.
            (18..=21, Some(file)) if model.nodes[&file].content.len > 0 => {
                let offset = random.below(model.nodes[&file].content.len.min(60_000));
                let longest = [8, 40, 300][random.below(3) as usize];
                let len = 1 + random.below(longest) as usize;
                Self::Write(file, offset, random.bytes(len))
            }
            (18..=27, Some(file)) => {
                let offset = offset(random, &model.nodes[&file]);
                let longest = [10, 60, 4_000, 20_000, 150_000][random.below(5) as usize];
                let len = 1 + random.below(longest) as usize;
                Self::Write(file, offset, random.bytes(len))
            }
            (28 | 29, Some(file)) => {
                let offset = offset(random, &model.nodes[&file]);
                let longest = [30_000, 400_000][random.below(2) as usize];
                Self::Read(file, offset, random.below(longest) as usize)
            }
            (30, Some(file)) => Self::SetLen(file, offset(random, &model.nodes[&file])),
            (31, Some(file)) => {
                let how = [
                    Allocate::Room,
                    Allocate::RoomKeepingLength,
                    Allocate::Punch,
                    Allocate::Punch,
                    Allocate::Zero,
                    Allocate::ZeroKeepingLength,
                ];
                let offset = offset(random, &model.nodes[&file]);
                Self::Allocate(file, pick(random, &how).unwrap(), offset, 1 + random.below(30_000))
            }
            (32 | 33, _) => {
                let longest = [20, 150, 2_000][random.below(3) as usize];
                let len = random.below(longest) as usize;
                Self::SetXattr(pick(random, &any).unwrap(), attribute, random.bytes(len))
            }
            (34, _) => Self::RemoveXattr(pick(random, &any).unwrap(), attribute),
            (35, _) => Self::Chmod(pick(random, &any).unwrap(), random.below(0o1000) as u32),
            (36 | 37, Some(file)) => Self::SyncFile(file),
            (38, _) if random.below(4) == 0 => Self::Sync,
            _ => Self::LetGo,
        }
    }

    /// A database's changes of a few files: small ones here and there. Some of the files are
    /// synced, truncated, lengthened, removed and created again.
    pub(super) fn record(random: &mut SplitMix64, model: &Model) -> Self {
        let name = format!("records {}", random.below(20) / 9).into_bytes();
        let root = &model.nodes[&1];
        let Some(file) = root.entries.get(&name).copied() else {
            return Self::Make(1, name, 0o100_644);
        };
        if model.nodes[&file].mode >> 12 != 8 {
            return Self::draw(random, model);
        }
        let len = model.nodes[&file].content.len;
        if len < 100_000 {
            return Self::Write(file, len, random.bytes(30 * 4096));
        }
        match random.below(120) {
            0..=3 => Self::SyncFile(file),
            4 if random.coin() => Self::Sync,
            5 if random.below(3) == 0 => Self::Unlink(1, name, random.coin()),
            // Slots that deltas have taken, and pages behind them.
            6 => Self::Write(file, random.below(860) * 4096, random.bytes(10)),
            7 => Self::Write(file, random.below(1_800) * 4096, random.bytes(10)),
            8 if random.coin() => Self::SetLen(file, len / 2 + random.below(len)),
            9 => {
                let how = if random.coin() { Allocate::Punch } else { Allocate::Zero };
                Self::Allocate(file, how, random.below(len), 1 + random.below(20_000))
            }
            // All of a page.
            10 => Self::Write(file, random.below(30) * 4096, random.bytes(4096)),
            11 => Self::Read(file, random.below(len), 30_000),
            12 => {
                // As it was.
                let offset = random.below(30) * 4096;
                let before = model.nodes[&file].content.read(offset, 4096);
                Self::Write(file, offset, before)
            }
            _ => {
                let longest = [30, 200, 400, 800][random.below(4) as usize];
                let count = 1 + random.below(longest) as usize;
                Self::Write(file, random.below(30 * 4096 - 900), random.bytes(count))
            }
        }
    }

    /// The same, but of contents, if that is asked for, most can be compressed to a quarter or so.
    pub(super) fn compressible(self, is_asked: bool) -> Self {
        match self {
            Self::Write(file, offset, mut bytes) if is_asked && bytes.first().is_some_and(|byte| byte % 8 > 0) => {
                bytes.iter_mut().for_each(|byte| *byte &= 3);
                Self::Write(file, offset, bytes)
            }
            other => other,
        }
    }

    /// A step that takes room.
    pub(super) fn fill(random: &mut SplitMix64, model: &Model) -> Self {
        let files = model.of(|node| node.mode >> 12 == 8);
        match pick(random, &files) {
            Some(file) if random.below(6) > 0 => {
                let len = 1 + random.below(60_000) as usize;
                Self::Write(file, random.below(300_000), random.bytes(len))
            }
            _ => Self::draw(random, model),
        }
    }
}

impl Model {
    pub(super) fn new() -> Self {
        let root = Node {
            mode: 0o040_755,
            links: 2,
            parent: 1,
            ..Node::default()
        };
        Self {
            nodes: BTreeMap::from([(1, root)]),
            held: BTreeSet::new(),
        }
    }

    /// Files with a name.
    pub(super) fn of(&self, which: impl Fn(&Node) -> bool) -> Vec<u32> {
        let chosen = self.nodes.iter().filter(|(_, node)| which(node) && node.links > 0);
        chosen.map(|(ino, _)| *ino).collect()
    }

    fn entry(&self, dir: u32, name: &[u8]) -> Option<u32> {
        self.nodes[&dir].entries.get(name).copied()
    }

    fn node(&mut self, ino: u32) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn is_below(&self, dir: u32, above: u32) -> bool {
        let mut at = dir;
        while at != above {
            if at == 1 {
                return false;
            }
            at = self.nodes[&at].parent;
        }
        true
    }

    fn lose(&mut self, ino: u32, is_directory: bool) {
        let node = self.node(ino);
        node.links = if is_directory { 0 } else { node.links - 1 };
        if node.links == 0 && !self.held.contains(&ino) {
            self.nodes.remove(&ino);
        }
    }

    /// Expected result of a step that changes names, if the volume is not full.
    fn expect(&self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::Make(dir, name, _) | Step::Symlink(dir, name, _) => match self.entry(*dir, name) {
                Some(_) => Err(Errno::EXIST),
                None => Ok(()),
            },
            Step::Link(ino, dir, name) => match self.entry(*dir, name) {
                _ if self.nodes[ino].is_directory() => Err(Errno::ISDIR),
                Some(_) => Err(Errno::EXIST),
                None => Ok(()),
            },
            Step::Unlink(dir, name, _) => match self.entry(*dir, name) {
                None => Err(Errno::NOENT),
                Some(ino) if self.nodes[&ino].is_directory() => Err(Errno::ISDIR),
                Some(_) => Ok(()),
            },
            Step::RemoveDirectory(dir, name) => match self.entry(*dir, name) {
                None => Err(Errno::NOENT),
                Some(ino) if !self.nodes[&ino].is_directory() => Err(Errno::NOTDIR),
                Some(ino) if !self.nodes[&ino].entries.is_empty() => Err(Errno::NOTEMPTY),
                Some(_) => Ok(()),
            },
            Step::Rename((dir, name), (to_dir, to_name), how) => {
                let from = self.entry(*dir, name).ok_or(Errno::NOENT)?;
                let to = self.entry(*to_dir, to_name);
                match (how, to) {
                    (Rename::NoReplace, Some(_)) => return Err(Errno::EXIST),
                    (Rename::Exchange, None) => return Err(Errno::NOENT),
                    (_, Some(to)) if to == from => return Ok(()),
                    _ => {}
                }
                let is_dir = self.nodes[&from].is_directory();
                if is_dir && self.is_below(*to_dir, from) {
                    return Err(Errno::INVAL);
                }
                let Some(to) = to else { return Ok(()) };
                let to_is_dir = self.nodes[&to].is_directory();
                match (how, is_dir, to_is_dir) {
                    (Rename::Exchange, _, true) if self.is_below(*dir, to) => Err(Errno::INVAL),
                    (Rename::Exchange, _, _) => Ok(()),
                    (_, true, false) => Err(Errno::NOTDIR),
                    (_, false, true) => Err(Errno::ISDIR),
                    (_, true, true) if !self.nodes[&to].entries.is_empty() => Err(Errno::NOTEMPTY),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Files that a step looks at or changes, as far as they are there.
    pub(super) fn files_of(&self, step: &Step) -> Vec<u32> {
        let named = |dir: u32, name: &[u8]| [Some(dir), self.entry(dir, name)];
        let files: Vec<Option<u32>> = match step {
            Step::Make(dir, name, _)
            | Step::Symlink(dir, name, _)
            | Step::Unlink(dir, name, _)
            | Step::RemoveDirectory(dir, name) => named(*dir, name).to_vec(),
            Step::Link(ino, dir, name) => [&named(*dir, name)[..], &[Some(*ino)]].concat(),
            Step::Rename(from, to, _) => [named(from.0, &from.1), named(to.0, &to.1)].concat(),
            Step::Write(ino, ..)
            | Step::Read(ino, ..)
            | Step::SetLen(ino, _)
            | Step::Allocate(ino, ..)
            | Step::SetXattr(ino, ..)
            | Step::RemoveXattr(ino, _)
            | Step::Chmod(ino, _)
            | Step::SyncFile(ino) => vec![Some(*ino)],
            Step::Sync => Vec::new(),
            Step::LetGo => self.held.iter().copied().map(Some).collect(),
        };
        files.into_iter().flatten().collect()
    }

    /// Nobody has anything open any more: the volume was opened again.
    pub(super) fn forget_held(&mut self) {
        for ino in std::mem::take(&mut self.held) {
            if self.nodes.get(&ino).is_some_and(|node| node.links == 0) {
                self.nodes.remove(&ino);
            }
        }
    }

    /// Does a step here and there, and compares the answers. True if the volume was full.
    pub(super) fn perform(&mut self, volume: &Volume, step: &Step, note: &str) -> bool {
        let expected = self.expect(step);
        match self.on_volume(volume, step, note) {
            Err(VolumeError::Full) if expected.is_ok() => return true,
            Err(error) => {
                assert_eq!(
                    expected.map_err(Errno::raw_os_error),
                    Err(error.errno()),
                    "{note}: {error}"
                );
            }
            Ok(made) => {
                assert_eq!(expected, Ok(()), "{note}");
                self.here(step, made);
            }
        }
        false
    }

    /// Performs a step on the volume; returns the file that was created, or the number of bytes
    /// written.
    pub(super) fn on_volume(&mut self, volume: &Volume, step: &Step, note: &str) -> Result<u64, VolumeError> {
        let new = |mode: u32| NewFile {
            mode,
            uid: 7,
            gid: 8,
            device: 0,
        };
        Ok(match step {
            Step::Make(dir, name, mode) => volume.make(*dir, name, &new(*mode))?.ino.into(),
            Step::Symlink(dir, name, target) => volume.make_symlink(*dir, name, target, &new(0o120_777))?.ino.into(),
            Step::Link(ino, dir, name) => volume.link(*ino, *dir, name)?.ino.into(),
            Step::Unlink(dir, name, is_held) => {
                let ino = self.entry(*dir, name).filter(|_| *is_held);
                if let Some(ino) = ino {
                    volume.hold(ino);
                }
                let answer = volume.unlink(*dir, name);
                if let Some(ino) = ino
                    && (answer.is_err() || !self.held.insert(ino))
                {
                    volume.release_hold(ino, 1)?;
                }
                answer.map(|()| 0)?
            }
            Step::RemoveDirectory(dir, name) => volume.remove_directory(*dir, name).map(|()| 0)?,
            Step::Rename(from, to, how) => {
                let renamed = volume.rename((from.0, &from.1), (to.0, &to.1), *how);
                renamed.map(|()| 0)?
            }
            Step::Write(ino, offset, data) => volume.write(*ino, *offset, data)? as u64,
            Step::Read(ino, offset, len) => {
                let mut buffer = vec![0xee; *len];
                let count = volume.read(*ino, *offset, &mut buffer)?;
                let there = match self.nodes[ino].content.len > *offset {
                    true => self.nodes[ino].content.read(*offset, *len),
                    false => Vec::new(),
                };
                assert!(buffer[..count] == there[..], "{note}");
                0
            }
            Step::SetLen(ino, len) => {
                let set = SetAttributes {
                    len_bytes: Some(*len),
                    ..SetAttributes::default()
                };
                volume.set_attributes(*ino, &set)?.len_bytes
            }
            Step::Allocate(ino, how, offset, len) => match volume.allocate(*ino, *how, *offset, *len) {
                Err(VolumeError::Full) => {
                    // It may be that only room is missing.
                    let mut there = vec![0; *len as usize];
                    volume.read(*ino, *offset, &mut there)?;
                    if !matches!(how, Allocate::Room | Allocate::RoomKeepingLength)
                        && there.iter().all(|byte| *byte == 0)
                    {
                        self.node(*ino).content.zero(*offset, offset + len);
                    }
                    return Err(VolumeError::Full);
                }
                done => done.map(|()| 0)?,
            },
            Step::SetXattr(ino, name, value) => match volume.set_xattr(*ino, name, value, SetAttribute::Any) {
                Err(VolumeError::AttributesTooLarge(_)) => u64::MAX,
                done => done.map(|()| 0)?,
            },
            Step::RemoveXattr(ino, name) => match volume.remove_xattr(*ino, name) {
                Err(VolumeError::NoAttribute) => {
                    assert!(!self.nodes[ino].xattrs.contains_key(name), "{note}");
                    0
                }
                done => done.map(|()| 0)?,
            },
            Step::Chmod(ino, mode) => {
                let set = SetAttributes {
                    mode: Some(*mode),
                    ..SetAttributes::default()
                };
                volume.set_attributes(*ino, &set).map(|_| 0)?
            }
            Step::SyncFile(ino) => volume.sync_file(*ino).map(|()| 0)?,
            Step::Sync => volume.sync().map(|()| 0)?,
            Step::LetGo => {
                self.release_all_holds(volume)?;
                0
            }
        })
    }

    pub(super) fn release_all_holds(&mut self, volume: &Volume) -> Result<(), VolumeError> {
        for ino in std::mem::take(&mut self.held) {
            volume.release_hold(ino, 1)?;
            if self.nodes.get(&ino).is_some_and(|node| node.links == 0) {
                self.nodes.remove(&ino);
            }
        }
        Ok(())
    }

    pub(super) fn here(&mut self, step: &Step, answer: u64) {
        let made = u32::try_from(answer).unwrap_or(0);
        match step {
            Step::Make(dir, name, mode) => {
                let is_directory = mode >> 12 == 4;
                let node = Node {
                    mode: *mode,
                    links: if is_directory { 2 } else { 1 },
                    parent: *dir,
                    ..Node::default()
                };
                assert!(self.nodes.insert(made, node).is_none());
                let parent = self.node(*dir);
                parent.entries.insert(name.clone(), made);
                parent.links += u32::from(is_directory);
            }
            Step::Symlink(dir, name, target) => {
                let mut node = Node {
                    mode: 0o120_777,
                    links: 1,
                    parent: *dir,
                    ..Node::default()
                };
                node.content.write(0, target);
                assert!(self.nodes.insert(made, node).is_none());
                self.node(*dir).entries.insert(name.clone(), made);
            }
            Step::Link(ino, dir, name) => {
                self.node(*dir).entries.insert(name.clone(), *ino);
                self.node(*ino).links += 1;
            }
            Step::Unlink(dir, name, _) => {
                let ino = self.node(*dir).entries.remove(name).unwrap();
                self.lose(ino, false);
            }
            Step::RemoveDirectory(dir, name) => {
                let ino = self.node(*dir).entries.remove(name).unwrap();
                self.node(*dir).links -= 1;
                self.lose(ino, true);
            }
            Step::Rename(from, to, how) => self.rename_here(from, to, *how),
            Step::Write(ino, offset, data) => {
                let written = &data[..answer as usize];
                self.node(*ino).content.write(*offset, written);
            }
            Step::SetLen(ino, len) => self.node(*ino).content.set_len(*len),
            Step::Allocate(ino, how, offset, len) => {
                let content = &mut self.node(*ino).content;
                if !matches!(how, Allocate::Room | Allocate::RoomKeepingLength) {
                    content.zero(*offset, offset + len);
                }
                if matches!(how, Allocate::Room | Allocate::Zero) {
                    content.len = content.len.max(offset + len);
                }
            }
            Step::SetXattr(ino, name, value) if answer == 0 => {
                self.node(*ino).xattrs.insert(name.clone(), value.clone());
            }
            Step::RemoveXattr(ino, name) => {
                self.node(*ino).xattrs.remove(name);
            }
            Step::Chmod(ino, mode) => {
                let node = self.node(*ino);
                node.mode = node.mode & 0o170_000 | mode;
            }
            Step::Read(..) | Step::SetXattr(..) | Step::SyncFile(_) | Step::Sync | Step::LetGo => {}
        }
    }

    fn rename_here(&mut self, (dir, name): &(u32, Vec<u8>), (to_dir, to_name): &(u32, Vec<u8>), how: Rename) {
        let from = self.entry(*dir, name).unwrap();
        let to = self.entry(*to_dir, to_name);
        if to == Some(from) {
            return;
        }
        let is_dir = self.nodes[&from].is_directory();
        self.node(*to_dir).entries.insert(to_name.clone(), from);
        self.node(from).parent = *to_dir;
        self.node(*to_dir).links += u32::from(is_dir);
        self.node(*dir).links -= u32::from(is_dir);
        match (how, to) {
            (Rename::Exchange, Some(to)) => {
                let to_is_dir = self.nodes[&to].is_directory();
                self.node(*dir).entries.insert(name.clone(), to);
                self.node(to).parent = *dir;
                self.node(*dir).links += u32::from(to_is_dir);
                self.node(*to_dir).links -= u32::from(to_is_dir);
            }
            (_, replaced) => {
                self.node(*dir).entries.remove(name);
                if let Some(to) = replaced {
                    self.node(*to_dir).links -= u32::from(is_dir);
                    self.lose(to, is_dir);
                }
            }
        }
    }

    /// Compares all of it.
    pub(super) fn compare(&self, volume: &Volume, note: &str) {
        for (ino, node) in self.nodes.iter().filter(|(_, node)| node.links > 0) {
            assert_eq!(differs(volume, *ino, node), None, "{note}: file {ino}");
        }
    }

    pub(super) fn remove_all(&mut self, volume: &Volume) {
        self.release_all_holds(volume).unwrap();
        while self.nodes.len() > 1 {
            for dir in self.of(Node::is_directory) {
                let entries = self.nodes.get(&dir).map(|node| node.entries.clone());
                for (name, ino) in entries.unwrap_or_default() {
                    let step = match self.nodes[&ino].is_directory() {
                        true => Step::RemoveDirectory(dir, name),
                        false => Step::Unlink(dir, name, false),
                    };
                    if self.expect(&step).is_ok() {
                        self.perform(volume, &step, "removing all");
                    }
                }
            }
        }
    }
}

/// Describes the first difference between a file of a volume and this node.
pub(super) fn differs(volume: &Volume, ino: u32, node: &Node) -> Option<String> {
    let there = match volume.attributes(ino) {
        Ok(there) => there,
        Err(error) => return Some(format!("it cannot be looked at: {error}")),
    };
    if (there.mode, there.links) != (node.mode, node.links) {
        return Some(format!(
            "its mode and names: {there:?} and not {:o} {}",
            node.mode, node.links
        ));
    }
    match node.is_directory() {
        true => {
            if let Some(what) = differs_in_entries(volume, ino, node).or_else(|| differs_in_names(volume, ino, node)) {
                return Some(what);
            }
        }
        false => {
            if let Some(what) = differs_in_content(volume, ino, node, there.len_bytes) {
                return Some(what);
            }
        }
    }
    let names: BTreeSet<_> = volume.xattr_names(ino).unwrap().into_iter().collect();
    if names != node.xattrs.keys().cloned().collect() {
        return Some("its extended attributes".to_owned());
    }
    let wrong = |(name, value): &(&Vec<u8>, &Vec<u8>)| volume.xattr(ino, name).unwrap() != **value;
    let wrong = node.xattrs.iter().find(wrong);
    wrong.map(|(name, _)| format!("its attribute {}", String::from_utf8_lossy(name)))
}

/// Describes the first difference between a directory's listing and this node.
pub(super) fn differs_in_entries(volume: &Volume, ino: u32, node: &Node) -> Option<String> {
    let mut names = BTreeMap::new();
    let mut from = 0;
    loop {
        let some = match volume.list(ino, from, 7) {
            Ok(some) => some,
            Err(error) => return Some(format!("it cannot be listed: {error}")),
        };
        let Some(last) = some.last() else { break };
        from = last.next;
        for entry in some {
            assert!(names.insert(entry.name, entry.ino).is_none());
        }
    }
    if names != node.entries {
        let shown = |entries: &BTreeMap<Vec<u8>, u32>| {
            let shown = entries.iter();
            let shown = shown.map(|(name, ino)| format!("{:.9}={ino}", String::from_utf8_lossy(name)));
            shown.collect::<Vec<_>>().join(", ")
        };
        return Some(format!(
            "its entries: {} and not {}",
            shown(&names),
            shown(&node.entries)
        ));
    }
    None
}

/// Of which name another file is found.
fn differs_in_names(volume: &Volume, ino: u32, node: &Node) -> Option<String> {
    let is_wrong = |name: &[u8], child: u32| !volume.look_up(ino, name).is_ok_and(|found| found.ino == child);
    let wrong = node.entries.iter().find(|(name, child)| is_wrong(name, **child));
    assert!(volume.look_up(ino, b"there is no such name").is_err());
    wrong.map(|(name, _)| format!("what its name {} leads to", String::from_utf8_lossy(name)))
}

fn differs_in_content(volume: &Volume, ino: u32, node: &Node, len_bytes: u64) -> Option<String> {
    if len_bytes != node.content.len {
        return Some(format!("its length: {len_bytes} and not {}", node.content.len));
    }
    let mut buffer = vec![0; 4096];
    let around = node
        .content
        .pages
        .keys()
        .flat_map(|page| [page.saturating_sub(1), *page, page + 1]);
    for page in around.chain([0, node.content.len / PAGE]) {
        if page * PAGE >= node.content.len {
            continue;
        }
        match volume.read(ino, page * PAGE, &mut buffer) {
            Ok(count) if buffer[..count] == node.content.read(page * PAGE, 4096)[..] => {}
            Ok(_) => return Some(format!("page {page}")),
            Err(error) => return Some(format!("page {page} cannot be read: {error}")),
        }
    }
    // A range that is no hole in the model is none on the volume.
    let mut at = 0;
    let mut data = BTreeSet::new();
    while let Some(found) = volume.seek(ino, at, true).unwrap() {
        at = volume.seek(ino, found, false).unwrap().unwrap();
        data.insert((found, at));
        assert!(data.len() < 5_000, "it has too many pieces");
    }
    let has = |byte: u64| {
        data.range(..=(byte, u64::MAX))
            .next_back()
            .is_some_and(|(_, end)| byte < *end)
    };
    for (page, bytes) in &node.content.pages {
        let first = bytes.iter().position(|byte| *byte != 0);
        if first.is_some_and(|first| !has(page * PAGE + first as u64)) {
            return Some(format!("page {page} is told to be a hole"));
        }
    }
    None
}
