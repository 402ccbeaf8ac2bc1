//! Extractions from a simulated file system, while anything happens between any two calls.

mod world;

use std::cell::RefCell;
use std::rc::Rc;

use self::world::{SECTOR, SimKernel, World};
use super::*;
use crate::source::FileChecksums;

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    first..first + count
}

fn attempt(world: &Rc<RefCell<World>>) -> Result<FileChecksums> {
    let clock = world.borrow().clock.clone();
    FileChecksums::collect(1, || {
        let mut passage = Passage::begin(SimKernel::new(world), &*clock)?;
        passage.extents_max = [1, 3, WINDOW_EXTENTS][world.borrow_mut().random.below(3) as usize];
        Ok(passage)
    })
}

/// Compares a result with a file's content. Returns the numbers of known and unknown sectors.
fn check(reported: &FileChecksums, content: &[u32], seed: u64) -> (usize, usize) {
    let (mut known, mut unknown, mut at) = (0, 0, 0);
    for run in reported.runs() {
        let range = run.range();
        assert_eq!(range.start(), at, "seed {seed}: a gap");
        at = range.end();
        let sectors = &content[(range.start() / SECTOR) as usize..range.end().div_ceil(SECTOR) as usize];
        match run {
            Run::Sums { sums, .. } => {
                let sums: Vec<u32> = sums.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
                assert_eq!(sums, sectors, "seed {seed}: wrong checksums at {range}");
                known += sectors.len();
            }
            Run::Zeros { .. } => assert!(
                sectors.iter().all(|sector| *sector == 0),
                "seed {seed}: no zeros at {range}"
            ),
            Run::Unknown { why: Unknown::Tail, .. } => assert!(range.end() % SECTOR > 0 && sectors.len() == 1),
            Run::Unknown { .. } => unknown += sectors.len(),
            Run::Chunks { .. } => panic!("btrfs has blocks of one length"),
        }
    }
    assert_eq!(at, reported.stamp().len_bytes);
    assert_eq!(at.div_ceil(SECTOR), content.len() as u64, "seed {seed}: another length");
    (known, unknown)
}

#[test]
fn btrfs_source_reports_nothing_stale_between_two_calls() {
    let (mut told_while_busy, mut refused) = (0, 0);
    for seed in seeds(600) {
        let world = Rc::new(RefCell::new(World::new(seed)));
        for round in 0..12 {
            {
                let mut world = world.borrow_mut();
                world.bustle = 0;
                for _ in 0..world.random.below(30) {
                    world.happen();
                }
                world.clock.advance(Duration::from_millis(50));
                world.bustle = [0, 1, 4, 15][round % 4];
            }
            match attempt(&world) {
                Ok(reported) => {
                    let world = world.borrow();
                    let (known, unknown) = check(&reported, &world.flushed, seed);
                    if world.bustle == 0 {
                        // At rest, everything is known.
                        assert_eq!(unknown, 0, "seed {seed}");
                    } else {
                        told_while_busy += known;
                    }
                }
                Err(SourceError::ChangedMeanwhile | SourceError::Busy) if round % 4 > 0 => refused += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!(told_while_busy > 1000 && refused > 1000, "{told_while_busy} {refused}");
}

#[test]
fn a_stamp_tells_whether_anything_happened_since() {
    for seed in seeds(300) {
        let world = Rc::new(RefCell::new(World::new(seed)));
        for _ in 0..25 {
            world.borrow_mut().happen();
        }
        world.borrow().clock.advance(Duration::from_millis(50));
        let reported = attempt(&world).unwrap();
        let before = world.borrow().content();
        let clock = world.borrow().clock.clone();
        let again = || {
            let passage = Passage::begin(SimKernel::new(&world), &*clock).unwrap();
            passage.finish().unwrap()
        };
        assert_eq!(again(), *reported.stamp(), "seed {seed}");
        let events = world.borrow_mut().random.below(4);
        for _ in 0..events {
            world.borrow_mut().happen();
        }
        clock.advance(Duration::from_millis(50));
        let now = again();
        if world.borrow().content() != before {
            assert_ne!(now, *reported.stamp(), "seed {seed}");
        }
    }
}

#[test]
fn btrfs_source_refuses_without_rights_before_any_write() {
    struct Refusing(SimKernel, i32);
    impl Kernel for Refusing {
        fn stat(&self) -> io::Result<Stat> {
            self.0.stat()
        }
        fn fs_info(&self) -> io::Result<[u8; items::FS_INFO_LEN]> {
            self.0.fs_info()
        }
        fn flush(&self) -> io::Result<()> {
            panic!("flushed in vain");
        }
        fn search(&mut self, _: &Query) -> io::Result<(u32, &[u8])> {
            Err(io::Error::from_raw_os_error(self.1))
        }
    }
    let world = Rc::new(RefCell::new(World::new(1)));
    let clock = world.borrow().clock.clone();
    let begin = |errno| Passage::begin(Refusing(SimKernel::new(&world), errno), &*clock).map(|_| ());
    assert!(matches!(begin(libc::EPERM), Err(SourceError::NeedsRoot)));
    assert!(matches!(begin(libc::ENOTTY), Err(SourceError::NotHere(_))));
    assert!(matches!(begin(libc::EIO), Err(SourceError::Io { .. })));
}

/// A file of one extent, at rest.
fn small() -> Rc<RefCell<World>> {
    let mut world = World::new(1);
    world.write(0, 4);
    world.write_back();
    world.clock.advance(Duration::from_millis(50));
    Rc::new(RefCell::new(world))
}

/// The list is the same before and after, but in between the extent's address belonged to another
/// file.
#[test]
fn an_address_that_was_lent_to_others_meanwhile_is_noticed() {
    let world = small();
    world.borrow_mut().before_search = Some((7, |world| {
        let home = world.first_disk();
        let away = world.balance(home);
        world.commit();
        assert_eq!(world.write_elsewhere(4), home);
        assert_ne!(away, home);
    }));
    let clock = world.borrow().clock.clone();
    let mut passage = Passage::begin(SimKernel::new(&world), &*clock).unwrap();
    let before = world.borrow().first_disk();
    let run = passage.next_run().unwrap().unwrap();
    assert!(matches!(run, Run::Sums { .. }));
    let sums = match run {
        Run::Sums { sums, .. } => sums.to_vec(),
        _ => Vec::new(),
    };
    // And everything goes back to where it was.
    {
        let mut world = world.borrow_mut();
        world.remove_elsewhere(before);
        world.commit();
        let away = world.first_disk();
        assert_eq!(world.balance(away), before);
        world.commit();
    }
    let content = world.borrow().content();
    let reported: Vec<u32> = sums.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
    assert!(
        passage.finish().is_err() || reported == content,
        "checksums of another file"
    );
}

#[test]
fn a_file_that_was_just_written_is_given_time() {
    let world = small();
    world.borrow_mut().write(1, 2);
    let clock = world.borrow().clock.clone();
    let reported = attempt(&world).unwrap();
    assert!(
        clock.now_ns() - reported.stamp().ctime_ns > 20_000_000,
        "a change in the same tick would not show"
    );
    // A time that lies in the future proves nothing.
    world.borrow_mut().ctime_ns = clock.now_ns() + 3_600_000_000_000;
    assert!(matches!(attempt(&world), Err(SourceError::Busy)));
}

#[test]
fn transactions_that_end_all_the_time_cost_windows_and_no_more() {
    let world = small();
    // Once between list and scan.
    world.borrow_mut().before_search = Some((7, World::commit));
    let clock = world.borrow().clock.clone();
    let mut passage = Passage::begin(SimKernel::new(&world), &*clock).unwrap();
    assert!(passage.next_run().unwrap().is_some());
    assert_eq!(passage.effort.windows_again, 1);
    passage.finish().unwrap();
    fn again(world: &mut World) {
        world.commit();
        world.before_search = Some((7, again));
    }
    world.borrow_mut().before_search = Some((7, again));
    assert!(matches!(attempt(&world), Err(SourceError::Busy)));
}
