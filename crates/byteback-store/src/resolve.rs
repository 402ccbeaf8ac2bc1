//! Finds the source of each byte of a version: the layers of a file laid over each other, lazily.
//!
//! [`Resolver`] walks a range of the newest layer's contents. Where that layer has a literal or
//! zeros, it returns them; where it keeps or copies bytes of its base, it looks into the next older
//! row at that place, and so on. Only the pages that the range needs are read, and memory is one
//! page per row and one step per row, whatever the length of the file. Reading, merging and
//! comparing versions all use it: reading walks to the bottom; merging and comparing stop at a
//! version, and bytes from that version are returned as `Source::Copy`.
//!
//! [`layer_rows`] picks the rows: from the wanted layer downwards, always the row that covers the
//! most layers. By `compact`'s rule these are the runs that existed when that layer was applied, or
//! one that `defragment` has made since, hence few.

use crate::catalog::{CatalogRead, LayerRow};
use crate::error::StoreError;
use crate::layer::{LayerExtent, Literal, Page};
use crate::numbers::{LayerNumber, NodeNumber};
use byteback_delta::Source;
use byteback_extents::{ByteRange, ExtentValue};

/// A range of the resolved contents and its source.
pub(crate) type Piece = (ByteRange, Source<Literal>);

/// The rows, newest first, that lead from the contents after layer `after` to those after layer
/// `layer`. Stops early at a row that takes nothing from older ones. `after` none is the empty
/// file.
pub(crate) fn layer_rows(
    catalog: &dyn CatalogRead,
    node: NodeNumber,
    layer: LayerNumber,
    after: LayerNumber,
) -> Result<Vec<LayerRow>, StoreError> {
    let mut rows = Vec::new();
    let mut last = layer;
    while last > after {
        let row = catalog
            .longest_layer(node, last, after.next())?
            .filter(|row| row.first <= last)
            .ok_or_else(|| StoreError::CatalogDamaged(format!("layer {last} of node {node} is missing")))?;
        rows.push(row);
        if row.resets {
            break;
        }
        last = row.first.previous();
    }
    Ok(rows)
}

/// Walks a range through some layer rows.
#[derive(Debug)]
pub(crate) struct Resolver {
    runs: Vec<Run>,
    steps: Vec<Step>,
    /// Whether bytes from below the last row are returned as copies; otherwise their absence is
    /// damage.
    open_bottom: bool,
}

/// A row and the place of its pages: in the catalog, or here because it is not applied yet.
#[derive(Debug)]
pub(crate) struct Run {
    row: LayerRow,
    pages: Option<Vec<(u64, Vec<u8>)>>,
    cached: Option<Cached>,
}

/// A result of `catalog.page`, and the offsets for which it is valid.
#[derive(Debug)]
struct Cached {
    valid: std::ops::Range<u64>,
    page: Option<Page>,
}

/// A range still to be looked up in one row.
#[derive(Clone, Copy, Debug)]
struct Step {
    run: usize,
    at: u64,
    end: u64,
    /// Offset of `at` in the newest contents.
    target: u64,
}

impl Resolver {
    /// A resolver down to the bottom: it returns no copies.
    pub(crate) fn to_bottom(rows: Vec<LayerRow>, range: Option<ByteRange>) -> Self {
        Self::new(rows.into_iter().map(Run::stored).collect(), range.as_slice(), false)
    }

    /// Like [`Self::to_bottom`], through runs of either kind, and several ranges in this order.
    pub(crate) fn through(runs: Vec<Run>, ranges: &[ByteRange]) -> Self {
        Self::new(runs, ranges, false)
    }

    /// A resolver down to the base of the last row, whose bytes are returned as copies.
    pub(crate) fn to_base(rows: Vec<LayerRow>, range: Option<ByteRange>) -> Self {
        Self::new(rows.into_iter().map(Run::stored).collect(), range.as_slice(), true)
    }

    fn new(runs: Vec<Run>, ranges: &[ByteRange], open_bottom: bool) -> Self {
        // The last step is the next one.
        let steps = ranges.iter().rev().map(|range| Step {
            run: 0,
            at: range.start(),
            end: range.end(),
            target: range.start(),
        });
        let steps = steps.collect();
        Self {
            runs,
            steps,
            open_bottom,
        }
    }

    /// The next piece, ascending and without gaps, or `None` at the end of the range.
    pub(crate) fn next_piece(&mut self, catalog: &dyn CatalogRead) -> Result<Option<Piece>, StoreError> {
        loop {
            let Some(step) = self.steps.last_mut() else {
                return Ok(None);
            };
            if step.at >= step.end {
                self.steps.pop();
                continue;
            }
            let Step { run, at, end, target } = *step;
            let Some(layer) = self.runs.get_mut(run) else {
                // Below the last row; no older one is at hand.
                step.at = end;
                if !self.open_bottom {
                    return Err(StoreError::CatalogDamaged(
                        "a layer refers to a missing layer".to_owned(),
                    ));
                }
                return piece(target, end - at, Source::Copy { base_offset: at }).map(Some);
            };
            let (part_end, source) = layer.locate(catalog, at)?;
            let row = layer.row;
            let part_end = part_end.min(end);
            let (part_end, source) = match source {
                Some(source) => (part_end, source),
                None if at < row.base_len => (part_end.min(row.base_len), Source::Copy { base_offset: at }),
                None => (part_end, Source::Zero),
            };
            let len = part_end - at;
            step.at = part_end;
            step.target = target.saturating_add(len);
            if let Source::Copy { base_offset } = source {
                let base_end = base_offset
                    .checked_add(len)
                    .filter(|base_end| *base_end <= row.base_len)
                    .ok_or_else(|| StoreError::CatalogDamaged("a copy reaches past its base".to_owned()))?;
                self.steps.push(Step {
                    run: run.saturating_add(1),
                    at: base_offset,
                    end: base_end,
                    target,
                });
                continue;
            }
            return piece(target, len, source).map(Some);
        }
    }
}

fn piece(start: u64, len: u64, source: Source<Literal>) -> Result<Piece, StoreError> {
    let range = ByteRange::from_offset_len(start, len);
    let range =
        range.ok_or_else(|| StoreError::CatalogDamaged("an extent exceeds the largest file size".to_owned()))?;
    Ok((range, source))
}

impl Run {
    /// A row of the catalog.
    pub(crate) fn stored(row: LayerRow) -> Self {
        Self {
            row,
            pages: None,
            cached: None,
        }
    }

    /// A row that is not applied yet; pages ascend by their first offset.
    pub(crate) fn staged(row: LayerRow, pages: Vec<(u64, Vec<u8>)>) -> Self {
        Self {
            row,
            pages: Some(pages),
            cached: None,
        }
    }

    /// The page that covers the byte at `at`, and the offset at which the next page begins.
    fn page(&self, catalog: &dyn CatalogRead, at: u64) -> Result<(Option<Page>, Option<u64>), StoreError> {
        let Some(pages) = &self.pages else {
            let (blob, next) = catalog.page(self.row.pages(), at)?;
            return Ok((blob.map(|blob| Page::decode(&blob)).transpose()?, next));
        };
        let following = pages.partition_point(|(start, _)| *start <= at);
        let page = following.checked_sub(1).and_then(|index| pages.get(index));
        let page = page.map(|(_, blob)| Page::decode(blob)).transpose()?;
        Ok((page, pages.get(following).map(|(start, _)| *start)))
    }

    /// The source of the byte at `at`, if an extent covers it, and the latest offset at which this
    /// source or this gap ends.
    fn locate(&mut self, catalog: &dyn CatalogRead, at: u64) -> Result<(u64, Option<Source<Literal>>), StoreError> {
        if self.cached.as_ref().is_none_or(|cached| !cached.valid.contains(&at)) {
            let (page, next) = self.page(catalog, at)?;
            let first = page
                .as_ref()
                .and_then(|page| page.extents.first())
                .map_or(0, |extent| extent.range.start());
            self.cached = Some(Cached {
                valid: first..next.unwrap_or(u64::MAX),
                page,
            });
        }
        let Some(cached) = &self.cached else {
            return Ok((u64::MAX, None));
        };
        let until = cached.valid.end;
        let extents: &[LayerExtent] = cached.page.as_ref().map_or(&[], |page| &page.extents);
        let index = extents.partition_point(|extent| extent.range.end() <= at);
        match extents.get(index) {
            Some(extent) if extent.range.start() <= at => {
                let skip = at - extent.range.start();
                Ok((extent.range.end(), Some(extent.source.advance(skip))))
            }
            Some(extent) => Ok((extent.range.start(), None)),
            None => Ok((until, None)),
        }
    }
}
