//! Other programs, fed by `changes` and `consumers` alone: the copies that they make from the lists
//! must equal the folder.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use byteback_host::random::{SplitMix64, noise};
use byteback_testkit::command::{in_place_of, run_by};
use byteback_testkit::local_tree::{Entry, differences, first_difference, seen};
use byteback_testkit::seed::{Draw, fresh_seed, rounds};
use byteback_testkit::waiting::settle;

use crate::world::World;

/// A folder that is tracked and not bound to a server.
fn tracked() -> World {
    let world = World::new();
    world.on_tree("mount", &[]).ends_with(0);
    world
}

/// Runs a program in a directory with the given standard input; it must succeed.
#[track_caller]
fn tool(directory: &Path, name: &str, arguments: &[&OsStr], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(name)
        .args(arguments)
        .current_dir(directory)
        .env("RESTIC_PASSWORD", "test")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot run {name}, which these tests need (scripts/install-dependencies): {error}")
        });
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{name} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

fn words<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

/// The bytes that a command prints, which need not be text.
#[track_caller]
fn printed(world: &World, arguments: &[&str]) -> Vec<u8> {
    let output = world.command(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {stderr}");
    output.stdout
}

#[track_caller]
fn list(world: &World, consumer: &str, format: &str) -> Vec<u8> {
    let tree = world.tree();
    let tree = tree.to_str().unwrap();
    printed(
        world,
        &["changes", tree, "--consumer", consumer, "--format", format, "-0"],
    )
}

fn paths(list: &[u8]) -> BTreeSet<PathBuf> {
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| PathBuf::from(OsString::from_vec(name.strip_prefix(b"./").unwrap().to_vec())))
        .collect()
}

fn begin(world: &World, consumer: &str) -> String {
    let tree = world.tree();
    world
        .run(&["consumers", "begin", consumer, tree.to_str().unwrap()])
        .fine()
        .stdout
        .trim()
        .to_owned()
}

fn done(world: &World, consumer: &str, epoch: &str) {
    let tree = world.tree();
    world
        .run(&["consumers", "done", consumer, epoch, tree.to_str().unwrap()])
        .fine();
}

/// Names that lists and shells easily get wrong.
const ODD_NAMES: [&[u8]; 12] = [
    b"#comment",
    b";comment",
    b"-rf",
    b"--delete",
    b"!not",
    b"  spaces  ",
    b"star*",
    b"[a-z]?",
    b"new\nline",
    b"back\\slash\\n",
    b"\xff\xfe",
    b"$(true) 'quoted' \"twice\"",
];

/// Makes one random change of a tree, as any program might.
fn change(root: &Path, random: &mut SplitMix64) {
    let all = seen(root);
    let pick = |random: &mut SplitMix64, wanted: &dyn Fn(&Entry) -> bool| -> Option<PathBuf> {
        let some: Vec<_> = all
            .iter()
            .filter(|(path, entry)| wanted(entry) && !path.as_os_str().is_empty())
            .collect();
        (!some.is_empty()).then(|| root.join(some[random.index(some.len())].0))
    };
    let directories: Vec<_> = all.iter().filter(|(_, entry)| entry.is_dir()).collect();
    let directory = root.join(directories[random.index(directories.len())].0);
    let name = match random.below(4) {
        0 => OsStr::from_bytes(ODD_NAMES[random.index(ODD_NAMES.len())]).to_owned(),
        _ => format!("name {}", random.below(20)).into(),
    };
    let new = directory.join(name);
    let file = pick(random, &|entry| entry.is_file());
    let any = pick(random, &|_| true);
    let bytes = noise(random.next_u64(), random.index(20_000));
    // Impossible changes (a directory that is not empty, a name below itself) simply fail.
    let _ = match (random.below(13), file, any) {
        (0 | 1, _, _) => fs::write(&new, &bytes),
        (2, _, _) => fs::create_dir(&new),
        (3, _, _) => symlink("to somewhere", &new),
        (4 | 5, Some(file), _) => fs::OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|file| file.write_all_at(&bytes[..bytes.len().min(100)], random.below(30_000))),
        (6, Some(file), _) => fs::hard_link(file, &new),
        (7 | 8, _, Some(any)) => fs::rename(any, &new),
        (9, Some(file), _) => fs::remove_file(file),
        (10, _, Some(any)) if any.is_dir() && !any.is_symlink() => fs::remove_dir_all(&any).and_then(|()| {
            if random.chance(50) {
                fs::write(&any, &bytes)
            } else {
                Ok(())
            }
        }),
        (10, Some(file), _) => fs::remove_file(&file)
            .and_then(|()| fs::create_dir(&file))
            .and_then(|()| fs::write(file.join("below"), &bytes)),
        (11, Some(file), _) => fs::set_permissions(file, fs::Permissions::from_mode(0o600 + random.below(64) as u32)),
        (12, _, Some(any)) => rustix::fs::renameat_with(
            rustix::fs::CWD,
            any,
            rustix::fs::CWD,
            &directory,
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .map_err(Into::into),
        _ => Ok(()),
    };
}

fn remove_listed(copy: &Path, gone: &[u8]) {
    tool(copy, "xargs", &words(&["-0", "-r", "rm", "-rf", "--"]), gone);
}

/// Asserts that the copy equals the folder, except for times of directories, which rsync does not
/// keep with a list, and those of some links.
#[track_caller]
fn assert_same(world: &World, copy: &Path, what: &str) {
    let (mut tree, mut copy) = (seen(&world.tree()), seen(copy));
    for entry in tree.values_mut().chain(copy.values_mut()) {
        if !entry.is_file() {
            entry.mtime = (0, 0);
        }
    }
    let differing = differences(&tree, &copy, true);
    assert!(differing.is_empty(), "{what}: {differing:#?}");
}

#[test]
fn a_copy_that_rsync_keeps_by_the_lists_is_the_folder() {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let copy = world.path("copy");
    fs::create_dir(&copy).unwrap();
    let source = world.tree().join("");
    for round in 0..rounds(10) {
        for _ in 0..1 + random.below(25) {
            change(&world.tree(), &mut random);
        }
        let epoch = begin(&world, "mirror");
        remove_listed(&copy, &list(&world, "mirror", "removed"));
        let paths = list(&world, "mirror", "paths");
        // -I: by default rsync takes files of the same length and second for equal.
        let mut arguments = words(&["-aHAXI", "--from0", "--files-from=-"]);
        arguments.extend([source.as_os_str(), copy.as_os_str()]);
        tool(&copy, "rsync", &arguments, &paths);
        done(&world, "mirror", &epoch);
        assert_same(&world, &copy, &format!("seed {seed}, round {round}"));
    }
}

#[test]
fn directory_that_was_copied_after_begin_and_moved_is_removed() {
    let world = tracked();
    let tree = world.tree();
    done(&world, "mirror", &begin(&world, "mirror"));
    let epoch = begin(&world, "mirror");
    // The mark that 'done' sets does not include the directory, but the copy made now has it.
    fs::create_dir(tree.join("name")).unwrap();
    fs::write(tree.join("name/file"), "content").unwrap();
    assert!(paths(&list(&world, "mirror", "paths")).contains(Path::new("name/file")));
    done(&world, "mirror", &epoch);
    fs::rename(tree.join("name"), tree.join("moved")).unwrap();
    fs::write(tree.join("name"), "a file").unwrap();
    let gone = paths(&list(&world, "mirror", "removed"));
    assert!(gone.contains(Path::new("name")), "{gone:?}");
}

#[test]
fn tar_archives_of_the_lists_unpacked_in_order_are_the_folder() {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let copy = world.path("copy");
    fs::create_dir(&copy).unwrap();
    for round in 0..rounds(6) {
        for _ in 0..1 + random.below(25) {
            change(&world.tree(), &mut random);
        }
        let epoch = begin(&world, "nightly");
        let gone = list(&world, "nightly", "removed");
        let paths = list(&world, "nightly", "paths");
        let pack = words(&[
            "--format=posix",
            "--xattrs",
            "--null",
            "--no-recursion",
            "-T",
            "-",
            "-c",
        ]);
        let archive = tool(&world.tree(), "tar", &pack, &paths);
        done(&world, "nightly", &epoch);
        remove_listed(&copy, &gone);
        tool(&copy, "tar", &words(&["--xattrs", "-xpf", "-"]), &archive);
        // Unpacking changes the times of directories above the packed ones.
        let differing = differences(&seen(&world.tree()), &seen(&copy), false);
        assert!(differing.is_empty(), "seed {seed}, round {round}: {differing:#?}");
    }
}

/// The files below a directory that a program opened for reading, as the kernel saw it.
fn opened(trace: &Path, below: &Path) -> BTreeSet<PathBuf> {
    let mut opened = BTreeSet::new();
    // read(3</path/of/file>, ...
    for line in fs::read_to_string(trace).unwrap().lines() {
        let path = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        if let Some((path, _)) = path
            && let Ok(path) = Path::new(path).strip_prefix(below)
        {
            opened.insert(path.to_owned());
        }
    }
    opened
}

const TRACE: [&str; 6] = ["-f", "-qq", "-y", "-e", "trace=read,pread64,readv,preadv,mmap", "-o"];

#[test]
fn restic_and_rsync_read_just_the_listed_files() {
    let world = tracked();
    let tree = world.tree();
    fs::create_dir(tree.join("directory")).unwrap();
    for number in 0..20 {
        fs::write(tree.join(format!("directory/{number}")), noise(number, 10_000)).unwrap();
    }
    for name in ODD_NAMES {
        fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (copy, repository, first) = (world.path("copy"), world.path("restic"), world.path("first"));
    fs::create_dir(&copy).unwrap();
    let restic = |arguments: &[&str], input: &[u8]| {
        let mut all = words(&["-q", "--no-cache", "-r"]);
        all.push(repository.as_os_str());
        all.extend(words(arguments));
        tool(&tree, "restic", &all, input)
    };
    restic(&["init"], b"");
    let epoch = begin(&world, "restic");
    restic(&["backup", "--files-from-raw", "-"], &list(&world, "restic", "files"));
    done(&world, "restic", &epoch);
    let source = tree.join("");
    let rsync = |list: &[u8], before: &[&OsStr]| {
        let mut all = before.to_vec();
        all.extend(words(&["rsync", "-aI", "--from0", "--files-from=-"]));
        all.extend([source.as_os_str(), copy.as_os_str()]);
        tool(&tree, all[0].to_str().unwrap(), &all[1..], list);
    };
    rsync(&list(&world, "rsync", "paths"), &[]);

    let mut changed: BTreeSet<PathBuf> = ["directory/3", "directory/new"].map(PathBuf::from).into();
    fs::write(tree.join("directory/3"), noise(33, 9_000)).unwrap();
    fs::write(tree.join("directory/new"), "new").unwrap();
    fs::rename(tree.join("directory/4"), tree.join("renamed")).unwrap();
    changed.insert("renamed".into());
    for name in &ODD_NAMES {
        fs::write(tree.join(OsStr::from_bytes(name)), b"changed").unwrap();
        changed.insert(OsStr::from_bytes(name).into());
    }
    fs::remove_file(tree.join("directory/5")).unwrap();

    let epoch = begin(&world, "restic");
    let files = list(&world, "restic", "files");
    assert_eq!(paths(&files), changed);
    let gone = list(&world, "restic", "removed");
    assert_eq!(paths(&gone), ["directory/4", "directory/5"].map(PathBuf::from).into());
    // Whether a moved but unchanged file is read is up to the programs: rsync copies it, restic
    // saves it.
    let trace = world.path("restic.trace");
    let mut all = words(&TRACE);
    all.extend([trace.as_os_str(), OsStr::new("restic")]);
    all.extend(words(&["-q", "--no-cache", "-r"]));
    all.extend([repository.as_os_str()]);
    all.extend(words(&["backup", "--files-from-raw", "-"]));
    tool(&tree, "strace", &all, &files);
    done(&world, "restic", &epoch);
    let read = opened(&trace, &tree);
    let is_listed = |path: &PathBuf| {
        // strace escapes bytes that are not printable.
        let shown = path.to_str().is_some_and(|path| path.contains('\\'));
        shown || changed.contains(path) || path.as_os_str().is_empty() || path == Path::new("directory")
    };
    assert!(read.iter().all(is_listed), "restic read {read:?}");
    assert!(read.contains(Path::new("directory/3")), "{read:?}");

    let trace = world.path("rsync.trace");
    let mut strace = words(&["strace"]);
    strace.extend(words(&TRACE));
    strace.push(trace.as_os_str());
    remove_listed(&copy, &gone);
    rsync(&list(&world, "restic", "paths"), &strace);
    // The list was made after 'done': nothing was left to do.
    assert!(opened(&trace, &tree).iter().all(|path| path.as_os_str().is_empty()));
    remove_listed(&copy, &gone);
    rsync(&list(&world, "rsync", "paths"), &[]);
    assert_same(&world, &copy, "rsync");

    // The content of both restic snapshots, one over the other, without the removed files.
    let shown = tool(
        &tree,
        "restic",
        &{
            let mut all = words(&["-q", "--no-cache", "-r"]);
            all.push(repository.as_os_str());
            all.extend(words(&["snapshots", "--json"]));
            all
        },
        b"",
    );
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let ids: Vec<&str> = shown
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["short_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 2);
    for (number, id) in ids.iter().enumerate() {
        restic(&["restore", id, "--target", first.to_str().unwrap()], b"");
        if number == 0 {
            remove_listed(&first, &gone);
        }
    }
    // The folder itself is not in the list.
    fs::set_permissions(&first, fs::metadata(&tree).unwrap().permissions()).unwrap();
    let differing = differences(&seen(&tree), &seen(&first), false);
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn a_list_by_lines_refuses_a_name_with_a_newline() {
    let world = tracked();
    fs::write(world.tree().join("plain"), "x").unwrap();
    let by_lines = ["--consumer", "c", "--format", "files"];
    let listed = world.on_tree("changes", &by_lines).fine();
    assert_eq!(listed.stdout, "./plain\n");
    fs::write(world.tree().join("new\nline"), "x").unwrap();
    world
        .on_tree("changes", &by_lines)
        .ends_with(1)
        .says("new\\nline contains a newline")
        .says("Use -0");
    assert_eq!(list(&world, "c", "files").iter().filter(|byte| **byte == 0).count(), 2);
    world
        .on_tree("changes", &["--consumer", "c", "-0"])
        .ends_with(1)
        .says("--format");
    world
        .on_tree("changes", &["--consumer", "c", "--format", "files", "--json"])
        .ends_with(1)
        .says("works only with --format text");
    world.on_tree("changes", &[]).ends_with(1).says("--consumer NAME");
}

#[test]
fn marks_move_to_the_moment_that_was_begun_and_to_no_other() {
    let world = tracked();
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    let listed = |consumer: &str| paths(&list(&world, consumer, "files"));
    let names = |names: &[&str]| -> BTreeSet<PathBuf> { names.iter().map(PathBuf::from).collect() };
    fs::write(tree.join("one"), "1").unwrap();
    let first = begin(&world, "a");
    // A change after the moment is in this run's list, and again in the next one's.
    fs::write(tree.join("two"), "2").unwrap();
    assert_eq!(listed("a"), names(&["one", "two"]));
    done(&world, "a", &first);
    assert_eq!(listed("a"), names(&["two"]));
    // A repeated 'done' has no further effect.
    done(&world, "a", &first);
    // Another consumer is not affected, and has seen nothing.
    assert_eq!(listed("b"), names(&["one", "two"]));

    // A run that died: its moment is replaced, nothing is lost.
    let dead = begin(&world, "a");
    fs::write(tree.join("three"), "3").unwrap();
    let next = begin(&world, "a");
    world
        .run(&["consumers", "done", "a", &dead, dir])
        .ends_with(1)
        .says("another run has begun");
    assert_eq!(listed("a"), names(&["two", "three"]));
    done(&world, "a", &next);
    assert_eq!(listed("a"), names(&[]));
    world
        .run(&["consumers", "done", "a", "@4711", dir])
        .ends_with(1)
        .says("was not moved");
    world
        .run(&["consumers", "done", "a", "yesterday", dir])
        .ends_with(2)
        .says("is not an epoch");
    world
        .run(&["consumers", "done", "nobody", "@1", dir])
        .ends_with(1)
        .says("no consumer 'nobody'");
    for name in ["", "backup:x", "a\nb"] {
        world.run(&["consumers", "begin", name, dir]).ends_with(2);
    }

    // The daemon ends in between: the begun moment is in the log.
    fs::write(tree.join("four"), "4").unwrap();
    let kept = begin(&world, "a");
    world.on_tree("umount", &[]).fine();
    world.on_tree("mount", &[]).ends_with(0);
    fs::write(tree.join("five"), "5").unwrap();
    done(&world, "a", &kept);
    // A write shortly before the unmount may be listed once more.
    let (surely, maybe) = (names(&["five"]), names(&["four", "five"]));
    assert!(
        surely.is_subset(&listed("a")) && listed("a").is_subset(&maybe),
        "{:?}",
        listed("a")
    );
    // Since an epoch instead of the mark; for an unknown epoch everything is listed.
    let since = |epoch: &str| {
        let printed = printed(
            &world,
            &[
                "changes",
                dir,
                "--consumer",
                "x",
                "--since",
                epoch,
                "--format",
                "files",
                "-0",
            ],
        );
        paths(&printed)
    };
    assert!(since(&kept).is_subset(&maybe));
    assert_eq!(since("@99999"), names(&["one", "two", "three", "four", "five"]));
    let shown = world.run(&["consumers", dir, "--json"]).fine();
    assert_eq!(format!("@{}", shown.line("consumer")["mark"]), kept);
}

/// The file that the stock rdiff makes from an old content and a delta.
#[track_caller]
fn patched(world: &World, old: &Path, delta: &Path) -> Vec<u8> {
    let new = world.path("patched");
    let _ = fs::remove_file(&new);
    let arguments = [OsStr::new("patch"), old.as_os_str(), delta.as_os_str(), new.as_os_str()];
    tool(&world.tree(), "rdiff", &arguments, b"");
    fs::read(new).unwrap()
}

#[track_caller]
fn export(world: &World, name: &str, consumer: &str, delta: &Path) -> serde_json::Value {
    let file = world.tree().join(name);
    let arguments = [
        "export-delta",
        file.to_str().unwrap(),
        "--consumer",
        consumer,
        "--json",
        "-o",
    ];
    let mut arguments = arguments.to_vec();
    arguments.push(delta.to_str().unwrap());
    world.run(&arguments).fine().line("summary")
}

#[test]
fn rdiff_makes_the_file_of_an_old_copy_and_the_exported_delta() {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let (old, delta) = (world.path("old"), world.path("delta"));
    let path = world.tree().join("file");
    fs::write(&old, b"").unwrap();
    fs::write(&path, noise(seed, 300_000)).unwrap();
    let mut literal_bytes = 0;
    for round in 0..rounds(15) {
        // The first export has everything.
        let changes = if round == 0 { 0 } else { random.below(8) };
        for _ in 0..changes {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            let len = file.metadata().unwrap().len();
            let bytes = noise(random.next_u64(), 1 + random.index(3000));
            match random.below(12) {
                0..=5 => file.write_all_at(&bytes, random.below(len + 1)).unwrap(),
                6 => file.write_all_at(&bytes, len + random.below(200_000)).unwrap(),
                7 => file.set_len(random.below(len + 1)).unwrap(),
                8 => file.set_len(len + random.below(100_000)).unwrap(),
                9 | 10 => {
                    let (mode, at) = (rustix::fs::FallocateFlags::PUNCH_HOLE, random.below(len + 1));
                    let mode = mode | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, mode, at, 1 + random.below(100_000)).unwrap();
                }
                // As editors save: another file takes the name.
                _ => {
                    fs::write(world.tree().join("temporary"), &bytes).unwrap();
                    fs::rename(world.tree().join("temporary"), &path).unwrap();
                }
            }
        }
        let epoch = begin(&world, "d");
        let report = export(&world, "file", "d", &delta);
        let new = patched(&world, &old, &delta);
        let differs = first_difference(&fs::read(&path).unwrap(), &new);
        assert_eq!(differs, None, "seed {seed}, round {round}: {report}");
        assert_eq!(
            report["delta_bytes"].as_u64().unwrap(),
            fs::metadata(&delta).unwrap().len()
        );
        assert_eq!(report["whole_because"] == "no_mark", round == 0, "{report}");
        literal_bytes += report["literal_bytes"].as_u64().unwrap();
        done(&world, "d", &epoch);
        fs::write(&old, new).unwrap();
    }
    assert!(literal_bytes >= 300_000);
    // Nothing has changed: a few bytes.
    let report = export(&world, "file", "d", &delta);
    assert!(report["delta_bytes"].as_u64().unwrap() < 20, "{report}");
    assert_eq!(patched(&world, &old, &delta), fs::read(&path).unwrap());
    // The export to standard output is the same.
    let arguments = ["export-delta", path.to_str().unwrap(), "--consumer", "d"];
    assert_eq!(printed(&world, &arguments), fs::read(&delta).unwrap());
}

#[test]
fn a_delta_of_a_hollow_file_beyond_4_gib_costs_its_changes() {
    let world = tracked();
    let (path, old, delta) = (world.tree().join("image"), world.path("old"), world.path("delta"));
    let mut options = fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.set_len(4_500 << 20).unwrap();
    file.write_all_at(&noise(1, 100_000), 1 << 20).unwrap();
    file.write_all_at(&noise(2, 100_000), 4_400 << 20).unwrap();
    let cp = ["--sparse=always", path.to_str().unwrap(), old.to_str().unwrap()];
    tool(&world.tree(), "cp", &words(&cp), b"");
    let epoch = begin(&world, "d");
    done(&world, "d", &epoch);
    file.write_all_at(b"changed", (4_400 << 20) + 12_345).unwrap();
    file.write_all_at(b"in the hole", 4_300 << 20).unwrap();
    file.set_len(4_600 << 20).unwrap();
    let report = export(&world, "image", "d", &delta);
    assert_eq!(report["whole_because"], serde_json::Value::Null);
    assert_eq!(
        (&report["literal_bytes"], &report["zero_bytes"]),
        (&18.into(), &0.into()),
        "{report}"
    );
    assert!(report["delta_bytes"].as_u64().unwrap() < 300, "{report}");
    let mut rdiff = Command::new("rdiff")
        .args([OsStr::new("patch"), old.as_os_str(), delta.as_os_str()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Through the mount, only ranges that may hold more than zeros are read.
    let (mut made, zeros, mut at) = (rdiff.stdout.take().unwrap(), vec![0; 1 << 20], 0);
    let (mut piece, mut there) = (zeros.clone(), zeros.clone());
    loop {
        let mut len = 0;
        while len < piece.len() {
            match made.read(&mut piece[len..]).unwrap() {
                0 => break,
                more => len += more,
            }
        }
        let is_hole = ![1_u64, 4_300, 4_400].contains(&(at >> 20));
        if !is_hole {
            file.read_exact_at(&mut there[..len], at).unwrap();
        }
        let expected = if is_hole { &zeros } else { &there };
        assert!(piece[..len] == expected[..len], "differs from {at} on");
        at += len as u64;
        if len < piece.len() {
            break;
        }
    }
    assert_eq!(at, 4_600 << 20);
    assert!(rdiff.wait().unwrap().success());
}

#[test]
fn export_delta_needs_old_length_of_holes_and_all_if_unmounted() {
    let world = tracked();
    let (path, old, delta) = (world.tree().join("image"), world.path("old"), world.path("delta"));
    let file = fs::File::create(&path).unwrap();
    file.set_len(16 << 20).unwrap();
    fs::write(&old, vec![0; 16 << 20]).unwrap();
    let epoch = begin(&world, "d");
    done(&world, "d", &epoch);
    file.write_all_at(b"end", (16 << 20) - 3).unwrap();
    let expected = fs::read(&path).unwrap();
    // Without any byte that proves it, nothing is taken from the old copy.
    let report = export(&world, "image", "d", &delta);
    assert_eq!(report["zero_bytes"], (16 << 20) - 3, "{report}");
    assert!(patched(&world, &old, &delta) == expected);
    let with_old = [
        "export-delta",
        path.to_str().unwrap(),
        "--consumer",
        "d",
        "--json",
        "--old",
    ];
    let mut with_old = with_old.to_vec();
    with_old.extend([old.to_str().unwrap(), "-o", delta.to_str().unwrap()]);
    let report = world.run(&with_old).fine().line("summary");
    assert_eq!(
        (&report["zero_bytes"], &report["literal_bytes"]),
        (&0.into(), &3.into()),
        "{report}"
    );
    assert!(patched(&world, &old, &delta) == expected);
    drop(file);
    world.on_tree("umount", &[]).fine();
    settle();
    fs::write(&path, "changed while nobody looked").unwrap();
    let report = export(&world, "image", "d", &delta);
    assert!(report["whole_because"].is_string(), "{report}");
    assert_eq!(patched(&world, &old, &delta), b"changed while nobody looked");
}

#[test]
fn a_delta_is_of_one_moment_of_a_file_that_is_being_written() {
    let world = tracked();
    let (path, old, delta) = (world.tree().join("file"), world.path("old"), world.path("delta"));
    let file = fs::File::create(&path).unwrap();
    file.set_len(32 << 20).unwrap();
    fs::write(&old, vec![0; 32 << 20]).unwrap();
    let epoch = begin(&world, "d");
    done(&world, "d", &epoch);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // First at the beginning, then at the end: at no moment is the number at the end
            // greater.
            for number in 1_u64.. {
                for at in [0, (32 << 20) - 8] {
                    file.write_all_at(&number.to_le_bytes(), at).unwrap();
                }
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        // Also if an assertion fails: the scope waits for the writer.
        scopeguard::defer! { stop.store(true, std::sync::atomic::Ordering::Relaxed) }
        let mut last = 0;
        for _ in 0..6 {
            export(&world, "file", "d", &delta);
            let new = patched(&world, &old, &delta);
            let number = |at: usize| u64::from_le_bytes(new[at..at + 8].try_into().unwrap());
            let (first, second) = (number(0), number((32 << 20) - 8));
            assert!(first == second || first == second + 1, "{first} {second}");
            assert!(first > last, "{first} after {last}");
            last = first;
        }
    });
}

#[test]
fn a_delta_that_cannot_be_made_says_why_and_leaves_nothing() {
    let world = tracked();
    let tree = world.tree();
    fs::create_dir(tree.join("directory")).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let path = |name: &str| tree.join(name).to_str().unwrap().to_owned();
    let out = world.path("delta").to_str().unwrap().to_owned();
    let export = |file: &str, more: &[&str]| {
        let mut all = vec!["export-delta", file, "--consumer", "c"];
        all.extend(more);
        world.run(&all)
    };
    for (name, says) in [("directory", "is not a regular file"), ("nowhere", "does not exist")] {
        export(&path(name), &["-o", &out]).ends_with(1).says(says);
    }
    export("/etc/passwd", &["-o", &out])
        .ends_with(1)
        .says("not in a folder that Byteback knows");
    export(&path("file"), &["--json"]).ends_with(1).says("-o DELTA");
    export(&path("file"), &["-o", "/nowhere/delta"])
        .ends_with(1)
        .says("cannot write /nowhere/delta");
    world
        .run(&["export-delta", &path("file"), "-o", &out])
        .ends_with(1)
        .says("--consumer NAME");
    assert!(!world.path("delta").exists());
    let left = fs::read_dir(world.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains(".part")));
    export(&path("file"), &["-o", &out]).fine().says("rdiff patch OLD");
    // The path leads to another file than at the mark, although neither was written to.
    let epoch = begin(&world, "c");
    fs::write(tree.join("other"), "other").unwrap();
    let epoch_other = begin(&world, "c");
    assert_ne!(epoch, epoch_other);
    done(&world, "c", &epoch_other);
    fs::rename(tree.join("other"), tree.join("file")).unwrap();
    export(&path("file"), &["-o", &out])
        .fine()
        .says("because it got its name after the mark");
    assert_eq!(
        patched(&world, &tree.join("directory/../file"), Path::new(&out)),
        b"other"
    );
}

#[test]
fn cut_is_listed_and_packed_as_of_its_moment_despite_changes() {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    let copy = world.path("copy");
    fs::create_dir(&copy).unwrap();
    for round in 0..rounds(6) {
        for _ in 0..1 + random.below(25) {
            change(&tree, &mut random);
        }
        let epoch = begin(&world, "nightly");
        for _ in 0..random.below(5) {
            change(&tree, &mut random);
        }
        let seen_at = world.run(&["cut", "create", "n", dir]).fine().stdout;
        let cut = PathBuf::from(seen_at.trim_end());
        let moment = seen(&cut);
        let list = |format: &str| {
            let arguments = [
                "changes",
                dir,
                "--consumer",
                "nightly",
                "--cut",
                "n",
                "--format",
                format,
                "-0",
            ];
            printed(&world, &arguments)
        };
        let mut lists = Vec::new();
        for format in ["removed", "paths"] {
            for _ in 0..5 {
                change(&tree, &mut random);
            }
            lists.push(list(format));
        }
        let pack = words(&[
            "--format=posix",
            "--xattrs",
            "--null",
            "--no-recursion",
            "-T",
            "-",
            "-c",
        ]);
        let archive = tool(&cut, "tar", &pack, &lists[1]);
        remove_listed(&copy, &lists[0]);
        tool(&copy, "tar", &words(&["--xattrs", "-xpf", "-"]), &archive);
        let differing = differences(&moment, &seen(&copy), false);
        assert!(differing.is_empty(), "seed {seed}, round {round}: {differing:#?}");
        world.run(&["cut", "rm", "n", dir]).fine();
        done(&world, "nightly", &epoch);
    }
    world
        .on_tree("changes", &["--consumer", "nightly", "--cut", "gone"])
        .ends_with(1)
        .says("no cut named");
}

/// Runs Borg 2, under the name that `scripts/borg2` prints.
fn borg2(home: &Path, arguments: &[&OsStr], trace: Option<&Path>) -> Vec<u8> {
    let borg = std::env::var_os("BYTEBACK_BORG2")
        .unwrap_or_else(|| panic!("BYTEBACK_BORG2 names no Borg 2: run 'make test-systems', which installs one"));
    let mut command = match trace {
        Some(trace) => {
            let mut strace = Command::new("strace");
            strace.args(TRACE).arg(trace).arg(borg);
            strace
        }
        None => Command::new(borg),
    };
    let output = command
        .args(arguments)
        .current_dir(home)
        .env("HOME", home)
        .env("BORG_BASE_DIR", home)
        .env("BORG_REPO", home.join("repository"))
        .output()
        .expect("borg and strace are needed");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "borg {arguments:?}: {stderr}");
    output.stdout
}

/// The number of bytes of a file that were read, as the kernel saw it.
fn bytes_read(trace: &Path, file: &Path) -> u64 {
    let shown = format!("<{}>", file.display());
    let text = fs::read_to_string(trace).unwrap();
    let reads = text
        .lines()
        .filter(|line| line.contains(&shown) && line.contains("read"));
    reads
        .filter_map(|line| line.rsplit("= ").next()?.trim().parse::<u64>().ok())
        .sum()
}

#[test]
#[ignore = "needs Borg 2, which takes minutes to install: make test-systems"]
fn borg_2_reads_only_the_data_of_the_map_and_restores_the_file() {
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let home = world.path("borg");
    fs::create_dir(&home).unwrap();
    let borg = |arguments: &[&str], trace: Option<&Path>| borg2(&home, &words(arguments), trace);
    borg(&["repo-create", "-e", "none-blake3"], None);
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    let image = tree.join("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&noise(seed, 20 << 20), 8 << 20).unwrap();
    const BLOCK: u64 = 65_536;
    let chunker = format!("fixed,{BLOCK}");
    let mut previous: Option<String> = None;
    for round in 0..rounds(6) {
        // A block is read again if a byte in it changed; holes are not read.
        let mut blocks = BTreeSet::new();
        if round > 0 {
            for _ in 0..1 + random.below(6) {
                let (at, len) = (random.below(60 << 20), 1 + random.below(100_000));
                if random.chance(30) {
                    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, flags, at, len).unwrap();
                } else {
                    file.write_all_at(&noise(random.next_u64(), len as usize), at).unwrap();
                }
                blocks.extend(at / BLOCK..=(at + len) / BLOCK);
            }
            if random.chance(40) {
                let len = file.metadata().unwrap().len();
                let new = 61 << 20 | random.below(8 << 20);
                file.set_len(new).unwrap();
                blocks.extend(len.min(new) / BLOCK..=len.max(new) / BLOCK);
            }
        }
        let epoch = begin(&world, "borg");
        let cut = PathBuf::from(world.run(&["cut", "create", "b", dir]).fine().stdout.trim_end());
        // Programs go on writing.
        file.write_all_at(b"after the cut", 40 << 20).unwrap();
        let moment = fs::read(cut.join("image")).unwrap();
        let path = cut.join("image");
        let path = path.to_str().unwrap();
        let map = printed(&world, &["changes", path, "--consumer", "borg", "--format", "borg-map"]);
        let map_path = world.path("map");
        fs::write(&map_path, &map).unwrap();
        let name = format!("archive-{round}");
        let mut create = vec![
            "create",
            "--chunker-params",
            &chunker,
            "--map",
            map_path.to_str().unwrap(),
        ];
        if let Some(previous) = &previous {
            create.extend(["--reuse-from", previous]);
        }
        create.extend([name.as_str(), path]);
        let trace = world.path("borg.trace");
        borg(&create, Some(&trace));
        done(&world, "borg", &epoch);
        let read = bytes_read(&trace, Path::new(path));
        // A write after the last cut is new to this one.
        blocks.insert((40 << 20) / BLOCK);
        let budget = if round == 0 {
            21 << 20
        } else {
            blocks.len() as u64 * BLOCK
        };
        assert!(
            read <= budget,
            "round {round}: {read} bytes read, {budget} expected\n{}",
            String::from_utf8_lossy(&map)
        );

        // The trace does record the reads.
        assert!(round > 0 || read >= 20 << 20, "{read} bytes read at first");
        borg2(&home, &words(&["extract", &name]), None);
        let found = tool(&home, "find", &words(&[".", "-name", "image"]), b"");
        let found = home.join(String::from_utf8(found).unwrap().trim_end());
        let differs = first_difference(&moment, &fs::read(&found).unwrap());
        assert_eq!(
            differs,
            None,
            "seed {seed}, round {round}\n{}",
            String::from_utf8_lossy(&map)
        );
        fs::remove_file(found).unwrap();
        world.run(&["cut", "rm", "b", dir]).fine();
        previous = Some(name);
    }
}

#[test]
fn script_of_the_guide_keeps_a_mirror() {
    const PAGE: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/guide/other-programs.md"
    ));
    let scripts = PAGE
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    let script = scripts
        .into_iter()
        .find(|script| script.contains("consumers begin"))
        .expect("the script is gone from the guide");
    let seed = fresh_seed();
    let mut random = SplitMix64::new(seed);
    let world = tracked();
    let backup = world.path("backup");
    fs::create_dir_all(backup.join("copy")).unwrap();
    let script = script
        .replace("/data/mail", world.tree().to_str().unwrap())
        .replace("/backup", backup.to_str().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_byteback"));
    let path = std::env::var_os("PATH").unwrap();
    let folders = std::iter::once(program.parent().unwrap().to_owned()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).unwrap();
    for round in 0..rounds(4) {
        for _ in 0..1 + random.below(25) {
            change(&world.tree(), &mut random);
        }
        let like = world.command::<&str>(&[]);
        let mut bash = Command::new("bash");
        bash.args(["-e", "-c", &script]);
        let output = in_place_of(&mut bash, &like).env("PATH", &path).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "seed {seed}, round {round}: {stderr}");
        // -aH: no extended attributes.
        assert_same(&world, &backup.join("copy"), &format!("seed {seed}, round {round}"));
    }
}

#[test]
fn a_fifo_is_no_file_and_a_symlink_in_the_way_is_not_followed() {
    let world = tracked();
    let (fifo, file) = (world.tree().join("fifo"), world.tree().join("file"));
    fs::write(&file, noise(1, 10_000)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    // The FIFO has no writer: waiting for one would take for ever.
    let map = [
        "changes",
        fifo.to_str().unwrap(),
        "--consumer",
        "c",
        "--format",
        "borg-map",
    ];
    let mut asking = world.command(&map).stderr(Stdio::null()).spawn().unwrap();
    let ended = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        asking.try_wait().unwrap().is_some()
    });
    if !ended {
        asking.kill().unwrap();
    }
    assert_eq!(asking.wait().unwrap().code(), Some(1), "it waited for a writer");

    // Another user of the directory has guessed the name of the file that is being written.
    let (delta, victim) = (world.path("delta"), world.path("victim"));
    fs::write(&victim, b"dear").unwrap();
    let export = world.command(&[
        "export-delta",
        file.to_str().unwrap(),
        "--consumer",
        "c",
        "-o",
        delta.to_str().unwrap(),
    ]);
    let mut with_symlink = Command::new("sh");
    let guess = "ln -s \"$0\" \"$1.$$.part\" && shift && exec \"$@\"";
    with_symlink.arg("-c").arg(guess).args([&victim, &delta]);
    assert!(!run_by(with_symlink, &export).status().unwrap().success());
    assert_eq!(fs::read(&victim).unwrap(), b"dear");
    assert!(!delta.exists());
}
