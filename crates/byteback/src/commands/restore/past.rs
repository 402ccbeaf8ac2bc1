//! `byteback restore --at`: a file as it was some time ago, from what the mount has kept.
//!
//! It is written beside its target first and put into its place when it is whole, by a rename through the mount: so that the restored file
//! is there as a whole or not at all, and what it replaces can itself be brought back.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use byteback_control::{ErrorKind, PastFile, Piece, ServiceError, TreeService};
use jiff::tz::TimeZone;
use serde::Serialize;

use super::RestoreArguments;
use crate::commands::history::daemon_of;
use crate::error::{CommandError, Result};
use crate::settings::Settings;
use crate::timestamp;
use crate::when;
use crate::wording::size_exact;

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

pub(super) fn run(arguments: &RestoreArguments, at: &str, settings: &Settings) -> Result<()> {
    let at_ns = when::past(at, timestamp::now_ns(), &TimeZone::system()).map_err(CommandError::new)?;
    let file = Path::new(&arguments.what.text);
    let target = arguments.to.as_deref().or(arguments.target.as_deref());
    if let Some(target) = target.filter(|target| target.exists() && !arguments.overwrite) {
        return Err(CommandError::new(format!("{} is there already", target.display()))
            .next("Choose another name, or replace it with --overwrite."));
    }
    let (daemon, path) = daemon_of(file, settings)?;
    let target = target.unwrap_or(file);
    let mut spool = Spool::beside(target)?;
    let failed = |error: ServiceError| {
        let message = CommandError::new(error.message);
        match error.kind {
            ErrorKind::Refused => {
                message.next(format!("What can be brought back: byteback history {}", file.display()))
            }
            _ => message,
        }
    };
    let mut spoiled: Option<io::Error> = None;
    let read = daemon.read_past(&path, at_ns, &mut |piece| {
        let written = match piece {
            Piece::Data { offset, bytes } => spool.file.write_all_at(bytes, offset),
            // The end is set below; what is not written is a hole.
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
    let past = read.map_err(failed)?;
    let settled = spool.settle(&past, target);
    settled.map_err(|error| CommandError::file("restore", target, &error))?;
    report(arguments, at_ns, &past, target, settings)
}

fn report(arguments: &RestoreArguments, at_ns: i64, past: &PastFile, target: &Path, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let file = arguments.what.text.to_string_lossy();
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
            "  That is what it was until {}.",
            timestamp::local_exact(changed_ns)
        ))?,
    }
    if past.had_other_name {
        output.say("  Nothing had this name then: it is the file that has it now, under the name of then.")?;
    }
    if arguments.to.is_none() && arguments.target.is_none() {
        output.say("  What it replaced is kept, too: 'byteback history' lists it.")?;
    }
    Ok(())
}

/// The file that is being written, removed unless it gets its name.
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
        let file = created.map_err(|error| CommandError::file("make", &path, &error))?;
        Ok(Self {
            file,
            path,
            is_settled: false,
        })
    }

    /// Gives it owner, permissions and name of what it replaces.
    fn settle(&mut self, past: &PastFile, target: &Path) -> io::Result<()> {
        self.file.set_len(past.size_bytes)?;
        let mode = match fs::symlink_metadata(target) {
            Ok(replaced) if replaced.is_file() => {
                let own = self.file.metadata()?;
                if (own.uid(), own.gid()) != (replaced.uid(), replaced.gid()) {
                    fchown(&self.file, Some(replaced.uid()), Some(replaced.gid()))?;
                }
                replaced.permissions().mode() & 0o7777
            }
            Ok(_) => {
                return Err(io::Error::other(
                    "it is not a regular file now; choose another name with -o",
                ));
            }
            // As any new file of this user.
            Err(_) => 0o666 & !umask(),
        };
        self.file.set_permissions(fs::Permissions::from_mode(mode))?;
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.is_settled = true;
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

/// The mask of this process, which nobody else is changing.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
