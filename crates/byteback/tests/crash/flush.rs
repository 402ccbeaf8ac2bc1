//! The daemon is killed while it asks the kernel, through its own mount, for the writes of
//! programs.
//!
//! Found by the rounds of blows: the thread that waited for the kernel kept `/dev/fuse` open, so
//! the kernel kept waiting for the daemon. Mount, backup and writers hung for ever.

use std::path::Path;
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::seed::fresh_seed;

use crate::rig::hand::Hand;
use crate::rig::operation::{OnFile, Operation, What};
use crate::rig::{Mode, Rig};

const FILES: u64 = 8;
const WRITES: u64 = 25;
const WRITE_BYTES: u64 = 90_000;

/// A process with open files and many writes that the kernel has not passed on yet.
fn dirty(tree: &Path, number: u64) -> Hand {
    let mut hand = Hand::process(tree);
    let mut seq = number * 10_000;
    let mut perform = |what| {
        seq += 1;
        hand.perform(&Operation { seq, what }).unwrap();
    };
    for file in 0..FILES {
        let path = format!("file{number}-{file}");
        let mode = 0o644;
        perform(What::Create {
            path: path.clone(),
            mode,
        });
        for write in 0..WRITES {
            // Closing would write it.
            let file = OnFile {
                inode: file,
                path: path.clone(),
                keep: true,
            };
            let (at, len) = (write * WRITE_BYTES, WRITE_BYTES);
            perform(What::Write { file, at, len });
        }
    }
    hand
}

#[test]
fn a_daemon_that_is_killed_while_it_flushes_dies() {
    let mut random = SplitMix64::new(fresh_seed());
    let mut rig = Rig::new(Mode::Fast);
    let url = rig.start_server("127.0.0.1:0");
    rig.init(&rig.tree(), &url, "folder");
    for number in 0..10 {
        rig.mount();
        let writer = dirty(&rig.tree(), number);
        let arguments = rig.backup_arguments(None);
        let backup = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        rig.kill_daemon();
        let took = rig.wait_until_free();
        assert!(took < Duration::from_secs(5), "after {took:?}, time {number}");
        backup.wait();
        drop(writer);
    }
    rig.mount();
    rig.backup(None).succeeds("the backup after all that");
    rig.umount();
}
