use super::*;
use byteback_host::random::SplitMix64;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

fn seed(default: u64) -> u64 {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(default);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}

const DIRECTORIES: [&str; 7] = ["", "a", "b", "a/b", "a/a", "a/b/c", "b/a.o"];

fn patterns(random: &mut SplitMix64) -> String {
    const PARTS: [&str; 14] = [
        "a", "b", "c", "*", "**", "a.o", "*.o", "?", "[ab]", "[!a]", "c*", "\\*", "a b", "\\!x",
    ];
    let mut text = String::new();
    for _ in 0..1 + random.below(4) {
        let mut line = String::new();
        for flag in ["!", "/"] {
            if random.below(4) == 0 {
                line.push_str(flag);
            }
        }
        for part in 0..1 + random.below(3) {
            if part > 0 {
                line.push('/');
            }
            line.push_str(PARTS[random.below(PARTS.len() as u64) as usize]);
        }
        if random.below(4) == 0 {
            line.push('/');
        }
        text.push_str(&match random.below(12) {
            0 => format!("# {line}\n"),
            1 => format!("{line}  \n"),
            2 => format!("\n{line}\r\n"),
            _ => format!("{line}\n"),
        });
    }
    text
}

/// The paths that git ignores, by the same rules in its own files.
fn by_git(top: &std::path::Path, paths: &[String]) -> BTreeSet<String> {
    let mut git = Command::new("git")
        .args([
            "-c",
            "core.excludesFile=/dev/null",
            "check-ignore",
            "--no-index",
            "--stdin",
            "-z",
        ])
        .current_dir(top)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = git.stdin.take().unwrap();
    input.write_all(paths.join("\0").as_bytes()).unwrap();
    drop(input);
    let output = git.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let reported = String::from_utf8(output.stdout).unwrap();
    reported.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn random_rules_mean_what_they_mean_to_git() {
    let seed = seed(61);
    let mut ignored_paths = 0;
    for life in 0..60 {
        let seed = seed + life;
        let mut random = SplitMix64::new(seed);
        let temp = tempfile::tempdir().unwrap();
        let init = Command::new("git")
            .args(["init", "-q"])
            .current_dir(temp.path())
            .status();
        assert!(init.unwrap().success());
        let mut paths: BTreeMap<String, bool> = BTreeMap::new();
        let mut rules = IgnoreRules::default();
        let mut reported = String::new();
        for directory in DIRECTORIES {
            std::fs::create_dir_all(temp.path().join(directory)).unwrap();
            if !directory.is_empty() {
                paths.insert(directory.to_owned(), true);
            }
        }
        for directory in DIRECTORIES {
            for name in ["a", "b", "c", "a.o", "c.o", "*", "a b", "!x", "x"] {
                let path = format!("{directory}/{name}").trim_start_matches('/').to_owned();
                let file = temp.path().join(&path);
                paths.entry(path).or_insert_with(|| {
                    std::fs::write(file, "").unwrap();
                    false
                });
            }
            if random.below(3) == 0 {
                let text = patterns(&mut random);
                std::fs::write(temp.path().join(directory).join(".gitignore"), &text).unwrap();
                rules.set_file(directory.as_bytes(), Some(text.as_bytes()));
                reported.push_str(&format!("{directory}/.gitignore: {text:?}\n"));
            }
        }
        assert_eq!(rules.unusable().count(), 0, "seed {seed}: {reported}");
        let asked: Vec<String> = paths.keys().cloned().collect();
        let by_git = by_git(temp.path(), &asked);
        let here = paths
            .iter()
            .filter(|(path, is_dir)| rules.is_ignored(path.as_bytes(), **is_dir));
        let here: BTreeSet<String> = here.map(|(path, _)| path.clone()).collect();
        let differ: Vec<_> = here.symmetric_difference(&by_git).collect();
        assert!(
            differ.is_empty(),
            "seed {seed}: {differ:?}\n{reported}by git: {by_git:?}"
        );
        ignored_paths += here.len();
    }
    assert!(ignored_paths > 200, "{ignored_paths}");
}

#[test]
fn a_cache_is_ignored_with_all_that_is_in_it() {
    let mut rules = IgnoreRules::default();
    rules.set_cache(b"a/cache", true);
    for (path, is_directory, ignored) in [
        ("a", true, false),
        ("a/cache", true, true),
        ("a/cache/CACHEDIR.TAG", false, true),
        ("a/cache/deep/file", false, true),
        ("a/cache2", true, false),
    ] {
        assert_eq!(rules.is_ignored(path.as_bytes(), is_directory), ignored, "{path}");
    }
    rules.set_cache(b"a/cache", false);
    // The folder itself was requested, so it cannot be ignored.
    rules.set_cache(b"", true);
    assert!(rules.is_empty());
    assert!(is_cache_tag(b"Signature: 8a477f597d28d172789f06886806bc55\n# by us"));
    assert!(!is_cache_tag(b"Signature: 8a477f597d28d172789f06886806bc5"));
    assert!(!is_cache_tag(b"signature: 8a477f597d28d172789f06886806bc55"));
}

#[test]
fn a_line_that_says_nothing_is_told_and_the_others_count() {
    let mut rules = IgnoreRules::default();
    rules.set_file(b"d", Some(b"\xef\xbb\xbf*.o\n[z-a]\n\xff\n!keep.o\n"));
    let lines: Vec<usize> = rules.unusable().map(|unusable| unusable.line).collect();
    assert_eq!(lines, [2, 3]);
    assert!(rules.is_ignored(b"d/x/\xff\xfe.o", false) && !rules.is_ignored(b"d/keep.o", false));
    assert!(!rules.is_ignored(b"x.o", false));
    rules.set_file(b"d", None);
    assert!(rules.is_empty() && rules.unusable().next().is_none());
}

#[test]
fn a_file_with_rules_is_ignored_only_by_a_directory_above() {
    let mut rules = IgnoreRules::default();
    rules.set_file(b"", Some(b"*\n!d\n!d/*.txt\n"));
    assert!(!rules.is_ignored(b".bytebackignore", false) && rules.is_ignored(b"x", false));
    assert!(rules.is_ignored(b"d/.bytebackignore", false));
    rules.set_file(b"", Some(b"*.o\n"));
    rules.set_file(b"d", Some(b"*\n"));
    assert!(!rules.is_ignored(b"d/.bytebackignore", false) && rules.is_ignored(b"d/x", false));
    // Even if the deeper file is empty.
    rules.set_file(b"", Some(b".bytebackignore\n"));
    rules.set_file(b"d", Some(b"\n"));
    assert!(rules.is_ignored(b"d/.bytebackignore", false) && !rules.is_ignored(b".bytebackignore", false));
}
