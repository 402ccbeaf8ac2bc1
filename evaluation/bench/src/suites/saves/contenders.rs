//! The contenders: each keeps a copy of a folder at its server, and is told after each save.

use std::fs;
use std::path::{Path, PathBuf};

use super::changed::{self, Changed};
use crate::SuiteError;
use crate::compare::compare;
use crate::rig::byteback::{Backup, Byteback, Mount, Server};
use crate::rig::process::Cost;
use crate::rig::rsync::{Rsync, Running};
use crate::rig::xdelta::{self, Xdelta};
use crate::suites::deltacfs::keepers::{Keeper as _, Ours, Spent};

pub(super) const BACKUP: &str = "backup";
pub(super) const BACKUP_UNMOUNTED: &str = "backup, no mount";
pub(super) const PUSH: &str = "push";
pub(super) const SYNC: &str = "sync";
pub(super) const RSYNC: &str = "rsync";
pub(super) const XDELTA: &str = "xdelta3";

/// Our commands.
pub(super) const COMMANDS: [&str; 4] = [BACKUP, BACKUP_UNMOUNTED, PUSH, SYNC];
/// The programs beside which they are measured.
pub(super) const PEERS: [&str; 2] = [RSYNC, XDELTA];

/// Without `--modify-window=-1` rsync misses changes within one second.
const RSYNC_OPTIONS: [&str; 4] = ["-aH", "--delete", "--no-whole-file", "--modify-window=-1"];
/// The time without further changes after which `sync` sends.
const SYNC_DELAY_MS: u64 = 400;
const NAME: &str = "saves";

/// A contender at work. It begins when its server has the folder as it was before the first save.
pub(super) trait Keeper {
    /// Brings the server up to date with the folder, or waits until it is.
    fn bring(&mut self) -> Result<(), SuiteError>;

    /// The number of files with another content than before, summed over all saves; 0 if this
    /// contender does not count them.
    fn changed_files(&self) -> u64 {
        0
    }

    /// The cost since the beginning. The missing folder `copy` then holds what the server has.
    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError>;
}

/// All installed contenders; `missing` is told how to install another one.
pub(super) fn installed(missing: impl Fn(&str)) -> Vec<&'static str> {
    let mut names = COMMANDS.to_vec();
    names.push(RSYNC);
    if xdelta::is_installed() {
        names.push(XDELTA);
    } else {
        missing("xdelta3 is not installed and is left out; to install it: apt-get install xdelta3");
    }
    names
}

/// Begins to keep the filled `folder`, with everything else below the folder `place`.
pub(super) fn begin(name: &str, folder: &Path, place: &Path) -> Result<Box<dyn Keeper>, SuiteError> {
    match name {
        BACKUP => Ok(Box::new(Mounted::begin(folder, place)?)),
        BACKUP_UNMOUNTED => Ok(Box::new(Unmounted::begin(Way::Backup, folder, place)?)),
        PUSH => Ok(Box::new(Unmounted::begin(Way::Push, folder, place)?)),
        SYNC => Ok(Box::new(Synced {
            ours: Box::new(Ours::begin_with(SYNC_DELAY_MS, folder, place)?),
        })),
        RSYNC => Ok(Box::new(ByRsync::begin(folder, place)?)),
        XDELTA => Ok(Box::new(ByXdelta::begin(folder, place)?)),
        _ => Err(format!("no contender is called {name}").into()),
    }
}

/// Checks that what a contender kept equals the folder.
pub(super) fn check(name: &str, folder: &Path, copy: &Path) -> Result<(), SuiteError> {
    if name == XDELTA {
        // Deltas carry bytes, not attributes.
        let changed = changed::between(copy, folder)?;
        return match changed.is_empty() {
            true => Ok(()),
            false => Err(format!("{changed:?}").into()),
        };
    }
    let comparison = compare(folder, copy, |_| ())?;
    match comparison.is_equal() {
        true => Ok(()),
        false => Err(comparison.told.join("; ").into()),
    }
}

/// The program and its server, below `place`.
fn server(place: &Path) -> Result<(Byteback, Server), SuiteError> {
    let (home, store) = (place.join("home"), place.join("store"));
    fs::create_dir(&home)?;
    fs::create_dir(&store)?;
    let byteback = Byteback::locate(home)?;
    let server = byteback.serve_tls(&store)?;
    Ok((byteback, server))
}

fn spent(client: Cost, server: &Server) -> Result<Spent, SuiteError> {
    let wire = server.wire();
    Ok(Spent {
        client_cpu_s: client.cpu_s,
        server_cpu_s: server.cost()?.cpu_s,
        up_bytes: wire.to_server,
        down_bytes: wire.to_client,
    })
}

/// `byteback backup` of a mounted folder. The client's cost is that of the commands and of the
/// mount's daemon. Fields are dropped in order: the mount before the server.
struct Mounted {
    mount: Mount,
    server: Server,
    byteback: Byteback,
    folder: PathBuf,
    commands: Cost,
    before: Spent,
    snapshot: Option<u64>,
}

impl Mounted {
    fn begin(folder: &Path, place: &Path) -> Result<Self, SuiteError> {
        let (byteback, server) = server(place)?;
        byteback.init(&server, folder, NAME)?;
        let mount = byteback.mount(folder, None)?;
        let mut this = Self {
            mount,
            server,
            byteback,
            folder: folder.to_owned(),
            commands: Cost::default(),
            before: Spent::default(),
            snapshot: None,
        };
        this.bring()?;
        this.before = this.spent()?;
        Ok(this)
    }

    fn spent(&self) -> Result<Spent, SuiteError> {
        let mut client = self.commands;
        client.cpu_s += self.mount.cost()?.cpu_s;
        spent(client, &self.server)
    }
}

impl Keeper for Mounted {
    fn bring(&mut self) -> Result<(), SuiteError> {
        let backup = self.byteback.backup(&self.server, &self.mount, |_| ())?;
        self.commands.cpu_s += backup.command.cpu_s;
        self.snapshot = backup.summary.snapshot_id.or(self.snapshot);
        Ok(())
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        let spent = self.spent()?.since(self.before);
        let snapshot = self.snapshot.ok_or("no backup made a snapshot")?;
        self.byteback.restore(&self.folder, snapshot, copy, |_| ())?;
        self.mount.unmount()?;
        self.server.stop()?;
        Ok(spent)
    }
}

/// A command that saves a plain folder.
#[derive(Clone, Copy)]
enum Way {
    Backup,
    Push,
}

struct Unmounted {
    way: Way,
    server: Server,
    byteback: Byteback,
    folder: PathBuf,
    commands: Cost,
    before: Spent,
    snapshot: Option<u64>,
}

impl Unmounted {
    fn begin(way: Way, folder: &Path, place: &Path) -> Result<Self, SuiteError> {
        let (byteback, server) = server(place)?;
        if matches!(way, Way::Backup) {
            byteback.init(&server, folder, NAME)?;
        }
        let mut this = Self {
            way,
            server,
            byteback,
            folder: folder.to_owned(),
            commands: Cost::default(),
            before: Spent::default(),
            snapshot: None,
        };
        this.bring()?;
        this.before = spent(this.commands, &this.server)?;
        Ok(this)
    }

    fn transfer(&self) -> Result<Backup, SuiteError> {
        match self.way {
            Way::Backup => self.byteback.backup_unmounted(&self.server, &self.folder, "auto"),
            Way::Push => self.byteback.push(&self.server, &self.folder, NAME),
        }
    }
}

impl Keeper for Unmounted {
    fn bring(&mut self) -> Result<(), SuiteError> {
        let backup = self.transfer()?;
        self.commands.cpu_s += backup.command.cpu_s;
        self.snapshot = backup.summary.snapshot_id.or(self.snapshot);
        Ok(())
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        let spent = spent(self.commands, &self.server)?.since(self.before);
        match self.way {
            Way::Backup => {
                let snapshot = self.snapshot.ok_or("no backup made a snapshot")?;
                self.byteback.restore(&self.folder, snapshot, copy, |_| ())?;
            }
            Way::Push => self.byteback.pull(&self.server, NAME, copy)?,
        }
        self.server.stop()?;
        Ok(spent)
    }
}

/// `byteback sync`, as the suite `deltacfs` runs it.
struct Synced {
    ours: Box<Ours>,
}

impl Keeper for Synced {
    fn bring(&mut self) -> Result<(), SuiteError> {
        self.ours.bring()
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        // Its copy is a folder that exists until it is pulled into.
        fs::create_dir(copy)?;
        self.ours.end(copy)
    }
}

/// rsync, run after each save. It also counts the changed files, because its copy is the folder as
/// it was before.
struct ByRsync {
    running: Running,
    folder: PathBuf,
    copy: PathBuf,
    client_cpu_s: f64,
    changed_files: u64,
}

impl ByRsync {
    fn begin(folder: &Path, place: &Path) -> Result<Self, SuiteError> {
        let copy = place.join("copy");
        fs::create_dir(&copy)?;
        let rsync = Rsync::new(&copy, place);
        rsync.transfer(folder, &RSYNC_OPTIONS)?;
        Ok(Self {
            running: rsync.start()?,
            folder: folder.to_owned(),
            copy,
            client_cpu_s: 0.0,
            changed_files: 0,
        })
    }
}

impl Keeper for ByRsync {
    fn bring(&mut self) -> Result<(), SuiteError> {
        self.changed_files += changed::between(&self.copy, &self.folder)?.files();
        self.client_cpu_s += self.running.transfer(&self.folder, &RSYNC_OPTIONS)?.cost.cpu_s;
        Ok(())
    }

    fn changed_files(&self) -> u64 {
        self.changed_files
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        let (server, wire) = self.running.end()?;
        fs::rename(&self.copy, copy)?;
        Ok(Spent {
            client_cpu_s: self.client_cpu_s,
            server_cpu_s: server.cpu_s,
            up_bytes: wire.to_server,
            down_bytes: wire.to_client,
        })
    }
}

/// xdelta3, run for each changed file after each save.
struct ByXdelta {
    folder: PathBuf,
    copy: PathBuf,
    work: PathBuf,
    spent: Spent,
    changed_files: u64,
}

impl ByXdelta {
    fn begin(folder: &Path, place: &Path) -> Result<Self, SuiteError> {
        let this = Self {
            folder: folder.to_owned(),
            copy: place.join("copy"),
            work: place.to_owned(),
            spent: Spent::default(),
            changed_files: 0,
        };
        fs::create_dir(&this.copy)?;
        for name in changed::between(&this.copy, folder)?.added {
            fs::copy(folder.join(&name), made_room(&this.copy, &name)?)?;
        }
        Ok(this)
    }
}

/// The place of a file in the copy, with all directories above it.
fn made_room(copy: &Path, name: &Path) -> Result<PathBuf, SuiteError> {
    let path = copy.join(name);
    fs::create_dir_all(path.parent().unwrap_or(copy))?;
    Ok(path)
}

impl Keeper for ByXdelta {
    fn bring(&mut self) -> Result<(), SuiteError> {
        let all = changed::between(&self.copy, &self.folder)?;
        self.changed_files += all.files();
        let Changed {
            changed,
            added,
            removed,
        } = all;
        for name in removed {
            fs::remove_file(self.copy.join(name))?;
        }
        for (name, is_new) in added
            .iter()
            .map(|name| (name, true))
            .chain(changed.iter().map(|name| (name, false)))
        {
            let source = self.folder.join(name);
            let xdelta = match is_new {
                true => Xdelta::from_nothing(&made_room(&self.copy, name)?, &self.work),
                false => Xdelta::new(&self.copy.join(name), &self.work),
            };
            let update = xdelta.update(&source)?;
            self.spent.client_cpu_s += update.client_cpu_s;
            self.spent.server_cpu_s += update.server_cpu_s;
            self.spent.up_bytes += update.delta_bytes;
        }
        Ok(())
    }

    fn changed_files(&self) -> u64 {
        self.changed_files
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        fs::rename(&self.copy, copy)?;
        Ok(self.spent)
    }
}
