//! The changes that real programs make to the demo's folder between the two backups, through its
//! mount.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::data::{Data, administration, git};
use crate::SuiteError;
use crate::rig::process::{program, run, run_with_input};

/// The number of source files that are edited.
const EDITED_FILES: usize = 25;

/// Three transactions, each a connection of its own: rows updated all over the largest tables, rows
/// added, rows removed.
const TRANSACTIONS: [&str; 3] = [
    "BEGIN; UPDATE files SET modified = modified + 60 WHERE rowid % 400 = 7; COMMIT;",
    "BEGIN; INSERT INTO visits SELECT name, 'looked at ' || version FROM installed; COMMIT;",
    "BEGIN; DELETE FROM available WHERE rowid % 1000 = 3; UPDATE available SET section = 'demo' WHERE rowid % 500 = 1; COMMIT;",
];

/// A change: its description and its function.
pub(super) type Change = (&'static str, fn(&Path, &Data, &Path) -> Result<(), SuiteError>);

/// All changes, in order. Each gets the mounted folder, its data, and a folder for other files.
pub(super) const CHANGES: [Change; 6] = [
    ("sqlite3: three transactions", transactions),
    ("debugfs: files written into the disk image, others removed", edit_image),
    ("cat >>: mail arrives", append_mail),
    ("sed -i: source files edited", edit_sources),
    ("git commit", commit),
    ("mv, ln, rm, chmod: names and attributes", names_and_attributes),
];

fn transactions(folder: &Path, _: &Data, _: &Path) -> Result<(), SuiteError> {
    for transaction in TRANSACTIONS {
        let database = folder.join("packages.sqlite");
        run_with_input(program("sqlite3").arg("-bail").arg(database), transaction.as_bytes())?;
    }
    Ok(())
}

fn edit_image(folder: &Path, data: &Data, work: &Path) -> Result<(), SuiteError> {
    let mut commands = String::from("mkdir /demo\ncd /demo\n");
    for (index, sample) in data.samples.iter().enumerate() {
        let quoted = sample.display().to_string();
        // debugfs would take such a path for two words.
        if quoted.contains(['"', ' ']) {
            continue;
        }
        writeln!(commands, "write {quoted} copy-{index}")?;
        if index % 3 == 0 {
            writeln!(commands, "rm {quoted}")?;
        }
    }
    let file = work.join("debugfs-commands");
    fs::write(&file, commands)?;
    run(program(administration("debugfs"))
        .arg("-w")
        .arg("-f")
        .arg(file)
        .arg(folder.join("disk.img")))?;
    Ok(())
}

fn append_mail(folder: &Path, data: &Data, _: &Path) -> Result<(), SuiteError> {
    let mut shell = program("sh");
    shell.args(["-c", "cat >> \"$1\"", "sh"]).arg(folder.join("mail/inbox"));
    run_with_input(&mut shell, &data.new_mail)?;
    Ok(())
}

fn edit_sources(folder: &Path, data: &Data, _: &Path) -> Result<(), SuiteError> {
    let step = (data.sources.len() / EDITED_FILES).max(1);
    let files = data
        .sources
        .iter()
        .step_by(step)
        .take(EDITED_FILES)
        .map(|path| folder.join(path));
    run(program("sed").args(["-i", "s/the/the very/"]).args(files))?;
    Ok(())
}

fn commit(folder: &Path, _: &Data, _: &Path) -> Result<(), SuiteError> {
    run(git(&folder.join("source")).args(["commit", "--quiet", "--all", "--allow-empty", "-m", "demo: emphasis"]))?;
    Ok(())
}

fn names_and_attributes(folder: &Path, _: &Data, _: &Path) -> Result<(), SuiteError> {
    let odds = folder.join("odds");
    run(program("mv").arg(odds.join("closed")).arg(odds.join("locked")))?;
    run(program("ln").arg(odds.join("one file")).arg(folder.join("third name")))?;
    run(program("rm").arg(odds.join("dangling")))?;
    run(program("chmod").arg("g-r").arg(odds.join("empty")))?;
    run(program("fallocate")
        .args(["--punch-hole", "--offset", "52428800", "--length", "16384"])
        .arg(odds.join("sparse")))?;
    Ok(())
}

/// Has the programs themselves check that a restored folder is sound.
pub(super) fn check_soundness(folder: &Path) -> Result<(), SuiteError> {
    let database = folder.join("packages.sqlite");
    let answer = run_with_input(program("sqlite3").arg(&database), b"PRAGMA integrity_check;")?.text();
    if answer.trim() != "ok" {
        return Err(format!("sqlite3 says of the restored database: {answer}").into());
    }
    run(program(administration("e2fsck"))
        .args(["-f", "-n"])
        .arg(folder.join("disk.img")))?;
    run(git(&folder.join("source")).args(["fsck", "--no-progress"]))?;
    Ok(())
}
