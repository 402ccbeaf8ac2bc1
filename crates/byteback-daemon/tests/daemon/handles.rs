//! Files that are opened by a handle that outlives what the kernel remembers (`open_by_handle_at`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use byteback_mount::CacheMode;

use crate::fixture::Fixture;

/// `struct file_handle`, with room for any.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    len_bytes: u32,
    kind: i32,
    raw: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle {
        len_bytes: 128,
        kind: 0,
        raw: [0; 128],
    };
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount_id: libc::c_int = 0;
    // SAFETY: the path ends with a zero, and the handle has the room that it says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(root: &Path, handle: &Handle) -> io::Result<File> {
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

fn shown_path(file: &File) -> std::path::PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// xfstests generic/426, 467 and 477; that nobody remembers anything is made sure of by mounting anew.
#[test]
fn handles_open_what_the_kernel_has_forgotten() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let tree = fixture.tree();
    fixture.mount();
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::write(tree.join("a/b/c/f"), b"content").unwrap();
    fs::hard_link(tree.join("a/b/c/f"), tree.join("g")).unwrap();
    let (file, directory) = (handle_of(&tree.join("a/b/c/f")), handle_of(&tree.join("a/b/c")));
    let number_of_root = fs::metadata(&tree).unwrap().ino();
    let look = |at: &str| {
        let mut content = String::new();
        open(&tree, &file).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        assert_eq!(shown_path(&open(&tree, &directory).unwrap()), tree.join(at));
        assert_eq!(fs::metadata(&tree).unwrap().ino(), number_of_root);
    };
    look("a/b/c");
    fixture.umount();
    fixture.mount();
    look("a/b/c");
    // Known again, and by one number.
    assert_eq!(fs::read(tree.join("a/b/c/f")).unwrap(), b"content");
    fs::remove_file(tree.join("a/b/c/f")).unwrap();
    fs::rename(tree.join("a/b"), tree.join("moved")).unwrap();
    fixture.umount();
    fixture.mount();
    look("moved/c");
    // The next file that gets the number is another one.
    fs::remove_file(tree.join("g")).unwrap();
    for number in 0..50 {
        fs::write(tree.join(format!("new{number}")), b"other").unwrap();
    }
    assert_eq!(open(&tree, &file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    fixture.umount();
    fixture.mount();
    assert_eq!(open(&tree, &file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}
