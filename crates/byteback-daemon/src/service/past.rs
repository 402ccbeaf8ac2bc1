//! The past of a file, as the undo keeps it: by path, following the name first and then the inode.
//!
//! A path means the file that bore the name at that time: after a program has saved by moving a new
//! file over the old one, the old one. Only if no file bore it, it means the file that is there
//! now, under the name that this had then.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use byteback_control::{ErrorKind, FileHistory, PastEvent, PastFile, PastMoment, Piece, Result, ServiceError};
use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::{ByteString, NodeId, NodeKind};
use byteback_undo::{self as undo, ContentHow, Moment, NameEvent, NameHow, NotKept, Undo, UndoError};
use rustix::fs::OFlags;

use crate::service::log_failed;
use crate::tree::TrackedTree;

/// Most moments that are returned at once, the newest ones.
const MOMENTS_MAX: usize = 1000;

fn refused(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ErrorKind::Refused, message)
}

fn undo_of(tree: &TrackedTree) -> Result<&Undo> {
    let none = "no old versions of this folder are kept; mount it with byteback mount --undo-window 30m";
    tree.undo().map(AsRef::as_ref).ok_or_else(|| refused(none))
}

fn names_of(path: &ByteString) -> Result<Vec<OsString>> {
    let names: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').collect();
    let is_odd = |name: &&[u8]| name.is_empty() || *name == b"." || *name == b"..";
    if names.iter().any(is_odd) {
        return Err(refused(format!("{path} is not a path below the folder")));
    }
    Ok(names
        .into_iter()
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect())
}

fn failed(path: &ByteString, error: &UndoError) -> ServiceError {
    let kind = match error {
        UndoError::NotKept { .. } | UndoError::NoFile => ErrorKind::Refused,
        UndoError::Damaged | UndoError::Io { .. } => ErrorKind::Node,
    };
    let message = format!("{path}: {error}");
    ServiceError {
        kind,
        message,
        path: Some(path.clone()),
    }
}

fn log_error(error: impl std::error::Error + Send + Sync + 'static) -> UndoError {
    UndoError::Io {
        operation: "read the log",
        source: io::Error::other(error),
    }
}

/// The node at `names` now.
fn present(tree: &TrackedTree, names: &[OsString]) -> Result<Option<NodeId>> {
    let mut node = NodeId::ROOT;
    for name in names {
        match tree.log().child(node, name).map_err(log_failed)? {
            Some(child) => node = child,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

/// The node at `names` just before `at_ns`.
fn past(tree: &TrackedTree, undo: &Undo, names: &[OsString], at_ns: i64) -> Result<Option<NodeId>, UndoError> {
    let mut node = NodeId::ROOT;
    for name in names {
        let now = || tree.log().child(node, name).map_err(log_error);
        match undo.child_at(node, name, at_ns, now)? {
            Some(child) => node = child,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

pub(super) fn read(
    tree: &TrackedTree,
    path: &ByteString,
    at_ns: i64,
    sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
) -> Result<PastFile> {
    let undo = undo_of(tree)?;
    let names = names_of(path)?;
    let by_name = past(tree, undo, &names, at_ns).map_err(|error| failed(path, &error))?;
    let (node, had_other_name) = match by_name {
        Some(node) => (node, false),
        None => match present(tree, &names)? {
            Some(node) => (node, true),
            None => return Err(failed(path, &UndoError::NoFile)),
        },
    };
    let as_of = undo.as_of(node, at_ns).map_err(|error| match error {
        UndoError::NotKept { why: NotKept::Born, .. } => failed(path, &UndoError::NoFile),
        error => failed(path, &error),
    })?;
    // Before the file's history is locked: finding the file may wait for changes under way.
    let file = open(tree, node).map_err(|source| refused(format!("{path}: {source}")))?;
    let size_bytes = undo
        .size(&as_of, || {
            let stat = file.as_ref().map(Inode::stat).transpose()?;
            Ok(stat.map(|stat| stat.size))
        })
        .map_err(|error| failed(path, &error))?;
    if let Some(all) = ByteRange::new(0, size_bytes) {
        let mut stopped = None;
        let read_present = |at: u64, buffer: &mut [u8]| {
            let file = file.as_ref().ok_or(io::ErrorKind::NotFound)?;
            file.read_at(at, buffer)
        };
        let done = undo.read(&as_of, all, read_present, &mut |piece| {
            let piece = match piece {
                undo::Piece::Data(offset, bytes) => Piece::Data { offset, bytes },
                undo::Piece::Zeros(range) => Piece::Hole(range),
            };
            sink(piece).map_err(|error| {
                stopped = Some(error);
                io::Error::other("stopped")
            })
        });
        if let Some(stopped) = stopped {
            return Err(stopped);
        }
        done.map_err(|error| failed(path, &error))?;
    }
    Ok(PastFile {
        size_bytes,
        moment_ns: as_of.moment_ns,
        had_other_name,
        rights: as_of.rights.map(|rights| (rights.mode, rights.uid, rights.gid)),
    })
}

fn open(tree: &TrackedTree, node: NodeId) -> io::Result<Option<Inode>> {
    let Some((fd, stat)) = tree.live().find(node)? else {
        return Ok(None);
    };
    if stat.kind != NodeKind::File {
        return Err(io::Error::other("only regular files have old versions"));
    }
    fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK).map(Some)
}

pub(super) fn history(tree: &TrackedTree, path: &ByteString) -> Result<FileHistory> {
    let undo = undo_of(tree)?;
    let names = names_of(path)?;
    let Some((name, dirs)) = names.split_last() else {
        return Err(refused("a path is required"));
    };
    let Some(parent) = present(tree, dirs)? else {
        return Err(refused(format!("{path}: the directory no longer exists")));
    };
    let node = tree.log().child(parent, name).map_err(log_failed)?;
    let events = undo.name_events(parent, name);
    let mut moments = Vec::new();
    let mut since_ns = i64::MIN;
    for event in &events {
        if let Some(before) = event.before {
            let until = |moment: &&Moment| moment.at_ns > since_ns && moment.at_ns <= event.at_ns;
            moments.extend(undo.moments(before).iter().filter(until).filter_map(of_content));
        }
        moments.push(of_name(undo, *event));
        // A file that was moved here onto nothing brings its past along.
        let is_moved = event.how == NameHow::MovedHere && event.before.is_none();
        since_ns = if is_moved { i64::MIN } else { event.at_ns };
    }
    if let Some(node) = node {
        let newer = |moment: &&Moment| moment.at_ns > since_ns;
        moments.extend(undo.moments(node).iter().filter(newer).filter_map(of_content));
    }
    moments.sort_by_key(|moment: &PastMoment| moment.at_ns);
    moments.dedup();
    if node.is_none() && events.is_empty() {
        return Err(refused(format!(
            "{path}: no such file, neither now nor within the undo window"
        )));
    }
    let known_since = node.map_or_else(|| undo.horizon(), |node| undo.barrier(node));
    let options = undo.options();
    Ok(FileHistory {
        window_ns: options.window_ns,
        budget_bytes: options.budget_bytes,
        kept_bytes: undo.kept_bytes(),
        quantum_ns: options.quantum_ns,
        known_since: known_since.map(|(at_ns, why)| (at_ns, why.because().to_owned())),
        moments: moments.split_off(moments.len().saturating_sub(MOMENTS_MAX)),
    })
}

fn of_content(moment: &Moment) -> Option<PastMoment> {
    let what = match moment.how {
        ContentHow::Written => PastEvent::Written,
        ContentHow::Truncated => PastEvent::Truncated,
        ContentHow::Allocated => PastEvent::Zeroed,
        // The event of its name reports it.
        ContentHow::Removed => return None,
    };
    Some(PastMoment {
        at_ns: moment.at_ns,
        what,
        size_before_bytes: Some(moment.size_before_bytes),
        kept_bytes: moment.kept_bytes,
        kept_ranges: moment.kept_ranges,
        not_kept: moment.not_kept.map(|why| why.because().to_owned()),
    })
}

fn of_name(undo: &Undo, event: NameEvent) -> PastMoment {
    let what = match event.how {
        NameHow::Created => PastEvent::Created,
        NameHow::Removed => PastEvent::Removed,
        NameHow::MovedAway => PastEvent::MovedAway,
        NameHow::MovedHere if event.before.is_none() => PastEvent::MovedHere,
        NameHow::MovedHere | NameHow::Exchanged => PastEvent::Replaced,
    };
    let removed = event.before.and_then(|before| {
        let mut moments = undo.moments(before).into_iter();
        moments.find(|moment| moment.how == ContentHow::Removed)
    });
    let not_kept = match event.before.map(|before| undo.as_of(before, event.at_ns)) {
        Some(Err(UndoError::NotKept { why, .. })) => Some(why.because().to_owned()),
        Some(_) => None,
        None if what == PastEvent::MovedHere => None,
        None => Some(NotKept::Born.because().to_owned()),
    };
    PastMoment {
        at_ns: event.at_ns,
        what,
        size_before_bytes: removed.as_ref().map(|moment| moment.size_before_bytes),
        kept_bytes: removed.as_ref().map_or(0, |moment| moment.kept_bytes),
        kept_ranges: removed.as_ref().map_or(0, |moment| moment.kept_ranges),
        not_kept,
    }
}
