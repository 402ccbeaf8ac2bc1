//! Chores of the workspace, run as `cargo xtask COMMAND`.
//!
//! `edges` compares the crates' dependencies on each other with the table in ARCHITECTURE.md,
//! `tidy` checks rules that neither the compiler nor clippy enforces, `prose` those of
//! docs/style.md, `invariants` compares docs/invariants.md with the code, `pages` looks up what all
//! documents name, `check` does all five.
//! `prose CRATE` lists the places in a crate, `prose --lower` lowers the ceilings to the current
//! counts. Each problem is one line that names the file and the remedy; the exit status is 1 if
//! there is any problem, 2 if the check itself could not run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what a chore does")]

mod edges;
mod invariants;
mod pages;
mod prose;
mod tidy;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask edges|tidy|prose [CRATE|--lower]|invariants|pages|check";

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let result = match command.as_deref() {
        Some("edges") => check_edges(),
        Some("tidy") => check_tidy(),
        Some("prose") => match std::env::args().nth(2).as_deref() {
            None => check_prose(),
            Some("--lower") => lower_ceilings().map(|()| Vec::new()),
            Some(name) => list_prose(name),
        },
        Some("invariants") => files().map(|files| invariants::check(&files)),
        Some("pages") => files().map(|files| pages::check(&files)),
        Some("check") => check_edges().and_then(|mut problems| {
            problems.extend(check_tidy()?);
            problems.extend(check_prose()?);
            problems.extend(invariants::check(&files()?));
            problems.extend(pages::check(&files()?));
            Ok(problems)
        }),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                println!("{problem}");
            }
            println!("{} problem(s)", problems.len());
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

/// The folder of the workspace, from the folder of this crate in the environment that cargo sets at
/// run time. Its value at build time does not count: clones may share a target folder.
fn workspace_root() -> Result<PathBuf, Box<dyn Error>> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as 'cargo xtask'")?;
    let root = Path::new(&manifest_dir).ancestors().nth(2);
    Ok(root.ok_or("the crate is not in a workspace")?.to_owned())
}

fn check_edges() -> Result<Vec<String>, Box<dyn Error>> {
    let root = workspace_root()?;
    let table = std::fs::read_to_string(root.join("ARCHITECTURE.md")).map_err(|e| format!("ARCHITECTURE.md: {e}"))?;
    let metadata = output(
        Command::new("cargo")
            .args(["metadata", "--format-version=1", "--no-deps"])
            .current_dir(&root),
    )?;
    let actual = edges::actual(&serde_json::from_slice(&metadata)?)?;
    Ok(edges::compare(&edges::parse_table(&table), &actual))
}

fn check_tidy() -> Result<Vec<String>, Box<dyn Error>> {
    Ok(tidy::check(&files()?))
}

fn ceilings() -> Result<prose::Counts, Box<dyn Error>> {
    let path = workspace_root()?.join(prose::CEILINGS);
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", prose::CEILINGS))?;
    Ok(prose::parse(&text)?)
}

fn check_prose() -> Result<Vec<String>, Box<dyn Error>> {
    Ok(prose::compare(&prose::find(&files()?), &ceilings()?))
}

/// Lists the places in a crate where rules are broken.
fn list_prose(name: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let places = prose::find(&files()?);
    let of_crate = places.into_iter().filter(|((of, _), _)| of == name);
    let lines = of_crate.flat_map(|((_, rule), found)| {
        let line = move |place| format!("{place}: {}", rule.advice());
        found.into_iter().map(line).collect::<Vec<_>>()
    });
    Ok(lines.collect())
}

/// Lowers the ceilings to the current counts. None is raised.
fn lower_ceilings() -> Result<(), Box<dyn Error>> {
    let mut counts = prose::counts(&prose::find(&files()?));
    let ceilings = ceilings()?;
    for (key, count) in &mut counts {
        *count = (*count).min(ceilings.get(key).copied().unwrap_or(0));
    }
    let path = workspace_root()?.join(prose::CEILINGS);
    Ok(std::fs::write(path, prose::print(&counts))?)
}

/// All files of the project, by their path from its folder.
fn files() -> Result<BTreeMap<String, Vec<u8>>, Box<dyn Error>> {
    let root = workspace_root()?;
    // New files count before they are added to git: that is when their author wants to know.
    let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = output(Command::new("git").args(listing).current_dir(&root))?;
    let mut files = BTreeMap::new();
    for path in String::from_utf8(listed)?.split('\0').filter(|path| !path.is_empty()) {
        match std::fs::read(root.join(path)) {
            Ok(bytes) => {
                files.insert(path.to_owned(), bytes);
            }
            // Listed but missing: deleted and not yet committed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{path}: {error}").into()),
        }
    }
    Ok(files)
}

fn output(command: &mut Command) -> Result<Vec<u8>, Box<dyn Error>> {
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(output.stdout)
}
