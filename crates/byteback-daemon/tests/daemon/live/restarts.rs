//! Continuous sync over stops and crashes: nothing is lost, and after a clean stop nothing is sent
//! that need not be.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use byteback_control::{Outcome, Work};
use byteback_daemon::LiveOptions;
use byteback_host::random::SplitMix64;
use byteback_model::NodeKind;
use byteback_mount::CacheMode;
use byteback_oplog::Granularity;
use serde_json::{Value, json};

use super::drain::{Drain, Trouble};
use super::server::{Sent, Server, read};
use super::{lane, options};
use crate::fixture::{Fixture, Served};
use crate::operations::{Op, Random, Side, generate, look, seed};

/// Checks that the server has what is below `tree`.
pub(crate) fn check_tree(server: &Server, tree: &Path) {
    let mut paths = server.paths("");
    let mut seen = look(tree);
    seen.retain(|path, _| !path.as_os_str().is_empty());
    for (path, seen) in &seen {
        let node = paths
            .remove(path)
            .unwrap_or_else(|| panic!("{} is missing", path.display()));
        let node = &server.nodes[&node];
        let attributes = node.attributes.as_ref().unwrap();
        if attributes.kind == NodeKind::File {
            assert!(node.content == seen.content, "content of {}", path.display());
        }
        let metadata = fs::symlink_metadata(tree.join(path)).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&metadata) & 0o7777;
        assert_eq!(attributes.mode & 0o7777, mode, "mode of {}", path.display());
    }
    assert!(paths.is_empty(), "{:?} are too much", paths.keys());
}

#[test]
fn live_sends_after_a_clean_stop_what_was_waiting() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let hour = Duration::from_secs(3600);
    let tree = fixture.tree();
    let mut random = SplitMix64::new(seed());
    fs::write(tree.join("large"), random.bytes(300_000)).unwrap();
    fixture.live = Some(options(Duration::from_millis(5)));
    fixture.mount();
    let mut drain = Drain::new(fixture.served(), 1, Trouble::default());
    drain.finish();
    assert_eq!(drain.folds, 1);
    drain.leave();
    fixture.umount();
    for round in 0..4 {
        // Nothing is sent before the stop.
        fixture.live = Some(options(hour));
        fixture.mount();
        drain.serve_again(fixture.served());
        let status = fixture.served().live.status();
        assert!(!status.is_folded, "round {round}: {status:?}");
        let before = drain.bytes;
        fs::write(tree.join(format!("new{round}")), random.bytes(1000)).unwrap();
        let large = fs::File::options().write(true).open(tree.join("large")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&large, &random.bytes(100), round * 10_000).unwrap();
        drop(large);
        // Overwritten after it was packed: that is put aside.
        let again = fs::File::options().write(true).open(tree.join("large")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&again, &random.bytes(50), round * 10_000 + 25).unwrap();
        drop(again);
        fs::rename(tree.join("large"), tree.join("moved")).unwrap();
        fs::rename(tree.join("moved"), tree.join("large")).unwrap();
        drain.step();
        drain.leave();
        fixture.umount();
        fixture.live = Some(options(Duration::from_millis(5)));
        fixture.mount();
        drain.serve_again(fixture.served());
        let status = fixture.served().live.status();
        assert!(
            !status.is_folded && status.waiting_nodes > 0,
            "round {round}: {status:?}"
        );
        drain.finish();
        assert_eq!(drain.folds, 1, "round {round}");
        assert!(
            drain.bytes - before < 2000,
            "round {round}: {} bytes",
            drain.bytes - before
        );
        check_tree(&drain.server, &tree);
        drain.leave();
        fixture.umount();
    }
    // Changes that were made while nobody watched are found, and sent with what the mark does not
    // cover.
    fs::write(tree.join("unseen"), b"unseen").unwrap();
    fs::write(tree.join("large"), random.bytes(200_000)).unwrap();
    fixture.mount();
    drain.serve_again(fixture.served());
    assert!(fixture.served().live.status().is_folded);
    drain.finish();
    check_tree(&drain.server, &tree);
    drop(drain);
    fixture.umount();
}

/// Lanes that are stopped and go on, sent by one process after the other.
#[test]
fn lanes_are_followed_over_clean_stops() {
    let seed = seed();
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.restless(Granularity::Byte);
    fixture.live = Some(options(Duration::from_millis(20)));
    fixture.mount();
    let mut drain = Drain::new(
        fixture.served(),
        seed,
        Trouble {
            unanswered: 50,
            ..Trouble::default()
        },
    );
    // So that no record lies across a border of pages, where the kernel cuts.
    drain.lanes = Some(7);
    let (mut random, mut resumed) = (SplitMix64::new(seed), 0);
    for round in 0..6 {
        if round > 0 {
            fixture.mount();
            drain.serve_again(fixture.served());
            resumed += u64::from(!fixture.served().live.status().is_folded);
        }
        let name = format!("lane{round}");
        fs::create_dir(fixture.tree().join(&name)).unwrap();
        drain.follow(&name, seed + round);
        let done = (0..7).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (dir, is_done) = (fixture.tree().join(&name), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                scopeguard::defer! { is_done.store(true, Ordering::SeqCst) }
                lane::work(&dir, usize::try_from(round).unwrap(), seed + round, &done, &|number| {
                    number >= 150
                });
            });
            while !is_done.load(Ordering::SeqCst) {
                drain.step();
            }
        });
        for _ in 0..random.below(30) {
            drain.step();
        }
        drain.leave();
        fixture.umount();
    }
    fixture.mount();
    drain.serve_again(fixture.served());
    drain.finish();
    check_tree(&drain.server, &fixture.tree());
    println!("{resumed} of 5 resumed; {}", drain.summary());
    drop(drain);
    fixture.umount();
}

const SOCKET: &str = "live.sock";

/// The options of the process that is killed.
pub(crate) fn mortal_options() -> LiveOptions {
    options(Duration::from_millis(8))
}

/// In the process that is killed: sends the groups that there are to the listener, one after the
/// other.
pub(crate) fn relay_groups(served: Served, directory: &Path) {
    let stream = UnixStream::connect(directory.join(SOCKET)).unwrap();
    std::thread::spawn(move || {
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        // Nobody listens any more once the test has seen enough: until the end there is nothing to
        // do then.
        let mut ask = |question: Value| -> Value {
            let mut line = String::new();
            let is_said = writeln!(stream, "{question}").is_ok();
            if !is_said || !answers.read_line(&mut line).is_ok_and(|count| count > 0) {
                loop {
                    std::thread::park();
                }
            }
            serde_json::from_str(&line).unwrap()
        };
        let unanswered = served.live.unanswered_before();
        let numbers = unanswered.iter().map(|group| group.0).collect::<Vec<_>>();
        ask(json!({ "unanswered": numbers }));
        for group in unanswered {
            served.live.settled(group);
        }
        loop {
            let group = match served.live.poll().unwrap() {
                Work::Send(group) => group,
                Work::Cut => match served.live.cut_fold(&[]) {
                    Ok(group) => group,
                    Err(_) => continue,
                },
                Work::Ask(id) => {
                    match ask(json!({"what became of": id.0})) == json!(true) {
                        true => served.live.applied(id).unwrap(),
                        false => served.live.never_arrived(id).unwrap(),
                    }
                    continue;
                }
                Work::Idle(wait) => {
                    let status = served.live.status();
                    let waits = status.waiting_nodes + status.groups_in_flight + u64::from(status.is_folded);
                    ask(json!({"idle": waits}));
                    let at_most = Duration::from_millis(10);
                    served.live.wait(wait.unwrap_or(at_most).min(at_most));
                    continue;
                }
                Work::Decide(_) => panic!("nothing was refused"),
                Work::Ended => return,
            };
            let Ok(sent) = read(&served, &group) else { continue };
            ask(json!({"sent": sent.to_json()}));
            if let Some(fold) = &group.fold {
                let (note, unsaved) = (Vec::new(), Vec::new());
                let outcome = Outcome::Saved { note, unsaved };
                served.tree.finish(fold.cut.cut, &outcome).unwrap();
            }
            served.live.applied(group.id).unwrap();
        }
    });
}

/// The listener to the process that is killed.
struct GroupListener {
    server: Server,
    applied: BTreeSet<u64>,
    /// How often in a row there was nothing to do.
    idle: u64,
    lives: u64,
    unanswered: u64,
}

impl GroupListener {
    /// Answers until the other end is gone, or nothing is to be done any more and `is_over`.
    fn answer(&mut self, stream: UnixStream, is_over: &dyn Fn() -> bool) {
        let mut questions = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let mut line = String::new();
        loop {
            line.clear();
            if !questions.read_line(&mut line).is_ok_and(|count| count > 0) || !line.ends_with('\n') {
                return;
            }
            let question: Value = serde_json::from_str(&line).unwrap();
            let answer = self.answer_to(&question);
            if writeln!(stream, "{answer}").is_err() {
                return;
            }
            if is_over() && self.idle > 5 {
                return;
            }
        }
    }

    fn answer_to(&mut self, question: &Value) -> Value {
        if let Some(waits) = question.get("idle") {
            self.idle = match waits == &json!(0) {
                true => self.idle + 1,
                false => 0,
            };
        } else if let Some(sent) = question.get("sent") {
            self.idle = 0;
            let sent = Sent::from_json(sent);
            assert!(
                self.applied.insert(sent.group.id.0),
                "group {} was sent before",
                sent.group.id
            );
            self.server.apply_any(&sent);
        } else if let Some(unanswered) = question.get("unanswered") {
            self.lives += 1;
            self.unanswered += unanswered.as_array().unwrap().len() as u64;
        } else if let Some(id) = question.get("what became of") {
            return json!(self.applied.contains(&id.as_u64().unwrap()));
        }
        json!(null)
    }
}

/// The daemon is killed while programs work and it sends. At the end the server has the tree.
#[test]
fn a_daemon_that_is_killed_again_and_again_loses_nothing() {
    // A umask belongs to the process, and others of its threads are at work.
    // SAFETY: CLONE_FS separates only root, working directory and umask.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.unwrap();
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.live = Some(mortal_options());
    let listener = UnixListener::bind(fixture.beside().join(SOCKET)).unwrap();
    let mut afar = GroupListener {
        server: Server::new(),
        applied: BTreeSet::new(),
        idle: 0,
        lives: 0,
        unanswered: 0,
    };
    let lives = 6;
    for life in 0..lives {
        fixture.mount_mortal();
        let (stream, _) = listener.accept().unwrap();
        let is_last = life + 1 == lives;
        let (is_worked, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let tree = fixture.tree();
        std::thread::scope(|scope| {
            let worker_seed = random.next_u64();
            let works_for = Duration::from_millis(300 + random.below(1200));
            let is_worked = &is_worked;
            // Also if an assertion fails: the scope waits for both.
            scopeguard::defer! {
                stop.store(true, Ordering::SeqCst);
                is_worked.store(true, Ordering::SeqCst);
            }
            let afar = &mut afar;
            let listening = scope.spawn(move || {
                afar.idle = 0;
                afar.answer(stream, &|| is_worked.load(Ordering::SeqCst));
            });
            let worker = scope.spawn({
                let (stop, tree) = (&stop, tree.clone());
                move || {
                    let mut random = Random::new(worker_seed);
                    let mut side = Side::new(tree);
                    while !stop.load(Ordering::SeqCst) {
                        let op = generate(&mut random);
                        // A mapping of a mount that is killed kills the process that stores into
                        // it.
                        if !matches!(op, Op::Store { .. } | Op::List { .. } | Op::Umask { .. }) {
                            let _ = side.apply(&op);
                        }
                    }
                    side.close_all();
                }
            });
            std::thread::sleep(works_for);
            if !is_last {
                fixture.kill();
            }
            stop.store(true, Ordering::SeqCst);
            worker.join().unwrap();
            is_worked.store(is_last, Ordering::SeqCst);
            listening.join().unwrap();
        });
    }
    let began = Instant::now();
    check_tree(&afar.server, &fixture.tree());
    println!(
        "{} groups, {} unanswered at a start, compared in {:?}",
        afar.applied.len(),
        afar.unanswered,
        began.elapsed()
    );
    assert_eq!(afar.lives, lives);
    fixture.umount_mortal();
}
