//! The calls, for Rust programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::abi::{
    CLOSE_SAVED, CONSUMER_BYTES, DELTA_CLOSE, DELTA_GETDIFF, DELTA_OPEN, DELTA_READ, DeltaClose, DeltaGetdiff,
    DeltaOpen, DeltaRead, Layout, NO_MORE, RANGES_MAX, READ_BYTES_MAX, STATE_RANGES, VERSION,
};

/// The cause of a failed call, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// The file does not lie in a folder that Byteback tracks.
    #[error("the file is not in a folder mounted by Byteback; mount its folder first: byteback mount DIR")]
    NotTracked,
    /// The consumer's name is not valid.
    #[error(
        "{name:?} is not a consumer name: it must have 1 to {} bytes without control characters",
        CONSUMER_BYTES - 1
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The file was removed, or came into the folder without passing the mount.
    #[error("the file was removed, or the log does not know it; save it whole")]
    Unknown,
    /// The descriptor was not opened for reading.
    #[error("the file must be open for reading")]
    NotReadable,
    /// Too many files are frozen.
    #[error("too many files are frozen; close some first")]
    TooMany,
    /// The context is not one of this open file, or was closed.
    #[error("this delta is not open; open it again")]
    Closed,
    /// The two sides have different versions.
    #[error("the folder's daemon speaks another protocol version; restart it: byteback umount, then byteback mount")]
    Version,
    /// Another error of the system.
    #[error("{call} failed: {source}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// The system's error; `EIO`: the frozen state is lost or the log failed; the daemon's log
        /// has the cause.
        source: io::Error,
    },
}

impl DeltaError {
    fn of(call: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS) => Self::NotTracked,
            Some(libc::ENOENT) if call == "delta_open" => Self::Unknown,
            Some(libc::ENOENT) => Self::Closed,
            Some(libc::EBADF) => Self::NotReadable,
            Some(libc::EMFILE | libc::ENFILE) => Self::TooMany,
            Some(libc::EPROTONOSUPPORT) => Self::Version,
            _ => Self::System { call, source },
        }
    }
}

/// How changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The changes are reported as ranges.
    Ranges,
    /// The whole file must be taken as changed, for this reason (`REASON_...` in [`crate::abi`]).
    Whole {
        /// The reason code.
        reason: u32,
    },
}

/// The properties of a frozen file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The history that versions belong to.
    pub tree: u64,
    /// The file's number, independent of its name.
    pub node: u64,
    /// The version since which changes are reported; `None`: everything is.
    pub since: Option<u64>,
    /// The version that was frozen; a program that keeps track by itself passes it as `since` next
    /// time.
    pub version: u64,
    /// The length of the frozen file.
    pub size_bytes: u64,
    /// The number of ranges.
    pub range_count: u64,
    /// The number of bytes in these ranges.
    pub changed_bytes: u64,
    /// How changes are reported.
    pub state: State,
}

/// A changed range of a frozen file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes; never 0.
    pub len_bytes: u64,
}

impl Range {
    /// The offset after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }
}

/// A file as it was at [`DeltaFile::open`], and its changes. Dropping this leaves the mark where it
/// is.
#[derive(Debug)]
pub struct DeltaFile<'file> {
    file: BorrowedFd<'file>,
    context: u64,
    info: Info,
    is_open: bool,
}

fn size_of_layout<T: Layout>() -> u32 {
    u32::try_from(T::SIZE).unwrap_or(0)
}

fn call<T: Layout>(file: BorrowedFd<'_>, number: u32, name: &'static str, argument: &T) -> Result<T, DeltaError> {
    let mut bytes = argument.encode();
    loop {
        // SAFETY: the kernel reads and writes as many bytes as the number says, which is the length
        // of `bytes`: both come from the size of `T`.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(number), bytes.as_mut_ptr()) };
        if done >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(DeltaError::of(name, error));
        }
    }
    T::decode(&bytes).ok_or(DeltaError::Version)
}

impl<'file> DeltaFile<'file> {
    /// Freezes `file`, which must be open for reading, and requests its changes since version
    /// `since` or, if that is `None`, since the mark that `consumer` has of it. Every write that
    /// completed before this call is in the frozen file; no writer is blocked.
    ///
    /// # Errors
    /// See [`DeltaError`].
    pub fn open(file: &'file impl AsFd, consumer: &str, since: Option<u64>) -> Result<Self, DeltaError> {
        let bad_name = || DeltaError::Name {
            name: consumer.to_owned(),
        };
        let mut name = [0; CONSUMER_BYTES];
        name.get_mut(..consumer.len())
            .ok_or_else(bad_name)?
            .copy_from_slice(consumer.as_bytes());
        let request = DeltaOpen {
            size: size_of_layout::<DeltaOpen>(),
            version: VERSION,
            since: since.unwrap_or(0),
            flags: 0,
            reserved0: 0,
            consumer: name,
            context: 0,
            tree: 0,
            node: 0,
            version_since: 0,
            version_now: 0,
            size_bytes: 0,
            range_count: 0,
            changed_bytes: 0,
            state: 0,
            reason: 0,
            reserved: [0; 4],
        };
        if request.consumer_name().is_none() {
            return Err(bad_name());
        }
        let file = file.as_fd();
        let answer = call(file, DELTA_OPEN, "delta_open", &request)?;
        let info = Info {
            tree: answer.tree,
            node: answer.node,
            since: (answer.version_since != 0).then_some(answer.version_since),
            version: answer.version_now,
            size_bytes: answer.size_bytes,
            range_count: answer.range_count,
            changed_bytes: answer.changed_bytes,
            state: match answer.state {
                STATE_RANGES => State::Ranges,
                _ => State::Whole { reason: answer.reason },
            },
        };
        Ok(Self {
            file,
            context: answer.context,
            info,
            is_open: true,
        })
    }

    /// The properties of the frozen file.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The number under which the mount shows the frozen file: `.byteback/delta/NUMBER` in its
    /// root, for programs that want to map it or pass its path on. Only the user who opened it may
    /// read it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.context
    }

    /// The changed ranges in ascending order, within the frozen file; a single range if the whole
    /// file counts as changed. A copy of the file must get the new length first: bytes beyond the
    /// old length and outside the ranges are zeros.
    #[must_use]
    pub fn ranges(&self) -> Ranges<'_> {
        self.ranges_from(0)
    }

    /// As [`DeltaFile::ranges`], from an offset on, to resume after an interruption.
    #[must_use]
    pub fn ranges_from(&self, offset: u64) -> Ranges<'_> {
        Ranges {
            delta: self,
            page: Vec::new().into_iter(),
            position: Some(offset).filter(|offset| *offset != NO_MORE),
        }
    }

    /// Fills `buffer` with frozen bytes; returns their number, fewer only at the end of the file.
    ///
    /// # Errors
    /// [`DeltaError::System`] with `EIO` if the frozen state is lost: open the file again.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DeltaError> {
        let mut filled = 0;
        for piece in buffer.chunks_mut(READ_BYTES_MAX) {
            let wanted = u32::try_from(piece.len()).unwrap_or(0);
            let request = DeltaRead {
                size: size_of_layout::<DeltaRead>(),
                version: VERSION,
                context: self.context,
                offset: offset.saturating_add(filled as u64),
                len_bytes: wanted,
                reserved: 0,
                data: [0; READ_BYTES_MAX],
            };
            let answer = call(self.file, DELTA_READ, "delta_read", &request)?;
            let got = usize::try_from(answer.len_bytes).unwrap_or(usize::MAX);
            let (Some(from), Some(to)) = (answer.data.get(..got), piece.get_mut(..got)) else {
                return Err(DeltaError::Version);
            };
            to.copy_from_slice(from);
            filled += got;
            if answer.len_bytes < wanted {
                break;
            }
        }
        Ok(filled)
    }

    /// Confirms that the frozen state is saved: the consumer's mark of this file moves to it.
    ///
    /// # Errors
    /// If the log cannot be written: the mark then stays, and the same changes are reported again
    /// next time.
    pub fn commit(mut self) -> Result<(), DeltaError> {
        let saved = self.end(CLOSE_SAVED);
        if saved.is_err() {
            // Ended, although not saved.
            let _ = self.end(0);
        }
        saved
    }

    /// Ends without saving: the mark stays.
    ///
    /// # Errors
    /// If the delta is not open any more.
    pub fn close(mut self) -> Result<(), DeltaError> {
        self.end(0)
    }

    fn end(&mut self, flags: u32) -> Result<(), DeltaError> {
        self.is_open = false;
        let request = DeltaClose {
            size: size_of_layout::<DeltaClose>(),
            version: VERSION,
            context: self.context,
            flags,
            reserved: 0,
        };
        call(self.file, DELTA_CLOSE, "delta_close", &request).map(drop)
    }
}

impl Drop for DeltaFile<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // On failure, the delta ends with the open file.
            let _ = self.end(0);
        }
    }
}

/// The iterator of [`DeltaFile::ranges`].
#[derive(Debug)]
pub struct Ranges<'delta> {
    delta: &'delta DeltaFile<'delta>,
    page: std::vec::IntoIter<Range>,
    position: Option<u64>,
}

impl Iterator for Ranges<'_> {
    type Item = Result<Range, DeltaError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(range) = self.page.next() {
                return Some(Ok(range));
            }
            let position = self.position.take()?;
            let request = DeltaGetdiff {
                size: size_of_layout::<DeltaGetdiff>(),
                version: VERSION,
                context: self.delta.context,
                position,
                next: 0,
                count: 0,
                reserved: 0,
                ranges: [[0; 2]; RANGES_MAX],
            };
            let answer = match call(self.delta.file, DELTA_GETDIFF, "delta_getdiff", &request) {
                Ok(answer) => answer,
                Err(error) => return Some(Err(error)),
            };
            let count = usize::try_from(answer.count).unwrap_or(usize::MAX);
            let ranges = answer.ranges.iter().take(count);
            let page: Vec<Range> = ranges
                .map(|[offset, len_bytes]| Range {
                    offset: *offset,
                    len_bytes: *len_bytes,
                })
                .collect();
            // A position that does not advance would be requested for ever.
            self.position = Some(answer.next).filter(|next| *next != NO_MORE && *next > position);
            self.page = page.into_iter();
        }
    }
}

#[cfg(test)]
mod tests;
