//! New files that equal one that the server has: copied by reading and writing, moved in from
//! outside, extracted again, rotated.
//!
//! No program said where such a content is from, and the mount cannot know. The server is asked
//! which of its files have the lengths of new ones, many at once; a file of the same length is then
//! compared by the digest of its content, a very long one by a signature of 32 bytes for each MiB.
//! The files may be gone from the tree: what was moved out comes back as a copy.
//!
//! Nothing rests on a guess, and errors cost bytes, as in [`super::bases`].

use super::Transfer;
use crate::backup::plan::{Call, DeltaChoice, cost};
use crate::decisions::Cause;
use crate::error::{BackupError, Result};
use crate::same_content::is_same_content;
use byteback_api::messages::{ALIKE_LEN_MIN, ALIKE_MAX, DIGESTED_TOTAL_MAX, DIGESTS_MAX};
use byteback_control::{ErrorKind, Piece};
use byteback_delta::ContentDigest;
use byteback_model::{FileId, NodeId};
use std::collections::{BTreeSet, HashMap};

/// Files of its length that a new file is compared with: each is read as a whole by the server.
const COMPARED_MAX: usize = 3;

/// A file of the server that has the length of a new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AlikeFile {
    id: FileId,
    /// `None`: the content is too long for a digest, or could not be read.
    digest: Option<[u8; 32]>,
}

/// A digest that is asked for, with the length of the content.
type Wanted = (FileId, u64);

impl Transfer<'_, '_, '_> {
    /// Looks up the files of the server that have the lengths of these new ones.
    pub(super) fn alike(&self, new: &[(NodeId, u64)]) -> HashMap<NodeId, Vec<AlikeFile>> {
        let (job, mut alike) = (self.job, HashMap::new());
        let long = || new.iter().filter(|(_, len)| *len >= ALIKE_LEN_MIN);
        let lens: Vec<u64> = long()
            .map(|(_, len)| *len)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let Some(at) = self.compared_seq else { return alike };
        let mut files: HashMap<u64, Vec<FileId>> = HashMap::new();
        for some in lens.chunks(ALIKE_MAX) {
            let is_wanted = job.options.delta == DeltaChoice::Auto && !job.proof_refused.get();
            if !is_wanted || !job.answers.get().has(Call::Alike) {
                break;
            }
            match job.server.alike(job.folder, at, some) {
                Ok(found) => files.extend(some.iter().copied().zip(found)),
                Err(error) => job.note_unanswered(Call::Alike, &error),
            }
        }
        let found = |len: &u64| files.get(len).filter(|found| !found.is_empty());
        let (count, bytes) = long()
            .filter(|(_, len)| found(len).is_some())
            .fold((0, 0_u64), |(count, bytes), (_, len)| {
                (count + 1, bytes.saturating_add(*len))
            });
        if count == 0 || !cost::is_comparing_worth(count, bytes, &self.conditions()) {
            return alike;
        }
        let wanted = files.iter().filter(|(len, _)| **len <= DIGESTED_TOTAL_MAX);
        let wanted = wanted.flat_map(|(len, files)| files.iter().take(COMPARED_MAX).map(|file| (*file, *len)));
        let digests = self.digests_of(at, wanted.collect());
        for (node, len) in long() {
            let files = found(len).into_iter().flatten().take(COMPARED_MAX);
            let files = files.map(|id| AlikeFile {
                id: *id,
                digest: digests.get(id).copied(),
            });
            let files: Vec<AlikeFile> = files
                .filter(|file| file.digest.is_some() || *len > DIGESTED_TOTAL_MAX)
                .collect();
            if !files.is_empty() {
                alike.insert(*node, files);
            }
        }
        alike
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

    /// The file of the server that has the content of a new one.
    pub(super) fn equal_elsewhere(&mut self, node: NodeId, len_bytes: u64) -> Result<Option<(FileId, Cause)>> {
        let files = self.bases.take_alike(node);
        if files.iter().any(|file| file.digest.is_some())
            && let Some(digest) = self.digest_of(node, len_bytes)?
        {
            let equal = files.iter().find(|file| file.digest == Some(digest));
            return Ok(equal.map(|file| (file.id, Cause::Copied)));
        }
        for file in files.iter().filter(|file| file.digest.is_none()) {
            if self.is_equal_by_signature(node, len_bytes, file.id)? {
                return Ok(Some((file.id, Cause::Copied)));
            }
        }
        Ok(None)
    }

    /// The digest of a file's content at the cut; `None` if it cannot be read.
    pub(super) fn digest_of(&mut self, node: NodeId, len_bytes: u64) -> Result<Option<[u8; 32]>> {
        let mut digest = ContentDigest::new(len_bytes);
        let mut take = |piece: Piece<'_>| {
            match piece {
                Piece::Data { bytes, .. } => digest.push(bytes),
                Piece::Hole(range) => digest.push_zeros(range.len_bytes()),
            }
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
        let Some(at) = self
            .compared_seq
            .filter(|_| self.job.answers.get().has(Call::Signature))
        else {
            return Ok(false);
        };
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
            Err(BackupError::Server(error)) => {
                self.job.note_unanswered(Call::Signature, &error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
