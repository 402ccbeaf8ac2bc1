//! The content of a file that no log knows: finds its change by any means, for callers that send
//! files without a tracked tree.
//!
//! The planner decides as for a file of which a log only knows that all of it may have changed.
//! Contents are proven as in a backup.

use super::content::{FileChange, FileOutcome, send_file};
use super::examine::{Examination, Examined, Place, is_examined_by, send_examined};
use super::limits::SearchLimits;
use super::part_stream::PartStream;
use super::plan::cost::Conditions;
use super::plan::second_look::SecondLooks;
use super::plan::{Answers, DeltaChoice, Hints, Known, LogKnowledge, plan};
use super::trim::BlockSums;
use super::{BackupOptions, Job};
use crate::decisions::{DeltaMethod, Searches};
use crate::error::Result;
use crate::local_node::LocalContent;
use crate::monitor::{Meter, Monitor};
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_control::{CutId, ServiceError, TreeService};
use byteback_model::{Attributes, DeviceId, FileId, NodeId, Seq};
use byteback_oplog::WholeReason;
use std::cell::Cell;
use std::collections::BTreeSet;

/// Nodes have no numbers here; there is one at a time.
const NO_NUMBER: NodeId = NodeId::ROOT;

/// No cut holds the file still.
const NO_CUT: CutId = CutId(0);

/// Sends contents over the server's at one sequence number.
pub(crate) struct ContentSender<'a> {
    server: &'a ServerClient,
    folder: &'a FolderName,
    base_seq: Seq,
    options: BackupOptions,
    monitor: &'a dyn Monitor,
    /// The calls that the server is worth asking.
    answers: Answers,
    second_looks: SecondLooks,
    proof_refused: bool,
}

/// The cost of sending one content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentContent {
    pub(crate) literal_bytes: u64,
    /// Bytes that went into checksums, and how many of them the server has.
    pub(crate) hashed_bytes: u64,
    pub(crate) found_bytes: u64,
    /// Whether a proof of the whole content went with it.
    pub(crate) is_proven: bool,
}

/// Files that no log knows have no history here; their file system may have checksums.
struct OfContent<'c>(&'c LocalContent);

impl Hints for OfContent<'_> {
    fn overwritten_bytes(&mut self) -> u64 {
        0
    }

    fn sums_know_most(&mut self) -> bool {
        false
    }

    fn leaves_exist(&mut self) -> bool {
        self.0.leaf_offer(NO_CUT, NO_NUMBER).is_ok()
    }

    fn sent_share(&mut self) -> Option<f64> {
        None
    }

    fn former_searches(&mut self, _: DeltaMethod) -> Option<Searches> {
        None
    }
}

impl<'a> ContentSender<'a> {
    /// Over the folder's moment `base_seq`; after a refused proof nothing is looked for any more.
    pub(crate) fn new(
        (server, folder, base_seq): (&'a ServerClient, &'a FolderName, Seq),
        (device, choice, processor_share): (DeviceId, DeltaChoice, f64),
        proof_refused: bool,
        monitor: &'a dyn Monitor,
    ) -> Self {
        Self {
            server,
            folder,
            base_seq,
            options: BackupOptions {
                delta: choice,
                processor_share,
                ..BackupOptions::new("", device)
            },
            monitor,
            answers: Answers::ALL,
            second_looks: SecondLooks::default(),
            proof_refused,
        }
    }

    /// Adds the node `id` with its content to the batch, as its difference from the server's file
    /// `base`, if there is one.
    ///
    /// # Errors
    /// Those that end the whole batch. `Ok(Err)`: this file cannot be read; the batch is as if it
    /// had not been tried.
    pub(crate) fn send(
        &mut self,
        content: &LocalContent,
        id: FileId,
        attributes: &Attributes,
        base: Option<FileId>,
        stream: &mut PartStream<'_, '_>,
    ) -> Result<Result<SentContent, ServiceError>> {
        let known = Known {
            choice: self.options.delta,
            log: LogKnowledge::Whole(WholeReason::Untracked),
            size_bytes: attributes.size,
            changed_bytes: 0,
            searchable_bytes: 0,
            block_bytes: 0,
            server_has: base.is_some(),
            answers: self.answers,
            proof_refused: self.proof_refused,
            conditions: self.conditions(),
        };
        let method = plan(&known, &mut OfContent(content)).map_or(DeltaMethod::Full, |plan| plan.method);
        let mut sums = BlockSums::none(&SearchLimits::default(), self.monitor);
        if is_examined_by(method) {
            let monitor = Meter::new(self.monitor);
            let job = Job {
                tree: content,
                server: self.server,
                folder: self.folder,
                options: &self.options,
                monitor: &monitor,
                answers: Cell::new(self.answers),
                second_looks: Cell::new(self.second_looks),
                proof_refused: Cell::new(self.proof_refused),
                store: None,
                identities: None,
                origins: None,
                sends_time_only: None,
                knows_damage: Cell::new(false),
                damaged: BTreeSet::new(),
                may_resume: Cell::new(false),
                unmended: Cell::new(0),
                makes_snapshot: false,
            };
            let place = Place {
                job: &job,
                cut: NO_CUT,
                base_seq: self.base_seq,
                conditions: known.conditions,
            };
            let file = Examined {
                node: NO_NUMBER,
                id,
                at_server: base.unwrap_or(id),
                is_followed: base.is_some_and(|base| base != id),
                attributes,
                ranges: None,
                overwritten: None,
            };
            let examined = send_examined(place, &file, method, stream, &mut sums)?;
            self.answers = job.answers.get();
            self.second_looks = job.second_looks.get();
            match examined {
                Examination::Sent(stats, found, _) => {
                    return Ok(Ok(SentContent {
                        literal_bytes: stats.literal_bytes,
                        hashed_bytes: found.examined_bytes,
                        found_bytes: found.copied_bytes + stats.found_again_bytes,
                        is_proven: stats.is_proven,
                    }));
                }
                Examination::Unreadable(error) => return Ok(Err(error)),
                Examination::Whole(_) => {}
            }
        }
        let whole = FileChange::whole(NO_NUMBER, id, attributes.clone());
        let sent = send_file(content, NO_CUT, (whole, None), stream, &mut sums, self.monitor)?;
        Ok(match sent {
            FileOutcome::Sent(stats) => Ok(SentContent {
                literal_bytes: stats.literal_bytes,
                hashed_bytes: 0,
                found_bytes: 0,
                is_proven: false,
            }),
            FileOutcome::Unreadable(error) => Err(error),
        })
    }

    /// The link as measured so far.
    fn conditions(&self) -> Conditions {
        let unknown = Conditions::default();
        let link = self.server.link_bytes_per_s().unwrap_or(unknown.link_bytes_per_s);
        Conditions {
            link_bytes_per_s: link.min(self.server.bytes_per_second_max().unwrap_or(u64::MAX)),
            round_trip_ns: self.server.round_trip_ns().unwrap_or(unknown.round_trip_ns),
            processor_share: self.options.processor_share,
        }
    }
}
