//! Comparison of two trees to the last byte and attribute, and a count of the bytes that differ.
//!
//! The code uses nothing of Byteback, so that it cannot share its mistakes: a plain walk with
//! `readdir` and `lstat`. [`compare`] judges a restored tree: names, types, permissions, owners,
//! modification times to the nanosecond, extended attributes (including ACLs), device numbers,
//! symlink targets, which names are the same file, and contents. Access, change and birth times
//! cannot be restored and are not compared; neither are holes, which read as zeros. [`difference`]
//! computes what a perfect backup would have to carry between two states of a tree.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::SuiteError;
use crate::rig::interrupt;

#[cfg(test)]
mod tests;

const BLOCK_BYTES: usize = 1 << 20;
/// Differences that are reported in words, at most.
const TOLD_MAX: usize = 10;

/// A node of a tree.
#[derive(Debug)]
struct Node {
    metadata: Metadata,
    xattrs: BTreeMap<OsString, Vec<u8>>,
    target: Option<PathBuf>,
    /// The first of the file's names, in order, if it has several: the same for all of them.
    first_name: Option<PathBuf>,
}

/// All nodes below a root and the root itself, by path from there.
type Tree = BTreeMap<PathBuf, Node>;

fn failed(what: &str, path: &Path, error: &dyn fmt::Display) -> SuiteError {
    format!("cannot {what} {}: {error}", path.display()).into()
}

fn walk(root: &Path) -> Result<Tree, SuiteError> {
    let mut tree = Tree::new();
    let mut first_names: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut folders = vec![PathBuf::new()];
    tree.insert(PathBuf::new(), node(root)?);
    while let Some(folder) = folders.pop() {
        interrupt::check()?;
        let path = join(root, &folder);
        let entries = fs::read_dir(&path).map_err(|error| failed("list", &path, &error))?;
        for entry in entries {
            let name = folder.join(entry.map_err(|error| failed("list", &path, &error))?.file_name());
            let node = node(&join(root, &name))?;
            if node.metadata.is_dir() {
                folders.push(name.clone());
            }
            tree.insert(name, node);
        }
    }
    for (name, node) in &mut tree {
        let metadata = &node.metadata;
        if !metadata.is_dir() && metadata.nlink() > 1 {
            let key = (metadata.dev(), metadata.ino());
            node.first_name = Some(first_names.entry(key).or_insert_with(|| name.clone()).clone());
        }
    }
    Ok(tree)
}

/// Joining an empty path would add a slash, which follows a symlink.
fn join(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        root.to_owned()
    } else {
        root.join(below)
    }
}

fn node(path: &Path) -> Result<Node, SuiteError> {
    let metadata = fs::symlink_metadata(path).map_err(|error| failed("look at", path, &error))?;
    let target = match metadata.is_symlink() {
        true => Some(fs::read_link(path).map_err(|error| failed("read the link", path, &error))?),
        false => None,
    };
    Ok(Node {
        xattrs: xattrs(path).map_err(|error| failed("read the extended attributes of", path, &error))?,
        metadata,
        target,
        first_name: None,
    })
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    // The kernel's limit for the list and for each value is 64 KiB.
    let mut buffer = [0_u8; 65536];
    let len = match rustix::fs::llistxattr(path, &mut buffer[..]) {
        Err(rustix::io::Errno::NOTSUP) => 0,
        result => result?,
    };
    let names = buffer[..len].to_vec();
    let mut xattrs = BTreeMap::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = std::ffi::OsStr::from_bytes(name);
        let len = rustix::fs::lgetxattr(path, name, &mut buffer[..])?;
        xattrs.insert(name.to_owned(), buffer[..len].to_vec());
    }
    Ok(xattrs)
}

/// The result of comparing a tree with the expected one.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The number of compared names.
    pub(crate) names: u64,
    /// The number of compared bytes of content.
    pub(crate) bytes: u64,
    /// The number of differences.
    pub(crate) differences: u64,
    /// The first differences, in words.
    pub(crate) told: Vec<String>,
}

impl Comparison {
    /// Whether nothing differs.
    pub(crate) fn is_equal(&self) -> bool {
        self.differences == 0
    }

    fn differs(&mut self, path: &Path, how: impl fmt::Display) {
        self.differences += 1;
        if self.told.len() < TOLD_MAX {
            let path = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            self.told.push(format!("{}: {how}", path.display()));
        }
    }
}

/// Compares the tree at `actual` with the one at `expected`. `on_bytes` is called with the number
/// of bytes compared since its last call.
///
/// # Errors
/// If either cannot be read as a whole.
pub(crate) fn compare(expected: &Path, actual: &Path, mut on_bytes: impl FnMut(u64)) -> Result<Comparison, SuiteError> {
    let (expected_tree, actual_tree) = (walk(expected)?, walk(actual)?);
    let mut comparison = Comparison::default();
    for path in actual_tree.keys().filter(|path| !expected_tree.contains_key(*path)) {
        comparison.differs(path, "exists, but should not");
    }
    for (path, node) in &expected_tree {
        comparison.names += 1;
        let Some(other) = actual_tree.get(path) else {
            comparison.differs(path, "is missing");
            continue;
        };
        for how in attribute_differences(node, other) {
            comparison.differs(path, how);
        }
        let is_first_name = node.first_name.as_ref().is_none_or(|first| first == path);
        if node.metadata.is_file() && other.metadata.is_file() && is_first_name {
            let difference = file_difference(Some(&join(expected, path)), Some(&join(actual, path)))?;
            comparison.bytes += node.metadata.len();
            on_bytes(node.metadata.len());
            if let Some(first) = difference.first {
                comparison.differs(path, format!("contents differ from byte {first} onwards"));
            }
        }
    }
    Ok(comparison)
}

/// The differences between two nodes, apart from contents.
fn attribute_differences(expected: &Node, actual: &Node) -> Vec<String> {
    let (one, other) = (&expected.metadata, &actual.metadata);
    let mut differences = Vec::new();
    let mut check = |what: &str, one: &dyn fmt::Debug, other: &dyn fmt::Debug, are_equal: bool| {
        if !are_equal {
            differences.push(format!("{what} is {other:?}, but should be {one:?}"));
        }
    };
    let mode = |metadata: &Metadata| format!("{:o}", metadata.mode());
    check("type and mode", &mode(one), &mode(other), one.mode() == other.mode());
    let owner = |metadata: &Metadata| (metadata.uid(), metadata.gid());
    check("owner", &owner(one), &owner(other), owner(one) == owner(other));
    let time = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
    check("modification time", &time(one), &time(other), time(one) == time(other));
    if !one.is_dir() {
        check("length", &one.len(), &other.len(), one.len() == other.len());
    }
    check("device number", &one.rdev(), &other.rdev(), one.rdev() == other.rdev());
    check(
        "link target",
        &expected.target,
        &actual.target,
        expected.target == actual.target,
    );
    check(
        "extended attributes",
        &expected.xattrs,
        &actual.xattrs,
        expected.xattrs == actual.xattrs,
    );
    check(
        "first hard link",
        &expected.first_name,
        &actual.first_name,
        expected.first_name == actual.first_name,
    );
    differences
}

/// The bytes in which two states of a tree differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Bytes that files of the same name have at the same place in both states, with another value.
    pub(crate) changed_bytes: u64,
    /// Bytes beyond the old end of files, and all bytes of new files.
    pub(crate) added_bytes: u64,
    /// Files of which at least one byte is changed or added.
    pub(crate) files: u64,
}

impl Difference {
    /// The bytes that a backup has to carry at least, unless it compresses or copies from
    /// elsewhere.
    pub(crate) fn bytes(self) -> u64 {
        self.changed_bytes + self.added_bytes
    }
}

/// Counts the bytes that differ between two states of a tree. `on_bytes` is called with the number
/// of bytes compared since its last call.
///
/// # Errors
/// If either cannot be read as a whole.
pub(crate) fn difference(old: &Path, new: &Path, mut on_bytes: impl FnMut(u64)) -> Result<Difference, SuiteError> {
    let (old_tree, new_tree) = (walk(old)?, walk(new)?);
    let mut sum = Difference::default();
    for (path, node) in &new_tree {
        let is_first_name = node.first_name.as_ref().is_none_or(|first| first == path);
        if !node.metadata.is_file() || !is_first_name {
            continue;
        }
        let is_old = old_tree.get(path).is_some_and(|old| old.metadata.is_file());
        let old_path = is_old.then(|| join(old, path));
        let files = file_difference(old_path.as_deref(), Some(&join(new, path)))?;
        sum.changed_bytes += files.changed_bytes;
        sum.added_bytes += files.added_bytes;
        sum.files += u64::from(files.changed_bytes + files.added_bytes > 0);
        on_bytes(node.metadata.len());
    }
    Ok(sum)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileDifference {
    /// The first byte that differs or that only one of the files has.
    first: Option<u64>,
    changed_bytes: u64,
    /// Bytes that only the new file has.
    added_bytes: u64,
}

/// Compares two files byte by byte; a missing one counts as empty.
fn file_difference(old: Option<&Path>, new: Option<&Path>) -> Result<FileDifference, SuiteError> {
    let mut difference = FileDifference::default();
    let mut old_blocks = Blocks::open(old)?;
    let mut new_blocks = Blocks::open(new)?;
    let mut offset = 0_u64;
    loop {
        interrupt::check()?;
        let (old, new) = (old_blocks.next()?, new_blocks.next()?);
        let common = old.len().min(new.len());
        if old != new {
            let first_in_block = old.iter().zip(new).position(|(old, new)| old != new).unwrap_or(common);
            // Blocks are no longer than 1 MiB.
            difference.first.get_or_insert(offset + first_in_block as u64);
            difference.changed_bytes += differing(&old[..common], &new[..common]);
            difference.added_bytes += (new.len() - common) as u64;
        }
        if old.len().max(new.len()) < BLOCK_BYTES {
            return Ok(difference);
        }
        offset += BLOCK_BYTES as u64;
    }
}

/// The number of places where two equally long slices differ.
fn differing(one: &[u8], other: &[u8]) -> u64 {
    // In pieces, because most are equal, and comparing them is fast.
    let pieces = one
        .chunks(4096)
        .zip(other.chunks(4096))
        .filter(|(one, other)| one != other);
    // Counts of at most 4096.
    pieces
        .map(|(one, other)| one.iter().zip(other).filter(|(one, other)| one != other).count() as u64)
        .sum()
}

/// A file in blocks of equal length; the last ones are shorter or empty.
struct Blocks<'a> {
    file: Option<(&'a Path, File)>,
    buffer: Vec<u8>,
}

impl<'a> Blocks<'a> {
    fn open(path: Option<&'a Path>) -> Result<Self, SuiteError> {
        let file = match path {
            Some(path) => Some((path, File::open(path).map_err(|error| failed("open", path, &error))?)),
            None => None,
        };
        Ok(Self {
            file,
            buffer: Vec::new(),
        })
    }

    fn next(&mut self) -> Result<&[u8], SuiteError> {
        self.buffer.clear();
        if let Some((path, file)) = &mut self.file {
            let block = file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut self.buffer);
            block.map_err(|error| failed("read", path, &error))?;
        }
        Ok(&self.buffer)
    }
}
