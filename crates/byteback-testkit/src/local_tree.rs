//! A real directory as it is seen, to the last attribute, the comparison of two of them, and random
//! changes that leave some of everything in it.

use crate::seed::Draw;
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime, SetXattr};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node of a tree, under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The mode, with the kind in the upper bits, as `st_mode`.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// The number of a device; 0 for anything else.
    pub rdev: u64,
    /// The bytes of a file, or the target of a symlink.
    pub content: Arc<Vec<u8>>,
    /// All that the reader may see.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// The first path of the same inode: equal for all names of one file, and only for these.
    pub first_name: PathBuf,
}

impl Entry {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    /// Whether it is a symlink.
    pub fn is_symlink(&self) -> bool {
        self.mode & 0o170_000 == 0o120_000
    }
}

/// A directory and everything below it, by path; the root's path is empty.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// Reads everything below a directory, which must not be changed meanwhile.
#[track_caller]
pub fn seen(root: &Path) -> Tree {
    try_seen(root).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads everything below a directory. If an entry cannot be read or has gone meanwhile, the error
/// names its path.
pub fn try_seen(root: &Path) -> io::Result<Tree> {
    let mut found = BTreeMap::new();
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
            fs::read_link(&path).map_err(failed)?.into_os_string().into_vec()
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
            rdev: if is_device { metadata.rdev() } else { 0 },
            content: Arc::new(content),
            xattrs: xattrs(&path).map_err(failed)?,
            first_name: PathBuf::new(),
        };
        found.insert(below, (entry, (metadata.dev(), metadata.ino())));
    }
    let mut first_names = HashMap::new();
    let named = found.into_iter().map(|(path, (mut entry, inode))| {
        let first = first_names.entry(inode).or_insert_with(|| path.clone());
        entry.first_name.clone_from(first);
        (path, entry)
    });
    Ok(named.collect())
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names) {
        // Not every file system has extended attributes.
        Err(rustix::io::Errno::NOTSUP) => 0,
        len => len?,
    };
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
pub fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    if left == right {
        return None;
    }
    let common = left.iter().zip(right).position(|(one, other)| one != other);
    Some(common.unwrap_or(left.len().min(right.len())))
}

/// The differences between the present tree and a restored one, in words; empty if they are equal.
/// Modification times are compared only with `times`.
pub fn differences(there: &Tree, restored: &Tree, times: bool) -> Vec<String> {
    let mut found = Vec::new();
    let paths: BTreeSet<&PathBuf> = there.keys().chain(restored.keys()).collect();
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
        if one.first_name != other.first_name {
            found.push(format!("{path:?}: hard links differ"));
        }
    }
    found
}

/// A digest of a tree: equal for trees without a difference that [`differences`] reports.
pub fn digest(tree: &Tree, times: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, entry) in tree {
        (path, &entry.first_name, entry.mode, entry.owner, entry.rdev).hash(&mut hasher);
        (&entry.content, &entry.xattrs).hash(&mut hasher);
        if times {
            entry.mtime.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Fails with the differences of everything below two directories. The directories themselves may
/// differ.
#[track_caller]
pub fn assert_same(here: &Path, there: &Path) {
    let [here, there] = [here, there].map(|root| {
        let mut tree = seen(root);
        tree.remove(Path::new(""));
        tree
    });
    let found = differences(&here, &there, true);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The empty path and all below, a directory before its entries.
pub fn paths(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    let mut at = 0;
    while at < found.len() {
        let full = root.join(&found[at]);
        if fs::symlink_metadata(&full).unwrap().is_dir() {
            let mut names: Vec<_> = fs::read_dir(&full)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort();
            let below: Vec<_> = names.into_iter().map(|name| found[at].join(name)).collect();
            found.extend(below);
        }
        at += 1;
    }
    found
}

fn pick<'p>(
    random: &mut SplitMix64,
    root: &Path,
    paths: &'p [PathBuf],
    is: fn(&fs::FileType) -> bool,
) -> Option<&'p PathBuf> {
    let of_kind: Vec<_> = paths
        .iter()
        .filter(|path| fs::symlink_metadata(root.join(path)).is_ok_and(|metadata| is(&metadata.file_type())))
        .collect();
    match of_kind.len() {
        0 => None,
        len => Some(of_kind[random.index(len)]),
    }
}

/// Makes a random change.
pub fn change(random: &mut SplitMix64, root: &Path) {
    let all = paths(root);
    let dir = pick(random, root, &all, fs::FileType::is_dir).unwrap().clone();
    let mut name = format!("n{}", random.next_u64() % 12).into_bytes();
    if random.next_u64().is_multiple_of(6) {
        name.push(0xff);
    }
    let new = root.join(dir).join(OsStr::from_bytes(&name));
    let file = pick(random, root, &all, fs::FileType::is_file).map(|path| root.join(path));
    match (random.next_u64() % 16, file) {
        (0..=2, _) if !new.exists() => {
            let len = [0, 1, 700, 4096, 70_000, 300_000][random.index(6)];
            fs::write(&new, noise(random.next_u64(), len)).unwrap();
        }
        (3, _) if fs::symlink_metadata(&new).is_err() => fs::create_dir(&new).unwrap(),
        (4, _) if fs::symlink_metadata(&new).is_err() => symlink(OsStr::from_bytes(b"to \xfe"), &new).unwrap(),
        (5, _) if fs::symlink_metadata(&new).is_err() => {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &new,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )
            .unwrap();
        }
        (6, Some(file)) if fs::symlink_metadata(&new).is_err() => fs::hard_link(file, &new).unwrap(),
        (7, Some(file)) => {
            let len = fs::metadata(&file).unwrap().len();
            let opened = OpenOptions::new().write(true).open(&file).unwrap();
            let at = random.next_u64() % (len + 10_000);
            opened
                .write_all_at(&noise(random.next_u64(), 1 + random.index(5000)), at)
                .unwrap();
        }
        (8, Some(file)) => {
            // An insertion.
            let mut bytes = fs::read(&file).unwrap();
            let at = random.index(bytes.len() + 1);
            let inserted = noise(random.next_u64(), 1 + random.index(100));
            bytes.splice(at..at, inserted);
            fs::write(&file, bytes).unwrap();
        }
        (9, Some(file)) => {
            let len = random.next_u64() % 400_000;
            OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .set_len(len)
                .unwrap();
        }
        (10, Some(file)) => {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600 + random.next_u64() as u32 % 64)).unwrap()
        }
        (11, Some(file)) => {
            let opened = File::open(&file).unwrap();
            let value = noise(random.next_u64(), 20);
            // Not every file system has extended attributes.
            let _ = tree::set_xattr(&opened, OsStr::new("user.test"), &value, SetXattr::Any);
        }
        (12, Some(file)) => {
            let opened = File::open(&file).unwrap();
            tree::set_times(
                &opened,
                SetTime::Keep,
                SetTime::To(i128::from(random.next_u64() as i64 % 1_000_000_000_000_000_000)),
            )
            .unwrap();
        }
        (13, _) => {
            // A node moves; directories not into themselves.
            let moved = root.join(&all[random.index(all.len())]);
            if moved != root && !new.starts_with(&moved) && fs::symlink_metadata(&new).is_err() {
                fs::rename(&moved, &new).unwrap();
            }
        }
        (14, _) => {
            let gone = root.join(&all[random.index(all.len())]);
            if gone != root {
                match fs::symlink_metadata(&gone).unwrap().is_dir() {
                    true => fs::remove_dir_all(&gone).unwrap(),
                    false => fs::remove_file(&gone).unwrap(),
                }
            }
        }
        (15, Some(file)) => {
            // A node of another kind takes its place.
            fs::remove_file(&file).unwrap();
            match random.next_u64() % 2 {
                0 => fs::create_dir(&file).unwrap(),
                _ => symlink("elsewhere", &file).unwrap(),
            }
        }
        _ => {}
    }
}
