//! The state of a simulated disk and what each operation does to it.
//!
//! Invariants: `live` of a file is `durable` with all of `pending` applied in order (until a sync
//! of it failed: then `live` may differ from that wherever the failed sync lost something); `live`
//! of a directory is `durable` with all of `pending` applied. Identifiers are never reused.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;

use super::{Counters, CrashPhase, PowerCut, survive};
use crate::durable::OpenMode;
use crate::random::SplitMix64;

pub(super) type FileId = u64;
pub(super) type DirId = u64;

/// A pending change of a file.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { at: usize, data: Vec<u8> },
    SetLen(usize),
}

impl Change {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { at, data } => {
                let end = at + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                if let Some(target) = bytes.get_mut(*at..end) {
                    target.copy_from_slice(data);
                }
            }
            Self::SetLen(len) => bytes.resize(*len, 0),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileState {
    pub(super) live: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<Change>,
}

/// The file or directory that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(FileId),
    Dir(DirId),
}

/// A pending change of a directory.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create { name: String, node: Node },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl NameChange {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Create { name, .. } | Self::Remove { name } => (name, None),
            Self::Rename { from, to } => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    pub(super) fn apply(&self, names: &mut BTreeMap<String, Node>) {
        match self {
            Self::Create { name, node } => {
                names.insert(name.clone(), *node);
            }
            Self::Rename { from, to } => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            Self::Remove { name } => {
                names.remove(name);
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct DirState {
    pub(super) live: BTreeMap<String, Node>,
    pub(super) durable: BTreeMap<String, Node>,
    pub(super) pending: Vec<NameChange>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) files: BTreeMap<FileId, FileState>,
    pub(super) dirs: BTreeMap<DirId, DirState>,
    next_id: u64,
    pub(super) counters: Counters,
    pub(super) power_cut: bool,
    pub(super) crash_at_sync: Option<(u64, CrashPhase)>,
    pub(super) crash_at_op: Option<u64>,
    pub(super) failing_ops: BTreeMap<u64, i32>,
    pub(super) capacity_len_bytes: u64,
    pub(super) short_reads: bool,
    /// The file or directory being synced when the power was cut.
    pub(super) in_sync: Option<Node>,
    random: SplitMix64,
}

/// The outcome of a sync, apart from an injected error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncFate {
    Done,
    DoneUnheard,
    Cut,
}

fn errno(errno: Errno) -> io::Error {
    errno.into()
}

fn power_cut() -> io::Error {
    io::Error::other(PowerCut)
}

impl World {
    pub(super) const ROOT: DirId = 0;

    pub(super) fn new(seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(Self::ROOT, DirState::default())]),
            next_id: 1,
            counters: Counters::default(),
            power_cut: false,
            crash_at_sync: None,
            crash_at_op: None,
            failing_ops: BTreeMap::new(),
            capacity_len_bytes: 1 << 30,
            short_reads: true,
            in_sync: None,
            random: SplitMix64::new(seed),
        }
    }

    /// A world with these contents, all of them durable.
    pub(super) fn restored(
        old: &Self,
        seed: u64,
        files: BTreeMap<FileId, FileState>,
        dirs: BTreeMap<DirId, DirState>,
    ) -> Self {
        Self {
            files,
            dirs,
            next_id: old.next_id,
            capacity_len_bytes: old.capacity_len_bytes,
            short_reads: old.short_reads,
            ..Self::new(seed)
        }
    }

    /// Counts an operation, and returns its error if it is to fail.
    fn begin(&mut self) -> io::Result<()> {
        if self.power_cut {
            return Err(power_cut());
        }
        self.counters.ops += 1;
        if self.crash_at_op == Some(self.counters.ops) {
            self.power_cut = true;
            return Err(power_cut());
        }
        match self.failing_ops.remove(&self.counters.ops) {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => Ok(()),
        }
    }

    fn dir(&mut self, id: DirId) -> io::Result<&mut DirState> {
        self.dirs.get_mut(&id).ok_or_else(|| errno(Errno::NOENT))
    }

    fn file(&mut self, id: FileId) -> io::Result<&mut FileState> {
        self.files.get_mut(&id).ok_or_else(|| errno(Errno::NOENT))
    }

    fn change_names(&mut self, id: DirId, change: NameChange) -> io::Result<()> {
        let dir = self.dir(id)?;
        change.apply(&mut dir.live);
        dir.pending.push(change);
        Ok(())
    }

    pub(super) fn open(&mut self, dir: DirId, name: &str, mode: OpenMode) -> io::Result<FileId> {
        self.begin()?;
        match (self.dir(dir)?.live.get(name), mode) {
            (Some(_), OpenMode::CreateNew) => Err(errno(Errno::EXIST)),
            (Some(Node::Dir(_)), _) => Err(errno(Errno::ISDIR)),
            (Some(Node::File(id)), _) => Ok(*id),
            (None, OpenMode::Existing) => Err(errno(Errno::NOENT)),
            (None, _) => {
                let id = self.next_id;
                self.next_id += 1;
                self.files.insert(id, FileState::default());
                self.change_names(
                    dir,
                    NameChange::Create {
                        name: name.to_owned(),
                        node: Node::File(id),
                    },
                )?;
                Ok(id)
            }
        }
    }

    pub(super) fn subdir(&mut self, dir: DirId, name: &str) -> io::Result<DirId> {
        self.begin()?;
        match self.dir(dir)?.live.get(name) {
            Some(Node::File(_)) => Err(errno(Errno::NOTDIR)),
            Some(Node::Dir(id)) => Ok(*id),
            None => {
                let id = self.next_id;
                self.next_id += 1;
                self.dirs.insert(id, DirState::default());
                self.change_names(
                    dir,
                    NameChange::Create {
                        name: name.to_owned(),
                        node: Node::Dir(id),
                    },
                )?;
                Ok(id)
            }
        }
    }

    pub(super) fn rename(&mut self, dir: DirId, from: &str, to: &str) -> io::Result<()> {
        self.begin()?;
        let names = &self.dir(dir)?.live;
        let node = *names.get(from).ok_or_else(|| errno(Errno::NOENT))?;
        let target = names.get(to).copied();
        if from == to {
            return Ok(());
        }
        match (node, target) {
            (Node::File(_), Some(Node::Dir(_))) => return Err(errno(Errno::ISDIR)),
            (Node::Dir(_), Some(Node::File(_))) => return Err(errno(Errno::NOTDIR)),
            (Node::Dir(_), Some(Node::Dir(id))) if !self.dir(id)?.live.is_empty() => {
                return Err(errno(Errno::NOTEMPTY));
            }
            _ => {}
        }
        self.change_names(
            dir,
            NameChange::Rename {
                from: from.to_owned(),
                to: to.to_owned(),
            },
        )
    }

    pub(super) fn remove(&mut self, dir: DirId, name: &str) -> io::Result<()> {
        self.begin()?;
        match self.dir(dir)?.live.get(name) {
            None => Err(errno(Errno::NOENT)),
            Some(Node::Dir(_)) => Err(errno(Errno::ISDIR)),
            Some(Node::File(_)) => self.change_names(dir, NameChange::Remove { name: name.to_owned() }),
        }
    }

    pub(super) fn list(&mut self, dir: DirId) -> io::Result<Vec<String>> {
        self.begin()?;
        Ok(self.dir(dir)?.live.keys().cloned().collect())
    }

    pub(super) fn len(&mut self, id: FileId) -> io::Result<u64> {
        self.begin()?;
        Ok(self.file(id)?.live.len() as u64)
    }

    pub(super) fn read(&mut self, id: FileId, offset: u64, buf: &mut [u8], may_fall_short: bool) -> io::Result<usize> {
        self.begin()?;
        let mut n = buf.len();
        if may_fall_short && self.short_reads && n > 1 && self.random.coin() {
            n = 1 + usize::try_from(self.random.below(n as u64)).unwrap_or(0);
        }
        let live = &self.file(id)?.live;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(live.len());
        let source = live.get(from..).unwrap_or_default();
        let n = n.min(source.len()).min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), source.get(..n)) {
            to.copy_from_slice(from);
        }
        self.counters.reads += 1;
        self.counters.bytes_read += n as u64;
        Ok(n)
    }

    /// The greatest length that the file can reach before the disk is full. Removed files take no
    /// space.
    fn longest(&self, id: FileId) -> usize {
        let named: BTreeSet<FileId> = self
            .dirs
            .values()
            .flat_map(|dir| dir.live.values())
            .filter_map(|node| match node {
                Node::File(other) if *other != id => Some(*other),
                _ => None,
            })
            .collect();
        let others: u64 = named
            .iter()
            .filter_map(|other| self.files.get(other))
            .map(|file| file.live.len() as u64)
            .sum();
        usize::try_from(self.capacity_len_bytes.saturating_sub(others)).unwrap_or(usize::MAX)
    }

    fn change_bytes(&mut self, id: FileId, change: Change) -> io::Result<()> {
        let file = self.file(id)?;
        change.apply(&mut file.live);
        file.pending.push(change);
        Ok(())
    }

    pub(super) fn write(&mut self, id: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        self.begin()?;
        self.write_counted(id, offset, data)
    }

    fn write_counted(&mut self, id: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        self.counters.writes += 1;
        if data.is_empty() {
            return Ok(());
        }
        let at = usize::try_from(offset).map_err(|_| errno(Errno::FBIG))?;
        let end = at.checked_add(data.len()).ok_or_else(|| errno(Errno::FBIG))?;
        let has = self.file(id)?.live.len();
        // Bytes below the present length have their space already.
        let fits = if end <= has {
            data.len()
        } else {
            self.longest(id).max(has).saturating_sub(at).min(data.len())
        };
        if fits > 0 {
            let data = data.get(..fits).unwrap_or(data).to_vec();
            self.change_bytes(id, Change::Write { at, data })?;
            self.counters.bytes_written += fits as u64;
        }
        if fits < data.len() {
            Err(errno(Errno::NOSPC))
        } else {
            Ok(())
        }
    }

    pub(super) fn allocate(&mut self, id: FileId, len_bytes: u64) -> io::Result<()> {
        self.begin()?;
        let has = self.file(id)?.live.len() as u64;
        let missing = len_bytes
            .saturating_sub(has)
            .min(self.capacity_len_bytes.saturating_add(1));
        let zeros = vec![0; usize::try_from(missing).map_err(|_| errno(Errno::FBIG))?];
        self.write_counted(id, has, &zeros)
    }

    pub(super) fn set_len(&mut self, id: FileId, len_bytes: u64) -> io::Result<()> {
        self.begin()?;
        let len = usize::try_from(len_bytes).map_err(|_| errno(Errno::FBIG))?;
        let has = self.file(id)?.live.len();
        if len > has && len > self.longest(id) {
            return Err(errno(Errno::NOSPC));
        }
        if len == has {
            return Ok(());
        }
        self.change_bytes(id, Change::SetLen(len))
    }

    /// Counts a sync and decides its outcome.
    fn begin_sync(&mut self, node: Node) -> io::Result<SyncFate> {
        if self.power_cut {
            return Err(power_cut());
        }
        self.counters.syncs += 1;
        self.begin()?;
        match self.crash_at_sync {
            Some((nth, phase)) if nth == self.counters.syncs => {
                self.power_cut = true;
                if phase == CrashPhase::Middle {
                    self.in_sync = Some(node);
                }
                Ok(if phase == CrashPhase::After {
                    SyncFate::DoneUnheard
                } else {
                    SyncFate::Cut
                })
            }
            _ => Ok(SyncFate::Done),
        }
    }

    pub(super) fn sync_file(&mut self, id: FileId) -> io::Result<()> {
        let fate = match self.begin_sync(Node::File(id)) {
            Ok(fate) => fate,
            Err(error) => {
                if !self.power_cut {
                    let mut random = SplitMix64::new(self.random.next_u64());
                    let file = self.file(id)?;
                    file.durable = survive::surviving_bytes(file, false, &mut random);
                    file.pending.clear();
                }
                return Err(error);
            }
        };
        if fate != SyncFate::Cut {
            let file = self.file(id)?;
            for change in std::mem::take(&mut file.pending) {
                change.apply(&mut file.durable);
            }
        }
        if fate == SyncFate::Done {
            Ok(())
        } else {
            Err(power_cut())
        }
    }

    pub(super) fn sync_dir(&mut self, id: DirId) -> io::Result<()> {
        let fate = self.begin_sync(Node::Dir(id))?;
        if fate != SyncFate::Cut {
            let dir = self.dir(id)?;
            dir.pending.clear();
            dir.durable.clone_from(&dir.live);
        }
        if fate == SyncFate::Done {
            Ok(())
        } else {
            Err(power_cut())
        }
    }
}
