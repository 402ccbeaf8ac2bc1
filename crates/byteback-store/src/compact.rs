//! Bounds how many rows a version is read from, at a cost that follows the change.
//!
//! The rows from which a version is read form a *stack* of *runs*, newest on top. After each new
//! layer the top runs are merged, as in a log-structured merge tree with size tiers: a run with `n`
//! extents is of tier `log8(n)`; a run first absorbs smaller runs directly below it, and [`FAN_IN`]
//! runs of one tier become one. Merging composes extents only; no literal byte is read or written.
//! It adds a row for `first..=last` and leaves the merged ones, because versions between need them.
//!
//! Why tiers by size and not by age: the first layer of a 100 GB image has a million extents, the
//! second a dozen. By age they would be merged after seven more backups, at the cost of the
//! million.
//!
//! Bounds, with E extents in all layers together: tiers never increase towards the top, at most
//! `FAN_IN - 1` runs are of the same tier, hence a stack has at most `7 * (1 + log8 E)` runs above
//! a reset. An extent is rewritten at most `FAN_IN` times per tier (once per merge; a merged run
//! may stay in its tier when newer extents cover older ones), so that applying a delta of n extents
//! costs O(n log E), amortised.
//!
//! A hostile client can make copies of copies, whose composition grows without bound. A merge that
//! exceeds [`GROWTH_MAX`] times its input is given up, and its newest run becomes a *barrier* below
//! which nothing is merged any more from above: that file reads slower, nothing else happens.

use crate::catalog::{CatalogWrite, LayerRow};
use crate::error::StoreError;
use crate::layer::{Literal, PageBuilder};
use crate::numbers::{LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use crate::resolve::Resolver;
use byteback_delta::Source;
use byteback_extents::ByteRange;
use std::collections::BTreeSet;

/// Runs of one tier that are merged; also the ratio of tiers.
pub(crate) const FAN_IN: usize = 8;

/// Pieces that a merge may look at, per extent that goes in.
const GROWTH_MAX: u64 = 16;

/// The tier of a run with this number of extents.
pub(crate) fn tier(extents: u64) -> u32 {
    extents.checked_ilog(8).unwrap_or(0)
}

/// Merges the top runs of the stack of `node` whose newest layer is `layer`, as often as the rule
/// requires.
pub(crate) fn compact(catalog: &dyn CatalogWrite, node: NodeNumber, layer: LayerNumber) -> Result<(), StoreError> {
    loop {
        let group = group_to_merge(catalog, node, layer)?;
        if group.len() < 2 || !merge(catalog, node, &group)? {
            return Ok(());
        }
    }
}

/// The runs to merge into one, newest first; fewer than two when the stack is in order.
fn group_to_merge(
    catalog: &dyn CatalogWrite,
    node: NodeNumber,
    layer: LayerNumber,
) -> Result<Vec<LayerRow>, StoreError> {
    let Some(top) = catalog.longest_layer(node, layer, LayerNumber::FIRST)? else {
        return Ok(Vec::new());
    };
    let top_tier = tier(top.extents);
    let mut group = vec![top];
    let mut same_tier = 1;
    let mut smaller = 0;
    while let Some(lowest) = group.last() {
        if lowest.resets || lowest.barrier || lowest.first <= LayerNumber::FIRST {
            break;
        }
        let Some(below) = catalog.longest_layer(node, lowest.first.previous(), LayerNumber::FIRST)? else {
            break;
        };
        match tier(below.extents).cmp(&top_tier) {
            std::cmp::Ordering::Less => smaller = group.len(),
            std::cmp::Ordering::Equal => same_tier += 1,
            std::cmp::Ordering::Greater => break,
        }
        group.push(below);
        if same_tier == FAN_IN {
            return Ok(group);
        }
    }
    // Too few runs for a merge of the tier: only absorb smaller runs, down to the lowest of them.
    group.truncate(if smaller == 0 { 1 } else { smaller.saturating_add(1) });
    Ok(group)
}

/// Adds a piece of composed rows, the oldest of which was laid over `base_len_bytes`, to their
/// pages.
pub(crate) fn push_composed(builder: &mut PageBuilder, base_len_bytes: u64, range: ByteRange, source: Source<Literal>) {
    match source {
        Source::Copy { base_offset } if base_offset == range.start() => {}
        // A gap past the base's end means zeros anyway.
        Source::Zero => {
            if let Some(in_base) = ByteRange::new(range.start(), range.end().min(base_len_bytes)) {
                builder.push(in_base, source);
            }
        }
        _ => builder.push(range, source),
    }
}

/// Merges adjacent runs; returns false when the merge was given up.
fn merge(catalog: &dyn CatalogWrite, node: NodeNumber, group: &[LayerRow]) -> Result<bool, StoreError> {
    let (Some(newest), Some(oldest)) = (group.first(), group.last()) else {
        return Ok(false);
    };
    let extents_in: u64 = group.iter().map(|row| row.extents).sum();
    // Gaps are pieces too, at most one more than extents in each run.
    let mut budget = extents_in
        .saturating_mul(2)
        .saturating_add(64)
        .saturating_mul(GROWTH_MAX);
    let mut resolver = Resolver::to_base(group.to_vec(), ByteRange::new(0, newest.new_len));
    let mut builder = PageBuilder::default();
    while let Some((range, source)) = resolver.next_piece(catalog)? {
        budget = budget.saturating_sub(1);
        if budget == 0 {
            catalog.set_barrier(newest.id)?;
            return Ok(false);
        }
        push_composed(&mut builder, oldest.base_len, range, source);
    }
    builder.finish();
    let mut segments = BTreeSet::new();
    for row in group {
        segments.extend(catalog.layer_segments(row.pages())?);
    }
    let row = LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: oldest.first,
        last: newest.last,
        base_len: oldest.base_len,
        new_len: newest.new_len,
        extents: builder.extents_total,
        resets: oldest.resets,
        barrier: oldest.barrier,
        shared: None,
    };
    let segments: Vec<SegmentNumber> = segments.into_iter().collect();
    catalog.insert_layer(node, &row, &builder.pages, &segments)?;
    Ok(true)
}
