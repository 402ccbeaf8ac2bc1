//! Rules of this project that neither the compiler nor clippy enforces.
//!
//! - every Rust file but `tests.rs`, whose name says enough, starts with a `//!` header and stays
//!   below a readable length, tests aside;
//! - every Rust file is declared as a module: a forgotten `tests.rs` looks like a passing test;
//! - sources, scripts and build files are ASCII;
//! - no code is marked as unfinished, and no file contains a path of a particular machine;
//! - the deciding crates use neither the clock nor the environment nor an unseeded generator, and
//!   do not print: such inputs reach them through `byteback-host` or as arguments. Clippy could ban
//!   these calls, too, but then also in tests and in the outer crates, which may use them.
//!
//! The words searched for are assembled from pieces below, so that this file does not report
//! itself.

use std::collections::{BTreeMap, BTreeSet};

/// The most production lines in a file.
const LINES_MAX: usize = 800;

/// Files that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// The deciding crates, whose production code must be replayable.
const DECIDING: &[&str] = &[
    "oplog", "delta", "extents", "queue", "store", "client", "backup", "sync", "volume",
];

/// Calls that are banned in deciding code, each with its replacement.
const BANNED: &[(&str, &str)] = &[
    (concat!("SystemTime", "::now"), "take a byteback_host::clock::Clock"),
    (concat!("Instant", "::now"), "take a byteback_host::clock::Clock"),
    (concat!("thread", "::sleep"), "take a byteback_host::clock::Clock"),
    (
        concat!("std", "::env::"),
        "take it as an argument; only the binary reads the environment",
    ),
    (concat!("thread", "_rng"), "take a byteback_host::random::Randomness"),
    (concat!("rand", "::rng()"), "take a byteback_host::random::Randomness"),
    (
        concat!("print", "ln!"),
        "return it or report it through a trait; only the binary prints",
    ),
];

/// Words that no Rust file may contain.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
];

/// Paths that no file may contain.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// The problems in these files (path from the root of the workspace, contents), one line each.
pub(crate) fn check(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, bytes) in files {
        // A file that is not text (a golden file of a format) has no lines to check.
        let Ok(text) = std::str::from_utf8(bytes) else { continue };
        check_text(path, text, &mut problems);
        if path.ends_with(".rs") {
            check_rust(path, text, &mut problems);
        }
    }
    check_declared(files, &mut problems);
    for (path, _) in LONG_FILES {
        if !files.contains_key(*path) {
            problems.push(format!(
                "{path}: is on the list of long files, but does not exist; remove it from the list"
            ));
        }
    }
    problems
}

fn check_text(path: &str, text: &str, problems: &mut Vec<String>) {
    let is_source = path.ends_with(".rs")
        || path.ends_with(".toml")
        || path.ends_with(".sh")
        || path.ends_with("Makefile")
        || path.starts_with("scripts/")
        || path.starts_with(".ci/");
    for (number, line) in (1..).zip(text.lines()) {
        if is_source && !line.is_ascii() {
            problems.push(format!("{path}:{number}: not ASCII; use an escape, or other words"));
        }
        for found in MACHINE_PATHS.iter().filter(|needle| line.contains(**needle)) {
            problems.push(format!(
                "{path}:{number}: {found} is a path of one machine; use a relative path"
            ));
        }
    }
}

fn check_rust(path: &str, text: &str, problems: &mut Vec<String>) {
    if !text.starts_with("//!") && !path.ends_with("/tests.rs") {
        problems.push(format!("{path}:1: no `//!` header; say what the module is for"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        for found in UNFINISHED.iter().filter(|needle| contains_word(line, needle)) {
            problems.push(format!(
                "{path}:{number}: {found} marks unfinished work; finish it, or file an issue"
            ));
        }
    }
    if is_test(path) {
        return;
    }
    let production = production_lines(text);
    let count = production.len();
    let exempt = LONG_FILES.iter().any(|(long, _reason)| *long == path);
    if count > LINES_MAX && !exempt {
        problems.push(format!(
            "{path}: {count} production lines, more than {LINES_MAX}; move a responsibility into a file of its own"
        ));
    }
    if DECIDING
        .iter()
        .any(|name| path.starts_with(&format!("crates/byteback-{name}/src/")))
    {
        for (number, line) in (1..).zip(production) {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (found, instead) in BANNED.iter().filter(|(needle, _)| line.contains(needle)) {
                problems.push(format!(
                    "{path}:{number}: {found} makes this code impossible to replay; {instead}"
                ));
            }
        }
    }
}

/// Whether `word` occurs in `line` by itself, not as a part of a longer word (such as encoded
/// bytes).
fn contains_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (
            line.get(..at).unwrap_or_default(),
            line.get(at + word.len()..).unwrap_or_default(),
        );
        let open_ended = word.ends_with('!');
        !before.ends_with(is_letter) && (open_ended || !after.starts_with(is_letter))
    })
}

/// Whether a whole file is for tests, benchmarks or examples.
fn is_test(path: &str) -> bool {
    let mut folders: Vec<&str> = path.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    name == "tests.rs"
        || folders
            .iter()
            .any(|folder| matches!(*folder, "tests" | "benches" | "examples"))
}

/// The lines above an inline test module.
fn production_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_inline_tests =
        |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    let end = lines.windows(2).position(is_inline_tests).unwrap_or(lines.len());
    lines.into_iter().take(end).collect()
}

/// Finds files that no module declares: the compiler does not see them.
fn check_declared(files: &BTreeMap<String, Vec<u8>>, problems: &mut Vec<String>) {
    for path in files.keys() {
        let Some((crate_folder, inside)) = path.strip_suffix(".rs").and_then(|stem| stem.split_once("/src/")) else {
            continue;
        };
        let mut names: Vec<&str> = inside.split('/').collect();
        if names.last() == Some(&"mod") {
            names.pop();
        }
        let Some(name) = names.pop() else { continue };
        let is_root = names.is_empty() && matches!(name, "lib" | "main") || names.first() == Some(&"bin");
        if is_root {
            continue;
        }
        let candidates: BTreeSet<String> = if names.is_empty() {
            ["lib.rs", "main.rs"]
                .map(|root| format!("{crate_folder}/src/{root}"))
                .into()
        } else {
            ["{}.rs", "{}/mod.rs"]
                .map(|form| form.replace("{}", &format!("{crate_folder}/src/{}", names.join("/"))))
                .into()
        };
        let declared = candidates
            .iter()
            .filter_map(|parent| files.get(parent))
            .any(|bytes| String::from_utf8_lossy(bytes).lines().any(|line| declares(line, name)));
        if !declared {
            let parents: Vec<_> = candidates.into_iter().collect();
            problems.push(format!(
                "{path}: `mod {name};` is missing in {}; it is never compiled",
                parents.join(" or ")
            ));
        }
    }
}

fn declares(line: &str, name: &str) -> bool {
    let line = line.split("//").next().unwrap_or_default().trim();
    line.strip_suffix(';')
        .and_then(|rest| rest.strip_suffix(name))
        .is_some_and(|rest| rest == "mod " || rest.ends_with(" mod "))
}

#[cfg(test)]
mod tests;
