//! Names in the target: temporary ones, nodes that stand in the way, and renaming into place.
//!
//! A temporary name holds a number that was drawn for this restore: no snapshot can hold that name,
//! not even one of a directory in which an earlier restore was interrupted.

use crate::tree_reader::join_path;
use byteback_host::random::Randomness;
use byteback_host::tree::{self, Descent, InodeFlags};
use byteback_model::NodeKind;
use rustix::fs::{AtFlags, Mode, RenameFlags};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The owner may list a directory, change it and go through it.
const OWNER_ALL: u32 = 0o700;

const TEMPORARY_PREFIX: &str = ".byteback-restore-";

/// A name in a directory below the target.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Path of the directory.
    pub(super) dir: Vec<u8>,
    pub(super) name: OsString,
}

impl Place {
    pub(super) fn path(&self) -> Vec<u8> {
        join_path(&self.dir, self.name.as_bytes())
    }
}

/// The temporary names of one restore.
pub(super) struct TemporaryNames {
    restore: u64,
    next: AtomicU64,
}

impl TemporaryNames {
    pub(super) fn draw(randomness: &dyn Randomness) -> io::Result<Self> {
        Ok(Self {
            restore: randomness.next_u64()?,
            next: AtomicU64::new(0),
        })
    }

    /// An unused name.
    pub(super) fn next(&self) -> OsString {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        OsString::from(format!("{TEMPORARY_PREFIX}{:016x}{number:016x}", self.restore))
    }

    /// Whether this restore may be at work under that name.
    pub(super) fn is_ours(&self, name: &OsStr) -> bool {
        is_temporary(name)
            && name
                .as_bytes()
                .starts_with(format!("{TEMPORARY_PREFIX}{:016x}", self.restore).as_bytes())
    }
}

/// Whether a name is a temporary one of a restore, this one or an earlier one.
fn is_temporary(name: &OsStr) -> bool {
    let rest = name.as_bytes().strip_prefix(TEMPORARY_PREFIX.as_bytes());
    rest.is_some_and(|id| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit))
}

/// Removes the leftovers of interrupted restores in a directory, before anything of the snapshot is
/// put there.
pub(super) fn remove_leftovers(dir: impl AsFd) -> io::Result<()> {
    for entry in tree::read_dir(&dir, 0)? {
        let entry = entry?;
        if is_temporary(&entry.name) && entry.kind_hint != Some(NodeKind::Directory) {
            match rustix::fs::unlinkat(&dir, entry.name.as_os_str(), AtFlags::empty()) {
                // A directory with such a name is not ours.
                Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

/// The means that a restore may use against names that stand in its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Force {
    /// Whether nodes may be replaced and removed.
    pub(super) overwrite: bool,
    /// Whether flags that forbid this may be removed.
    pub(super) flags: bool,
}

impl Force {
    /// Removes flags that forbid changes from the node of a name, if this is asked for.
    ///
    /// # Errors
    /// If the user lacks the right to.
    pub(super) fn unprotect(self, dir: impl AsFd, name: &OsStr) -> io::Result<()> {
        if self.flags
            && let Ok(named) = tree::open_path_at(dir, name)
        {
            unprotect(named)?;
        }
        Ok(())
    }
}

/// Removes flags that forbid changes; returns the former ones.
pub(super) fn unprotect(named: impl AsFd) -> io::Result<InodeFlags> {
    match tree::inode_flags(&named)? {
        InodeFlags::NONE => Ok(InodeFlags::NONE),
        _ => tree::set_inode_flags(&named, InodeFlags::NONE),
    }
}

/// Makes sure that a node other than a directory can take this name.
pub(super) fn clear_way(dir: impl AsFd, name: &OsStr, force: Force) -> io::Result<()> {
    match tree::stat_at(&dir, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) if !force.overwrite => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something else has appeared under this name; allow overwriting to replace it",
        )),
        Ok(there) if there.kind == NodeKind::Directory => remove_all(dir, name, force),
        // Replaced by the rename.
        Ok(_) => force.unprotect(&dir, name),
    }
}

/// Lets an ordinary user work in a directory of their own that its permissions close even to them;
/// returns its former permissions, if they were changed. Root needs nothing of the kind.
pub(super) fn open_up(dir: impl AsFd) -> io::Result<Option<u32>> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(None);
    }
    let stat = tree::stat_fd(&dir)?;
    if stat.kind != NodeKind::Directory || stat.uid != user.as_raw() || stat.mode & OWNER_ALL == OWNER_ALL {
        return Ok(None);
    }
    tree::set_mode(&dir, stat.mode | OWNER_ALL)?;
    Ok(Some(stat.mode))
}

/// Makes a directory that only we can use until its attributes are set; an existing one stays.
pub(super) fn make_directory(dir: impl AsFd, name: &OsStr, force: Force) -> io::Result<()> {
    match rustix::fs::mkdirat(dir.as_fd(), name, Mode::RWXU) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    if tree::stat_at(&dir, name)?.kind == NodeKind::Directory {
        return Ok(());
    }
    clear_way(&dir, name, force)?;
    rustix::fs::unlinkat(dir.as_fd(), name, AtFlags::empty())?;
    Ok(rustix::fs::mkdirat(dir, name, Mode::RWXU)?)
}

/// Renames a node from its temporary name to its own if nothing has that name yet; returns whether
/// it did. One call of the system in place of three, where the file system knows it.
pub(super) fn rename_to_free_name(dir: impl AsFd, temporary: &OsStr, name: &OsStr) -> bool {
    rustix::fs::renameat_with(dir.as_fd(), temporary, dir.as_fd(), name, RenameFlags::NOREPLACE).is_ok()
}

/// Renames a node from its temporary name to its own; the caller has cleared the way.
pub(super) fn rename_into_place(dir: impl AsFd, temporary: &OsStr, name: &OsStr) -> io::Result<()> {
    rustix::fs::renameat(dir.as_fd(), temporary, dir.as_fd(), name)?;
    // If both are names of one inode, `rename` keeps both; the temporary one is then removed.
    match rustix::fs::unlinkat(dir.as_fd(), temporary, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether `unlink` failed because the name stands for a directory. `EPERM` is returned for
/// immutable files as well.
fn is_refused_for_directories(dir: impl AsFd, name: &OsStr, errno: rustix::io::Errno) -> bool {
    match errno {
        rustix::io::Errno::ISDIR => true,
        rustix::io::Errno::PERM => tree::stat_at(dir, name).is_ok_and(|stat| stat.kind == NodeKind::Directory),
        _ => false,
    }
}

/// Removes a name, unless it is a directory's. An inode that has other names keeps its flags, as
/// has one that cannot be removed.
fn remove_name(dir: impl AsFd, name: &OsStr, force: Force) -> Result<(), rustix::io::Errno> {
    let remove = || rustix::fs::unlinkat(&dir, name, AtFlags::empty());
    let Some(named) = force.flags.then(|| tree::open_path_at(&dir, name).ok()).flatten() else {
        return remove();
    };
    let had =
        unprotect(&named).map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))?;
    let removed = remove();
    let is_there = tree::stat_fd(&named).is_ok_and(|stat| stat.nlink > 0);
    if !had.is_empty() && is_there {
        // A failure here changes nothing about the removal, whose result is the one to report.
        let _ = tree::set_inode_flags(&named, had);
    }
    removed
}

/// Removes a name and all that is below it; symlinks are removed, never followed.
pub(super) fn remove_all(dir: impl AsFd, name: &OsStr, force: Force) -> io::Result<()> {
    match remove_name(&dir, tree::check_component(name)?, force) {
        Ok(()) => return Ok(()),
        Err(errno) if is_refused_for_directories(&dir, name, errno) => {}
        Err(errno) => return Err(errno.into()),
    }
    // The deepest directory is emptied first.
    let mut way = Descent::new(&dir)?;
    let mut path = name.as_bytes().to_vec();
    loop {
        let at = way.open(&path)?;
        // The directory goes with all its entries.
        open_up(&at)?;
        if force.flags {
            unprotect(&at)?;
        }
        let mut deeper = None;
        for entry in tree::read_dir(&at, 0)? {
            let entry = entry?;
            match remove_name(&at, &entry.name, force) {
                Ok(()) => {}
                Err(errno) if is_refused_for_directories(&at, &entry.name, errno) => {
                    deeper = Some(join_path(&path, entry.name.as_bytes()));
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        if let Some(deeper) = deeper {
            path = deeper;
            continue;
        }
        drop(at);
        let end = path.iter().rposition(|byte| *byte == b'/');
        let emptied = path.split_off(end.unwrap_or(0));
        let emptied = emptied.strip_prefix(b"/").unwrap_or(&emptied);
        let above = way.open(&path)?;
        force.unprotect(&above, OsStr::from_bytes(emptied))?;
        rustix::fs::unlinkat(&above, OsStr::from_bytes(emptied), AtFlags::REMOVEDIR)?;
        if end.is_none() {
            return Ok(());
        }
    }
}
