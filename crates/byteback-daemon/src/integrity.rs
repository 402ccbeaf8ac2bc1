//! Checksums of what programs wrote to a mounted tree: opened with the tree, made durable every few
//! seconds, and compared with the disk in the background.
//!
//! The gate keeps them ([`byteback_mount::integrity`]). This module provides what they need of the
//! rest: the files that were open for change when the last process ended abruptly, as the log found
//! them, each of which is compared before anything of it is sent; the stamp of a file that is found
//! by its number; and the [`scrub`].
//!
//! Out of scope: deciding about a file with a fault. The reader that wants to send its content gets
//! an error.

pub mod scrub;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use byteback_checksums::written::{Stamp, WrittenSums, stamp_of};
use byteback_host::boot::boot_id;
use byteback_model::{NodeId, NodeKind};
use byteback_mount::integrity::Integrity;
use byteback_mount::live::LiveTree;
use byteback_oplog::{ChangesCursor, ContentChange, Fence, PageLimits, WholeReason};
use rustix::fs::OFlags;

use crate::error::DaemonError;
use crate::service::PAGE_LIMITS;
use crate::tree::TrackedTree;
use scrub::ScrubOptions;

/// The file of the checksums of what programs wrote.
pub(crate) const WRITTEN_NAME: &str = "written.redb";

/// Options of the checksums of what programs write.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumOptions {
    /// Whether reads of programs are compared: a read of bytes that changed by themselves fails
    /// with `EIO`.
    pub verify_reads: bool,
    /// Options of the scrub in the background, if there is one.
    pub scrub: Option<ScrubOptions>,
}

/// Opens the checksums of a tree that is about to be mounted.
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
    let reported = Arc::clone(&integrity);
    log.set_on_untracked(move |node| reported.sums().forget(node.0));
    Ok(integrity)
}

/// The files that were open for change when the last process, or the machine, ended abruptly.
fn interrupted(tree: &TrackedTree) -> Result<HashSet<u64>, DaemonError> {
    let log = tree.log();
    let list = log.look()?.changes(Some(log.epoch()))?;
    let mut found = HashSet::new();
    let mut cursor = Some(ChangesCursor::default()).filter(|_| !list.is_everything());
    while let Some(at) = cursor {
        let limits: PageLimits = PAGE_LIMITS;
        let page = list.page(&at, limits)?;
        let interrupted = |content: &ContentChange| matches!(content, ContentChange::Whole(WholeReason::Interrupted));
        let files = page.nodes.iter().filter(|change| interrupted(&change.content));
        found.extend(files.map(|change| change.node.0));
        // Nodes come before names.
        cursor = page.next.filter(|next| next.name.is_none());
    }
    Ok(found)
}

/// Compares the files that were open for change when the last process ended, until that is done or
/// `stopped` ends it.
pub(crate) fn check_interrupted(tree: &TrackedTree, integrity: &Integrity, stopped: &Receiver<()>) {
    for node in integrity.unchecked() {
        if let Ok(()) | Err(TryRecvError::Disconnected) = stopped.try_recv() {
            return;
        }
        let found = tree.live().find(node).ok().flatten();
        match found.filter(|(_, stat)| stat.kind == NodeKind::File) {
            // A file that cannot be read now is compared when it is to be sent.
            Some((fd, _)) => {
                let file = fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK);
                let _ = file.map(|file| integrity.check_interrupted(node, &file));
            }
            None => integrity.leave_unchecked(node),
        }
    }
}

/// The stamp of a file, if any later change will show in its times. `latest_ns`: later changes than
/// this may have bypassed the gate.
pub(crate) fn look(live: &LiveTree, node: NodeId, now_ns: i64, latest_ns: Option<i64>) -> Option<Stamp> {
    let (_, stat) = live.find(node).ok().flatten()?;
    let latest_ns = latest_ns.map_or(now_ns, |latest_ns| latest_ns.min(now_ns));
    let is_proof = Fence::of(&stat).proves_at(latest_ns);
    is_proof.then(|| stamp_of(stat.identity(), stat.size, stat.mtime_stamp_ns(), stat.ctime_ns))
}

/// Makes the checksums of a tree durable. A failed commit is retried next time.
pub(crate) fn commit(tree: &TrackedTree, latest_ns: Option<i64>) {
    if let Some(integrity) = tree.integrity() {
        // The time is taken before the look: this thread may have to wait between the two.
        let _ = integrity.commit(&|node| look(tree.live(), node, tree.clock().now_ns(), latest_ns));
    }
}
