//! The documents against the code: what they name is there.
//!
//! A name in backticks counts if it is of small letters and underscores and has at least four parts
//! (`queue_keeps_order_after_crash`): such names are tests and other functions, and each must be a
//! word of a Rust file or a script. A path counts if it begins with a folder of the project and
//! has no part in capitals, which stands for a name; `*` and anything behind it are left out.
//!
//! Out of scope: shorter names, which are also commands, options and columns; the changelog, which
//! tells of things that are gone; whether what is said is true.

use std::collections::{BTreeMap, BTreeSet};

/// Parts of a name from which on it counts.
const PARTS_MIN: usize = 4;
const LEFT_OUT: [&str; 1] = ["CHANGELOG.md"];
/// Folders whose paths are looked up.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "evaluation/", "fuzz/", "libbyteback/", "scripts/"];

/// Checks all documents. Each problem is a line.
pub(crate) fn check(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let words = words(files);
    let mut problems = Vec::new();
    for (path, bytes) in files
        .iter()
        .filter(|(path, _)| path.ends_with(".md") && !LEFT_OUT.contains(&path.as_str()))
    {
        let text = String::from_utf8_lossy(bytes);
        for (index, line) in text.lines().enumerate() {
            let missing = line
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|quoted| match is_name(quoted) {
                    true => !words.contains(*quoted),
                    false => is_path(quoted) && !exists(quoted, files),
                });
            let number = index + 1;
            problems.extend(missing.map(|name| format!("{path}:{number}: `{name}` does not exist; name what does")));
        }
    }
    problems
}

fn is_name(quoted: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    quoted.bytes().all(is_letter) && quoted.split('_').filter(|part| !part.is_empty()).count() >= PARTS_MIN
}

fn is_path(quoted: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_/.-*".contains(&byte);
    let is_open = quoted.split('/').any(|part| {
        part.len() > 1
            && part
                .split('.')
                .next()
                .is_some_and(|stem| !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_uppercase()))
    });
    quoted.bytes().all(is_letter) && !is_open && FOLDERS.iter().any(|folder| quoted.starts_with(folder))
}

/// Whether a file, a folder or a module has this path.
fn exists(path: &str, files: &BTreeMap<String, Vec<u8>>) -> bool {
    let path = path.split('*').next().unwrap_or_default().trim_end_matches('/');
    let folder = format!("{path}/");
    files.contains_key(path)
        || files.contains_key(&format!("{path}.rs"))
        || files
            .range(folder.clone()..)
            .next()
            .is_some_and(|(found, _)| found.starts_with(&folder))
}

/// The words with underscores in sources and scripts.
fn words(files: &BTreeMap<String, Vec<u8>>) -> BTreeSet<&str> {
    let is_source = |path: &str| !path.ends_with(".md");
    let texts = files.iter().filter(|(path, _)| is_source(path));
    let words = texts
        .filter_map(|(_, bytes)| std::str::from_utf8(bytes).ok())
        .flat_map(|text| text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')));
    words.filter(|word| word.contains('_')).collect()
}

#[cfg(test)]
mod tests;
