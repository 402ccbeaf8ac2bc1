//! The calls into the kernel, MooseFS's program and the chunk servers' files, behind a trait so
//! that the logic is tested with answers that no real system gives.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use byteback_host::tree::{Stat, stat_fd};
use rustix::fs::{Mode, OFlags};

use super::answers::{BLOCK_LEN, Chunk, HEADER_LEN};
use crate::programs::Programs;
use byteback_checksums::source::{Result, SourceError};

/// The requests about one open file.
pub(super) trait System {
    fn stat(&self) -> io::Result<Stat>;

    /// Waits until all data written to the file through this mount is with the chunk servers.
    fn flush(&self) -> Result<()>;

    /// Passes each line of the report on the file's chunks to `each`.
    fn describe(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// The first bytes, at most [`HEADER_LEN`], of each file in which a chunk server here holds a
    /// copy of the chunk.
    fn headers(&self, chunk: &Chunk) -> Result<Vec<Vec<u8>>>;
}

/// The real kernel, program and files.
#[derive(Debug)]
pub(super) struct RealSystem<'a> {
    file: BorrowedFd<'a>,
    programs: &'a Programs,
    folders: &'a [PathBuf],
}

/// Alignment of the buffer for direct reads, which some file systems require.
const ALIGNMENT: usize = 4096;

impl<'a> RealSystem<'a> {
    pub(super) fn new(file: BorrowedFd<'a>, programs: &'a Programs, folders: &'a [PathBuf]) -> Self {
        Self {
            file,
            programs,
            folders,
        }
    }

    /// Checks that the file's path still leads to this file: `mfsfileinfo` goes by the path, and
    /// other machines may replace the file without this kernel's knowledge.
    fn is_named(&self) -> Result<()> {
        const WHAT: &str = "read the file's path";
        let path = std::fs::read_link(self.name()).map_err(SourceError::io(WHAT))?;
        let there = match std::fs::symlink_metadata(path) {
            Ok(there) => Some((there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(SourceError::io(WHAT)(error)),
        };
        let here = rustix::fs::fstat(self.file).map_err(|errno| SourceError::io(WHAT)(errno.into()))?;
        match there == Some((here.st_dev, here.st_ino)) {
            true => Ok(()),
            false => Err(SourceError::Missing(
                "the file was removed or replaced, and MooseFS reports on files only by their path; name the file that \
                 is there now",
            )),
        }
    }

    /// A name of the open file that only this process has.
    fn name(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl System for RealSystem<'_> {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self.file)
    }

    fn flush(&self) -> Result<()> {
        const WHAT: &str = "flush the file";
        let failed = |errno: rustix::io::Errno| SourceError::io(WHAT)(errno.into());
        // Mapped pages go to mfsmount; that alone does not send data that other processes wrote.
        rustix::fs::fsync(self.file).map_err(failed)?;
        let direct = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = rustix::fs::open(self.name(), direct, Mode::empty()).map_err(failed)?;
        let mut buffer = vec![0; BLOCK_LEN as usize + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let mut aligned = buffer.get_mut(start..start.saturating_add(BLOCK_LEN as usize));
        let read =
            rustix::io::retry_on_intr(|| rustix::io::pread(&direct, aligned.as_deref_mut().unwrap_or_default(), 0));
        read.map(|_| ()).map_err(failed)
    }

    fn describe(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let name = self.name();
        let arguments = ["-c", &name].map(OsStr::new);
        self.is_named()?;
        self.programs.run("mfsfileinfo", &arguments, &[], each)?;
        self.is_named()
    }

    fn headers(&self, chunk: &Chunk) -> Result<Vec<Vec<u8>>> {
        let name = format!("chunk_{:016X}_{:08X}.mfs", chunk.id, chunk.version);
        let mut headers = Vec::new();
        for folder in self.folders {
            for below in 0..=0xff_u8 {
                let path = folder.join(format!("{below:02X}")).join(&name);
                // Opening a pipe without O_NONBLOCK waits for its other end.
                let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
                    Ok(file) => file,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return Err(SourceError::Denied(
                            "only root may read the chunk server's files; run as root, or read the file instead",
                        ));
                    }
                    Err(error) => return Err(SourceError::io("open a chunk's file")(error)),
                };
                let mut header = Vec::new();
                let mut some = file.take(HEADER_LEN as u64);
                some.read_to_end(&mut header)
                    .map_err(SourceError::io("read a chunk's file"))?;
                headers.push(header);
            }
        }
        Ok(headers)
    }
}
