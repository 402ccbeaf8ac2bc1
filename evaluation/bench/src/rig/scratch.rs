//! A temporary folder that leaves nothing behind: no mount, no process, no file.
//!
//! Other guards stop servers and unmount their mounts, in the right order. This one is the last,
//! and relies on none of them: it ends every process that descends from us, unmounts everything
//! that is still mounted below the folder, and only then removes the folder. A folder that still
//! holds a mount is left alone and named, because removing files through a mount could reach
//! anything.
//!
//! To know its descendants, the process becomes a *subreaper*: a daemon whose parent has ended
//! becomes our child.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid};

use super::interrupt;
use crate::SuiteError;

#[cfg(test)]
mod tests;

/// The time that descendants may take to end when asked, before they are killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The folder.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a fresh folder in `parent`, where `needed_bytes` must be free. All children that
    /// this process has from now on are considered to belong to it.
    pub(crate) fn create(parent: &Path, needed_bytes: u64) -> Result<Self, SuiteError> {
        interrupt::check()?;
        set_child_subreaper(Some(getpid()))?;
        let space = rustix::fs::statvfs(parent).map_err(|error| format!("cannot use {}: {error}", parent.display()))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if free_bytes < needed_bytes {
            let gib = |bytes: u64| bytes.div_ceil(1 << 30);
            return Err(format!(
                "{} has {} GiB free, but {} GiB are needed; set the environment variable TMPDIR to a larger place",
                parent.display(),
                free_bytes >> 30,
                gib(needed_bytes)
            )
            .into());
        }
        // A short name: paths of sockets below it have a limit of 107 bytes.
        let path = tempfile::Builder::new()
            .prefix("bb-")
            .tempdir_in(parent)
            .map_err(|error| format!("cannot create a folder in {}: {error}", parent.display()))?
            .keep();
        Ok(Self {
            path: fs::canonicalize(path)?,
        })
    }

    /// The place for large temporary files: `TMPDIR`, or else the target folder of this program,
    /// because `/tmp` is often small or in memory.
    pub(crate) fn default_parent() -> Result<PathBuf, SuiteError> {
        if let Some(parent) = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()) {
            return Ok(PathBuf::from(parent));
        }
        let program = std::env::current_exe()?;
        // target/release/byteback-bench
        Ok(program.ancestors().nth(2).unwrap_or(Path::new("/tmp")).to_owned())
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a folder in it.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, SuiteError> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(path)
    }

    /// Removes everything, as dropping does, and returns whether that worked.
    ///
    /// # Errors
    /// If something is left; the error names it.
    pub(crate) fn remove(self) -> Result<(), SuiteError> {
        let cleaned = self.clean();
        std::mem::forget(self);
        cleaned
    }

    fn clean(&self) -> Result<(), SuiteError> {
        end_descendants();
        for mount in mounts_below(&self.path)? {
            unmount(&mount);
        }
        // A mount's daemon ends when its mount is gone.
        end_descendants();
        if let Some(mount) = mounts_below(&self.path)?.first() {
            return Err(format!(
                "{} is still mounted; unmount it, then remove {}",
                mount.display(),
                self.path.display()
            )
            .into());
        }
        remove(&self.path).map_err(|error| format!("cannot remove {}: {error}", self.path.display()).into())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut stderr = io::stderr();
        if stderr.is_terminal() {
            // A partial progress line would stay.
            let _ = write!(stderr, "\r\x1b[K");
        }
        if interrupt::check().is_err() {
            let _ = writeln!(stderr, "byteback-bench: interrupted; cleaning up");
        }
        if let Err(error) = self.clean() {
            let _ = writeln!(stderr, "byteback-bench: {error}");
        }
    }
}

/// Removes a folder, even if it contains folders without write permission.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(path)?;
            fs::remove_dir_all(path)
        }
        result => result,
    }
}

/// Makes all folders below `path` writable for their owner.
fn open_folders(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

/// Ends all our child processes, and those that become our children by that, until there are none.
fn end_descendants() {
    let started = Instant::now();
    loop {
        // Reaping first, so that the list holds no ended process.
        while let Ok(Some(_)) = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {}
        let children = children();
        if children.is_empty() {
            return;
        }
        let elapsed = started.elapsed();
        if elapsed > 2 * END_TIMEOUT {
            return;
        }
        let signal = if elapsed > END_TIMEOUT {
            Signal::KILL
        } else {
            Signal::TERM
        };
        for child in children {
            // A child that was not reaped keeps its number.
            let _ = kill_process(child, signal);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Our children, according to `/proc`.
fn children() -> Vec<Pid> {
    let us = getpid();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(Pid::from_raw)
        .filter(|pid| parent(*pid) == Some(us))
        .collect()
}

/// The parent of a process.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // PID (NAME) STATE PPID ..., where NAME may hold anything.
    let after_name = stat.rsplit_once(')')?.1;
    Pid::from_raw(after_name.split_whitespace().nth(1)?.parse().ok()?)
}

/// The mount points at or below `path`, innermost first.
pub(crate) fn mounts_below(path: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let table =
        fs::read("/proc/self/mountinfo").map_err(|error| format!("cannot read the table of mounts: {error}"))?;
    Ok(parse_mounts(&table, path))
}

fn parse_mounts(table: &[u8], below: &Path) -> Vec<PathBuf> {
    // Later lines are mounted over earlier ones.
    let points = table
        .split(|&byte| byte == b'\n')
        .rev()
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    points
        .map(|point| PathBuf::from(OsString::from_vec(unescape(point))))
        .filter(|point| point.starts_with(below))
        .collect()
}

/// Decodes characters such as spaces from a backslash and three octal digits.
fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    bytes
}

/// Detaches a mount: the place is free at once, and users of the mount keep it until they end.
fn unmount(point: &Path) {
    let tries: [(&str, &[&str]); 2] = [("umount", &["-l"]), ("fusermount3", &["-u", "-z"])];
    for (program, options) in tries {
        let mut command = Command::new(program);
        command.args(options).arg(point);
        let result = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if result.is_ok_and(|status| status.success()) {
            return;
        }
    }
}
