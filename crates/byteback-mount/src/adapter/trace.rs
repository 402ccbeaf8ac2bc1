//! The trace that a failure leaves: a line for people with the operation, the file and the error.
//!
//! A program that gets EIO rarely says more than that. A line goes to the mount's [`Report`] for
//! each failure of the storage or of ours ([`is_failure`]), and none for an everyday answer like
//! ENOENT. A broken disk fails thousands of times a second: of one operation and one error number
//! at most [`LINES_MAX`] lines go out in [`PERIOD_NS`], and the next line counts those left out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use byteback_host::clock::{Clock, RealClock};
use parking_lot::Mutex;

use crate::cuts::Report;
use crate::inodes::InodeNumber;
use crate::tree::Tree;

/// Lines about one operation and error number in a period.
const LINES_MAX: u32 = 5;

/// A minute.
const PERIOD_NS: u64 = 60_000_000_000;

/// An operation that the kernel asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// A verb, with what follows up to the name: "cannot VERB NAME".
    pub(super) operation: &'static str,
    pub(super) node: InodeNumber,
    /// The name in the directory `node`, of an operation on a name.
    pub(super) name: Option<&'a OsStr>,
}

/// See the module.
pub(super) struct Trace {
    tree: Arc<Tree>,
    report: Report,
    limit: Mutex<Limit>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Trace").finish_non_exhaustive()
    }
}

impl Trace {
    pub(super) fn new(tree: Arc<Tree>, report: Report) -> Self {
        Self {
            tree,
            report,
            limit: Mutex::default(),
        }
    }

    /// Notes that a call is answered with the error number `errno` because of `error`.
    pub(super) fn note(&self, call: &Call<'_>, errno: i32, error: &io::Error) {
        if !is_failure(errno) {
            return;
        }
        let now_ns = RealClock.monotonic_ns();
        let Some(left_out) = self.limit.lock().admit((call.operation, errno), now_ns) else {
            return;
        };
        let operation = call.operation;
        let subject = self.subject(call);
        let more = match left_out {
            0 => String::new(),
            count => format!(" (and {count} more times since the last such line)"),
        };
        self.report.say(&format!("cannot {operation} {subject}: {error}{more}"));
    }

    fn subject(&self, call: &Call<'_>) -> String {
        let names = self.tree.path_of(call.node);
        let path = names.map(|names| names.into_iter().collect::<PathBuf>());
        match (path, call.name) {
            (Some(path), Some(name)) => format!("{:?}", path.join(name)),
            (Some(path), None) if path.as_os_str().is_empty() => "the root of the tree".to_owned(),
            (Some(path), None) => format!("{path:?}"),
            (None, Some(name)) => format!("{name:?} in node {}", call.node.get()),
            (None, None) => format!("node {}", call.node.get()),
        }
    }
}

/// Whether an error number tells of a failure of the storage or of ours, rather than of a program's
/// request. A file system below that has become read-only counts, too: mostly it did so because
/// of a fault.
fn is_failure(errno: i32) -> bool {
    matches!(
        errno,
        libc::EIO
            | libc::ENOSPC
            | libc::EDQUOT
            | libc::EROFS
            | libc::EUCLEAN
            | libc::EBADMSG
            | libc::EHWPOISON
            | libc::EREMOTEIO
            | libc::ETIMEDOUT
            | libc::ENODEV
            | libc::ENOTCONN
            | libc::ENOMEM
            | libc::EMFILE
            | libc::ENFILE
    )
}

/// Lines about one operation and error number.
#[derive(Debug)]
struct Window {
    since_ns: u64,
    lines: u32,
    left_out: u64,
}

/// The lines that went out lately. Its size is bounded by the number of operations and of errors
/// that count.
#[derive(Debug, Default)]
struct Limit(HashMap<(&'static str, i32), Window>);

impl Limit {
    /// Whether a line may go out at `now_ns`, and how many were left out before it.
    fn admit(&mut self, kind: (&'static str, i32), now_ns: u64) -> Option<u64> {
        let window = self.0.entry(kind).or_insert(Window {
            since_ns: now_ns,
            lines: 0,
            left_out: 0,
        });
        if now_ns.saturating_sub(window.since_ns) >= PERIOD_NS {
            (window.since_ns, window.lines) = (now_ns, 0);
        }
        if window.lines >= LINES_MAX {
            window.left_out = window.left_out.saturating_add(1);
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests;
