//! The dry run of a pull.

use super::place::Place;
use super::pull::{Rules, Verdict, for_each_other};
use super::{NotRestored, NotRestoredKind, RestoreReport};
use crate::error::{BackupError, Result};
use crate::monitor::{Change, Event, Phase, check_cancelled};
use crate::tree_reader::TreeReader;
use byteback_api::messages::EntryInfo;
use byteback_host::tree::{self, Identity};
use byteback_model::{Attributes, ByteString, FileId, NodeKind};
use rustix::fs::{Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A dry run.
struct Looking<'r, 'a> {
    rules: &'r Rules<'a>,
    target: Option<OwnedFd>,
    /// Descriptors on the way to the directory that was opened last.
    way: Option<tree::Descent>,
    report: RestoreReport,
    /// The first name of each file of the server: its inode here, if it would stay.
    first_names: HashMap<FileId, Option<Identity>>,
}

/// Compares everything at `path` with `target`.
pub(super) fn look(rules: &Rules<'_>, tree: &mut TreeReader<'_>, path: &[u8], target: &Path) -> Result<RestoreReport> {
    let node = tree.node_at(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let target = match rustix::fs::open(target, flags, Mode::empty()) {
        Ok(dir) => Some(dir),
        Err(rustix::io::Errno::NOENT) => None,
        Err(errno) => {
            let shown = target.display().to_string();
            return Err(BackupError::local("open the directory", shown, errno.into()));
        }
    };
    rules.monitor.event(Event::Phase(Phase::Restoring));
    let mut looking = Looking {
        rules,
        target,
        way: None,
        report: RestoreReport {
            seq: rules.at,
            ..RestoreReport::default()
        },
        first_names: HashMap::new(),
    };
    if node.attributes.kind != NodeKind::Directory {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let place = Place {
            dir: Vec::new(),
            name: OsStr::from_bytes(name).to_owned(),
        };
        let entry = EntryInfo {
            name: ByteString::from(name),
            node,
        };
        let dir = looking.target.take();
        looking.node(dir.as_ref(), &place, &entry)?;
        return Ok(looking.report);
    }
    match &looking.target {
        Some(target) => rules.look_at_root(target, &node)?,
        None => rules.tell(b"", Change::Attributes),
    }
    let mut to_do = vec![(Vec::new(), node.id, looking.target.is_some())];
    while let Some((path, id, is_there)) = to_do.pop() {
        looking.directory(tree, path, id, is_there, &mut to_do)?;
    }
    Ok(looking.report)
}

impl Looking<'_, '_> {
    fn directory(
        &mut self,
        tree: &mut TreeReader<'_>,
        path: Vec<u8>,
        id: FileId,
        is_there: bool,
        to_do: &mut Vec<(Vec<u8>, FileId, bool)>,
    ) -> Result<()> {
        check_cancelled(self.rules.monitor)?;
        let mut dir = None;
        if let Some(target) = self.target.as_ref().filter(|_| is_there) {
            if self.way.is_none() {
                self.way = tree::Descent::new(target).ok();
            }
            let opened = match &mut self.way {
                Some(way) => way.open(&path),
                None => tree::open_beneath(target, Path::new(OsStr::from_bytes(&path))),
            };
            match opened.and_then(|named| tree::reopen(&named, OFlags::RDONLY | OFlags::DIRECTORY)) {
                Ok(opened) => dir = Some(opened),
                Err(error) => {
                    self.failed(&path, &error.to_string());
                    return Ok(());
                }
            }
        }
        let mut names: HashSet<OsString> = HashSet::new();
        let mut below = Vec::new();
        tree.entries(id, &path, |entry| {
            check_cancelled(self.rules.monitor)?;
            let place = Place {
                dir: path.clone(),
                name: OsString::from_vec(entry.name.as_bytes().to_vec()),
            };
            let is_directory = entry.node.attributes.kind == NodeKind::Directory;
            if self.rules.is_excluded(&place.path(), is_directory) {
                return Ok(());
            }
            names.insert(place.name.clone());
            if !is_directory {
                return self.node(dir.as_ref(), &place, &entry);
            }
            let is_there = match self.rules.judge(dir.as_ref(), &place, &entry.node)? {
                Ok(Verdict::Keep) => true,
                Ok(Verdict::Attributes) => {
                    self.rules.tell(&place.path(), Change::Attributes);
                    self.foresee(&place.path(), &entry.node.attributes);
                    true
                }
                Ok(Verdict::Make(change)) => {
                    self.rules.tell(&place.path(), change);
                    self.foresee(&place.path(), &entry.node.attributes);
                    false
                }
                Ok(Verdict::Blocked(why)) => {
                    self.failed(&place.path(), why);
                    return Ok(());
                }
                Err(error) => {
                    self.failed(&place.path(), &error.to_string());
                    return Ok(());
                }
            };
            below.push((place.path(), entry.node.id, is_there));
            Ok(())
        })?;
        if let Some(dir) = dir.filter(|_| self.rules.delete) {
            self.others(&dir, &path, &names);
        }
        to_do.extend(below);
        Ok(())
    }

    /// Looks at a node other than a directory.
    fn node(&mut self, dir: Option<&OwnedFd>, place: &Place, entry: &EntryInfo) -> Result<()> {
        let here = dir.and_then(|dir| tree::stat_at(dir, &place.name).ok());
        if let Some(first) = self.first_names.get(&entry.node.id) {
            let is_linked = first.is_some() && here.map(|here| here.identity()) == *first;
            if !is_linked {
                let judged = dir.map_or(Ok(()), |dir| self.rules.judge_link(dir, place, here.as_ref()));
                if let Err(error) = judged {
                    self.failed(&place.path(), &error.to_string());
                    return Ok(());
                }
                self.rules.tell(&place.path(), Change::New);
            }
            self.report.hard_links += 1;
            return Ok(());
        }
        let is_file = entry.node.attributes.kind == NodeKind::File;
        let mut stays = None;
        match self.rules.judge(dir, place, &entry.node)? {
            Ok(Verdict::Keep) => stays = here,
            Ok(Verdict::Attributes) => {
                // A node other than a file is made anew.
                stays = here.filter(|_| is_file);
                self.rules.tell(&place.path(), Change::Attributes);
                self.foresee(&place.path(), &entry.node.attributes);
            }
            Ok(Verdict::Make(change)) => {
                self.rules.tell(&place.path(), change);
                self.foresee(&place.path(), &entry.node.attributes);
                if is_file {
                    self.report.files += 1;
                    self.report.written_bytes += entry.node.attributes.size;
                }
            }
            Ok(Verdict::Blocked(why)) => {
                self.failed(&place.path(), why);
                return Ok(());
            }
            Err(error) => {
                self.failed(&place.path(), &error.to_string());
                return Ok(());
            }
        }
        match is_file {
            true if stays.is_some() => self.report.files_kept += 1,
            true => {}
            false => self.report.specials += 1,
        }
        let first = stays.map(|here| here.identity());
        self.first_names.insert(entry.node.id, first);
        Ok(())
    }

    fn others(&mut self, dir: &OwnedFd, path: &[u8], names: &HashSet<OsString>) {
        let rules = self.rules;
        for_each_other(
            Some(rules),
            dir,
            path,
            names,
            &|_| false,
            &mut |below, other| match other {
                Ok(_) => {
                    self.report.removed += 1;
                    rules.tell(below, Change::Removed);
                }
                Err(error) => self.failed(below, &error.to_string()),
            },
        );
    }

    /// Counts a name that a pull could not make right.
    fn failed(&mut self, path: &[u8], reason: &str) {
        self.not_restored(NotRestoredKind::File, path, reason);
        let path = ByteString::from(path);
        self.rules.monitor.event(Event::FileFailed { path: &path, reason });
    }

    /// Counts the attributes that need privilege, as far as can be foreseen.
    fn foresee(&mut self, path: &[u8], wanted: &Attributes) {
        let owner = rustix::process::geteuid();
        for kind in needing_privilege(wanted, owner.as_raw()) {
            self.not_restored(kind, path, "it requires root privileges");
        }
    }

    fn not_restored(&mut self, kind: NotRestoredKind, path: &[u8], reason: &str) {
        let all = &mut self.report.not_restored;
        match all.iter_mut().find(|known| known.kind == kind) {
            Some(known) => known.count += 1,
            None => all.push(NotRestored {
                kind,
                count: 1,
                first_path: ByteString::from(path),
                first_reason: reason.to_owned(),
            }),
        }
    }
}

/// The kinds of attributes that a user without privilege cannot give to new nodes.
fn needing_privilege(wanted: &Attributes, user: u32) -> Vec<NotRestoredKind> {
    let is_other = user != 0 && wanted.uid != user;
    let is_device = user != 0 && matches!(wanted.kind, NodeKind::CharDevice | NodeKind::BlockDevice);
    let kinds = [
        (is_device, NotRestoredKind::Device),
        (is_other && !is_device, NotRestoredKind::Owner),
        (
            is_other && !is_device && wanted.mode & 0o6000 != 0,
            NotRestoredKind::SetId,
        ),
    ];
    kinds
        .into_iter()
        .filter(|(is_so, _)| *is_so)
        .map(|(_, kind)| kind)
        .collect()
}

#[cfg(test)]
mod tests;
