//! Contents that the server has in a file of another path: candidates, their proof, and what
//! becomes of the file.
//!
//! A candidate is a guess by length and time, or by length alone. Nothing is taken from it before
//! the digest of the local content equals the one that the server reports of its file at the
//! batch's base; above [`DIGESTED_TOTAL_MAX`], before a signature of 32 bytes for each MiB does. A
//! wrong guess costs a reading and some hundred bytes.
//!
//! *Failing.* A server without the call is asked for signatures. If the server fails otherwise,
//! nothing is looked for any more, and contents are sent.

use super::known::{Loose, NAMESAKE_LEN_MIN, Removal};
use super::{Comparison, Name};
use crate::error::{BackupError, Result};
use crate::local_node::LocalContent;
use crate::monitor::Event;
use crate::same_content::is_same_content;
use byteback_api::Digest;
use byteback_api::messages::{DIGESTED_LEN_MAX, DIGESTED_TOTAL_MAX, DIGESTS_MAX, EntryInfo};
use byteback_client::ServerError;
use byteback_host::tree;
use byteback_model::{Attributes, ByteString, ContentBase, ContentChange, FileId, NodeInfo, NodeKind, NodeRecord};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Digests that are remembered.
const DIGESTS_KEPT: usize = 1 << 16;

/// The way in which a file's content was sent that the server lacked at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Its content is in the batch.
    Content,
    /// The server copies its content.
    Copied,
    /// The file of a path that is gone here had the content; the identity of the new path follows.
    Moved(FileId),
}

impl Comparison<'_, '_, '_> {
    /// The server's files that a content may equal; `own` is the file at its path.
    pub(super) fn alike(&mut self, (size, mtime_ns): (u64, i128), own: Option<FileId>) -> Vec<FileId> {
        let elsewhere = &mut self.elsewhere;
        if !elsewhere.is_sought || elsewhere.is_gathering || elsewhere.known.is_empty() {
            return Vec::new();
        }
        let mut found = elsewhere.known.alike(size, mtime_ns);
        found.retain(|id| Some(*id) != own);
        found
    }

    /// Asks for the digests of files that names of a directory may equal, at once.
    pub(super) fn prepare_directory(
        &mut self,
        dir: &OwnedFd,
        (names, is_moved): (&[OsString], bool),
        at_server: &[EntryInfo],
    ) -> Result<()> {
        if !self.elsewhere.is_sought || self.elsewhere.is_gathering || self.elsewhere.known.is_empty() {
            return Ok(());
        }
        let mut wanted = Vec::new();
        for name in names {
            let Ok(stat) = tree::stat_at(dir, name) else { continue };
            if stat.kind != NodeKind::File || stat.size == 0 {
                continue;
            }
            let place = at_server.binary_search_by(|entry| entry.name.as_bytes().cmp(name.as_bytes()));
            let there = place.ok().and_then(|at| at_server.get(at));
            let is_same = there.is_some_and(|entry| {
                let attributes = &entry.node.attributes;
                (attributes.size, attributes.mtime_ns) == (stat.size, stat.mtime_ns)
            });
            match there {
                Some(entry) if is_same && is_moved => wanted.push((entry.node.id, stat.size)),
                Some(_) if is_same => {}
                _ => {
                    let own = there.map(|entry| entry.node.id);
                    let alike = self.alike((stat.size, stat.mtime_ns), own);
                    wanted.extend(alike.into_iter().map(|id| (id, stat.size)));
                }
            }
        }
        self.prepare(&wanted)
    }

    /// Asks for the digests of files, each with its length, unless they are known.
    pub(super) fn prepare(&mut self, files: &[(FileId, u64)]) -> Result<()> {
        if self.elsewhere.digests.len() > DIGESTS_KEPT {
            self.elsewhere.digests.clear();
        }
        let mut wanted: Vec<FileId> = Vec::new();
        let mut long_bytes = 0_u64;
        for (id, size) in files {
            if *size > DIGESTED_TOTAL_MAX || self.elsewhere.digests.contains_key(id) {
                continue;
            }
            let more_bytes = if *size > DIGESTED_LEN_MAX { *size } else { 0 };
            if wanted.len() == DIGESTS_MAX || long_bytes.saturating_add(more_bytes) > DIGESTED_TOTAL_MAX {
                self.ask_for_digests(&std::mem::take(&mut wanted))?;
                long_bytes = 0;
            }
            if !wanted.contains(id) {
                wanted.push(*id);
                long_bytes = long_bytes.saturating_add(more_bytes);
            }
        }
        self.ask_for_digests(&wanted)
    }

    fn ask_for_digests(&mut self, wanted: &[FileId]) -> Result<()> {
        if wanted.is_empty() || !self.elsewhere.is_sought {
            return Ok(());
        }
        let at = self.record.begun().base_seq;
        let digests = match self.job.server.digests(self.job.folder, at, wanted) {
            Ok(digests) => digests,
            Err(error) => {
                if !error.is_unknown_call() {
                    self.stop_seeking(&error);
                }
                vec![None; wanted.len()]
            }
        };
        self.elsewhere.digests.extend(wanted.iter().copied().zip(digests));
        Ok(())
    }

    fn stop_seeking(&mut self, error: &ServerError) {
        self.elsewhere.is_sought = false;
        self.job.monitor.event(Event::Warning(&format!(
            "the server cannot report what it has under other names ({}); sending everything that remains",
            error.message
        )));
    }

    /// The first of these files of the server that has this content. The inner error is of the
    /// local file.
    pub(super) fn equal_one(
        &mut self,
        content: &LocalContent,
        size: u64,
        files: &[FileId],
    ) -> Result<Result<Option<FileId>, String>> {
        let wanted: Vec<(FileId, u64)> = files.iter().map(|id| (*id, size)).collect();
        self.prepare(&wanted)?;
        let mut here = None;
        let mut has_signature = false;
        for id in files {
            if !self.elsewhere.is_sought {
                break;
            }
            if let Some(Some(there)) = self.elsewhere.digests.get(id) {
                let digest = match here {
                    Some(digest) => digest,
                    None => {
                        self.report.hashed_bytes += size;
                        if let Err(error) = content.read(&[(0, size)], &mut |_| Ok(())) {
                            return Ok(Err(error.message));
                        }
                        content.digest()
                    }
                };
                here = Some(digest);
                if digest.as_ref() == Some(there) {
                    return Ok(Ok(Some(*id)));
                }
                continue;
            }
            // One signature costs as much as many digests.
            if size <= DIGESTED_LEN_MAX || std::mem::replace(&mut has_signature, true) {
                continue;
            }
            match self.is_equal_by_signature(content, size, *id)? {
                Ok(true) => return Ok(Ok(Some(*id))),
                Ok(false) => {}
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(None))
    }

    fn is_equal_by_signature(&mut self, content: &LocalContent, size: u64, id: FileId) -> Result<Result<bool, String>> {
        let base = (self.job.server, self.job.folder, self.record.begun().base_seq);
        let same = is_same_content(
            base,
            id,
            |ranges, sink| content.read(ranges, sink),
            size,
            self.job.monitor,
        );
        self.report.hashed_bytes += size;
        match same {
            Ok(same) => Ok(same.map_err(|error| error.message)),
            // Damaged there, perhaps.
            Err(BackupError::Server(error)) => {
                if error.kind.is_transient() {
                    self.stop_seeking(&error);
                }
                Ok(Ok(false))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a file whose content equals that of `source`: under the identity of that file if it
    /// lost its only name and the path has none, else as a copy.
    pub(super) fn take_over(
        &mut self,
        (id, there): (FileId, Option<&NodeInfo>),
        source: FileId,
        attributes: Attributes,
        content: &LocalContent,
    ) -> Result<Sent> {
        self.count_total(0);
        self.report.found_bytes += attributes.size;
        let loose = match self.taken.contains(&source) {
            true => None,
            false => self.elsewhere.loose.take(source),
        };
        match &loose {
            Some(loose) if there.is_none() && loose.node.names.is_none() => {
                self.take_identity(loose);
                if !super::is_same_as_told(&attributes, &loose.node.attributes) {
                    self.node(source, attributes)?;
                }
                return Ok(Sent::Moved(source));
            }
            Some(loose) => {
                let key = (loose.parent, loose.name.clone());
                if let Some(removal) = self.elsewhere.removals.get_mut(&key) {
                    removal.is_moved = true;
                }
            }
            None => {}
        }
        if let Some(stream) = &mut self.stream {
            stream.node(&NodeRecord {
                id,
                attributes,
                content: Some(ContentChange {
                    deltas: 0,
                    base: ContentBase::Of(source),
                }),
            })?;
            if let Some(digest) = content.digest().filter(|_| self.record.is_resumed()) {
                self.unproven.push((id, Digest(digest)));
            }
        }
        Ok(match loose {
            Some(_) => Sent::Moved(id),
            None => Sent::Copied,
        })
    }

    /// Notes that a local node has the identity of one that loses its name.
    pub(super) fn take_identity(&mut self, loose: &Loose) {
        self.taken.insert(loose.node.id);
        let key = (loose.parent, loose.name.clone());
        match self.elsewhere.removals.get_mut(&key) {
            Some(removal) => removal.is_moved = true,
            // The directory is compared: that deals with all of its names.
            None if self.taken.contains(&loose.parent) => {}
            // The directory goes as a whole; its names would stay in it.
            None => {
                let removal = Removal {
                    path: loose.path.clone(),
                    is_moved: true,
                };
                self.elsewhere.removals.insert(key, removal);
            }
        }
    }

    /// A file of the server that a new one may have grown from: of the same name, and gone or never
    /// here under its path.
    pub(super) fn namesake(&self, place: &Name<'_>, size: u64) -> Option<FileId> {
        if !self.elsewhere.is_sought || self.elsewhere.is_gathering || size < NAMESAKE_LEN_MIN {
            return None;
        }
        let name = ByteString::from(place.name.as_bytes());
        self.elsewhere.namesakes.get(&name).copied().flatten()
    }
}
