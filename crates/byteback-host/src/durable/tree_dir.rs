//! Durable files in a directory of a tree, on a system's file system or in a volume.
//!
//! A file system that is a library promises what the traits ask for by the same two calls: a file
//! is durable once it is synced, and names are once their directory is.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, RenameFlags};

use super::{DurableDir, DurableFile, OpenMode, check_name};
use crate::error::context;
use crate::tree::{Creator, Inode, NewInode};
use byteback_model::NodeKind;

/// Modes of what is ours: nobody else's business.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Bytes that `allocate` writes per call.
const ZEROS_LEN_BYTES: usize = 256 * 1024;

/// A directory of a tree.
#[derive(Debug)]
pub struct TreeDir {
    dir: Inode,
    /// As people know it; only for messages.
    label: String,
}

impl TreeDir {
    /// Files in `dir`, which is open for reading; `label` names it in messages.
    #[must_use]
    pub fn new(dir: Inode, label: String) -> Self {
        Self { dir, label }
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.label)
    }

    fn file(&self, name: &str) -> io::Result<Inode> {
        let file = self.dir.open_at(OsStr::new(name), OFlags::RDWR)?;
        match file.stat()?.kind {
            NodeKind::File => Ok(file),
            NodeKind::Directory => Err(rustix::io::Errno::ISDIR.into()),
            _ => Err(rustix::io::Errno::INVAL.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Inode> {
        self.dir
            .create_at(OsStr::new(name), OFlags::RDWR, FILE_MODE, Creator::process())
    }
}

impl DurableDir for TreeDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        let name = check_name(name)?;
        let label = self.named(name);
        let opened = match mode {
            OpenMode::Existing => self.file(name),
            OpenMode::CreateNew => self.create(name),
            OpenMode::CreateIfMissing => match self.file(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => match self.create(name) {
                    // Another caller created it first.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.file(name),
                    created => created,
                },
                opened => opened,
            },
        };
        let operation = if mode == OpenMode::CreateNew { "create" } else { "open" };
        let file = opened.map_err(|error| context(operation, &label, error))?;
        Ok(Arc::new(TreeFile { file, label }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (check_name(from)?, check_name(to)?);
        let renamed = self
            .dir
            .rename_at(OsStr::new(from), &self.dir, OsStr::new(to), RenameFlags::empty());
        renamed.map_err(|error| context("rename", &self.named(from), error))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = check_name(name)?;
        let removed = self.dir.unlink_at(OsStr::new(name), AtFlags::empty());
        removed.map_err(|error| context("remove", &self.named(name), error))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let failed = |error| context("list", &self.label, error);
        let mut names = Vec::new();
        for entry in self.dir.read_dir(0).map_err(failed)? {
            names.extend(entry.map_err(failed)?.name.into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> io::Result<()> {
        self.dir
            .sync(false)
            .map_err(|error| context("sync directory", &self.label, error))
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        let name = check_name(name)?;
        let label = self.named(name);
        let new = NewInode::Directory(DIRECTORY_MODE);
        match self.dir.make_at(OsStr::new(name), new, Creator::process()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(context("create directory", &label, error));
            }
            _ => {}
        }
        let dir = self.dir.open_dir_at(OsStr::new(name));
        let dir = dir.map_err(|error| context("open directory", &label, error))?;
        Ok(Arc::new(Self { dir, label }))
    }
}

/// A file of a tree.
#[derive(Debug)]
struct TreeFile {
    file: Inode,
    /// As its directory named it; only for messages, and stale after a rename.
    label: String,
}

impl TreeFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> io::Error + '_ {
        move |source| context(operation, &self.label, source)
    }

    fn write_all(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            match self.file.write_at(at, rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => {
                    rest = rest.get(count..).unwrap_or_default();
                    at = at.saturating_add(count as u64);
                }
            }
        }
        Ok(())
    }
}

impl DurableFile for TreeFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            match self.file.read_at(at, rest).map_err(self.failed("read"))? {
                0 => {
                    let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short");
                    return Err(context("read", &self.label, ended));
                }
                count => {
                    rest = rest.get_mut(count..).unwrap_or_default();
                    at = at.saturating_add(count as u64);
                }
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf).map_err(self.failed("read"))
    }

    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all(offset, data).map_err(self.failed("write"))
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.file.truncate(len_bytes).map_err(self.failed("set the length of"))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.stat().map_err(self.failed("stat"))?.size)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync(true).map_err(self.failed("sync"))
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS_LEN_BYTES];
        let mut at = self.len()?;
        while at < len_bytes {
            let count = usize::try_from(len_bytes - at)
                .unwrap_or(usize::MAX)
                .min(ZEROS_LEN_BYTES);
            let piece = zeros.get(..count).unwrap_or(&zeros);
            self.write_all(at, piece).map_err(self.failed("allocate"))?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}
