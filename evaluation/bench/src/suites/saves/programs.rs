//! Works done by real programs: git, SQLite, vim, sed, tar, rsync, and log rotation as logrotate
//! does it.
//!
//! Programs that are not installed are left out and named. They run with fixed names and times, so
//! that all contenders get the same bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::work::{Case, Saves, Work, simple};
use crate::SuiteError;
use crate::random::{Random, random_bytes, text};
use crate::rig::process::{program, run, run_with_input};

const GIT_FILES: u64 = 40;
const GIT_FILE_BYTES: usize = 20_000;
const GIT_COMMITS: u64 = 110;
const GIT_COMMITS_QUICK: u64 = 30;
const GIT_CHANGED_FILES: u64 = 5;
/// The time of the first commit, seconds since 1970.
const GIT_BEGIN_S: u64 = 1_700_000_000;

const DATABASE_ROWS: i64 = 6000;

const LINES: u64 = 28_000;
const EDITS: usize = 5;
const EDITS_QUICK: usize = 2;

const LOG_LINES: u64 = 4000;
const ROTATIONS: usize = 3;

const TREE_FILES: u64 = 200;
const TREE_FILE_BYTES: usize = 25_000;

const MIRRORED_BYTES: usize = 5_000_000;

/// All whose programs are installed; `missing` is told of the others.
pub(super) fn all(quick: bool, missing: impl Fn(&str)) -> Vec<Case> {
    let commits = if quick { GIT_COMMITS_QUICK } else { GIT_COMMITS };
    let edits = if quick { EDITS_QUICK } else { EDITS };
    let mut cases = Vec::new();
    if is_installed("git", &missing) {
        let prepare = move |folder: &Path| make_repository(folder, commits);
        cases.push(simple("git gc", 1, prepare, |folder, _| {
            run(git(folder, GIT_BEGIN_S).args(["gc", "--quiet"]))?;
            Ok(())
        }));
    }
    cases.push(simple("SQLite VACUUM", 1, make_database, |folder, _| {
        Ok(rusqlite::Connection::open(folder.join("chats.db"))?.execute_batch("vacuum")?)
    }));
    if is_installed("vim", &missing) {
        for way in ["yes", "no"] {
            let save = move |folder: &Path, index| vim(&folder.join("notes.txt"), way, index);
            cases.push(simple(&format!("vim, backupcopy={way}"), edits, make_notes, save));
        }
    }
    cases.push(simple("sed -i", edits, make_notes, |folder, index| {
        let script = format!("s/{}/changed/", word(line_of(index)));
        run(program("sed").arg("-i").arg(script).arg(folder.join("notes.txt")))?;
        Ok(())
    }));
    cases.push(simple("log renamed", ROTATIONS, make_logs, |folder, index| {
        rotate(folder, index, |log, first| {
            fs::rename(log, first)?;
            File::create(log)?;
            Ok(())
        })
    }));
    cases.push(simple(
        "log copied and truncated",
        ROTATIONS,
        make_logs,
        |folder, index| {
            rotate(folder, index, |log, first| {
                fs::copy(log, first)?;
                OpenOptions::new().write(true).truncate(true).open(log)?;
                Ok(())
            })
        },
    ));
    cases.push(Case {
        name: "tar extracted again".to_owned(),
        at_most_kb: None,
        load: Box::new(|| Ok(Box::new(Archives::make()?))),
    });
    cases.push(simple("rsync as writer", 3, make_mirrored, mirror));
    cases
}

fn is_installed(name: &str, missing: &impl Fn(&str)) -> bool {
    let is_installed = run(program(name).arg("--version")).is_ok();
    if !is_installed {
        missing(&format!(
            "{name} is not installed, and its works are left out; to install it: apt-get install {name}"
        ));
    }
    is_installed
}

/// git as it is without the user's configuration, at a fixed time.
fn git(folder: &Path, at_s: u64) -> Command {
    let mut command = program("git");
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "A"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "A"),
        ("GIT_COMMITTER_EMAIL", "a@example.org"),
    ] {
        command.env(name, value);
    }
    let at = format!("{at_s} +0000");
    command.env("GIT_AUTHOR_DATE", &at).env("GIT_COMMITTER_DATE", &at);
    // One thread, so that the packs of all contenders are the same.
    command
        .arg("-C")
        .arg(folder)
        .args(["-c", "gc.auto=0", "-c", "pack.threads=1"]);
    command
}

/// A repository whose objects are all loose: some files of text, of which each commit edits five.
fn make_repository(folder: &Path, commits: u64) -> Result<(), SuiteError> {
    let mut random = Random::new(300);
    let mut files: Vec<String> = (0..GIT_FILES).map(|_| lines(&mut random, GIT_FILE_BYTES)).collect();
    run(git(folder, GIT_BEGIN_S).args(["init", "--quiet", "--initial-branch=main"]))?;
    for (number, content) in files.iter().enumerate() {
        fs::write(folder.join(format!("{number}.txt")), content)?;
    }
    for commit in 0..commits {
        for _ in 0..GIT_CHANGED_FILES {
            // Below the number of files.
            let number = random.below(GIT_FILES) as usize;
            let at = random.below(files[number].len() as u64) as usize;
            let sentence = text(&mut random, 120);
            files[number].insert_str(at, &sentence);
            fs::write(folder.join(format!("{number}.txt")), &files[number])?;
        }
        let at_s = GIT_BEGIN_S + 3600 * commit;
        run(git(folder, at_s).args(["add", "--all"]))?;
        run(git(folder, at_s).args(["commit", "--quiet", "-m", &format!("Commit {commit}")]))?;
    }
    Ok(())
}

/// Text in lines of about 70 characters.
fn lines(random: &mut Random, len: usize) -> String {
    let mut all = String::with_capacity(len + 80);
    while all.len() < len {
        all.push_str(&text(random, 69));
        all.push('\n');
    }
    all
}

/// A database of about 3 MB, a third of which is free.
fn make_database(folder: &Path) -> Result<(), SuiteError> {
    let mut database = rusqlite::Connection::open(folder.join("chats.db"))?;
    database.pragma_update(None, "synchronous", "off")?;
    database.execute_batch("create table messages(id integer primary key, sender text, body text)")?;
    let mut random = Random::new(310);
    let all = database.transaction()?;
    for id in 0..DATABASE_ROWS {
        // Below 1000.
        let len = 20 + random.below(900) as usize;
        let (sender, body) = (text(&mut random, 8), text(&mut random, len));
        all.execute("insert into messages values (?1, ?2, ?3)", (id, sender, body))?;
    }
    all.commit()?;
    Ok(database.execute_batch("delete from messages where id % 3 = 1")?)
}

/// A word of one line of the notes alone.
fn word(line: u64) -> String {
    format!("word{line:05}")
}

/// The line that an edit changes, counted from 1.
fn line_of(edit: usize) -> u64 {
    // Few edits, far apart.
    1000 + 4999 * edit as u64
}

/// A text of 2 MB.
fn make_notes(folder: &Path) -> Result<(), SuiteError> {
    let mut random = Random::new(320);
    let mut notes = String::new();
    for line in 1..=LINES {
        notes.push_str(&format!("{} {}\n", word(line), text(&mut random, 60)));
    }
    Ok(fs::write(folder.join("notes.txt"), notes)?)
}

fn vim(file: &Path, backupcopy: &str, index: usize) -> Result<(), SuiteError> {
    let set = format!("set writebackup backupcopy={backupcopy}");
    let edit = format!("{}s/^/typed /", line_of(index));
    // No configuration of the user, no terminal; swap files as always.
    run(program("vim")
        .args(["-N", "-u", "NONE", "-i", "NONE", "-e", "-s"])
        .args(["-c", &set, "-c", &edit, "-c", "wq"])
        .arg(file))?;
    Ok(())
}

fn log_lines(seed: u64, count: u64) -> String {
    let mut random = Random::new(seed);
    (0..count)
        .map(|line| {
            format!(
                "2026-11-29 12:{:02}:00 server[{seed}]: {}\n",
                line % 60,
                text(&mut random, 50)
            )
        })
        .collect()
}

fn make_logs(folder: &Path) -> Result<(), SuiteError> {
    for (name, seed) in [("log", 330), ("log.1", 331), ("log.2", 332)] {
        fs::write(folder.join(name), log_lines(seed, LOG_LINES))?;
    }
    Ok(())
}

/// A program appends lines to its log. Then the oldest log is removed, the others move up, and
/// `make_first` makes the newest of them of the log.
fn rotate(
    folder: &Path,
    index: usize,
    make_first: impl Fn(&Path, &Path) -> Result<(), SuiteError>,
) -> Result<(), SuiteError> {
    let [log, first, second] = ["log", "log.1", "log.2"].map(|name| folder.join(name));
    let mut file = OpenOptions::new().append(true).open(&log)?;
    file.write_all(log_lines(340 + index as u64, LOG_LINES).as_bytes())?;
    drop(file);
    fs::remove_file(&second)?;
    fs::rename(&first, &second)?;
    make_first(&log, &first)
}

/// A tree as an archive, and the same with three longer files: first the one is extracted again
/// over the tree, then the other.
struct Archives {
    all: [Vec<u8>; 2],
}

impl Archives {
    fn make() -> Result<Self, SuiteError> {
        let folder = tempfile::tempdir()?;
        let path = |number: u64| folder.path().join(format!("{}/{number}.txt", number % 10));
        let mut random = Random::new(350);
        for number in 0..TREE_FILES {
            fs::create_dir_all(path(number).parent().unwrap_or(folder.path()))?;
            fs::write(path(number), text(&mut random, TREE_FILE_BYTES))?;
        }
        let archive =
            || Ok::<_, SuiteError>(run(program("tar").arg("-c").arg("-C").arg(folder.path()).arg("."))?.stdout);
        let before = archive()?;
        for number in [7, 77, 177] {
            let mut file = OpenOptions::new().append(true).open(path(number))?;
            file.write_all(text(&mut random, 500).as_bytes())?;
        }
        Ok(Self {
            all: [before, archive()?],
        })
    }

    fn extract(&self, index: usize, folder: &Path) -> Result<(), SuiteError> {
        let archive = self.all.get(index).ok_or("there are two archives")?;
        run_with_input(program("tar").arg("-x").arg("-C").arg(folder), archive)?;
        Ok(())
    }
}

impl Work for Archives {
    fn saves(&self) -> usize {
        self.all.len()
    }

    fn prepare(&self, folder: &Path) -> Result<(), SuiteError> {
        self.extract(0, folder)
    }

    fn open<'a>(&'a self, folder: &'a Path) -> Result<Box<dyn Saves + 'a>, SuiteError> {
        Ok(Box::new(move |index: usize| self.extract(index, folder)))
    }
}

/// The file that is mirrored: with each version 10 KB are replaced and 100 bytes inserted.
fn mirrored(version: usize) -> Vec<u8> {
    let mut content = random_bytes(360, MIRRORED_BYTES);
    for edit in 0..version {
        let (seed, at) = (361 + 2 * edit as u64, 1_000_000 * (edit + 1));
        content[at..at + 10_000].copy_from_slice(&random_bytes(seed, 10_000));
        content.splice(at + 500_000..at + 500_000, random_bytes(seed + 1, 100));
    }
    content
}

fn make_mirrored(folder: &Path) -> Result<(), SuiteError> {
    Ok(fs::write(folder.join("mirrored"), mirrored(0))?)
}

fn mirror(folder: &Path, index: usize) -> Result<(), SuiteError> {
    let source = tempfile::tempdir()?;
    let file = source.path().join("mirrored");
    fs::write(&file, mirrored(index + 1))?;
    run(program("rsync").args(["-a", "--no-whole-file"]).arg(file).arg(folder))?;
    Ok(())
}
