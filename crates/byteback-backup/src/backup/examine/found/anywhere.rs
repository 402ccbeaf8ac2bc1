//! Literals in blocks that lie anywhere in the server's version, at any offset on either side.
//!
//! A file system in a disk image copies a file to blocks that are not aligned as its former ones
//! were, so that lookups of aligned blocks ([`super::elsewhere`]) miss it, and the bytes are in use
//! at their former place, so that searches in what is unused ([`super::second_look`]) miss it, too.
//! The server sends the sums of its whole version, for which it reads what it never summed; a
//! window moves over the literals alone (SkySync-F, section 3.2.1 of the paper).
//!
//! Such sums cost bytes with the length of the server's version, so they are asked for only where
//! many literals are left in place of something else, once for a file, and not used any more when
//! they found nothing. A server that does not answer, or lies, costs bytes.

use super::FoundFile;
use crate::backup::plan::Call;
use crate::backup::plan::second_look::whole_version_block_len;
use byteback_delta::Source;
use byteback_delta::find::{FoundExtents, Known, Packed, SumList, Unpacked, find_sky};
use byteback_delta::leaves::LeafKind;
use byteback_delta::signature::{BLOCKS_MAX, STRONG_LEN_MIN, Signature, SignatureRequest};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;

/// The sums of blocks anywhere in the server's version.
#[derive(Debug, Default)]
pub(super) enum Anywhere {
    /// Blocks need not be looked for, or were looked for in vain.
    #[default]
    Done,
    /// Nobody asked for the sums.
    Unasked,
    /// The sums, with which blocks were found.
    Sums(Box<Signature>),
}

impl FoundFile<'_, '_, '_> {
    /// Looks for the literals that were not looked for yet in blocks anywhere, if that is worth it.
    /// Whether some were found.
    pub(super) fn look_anywhere(&mut self) -> bool {
        let base_len = self.base_len;
        // Appended bytes are new, as a rule.
        let gaps = self.unlooked().filter(|(_, range, _)| range.start() < base_len);
        let gaps: Vec<(usize, ByteRange)> = gaps.map(|(number, range, _)| (number, range)).collect();
        let literal_bytes = gaps.iter().map(|(_, range)| range.len_bytes()).sum();
        let signature = match std::mem::take(&mut self.anywhere) {
            Anywhere::Done => return false,
            Anywhere::Sums(signature) => signature,
            Anywhere::Unasked => {
                let Some(block_len) = self.worthwhile_block_len(literal_bytes) else {
                    self.anywhere = Anywhere::Unasked;
                    return false;
                };
                match self.ask_for_whole_version(block_len) {
                    Some(signature) => Box::new(signature),
                    None => {
                        self.note_whole_version(0);
                        return false;
                    }
                }
            }
        };
        let mut bytes = Vec::new();
        for (number, _, some) in self.unlooked() {
            if gaps.binary_search_by_key(&number, |(gap, _)| *gap).is_ok() {
                bytes.extend_from_slice(some);
            }
        }
        let new: Packed = gaps.iter().map(|(_, range)| *range).collect();
        let old: Packed = ByteRange::new(0, base_len).into_iter().collect();
        let sink = Unpacked {
            sink: FoundExtents::default(),
            old: &old,
            new: &new,
        };
        let nothing = Known::<SumList, SumList> {
            crcs: None,
            strong: None,
        };
        let Ok((found, _)) = find_sky(&signature, nothing, &bytes[..], new.len_bytes(), sink) else {
            return false;
        };
        let mut parts = found.sink.extents.into_iter().peekable();
        let found_bytes = self.divide(|_, range, _| {
            let mut of_gap = FoundExtents::default();
            while let Some(part) = parts.next_if(|(part, _)| part.end() <= range.end()) {
                of_gap.extents.push(part);
            }
            let is_copy = |(_, source): &(ByteRange, Source<Vec<u8>>)| matches!(source, Source::Copy { .. });
            of_gap.extents.iter().any(is_copy).then_some(of_gap)
        });
        self.note_whole_version(found_bytes);
        if found_bytes > 0 {
            self.anywhere = Anywhere::Sums(signature);
        }
        found_bytes > 0
    }

    /// Notes what the sums of a whole version led to; of files in vain, only a few are asked about.
    fn note_whole_version(&self, found_bytes: u64) {
        let mut looks = self.place.job.second_looks.get();
        looks.end_whole_version(found_bytes);
        self.place.job.second_looks.set(looks);
    }

    /// The length of the blocks whose sums are worth it for this number of literals, if they are.
    fn worthwhile_block_len(&self, literal_bytes: u64) -> Option<u32> {
        let job = self.place.job;
        if !job.answers.get().has(Call::Signature) {
            return None;
        }
        let is_as_long = self.base_len == self.attributes.size;
        let block_len = whole_version_block_len(literal_bytes, self.base_len, is_as_long)?;
        let mut looks = job.second_looks.get();
        let is_worth = looks.begin_whole_version(literal_bytes, self.base_len, block_len, &self.place.conditions);
        job.second_looks.set(looks);
        is_worth.then_some(block_len)
    }

    /// The sums of the server's whole version in blocks of this length.
    fn ask_for_whole_version(&self, block_len: u32) -> Option<Signature> {
        let job = self.place.job;
        let strong = StrongKind::Tree(LeafKind::Blake3);
        let request = SignatureRequest {
            block_len_bytes: Some(block_len),
            weak: vec![WeakKind::Crc32c],
            strong: vec![strong],
            // A CRC has to agree first, and the whole is proven.
            strong_len_bytes: Some(STRONG_LEN_MIN),
            ..SignatureRequest::default()
        };
        let (file, at) = (self.at_server, self.place.base_seq);
        // An error of this optional question says nothing of those that finders ask.
        let signature = job.server.signature(job.folder, file, at, &request, BLOCKS_MAX).ok()?;
        let params = signature.params();
        let fits = (params.weak, params.strong) == (WeakKind::Crc32c, strong);
        (fits && signature.content_len_bytes() == self.base_len).then_some(signature)
    }
}
