//! The second round of a push: names that are new here, and files whose contents changed, once all
//! directories that both ends have were compared.
//!
//! Only then is it known which nodes of the server lost their names. Directories that only the
//! server has are listed now, as far as it may pay: the listing ends when it has cost about as much
//! as the names and contents that wait.
//!
//! *A moved directory* has the time or the name of a directory that is gone, and an entry in common
//! with it. It keeps its identity, and one name is sent for it; everything in it is then compared
//! as in a directory that both have, except that no content is taken for the same without a proof.
//! Excluded paths and other file systems could be hidden in such a directory, so with these options
//! directories are new, and their files are looked for one by one.

use super::known::{LOOSE_MAX, Later, Loose};
use super::{Comparison, Directory, Name};
use crate::error::Result;
use crate::local_node::LocalNode;
use crate::monitor::{Change, check_cancelled};
use crate::tree_reader::{TreeReader, join_path};
use byteback_api::messages::{DIGESTS_MAX, EntryInfo};
use byteback_host::tree::{self, Descent, Stat};
use byteback_model::{Attributes, ByteString, FileId, NodeKind};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The price of a new node's record, in bytes on the wire.
const NODE_PRICE: u64 = 256;

/// The price of a name in a listing, in bytes on the wire.
const NAME_PRICE: u64 = 64;

/// Names of the server that are listed in any case.
const LISTED_MIN: u64 = 256;

/// Local names that are looked at to see what a listing is worth, or which directory one was.
const LOOKED_AT_MAX: usize = 100_000;

/// Entries of the server that are kept until they are compared.
const LISTED_KEPT: usize = LOOSE_MAX;

impl Comparison<'_, '_, '_> {
    /// Compares what waited, and removes what is gone.
    pub(super) fn late(&mut self, way: &mut Descent, reader: &mut TreeReader<'_>) -> Result<()> {
        self.elsewhere.is_gathering = false;
        let later = std::mem::take(&mut self.elsewhere.later);
        if !later.is_empty() {
            self.list_what_is_only_there(way, &later)?;
            self.list_what_was_skipped(way, &later)?;
        }
        let (dirs, files): (Vec<Later>, Vec<Later>) = later.into_iter().partition(|later| later.is_directory);
        for later in dirs {
            let below = self.one_later(way, &later)?;
            self.walk(way, below.into_iter().collect(), reader)?;
        }
        for some in files.chunks(DIGESTS_MAX) {
            let mut wanted = Vec::new();
            for later in some {
                let own = later.there.as_ref().map(|entry| entry.node.id);
                let alike = self.alike((later.size, later.mtime_ns), own);
                wanted.extend(alike.into_iter().map(|id| (id, later.size)));
            }
            self.prepare(&wanted)?;
            for later in some {
                let below = self.one_later(way, later)?;
                self.walk(way, below.into_iter().collect(), reader)?;
            }
        }
        self.remove_names()
    }

    /// Gets to know the files of the server in directories that were skipped, if their names cost
    /// less than the new files that wait, which may be copies of them. A file that changed follows
    /// its own former content.
    fn list_what_was_skipped(&mut self, way: &mut Descent, later: &[Later]) -> Result<()> {
        let is_new = |later: &&Later| later.there.is_none();
        if !self.elsewhere.is_sought || self.equal.skipped.is_empty() || !later.iter().any(|later| is_new(&later)) {
            return Ok(());
        }
        let worth = self.worth(way, later.iter().filter(is_new))?;
        if worth < self.equal.skipped_names.saturating_mul(NAME_PRICE) {
            return Ok(());
        }
        let mut reader = self.reader();
        let mut to_do = std::mem::take(&mut self.equal.skipped);
        while let Some((dir, path)) = to_do.pop() {
            check_cancelled(self.job.monitor)?;
            let known = &mut self.elsewhere.known;
            reader.entries(dir, &path, |entry| {
                known.add(&entry.node);
                if entry.node.attributes.kind == NodeKind::Directory {
                    to_do.push((entry.node.id, join_path(&path, entry.name.as_bytes())));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn one_later(&mut self, way: &mut Descent, later: &Later) -> Result<Option<Directory>> {
        check_cancelled(self.job.monitor)?;
        let (above, name) = match later.path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (
                later.path.get(..slash).unwrap_or_default(),
                later.path.get(slash + 1..).unwrap_or_default(),
            ),
            None => (&b""[..], &later.path[..]),
        };
        let dir = match way.open(above) {
            Ok(dir) => dir,
            Err(error) => {
                self.failed(&later.path, &error.to_string());
                return Ok(None);
            }
        };
        let place = Name {
            dir: &dir,
            parent: later.parent,
            name: OsStr::from_bytes(name).to_owned(),
            path: later.path.clone(),
            is_moved: false,
        };
        self.name(&place, &ByteString::from(name), later.there.as_deref())
    }

    /// Sends the names that are gone, in the order of their paths.
    fn remove_names(&mut self) -> Result<()> {
        let removals = std::mem::take(&mut self.elsewhere.removals);
        let mut removals: Vec<_> = removals.into_iter().collect();
        removals.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
        for ((parent, name), removal) in removals {
            self.entry(parent, name, None)?;
            if !removal.is_moved {
                self.report.removed += 1;
                self.tell(&removal.path, Change::Removed);
            }
        }
        Ok(())
    }

    /// Lists the directories that only the server has.
    fn list_what_is_only_there(&mut self, way: &mut Descent, later: &[Later]) -> Result<()> {
        let mut to_do = std::mem::take(&mut self.elsewhere.dirs_there);
        if to_do.is_empty() {
            return Ok(());
        }
        let mut left = (self.worth(way, later.iter())? / NAME_PRICE).saturating_add(LISTED_MIN);
        let mut kept = 0_usize;
        let mut reader = self.reader();
        while let Some((dir, path)) = to_do.pop_front() {
            check_cancelled(self.job.monitor)?;
            let is_loose = self.elsewhere.loose.get(dir).is_some();
            let mut entries: Vec<EntryInfo> = Vec::new();
            let is_whole = reader.entries_while(dir, &path, |entry| {
                left = left.saturating_sub(1);
                entries.push(entry);
                Ok(left > 0)
            })?;
            for entry in &entries {
                let below = join_path(&path, entry.name.as_bytes());
                let is_directory = entry.node.attributes.kind == NodeKind::Directory;
                // Excluded files do not lose their names, but may be copied.
                if is_directory && self.job.options.exclude.is_excluded(&below, true) {
                    continue;
                }
                self.elsewhere.known.add(&entry.node);
                if is_loose {
                    self.elsewhere.loose.add(Loose {
                        parent: dir,
                        name: entry.name.clone(),
                        path: below.clone(),
                        node: entry.node.clone(),
                    });
                }
                match is_directory {
                    true => to_do.push_back((entry.node.id, below)),
                    false => self.elsewhere.only_there(entry, &below),
                }
            }
            kept = kept.saturating_add(entries.len());
            if is_loose && is_whole && kept <= LISTED_KEPT {
                self.elsewhere.listed.insert(dir, entries);
            }
            if left == 0 || kept > LISTED_KEPT {
                break;
            }
        }
        Ok(())
    }

    /// The price of sending what waits, in bytes.
    fn worth<'l>(&self, way: &mut Descent, later: impl Iterator<Item = &'l Later>) -> Result<u64> {
        let (dirs, files): (Vec<&Later>, Vec<&Later>) = later.partition(|later| later.is_directory);
        let price = |size: u64| size.saturating_add(NODE_PRICE);
        let mut worth = files
            .iter()
            .fold(0_u64, |sum, later| sum.saturating_add(price(later.size)));
        let mut to_do: Vec<Vec<u8>> = dirs.into_iter().map(|later| later.path.clone()).collect();
        let mut looked_at = 0;
        while let Some(path) = to_do.pop() {
            check_cancelled(self.job.monitor)?;
            // Unreadable ones are reported when they are compared.
            let Ok(dir) = way.open(&path) else { continue };
            let Ok(entries) = tree::read_dir(&dir, 0) else { continue };
            for entry in entries.flatten() {
                looked_at += 1;
                if looked_at > LOOKED_AT_MAX {
                    return Ok(worth);
                }
                let Ok(stat) = tree::stat_at(&dir, &entry.name) else {
                    continue;
                };
                match stat.kind {
                    NodeKind::Directory => to_do.push(join_path(&path, entry.name.as_bytes())),
                    NodeKind::File => worth = worth.saturating_add(price(stat.size)),
                    _ => {}
                }
            }
        }
        Ok(worth)
    }

    /// The directory of the server that a new one was until now, if there is one; it has left its
    /// name.
    pub(super) fn claim_directory(
        &mut self,
        name: &ByteString,
        node: &LocalNode,
        attributes: &Attributes,
    ) -> Option<Loose> {
        let options = self.job.options;
        let elsewhere = &self.elsewhere;
        if !elsewhere.is_sought || elsewhere.is_gathering || options.one_file_system || !options.exclude.is_empty() {
            return None;
        }
        let mut candidates = elsewhere.loose.dirs(attributes.mtime_ns, name);
        candidates.retain(|id| !self.taken.contains(id));
        if candidates.is_empty() {
            return None;
        }
        let here: HashMap<OsString, Stat> = tree::read_dir(node.fd(), 0)
            .ok()?
            .flatten()
            .take(LOOKED_AT_MAX)
            .filter_map(|entry| Some((entry.name.clone(), tree::stat_at(node.fd(), &entry.name).ok()?)))
            .collect();
        let mut best: Option<(usize, FileId)> = None;
        for id in candidates {
            let Some(there) = elsewhere.listed.get(&id) else {
                continue;
            };
            let is_of_time = elsewhere
                .loose
                .get(id)
                .is_some_and(|loose| loose.node.attributes.mtime_ns == attributes.mtime_ns);
            let shared = match here.is_empty() && there.is_empty() && is_of_time {
                true => 1,
                false => there.iter().filter(|entry| is_in(&here, entry)).count(),
            };
            if shared > best.map_or(0, |(most, _)| most) {
                best = Some((shared, id));
            }
        }
        let loose = self.elsewhere.loose.take(best?.1)?;
        self.take_identity(&loose);
        Some(loose)
    }
}

/// Whether an entry of the server seems to be in a local directory.
fn is_in(here: &HashMap<OsString, Stat>, entry: &EntryInfo) -> bool {
    let there = &entry.node.attributes;
    here.get(OsStr::from_bytes(entry.name.as_bytes())).is_some_and(|stat| {
        stat.kind == there.kind
            && (stat.kind != NodeKind::File || (stat.size, stat.mtime_ns) == (there.size, there.mtime_ns))
    })
}
