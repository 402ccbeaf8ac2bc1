//! The system's side of mounting: `mount(2)` for root, `fusermount3` for everybody else, and
//! finding our mount.
//!
//! A mount is known by its id in `/proc/self/fdinfo`, which tells without asking the file system: a
//! dead mount would not answer. Nothing is unmounted whose id is not ours.
//!
//! The mount hides neither devices nor set-id programs unless the place below already does (an
//! ordinary user's helper always hides both).

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount as mount_call, unmount as unmount_call};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use super::{MountError, Unmount};
use crate::mount_table::{SOURCE_PREFIX, TYPE, unescape};

const DEVICE: &str = "/dev/fuse";

/// Where the helper may be; the environment is not asked.
const HELPERS: [&str; 6] = [
    "/usr/bin/fusermount3",
    "/bin/fusermount3",
    "/usr/local/bin/fusermount3",
    "/run/wrappers/bin/fusermount3",
    "/usr/bin/fusermount",
    "/bin/fusermount",
];

/// The id of a mount, as in `/proc/self/mountinfo`. Ids are used again after unmounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId(pub(super) u64);

/// A mount of ours.
#[derive(Clone, Debug)]
pub(super) struct Mounted {
    pub(super) point: PathBuf,
    pub(super) id: MountId,
}

/// Why a mount is still there.
#[derive(Debug)]
pub(super) enum NotUnmounted {
    Busy,
    Covered,
    Gone,
    Refused(String),
}

pub(super) fn helper() -> Option<&'static Path> {
    HELPERS.iter().map(Path::new).find(|path| path.exists())
}

pub(super) fn can_open_device() -> bool {
    openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

fn source(directory: &Path) -> OsString {
    let mut source = OsString::from(SOURCE_PREFIX);
    source.push(directory);
    source
}

/// Mounts `directory` on `point`. Returns the connection.
pub(super) fn mount(directory: &Path, point: &Path) -> Result<(OwnedFd, Mounted), MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoFuse);
    }
    let before = mount_id(point).ok();
    let device = if rustix::process::geteuid().is_root() {
        mount_as_root(directory, point)?
    } else {
        mount_with_helper(directory, point)?
    };
    let id = mount_id(point)
        .ok()
        .filter(|id| Some(*id) != before)
        .ok_or_else(|| MountError::Refused {
            path: point.to_owned(),
            reason: "the mount did not appear; was it unmounted at once, or is this another mount namespace?".into(),
        })?;
    let mounted = Mounted {
        point: point.to_owned(),
        id,
    };
    Ok((device, mounted))
}

fn mount_as_root(directory: &Path, point: &Path) -> Result<OwnedFd, MountError> {
    let refused = |reason: String| MountError::Refused {
        path: point.to_owned(),
        reason,
    };
    let device = openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| refused(format!("cannot open {DEVICE}: {errno}")))?;
    let below = statvfs(point).map_err(|errno| refused(errno.to_string()))?.f_flag;
    let mut flags = MountFlags::empty();
    for (hidden, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    ] {
        if below.contains(hidden) {
            flags |= flag;
        }
    }
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options).map_err(|error| refused(error.to_string()))?;
    mount_call(source(directory), point, TYPE, flags, options.as_c_str()).map_err(|errno| match errno {
        Errno::NODEV => MountError::NoFuse,
        Errno::PERM => refused("permission denied: root needs CAP_SYS_ADMIN to mount (is this a container?)".into()),
        errno => refused(errno.to_string()),
    })?;
    Ok(device)
}

fn mount_with_helper(directory: &Path, point: &Path) -> Result<OwnedFd, MountError> {
    let refused = |reason: String| MountError::Refused {
        path: point.to_owned(),
        reason,
    };
    let system = |errno: Errno| refused(errno.to_string());
    let helper = helper().ok_or(MountError::NoHelper)?;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(system)?;
    let mut options = OsString::from("default_permissions,subtype=byteback,fsname=");
    options.push(escape_option(&source(directory)));
    // The helper answers with the connection over a socket, which becomes its standard input.
    let child = Command::new(helper)
        .env("_FUSE_COMMFD", "0")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(point)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(format!("cannot run {}: {error}", helper.display())))?;
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|error| refused(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refused(format!("{} says: {}", helper.display(), said.trim())));
    }
    received
        .map_err(|error| refused(error.to_string()))?
        .ok_or_else(|| refused(format!("{} did not pass on a connection", helper.display())))
}

/// A comma would begin the next option.
fn escape_option(value: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsString::from_vec(escaped)
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [io::IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

/// The id of the topmost mount at `path`, told without asking its file system.
pub(super) fn mount_id(path: &Path) -> io::Result<MountId> {
    let fd = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    mount_id_of(&fd)
}

fn mount_id_of(fd: impl AsFd) -> io::Result<MountId> {
    let mut info = String::new();
    std::fs::File::open(format!("/proc/thread-self/fdinfo/{}", fd.as_fd().as_raw_fd()))?.read_to_string(&mut info)?;
    info.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .map(MountId)
        .ok_or_else(|| io::Error::other("/proc/thread-self/fdinfo has no mount ID"))
}

/// The type of the topmost mount exactly at `path`, if something is mounted there.
fn type_at(path: &Path) -> Option<String> {
    let id = mount_id(path).ok()?;
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    for line in table.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        let number = fields
            .next()
            .and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
        if number != Some(id.0) || fields.nth(3).map(unescape) != Some(path.as_os_str().as_bytes().to_vec()) {
            continue;
        }
        // The optional fields end with a dash; the type follows.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        return String::from_utf8(kind.to_vec()).ok();
    }
    None
}

/// Whether a table of mounts lists the mount `id`, at `point` if that is given: the kernel soon
/// gives the number of a mount that is gone to another one.
fn is_listed(table: &[u8], id: MountId, point: Option<&Path>) -> bool {
    let id = id.0.to_string();
    table.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let has_id = fields.next() == Some(id.as_bytes());
        let is_at = |point: &Path| {
            fields
                .nth(3)
                .is_some_and(|at| unescape(at) == point.as_os_str().as_bytes())
        };
        has_id && point.is_none_or(is_at)
    })
}

/// Whether a Byteback mount is at `path` (it answers; dead ones were removed before).
pub(super) fn is_live(path: &Path) -> bool {
    type_at(path).as_deref() == Some(TYPE)
}

/// Removes the mount of a daemon that died, if one is at `path`.
pub(super) fn remove_leftover(path: &Path) -> Result<(), MountError> {
    // Several may lie on each other.
    for _ in 0..16 {
        // Attributes may be answered from memory; the space always asks the daemon.
        let dead = matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED));
        if !dead {
            return Ok(());
        }
        // A dead mount point cannot be canonicalised, but its parent can.
        let full = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let parent = if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                };
                parent.canonicalize().map(|parent| parent.join(name))
            }
            _ => Ok(path.to_owned()),
        }
        .map_err(|source| MountError::Directory {
            path: path.to_owned(),
            source,
        })?;
        if type_at(&full).as_deref() != Some(TYPE) {
            return Err(MountError::Refused {
                path: full,
                reason: "a dead mount of another program is there; unmount it first".into(),
            });
        }
        let id = mount_id(&full).map_err(|source| MountError::Directory {
            path: full.clone(),
            source,
        })?;
        let leftover = Mounted { point: full, id };
        if let Err(NotUnmounted::Refused(reason)) = leftover.unmount(Unmount::Detach) {
            return Err(MountError::NotUnmounted {
                path: leftover.point,
                reason,
            });
        }
    }
    Ok(())
}

impl Mounted {
    /// The root of the mount, as an `O_PATH` descriptor. It keeps the mount busy: drop it soon.
    pub(super) fn open_root(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, &self.point, flags, Mode::empty())?;
        if mount_id_of(&root)? != self.id {
            return Err(io::Error::other("something else is mounted over the mount point"));
        }
        Ok(root)
    }

    pub(super) fn unmount(&self, how: Unmount) -> Result<(), NotUnmounted> {
        match mount_id(&self.point) {
            Ok(id) if id == self.id => {}
            // The mount may be gone, or lie below another one.
            Ok(_) if self.is_listed_at(Some(&self.point)) => return Err(NotUnmounted::Covered),
            // Its directory may have been moved.
            Err(error) if self.is_listed_at(None) => return Err(NotUnmounted::Refused(error.to_string())),
            _ => return Err(NotUnmounted::Gone),
        }
        if rustix::process::geteuid().is_root() {
            let mut flags = UnmountFlags::NOFOLLOW;
            if how == Unmount::Detach {
                flags |= UnmountFlags::DETACH;
            }
            return match unmount_call(&self.point, flags) {
                Ok(()) => Ok(()),
                Err(Errno::BUSY) => Err(NotUnmounted::Busy),
                Err(errno) => Err(NotUnmounted::Refused(errno.to_string())),
            };
        }
        let helper = helper().ok_or_else(|| NotUnmounted::Refused("fusermount3 is missing".into()))?;
        let mut command = Command::new(helper);
        command.arg("-u");
        if how == Unmount::Detach {
            command.arg("-z");
        }
        let output = command
            .arg("--")
            .arg(&self.point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| NotUnmounted::Refused(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if said.contains("busy") {
            return Err(NotUnmounted::Busy);
        }
        Err(NotUnmounted::Refused(said))
    }

    fn is_listed_at(&self, point: Option<&Path>) -> bool {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        is_listed(&table, self.id, point)
    }
}

#[cfg(test)]
mod tests;
