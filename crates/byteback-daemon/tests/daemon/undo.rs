//! Undo on real mounts: each state that is brought back was there shortly before the requested
//! time, or the answer says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use byteback_control::{Client, ErrorKind, PastEvent, PastFile, Piece, ServiceError, TreeService};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::random::SplitMix64;
use byteback_model::ByteString;
use byteback_mount::CacheMode;
use byteback_undo::UndoOptions;

use crate::fixture::Fixture;
use crate::operations::seed;

const MS: i64 = 1_000_000;
const QUANTUM_NS: i64 = 20 * MS;

fn options() -> UndoOptions {
    UndoOptions {
        window_ns: 3_600_000 * MS,
        budget_bytes: 256 << 20,
        quantum_ns: QUANTUM_NS,
    }
}

fn now_ns() -> i64 {
    RealClock.now_ns()
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn past(client: &Client, path: &str, at_ns: i64) -> Result<(PastFile, Vec<u8>), ServiceError> {
    let mut content = Vec::new();
    let file = client.read_past(&ByteString::from(path), at_ns, &mut |piece| {
        match piece {
            Piece::Data { offset, bytes } => {
                assert_eq!(offset, content.len() as u64);
                content.extend_from_slice(bytes);
            }
            Piece::Hole(range) => {
                assert_eq!(range.start(), content.len() as u64);
                content.resize(usize::try_from(range.end()).unwrap(), 0);
            }
        }
        Ok(())
    })?;
    assert_eq!(file.size_bytes, content.len() as u64);
    Ok((file, content))
}

/// A mounted tree with a cut behind it, so that its files count as known.
fn mounted(mode: CacheMode, prepare: impl FnOnce(&Path)) -> Fixture {
    let mut fixture = Fixture::new(mode);
    fixture.undo = Some(options());
    prepare(&fixture.tree());
    fixture.mount();
    pause(30);
    fixture
}

type Tree = BTreeMap<String, Vec<u8>>;

fn look(dir: &Path) -> Tree {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

fn random_life(mode: CacheMode, seed: u64, steps: usize) {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut random = SplitMix64::new(seed);
    let mut fixture = mounted(mode, |tree| {
        fs::write(tree.join("a"), vec![1; 50_000]).unwrap();
        fs::write(tree.join("b"), vec![2; 500]).unwrap();
    });
    // Each state of the tree, with the earliest time of its beginning and the latest time of its
    // end.
    let mut states: Vec<(i64, i64, Tree)> = vec![(i64::MIN, now_ns(), look(&fixture.tree()))];
    let begun_ns = now_ns();
    let (mut read, mut refused) = (0, BTreeSet::new());
    for step in 0..steps {
        let tree = fixture.tree();
        let name = NAMES[random.below(4) as usize];
        let path = tree.join(name);
        let file = File::options().read(true).write(true).open(&path);
        let len = file.as_ref().map_or(0, |file| file.metadata().unwrap().len());
        let bytes = vec![random.next_u64() as u8; 1 + random.below(9000) as usize];
        let at = random.below(len + 1);
        let started_ns = now_ns();
        let what = random.below(14);
        match (what, &file) {
            (0..=4, Ok(file)) => file.write_all_at(&bytes, at).unwrap(),
            (5, Ok(file)) => file.set_len(random.below(len * 2 + 10)).unwrap(),
            (6, Ok(file)) => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, at, 5000).unwrap();
            }
            // As editors save: a new file takes the place of the old one.
            (7..=8, _) => {
                let mut new = File::create(tree.join("new")).unwrap();
                new.write_all(&bytes).unwrap();
                new.sync_all().unwrap();
                fs::rename(tree.join("new"), &path).unwrap();
            }
            (9, _) => fs::write(&path, &bytes).unwrap(),
            (10, Ok(_)) => fs::remove_file(&path).unwrap(),
            (11, Ok(_)) => fs::rename(&path, tree.join(NAMES[random.below(4) as usize])).unwrap(),
            (12, Ok(file)) if random.below(3) == 0 => {
                file.sync_all().unwrap();
                drop(File::open(&path));
            }
            (13, _) if random.below(4) == 0 => {
                drop(file);
                fixture.umount();
                if random.coin() {
                    // Behind our back.
                    pause(30);
                    fs::write(&path, b"untracked").unwrap();
                }
                pause(30);
                fixture.mount();
            }
            _ => {}
        }
        // In mode `fast` the gate sees it when it is flushed.
        if let Ok(file) = File::open(&path) {
            file.sync_all().unwrap();
        }
        let ended_ns = now_ns();
        states.last_mut().unwrap().1 = ended_ns;
        if what == 9 || what == 13 {
            // Between emptying it and writing it.
            let mut between = states.last().unwrap().2.clone();
            between.insert(name.to_owned(), Vec::new());
            states.push((started_ns, ended_ns, between));
        }
        states.push((started_ns, ended_ns, look(&tree)));
        pause(random.below(15));
        let client = fixture.client();
        for _ in 0..2 {
            let name = NAMES[random.below(4) as usize];
            let at_ns = begun_ns - 5 * MS + (random.next_u64() as i64).rem_euclid(now_ns() - begun_ns + 5 * MS);
            states.last_mut().unwrap().1 = now_ns();
            let possible: Vec<Option<&Vec<u8>>> = states
                .iter()
                .filter(|(since_ns, until_ns, _)| *since_ns <= at_ns && *until_ns >= at_ns - QUANTUM_NS)
                .map(|(_, _, tree)| tree.get(name))
                .collect();
            match past(&client, name, at_ns) {
                // The answer says that the file had another name then; that is another test.
                Ok((file, _)) if file.had_other_name => {}
                Ok((_, content)) => {
                    assert!(
                        possible.contains(&Some(&content)),
                        "seed {seed}, {mode:?}, step {step}: {name} as of {} ms ago: {} bytes that were not there",
                        (now_ns() - at_ns) / MS,
                        content.len()
                    );
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
                    refused.insert(error.message);
                }
            }
        }
    }
    println!("{mode:?}: {read} read, refused: {refused:?}");
    assert!(read > steps / 4, "seed {seed}: only {read} read: {refused:?}");
    fixture.umount();
}

#[test]
fn undo_restores_only_earlier_states_exact() {
    random_life(CacheMode::Exact, seed(), 300);
}

#[test]
fn undo_restores_only_earlier_states_fast() {
    random_life(CacheMode::Fast, seed(), 200);
}

#[test]
fn every_way_to_lose_content_can_be_undone() {
    let original: Vec<u8> = (0..300_000_u32).map(|index| (index % 253) as u8).collect();
    let mut fixture = mounted(CacheMode::Exact, |tree| {
        fs::create_dir(tree.join("dir")).unwrap();
        for name in ["written", "cut", "emptied", "saved", "removed", "dir/moved", "mapped"] {
            fs::write(tree.join(name), &original).unwrap();
        }
    });
    let tree = fixture.tree();
    pause(30);
    let at_ns = now_ns();
    pause(30);
    let write = |name: &str| File::options().read(true).write(true).open(tree.join(name)).unwrap();
    write("written").write_all_at(b"other", 1000).unwrap();
    write("cut").set_len(77).unwrap();
    fs::write(tree.join("emptied"), b"new content").unwrap();
    fs::write(tree.join("saved.new"), b"saved anew").unwrap();
    fs::rename(tree.join("saved.new"), tree.join("saved")).unwrap();
    fs::remove_file(tree.join("removed")).unwrap();
    write("dir/moved").write_all_at(b"x", 0).unwrap();
    fs::rename(tree.join("dir/moved"), tree.join("dir/elsewhere")).unwrap();
    fs::rename(tree.join("dir"), tree.join("folder")).unwrap();
    let mapped = write("mapped");
    // SAFETY: a fresh mapping of a file that nobody shortens, clean when it is unmapped.
    unsafe {
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), 300_000, flags, MapFlags::SHARED, &mapped, 0).unwrap();
        map.cast::<u8>().add(200_000).write_volatile(0xFF);
        msync(map, 300_000, MsyncFlags::SYNC).unwrap();
        munmap(map, 300_000).unwrap();
    }
    drop(mapped);
    let check = |fixture: &Fixture| {
        let client = fixture.client();
        for name in ["written", "cut", "emptied", "saved", "removed", "dir/moved", "mapped"] {
            let (file, content) = past(&client, name, at_ns).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(content == original, "{name}");
            assert!(!file.had_other_name);
        }
        // By the name that it has now.
        let (file, content) = past(&client, "folder/elsewhere", at_ns).unwrap();
        assert!(content == original && file.had_other_name);
        let missing = past(&client, "never", at_ns).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::Refused, "{missing}");
        let what = |name: &str| {
            let history = client.history(&ByteString::from(name)).unwrap();
            let moments = history.moments.iter();
            moments
                .filter(|moment| moment.at_ns > at_ns)
                .map(|moment| moment.what)
                .collect::<Vec<_>>()
        };
        assert_eq!(what("written"), [PastEvent::Written]);
        assert_eq!(what("cut"), [PastEvent::Truncated]);
        assert_eq!(what("removed"), [PastEvent::Removed]);
        assert_eq!(what("saved")[0], PastEvent::Replaced);
        assert_eq!(what("folder/elsewhere"), [PastEvent::Written, PastEvent::MovedHere]);
        let history = client.history(&ByteString::from("written")).unwrap();
        assert_eq!(history.moments[0].kept_bytes, 5);
        // The time of a moment brings back what was before it.
        let (_, content) = past(&client, "written", history.moments[0].at_ns).unwrap();
        assert!(content == original);
    };
    check(&fixture);
    // A file that is changed in the last tick before an unmount may have been changed after it,
    // too.
    pause(100);
    fixture.umount();
    fixture.mount();
    check(&fixture);
    // An undone edit can itself be undone.
    let before_ns = now_ns();
    pause(30);
    fs::write(tree.join("emptied"), &original).unwrap();
    assert_eq!(past(&fixture.client(), "emptied", before_ns).unwrap().1, b"new content");
    // Without undo from now on: nothing of the journal may be believed afterwards.
    fixture.umount();
    fixture.undo = None;
    fixture.mount();
    assert!(fixture.client().history(&ByteString::from("written")).is_err());
    fs::write(tree.join("written"), b"not seen").unwrap();
    fixture.umount();
    fixture.undo = Some(options());
    fixture.mount();
    let refused = past(&fixture.client(), "written", at_ns).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
    fixture.umount();
}

/// A backup of the folder while it is not mounted finds changes; so does the undo afterwards.
#[test]
fn undo_does_not_know_changes_found_without_a_mount() {
    let mut fixture = mounted(CacheMode::Exact, |tree| {
        fs::write(tree.join("kept"), b"first").unwrap();
        fs::write(tree.join("touched"), b"first").unwrap();
    });
    pause(30);
    let at_ns = now_ns();
    pause(30);
    fs::write(fixture.tree().join("kept"), b"second").unwrap();
    fs::write(fixture.tree().join("touched"), b"second").unwrap();
    pause(60);
    fixture.umount();
    pause(30);
    fs::write(fixture.tree().join("touched"), b"unseen").unwrap();
    pause(30);
    drop(fixture.unmounted());
    fixture.mount();
    let client = fixture.client();
    assert_eq!(past(&client, "kept", at_ns).unwrap().1, b"first");
    let refused = past(&client, "touched", at_ns).unwrap_err();
    assert!(refused.message.contains("not watched"), "{refused}");
    drop(client);
    fixture.umount();
}

#[test]
fn undo_says_what_preceded_a_change_past_the_mount_is_unknown() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.undo = Some(options());
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    // As a program has it that had it open before the mount.
    let old = File::options().write(true).open(&path).unwrap();
    fixture.mount();
    fixture.umount();
    fixture.mount();
    pause(50);
    let before_ns = now_ns();
    let client = fixture.client();
    assert_eq!(past(&client, "file", before_ns).unwrap().1, vec![1; 100_000]);
    pause(50);
    old.write_all_at(&[2; 10], 50_000).unwrap();
    pause(50);
    let through = File::options().write(true).open(&path).unwrap();
    through.write_all_at(&[3; 10], 0).unwrap();
    drop(through);
    let refused = past(&client, "file", before_ns).map(|(_, content)| content[50_000]);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Refused);
    fixture.umount();
}
