//! The contenders that keep a copy of the folder at a server: Byteback and its peers.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use byteback_control::{Client, SyncStatus, TreeService};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};

use super::workloads::{Workload, compare_contents};
use crate::SuiteError;
use crate::report::OURS;
use crate::rig::byteback::{Byteback, Mount, Server};
use crate::rig::interrupt;
use crate::rig::process::wait_for;
use crate::rig::proxy::Wire;
use crate::rig::rsync::{Rsync, Running};
use crate::rig::syncthing::{self, Syncthing};
use crate::rig::unison::{self, Unison};
use crate::rig::xdelta::{self, Xdelta};

pub(super) const SYNCTHING: &str = "syncthing";
pub(super) const UNISON: &str = "unison";
pub(super) const RSYNC: &str = "rsync";
pub(super) const XDELTA: &str = "xdelta3";

const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time without traffic after which it is worth asking whether more is to come.
const QUIET: Duration = Duration::from_millis(8);
const NAME: &str = "bench";

/// The cost at both ends, and the traffic between them.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::suites) struct Spent {
    pub(in crate::suites) client_cpu_s: f64,
    pub(in crate::suites) server_cpu_s: f64,
    pub(in crate::suites) up_bytes: u64,
    pub(in crate::suites) down_bytes: u64,
}

impl Spent {
    pub(in crate::suites) fn since(self, earlier: Self) -> Self {
        Self {
            client_cpu_s: self.client_cpu_s - earlier.client_cpu_s,
            server_cpu_s: self.server_cpu_s - earlier.server_cpu_s,
            up_bytes: self.up_bytes - earlier.up_bytes,
            down_bytes: self.down_bytes - earlier.down_bytes,
        }
    }
}

/// A contender that keeps a copy. It begins when the copy equals the folder.
pub(in crate::suites) trait Keeper {
    /// Brings the copy up to date with the folder, or waits until it is.
    fn bring(&mut self) -> Result<(), SuiteError>;

    /// The cost since the beginning; no further change is brought. The copy is in the folder `copy`
    /// afterwards.
    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError>;
}

/// A peer, its package, and a check of whether it is installed.
type Peer = (&'static str, &'static str, fn() -> bool);

/// All installed contenders, Byteback first; `missing` is called for each missing package.
pub(super) fn names(mut missing: impl FnMut(&str)) -> Vec<&'static str> {
    let mut names = vec![OURS, RSYNC];
    let peers: [Peer; 3] = [
        (SYNCTHING, "syncthing", syncthing::is_installed),
        (UNISON, "unison", unison::is_installed),
        (XDELTA, "xdelta3", xdelta::is_installed),
    ];
    for (name, package, is_installed) in peers {
        if is_installed() {
            names.push(name);
        } else {
            missing(package);
        }
    }
    names
}

/// Begins to keep the filled `folder`, with everything else below the empty folder `work`.
pub(super) fn begin(
    name: &str,
    workload: &Workload,
    folder: &Path,
    work: &Path,
) -> Result<Box<dyn Keeper>, SuiteError> {
    let copy = work.join("copy");
    fs::create_dir(&copy)?;
    match name {
        OURS => Ok(Box::new(Ours::begin(workload, folder, work)?)),
        RSYNC => Ok(Box::new(ByRsync::begin(workload, folder, work)?)),
        SYNCTHING => {
            let both = Syncthing::start(work, folder, &copy)?;
            let before = of_syncthing(&both)?;
            let (folder, copy) = (folder.to_owned(), copy);
            Ok(Box::new(BySyncthing {
                both,
                before,
                folder,
                copy,
            }))
        }
        UNISON => {
            let both = Unison::start(work, folder, &copy)?;
            let before = of_unison(&both)?;
            let file = folder.join(&workload.file);
            Ok(Box::new(ByUnison {
                both,
                before,
                file,
                brought: 0,
            }))
        }
        XDELTA => {
            let (source, target) = (folder.join(&workload.file), copy.join(&workload.file));
            fs::create_dir_all(target.parent().unwrap_or(&copy))?;
            fs::copy(&source, &target)?;
            Ok(Box::new(ByXdelta {
                xdelta: Xdelta::new(&target, work),
                source,
                spent: Spent::default(),
            }))
        }
        _ => Err(format!("no contender is called {name}").into()),
    }
}

/// `byteback sync` and `byteback serve`.
pub(in crate::suites) struct Ours {
    mount: Mount,
    server: Server,
    byteback: Byteback,
    status: Client,
    delay: Duration,
    before: Spent,
}

impl Ours {
    /// Like [`begin`].
    pub(super) fn begin(workload: &Workload, folder: &Path, work: &Path) -> Result<Self, SuiteError> {
        Self::begin_with(workload.delay_ms, folder, work)
    }

    /// Like [`begin`], with this delay after a change before it is sent.
    pub(in crate::suites) fn begin_with(delay_ms: u64, folder: &Path, work: &Path) -> Result<Self, SuiteError> {
        let (home, store) = (work.join("home"), work.join("store"));
        fs::create_dir(&home)?;
        fs::create_dir(&store)?;
        let byteback = Byteback::locate(home)?;
        let server = byteback.serve_tls(&store)?;
        byteback.init(&server, folder, NAME)?;
        let mount = byteback.sync(folder, delay_ms)?;
        let status = Client::connect(&byteback.socket(folder)?)?;
        let mut this = Self {
            mount,
            server,
            byteback,
            status,
            delay: Duration::from_millis(delay_ms),
            before: Spent::default(),
        };
        this.bring()?;
        this.before = this.spent()?;
        Ok(this)
    }

    fn spent(&self) -> Result<Spent, SuiteError> {
        let wire = self.server.wire();
        Ok(Spent {
            client_cpu_s: self.mount.cost()?.cpu_s,
            server_cpu_s: self.server.cost()?.cpu_s,
            up_bytes: wire.to_server,
            down_bytes: wire.to_client,
        })
    }

    fn sync_status(&self) -> Result<SyncStatus, SuiteError> {
        let status = self
            .status
            .status()?
            .sync
            .ok_or("the mount reports nothing about sync")?;
        match &status.error {
            Some(error) if status.needs_attention || status.has_ended => Err(format!("byteback sync: {error}").into()),
            _ => Ok(status),
        }
    }

    /// Adds a second machine with `folder`, which is empty, at the same server; everything else is
    /// below `work`.
    pub(super) fn join(&self, folder: &Path, work: &Path) -> Result<Joined, SuiteError> {
        let home = work.join("second home");
        fs::create_dir(&home)?;
        let byteback = Byteback::locate(home)?;
        byteback.init_invited(&self.server, folder, NAME)?;
        Ok(Joined {
            _mount: byteback.sync(folder, 0)?,
        })
    }

    /// The traffic so far.
    pub(super) fn wire(&self) -> Wire {
        self.server.wire()
    }

    /// Waits until there is no more traffic. Returns the time at which the last byte from the
    /// server passed, if one did since the traffic was `wire`.
    pub(super) fn wait_for_quiet(&self, mut wire: Wire, pause: Duration) -> Result<Option<Instant>, SuiteError> {
        let mut changed_at = Instant::now();
        let mut answered_at = None;
        while changed_at.elapsed() < QUIET {
            interrupt::check()?;
            let now = self.server.wire();
            if now != wire {
                changed_at = Instant::now();
                if now.to_client != wire.to_client {
                    answered_at = Some(changed_at);
                }
                wire = now;
            }
            thread::sleep(pause);
        }
        Ok(answered_at)
    }

    /// Whether everything was sent.
    pub(super) fn is_settled(&self) -> Result<bool, SuiteError> {
        let status = self.sync_status()?;
        Ok(status.is_connected && !status.is_folded && status.waiting_nodes == 0 && status.groups_in_flight == 0)
    }
}

/// A second machine, until it is dropped.
pub(super) struct Joined {
    _mount: Mount,
}

impl Keeper for Ours {
    fn bring(&mut self) -> Result<(), SuiteError> {
        // Asking costs the daemon something, so wait until the answer is likely yes.
        thread::sleep(self.delay);
        wait_for("what Byteback changed at its server", SETTLE_TIMEOUT, || {
            self.wait_for_quiet(self.wire(), Duration::from_millis(1))?;
            Ok(self.is_settled()?.then_some(()))
        })
    }

    fn end(self: Box<Self>, copy: &Path) -> Result<Spent, SuiteError> {
        let spent = self.spent()?.since(self.before);
        self.mount.unmount()?;
        fs::remove_dir(copy)?;
        self.byteback.pull(&self.server, NAME, copy)?;
        self.server.stop()?;
        Ok(spent)
    }
}

/// rsync, run after each change.
struct ByRsync {
    running: Running,
    folder: PathBuf,
    options: Vec<&'static str>,
    client_cpu_s: f64,
}

impl ByRsync {
    fn begin(workload: &Workload, folder: &Path, work: &Path) -> Result<Self, SuiteError> {
        // Without this option rsync misses changes within one second.
        let mut options = vec!["-a", "--delete", "--no-whole-file", "--modify-window=-1"];
        if workload.is_in_place {
            options.push("--inplace");
        }
        let rsync = Rsync::new(&work.join("copy"), work);
        rsync.transfer(folder, &options)?;
        Ok(Self {
            running: rsync.start()?,
            folder: folder.to_owned(),
            options,
            client_cpu_s: 0.0,
        })
    }
}

impl Keeper for ByRsync {
    fn bring(&mut self) -> Result<(), SuiteError> {
        self.client_cpu_s += self.running.transfer(&self.folder, &self.options)?.cost.cpu_s;
        Ok(())
    }

    fn end(self: Box<Self>, _: &Path) -> Result<Spent, SuiteError> {
        let (server, wire) = self.running.end()?;
        Ok(Spent {
            client_cpu_s: self.client_cpu_s,
            server_cpu_s: server.cpu_s,
            up_bytes: wire.to_server,
            down_bytes: wire.to_client,
        })
    }
}

struct BySyncthing {
    both: Syncthing,
    before: Spent,
    folder: PathBuf,
    copy: PathBuf,
}

fn of_syncthing(both: &Syncthing) -> Result<Spent, SuiteError> {
    let (client, server, wire) = both.spent()?;
    Ok(Spent {
        client_cpu_s: client.cpu_s,
        server_cpu_s: server.cpu_s,
        up_bytes: wire.to_server,
        down_bytes: wire.to_client,
    })
}

impl Keeper for BySyncthing {
    fn bring(&mut self) -> Result<(), SuiteError> {
        self.both.bring()
    }

    fn end(self: Box<Self>, _: &Path) -> Result<Spent, SuiteError> {
        // Syncthing reports a complete server even in the midst of a rename, when the server has
        // neither name.
        wait_for("Syncthing's copy to be what the folder is", SETTLE_TIMEOUT, || {
            Ok(compare_contents(&self.folder, &self.copy).ok())
        })?;
        Ok(of_syncthing(&self.both)?.since(self.before))
    }
}

struct ByUnison {
    both: Unison,
    before: Spent,
    file: PathBuf,
    brought: i64,
}

fn of_unison(both: &Unison) -> Result<Spent, SuiteError> {
    let (client, server, wire) = both.spent()?;
    Ok(Spent {
        client_cpu_s: client.cpu_s,
        server_cpu_s: server.cpu_s,
        up_bytes: wire.to_server,
        down_bytes: wire.to_client,
    })
}

impl Keeper for ByUnison {
    fn bring(&mut self) -> Result<(), SuiteError> {
        // Unison compares times in seconds, which may be equal; the steps of a measurement do not
        // wait for the next second.
        self.brought += 1;
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: 1_700_000_000 + 10 * self.brought,
                tv_nsec: 0,
            },
        };
        rustix::fs::utimensat(CWD, &self.file, &times, AtFlags::empty())?;
        self.both.bring()
    }

    fn end(self: Box<Self>, _: &Path) -> Result<Spent, SuiteError> {
        Ok(of_unison(&self.both)?.since(self.before))
    }
}

/// xdelta3, applied to the workload's main file.
struct ByXdelta {
    xdelta: Xdelta,
    source: PathBuf,
    spent: Spent,
}

impl Keeper for ByXdelta {
    fn bring(&mut self) -> Result<(), SuiteError> {
        let update = self.xdelta.update(&self.source)?;
        self.spent.client_cpu_s += update.client_cpu_s;
        self.spent.server_cpu_s += update.server_cpu_s;
        self.spent.up_bytes += update.delta_bytes;
        Ok(())
    }

    fn end(self: Box<Self>, _: &Path) -> Result<Spent, SuiteError> {
        Ok(self.spent)
    }
}

/// Checks that the copy that `name` kept equals what was written.
pub(super) fn check(name: &str, workload: &Workload, folder: &Path, copy: &Path) -> Result<(), SuiteError> {
    let checked = match name {
        XDELTA => match fs::read(folder.join(&workload.file))? == fs::read(copy.join(&workload.file))? {
            true => Ok(()),
            false => Err("the file differs".into()),
        },
        _ => compare_contents(folder, copy),
    };
    checked.map_err(|error| format!("{}: the data that {name} kept differs: {error}", workload.name).into())
}
