//! `byteback restore --at` from the mount's old bytes: a file as it was some time ago.
//!
//! The file is first written beside its target and, once complete, renamed into place through the
//! mount. So the restored file appears as a whole or not at all, and the file that it replaces can
//! itself be brought back. The write always goes through the mount, whatever path was named: a
//! write that bypasses the mount would go unnoticed, and no backup would have it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use byteback_control::{ErrorKind, PastFile, Piece, ServiceError, TreeService, TreeStatus};
use byteback_host::tree::{self, SetXattr};
use byteback_model::ByteString;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::RestoreArguments;
use crate::commands::history::daemon_of;
use crate::error::{CommandError, Result};
use crate::settings::Settings;
use crate::timestamp;
use crate::when;
use crate::wording::size_exact;

/// The extended attribute that holds a file's ACL.
const ACL_NAME: &str = "system.posix_acl_access";

#[derive(Serialize)]
struct Summary {
    file: String,
    target: String,
    at: String,
    unchanged_since: bool,
    changed_at: Option<String>,
    size: u64,
    had_other_name: bool,
}

/// Restores the file. Returns the failure, for the caller to try the server, if that moment is not
/// kept.
pub(super) fn run(arguments: &RestoreArguments, at: &str, settings: &Settings) -> Result<Option<CommandError>> {
    let at_ns = when::past(at, timestamp::now_ns(), &TimeZone::system()).map_err(CommandError::new)?;
    let file = Path::new(&arguments.what);
    let target = arguments.to.as_deref().or(arguments.target.as_deref());
    if let Some(target) = target.filter(|target| target.exists() && !arguments.overwrite) {
        return Err(CommandError::new(format!("{} already exists", target.display()))
            .next("Choose another name, or replace it with --overwrite."));
    }
    let (daemon, path) = daemon_of(file, settings)?;
    let status = daemon.status()?;
    let target = &through_the_mount(target.unwrap_or(file), &status)?;
    let mut spool = Spool::beside(target)?;
    let failed = |error: ServiceError| {
        let message = CommandError::new(error.message);
        match error.kind {
            ErrorKind::Refused => message.next(format!(
                "To list what can be restored: byteback history {}",
                file.display()
            )),
            _ => message,
        }
    };
    let mut spoiled: Option<io::Error> = None;
    let read = daemon.read_past(&path, at_ns, &mut |piece| {
        let written = match piece {
            Piece::Data { offset, bytes } => spool.file.write_all_at(bytes, offset),
            // The end is set below; unwritten ranges are holes.
            Piece::Hole(_) => Ok(()),
        };
        written.map_err(|error| {
            let text = error.to_string();
            spoiled = Some(error);
            ServiceError::new(ErrorKind::Protocol, text)
        })
    });
    if let Some(error) = spoiled {
        return Err(CommandError::file("write", &spool.path, &error));
    }
    let past = match read {
        Err(error) if error.kind == ErrorKind::Refused => return Ok(Some(failed(error))),
        read => read.map_err(failed)?,
    };
    let settled = spool.settle(&past, target);
    settled.map_err(|error| CommandError::file("restore", target, &error))?;
    report(arguments, at_ns, &past, target, settings).map(|()| None)
}

/// The path by which the mount sees a change of `target`. In two cases the given path would bypass
/// the mount: the current directory was entered before the folder was mounted, or the folder is
/// mounted elsewhere than at its own place.
pub(super) fn through_the_mount(target: &Path, status: &TreeStatus) -> Result<PathBuf> {
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|error| {
        CommandError::file("find", parent, &error)
            .next("Create that directory first, or write the file elsewhere: -o FILE")
    })?;
    let path = |bytes: &ByteString| PathBuf::from(OsStr::from_bytes(bytes.as_bytes()));
    let seen = status.mounted_at.as_ref().map(path).and_then(|mounted_at| {
        let below = parent.strip_prefix(path(&status.path)).ok()?;
        (!parent.starts_with(&mounted_at)).then(|| mounted_at.join(below))
    });
    Ok(seen.unwrap_or(parent).join(target.file_name().unwrap_or_default()))
}

fn report(arguments: &RestoreArguments, at_ns: i64, past: &PastFile, target: &Path, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let file = arguments.what.to_string_lossy();
    if output.json {
        let summary = Summary {
            file: file.into_owned(),
            target: target.display().to_string(),
            at: timestamp::rfc3339(at_ns),
            unchanged_since: past.moment_ns.is_none(),
            changed_at: past.moment_ns.map(timestamp::rfc3339),
            size: past.size_bytes,
            had_other_name: past.had_other_name,
        };
        return output.object("past_file", &summary);
    }
    let size = size_exact(past.size_bytes, output.verbosity > 0);
    output.say(format!(
        "{file} as of {} restored to {} ({size}).",
        timestamp::local(at_ns),
        target.display()
    ))?;
    match past.moment_ns {
        None => output.say("  It has not changed since then.")?,
        Some(changed_ns) => output.say(format!(
            "  This is what it was until {}.",
            timestamp::local_exact(changed_ns)
        ))?,
    }
    if past.had_other_name {
        output.say("  No file had this name then: this is the file that has it now, which had another name.")?;
    }
    if arguments.to.is_none() && arguments.target.is_none() {
        output.say("  What this replaced is kept as well: 'byteback history' lists it.")?;
    }
    Ok(())
}

/// The file that is being written; it is removed unless it gets its name.
struct Spool {
    file: File,
    path: PathBuf,
    is_settled: bool,
}

impl Spool {
    fn beside(target: &Path) -> Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A name has at most 255 bytes.
        let name: String = name.chars().take(50).collect();
        let path = target.with_file_name(format!(".{name}.{}.byteback", std::process::id()));
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = created.map_err(|error| CommandError::file("create", &path, &error))?;
        Ok(Self {
            file,
            path,
            is_settled: false,
        })
    }

    /// Sets the owner and permissions of the replaced file, and takes its name.
    fn settle(&mut self, past: &PastFile, target: &Path) -> io::Result<()> {
        self.file.set_len(past.size_bytes)?;
        let mode = match fs::symlink_metadata(target) {
            Ok(replaced) if replaced.is_file() => {
                let own = self.file.metadata()?;
                if (own.uid(), own.gid()) != (replaced.uid(), replaced.gid()) {
                    fchown(&self.file, Some(replaced.uid()), Some(replaced.gid()))?;
                }
                // Without the ACL, the group would get the rights of the ACL's mask.
                self.take_xattrs_of(target)?;
                // The writer of the old content is unknown: it does not get the set-id bits that
                // the present file was given.
                replaced.permissions().mode() & 0o1777
            }
            Ok(_) => {
                return Err(io::Error::other("not a regular file; choose another name with -o"));
            }
            Err(_) => self.mode_as_removed(past)?,
        };
        self.file.set_permissions(fs::Permissions::from_mode(mode))?;
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.is_settled = true;
        Ok(())
    }

    /// The permissions for a file that was removed, once its owner is set again. Only for its owner
    /// if they are not known, or the owner cannot be set: the file may have been private.
    fn mode_as_removed(&self, past: &PastFile) -> io::Result<u32> {
        let Some((mode, uid, gid)) = past.rights else {
            return Ok(0o600);
        };
        let own = self.file.metadata()?;
        if (own.uid(), own.gid()) != (uid, gid) && fchown(&self.file, Some(uid), Some(gid)).is_err() {
            return Ok(0o600);
        }
        // An ACL inherited from the directory: the users in it could not read the old file.
        let has_acl = match tree::get_xattr(&self.file, ACL_NAME.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => false,
            acl => acl?.is_some(),
        };
        if has_acl {
            tree::remove_xattr(&self.file, ACL_NAME.as_ref())?;
        }
        // Set-id bits are not restored: only people grant them.
        Ok(mode & 0o1777)
    }

    /// Copies the ACL and the `user.` attributes of the replaced file, and removes an ACL inherited
    /// from the directory. Attributes under `security.` are about the replaced content and are not
    /// copied.
    fn take_xattrs_of(&self, target: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Ok(());
        };
        let replaced = tree::open_path_at(File::open(parent)?, name)?;
        let wanted = match tree::list_xattrs(&replaced) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
            names => names?,
        };
        for name in tree::list_xattrs(&self.file)? {
            if name == ACL_NAME && !wanted.contains(&name) {
                tree::remove_xattr(&self.file, &name)?;
            }
        }
        for name in wanted {
            if (name == ACL_NAME || name.as_bytes().starts_with(b"user."))
                && let Some(value) = tree::get_xattr(&replaced, &name)?
            {
                tree::set_xattr(&self.file, &name, &value, SetXattr::Any)?;
            }
        }
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if !self.is_settled {
            let _ = fs::remove_file(&self.path);
        }
    }
}
