//! A damaged log is set aside, and a new one begins: a folder is never out of reach because of its
//! log, and a change is never missed because of what a damaged log says.
//!
//! **Found at a start.** Every page of the database is compared with its checksum when it is
//! opened, and every record when it is read. If anything does not match, or `log.redb` is gone
//! while another part of the log is still there, then:
//!
//! 1. the marker `log.damaged` is written, with the reason, and synced. *A crash after it: the next
//!    start finds it and continues here.*
//! 2. `log.redb` becomes `log.redb.damaged`, for later inspection; an older file of that name goes.
//! 3. A new database is made, whose ledger begins with the loss; the marker goes just before it
//!    gets its name. *A crash in between: `log.redb` is missing while `log.redb.damaged` is there,
//!    which is a loss as well.*
//!
//! The old intents mean nothing to the new log: it knows no node yet. All marks are lost, so every
//! consumer gets everything, with [`WholeReason::LogLost`]. Epochs begin beyond all that the old
//! log can have used (see [`crate::log`]).
//!
//! **Found while running.** The operation that met the damage fails, and the marker is written, so
//! that the next start begins anew even if all seems well by then. A write to a file that cannot be
//! found in the log is refused, the pending log stays in memory, and backups fail with a message
//! that says to mount the folder again.
//!
//! Not damage: a log of another version, which is refused and left alone; a disk that cannot be
//! read or written.

use std::io;
use std::sync::{Arc, OnceLock};

use byteback_host::durable::{DurableDir, OpenMode};

use crate::database;
use crate::error::{LogError, Result};
#[cfg(doc)]
use crate::layer::WholeReason;

const MARKER_NAME: &str = "log.damaged";
pub(crate) const SET_ASIDE_NAME: &str = "log.redb.damaged";
/// The longest reason that is kept; longer ones are cut off.
const REASON_BYTES_MAX: usize = 1024;

/// The loss of a log, on its way into the ledger of the next.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) reason: String,
    /// The name of the file that holds the old log; empty if there is none.
    pub(crate) set_aside: String,
}

/// Remembers, in memory and in the state folder, that the log is damaged.
#[derive(Debug)]
pub(crate) struct DamageWatch {
    dir: Arc<dyn DurableDir>,
    reason: OnceLock<String>,
}

impl DamageWatch {
    pub(crate) fn new(dir: Arc<dyn DurableDir>) -> Arc<Self> {
        Arc::new(Self {
            dir,
            reason: OnceLock::new(),
        })
    }

    /// Records the damage if `result` reports one.
    pub(crate) fn watch<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if !error.is_damage() {
                return;
            }
            let reason = reason_of(error);
            if self.reason.set(reason.clone()).is_ok() {
                // If it cannot be written, the next start still checks every page and record
                // itself.
                let _ = mark(self.dir.as_ref(), &reason);
            }
        })
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}

fn reason_of(error: &LogError) -> String {
    match error {
        LogError::Corrupted(what) => what.clone(),
        LogError::Damaged { what } => format!("the log's {what} is damaged"),
        other => other.to_string(),
    }
}

fn failed(file: &'static str) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::File { file, source }
}

/// Writes the marker.
pub(crate) fn mark_damage(dir: &dyn DurableDir, error: &LogError) -> Result<()> {
    mark(dir, &reason_of(error))
}

fn mark(dir: &dyn DurableDir, reason: &str) -> Result<()> {
    let failed = failed(MARKER_NAME);
    let file = dir.open(MARKER_NAME, OpenMode::CreateIfMissing).map_err(&failed)?;
    let reason = reason.as_bytes();
    file.write_all_at(0, reason.get(..REASON_BYTES_MAX).unwrap_or(reason))
        .map_err(&failed)?;
    file.sync_data().map_err(&failed)?;
    dir.sync().map_err(&failed)
}

/// The loss of the log that was here, if it is lost. The rest of it has then been set aside.
pub(crate) fn take_loss(dir: &dyn DurableDir, intents_name: &str) -> Result<Option<Loss>> {
    let names = dir.list().map_err(failed(database::FILE_NAME))?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let reason = if has(MARKER_NAME) {
        Some(read_marker(dir)?)
    } else if !has(database::FILE_NAME) && (has(intents_name) || has(SET_ASIDE_NAME)) {
        Some(format!("{} is missing", database::FILE_NAME))
    } else {
        None
    };
    let Some(reason) = reason else { return Ok(None) };
    if has(database::FILE_NAME) {
        let failed = failed(database::FILE_NAME);
        dir.rename(database::FILE_NAME, SET_ASIDE_NAME).map_err(&failed)?;
        dir.sync().map_err(&failed)?;
    }
    let is_left = has(database::FILE_NAME) || has(SET_ASIDE_NAME);
    let set_aside = if is_left { SET_ASIDE_NAME } else { "" };
    Ok(Some(Loss {
        reason,
        set_aside: set_aside.to_owned(),
    }))
}

fn read_marker(dir: &dyn DurableDir) -> Result<String> {
    let failed = failed(MARKER_NAME);
    let file = dir.open(MARKER_NAME, OpenMode::Existing).map_err(&failed)?;
    let len = file.len().map_err(&failed)?.min(REASON_BYTES_MAX as u64);
    let mut reason = vec![0; usize::try_from(len).unwrap_or(0)];
    file.read_exact_at(0, &mut reason).map_err(&failed)?;
    let reason = String::from_utf8_lossy(&reason).into_owned();
    Ok(if reason.is_empty() {
        "it was found damaged".to_owned()
    } else {
        reason
    })
}

/// Removes the marker, for the new database that is about to get its name. Durable with that name.
pub(crate) fn unmark(dir: &dyn DurableDir) -> Result<()> {
    let failed = failed(MARKER_NAME);
    if dir.list().map_err(&failed)?.iter().any(|name| name == MARKER_NAME) {
        dir.remove(MARKER_NAME).map_err(&failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
