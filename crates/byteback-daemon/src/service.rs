//! A tracked tree as its clients see it.
//!
//! While the tree is mounted, a picture protects each cut. Otherwise nothing holds the files still:
//! a file counts as saved only if its attributes before and after the reading agree. They then
//! become its fence in the log, so that the next backup skips it.

mod before_images;
mod hooks;
mod leaves;
mod named_cuts;
mod open_cut;
mod past;

use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use byteback_checksums::written::Reason;
use byteback_control::{
    ChangesCursor, ChangesPage, ConsumerStatus, CutId, CutInfo, CutRequest, DamagedFile, Detached, DirEntry, ErrorKind,
    FileHistory, FinishReport, Holder, LeafOffer, LeafPiece, LeafRequest, LeavesSummary, NamedCut, NodeNames, Outcome,
    PastFile, Piece, RepairReport, RepairRequest, Result, SYNC_CONSUMER, ServiceError, TreeService, TreeStatus,
};
use byteback_mount::picture::{Picture, PictureError};
use byteback_mount::volume_tree::VolumeWatch;
use byteback_mount::{Mount, MountError, Unmount};
use byteback_oplog::{ChangeList, Cut, Epoch, Fence, LogError, PageLimits, WholeReason};
use parking_lot::Mutex;

use crate::attributes::attributes_to_api;
use crate::memory;
use crate::tree::TrackedTree;
use hooks::Hooks;
pub use hooks::{LineCarrier, Repair, SyncReporter, SyncWishesReader};
use open_cut::OpenCut;
pub use open_cut::PAGE_LIMITS;

/// No write takes longer than this.
const WRITE_TIME_MAX_NS: i64 = 3600 * 1_000_000_000;

/// Most cuts that are open over the socket: each holds a snapshot of the log and the list of what
/// changed, most of them a picture, too. A few more get in where several are made at once.
const OPEN_CUTS_MAX: usize = 256;

const UNMOUNT_ATTEMPTS: u32 = 20;
const UNMOUNT_RETRY_AFTER: Duration = Duration::from_millis(50);

/// The service of a tree, see the module.
pub struct Service {
    tree: Arc<TrackedTree>,
    mount: Option<Arc<Mount>>,
    mode: Option<String>,
    /// Whether changes of programs pass the gate, so that pictures hold still what is read.
    is_gated: bool,
    cuts: Mutex<HashMap<CutId, Arc<OpenCut>>>,
    next_cut: AtomicU64,
    page_limits: PageLimits,
    hooks: Hooks,
    /// The volume that the tree lies in, if it is in one.
    volume: Option<VolumeWatch>,
}

impl Service {
    /// Serves a tree that is not mounted.
    #[must_use]
    pub fn unmounted(tree: Arc<TrackedTree>) -> Self {
        Self::new(tree, None, None)
    }

    /// Serves a mounted tree; `mode` is for people.
    #[must_use]
    pub fn mounted(tree: Arc<TrackedTree>, mount: Arc<Mount>, mode: &str) -> Self {
        Self::new(tree, Some(mount), Some(mode.to_owned()))
    }

    /// Serves a tree that programs reach through the gate, though it is not mounted.
    #[cfg(feature = "simulation")]
    pub(crate) fn gated(tree: Arc<TrackedTree>) -> Self {
        Self {
            is_gated: true,
            ..Self::new(tree, None, None)
        }
    }

    fn new(tree: Arc<TrackedTree>, mount: Option<Arc<Mount>>, mode: Option<String>) -> Self {
        Self {
            tree,
            is_gated: mount.is_some(),
            mount,
            mode,
            cuts: Mutex::default(),
            next_cut: AtomicU64::new(1),
            page_limits: PAGE_LIMITS,
            hooks: Hooks::default(),
            volume: None,
        }
    }

    /// The same for a tree that lies in a volume.
    pub(crate) fn watching(self, volume: VolumeWatch) -> Self {
        Self {
            volume: Some(volume),
            ..self
        }
    }

    /// The same with pages of changes of another size than [`PAGE_LIMITS`].
    #[must_use]
    pub fn with_pages(self, page_limits: PageLimits) -> Self {
        Self { page_limits, ..self }
    }

    fn cut_of(&self, cut: CutId) -> Result<Arc<OpenCut>> {
        let found = self.cuts.lock().get(&cut).cloned();
        found.ok_or_else(|| ServiceError::new(ErrorKind::PictureLost, "this cut is no longer open; start a new backup"))
    }

    /// Refuses a cut beyond the limit, before anything is done for it.
    fn check_room(&self) -> Result<()> {
        if self.cuts.lock().len() < OPEN_CUTS_MAX {
            return Ok(());
        }
        let message = format!(
            "{OPEN_CUTS_MAX} cuts of this folder are open; stop the programs that hold them, or let them finish"
        );
        Err(ServiceError::new(ErrorKind::Refused, message))
    }

    /// The epoch since which changes are wanted.
    fn wanted(&self, request: &CutRequest) -> Result<Wanted> {
        let log = self.tree.log();
        let consumer = log.consumer(&request.consumer).map_err(log_failed)?;
        let since = match request.everything {
            true => None,
            false => request.since.or(consumer.mark),
        };
        let full_changes_reason = match consumer.mark {
            None => log.full_changes_reason(&consumer).map_err(log_failed)?,
            Some(_) => WholeReason::NoMark,
        };
        Ok(Wanted {
            since,
            full_changes_reason,
        })
    }

    /// Gives an open cut its number, and describes what is in it.
    fn open(&self, open: OpenCut, since: Option<Epoch>) -> Result<CutInfo> {
        let tree_nodes = open.cut.node_count().map_err(log_failed)?;
        let unreadable = self.tree.scan_report().unreadable.iter().map(|(names, error)| {
            let path = ByteString::from(join(names));
            let message =
                format!("cannot read the directory {path}: {error}; its contents are kept as they were last saved");
            ServiceError {
                kind: ErrorKind::Node,
                message,
                path: Some(path),
            }
        });
        let (cut, totals) = (CutId(self.next_cut.fetch_add(1, Ordering::Relaxed)), open.totals());
        let epoch = open.cut.epoch();
        let info = CutInfo {
            cut,
            tree: self.tree.log().tree(),
            epoch,
            // If the log no longer knows that epoch, the changes are everything there is, and
            // removals are unknown.
            since: since.filter(|since| *since <= epoch && !open.is_everything()),
            nodes: totals.nodes,
            names: totals.names,
            content_bytes: totals.content_bytes,
            tree_nodes,
            unreadable: unreadable.collect(),
        };
        self.cuts.lock().insert(cut, Arc::new(open));
        Ok(info)
    }

    fn open_with_picture(
        &self,
        request: &CutRequest,
        wanted: &Wanted,
        cut: Cut,
        picture: Option<Arc<Picture>>,
        cpu_ns: u64,
    ) -> Result<CutInfo> {
        let list = wanted.changes(&cut)?;
        let mut open = OpenCut::of(cut, list, self.page_limits)?;
        if let Some(picture) = &picture {
            open.restrict(picture, request)?;
        }
        open.is_of(request, wanted.since);
        open.picture = picture;
        open.is_unprotected = !self.is_gated;
        open.cpu_ns = cpu_ns;
        self.open(open, wanted.since)
    }

    /// As [`TreeService::cut`], with `also` called at the moment of the cut: see
    /// [`byteback_oplog::Log::cut`] about what it must not do.
    pub(crate) fn cut_also(&self, request: &CutRequest, also: impl FnOnce()) -> Result<CutInfo> {
        self.check_room()?;
        let wanted = self.wanted(request)?;
        let cpu_ns = open_cut::process_cpu_ns();
        let (cut, picture) = self.take_cut(request, also)?;
        let opened = self.open_with_picture(request, &wanted, cut, picture.clone(), cpu_ns);
        if let (Err(_), Some(picture)) = (&opened, &picture) {
            self.tree.pictures().close(picture);
        }
        opened
    }

    /// The nodes that names stand for at a cut.
    pub(crate) fn resolve_names(
        &self,
        cut: CutId,
        names: impl Iterator<Item = (NodeId, ByteString)>,
    ) -> Result<Vec<NameChange<NodeId>>> {
        let open = self.cut_of(cut)?;
        names
            .map(|(parent, name)| {
                let child = open.cut.child(parent, OsStr::from_bytes(name.as_bytes()));
                let child = child.map_err(log_failed)?;
                Ok(NameChange { parent, name, child })
            })
            .collect()
    }

    /// Ends a cut of which nothing was read.
    pub(crate) fn give_up(&self, cut: CutId) {
        let _ = TreeService::finish(self, cut, &Outcome::Abandoned);
    }

    fn take_cut(&self, request: &CutRequest, also: impl FnOnce()) -> Result<(Cut, Option<Arc<Picture>>)> {
        let log = self.tree.log();
        if request.look_only {
            return Ok((log.look().map_err(log_failed)?, None));
        }
        let state = self.tree.folder().path();
        let picture = Picture::leaving_room_for_the_log(state).map_err(|error| {
            let message = format!("cannot determine the free space of {}: {error}", state.display());
            ServiceError::new(ErrorKind::Log, message)
        })?;
        let pictures = self.tree.pictures();
        if let Some(mount) = &self.mount {
            // Before the cut, not in it: what the kernel still holds belongs to the time before.
            mount
                .flush_stores()
                .map_err(|error| ServiceError::new(ErrorKind::Log, error.to_string()))?;
        }
        if !request.anonymous && request.consumer != SYNC_CONSUMER {
            self.tree.before_images().begin(log.epoch().next());
        }
        let at_the_cut = || {
            pictures.open(Arc::clone(&picture));
            also();
        };
        let cut = if request.anonymous {
            log.cut_held(at_the_cut)
        } else {
            log.cut(&request.consumer, at_the_cut)
        };
        let cut = cut
            .map_err(log_failed)
            .and_then(|cut| self.check_attached().map(|()| cut));
        match cut {
            Ok(cut) => Ok((cut, Some(picture))),
            Err(error) => {
                pictures.close(&picture);
                Err(error)
            }
        }
    }

    /// Refuses a cut, or what was read of its picture, when changes may have bypassed the mount.
    fn check_attached(&self) -> Result<()> {
        match &self.mount {
            Some(mount) if !mount.is_attached() => Err(ServiceError::new(
                ErrorKind::PictureLost,
                "the folder was unmounted, but programs still use it, so its files are no longer frozen; \
                 close these programs, then start the backup again",
            )),
            _ => Ok(()),
        }
    }

    /// The state of the mount, if it is gone from its place.
    fn detached(&self) -> Option<Detached> {
        let mount = self.mount.as_deref().filter(|mount| !mount.is_attached())?;
        let held_by = mount.holders().into_iter().map(|holder| Holder {
            pid: holder.pid,
            name: holder.name,
            point: holder
                .point
                .map(|point| ByteString::from(point.into_os_string().into_vec())),
            works_there: holder.works_there,
            open_files: holder.open_files as u64,
        });
        Some(Detached {
            held_by: held_by.collect(),
            has_ended: mount.has_ended(),
        })
    }

    fn damaged(&self) -> Vec<DamagedFile> {
        let faults = self
            .tree
            .integrity()
            .map(|integrity| integrity.faults())
            .unwrap_or_default();
        let reported = faults.into_iter().map(|(node, flagged)| DamagedFile {
            node,
            path: self
                .tree
                .log()
                .locate(node)
                .ok()
                .flatten()
                .map(|names| ByteString::from(join(&names))),
            after_crash: flagged.reason == Reason::Crash,
            found_at_ns: flagged.found_at_ns,
            ranges: flagged
                .ranges()
                .iter()
                .map(|range| (range.start(), range.len_bytes()))
                .collect(),
        });
        reported.collect()
    }

    /// Reads ranges of a file at a cut. `once`: the content is not needed again.
    fn read_content(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        once: bool,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let open = self.cut_of(cut)?;
        let picture = open.picture()?;
        let ranges = ranges
            .iter()
            .filter_map(|(offset, len)| byteback_extents::ByteRange::new(*offset, offset.saturating_add(*len)));
        let mut refused = None;
        let mut hand_on = |content: byteback_mount::picture::Content<'_>| {
            use byteback_mount::picture::Content as Read;
            let piece = match content {
                Read::Data(offset, bytes) => Piece::Data { offset, bytes },
                Read::Hole(range) => Piece::Hole(range),
            };
            sink(piece).map_err(|error| {
                refused = Some(error);
                PictureError::Stopped
            })
        };
        let live = self.tree.live();
        let outcome = match once {
            true => picture.read(live, node, ranges, &mut hand_on),
            false => picture.peek(live, node, ranges, &mut hand_on),
        };
        if let Some(error) = refused {
            return Err(error);
        }
        outcome.map_err(|error| self.node_failed(&open.cut, node, &error))?;
        self.check_attached()?;
        self.check_unchanged(&open, node)
    }

    /// Refuses what was read of an unprotected file if the file changed meanwhile.
    fn check_unchanged(&self, open: &OpenCut, node: NodeId) -> Result<()> {
        if open.is_unprotected && !open.is_unchanged(self.tree.live(), node) {
            let path = self.path_text(&open.cut, node);
            let name = path.clone().unwrap_or_else(|| ByteString::from("a file"));
            let message = format!(
                "{name} changed while it was being read: it will be saved next time (a mounted folder is saved as of \
                 one moment)"
            );
            return Err(ServiceError {
                kind: ErrorKind::Node,
                message,
                path,
            });
        }
        Ok(())
    }

    fn finish_cut(&self, open: &OpenCut, outcome: &Outcome) -> Result<FinishReport> {
        let Some(picture) = &open.picture else {
            return Ok(FinishReport::default());
        };
        self.tree.pictures().close(picture);
        let log = self.tree.log();
        // Another backup of the same consumer may have begun meanwhile.
        let epoch = Some(open.cut.epoch());
        match (outcome, &open.consumer) {
            (Outcome::Saved { note, unsaved }, Some(consumer)) => {
                // First what is missing, then the mark: after a crash in between too much is
                // reported, not too little.
                if !unsaved.is_empty() {
                    log.report_again(unsaved).map_err(log_failed)?;
                }
                if open.is_unprotected {
                    log.set_fences(&open.proven_fences(unsaved)?).map_err(log_failed)?;
                }
                log.advance(consumer, epoch, note).map_err(log_failed)?;
                self.forget_before_images();
                if !self.is_gated {
                    // No daemon compacts in the background. The next backup does what is left
                    // undone here.
                    let _ = log.compact_all();
                }
            }
            (Outcome::Abandoned, Some(consumer)) => log.abandon(consumer, epoch).map_err(log_failed)?,
            (Outcome::Unknown, _) | (_, None) => {}
        }
        Ok(FinishReport {
            read_bytes: picture.read_bytes(),
            kept_bytes: picture.kept_bytes(),
            cpu_ns: if self.mount.is_some() {
                open_cut::process_cpu_ns().saturating_sub(open.cpu_ns)
            } else {
                0
            },
        })
    }

    fn mounted_tree(&self) -> Result<&Mount> {
        let message = "named cuts need a mounted folder; mount it first: byteback mount DIR";
        self.mount
            .as_deref()
            .ok_or_else(|| ServiceError::new(ErrorKind::Refused, message))
    }

    fn path_text(&self, cut: &Cut, node: NodeId) -> Option<ByteString> {
        let names = cut.locate(node).ok().flatten()?;
        Some(ByteString::from(join(&names)))
    }

    fn node_failed(&self, cut: &Cut, node: NodeId, error: &PictureError) -> ServiceError {
        let kind = match error {
            PictureError::Lost(_) => ErrorKind::PictureLost,
            PictureError::Node { .. } | PictureError::Stopped => ErrorKind::Node,
        };
        let path = self.path_text(cut, node);
        let message = match &path {
            Some(path) if kind == ErrorKind::Node => format!("cannot read {path}: {error}"),
            _ => error.to_string(),
        };
        ServiceError { kind, message, path }
    }
}

pub(crate) fn log_failed(error: LogError) -> ServiceError {
    let kind = match error {
        LogError::TooManyConsumers { .. } | LogError::ConsumerName { .. } => ErrorKind::Refused,
        _ => ErrorKind::Log,
    };
    ServiceError::new(kind, error.to_string())
}

fn join(names: &[OsString]) -> Vec<u8> {
    names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>().join(&b'/')
}

/// The changes of a cut that are wanted.
struct Wanted {
    since: Option<Epoch>,
    /// The reason that is reported for files if `since` is `None`.
    full_changes_reason: WholeReason,
}

impl Wanted {
    fn changes(&self, cut: &Cut) -> Result<ChangeList> {
        match self.since {
            Some(_) => cut.changes(self.since).map_err(log_failed),
            None => Ok(cut.everything(self.full_changes_reason)),
        }
    }
}

impl TreeService for Service {
    fn status(&self) -> Result<TreeStatus> {
        let log = self.tree.log();
        let bytes = |path: &std::path::Path| ByteString::from(path.as_os_str().as_bytes());
        let counts = log.counts().map_err(log_failed)?;
        let consumers = log.consumers().map_err(log_failed)?.into_iter().map(|(name, state)| {
            let expires_at_ns = log.expires_at_ns(&state);
            ConsumerStatus::of(name, state, expires_at_ns)
        });
        Ok(TreeStatus {
            path: bytes(self.tree.folder().directory()),
            mounted_at: self.mount.as_ref().map(|mount| bytes(mount.point())),
            mode: self.mode.clone(),
            tree: log.tree(),
            epoch: log.epoch(),
            nodes: counts.nodes,
            open_nodes: counts.open_nodes,
            pid: std::process::id(),
            consumers: consumers.collect(),
            ledger: log.ledger().map_err(log_failed)?,
            usage: log.usage().map_err(log_failed)?,
            sync: self.hooks.sync_status(),
            damaged: self.damaged(),
            detached: self.detached(),
            volume_failure: self.volume.as_ref().and_then(VolumeWatch::failure),
        })
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        let log = self.tree.log();
        match saved {
            Some(note) => log.advance(consumer, None, &note),
            None => log.abandon(consumer, None),
        }
        .map_err(log_failed)
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        self.tree.log().drop_consumer(consumer).map_err(log_failed)
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        self.cut_also(request, || {})
    }

    fn look_at(&self, name: &ByteString, request: &CutRequest) -> Result<CutInfo> {
        self.check_room()?;
        let wanted = self.wanted(request)?;
        let cut = named_cuts::cut_of(self.mounted_tree()?, name)?;
        let list = wanted.changes(&cut)?;
        // Content is read where the named cut is shown, not here.
        self.open(OpenCut::of(cut, list, self.page_limits)?, wanted.since)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        self.cut_of(cut)?.page(cursor)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        let open = self.cut_of(cut)?;
        let picture = open.picture()?;
        let mut answers = Vec::with_capacity(nodes.len());
        let mut seen = Vec::new();
        let before_ns = self.tree.clock().now_ns();
        for node in nodes {
            match picture.attributes_before_content(self.tree.live(), *node) {
                Ok(read) => {
                    seen.push((*node, Fence::of(&read.stat)));
                    answers.push(Ok(attributes_to_api(read)));
                }
                Err(error @ PictureError::Lost(_)) => return Err(self.node_failed(&open.cut, *node, &error)),
                Err(error) => answers.push(Err(self.node_failed(&open.cut, *node, &error))),
            }
        }
        self.check_attached()?;
        if open.is_unprotected {
            // After the look and before the reading. A write that was in progress at the look, with
            // the times of its beginning, has to be read as a whole. Only a page that is clean when
            // it is read moves the file's times when it is stored to through a mapping. And a fence
            // is about durable content.
            for (node, fence) in &seen {
                if before_ns.saturating_sub(fence.ctime_ns) < WRITE_TIME_MAX_NS
                    && let Ok(Some((file, stat))) = self.tree.live().find(*node)
                    && stat.kind == NodeKind::File
                {
                    file.wait_for_writers();
                }
            }
            let is_synced = self.tree.live().sync().is_ok();
            open.record_seen(seen, before_ns, is_synced);
        }
        Ok(answers)
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read_content(cut, node, ranges, true, sink)
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read_content(cut, node, ranges, false, sink)
    }

    fn release(&self, cut: CutId, nodes: &[NodeId]) -> Result<()> {
        let open = self.cut_of(cut)?;
        let picture = open.picture()?;
        for node in nodes {
            match picture.release(*node) {
                // Nothing of it is needed.
                Ok(()) | Err(PictureError::Node { .. }) => {}
                Err(error) => return Err(self.node_failed(&open.cut, *node, &error)),
            }
        }
        Ok(())
    }

    fn before_image(
        &self,
        cut: CutId,
        node: NodeId,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        self.read_before_image(cut, node, sink)
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        let open = self.cut_of(cut)?;
        self.offer_leaves(&open, node)
    }

    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        let open = self.cut_of(cut)?;
        let reported = self.tell_leaves(&open, node, request, sink)?;
        self.check_attached()?;
        self.check_unchanged(&open, node)?;
        Ok(reported)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        let open = self.cut_of(cut)?;
        let names = open.cut.locate(node).map_err(log_failed)?;
        Ok(names.map(|names| ByteString::from(OsString::from_vec(join(&names)).into_vec())))
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let open = self.cut_of(cut)?;
        let names = |node: &NodeId| {
            let mut names = open.names(*node)?;
            names.copied_from = self.tree.log().copied_from(*node);
            Ok(names)
        };
        nodes.iter().map(names).collect()
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        self.cut_of(cut)?.entries(directory, after)
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        self.cut_of(cut)?.find(path)
    }

    fn advance(&self, consumer: &str, cut: Epoch) -> Result<bool> {
        let log = self.tree.log();
        let state = log.consumer(consumer).map_err(log_failed)?;
        if state.pending.is_none_or(|pending| pending.epoch != cut) {
            return Ok(false);
        }
        log.advance(consumer, Some(cut), &state.note).map_err(log_failed)?;
        // Another cut of the same consumer may have taken its place in between; the mark has then
        // stayed.
        let mark = log.consumer(consumer).map_err(log_failed)?.mark;
        Ok(mark == Some(cut))
    }

    fn history(&self, path: &ByteString) -> Result<FileHistory> {
        past::history(&self.tree, path)
    }

    fn read_past(
        &self,
        path: &ByteString,
        at_ns: i64,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<PastFile> {
        let read = past::read(&self.tree, path, at_ns, sink)?;
        self.check_attached()?;
        Ok(read)
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        let open = self.cut_of(cut)?;
        let log = self.tree.log();
        match &open.consumer {
            Some(consumer) => log.note_batch(consumer, open.cut.epoch(), batch).map_err(log_failed),
            None => Ok(()),
        }
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        let Some(open) = self.cuts.lock().remove(&cut) else {
            return Ok(FinishReport::default());
        };
        let is_large = open.totals().nodes + open.totals().names >= memory::LARGE;
        let finished = self.finish_cut(&open, outcome);
        drop(open);
        // The process that serves an unmounted folder ends with the backup.
        if is_large && self.mount.is_some() {
            memory::give_back();
        }
        finished
    }

    fn sync_wishes_changed(&self) -> Result<bool> {
        self.hooks.sync_wishes_changed()
    }

    fn repair(&self, request: &RepairRequest) -> Result<RepairReport> {
        self.hooks.repair(request)
    }

    fn carry_line(&self, connection: UnixStream) -> Result<()> {
        self.hooks.carry_line(connection)
    }

    fn unmount(&self) -> Result<()> {
        let Some(mount) = &self.mount else {
            return Err(ServiceError::new(ErrorKind::Protocol, "this folder is not mounted"));
        };
        // This settles what can be settled while nobody else reaches the files; the end then only
        // has the rest to do.
        let _ = self
            .tree
            .log()
            .checkpoint(self.tree.live(), byteback_oplog::Close::QuietFor { ns: 50_000_000 });
        // A file that was closed a moment ago may still be on its way through the kernel.
        for _ in 0..UNMOUNT_ATTEMPTS {
            match mount.unmount(Unmount::IfIdle) {
                Err(MountError::Busy { .. }) => self.tree.clock().sleep(UNMOUNT_RETRY_AFTER),
                done => return done.map_err(|error| ServiceError::new(ErrorKind::Gone, error.to_string())),
            }
        }
        mount
            .unmount(Unmount::IfIdle)
            .map_err(|error| ServiceError::new(ErrorKind::Gone, error.to_string()))
    }

    fn open_cut(&self, name: &ByteString) -> Result<NamedCut> {
        named_cuts::open(self.mounted_tree()?, name)
    }

    fn close_cut(&self, name: &ByteString) -> Result<()> {
        named_cuts::close(self.mounted_tree()?, name)
    }

    fn list_cuts(&self) -> Result<Vec<NamedCut>> {
        Ok(named_cuts::list(self.mounted_tree()?))
    }
}

/// Whether a node has content for a picture: only files have.
pub(crate) fn is_file(kind: NodeKind) -> bool {
    kind == NodeKind::File
}
