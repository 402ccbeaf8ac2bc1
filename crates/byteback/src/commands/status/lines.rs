//! The state of a folder as a JSON line.

use byteback_control::{SyncLeftOut, SyncStatus, SyncUnusableRule};
use byteback_model::ByteString;
use serde::Serialize;

use super::health::Health;
use super::{Known, Logged, State, UnknownFiles, last_backup};
use crate::coverage::{Cause, Coverage};
use crate::ending::HolderLine;
use crate::last_backup::LastBackup;
use crate::timestamp;

#[derive(Serialize)]
pub(super) struct Line {
    directory: String,
    repository: Option<String>,
    mounted: bool,
    health: Health,
    /// The reasons for this health.
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_writes: Option<String>,
    /// Why sync is held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_back: Option<HeldBackLine>,
    #[serde(flatten)]
    log: Option<LogLine>,
}

#[derive(Serialize)]
struct HeldBackLine {
    since: String,
    because: String,
    /// Whether the record has already followed: mounting the right disk is not enough then.
    recorded: bool,
}

#[derive(Serialize)]
struct LogLine {
    mounted_at: Option<ByteString>,
    mode: Option<String>,
    pid: Option<u32>,
    /// The holders that keep the process alive although the mount is gone from its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<Vec<HolderLine>>,
    tracked_since: Option<String>,
    gaps: Vec<GapLine>,
    epoch: u64,
    nodes: u64,
    open_nodes: u64,
    last_backup: Option<String>,
    last_snapshot: Option<u64>,
    backup_pending: bool,
    unknown_files: UnknownFiles,
    log_bytes: u64,
    pending_ranges: u64,
    pending_files: u64,
    range_bytes: u64,
    resident_bytes: Option<u64>,
    cuts: Vec<CutLine>,
    consumers: Vec<ConsumerLine>,
    damaged: Vec<DamagedLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sync: Option<SyncLine>,
}

#[derive(Serialize)]
struct DamagedLine {
    path: Option<ByteString>,
    after_crash: bool,
    found: String,
    ranges: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct SyncLine {
    repository: String,
    connected: bool,
    since: String,
    problem: Option<String>,
    needs_attention: bool,
    has_ended: bool,
    waiting_changes: u64,
    waiting_bytes: u64,
    /// Whether all waiting changes are to be taken from one moment of the whole tree.
    folded: bool,
    groups_in_flight: u64,
    sent_groups: u64,
    sent_bytes: u64,
    last_sent: Option<String>,
    cursor: u64,
    unsaved_files: u64,
    held_changes: u64,
    paused_since: Option<String>,
    limits: Vec<String>,
    /// The limit at this moment.
    bytes_per_second_max: Option<u64>,
    last_received: Option<String>,
    last_heard: Option<String>,
    /// Whether changes of others are coming in.
    receiving: bool,
    /// Changes still to be made here, as far as is known.
    changes_to_come: Option<u64>,
    compared_files: Option<u64>,
    files_to_compare: Option<u64>,
    left_out_names: u64,
    left_out: Vec<LeftOutLine>,
    ignored_here: u64,
    ignored_there: u64,
    ignore_files: u64,
    ignored_by: Vec<ByteString>,
    unusable_rules: Vec<UnusableRuleLine>,
    conflicts: u64,
}

impl SyncLine {
    fn of(sync: &SyncStatus) -> Self {
        Self {
            repository: format!("{}/{}", sync.server, sync.folder),
            connected: sync.is_connected,
            since: timestamp::rfc3339(sync.since_ns),
            problem: sync.error.clone(),
            needs_attention: sync.needs_attention,
            has_ended: sync.has_ended,
            waiting_changes: sync.waiting_nodes,
            waiting_bytes: sync.waiting_bytes,
            folded: sync.is_folded,
            groups_in_flight: sync.groups_in_flight,
            sent_groups: sync.sent_groups,
            sent_bytes: sync.sent_bytes,
            last_sent: sync.sent_at_ns.map(timestamp::rfc3339),
            cursor: sync.cursor,
            unsaved_files: sync.unsaved_files,
            held_changes: sync.held_nodes,
            paused_since: sync.paused_since_ns.map(timestamp::rfc3339),
            limits: sync.limits.clone(),
            bytes_per_second_max: sync.bytes_per_second_max,
            last_received: sync.received_at_ns.map(timestamp::rfc3339),
            last_heard: sync.heard_at_ns.map(timestamp::rfc3339),
            receiving: sync.receiving.is_some(),
            changes_to_come: sync.receiving.and_then(|receiving| receiving.changes_to_come),
            compared_files: sync.receiving.and_then(|receiving| Some(receiving.compared?.0)),
            files_to_compare: sync.receiving.and_then(|receiving| Some(receiving.compared?.1)),
            left_out_names: sync.left_out_names,
            left_out: sync.left_out.iter().map(LeftOutLine::of).collect(),
            ignored_here: sync.ignored_here,
            ignored_there: sync.ignored_names,
            ignore_files: sync.ignore_files,
            ignored_by: sync.ignored_by.clone(),
            unusable_rules: sync.unusable_rules.iter().map(UnusableRuleLine::of).collect(),
            conflicts: sync.conflicts.len() as u64,
        }
    }
}

/// An invalid line of a file with rules.
#[derive(Serialize)]
struct UnusableRuleLine {
    path: ByteString,
    line: u64,
    why: String,
}

impl UnusableRuleLine {
    fn of(rule: &SyncUnusableRule) -> Self {
        Self {
            path: rule.path.clone(),
            line: rule.line,
            why: rule.why.clone(),
        }
    }
}

/// A name of another machine that is left out here.
#[derive(Serialize)]
struct LeftOutLine {
    path: ByteString,
    /// Whether the name collides with an existing one.
    collides: bool,
    /// Why the existing node cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<String>,
}

impl LeftOutLine {
    fn of(left_out: &SyncLeftOut) -> Self {
        Self {
            path: left_out.path.clone(),
            collides: left_out.collides,
            blocked: left_out.blocked.clone(),
        }
    }
}

#[derive(Serialize)]
struct CutLine {
    name: ByteString,
    opened: String,
    kept_bytes: u64,
    lost: Option<String>,
}

#[derive(Serialize)]
struct ConsumerLine {
    name: String,
    mark: Option<u64>,
    saved: Option<String>,
    expires: Option<String>,
    dropped: Option<String>,
}

#[derive(Serialize)]
struct GapLine {
    from: String,
    to: Option<String>,
    #[serde(flatten)]
    cause: Cause,
    changed_files: u64,
    changed_names: u64,
}

pub(super) fn line(known: &Known, health: Health, reasons: Vec<String>) -> Line {
    let log = match &known.state {
        State::Logged(logged) => Some(log_line(known, logged)),
        _ => None,
    };
    Line {
        directory: known.folder.directory().display().to_string(),
        repository: known.binding.as_ref().map(|binding| binding.repository.to_string()),
        mounted: log
            .as_ref()
            .is_some_and(|log| log.mounted_at.is_some() && log.held_by.is_none()),
        health,
        reasons,
        problem: match &known.state {
            State::Ending(_) => Some("its last process is ending".to_owned()),
            State::Busy => Some("another process is using the folder".to_owned()),
            State::Unreadable(why) => Some(why.clone()),
            State::New | State::InVolume(_) | State::Logged(_) => None,
        },
        lost_writes: known.lost_writes.clone(),
        held_back: known.held_back.map(|held| HeldBackLine {
            since: timestamp::rfc3339(held.since_ns),
            because: held.doubt.to_string(),
            recorded: held.is_recorded,
        }),
        log,
    }
}

fn log_line(known: &Known, logged: &Logged) -> LogLine {
    let status = &logged.status;
    let coverage = Coverage::of(&status.ledger);
    let last = last_backup(known, status);
    let gaps = coverage.gaps.iter().map(|gap| GapLine {
        from: timestamp::rfc3339(gap.from_ns),
        to: gap.to_ns.map(timestamp::rfc3339),
        cause: gap.cause,
        changed_files: gap.changed_files,
        changed_names: gap.changed_names,
    });
    let cuts = logged.cuts.iter().map(|cut| CutLine {
        name: cut.name.clone(),
        opened: timestamp::rfc3339(cut.opened_at_ns),
        kept_bytes: cut.kept_bytes,
        lost: cut.lost.clone(),
    });
    let consumers = status.consumers.iter().map(|consumer| ConsumerLine {
        name: consumer.name.clone(),
        mark: consumer.mark.map(|mark| mark.0),
        saved: (consumer.saved_at_ns != 0).then(|| timestamp::rfc3339(consumer.saved_at_ns)),
        expires: consumer.expires_at_ns.map(timestamp::rfc3339),
        dropped: consumer.dropped.map(|dropped| timestamp::rfc3339(dropped.at_ns)),
    });
    let damaged = status.damaged.iter().map(|file| DamagedLine {
        path: file.path.clone(),
        after_crash: file.after_crash,
        found: timestamp::rfc3339(file.found_at_ns),
        ranges: file.ranges.clone(),
    });
    LogLine {
        mounted_at: status.mounted_at.clone(),
        mode: status.mode.clone(),
        pid: status.mounted_at.is_some().then_some(status.pid),
        held_by: status
            .detached
            .as_ref()
            .map(|detached| HolderLine::all(&detached.held_by)),
        tracked_since: coverage.tracked_since_ns.map(timestamp::rfc3339),
        gaps: gaps.collect(),
        epoch: status.epoch.0,
        nodes: status.nodes,
        open_nodes: status.open_nodes,
        last_backup: last.and_then(LastBackup::saved_at_ns).map(timestamp::rfc3339),
        last_snapshot: last.and_then(LastBackup::snapshot_id),
        backup_pending: last.is_some_and(LastBackup::has_pending),
        unknown_files: logged.unknown,
        log_bytes: status.usage.database_bytes.saturating_add(status.usage.intents_bytes),
        pending_ranges: status.usage.pending_extents,
        pending_files: status.usage.pending_nodes,
        range_bytes: status.usage.extent_bytes,
        resident_bytes: logged.resident_bytes,
        cuts: cuts.collect(),
        consumers: consumers.collect(),
        damaged: damaged.collect(),
        sync: status.sync.as_ref().map(SyncLine::of),
    }
}
