//! Named cuts of a mounted tree, for the control socket.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use byteback_control::{ErrorKind, NamedCut, Result, ServiceError};
use byteback_model::ByteString;
use byteback_mount::Mount;
use byteback_mount::cuts::{CutError, CutStatus, Cuts};
use byteback_oplog::Cut;

fn cuts(mount: &Mount) -> Result<&Cuts> {
    let cuts = mount.cuts().map(AsRef::as_ref);
    cuts.ok_or_else(|| ServiceError::new(ErrorKind::Refused, "this mount has no cuts"))
}

fn failed(error: &CutError) -> ServiceError {
    let kind = match error {
        CutError::Flush(_) | CutError::Log(_) => ErrorKind::Log,
        _ => ErrorKind::Refused,
    };
    ServiceError::new(kind, error.to_string())
}

fn to_service(point: &Path, cut: CutStatus) -> NamedCut {
    let path = point.join(".byteback").join("cut").join(&cut.name);
    NamedCut {
        name: ByteString::from(cut.name.into_vec()),
        path: ByteString::from(path.into_os_string().into_vec()),
        epoch: cut.epoch,
        opened_at_ns: cut.opened_at_ns,
        kept_bytes: cut.kept_bytes,
        is_ended: cut.is_ended,
        lost: cut.lost,
    }
}

pub(super) fn open(mount: &Mount, name: &ByteString) -> Result<NamedCut> {
    let name = OsStr::from_bytes(name.as_bytes());
    let cut = cuts(mount)?.open(name).map_err(|error| failed(&error))?;
    Ok(to_service(mount.point(), cut))
}

/// The names and changes of an open cut.
pub(super) fn cut_of(mount: &Mount, name: &ByteString) -> Result<Cut> {
    let name = OsStr::from_bytes(name.as_bytes());
    cuts(mount)?.cut_of(name).map_err(|error| failed(&error))
}

pub(super) fn close(mount: &Mount, name: &ByteString) -> Result<()> {
    let name = OsString::from_vec(name.as_bytes().to_vec());
    cuts(mount)?.close(&name).map_err(|error| failed(&error))
}

pub(super) fn list(mount: &Mount) -> Vec<NamedCut> {
    let cuts = mount.cuts().map_or_else(Vec::new, |cuts| cuts.list());
    cuts.into_iter().map(|cut| to_service(mount.point(), cut)).collect()
}
