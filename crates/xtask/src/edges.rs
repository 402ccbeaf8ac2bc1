//! The dependencies between our crates: the table of ARCHITECTURE.md against cargo's metadata.
//!
//! The table is the one whose first column is headed `crate`. A row reads `` `byteback-oplog` ->
//! extents, host ``: the crates before the arrow may use those after it (the prefix `byteback-` may
//! be left out there), and `all` means any library. The crates of a row without an arrow use none
//! of ours. Text in brackets is for human readers. Tests are exempt: only normal and build
//! dependencies count.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// For each crate, the crates of the workspace that it uses or may use.
pub(crate) type Edges = BTreeMap<String, BTreeSet<String>>;

/// Stands for every library in the table.
const ALL: &str = "all";

/// Reads the table from the Markdown text `document`.
pub(crate) fn parse_table(document: &str) -> Edges {
    let mut edges = Edges::new();
    let mut inside = false;
    for line in document.lines() {
        let Some(first) = line
            .trim()
            .strip_prefix('|')
            .and_then(|row| row.split('|').next())
            .map(str::trim)
        else {
            inside = false;
            continue;
        };
        if first.eq_ignore_ascii_case("crate") {
            inside = true;
            continue;
        }
        if !inside {
            continue;
        }
        let cell = without_brackets(first);
        let (left, right) = cell.split_once("->").unwrap_or((&cell, ""));
        let targets: BTreeSet<String> = right
            .split(',')
            .map(|name| name.trim().trim_matches('`'))
            .filter(|name| !name.is_empty())
            .map(full_name)
            .collect();
        // Between backticks: every second piece.
        for name in left.split('`').skip(1).step_by(2) {
            edges
                .entry(name.to_owned())
                .or_default()
                .extend(targets.iter().cloned());
        }
    }
    edges
}

fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|c| {
            let outside = depth == 0 && *c != '(';
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            outside
        })
        .collect()
}

fn full_name(short: &str) -> String {
    if short == ALL || short == "xtask" || short.starts_with("byteback") {
        short.to_owned()
    } else {
        format!("byteback-{short}")
    }
}

/// Reads the edges from the output of `cargo metadata`.
pub(crate) fn actual(metadata: &Value) -> Result<Edges, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let name_of = |value: &Value| {
        value["name"]
            .as_str()
            .map(str::to_owned)
            .ok_or("cargo metadata: a nameless package")
    };
    let ours = packages.iter().map(name_of).collect::<Result<BTreeSet<_>, _>>()?;
    let mut edges = Edges::new();
    for package in packages {
        let used = edges.entry(name_of(package)?).or_default();
        for dependency in package["dependencies"]
            .as_array()
            .ok_or("cargo metadata: no dependencies")?
        {
            let name = name_of(dependency)?;
            if dependency["kind"].as_str() != Some("dev") && ours.contains(&name) {
                used.insert(name);
            }
        }
    }
    Ok(edges)
}

/// The problems, one line each.
pub(crate) fn compare(table: &Edges, actual: &Edges) -> Vec<String> {
    let mut problems = Vec::new();
    if table.is_empty() {
        problems.push("ARCHITECTURE.md: no table whose first column is headed `crate`".to_owned());
    }
    for (name, used) in actual {
        let Some(allowed) = table.get(name) else {
            problems.push(format!(
                "ARCHITECTURE.md: the crate {name} is missing from the table; add a row for it"
            ));
            continue;
        };
        for target in used {
            // `all` means all libraries: neither evaluation nor chores are libraries.
            let by_all = allowed.contains(ALL) && !matches!(target.as_str(), "byteback-bench" | "xtask");
            if !by_all && !allowed.contains(target) {
                problems.push(format!(
                    "crates/{name}/Cargo.toml: {name} uses {target}, which ARCHITECTURE.md does not allow; \
                     remove the dependency, or have the new edge reviewed and add it to the table"
                ));
            }
        }
    }
    for (name, allowed) in table {
        for stale in std::iter::once(name)
            .chain(allowed)
            .filter(|n| *n != ALL && !actual.contains_key(*n))
        {
            problems.push(format!(
                "ARCHITECTURE.md: the row of {name} names {stale}, which is not a crate of this workspace"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests;
