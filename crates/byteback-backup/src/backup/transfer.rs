//! The changes of a cut, as records of a batch.
//!
//! Nodes come first, page by page: attributes are fetched for a page at once, contents file by
//! file. Names follow. A name is sent only if the server has, or gets with this batch, both the
//! directory and the node in it; the others are remembered for the next backup.
//!
//! `ahead` looks up attributes while files are sent, `bases` contents at the server that many files
//! are compared with, `alike` those that new files may equal.

mod ahead;
mod alike;
mod bases;

use super::changes::{changed_bytes, count_name, count_node};
use super::content::{FileChange, FileOutcome, send_file};
use super::examine::blocks::block_bytes;
use super::examine::overwritten::Overwritten;
use super::examine::ranges::searchable_bytes;
use super::examine::{Examination, Examined, Place, is_examined_by, send_examined};
use super::followed::{Followed, FollowedFile};
use super::foreseen::foreseen_bytes_of;
use super::note::LeftOutName;
use super::part_stream::{Destination, PartStream};
use super::plan::cost::Conditions;
use super::plan::{Hints, Known, LogKnowledge, Plan, plan};
use super::report::{BackupReport, UnsavedFile};
use super::resume::Numbered;
use super::trim::BlockSums;
use super::{Basis, Job, PART_LEN_BYTES_RANGE};
use crate::decisions::{Cause, Decision, DecisionWriter, DeltaMethod, Fallback, Former, Searches, former};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor, Phase, check_cancelled};
use ahead::{Next, ShortContents, for_each_next};
use bases::Bases;
use byteback_api::batch::DirectoryTimeRecord;
use byteback_api::messages::DIGESTED_LEN_MAX;
use byteback_client::ServerErrorKind;
use byteback_control::{ContentChange, CutInfo, ErrorKind, LeafSource, NodeChange, ServiceError};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::Origin;
use byteback_model::{
    Attributes, BatchApplied, ByteString, ContentBase, FileId, Manifest, NameChange, NodeId, NodeKind, NodeRecord, Seq,
    SnapshotLabel, Totals,
};
use byteback_oplog::WholeReason;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How sending a file ended, and a remark about it.
type Sending = (FileOutcome, Option<Fallback>);

/// Result of sending a cut.
pub(super) struct Sent {
    /// The server's answer; `None` if there was nothing to send.
    pub(super) applied: Option<BatchApplied>,
    /// Nodes that could not be saved.
    pub(super) unsaved: Vec<NodeId>,
    /// Nodes that the server still lacks.
    pub(super) missing: Vec<NodeId>,
    /// Names that the server lacks for that reason.
    pub(super) left_out: Vec<LeftOutName>,
    /// Files that are damaged at the server and were sent whole, or are gone.
    pub(super) mended: BTreeSet<NodeId>,
}

/// Sends everything that the cut reports as one batch.
pub(super) fn transfer(
    job: &Job<'_>,
    cut: &CutInfo,
    basis: &Basis,
    number: &Numbered,
    report: &mut BackupReport,
) -> Result<Sent> {
    let counter = number.counter();
    let label = SnapshotLabel {
        time_ns: number.created_ns(),
        ..job.label()
    };
    let label_time_ns = label.time_ns;
    let manifest = Manifest {
        device: job.options.device,
        counter,
        base_seq: basis.base_seq,
        replaces: basis.replaces.filter(|_| basis.base_seq.is_none()),
        follows: basis
            .follows
            .filter(|_| basis.base_seq.is_some())
            .map(|own| own.counter),
        root: job.file_id(cut.tree, NodeId::ROOT),
        created_ns: label.time_ns,
        host: job.options.host.clone(),
        path: job.options.path.clone(),
        snapshot: job.makes_snapshot.then_some(label),
    };
    let destination = Destination {
        server: job.server,
        folder: job.folder,
        counter,
        monitor: job.monitor,
        memory: number.memory(),
        link_before_bytes_per_s: basis.note.as_ref().and_then(|note| note.link_bytes_per_s),
        processor_share: job.options.processor_share,
    };
    let part_len_bytes = job
        .options
        .part_len_bytes
        .clamp(*PART_LEN_BYTES_RANGE.start(), *PART_LEN_BYTES_RANGE.end());
    let note_counter = || job.tree.note_batch(cut.cut, counter).map_err(BackupError::from);
    std::thread::scope(|scope| {
        let stream = PartStream::begin(scope, destination, part_len_bytes, &manifest, &note_counter)?;
        let mut transfer = Transfer {
            job,
            cut,
            stream,
            report,
            is_on_top: basis.base_seq.is_some(),
            compared_seq: basis.compared_seq(),
            newest_seq: None,
            followed: match (basis.base_seq, basis.replaces) {
                (None, Some(at)) => Some(Followed::new(job, cut.cut, at)),
                _ => None,
            },
            bases: Bases::default(),
            contents: ShortContents::default(),
            overwritten: None,
            compared_in_vain: None,
            missing: BTreeSet::new(),
            unseen: BTreeSet::new(),
            left_out: BTreeMap::new(),
            unsaved: Vec::new(),
            mended: BTreeSet::new(),
            former: None,
            link_bytes_per_s: basis.note.as_ref().and_then(|note| note.link_bytes_per_s),
            sums: BlockSums::begin(job.store.as_ref(), basis, &job.options.limits, job.monitor),
            decisions: job
                .options
                .decisions
                .as_ref()
                .map(|dir| DecisionWriter::begin(dir, cut.tree, counter, label_time_ns)),
        };
        if let Some(note) = &basis.note {
            transfer.missing.extend(&note.missing);
            transfer.unseen.clone_from(&transfer.missing);
            for name in &note.left_out {
                transfer.left_out.insert((name.parent, name.name.clone()), name.child);
            }
        }
        transfer.run(counter)
    })
}

/// The planner's questions about a file.
struct OfFile<'t, 'a, 'scope, 'env> {
    transfer: &'t mut Transfer<'a, 'scope, 'env>,
    node: NodeId,
    size_bytes: u64,
}

impl OfFile<'_, '_, '_, '_> {
    /// How the file was saved before; or, if it is new, the one that it replaced: a program that
    /// saves so changes about as much each time.
    fn former(&mut self) -> Option<Former> {
        let transfer = &mut *self.transfer;
        let options = transfer.job.options;
        let known = transfer.former.get_or_insert_with(|| match &options.decisions {
            Some(dir) => former(dir.as_ref(), transfer.cut.tree),
            None => HashMap::new(),
        });
        let predecessor = transfer.bases.predecessor(self.node);
        let former = known.get(&self.node).or_else(|| known.get(&predecessor?.0));
        former.copied()
    }
}

impl Hints for OfFile<'_, '_, '_, '_> {
    fn overwritten_bytes(&mut self) -> u64 {
        if !self.transfer.is_on_top || self.transfer.compared_in_vain == Some(self.node) {
            return 0;
        }
        let (job, cut) = (self.transfer.job, self.transfer.cut.cut);
        let overwritten = Overwritten::of(job, cut, self.node);
        let known_bytes = overwritten.as_ref().map_or(0, Overwritten::known_bytes);
        self.transfer.overwritten = overwritten.map(|overwritten| (self.node, overwritten));
        known_bytes
    }

    fn sums_know_most(&mut self) -> bool {
        // The sums are of the contents that the batch follows.
        self.transfer.is_on_top && self.transfer.sums.knows_most(self.node, self.size_bytes)
    }

    fn leaves_exist(&mut self) -> bool {
        // On an error the file is read one way or another, and that will report it.
        let offer = self.transfer.job.tree.leaf_offer(self.transfer.cut.cut, self.node);
        offer.is_ok_and(|offer| offer.source != LeafSource::Read)
    }

    fn sent_share(&mut self) -> Option<f64> {
        self.former()?.sent
    }

    fn former_searches(&mut self, method: DeltaMethod) -> Option<Searches> {
        self.former()?.searches(method)
    }
}

struct Transfer<'a, 'scope, 'env> {
    job: &'a Job<'a>,
    cut: &'a CutInfo,
    stream: PartStream<'scope, 'env>,
    report: &'a mut BackupReport,
    /// Whether the batch follows the server's state; otherwise it replaces everything.
    is_on_top: bool,
    /// The moment that it follows, or replaces and may be compared with.
    compared_seq: Option<Seq>,
    /// The server's newest batch, once it was asked for.
    newest_seq: Option<Seq>,
    /// Finds files of the server that unknown files follow, when everything is sent.
    followed: Option<Followed<'a>>,
    /// Contents that the files which come next are compared with.
    bases: Bases,
    /// Contents of files that come next.
    contents: ShortContents,
    /// The bytes that were overwritten in the file that is being sent.
    overwritten: Option<(NodeId, Overwritten)>,
    /// The last file for which that was of no use.
    compared_in_vain: Option<NodeId>,
    /// Nodes that the server lacks even after this batch, as far as is known.
    missing: BTreeSet<NodeId>,
    /// Missing nodes from earlier backups that the cut has not reported yet. The log reports an
    /// unsaved node until it is saved or gone.
    unseen: BTreeSet<NodeId>,
    left_out: BTreeMap<(NodeId, ByteString), NodeId>,
    unsaved: Vec<NodeId>,
    mended: BTreeSet<NodeId>,
    sums: BlockSums<'a>,
    decisions: Option<DecisionWriter>,
    /// How files were saved before, once it was asked for.
    former: Option<HashMap<NodeId, Former>>,
    /// The speed of the link in the last backup.
    link_bytes_per_s: Option<u64>,
}

impl Transfer<'_, '_, '_> {
    fn run(mut self, counter: u64) -> Result<Sent> {
        let (tree, cut) = (self.job.tree, self.cut);
        for_each_next(tree, cut, |next| match next {
            Next::Nodes(changes, attributes, contents) => {
                self.contents = contents;
                self.nodes(&changes, attributes)?;
                self.release_contents()
            }
            Next::Names(changes) => changes.iter().try_for_each(|change| self.name(change)),
        })?;
        let gone = std::mem::take(&mut self.unseen);
        self.missing.retain(|node| !gone.contains(node));
        self.left_out
            .retain(|(parent, _), child| !gone.contains(parent) && !gone.contains(child));
        self.late_names()?;

        let missing: Vec<NodeId> = self.missing.into_iter().collect();
        let left_out: Vec<LeftOutName> = self
            .left_out
            .into_iter()
            .map(|((parent, name), child)| LeftOutName { parent, name, child })
            .collect();
        let is_empty = self.stream.totals() == Totals::default();
        let applied = if is_empty && self.is_on_top {
            None
        } else {
            let is_complete = self.unsaved.is_empty() && missing.is_empty() && left_out.is_empty();
            let (job, report, mut sums, decisions) = (self.job, self.report, self.sums, self.decisions);
            report.hashed_bytes += sums.hashed_bytes;
            report.found_bytes += sums.known_bytes;
            report.parts = self.stream.staged_parts();
            let compressed = self.stream.compressed();
            job.monitor.end();
            job.monitor.event(Event::Phase(Phase::Committing));
            let clock = job.server.clock();
            let started_ns = clock.monotonic_ns();
            let committed = self.stream.commit(|| {
                check_cancelled(job.monitor)?;
                if !is_complete {
                    job.tree.note_batch(cut.cut, counter | 1)?;
                }
                sums.prepare(counter);
                Ok(())
            });
            report.durations.commit_ns = clock.monotonic_ns().saturating_sub(started_ns);
            let applied = committed?;
            if let Some(decisions) = decisions {
                decisions.end(applied.seq, Some(compressed.into()));
            }
            Some(applied)
        };
        Ok(Sent {
            applied,
            unsaved: self.unsaved,
            missing,
            left_out,
            mended: self.mended,
        })
    }

    fn nodes(&mut self, changes: &[NodeChange], attributes: Vec<Result<Attributes, ServiceError>>) -> Result<()> {
        check_cancelled(self.job.monitor)?;
        let nodes: Vec<NodeId> = changes.iter().map(|change| change.node).collect();
        if let Some(followed) = &mut self.followed {
            let is_long =
                |attributes: &Attributes| attributes.kind == NodeKind::File && attributes.size >= DIGESTED_LEN_MAX;
            let files = nodes.iter().zip(&attributes);
            let files = files.filter(|(_, attributes)| attributes.as_ref().is_ok_and(is_long));
            followed.prepare(&files.map(|(node, _)| *node).collect::<Vec<_>>());
            let short = nodes.iter().zip(&attributes).filter_map(|(node, attributes)| {
                let attributes = attributes.as_ref().ok()?;
                let is_short = (1..DIGESTED_LEN_MAX).contains(&attributes.size);
                (attributes.kind == NodeKind::File && is_short).then_some((*node, attributes.size))
            });
            followed.prepare_short(&short.collect::<Vec<_>>());
        }
        self.prepare_bases(changes, &attributes)?;
        for (change, attributes) in changes.iter().zip(attributes) {
            check_cancelled(self.job.monitor)?;
            self.unseen.remove(&change.node);
            match attributes {
                Ok(attributes) => self.node(change, attributes)?,
                Err(error) if error.kind == ErrorKind::Node => self.failed(change, &error)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Lets programs overwrite what was read ahead: it is in the batch now.
    fn release_contents(&mut self) -> Result<()> {
        let read = std::mem::take(&mut self.contents).nodes();
        match read.is_empty() {
            true => Ok(()),
            false => Ok(self.job.tree.release(self.cut.cut, &read)?),
        }
    }

    /// Whether the server has a version of this node that changes can follow.
    fn server_has(&self, change: &NodeChange) -> bool {
        self.is_on_top && !change.is_new && !self.missing.contains(&change.node)
    }

    fn node(&mut self, change: &NodeChange, attributes: Attributes) -> Result<()> {
        let id = self.job.file_id(self.cut.tree, change.node);
        let foreseen_bytes = foreseen_bytes_of(&change.content, attributes.size);
        self.job.monitor.begin_node(foreseen_bytes);
        let sends_time_only = self.job.sends_time_only.is_some_and(|tells| tells(change.node));
        if sends_time_only && self.server_has(change) {
            count_node(change, self.report);
            let mtime_ns = attributes.mtime_ns;
            return self.stream.directory_time(&DirectoryTimeRecord { id, mtime_ns });
        }
        if let Some(origin) = self.job.origins.and_then(|origins| origins(change.node))
            && let (NodeKind::File, ContentChange::Ranges(ranges)) = (attributes.kind, &change.content)
        {
            return self.of_origin(change, id, attributes, ranges, origin);
        }
        let short = match &mut self.followed {
            Some(followed) => followed.short(change.node),
            None => self.bases.take_short(change.node),
        };
        if let Some(short) = short
            && self.is_same_short(change.node, attributes.size, &short)?
        {
            let base = ContentBase::Of(short.id);
            return self.send_as_existing(change, id, attributes, (base, short.cause));
        }
        if let Some(equal) = self.equal_elsewhere(change.node, attributes.size)? {
            // It was only peeked at; programs may overwrite it now.
            self.job.tree.release(self.cut.cut, &[change.node])?;
            return self.send_as_existing(change, id, attributes, (equal, Cause::Copied));
        }
        let is_damaged = attributes.kind == NodeKind::File && self.job.damaged.contains(&change.node);
        let whole;
        let change = match is_damaged && !matches!(change.content, ContentChange::Unchanged) {
            // Ranges would follow a content that the server cannot read.
            true => {
                self.mended.insert(change.node);
                whole = NodeChange {
                    content: ContentChange::Whole(WholeReason::Unsaved),
                    ..change.clone()
                };
                &whole
            }
            false => change,
        };
        let (planned, at_server) = match attributes.kind {
            NodeKind::File if self.mended.contains(&change.node) => (self.plan(change, attributes.size, false), None),
            NodeKind::File if self.followed.is_some() => self.plan_from_other(change, &attributes, |transfer| {
                let followed = transfer.followed.as_mut()?;
                followed.find(change.node, &attributes)
            }),
            NodeKind::File => match self.bases.predecessor(change.node) {
                Some((predecessor, cause)) => {
                    let id = self.job.file_id(self.cut.tree, predecessor);
                    let found = Some(FollowedFile { id, cause });
                    self.plan_from_other(change, &attributes, |_| found)
                }
                None => (self.plan(change, attributes.size, self.server_has(change)), None),
            },
            _ => (None, None),
        };
        let is_resent = self.missing.contains(&change.node);
        match planned {
            Some(planned) => {
                let changed_bytes = match planned.cause {
                    Cause::New | Cause::SamePath | Cause::Moved | Cause::Replaced | Cause::Copied => attributes.size,
                    _ => changed_bytes(&change.content, attributes.size),
                };
                let (outcome, decision) = self.file(change, planned, &attributes, at_server)?;
                match outcome {
                    FileOutcome::Sent(stats) => {
                        self.report.changed_bytes += changed_bytes;
                        self.report.literal_bytes += stats.literal_bytes;
                        if let Some(decisions) = &mut self.decisions {
                            decisions.decided(&Decision {
                                changed_bytes,
                                literal_bytes: stats.literal_bytes,
                                ..decision
                            });
                        }
                    }
                    FileOutcome::Unreadable(error) => return self.failed(change, &error),
                }
            }
            None => self.stream.node(&NodeRecord {
                id,
                attributes,
                content: None,
            })?,
        }
        if is_resent && !matches!(change.content, ContentChange::Whole(_)) {
            self.report.whole.unsaved_before += 1;
        }
        count_node(change, self.report);
        self.missing.remove(&change.node);
        self.job.monitor.end_node(None);
        Ok(())
    }

    /// Sends a file that is new to the server as its difference from the content it grew from.
    fn of_origin(
        &mut self,
        change: &NodeChange,
        id: FileId,
        attributes: Attributes,
        ranges: &ExtentSet,
        origin: Origin,
    ) -> Result<()> {
        let changed_bytes = changed_bytes(&change.content, attributes.size);
        let file = FileChange {
            base: ContentBase::At {
                file: origin.file,
                seq: origin.seq,
            },
            ..FileChange::of_ranges(change.node, id, attributes, ranges)
        };
        let (stream, sums) = (&mut self.stream, &mut self.sums);
        match send_file(
            self.job.tree,
            self.cut.cut,
            (file, None),
            stream,
            sums,
            self.job.monitor,
        )? {
            FileOutcome::Sent(stats) => {
                self.report.changed_bytes += changed_bytes;
                self.report.literal_bytes += stats.literal_bytes;
            }
            FileOutcome::Unreadable(error) => return self.failed(change, &error),
        }
        count_node(change, self.report);
        self.missing.remove(&change.node);
        self.job.monitor.end_node(None);
        Ok(())
    }

    /// How to send a file that the server lacks: as its difference from another file there, which
    /// `find` finds. Returns that file too, if it is worth asking for one and there is one.
    fn plan_from_other(
        &mut self,
        change: &NodeChange,
        attributes: &Attributes,
        find: impl FnOnce(&mut Self) -> Option<FollowedFile>,
    ) -> (Option<Plan>, Option<FileId>) {
        let size_bytes = attributes.size;
        let if_there = self.plan(change, size_bytes, true);
        let Some(if_there) = if_there.filter(|plan| is_examined_by(plan.method)) else {
            let is_refused = |plan: &Plan| plan.fallback == Some(Fallback::ProofRefused);
            return match if_there.filter(is_refused) {
                Some(plan) => (Some(plan), None),
                None => (self.plan(change, size_bytes, false), None),
            };
        };
        let Some(found) = find(self) else {
            return (self.plan(change, size_bytes, false), None);
        };
        let cause = match if_there.cause {
            Cause::Whole(_) => found.cause,
            cause => cause,
        };
        (Some(Plan { cause, ..if_there }), Some(found.id))
    }

    /// How to find the change of a content; `server_has`: it can follow a version there.
    fn plan(&mut self, change: &NodeChange, size_bytes: u64, server_has: bool) -> Option<Plan> {
        let known = Known {
            choice: self.job.options.delta,
            log: match &change.content {
                ContentChange::Unchanged => LogKnowledge::Unchanged,
                ContentChange::Whole(reason) => LogKnowledge::Whole(*reason),
                ContentChange::Ranges(_)
                    if changed_bytes(&change.content, size_bytes) == size_bytes && size_bytes > 0 =>
                {
                    LogKnowledge::Rewritten
                }
                ContentChange::Ranges(_) => LogKnowledge::Ranges,
            },
            size_bytes,
            changed_bytes: changed_bytes(&change.content, size_bytes),
            searchable_bytes: match &change.content {
                ContentChange::Ranges(ranges) => searchable_bytes(ranges, size_bytes),
                _ => 0,
            },
            block_bytes: match &change.content {
                ContentChange::Ranges(ranges) => block_bytes(ranges, size_bytes),
                _ => 0,
            },
            server_has,
            answers: self.job.answers.get(),
            proof_refused: self.job.proof_refused.get(),
            conditions: self.conditions(),
        };
        plan(
            &known,
            &mut OfFile {
                transfer: self,
                node: change.node,
                size_bytes,
            },
        )
    }

    /// The link as measured in this backup or the last one, within its limit, and the load of the
    /// machine.
    fn conditions(&self) -> Conditions {
        let unknown = Conditions::default();
        let server = self.job.server;
        let link = server.link_bytes_per_s().or(self.link_bytes_per_s);
        let limit = server.bytes_per_second_max().unwrap_or(u64::MAX);
        Conditions {
            link_bytes_per_s: link.unwrap_or(unknown.link_bytes_per_s).min(limit),
            round_trip_ns: server.round_trip_ns().unwrap_or(unknown.round_trip_ns),
            processor_share: self.job.options.processor_share,
        }
    }

    /// Sends the content of a file as planned, or as is possible, and returns how.
    fn file(
        &mut self,
        change: &NodeChange,
        mut planned: Plan,
        attributes: &Attributes,
        followed: Option<FileId>,
    ) -> Result<(FileOutcome, Decision)> {
        let (node, id) = (change.node, self.job.file_id(self.cut.tree, change.node));
        let hashed_before = (self.report.hashed_bytes, self.sums.hashed_bytes);
        let found_before = (self.report.found_bytes, self.sums.known_bytes);
        let mut outcome = None;
        let overwritten = self.overwritten.take().filter(|(of, _)| *of == node);
        while outcome.is_none() && is_examined_by(planned.method) {
            let file = Examined {
                node,
                id,
                at_server: followed.unwrap_or(id),
                is_followed: followed.is_some(),
                attributes,
                ranges: match &change.content {
                    ContentChange::Ranges(ranges) => Some(ranges),
                    _ => None,
                },
                overwritten: overwritten.as_ref().map(|(_, overwritten)| overwritten),
            };
            match self.examined(&file, planned.method)? {
                Ok((sent, note)) => {
                    outcome = Some(sent);
                    planned.fallback = note;
                }
                Err(fallback) if planned.method == DeltaMethod::LogCompared => {
                    self.compared_in_vain = Some(node);
                    let other = self.plan(change, attributes.size, true);
                    planned = other.unwrap_or_else(|| planned.fall_back(fallback));
                }
                Err(fallback) => planned = planned.fall_back(fallback),
            }
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                let whole: ExtentSet = ByteRange::new(0, attributes.size).into_iter().collect();
                let file = match (planned.method, &change.content) {
                    (DeltaMethod::Log, ContentChange::Ranges(ranges)) => {
                        FileChange::of_ranges(node, id, attributes.clone(), ranges)
                    }
                    (DeltaMethod::Sums, _) => {
                        self.report.examined_files += 1;
                        FileChange::of_ranges(node, id, attributes.clone(), &whole)
                    }
                    // Over the server's version: blocks of it with kept sums need not be sent.
                    (_, ContentChange::Ranges(_)) if planned.cause == Cause::Rewritten => {
                        FileChange::of_ranges(node, id, attributes.clone(), &whole)
                    }
                    _ => FileChange::whole(node, id, attributes.clone()),
                };
                send_file(
                    self.job.tree,
                    self.cut.cut,
                    (file, self.contents.of(node)),
                    &mut self.stream,
                    &mut self.sums,
                    self.job.monitor,
                )?
            }
        };
        let since = |(report, sums): (u64, u64), now: (u64, u64)| (now.0 - report) + (now.1 - sums);
        let decision = Decision {
            node,
            method: planned.method,
            cause: planned.cause,
            fallback: planned.fallback,
            size_bytes: attributes.size,
            changed_bytes: 0,
            hashed_bytes: since(hashed_before, (self.report.hashed_bytes, self.sums.hashed_bytes)),
            found_bytes: since(found_before, (self.report.found_bytes, self.sums.known_bytes)),
            literal_bytes: 0,
        };
        Ok((outcome, decision))
    }

    /// Sends what the server lacks of a file; returns why not, if it is to be sent as it is.
    fn examined(&mut self, file: &Examined<'_>, method: DeltaMethod) -> Result<Result<Sending, Fallback>> {
        let Some(base_seq) = self.compared_seq else {
            return Ok(Err(Fallback::NoSignature));
        };
        let place = Place {
            job: self.job,
            cut: self.cut.cut,
            base_seq,
            conditions: self.conditions(),
        };
        match send_examined(place, file, method, &mut self.stream, &mut self.sums)? {
            Examination::Sent(stats, found, note) => {
                self.report.examined_files += 1;
                self.report.followed_files += u64::from(file.is_followed);
                self.report.hashed_bytes += found.examined_bytes;
                self.report.found_bytes += found.copied_bytes + stats.found_again_bytes;
                Ok(Ok((FileOutcome::Sent(stats), note)))
            }
            Examination::Unreadable(error) => Ok(Ok((FileOutcome::Unreadable(error), None))),
            Examination::Whole(fallback) => Ok(Err(fallback)),
        }
    }

    fn failed(&mut self, change: &NodeChange, error: &ServiceError) -> Result<()> {
        if change.node == NodeId::ROOT {
            // Nothing can be saved of a tree whose root cannot be read.
            return Err(error.clone().into());
        }
        if !self.server_has(change) && !self.is_there(change.node)? {
            self.missing.insert(change.node);
        }
        self.unsaved.push(change.node);
        let path = match &error.path {
            Some(path) => Some(path.clone()),
            None => self.job.tree.path(self.cut.cut, change.node)?,
        };
        let file = UnsavedFile {
            path: path.unwrap_or_else(|| ByteString::from(format!("(node {})", change.node))),
            reason: error.message.clone(),
        };
        self.job.tell_failure(Some(&file));
        self.job.monitor.end_node(None);
        self.report.unsaved.push(file);
        Ok(())
    }

    /// Whether the server has a node of which the log only knows that it is new since the mark: it
    /// may have come in a group of its own since. Were it taken for missing, its name would be
    /// removed there, and from all other machines, because it cannot be read here now.
    fn is_there(&mut self, node: NodeId) -> Result<bool> {
        if self.is_on_top && self.missing.contains(&node) {
            return Ok(false);
        }
        let (job, tree) = (self.job, self.cut.tree);
        // Asked once: the newest batch includes all that this device sent, which sends nothing else
        // meanwhile. A batch that replaces everything asks at the moment that it replaces.
        let at = match (self.is_on_top, self.newest_seq, self.compared_seq) {
            (true, Some(newest), _) | (false, _, Some(newest)) => newest,
            (true, None, _) => job.server.folder(job.folder)?.seq,
            (false, _, None) => return Ok(false),
        };
        self.newest_seq = Some(at);
        match job.server.node(job.folder, job.file_id(tree, node), at) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ServerErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn name(&mut self, change: &NameChange<NodeId>) -> Result<()> {
        // A name left out earlier under this directory and name is out of date.
        self.left_out.remove(&(change.parent, change.name.clone()));
        let lacks = |node: &NodeId| self.missing.contains(node);
        if lacks(&change.parent) || change.child.as_ref().is_some_and(lacks) {
            if let Some(child) = change.child {
                self.left_out.insert((change.parent, change.name.clone()), child);
                // At the server the name may still stand for another node.
                if !self.missing.contains(&change.parent) && self.is_on_top {
                    self.entry(change.parent, &change.name, None)?;
                }
            }
            return Ok(());
        }
        count_name(change, self.report);
        self.entry(change.parent, &change.name, change.child)
    }

    /// Sends names that earlier backups had to leave out and that can be given now.
    fn late_names(&mut self) -> Result<()> {
        let missing = &self.missing;
        let (ready, left_out) = std::mem::take(&mut self.left_out)
            .into_iter()
            .partition(|((parent, _), child)| !missing.contains(parent) && !missing.contains(child));
        self.left_out = left_out;
        let ready: BTreeMap<(NodeId, ByteString), NodeId> = ready;
        for ((parent, name), child) in ready {
            self.report.names_added += 1;
            self.entry(parent, &name, Some(child))?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: NodeId, name: &ByteString, child: Option<NodeId>) -> Result<()> {
        let (job, tree) = (self.job, self.cut.tree);
        self.stream.entry(&NameChange {
            parent: job.file_id(tree, parent),
            name: name.clone(),
            child: child.map(|child| job.file_id(tree, child)),
        })
    }
}
