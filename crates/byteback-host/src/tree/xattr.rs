//! Extended attributes of whatever a descriptor names, ACLs and capabilities included.
//!
//! The calls that take a descriptor refuse `O_PATH` ones, which are the only descriptors of
//! symlinks, sockets and unreadable files. Those go through the magic link in `/proc/self/fd`,
//! which stands for the file itself: a symlink's own attributes are meant, never its target's.
//! Linux allows symlinks only `trusted.*` and `security.*`; `user.*` on one is refused with
//! `PermissionDenied`, and that answer is passed on.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{
    XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr, removexattr, setxattr,
};
use rustix::io::Errno;

use super::{explain_proc, proc_path, uninterrupted};

/// Linux's own bound of a value and of a list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LIMIT_LEN_BYTES: usize = 64 * 1024;

/// Nearly every value and list fits here.
const FIRST_TRY_LEN_BYTES: usize = 512;

/// Whether [`set_xattr`] may create or replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Creates the attribute or replaces its value.
    Any,
    /// Creates it; `AlreadyExists` if there is one.
    Create,
    /// Replaces its value; `ENODATA` if there is none.
    Replace,
}

/// The names of the attributes of what `fd` names, in the kernel's order. Which ones an
/// unprivileged caller is told is the file system's choice.
///
/// # Errors
/// `Unsupported` (`EOPNOTSUPP`) if the file system keeps none.
pub fn list_xattrs(fd: impl AsFd) -> io::Result<Vec<OsString>> {
    let list = sized(|buffer| match flistxattr(&fd, &mut *buffer) {
        Err(Errno::BADF) => listxattr(proc_path(&fd).as_str(), &mut *buffer),
        done => done,
    })?;
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
}

/// The value of the attribute `name` of what `fd` names, `None` if it has no such attribute.
///
/// # Errors
/// `Unsupported` (`EOPNOTSUPP`) if the file system keeps none; otherwise what the system answered.
pub fn get_xattr(fd: impl AsFd, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    let value = sized(|buffer| match fgetxattr(&fd, name, &mut *buffer) {
        Err(Errno::BADF) => getxattr(proc_path(&fd).as_str(), name, &mut *buffer),
        done => done,
    });
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the attribute `name` of what `fd` names to `value`.
///
/// # Errors
/// As `how` says; `PermissionDenied` for `user.*` on symlinks and special files; otherwise what the
/// system answered.
pub fn set_xattr(fd: impl AsFd, name: &OsStr, value: &[u8], how: SetXattr) -> io::Result<()> {
    let flags = match how {
        SetXattr::Any => XattrFlags::empty(),
        SetXattr::Create => XattrFlags::CREATE,
        SetXattr::Replace => XattrFlags::REPLACE,
    };
    uninterrupted(|| match fsetxattr(&fd, name, value, flags) {
        Err(Errno::BADF) => setxattr(proc_path(&fd).as_str(), name, value, flags),
        done => done,
    })
    .map_err(explain_proc)
}

/// Removes the attribute `name` of what `fd` names.
///
/// # Errors
/// `ENODATA` if it has none of that name; otherwise what the system answered.
pub fn remove_xattr(fd: impl AsFd, name: &OsStr) -> io::Result<()> {
    uninterrupted(|| match fremovexattr(&fd, name) {
        Err(Errno::BADF) => removexattr(proc_path(&fd).as_str(), name),
        done => done,
    })
    .map_err(explain_proc)
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NODATA.raw_os_error())
}

/// Asks with a small buffer, then with the largest that can be needed. A value that grows in
/// between is no race: each answer is whole or `ERANGE`.
fn sized(mut ask: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> io::Result<Vec<u8>> {
    for len_bytes in [FIRST_TRY_LEN_BYTES, LIMIT_LEN_BYTES] {
        let mut buffer = vec![0; len_bytes];
        match uninterrupted(|| ask(&mut buffer)) {
            Ok(answered) => {
                buffer.truncate(answered);
                return Ok(buffer);
            }
            Err(error) if error.raw_os_error() == Some(Errno::RANGE.raw_os_error()) => {}
            Err(error) => return Err(explain_proc(error)),
        }
    }
    Err(Errno::TOOBIG.into())
}
