//! Where unit files are, and how they are written, enabled and removed.
//!
//! A unit is enabled by a link to its file in the `.wants` directory of a target, which is what
//! `systemctl enable` makes. Order of the installation: file, link. Order of the removal: link,
//! file, then the directories that the installation made, unless other files are in them by now.
//! After a crash in between, the same command run again completes the work.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::unit::{MADE, MARK, parse_name, wanted_by};
use crate::error::{CommandError, Result};

/// A directory of units.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) dir: PathBuf,
    pub(super) is_of_user: bool,
    /// Whether the units belong to another system than the running one.
    pub(super) is_elsewhere: bool,
}

/// The effect of an installation on a unit file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    New,
    Changed,
    Same,
}

impl Places {
    pub(super) fn unit_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn wants(&self) -> PathBuf {
        self.dir.join(format!("{}.wants", wanted_by(self.is_of_user)))
    }

    pub(super) fn link_path(&self, name: &str) -> PathBuf {
        self.wants().join(name)
    }

    pub(super) fn is_enabled(&self, name: &str) -> bool {
        fs::symlink_metadata(self.link_path(name)).is_ok()
    }

    /// The names of our units, sorted.
    pub(super) fn all(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| CommandError::file("read", &self.dir, &error))?,
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter(|name| parse_name(name).is_some() && self.read(name).is_ok_and(|text| text.starts_with(MARK)))
            .collect();
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.unit_path(name))
    }

    /// Writes a unit and enables it.
    pub(super) fn install(&self, name: &str, text: &str) -> Result<Written> {
        let path = self.unit_path(name);
        let old = match self.read(name) {
            Ok(old) if old.starts_with(MARK) => Some(old),
            Ok(_) => {
                return Err(CommandError::new(format!(
                    "{} already exists and was not written by Byteback",
                    path.display()
                ))
                .next("If it is not needed, move it elsewhere and run the same command again."));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(CommandError::file("read", &path, &error)),
        };
        // Notes about directories of earlier installations are kept.
        let mut made: Vec<String> = old
            .iter()
            .flat_map(|old| old.lines())
            .filter_map(|line| line.strip_prefix(MADE))
            .map(str::to_owned)
            .collect();
        let wants = self.wants();
        for dir in Self::missing(&wants) {
            fs::create_dir(&dir).map_err(|error| CommandError::file("create the directory", &dir, &error))?;
            made.push(self.below(&dir));
        }
        let notes: String = made.iter().map(|dir| format!("{MADE}{dir}\n")).collect();
        let text = text.replacen('\n', &format!("\n{notes}"), 1);
        let written = match old {
            Some(old) if old == text => Written::Same,
            Some(_) => Written::Changed,
            None => Written::New,
        };
        if written != Written::Same {
            write(&path, &text).map_err(|error| CommandError::file("write the unit", &path, &error))?;
        }
        let link = self.link_path(name);
        match symlink(Path::new("..").join(name), &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(|error| CommandError::file("create the link", &link, &error))?,
        }
        Ok(written)
    }

    /// Disables one of our units and removes its file.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let (path, link) = (self.unit_path(name), self.link_path(name));
        let text = self
            .read(name)
            .map_err(|error| CommandError::file("read", &path, &error))?;
        for gone in [&link, &path] {
            match fs::remove_file(gone) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(|error| CommandError::file("remove", gone, &error))?,
            }
        }
        let made: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(MADE)).collect();
        for dir in made.into_iter().rev() {
            let dir = self.top().join(dir);
            if fs::remove_dir(&dir).is_err() {
                // It holds another unit of ours, which inherits the note and removes the directory
                // later.
                self.hand_on(&dir)?;
            }
        }
        Ok(())
    }

    /// Notes in another unit of ours that a directory was made for it, too.
    fn hand_on(&self, dir: &Path) -> Result<()> {
        let note = format!("{MADE}{}\n", self.below(dir));
        let Some(heir) = self.all()?.into_iter().next() else {
            return Ok(());
        };
        let path = self.unit_path(&heir);
        let text = self
            .read(&heir)
            .map_err(|error| CommandError::file("read", &path, &error))?;
        if text.contains(&note) || !dir.exists() {
            return Ok(());
        }
        // The topmost directory is made first, so it is listed first.
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let mut notes: Vec<&str> = rest.lines().take_while(|line| line.starts_with(MADE)).collect();
        notes.push(note.trim_end());
        notes.sort_by_key(|note| note.len());
        let body: Vec<&str> = rest.lines().skip_while(|line| line.starts_with(MADE)).collect();
        let text = format!("{first}\n{}\n{}\n", notes.join("\n"), body.join("\n"));
        write(&path, &text).map_err(|error| CommandError::file("write the unit", &path, &error))
    }

    /// The directory that contains all our files: the root of the system, or the parent of the
    /// user's configuration folder.
    fn top(&self) -> &Path {
        self.dir.ancestors().nth(3).unwrap_or(Path::new("/"))
    }

    fn below(&self, dir: &Path) -> String {
        dir.strip_prefix(self.top()).unwrap_or(dir).display().to_string()
    }

    /// The missing directories on the way to `dir`, the topmost first.
    fn missing(dir: &Path) -> Vec<PathBuf> {
        let mut missing: Vec<PathBuf> = dir
            .ancestors()
            .take_while(|dir| !dir.exists())
            .map(Path::to_owned)
            .collect();
        missing.reverse();
        missing
    }
}

/// Writes a file that every user may read, whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("service.new");
    let mut file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}
