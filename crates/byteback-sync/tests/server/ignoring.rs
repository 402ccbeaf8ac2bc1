//! Ignored files: two machines with real mounts, whose folder says by `.bytebackignore` and
//! `CACHEDIR.TAG` which files are not to be the same on both.

use super::engine::{assert_server_has, content_at, rig};
use super::receiving::{Machine, conflicts, look, settle};
use byteback_host::random::SplitMix64;
use byteback_model::FileId;
use byteback_sync::ignore_rules::{CACHE_TAG_LEN, IgnoreRules, is_cache_tag};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n";

/// The rules of a tree, read by a walk of it.
fn rules_of(dir: &Path) -> IgnoreRules {
    let mut rules = IgnoreRules::default();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let path = directory.as_os_str().as_bytes();
        let text = fs::read(dir.join(&directory).join(".bytebackignore")).ok();
        rules.set_file(path, text.as_deref());
        let tag = fs::read(dir.join(&directory).join("CACHEDIR.TAG")).unwrap_or_default();
        rules.set_cache(path, is_cache_tag(&tag[..tag.len().min(CACHE_TAG_LEN)]));
        if !path.is_empty() && rules.is_ignored(path, true) {
            rules.set_file(path, None);
            continue;
        }
        for entry in fs::read_dir(dir.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(directory.join(entry.file_name()));
            }
        }
    }
    rules
}

type Looked = BTreeMap<PathBuf, (u32, Vec<u8>, i64)>;

/// The nodes of a tree while files may land: those that go meanwhile are left out.
fn glimpse(dir: &Path, below: &Path, looked: &mut Looked) {
    for entry in fs::read_dir(dir.join(below)).into_iter().flatten().flatten() {
        let path = below.join(entry.file_name());
        let Ok(found) = entry.path().symlink_metadata() else {
            continue;
        };
        if found.is_dir() {
            glimpse(dir, &path, looked);
        } else if let Ok(content) = fs::read(entry.path()) {
            looked.insert(path, (found.mode(), content, 0));
        }
    }
}

/// The parts of a tree that are not ignored, and the ignored ones.
fn parts(dir: &Path) -> (Looked, Looked) {
    let rules = rules_of(dir);
    let is_ignored =
        |path: &PathBuf, mode: u32| rules.is_ignored(path.as_os_str().as_bytes(), mode & 0o170_000 == 0o040_000);
    let mut looked = look(dir);
    // Ignored names move the time of their directory, which is not sent.
    let directories = looked.values_mut().filter(|(mode, ..)| mode & 0o170_000 == 0o040_000);
    directories.for_each(|(_, _, mtime)| *mtime = 0);
    looked
        .into_iter()
        .partition(|(path, (mode, ..))| !is_ignored(path, *mode))
}

fn assert_same_but_for_ignored(rig: &Rig, one: &Machine, two: &Machine, what: &str) {
    let reported = |(looked, held): &(Looked, Vec<PathBuf>), (other, _): &(Looked, Vec<PathBuf>)| {
        let is_held = |path: &PathBuf| held.contains(path) && !other.contains_key(path);
        let differs = looked
            .iter()
            .filter(|(path, found)| other.get(*path) != Some(found) && !is_held(path));
        let reported = differs.map(|(path, (mode, content, mtime))| {
            let content = String::from_utf8_lossy(&content[..content.len().min(30)]).into_owned();
            format!("{}: {mode:o} {content:?} {mtime}", path.display())
        });
        reported.collect::<Vec<_>>()
    };
    let [a, b] = [one, two].map(|machine| {
        let (seen, ignored) = parts(&machine.path(""));
        let mut held: Vec<PathBuf> = Vec::new();
        // Directories that exist only for ignored names in them may be missing elsewhere.
        loop {
            let is_held = |path: &PathBuf| {
                ignored.keys().any(|ignored| ignored.starts_with(path))
                    && !seen
                        .keys()
                        .any(|other| other != path && other.starts_with(path) && !held.contains(other))
            };
            let directories = seen.iter().filter(|(_, (mode, ..))| mode & 0o170_000 == 0o040_000);
            let next = { directories }.find(|(path, _)| !held.contains(path) && is_held(path));
            let Some(next) = next.map(|(path, _)| path.clone()) else {
                return (seen, held);
            };
            held.push(next);
        }
    });
    let told_of_rules = || {
        [one, two].map(|machine| {
            let all = look(&machine.path(""));
            let is_rules = |path: &PathBuf| path.ends_with(".bytebackignore");
            let rules = all.iter().filter(|(path, _)| is_rules(path));
            let rules = rules.map(|(path, (_, text, _))| (path.clone(), String::from_utf8_lossy(text).into_owned()));
            (
                all.keys().cloned().collect::<Vec<_>>(),
                rules.collect::<Vec<_>>(),
                machine.status(),
            )
        })
    };
    assert_eq!(
        reported(&a, &b),
        reported(&b, &a),
        "{what}: {:#?}, the server has {:#?}",
        told_of_rules(),
        at_server(rig)
    );
}

/// All paths that the server has.
fn at_server(rig: &Rig) -> Vec<String> {
    let (mut found, mut directories) = (Vec::new(), vec![String::new()]);
    while let Some(directory) = directories.pop() {
        let place = byteback_client::TreePlace::Path(directory.as_bytes());
        let page = rig.client.tree_page(&rig.folder, rig.seq(), place, None).unwrap();
        for entry in page.entries {
            let path = format!("{directory}/{}", entry.name).trim_start_matches('/').to_owned();
            if entry.node.attributes.kind == byteback_model::NodeKind::Directory {
                directories.push(path.clone());
            }
            found.push(format!("{path} {} {}", entry.node.id, entry.node.attributes.mtime_ns));
        }
    }
    found.sort_unstable();
    found
}

/// Whether the server has a path, whatever the machines say.
fn server_has(rig: &Rig, path: &str) -> bool {
    let place = byteback_client::TreePlace::Path(path.as_bytes());
    rig.client.tree_page(&rig.folder, rig.seq(), place, None).is_ok()
}

fn assert_at_server(rig: &Rig, there: &[&str], not_there: &[&str], what: &str) {
    for path in there {
        assert!(server_has(rig, path), "{what}: the server lacks {path}");
    }
    for path in not_there {
        assert!(!server_has(rig, path), "{what}: the server has {path}");
    }
}

fn read(machine: &Machine, path: &str) -> String {
    fs::read_to_string(machine.path(path)).unwrap_or_else(|error| format!("{path}: {error}"))
}

fn restart(machine: &mut Machine) {
    machine.end();
    machine.mount_at_once();
    machine.begin();
}

fn two_machines(rig: &Rig) -> (Machine, Machine) {
    (Machine::started(rig, "one"), Machine::started(rig, "two"))
}

#[test]
fn ignored_files_are_neither_sent_nor_landed_until_rules_go() {
    let rig = rig(301);
    let (mut one, mut two) = two_machines(&rig);
    fs::write(one.path(".bytebackignore"), "*.log\nbuild/\n").unwrap();
    settle(&rig, &[&one, &two], "a rule");
    assert_eq!(read(&two, ".bytebackignore"), "*.log\nbuild/\n");
    fs::create_dir_all(one.path("build/deep")).unwrap();
    fs::write(one.path("build/deep/object"), "of one").unwrap();
    fs::write(one.path("a.log"), "of one").unwrap();
    fs::write(one.path("doc"), "doc").unwrap();
    fs::write(two.path("b.log"), "of two").unwrap();
    settle(&rig, &[&one, &two], "some are ignored");
    assert_at_server(&rig, &["doc"], &["build", "a.log", "b.log"], "some are ignored");
    assert_eq!(read(&two, "doc"), "doc");
    assert!(!two.path("build").exists() && !two.path("a.log").exists() && !one.path("b.log").exists());
    // Changes under ignored names stay ignored, even after a restart.
    restart(&mut one);
    fs::write(one.path("a.log"), "of one, longer").unwrap();
    fs::remove_file(one.path("build/deep/object")).unwrap();
    fs::write(one.path("build/deep/other"), "of one").unwrap();
    settle(&rig, &[&one, &two], "changed");
    assert_at_server(&rig, &["doc"], &["build", "a.log"], "changed");
    // One rule goes, while no engine runs.
    one.end();
    fs::write(one.path(".bytebackignore"), "*.log\n").unwrap();
    one.mount_at_once();
    one.begin();
    settle(&rig, &[&one, &two], "a rule is gone");
    assert_at_server(&rig, &["build/deep/other"], &["a.log", "b.log"], "a rule is gone");
    assert_eq!(read(&two, "build/deep/other"), "of one");
    fs::remove_file(two.path(".bytebackignore")).unwrap();
    settle(&rig, &[&one, &two], "all rules are gone");
    assert_eq!(read(&two, "a.log"), "of one, longer");
    assert_eq!(read(&one, "b.log"), "of two");
    assert_same_but_for_ignored(&rig, &one, &two, "all rules are gone");
    assert_eq!(conflicts(&one.path("")), Vec::<PathBuf>::new());
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.path(""), "at the end");
}

#[test]
fn what_becomes_ignored_stays_everywhere_as_it_is() {
    let rig = rig(302);
    let (mut one, mut two) = two_machines(&rig);
    fs::create_dir_all(one.path("data/sub")).unwrap();
    for name in ["data/same", "data/changed", "data/removed", "data/sub/deep", "x.log"] {
        fs::write(one.path(name), "before").unwrap();
    }
    settle(&rig, &[&one, &two], "before");
    fs::write(two.path(".bytebackignore"), "/data\n*.log\n").unwrap();
    settle(&rig, &[&one, &two], "a rule");
    let frozen = ["data/same", "data/changed", "data/removed", "data/sub/deep", "x.log"];
    for path in frozen {
        assert_eq!(
            (read(&one, path), read(&two, path)),
            ("before".to_owned(), "before".to_owned())
        );
    }
    assert_at_server(&rig, &frozen, &[], "a rule");
    fs::write(one.path("data/changed"), "by one").unwrap();
    fs::write(one.path("data/new"), "by one").unwrap();
    fs::remove_file(one.path("data/removed")).unwrap();
    fs::remove_dir_all(two.path("data/sub")).unwrap();
    fs::remove_file(two.path("x.log")).unwrap();
    fs::write(two.path("data/new too"), "by two").unwrap();
    settle(&rig, &[&one, &two], "changed while it is ignored");
    assert_at_server(
        &rig,
        &frozen,
        &["data/new", "data/new too"],
        "changed while it is ignored",
    );
    restart(&mut two);
    settle(&rig, &[&one, &two], "a restart");
    assert_eq!(read(&two, "data/changed"), "before");
    assert_eq!(read(&one, "x.log"), "before");
    // The rule goes: names only here are sent, names only there come, different ones are a
    // conflict.
    fs::write(one.path(".bytebackignore"), "").unwrap();
    settle(&rig, &[&one, &two], "no rule");
    assert_same_but_for_ignored(&rig, &one, &two, "no rule");
    for path in frozen {
        assert_eq!(read(&one, path), "before", "{path}");
    }
    assert_eq!(
        (read(&one, "data/new"), read(&one, "data/new too")),
        ("by one".to_owned(), "by two".to_owned())
    );
    let found = conflicts(&two.path(""));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(fs::read(two.path("").join(&found[0])).unwrap(), b"by one");
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.path(""), "at the end");
}

#[test]
fn ignored_file_renamed_over_another_is_sent_whole_and_right() {
    let rig = rig(303);
    let (mut one, mut two) = two_machines(&rig);
    let mut random = SplitMix64::new(4);
    fs::write(one.path(".bytebackignore"), "*.tmp\ncache/\n").unwrap();
    let mut document = random.bytes(200_000);
    fs::write(one.path("doc"), &document).unwrap();
    settle(&rig, &[&one, &two], "before");
    for (round, is_waited_for) in [false, true, false, true].into_iter().enumerate() {
        let what = format!("round {round}");
        document[1000 * round..][..500].copy_from_slice(&random.bytes(500));
        fs::write(one.path("doc.tmp"), &document).unwrap();
        if is_waited_for {
            settle(&rig, &[&one, &two], &what);
            let file = File::options().write(true).open(one.path("doc.tmp")).unwrap();
            file.write_all_at(b"once more", 70_000).unwrap();
            document[70_000..70_009].copy_from_slice(b"once more");
        }
        fs::rename(one.path("doc.tmp"), one.path("doc")).unwrap();
        settle(&rig, &[&one, &two], &what);
        assert!(fs::read(two.path("doc")).unwrap() == document, "{what}");
        assert_at_server(&rig, &[], &["doc.tmp"], &what);
    }
    // Out of an ignored directory, and a whole one; and into one.
    fs::create_dir_all(one.path("cache/sub/deep")).unwrap();
    fs::write(one.path("cache/file"), "file").unwrap();
    fs::write(one.path("cache/sub/deep/file"), "deep").unwrap();
    settle(&rig, &[&one, &two], "a cache");
    fs::rename(one.path("cache/file"), one.path("file")).unwrap();
    fs::rename(one.path("cache/sub"), one.path("sub")).unwrap();
    settle(&rig, &[&one, &two], "out of it");
    assert_eq!(
        (read(&two, "file"), read(&two, "sub/deep/file")),
        ("file".to_owned(), "deep".to_owned())
    );
    fs::rename(one.path("doc"), one.path("doc.tmp")).unwrap();
    fs::rename(one.path("sub"), one.path("cache/sub")).unwrap();
    settle(&rig, &[&one, &two], "into it");
    assert!(!two.path("doc").exists() && !two.path("sub").exists() && !two.path("cache").exists());
    assert!(fs::read(one.path("doc.tmp")).unwrap() == document);
    assert_at_server(&rig, &["file"], &["doc", "sub", "cache", "doc.tmp"], "into it");
    fs::write(one.path("cache/sub/deep/file"), "changed in it").unwrap();
    settle(&rig, &[&one, &two], "changed in it");
    fs::rename(one.path("cache/sub"), one.path("sub")).unwrap();
    settle(&rig, &[&one, &two], "and back");
    assert_eq!(read(&two, "sub/deep/file"), "changed in it");
    assert_same_but_for_ignored(&rig, &one, &two, "at the end");
    one.end();
    two.end();
}

#[test]
fn directory_removed_by_others_stays_for_its_ignored_files() {
    let rig = rig(304);
    let (mut one, mut two) = two_machines(&rig);
    fs::write(one.path(".bytebackignore"), "*.o\n").unwrap();
    fs::create_dir_all(one.path("src/sub")).unwrap();
    fs::write(one.path("src/sub/a.c"), "a").unwrap();
    settle(&rig, &[&one, &two], "before");
    fs::write(two.path("src/sub/a.o"), "object").unwrap();
    settle(&rig, &[&one, &two], "an object");
    assert_at_server(&rig, &["src/sub/a.c"], &["src/sub/a.o"], "an object");
    fs::remove_dir_all(one.path("src")).unwrap();
    settle(&rig, &[&one, &two], "removed");
    assert!(!one.path("src").exists() && !two.path("src/sub/a.c").exists());
    assert_eq!(read(&two, "src/sub/a.o"), "object", "{:?}", look(&two.path("")).keys());
    assert_at_server(&rig, &[], &["src"], "removed");
    restart(&mut two);
    two.give_up();
    settle(&rig, &[&one, &two], "a restart");
    assert_at_server(&rig, &[], &["src"], "a restart");
    fs::write(two.path("src/sub/b.c"), "b").unwrap();
    settle(&rig, &[&one, &two], "something else in it");
    assert_eq!(read(&one, "src/sub/b.c"), "b");
    assert!(!one.path("src/sub/a.o").exists());
    assert_same_but_for_ignored(&rig, &one, &two, "at the end");
    one.end();
    two.end();
}

#[test]
fn a_cache_and_a_file_with_two_names_and_rules_in_directories() {
    let rig = rig(305);
    let (mut one, mut two) = two_machines(&rig);
    fs::create_dir_all(one.path("a/cache")).unwrap();
    fs::write(one.path("a/cache/CACHEDIR.TAG"), TAG).unwrap();
    fs::write(one.path("a/cache/big"), "big").unwrap();
    fs::write(one.path("a/.bytebackignore"), "/x\n").unwrap();
    fs::write(one.path("a/x"), "x").unwrap();
    fs::write(one.path("x"), "x").unwrap();
    settle(&rig, &[&one, &two], "a cache");
    // It may have been seen before its tag was there.
    assert!(two.path("x").exists() && !two.path("a/x").exists() && !two.path("a/cache/CACHEDIR.TAG").exists());
    fs::hard_link(one.path("x"), one.path("a/x too")).unwrap();
    fs::remove_file(one.path("a/x")).unwrap();
    fs::hard_link(one.path("x"), one.path("a/x")).unwrap();
    settle(&rig, &[&one, &two], "linked");
    assert!(two.path("a/x too").exists() && !two.path("a/x").exists());
    fs::write(one.path("a/x"), "by its ignored name").unwrap();
    settle(&rig, &[&one, &two], "written");
    assert_eq!(read(&two, "x"), "by its ignored name");
    fs::remove_file(one.path("a/x too")).unwrap();
    fs::remove_file(two.path("x")).unwrap();
    settle(&rig, &[&one, &two], "only the ignored name is left");
    assert!(!one.path("x").exists());
    assert_eq!(read(&one, "a/x"), "by its ignored name");
    fs::write(one.path("a/x"), "still").unwrap();
    settle(&rig, &[&one, &two], "written again");
    fs::rename(one.path("a"), one.path("b")).unwrap();
    settle(&rig, &[&one, &two], "moved");
    assert!(two.path("b").exists() && !two.path("b/x").exists());
    fs::remove_file(one.path("b/.bytebackignore")).unwrap();
    fs::remove_file(one.path("b/cache/CACHEDIR.TAG")).unwrap();
    settle(&rig, &[&one, &two], "no rules");
    assert_eq!(
        (read(&two, "b/x"), read(&two, "b/cache/big")),
        ("still".to_owned(), "big".to_owned())
    );
    assert_same_but_for_ignored(&rig, &one, &two, "at the end");
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.path(""), "at the end");
}

#[test]
fn who_joins_does_not_send_what_the_folder_ignores() {
    let rig = rig(306);
    let mut one = Machine::started(&rig, "one");
    fs::write(one.path(".bytebackignore"), "*.log\n").unwrap();
    fs::write(one.path("doc"), "doc").unwrap();
    fs::write(one.path("a.log"), "of one").unwrap();
    settle(&rig, &[&one], "one");
    let mut two = Machine::new(&rig, "two");
    fs::write(two.path("a.log"), "of two").unwrap();
    fs::write(two.path("doc"), "doc").unwrap();
    fs::write(two.path("own"), "own").unwrap();
    two.mount_at_once();
    two.begin();
    settle(&rig, &[&one, &two], "two has joined");
    assert_at_server(&rig, &["doc", "own"], &["a.log"], "two has joined");
    assert_eq!(
        (read(&one, "a.log"), read(&two, "a.log")),
        ("of one".to_owned(), "of two".to_owned())
    );
    assert_same_but_for_ignored(&rig, &one, &two, "two has joined");
    one.end();
    two.end();
}

/// A change by a program, often to names that are ignored, or may be soon.
fn act(dir: &Path, random: &mut SplitMix64, who: &str) {
    let name = |random: &mut SplitMix64| {
        let file = ["a", "b", "a.log", "b.log", "x.tmp", "y.tmp"][random.below(6) as usize];
        let directory = ["", "", "d", "e", "build", "d/build"][random.below(6) as usize];
        Path::new(directory).join(file)
    };
    let directory =
        |random: &mut SplitMix64| ["d", "e", "build", "d/build", "e/build", "out"][random.below(6) as usize];
    let (path, other) = (dir.join(name(random)), dir.join(name(random)));
    let bytes = format!("{who} {}", random.below(1 << 40)).repeat(1 + random.below(300) as usize);
    let kind = random.below(16);
    let _ = match kind {
        0..4 => fs::write(&path, bytes),
        4 => File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(who.as_bytes(), random.below(9000))),
        5 | 6 => fs::create_dir(dir.join(directory(random))),
        7..9 => fs::rename(&path, &other),
        9 => fs::remove_file(&path),
        // If a file has several names, one that was ignored may stay where it was: see the README's
        // limits. On demand only, until that is mended.
        10 if std::env::var_os("BYTEBACK_LINKS").is_some() => fs::hard_link(&path, &other),
        10 => fs::rename(&path, &other),
        11 => fs::rename(dir.join(directory(random)), dir.join(directory(random))),
        12 => match random.below(3) {
            0 => fs::remove_dir_all(dir.join(directory(random))),
            _ => fs::write(dir.join("new.tmp"), bytes).and_then(|()| fs::rename(dir.join("new.tmp"), &path)),
        },
        _ => {
            let at = ["", "", "d", "e"][random.below(4) as usize];
            let at = dir.join(at).join(".bytebackignore");
            let mut text = String::new();
            for pattern in ["*.log\n", "*.tmp\n", "build/\n", "/d\n", "/a\n", "b*\n", "!a.log\n"] {
                if random.below(4) == 0 {
                    text.push_str(pattern);
                }
            }
            match random.below(5) {
                0 => fs::remove_file(at),
                1 => fs::rename(
                    at,
                    dir.join(["", "d", "e"][random.below(3) as usize])
                        .join(".bytebackignore"),
                ),
                _ => fs::write(at, text),
            }
        }
    };
}

/// The contents of a tree that name their writer, with everything that was written there later.
fn contents(looked: &Looked) -> Vec<&[u8]> {
    let files = looked.values().filter(|(mode, ..)| mode & 0o170_000 == 0o100_000);
    files.map(|(_, content, _)| content.as_slice()).collect()
}

/// The nodes of a tree: looked at until two looks are the same, as a file that is just landing
/// holds a content that was never written.
fn still(machine: &Machine) -> Looked {
    let mut last = Looked::new();
    loop {
        let mut looked = Looked::new();
        glimpse(&machine.path(""), Path::new(""), &mut looked);
        if looked == last {
            return looked;
        }
        last = looked;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn random_lives(first: u64, lives: u64, rounds: u64) {
    let lives = std::env::var("BYTEBACK_LIVES").map_or(lives, |lives| lives.parse().unwrap());
    for life in 0..lives {
        let seed = first + life;
        if std::env::var_os("BYTEBACK_LIVES").is_some() {
            eprintln!("BYTEBACK_SEED={seed}");
        }
        let mut random = SplitMix64::new(seed);
        let rig = rig(seed);
        let mut machines = [Machine::new(&rig, "one"), Machine::new(&rig, "two")];
        for machine in &mut machines {
            for _ in 0..random.below(12) {
                act(&machine.path(""), &mut random, "before");
            }
            machine.mount(&mut random);
            machine.begin();
        }
        for round in 0..rounds {
            let what = format!("BYTEBACK_SEED={seed}, round {round}");
            for (machine, who) in machines.iter().zip(["one", "two"]) {
                for _ in 0..random.below(6) {
                    act(&machine.path(""), &mut random, who);
                }
            }
            let at = random.below(2) as usize;
            match random.below(8) {
                0 if machines[at].is_sending() => machines[at].stop(),
                0..2 if !machines[at].is_sending() => machines[at].begin(),
                2 => {
                    machines[at].end();
                    for _ in 0..random.below(4) {
                        act(&machines[at].path(""), &mut random, "while it was away");
                    }
                    machines[at].mount(&mut random);
                    machines[at].begin();
                }
                3 => machines[at].give_up(),
                4 | 5 => {
                    machines
                        .iter_mut()
                        .filter(|machine| !machine.is_sending())
                        .for_each(Machine::begin);
                    // No program changes anything from here on: ignored files stay as they are.
                    let before = machines.each_ref().map(still);
                    settle(&rig, &[&machines[0], &machines[1]], &what);
                    assert_same_but_for_ignored(&rig, &machines[0], &machines[1], &what);
                    nothing_is_lost(&rig, &machines, &before, &what);
                }
                _ => std::thread::sleep(std::time::Duration::from_millis(random.below(20))),
            }
        }
        let what = format!("BYTEBACK_SEED={seed}, at the end");
        machines
            .iter_mut()
            .filter(|machine| !machine.is_sending())
            .for_each(Machine::begin);
        settle(&rig, &[&machines[0], &machines[1]], &what);
        assert_same_but_for_ignored(&rig, &machines[0], &machines[1], &what);
        // Without any rule everything comes together.
        for machine in &machines {
            for at in ["", "d", "e", "build", "out", "d/build", "e/build"] {
                let _ = fs::remove_file(machine.path(at).join(".bytebackignore"));
            }
        }
        let before = machines.each_ref().map(still);
        settle(&rig, &[&machines[0], &machines[1]], &what);
        let is_left = |machine: &Machine| {
            look(&machine.path(""))
                .keys()
                .any(|path| path.ends_with(".bytebackignore"))
        };
        if !machines.iter().any(is_left) {
            assert_same_but_for_ignored(&rig, &machines[0], &machines[1], &what);
            nothing_is_lost(&rig, &machines, &before, &what);
        }
        machines.iter_mut().for_each(Machine::end);
        if !machines.iter().any(is_left) {
            assert_server_has(&rig, &rig.folder, &machines[0].path(""), &what);
        }
    }
}

/// Whether any version of any file at the server holds this.
fn was_at_server(rig: &Rig, content: &[u8]) -> bool {
    for seq in (1..=rig.seq()).rev() {
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let place = byteback_client::TreePlace::Path(directory.as_bytes());
            let page = rig.client.tree_page(&rig.folder, seq, place, None).unwrap();
            for entry in page.entries {
                let attributes = &entry.node.attributes;
                let path = format!("{directory}/{}", entry.name).trim_start_matches('/').to_owned();
                match attributes.kind {
                    byteback_model::NodeKind::Directory => directories.push(path),
                    byteback_model::NodeKind::File
                        if attributes.size == content.len() as u64
                            && content_at(rig, path.as_bytes(), seq) == content =>
                    {
                        return true;
                    }
                    _ => {}
                }
            }
        }
    }
    false
}

/// Every content of a tree is still in it, or in a version at the server.
fn nothing_is_lost(rig: &Rig, machines: &[Machine; 2], before: &[Looked; 2], what: &str) {
    for (machine, before) in machines.iter().zip(before) {
        let now = look(&machine.path(""));
        let held = contents(&now);
        for (path, (mode, content, _)) in before {
            let is_file = mode & 0o170_000 == 0o100_000;
            // A landing file is at the server as a whole, and here in part.
            let is_on_its_way = path.to_string_lossy().starts_with(".byteback-landing-");
            assert!(
                !is_file || is_on_its_way || held.contains(&content.as_slice()) || was_at_server(rig, content),
                "{what}: {} of {} is nowhere",
                path.display(),
                machine.path("").display()
            );
        }
    }
}

#[test]
fn machines_agree_on_what_is_not_ignored_as_rules_change() {
    random_lives(seed(310), 3, 30);
}

#[test]
fn an_identity_that_is_withheld_is_no_origin() {
    use byteback_host::sim::SimDisk;
    use byteback_model::NodeId;
    use byteback_oplog::TreeId;
    use byteback_sync::identities::{Identities, Withheld};
    let disk = SimDisk::new(1);
    let mut map = Identities::open(std::sync::Arc::new(disk.clone()), TreeId(3)).unwrap();
    map.change(&[Withheld::Holding.bound(NodeId(7), FileId(9))]).unwrap();
    let map = Identities::open(std::sync::Arc::new(disk), TreeId(3)).unwrap();
    assert_eq!(
        (map.origin_of(NodeId(7)), map.withheld(NodeId(7))),
        (None, Some(Withheld::Holding))
    );
    assert!(!map.has_unsent() && map.unsent().is_empty());
    assert_eq!(map.all_withheld().collect::<Vec<_>>(), [NodeId(7)]);
}
