//! The directories that a scan holds open; its findings are tested with the log (`log/tests`).

use std::cell::Cell;
use std::sync::Arc;

use byteback_host::clock::RealClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;

use super::*;

/// Directories below one another, each with a file beside the next.
struct Chain {
    depth: u64,
    open: Cell<usize>,
    most: Cell<usize>,
}

struct Open<'a> {
    level: u64,
    open: &'a Cell<usize>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

impl Chain {
    fn open(&self, level: u64) -> Open<'_> {
        self.open.set(self.open.get() + 1);
        self.most.set(self.most.get().max(self.open.get()));
        Open {
            level,
            open: &self.open,
        }
    }

    fn stat(inode: u64, kind: NodeKind) -> Stat {
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
            dev: 7,
            ino: inode,
        }
    }
}

impl<'a> TreeView for &'a Chain {
    type Dir = Open<'a>;

    fn root(&self) -> io::Result<(Open<'a>, Stat)> {
        Ok((self.open(0), Chain::stat(1, NodeKind::Directory)))
    }

    fn enter(&self, dir: &Open<'a>, _name: &OsStr) -> io::Result<Open<'a>> {
        Ok(self.open(dir.level + 1))
    }

    fn entries(&self, dir: &Open<'a>) -> io::Result<Vec<(OsString, Stat)>> {
        let at = dir.level * 2;
        let mut entries = vec![("file".into(), Chain::stat(at + 2, NodeKind::File))];
        if dir.level < self.depth {
            entries.push(("down".into(), Chain::stat(at + 3, NodeKind::Directory)));
        }
        Ok(entries)
    }
}

/// A chain that is deeper than a process may have files open is compared to its end.
#[test]
fn a_chain_of_directories_takes_two_descriptors() {
    let chain = Chain {
        depth: 5000,
        open: Cell::new(0),
        most: Cell::new(0),
    };
    let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
    let log = Log::open(&disk, Arc::new(RealClock), &SimRandomness::new(1)).unwrap();
    let report = log.scan(&&chain, &mut |_| {}).unwrap();
    assert_eq!((report.nodes, report.changed_files), (2 * 5000 + 2, 5001));
    assert!(report.unreadable.is_empty());
    assert_eq!((chain.open.get(), chain.most.get()), (0, 2));
}
