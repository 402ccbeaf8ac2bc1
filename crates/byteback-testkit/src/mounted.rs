//! A folder that is mounted by a daemon of this process, with all that continuous sync needs of it.

use crate::rig::Rig;
pub use crate::waiting::PATIENCE;
use byteback_api::FolderName;
use byteback_control::{LandingTree, LiveTree, TreeService};
use byteback_daemon::{Daemon, DaemonError, DaemonOptions, LiveOptions, StateFolder, TrackedTree};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::SplitMix64;
use byteback_mount::{Mount, MountOptions, Unmount};
use byteback_queue::ClientId;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The tree, and its server: everything that a process of its own has to be told.
#[derive(Clone, Debug)]
pub struct Place {
    /// Holds `tree`, `state`, and the engine's files.
    pub base: PathBuf,
    pub url: String,
    pub token: String,
    pub device: u64,
    pub folder: FolderName,
}

impl Place {
    pub fn of(rig: &Rig, name: &str) -> Self {
        let base = rig.temp.path().join(name);
        fs::create_dir_all(base.join("tree")).unwrap();
        Self {
            base,
            url: rig.url.clone(),
            token: rig.token.clone(),
            device: rig.options.device,
            folder: rig.folder.clone(),
        }
    }

    pub fn tree(&self) -> PathBuf {
        self.base.join("tree")
    }

    pub fn dir(&self) -> Arc<dyn DurableDir> {
        Arc::new(RealDir::create(self.base.join("sync")).unwrap())
    }

    pub fn open(&self) -> TrackedTree {
        let folder = StateFolder::of(&self.tree(), &self.base.join("state")).unwrap();
        let started = Instant::now();
        loop {
            match TrackedTree::open(folder.clone(), &mut |_| {}) {
                // A connection that has just ended may hold on to the last daemon for a moment.
                Err(DaemonError::InUse { .. }) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return opened.unwrap(),
            }
        }
    }
}

/// Options of continuous sync, drawn at random.
pub fn live_options(random: &mut SplitMix64) -> LiveOptions {
    let mut options = LiveOptions::new(ClientId(7));
    options.queue.delay_ns = [0, 3_000_000, 30_000_000][random.below(3) as usize];
    options.queue.delay_max_ns = options.queue.delay_ns * 4;
    options.queue.group_nodes_max = [1, 5, 4096][random.below(3) as usize];
    options.relations.timeout_ns = 50_000_000;
    options.relations.free_bytes_min = 0;
    options.mark_every = Duration::from_millis(20);
    // Mostly more waits than is allowed.
    if random.coin() {
        options.queue.nodes_max = 6;
        options.queue.fold_items_max = [3, 40][random.below(2) as usize];
    }
    options
}

/// A mounted tree.
pub struct Mounted {
    pub mount: Arc<Mount>,
    pub live: Arc<dyn LiveTree>,
    pub tree: Arc<dyn TreeService>,
    pub landing: Arc<dyn LandingTree>,
    serving: JoinHandle<()>,
}

impl Mounted {
    pub fn new(place: &Place, live: LiveOptions) -> Self {
        let mut options = DaemonOptions::new(MountOptions::new(place.tree()));
        options.rhythm.checkpoint_every = Duration::from_millis(20);
        options.live = Some(live);
        let daemon = Daemon::start(place.open(), &options).unwrap();
        let (mount, live, tree) = (Arc::clone(daemon.mount()), daemon.live().unwrap(), daemon.service());
        let landing = daemon.landing().unwrap();
        Self {
            mount,
            live,
            tree,
            landing,
            serving: std::thread::spawn(move || daemon.run().unwrap()),
        }
    }

    pub fn end(self) {
        let started = Instant::now();
        while let Err(error) = self.mount.unmount(Unmount::IfIdle) {
            assert!(started.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.serving.join().unwrap();
    }
}
