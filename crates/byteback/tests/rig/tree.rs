//! A directory with everything in it, and the comparison of two of them to the last attribute.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node of a tree, under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The mode, with the kind in the upper bits, as `st_mode`.
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) inode: u64,
    pub(crate) rdev: u64,
    /// The bytes of a file, or the target of a symlink.
    pub(crate) content: Arc<Vec<u8>>,
    pub(crate) xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl Entry {
    pub(crate) fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    pub(crate) fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.mode & 0o170_000 == 0o120_000
    }
}

/// A directory and everything below it, by path; the root's path is empty.
pub(crate) type Tree = BTreeMap<PathBuf, Entry>;

/// Reads everything below a directory, which must not be changed meanwhile.
pub(crate) fn look(root: &Path) -> Tree {
    try_look(root).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads everything below a directory. If an entry cannot be read or has gone meanwhile, the error
/// names its path.
pub(crate) fn try_look(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut left = vec![PathBuf::new()];
    while let Some(below) = left.pop() {
        let path = root.join(&below);
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                left.push(below.join(entry.map_err(failed)?.file_name()));
            }
            Vec::new()
        } else if kind.is_symlink() {
            fs::read_link(&path).map_err(failed)?.as_os_str().as_bytes().to_vec()
        } else if kind.is_file() {
            fs::read(&path).map_err(failed)?
        } else {
            Vec::new()
        };
        let is_device = kind.is_block_device() || kind.is_char_device();
        let entry = Entry {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
            rdev: if is_device { metadata.rdev() } else { 0 },
            content: Arc::new(content),
            xattrs: xattrs(&path).map_err(failed)?,
        };
        tree.insert(below, entry);
    }
    Ok(tree)
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names)?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let values = names.map(|name| {
        let name = OsString::from_vec(name.to_vec());
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, &name, &mut value)?;
        value.truncate(len);
        Ok((name, value))
    });
    values.collect()
}

/// The offset at which two contents first differ, for messages.
pub(crate) fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    if left == right {
        return None;
    }
    let common = left.iter().zip(right).position(|(one, other)| one != other);
    Some(common.unwrap_or(left.len().min(right.len())))
}

/// The differences between the present tree and a restored one, in words; empty if they are equal.
/// Modification times are compared only with `times`.
pub(crate) fn differences(there: &Tree, restored: &Tree, times: bool) -> Vec<String> {
    let mut found = Vec::new();
    let paths: std::collections::BTreeSet<&PathBuf> = there.keys().chain(restored.keys()).collect();
    let mut linked: BTreeMap<u64, u64> = BTreeMap::new();
    let mut linked_back: BTreeMap<u64, u64> = BTreeMap::new();
    for path in paths {
        let (one, other) = match (there.get(path), restored.get(path)) {
            (Some(one), Some(other)) => (one, other),
            (Some(_), None) => {
                found.push(format!("{path:?} is missing in the restored tree"));
                continue;
            }
            _ => {
                found.push(format!("{path:?} is only in the restored tree"));
                continue;
            }
        };
        if one.mode != other.mode {
            found.push(format!("{path:?}: mode {:o}, restored {:o}", one.mode, other.mode));
        }
        if (one.owner, one.rdev) != (other.owner, other.rdev) {
            found.push(format!("{path:?}: owner or device differ"));
        }
        if times && one.mtime != other.mtime {
            found.push(format!("{path:?}: mtime {:?}, restored {:?}", one.mtime, other.mtime));
        }
        if one.xattrs != other.xattrs {
            found.push(format!("{path:?}: extended attributes differ"));
        }
        if let Some(offset) = first_difference(&one.content, &other.content) {
            let (len, restored_len) = (one.content.len(), other.content.len());
            found.push(format!(
                "{path:?}: content differs from offset {offset} on; {len} bytes, restored {restored_len}"
            ));
        }
        let is_linked = *linked.entry(one.inode).or_insert(other.inode) == other.inode
            && *linked_back.entry(other.inode).or_insert(one.inode) == one.inode;
        if !is_linked {
            found.push(format!("{path:?}: hard links differ"));
        }
    }
    found
}

/// A digest of a tree: equal for trees without a difference that [`differences`] reports.
pub(crate) fn digest(tree: &Tree, times: bool) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    let mut first_names: BTreeMap<u64, &PathBuf> = BTreeMap::new();
    for (path, entry) in tree {
        let linked_with = *first_names.entry(entry.inode).or_insert(path);
        (path, linked_with, entry.mode, entry.owner, entry.rdev).hash(&mut hasher);
        (&entry.content, &entry.xattrs).hash(&mut hasher);
        if times {
            entry.mtime.hash(&mut hasher);
        }
    }
    hasher.finish()
}
