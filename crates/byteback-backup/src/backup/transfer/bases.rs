//! The contents at the server that the files of a cut are compared with, looked up for many files
//! at once before these are sent.
//!
//! - *Predecessors*: the file whose name a new file took over, or which it is a copy of. The tree
//!   knows them.
//! - *Equal contents*: a short file of which anything may have changed is often what it was: a
//!   package extracted again, a folder copied over itself, a machine that stopped. A look for its
//!   blocks would cost a question for each file; the digests of many contents are one question.
//!
//! Nothing rests on a guess: a file counts as equal only if the digest of its bytes at the cut is
//! that of the server's content. Errors cost bytes: the files are then looked for, or sent as they
//! are.

use super::super::changes::changed_bytes;
use super::super::followed::ShortFile;
use super::super::plan::{Call, DeltaChoice, EXAMINED_LEN_MIN, cost};
use super::alike::AlikeFile;
use super::{Transfer, count_node};
use crate::decisions::{Cause, Decision, DeltaMethod};
use crate::error::Result;
use byteback_api::messages::{DIGESTED_LEN_MAX, DIGESTS_MAX};
use byteback_control::{ContentChange, NodeChange, ServiceError};
use byteback_model::{Attributes, ContentBase, ContentChange as BatchContent, FileId, NodeId, NodeKind, NodeRecord};
use std::collections::HashMap;

/// Shorter files are not compared: the question has about their length.
const COMPARED_LEN_MIN: u64 = 512;

/// The contents with which the files that come next are compared.
#[derive(Default)]
pub(super) struct Bases {
    /// The files whose names new files took over, or which these are copies of.
    predecessors: HashMap<NodeId, (NodeId, Cause)>,
    /// Contents of the server that short files may be equal to.
    short: HashMap<NodeId, ShortFile>,
    /// Files of the server that new ones may equal.
    alike: HashMap<NodeId, Vec<AlikeFile>>,
}

impl Bases {
    /// The file that a new one replaced, or is a copy of.
    pub(super) fn predecessor(&self, node: NodeId) -> Option<(NodeId, Cause)> {
        self.predecessors.get(&node).copied()
    }

    /// The content that a short file may be equal to.
    pub(super) fn take_short(&mut self, node: NodeId) -> Option<ShortFile> {
        self.short.remove(&node)
    }

    /// The files that a new one may equal.
    pub(super) fn take_alike(&mut self, node: NodeId) -> Vec<AlikeFile> {
        self.alike.remove(&node).unwrap_or_default()
    }
}

/// Whether a file's content is short enough to be compared as a whole.
fn is_short(attributes: &Attributes) -> bool {
    attributes.kind == NodeKind::File && (COMPARED_LEN_MIN..DIGESTED_LEN_MAX).contains(&attributes.size)
}

impl Transfer<'_, '_, '_> {
    /// Looks up the bases of these files, which come next.
    ///
    /// # Errors
    /// The tree fails as a whole.
    pub(super) fn prepare_bases(
        &mut self,
        changes: &[NodeChange],
        attributes: &[Result<Attributes, ServiceError>],
    ) -> Result<()> {
        self.bases = Bases::default();
        if !self.is_on_top {
            return Ok(());
        }
        let files = || {
            changes.iter().zip(attributes).filter_map(|(change, attributes)| {
                let attributes = attributes.as_ref().ok()?;
                let has_origin = self.job.origins.is_some_and(|origins| origins(change.node).is_some());
                (attributes.kind == NodeKind::File && !has_origin).then_some((change, attributes))
            })
        };
        let is_long_enough = |attributes: &Attributes| attributes.size >= EXAMINED_LEN_MIN || is_short(attributes);
        let new = files().filter(|(change, attributes)| !self.server_has(change) && is_long_enough(attributes));
        let mut new: Vec<(NodeId, u64)> = new.map(|(change, attributes)| (change.node, attributes.size)).collect();
        let predecessors = self.predecessors(new.iter().map(|(node, _)| *node).collect());
        new.retain(|(node, _)| !predecessors.contains_key(node) && !self.job.damaged.contains(node));
        let alike = self.alike(&new)?;
        let short =
            files().filter(|(change, attributes)| is_short(attributes) && !self.job.damaged.contains(&change.node));
        let candidates = short.filter_map(|(change, attributes)| {
            let (base, cause) = match predecessors.get(&change.node) {
                Some((predecessor, cause)) => (*predecessor, *cause),
                None if self.server_has(change) => (change.node, unknown_content(change, attributes.size)?),
                None => return None,
            };
            let id = self.job.file_id(self.cut.tree, base);
            Some((change.node, attributes.size, id, cause))
        });
        let short = self.with_digests(candidates.collect());
        self.bases = Bases {
            predecessors,
            short,
            alike,
        };
        Ok(())
    }

    /// The files that these new ones replaced, or were copied from.
    fn predecessors(&self, new: Vec<NodeId>) -> HashMap<NodeId, (NodeId, Cause)> {
        if new.is_empty() {
            return HashMap::new();
        }
        let Ok(reported) = self.job.tree.names(self.cut.cut, &new) else {
            return HashMap::new();
        };
        let grown = new.into_iter().zip(reported).filter_map(|(node, names)| {
            let is_there = |old: &NodeId| !self.missing.contains(old);
            let replaced = names.stood_for.filter(is_there).map(|old| (old, Cause::Replaced));
            let copied = || names.copied_from.filter(is_there).map(|old| (old, Cause::Copied));
            Some((node, replaced.or_else(copied)?))
        });
        grown.collect()
    }

    /// Asks for the digests of contents that short files may be equal to, if that is expected to
    /// cost less than it saves.
    fn with_digests(&self, candidates: Vec<(NodeId, u64, FileId, Cause)>) -> HashMap<NodeId, ShortFile> {
        let job = self.job;
        let mut found = HashMap::new();
        let Some(at) = self.compared_seq else { return found };
        for some in candidates.chunks(DIGESTS_MAX) {
            let total_bytes = some.iter().map(|(_, size, ..)| size).sum();
            let is_wanted = job.options.delta == DeltaChoice::Auto && !job.proof_refused.get();
            let can_ask = is_wanted && job.answers.get().has(Call::Digests);
            if !can_ask || !cost::is_comparing_worth(some.len(), total_bytes, &self.conditions()) {
                continue;
            }
            let ids: Vec<FileId> = some.iter().map(|(_, _, id, _)| *id).collect();
            match job.server.digests(job.folder, at, &ids) {
                Ok(digests) => found.extend(some.iter().zip(digests).filter_map(|((node, _, id, cause), digest)| {
                    let (id, cause, digest) = (*id, *cause, digest?);
                    Some((*node, ShortFile { id, digest, cause }))
                })),
                Err(error) => job.note_unanswered(Call::Digests, &error),
            }
        }
        found
    }

    /// Whether a short file equals the server's.
    pub(super) fn is_same_short(&mut self, node: NodeId, size_bytes: u64, there: &ShortFile) -> Result<bool> {
        Ok(self.digest_of(node, size_bytes)? == Some(there.digest))
    }

    /// Sends a file whose content the server has, in this file or in another one.
    pub(super) fn send_as_existing(
        &mut self,
        change: &NodeChange,
        id: FileId,
        attributes: Attributes,
        (base, cause): (ContentBase, Cause),
    ) -> Result<()> {
        let size_bytes = attributes.size;
        self.stream.node(&NodeRecord {
            id,
            attributes,
            // Also its own content is a new one: it was written, and stands against a removal by
            // others.
            content: Some(BatchContent { deltas: 0, base }),
        })?;
        self.report.changed_bytes += size_bytes;
        self.report.found_bytes += size_bytes;
        self.report.examined_files += 1;
        let is_own = base == ContentBase::Of(id);
        self.report.followed_files += u64::from(!is_own);
        if let Some(decisions) = &mut self.decisions {
            decisions.decided(&Decision {
                node: change.node,
                method: DeltaMethod::Hash,
                cause,
                fallback: None,
                size_bytes,
                changed_bytes: size_bytes,
                hashed_bytes: size_bytes,
                found_bytes: size_bytes,
                literal_bytes: 0,
            });
        }
        count_node(change, self.report);
        self.missing.remove(&change.node);
        self.job.monitor.end_node(None);
        Ok(())
    }
}

/// Why nothing of a content is known to be what it was; `None` if some of it is.
fn unknown_content(change: &NodeChange, size_bytes: u64) -> Option<Cause> {
    match &change.content {
        ContentChange::Whole(reason) => Some(Cause::Whole(*reason)),
        ContentChange::Ranges(_) if changed_bytes(&change.content, size_bytes) == size_bytes => Some(Cause::Rewritten),
        ContentChange::Ranges(_) | ContentChange::Unchanged => None,
    }
}
