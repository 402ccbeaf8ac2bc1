//! A real directory with some of everything in it, changed at random, and the comparison of two of
//! them.

use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime, SetXattr};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The visible state of a node, beside its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    mode: u32,
    mtime_ns: i64,
    owner: (u32, u32),
    content: Vec<u8>,
    xattrs: Vec<(OsString, Vec<u8>)>,
    /// The first path of the same inode.
    first_name: PathBuf,
}

/// All nodes below a directory, and itself under the empty path.
pub fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    for path in paths(root) {
        let full = root.join(&path);
        let metadata = fs::symlink_metadata(&full).unwrap();
        let kind = metadata.file_type();
        let content = if kind.is_file() {
            fs::read(&full).unwrap()
        } else if kind.is_symlink() {
            fs::read_link(&full).unwrap().into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let mut xattrs: Vec<_> = Vec::new();
        if kind.is_file() || kind.is_dir() {
            let file = File::open(&full).unwrap();
            for name in tree::list_xattrs(&file).unwrap_or_default() {
                let value = tree::get_xattr(&file, &name).unwrap().unwrap();
                xattrs.push((name, value));
            }
        }
        xattrs.sort();
        let of_node = Seen {
            mode: metadata.mode(),
            mtime_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
            owner: (metadata.uid(), metadata.gid()),
            content,
            xattrs,
            first_name: PathBuf::new(),
        };
        found.insert(path, (of_node, (metadata.dev(), metadata.ino())));
    }
    let mut first_names = HashMap::new();
    let named = found.into_iter().map(|(path, (mut of_node, inode))| {
        let first = first_names.entry(inode).or_insert_with(|| path.clone());
        of_node.first_name.clone_from(first);
        (path, of_node)
    });
    named.collect()
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

/// Fails with the differences.
pub fn assert_same(here: &Path, there: &Path) {
    let (here, there) = (seen(here), seen(there));
    for (path, wanted) in &here {
        let found = there
            .get(path)
            .unwrap_or_else(|| panic!("{} is missing", path.display()));
        if path.as_os_str().is_empty() {
            continue;
        }
        assert!(
            found.content == wanted.content,
            "content of {}: {} and {} bytes",
            path.display(),
            wanted.content.len(),
            found.content.len()
        );
        let without = |seen: &Seen| Seen {
            content: Vec::new(),
            ..seen.clone()
        };
        assert_eq!(without(found), without(wanted), "{}", path.display());
    }
    for path in there.keys() {
        assert!(here.contains_key(path), "{} is too much", path.display());
    }
}

fn below(random: &mut SplitMix64, limit: usize) -> usize {
    usize::try_from(random.next_u64()).unwrap_or(usize::MAX) % limit.max(1)
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
        len => Some(of_kind[below(random, len)]),
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
            let len = [0, 1, 700, 4096, 70_000, 300_000][below(random, 6)];
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
                .write_all_at(&noise(random.next_u64(), 1 + below(random, 5000)), at)
                .unwrap();
        }
        (8, Some(file)) => {
            // An insertion.
            let mut bytes = fs::read(&file).unwrap();
            let at = below(random, bytes.len() + 1);
            let inserted = noise(random.next_u64(), 1 + below(random, 100));
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
            let moved = root.join(&all[below(random, all.len())]);
            if moved != root && !new.starts_with(&moved) && fs::symlink_metadata(&new).is_err() {
                fs::rename(&moved, &new).unwrap();
            }
        }
        (14, _) => {
            let gone = root.join(&all[below(random, all.len())]);
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
