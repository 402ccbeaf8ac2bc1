//! A file that programs change through the gate, and what is known of its former states.

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;

use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_oplog::{Epoch, Log};
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, fadvise};

use super::*;
use crate::credentials::Caller;
use crate::inodes::InodeNumber;
use crate::live::LiveTree;
use crate::tracked::{Account, Origin, Tracked};
use crate::tree::Tree;
use crate::tree::attributes::SetAttributes;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A tree with one file.
struct Watched {
    tree: Tree,
    log: Arc<Log>,
    images: Arc<BeforeImages>,
    node: InodeNumber,
    handle: u64,
    dir: tempfile::TempDir,
}

impl Watched {
    fn new(content: &[u8], room_bytes: u64) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(dir.path().join("f"), content).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
        let log = Arc::new(Log::open(&disk, Arc::clone(&clock), &SimRandomness::new(1)).unwrap());
        let root = Arc::new(Inode::from(fs::File::open(dir.path()).unwrap()));
        let live = LiveTree::new(root, Arc::clone(&log), clock);
        log.scan(&live, &mut |_| {}).unwrap();
        log.begin_tracking().unwrap();
        let images = Arc::new(BeforeImages::new(Arc::clone(&log), room_bytes));
        let tracked = Tracked::with_account(Account {
            integrity: None,
            log: Arc::clone(&log),
            pictures: Arc::default(),
            before_images: Some(Arc::clone(&images)),
            undo: None,
            observer: None,
        });
        let root = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let tree = Tree::new(root.into(), Arc::new(tracked)).unwrap();
        let found = tree.lookup(InodeNumber::ROOT, OsStr::new("f")).unwrap().unwrap();
        let node = found.interned.node;
        let handle = tree.open(node, CALLER, OFlags::RDWR).unwrap().0;
        Self {
            tree,
            log,
            images,
            node,
            handle,
            dir,
        }
    }

    fn below(&self) -> fs::File {
        fs::File::open(self.dir.path().join("f")).unwrap()
    }

    fn content(&self) -> Vec<u8> {
        fs::read(self.dir.path().join("f")).unwrap()
    }

    /// Begins an epoch.
    fn cut(&self) -> Epoch {
        self.images.begin(self.log.epoch().next());
        self.log.cut("backup", || {}).unwrap().epoch()
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let written = self.tree.write(self.handle, offset, bytes, Origin::Program, false);
        assert_eq!(written.unwrap().len_bytes, bytes.len());
    }

    fn truncate(&self, len_bytes: u64) {
        let to = SetAttributes {
            len_bytes: Some(len_bytes),
            ..SetAttributes::default()
        };
        self.tree
            .set_attributes(self.node, Some(self.handle), CALLER, &to)
            .unwrap();
    }

    fn image(&self, since: Epoch, until: Epoch) -> Option<BeforeImage> {
        self.images.image(NodeId(2), since, until)
    }

    /// The bytes that are known of the file since this epoch, in words.
    fn known(&self, since: Epoch) -> Option<(u64, Vec<(u64, String)>)> {
        let image = self.image(since, self.log.epoch().next())?;
        let text = |old: &OldBytes| String::from_utf8_lossy(old.bytes()).into_owned();
        let pieces = image.pieces.iter().map(|(at, old)| (*at, text(old)));
        Some((image.len_bytes, pieces.collect()))
    }
}

fn piece(at: u64, text: &str) -> (u64, String) {
    (at, text.to_owned())
}

#[test]
fn bytes_are_kept_as_they_were_at_each_cut() {
    let file = Watched::new(b"0123456789", 1 << 20);
    file.write(0, b"before");
    let first = file.cut();
    assert_eq!(file.known(first), None);
    file.write(2, b"ab");
    file.write(3, b"cd");
    assert_eq!(file.known(first), Some((10, vec![piece(2, "fo"), piece(4, "r")])));
    let second = file.cut();
    file.write(1, b"xyz");
    file.truncate(8);
    assert_eq!(file.known(second), Some((10, vec![piece(1, "eac"), piece(8, "89")])));
    // Of the older moment, what was there then.
    let since_first = vec![piece(1, "e"), piece(2, "fo"), piece(4, "r"), piece(8, "89")];
    assert_eq!(file.known(first), Some((10, since_first)));
    let before_second = file.image(first, second).unwrap();
    assert_eq!(before_second.pieces.len(), 2);
    file.images.forget_before(second);
    assert_eq!(file.known(second), Some((10, vec![piece(1, "eac"), piece(8, "89")])));
}

#[test]
fn nothing_is_known_of_the_time_before_the_first_backup() {
    let file = Watched::new(b"0123456789", 1 << 20);
    let early = file.log.cut("backup", || {}).unwrap().epoch();
    file.write(0, b"a");
    let first = file.cut();
    file.write(0, b"b");
    assert_eq!(file.known(early), None);
    assert_eq!(file.known(first), Some((10, vec![piece(0, "a")])));
}

#[test]
fn bytes_that_would_have_to_be_read_from_the_disk_are_unknown() {
    let file = Watched::new(&[b'a'; 20_000], 1 << 20);
    let first = file.cut();
    let below = file.below();
    below.sync_all().unwrap();
    fadvise(&below, 0, None, Advice::DontNeed).unwrap();
    file.write(100, b"b");
    // The page is in memory now; what it was at the cut stays unknown.
    file.write(100, b"c");
    assert_eq!(file.known(first), Some((20_000, vec![])));
    file.write(101, b"d");
    assert_eq!(file.known(first), Some((20_000, vec![piece(101, "a")])));
}

#[test]
fn room_is_bounded_and_goes_to_the_newest_epoch() {
    let room = 100_000;
    let file = Watched::new(&[b'a'; 400_000], room);
    let mut epochs = Vec::new();
    for round in 0..4_u8 {
        epochs.push(file.cut());
        for at in (0..40_000).step_by(4000) {
            file.write(at, &[b'b' + round; 3000]);
        }
        assert!(file.images.taken_bytes.load(Ordering::SeqCst) <= room);
    }
    // Each needs a third of the room: the third one made the first two go, and the fourth fits.
    let known = epochs
        .iter()
        .map(|since| file.known(*since).map(|(_, pieces)| pieces.len()));
    assert_eq!(known.collect::<Vec<_>>(), [None, None, Some(10), Some(10)]);
    // Half of the room is the most of one file.
    let last = file.cut();
    file.write(0, &[b'z'; 60_000]);
    assert_eq!(file.known(last), Some((400_000, vec![])));
}

/// Random changes and cuts, compared with all that the file ever was.
fn random_changes_are_known(seed: u64, room_bytes: u64) {
    println!("BYTEBACK_SEED={seed}, room {room_bytes}");
    let mut random = SplitMix64::new(seed);
    let file = Watched::new(&random.bytes(50_000), room_bytes);
    let mut states: Vec<(Epoch, Vec<u8>)> = Vec::new();
    let (mut differing_bytes, mut missing_bytes, mut image_count) = (0, 0, 0);
    for _ in 0..12 {
        states.push((file.cut(), file.content()));
        for _ in 0..random.below(12) {
            let (at, len) = (random.below(70_000), random.below(6000));
            match random.below(6) {
                0 => file.truncate(at),
                1 => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    file.tree.allocate(file.handle, CALLER, hole, at, len + 1).unwrap();
                }
                2 => drop(
                    file.tree
                        .copy_range(CALLER, (file.handle, at), (file.handle, at + len), len as usize),
                ),
                _ => {
                    let bytes = random.bytes(len as usize);
                    file.write(at, &bytes);
                }
            }
        }
        let (until, now) = (file.cut(), file.content());
        for (since, then) in &states {
            let Some(image) = file.image(*since, until) else {
                continue;
            };
            image_count += 1;
            let mut known = vec![false; then.len()];
            if image.len_bytes != then.len() as u64 {
                panic!(
                    "since {since:?}: {} bytes long instead of {}",
                    image.len_bytes,
                    then.len()
                );
            }
            for (start, old) in &image.pieces {
                let range = *start as usize..*start as usize + old.bytes().len();
                assert!(
                    then.get(range.clone()) == Some(old.bytes()),
                    "since {since:?}: {range:?} was different"
                );
                known[range].fill(true);
            }
            let differing = (0..then.len()).filter(|at| now.get(*at) != then.get(*at));
            for at in differing {
                differing_bytes += 1;
                missing_bytes += u64::from(!known[at]);
            }
        }
        states.push((until, now));
    }
    assert!(image_count > 0, "nothing was ever known");
    // With enough room all is known that is in memory, as nearly all of it is.
    if room_bytes > 1 << 20 {
        assert!(
            missing_bytes * 20 <= differing_bytes,
            "{missing_bytes} of {differing_bytes} are unknown"
        );
    }
}

#[test]
fn random_changes_are_known_as_they_were() {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    let asked = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = asked.unwrap_or(u64::from(since.subsec_nanos()));
    for round in 0..40 {
        random_changes_are_known(
            seed.wrapping_add(round),
            [16 << 20, 30_000, 120_000][round as usize % 3],
        );
    }
}

#[test]
fn threads_that_write_at_once_keep_what_was_there_first() {
    let content: Vec<u8> = (0..200_000_u32).map(|at| at as u8 | 1).collect();
    let file = Watched::new(&content, 16 << 20);
    let first = file.cut();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                let mut random = SplitMix64::new(thread);
                for _ in 0..500 {
                    // Even bytes alone: whatever is odd was there at the cut.
                    let (at, len) = (random.below(190_000), 1 + random.below(9000) as usize);
                    file.write(at, &vec![(thread * 2) as u8; len]);
                }
            });
        }
    });
    let image = file.image(first, file.log.epoch().next()).unwrap();
    for (start, old) in &image.pieces {
        let range = *start as usize..*start as usize + old.bytes().len();
        assert!(content[range.clone()] == *old.bytes(), "{range:?} was different");
    }
    assert!(image.pieces.iter().map(|(_, old)| old.bytes().len()).sum::<usize>() > 150_000);
}

#[test]
fn notes_of_very_many_files_take_room_and_end_the_epoch() {
    let room = 40_000;
    let file = Watched::new(b"0123456789", room);
    let first = file.cut();
    file.write(2, b"ab");
    assert!(file.known(first).is_some());
    let fd = Inode::from(file.below());
    let range = ByteRange::new(100, 200).unwrap();
    for node in 1000..2000 {
        // Beyond the end there is nothing to keep.
        file.images.before_content(NodeId(node), &fd, &[range]);
        assert!(file.images.taken_bytes.load(Ordering::SeqCst) <= room);
    }
    assert_eq!(file.known(first), None);
    let second = file.cut();
    file.write(3, b"cd");
    assert_eq!(file.known(second), Some((10, vec![piece(3, "b4")])));
}

#[test]
fn forgotten_epochs_are_not_told_from_later_ones() {
    let file = Watched::new(b"0123456789", 1 << 20);
    let first = file.cut();
    file.write(2, b"ab");
    let second = file.cut();
    file.write(2, b"cd");
    file.images.forget_before(second);
    assert_eq!(file.known(first), None);
    assert_eq!(file.known(second), Some((10, vec![piece(2, "ab")])));
}
