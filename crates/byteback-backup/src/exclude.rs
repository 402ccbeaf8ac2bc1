//! Paths that are left alone: patterns in the grammar of `.gitignore`.
//!
//! Later patterns win over earlier ones, `!` takes a path back in, a `/` at the beginning or in the
//! middle ties a pattern to the root of what is sent or fetched, a `/` at the end lets it match
//! directories only. Everything below an excluded directory is excluded with it, whatever other
//! patterns say, as it is never looked at.
//!
//! Excluded paths are not removed with the directory that they are in either: that directory stays,
//! and so do the directories on the way to it.

use crate::error::{BackupError, Result};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Patterns of paths that are neither sent, fetched nor removed.
#[derive(Clone, Debug)]
pub struct Exclude(Gitignore);

impl Default for Exclude {
    fn default() -> Self {
        Self(Gitignore::empty())
    }
}

impl Exclude {
    /// Reads patterns, one in each text; empty ones and comments (`#`) count for nothing.
    ///
    /// # Errors
    /// [`BackupError::Local`] for an invalid pattern.
    pub fn new<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut builder = GitignoreBuilder::new("");
        for pattern in patterns {
            let pattern = pattern.as_ref();
            builder.add_line(None, pattern).map_err(|error| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
                BackupError::local("use", format!("the pattern '{pattern}'"), error)
            })?;
        }
        let built = builder.build().map_err(|error| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
            BackupError::local("use", "the patterns", error)
        })?;
        Ok(Self(built))
    }

    /// Whether there is no pattern.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path`, which is below the root and whose directory is not excluded, is left alone.
    #[must_use]
    pub fn is_excluded(&self, path: &[u8], is_directory: bool) -> bool {
        !self.0.is_empty()
            && self
                .0
                .matched(Path::new(OsStr::from_bytes(path)), is_directory)
                .is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_git() {
        let exclude = Exclude::new(["# comment", "", "*.o", "!keep.o", "/build", "tmp/", "a/*/z", "sp ace"]).unwrap();
        for (path, is_directory, excluded) in [
            ("x.o", false, true),
            ("deep/down/x.o", false, true),
            ("keep.o", false, false),
            ("build", true, true),
            ("build", false, true),
            ("src/build", true, false),
            ("tmp", true, true),
            ("src/tmp", true, true),
            ("tmp", false, false),
            ("a/b/z", false, true),
            ("a/b/c/z", false, false),
            ("sp ace", false, true),
            ("# comment", false, false),
            ("other", false, false),
        ] {
            assert_eq!(exclude.is_excluded(path.as_bytes(), is_directory), excluded, "{path}");
        }
        assert!(exclude.is_excluded(b"\xff\xfe.o", false), "names that are no text");
        assert!(!Exclude::default().is_excluded(b"x.o", false));
        assert!(Exclude::new(["[z-a]"]).is_err(), "a class that ends before it begins");
    }
}
