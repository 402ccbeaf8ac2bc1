//! Restores owner, permissions, extended attributes and times, in an order in which none undoes
//! another.

use super::report::{NotRestoredKind, Tally};
use byteback_host::tree::{self, SetTime, SetXattr};
use byteback_model::{Attributes, NodeKind};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// The owner may write.
const OWNER_WRITES: u32 = 0o200;

/// Sets the attributes of the node behind `fd`; `path` is for messages. Attributes that cannot be
/// set here are counted; the rest is done.
///
/// # Errors
/// If the file itself cannot be looked at any more.
pub(super) fn apply_attributes(
    fd: impl AsFd,
    attributes: &Attributes,
    path: &[u8],
    tally: &Tally<'_>,
) -> io::Result<()> {
    let now = tree::stat_fd(&fd)?;
    let missed = |kind, error: &io::Error| tally.not_restored(kind, path, &error.to_string());
    // An attribute that cannot be changed may have the right value already.
    let is_so = |is_so: &dyn Fn(&tree::Stat) -> bool| tree::stat_fd(&fd).is_ok_and(|now| is_so(&now));
    let mut mode = attributes.mode;
    if (now.uid, now.gid) != (attributes.uid, attributes.gid) {
        // Giving a file away needs privilege; setting one of the user's own groups does not.
        let both = tree::set_owner(&fd, Some(attributes.uid), Some(attributes.gid));
        if let Err(error) = both {
            if now.gid != attributes.gid {
                let _ = tree::set_owner(&fd, None, Some(attributes.gid));
            }
            missed(NotRestoredKind::Owner, &error);
            if mode & SET_ID != 0 {
                mode &= !SET_ID;
                missed(NotRestoredKind::SetId, &io::Error::other("the owner could not be set"));
            }
        }
    }
    let present = tree::list_xattrs(&fd).unwrap_or_default();
    if !(present.is_empty() && attributes.xattrs.is_empty()) {
        // Extended attributes of users need the right to write, even for the owner. A node made
        // here has it; one that existed before gets it until its permissions are set.
        if attributes.kind != NodeKind::Symlink && now.mode & OWNER_WRITES == 0 {
            let _ = tree::set_mode(&fd, now.mode | OWNER_WRITES);
        }
        apply_xattrs(&fd, attributes, &present, &missed);
    }
    // After the ACLs, which rewrite the permissions; these are then the ones that the ACLs came
    // with.
    if attributes.kind != NodeKind::Symlink
        && let Err(error) = tree::set_mode(&fd, mode)
        && !is_so(&|now| now.mode == mode)
    {
        missed(NotRestoredKind::Mode, &error);
    }
    if let Err(error) = tree::set_times(&fd, SetTime::Keep, SetTime::To(attributes.mtime_ns))
        && !is_so(&|now| now.mtime_ns == attributes.mtime_ns)
    {
        missed(NotRestoredKind::Times, &error);
    }
    Ok(())
}

/// Gives the node behind `fd` the wanted extended attributes and removes the others that it has.
fn apply_xattrs(
    fd: impl AsFd,
    attributes: &Attributes,
    present: &[OsString],
    missed: &impl Fn(NotRestoredKind, &io::Error),
) {
    let wanted: BTreeSet<&[u8]> = attributes.xattrs.iter().map(|xattr| xattr.name.as_bytes()).collect();
    for name in present {
        if !wanted.contains(name.as_bytes()) && !is_set_by_system(name.as_bytes()) {
            let _ = tree::remove_xattr(&fd, name);
        }
    }
    for xattr in &attributes.xattrs {
        let name = OsStr::from_bytes(xattr.name.as_bytes());
        if tree::get_xattr(&fd, name).is_ok_and(|value| value.as_deref() == Some(xattr.value.as_bytes())) {
            continue;
        }
        if let Err(error) = tree::set_xattr(&fd, name, xattr.value.as_bytes(), SetXattr::Any) {
            let error = io::Error::new(error.kind(), format!("{}: {error}", xattr.name));
            missed(NotRestoredKind::Xattr, &error);
        }
    }
}

/// Labels that the system sets by itself and that the backup's machine may not have had.
fn is_set_by_system(name: &[u8]) -> bool {
    name.starts_with(b"security.")
}
