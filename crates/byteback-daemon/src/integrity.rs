//! Sums of what programs wrote to a mounted tree: opened with it, made durable every few seconds,
//! and compared with the disk in the background.
//!
//! The gate keeps them ([`byteback_mount::integrity`]). Here is what they need of the rest: which
//! files were open for change when the last process ended without saying so, as the log found it,
//! and that each of them is compared before anything of it is sent; how a file is found by its
//! number; and the thread of the [`scrub`].
//!
//! Out of scope: decide about a file with a fault. Who reads content to send it is told.

pub mod scrub;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use byteback_checksums::written::{Stamp, WrittenSums, stamp_of};
use byteback_host::boot::boot_id;
use byteback_model::{NodeId, NodeKind};
use byteback_mount::integrity::Integrity;
use byteback_mount::live::LiveTree;
use byteback_oplog::{ChangesCursor, Content, Fence, PageLimits, WholeReason};
use rustix::fs::OFlags;

use crate::error::DaemonError;
use crate::service::PAGE_LIMITS;
use crate::tree::TrackedTree;
use scrub::ScrubOptions;

/// The sums of what programs wrote.
pub(crate) const WRITTEN_NAME: &str = "written.redb";

/// How sums of what programs write are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumOptions {
    /// Whether what programs read is compared: a read of bytes that changed by themselves fails
    /// with `EIO`.
    pub verify_reads: bool,
    /// How the disk is looked through in the background, if it is.
    pub scrub: Option<ScrubOptions>,
}

/// Opens the sums of a tree that is about to be mounted.
pub(crate) fn open(tree: &TrackedTree, options: ChecksumOptions) -> Result<Arc<Integrity>, DaemonError> {
    let log = tree.log();
    let failed = |source| DaemonError::State {
        path: tree.folder().path().join(WRITTEN_NAME),
        source,
    };
    let boot = boot_id().map_err(failed)?;
    let interrupted = interrupted(tree)?;
    let unchecked: Vec<NodeId> = interrupted.iter().copied().map(NodeId).collect();
    let sums = WrittenSums::open(&**tree.dir(), WRITTEN_NAME, log.tree().0, boot, interrupted);
    let sums = sums.map_err(|error| failed(std::io::Error::other(error)))?;
    let integrity = Arc::new(Integrity::new(
        sums,
        Arc::clone(log),
        Arc::clone(tree.clock()),
        options.verify_reads,
        unchecked,
    ));
    let told = Arc::clone(&integrity);
    log.set_on_untracked(move |node| told.sums().forget(node.0));
    Ok(integrity)
}

/// The files that were open for change when the last process, or the machine, ended without saying
/// so.
fn interrupted(tree: &TrackedTree) -> Result<HashSet<u64>, DaemonError> {
    let log = tree.log();
    let list = log.look()?.changes(Some(log.epoch()))?;
    let mut found = HashSet::new();
    let mut cursor = Some(ChangesCursor::default()).filter(|_| !list.is_everything());
    while let Some(at) = cursor {
        let limits: PageLimits = PAGE_LIMITS;
        let page = list.page(&at, limits)?;
        let interrupted = |content: &Content| matches!(content, Content::Whole(WholeReason::Interrupted));
        let files = page.nodes.iter().filter(|change| interrupted(&change.content));
        found.extend(files.map(|change| change.node.0));
        // Nodes come before names.
        cursor = page.next.filter(|next| next.name.is_none());
    }
    Ok(found)
}

/// Compares the files that were open for change when the last process ended, until that is done or
/// `stopped` says so.
pub(crate) fn check_interrupted(tree: &TrackedTree, integrity: &Integrity, stopped: &Receiver<()>) {
    for node in integrity.unchecked() {
        if let Ok(()) | Err(TryRecvError::Disconnected) = stopped.try_recv() {
            return;
        }
        let found = tree.live().find(node).ok().flatten();
        match found.filter(|(_, stat)| stat.kind == NodeKind::File) {
            // What cannot be read now is compared when it is to be sent.
            Some((fd, _)) => {
                let file = fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK);
                let _ = file.map(|file| integrity.check_interrupted(node, &file));
            }
            None => integrity.leave_unchecked(node),
        }
    }
}

/// What a file looks like, if a change from now on has other times. `latest_ns`: what was changed
/// later may have passed the gate by.
pub(crate) fn look(live: &LiveTree, node: NodeId, now_ns: i64, latest_ns: Option<i64>) -> Option<Stamp> {
    let (_, stat) = live.find(node).ok().flatten()?;
    let latest_ns = latest_ns.map_or(now_ns, |latest_ns| latest_ns.min(now_ns));
    let is_proof = Fence::of(&stat).proves_at(latest_ns);
    is_proof.then(|| stamp_of(stat.identity(), stat.size, stat.mtime_stamp_ns(), stat.ctime_ns))
}

/// Makes the sums of a tree durable. What cannot be is tried again next time.
pub(crate) fn commit(tree: &TrackedTree, latest_ns: Option<i64>) {
    if let Some(integrity) = tree.integrity() {
        // The time first: between the two this thread may have to wait.
        let _ = integrity.commit(&|node| look(tree.live(), node, tree.clock().now_ns(), latest_ns));
    }
}
