//! One change of a tree: its description, its effect on a model, and how a program makes it.
//!
//! Each operation is one system call as far as the tree is concerned, and most of them reach the
//! mount as one request, so that a moment of the tree lies between two operations, not inside one.
//! (A store into a shared mapping stays within a page and is followed by `msync`.) A `write` that
//! crosses pages is the exception: where the kernel does not have the first page in its cache, it
//! sends that page's piece by itself, so a moment can lie at a page's border inside such a write
//! ([`Operation::beginnings`]). An operation's bytes are made from its number, so that any byte
//! found can be traced to its operation.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_host::random::SplitMix64;
use byteback_testkit::seed::{Draw, mix};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use serde::{Deserialize, Serialize};

const FILE_BYTES_MAX: u64 = 300 << 10;
/// With 4 KiB pages and any offset this is one request of the default 128 KiB.
const WRITE_BYTES_MAX: u64 = 96 << 10;
const PAGE_BYTES: u64 = 4096;
const NAMES_MAX: usize = 40;
const OPEN_MAX: usize = 32;
const MAPPED_MAX: usize = 24;
pub(crate) const XATTR: &str = "user.record";

/// Number of an inode in the model; never reused.
pub(crate) type Inode = u64;

/// One change; see the module. `seq` is the operation's number in its lane; paths are relative to
/// the lane's directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) seq: u64,
    pub(crate) what: What,
}

/// A file that is changed: by its path, or through a descriptor that was kept open. With `keep` it
/// stays open afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OnFile {
    pub(crate) inode: Inode,
    pub(crate) path: String,
    pub(crate) keep: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Write {
        file: OnFile,
        at: u64,
        len: u64,
    },
    Append {
        file: OnFile,
        len: u64,
    },
    Store {
        file: OnFile,
        at: u64,
        len: u64,
        sync: bool,
    },
    Truncate {
        file: OnFile,
        len: u64,
    },
    Punch {
        file: OnFile,
        at: u64,
        len: u64,
    },
    Copy {
        from: String,
        file: OnFile,
        read_at: u64,
        at: u64,
        len: u64,
    },
    Create {
        path: String,
        mode: u32,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Symlink {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Link {
        from: String,
        to: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    SetXattr {
        path: String,
    },
}

/// The kind of an inode in the model, with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File(Arc<Vec<u8>>),
    Directory,
    Symlink(String),
}

/// An inode of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// `None` for a node whose mode was never set.
    pub(crate) mode: Option<u32>,
    pub(crate) xattr: Option<Vec<u8>>,
}

/// A tree in memory. Cheap to copy: contents are shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<String, Inode>,
    pub(crate) nodes: BTreeMap<Inode, Node>,
    pub(crate) next: Inode,
}

/// The bytes that operation `seq` writes.
pub(crate) fn record(seq: u64, len: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|word| mix(seq ^ (word << 40)).to_le_bytes());
    words.take(usize::try_from(len).unwrap()).collect()
}

fn target_of(seq: u64) -> String {
    format!("target-of-record-{seq}")
}

pub(crate) fn usize_of(len: u64) -> usize {
    usize::try_from(len).unwrap()
}

impl Operation {
    /// The file whose content the operation changes.
    pub(crate) fn file(&self) -> Option<&OnFile> {
        match &self.what {
            What::Write { file, .. }
            | What::Append { file, .. }
            | What::Store { file, .. }
            | What::Truncate { file, .. }
            | What::Punch { file, .. }
            | What::Copy { file, .. } => Some(file),
            _ => None,
        }
    }

    /// The file, the offset and the lengths of the beginnings of this operation that the kernel may
    /// send by themselves. `None` for an operation that is never divided.
    pub(crate) fn beginnings(&self, model: &Model) -> Option<(Inode, u64, Vec<u64>)> {
        let (file, at, len) = match &self.what {
            What::Write { file, at, len } => (file, *at, *len),
            What::Append { file, len } => match &model.nodes[&file.inode].kind {
                Kind::File(bytes) => (file, bytes.len() as u64, *len),
                _ => return None,
            },
            _ => return None,
        };
        let borders = (at / PAGE_BYTES + 1..).map(|page| page * PAGE_BYTES);
        let lens: Vec<u64> = borders
            .map(|border| border - at)
            .take_while(|done| *done < len)
            .collect();
        (!lens.is_empty()).then_some((file.inode, at, lens))
    }
}

impl Model {
    fn add(&mut self, path: &str, kind: Kind, mode: Option<u32>) {
        let inode = self.next;
        self.next += 1;
        let node = Node {
            kind,
            mode,
            xattr: None,
        };
        self.nodes.insert(inode, node);
        self.names.insert(path.to_owned(), inode);
    }

    /// Takes the node at `path` on the disk into the model.
    pub(crate) fn adopt(&mut self, path: &str, node: Node) -> Inode {
        let inode = self.next;
        self.next += 1;
        self.nodes.insert(inode, node);
        self.names.insert(path.to_owned(), inode);
        inode
    }

    pub(crate) fn node(&self, path: &str) -> Option<(Inode, &Node)> {
        let inode = *self.names.get(path)?;
        Some((inode, &self.nodes[&inode]))
    }

    fn edit(&mut self, inode: Inode, edit: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Node {
            kind: Kind::File(bytes),
            ..
        }) = self.nodes.get_mut(&inode)
        {
            edit(Arc::make_mut(bytes));
        }
    }

    /// Applies `operation` to the model, and returns the inodes and names that it touched.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Touched {
        let seq = operation.seq;
        let lay = |bytes: &mut Vec<u8>, at: u64, data: &[u8]| {
            let (start, end) = (usize_of(at), usize_of(at) + data.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        };
        let mut touched = Touched::default();
        match &operation.what {
            What::Write { file, at, len } | What::Store { file, at, len, .. } => {
                self.edit(file.inode, |bytes| lay(bytes, *at, &record(seq, *len)));
                touched.inodes.push(file.inode);
            }
            What::Append { file, len } => {
                self.edit(file.inode, |bytes| lay(bytes, bytes.len() as u64, &record(seq, *len)));
                touched.inodes.push(file.inode);
            }
            What::Truncate { file, len } => {
                self.edit(file.inode, |bytes| bytes.resize(usize_of(*len), 0));
                touched.inodes.push(file.inode);
            }
            What::Punch { file, at, len } => {
                self.edit(file.inode, |bytes| {
                    let end = usize_of(at + len).min(bytes.len());
                    let start = usize_of(*at).min(end);
                    bytes[start..end].fill(0);
                });
                touched.inodes.push(file.inode);
            }
            What::Copy {
                from,
                file,
                read_at,
                at,
                len,
            } => {
                let Some((
                    _,
                    Node {
                        kind: Kind::File(source),
                        ..
                    },
                )) = self.node(from)
                else {
                    return touched;
                };
                let data = source[usize_of(*read_at)..usize_of(read_at + len)].to_vec();
                self.edit(file.inode, |bytes| lay(bytes, *at, &data));
                touched.inodes.push(file.inode);
            }
            What::Create { path, mode } => {
                self.add(path, Kind::File(Arc::default()), Some(*mode));
                touched.names.push(path.clone());
            }
            What::Mkdir { path } => {
                self.add(path, Kind::Directory, Some(0o755));
                touched.names.push(path.clone());
            }
            What::Symlink { path } => {
                self.add(path, Kind::Symlink(target_of(seq)), None);
                touched.names.push(path.clone());
            }
            What::Rmdir { path } | What::Unlink { path } => {
                self.names.remove(path);
                touched.names.push(path.clone());
            }
            What::Rename { from, to } => {
                if self.names.get(from) != self.names.get(to) {
                    // Directories of lanes are empty when they are moved.
                    let inode = self.names.remove(from).unwrap();
                    self.names.insert(to.clone(), inode);
                }
                touched.names.extend([from.clone(), to.clone()]);
            }
            What::Exchange { one, other } => {
                let (first, second) = (self.names[one], self.names[other]);
                self.names.insert(one.clone(), second);
                self.names.insert(other.clone(), first);
                touched.names.extend([one.clone(), other.clone()]);
            }
            What::Link { from, to } => {
                let inode = self.names[from];
                self.names.insert(to.clone(), inode);
                touched.names.push(to.clone());
            }
            What::Chmod { path, mode } => {
                let inode = self.names[path];
                self.nodes.get_mut(&inode).unwrap().mode = Some(*mode);
                touched.inodes.push(inode);
            }
            What::SetXattr { path } => {
                let inode = self.names[path];
                self.nodes.get_mut(&inode).unwrap().xattr = Some(record(seq, 24));
                touched.inodes.push(inode);
            }
        }
        touched
    }

    fn pick(&self, random: &mut SplitMix64, fits: impl Fn(&Node) -> bool) -> Option<String> {
        let fitting: Vec<&String> = self
            .names
            .iter()
            .filter(|(_, inode)| fits(&self.nodes[inode]))
            .map(|(path, _)| path)
            .collect();
        (!fitting.is_empty()).then(|| fitting[random.index(fitting.len())].clone())
    }

    fn a_file(&self, random: &mut SplitMix64) -> Option<(OnFile, u64)> {
        let path = self.pick(random, |node| matches!(node.kind, Kind::File(_)))?;
        let (inode, node) = self.node(&path).unwrap();
        let Kind::File(bytes) = &node.kind else { return None };
        let keep = random.chance(50);
        Some((OnFile { inode, path, keep }, bytes.len() as u64))
    }

    /// A free name, in the lane's directory or one below it.
    fn a_free_name(&self, random: &mut SplitMix64) -> String {
        let directory = self.pick(random, |node| node.kind == Kind::Directory);
        loop {
            let name = format!("n{}", random.below(200));
            let path = match &directory {
                Some(directory) if !directory.contains('/') && random.chance(40) => format!("{directory}/{name}"),
                _ => name,
            };
            if !self.names.contains_key(&path) {
                return path;
            }
        }
    }

    /// As most programs save a file: a new one is made of the old one, with something inserted or
    /// left out, and takes its name, or stays beside it as a copy. A blow, a moment of a backup and
    /// other programs can come between all steps.
    fn a_save(&self, random: &mut SplitMix64) -> Option<Vec<What>> {
        let (old, size) = self.a_file(random)?;
        if size == 0 {
            return None;
        }
        let path = self.a_free_name(random);
        let mut steps = vec![What::Create {
            path: path.clone(),
            mode: 0o644,
        }];
        let new = |keep| OnFile {
            inode: self.next,
            path: path.clone(),
            keep,
        };
        let edit_at = random.below(size);
        let (inserted, left_out) = (random.below(600), random.below(600));
        let (mut read_at, mut at, mut is_edited) = (0, 0, false);
        while read_at < size {
            let end = if is_edited { size } else { edit_at };
            let len = (end - read_at).min(WRITE_BYTES_MAX);
            if len > 0 {
                steps.push(What::Copy {
                    from: old.path.clone(),
                    file: new(random.chance(50)),
                    read_at,
                    at,
                    len,
                });
                (read_at, at) = (read_at + len, at + len);
            }
            if !is_edited && read_at == edit_at {
                is_edited = true;
                if inserted > 0 {
                    steps.push(What::Write {
                        file: new(random.chance(50)),
                        at,
                        len: inserted,
                    });
                }
                (read_at, at) = (read_at + left_out, at + inserted);
            }
        }
        if random.chance(70) {
            steps.push(What::Rename {
                from: path,
                to: old.path,
            });
        }
        Some(steps)
    }

    fn is_empty_directory(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.names
            .range(below.clone()..)
            .next()
            .is_none_or(|(name, _)| !name.starts_with(&below))
    }

    /// The next operation: one that must succeed on a tree that matches the model. `planned`: the
    /// rest of a save that has begun.
    pub(crate) fn generate(
        &self,
        random: &mut SplitMix64,
        seq: u64,
        choice: &Choice,
        planned: &mut VecDeque<What>,
    ) -> Operation {
        if planned.is_empty() && self.names.len() < NAMES_MAX && random.chance(4) {
            planned.extend(self.a_save(random).unwrap_or_default());
        }
        if let Some(what) = planned.pop_front() {
            return Operation { seq, what };
        }
        loop {
            if let Some(what) = self.try_generate(random, choice) {
                return Operation { seq, what };
            }
        }
    }

    fn try_generate(&self, random: &mut SplitMix64, choice: &Choice) -> Option<What> {
        let is_plain = |node: &Node| !matches!(node.kind, Kind::Directory);
        if self.names.len() < 6 {
            return Some(What::Create {
                path: self.a_free_name(random),
                mode: 0o644,
            });
        }
        let short_or_long = |random: &mut SplitMix64| match random.below(10) {
            0 => 1 + random.below(WRITE_BYTES_MAX),
            1..=3 => 1 + random.below(2 * PAGE_BYTES),
            _ => 1 + random.below(600),
        };
        match random.below(100) {
            0..=27 => {
                let (file, size) = self.a_file(random)?;
                let at = random.below((size + PAGE_BYTES).min(FILE_BYTES_MAX));
                let len = short_or_long(random);
                Some(What::Write { file, at, len })
            }
            28..=42 => {
                let (file, size) = self.a_file(random)?;
                let len = short_or_long(random);
                (size + len <= FILE_BYTES_MAX).then_some(What::Append { file, len })
            }
            43..=54 => {
                let (file, size) = self.a_file(random)?;
                if !choice.stores || size == 0 {
                    return None;
                }
                let at = random.below(size);
                let room = (PAGE_BYTES - at % PAGE_BYTES).min(size - at);
                let len = 1 + random.below(room);
                let sync = !choice.unsynced_stores || random.chance(30);
                Some(What::Store { file, at, len, sync })
            }
            55..=62 => {
                let (file, size) = self.a_file(random)?;
                let len = random.below((size * 2 + 1).min(FILE_BYTES_MAX));
                Some(What::Truncate { file, len })
            }
            63..=66 => {
                let (file, size) = self.a_file(random)?;
                let (at, len) = (random.below(size + 1), 1 + random.below(3 * PAGE_BYTES));
                Some(What::Punch { file, at, len })
            }
            67..=69 => {
                let from = self.pick(random, |node| matches!(node.kind, Kind::File(_)))?;
                let (inode, node) = self.node(&from)?;
                let Kind::File(source) = &node.kind else { return None };
                let (file, size) = self.a_file(random)?;
                if source.is_empty() || file.inode == inode {
                    return None;
                }
                let read_at = random.below(source.len() as u64);
                let len = 1 + random.below((source.len() as u64 - read_at).min(WRITE_BYTES_MAX));
                let at = random.below(size + 1);
                (at + len <= FILE_BYTES_MAX).then_some(What::Copy {
                    from,
                    file,
                    read_at,
                    at,
                    len,
                })
            }
            70..=75 if self.names.len() < NAMES_MAX => Some(What::Create {
                path: self.a_free_name(random),
                mode: 0o644,
            }),
            76 if self.names.len() < NAMES_MAX => Some(What::Mkdir {
                path: self.a_free_name(random),
            }),
            77 if self.names.len() < NAMES_MAX => Some(What::Symlink {
                path: self.a_free_name(random),
            }),
            78..=79 => {
                let path = self.pick(random, |node| node.kind == Kind::Directory)?;
                self.is_empty_directory(&path).then_some(What::Rmdir { path })
            }
            80..=83 => Some(What::Unlink {
                path: self.pick(random, is_plain)?,
            }),
            84..=87 => Some(What::Rename {
                from: self.pick(random, is_plain)?,
                to: self.a_free_name(random),
            }),
            88..=91 => {
                // As a program saves a file: the new version takes the old one's name.
                let from = self.pick(random, is_plain)?;
                let to = self.pick(random, is_plain)?;
                (from != to).then_some(What::Rename { from, to })
            }
            92 => {
                let one = self.pick(random, is_plain)?;
                let other = self.pick(random, is_plain)?;
                (one != other).then_some(What::Exchange { one, other })
            }
            93..=94 if self.names.len() < NAMES_MAX => Some(What::Link {
                from: self.pick(random, |node| matches!(node.kind, Kind::File(_)))?,
                to: self.a_free_name(random),
            }),
            95..=97 => Some(What::Chmod {
                path: self.pick(random, |node| matches!(node.kind, Kind::File(_)))?,
                mode: 0o600 | u32::try_from(random.below(0o100)).unwrap(),
            }),
            98..=99 => Some(What::SetXattr {
                path: self.pick(random, |node| matches!(node.kind, Kind::File(_)))?,
            }),
            _ => None,
        }
    }
}

/// The kinds of operations that may be drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) stores: bool,
    /// Whether stores may stay unsynced; these reach the tree whenever the kernel decides.
    pub(crate) unsynced_stores: bool,
}

/// The nodes and names that an operation changed.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) inodes: Vec<Inode>,
    pub(crate) names: Vec<String>,
}

/// Performs operations on a directory, as a program would.
#[derive(Debug)]
pub(crate) struct Performer {
    root: PathBuf,
    open: HashMap<Inode, File>,
    /// Pages that were stored into and not synced: unmapping them would write them.
    mapped: VecDeque<Mapped>,
}

/// A mapped page of a file.
#[derive(Debug)]
struct Mapped(*mut std::ffi::c_void);

// SAFETY: the address belongs to the process, not to a thread, and only dropping uses it.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: one page that was mapped and is not used otherwise.
        let _ = unsafe { rustix::mm::munmap(self.0, usize_of(PAGE_BYTES)) };
    }
}

impl Performer {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            open: HashMap::new(),
            mapped: VecDeque::new(),
        }
    }

    /// Calls `act` with a descriptor of the file that can read and write it.
    fn with_file(&mut self, file: &OnFile, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let opened = match self.open.remove(&file.inode) {
            Some(opened) => opened,
            None => File::options()
                .read(true)
                .write(true)
                .open(self.root.join(&file.path))?,
        };
        let done = act(&opened);
        if file.keep {
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            self.open.insert(file.inode, opened);
        }
        done
    }

    pub(crate) fn perform(&mut self, operation: &Operation) -> io::Result<()> {
        let seq = operation.seq;
        let root = self.root.clone();
        let at_path = |path: &str| root.join(path);
        match &operation.what {
            What::Write { file, at, len } => self.with_file(file, |opened| {
                let data = record(seq, *len);
                one_call(opened.write_at(&data, *at)?, data.len())
            }),
            What::Append { file, len } => {
                let path = at_path(&file.path);
                let data = record(seq, *len);
                // A descriptor of its own: the mode of a kept one cannot be changed.
                let mut opened = File::options().append(true).open(path)?;
                one_call(io::Write::write(&mut opened, &data)?, data.len())
            }
            What::Store { file, at, len, sync } => {
                let mut mapped = None;
                self.with_file(file, |opened| {
                    mapped = Some(store(opened, *at, &record(seq, *len), *sync)?);
                    Ok(())
                })?;
                if !*sync {
                    self.mapped.extend(mapped);
                    if self.mapped.len() > MAPPED_MAX {
                        self.mapped.pop_front();
                    }
                }
                Ok(())
            }
            What::Truncate { file, len } => self.with_file(file, |opened| opened.set_len(*len)),
            What::Punch { file, at, len } => self.with_file(file, |opened| {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(opened, mode, *at, *len)?)
            }),
            What::Copy {
                from,
                file,
                read_at,
                at,
                len,
            } => {
                let source = File::open(at_path(from))?;
                self.with_file(file, |opened| {
                    let (mut read_at, mut write_at) = (*read_at, *at);
                    let (from, to) = (Some(&mut read_at), Some(&mut write_at));
                    let copied = rustix::fs::copy_file_range(&source, from, opened, to, usize_of(*len))?;
                    one_call(copied, usize_of(*len))
                })
            }
            What::Create { path, mode } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(at_path(path), flags, Mode::from_raw_mode(*mode))?;
                Ok(())
            }
            What::Mkdir { path } => Ok(rustix::fs::mkdir(at_path(path), Mode::from_raw_mode(0o755))?),
            What::Rmdir { path } => Ok(rustix::fs::rmdir(at_path(path))?),
            What::Symlink { path } => Ok(rustix::fs::symlink(target_of(seq), at_path(path))?),
            What::Unlink { path } => Ok(rustix::fs::unlink(at_path(path))?),
            What::Rename { from, to } => Ok(rustix::fs::rename(at_path(from), at_path(to))?),
            What::Exchange { one, other } => Ok(rustix::fs::renameat_with(
                CWD,
                at_path(one),
                CWD,
                at_path(other),
                RenameFlags::EXCHANGE,
            )?),
            // Without AtFlags::SYMLINK_FOLLOW, as link(2).
            What::Link { from, to } => Ok(rustix::fs::linkat(
                CWD,
                at_path(from),
                CWD,
                at_path(to),
                AtFlags::empty(),
            )?),
            What::Chmod { path, mode } => Ok(rustix::fs::chmod(at_path(path), Mode::from_raw_mode(*mode))?),
            What::SetXattr { path } => Ok(rustix::fs::setxattr(
                at_path(path),
                XATTR,
                &record(seq, 24),
                XattrFlags::empty(),
            )?),
        }
    }
}

/// Checks that a call did all that was asked: a second call would make two operations of it.
fn one_call(done: usize, asked: usize) -> io::Result<()> {
    if done == asked {
        return Ok(());
    }
    Err(io::Error::other(format!("{done} of {asked} bytes by one call")))
}

fn store(file: &File, at: u64, data: &[u8], sync: bool) -> io::Result<Mapped> {
    let start = at - at % PAGE_BYTES;
    let offset = usize_of(at - start);
    let len = usize_of(PAGE_BYTES);
    assert!(offset + data.len() <= len, "a store stays within its page");
    // SAFETY: a new mapping of one page of its own, stored into below the file's end (beyond it, or
    // without a daemon behind it, the process dies, which is what a program would see).
    unsafe {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let map = rustix::mm::mmap(std::ptr::null_mut(), len, flags, MapFlags::SHARED, file, start)?;
        let mapped = Mapped(map);
        std::ptr::copy_nonoverlapping(data.as_ptr(), map.cast::<u8>().add(offset), data.len());
        if sync {
            rustix::mm::msync(map, len, MsyncFlags::SYNC)?;
        }
        Ok(mapped)
    }
}
