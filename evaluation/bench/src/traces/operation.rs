//! One operation of a trace.
//!
//! Names are bytes. In the file they are JSON strings, with each byte that is not UTF-8 as a lone
//! surrogate (U+DC80 to U+DCFF, as in Python's `os.fsencode`). A parser that returns strings would
//! refuse these.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::SuiteError;

#[cfg(test)]
mod tests;

/// A handle of the recorded program, for writes to the file opened under it.
pub(crate) type Handle = u64;

/// A new owner. `None` (-1 in the file) keeps user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// An operation and the time of its recording.
#[derive(Debug)]
pub(crate) struct Timed {
    /// Microseconds since the recording began.
    pub(crate) at_us: u64,
    pub(crate) operation: Operation,
}

/// The place of a write's bytes in the trace's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// An operation of a program. Paths are relative to the root of the tree; `None` stands for a file
/// that had no name any more.
#[derive(Debug)]
pub(crate) enum Operation {
    Create {
        path: PathBuf,
        handle: Handle,
        mode: u32,
        excl: bool,
        owner: Option<Owner>,
    },
    Open {
        path: Option<PathBuf>,
        handle: Handle,
        trunc: bool,
    },
    Write {
        handle: Handle,
        offset: u64,
        data: Payload,
    },
    Close {
        handle: Handle,
    },
    Truncate {
        path: Option<PathBuf>,
        handle: Option<Handle>,
        len_bytes: u64,
    },
    Fallocate {
        handle: Handle,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    },
    Fsync {
        path: Option<PathBuf>,
        handle: Option<Handle>,
        data_only: bool,
    },
    FsyncDir {
        path: Option<PathBuf>,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        flags: u32,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Symlink {
        path: PathBuf,
        target: OsString,
        owner: Option<Owner>,
    },
    Unlink {
        path: PathBuf,
    },
    Mkdir {
        path: PathBuf,
        mode: u32,
        owner: Option<Owner>,
    },
    Rmdir {
        path: PathBuf,
    },
    Mknod {
        path: PathBuf,
        mode: u32,
        owner: Option<Owner>,
    },
    Chmod {
        path: Option<PathBuf>,
        mode: u32,
    },
    Chown {
        path: Option<PathBuf>,
        owner: Owner,
    },
    /// Nanoseconds since 1970; `None` keeps a time.
    SetTimes {
        path: Option<PathBuf>,
        accessed_ns: Option<i64>,
        modified_ns: Option<i64>,
        now: bool,
    },
    SetXattr {
        path: Option<PathBuf>,
        name: String,
        value: Payload,
    },
    RemoveXattr {
        path: Option<PathBuf>,
        name: String,
    },
    /// A point that the recording script marked.
    Mark,
    /// An operation without effect on the tree: a process was seen, or a handle flushed.
    Nothing,
}

/// A line of the file, with the fields of all kinds of operations.
#[derive(Deserialize)]
pub(crate) struct Line<'a> {
    t: u64,
    op: &'a str,
    #[serde(default)]
    path: Option<Name>,
    #[serde(default)]
    src: Option<Name>,
    #[serde(default)]
    dst: Option<Name>,
    #[serde(default)]
    target: Option<Name>,
    h: Option<Handle>,
    mode: Option<u32>,
    excl: Option<u8>,
    trunc: Option<u8>,
    uid: Option<i64>,
    gid: Option<i64>,
    off: Option<u64>,
    len: Option<u64>,
    d: Option<u64>,
    size: Option<u64>,
    data: Option<u8>,
    flags: Option<u32>,
    atime: Option<i64>,
    mtime: Option<i64>,
    now: Option<u8>,
    name: Option<String>,
}

impl Line<'_> {
    /// Converts the line to its operation.
    ///
    /// # Errors
    /// If a field is missing or the kind is unknown.
    pub(crate) fn understood(self) -> Result<Timed, SuiteError> {
        let (op, at_us) = (self.op, self.t);
        let operation = self
            .operation()?
            .ok_or_else(|| format!("an operation \"{op}\" lacks a field"))?;
        Ok(Timed { at_us, operation })
    }

    /// Returns `None` if a field is missing.
    fn operation(self) -> Result<Option<Operation>, SuiteError> {
        let id = |id: i64| u32::try_from(id).ok();
        let owner = self.uid.zip(self.gid).map(|(uid, gid)| Owner {
            uid: id(uid),
            gid: id(gid),
        });
        let payload = self.d.zip(self.len).map(|(start, len)| {
            Ok::<_, SuiteError>(Payload {
                start: usize::try_from(start)?,
                len: usize::try_from(len)?,
            })
        });
        let payload = payload.transpose()?;
        let is = |flag: Option<u8>| flag.unwrap_or(0) != 0;
        let path = self.path.map(|name| name.0);
        let operation = || {
            Some(match self.op {
                "create" => Operation::Create {
                    path: path?,
                    handle: self.h?,
                    mode: self.mode?,
                    excl: is(self.excl),
                    owner,
                },
                "open" => Operation::Open {
                    path,
                    handle: self.h?,
                    trunc: is(self.trunc),
                },
                "write" => Operation::Write {
                    handle: self.h?,
                    offset: self.off?,
                    data: payload?,
                },
                "close" => Operation::Close { handle: self.h? },
                "truncate" => Operation::Truncate {
                    path,
                    handle: self.h,
                    len_bytes: self.size?,
                },
                "fallocate" => Operation::Fallocate {
                    handle: self.h?,
                    mode: self.mode?,
                    offset: self.off?,
                    len_bytes: self.len?,
                },
                "fsync" => Operation::Fsync {
                    path,
                    handle: self.h,
                    data_only: is(self.data),
                },
                "fsyncdir" => Operation::FsyncDir { path },
                "rename" => Operation::Rename {
                    from: self.src?.0,
                    to: self.dst?.0,
                    flags: self.flags.unwrap_or(0),
                },
                "link" => Operation::Link {
                    from: self.src?.0,
                    to: self.dst?.0,
                },
                "symlink" => Operation::Symlink {
                    path: path?,
                    target: self.target?.0.into_os_string(),
                    owner,
                },
                "unlink" => Operation::Unlink { path: path? },
                "mkdir" => Operation::Mkdir {
                    path: path?,
                    mode: self.mode?,
                    owner,
                },
                "rmdir" => Operation::Rmdir { path: path? },
                "mknod" => Operation::Mknod {
                    path: path?,
                    mode: self.mode?,
                    owner,
                },
                "chmod" => Operation::Chmod { path, mode: self.mode? },
                "chown" => Operation::Chown { path, owner: owner? },
                "utimens" => Operation::SetTimes {
                    path,
                    accessed_ns: self.atime,
                    modified_ns: self.mtime,
                    now: is(self.now),
                },
                "setxattr" => Operation::SetXattr {
                    path,
                    name: self.name?,
                    value: payload?,
                },
                "removexattr" => Operation::RemoveXattr { path, name: self.name? },
                "mark" => Operation::Mark,
                "proc" | "flush" => Operation::Nothing,
                _ => return None,
            })
        };
        Ok(operation())
    }
}

/// A name as bytes; see the module.
#[derive(Debug)]
struct Name(PathBuf);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Name, E> {
        Ok(Name(OsString::from_vec(without_surrogates(bytes)).into()))
    }
}

/// Converts lone surrogates to bytes: the parser passes each on as three bytes, as if it were a
/// character; U+DC80 to U+DCFF stand for the bytes 80 to FF.
fn without_surrogates(bytes: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        // U+DC80 is ED B2 80, U+DCFF is ED B3 BF.
        if let [0xED, second @ (0xB2 | 0xB3), third, ..] = *rest {
            name.push((second & 1) << 6 | third & 0x3F | 0x80);
            rest = &rest[3..];
        } else {
            name.push(first);
            rest = after;
        }
    }
    name
}
