//! Recorded saves of real programs, on a real mount, and the part of them that is sent.
//!
//! The recordings are those of `byteback-queue/traces`: names, without contents. Here every file
//! has [`LEN`] bytes, nearly the same in all of them, so that a content that is compared with any
//! other is sent in a few hundred bytes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use byteback_host::random::SplitMix64;
use byteback_mount::CacheMode;
use rustix::fs::{CWD, RenameFlags};

use super::drain::{Drain, Trouble};
use super::options;
use crate::fixture::Fixture;

const LEN: usize = 100_000;
/// Factor by which the programs run faster than they were recorded; pauses longer than `PAUSE_MAX`
/// are cut short.
const FASTER: u64 = 10;
const PAUSE_MAX: Duration = Duration::from_millis(700);
const DELAY: Duration = Duration::from_millis(400);

/// The common bytes with a few of their own.
fn content(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    let mut bytes = SplitMix64::new(1).bytes(len);
    let at = random.below(len as u64 - 100) as usize;
    bytes[at..at + 50].copy_from_slice(&random.bytes(50));
    bytes
}

/// Creates the files from before the recording: those that it takes away or reads without having
/// made them.
fn prepare(tree: &Path, lines: &[Vec<&str>], random: &mut SplitMix64) {
    let mut known = std::collections::BTreeSet::new();
    for words in lines {
        let path = tree.join(words[2]);
        let need = |path: &Path, known: &mut std::collections::BTreeSet<_>, random: &mut SplitMix64| {
            if known.insert(path.to_owned()) {
                fs::write(path, content(random, LEN)).unwrap();
            }
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if let Some(other) = words.get(3) {
            fs::create_dir_all(tree.join(other).parent().unwrap()).unwrap();
        }
        match words[1] {
            "create" => {
                known.insert(path);
            }
            _ => need(&path, &mut known, random),
        }
        match words[1] {
            "rename" if words.get(4) == Some(&"over") => need(&tree.join(words[3]), &mut known, random),
            "rename" | "link" => {
                known.insert(tree.join(words[3]));
            }
            "exchange" => need(&tree.join(words[3]), &mut known, random),
            _ => {}
        }
    }
    // Only files that no line brings into being come before the first line.
    let mut made = std::collections::BTreeSet::new();
    for words in lines {
        match words[1] {
            "create" => {
                made.insert(tree.join(words[2]));
            }
            "rename" | "link" => {
                made.insert(tree.join(words[3]));
            }
            _ => {}
        }
    }
    for path in made {
        let first = lines
            .iter()
            .find(|words| tree.join(words[2]) == path || words.get(3).is_some_and(|other| tree.join(other) == path));
        let is_made_first = first.is_some_and(|words| match words[1] {
            "create" => true,
            "rename" | "link" => tree.join(words[2]) != path && words.get(4) != Some(&"over"),
            _ => false,
        });
        if is_made_first && path.exists() {
            fs::remove_file(&path).unwrap();
        }
    }
}

fn perform(tree: &Path, words: &[&str], open: &mut HashMap<String, File>, random: &mut SplitMix64) {
    let at = |index: usize| tree.join(words[index]);
    match words[1] {
        "create" => {
            open.insert(words[2].to_owned(), File::create_new(at(2)).unwrap());
        }
        "write" => {
            let bytes = content(random, LEN);
            match open.get(words[2]) {
                Some(file) => file.write_all_at(&bytes, 0).unwrap(),
                None => {
                    let file = File::options().write(true).open(at(2)).unwrap();
                    file.write_all_at(&bytes, 0).unwrap();
                    open.insert(words[2].to_owned(), file);
                }
            }
        }
        "truncate" => match open.get(words[2]) {
            Some(file) => file.set_len(0).unwrap(),
            None => {
                let file = File::options().write(true).truncate(true).open(at(2)).unwrap();
                open.insert(words[2].to_owned(), file);
            }
        },
        // By the name that the file has then.
        "close" => {
            open.remove(words[2]);
        }
        "rename" => {
            fs::rename(at(2), at(3)).unwrap();
            if let Some(file) = open.remove(words[2]) {
                open.insert(words[3].to_owned(), file);
            }
        }
        "link" => fs::hard_link(at(2), at(3)).unwrap(),
        "unlink" => {
            open.remove(words[2]);
            fs::remove_file(at(2)).unwrap();
        }
        "exchange" => rustix::fs::renameat_with(CWD, at(2), CWD, at(3), RenameFlags::EXCHANGE).unwrap(),
        other => panic!("{other}"),
    }
}

/// All that is below a directory, as the server must have it.
fn check_tree(drain: &Drain, tree: &Path) {
    let mut seen = drain.server.paths("");
    let mut todo = vec![tree.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(tree).unwrap();
            let node = seen
                .remove(below)
                .unwrap_or_else(|| panic!("{} is missing", below.display()));
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                todo.push(path);
            } else if metadata.is_file() {
                assert!(
                    fs::read(&path).unwrap() == drain.server.nodes[&node].content,
                    "{}",
                    below.display()
                );
            }
        }
    }
    assert!(seen.is_empty(), "{:?} are too much", seen.keys());
}

/// Plays while it is sent. Returns how many bytes were sent after the first group, and how many
/// contents as deltas.
fn play(play: impl FnOnce(&Path, &mut dyn FnMut(Duration)), prepare: impl FnOnce(&Path)) -> (usize, usize) {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let mut options = options(DELAY);
    options.relations.timeout_ns = 2_000_000_000;
    fixture.live = Some(options);
    prepare(&fixture.tree());
    fixture.mount();
    let mut drain = Drain::new(fixture.served(), 1, Trouble::default());
    drain.finish();
    let (bytes, deltas) = (drain.bytes, drain.deltas);
    let tree = fixture.tree();
    play(&tree, &mut |pause| {
        let began = Instant::now();
        while began.elapsed() < pause {
            drain.step();
        }
    });
    drain.finish();
    check_tree(&drain, &tree);
    let sent = (drain.bytes - bytes, drain.deltas - deltas);
    println!("{} groups: {}", drain.groups, drain.summary());
    drop(drain);
    fixture.umount();
    sent
}

fn recorded(lines: &str) -> (usize, usize) {
    let lines = lines
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .collect::<Vec<_>>();
    let mut random = SplitMix64::new(7);
    let mut before = SplitMix64::new(8);
    play(
        |tree, wait| {
            let mut open = HashMap::new();
            let mut last_ms = 0;
            for words in &lines {
                let at_ms = words[0].parse::<u64>().unwrap();
                wait(Duration::from_millis((at_ms - last_ms) / FASTER).min(PAUSE_MAX));
                last_ms = at_ms;
                perform(tree, words, &mut open, &mut random);
            }
        },
        |tree| prepare(tree, &lines, &mut before),
    )
}

/// A file that replaces another is sent as the difference from it; the recordings end with files
/// that were just begun, which are sent whole.
#[test]
fn recorded_saves_of_programs_are_sent_as_their_differences() {
    // Most contents that are sent whole, and fewest that are sent as deltas.
    let all = [
        (
            "gedit",
            include_str!("../../../../byteback-queue/traces/gedit.txt"),
            1,
            1,
        ),
        (
            "keepass",
            include_str!("../../../../byteback-queue/traces/keepass.txt"),
            0,
            1,
        ),
        ("sed", include_str!("../../../../byteback-queue/traces/sed.txt"), 0, 2),
        ("perl", include_str!("../../../../byteback-queue/traces/perl.txt"), 1, 2),
        (
            "libreoffice",
            include_str!("../../../../byteback-queue/traces/libreoffice.txt"),
            0,
            2,
        ),
        (
            "atomic",
            include_str!("../../../../byteback-queue/traces/write-file-atomic.txt"),
            1,
            1,
        ),
        (
            "vim",
            include_str!("../../../../byteback-queue/traces/vim-auto.txt"),
            1,
            1,
        ),
        // Their recordings end with a file that was just emptied.
        (
            "mogrify",
            include_str!("../../../../byteback-queue/traces/mogrify.txt"),
            1,
            0,
        ),
        (
            "exiftool",
            include_str!("../../../../byteback-queue/traces/exiftool.txt"),
            2,
            0,
        ),
    ];
    for (name, lines, wholes_max, deltas_min) in all {
        let saves = lines.lines().filter(|line| line.contains(" create ")).count();
        let (bytes, deltas) = recorded(lines);
        println!("{name}: {saves} new files, {bytes} bytes, {deltas} deltas");
        assert!(bytes <= wholes_max * LEN + saves * 1000, "{name}: {bytes} bytes");
        assert!(deltas >= deltas_min, "{name}: {deltas} deltas");
    }
}

/// A large file that is saved in each of the ways that there are: only ever the difference is sent,
/// never the file.
#[test]
fn live_sends_the_difference_of_a_large_file_however_saved() {
    const LARGE: usize = 16 << 20;
    let steps: [&[&str]; 6] = [
        // Word.
        &[
            "rename f t0",
            "create t1",
            "write t1",
            "close t1",
            "rename t1 f",
            "unlink t0",
        ],
        // GNOME.
        &["create t", "write t", "link f f~", "close t", "rename t f"],
        &["unlink f", "create f", "write f", "close f"],
        // Editors that keep a backup.
        &["rename f f~~", "create f", "write f", "close f"],
        &["create e", "write e", "close e", "exchange e f", "unlink e"],
        &["create u", "write u", "close u", "unlink f", "rename u f"],
    ];
    for ways in steps {
        let mut random = SplitMix64::new(3);
        let (bytes, deltas) = play(
            |tree, wait| {
                let mut open = HashMap::new();
                for line in ways {
                    let line = format!("0 {line}");
                    let words = line.split(' ').collect::<Vec<_>>();
                    match (words[1], open.get(words[2])) {
                        ("write", Some(file)) => {
                            let file: &File = file;
                            file.write_all_at(&content(&mut random, LARGE), 0).unwrap();
                        }
                        _ => perform(tree, &words, &mut open, &mut random),
                    }
                    wait(Duration::from_millis(5));
                }
            },
            |tree| fs::write(tree.join("f"), content(&mut SplitMix64::new(9), LARGE)).unwrap(),
        );
        println!("{ways:?}: {bytes} bytes");
        assert!(deltas == 1 && bytes < 2000, "{ways:?}: {bytes} bytes, {deltas} deltas");
    }
}

/// A trace of the user's choice, with its contents. `BYTEBACK_TEST_REPLAY_INIT` and
/// `BYTEBACK_TEST_REPLAY` are commands for the shell, which are given a folder as `$DIR`: the one
/// fills it, the other works in it. `BYTEBACK_TEST_DELAY_MS`: how long changes wait before they are
/// sent.
#[test]
#[ignore = "it needs a recorded trace and what replays it"]
fn a_trace_is_followed() {
    let command = |name: &str, dir: &Path| {
        let command = std::env::var(name).unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(command).env("DIR", dir);
        shell
    };
    let delay_ms = std::env::var("BYTEBACK_TEST_DELAY_MS").map_or(3000, |text| text.parse().unwrap());
    let mut fixture = Fixture::new(CacheMode::Exact);
    let mut options = options(Duration::from_millis(delay_ms));
    options.relations.timeout_ns = 2_000_000_000;
    fixture.live = Some(options);
    assert!(
        command("BYTEBACK_TEST_REPLAY_INIT", &fixture.tree())
            .status()
            .unwrap()
            .success()
    );
    fixture.mount();
    let mut drain = Drain::new(fixture.served(), 1, Trouble::default());
    drain.finish();
    let (bytes, groups) = (drain.bytes, drain.groups);
    let mut program = command("BYTEBACK_TEST_REPLAY", &fixture.tree()).spawn().unwrap();
    while program.try_wait().unwrap().is_none() {
        drain.step();
    }
    drain.finish();
    check_tree(&drain, &fixture.tree());
    println!("{} groups with {} bytes", drain.groups - groups, drain.bytes - bytes);
    println!("{}", drain.summary());
    drop(drain);
    fixture.umount();
}
