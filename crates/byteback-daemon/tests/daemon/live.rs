//! The groups of continuous sync, applied elsewhere, are the tree at one moment after the other.

pub(crate) mod drain;
mod lane;
mod restarts;
mod rewriting;
mod saves;
pub(crate) mod server;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use byteback_daemon::LiveOptions;
use byteback_host::random::SplitMix64;
use byteback_mount::CacheMode;
use byteback_oplog::Granularity;
use byteback_queue::ClientId;

use crate::fixture::Fixture;
use crate::operations::seed;
use drain::{Drain, Trouble};

pub(crate) use restarts::{check_tree, mortal_options, relay_groups};

/// Options with this delay before changes are sent.
pub(crate) fn options(delay: Duration) -> LiveOptions {
    let mut options = LiveOptions::new(ClientId(7));
    options.queue.delay_ns = delay.as_nanos() as u64;
    options.queue.delay_max_ns = options.queue.delay_ns * 4;
    options.relations.timeout_ns = 50_000_000;
    options.relations.free_bytes_min = 0;
    options.mark_every = Duration::from_millis(20);
    options.rewritten_bytes_min = 1;
    options
}

/// Lanes work while their changes are sent and applied; at every applied group the server has
/// states that they had, in their order.
fn lanes_are_followed(options: LiveOptions, trouble: Trouble, is_restless: bool, duration: Duration) {
    let (seed, lanes) = (seed(), 3);
    let mut fixture = Fixture::new(CacheMode::Exact);
    if is_restless {
        fixture.restless(Granularity::Byte);
    }
    fixture.live = Some(options);
    fixture.mount();
    let names = (0..lanes).map(|lane| format!("lane{lane}")).collect::<Vec<_>>();
    for name in &names {
        fs::create_dir(fixture.tree().join(name)).unwrap();
    }
    let done = (0..lanes).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let began = Instant::now();
    let mut drain = Drain::new(fixture.served(), seed, trouble);
    for (lane, name) in names.iter().enumerate() {
        drain.follow(name, seed + lane as u64);
    }
    std::thread::scope(|scope| {
        let workers = names.iter().enumerate().map(|(lane, name)| {
            let (dir, done) = (fixture.tree().join(name), &done);
            scope.spawn(move || {
                lane::work(&dir, lane, seed + lane as u64, done, &|_| began.elapsed() > duration);
            })
        });
        let workers = workers.collect::<Vec<_>>();
        while workers.iter().any(|worker| !worker.is_finished()) {
            drain.step();
        }
    });
    drain.finish();
    drain.check_end();
    let operations = done.iter().map(|done| done.load(Ordering::SeqCst)).sum::<u64>();
    println!("{operations} operations, {}", drain.summary());
    assert!(drain.given_up == 0 || trouble != Trouble::default());
    assert!(drain.groups > 5 && operations > 100);
    // Without a delay nothing is ever rewritten as a whole.
    assert!(drain.rewritten > 0 || options.queue.delay_ns == 0 || trouble != Trouble::default());
    drop(drain);
    fixture.umount();
}

#[test]
fn live_sends_the_tree_moment_by_moment_at_once() {
    let trouble = Trouble::default();
    lanes_are_followed(options(Duration::ZERO), trouble, false, Duration::from_secs(4));
}

#[test]
fn live_sends_the_tree_moment_by_moment_after_a_delay() {
    let trouble = Trouble::default();
    lanes_are_followed(
        options(Duration::from_millis(15)),
        trouble,
        true,
        Duration::from_secs(4),
    );
}

#[test]
fn live_loses_nothing_and_no_order_through_refusals_and_folds() {
    let mut options = options(Duration::from_millis(5));
    // Most of the time too much waits.
    options.queue.nodes_max = 60;
    options.queue.groups_in_flight_max = 8;
    options.saved_bytes_max = 1 << 20;
    let trouble = Trouble {
        unanswered: 15,
        refused: 10,
        abandoned: 3,
    };
    lanes_are_followed(options, trouble, true, Duration::from_secs(6));
}

/// The log nets names that came and went between two checkpoints, and does not know of those that
/// came and went before a crash; the server has what was sent meanwhile.
#[test]
fn fold_since_the_mark_tells_names_that_were_sent_and_are_gone() {
    let mut options = options(Duration::ZERO);
    options.mark_every = Duration::from_secs(3600);
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.live = Some(options);
    fixture.mount();
    let mut drain = Drain::new(fixture.served(), seed(), Trouble::default());
    drain.finish();
    let at = |name: &str| fixture.tree().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/inner"), "inner").unwrap();
    fs::write(at("gone"), "gone").unwrap();
    fs::write(at("back"), "back").unwrap();
    fs::rename(at("back"), at("away")).unwrap();
    drain.finish();
    assert_eq!(drain.server.paths("").len(), 4);
    fs::remove_file(at("gone")).unwrap();
    fs::rename(at("away"), at("back")).unwrap();
    fs::remove_dir_all(at("dir")).unwrap();
    fs::write(at("last"), "last").unwrap();
    fixture.served().live.give_up("the test says so");
    drain.finish();
    assert!(drain.folds > 0);
    let seen = drain.server.paths("").into_keys().collect::<Vec<_>>();
    assert_eq!(seen, [std::path::Path::new("back"), std::path::Path::new("last")]);
    drop(drain);
    fixture.umount();
}

/// CPU time of this process but for the calling thread, in nanoseconds.
fn others_cpu_ns() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    ns(ClockId::ProcessCPUTime) - ns(ClockId::ThreadCPUTime)
}

/// The cost for the daemon of a write of 4 KiB into a cached file, with and without continuous
/// sync; see docs/benchmarks.md.
#[test]
#[ignore = "it measures"]
fn cost_of_a_write() {
    use std::os::unix::fs::FileExt;
    const WRITES: u64 = 4096;
    let mut random = SplitMix64::new(seed());
    let mut costs = [
        [Vec::new(), Vec::new()],
        [Vec::new(), Vec::new()],
        [Vec::new(), Vec::new()],
    ];
    for round in 0..12 {
        for (which, is_live) in [false, true].into_iter().enumerate() {
            let mut fixture = Fixture::new(CacheMode::Exact);
            fs::write(fixture.tree().join("file"), vec![1; 16 << 20]).unwrap();
            fixture.live = is_live.then(|| options(Duration::from_secs(3600)));
            fixture.mount();
            if is_live {
                // The first one is everything; it does not wait for its delay.
                let served = fixture.served();
                let group = served.live.cut_fold(&[]).unwrap();
                let (note, unsaved) = (Vec::new(), Vec::new());
                let outcome = byteback_control::Outcome::Saved { note, unsaved };
                let cut = group.fold.as_ref().unwrap().cut.cut;
                served.tree.finish(cut, &outcome).unwrap();
                served.live.applied(group.id).unwrap();
            }
            let file = fs::File::options()
                .read(true)
                .write(true)
                .open(fixture.tree().join("file"))
                .unwrap();
            let _ = fs::read(fixture.tree().join("file")).unwrap();
            for (kind, costs) in costs.iter_mut().enumerate() {
                let bytes = match kind {
                    2 => vec![1; 4096],
                    _ => random.bytes(4096),
                };
                if kind == 2 {
                    file.write_all_at(&vec![1; 16 << 20], 0).unwrap();
                }
                let before = others_cpu_ns();
                for number in 0..WRITES {
                    let at = match kind {
                        1 => random.below(WRITES),
                        _ => number,
                    };
                    file.write_all_at(&bytes, at * 4096).unwrap();
                }
                let cost = (others_cpu_ns() - before) as f64 / WRITES as f64 / 1000.0;
                if round > 0 {
                    costs[which].push(cost);
                }
            }
            drop(file);
            fixture.umount();
        }
    }
    for (kind, costs) in ["new, in order", "new, at random", "equal, in order"]
        .iter()
        .zip(&mut costs)
    {
        let medians = costs.iter_mut().map(|costs| {
            costs.sort_by(f64::total_cmp);
            costs[costs.len() / 2]
        });
        println!("{kind}: {:.1?} us without and with", medians.collect::<Vec<_>>());
    }
}

/// A sender that is called between looking for work and waiting for it does not wait: it would wait
/// for ever, as nothing else may happen.
#[test]
fn a_call_is_heard_whenever_it_comes() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.live = Some(options(Duration::ZERO));
    fixture.mount();
    let served = fixture.served();
    let mut drain = Drain::new(fixture.served(), 1, Trouble::default());
    drain.finish();
    drop(drain);
    served.live.wake();
    assert!(matches!(served.live.poll(), Ok(byteback_control::Work::Idle(_))));
    let (heard, is_heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            served.live.wait(Duration::from_secs(3600));
            heard.send(()).unwrap();
        });
        let in_time = is_heard.recv_timeout(Duration::from_secs(60));
        // If the call were not heard, the test would wait as well.
        served.live.wake();
        in_time.expect("the call was lost");
    });
    drop(served);
    fixture.umount();
}
