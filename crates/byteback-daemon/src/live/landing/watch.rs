//! Changes of programs to nodes that are watched.
//!
//! The gate reports each change with `Order` held; a landing asks with `Order` held exclusively. So
//! a change that was not reported when it asks has not happened yet, and none happens while it goes
//! on.
//!
//! For a file in which something lands, the bytes that programs changed since its first piece are
//! kept: those are theirs. After a program has set the length, everything beyond it is.
//!
//! **Pages.** A store through a mapping comes as a whole page of the kernel's, which may be one
//! that was read before something landed in it. Until the kernel has forgotten its pages of a
//! piece, the bytes that lay there before are kept (*in doubt*): a byte of a page that equals those
//! was not stored to. Nor was one that equals what is there now. Only the others are the program's.
//!
//! **Ends.** Until then the kernel is told the previous length as well, and reads into its pages
//! get the old bytes behind a new, lower end, until it has taken in that end. Otherwise it shows
//! programs the zeros with which it fills up a page. Where others lengthen a file, the kernel is
//! told the previous length until all has landed: the new part is zeros at first, which a program
//! that rewrites what it read would make lasting. Once a program has changed the file itself, only
//! the truth counts.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use byteback_control::{Overtaken, WatchedNode};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::NodeId;
use byteback_mount::landing::LandingFile;
use parking_lot::Mutex;

use super::super::Live;
use crate::live::spool::read_up_to;

/// All watches.
#[derive(Default)]
pub(in crate::live) struct Watches {
    /// The number of watches, for programs, which mostly need to know only whether there are any.
    count: AtomicUsize,
    /// The number of them that are of files in which something lands.
    landing_count: AtomicUsize,
    by_node: Mutex<HashMap<NodeId, Vec<Arc<NodeWatch>>>>,
    /// Files in whose contents something has landed since the mount began: the kernel may not know
    /// where they end.
    landed_in: LandedIn,
}

/// A set of nodes that only grows. Once it is full it claims every node, which costs each query one
/// needless look at the file.
#[derive(Default)]
struct LandedIn {
    nodes: Mutex<HashSet<NodeId>>,
    /// The number of nodes, for programs, which mostly need to know only whether there are any.
    count: AtomicUsize,
}

impl LandedIn {
    /// Takes a few megabytes.
    const NODES_MAX: usize = 100_000;

    fn insert(&self, node: NodeId) {
        let mut nodes = self.nodes.lock();
        if self.count.load(Ordering::Relaxed) < Self::NODES_MAX && nodes.insert(node) {
            self.count.store(nodes.len(), Ordering::Relaxed);
            if nodes.len() == Self::NODES_MAX {
                *nodes = HashSet::new();
            }
        }
    }

    fn has(&self, node: NodeId) -> bool {
        match self.count.load(Ordering::Relaxed) {
            0 => false,
            Self::NODES_MAX => true,
            _ => self.nodes.lock().contains(&node),
        }
    }
}

/// A node that is watched.
pub(super) struct NodeWatch {
    node: NodeId,
    /// The file, if something lands in it.
    file: Option<Arc<LandingFile>>,
    noticed: Mutex<Noticed>,
}

/// Changes that a watch noticed.
#[derive(Default)]
pub(super) struct Noticed {
    overtaken: Option<Overtaken>,
    /// Whether the first piece has landed.
    has_started: bool,
    /// Ranges that programs changed since.
    theirs: ExtentSet,
    /// Whether a program set the length since.
    is_cut: bool,
    /// Bytes that lay, from an offset on, where something landed and where the kernel may still
    /// have old pages.
    in_doubt: Vec<(u64, Vec<u8>)>,
    /// The length of the file before the piece that lands, until the kernel has no pages from then.
    len_before: Option<u64>,
    /// The length of the file before others lengthened it, until all of it has landed.
    grown_from: Option<u64>,
    /// Whether the kernel knows where the file ends: reads end there, too.
    is_end_known: bool,
}

impl Noticed {
    /// Begins with the first piece, which lands now, unless a change came before it.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        match &self.overtaken {
            Some(overtaken) => Err(overtaken.0.clone()),
            None => {
                self.has_started = true;
                Ok(())
            }
        }
    }

    pub(super) fn was_changed(&self) -> bool {
        !self.theirs.is_empty()
    }

    /// The parts of a range that no program changed.
    pub(super) fn free_within(&self, range: ByteRange) -> Vec<ByteRange> {
        self.theirs.gaps_within(range).collect()
    }

    /// The length that a file of `now_bytes` is to have, if what lands ends at `landed_bytes`.
    pub(super) fn len_with(&self, landed_bytes: u64, now_bytes: u64) -> u64 {
        if self.is_cut {
            return now_bytes;
        }
        let last = ByteRange::new(0, now_bytes).and_then(|all| self.theirs.iter_within(all).last());
        last.map_or(landed_bytes, |last| last.end().max(landed_bytes))
    }

    pub(super) fn doubt(&mut self, offset: u64, old: Vec<u8>) {
        if !old.is_empty() {
            self.in_doubt.push((offset, old));
        }
    }

    /// Notes the length of the file before the piece that lands.
    pub(super) fn was_of(&mut self, len_bytes: u64) {
        self.len_before = Some(self.grown_from.unwrap_or(len_bytes));
        self.is_end_known = false;
    }

    /// Notes that the piece that lands changes the length. The part that the file gains is zeros at
    /// first.
    pub(super) fn resizes(&mut self, before_bytes: u64, after_bytes: u64) {
        match self.grown_from {
            None if after_bytes > before_bytes => self.grown_from = Some(before_bytes),
            Some(grown_from) if after_bytes <= grown_from => self.grown_from = None,
            _ => {}
        }
    }

    /// The end of the file before others lengthened it, if only they have changed it since.
    fn untouched_growth(&self) -> Option<u64> {
        self.grown_from.filter(|_| self.is_untouched())
    }

    /// Ends the growth: all has landed. Returns whether there was one.
    fn end_growth(&mut self) -> bool {
        self.len_before = None;
        self.grown_from.take().is_some()
    }

    /// Whether no program has changed the file since the first piece landed.
    fn is_untouched(&self) -> bool {
        self.theirs.is_empty() && !self.is_cut
    }

    /// Lets the kernel know how long the file is: it has no pages from before the piece that lands.
    /// Reads still get the old bytes behind the end.
    pub(super) fn report_len(&mut self) {
        self.len_before = self.grown_from;
    }

    /// Lets reads end where the file ends from now on: the kernel knows that end.
    pub(super) fn show_end(&mut self) {
        self.is_end_known = true;
    }

    /// Ends the doubt: the kernel has no old pages of the file any more.
    pub(super) fn believe(&mut self) {
        self.len_before = self.grown_from;
        self.in_doubt.clear();
    }

    fn is_old(&self, at: u64, byte: u8) -> bool {
        self.in_doubt.iter().any(|(start, old)| {
            let index = at.checked_sub(*start).and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| old.get(index)) == Some(&byte)
        })
    }

    /// Fills `buffer` with the old bytes at `offset`, as far as they are kept; returns how many.
    fn old_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut rests = self.in_doubt.iter().rev().filter_map(|(start, old)| {
            let index = usize::try_from(offset.checked_sub(*start)?).ok()?;
            old.get(index..).filter(|rest| !rest.is_empty())
        });
        // The newest entry is the state right before the present piece.
        let Some(rest) = rests.next() else { return 0 };
        let count = rest.len().min(buffer.len());
        let (known, _) = buffer.split_at_mut(count);
        known.copy_from_slice(rest.get(..count).unwrap_or_default());
        count
    }

    /// The bytes of a page that were stored to.
    fn stores(&self, offset: u64, page: &[u8], now: &[u8]) -> Vec<ByteRange> {
        let mut stores = ExtentSet::new();
        for (index, byte) in page.iter().enumerate() {
            // There is nothing beyond the end; the kernel filled up its page with zeros.
            let is_same = now.get(index).map_or(*byte == 0, |now| now == byte);
            let at = offset.saturating_add(index as u64);
            if !is_same
                && !self.is_old(at, *byte)
                && let Some(store) = ByteRange::from_offset_len(at, 1)
            {
                stores.insert(store);
            }
        }
        stores.iter().collect()
    }
}

impl NodeWatch {
    pub(super) fn of_node(node: NodeId) -> Self {
        Self {
            node,
            file: None,
            noticed: Mutex::default(),
        }
    }

    pub(super) fn of_file(node: NodeId, file: Arc<LandingFile>) -> Self {
        Self {
            file: Some(file),
            ..Self::of_node(node)
        }
    }

    fn content(&self, ranges: &[ByteRange], len_after_bytes: Option<u64>) {
        let mut noticed = self.noticed.lock();
        if !noticed.has_started {
            noticed.overtaken = Some(Overtaken("a program changed its content".to_owned()));
            return;
        }
        for range in ranges {
            noticed.theirs.insert(*range);
        }
        if let Some(len_bytes) = len_after_bytes {
            noticed.is_cut = true;
            if let Some(beyond) = ByteRange::from_start(len_bytes) {
                noticed.theirs.insert(beyond);
            }
        }
    }

    fn other(&self, what: &str) {
        if self.file.is_none() {
            let mut noticed = self.noticed.lock();
            noticed.overtaken = Some(Overtaken(format!("a program changed {what}")));
        }
    }
}

impl Watches {
    fn of(&self, node: NodeId) -> Vec<Arc<NodeWatch>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.by_node.lock().get(&node).cloned().unwrap_or_default()
    }

    /// Notes that the content of a node is about to change.
    pub(in crate::live) fn content(&self, node: NodeId, ranges: &[ByteRange], len_after_bytes: Option<u64>) {
        for watch in self.of(node) {
            watch.content(ranges, len_after_bytes);
        }
    }

    /// Notes that its attributes, or times, change.
    pub(in crate::live) fn attributes(&self, node: NodeId) {
        for watch in self.of(node) {
            watch.other("its attributes");
        }
    }

    /// Notes that a name of a node, or a name in it, changes.
    pub(in crate::live) fn name(&self, nodes: impl IntoIterator<Item = NodeId>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for node in nodes {
            for watch in self.of(node) {
                watch.other("one of its names");
            }
        }
    }

    fn landing(&self, node: NodeId) -> Option<Arc<NodeWatch>> {
        self.of(node).into_iter().find(|watch| watch.file.is_some())
    }

    /// Whether something lands in a file.
    pub(in crate::live) fn is_landing(&self, node: NodeId) -> bool {
        self.landing(node).is_some()
    }

    /// Notes that something lands in the content of a file.
    pub(super) fn lands_in(&self, node: NodeId) {
        self.landed_in.insert(node);
    }

    /// See [`byteback_mount::tracked::observer::Observer::may_stray`].
    pub(in crate::live) fn has_landed_in(&self, node: NodeId) -> bool {
        // A landing holds `Order` exclusively, so threads that hold it afterwards see all of this.
        self.landed_in.has(node)
    }

    /// Whether something lands in any file.
    pub(in crate::live) fn is_anything_landing(&self) -> bool {
        self.landing_count.load(Ordering::Relaxed) > 0
    }

    /// See [`byteback_mount::tracked::observer::Observer::cut_off`].
    pub(in crate::live) fn cut_off(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> usize {
        let Some(watch) = self.landing(node) else { return 0 };
        let noticed = watch.noticed.lock();
        // The kernel is told the true end of a changed file, and old bytes must not stay in its
        // pages behind that end.
        match noticed.is_untouched() && !noticed.is_end_known {
            true => noticed.old_at(offset, buffer),
            false => 0,
        }
    }

    /// See [`byteback_mount::tracked::observer::Observer::len_before`].
    pub(in crate::live) fn len_before(&self, node: NodeId) -> Option<u64> {
        let watch = self.landing(node)?;
        let noticed = watch.noticed.lock();
        // A program that has written to the file counts on its own length.
        noticed.len_before.filter(|_| noticed.is_untouched())
    }

    /// See [`byteback_mount::tracked::observer::Observer::merge_page`].
    pub(in crate::live) fn merge_page(&self, node: NodeId, offset: u64, page: &[u8]) -> io::Result<Vec<ByteRange>> {
        let Some(watch) = self.landing(node) else {
            let all = ByteRange::new(offset, offset.saturating_add(page.len() as u64));
            return Ok(all.into_iter().collect());
        };
        let mut now = vec![0; page.len()];
        if let Some(file) = &watch.file {
            let count = read_up_to(file, offset, &mut now)?;
            now.truncate(count);
        }
        Ok(watch.noticed.lock().stores(offset, page, &now))
    }
}

/// A watch, which ends when this is dropped.
pub(super) struct Watched {
    live: Arc<Live>,
    watch: Arc<NodeWatch>,
}

impl Watched {
    /// Begins to watch. The caller holds `Order` exclusively.
    pub(super) fn new(live: &Arc<Live>, watch: NodeWatch) -> Self {
        let watch = Arc::new(watch);
        let watches = &live.watches;
        let mut by_node = watches.by_node.lock();
        by_node.entry(watch.node).or_default().push(Arc::clone(&watch));
        watches.count.fetch_add(1, Ordering::Relaxed);
        let landings = usize::from(watch.file.is_some());
        watches.landing_count.fetch_add(landings, Ordering::Relaxed);
        Self {
            live: Arc::clone(live),
            watch,
        }
    }

    pub(super) fn live(&self) -> &Live {
        &self.live
    }

    pub(super) fn queue_node(&self) -> NodeId {
        self.watch.node
    }

    pub(super) fn noticed(&self) -> parking_lot::MutexGuard<'_, Noticed> {
        self.watch.noticed.lock()
    }

    /// The end of the file before others lengthened it, if only they have changed it since.
    pub(super) fn untouched_growth(&self) -> Option<u64> {
        self.noticed().untouched_growth()
    }

    /// Ends the growth: all has landed, and the kernel may know how long the file is. Returns
    /// whether others have lengthened it.
    pub(super) fn end_growth(&self) -> bool {
        self.noticed().end_growth()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let watches = &self.live.watches;
        let mut by_node = watches.by_node.lock();
        if let Some(of_node) = by_node.get_mut(&self.watch.node) {
            of_node.retain(|watch| !Arc::ptr_eq(watch, &self.watch));
            if of_node.is_empty() {
                by_node.remove(&self.watch.node);
            }
        }
        watches.count.fetch_sub(1, Ordering::Relaxed);
        let landings = usize::from(self.watch.file.is_some());
        watches.landing_count.fetch_sub(landings, Ordering::Relaxed);
    }
}

impl WatchedNode for Watched {
    fn node(&self) -> NodeId {
        self.watch.node
    }

    fn overtaken(&self) -> Option<Overtaken> {
        self.noticed().overtaken.clone()
    }
}

#[cfg(test)]
mod tests;
