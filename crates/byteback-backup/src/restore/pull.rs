//! The rules of a pull beyond a restore: it looks at the local nodes first, changes only those that
//! differ, and reports it.
//!
//! [`Rules::judge`] decides for one name, and changes nothing; a dry run ([`super::look`]) and a
//! real one use the same rules.

use super::place::Place;
use super::{Pulled, Wishes};
use crate::error::{BackupError, Result};
use crate::exclude::Exclude;
use crate::local_node::LocalNode;
use crate::monitor::{Change, Event, Monitor};
use crate::same_content::is_same_content;
use crate::tree_reader::join_path;
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_delta::ContentDigest;
use byteback_host::tree::{self, Descent, Stat};
use byteback_model::{Attributes, ByteString, FileId, NodeInfo, NodeKind, Seq};
use rustix::fs::OFlags;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shorter files are fetched as they are: an answer of the server takes longer than their bytes.
pub(super) const NEAR_LEN_MIN: u64 = 64 * 1024;

const DIRECTORY_IN_THE_WAY: &str = "a directory of this name is here; --delete replaces it";

const EXCLUDED_IN_THE_WAY: &str = "a directory of this name is here that is excluded or holds excluded files";

const PARTIAL_PREFIX: &str = ".byteback-partial-";

/// The name under which a file is made that may take long, in its own directory: the same in every
/// run.
#[must_use]
pub fn partial_name(name: &OsStr) -> OsString {
    let mut digest = ContentDigest::new(u64::try_from(name.len()).unwrap_or(u64::MAX));
    digest.push(name.as_bytes());
    let digest = digest.finish().unwrap_or_default();
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    OsString::from(format!("{PARTIAL_PREFIX}{digits}"))
}

/// Whether a name is one of [`partial_name`]: not the user's.
#[must_use]
pub fn is_partial_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PARTIAL_PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// The decision for one name.
pub(super) enum Verdict {
    /// The node is as it should be.
    Keep,
    /// Only its attributes differ.
    Attributes,
    /// The node is made anew.
    Make(Change),
    /// The node stays as it is, for this reason.
    Blocked(&'static str),
}

/// The rules and counts of a pull.
pub(super) struct Rules<'a> {
    pub(super) server: &'a ServerClient,
    pub(super) folder: &'a FolderName,
    pub(super) at: Seq,
    pub(super) exclude: &'a Exclude,
    pub(super) delete: bool,
    pub(super) checksum: bool,
    flags: bool,
    pub(super) monitor: &'a dyn Monitor,
    /// The server's file that a local inode with several names stands for.
    claims: Mutex<HashMap<(u64, u64), FileId>>,
    counts: Mutex<Pulled>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(
        (server, folder, at): (&'a ServerClient, &'a FolderName, Seq),
        wishes: &Wishes<'a>,
        monitor: &'a dyn Monitor,
    ) -> Self {
        Self {
            server,
            folder,
            at,
            exclude: wishes.exclude,
            delete: wishes.delete,
            checksum: wishes.checksum,
            flags: wishes.flags,
            monitor,
            claims: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// Whether a path is neither fetched nor removed.
    pub(super) fn is_excluded(&self, path: &[u8], is_directory: bool) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        is_partial_name(name) || self.exclude.is_excluded(path, is_directory)
    }

    /// Decides how `place` becomes `node`; `dir` is the directory, if it exists. The inner error is
    /// of this name.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub(super) fn judge(&self, dir: Option<&OwnedFd>, place: &Place, node: &NodeInfo) -> Result<io::Result<Verdict>> {
        let Some(dir) = dir else {
            return Ok(Ok(Verdict::Make(Change::New)));
        };
        let looked = LocalNode::open(dir, &place.name).and_then(|there| Ok((self.attributes_of(&there)?, there)));
        let (here, mut there) = match looked {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(Verdict::Make(Change::New))),
            Err(error) => return Ok(Err(error)),
        };
        let wanted = &node.attributes;
        if here.kind != wanted.kind {
            let in_the_way = match here.kind {
                NodeKind::Directory => self.directory_in_the_way(dir, place),
                _ => Ok(None),
            };
            return Ok(in_the_way.map(|why| why.map_or(Verdict::Make(Change::Content), Verdict::Blocked)));
        }
        let is_same = match wanted.kind {
            NodeKind::Directory => true,
            NodeKind::File => match self.is_same_file(&here, &mut there, node)? {
                Ok(is_same) => is_same,
                Err(error) => return Ok(Err(error)),
            },
            _ => here.target == wanted.target && here.rdev == wanted.rdev,
        };
        let is_other_inode = wanted.kind != NodeKind::Directory && !self.claim(&there, node.id);
        Ok(Ok(if !is_same || is_other_inode {
            Verdict::Make(Change::Content)
        } else if self.are_same(&here, wanted) {
            Verdict::Keep
        } else {
            Verdict::Attributes
        }))
    }

    fn is_same_file(&self, here: &Attributes, there: &mut LocalNode, node: &NodeInfo) -> Result<io::Result<bool>> {
        let wanted = &node.attributes;
        if here.size != wanted.size || wanted.size == 0 {
            return Ok(Ok(here.size == wanted.size));
        }
        let is_same_time = here.mtime_ns == wanted.mtime_ns;
        if !self.checksum && (is_same_time || wanted.size < NEAR_LEN_MIN) {
            return Ok(Ok(is_same_time));
        }
        // Asking costs less than writing it once more.
        let opened = there.settle(self.server.clock()).and_then(|()| there.content());
        let content = match opened {
            Ok(content) if there.stat.size == wanted.size => content,
            Ok(_) => return Ok(Ok(false)),
            Err(error) => return Ok(Err(error)),
        };
        let base = (self.server, self.folder, self.at);
        let same = is_same_content(
            base,
            node.id,
            |ranges, sink| content.read(ranges, sink),
            wanted.size,
            self.monitor,
        )?;
        // A file that changes meanwhile, or cannot be read, is made anew.
        Ok(Ok(same.unwrap_or(false)))
    }

    /// Whether a local inode may be this file: one with several names is not two files of the
    /// server.
    fn claim(&self, there: &LocalNode, id: FileId) -> bool {
        if there.stat.nlink == 1 {
            return true;
        }
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        *claims.entry((there.stat.dev, there.stat.ino)).or_insert(id) == id
    }

    /// Judges a directory that has to exist; reports the coming change.
    pub(super) fn judge_directory(&self, dir: &OwnedFd, place: &Place, node: &NodeInfo) -> Result<io::Result<()>> {
        Ok(match self.judge(Some(dir), place, node)? {
            Err(error) => Err(error),
            Ok(Verdict::Blocked(why)) => Err(io::Error::other(why)),
            Ok(Verdict::Keep) => Ok(()),
            Ok(Verdict::Attributes) => {
                self.tell(&place.path(), Change::Attributes);
                Ok(())
            }
            Ok(Verdict::Make(change)) => {
                self.tell(&place.path(), change);
                Ok(())
            }
        })
    }

    /// Reports whether the target itself gets other attributes.
    pub(super) fn look_at_root(&self, target: &OwnedFd, node: &NodeInfo) -> Result<()> {
        let cannot = |error| BackupError::local("read the attributes of", "the target", error);
        let root = target.try_clone().and_then(LocalNode::of).map_err(cannot)?;
        if !self.are_same(&self.attributes_of(&root).map_err(cannot)?, &node.attributes) {
            self.tell(b"", Change::Attributes);
        }
        Ok(())
    }

    /// The attributes of a node; the flags, where they matter, even through a FUSE mount.
    fn attributes_of(&self, node: &LocalNode) -> io::Result<Attributes> {
        let mut attributes = node.attributes()?;
        if self.flags {
            attributes.inode_flags = node.inode_flags()?.bits();
        }
        Ok(attributes)
    }

    /// Whether attributes are the same, except names of owners, and flags unless they are asked
    /// for.
    fn are_same(&self, here: &Attributes, wanted: &Attributes) -> bool {
        let wanted = Attributes {
            inode_flags: if self.flags {
                wanted.inode_flags
            } else {
                here.inode_flags
            },
            user: None,
            group: None,
            ..wanted.clone()
        };
        *here == wanted
    }

    /// Whether a further name of a file may be given in place of this node.
    pub(super) fn judge_link(&self, dir: &OwnedFd, place: &Place, there: Option<&Stat>) -> io::Result<()> {
        let in_the_way = match there {
            Some(there) if there.kind == NodeKind::Directory => self.directory_in_the_way(dir, place)?,
            _ => None,
        };
        in_the_way.map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Why a local directory cannot be replaced by another node.
    fn directory_in_the_way(&self, dir: &OwnedFd, place: &Place) -> io::Result<Option<&'static str>> {
        let path = place.path();
        Ok(match self.delete {
            false => Some(DIRECTORY_IN_THE_WAY),
            true if self.exclude.is_excluded(&path, true)
                || !self.holding_excluded(dir, &place.name, &path)?.is_empty() =>
            {
                Some(EXCLUDED_IN_THE_WAY)
            }
            true => None,
        })
    }

    /// The directories from a local name on, itself included, that hold an excluded node: these
    /// stay. None if it is not a directory, or holds no such node.
    pub(super) fn holding_excluded(&self, dir: &OwnedFd, name: &OsStr, path: &[u8]) -> io::Result<HashSet<Vec<u8>>> {
        let mut holding = HashSet::new();
        if self.exclude.is_empty() || tree::stat_at(dir, name)?.kind != NodeKind::Directory {
            return Ok(holding);
        }
        let mut way = Descent::new(dir)?;
        let mut to_do = vec![(name.as_bytes().to_vec(), path.to_vec())];
        while let Some((below, local_path)) = to_do.pop() {
            let named = way.open(&below)?;
            for entry in tree::read_dir(&named, 0)? {
                let entry = entry?;
                let entry_path = join_path(&local_path, entry.name.as_bytes());
                let is_directory = tree::stat_at(&named, &entry.name)?.kind == NodeKind::Directory;
                if self.exclude.is_excluded(&entry_path, is_directory) {
                    mark_ancestors(&mut holding, &local_path, path.len());
                } else if is_directory {
                    to_do.push((join_path(&below, entry.name.as_bytes()), entry_path));
                }
            }
        }
        Ok(holding)
    }

    /// Whether a local name that the server does not have, or that is excluded, stays; `names` are
    /// the server's.
    pub(super) fn stays(&self, dir: &OwnedFd, name: &OsStr, path: &[u8], names: &HashSet<OsString>) -> bool {
        if is_partial_name(name.as_bytes()) {
            // Of a file that is being made now, or was being made when a run was interrupted.
            return names.iter().any(|known| partial_name(known) == name);
        }
        let is_directory = tree::stat_at(dir, name).is_ok_and(|stat| stat.kind == NodeKind::Directory);
        self.exclude.is_excluded(path, is_directory)
    }

    /// Reports a path as changed, or to be changed.
    pub(super) fn tell(&self, path: &[u8], change: Change) {
        let path = match path {
            b"" => ByteString::from("."),
            path => ByteString::from(path),
        };
        {
            let mut counts = self.counts();
            match change {
                Change::New => counts.new += 1,
                Change::Content => counts.changed += 1,
                Change::Attributes => counts.attributes_changed += 1,
                Change::Removed | Change::Moved | Change::Copied => {}
            }
        }
        self.monitor.event(Event::Changed { path: &path, change });
    }

    pub(super) fn pulled(&self) -> Pulled {
        *self.counts()
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Pulled> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name to remove: its directory and its name there; or why it cannot be looked at.
pub(super) type OtherName<'d> = io::Result<(&'d OwnedFd, &'d OsStr)>;

/// Paths of directories.
type Paths = HashSet<Vec<u8>>;

/// Adds a directory and those above it, down to a path of `len_min` bytes, up to the first one that
/// is there already.
pub(crate) fn mark_ancestors(marked: &mut HashSet<Vec<u8>>, path: &[u8], len_min: usize) {
    let mut path = path;
    while path.len() >= len_min && marked.insert(path.to_vec()) {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(end) => path = path.get(..end).unwrap_or_default(),
            None => break,
        }
    }
}

/// Hands on the names below a local directory that are to be removed, as the server does not have
/// them (`names` are the server's in this directory), and no rule keeps them: a directory that
/// holds excluded nodes stays with those, and the rest in it goes. `each` gets a path, and its
/// directory and name or why it cannot be looked at; names for which `is_passed_over` is true are
/// skipped.
pub(super) fn for_each_other(
    rules: Option<&Rules<'_>>,
    dir: &OwnedFd,
    path: &[u8],
    names: &HashSet<OsString>,
    is_passed_over: &dyn Fn(&OsStr) -> bool,
    each: &mut dyn FnMut(&[u8], OtherName<'_>),
) {
    let no_names = HashSet::new();
    let mut way = None;
    // Directories below `dir` to look into, each with those below it that hold excluded nodes.
    let mut to_do: Vec<(Vec<u8>, Rc<Paths>)> = vec![(Vec::new(), Rc::default())];
    while let Some((below, holding)) = to_do.pop() {
        let is_top = below.is_empty();
        let (local_path, local_names) = match is_top {
            true => (path.to_vec(), names),
            false => (join_path(path, &below), &no_names),
        };
        let listed = opened_below(dir, &mut way, &below).and_then(|dir| {
            let entries: io::Result<Vec<_>> = tree::read_dir(&dir, 0).and_then(Iterator::collect);
            Ok((dir, entries?))
        });
        let (dir, entries) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                each(&local_path, Err(error));
                continue;
            }
        };
        for entry in entries {
            if local_names.contains(&entry.name) || is_passed_over(&entry.name) {
                continue;
            }
            let entry_path = join_path(&local_path, entry.name.as_bytes());
            let mut holding = Rc::clone(&holding);
            if let Some(rules) = rules {
                if rules.stays(&dir, &entry.name, &entry_path, local_names) {
                    continue;
                }
                if is_top {
                    match rules.holding_excluded(&dir, &entry.name, &entry_path) {
                        Ok(found) => holding = Rc::new(found),
                        Err(error) => {
                            each(&entry_path, Err(error));
                            continue;
                        }
                    }
                }
            }
            match holding.contains(&entry_path) {
                true => to_do.push((join_path(&below, entry.name.as_bytes()), holding)),
                false => each(&entry_path, Ok((&dir, &entry.name))),
            }
        }
    }
}

/// The directory at `below`, for reading.
fn opened_below(dir: &OwnedFd, way: &mut Option<Descent>, below: &[u8]) -> io::Result<OwnedFd> {
    if below.is_empty() {
        return dir.try_clone();
    }
    if way.is_none() {
        *way = Some(Descent::new(dir)?);
    }
    match way {
        Some(way) => tree::reopen(way.open(below)?, OFlags::RDONLY | OFlags::DIRECTORY),
        None => dir.try_clone(),
    }
}
