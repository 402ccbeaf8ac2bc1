//! Answers on their way to the kernel: the one place that turns an error into a reply.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use byteback_host::errno_of;
use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

use super::trace::{Call, Trace};

/// The answer of a target.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why a call is not done.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The call cannot be done here: an everyday answer.
    Never(Errno),
    /// The call failed.
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Never(errno)
    }
}

/// The number for the kernel. An error of our own without a number is an I/O error to a program.
pub(super) fn errno(error: &io::Error) -> Errno {
    match errno_of(error) {
        Some(libc::ENOSYS) => Errno::EOPNOTSUPP,
        Some(number) => Errno::from_i32(number),
        None if error.kind() == io::ErrorKind::InvalidInput => Errno::EINVAL,
        None if error.kind() == io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        None => Errno::EIO,
    }
}

/// A name as the kernel is told of it.
pub(super) struct Entry {
    pub(super) attributes: FileAttr,
    pub(super) generation: u64,
    /// For how long the kernel may believe the attributes.
    pub(super) attributes_ttl: Duration,
    /// For how long the kernel may believe the name.
    pub(super) name_ttl: Duration,
}

/// Attributes, and for how long the kernel may believe them.
pub(super) type Attributes = (FileAttr, Duration);

/// A handle, and how the kernel is to use it.
pub(super) type Opened = (u64, FopenFlags);

/// A reply of the library.
pub(super) trait Reply {
    fn refuse(self, errno: Errno);
}

macro_rules! replies {
    ($($reply:ty),*) => {
        $(impl Reply for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// A reply that the kernel waits for, with the call that it answers.
pub(super) struct Owed<'a, R> {
    reply: R,
    call: Call<'a>,
    trace: Cow<'a, Arc<Trace>>,
}

impl<'a, R: Reply> Owed<'a, R> {
    pub(super) fn new(reply: R, call: Call<'a>, trace: &'a Arc<Trace>) -> Self {
        Self {
            reply,
            call,
            trace: Cow::Borrowed(trace),
        }
    }

    /// The same for another thread.
    pub(super) fn late(self) -> Owed<'static, R> {
        Owed {
            reply: self.reply,
            call: Call {
                name: None,
                ..self.call
            },
            trace: Cow::Owned(self.trace.into_owned()),
        }
    }

    pub(super) fn refuse(self, refusal: &Refusal) {
        let errno = match refusal {
            Refusal::Never(errno) => *errno,
            Refusal::Failed(error) => {
                let errno = errno(error);
                self.trace.note(&self.call, errno.code(), error);
                errno
            }
        };
        self.reply.refuse(errno);
    }

    /// Answers by `reply`, or with the error.
    pub(super) fn answer<T>(self, answer: Answer<T>, reply: impl FnOnce(R, T)) {
        match answer {
            Ok(done) => reply(self.reply, done),
            Err(refusal) => self.refuse(&refusal),
        }
    }
}

impl Owed<'_, ReplyEntry> {
    pub(super) fn entry(self, entry: Answer<Entry>) {
        self.answer(entry, |reply, entry| {
            let generation = Generation(entry.generation);
            reply.entry_with_ttls(&entry.attributes_ttl, &entry.name_ttl, &entry.attributes, generation);
        });
    }
}

impl Owed<'_, ReplyAttr> {
    pub(super) fn attributes(self, attributes: Answer<Attributes>) {
        self.answer(attributes, |reply, (attributes, ttl)| reply.attr(&ttl, &attributes));
    }
}

impl Owed<'_, ReplyEmpty> {
    pub(super) fn done(self, done: Answer<()>) {
        self.answer(done, |reply, ()| reply.ok());
    }
}

impl Owed<'_, ReplyData> {
    pub(super) fn data(self, data: io::Result<&[u8]>) {
        self.answer(data.map_err(Refusal::from), |reply, data| reply.data(data));
    }

    pub(super) fn link_target(self, target: Answer<OsString>) {
        self.answer(target, |reply, target| reply.data(target.as_bytes()));
    }
}

impl Owed<'_, ReplyOpen> {
    pub(super) fn opened(self, opened: Answer<Opened>) {
        self.answer(opened, |reply, (handle, flags)| reply.opened(FileHandle(handle), flags));
    }
}

impl Owed<'_, ReplyCreate> {
    pub(super) fn created(self, created: Answer<(Entry, Opened)>) {
        self.answer(created, |reply, (entry, (handle, flags))| {
            let (ttl, generation) = (entry.attributes_ttl, Generation(entry.generation));
            reply.created(&ttl, &entry.attributes, generation, FileHandle(handle), flags);
        });
    }
}

impl Owed<'_, ReplyWrite> {
    pub(super) fn written(self, written: Answer<usize>) {
        self.answer(written, |reply, len_bytes| {
            reply.written(u32::try_from(len_bytes).unwrap_or(u32::MAX));
        });
    }
}

impl Owed<'_, ReplyLseek> {
    pub(super) fn found(self, found: io::Result<u64>) {
        self.answer(found.map_err(Refusal::from), |reply, found| {
            reply.offset(i64::try_from(found).unwrap_or(i64::MAX));
        });
    }
}

impl Owed<'_, ReplyIoctl> {
    pub(super) fn bytes(self, bytes: Answer<Vec<u8>>) {
        self.answer(bytes, |reply, bytes| reply.ioctl(0, &bytes));
    }
}

impl Owed<'_, ReplyXattr> {
    /// `size_max`: how much the program takes; with 0 it asks how much there is.
    pub(super) fn value(self, size_max: u32, value: Answer<Vec<u8>>) {
        let value = value.and_then(|value| match u32::try_from(value.len()) {
            Ok(len_bytes) if size_max == 0 || len_bytes <= size_max => Ok((len_bytes, value)),
            _ => Err(Errno::ERANGE.into()),
        });
        self.answer(value, |reply, (len_bytes, value)| match size_max {
            0 => reply.size(len_bytes),
            _ => reply.data(&value),
        });
    }
}

/// A listing under way: entries are added to `reply`, then it is answered.
impl<R: Reply> Owed<'_, R> {
    pub(super) fn reply(&mut self) -> &mut R {
        &mut self.reply
    }
}
