//! What only an ordinary user's daemon meets; the rest is tested on real mounts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::thread::set_thread_uid;

use super::*;

/// The hole that a failed copy leaves in the map of what was kept must not be read as zeros: whoever locks the node next finds the
/// picture lost.
#[test]
fn a_node_of_which_a_copy_failed_is_not_let_go_before_its_picture_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, b"old").unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let pictures = Pictures::default();
    // No disk has so much free: nothing can be kept.
    let picture = Picture::leaving_free(dir.path(), u64::MAX);
    pictures.open(Arc::clone(&picture));
    let node = NodeId(7);
    let state = picture.state_of(node).unwrap();

    // Whoever wants to say that it is lost has to wait.
    let not_yet = picture.lost.lock();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| pictures.before_content(node, file.as_fd(), ByteRange::new(0, 3).unwrap()));
        while !picture.kept.was_begun() {
            assert!(!writer.is_finished());
            std::thread::yield_now();
        }
        // The copy fails now. Time enough for the writer to let the node go, if it does.
        for _ in 0..200 {
            if let Some(state) = state.try_lock() {
                assert!(
                    state.kept.is_empty(),
                    "a reader would take {:?} for what was there",
                    state.kept
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(not_yet);
    });

    assert!(matches!(picture.check(), Err(PictureError::Lost(_))));
    assert_eq!(picture.kept_bytes(), 0);
}

/// A daemon of an ordinary user may write a file that it may not read.
#[test]
fn a_file_that_cannot_be_read_fails_alone_and_its_picture_is_not_lost() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test takes another user's place"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("write-only");
    fs::write(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let pictures = Pictures::default();
    let picture = Picture::new(dir.path());
    pictures.open(Arc::clone(&picture));
    let node = NodeId(7);

    pictures.before_attributes(node, file.as_fd());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone.
            set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
            pictures.before_content(node, file.as_fd(), ByteRange::new(0, 3).unwrap());
        });
    });

    assert!(picture.check().is_ok(), "the whole picture was given up");
    let state = picture.state_of(node).unwrap();
    let error = state.lock().check().unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
    // Later changes and the list of what is needed do not bring it back.
    picture.restrict([(node, Needed::All)].into());
    pictures.before_content(node, file.as_fd(), ByteRange::new(0, 3).unwrap());
    assert!(picture.state_of(node).unwrap().lock().check().is_err());
}
