//! Durable files of the machine, reached through directory descriptors.
//!
//! A [`RealDir`] holds its directory open, so that it goes on meaning the same directory when a
//! folder above it is renamed. Files are created with mode 0600 and directories with 0700: our
//! state names what users do, and is nobody else's business. A symlink in place of a file is
//! refused (`O_NOFOLLOW`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fsync, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::lock::DirLock;
use super::{DurableDir, DurableFile, OpenMode, check_name};
use crate::error::context;

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Bytes that `allocate` writes per call.
const ZEROS_LEN_BYTES: usize = 256 * 1024;

/// A directory of the machine's file system.
#[derive(Debug)]
pub struct RealDir {
    fd: OwnedFd,
    /// As the caller named it; only for messages.
    label: String,
}

impl RealDir {
    /// Opens the existing directory at `path`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or what the system answered.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let fd = open(path, DIR_FLAGS, Mode::empty()).map_err(|e| context("open directory", &label, e.into()))?;
        Ok(Self { fd, label })
    }

    /// Opens the directory at `path`, creating it and missing parents first. Each created name is
    /// made durable before this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Self::open(path);
        };
        // The parent of a bare name is the empty path, which means the current directory.
        let parent = Self::create(if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        })?;
        match mkdirat(&parent.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(context("create directory", &path.display().to_string(), e.into())),
        }
        parent.sync()?;
        Self::open(path)
    }

    /// Takes the exclusive lock of this directory, kept in the file [`LOCK_NAME`](super::LOCK_NAME)
    /// inside it, or says who holds it.
    ///
    /// # Errors
    /// `WouldBlock` if another process (or another [`DirLock`] of this one) holds it, naming its
    /// process id if known; otherwise what the system answered.
    pub fn lock(&self) -> io::Result<DirLock> {
        DirLock::take(&self.fd, &self.label)
    }

    /// The directory's descriptor, for what this trait does not cover.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.label)
    }

    fn subdir_real(&self, name: &str) -> io::Result<Self> {
        let name = check_name(name)?;
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(context("create directory", &self.named(name), e.into())),
        }
        let fd = openat(&self.fd, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|e| context("open directory", &self.named(name), e.into()))?;
        Ok(Self {
            fd,
            label: self.named(name),
        })
    }
}

impl DurableDir for RealDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        let name = check_name(name)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let flags = match mode {
            OpenMode::Existing => flags,
            OpenMode::CreateIfMissing => flags | OFlags::CREATE,
            OpenMode::CreateNew => flags | OFlags::CREATE | OFlags::EXCL,
        };
        let label = self.named(name);
        let operation = if mode == OpenMode::CreateNew { "create" } else { "open" };
        let fd =
            openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| context(operation, &label, e.into()))?;
        Ok(Arc::new(RealFile {
            file: File::from(fd),
            label,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (check_name(from)?, check_name(to)?);
        renameat(&self.fd, from, &self.fd, to).map_err(|e| context("rename", &self.named(from), e.into()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = check_name(name)?;
        unlinkat(&self.fd, name, AtFlags::empty()).map_err(|e| context("remove", &self.named(name), e.into()))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let failed = |e: Errno| context("list", &self.label, e.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> io::Result<()> {
        fsync(&self.fd).map_err(|e| context("sync directory", &self.label, e.into()))
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        Ok(Arc::new(self.subdir_real(name)?))
    }
}

/// A file of the machine's file system.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    /// As its directory named it; only for messages, and stale after a rename.
    label: String,
}

impl RealFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> io::Error + '_ {
        move |source| context(operation, &self.label, source)
    }
}

impl DurableFile for RealFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset).map_err(self.failed("read"))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read_at(buf, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(self.failed("read")),
            }
        }
    }

    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset).map_err(self.failed("write"))
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes).map_err(self.failed("set the length of"))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata().map_err(self.failed("stat"))?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(self.failed("sync"))
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS_LEN_BYTES];
        let mut at = self.len()?;
        while at < len_bytes {
            let n = usize::try_from(len_bytes - at)
                .unwrap_or(usize::MAX)
                .min(ZEROS_LEN_BYTES);
            let piece = zeros.get(..n).unwrap_or(&zeros);
            self.file.write_all_at(piece, at).map_err(self.failed("allocate"))?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}
