//! The second look at what a finder did not find: in short blocks of an excerpt of the server's
//! version (`byteback_delta::excerpt`), which one request brings.
//!
//! A gap's bytes come from between the places of its neighbours, unless they are new. Where nothing
//! of a gap's surroundings was found, it is taken to lie where it lay before. Not looked for are
//! gaps that are longer than [`GAP_LEN_MAX`], since a finder that leaves that much has found out
//! that it is new.
//!
//! The proof covers all that is found; where it does not cover all literals, there is no second
//! look ([`FoundFile::without_second_look`]). A server that does not answer, or lies, costs bytes.

use super::{Found, FoundFile};
use crate::backup::Job;
use crate::backup::plan::{Call, DeltaChoice};
use byteback_delta::excerpt::{ExcerptAnswer, RANGES_MAX};
use byteback_delta::find::{BlockIndex, FoundExtents, Gap, excerpt_around, find_in_excerpt};
use byteback_extents::ByteRange;

/// Longest gap that is looked for.
const GAP_LEN_MAX: u64 = 256 << 10;

/// Most bytes of gaps in one look; the shortest gaps come first. The excerpt has at most three
/// times as many.
const LOOKED_FOR_LEN_MAX: u64 = 8 << 20;

/// A literal extent that is looked for.
struct Sought {
    /// Index among the extents.
    extent: usize,
    gap: Gap,
}

/// Whether there may be a second look: a finder that a user chose works as it is, and some servers
/// are older.
pub(super) fn is_wanted(job: &Job<'_>) -> bool {
    job.options.delta == DeltaChoice::Auto && job.answers.get().has(Call::Excerpt)
}

impl FoundFile<'_, '_, '_> {
    /// Looks for the literals that were not looked for yet in short blocks, if that is worth it.
    pub(super) fn look_closer(&mut self) {
        let job = self.place.job;
        let sought = self.sought();
        let literal_bytes = sought.iter().map(|sought| sought.gap.range.len_bytes()).sum();
        let mut looks = job.second_looks.get();
        let begun = looks.begin(literal_bytes, sought.len(), &self.place.conditions);
        job.second_looks.set(looks);
        let Some(block_len) = begun else { return };
        let gaps: Vec<Gap> = sought.iter().map(|sought| sought.gap).collect();
        let excerpt = excerpt_around(&gaps, self.base_len, block_len);
        if excerpt.ranges().is_empty() || excerpt.ranges().len() > RANGES_MAX as usize {
            return;
        }
        let (file, at) = (self.at_server, self.place.base_seq);
        let answer = match job.server.excerpt(job.folder, file, at, &excerpt, block_len) {
            Ok(answer) => answer,
            Err(error) => {
                job.note_unanswered(Call::Excerpt, &error);
                return;
            }
        };
        if answer.base_len_bytes != self.base_len {
            return;
        }
        let ExcerptAnswer { excerpt, signature, .. } = answer;
        let index = BlockIndex::new(signature);
        let mut sought = sought.iter().peekable();
        let found_bytes = self.divide(|number, range, bytes| {
            sought.next_if(|sought| sought.extent == number)?;
            let Ok((parts, stats)) = find_in_excerpt(&index, &excerpt, (range.start(), bytes), FoundExtents::default());
            (stats.copied_bytes > 0).then_some(parts)
        });
        looks.end(literal_bytes, found_bytes);
        job.second_looks.set(looks);
    }

    /// The literals worth looking for, ascending.
    fn sought(&self) -> Vec<Sought> {
        let is_sought = |range: ByteRange, found: Found| match found {
            Found::Literal(before) => before >= self.looked_upto && range.len_bytes() <= GAP_LEN_MAX,
            _ => false,
        };
        let mut sought: Vec<Sought> = Vec::new();
        let mut expected = Expected::default();
        for (extent, &(range, found)) in self.extents.iter().enumerate() {
            let base_before = expected.at(range.start());
            expected.pass(range, found);
            if is_sought(range, found) {
                let gap = Gap {
                    range,
                    base_before,
                    base_behind: 0,
                };
                sought.push(Sought { extent, gap });
            }
        }
        let mut behind = self.base_len;
        let mut end = self.attributes.size;
        let mut later = sought.iter_mut().rev().peekable();
        for (extent, &(range, found)) in self.extents.iter().enumerate().rev() {
            // Bytes between extents stay where they are.
            if range.end() < end {
                behind = range.end();
            }
            if let Some(sought) = later.next_if(|sought| sought.extent == extent) {
                sought.gap.base_behind = behind;
            }
            behind = match found {
                Found::Copy(from) => from,
                _ => behind.saturating_sub(range.len_bytes()),
            };
            end = range.start();
        }
        drop(later);
        sought.retain(|sought| sought.gap.has_candidates(self.base_len));
        keep_shortest(&mut sought);
        sought
    }
}

/// Where the bytes of the new content are expected in the base, while extents are passed.
#[derive(Default)]
struct Expected {
    /// The end of the last extent, and the offset expected there.
    end: u64,
    base: u64,
}

impl Expected {
    /// The offset expected for the bytes at `offset`, behind all extents so far: those of a gap
    /// between extents stay where they are.
    fn at(&self, offset: u64) -> u64 {
        match offset > self.end {
            true => offset,
            false => self.base,
        }
    }

    fn pass(&mut self, range: ByteRange, found: Found) {
        let before = self.at(range.start());
        self.base = match found {
            Found::Copy(from) => from,
            _ => before,
        }
        .saturating_add(range.len_bytes());
        self.end = range.end();
    }
}

/// Leaves out the longest gaps until the others have few enough bytes.
fn keep_shortest(sought: &mut Vec<Sought>) {
    let len = |sought: &Sought| sought.gap.range.len_bytes();
    let most = RANGES_MAX as usize / 2;
    if sought.iter().map(len).sum::<u64>() <= LOOKED_FOR_LEN_MAX && sought.len() <= most {
        return;
    }
    sought.sort_unstable_by_key(|sought| (len(sought), sought.extent));
    let mut room = LOOKED_FOR_LEN_MAX;
    let fits = sought
        .iter()
        .take(most)
        .take_while(|sought| match room.checked_sub(len(sought)) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        });
    let fits = fits.count();
    sought.truncate(fits);
    sought.sort_unstable_by_key(|sought| sought.extent);
}
