//! `byteback volume extract`: copies what can be read of a volume into a directory, without
//! mounting it, and without writing to it.
//!
//! This is for a card that dies: it works where the volume can no longer be written because its
//! tables are damaged, and where a repair would write to a device that should be left alone.
//! Nothing is made up: unreadable parts become holes and are reported, names without an inode are
//! reported.
//!
//! Order: contents, names, and last, from the bottom up, the attributes of directories, because
//! each name that is made in a directory changes its times.
//!
//! Out of scope: finding files that no name leads to (`volume check --repair` does).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_backup::{Event, Monitor, Phase};
use byteback_host::block::{Access, BLOCK_LEN_BYTES, RealBlockDevice};
use byteback_host::tree::{self, SetTime, SetXattr};
use byteback_model::ByteString;
use byteback_mount::volume_tree::FILES;
use byteback_volume::{Attributes, Listed, OpenOptions, Volume, VolumeError};
use clap::Args;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use serde::Serialize;

use super::{device_error, said, volume_error};
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::wording::{counted, size};

/// Bytes read at once.
const PIECE_LEN_BYTES: usize = 1 << 20;

/// Entries of a directory listed at once.
const LISTED_AT_ONCE: usize = 1024;

#[derive(Args, Debug)]
#[command(
    after_help = "The volume is only read. Parts of files that cannot be read are reported, and become holes in
the copy; exit code 3 means that something is missing. Owners are kept if you are root."
)]
pub(super) struct Extract {
    /// The file or device, which must not be mounted
    #[arg(value_name = "FILE_OR_DEVICE")]
    place: PathBuf,
    /// A directory that does not exist yet, or is empty
    #[arg(value_name = "DIRECTORY")]
    target: PathBuf,
}

#[derive(Serialize)]
struct Extracted {
    path: ByteString,
    target: ByteString,
    files: u64,
    directories: u64,
    bytes: u64,
    incomplete: u64,
}

pub(super) fn run(arguments: &Extract, settings: &Settings) -> Result<()> {
    let place = &arguments.place;
    let device = RealBlockDevice::open(place, Access::Read).map_err(|error| device_error(&error))?;
    let reading = OpenOptions {
        is_writable: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(Arc::new(device), &reading).map_err(|error| volume_error(place, &error))?;
    let root = match volume.look_up(volume.root(), FILES.as_bytes()) {
        Ok(files) => files.ino,
        // A volume made by other means has its files in its root.
        Err(VolumeError::NotFound) => volume.root(),
        Err(error) => return Err(volume_error(place, &error)),
    };
    make_target(&arguments.target)?;
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "extract", Some(interrupt));
    progress.event(Event::Phase(Phase::Restoring));
    let mut extraction = Extraction {
        volume: &volume,
        target: &arguments.target,
        progress: &progress,
        first_names: BTreeMap::new(),
        counts: Counts::default(),
    };
    let done = extraction.tree(root);
    progress.finish();
    let counts = extraction.counts;
    if !done {
        return Err(CommandError::with_exit(Exit::Interrupted, "interrupted")
            .next("What was copied so far stays; begin again with an empty directory."));
    }
    let extracted = Extracted {
        path: said(place),
        target: said(&arguments.target),
        files: counts.files,
        directories: counts.directories,
        bytes: counts.bytes,
        incomplete: counts.incomplete,
    };
    match settings.output.json {
        true => settings.output.object("summary", &extracted)?,
        false => settings.output.say(format!(
            "Copied {} in {}, {}, to {}.{}",
            counted(counts.files, "file", "files"),
            counted(counts.directories, "directory", "directories"),
            size(counts.bytes),
            arguments.target.display(),
            match counts.incomplete {
                0 => String::new(),
                count => format!(
                    " {} not complete, see above.",
                    counted(count, "of them is", "of them are")
                ),
            }
        ))?,
    }
    match counts.incomplete {
        0 => Ok(()),
        _ => Err(CommandError::Reported(Exit::SourceUnreadable)),
    }
}

/// Makes the directory, which no other user can enter until everything is in it.
fn make_target(target: &Path) -> Result<()> {
    match rustix::fs::mkdir(target, Mode::RWXU) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(CommandError::file("create", target, &io::Error::from(error))),
    }
    let mut entries = std::fs::read_dir(target).map_err(|error| CommandError::file("list", target, &error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(CommandError::new(format!("{} is not empty", target.display()))
            .next("Name a directory that does not exist yet: nothing is overwritten.")),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    files: u64,
    directories: u64,
    bytes: u64,
    incomplete: u64,
}

/// The work of one extraction; see the module.
struct Extraction<'a> {
    volume: &'a Volume,
    target: &'a Path,
    progress: &'a Progress,
    /// Of inodes with several names, the name that was made first.
    first_names: BTreeMap<u32, PathBuf>,
    counts: Counts,
}

/// The error is the reason that an entry is missing.
type Made<T> = std::result::Result<T, Box<dyn std::error::Error>>;

impl Extraction<'_> {
    /// Copies the whole tree; false if it was interrupted.
    fn tree(&mut self, root: u32) -> bool {
        let mut seen = BTreeSet::from([root]);
        let mut to_list = vec![(root, PathBuf::new())];
        let mut directories = Vec::new();
        while let Some((ino, path)) = to_list.pop() {
            let below = self.directory(ino, &path);
            // A damaged directory may lead to itself.
            to_list.extend(below.into_iter().filter(|(ino, _)| seen.insert(*ino)));
            directories.push((ino, path));
            if self.progress.is_cancelled() {
                return false;
            }
        }
        self.progress.event(Event::Phase(Phase::Finishing));
        for (ino, path) in directories.into_iter().rev() {
            let done = self.volume.attributes(ino).map_err(Into::into).and_then(|attributes| {
                let fd = open_directory(&self.target.join(&path))?;
                self.set_attributes(&path, ino, fd.as_fd(), &attributes)
            });
            if let Err(error) = done {
                self.incomplete(&path, &error.to_string());
            }
        }
        true
    }

    fn incomplete(&mut self, path: &Path, reason: &str) {
        self.counts.incomplete += 1;
        let path = &said(if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        });
        self.progress.event(Event::FileFailed { path, reason });
    }

    /// Makes the entries of a directory; returns the directories among them.
    fn directory(&mut self, ino: u32, path: &Path) -> Vec<(u32, PathBuf)> {
        self.counts.directories += 1;
        let mut below = Vec::new();
        let fd = match open_directory(&self.target.join(path)) {
            Ok(fd) => fd,
            Err(error) => {
                self.incomplete(path, &error.to_string());
                return below;
            }
        };
        let mut from = 0;
        loop {
            let listed = match self.volume.list(ino, from, LISTED_AT_ONCE) {
                Ok(listed) => listed,
                Err(error) => {
                    self.incomplete(path, &format!("names in it are lost: {error}"));
                    return below;
                }
            };
            let Some(last) = listed.last() else { return below };
            from = last.next;
            for entry in listed {
                let at = path.join(OsStr::from_bytes(&entry.name));
                match self.entry(&fd, &at, &entry) {
                    Ok(is_directory) => below.extend(is_directory.then_some((entry.ino, at))),
                    Err(error) => self.incomplete(&at, &error.to_string()),
                }
                if self.progress.is_cancelled() {
                    return below;
                }
            }
        }
    }

    /// Makes one entry; returns whether it is a directory.
    fn entry(&mut self, dir: &OwnedFd, path: &Path, entry: &Listed) -> Made<bool> {
        let name = tree::check_component(OsStr::from_bytes(&entry.name))?;
        let attributes = self.volume.attributes(entry.ino)?;
        let kind = FileType::from_raw_mode(attributes.mode);
        if kind == FileType::Directory {
            rustix::fs::mkdirat(dir, name, Mode::RWXU)?;
            return Ok(true);
        }
        if let Some(first) = self.first_names.get(&entry.ino) {
            rustix::fs::linkat(rustix::fs::CWD, first, dir, name, AtFlags::empty())?;
            return Ok(false);
        }
        match kind {
            FileType::RegularFile => self.file(dir, path, name, &attributes)?,
            FileType::Symlink => {
                let target = self.volume.read_symlink(entry.ino)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), dir, name)?;
            }
            _ => {
                let device = attributes.device.into();
                rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device)?;
            }
        }
        self.counts.files += 1;
        if attributes.links > 1 {
            self.first_names.insert(entry.ino, self.target.join(path));
        }
        let made = tree::open_path_at(dir, name)?;
        self.set_attributes(path, entry.ino, made.as_fd(), &attributes)?;
        self.progress.event(Event::FileDone { path: None });
        Ok(false)
    }

    fn file(&mut self, dir: &OwnedFd, path: &Path, name: &OsStr, attributes: &Attributes) -> Made<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.set_len(attributes.len_bytes)?;
        let lost_bytes = self.content(&file, attributes.ino, attributes.len_bytes)?;
        if lost_bytes > 0 {
            let reason = format!("{} cannot be read and became holes", size(lost_bytes));
            self.incomplete(path, &reason);
        }
        Ok(())
    }

    /// Copies all but the holes; returns the number of unreadable bytes.
    fn content(&mut self, file: &File, ino: u32, len_bytes: u64) -> Made<u64> {
        let mut buffer = vec![0; PIECE_LEN_BYTES];
        let (mut at, mut lost_bytes) = (0, 0);
        while at < len_bytes && !self.progress.is_cancelled() {
            // Where addresses are lost, holes are unknown: the range is read, page by page.
            let Some(start) = self.volume.seek(ino, at, true).unwrap_or(Some(at)) else {
                break;
            };
            let end = self.volume.seek(ino, start, false).ok().flatten();
            // A hole that begins here was not skipped, because the addresses behind it are lost.
            let end = end.filter(|end| *end > start);
            let piece = start - start % BLOCK_LEN_BYTES as u64 + PIECE_LEN_BYTES as u64;
            let end = end.unwrap_or(len_bytes).min(piece).min(len_bytes);
            lost_bytes += self.piece(file, ino, start..end, &mut buffer)?;
            self.progress.event(Event::BytesRead(end - start));
            at = end;
        }
        Ok(lost_bytes)
    }

    /// Copies a range no longer than the buffer: at once, or else as much of it as can be read.
    fn piece(&mut self, file: &File, ino: u32, range: std::ops::Range<u64>, buffer: &mut [u8]) -> Made<u64> {
        let len = usize::try_from(range.end - range.start)?;
        let wanted = buffer.get_mut(..len).unwrap_or_default();
        match self.volume.read(ino, range.start, wanted) {
            Ok(count) => {
                let found = wanted.get(..count).unwrap_or_default();
                // No zeros are written, since a long hole whose end is unknown is read as well.
                if found.iter().any(|byte| *byte != 0) {
                    file.write_all_at(found, range.start)?;
                }
                self.counts.bytes += count as u64;
                Ok(0)
            }
            Err(error) if len <= BLOCK_LEN_BYTES => match error.is_loss() {
                true => Ok(len as u64),
                false => Err(error.into()),
            },
            Err(_) => {
                let mut lost_bytes = 0;
                for start in range.clone().step_by(BLOCK_LEN_BYTES) {
                    let end = range.end.min(start + BLOCK_LEN_BYTES as u64);
                    lost_bytes += self.piece(file, ino, start..end, buffer)?;
                }
                Ok(lost_bytes)
            }
        }
    }

    /// Sets the attributes in the necessary order. Failures are reported, and the rest is still
    /// set.
    fn set_attributes(&mut self, path: &Path, ino: u32, fd: impl AsFd, attributes: &Attributes) -> Made<()> {
        let is_symlink = FileType::from_raw_mode(attributes.mode) == FileType::Symlink;
        let mut failed = Vec::new();
        if rustix::process::geteuid().is_root() {
            let owner = tree::set_owner(&fd, Some(attributes.uid), Some(attributes.gid));
            failed.extend(owner.err().map(|error| format!("owner: {error}")));
        }
        if !is_symlink {
            failed.extend(
                tree::set_mode(&fd, attributes.mode)
                    .err()
                    .map(|error| error.to_string()),
            );
        }
        for name in self.volume.xattr_names(ino)? {
            let value = self.volume.xattr(ino, &name)?;
            let name = OsStr::from_bytes(&name);
            if let Err(error) = tree::set_xattr(&fd, name, &value, SetXattr::Any) {
                failed.push(format!("attribute {}: {error}", name.display()));
            }
        }
        let ns = |time: byteback_volume::format::Time| {
            SetTime::To(i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds))
        };
        let times = tree::set_times(&fd, ns(attributes.accessed), ns(attributes.modified));
        failed.extend(times.err().map(|error| format!("times: {error}")));
        match failed.is_empty() {
            true => Ok(()),
            false => {
                self.incomplete(path, &format!("attributes not restored: {}", failed.join("; ")));
                Ok(())
            }
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
