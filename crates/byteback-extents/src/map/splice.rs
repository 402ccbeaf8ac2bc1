//! Replacement of a run of entries by others, and rebalancing of the leaves: the general path of
//! every change.
//!
//! A change finds the run of entries that the range overlaps or touches, computes the at most three
//! entries that replace it (the rest of the first, the new one, the rest of the last), and splices
//! them in. Only then are leaves split or joined.

use super::{Entry, ExtentMap, Leaf, Place};
use crate::range::ByteRange;
use crate::value::ExtentValue;

/// The run of entries that a range overlaps, with the remainders of its first and last.
struct Run<V> {
    from: Place,
    /// After the last entry of the run.
    to: Place,
    /// The part of the run's first entry before the range.
    head: Option<Entry<V>>,
    /// The part of the run's last entry after the range.
    tail: Option<Entry<V>>,
}

impl<V: ExtentValue> ExtentMap<V> {
    /// Lays an entry over the existing ones, joining it with its neighbours where values continue.
    pub(super) fn overlay_entry(&mut self, range: ByteRange, value: V) {
        let mut new = Entry {
            start: range.start(),
            end: range.end(),
            value,
        };
        let mut run = self.overlapped_run(range);

        // Join to the left: with the remainder of a cut entry, or with an untouched one that ends
        // where the range starts. The latter may be the last of the previous leaf, if an entry that
        // starts exactly here is being replaced.
        if let Some(head) = &run.head {
            if head.value.continues(head.len_bytes(), &new.value) {
                new.start = head.start;
                new.value = head.value.clone();
                run.head = None;
            }
        } else if let Some(place) = self.place_before(run.from) {
            let left = &self.leaves[place.leaf][place.index];
            if left.end == new.start && left.value.continues(left.len_bytes(), &new.value) {
                new.start = left.start;
                new.value = left.value.clone();
                run.from = place;
            }
        }
        // Join to the right in the same way. If the next entry is the first of another leaf, the
        // run's end moves there.
        if let Some(tail) = &run.tail {
            if new.value.continues(new.len_bytes(), &tail.value) {
                new.end = tail.end;
                run.tail = None;
            }
        } else {
            let mut next = run.to;
            if next.leaf + 1 < self.leaves.len() && next.index == self.leaves[next.leaf].len() {
                next = Place {
                    leaf: next.leaf + 1,
                    index: 0,
                };
            }
            if let Some(right) = self.leaves.get(next.leaf).and_then(|leaf| leaf.get(next.index))
                && right.start == new.end
                && new.value.continues(new.len_bytes(), &right.value)
            {
                new.end = right.end;
                run.to = Place {
                    leaf: next.leaf,
                    index: next.index + 1,
                };
            }
        }

        let start = new.start;
        let place = Place {
            leaf: run.from.leaf,
            index: run.from.index + usize::from(run.head.is_some()),
        };
        let reshaped = self.splice(run.from, run.to, [run.head, Some(new), run.tail]);
        self.last = if reshaped { self.place_of(start) } else { place };
    }

    /// Removes all values in a range.
    pub(super) fn cut_out(&mut self, range: ByteRange) {
        let run = self.overlapped_run(range);
        if run.from != run.to {
            self.splice(run.from, run.to, [run.head, None, run.tail]);
        }
    }

    /// The place of the entry before a place.
    fn place_before(&self, place: Place) -> Option<Place> {
        match place.index.checked_sub(1) {
            Some(index) => Some(Place {
                leaf: place.leaf,
                index,
            }),
            None => {
                let leaf = place.leaf.checked_sub(1)?;
                Some(Place {
                    leaf,
                    index: self.leaves[leaf].len() - 1,
                })
            }
        }
    }

    /// The place of the first entry that ends after `offset`, or the end of the leaf in which it
    /// would belong. O(1) if that is just after the last-touched entry, as in writes that ascend
    /// with gaps.
    fn place_of(&self, offset: u64) -> Place {
        let Place {
            leaf: last_leaf,
            index: last_index,
        } = self.last;
        if let Some(entries) = self.leaves.get(last_leaf)
            && entries.get(last_index).is_some_and(|entry| entry.end <= offset)
        {
            let index = last_index + 1;
            let found = match entries.get(index) {
                Some(next) => offset < next.end,
                None => self
                    .separators
                    .get(last_leaf)
                    .is_none_or(|&next_first| offset < next_first),
            };
            if found {
                return Place { leaf: last_leaf, index };
            }
        }
        let leaf = self.leaf_for(offset);
        let index = self
            .leaves
            .get(leaf)
            .map_or(0, |entries| entries.partition_point(|entry| entry.end <= offset));
        Place { leaf, index }
    }

    /// Finds the entries that have bytes in `range`. In an empty run, `from == to` is where an
    /// entry for the range belongs.
    fn overlapped_run(&self, range: ByteRange) -> Run<V> {
        let from = self.place_of(range.start());
        let mut run = Run {
            from,
            to: from,
            head: None,
            tail: None,
        };
        let Some(leaf) = self.leaves.get(from.leaf) else {
            return run;
        };
        if let Some(first) = leaf.get(from.index)
            && first.start < range.start()
        {
            run.head = Some(Entry {
                start: first.start,
                end: range.start(),
                value: first.value.clone(),
            });
        }
        // Most ranges overlap few entries, hence steps instead of a search; when all the rest of
        // this leaf is overlapped, search.
        while leaf.get(run.to.index).is_some_and(|entry| entry.end <= range.end()) {
            run.to.index += 1;
        }
        if run.to.index == leaf.len() && self.separators.get(from.leaf).is_some_and(|&next| next < range.end()) {
            run.to.leaf = self.separators.partition_point(|&first| first < range.end());
            run.to.index = self.leaves[run.to.leaf].partition_point(|entry| entry.end <= range.end());
        }
        if let Some(last) = self.leaves[run.to.leaf].get(run.to.index)
            && last.start < range.end()
        {
            run.tail = Some(Entry {
                start: range.end(),
                end: last.end,
                value: last.value.advance(range.end() - last.start),
            });
            run.to.index += 1;
        }
        run
    }

    /// Puts `new` in the place of the entries between `from` and `to`. Returns whether leaves were
    /// added or removed, so that places have changed.
    fn splice(&mut self, from: Place, to: Place, new: [Option<Entry<V>>; 3]) -> bool {
        let added_len = new.iter().flatten().count();
        let added_bytes = new.iter().flatten().map(Entry::len_bytes).sum::<u64>();
        if self.leaves.is_empty() {
            let entries: Leaf<V> = new.into_iter().flatten().collect();
            if !entries.is_empty() {
                self.leaves.reserve_exact(1);
                self.leaves.push(entries);
            }
            self.len = added_len;
            self.covered_bytes = added_bytes;
            return true;
        }
        if from.leaf == to.leaf {
            self.splice_leaf(from.leaf, from.index, to.index, new);
        } else {
            let last_index = to.leaf;
            for leaf in &mut self.leaves[from.leaf + 1..last_index] {
                self.len -= leaf.len();
                self.covered_bytes -= leaf.iter().map(Entry::len_bytes).sum::<u64>();
            }
            self.splice_leaf(last_index, 0, to.index, [None, None, None]);
            self.leaves.drain(from.leaf + 1..last_index);
            self.separators.drain(from.leaf..last_index - 1);
            let first_len = self.leaves[from.leaf].len();
            self.splice_leaf(from.leaf, from.index, first_len, new);
        }
        // Added only after the replaced entries were subtracted: the sum never exceeds the offset
        // space.
        self.len += added_len;
        self.covered_bytes += added_bytes;
        self.reshape(from.leaf, from.index, from.leaf != to.leaf)
    }
}

impl<V> ExtentMap<V> {
    /// A leaf with fewer entries than this is joined with a neighbour if both fit into one with
    /// room to spare.
    const LEAF_ENTRIES_LOW: usize = Self::LEAF_ENTRIES_MAX / 4;

    /// Leaves are joined only up to this size, so that the next insert does not split them again.
    const LEAF_ENTRIES_JOINED: usize = Self::LEAF_ENTRIES_MAX / 4 * 3;

    /// A leaf doubles while it is small, then grows by this many entries at once: less slack for a
    /// few more reallocations.
    const LEAF_GROWTH_MAX: usize = Self::LEAF_ENTRIES_MAX / 8;

    /// Replaces the entries `from..to` of one leaf, which may end up empty or too long until it is
    /// reshaped.
    fn splice_leaf(&mut self, leaf_index: usize, from: usize, to: usize, new: [Option<Entry<V>>; 3]) {
        let leaf = &mut self.leaves[leaf_index];
        for old in &leaf[from..to] {
            self.covered_bytes -= old.len_bytes();
        }
        self.len -= to - from;
        let mut at = from;
        for entry in new.into_iter().flatten() {
            if at < to {
                leaf[at] = entry;
            } else {
                if leaf.len() == leaf.capacity() {
                    leaf.reserve_exact(leaf.len().clamp(1, Self::LEAF_GROWTH_MAX));
                }
                leaf.insert(at, entry);
            }
            at += 1;
        }
        if at < to {
            leaf.drain(at..to);
            Self::give_back_slack(leaf);
        }
        if from == 0
            && leaf_index > 0
            && let Some(first) = leaf.first()
        {
            self.separators[leaf_index - 1] = first.start;
        }
    }

    /// Splits, removes or joins the leaf at `leaf_index`, and the one after it if `both`, as their
    /// lengths demand. `at_index` is the place of the change in the first of them. Returns whether
    /// leaves were added or removed.
    fn reshape(&mut self, leaf_index: usize, at_index: usize, both: bool) -> bool {
        let mut reshaped = both;
        // Empty leaves first: the code below relies on a first entry in each leaf.
        for candidate in [leaf_index + 1, leaf_index] {
            if (both || candidate == leaf_index) && self.leaves[candidate].is_empty() {
                self.leaves.remove(candidate);
                if !self.separators.is_empty() {
                    self.separators.remove(candidate.saturating_sub(1));
                }
                reshaped = true;
            }
        }
        for candidate in [leaf_index + 1, leaf_index] {
            if (both || candidate == leaf_index) && candidate < self.leaves.len() {
                reshaped |= self.balance_leaf(candidate, at_index);
            }
        }
        if reshaped && self.leaves.capacity() > 2 * self.leaves.len() + 8 {
            self.leaves.shrink_to(self.leaves.len() + 4);
            self.separators.shrink_to(self.leaves.len() + 4);
        }
        reshaped
    }

    fn balance_leaf(&mut self, leaf_index: usize, at_index: usize) -> bool {
        let len = self.leaves[leaf_index].len();
        if len > Self::LEAF_ENTRIES_MAX {
            self.split_leaf(leaf_index, at_index);
            return true;
        }
        if len >= Self::LEAF_ENTRIES_LOW {
            return false;
        }
        let fits = |other: usize| {
            self.leaves
                .get(other)
                .is_some_and(|other| other.len() + len <= Self::LEAF_ENTRIES_JOINED)
        };
        let left = match leaf_index.checked_sub(1) {
            Some(before) if fits(before) => before,
            _ if fits(leaf_index + 1) => leaf_index,
            _ => return false,
        };
        let mut right_entries = self.leaves.remove(left + 1);
        self.separators.remove(left);
        self.leaves[left].append(&mut right_entries);
        true
    }

    /// Splits a leaf in halves; where the map grows at its end or its beginning, keeps the older
    /// part full instead.
    fn split_leaf(&mut self, leaf_index: usize, at_index: usize) {
        let leaf = &mut self.leaves[leaf_index];
        let at = if leaf_index == self.separators.len() && at_index + 1 >= Self::LEAF_ENTRIES_MAX {
            Self::LEAF_ENTRIES_MAX
        } else if leaf_index == 0 && at_index == 0 {
            leaf.len() - Self::LEAF_ENTRIES_MAX
        } else {
            leaf.len() / 2
        };
        let right = leaf.split_off(at);
        Self::give_back_slack(leaf);
        if let Some(first) = right.first() {
            self.separators.insert(leaf_index, first.start);
            self.leaves.insert(leaf_index + 1, right);
        }
    }

    /// Frees memory that a leaf will not need soon.
    fn give_back_slack(leaf: &mut Leaf<V>) {
        if leaf.capacity() > leaf.len() + 2 * Self::LEAF_GROWTH_MAX {
            leaf.shrink_to(leaf.len() + Self::LEAF_GROWTH_MAX);
        }
    }
}
