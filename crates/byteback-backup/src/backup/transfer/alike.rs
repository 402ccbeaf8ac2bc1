//! New files that equal one that the server has: copied by reading and writing, moved in from
//! outside, extracted again, rotated.
//!
//! No program said where such a content is from, and the mount cannot know. The server is asked
//! which of its files have the lengths of new ones and begin like them, many at once; such a file
//! is then compared by the digest of its content, a very long one by a signature of 32 bytes for
//! each MiB. The files may be gone from the tree: what was moved out comes back as a copy.
//!
//! Nothing rests on a guess, and errors cost bytes, as in [`super::bases`].

use super::Transfer;
use crate::backup::plan::{Call, DeltaChoice, cost};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor as _};
use crate::same_content::{Beside, is_same_content, proving};
use byteback_api::messages::{
    ALIKE_HEAD_LEN, ALIKE_LEN_MIN, ALIKE_MAX, DIGESTED_TOTAL_MAX, DIGESTS_MAX, SoughtContent,
};
use byteback_client::ServerError;
use byteback_control::{ErrorKind, Piece};
use byteback_delta::ContentDigest;
use byteback_delta::signature::SignatureRequest;
use byteback_extents::ByteRange;
use byteback_model::{ContentBase, FileId, NodeId};
use std::collections::{BTreeSet, HashMap};

/// Files that a new one is compared with: each is read as a whole by the server.
const COMPARED_MAX: usize = 3;

/// A file of the server that a new one may equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct AlikeFile {
    id: FileId,
    /// `None`: the content is too long for a digest, or could not be read.
    digest: Option<[u8; 32]>,
}

/// Bytes that are compared before a very long content is read as a whole.
const SAMPLE_LEN: u64 = 64 * 1024;

/// A digest that is asked for, with the length of the content.
type Wanted = (FileId, u64);

fn push(digest: &mut ContentDigest, piece: Piece<'_>) {
    match piece {
        Piece::Data { bytes, .. } => digest.push(bytes),
        Piece::Hole(range) => digest.push_zeros(range.len_bytes()),
    }
}

impl Transfer<'_, '_, '_> {
    /// Looks up the files of the server that these new ones may equal.
    pub(super) fn alike(&mut self, new: &[(NodeId, u64)]) -> Result<HashMap<NodeId, Vec<AlikeFile>>> {
        let (job, mut alike) = (self.job, HashMap::new());
        let Some(at) = self.compared_seq else { return Ok(alike) };
        let is_wanted = job.options.delta == DeltaChoice::Auto && !job.proof_refused.get();
        let can_ask = || is_wanted && job.answers.get().has(Call::Alike);
        let long: Vec<_> = new.iter().filter(|(_, len)| *len >= ALIKE_LEN_MIN).copied().collect();
        let mut found: Vec<(NodeId, u64, Vec<FileId>)> = Vec::new();
        for some in long.chunks(ALIKE_MAX) {
            if !can_ask() {
                break;
            }
            let (mut nodes, mut sought) = (Vec::new(), Vec::new());
            for (node, len_bytes) in some {
                if let Some(head) = self.head_of(*node)? {
                    nodes.push((*node, *len_bytes));
                    sought.push(SoughtContent {
                        len_bytes: *len_bytes,
                        head,
                    });
                }
            }
            match job.server.alike(job.folder, at, sought) {
                Ok(files) => found.extend(nodes.into_iter().zip(files).filter_map(|((node, len), mut files)| {
                    files.truncate(if len > DIGESTED_TOTAL_MAX { 1 } else { COMPARED_MAX });
                    (!files.is_empty()).then_some((node, len, files))
                })),
                Err(error) => job.note_unanswered(Call::Alike, &error),
            }
        }
        let bytes = found.iter().fold(0_u64, |sum, (_, len, _)| sum.saturating_add(*len));
        if found.is_empty() || !cost::is_comparing_worth(found.len(), bytes, &self.conditions()) {
            return Ok(alike);
        }
        let digested = found.iter().filter(|(_, len, _)| *len <= DIGESTED_TOTAL_MAX);
        let wanted = digested.flat_map(|(_, len, files)| files.iter().map(|file| (*file, *len)));
        // Copies of one file are asked about once.
        let wanted = wanted.collect::<BTreeSet<_>>().into_iter().collect();
        let digests = self.digests_of(at, wanted);
        for (node, len, files) in found {
            let files = files.into_iter().map(|id| AlikeFile {
                id,
                digest: digests.get(&id).copied(),
            });
            let files = files.filter(|file| file.digest.is_some() || len > DIGESTED_TOTAL_MAX);
            alike.insert(node, files.collect());
        }
        Ok(alike)
    }

    /// The beginning of a file's content at the cut, as the server is asked about it; `None` if it
    /// cannot be read.
    fn head_of(&self, node: NodeId) -> Result<Option<String>> {
        let mut digest = ContentDigest::new(ALIKE_HEAD_LEN);
        let mut take = |piece: Piece<'_>| {
            push(&mut digest, piece);
            Ok(())
        };
        // Peeked at, as it will be read again.
        match self
            .job
            .tree
            .peek(self.cut.cut, node, &[(0, ALIKE_HEAD_LEN)], &mut take)
        {
            Ok(()) => Ok(digest.finish().map(|digest| {
                let head = digest.iter().take(8);
                head.map(|byte| format!("{byte:02x}")).collect()
            })),
            // The sending of the file will report why.
            Err(error) if error.kind == ErrorKind::Node => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The digests of these files' contents, as far as the server has them.
    fn digests_of(&self, at: u64, wanted: Vec<Wanted>) -> HashMap<FileId, [u8; 32]> {
        let (job, mut digests) = (self.job, HashMap::new());
        let mut rest = wanted.as_slice();
        while !rest.is_empty() && job.answers.get().has(Call::Digests) {
            // As many as one answer has: at least one.
            let mut bytes = 0_u64;
            let fits = rest.iter().take(DIGESTS_MAX).take_while(|(_, len)| {
                bytes = bytes.saturating_add(*len);
                bytes <= DIGESTED_TOTAL_MAX
            });
            let (some, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let ids: Vec<FileId> = some.iter().map(|(id, _)| *id).collect();
            match job.server.digests(job.folder, at, &ids) {
                Ok(found) => digests.extend(
                    ids.into_iter()
                        .zip(found)
                        .filter_map(|(id, digest)| Some((id, digest?))),
                ),
                Err(error) => job.note_unanswered(Call::Digests, &error),
            }
        }
        digests
    }

    /// The content of the server that a new one equals. It is named by its moment, as changes of
    /// that file by others are no reason for a conflict.
    pub(super) fn equal_elsewhere(&mut self, node: NodeId, len_bytes: u64) -> Result<Option<ContentBase>> {
        let Some(seq) = self.compared_seq else { return Ok(None) };
        let files = self.bases.take_alike(node);
        if files.iter().any(|file| file.digest.is_some())
            && let Some(digest) = self.digest_of(node, len_bytes)?
        {
            let equal = files.iter().find(|file| file.digest == Some(digest));
            return Ok(equal.map(|file| ContentBase::At { file: file.id, seq }));
        }
        for file in files.iter().filter(|file| file.digest.is_none()) {
            if self.is_equal_by_signature(node, len_bytes, file.id)? {
                return Ok(Some(ContentBase::At { file: file.id, seq }));
            }
        }
        Ok(None)
    }

    /// The digest of a file's content at the cut; `None` if it cannot be read.
    pub(super) fn digest_of(&mut self, node: NodeId, len_bytes: u64) -> Result<Option<[u8; 32]>> {
        let mut digest = ContentDigest::new(len_bytes);
        let mut take = |piece: Piece<'_>| {
            push(&mut digest, piece);
            Ok(())
        };
        let read = match self.contents.of(node) {
            Some(bytes) => take(Piece::Data { offset: 0, bytes }),
            // Peeked at, as it may be read again.
            None => self.job.tree.peek(self.cut.cut, node, &[(0, len_bytes)], &mut take),
        };
        match read {
            Ok(()) => {
                self.report.hashed_bytes += len_bytes;
                Ok(digest.finish())
            }
            // The sending of the file will report why it cannot be read.
            Err(error) if error.kind == ErrorKind::Node => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn is_equal_by_signature(&mut self, node: NodeId, len_bytes: u64, file: FileId) -> Result<bool> {
        let can_ask = [Call::Alike, Call::Signature]
            .into_iter()
            .all(|call| self.job.answers.get().has(call));
        let Some(at) = self.compared_seq.filter(|_| can_ask) else {
            return Ok(false);
        };
        if !self.is_equal_in_samples(node, len_bytes, (file, at))? {
            return Ok(false);
        }
        let (tree, cut) = (self.job.tree, self.cut.cut);
        let read =
            |ranges: &[(u64, u64)], sink: &mut crate::same_content::PieceSink<'_>| tree.peek(cut, node, ranges, sink);
        let base = (self.job.server, self.job.folder, at);
        match is_same_content(base, file, read, len_bytes, self.job.monitor) {
            Ok(Ok(is_same)) => {
                self.report.hashed_bytes += len_bytes;
                Ok(is_same)
            }
            Ok(Err(error)) if error.kind == ErrorKind::Node => Ok(false),
            Ok(Err(error)) => Err(error.into()),
            Err(BackupError::Server(error)) => Ok(self.unanswered(&error)),
            Err(error) => Err(error),
        }
    }

    /// Whether a very long content equals the server's in its middle and at its end. Both ends read
    /// all of it in the end, so that files which only begin alike must not come to that.
    fn is_equal_in_samples(&mut self, node: NodeId, len_bytes: u64, (file, at): (FileId, u64)) -> Result<bool> {
        for start in [len_bytes / 2, len_bytes.saturating_sub(SAMPLE_LEN)] {
            let Some(part) = ByteRange::from_offset_len(start, SAMPLE_LEN) else {
                return Ok(false);
            };
            let request = SignatureRequest {
                block_len_bytes: Some(SAMPLE_LEN as u32),
                part: Some(part),
                ..proving()
            };
            let signature = match self.job.server.signature(self.job.folder, file, at, &request, 1) {
                Ok(signature) => signature,
                Err(error) => return Ok(self.unanswered(&error)),
            };
            let mut beside = Beside::new(&signature);
            let mut take = |piece: Piece<'_>| {
                match piece {
                    Piece::Data { bytes, .. } => beside.push(bytes),
                    Piece::Hole(range) => beside.push_zeros(range.len_bytes()),
                }
                Ok(())
            };
            match self
                .job
                .tree
                .peek(self.cut.cut, node, &[(start, SAMPLE_LEN)], &mut take)
            {
                Ok(()) if beside.finish() => {}
                Ok(()) => return Ok(false),
                Err(error) if error.kind == ErrorKind::Node => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Notes that the server did not say whether a content is equal; other questions may be
    /// answered.
    fn unanswered(&self, error: &ServerError) -> bool {
        let mut answers = self.job.answers.get();
        answers.end_of(Call::Alike);
        self.job.answers.set(answers);
        self.job.monitor.event(Event::Warning(&format!(
            "the server did not compare a long file ({}); sending it",
            error.message
        )));
        false
    }
}
