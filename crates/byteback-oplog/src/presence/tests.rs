use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use byteback_host::clock::RealClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;

use super::*;

/// Device of the tree.
const DEVICE: u64 = 7;

/// Paths, and what lies there.
#[derive(Clone, Default)]
struct Paper(BTreeMap<String, (u64, NodeKind, u64)>);

impl Paper {
    fn file(&mut self, path: &str, inode: u64) {
        for (at, _) in path.match_indices('/') {
            let number = 1_000_000 + self.0.len() as u64;
            let directory = (number, NodeKind::Directory, DEVICE);
            self.0.entry(path[..at].to_owned()).or_insert(directory);
        }
        self.0.insert(path.to_owned(), (inode, NodeKind::File, DEVICE));
    }

    /// `files` of them in two directories each.
    fn of(files: u64) -> Self {
        let mut paper = Self::default();
        for number in 0..files {
            paper.file(&format!("d{}/e{}/{number}", number % 3, number % 5), 10 + number);
        }
        paper
    }

    fn without(&self, is_gone: impl Fn(&str) -> bool) -> Self {
        let kept = self.0.iter().filter(|(path, _)| !is_gone(path));
        Self(kept.map(|(path, at)| (path.clone(), *at)).collect())
    }

    fn moved(&self, from: &str, to: &str) -> Self {
        let moved = self.0.iter().map(|(path, at)| match path.strip_prefix(from) {
            Some(below) => (format!("{to}{below}"), *at),
            None => (path.clone(), *at),
        });
        Self(moved.collect())
    }

    fn stat(&self, path: &str) -> Stat {
        let (ino, kind, dev) = match path {
            "" => (2, NodeKind::Directory, DEVICE),
            path => self.0[path],
        };
        Stat {
            kind,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            mount_id: None,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            inode_flags: byteback_host::tree::InodeFlags::NONE,
            btime_ns: Some(0),
            dev,
            ino,
        }
    }
}

impl TreeView for Paper {
    type Dir = String;

    fn root(&self) -> io::Result<(String, Stat)> {
        Ok((String::new(), self.stat("")))
    }

    fn enter(&self, dir: &String, name: &OsStr) -> io::Result<String> {
        Ok(format!("{dir}{}/", name.to_str().unwrap()))
    }

    fn entries(&self, dir: &String) -> io::Result<Vec<(OsString, Stat)>> {
        let below = self.0.keys().filter_map(|path| {
            let name = path.strip_prefix(dir.as_str())?;
            (!name.contains('/')).then(|| (OsString::from(name), self.stat(path)))
        });
        Ok(below.collect())
    }
}

fn log_of(paper: &Paper) -> Log {
    let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
    let random = SimRandomness::new(1);
    let log = Log::open(&disk, Arc::new(RealClock), &random).unwrap();
    log.scan(paper, &mut |_| {}).unwrap();
    log
}

#[test]
fn missing_files_are_counted_when_too_many_are_gone() {
    for files in [60, 3000] {
        let known = Paper::of(files);
        let log = log_of(&known);
        let gone = |paper: &Paper, percent| {
            let missing = log.missing(paper, percent).unwrap();
            missing.map(|missing| {
                assert_eq!(missing.known, files);
                missing.gone
            })
        };
        assert_eq!(gone(&known, 50), None);
        assert_eq!(gone(&Paper::default(), 50), Some(files));
        // Two thirds, and exactly one third.
        let third = known.without(|path| !path.starts_with("d0"));
        assert_eq!(gone(&third, 50), Some(files / 3 * 2));
        assert_eq!(gone(&known.without(|path| path.starts_with("d0")), 50), None);
        assert_eq!(gone(&known.without(|path| path.starts_with("d0")), 33), Some(files / 3));
        // A caller that may lose everything never asks.
        assert_eq!(gone(&Paper::default(), 100), None);
        // Nothing was noted: the record is what it was.
        assert_eq!(log.scan(&known, &mut |_| {}).unwrap().changed_names, 0);
    }
}

#[test]
fn missing_files_are_not_those_moved_replaced_or_covered() {
    let known = Paper::of(90);
    let log = log_of(&known);
    let missing = |paper: &Paper| log.missing(paper, 10).unwrap();
    let all_moved = known.moved("d0/", "x/").moved("d1/", "y/").moved("d2/", "z/");
    let mut with_dirs = all_moved.clone();
    for (path, inode) in [("x", 91), ("y", 92), ("z", 93)] {
        with_dirs
            .0
            .insert(path.to_owned(), (inode, NodeKind::Directory, DEVICE));
    }
    assert_eq!(missing(&with_dirs), None);
    // Other inodes under the same names, as after an editor's save or a restore.
    let mut replaced = known.clone();
    for (inode, kind, _) in replaced.0.values_mut() {
        if *kind == NodeKind::File {
            *inode += 5000;
        }
    }
    assert_eq!(missing(&replaced), None);
    // Another file system lies over two of three directories.
    let mut covered = known.without(|path| path.starts_with("d1/") || path.starts_with("d2/"));
    for path in ["d1", "d2"] {
        covered.0.get_mut(path).unwrap().2 = DEVICE + 1;
    }
    assert_eq!(missing(&covered), None);
}
