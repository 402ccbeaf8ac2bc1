//! The page of invariants against the code: each entry says where it is kept and which tests try to
//! break it, and each test, module and folder that it names exists.
//!
//! Names in backticks count as follows: with a slash they are a path of the project or a module
//! (`oplog/cut` is `crates/byteback-oplog/src/cut.rs`), all others in small letters are functions.
//!
//! Out of scope: whether a test tests the claim.

use std::collections::{BTreeMap, BTreeSet};

/// The page.
const PAGE: &str = "docs/invariants.md";

/// Checks the page. Each problem is a line.
pub(crate) fn check(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let Some(page) = files.get(PAGE) else {
        return vec![format!("{PAGE}: it is missing")];
    };
    let page = String::from_utf8_lossy(page);
    let functions = functions(files);
    let mut problems = Vec::new();
    for entry in page.split("\n### ").skip(1) {
        let title = entry.lines().next().unwrap_or_default();
        let body = entry.split("\n## ").next().unwrap_or_default();
        let kept_at = body.find("\n- Kept in: ");
        let tests_at = body.find("\n- Tests: ");
        let (Some(kept_at), Some(tests_at)) = (kept_at, tests_at) else {
            problems.push(format!("{PAGE}: '{title}' lacks a line '- Kept in: ' or '- Tests: '"));
            continue;
        };
        let claim = body.get(title.len()..kept_at).unwrap_or_default();
        if claim.trim().is_empty() || tests_at < kept_at {
            problems.push(format!(
                "{PAGE}: '{title}' is to be a claim, then '- Kept in: ', then '- Tests: '"
            ));
        }
        let missing = names(body.get(kept_at..).unwrap_or_default())
            .into_iter()
            .filter(|name| !exists(name, files, &functions));
        problems.extend(missing.map(|name| format!("{PAGE}: '{title}' names `{name}`, which does not exist")));
    }
    problems
}

/// The names in backticks that can be looked up.
fn names(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_name = |name: &&str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_/.-".contains(&byte))
            && (name.contains('/') || name.contains('_'))
    };
    quoted.filter(is_name).collect()
}

fn exists(name: &str, files: &BTreeMap<String, Vec<u8>>, functions: &BTreeSet<String>) -> bool {
    let Some((of, module)) = name.split_once('/') else {
        return functions.contains(name);
    };
    let module = format!("crates/byteback-{of}/src/{module}");
    let below = |path: &str| {
        let folder = format!("{path}/");
        let next = files.range(folder.clone()..).next();
        next.is_some_and(|(found, _)| found.starts_with(&folder))
    };
    files.contains_key(name)
        || below(name.trim_end_matches('/'))
        || files.contains_key(&format!("{module}.rs"))
        || below(&module)
}

/// Names of all functions in the Rust files.
fn functions(files: &BTreeMap<String, Vec<u8>>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, bytes) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let text = String::from_utf8_lossy(bytes);
        for (at, _) in text.match_indices("fn ") {
            let rest = text.get(at + 3..).unwrap_or_default();
            let name: String = rest
                .chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
                .collect();
            found.insert(name);
        }
    }
    found
}

#[cfg(test)]
mod tests;
