//! The second look at what a finder did not find: in short blocks of an excerpt of the server's
//! version (`byteback_delta::excerpt`), in rounds of one request each, and at last in its bytes.
//!
//! A gap's bytes come from what no copy is from, unless they are new: where a program changed a
//! little, from the same place; where it moved rows, records or files, from anywhere. Where it
//! copied something, they may come from what lies beside that. The rest after a round is looked for
//! in the next one, in shorter blocks.
//!
//! The proof covers all that is found; where it does not cover all literals, there is no second
//! look ([`FoundFile::without_second_look`]). A server that does not answer, or lies, costs bytes.

use super::super::overwritten::{COMPARED_LEN_MAX, Overwritten};
use super::{Found, FoundFile};
use crate::backup::Job;
use crate::backup::plan::second_look::{Left, Round, SAMPLE_SHARE, SAMPLED_LEN_MIN, Way};
use crate::backup::plan::{Call, DeltaChoice};
use byteback_client::ServerError;
use byteback_delta::excerpt::{Excerpt, ExcerptAnswer, ExcerptBytes, RANGES_MAX};
use byteback_delta::find::{BlockIndex, FoundExtents, Gap, Packed, excerpt_for, find_in_excerpt};
use byteback_extents::{ByteRange, ExtentSet};

/// Most bytes of gaps in one look; the shortest gaps come first. The excerpt has about three times
/// as many at most.
const LOOKED_FOR_LEN_MAX: u64 = 8 << 20;

/// Most bytes that are looked into beside a copy of bytes that stay elsewhere, too.
const BESIDE_LEN_MAX: u64 = 64 << 10;

/// Length of the pieces of a sample.
const SAMPLE_PIECE_LEN: u64 = 16 << 10;

/// A literal extent that is looked for.
#[derive(Clone, Copy)]
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
    /// Looks for the literals that were not looked for yet in short blocks, in as many rounds as
    /// are worth it; returns the first one. `is_whole`: the finder has passed the whole content.
    pub(super) fn look_closer(&mut self, is_whole: bool) -> Option<Round> {
        let first = self.look_once_more(None, is_whole)?;
        let mut before = first;
        while let Some(round) = self.look_once_more(Some(before), is_whole) {
            before = round;
        }
        Some(first)
    }

    /// The round after `before`; `None`: there is none that is possible, or worth its costs.
    fn look_once_more(&mut self, before: Option<Round>, is_whole: bool) -> Option<Round> {
        let looks = self.place.job.second_looks.get();
        if !looks.may_go_on(before) {
            return None;
        }
        let sought = self.sought();
        let ways = looks.next_ways(left(&sought), before);
        let unused = self.unused(sought.first()?.gap.base_before, is_whole);
        ways.into_iter()
            .find_map(|way| self.look_in(way, &sought, &unused, before))
    }

    fn look_in(&mut self, way: Way, sought: &[Sought], unused: &ExtentSet, before: Option<Round>) -> Option<Round> {
        let job = self.place.job;
        let sought = sought
            .iter()
            .filter(|sought| way.is_for_gap_of(sought.gap.range.len_bytes()));
        let sought: Vec<Sought> = sought.copied().collect();
        let left = left(&sought);
        let gaps: Vec<Gap> = sought.iter().map(|sought| sought.gap).collect();
        let block_len = match way {
            Way::Sample(block_len) | Way::Blocks(block_len) => block_len,
            Way::Bytes(_) => 1,
        };
        let excerpt = excerpt_for(&gaps, unused, self.base_len, block_len);
        let (way, excerpt) = match (way, before) {
            (Way::Blocks(block_len), None) if excerpt.len_bytes() >= SAMPLED_LEN_MIN => {
                (Way::Sample(block_len), sample_of(&excerpt))
            }
            _ => (way, excerpt),
        };
        let size = (excerpt.len_bytes(), excerpt.ranges().len());
        if size.0 == 0 || size.1 > RANGES_MAX as usize || !self.can_have(way, &excerpt) {
            return None;
        }
        let mut looks = job.second_looks.get();
        let is_worth = looks.begin((way, left), size, before, &self.place.conditions);
        job.second_looks.set(looks);
        if !is_worth {
            return None;
        }
        let mut sought = sought.iter().peekable();
        let mut is_sought = move |extent| sought.next_if(|sought| sought.extent == extent).is_some();
        let found_bytes = match way {
            Way::Sample(block_len) | Way::Blocks(block_len) => {
                let (index, excerpt) = self.blocks_of(&excerpt, block_len)?;
                self.divide(|number, range, bytes| {
                    is_sought(number).then_some(())?;
                    let Ok((parts, stats)) =
                        find_in_excerpt(&index, &excerpt, (range.start(), bytes), FoundExtents::default());
                    (stats.copied_bytes > 0).then_some(parts)
                })
            }
            Way::Bytes(_) => {
                let old = self.bytes_of(&excerpt)?;
                let comparison = old.comparison();
                self.divide(|number, range, bytes| {
                    is_sought(number).then_some(())?;
                    let (parts, stats) = comparison.find(&std::iter::once(range).collect::<Packed>(), bytes);
                    (stats.copied_bytes > 0).then_some(parts)
                })
            }
        };
        Some(Round { way, left, found_bytes })
    }

    /// Whether an excerpt can be looked at so. Bytes are not asked for if the tree has those that
    /// programs overwrote: all is compared with these.
    fn can_have(&self, way: Way, excerpt: &Excerpt) -> bool {
        match way {
            Way::Sample(_) | Way::Blocks(_) => true,
            Way::Bytes(_) => {
                self.comparable().is_none()
                    && excerpt.len_bytes() <= COMPARED_LEN_MAX
                    && self.place.job.answers.get().has(Call::ExcerptBytes)
            }
        }
    }

    /// The blocks of an excerpt of the server's version, and the part of it that it has.
    fn blocks_of(&self, excerpt: &Excerpt, block_len: u32) -> Option<(BlockIndex, Excerpt)> {
        let job = self.place.job;
        let (file, at) = (self.at_server, self.place.base_seq);
        let answer = job.server.excerpt(job.folder, file, at, excerpt, block_len);
        let answer = self.answered(Call::Excerpt, answer)?;
        let ExcerptAnswer { excerpt, signature, .. } = answer;
        (answer.base_len_bytes == self.base_len).then(|| (BlockIndex::new(signature), excerpt))
    }

    /// The bytes of an excerpt of the server's version.
    fn bytes_of(&self, excerpt: &Excerpt) -> Option<Overwritten> {
        let job = self.place.job;
        let (file, at) = (self.at_server, self.place.base_seq);
        let answer = job.server.excerpt_bytes(job.folder, file, at, excerpt);
        let ExcerptBytes {
            base_len_bytes,
            excerpt,
            bytes,
        } = self.answered(Call::ExcerptBytes, answer)?;
        (base_len_bytes == self.base_len).then(|| Overwritten::new(base_len_bytes, excerpt.ranges().to_vec(), bytes))
    }

    fn answered<T>(&self, call: Call, answer: Result<T, ServerError>) -> Option<T> {
        let noted = answer.map_err(|error| self.place.job.note_unanswered(call, &error));
        noted.ok()
    }

    /// The literals that were not looked for yet, ascending; if they are very many, the shortest.
    fn sought(&self) -> Vec<Sought> {
        let mut sought: Vec<Sought> = Vec::new();
        let mut expected = Expected::default();
        for (extent, &(range, found)) in self.extents.iter().enumerate() {
            let base_before = expected.at(range.start());
            expected.pass(range, found);
            if matches!(found, Found::Literal(before) if before >= self.looked_upto) {
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
        keep_shortest(&mut sought);
        sought
    }

    /// The ranges of the server's version in which literals may lie: those that no copy is from and
    /// that do not stay where they are, and those beside copies of bytes that stay elsewhere, too:
    /// what surrounds these may have been copied along.
    ///
    /// While the finder is on its way, those from `from` on up to the place where it expects what
    /// follows: copies may still come from behind it, and what was looked into need not be again.
    fn unused(&self, from: u64, is_whole: bool) -> ExtentSet {
        let mut used = ExtentSet::new();
        let mut expected = Expected::default();
        let mut stays = |from: u64, to: u64| {
            ByteRange::new(from, to)
                .into_iter()
                .for_each(|range| used.insert(range))
        };
        let mut end = 0;
        for &(range, found) in &self.extents {
            stays(end, range.start());
            if matches!(found, Found::Copy(from) if from == range.start()) {
                stays(range.start(), range.end());
            }
            expected.pass(range, found);
            end = range.end();
        }
        if is_whole {
            stays(end, self.attributes.size);
        }
        let mut beside = ExtentSet::new();
        for (number, &(range, found)) in self.extents.iter().enumerate() {
            let Found::Copy(from) = found else { continue };
            let Some(source) = ByteRange::from_offset_len(from, range.len_bytes()) else {
                continue;
            };
            if from != range.start() && used.intersects(source) {
                let before = number
                    .checked_sub(1)
                    .and_then(|before| self.gap_at(before, range.start()));
                beside.extend(ByteRange::new(
                    source.start().saturating_sub(before.unwrap_or(0)),
                    source.start(),
                ));
                let behind = self.gap_at(number + 1, range.end()).unwrap_or(0);
                beside.extend(ByteRange::new(source.end(), source.end().saturating_add(behind)));
            }
            used.insert(source);
        }
        let all = match is_whole {
            true => ByteRange::new(0, self.base_len),
            false => ByteRange::new(from, expected.at(end).min(self.base_len)),
        };
        let mut unused: ExtentSet = all.into_iter().flat_map(|all| used.gaps_within(all)).collect();
        beside.truncate(self.base_len);
        unused.union_with(&beside);
        unused
    }

    /// The length of the literal with this number, if it has a border at this offset and may still
    /// be looked for; of a long one, of its part there.
    fn gap_at(&self, number: usize, border: u64) -> Option<u64> {
        let &(range, found) = self.extents.get(number)?;
        let is_beside = range.start() == border || range.end() == border;
        let is_sought = matches!(found, Found::Literal(before) if before >= self.looked_upto);
        (is_beside && is_sought).then(|| range.len_bytes().min(BESIDE_LEN_MAX))
    }
}

/// A sample of an excerpt, in pieces from all over it.
fn sample_of(excerpt: &Excerpt) -> Excerpt {
    let period = SAMPLE_PIECE_LEN * SAMPLE_SHARE;
    // At most some hundred: the excerpt is a few times as long as the literals of one look.
    let pieces = (0..excerpt.len_bytes().div_ceil(period))
        .filter_map(|number| ByteRange::from_offset_len(number * period, SAMPLE_PIECE_LEN));
    Excerpt::new(&pieces.flat_map(|piece| excerpt.in_base(piece)).collect())
}

fn left(sought: &[Sought]) -> Left {
    Left {
        literal_bytes: sought.iter().map(|sought| sought.gap.range.len_bytes()).sum(),
        gaps: sought.len(),
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
