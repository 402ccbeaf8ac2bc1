//! The differential harness: random operations on a mount and on a plain directory. The trees must
//! stay equal. After each cut, the changes that a consumer was passed and read must turn what it
//! had saved before into the tree *at the cut*, although more operations came before it read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use byteback_control::{Client, TreeService};
use byteback_model::NodeKind;
use byteback_mount::CacheMode;
use byteback_oplog::Granularity;
use rustix::fs::Mode;

use crate::fixture::{Fixture, little_undo, set_mode};
use crate::operations::{Random, Seen, Side, compare, generate, look, seed};
use crate::saved::{OpenBackup, Saved};

/// Compares the saved tree with the one that was seen at the cut.
pub(crate) fn assert_saved(
    mode: CacheMode,
    saved: &Saved,
    seen: &BTreeMap<PathBuf, Seen>,
    context: &dyn Fn() -> String,
) {
    let saved = saved.tree();
    assert_eq!(
        saved.keys().collect::<Vec<_>>(),
        seen.keys().collect::<Vec<_>>(),
        "names\n{}",
        context()
    );
    let mut inodes: BTreeMap<u64, byteback_model::NodeId> = BTreeMap::new();
    for (path, seen) in seen {
        let (attributes, bytes, node) = &saved[path];
        let wrong = |what: &str| format!("{path:?}: {what} differs\n{}", context());
        assert_eq!(attributes.mode, seen.mode & 0o7777, "{}", wrong("mode"));
        assert_eq!((attributes.uid, attributes.gid), seen.owner, "{}", wrong("owner"));
        if mode == CacheMode::Exact {
            // With a write-back cache the kernel keeps the time to itself until it writes the
            // inode.
            assert_eq!(
                attributes.mtime_ns,
                i128::from(seen.mtime_ns),
                "{}",
                wrong("time of change")
            );
        }
        assert_eq!(
            inodes.entry(seen.ino).or_insert(*node),
            node,
            "{}",
            wrong("what it is linked with")
        );
        let xattrs: Vec<(&[u8], &[u8])> = attributes
            .xattrs
            .iter()
            .map(|xattr| (xattr.name.as_bytes(), xattr.value.as_bytes()))
            .collect();
        let expected: Vec<(&[u8], &[u8])> = seen
            .xattrs
            .iter()
            .map(|(name, value)| {
                (
                    std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()),
                    value.as_slice(),
                )
            })
            .collect();
        assert_eq!(xattrs, expected, "{}", wrong("extended attributes"));
        match attributes.kind {
            NodeKind::File => {
                assert_eq!(bytes.len(), seen.content.len(), "{}", wrong("size"));
                let first = bytes.iter().zip(&seen.content).position(|(saved, seen)| saved != seen);
                assert_eq!(first, None, "{}", wrong("content, first at this byte,"));
            }
            NodeKind::Symlink => {
                assert_eq!(
                    attributes.target.as_ref().unwrap().as_bytes(),
                    seen.content,
                    "{}",
                    wrong("target")
                );
            }
            _ => {}
        }
    }
}

struct Consumer {
    name: &'static str,
    saved: Saved,
    begun: Option<(OpenBackup, BTreeMap<PathBuf, Seen>, Client)>,
}

/// The special conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Usual,
    /// The work in the background is done all the time.
    Restless,
    /// The same, and the daemon is a process that is killed now and then.
    Mortal,
}

/// A run with no more backups proves nothing.
const BACKUPS_MIN: u64 = 5;

fn run(mode: CacheMode, life: Life, seed: u64, duration: Duration, is_summed: bool) {
    // A umask belongs to the process: this test changes it, so it runs in a thread of its own with
    // a copy. SAFETY: CLONE_FS separates only root, working directory and umask.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.unwrap();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut random = Random::new(seed);
    let mut fixture = Fixture::new(mode);
    let restless = life != Life::Usual;
    if life == Life::Restless {
        let granularities = [
            Granularity::Byte,
            Granularity::Byte,
            Granularity::Page,
            Granularity::Adaptive,
        ];
        fixture.restless(granularities[usize::try_from(random.below(4)).unwrap()]);
    }
    let plain = tempfile::Builder::new()
        .prefix("byteback-plain-")
        .tempdir_in("/var/tmp")
        .unwrap();
    set_mode(plain.path(), 0o777);
    let mut consumers = ["first", "second"].map(|name| Consumer {
        name,
        saved: Saved::default(),
        begun: None,
    });
    let mut sides = [Side::new(fixture.tree()), Side::new(plain.path().to_owned())];
    if restless && random.below(2) == 0 {
        fixture.undo = Some(little_undo());
    }
    fixture.checksums = is_summed.then(crate::integrity::watchful);
    let mount = |fixture: &mut Fixture| match life {
        Life::Mortal => fixture.mount_mortal(),
        _ => fixture.mount(),
    };
    mount(&mut fixture);
    let started = Instant::now();
    let mut history: Vec<String> = Vec::new();
    let (mut operations, mut backups, mut restarts) = (0_u64, 0_u64, 0_u64);
    // On a busy machine it takes longer until there are backups enough.
    while started.elapsed() < duration || (backups <= BACKUPS_MIN && started.elapsed() < 10 * duration) {
        match random.below(60) {
            0..=1 => {
                let consumer = &mut consumers[usize::try_from(random.below(2)).unwrap()];
                let client = fixture.client();
                if let Some((begun, _, client)) = consumer.begun.take() {
                    begun.abandon(&client);
                }
                history.push(format!("cut for {}", consumer.name));
                // Nothing runs beside this thread, so the tree before the cut is the tree at the
                // cut.
                let seen = look(&fixture.tree());
                // The cut lives as long as its connection.
                consumer.begun = Some((OpenBackup::cut(&client, consumer.name), seen, client));
            }
            2 => {
                // A start in good order must find that nothing changed: everything it reports was
                // logged before.
                for side in &mut sides {
                    side.close_all();
                }
                for consumer in &mut consumers {
                    consumer.begun = None;
                }
                if life == Life::Mortal && random.below(4) > 0 {
                    history.push("killed".to_owned());
                    fixture.kill();
                } else if life == Life::Mortal {
                    history.push("restart".to_owned());
                    fixture.umount_mortal();
                } else {
                    history.push("restart".to_owned());
                    fixture.umount();
                }
                compare(&fixture.tree(), mode, plain.path(), "below, while not mounted");
                mount(&mut fixture);
                restarts += 1;
            }
            _ => {
                let op = generate(&mut random);
                let outcomes = sides.each_mut().map(|side| side.apply(&op));
                history.push(format!("{op:?}"));
                operations += 1;
                let last = history.len().saturating_sub(60);
                assert!(
                    outcomes[0] == outcomes[1],
                    "seed {seed}, {mode:?}: mount {:?}, plain {:?}; the last:\n{}",
                    outcomes[0].as_ref().map(Vec::len),
                    outcomes[1].as_ref().map(Vec::len),
                    history[last..].join("\n")
                );
            }
        }
        if restless && random.below(25) == 0 {
            // Long enough for nodes to be closed, or nearly so.
            std::thread::sleep(Duration::from_millis(random.below(70)));
        }
        let last = history.len().saturating_sub(60);
        let recent = history.get(last..).unwrap_or_default().join("\n");
        let context = || format!("seed {seed}, {mode:?}, operation {operations}; the last ones:\n{recent}");
        for consumer in &mut consumers {
            if consumer.begun.is_some() && random.below(6) == 0 {
                let (begun, seen, client) = consumer.begun.take().unwrap();
                history.push(format!("saved for {}", consumer.name));
                begun.save(&client, &mut consumer.saved);
                assert_saved(mode, &consumer.saved, &seen, &context);
                backups += 1;
            }
        }
        if operations.is_multiple_of(40) {
            compare(&fixture.tree(), mode, plain.path(), &format!("as seen; {}", context()));
            let damaged = fixture.client().status().unwrap().damaged;
            assert!(damaged.is_empty(), "false alarm: {damaged:?}; {}", context());
        }
    }
    println!("{mode:?}: {operations} operations, {backups} backups, {restarts} restarts");
    assert!(backups > BACKUPS_MIN, "a run without backups proves nothing");
    for side in &mut sides {
        side.close_all();
    }
}

fn in_a_thread(mode: CacheMode, life: Life) {
    let seed = seed();
    std::thread::spawn(move || run(mode, life, seed, Duration::from_secs(8), false))
        .join()
        .unwrap();
}

/// Reads are compared, and the disk all the time: a read that fails, or a file that is reported as
/// damaged, is a false alarm.
fn without_an_alarm(mode: CacheMode, life: Life) {
    let seed = seed();
    std::thread::spawn(move || run(mode, life, seed, Duration::from_secs(8), true))
        .join()
        .unwrap();
}

#[test]
fn coverage_raises_no_false_alarm_exact() {
    without_an_alarm(CacheMode::Exact, Life::Usual);
}

#[test]
fn coverage_raises_no_false_alarm_fast() {
    without_an_alarm(CacheMode::Fast, Life::Restless);
}

#[test]
fn coverage_raises_no_false_alarm_if_daemon_is_killed() {
    without_an_alarm(CacheMode::Exact, Life::Mortal);
}

#[test]
fn backup_equals_the_tree_at_the_cut_exact() {
    in_a_thread(CacheMode::Exact, Life::Usual);
}

#[test]
fn backup_equals_the_tree_at_the_cut_fast() {
    in_a_thread(CacheMode::Fast, Life::Usual);
}

#[test]
fn saved_tree_equals_the_cut_with_a_restless_log_exact() {
    in_a_thread(CacheMode::Exact, Life::Restless);
}

#[test]
fn saved_tree_equals_the_cut_with_a_restless_log_fast() {
    in_a_thread(CacheMode::Fast, Life::Restless);
}

/// In this mode everything that returned is in the directory below, so that nothing is lost with
/// the daemon.
#[test]
fn saved_tree_equals_the_cut_with_a_daemon_that_is_killed() {
    in_a_thread(CacheMode::Exact, Life::Mortal);
}

/// The canary: if a range is missing from the log, the harness must notice.
#[test]
fn a_change_that_passes_the_mount_by_is_noticed() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    std::fs::write(fixture.tree().join("file"), vec![1; 10_000]).unwrap();
    // Held open below the mount, as by a program that bypasses it.
    let bypass = std::fs::OpenOptions::new()
        .write(true)
        .open(fixture.tree().join("file"))
        .unwrap();
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "one").save(&fixture.client(), &mut saved);
    std::os::unix::fs::FileExt::write_all_at(&bypass, &[2; 10], 100).unwrap();
    OpenBackup::cut(&fixture.client(), "one").save(&fixture.client(), &mut saved);
    let (_, bytes, _) = &saved.tree()[Path::new("file")];
    assert_eq!(
        bytes[100], 1,
        "the canary is dead: the bypass was seen, so this test cannot show what a missed change does"
    );
    // The file was still open in the log, and its change time gives the bypass away when it is to
    // be closed.
    fixture.umount();
    fixture.mount();
    OpenBackup::cut(&fixture.client(), "one").save(&fixture.client(), &mut saved);
    let (_, bytes, _) = &saved.tree()[Path::new("file")];
    assert_eq!(bytes[100..110], [2; 10], "missed for good");
}
