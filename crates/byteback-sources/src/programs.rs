//! Runs the programs that belong to storage (`zdb`, `mfsfileinfo`, `ceph-objectstore-tool`), and
//! reads their output, mostly line by line.
//!
//! The programs are searched for in folders that the caller names, never by a shell. They get an
//! empty standard input and an environment of their own: the language of their messages and the
//! place of their helpers. Their output may be long (a line for each record of a file of
//! terabytes), so it is not kept; a line is no longer than [`LINE_LEN_MAX`].

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Access, access};

use byteback_checksums::source::{Result, SourceError};

/// Limit of a line's length: the longest useful lines are extended attributes, 64 KiB, with at most
/// four characters for each byte.
pub(crate) const LINE_LEN_MAX: usize = 1 << 20;

/// Limit of the part of a program's complaint that is reported, in bytes.
const COMPLAINT_LEN_MAX: u64 = 2000;

/// The folders in which programs are searched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    folders: Vec<PathBuf>,
}

impl Programs {
    /// Searches these folders in order; folders that are not absolute are left out.
    #[must_use]
    pub fn new(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders = folders.into_iter().filter(|folder| folder.is_absolute());
        Self {
            folders: folders.collect(),
        }
    }

    /// The first executable file of this name. A file that may not be run, or a folder that may not
    /// be read, is an error only if no other folder has the program, which may be there.
    fn find(&self, name: &'static str) -> Result<PathBuf> {
        let mut denied = None;
        for folder in &self.folders {
            let path = folder.join(name);
            let (path, what) = match path.metadata() {
                Ok(found) if !found.is_file() => continue,
                Ok(_) if access(&path, Access::EXEC_OK).is_ok() => return Ok(path),
                Ok(_) => (path, "run"),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => (folder.clone(), "search"),
                Err(_) => continue,
            };
            denied.get_or_insert(SourceError::ProgramDenied { name, path, what });
        }
        Err(denied.unwrap_or(SourceError::NoProgram { name }))
    }

    /// Runs a program and passes each line of its output to `each`, without the line end. An error
    /// of `each` ends the program.
    ///
    /// # Errors
    /// [`SourceError::NoProgram`]; [`SourceError::ProgramDenied`]; [`SourceError::Program`] if it
    /// fails; the error of `each`.
    pub(crate) fn run(
        &self,
        name: &'static str,
        arguments: &[&OsStr],
        variables: &[(&str, &OsStr)],
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read(name, arguments, variables, |said| each_line(said, &mut each))
    }

    /// Runs a program and passes its whole output to `take`. An error of `take` ends the program,
    /// and so may output that `take` leaves unread.
    ///
    /// # Errors
    /// [`SourceError::NoProgram`]; [`SourceError::ProgramDenied`]; [`SourceError::Program`] if it
    /// fails; the error of `take`.
    pub(crate) fn read(
        &self,
        name: &'static str,
        arguments: &[&OsStr],
        variables: &[(&str, &OsStr)],
        take: impl FnOnce(&mut dyn Read) -> Result<()>,
    ) -> Result<()> {
        let program = self.find(name)?;
        let path = std::env::join_paths(&self.folders).unwrap_or_default();
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("LC_ALL", "C")
            .env("TZ", "UTC0")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| SourceError::Program {
                name,
                said: source.to_string(),
            })?;
        let mut running = Running(child);
        let (said, complaints) = (running.0.stdout.take(), running.0.stderr.take());
        // In a thread of its own, because the program would block on a full pipe.
        let complaints = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut from) = complaints {
                let _ = from.by_ref().take(COMPLAINT_LEN_MAX).read_to_end(&mut text);
                let _ = std::io::copy(&mut from, &mut std::io::sink());
            }
            complaint(&text)
        });
        if let Some(mut said) = said {
            take(&mut said)?;
        }
        let status = running.0.wait().map_err(SourceError::io("wait for a program"))?;
        let complaints = complaints.join().unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false if complaints.is_empty() => Err(SourceError::Program {
                name,
                said: status.to_string(),
            }),
            false => Err(SourceError::Program { name, said: complaints }),
        }
    }
}

/// A complaint made safe to print: it may contain names chosen by others, with characters that
/// control a terminal.
pub(crate) fn complaint(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let shown = |letter: char| match letter {
        '\n' | '\t' => letter,
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    text.trim().chars().map(shown).collect()
}

/// A child process that does not outlive us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has mostly ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Passes each line to `each`, without its end; a last line without an end counts, too.
pub(crate) fn each_line(from: impl Read, each: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut from = BufReader::with_capacity(1 << 16, from);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut some = from.by_ref().take(LINE_LEN_MAX as u64 + 1);
        let len = some
            .read_until(b'\n', &mut line)
            .map_err(SourceError::io("read the output of a program"))?;
        if len == 0 {
            return Ok(());
        }
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        if content.len() > LINE_LEN_MAX {
            return Err(SourceError::Malformed("a line that is too long"));
        }
        each(content)?;
    }
}

#[cfg(test)]
mod tests;
