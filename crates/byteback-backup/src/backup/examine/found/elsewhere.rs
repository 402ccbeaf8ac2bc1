//! Whole blocks that a finder left because it searched only a part of the server's version, or for
//! longer blocks: they are looked up anywhere in it ([`super::super::blocks`]).
//!
//! SkySync-F searches only where groups of leaves differ, and in long contents for long blocks; a
//! file system in a disk image writes what it had elsewhere. A lookup costs the server a walk
//! through the sums that it keeps, so the first one that finds nothing is the last one of a file.
//! As with every second look, a server that does not answer, or lies, costs bytes.

use super::super::blocks::{BLOCK_LEN, Part, Question, blocks_in, parts};
use super::FoundFile;
use crate::backup::examine::Stop;
use crate::backup::plan::cost::{FileFacts, SEARCHED_SHARE_DEFAULT, cheapest};
use crate::backup::plan::{Call, LOOKED_UP_LEN_MIN};
use crate::decisions::DeltaMethod;
use byteback_delta::Source;
use byteback_delta::find::FoundExtents;
use byteback_extents::ByteRange;

impl FoundFile<'_, '_, '_> {
    /// Looks whole blocks of the literals that were not looked for yet up, if that is worth it.
    pub(super) fn look_elsewhere(&mut self) {
        if !self.may_lie_elsewhere || !self.place.job.answers.get().has(Call::Lookup) {
            return;
        }
        let ranges: Vec<ByteRange> = self.unlooked().map(|(_, range, _)| range).collect();
        let sought: Vec<ByteRange> = blocks_in(ranges.iter().copied()).collect();
        let sought_len = sought.iter().copied().map(ByteRange::len_bytes).sum();
        let facts = FileFacts {
            size_bytes: sought_len,
            changed_share: SEARCHED_SHARE_DEFAULT,
            base_bytes: self.base_len,
        };
        let ways = [DeltaMethod::LogLookedUp, DeltaMethod::Log];
        if sought_len < LOOKED_UP_LEN_MIN
            || cheapest(ways, &facts, &self.place.conditions) != Some(DeltaMethod::LogLookedUp)
        {
            return;
        }
        // Without an answer they are sent.
        let Ok(parts) = self.look_up(&ranges, &sought, sought_len) else {
            return;
        };
        let mut parts = parts.into_iter().peekable();
        let found_bytes = self.divide(|_, range, bytes| {
            let mut found = FoundExtents::default();
            while let Some(part) = parts.next_if(|part| part.range.end() <= range.end()) {
                let at = |offset: u64| usize::try_from(offset - range.start()).unwrap_or(usize::MAX);
                let source = match part.base_offset {
                    Some(base_offset) => Source::Copy { base_offset },
                    None => Source::Literal(bytes.get(at(part.range.start())..at(part.range.end()))?.to_vec()),
                };
                found.extents.push((part.range, source));
            }
            let is_copy = |(_, source): &(ByteRange, Source<Vec<u8>>)| matches!(source, Source::Copy { .. });
            found.extents.iter().any(is_copy).then_some(found)
        });
        self.may_lie_elsewhere = found_bytes > 0;
    }

    /// Asks the server for these blocks, which lie in these ranges.
    fn look_up(&self, ranges: &[ByteRange], sought: &[ByteRange], sought_len: u64) -> Result<Vec<Part>, Stop> {
        let mut question = Question::new(self.attributes.size, sought_len)?;
        for (_, range, bytes) in self.unlooked() {
            for block in blocks_in(std::iter::once(range)) {
                let start = usize::try_from(block.start() - range.start()).unwrap_or(usize::MAX);
                let len = usize::try_from(block.len_bytes()).unwrap_or(usize::MAX);
                question.push(bytes.get(start..start.saturating_add(len)).unwrap_or_default())?;
            }
        }
        debug_assert!(sought_len.is_multiple_of(BLOCK_LEN), "blocks are whole");
        let list = question.ask(self.place, self.at_server)?;
        match list.base_len_bytes() == self.base_len {
            true => Ok(parts(ranges.iter().copied(), sought, &list)),
            false => Ok(Vec::new()),
        }
    }
}
