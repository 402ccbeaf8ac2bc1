//! Owner, extended attributes, permissions and time of what lands, in an order in which none undoes
//! another.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use byteback_control::{AttributeKind, MissedAttribute};
use byteback_host::tree::{Inode, SetTime, SetXattr};
use byteback_model::{Attributes, NodeKind};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// The owner may write.
const OWNER_WRITES: u32 = 0o200;

fn missed(what: AttributeKind, error: &io::Error) -> MissedAttribute {
    MissedAttribute {
        what,
        why: error.to_string(),
    }
}

/// Gives the node of `fd` its attributes. Returns those that are not possible here; the rest is
/// done.
pub(super) fn give(fd: &Inode, attributes: &Attributes) -> Vec<MissedAttribute> {
    let mut all_missed = Vec::new();
    let now = fd.stat().ok();
    let mut mode = attributes.mode;
    let owner = (attributes.uid, attributes.gid);
    if now.is_none_or(|now| (now.uid, now.gid) != owner)
        && let Err(error) = fd.set_owner(Some(owner.0), Some(owner.1))
    {
        // Giving a file away needs privilege; giving it to a group of one's own does not.
        let _ = fd.set_owner(None, Some(owner.1));
        all_missed.push(missed(AttributeKind::Owner, &error));
        if mode & SET_ID != 0 {
            mode &= !SET_ID;
            let why = io::Error::other("the owner could not be set, so setuid and setgid are not set either");
            all_missed.push(missed(AttributeKind::Mode, &why));
        }
    }
    let present = fd.list_xattrs().unwrap_or_default();
    if !(present.is_empty() && attributes.xattrs.is_empty()) {
        // Attributes of users need the right to write, even for the owner, who gets it until the
        // permissions are set.
        let now = now.filter(|now| attributes.kind != NodeKind::Symlink && now.mode & OWNER_WRITES == 0);
        if let Some(now) = now {
            let _ = fd.set_mode(now.mode | OWNER_WRITES);
        }
        give_xattrs(fd, attributes, &present, &mut all_missed);
    }
    // After the access control lists, which rewrite the permissions; these are then the ones that
    // the lists came with.
    if attributes.kind != NodeKind::Symlink
        && let Err(error) = fd.set_mode(mode)
    {
        all_missed.push(missed(AttributeKind::Mode, &error));
    }
    if let Err(error) = fd.set_times(SetTime::Keep, SetTime::To(attributes.mtime_ns)) {
        all_missed.push(missed(AttributeKind::ModificationTime, &error));
    }
    all_missed
}

/// Gives the node of `fd` the extended attributes, and removes all others.
fn give_xattrs(fd: &Inode, attributes: &Attributes, present: &[OsString], all_missed: &mut Vec<MissedAttribute>) {
    let wanted: BTreeSet<&[u8]> = attributes.xattrs.iter().map(|xattr| xattr.name.as_bytes()).collect();
    for name in present {
        if !wanted.contains(name.as_bytes()) && !is_set_by_system(name.as_bytes()) {
            let _ = fd.remove_xattr(name);
        }
    }
    for xattr in &attributes.xattrs {
        let name = OsStr::from_bytes(xattr.name.as_bytes());
        if fd
            .get_xattr(name)
            .is_ok_and(|value| value.as_deref() == Some(xattr.value.as_bytes()))
        {
            continue;
        }
        if let Err(error) = fd.set_xattr(name, xattr.value.as_bytes(), SetXattr::Any) {
            all_missed.push(missed(AttributeKind::Xattr(xattr.name.clone()), &error));
        }
    }
}

/// Whether a label is one that the system sets by itself, and that the other machine may not have
/// had.
fn is_set_by_system(name: &[u8]) -> bool {
    name.starts_with(b"security.")
}
