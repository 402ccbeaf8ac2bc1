//! Whether a folder needs attention, and whether everything has reached its destination: this
//! decides the exit code of `status` and the lines of `--check`.
//!
//! *Attention*: the state does not improve by itself. *Behind*: changes are still on their way, or
//! the server is away. Both are for scripts; a folder that is only behind is no failure of `status`
//! itself.

use std::path::Path;

use byteback_control::{ConsumerStatus, SIGN_OF_LIFE_S, SYNC_CONSUMER, SyncStatus, TreeStatus};
use byteback_daemon::StateFolder;
use byteback_host::durable::RealDir;
use byteback_mount::mount_table;
use byteback_oplog::{LedgerEntry, LedgerEvent};
use byteback_sync::standing::Standing;
use serde::Serialize;

use super::{Known, State, last_backup};
use crate::throttling;

/// Longer than the interval between two signs of life, by the delay of a busy machine.
const SILENCE_NS_MAX: i64 = (SIGN_OF_LIFE_S as i64 + 5) * 1_000_000_000;

/// Health of a folder, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    /// Everything has reached its destination, as far as is known.
    Fine,
    /// Changes are on their way, or wait for the server.
    Behind,
    /// The state does not improve by itself.
    Attention,
}

/// Whether the server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// The server answered just now.
    No,
    /// The server last answered at this time, longer ago than the interval of its signs of life.
    Since(i64),
    /// The server did not answer.
    NotConnected,
}

/// Whether the server is there, as of `now_ns`.
pub(super) fn silence(sync: &SyncStatus, now_ns: i64) -> Silence {
    match (sync.is_connected, sync.heard_at_ns) {
        (false, _) => Silence::NotConnected,
        (true, Some(at_ns)) if now_ns.saturating_sub(at_ns) > SILENCE_NS_MAX => Silence::Since(at_ns),
        (true, _) => Silence::No,
    }
}

/// The health of a folder, with the reasons.
pub(super) fn of(known: &Known, now_ns: i64) -> (Health, Vec<String>) {
    let mut found: Vec<(Health, String)> = Vec::new();
    if let Some(why) = &known.lost_writes {
        found.push((Health::Attention, format!("the volume lost writes of programs: {why}")));
    }
    if let Some(held) = &known.held_back {
        found.push((Health::Attention, format!("sync is held back: {}", held.doubt)));
    }
    match &known.state {
        State::New => {}
        // The log is in the volume; the state folder records how far sync has come.
        State::InVolume(_) if has_standing(&known.folder) => {
            found.push((
                Health::Behind,
                "its volume is neither mounted nor kept in sync".to_owned(),
            ));
        }
        State::InVolume(_) => {}
        State::Ending(_) => found.push((Health::Behind, "its last process is ending".to_owned())),
        State::Busy => found.push((Health::Behind, "another command is using the folder".to_owned())),
        State::Unreadable(why) => found.push((Health::Attention, format!("its log cannot be read: {why}"))),
        State::Logged(logged) => {
            let status = &logged.status;
            let has_died = status.mounted_at.is_none() && mount_table::at(known.folder.directory()).is_some();
            if has_died {
                found.push((Health::Attention, "its daemon has died".to_owned()));
            }
            if !status.damaged.is_empty() {
                found.push((Health::Attention, "files are damaged: byteback repair".to_owned()));
            }
            match &status.sync {
                Some(sync) => of_sync(sync, now_ns, &mut found),
                // A daemon that was killed leaves a plain directory, in which programs go on
                // working.
                None if !has_died && known.held_back.is_none() && is_left_behind(known, status) => {
                    found.push((Health::Behind, "sync is not running: byteback sync".to_owned()));
                }
                None => {}
            }
        }
    }
    let health = found.iter().map(|(health, _)| *health).max().unwrap_or(Health::Fine);
    (health, found.into_iter().map(|(_, why)| why).collect())
}

/// Continuous sync of a folder, unless it was given up.
pub(super) fn left_sync(status: &TreeStatus) -> Option<&ConsumerStatus> {
    let mut consumers = status.consumers.iter();
    consumers.find(|consumer| consumer.name == SYNC_CONSUMER && consumer.dropped.is_none())
}

/// Whether a folder is meant to be kept in sync, and is not. A backup made after the end of the
/// last mount in sync means that backups have taken over; one from before does not, such as a
/// backup beside a daemon that was killed later.
pub(super) fn is_left_behind(known: &Known, status: &TreeStatus) -> bool {
    let Some(sync) = left_sync(status).filter(|_| status.sync.is_none()) else {
        return false;
    };
    let is_end = |entry: &&LedgerEntry| {
        let is_end = matches!(
            entry.event,
            LedgerEvent::TrackingEnded | LedgerEvent::Interrupted { .. }
        );
        is_end && entry.at_ns >= sync.saved_at_ns
    };
    let ended_ns = status.ledger.iter().find(is_end).map(|entry| entry.at_ns);
    let backed_up_ns = last_backup(known, status).and_then(|last| last.saved_at_ns());
    let is_given_up = ended_ns.is_some_and(|ended_ns| backed_up_ns.is_some_and(|at_ns| at_ns > ended_ns));
    !is_given_up && !is_gone(known.folder.directory())
}

/// Whether the tracked directory is not there any more.
pub(super) fn is_gone(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether a folder was kept in sync, according to the record outside its volume.
fn has_standing(folder: &StateFolder) -> bool {
    let dir = RealDir::open(folder.path().join(throttling::DIR_NAME)).ok();
    dir.is_some_and(|dir| matches!(Standing::read(&dir), Ok(Some(_))))
}

fn of_sync(sync: &SyncStatus, now_ns: i64, found: &mut Vec<(Health, String)>) {
    let problem = sync.error.clone();
    if sync.has_ended {
        let why = problem.map_or_else(String::new, |why| format!(": {why}"));
        found.push((Health::Attention, format!("sync has ended{why}")));
        return;
    }
    if sync.needs_attention {
        found.push((
            Health::Attention,
            problem.unwrap_or_else(|| "sync has failed".to_owned()),
        ));
    } else if sync.paused_since_ns.is_some() {
        found.push((Health::Behind, "sync is paused".to_owned()));
    } else if silence(sync, now_ns) != Silence::No || sync.heard_at_ns.is_none() {
        found.push((
            Health::Behind,
            problem.unwrap_or_else(|| "the server does not answer".to_owned()),
        ));
    }
    if sync.is_folded || sync.waiting_nodes > 0 || sync.groups_in_flight > 0 {
        found.push((Health::Behind, "changes are waiting to be sent".to_owned()));
    }
    if sync.receiving.is_some() {
        found.push((
            Health::Behind,
            "changes from other machines are still to come".to_owned(),
        ));
    }
    if sync.unsaved_files > 0 {
        found.push((Health::Attention, "files could not be read".to_owned()));
    }
    // A colliding name is left out until the other one is renamed.
    if sync.held_nodes > 0 || sync.left_out_names > 0 {
        found.push((
            Health::Attention,
            "changes from other machines cannot be applied here".to_owned(),
        ));
    }
    if !sync.conflicts.is_empty() {
        found.push((Health::Attention, "there are conflicts: byteback conflicts".to_owned()));
    }
}

#[cfg(test)]
mod tests;
