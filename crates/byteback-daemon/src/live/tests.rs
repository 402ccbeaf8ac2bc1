//! Waits between writers and the sender.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use byteback_control::Work;

use super::*;
use crate::state_folder::StateFolder;

/// A write that was reported may not have been performed yet: what is frozen now could be read too
/// early.
#[test]
fn live_hands_out_and_answers_nothing_during_a_change() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let folder = StateFolder::of(&dir.path().join("tree"), &dir.path().join("state")).unwrap();
    let tree = TrackedTree::open(folder, &mut |_| {}).unwrap();
    let mut options = LiveOptions::new(ClientId(1));
    options.queue.delay_ns = 0;
    let live = Live::open(&tree, options).unwrap();
    live.begin().unwrap();
    type Call = (&'static str, fn(&Live));
    let calls: [Call; 2] = [
        ("poll", |live| assert!(matches!(live.poll_now(), Ok(Work::Cut)))),
        ("answer", |live| live.with_queue(|queue| queue.unanswered(0))),
    ];
    for (name, call) in calls {
        std::thread::scope(|scope| {
            let (done, is_done) = mpsc::channel();
            let under_way = live.order.exclusive();
            let live = &live;
            scope.spawn(move || {
                call(live);
                done.send(()).unwrap();
            });
            let early = is_done.recv_timeout(Duration::from_millis(100));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "{name}");
            drop(under_way);
            is_done.recv().unwrap();
        });
    }
}
