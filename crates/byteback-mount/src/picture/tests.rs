//! Cases that only an ordinary user's daemon meets, and the state that a picture holds; the rest is
//! tested on real mounts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use byteback_host::tree::Inode;
use byteback_oplog::Log;
use rustix::thread::set_thread_uid;

use super::*;

/// The hole that a failed copy leaves in the map of what was kept must not be read as zeros:
/// whoever locks the node next finds the picture lost.
#[test]
fn picture_is_lost_before_a_node_with_a_failed_copy_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, b"old").unwrap();
    let file = Inode::from(fs::File::options().write(true).open(&path).unwrap());
    let pictures = Pictures::default();
    // No disk has so much free: nothing can be kept.
    let picture = Picture::leaving_free(dir.path(), u64::MAX);
    pictures.open(Arc::clone(&picture));
    let node = NodeId(7);
    let state = picture.state_of(node).unwrap();

    // A thread that marks the picture as lost has to wait.
    let not_yet = picture.lost.lock();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| pictures.before_content(node, &file, ByteRange::new(0, 3).unwrap()));
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
fn picture_survives_an_unreadable_file_which_fails_alone() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test takes another user's place"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("write-only");
    fs::write(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
    let file = Inode::from(fs::OpenOptions::new().write(true).open(&path).unwrap());
    let pictures = Pictures::default();
    let picture = Picture::new(dir.path());
    pictures.open(Arc::clone(&picture));
    let node = NodeId(7);

    pictures.before_attributes(node, &file);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone.
            set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
            pictures.before_content(node, &file, ByteRange::new(0, 3).unwrap());
        });
    });

    assert!(picture.check().is_ok(), "the whole picture was given up");
    let state = picture.state_of(node).unwrap();
    let error = state.lock().check().unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
    // Later changes and the list of what is needed do not bring it back.
    picture.restrict([(node, Needed::All)].into());
    pictures.before_content(node, &file, ByteRange::new(0, 3).unwrap());
    assert!(picture.state_of(node).unwrap().lock().check().is_err());
}

/// A directory of `files` files of ten bytes, tracked.
struct Rig {
    dir: tempfile::TempDir,
    live: LiveTree,
    pictures: Pictures,
    nodes: Vec<NodeId>,
}

impl Rig {
    fn new(files: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in 0..files {
            fs::write(dir.path().join(file.to_string()), format!("old {file:06}")).unwrap();
        }
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
        let log = Arc::new(Log::open(&disk, Arc::clone(&clock), &SimRandomness::new(1)).unwrap());
        let root = Arc::new(Inode::from(fs::File::open(dir.path()).unwrap()));
        let live = LiveTree::new(root, Arc::clone(&log), clock);
        log.scan(&live, &mut |_| {}).unwrap();
        let node = |file: usize| log.child(NodeId::ROOT, OsStr::new(&file.to_string())).unwrap().unwrap();
        let nodes = (0..files).map(node).collect();
        Self {
            dir,
            live,
            pictures: Pictures::default(),
            nodes,
        }
    }

    fn picture(&self) -> Arc<Picture> {
        let picture = Picture::new(self.dir.path());
        self.pictures.open(Arc::clone(&picture));
        picture
    }

    /// Overwrites the bytes of a file from `at` on as the gate does it.
    fn write(&self, file: usize, at: u64, bytes: &[u8]) {
        let path = self.dir.path().join(file.to_string());
        let file_fd = Inode::from(fs::OpenOptions::new().read(true).write(true).open(path).unwrap());
        let range = ByteRange::from_offset_len(at, bytes.len() as u64).unwrap();
        self.pictures.before_content(self.nodes[file], &file_fd, range);
        assert_eq!(file_fd.write_at(at, bytes).unwrap(), bytes.len());
    }

    fn read(&self, picture: &Picture, file: usize, start: u64, end: u64) -> Result<Vec<u8>, PictureError> {
        let mut read = Vec::new();
        let range = ByteRange::new(start, end);
        picture.read(&self.live, self.nodes[file], range, &mut |content| {
            match content {
                Content::Data(_, bytes) => read.extend_from_slice(bytes),
                Content::Hole(range) => read.extend(std::iter::repeat_n(0, range.len_bytes() as usize)),
            }
            Ok(())
        })?;
        Ok(read)
    }
}

fn listed(picture: &Picture) -> usize {
    picture.nodes.lock().nodes.len()
}

/// A first backup of a large tree: whatever was read leaves a number behind, and no more.
#[test]
fn files_that_were_read_take_no_memory_and_cost_no_copies() {
    const FILES: usize = 300;
    let rig = Rig::new(FILES);
    let picture = rig.picture();
    for file in 0..FILES - 1 {
        picture.attributes(&rig.live, rig.nodes[file]).unwrap();
        assert_eq!(
            rig.read(&picture, file, 0, 10).unwrap(),
            format!("old {file:06}").as_bytes()
        );
    }
    assert_eq!(listed(&picture), 0);
    assert!(picture.nodes.lock().read.len() < 3, "neighbours are one range");
    // Read in parts, and not to the end.
    let last = FILES - 1;
    rig.read(&picture, last, 0, 4).unwrap();
    assert_eq!(listed(&picture), 1);
    rig.write(last, 0, b"NEW NEW NE");
    assert_eq!(picture.kept_bytes(), 6, "what was read is not kept");
    assert_eq!(rig.read(&picture, last, 4, 10).unwrap(), b"000299");
    for file in 0..5 {
        rig.write(file, 0, b"NEW NEW NE");
    }
    assert_eq!(picture.kept_bytes(), 6);
    // Their attributes are those of the cut all the same.
    let read = picture.attributes(&rig.live, rig.nodes[0]).unwrap();
    assert!(read.stat.mtime_ns < rig.live.find(rig.nodes[0]).unwrap().unwrap().1.mtime_ns);
}

#[test]
fn files_that_are_released_cost_no_copies() {
    let rig = Rig::new(3);
    let picture = rig.picture();
    let peek = |file: usize| {
        let mut bytes = Vec::new();
        let all = ByteRange::new(0, 10);
        let read = picture.peek(&rig.live, rig.nodes[file], all, &mut |content| {
            if let Content::Data(_, read) = content {
                bytes.extend_from_slice(read);
            }
            Ok(())
        });
        read.unwrap();
        bytes
    };
    for file in 0..2 {
        assert_eq!(peek(file), format!("old {file:06}").as_bytes());
    }
    picture.release(rig.nodes[0]).unwrap();
    rig.write(0, 0, b"NEW");
    assert_eq!(picture.kept_bytes(), 0, "what was released is not kept");
    rig.write(1, 0, b"NEW");
    assert_eq!(picture.kept_bytes(), 3);
    assert_eq!(peek(1), b"old 000001");
}

#[test]
fn picture_given_numbers_keeps_those_nodes_whole_and_no_others() {
    let rig = Rig::new(6);
    let picture = rig.picture();
    // Before anything is known, everything is kept.
    rig.write(0, 0, b"NEW");
    rig.write(1, 0, b"NEW");
    assert_eq!((listed(&picture), picture.kept_bytes()), (2, 6));
    let numbers = [1, 2, 4].map(|file| ByteRange::from_offset_len(rig.nodes[file].0, 1).unwrap());
    picture.restrict_to(numbers.into_iter().collect());
    assert_eq!(listed(&picture), 1);
    for file in 0..6 {
        rig.write(file, 2, b"NEWER");
    }
    assert_eq!(listed(&picture), 3);
    for file in 0..6 {
        let read = rig.read(&picture, file, 0, 10);
        match file {
            1 | 2 | 4 => assert_eq!(read.unwrap(), format!("old {file:06}").as_bytes()),
            _ => assert!(read.is_err(), "{file} may have changed"),
        }
    }
}

#[test]
fn what_comes_after_the_cut_costs_a_picture_nothing() {
    let rig = Rig::new(6);
    let picture = rig.picture();
    let mut numbers: Vec<NodeId> = rig.nodes.clone();
    numbers.sort_unstable();
    let is_late = |file: usize| rig.nodes[file] > numbers[3];
    let late = (0..6).filter(|file| is_late(*file)).count();
    rig.write(0, 0, b"NEW");
    picture.ends_with(numbers[3]);
    (0..6).for_each(|file| rig.write(file, 0, b"NEW"));
    assert_eq!((late, listed(&picture), picture.kept_bytes()), (2, 4, 12));
    for file in 0..6 {
        assert_eq!(rig.read(&picture, file, 0, 10).is_err(), is_late(file));
    }
    // Nothing is listed any more, and nothing is kept, of one that is lost.
    picture.give_up("enough");
    (0..6).for_each(|file| rig.write(file, 0, b"NEWEST"));
    assert_eq!(listed(&picture), 0);
    picture.restrict_to([ALL].into_iter().collect());
    rig.write(0, 5, b"NEWEST");
    assert_eq!(listed(&picture), 0);
}

/// A hole of a TiB is told as it is, not a MiB at a time; what was in it at the cut is read where
/// it lay.
#[test]
fn a_huge_hole_is_one_piece() {
    const LEN: u64 = 1 << 40;
    let rig = Rig::new(1);
    let path = rig.dir.path().join("0");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(LEN).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1 << 39).unwrap();
    let picture = rig.picture();
    // Written into the hole after the cut: it was a hole then.
    rig.write(0, 1 << 38, b"later");
    let mut pieces = Vec::new();
    let all = [ByteRange::new(0, LEN).unwrap()];
    picture
        .read(&rig.live, rig.nodes[0], all, &mut |content| {
            match content {
                Content::Hole(range) => pieces.push((range.start(), range.end(), Vec::new())),
                Content::Data(at, bytes) => pieces.push((at, at + bytes.len() as u64, bytes.to_vec())),
            }
            Ok(())
        })
        .unwrap();
    assert!(pieces.len() < 16, "{} pieces", pieces.len());
    assert!(
        pieces
            .iter()
            .map(|piece| piece.1)
            .eq(pieces.iter().skip(1).map(|piece| piece.0).chain([LEN]))
    );
    let byte = |at: u64| {
        let piece = pieces.iter().find(|piece| (piece.0..piece.1).contains(&at)).unwrap();
        piece.2.get((at - piece.0) as usize).copied().unwrap_or(0)
    };
    assert_eq!([(1 << 39), (1 << 39) + 3, 1 << 38, 3].map(byte), [b'd', b'a', 0, b' ']);
}
