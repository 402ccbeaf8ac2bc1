//! SkySync on fixed blocks (SkySync-F; SkySync, sections 3.2 and 3.3): the delta from checksums
//! that storage already has.
//!
//! The base's end provides a signature whose weak checksums are CRCs, with both kinds of checksums
//! taken from its storage. The new content's end knows checksums of all, some or none of its own
//! blocks from its storage. Reading is the last resort:
//!
//! 1. *Proven equal in place.* Strong checksums of one kind at both ends agree: a copy, nothing is
//!    read ([`super::Aligned`]).
//! 2. *Proven equal elsewhere.* Not in place, but the block's CRC leads to another block of the
//!    base, and the strong checksums agree: a copy, nothing is read.
//! 3. *Probably equal in place.* There is no strong checksum of the new block, but its CRC equals
//!    that of the base's block: it is read, and the strong checksum of its bytes decides.
//! 4. *The rest* is read and searched as in rsync: a window as long as a block moves byte by byte,
//!    with a rolling CRC (`roll`) that is looked up in the flat table ([`crate::cuckoo`]); on a
//!    hit, the strong checksum of the bytes decides.
//!
//! Keyed strong checksums may be short: a delta found by them counts only together with a proof of
//! the whole (`aligned`).
//!
//! A CRC never decides. So wrong CRCs at either end cost time and find less, and never make a wrong
//! delta. Strong checksums of the new content are believed: code that takes them from storage must
//! prove that they belong to the current content.
//!
//! *Not found*: blocks of the base across a border between a range that was proven equal and one
//! that was not; at most one block's length at each such border. Nor is a block that moved by less
//! than its length between two others that did not: where changed blocks of up to 16 KiB (at least
//! two blocks, at most four) lie between blocks that are (or probably are) equal in place, no
//! window moves. Scattered changes look like that, and moving the window there took a third of all
//! time and found next to nothing.
//!
//! *Holes* in ranges that are read stay holes if they are long; short ones are read as zeros.
//!
//! *Crafted contents* whose windows have the CRC of some block but the strong checksum of none:
//! strong checksums in vain draw on an account to which every byte adds one, as in `rolling`.
//! *Crafted signatures*: the table bounds the number of candidates for one CRC.
//!
//! Memory: two windows of the content, and the table, 11 to 23 bytes per block, built at the first
//! lookup.

mod roll;

use std::io;

use byteback_extents::ByteRange;

use super::aligned::{Aligned, BlockSums, StrongOf, Verdict, WeakOf, crc_of};
use super::extents::Extents;
use super::{ExtentSink, FindStats, HOLE_LEN_MIN};
use crate::apply::Base;
use crate::crc::CrcKind;
use crate::signature::Signature;
use crate::strong::STRONG_LEN_MAX;
use roll::BlockSearch;

/// The number of bytes read at once beyond a window.
const READ_LEN: usize = 256 * 1024;

/// The number of windows that may be hashed in vain before the account must be refilled.
const VAIN_WINDOWS: u64 = 16;

/// The longest range between blocks that are equal in place over which no window moves, in bytes;
/// at least two blocks, at most four.
const UNROLLED_LEN: u64 = 16 * 1024;

/// The search failed.
#[derive(Debug, thiserror::Error)]
pub enum SkyError<E> {
    /// The new content cannot be read.
    #[error("cannot read the new content at byte {offset}")]
    Read {
        /// The offset of the failed read.
        offset: u64,
        /// The error of the content.
        #[source]
        source: io::Error,
    },
    /// The signature was made without CRCs.
    #[error("the weak checksums of the signature are not CRCs; request another signature, or use another finder")]
    WeakKind,
    /// The sink failed.
    #[error("cannot write the extents found")]
    Sink(#[source] E),
}

/// The checksums that storage knows of the new content. Those that cannot be compared with the
/// signature's are ignored.
pub struct Known<C, T> {
    /// The CRCs of its blocks.
    pub crcs: Option<C>,
    /// The strong checksums of its blocks, which are believed.
    pub strong: Option<T>,
}

/// Passes to `sink` how the new content of `len_bytes` follows from the base that `signature`
/// describes; see the module's header. Returns the sink and the statistics.
///
/// # Errors
/// If the signature's weak checksums are not CRCs, `content` cannot be read, or the sink fails.
pub fn find_sky<S, N, C, T>(
    signature: &Signature,
    known: Known<C, T>,
    content: &N,
    len_bytes: u64,
    sink: S,
) -> Result<(S, FindStats), SkyError<S::Error>>
where
    S: ExtentSink,
    N: Base + ?Sized,
    C: BlockSums,
    T: BlockSums,
{
    let weak = WeakOf::new(signature).ok_or(SkyError::WeakKind)?;
    let (kind, _) = signature.params().weak.crc().ok_or(SkyError::WeakKind)?;
    let block_len = u64::from(signature.params().block_len_bytes);
    let strong = StrongOf::new(signature)
        .zip(
            known
                .strong
                .filter(|strong| strong.layout().content_len_bytes == len_bytes),
        )
        .and_then(|(base, new)| Aligned::new(base, new).ok());
    let crcs = known
        .crcs
        .filter(|crcs| crcs.layout().content_len_bytes == len_bytes)
        .and_then(|new| Aligned::new(weak, new).ok());
    let mut finder = Finder {
        signature,
        kind,
        block_len: block_len as usize,
        // Shorter than a block, which fits.
        tail_len: (signature.content_len_bytes() % block_len) as usize,
        content,
        len_bytes,
        search: None,
        extents: Extents::new(sink),
        buffer: Vec::new(),
        buffer_start: 0,
        account: VAIN_WINDOWS * block_len,
    };
    finder.all(strong, crcs)?;
    let read_bytes = finder.extents.stats.read_bytes;
    let (sink, mut stats) = finder.extents.finish().map_err(SkyError::Sink)?;
    stats.unread_bytes = len_bytes.saturating_sub(read_bytes);
    Ok((sink, stats))
}

/// The work that a block needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The block equals the base from `base_offset` on.
    Nothing { base_offset: u64 },
    /// The block's bytes decide.
    Proof,
    /// The block is searched for everywhere.
    Search,
}

struct Finder<'a, S, N: ?Sized> {
    signature: &'a Signature,
    kind: CrcKind,
    block_len: usize,
    /// The length of the base's last block if it is shorter than the others; 0 otherwise.
    tail_len: usize,
    content: &'a N,
    len_bytes: u64,
    /// The table, built at the first lookup.
    search: Option<BlockSearch>,
    extents: Extents<S>,
    /// Content from `buffer_start` on.
    buffer: Vec<u8>,
    buffer_start: u64,
    /// The number of bytes that may be hashed in vain.
    account: u64,
}

impl<S: ExtentSink, N: Base + ?Sized> Finder<'_, S, N> {
    fn all<B1, B2, C, T>(
        &mut self,
        mut strong: Option<Aligned<B1, T>>,
        mut crcs: Option<Aligned<B2, C>>,
    ) -> Result<(), SkyError<S::Error>>
    where
        B1: BlockSums,
        B2: BlockSums,
        C: BlockSums,
        T: BlockSums,
    {
        let block_len = self.block_len as u64;
        // The pending range of blocks with one need, which ends where `range` begins.
        let mut pending: Option<(ByteRange, Need)> = None;
        // Whether the last block proven, for certain or probably, lies in place; true at the
        // beginning.
        let mut in_place = true;
        let mut block = 0;
        while let Some(start) = block_len.checked_mul(block)
            && let Some(range) = ByteRange::new(start, start.saturating_add(block_len).min(self.len_bytes))
        {
            let need = self.need(block, &mut strong, &mut crcs);
            block += 1;
            pending = match (pending, need) {
                (Some((before, same)), _) if same == need && !matches!(need, Need::Nothing { .. }) => {
                    Some((before.hull(range), need))
                }
                (before, _) => {
                    let stays = need == Need::Proof || need == Need::Nothing { base_offset: start };
                    self.read(before, in_place && stays)?;
                    in_place |= before.is_some_and(|(_, need)| need == Need::Proof);
                    match need {
                        Need::Nothing { base_offset } => {
                            in_place = stays;
                            self.extents
                                .copy(range.len_bytes(), base_offset)
                                .map_err(SkyError::Sink)?;
                            None
                        }
                        _ => Some((range, need)),
                    }
                }
            };
        }
        self.read(pending, false)
    }

    /// The work that a block needs, judged by checksums alone.
    fn need<B1, B2, C, T>(
        &mut self,
        block: u64,
        strong: &mut Option<Aligned<B1, T>>,
        crcs: &mut Option<Aligned<B2, C>>,
    ) -> Need
    where
        B1: BlockSums,
        B2: BlockSums,
        C: BlockSums,
        T: BlockSums,
    {
        let block_len = self.block_len as u64;
        let base_offset = block * block_len;
        // Steps of the comparison may be several blocks long.
        let verdict = |step_len: u64| base_offset / step_len;
        let known = match strong {
            Some(strong) => match strong.verdict(verdict(strong.step_len_bytes())) {
                Verdict::Equal => return Need::Nothing { base_offset },
                Verdict::Candidate => return Need::Proof,
                Verdict::Read => strong.new_sum(block).filter(|_| strong.is_proof()),
            },
            None => None,
        };
        let Some(crcs) = crcs else { return Need::Search };
        let Some(known) = known else {
            return match crcs.verdict(verdict(crcs.step_len_bytes())) {
                Verdict::Read => Need::Search,
                Verdict::Equal | Verdict::Candidate => Need::Proof,
            };
        };
        // Certainly different in place; perhaps equal to another block of the base. A shorter last
        // block is not searched for.
        let is_whole = base_offset.saturating_add(block_len) <= self.len_bytes;
        if crcs.step_len_bytes() != block_len || !is_whole {
            return Need::Search;
        }
        let Some(crc) = crcs.new_sum(block) else {
            return Need::Search;
        };
        // A CRC of 32 bits.
        let crc = crc_of(&crc) as u32;
        let signature = self.signature;
        let found = self
            .search()
            .candidates(crc)
            .find(|&block| is_strong_of(signature, block, &known));
        match found {
            Some(block) => Need::Nothing {
                base_offset: block as u64 * block_len,
            },
            None => Need::Search,
        }
    }

    fn search(&mut self) -> &BlockSearch {
        self.search
            .get_or_insert_with(|| BlockSearch::new(self.signature, self.kind))
    }

    /// Reads and searches a pending range; `is_between`: the blocks before and after it are equal
    /// in place, for certain or probably.
    fn read(&mut self, pending: Option<(ByteRange, Need)>, is_between: bool) -> Result<(), SkyError<S::Error>> {
        match pending {
            Some((range, Need::Proof)) => self.prove(range),
            Some((range, _)) if is_between && range.len_bytes() <= self.unrolled_len() => {
                self.search_bytes(range, false)
            }
            Some((range, _)) => self.search_with_holes(range),
            None => Ok(()),
        }
    }

    /// The longest range between blocks that are equal in place over which no window moves, in
    /// bytes.
    fn unrolled_len(&self) -> u64 {
        let block_len = self.block_len as u64;
        UNROLLED_LEN.clamp(2 * block_len, 4 * block_len)
    }

    /// Reads blocks that probably equal the base in place; those that do not are searched for.
    fn prove(&mut self, range: ByteRange) -> Result<(), SkyError<S::Error>> {
        let mut at = range.start();
        while at < range.end() {
            let len = (range.end() - at).min(self.block_len as u64);
            self.ensure(at, at + len, range.end())?;
            let from = (at - self.buffer_start) as usize;
            let block = (at / self.block_len as u64) as usize;
            let strong = self.strong(from, len as usize);
            if is_strong_of(self.signature, block, &strong) && self.base_block_len(block) == len {
                self.extents.copy(len, at).map_err(SkyError::Sink)?;
            } else if let Some(block) = ByteRange::from_offset_len(at, len) {
                self.search_bytes(block, false)?;
            }
            at += len;
        }
        Ok(())
    }

    /// The length of a block of the base; 0 if there is no such block.
    fn base_block_len(&self, block: usize) -> u64 {
        let start = block as u64 * self.block_len as u64;
        let len = self.signature.content_len_bytes();
        len.saturating_sub(start).min(self.block_len as u64)
    }

    /// Searches a range, except for its long holes.
    fn search_with_holes(&mut self, range: ByteRange) -> Result<(), SkyError<S::Error>> {
        let block_len = self.block_len as u64;
        let mut start = range.start();
        let mut at = start;
        while let Some(left) = ByteRange::new(at, range.end()) {
            let data = self
                .content
                .next_data(left)
                .map_err(|source| SkyError::Read { offset: at, source })?;
            // Data reported outside the requested range is ignored.
            let data = data.and_then(|data| data.intersect(left));
            let hole_end = data.map_or(range.end(), ByteRange::start);
            let inner = ByteRange::new(at.next_multiple_of(block_len), hole_end - hole_end % block_len);
            if let Some(inner) = inner.filter(|inner| inner.len_bytes() >= HOLE_LEN_MIN.max(2 * block_len)) {
                if let Some(before) = ByteRange::new(start, inner.start()) {
                    self.search_bytes(before, true)?;
                }
                self.extents.zero(inner.len_bytes()).map_err(SkyError::Sink)?;
                start = inner.end();
            }
            at = data.map_or(range.end(), ByteRange::end);
        }
        ByteRange::new(start, range.end()).map_or(Ok(()), |rest| self.search_bytes(rest, true))
    }

    /// Searches a range as in step 4 of the header, at every offset if the window `rolls`,
    /// otherwise from block to block.
    fn search_bytes(&mut self, range: ByteRange, rolls: bool) -> Result<(), SkyError<S::Error>> {
        let block_len = self.block_len as u64;
        // The start of the window, and the end of the bytes already passed on.
        let (mut at, mut reported) = (range.start(), range.start());
        // The bytes before were mostly found in place.
        let mut next = Some((at / block_len) as usize);
        while at + block_len <= range.end() {
            self.ensure(reported, at + block_len, range.end())?;
            let from = (at - self.buffer_start) as usize;
            let crc = self.kind.of(&self.buffer[from..from + self.block_len]) as u32;
            let mut found = self.look_up(at, crc, next);
            if found.is_none() && self.is_last(next) && self.is_tail(at) {
                self.emit_literal(reported, at)?;
                self.emit_tail()?;
                at += self.tail_len as u64;
                (reported, next) = (at, None);
                continue;
            }
            if found.is_none() && !rolls {
                (at, next) = (at + block_len, None);
                continue;
            }
            if found.is_none() {
                // Tries every window in memory until one is found.
                let upto = self.buffer_end().min(range.end()) - self.buffer_start;
                let upto = upto as usize - self.block_len;
                let mut hits = Vec::new();
                let mut rolled = roll::Rolled { from, crc };
                while found.is_none() && rolled.from < upto {
                    let before = rolled.from;
                    let Some(search) = &self.search else { break };
                    search.roll(&self.buffer, &mut rolled, upto, &mut hits);
                    for (from, crc) in hits.drain(..) {
                        at = self.buffer_start + from as u64;
                        found = self.look_up(at, crc, None);
                        if found.is_some() {
                            break;
                        }
                    }
                    let passed = (rolled.from - before) as u64;
                    self.account = (self.account + passed).min(VAIN_WINDOWS * block_len);
                }
                if found.is_none() {
                    at = self.buffer_start + rolled.from as u64 + 1;
                }
            }
            if let Some(block) = found {
                self.emit_literal(reported, at)?;
                self.extents
                    .copy(block_len, block as u64 * block_len)
                    .map_err(SkyError::Sink)?;
                at += block_len;
                reported = at;
                next = Some(block + 1);
            } else {
                next = None;
                if at - reported >= READ_LEN as u64 {
                    self.emit_literal(reported, at)?;
                    reported = at;
                }
            }
        }
        // The remaining bytes hold no whole block. The base's last one may be shorter.
        self.ensure(reported, range.end(), range.end())?;
        let tail_len = self.tail_len as u64;
        if tail_len > 0 && range.end() == self.len_bytes && range.end() - reported >= tail_len {
            let follows = self.is_last(next).then_some(reported);
            for start in [Some(range.end() - tail_len), follows].into_iter().flatten() {
                if self.is_tail(start) {
                    self.emit_literal(reported, start)?;
                    self.emit_tail()?;
                    reported = start + tail_len;
                    break;
                }
            }
        }
        self.emit_literal(reported, range.end())
    }

    /// The whole block of the base that equals the window at `at`, whose CRC is `crc`; of several,
    /// the one that costs least.
    fn look_up(&mut self, at: u64, crc: u32, next: Option<usize>) -> Option<usize> {
        let block_len = self.block_len as u64;
        if !self.search().contains(crc) || self.account < block_len {
            return None;
        }
        let from = (at - self.buffer_start) as usize;
        let strong = self.strong(from, self.block_len);
        let in_place = at.is_multiple_of(block_len).then_some((at / block_len) as usize);
        // Blocks that the table had no room for are tried, too, where they are expected.
        let expected = [next, in_place].into_iter().flatten();
        let search = self.search.as_ref()?;
        let found = expected
            .filter(|&block| block < search.whole_blocks())
            .chain(search.candidates(crc))
            .find(|&block| is_strong_of(self.signature, block, &strong));
        if found.is_none() {
            self.account -= block_len;
        }
        found
    }

    /// Whether this is the number of the base's last, shorter block.
    fn is_last(&self, block: Option<usize>) -> bool {
        self.tail_len > 0 && block.is_some_and(|block| block + 1 == self.signature.blocks())
    }

    fn emit_tail(&mut self) -> Result<(), SkyError<S::Error>> {
        let base_offset = self.signature.content_len_bytes() - self.tail_len as u64;
        self.extents
            .copy(self.tail_len as u64, base_offset)
            .map_err(SkyError::Sink)
    }

    /// Whether the base's last, shorter block is found at `start`.
    fn is_tail(&mut self, start: u64) -> bool {
        let from = (start - self.buffer_start) as usize;
        let weak = self.signature.params().weak;
        let crc = weak.of_block(&self.buffer[from..from + self.tail_len], self.block_len);
        let last = self.signature.blocks().saturating_sub(1);
        if self.signature.weak().get(last) != Some(&crc) {
            return false;
        }
        let strong = self.strong(from, self.tail_len);
        is_strong_of(self.signature, last, &strong)
    }

    fn strong(&mut self, from: usize, len: usize) -> [u8; STRONG_LEN_MAX] {
        self.extents.stats.strong_bytes += len as u64;
        self.signature.hasher().of(&self.buffer[from..from + len])
    }

    /// Passes on a range of the buffer as literals.
    fn emit_literal(&mut self, from: u64, to: u64) -> Result<(), SkyError<S::Error>> {
        let (from, to) = ((from - self.buffer_start) as usize, (to - self.buffer_start) as usize);
        self.extents.literal(&self.buffer[from..to]).map_err(SkyError::Sink)
    }

    fn buffer_end(&self) -> u64 {
        self.buffer_start + self.buffer.len() as u64
    }

    /// Reads `from..to` into the buffer, and more if that is cheap, but nothing beyond `end`. Bytes
    /// before `from` may be dropped.
    fn ensure(&mut self, from: u64, to: u64, end: u64) -> Result<(), SkyError<S::Error>> {
        if from < self.buffer_start || from > self.buffer_end() {
            self.buffer.clear();
            self.buffer_start = from;
        }
        if to <= self.buffer_end() {
            return Ok(());
        }
        self.buffer.drain(..(from - self.buffer_start) as usize);
        self.buffer_start = from;
        let offset = self.buffer_end();
        let upto = (to + READ_LEN as u64).min(end);
        let filled = self.buffer.len();
        self.buffer.resize((upto - from) as usize, 0);
        let read = self.content.read_range(offset, &mut self.buffer[filled..]);
        if let Err(source) = read {
            self.buffer.truncate(filled);
            return Err(SkyError::Read { offset, source });
        }
        self.extents.stats.read_bytes += upto - offset;
        self.extents.stats.examined_bytes += upto - offset;
        Ok(())
    }
}

fn is_strong_of(signature: &Signature, block: usize, strong: &[u8; STRONG_LEN_MAX]) -> bool {
    signature
        .strong(block)
        .is_some_and(|known| strong.get(..known.len()) == Some(known))
}

#[cfg(test)]
mod tests;
