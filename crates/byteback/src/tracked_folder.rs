//! Finding the folder that a command is about, and the process that owns it.
//!
//! A folder is named by its path, by the place where it is mounted (`mount --at`), or by the
//! current directory within it. It is then accessed through its daemon if one answers, and
//! otherwise opened here; the caller need not know which.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_control::{Client, ErrorKind, TreeService};
use byteback_daemon::{DaemonError, OnDoubt, Service, StateFolder, TrackedTree};
use byteback_model::ByteString;
use byteback_mount::mount_table;
use byteback_mount::volume_tree::VolumeTreeError;
use byteback_oplog::{LogError, LogOptions};
use byteback_undo::UndoOptions;
use rustix::io::Errno;

use crate::binding::{self, Binding};
use crate::error::{CommandError, Result, chain};
use crate::exit_code::Exit;
use crate::held_back;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::Settings;

/// A known folder, and where it is backed up to.
#[derive(Debug)]
pub(crate) struct BoundFolder {
    pub(crate) folder: StateFolder,
    pub(crate) binding: Binding,
}

/// The absolute path without symlinks, also of a directory that a dead mount hides.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    let failed = |error: &std::io::Error| {
        let failed = CommandError::file("find", path, error);
        if error.kind() == std::io::ErrorKind::NotFound {
            failed.next("Check the path: it must exist.")
        } else {
            failed
        }
    };
    match fs::canonicalize(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let path = std::path::absolute(path).map_err(|error| failed(&error))?;
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(failed(&error));
            };
            Ok(fs::canonicalize(parent).map_err(|error| failed(&error))?.join(name))
        }
        Err(error) => Err(failed(&error)),
        Ok(path) => Ok(path),
    }
}

/// The state folder of the directory or mount point `path`, which need not be known yet.
pub(crate) fn state_folder(path: &Path, settings: &Settings) -> Result<StateFolder> {
    let path = canonical(path)?;
    let root = settings.state_root()?;
    if let Some(known) = known_folders(settings)?
        .into_iter()
        .find(|folder| folder.directory() == path)
    {
        return Ok(known);
    }
    if let Some(known) = mounted_at(&path, settings)? {
        return Ok(known);
    }
    let directory = fs::metadata(&path).map_err(|error| CommandError::file("use the folder", &path, &error))?;
    if !directory.is_dir() {
        return Err(CommandError::new(format!("{} is a file, not a folder", path.display()))
            .next("Byteback backs up folders; name the folder that holds the file."));
    }
    Ok(StateFolder::of(&path, root)?)
}

/// All folders that this user has a log of.
pub(crate) fn known_folders(settings: &Settings) -> Result<Vec<StateFolder>> {
    let root = settings.state_root()?;
    StateFolder::all(root).map_err(|error| CommandError::file("read the state folder", root, &error))
}

/// The folder that is mounted at `point`, if that is not its own place.
fn mounted_at(point: &Path, settings: &Settings) -> Result<Option<StateFolder>> {
    let Some(mount) = mount_table::at(point) else {
        return Ok(None);
    };
    Ok(known_folders(settings)?
        .into_iter()
        .find(|folder| folder.directory() == mount.directory))
}

/// The bound folder at `path`, or without a path the nearest above the current directory.
pub(crate) fn bound_folder(path: Option<&Path>, settings: &Settings) -> Result<BoundFolder> {
    let folder = match path {
        Some(path) => state_folder(path, settings)?,
        None => folder_of_current_dir(settings)?.ok_or_else(|| {
            CommandError::with_exit(
                Exit::NoRepository,
                "neither the current directory nor any above it is bound to a server",
            )
            .next("Name the folder, or bind this one: byteback init . -r https://HOST:PORT/FOLDER")
        })?,
    };
    let Some(mut binding) = Binding::read(&folder)? else {
        let directory = folder.directory().display();
        return Err(
            CommandError::with_exit(Exit::NoRepository, format!("{directory} is not bound to a server")).next(
                match above(&folder, settings)? {
                    Some(above) => format!("A folder above it is bound: {}", above.directory().display()),
                    None => format!("Bind it with: byteback init {directory} -r https://HOST:PORT/FOLDER"),
                },
            ),
        );
    };
    if let Some(repository) = settings.repository() {
        binding.repository = repository.clone();
    }
    Ok(BoundFolder { folder, binding })
}

/// A folder that is bound or was once mounted.
#[derive(Debug)]
pub(crate) struct KnownFolder {
    pub(crate) folder: StateFolder,
    pub(crate) binding: Option<Binding>,
}

impl KnownFolder {
    fn of(folder: StateFolder, settings: &Settings) -> Result<Self> {
        let mut binding = Binding::read(&folder)?;
        if let (Some(binding), Some(repository)) = (&mut binding, settings.repository()) {
            binding.repository = repository.clone();
        }
        Ok(Self { folder, binding })
    }

    /// The consumer of this name; without a name, the backups to the bound repository.
    pub(crate) fn consumer(&self, name: Option<&str>) -> Result<String> {
        match (name, &self.binding) {
            (Some(name), _) => Ok(name.to_owned()),
            (None, Some(binding)) => Ok(consumer(binding)),
            (None, None) => {
                let directory = self.folder.directory().display();
                Err(CommandError::new(format!(
                    "{directory} is not bound to a server, so there is no last backup"
                ))
                .next("Name a consumer: --consumer NAME ('byteback consumers' lists them)."))
            }
        }
    }
}

/// The known folder at `path`, or without a path the nearest above the current directory; it need
/// not be bound.
pub(crate) fn known_folder(path: Option<&Path>, settings: &Settings) -> Result<KnownFolder> {
    let Some(path) = path else {
        let here = std::env::current_dir().ok();
        let folder = here.map(|here| known_above(&here, settings)).transpose()?.flatten();
        let (folder, _) = folder.ok_or_else(|| {
            CommandError::new("neither the current directory nor any above it is a folder that Byteback knows")
                .next("Name the folder, or track this one: byteback mount .")
        })?;
        return KnownFolder::of(folder, settings);
    };
    let folder = state_folder(path, settings)?;
    if !folder.exists() {
        let directory = folder.directory().display();
        return Err(
            CommandError::new(format!("{directory} is not bound and was never mounted"))
                .next(format!("To track it: byteback mount {directory}")),
        );
    }
    KnownFolder::of(folder, settings)
}

/// As [`canonical`], for a directory that may be gone, along with directories above it.
fn canonical_if_gone(directory: &Path) -> Result<PathBuf> {
    let mut there = directory;
    let mut gone = Vec::new();
    while let (Some(above), Some(name)) = (there.parent(), there.file_name()) {
        // A dangling symlink exists as well; other errors are left to `canonical` to report.
        if !matches!(fs::symlink_metadata(there), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
            break;
        }
        gone.push(name);
        there = above;
    }
    if there.as_os_str().is_empty() {
        there = Path::new(".");
    }
    let mut path = canonical(there)?;
    path.extend(gone.into_iter().rev());
    Ok(path)
}

/// The path of a file with the symlinks above it resolved; the file itself may be a symlink, and
/// need not exist.
pub(crate) fn resolved(file: &Path) -> Result<PathBuf> {
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            Ok(canonical_if_gone(Path::new("."))?.join(name))
        }
        (Some(parent), Some(name)) => Ok(canonical_if_gone(parent)?.join(name)),
        _ => canonical(file),
    }
}

/// The known folder that a file lies in, and the file's path in it. The last component may be a
/// symlink, and neither it nor the directories above it need exist.
pub(crate) fn folder_of_file(file: &Path, settings: &Settings) -> Result<(KnownFolder, ByteString)> {
    let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(
            CommandError::new(format!("{} is not a file", file.display())).next("Name a file in a tracked folder.")
        );
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let parent = canonical_if_gone(parent)?;
    let Some((folder, top)) = known_above(&parent, settings)? else {
        if known_above(&parent.join(name), settings)?.is_some() {
            return Err(
                CommandError::new(format!("{} is a tracked folder, not a file in one", file.display()))
                    .next("Name a file in it."),
            );
        }
        return Err(
            CommandError::new(format!("{} is not in a folder that Byteback knows", file.display()))
                .next("'byteback status' lists the folders that are tracked."),
        );
    };
    let below = parent.strip_prefix(&top).unwrap_or(Path::new("")).join(name);
    let path = ByteString::from(below.as_os_str().as_bytes());
    Ok((KnownFolder::of(folder, settings)?, path))
}

/// Whether a directory is the root of a known folder, or the place where one is mounted, or in no
/// known folder: anything but a directory inside a folder.
pub(crate) fn is_root_or_unknown(directory: &Path, settings: &Settings) -> Result<bool> {
    let directory = canonical(directory)?;
    Ok(known_above(&directory, settings)?.is_none_or(|(_, top)| top == directory))
}

/// As [`folder_of_file`]; for a known folder itself the path is empty.
pub(crate) fn place_in_folder(path: &Path, settings: &Settings) -> Result<(KnownFolder, ByteString)> {
    if path.is_dir() {
        let folder = state_folder(path, settings)?;
        if folder.exists() {
            return Ok((KnownFolder::of(folder, settings)?, ByteString::from(&[][..])));
        }
    }
    folder_of_file(path, settings)
}

/// The nearest known folder above a directory, itself included, and the place where it is seen.
fn known_above(directory: &Path, settings: &Settings) -> Result<Option<(StateFolder, PathBuf)>> {
    for above in directory.ancestors() {
        // A folder that is shown elsewhere comes first: that is where it is really tracked.
        if let Some(folder) = mounted_at(above, settings)? {
            return Ok(Some((folder, above.to_owned())));
        }
        let known = known_folders(settings)?;
        if let Some(folder) = known.into_iter().find(|folder| folder.directory() == above) {
            return Ok(Some((folder, above.to_owned())));
        }
    }
    Ok(None)
}

/// The nearest bound folder above the current directory, itself included; else the folder that is
/// mounted there.
pub(crate) fn folder_of_current_dir(settings: &Settings) -> Result<Option<StateFolder>> {
    let Ok(here) = std::env::current_dir() else {
        return Ok(None);
    };
    let known = known_folders(settings)?;
    let bound = known
        .into_iter()
        .filter(|folder| here.starts_with(folder.directory()) && binding::path(folder).exists());
    if let Some(nearest) = bound.max_by_key(|folder| folder.directory().as_os_str().len()) {
        return Ok(Some(nearest));
    }
    for above in here.ancestors() {
        if let Some(folder) = mounted_at(above, settings)? {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

fn above(folder: &StateFolder, settings: &Settings) -> Result<Option<StateFolder>> {
    let known = known_folders(settings)?;
    let above = |other: &StateFolder| {
        other.directory() != folder.directory()
            && folder.directory().starts_with(other.directory())
            && binding::path(other).exists()
    };
    Ok(known.into_iter().rev().find(above))
}

/// The process that answers for a folder.
pub(crate) enum Owner {
    /// The daemon of the mounted folder.
    Daemon(Client),
    /// This process: the folder is not mounted.
    Here(Service),
}

impl Owner {
    /// Connects to the daemon, or opens the folder.
    pub(crate) fn of(folder: &StateFolder, settings: &Settings, progress: &Progress) -> Result<Self> {
        if let Some(daemon) = daemon(folder)? {
            return Ok(Self::Daemon(daemon));
        }
        remove_leftover(folder)?;
        let tree = open(folder, settings.log.options(), &mut |nodes| progress.compared(nodes))?;
        if let Some(doubt) = tree.doubt() {
            held_back::warn(folder, doubt, settings.output);
        }
        Ok(Self::Here(Service::unmounted(Arc::new(tree))))
    }

    pub(crate) fn service(&self) -> &dyn TreeService {
        match self {
            Self::Daemon(client) => client,
            Self::Here(service) => service,
        }
    }

    pub(crate) fn is_mounted(&self) -> bool {
        matches!(self, Self::Daemon(_))
    }
}

/// Opens a folder in this process and compares it with its record. `compared` is called with the
/// number of nodes compared so far.
pub(crate) fn open(folder: &StateFolder, options: LogOptions, compared: &mut dyn FnMut(u64)) -> Result<TrackedTree> {
    opened(folder, TrackedTree::open_with(folder.clone(), options, compared))
}

/// The same, for mounting, with overwritten bytes kept as `undo` says. `on_doubt` decides about a
/// folder in doubt.
pub(crate) fn open_to_mount(
    folder: &StateFolder,
    options: LogOptions,
    undo: Option<UndoOptions>,
    on_doubt: OnDoubt,
    compared: &mut dyn FnMut(u64),
) -> Result<TrackedTree> {
    let tree = TrackedTree::open_to_mount(folder.clone(), options, undo, on_doubt, compared);
    opened(folder, tree)
}

fn opened(folder: &StateFolder, tree: Result<TrackedTree, DaemonError>) -> Result<TrackedTree> {
    tree.map_err(|error| {
        if let DaemonError::Volume(VolumeTreeError::Volume { path, source }) = &error
            && source.errno() == Errno::NOSPC.raw_os_error()
        {
            let next_step = format!(
                "The file system of {} is full. Free some space and try again; everything synced is in the volume.",
                path.display()
            );
            return CommandError::from(error).next(next_step);
        }
        let next_step = match &error {
            DaemonError::Log(error) => way_out_of_damage(folder, error),
            DaemonError::HeldBack { held, .. } => return held_back::explained(folder, held),
            _ => None,
        };
        match next_step {
            Some(next_step) => {
                let directory = folder.directory().display();
                CommandError::new(format!("the operation log of {directory} is damaged")).next(next_step)
            }
            None => error.into(),
        }
    })
}

/// The way out of a damaged log; `None` if the error is another one.
pub(crate) fn way_out_of_damage(folder: &StateFolder, error: &LogError) -> Option<String> {
    let state = folder.path().display();
    matches!(error, LogError::Damaged { .. } | LogError::Corrupted(_))
        .then(|| format!("Start a new one: rm {state}/log.redb {state}/intents    (the next backup reads every file)"))
}

/// Warns about parts of a folder that are other file systems: they are neither tracked nor saved.
pub(crate) fn warn_of_other_file_systems(folder: &StateFolder, output: Output) {
    for point in mount_table::hiding_below(folder.directory()) {
        output.warn(&format!(
            "{} is a separate file system and is not saved with the folder; back it up separately",
            point.display()
        ));
    }
}

/// Removes the mount of a daemon that died, which would hide the folder.
pub(crate) fn remove_leftover(folder: &StateFolder) -> Result<()> {
    byteback_mount::remove_leftover(folder.directory()).map_err(|error| CommandError::new(chain(&error)))
}

/// The daemon of a folder, if one answers.
pub(crate) fn daemon(folder: &StateFolder) -> Result<Option<Client>> {
    match Client::connect(&folder.socket()) {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.kind == ErrorKind::Gone => Ok(None),
        Err(_) => {
            let directory = folder.directory().display();
            let message = format!(
                "{directory} was mounted by another version of Byteback, and this one cannot talk to its daemon"
            );
            Err(CommandError::new(message).next(format!(
                "Unmount it with 'umount {directory}' as root, or 'fusermount3 -u {directory}' otherwise; its daemon \
                 then ends cleanly. Then mount it again."
            )))
        }
    }
}

/// The consumer name of a repository's backups in the log of a folder.
pub(crate) fn consumer(binding: &Binding) -> String {
    format!("backup:{}", binding.repository)
}
