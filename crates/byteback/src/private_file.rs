//! Small files of ours that hold secrets or decisions: written whole or not at all, and only for
//! their owner.
//!
//! Order: a new file beside the old one, with mode 0600 from the start; its bytes are synced; it
//! takes the old one's name; the folder is synced. A crash leaves the old file, or the new one, and
//! at worst a `.new` that the next write replaces.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is about to be written. It is created before an action that cannot be repeated,
/// whose result is its content.
#[derive(Debug)]
pub(crate) struct PrivateFile {
    path: PathBuf,
    new: PathBuf,
    file: File,
}

impl PrivateFile {
    /// Opens the new file beside `path`, making its folder (0700) if that is missing.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let parent = parent(path);
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".new");
        let new = parent.join(name);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A symlink that another process puts there in between is refused.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        Ok(Self {
            path: path.to_owned(),
            new,
            file,
        })
    }

    /// Writes the content and gives the file its name.
    pub(crate) fn finish(mut self, content: &[u8]) -> io::Result<()> {
        let written = (|| {
            self.file.write_all(content)?;
            self.file.sync_all()?;
            fs::rename(&self.new, &self.path)
        })();
        if let Err(error) = written {
            self.discard();
            return Err(error);
        }
        File::open(parent(&self.path))?.sync_all()
    }

    /// Removes the new file; the old one stays as it was.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(&self.new);
    }
}

/// Writes `content` to `path` in one step.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    PrivateFile::create(path)?.finish(content)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
