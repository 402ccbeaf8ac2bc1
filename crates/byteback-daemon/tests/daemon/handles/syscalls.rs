//! Handles of files as the kernel makes and opens them.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `struct file_handle`, with room for any.
#[repr(C)]
#[derive(Clone)]
pub(crate) struct Handle {
    len_bytes: u32,
    kind: i32,
    raw: [u8; 128],
}

/// A handle that names the file alone.
pub(crate) fn handle_of(path: &Path) -> Handle {
    named(path, 0).unwrap()
}

/// A handle that names the file and the directory that it was found in; none where the kernel
/// (before 6.13) makes no such handles.
pub(crate) fn connectable_handle_of(path: &Path) -> Option<Handle> {
    const AT_HANDLE_CONNECTABLE: libc::c_int = 2;
    match named(path, AT_HANDLE_CONNECTABLE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
        named => Some(named.unwrap()),
    }
}

fn named(path: &Path, flags: libc::c_int) -> io::Result<Handle> {
    let mut handle = Handle {
        len_bytes: 128,
        kind: 0,
        raw: [0; 128],
    };
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount_id: libc::c_int = 0;
    // SAFETY: the path ends with a zero, and the handle has the room that it says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            flags,
        )
    };
    match done {
        0 => Ok(handle),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the file that a handle names, on the file system that `root` is on.
pub(crate) fn open(root: &Path, handle: &Handle) -> io::Result<File> {
    let root = File::open(root).unwrap();
    // SAFETY: a handle that the system made.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            std::ptr::from_ref(handle),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, of nobody else.
    Ok(unsafe { File::from_raw_fd(i32::try_from(opened).unwrap()) })
}
