//! Rules of a folder's `.bytebackignore` files: which paths are ignored. Pure; other modules keep
//! the rules up to date and act on them.
//!
//! The grammar is that of `.gitignore`, and so is the meaning of several files together: one counts
//! for its directory and all below it; of all patterns that match a path the last one in the
//! deepest file decides; `!` takes a path back in. **Everything in an ignored directory is
//! ignored**, whatever any pattern says of it. A malformed pattern matches nothing, and is reported
//! ([`IgnoreRules::unusable`]); so is a line that is not text: the rules of a synced folder are
//! another machine's as well, and must not keep it from being synced.
//!
//! A `.bytebackignore` is not ignored by its own patterns, only by those of a directory above.
//!
//! A directory that holds a `CACHEDIR.TAG` with the right beginning ([`is_cache_tag`]) is ignored
//! with all that is in it, the tag included.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// A file of this name holds rules.
pub const RULES_NAME: &[u8] = b".bytebackignore";

/// A file of this name says that its directory is a cache, if it begins as one.
pub const CACHE_TAG_NAME: &[u8] = b"CACHEDIR.TAG";

/// How such a file begins (<https://bford.info/cachedir/>).
const CACHE_TAG_BEGIN: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Bytes of a `CACHEDIR.TAG` that have to be read to know what it is.
pub const CACHE_TAG_LEN: usize = CACHE_TAG_BEGIN.len();

/// Whether a `CACHEDIR.TAG` that begins with these bytes is one.
#[must_use]
pub fn is_cache_tag(begin: &[u8]) -> bool {
    begin.starts_with(CACHE_TAG_BEGIN)
}

/// An unusable line of a file with rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnusablePattern {
    /// The directory of the file, relative to the folder; empty: the folder itself.
    pub directory: Vec<u8>,
    /// The line, from 1 on.
    pub line: usize,
    /// Reason why it is unusable.
    pub why: String,
}

/// Ignore rules of a folder: see the module.
#[derive(Clone, Debug, Default)]
pub struct IgnoreRules {
    files: BTreeMap<Vec<u8>, Gitignore>,
    caches: BTreeSet<Vec<u8>>,
    unusable: BTreeMap<Vec<u8>, Vec<UnusablePattern>>,
}

impl IgnoreRules {
    /// Whether nothing is ignored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.caches.is_empty()
    }

    /// Sets the text of a directory's `.bytebackignore`; `None`: it has none. The directory is
    /// relative to the folder, without a slash at either end; empty: the folder itself.
    pub fn set_file(&mut self, directory: &[u8], text: Option<&[u8]>) {
        self.files.remove(directory);
        self.unusable.remove(directory);
        let Some(text) = text else { return };
        // Byte order mark, which editors of other systems put before text.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut builder = GitignoreBuilder::new("");
        let mut unusable = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let added = match std::str::from_utf8(line) {
                Ok(line) => builder
                    .add_line(None, line)
                    .map(drop)
                    .map_err(|error| error.to_string()),
                Err(_) => Err("it is not UTF-8 text".to_owned()),
            };
            if let Err(why) = added {
                unusable.push(UnusablePattern {
                    directory: directory.to_vec(),
                    line: index.saturating_add(1),
                    why,
                });
            }
        }
        match builder.build() {
            Ok(built) if !built.is_empty() => drop(self.files.insert(directory.to_vec(), built)),
            Ok(_) => {}
            Err(error) => unusable.push(UnusablePattern {
                directory: directory.to_vec(),
                line: 1,
                why: error.to_string(),
            }),
        }
        if !unusable.is_empty() {
            self.unusable.insert(directory.to_vec(), unusable);
        }
    }

    /// Sets whether a directory has a `CACHEDIR.TAG`. The folder itself cannot be ignored.
    pub fn set_cache(&mut self, directory: &[u8], is_cache: bool) {
        match is_cache && !directory.is_empty() {
            true => self.caches.insert(directory.to_vec()),
            false => self.caches.remove(directory),
        };
    }

    /// Lines that are unusable.
    pub fn unusable(&self) -> impl Iterator<Item = &UnusablePattern> {
        self.unusable.values().flatten()
    }

    /// Whether a path, relative to the folder and without a slash at either end, is ignored, itself
    /// or by a directory that it is in.
    #[must_use]
    pub fn is_ignored(&self, path: &[u8], is_directory: bool) -> bool {
        if self.is_empty() || path.is_empty() {
            return false;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut above = slashes.filter_map(|(at, _)| path.get(..at));
        above.any(|directory| self.is_ignored_itself(directory, true)) || self.is_ignored_itself(path, is_directory)
    }

    /// As [`is_ignored`](Self::is_ignored), of a path in a directory that is not ignored.
    #[must_use]
    pub fn is_ignored_itself(&self, path: &[u8], is_directory: bool) -> bool {
        if is_directory && self.caches.contains(path) {
            return true;
        }
        let name_at = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |at| at.saturating_add(1));
        let mut is_passed_over = path.get(name_at..) == Some(RULES_NAME);
        // The deepest file first.
        let mut end = path.len();
        loop {
            let slash = path
                .get(..end)
                .and_then(|above| above.iter().rposition(|byte| *byte == b'/'));
            let directory = slash.and_then(|at| path.get(..at)).unwrap_or_default();
            let is_its_own = std::mem::take(&mut is_passed_over);
            if let Some(rules) = self.files.get(directory).filter(|_| !is_its_own) {
                let below = path
                    .get(slash.map_or(0, |at| at.saturating_add(1))..)
                    .unwrap_or_default();
                match rules.matched(Path::new(OsStr::from_bytes(below)), is_directory) {
                    Match::None => {}
                    decided => return decided.is_ignore(),
                }
            }
            match slash {
                Some(at) => end = at,
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests;
