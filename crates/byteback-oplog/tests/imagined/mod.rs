//! A large tree that does not exist: directories of a thousand files each, made while they are
//! listed.

use std::ffi::{OsStr, OsString};
use std::io;

use byteback_host::tree::{InodeFlags, Stat};
use byteback_model::NodeKind;
use byteback_oplog::TreeView;

pub(crate) const PER_DIRECTORY: u64 = 1000;

const LONG_AGO_NS: i64 = 1_600_000_000_000_000_000;

/// So many files, a multiple of [`PER_DIRECTORY`].
pub(crate) struct Imagined {
    pub(crate) files: u64,
}

pub(crate) fn stat(inode: u64, kind: NodeKind) -> Stat {
    let changed_ns = LONG_AGO_NS + i64::try_from(inode).unwrap();
    Stat {
        kind,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: inode * 4096,
        blocks: inode * 8,
        block_size: 4096,
        mount_id: None,
        atime_ns: LONG_AGO_NS.into(),
        mtime_ns: changed_ns.into(),
        ctime_ns: changed_ns,
        inode_flags: InodeFlags::NONE,
        btime_ns: Some(LONG_AGO_NS),
        dev: 7,
        ino: inode,
    }
}

impl TreeView for Imagined {
    /// The number of a directory; none: the root.
    type Dir = Option<u64>;

    fn root(&self) -> io::Result<(Self::Dir, Stat)> {
        Ok((None, stat(2, NodeKind::Directory)))
    }

    fn enter(&self, _: &Self::Dir, name: &OsStr) -> io::Result<Self::Dir> {
        Ok(Some(name.to_str().unwrap()[1..].parse().unwrap()))
    }

    fn entries(&self, dir: &Self::Dir) -> io::Result<Vec<(OsString, Stat)>> {
        Ok(match dir {
            None => (0..self.files / PER_DIRECTORY)
                .map(|number| {
                    (
                        OsString::from(format!("d{number}")),
                        stat(10 + number, NodeKind::Directory),
                    )
                })
                .collect(),
            Some(dir) => (0..PER_DIRECTORY)
                .map(|number| {
                    let name = OsString::from(format!("a file with a name {number}.dat"));
                    (name, stat(1_000_000 + dir * PER_DIRECTORY + number, NodeKind::File))
                })
                .collect(),
        })
    }
}
