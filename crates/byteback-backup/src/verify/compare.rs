//! Comparison of a snapshot with a directory.

use super::{Difference, DifferenceKind, VerifyReport};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Meter, Monitor, check_cancelled};
use crate::tree_reader::{TreeReader, join_path};
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_client::ServerError;
use byteback_delta::{ApplyError, DeltaReader, EmptyBase, Target, apply_to_new};
use byteback_extents::ByteRange;
use byteback_host::tree::{self, Identity, Stat};
use byteback_model::{Attributes, ByteString, FileId, NodeInfo, NodeKind};
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a local file read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// Compares the snapshot of `report` with the directory at `dir` and adds differences to `report`.
pub(super) fn compare(
    server: &ServerClient,
    folder: &FolderName,
    dir: &Path,
    monitor: &Meter<'_>,
    report: &mut VerifyReport,
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|errno| BackupError::local("open the directory", dir.display().to_string(), errno.into()))?;
    let mut tree = TreeReader::new(server, folder, report.seq);
    let root_node = tree.node_at(&[])?;
    let mut comparison = Comparison {
        server,
        folder,
        root,
        monitor,
        damaged: report.damaged.iter().map(|damage| damage.id).collect(),
        report,
        counted: HashSet::new(),
        first_names: HashMap::new(),
    };
    comparison.attributes_at_root(&root_node)?;
    let mut dirs = vec![(Vec::new(), root_node.id)];
    while let Some((path, id)) = dirs.pop() {
        comparison.directory(&mut tree, path, id, &mut dirs)?;
    }
    monitor.end();
    Ok(())
}

struct Comparison<'a> {
    server: &'a ServerClient,
    folder: &'a FolderName,
    root: OwnedFd,
    monitor: &'a Meter<'a>,
    report: &'a mut VerifyReport,
    /// Files counted for the progress already, by whichever name.
    counted: HashSet<FileId>,
    /// The local inode at the first name of each file of the snapshot.
    first_names: HashMap<FileId, Identity>,
    /// Files that the server cannot read in full.
    damaged: HashSet<FileId>,
}

/// How a name was compared.
enum Looked {
    /// A directory on both sides.
    Directory,
    /// The content was compared, or the node has no content.
    Compared,
    /// Another difference came first, or the content was compared under another name.
    Otherwise,
}

impl Comparison<'_> {
    fn tell(&mut self, path: &[u8], kind: DifferenceKind) {
        self.report.differences.push(Difference {
            path: ByteString::from(path),
            kind,
        });
    }

    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        let reason = error.to_string();
        self.tell(path, DifferenceKind::Unreadable { reason });
    }

    fn attributes_at_root(&mut self, node: &NodeInfo) -> Result<()> {
        let root = self
            .root
            .try_clone()
            .map_err(|error| BackupError::local("use", "the directory", error))?;
        if let Err(error) = self.attributes(&[], &root, &node.attributes) {
            self.unreadable(&[], &error);
        }
        Ok(())
    }

    fn directory(
        &mut self,
        tree: &mut TreeReader<'_>,
        path: Vec<u8>,
        id: FileId,
        dirs: &mut Vec<(Vec<u8>, FileId)>,
    ) -> Result<()> {
        let opened = tree::open_beneath(&self.root, Path::new(OsStr::from_bytes(&path)));
        let listed = opened.and_then(|dir| {
            let names: io::Result<BTreeSet<OsString>> = tree::read_dir(&dir, 0)?
                .map(|entry| entry.map(|entry| entry.name))
                .collect();
            Ok((dir, names?))
        });
        let (dir, mut names) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                self.unreadable(&path, &error);
                return Ok(());
            }
        };
        tree.entries(id, &path, |entry| {
            check_cancelled(self.monitor)?;
            let name = OsString::from_vec(entry.name.as_bytes().to_vec());
            let path = join_path(&path, entry.name.as_bytes());
            self.report.compared += 1;
            let is_directory = entry.node.attributes.kind == NodeKind::Directory;
            if !is_directory {
                let is_first_name = self.counted.insert(entry.node.id);
                let size = entry.node.attributes.size;
                self.monitor.begin_node(if is_first_name { size } else { 0 });
            }
            let looked = match names.remove(&name) {
                true => self.entry(&dir, &name, &path, &entry.node)?,
                false => {
                    self.tell(&path, DifferenceKind::Missing);
                    Looked::Otherwise
                }
            };
            match looked {
                Looked::Directory => dirs.push((path, entry.node.id)),
                Looked::Compared => self.monitor.end_node(Some(&ByteString::from(path))),
                Looked::Otherwise if !is_directory => self.monitor.end_node(None),
                Looked::Otherwise => {}
            }
            Ok(())
        })?;
        for extra in names {
            self.tell(&join_path(&path, extra.as_bytes()), DifferenceKind::Extra);
        }
        Ok(())
    }

    /// Compares one name.
    fn entry(&mut self, dir: &OwnedFd, name: &OsStr, path: &[u8], node: &NodeInfo) -> Result<Looked> {
        let looked = tree::open_path_at(dir, name).and_then(|fd| {
            let stat = self.attributes(path, &fd, &node.attributes)?;
            Ok((fd, stat))
        });
        let (fd, stat) = match looked {
            Ok((fd, Some(stat))) => (fd, stat),
            Ok((_, None)) => return Ok(Looked::Otherwise),
            Err(error) => {
                self.unreadable(path, &error);
                return Ok(Looked::Otherwise);
            }
        };
        if node.attributes.kind == NodeKind::Directory {
            return Ok(Looked::Directory);
        }
        match self.first_names.get(&node.id) {
            Some(first) if *first != stat.identity() => {
                self.tell(path, DifferenceKind::NotLinked);
                return Ok(Looked::Otherwise);
            }
            // Its content was compared under its first name.
            Some(_) => return Ok(Looked::Otherwise),
            None => {
                self.first_names.insert(node.id, stat.identity());
            }
        }
        if node.attributes.kind == NodeKind::File {
            self.content(&fd, path, node, &stat)?;
        }
        Ok(Looked::Compared)
    }

    /// Compares attributes; `None` if even the kind differs.
    fn attributes(&mut self, path: &[u8], fd: impl AsFd, wanted: &Attributes) -> io::Result<Option<Stat>> {
        let stat = tree::stat_fd(&fd)?;
        if stat.kind != wanted.kind {
            self.tell(path, DifferenceKind::Kind);
            return Ok(None);
        }
        let is_device = matches!(wanted.kind, NodeKind::CharDevice | NodeKind::BlockDevice);
        let is_symlink = wanted.kind == NodeKind::Symlink;
        let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for name in unsupported_is_none(tree::list_xattrs(&fd))? {
            if let Some(value) = tree::get_xattr(&fd, &name)? {
                xattrs.push((name.into_vec(), value));
            }
        }
        xattrs.sort();
        let same_xattrs = xattrs.len() == wanted.xattrs.len()
            && xattrs
                .iter()
                .zip(&wanted.xattrs)
                .all(|((name, value), xattr)| name == xattr.name.as_bytes() && value == xattr.value.as_bytes());
        let target = if is_symlink {
            Some(ByteString::from(tree::read_link_fd(&fd)?.into_vec()))
        } else {
            None
        };
        for (same, which) in [
            (is_symlink || stat.mode == wanted.mode, "mode"),
            ((stat.uid, stat.gid) == (wanted.uid, wanted.gid), "owner"),
            (stat.mtime_ns == wanted.mtime_ns, "mtime"),
            (!is_device || stat.rdev == wanted.rdev, "rdev"),
            (target == wanted.target, "target"),
            (same_xattrs, "xattrs"),
        ] {
            if !same {
                self.tell(path, DifferenceKind::Attribute { which });
            }
        }
        Ok(Some(stat))
    }

    fn content(&mut self, fd: &OwnedFd, path: &[u8], node: &NodeInfo, stat: &Stat) -> Result<()> {
        let size = node.attributes.size;
        if stat.size != size {
            self.tell(
                path,
                DifferenceKind::Size {
                    snapshot: size,
                    folder: stat.size,
                },
            );
            return Ok(());
        }
        // Damage was reported by the server's own verification.
        if size == 0 || self.damaged.contains(&node.id) {
            return Ok(());
        }
        let file = match tree::reopen(fd, OFlags::RDONLY) {
            Ok(file) => File::from(file),
            Err(error) => {
                self.unreadable(path, &error);
                return Ok(());
            }
        };
        let shown = ByteString::from(path);
        let mut beside = Beside {
            file: &file,
            monitor: self.monitor,
            compared_to: 0,
            buffer: Vec::new(),
            differs_at: None,
        };
        let mut pauses = self.server.stream_pauses();
        let compared = loop {
            // The last byte is asked for again rather than nothing.
            let from = beside.compared_to.min(size - 1);
            let go_on = |_: &ServerError| !self.monitor.is_cancelled();
            let content = self
                .server
                .content(self.folder, node.id, self.report.seq, from, &go_on)?;
            let applied = DeltaReader::new(content)
                .map_err(ApplyError::from)
                .and_then(|mut delta| {
                    let header = *delta.header();
                    if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != size {
                        return Ok(false);
                    }
                    apply_to_new(&EmptyBase, &mut delta, &mut beside).map(|_| true)
                });
            match applied {
                Ok(true) => break beside.expect_zeros(size),
                Ok(false) => {
                    return Err(BackupError::hostile(format!(
                        "the contents of '{shown}' do not have the length of the file"
                    )));
                }
                Err(ApplyError::WriteTarget { source, .. }) => break Err(source),
                Err(error) => {
                    check_cancelled(self.monitor)?;
                    if beside.compared_to > from {
                        pauses = self.server.stream_pauses();
                    }
                    if !pauses.rest() {
                        return Err(BackupError::delta(&shown, error));
                    }
                }
            }
        };
        self.report.compared_bytes += beside.compared_to;
        match (beside.differs_at, compared) {
            (Some(first_offset), _) => self.tell(path, DifferenceKind::Content { first_offset }),
            (None, Err(error)) => self.unreadable(path, &error),
            (None, Ok(())) => {}
        }
        Ok(())
    }
}

fn unsupported_is_none<T>(result: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
        result => result,
    }
}

/// A "target" that compares instead of writing: the written bytes must be in the file, the gaps
/// must be zero.
struct Beside<'a> {
    file: &'a File,
    monitor: &'a dyn Monitor,
    compared_to: u64,
    buffer: Vec<u8>,
    differs_at: Option<u64>,
}

impl Beside<'_> {
    /// Fails with the first difference, which ends the comparison of this file.
    fn differs(&mut self, offset: u64) -> io::Error {
        self.differs_at = Some(offset);
        io::Error::other("the bytes differ")
    }

    fn expect_zeros(&mut self, end: u64) -> io::Result<()> {
        let mut zeros_from = self.compared_to;
        // Holes of the local file need no reading.
        let data: Vec<_> = tree::data_ranges(self.file, zeros_from, end).collect::<io::Result<_>>()?;
        for range in data {
            zeros_from = range.start;
            while zeros_from < range.end {
                let bytes = self.read(zeros_from, range.end - zeros_from)?;
                let read_len = bytes.len();
                if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
                    return Err(self.differs(zeros_from.saturating_add(len_u64(at))));
                }
                zeros_from += len_u64(read_len);
            }
        }
        self.compared_to = end;
        Ok(())
    }

    fn read(&mut self, offset: u64, len_bytes: u64) -> io::Result<&[u8]> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(BUFFER_LEN);
        self.buffer.resize(len, 0);
        self.file.read_exact_at(&mut self.buffer, offset)?;
        Ok(&self.buffer)
    }
}

impl Target for Beside<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.monitor.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if offset > self.compared_to {
            self.expect_zeros(offset)?;
        }
        let mut at = offset;
        for wanted in bytes.chunks(BUFFER_LEN) {
            let found = self.read(at, len_u64(wanted.len()))?;
            if let Some(differs) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
                return Err(self.differs(at.saturating_add(len_u64(differs))));
            }
            at += len_u64(wanted.len());
        }
        self.compared_to = at;
        self.monitor.event(Event::BytesRead(len_u64(bytes.len())));
        Ok(())
    }

    fn punch_hole(&mut self, _range: ByteRange) -> io::Result<()> {
        Ok(())
    }

    fn set_len_bytes(&mut self, _len_bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
