//! A restore: a snapshot, or the node at one path of it, becomes files again.
//!
//! Order: directories are made as they are met; files are written under a temporary name, get all
//! their attributes, are synced and only then get their own name (see `publish`); hard links follow
//! when all files are there; the attributes of directories come after that, deepest first, because
//! making an entry in a directory changes its times; flags that forbid changes come last of all
//! (see `flags`). One sync of the file system ends it.
//!
//! A restore that was interrupted, even by a power failure, leaves whole files and files with
//! temporary names, and can be run again into the same directory: a file of the same length and
//! time is taken as restored, unless `verify` asks for its bytes anew.
//!
//! Nothing is ever made outside the target: every name is one component, checked, and is looked up
//! from a descriptor of its directory, never through a symlink. A server that sends other names
//! ends the restore.
//!
//! Attributes that this machine or this user cannot restore (owners and devices without privilege,
//! attributes that the file system does not keep) are counted by kind and leave the rest alone.
//! Where an owner could not be given, set-id bits are not given either: a program must not gain the
//! rights of another user than its owner.
//!
//! Out of scope: mapping user names of another machine to numbers, merging contents.

mod attributes;
mod file;
mod flags;
mod look;
mod many;
mod near;
mod place;
mod publish;
mod pull;
mod report;

use crate::error::{BackupError, Result};
use crate::exclude::Exclude;
use crate::listing::trim_slashes;
use crate::monitor::{Change, Event, Monitor, Phase, check_cancelled};
use crate::snapshot_spec::{SnapshotSpec, resolve_snapshot};
use crate::tree_reader::{TreeReader, join_path};
use attributes::apply_attributes;
use byteback_api::FolderName;
use byteback_api::messages::EntryInfo;
use byteback_client::ServerClient;
use byteback_host::random::RealRandomness;
use byteback_host::tree;
use byteback_model::{ByteString, FileId, NodeInfo, NodeKind, Seq};
use file::{FileJob, restore_file};
use flags::LastFlags;
use many::{Gathered, Work, restore_many};
use place::{
    Force, Place, TemporaryNames, clear_way, make_directory, open_up, remove_all, remove_leftovers, rename_into_place,
};
use publish::Unpublished;
use pull::{Rules, Verdict, for_each_other};
use report::Tally;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

pub(crate) use pull::mark_ancestors;
pub use pull::{is_partial_name, partial_name};
pub use report::{LostRange, NotRestored, NotRestoredKind, RestoreReport, SalvagedFile};

/// How to restore.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// Restore into a directory that is not empty, replacing nodes of the same name.
    pub overwrite: bool,
    /// Remove names in the restored directories that are not in the snapshot.
    pub delete: bool,
    /// Rewrite even files that have the right length and time already.
    pub verify: bool,
    /// Restore the readable part of a file that the server cannot read in full.
    pub salvage: bool,
    /// Restore immutable and append-only flags as well, and change local nodes that have them:
    /// needs privilege.
    pub flags: bool,
    /// Number of files fetched at the same time.
    pub jobs: usize,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            overwrite: false,
            delete: false,
            verify: false,
            salvage: false,
            flags: false,
            jobs: 4,
        }
    }
}

/// Restores the node at `path` (empty: the root) of a snapshot into the directory `target`, which
/// is made if it is missing. The entries of a directory come directly into `target`; any other node
/// comes there under its own name.
///
/// # Errors
/// [`BackupError::TargetNotEmpty`], [`BackupError::Hostile`], a server that fails or an unusable
/// target. A failure that concerns one file only is no error: see [`RestoreReport::not_restored`].
pub fn restore(
    server: &ServerClient,
    folder: &FolderName,
    at: SnapshotSpec,
    path: &[u8],
    target: &Path,
    options: &RestoreOptions,
    monitor: &dyn Monitor,
) -> Result<RestoreReport> {
    let clock = server.clock();
    let started_ns = clock.monotonic_ns();
    let wire_before = server.wire_bytes();
    monitor.event(Event::Phase(Phase::Preparing));
    let snapshot = resolve_snapshot(server, folder, at)?;
    let from = Origin {
        server,
        folder,
        at: snapshot.seq,
        path,
    };
    let mut report = from.restore_into(target, options, None, monitor)?;
    report.snapshot_id = snapshot.id;
    report.wire = server.wire_bytes().since(wire_before);
    report.total_ns = clock.monotonic_ns().saturating_sub(started_ns);
    Ok(report)
}

/// The folder and moment to restore.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) server: &'a ServerClient,
    pub(crate) folder: &'a FolderName,
    pub(crate) at: Seq,
    pub(crate) path: &'a [u8],
}

/// The options of a pull.
#[derive(Clone, Copy)]
pub(crate) struct Wishes<'a> {
    pub(crate) exclude: &'a Exclude,
    pub(crate) delete: bool,
    pub(crate) checksum: bool,
    pub(crate) flags: bool,
    pub(crate) jobs: usize,
}

/// The counts of a pull beyond those of a restore.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulled {
    pub(crate) new: u64,
    pub(crate) changed: u64,
    pub(crate) attributes_changed: u64,
    pub(crate) found_bytes: u64,
    pub(crate) resumed_bytes: u64,
}

impl<'a> Origin<'a> {
    /// Makes `target` equal to this, looking first at what is there.
    pub(crate) fn pull_into(
        self,
        target: &Path,
        wishes: &Wishes<'a>,
        monitor: &'a dyn Monitor,
    ) -> Result<(RestoreReport, Pulled)> {
        let options = RestoreOptions {
            overwrite: true,
            delete: wishes.delete,
            verify: false,
            salvage: false,
            flags: wishes.flags,
            jobs: wishes.jobs,
        };
        let mut pulled = Pulled::default();
        let report = self.restore_into(target, &options, Some((wishes, &mut pulled)), monitor)?;
        Ok((report, pulled))
    }

    /// Like [`Self::pull_into`], but only looks: the changes are reported and counted.
    pub(crate) fn look_at(
        self,
        target: &Path,
        wishes: &Wishes<'a>,
        monitor: &'a dyn Monitor,
    ) -> Result<(RestoreReport, Pulled)> {
        let rules = self.rules(wishes, monitor);
        let mut tree = TreeReader::new(self.server, self.folder, self.at);
        let report = look::look(&rules, &mut tree, trim_slashes(self.path), target)?;
        Ok((report, rules.pulled()))
    }

    fn rules(self, wishes: &Wishes<'a>, monitor: &'a dyn Monitor) -> Rules<'a> {
        Rules::new((self.server, self.folder, self.at), wishes, monitor)
    }

    fn restore_into(
        self,
        target: &Path,
        options: &RestoreOptions,
        pull: Option<(&Wishes<'a>, &mut Pulled)>,
        monitor: &'a dyn Monitor,
    ) -> Result<RestoreReport> {
        let Self { server, folder, at, .. } = self;
        let mut tree = TreeReader::new(server, folder, at);
        let path = trim_slashes(self.path);
        let node = tree.node_at(path)?;
        let target_dir = open_target(target, options)?;
        let way = tree::Descent::new(&target_dir)
            .map_err(|error| BackupError::local("open the directory", target.display().to_string(), error))?;
        let tally = Tally::new(monitor);
        let temporary_names = TemporaryNames::draw(&RealRandomness)
            .map_err(|error| BackupError::local("draw", "a number for temporary names", error))?;
        let (wishes, pulled) = pull.unzip();
        let restore = Restore {
            server,
            folder,
            at,
            target: &target_dir,
            target_path: target,
            options,
            monitor,
            tally: &tally,
            temporary_names,
            unpublished: Mutex::default(),
            way: Mutex::new(way),
            opened_up: Mutex::default(),
            last_flags: Mutex::default(),
            pull: wishes.map(|wishes| self.rules(wishes, monitor)),
            counts_names: AtomicBool::new(false),
        };
        monitor.event(Event::Phase(Phase::Restoring));
        let root = node.id;
        std::thread::scope(|scope| {
            // The server counts the total while the first files come.
            scope.spawn(move || tell_totals(server, folder, (root, at), monitor));
            restore.run(&mut tree, node, path)
        })?;
        restore.sync()?;
        if let (Some(pulled), Some(rules)) = (pulled, &restore.pull) {
            *pulled = rules.pulled();
        }
        drop(restore);
        let mut report = tally.into_report();
        report.seq = at;
        Ok(report)
    }
}

/// Reports the total of the restore. Nothing depends on it, so a failure is ignored.
fn tell_totals(server: &ServerClient, folder: &FolderName, (root, at): (FileId, Seq), monitor: &dyn Monitor) {
    if let Ok(totals) = server.totals(folder, root, at) {
        let (files, bytes) = (totals.names, totals.bytes);
        monitor.event(Event::Totals { files, bytes });
    }
}

/// Opens the target directory, which is made if it is missing.
fn open_target(target: &Path, options: &RestoreOptions) -> Result<OwnedFd> {
    let failed =
        |operation: &'static str, error: io::Error| BackupError::local(operation, target.display().to_string(), error);
    let mut made = rustix::fs::mkdir(target, Mode::RWXU);
    if made == Err(rustix::io::Errno::NOENT)
        && let Some(above) = target.parent()
    {
        std::fs::create_dir_all(above).map_err(|error| failed("create the directory above", error))?;
        made = rustix::fs::mkdir(target, Mode::RWXU);
    }
    match made {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(failed("create the directory", errno.into())),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir =
        rustix::fs::open(target, flags, Mode::empty()).map_err(|errno| failed("open the directory", errno.into()))?;
    if !options.overwrite {
        match tree::read_dir(&dir, 0).and_then(|mut names| names.next().transpose()) {
            Ok(None) => {}
            Ok(Some(_)) => {
                return Err(BackupError::TargetNotEmpty {
                    target: target.display().to_string(),
                });
            }
            Err(error) => return Err(failed("list", error)),
        }
    }
    Ok(dir)
}

/// A directory that was made and still needs its attributes.
struct MadeDirectory {
    path: Vec<u8>,
    node: NodeInfo,
}

/// A further name of a file.
struct HardLink {
    place: Place,
    file: FileId,
}

struct Restore<'a> {
    server: &'a ServerClient,
    folder: &'a FolderName,
    at: Seq,
    target: &'a OwnedFd,
    target_path: &'a Path,
    options: &'a RestoreOptions,
    monitor: &'a dyn Monitor,
    tally: &'a Tally<'a>,
    temporary_names: TemporaryNames,
    unpublished: Mutex<Unpublished>,
    /// Descriptors on the way to the directory that was opened last.
    way: Mutex<tree::Descent>,
    /// Directories that were closed to their owner, with their former permissions.
    opened_up: Mutex<Vec<(Vec<u8>, u32)>>,
    /// Flags that forbid changes, for the end.
    last_flags: Mutex<LastFlags>,
    /// The rules by which names are judged first, if this is a pull.
    pull: Option<Rules<'a>>,
    /// Whether the server counts the names of files: a server that knows streams of contents does.
    counts_names: AtomicBool,
}

impl Restore<'_> {
    fn run(&self, tree: &mut TreeReader<'_>, node: NodeInfo, path: &[u8]) -> Result<()> {
        let is_directory = node.attributes.kind == NodeKind::Directory;
        if !is_directory {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if tree::check_component(OsStr::from_bytes(name)).is_err() {
                return Err(BackupError::hostile("the root of the folder is not a directory"));
            }
            let place = Place {
                dir: Vec::new(),
                name: OsStr::from_bytes(name).to_owned(),
            };
            let entry = EntryInfo {
                name: ByteString::from(name),
                node,
            };
            return self.one_file(place, &entry);
        }
        if let Some(rules) = &self.pull {
            rules.look_at_root(self.target, &node)?;
        }
        let mut made = Vec::new();
        let mut links = Vec::new();
        let walked = self.in_parallel(|jobs| self.walk(tree, node, &mut made, &mut links, jobs));
        let finished = walked.and_then(|()| self.finish(made, links));
        if finished.is_err() {
            self.close_again();
            self.protect_again();
        }
        finished
    }

    /// Restores a node other than a directory into the target, which stays as it is.
    fn one_file(&self, place: Place, entry: &EntryInfo) -> Result<()> {
        let finished = match self.open_dir_to_fill(&place.dir) {
            Ok(_) => self
                .in_parallel(|jobs| self.entry(self.target, place, entry, jobs))
                .and_then(|()| self.set_last_flags()),
            Err(error) => {
                self.failed(&place.path(), error);
                Ok(())
            }
        };
        self.close_again();
        self.protect_again();
        finished
    }

    /// Does everything that has to wait until all files are there.
    fn finish(&self, made: Vec<MadeDirectory>, links: Vec<HardLink>) -> Result<()> {
        self.monitor.event(Event::Phase(Phase::Finishing));
        self.hard_links(links)?;
        for directory in made.into_iter().rev() {
            check_cancelled(self.monitor)?;
            let done = self
                .open_dir(&directory.path)
                .and_then(|dir| apply_attributes(&dir, &directory.node.attributes, &directory.path, self.tally));
            if let Err(error) = done {
                self.failed(&directory.path, error);
            }
        }
        self.set_last_flags()
    }

    /// Makes all directories below `root`, hands files on and collects the work for later.
    fn walk(
        &self,
        tree: &mut TreeReader<'_>,
        root: NodeInfo,
        made: &mut Vec<MadeDirectory>,
        links: &mut Vec<HardLink>,
        jobs: &mut dyn FnMut(FileJob) -> Result<()>,
    ) -> Result<()> {
        // Nodes that have a name and may have more; later names become links to the first one.
        let mut named: HashSet<FileId> = HashSet::new();
        let mut to_do = vec![(Vec::new(), root)];
        while let Some((path, node)) = to_do.pop() {
            check_cancelled(self.monitor)?;
            let dir = match self.open_dir_to_fill(&path) {
                Ok(dir) => dir,
                Err(error) => {
                    self.file_failed(&path, error)?;
                    continue;
                }
            };
            if self.options.overwrite
                && let Err(error) = remove_leftovers(&dir)
            {
                self.failed(&path, error);
            }
            let mut names = HashSet::new();
            let mut below = Vec::new();
            tree.entries(node.id, &path, |entry| {
                check_cancelled(self.monitor)?;
                let place = Place {
                    dir: path.clone(),
                    name: OsString::from_vec(entry.name.as_bytes().to_vec()),
                };
                let is_directory = entry.node.attributes.kind == NodeKind::Directory;
                if let Some(rules) = &self.pull
                    && rules.is_excluded(&place.path(), is_directory)
                {
                    return Ok(());
                }
                if self.options.delete {
                    names.insert(place.name.clone());
                }
                if is_directory {
                    let judged = match &self.pull {
                        Some(rules) => rules.judge_directory(&dir, &place, &entry.node)?,
                        None => Ok(()),
                    };
                    match judged.and_then(|()| make_directory(&dir, &place.name, self.force())) {
                        Ok(()) => below.push((join_path(&path, entry.name.as_bytes()), entry.node)),
                        Err(error) => self.failed(&place.path(), error),
                    }
                    return Ok(());
                }
                if self.may_have_names(&entry.node) && !named.insert(entry.node.id) {
                    links.push(HardLink {
                        place,
                        file: entry.node.id,
                    });
                    return Ok(());
                }
                self.entry(&dir, place, &entry, jobs)
            })?;
            if self.options.delete {
                self.remove_others(&dir, &path, &names);
            }
            to_do.extend(below);
            self.note_flags(&path, &node);
            made.push(MadeDirectory { path, node });
        }
        Ok(())
    }

    /// Whether a node may have further names. Files that have none are not remembered: there may be
    /// more of them than fit into memory.
    fn may_have_names(&self, node: &NodeInfo) -> bool {
        let has_one = node.attributes.kind == NodeKind::File && node.names.is_none();
        !has_one || !self.counts_names.load(Ordering::Relaxed)
    }

    /// Restores a node that is neither a directory nor a further name of a file.
    fn entry(
        &self,
        dir: &OwnedFd,
        place: Place,
        entry: &EntryInfo,
        jobs: &mut dyn FnMut(FileJob) -> Result<()>,
    ) -> Result<()> {
        if entry.node.attributes.kind == NodeKind::File {
            self.note_flags(&place.path(), &entry.node);
            let has_flags = self.options.flags && entry.node.attributes.inode_flags != 0;
            return jobs(FileJob {
                place,
                is_remembered: has_flags || self.may_have_names(&entry.node),
                node: entry.node.clone(),
            });
        }
        let change = match &self.pull {
            None => Change::New,
            Some(rules) => match rules.judge(Some(dir), &place, &entry.node)? {
                Ok(Verdict::Keep) => {
                    self.tally.remember(entry.node.id, &place);
                    self.tally.special_done(&place.path());
                    return Ok(());
                }
                Ok(Verdict::Attributes) => Change::Attributes,
                Ok(Verdict::Make(change)) => change,
                Ok(Verdict::Blocked(why)) => {
                    self.tally.failed(&place.path(), &io::Error::other(why));
                    return Ok(());
                }
                Err(error) => {
                    self.failed(&place.path(), error);
                    return Ok(());
                }
            },
        };
        match self.special(dir, &place, &entry.node) {
            Ok(()) => {
                if let Some(rules) = &self.pull {
                    rules.tell(&place.path(), change);
                }
                self.tally.remember(entry.node.id, &place);
                self.tally.special_done(&place.path());
            }
            Err(error) => self.failed(&place.path(), error),
        }
        Ok(())
    }

    /// Makes a symlink, pipe, socket or device.
    fn special(&self, dir: &OwnedFd, place: &Place, node: &NodeInfo) -> io::Result<()> {
        use rustix::fs::FileType;
        let temporary = self.temporary_names.next();
        let file_type = match node.attributes.kind {
            NodeKind::Symlink => {
                let target = node.attributes.target.as_ref().map(|target| target.as_bytes());
                rustix::fs::symlinkat(
                    OsStr::from_bytes(target.unwrap_or_default()),
                    dir,
                    temporary.as_os_str(),
                )?;
                None
            }
            NodeKind::Fifo => Some(FileType::Fifo),
            NodeKind::Socket => Some(FileType::Socket),
            NodeKind::CharDevice => Some(FileType::CharacterDevice),
            NodeKind::BlockDevice => Some(FileType::BlockDevice),
            // Never asked for.
            NodeKind::File | NodeKind::Directory => return Err(io::ErrorKind::InvalidInput.into()),
        };
        if let Some(file_type) = file_type {
            let made = rustix::fs::mknodat(
                dir,
                temporary.as_os_str(),
                file_type,
                Mode::RUSR | Mode::WUSR,
                node.attributes.rdev,
            );
            match made {
                Err(rustix::io::Errno::PERM)
                    if matches!(node.attributes.kind, NodeKind::CharDevice | NodeKind::BlockDevice) =>
                {
                    self.tally.not_restored(
                        NotRestoredKind::Device,
                        &place.path(),
                        "creating it requires privileges",
                    );
                    return Ok(());
                }
                made => made?,
            }
        }
        let named = tree::open_path_at(dir, &temporary)
            .and_then(|made| apply_attributes(&made, &node.attributes, &place.path(), self.tally))
            .and_then(|()| self.clear_way(dir, &place.name))
            .and_then(|()| rename_into_place(dir, &temporary, &place.name));
        if named.is_err() {
            let _ = rustix::fs::unlinkat(dir, temporary.as_os_str(), AtFlags::empty());
        }
        named
    }

    /// Gives files their further names.
    fn hard_links(&self, links: Vec<HardLink>) -> Result<()> {
        for link in links {
            check_cancelled(self.monitor)?;
            // Its first name failed, and was reported.
            let Some(first) = self.tally.first_place(link.file) else {
                self.tally.failed(
                    &link.place.path(),
                    &io::Error::other("it is a hard link to a file that could not be restored"),
                );
                continue;
            };
            let done = self.hard_link(&first, &link);
            match done {
                Ok(()) => self.tally.link_done(&link.place.path()),
                Err(error) => self.failed(&link.place.path(), error),
            }
        }
        Ok(())
    }

    fn hard_link(&self, first: &Place, link: &HardLink) -> io::Result<()> {
        let from = self.open_dir(&first.dir)?;
        let to = self.open_dir(&link.place.dir)?;
        let existing = tree::stat_at(&from, &first.name)?.identity();
        let there = tree::stat_at(&to, &link.place.name).ok();
        if there.is_some_and(|there| there.identity() == existing) {
            return Ok(());
        }
        if let Some(rules) = &self.pull {
            rules.judge_link(&to, &link.place, there.as_ref())?;
            rules.tell(&link.place.path(), Change::New);
        }
        self.clear_way(&to, &link.place.name)?;
        self.force().unprotect(&from, &first.name)?;
        let temporary = self.temporary_names.next();
        rustix::fs::linkat(
            &from,
            first.name.as_os_str(),
            &to,
            temporary.as_os_str(),
            AtFlags::empty(),
        )?;
        rename_into_place(&to, &temporary, &link.place.name)
    }

    /// Removes names that the snapshot does not have.
    fn remove_others(&self, dir: &OwnedFd, path: &[u8], names: &HashSet<OsString>) {
        // Files that are being written now.
        let is_ours = |name: &OsStr| self.temporary_names.is_ours(name);
        for_each_other(
            self.pull.as_ref(),
            dir,
            path,
            names,
            &is_ours,
            &mut |below, other| match other.and_then(|(dir, name)| remove_all(dir, name, self.force())) {
                Ok(()) => {
                    self.tally.removed();
                    if let Some(rules) = &self.pull {
                        rules.tell(below, Change::Removed);
                    }
                }
                Err(error) => self.failed(below, error),
            },
        );
    }

    /// Counts a node that could not be restored.
    fn failed(&self, path: &[u8], error: io::Error) {
        self.tally.failed(path, &self.told_with_flags(path, error));
    }

    /// Runs `make_jobs` while threads work on the files that it hands on.
    fn in_parallel(&self, make_jobs: impl FnOnce(&mut dyn FnMut(FileJob) -> Result<()>) -> Result<()>) -> Result<()> {
        let threads = self.options.jobs.clamp(1, 64);
        let (sender, receiver) = sync_channel::<Work>(threads);
        let receiver = Mutex::new(receiver);
        let first_error = Mutex::new(None);
        let made = std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&receiver, &first_error));
            }
            let send = |work: Option<Work>| -> Result<()> {
                if lock(&first_error).is_some() {
                    return Err(BackupError::Cancelled);
                }
                let Some(work) = work else { return Ok(()) };
                sender
                    .send(work)
                    .map_err(|_| BackupError::local("restore", "files", io::Error::other("all threads have ended")))
            };
            let mut gathered = Gathered::default();
            let made = make_jobs(&mut |job| send(gathered.add(self, job)));
            let made = made.and_then(|()| send(gathered.take()));
            drop(sender);
            made
        })
        .or_else(|error| match error {
            // The walk was stopped because of this error.
            BackupError::Cancelled if lock(&first_error).is_some() => Ok(()),
            error => Err(error),
        });
        // Whole files get their names even after an error.
        let published = self.publish_all();
        made?;
        match lock(&first_error).take() {
            Some(error) => Err(error),
            None => published,
        }
    }

    fn work(&self, jobs: &Mutex<Receiver<Work>>, first_error: &Mutex<Option<BackupError>>) {
        let is_over = || lock(first_error).is_some();
        loop {
            let Ok(work) = lock(jobs).recv() else { return };
            // After an error that ends everything the remaining jobs are only drained.
            if is_over() {
                continue;
            }
            let done = check_cancelled(self.monitor).and_then(|()| match &work {
                Work::One(job) => restore_file(self, job),
                Work::Many(jobs) => restore_many(self, jobs, &is_over),
            });
            if let Err(error) = done {
                lock(first_error).get_or_insert(error);
            }
        }
    }

    /// The directory at `path` below the target.
    fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.target.as_fd().try_clone_to_owned();
        }
        let named = lock(&self.way).open(path)?;
        tree::reopen(&named, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The same, to make entries in; its own permissions come at the end.
    fn open_dir_to_fill(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if self.options.overwrite {
            let named = match path {
                [] => self.target.as_fd().try_clone_to_owned()?,
                path => lock(&self.way).open(path)?,
            };
            if let Some(mode) = open_up(&named)? {
                lock(&self.opened_up).push((path.to_vec(), mode));
            }
            self.unprotect_directory(path, &named)?;
        }
        self.open_dir(path)
    }

    /// Makes sure that a node other than a directory can take a name.
    fn clear_way(&self, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
        clear_way(dir, name, self.force())
    }

    fn force(&self) -> Force {
        Force {
            overwrite: self.options.overwrite,
            flags: self.options.flags,
        }
    }

    /// Gives directories that were closed to their owner their former permissions back, when the
    /// restore does not come to its end.
    fn close_again(&self) {
        for (path, mode) in lock(&self.opened_up).drain(..).rev() {
            // A directory that is gone, or not ours, needs none.
            let _ = self.open_dir(&path).and_then(|dir| tree::set_mode(&dir, mode));
        }
    }

    fn shown(&self, path: &[u8]) -> String {
        self.target_path.join(OsStr::from_bytes(path)).display().to_string()
    }
}

/// The directory that was opened last: most files lie in the one of the file before.
#[derive(Default)]
struct OpenDirectory(Option<(Vec<u8>, Rc<OwnedFd>)>);

impl OpenDirectory {
    /// The directory at `path` below the target.
    fn get(&mut self, restore: &Restore<'_>, path: &[u8]) -> io::Result<Rc<OwnedFd>> {
        if let Some((known, dir)) = &self.0
            && known == path
        {
            return Ok(Rc::clone(dir));
        }
        let dir = Rc::new(restore.open_dir(path)?);
        self.0 = Some((path.to_vec(), Rc::clone(&dir)));
        Ok(dir)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
