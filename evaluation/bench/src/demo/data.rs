//! The demo's folder: real data, taken from the machine that it runs on.
//!
//! | what | made of |
//! |---|---|
//! | `disk.img` | an ext4 file system of 1 GiB, with files of `/usr/share` and `/usr/lib` |
//! | `packages.sqlite` | those files as a table, the installed and the available Debian packages |
//! | `mail/inbox` | licences and notes of the installed packages, each a message |
//! | `source` | a git repository: the one that the demo is started in, and the sources of crates that it was built from |
//! | `odds` | rare kinds of nodes: hard links, holes, ACLs, extended attributes, odd names, a pipe |
//!
//! Data that a machine lacks is left out, and so is data that the user may not read.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::progress::Progress;
use crate::SuiteError;
use crate::random::Random;
use crate::real_files::{RealFile, readable_files};
use crate::rig::interrupt;
use crate::rig::process::{program, run, run_with_input};
use crate::rig::scratch;

#[cfg(test)]
mod tests;

/// Length of the disk image.
pub(super) const IMAGE_BYTES: u64 = 1 << 30;
/// Files that fill a part of it: many small ones and, for the rest, large ones. `mkfs.ext4 -d` gets
/// slow with more names.
const IMAGE_FILES: [(&str, u64, usize); 3] = [
    ("/usr/share", 128 << 20, 6000),
    ("/usr/lib", 224 << 20, 3000),
    ("/usr/bin", 48 << 20, 500),
];
/// The number of files with a row in the database, at most.
const FILE_ROWS_MAX: usize = 40_000;
/// Bytes of crates' sources in the source tree.
const VENDOR_BYTES: u64 = 12 << 20;
const MAILBOX_BYTES: usize = 32 << 20;
/// The number of messages that arrive between the two backups.
const NEW_MESSAGES: usize = 40;

/// The contents of the folder, for the changes made later.
#[derive(Debug)]
pub(super) struct Data {
    /// Messages that have not arrived yet.
    pub(super) new_mail: Vec<u8>,
    /// Files of this machine that can be copied into the image.
    pub(super) samples: Vec<PathBuf>,
    /// Source files, relative to the folder.
    pub(super) sources: Vec<PathBuf>,
}

/// Fills `folder`; `work` is for temporary files.
pub(super) fn build(folder: &Path, work: &Path, progress: &Progress) -> Result<Data, SuiteError> {
    let mut files = Vec::new();
    for (root, bytes_max, count_max) in IMAGE_FILES {
        files.extend(readable_files(&[root], bytes_max, count_max)?);
    }
    let filled_bytes = files.iter().map(|file| file.len_bytes).sum();
    let title = format!("disk.img: 1 GiB of ext4, with {} files of this machine", files.len());
    progress.step(&title, Some(filled_bytes), |step| {
        disk_image(&folder.join("disk.img"), &files, work, |more| step.advance(more))
    })?;
    progress.step("packages.sqlite: Debian's packages, this machine's files", None, |_| {
        let rows = readable_files(&IMAGE_FILES.map(|(root, ..)| root), u64::MAX, FILE_ROWS_MAX)?;
        database(&folder.join("packages.sqlite"), &rows)
    })?;
    let new_mail = progress.step("mail/inbox: a message for each package's licence", None, |_| {
        mailbox(folder)
    })?;
    let sources = progress.step("source: a git repository, with the sources of crates", None, |_| {
        source_tree(&folder.join("source"))
    })?;
    progress.step(
        "odds: hard links, holes, ACLs, a pipe, names that are no text",
        None,
        |_| odds(&folder.join("odds")),
    )?;
    let samples = files
        .into_iter()
        .filter(|file| (20_000..200_000).contains(&file.len_bytes));
    Ok(Data {
        new_mail,
        samples: samples.map(|file| file.path).take(24).collect(),
        sources: sources.iter().map(|path| Path::new("source").join(path)).collect(),
    })
}

fn disk_image(image: &Path, files: &[RealFile], work: &Path, advance: impl Fn(u64)) -> Result<(), SuiteError> {
    let staging = work.join("staging");
    for file in files {
        interrupt::check()?;
        copy_below(&file.path, &staging)?;
        advance(file.len_bytes);
    }
    let size = format!("{}k", IMAGE_BYTES / 1024);
    run(program(administration("mkfs.ext4"))
        .args(["-q", "-F", "-d"])
        .arg(&staging)
        .arg(image)
        .arg(size))?;
    scratch::remove(&staging)?;
    Ok(())
}

/// Copies a file to the same absolute path below `root`.
fn copy_below(file: &Path, root: &Path) -> Result<PathBuf, SuiteError> {
    let target = root.join(file.strip_prefix("/").unwrap_or(file));
    let failed = |error: io::Error| format!("cannot copy {}: {error}", file.display());
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::copy(file, &target).map_err(failed)?;
    Ok(target)
}

/// The path of a program that may not be in an ordinary user's PATH.
pub(super) fn administration(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/sbin"].iter().map(|folder| Path::new(folder).join(name));
    folders
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// The fields of a package that the tables hold, and their columns.
const PACKAGE_FIELDS: [(&str, &str); 8] = [
    ("Package", "name"),
    ("Version", "version"),
    ("Architecture", "architecture"),
    ("Section", "section"),
    ("Installed-Size", "installed_kib"),
    ("Maintainer", "maintainer"),
    ("Depends", "depends"),
    ("Description", "description"),
];

fn database(path: &Path, files: &[RealFile]) -> Result<(), SuiteError> {
    let mut sql = String::from("PRAGMA journal_mode = WAL;\nBEGIN;\n");
    sql.push_str("CREATE TABLE files (path TEXT PRIMARY KEY, bytes INTEGER, modified INTEGER);\n");
    for file in files {
        let name = file.path.to_string_lossy();
        writeln!(
            sql,
            "INSERT INTO files VALUES ({}, {}, {});",
            quoted(&name),
            file.len_bytes,
            file.modified_s
        )?;
    }
    let installed = fs::read("/var/lib/dpkg/status").unwrap_or_default();
    // Missing on some machines, and empty where the lists were never fetched.
    let available = run(program("apt-cache").arg("dumpavail")).map(|finished| finished.stdout);
    interrupt::check()?;
    for (table, stanzas) in [("installed", installed), ("available", available.unwrap_or_default())] {
        let columns: Vec<String> = PACKAGE_FIELDS
            .iter()
            .map(|(_, column)| format!("{column} TEXT"))
            .collect();
        writeln!(sql, "CREATE TABLE {table} ({});", columns.join(", "))?;
        for package in packages(&String::from_utf8_lossy(&stanzas)) {
            let values: Vec<String> = package.into_iter().map(quoted).collect();
            writeln!(sql, "INSERT INTO {table} VALUES ({});", values.join(", "))?;
        }
        writeln!(sql, "CREATE INDEX {table}_by_name ON {table} (name);")?;
    }
    sql.push_str("CREATE TABLE visits (package TEXT, note TEXT);\nCOMMIT;\n");
    run_with_input(program("sqlite3").arg("-bail").arg(path), sql.as_bytes())?;
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''").replace('\0', ""))
}

/// The packages of a list in the format of dpkg and apt: the first line of each field in
/// [`PACKAGE_FIELDS`], empty where absent.
fn packages(stanzas: &str) -> impl Iterator<Item = [&str; PACKAGE_FIELDS.len()]> {
    stanzas.split("\n\n").filter_map(|stanza| {
        let mut values = [""; PACKAGE_FIELDS.len()];
        for line in stanza.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            if let Some(index) = PACKAGE_FIELDS.iter().position(|(field, _)| *field == name) {
                values[index] = value;
            }
        }
        (!values[0].is_empty()).then_some(values)
    })
}

/// Creates the mailbox, and returns the messages that are to arrive later.
fn mailbox(folder: &Path) -> Result<Vec<u8>, SuiteError> {
    let texts = readable_files(&["/usr/share/doc", "/usr/share/common-licenses"], 1 << 30, usize::MAX)?;
    let is_text = |file: &&RealFile| {
        let name = file.path.file_name().unwrap_or_default().as_bytes();
        let plain = [&b"copyright"[..], b"README", b"NEWS", b"changelog"].contains(&name);
        plain || file.path.starts_with("/usr/share/common-licenses")
    };
    let mut messages = Vec::new();
    let mut bytes = 0;
    for file in texts.iter().filter(is_text) {
        let message = message(file)?;
        bytes += message.len();
        messages.push(message);
        if bytes > MAILBOX_BYTES {
            break;
        }
    }
    // On a machine with few texts, half of them arrive later.
    let new = messages.split_off(messages.len() - NEW_MESSAGES.min(messages.len() / 2));
    fs::create_dir(folder.join("mail"))?;
    fs::write(folder.join("mail/inbox"), messages.concat())?;
    Ok(new.concat())
}

/// Converts a text to a message of an mbox file.
fn message(file: &RealFile) -> Result<Vec<u8>, SuiteError> {
    let body = fs::read(&file.path).map_err(|error| format!("cannot read {}: {error}", file.path.display()))?;
    Ok(mbox(&file.path, &body))
}

fn mbox(path: &Path, body: &[u8]) -> Vec<u8> {
    let package = path
        .parent()
        .and_then(Path::file_name)
        .unwrap_or(OsStr::new("system"))
        .to_string_lossy();
    let mut message = format!(
        "From {package}@localhost Sat Jan  1 00:00:00 2022\nFrom: {package}@localhost\nTo: user@localhost\nSubject: {}\n\n",
        path.display()
    )
    .into_bytes();
    for line in body.split_inclusive(|&byte| byte == b'\n') {
        // Otherwise the line would begin a new message.
        if line.starts_with(b"From ") {
            message.push(b'>');
        }
        message.extend(line);
    }
    message.extend(b"\n\n");
    message
}

/// A git command that reads no configuration of a user or the system.
pub(super) fn git(repository: &Path) -> Command {
    let mut command = program("git");
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .arg("-C")
        .arg(repository);
    command.args([
        "-c",
        "user.name=Demo",
        "-c",
        "user.email=demo@localhost",
        "-c",
        "gc.auto=0",
    ]);
    command.args(["-c", "safe.directory=*", "-c", "commit.gpgSign=false"]);
    command
}

/// Creates the source tree, and returns some of its files, relative to it.
fn source_tree(source: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let here = std::env::current_dir()?;
    let is_cloned = here.join(".git").exists()
        && run(git(&here).args(["clone", "--quiet", "--no-hardlinks", "."]).arg(source)).is_ok();
    interrupt::check()?;
    if !is_cloned {
        if source.exists() {
            scratch::remove(source)?;
        }
        fs::create_dir(source)?;
        run(git(source).args(["init", "--quiet"]))?;
    }
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    if let Some(registry) = cargo_home.map(|home| home.join("registry/src")) {
        // One folder per registry, one below it per crate.
        for entry in fs::read_dir(&registry).into_iter().flatten().flatten() {
            for file in readable_files(&[entry.path()], VENDOR_BYTES, usize::MAX)? {
                let below = file.path.strip_prefix(entry.path())?;
                let target = source.join("vendor").join(below);
                if let Some(parent) = target.parent() {
                    fs::create_dir_all(parent)?;
                }
                fs::copy(&file.path, &target)?;
            }
        }
    }
    run(git(source).args(["add", "--force", "--all", "."]))?;
    run(git(source).args([
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "vendor: the sources of the crates",
    ]))?;
    let tracked = run(git(source).args(["ls-files", "-z", "--", "*.rs", "*.toml"]))?.stdout;
    let names = tracked.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(OsStr::from_bytes(name))).collect())
}

/// Creates nodes of rare kinds.
fn odds(folder: &Path) -> Result<(), SuiteError> {
    fs::create_dir(folder)?;
    let file = folder.join("one file");
    fs::write(&file, b"One file with two names, an extended attribute and an ACL.\n")?;
    fs::hard_link(&file, folder.join("its other name"))?;
    symlink("one file", folder.join("link"))?;
    symlink("nowhere", folder.join("dangling"))?;
    fs::write(
        folder.join(OsStr::from_bytes(b"not UTF-8 \xff\xfe")),
        b"A name may hold any byte but two.\n",
    )?;
    fs::write(folder.join("empty"), b"")?;
    let secret = folder.join("closed");
    fs::create_dir(&secret)?;
    fs::write(secret.join("secret"), b"mode 0600 in 0700\n")?;
    fs::set_permissions(secret.join("secret"), fs::Permissions::from_mode(0o600))?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700))?;
    run(program("mkfifo").arg(folder.join("pipe")))?;
    // Some file systems support neither; the folder is real without them.
    let _ = rustix::fs::setxattr(&file, "user.origin", b"demo", rustix::fs::XattrFlags::empty());
    let _ = run(program("setfacl").args(["-m", "u:65534:r"]).arg(&file));
    interrupt::check()?;
    let mut sparse = File::create(folder.join("sparse"))?;
    sparse.set_len(100 << 20)?;
    let mut bytes = vec![0; 64 << 10];
    Random::new(2).fill(&mut bytes);
    io::Seek::seek(&mut sparse, io::SeekFrom::Start(50 << 20))?;
    sparse.write_all(&bytes)?;
    Ok(())
}
