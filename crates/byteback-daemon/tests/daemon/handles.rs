//! Files that are opened by a handle that outlives what the kernel remembers (`open_by_handle_at`).

mod syscalls;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use byteback_mount::CacheMode;

use self::syscalls::{connectable_handle_of, handle_of, open};
use crate::fixture::Fixture;

fn shown_path(file: &File) -> std::path::PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// xfstests generic/426, 467, 477, 756 and 777; a new mount makes sure that nothing is remembered.
fn handles_outlive_mounts(mode: CacheMode) {
    let mut fixture = Fixture::new(mode);
    let tree = fixture.tree();
    fixture.mount();
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::write(tree.join("a/b/c/f"), b"content").unwrap();
    fs::hard_link(tree.join("a/b/c/f"), tree.join("g")).unwrap();
    let (file, directory) = (handle_of(&tree.join("a/b/c/f")), handle_of(&tree.join("a/b/c")));
    // The kernel may show any of several names.
    fs::write(tree.join("a/b/c/alone"), b"alone").unwrap();
    let connected = connectable_handle_of(&tree.join("a/b/c/alone"));
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
    if let Some(connected) = &connected {
        assert_eq!(shown_path(&open(&tree, connected).unwrap()), tree.join("a/b/c/alone"));
    }
    // Known again, and by one number only.
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

#[test]
fn handles_open_what_the_kernel_has_forgotten() {
    handles_outlive_mounts(CacheMode::Exact);
}

#[test]
fn handles_open_what_was_forgotten_in_fast_mode() {
    handles_outlive_mounts(CacheMode::Fast);
}
