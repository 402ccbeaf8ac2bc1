//! A daemon over a temporary directory, in this process.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use byteback_control::{Client, LandingTree, LiveTree, TreeService};
use byteback_daemon::service::PAGE_LIMITS;
use byteback_daemon::{
    ChecksumOptions, Daemon, DaemonError, DaemonOptions, LiveOptions, OnDoubt, Rhythm, Service, StateFolder,
    TrackedTree,
};
use byteback_host::random::SplitMix64;
use byteback_mount::integrity::Integrity;
use byteback_mount::{CacheMode, Mount, MountOptions};
use byteback_oplog::{Granularity, LogOptions, PageLimits};
use byteback_undo::UndoOptions;

/// The mount, and the thread that serves it until it is gone.
type Running = (Arc<Mount>, JoinHandle<Result<(), DaemonError>>);

pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    mode: CacheMode,
    rhythm: Rhythm,
    page_limits: PageLimits,
    log: LogOptions,
    running: Option<Running>,
    /// Whether old bytes are kept at the next mount.
    pub(crate) undo: Option<UndoOptions>,
    /// Options of continuous sync at the next mount.
    pub(crate) live: Option<LiveOptions>,
    /// Options of the checksums of what is written, at the next mount.
    pub(crate) checksums: Option<ChecksumOptions>,
    integrity: Option<Arc<Integrity>>,
    /// Seed from which a daemon in a process of its own lands something at random all the time.
    pub(crate) lands: Option<u64>,
    served: Option<Served>,
    /// A daemon in a process of its own, which may be killed.
    process: Option<Child>,
}

/// The services of a mounted tree with continuous sync in this process.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) live: Arc<dyn LiveTree>,
    pub(crate) tree: Arc<dyn TreeService>,
    pub(crate) landing: Arc<dyn LandingTree>,
}

/// Set for a process that is to be a daemon: the directory of the fixture.
const SERVE: &str = "BYTEBACK_TEST_SERVE";
/// Set beside it where old bytes are to be kept.
const SERVE_WITH_UNDO: &str = "BYTEBACK_TEST_SERVE_WITH_UNDO";
/// Set beside it where checksums of what is written are to be kept.
const SERVE_WITH_SUMS: &str = "BYTEBACK_TEST_SERVE_WITH_SUMS";
/// Set beside it where continuous sync is to be served, to a listener in the fixture's directory.
const SERVE_LIVE: &str = "BYTEBACK_TEST_SERVE_LIVE";
/// Set instead, to a seed, where something is to land at random all the time.
const SERVE_LANDING: &str = "BYTEBACK_TEST_SERVE_LANDING";

/// Old bytes are kept for such a short time, and so few of them, that they are dropped all the
/// time.
pub(crate) fn little_undo() -> UndoOptions {
    UndoOptions::new(1_500_000_000, 300_000)
}

/// A connection that has just ended may hold on to the last daemon of this process for a moment,
/// and so may a process that another test has just forked. In a process of its own none could.
fn open_when_free(open: impl Fn() -> Result<TrackedTree, DaemonError>) -> TrackedTree {
    for _ in 0..1000 {
        match open() {
            Err(DaemonError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the tree is still in use");
}

/// The body of the test named `serve`, in a process that was started to be a restless daemon.
pub(crate) fn serve_as_daemon() {
    let Some(directory) = std::env::var_os(SERVE).map(PathBuf::from) else {
        return;
    };
    let folder = StateFolder::of(&directory.join("tree"), &directory.join("state")).unwrap();
    let mut log = LogOptions::default();
    log.extents_per_file_max = 5;
    let undo = std::env::var_os(SERVE_WITH_UNDO).map(|_| little_undo());
    let tree = open_when_free(|| match undo {
        Some(undo) => TrackedTree::open_to_mount(folder.clone(), log, Some(undo), OnDoubt::Note, &mut |_| {}),
        None => TrackedTree::open_with(folder.clone(), log, &mut |_| {}),
    });
    let mount = MountOptions::new(directory.join("tree"));
    let options = DaemonOptions {
        mount,
        rhythm: RESTLESS,
        page_limits: tiny_pages(),
        live: std::env::var_os(SERVE_LIVE)
            .or(std::env::var_os(SERVE_LANDING))
            .map(|_| crate::live::mortal_options()),
        checksums: std::env::var_os(SERVE_WITH_SUMS).map(|_| crate::integrity::watchful()),
    };
    let daemon = Daemon::start(tree, &options).unwrap();
    if let Ok(seed) = std::env::var(SERVE_LANDING) {
        let (mut random, landing) = (SplitMix64::new(seed.parse().unwrap()), daemon.landing().unwrap());
        std::thread::spawn(move || {
            loop {
                crate::landing::land_at_random(&*landing, &mut random);
            }
        });
    } else if let Some(live) = daemon.live() {
        let served = Served {
            live,
            tree: daemon.service(),
            landing: daemon.landing().unwrap(),
        };
        crate::live::relay_groups(served, &directory);
    }
    std::fs::write(directory.join("ready"), b"").unwrap();
    daemon.run().unwrap();
}

/// All work in the background, all the time.
const RESTLESS: Rhythm = Rhythm {
    checkpoint_every: Duration::from_millis(2),
    close_after: Duration::from_millis(25),
    compact_layers: 3,
};

/// Changes are reported, and counted, two or three at a time.
fn tiny_pages() -> PageLimits {
    PageLimits {
        items: NonZeroUsize::new(3).unwrap(),
        ranges: NonZeroUsize::new(2).unwrap(),
    }
}

impl Fixture {
    pub(crate) fn new(mode: CacheMode) -> Self {
        Self::inside(Path::new("/var/tmp"), mode)
    }

    /// The same below another directory, and so on another file system.
    pub(crate) fn inside(parent: &Path, mode: CacheMode) -> Self {
        assert!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: these tests need a machine with FUSE"
        );
        let dir = tempfile::Builder::new()
            .prefix("byteback-daemon-")
            .tempdir_in(parent)
            .unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        set_mode(dir.path(), 0o755);
        set_mode(&dir.path().join("tree"), 0o777);
        Self {
            dir,
            mode,
            rhythm: Rhythm::default(),
            page_limits: PAGE_LIMITS,
            log: LogOptions::default(),
            running: None,
            undo: None,
            live: None,
            checksums: None,
            integrity: None,
            lands: None,
            served: None,
            process: None,
        }
    }

    /// Everything that happens once in a while, or in large trees, happens all the time: nodes are
    /// closed while programs are at work, layers are merged, files have more ranges than are kept,
    /// changes fill many pages, and too many for pictures to be passed their ranges.
    pub(crate) fn restless(&mut self, granularity: Granularity) {
        self.rhythm = RESTLESS;
        self.page_limits = tiny_pages();
        self.log.extents_per_file_max = 5;
        self.log.granularity = granularity;
    }

    /// Sets the number of consumers that the log takes.
    pub(crate) fn consumers_max(&mut self, most: u32) {
        self.log.consumers_max = most;
    }

    /// Nothing is done in the background.
    pub(crate) fn still(&mut self) {
        self.rhythm.checkpoint_every = Duration::from_secs(24 * 60 * 60);
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// A folder that outlives the mounts.
    pub(crate) fn beside(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn folder(&self) -> StateFolder {
        StateFolder::of(&self.tree(), &self.dir.path().join("state")).unwrap()
    }

    fn open(&self, to_mount: bool) -> TrackedTree {
        open_when_free(|| match self.undo {
            Some(undo) if to_mount => {
                TrackedTree::open_to_mount(self.folder(), self.log, Some(undo), OnDoubt::Note, &mut |_| {})
            }
            _ => TrackedTree::open_with(self.folder(), self.log, &mut |_| {}),
        })
    }

    /// The tree without a mount, as a backup of an unmounted folder has it.
    pub(crate) fn unmounted(&self) -> Service {
        Service::unmounted(Arc::new(self.open(false))).with_pages(self.page_limits)
    }

    pub(crate) fn mount(&mut self) {
        self.mount_after(|| {});
    }

    /// Mounts; `meanwhile` runs when the tree was compared with its record and is not mounted yet.
    pub(crate) fn mount_after(&mut self, meanwhile: impl FnOnce()) {
        let tree = self.open(true);
        meanwhile();
        let mut mount = MountOptions::new(self.tree());
        mount.mode = self.mode;
        let options = DaemonOptions {
            mount,
            rhythm: self.rhythm,
            page_limits: self.page_limits,
            live: self.live,
            checksums: self.checksums,
        };
        let daemon = Daemon::start(tree, &options).unwrap();
        self.served = daemon.live().map(|live| Served {
            live,
            tree: daemon.service(),
            landing: daemon.landing().unwrap(),
        });
        self.integrity = daemon.tree().integrity().cloned();
        let mount = Arc::clone(daemon.mount());
        self.running = Some((mount, std::thread::spawn(move || daemon.run())));
    }

    /// Mounts by a restless daemon in a process of its own.
    pub(crate) fn mount_mortal(&mut self) {
        let ready = self.dir.path().join("ready");
        let _ = std::fs::remove_file(&ready);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve", "--ignored", "--nocapture", "--test-threads=1"])
            .env(SERVE, self.dir.path())
            .envs(self.undo.map(|_| (SERVE_WITH_UNDO, "1")))
            .envs(self.live.filter(|_| self.lands.is_none()).map(|_| (SERVE_LIVE, "1")))
            .envs(self.lands.map(|seed| (SERVE_LANDING, seed.to_string())))
            .envs(self.checksums.map(|_| (SERVE_WITH_SUMS, "1")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while !ready.exists() {
            assert_eq!(child.try_wait().unwrap(), None, "the daemon ended at once");
            assert!(began.elapsed() < Duration::from_secs(30), "the daemon does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.process = Some(child);
    }

    /// Kills that daemon, and waits until the folder is plain again.
    pub(crate) fn kill(&mut self) {
        let mut child = self.process.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        while is_mounted(&self.tree()) {
            assert!(began.elapsed() < Duration::from_secs(10), "still mounted");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends that daemon in good order.
    pub(crate) fn umount_mortal(&mut self) {
        self.client().unmount().unwrap();
        let mut child = self.process.take().unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// The services of continuous sync.
    pub(crate) fn served(&self) -> Served {
        self.served.clone().unwrap()
    }

    /// The checksums of what is written to the mounted tree.
    pub(crate) fn integrity(&self) -> &Arc<Integrity> {
        self.integrity.as_ref().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.folder().socket()).unwrap()
    }

    pub(crate) fn programs_below(&self) -> Vec<byteback_mount::ProgramBelow> {
        self.running.as_ref().unwrap().0.programs_below()
    }

    /// Unmounts as a user's `umount -l` does.
    pub(crate) fn detach(&self) {
        let (mount, _) = self.running.as_ref().unwrap();
        mount.unmount(byteback_mount::Unmount::Detach).unwrap();
    }

    /// Unmounts in good order, through the control socket. A program that another test starts just
    /// then has all our descriptors until it execs.
    pub(crate) fn umount(&mut self) {
        let client = self.client();
        let mut unmounted = client.unmount();
        for _ in 0..250 {
            if unmounted.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            unmounted = client.unmount();
        }
        unmounted.unwrap();
        let (mount, run) = self.running.take().unwrap();
        run.join().unwrap().unwrap();
        drop(mount);
        self.served = None;
        self.integrity = None;
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
            // The watcher takes the mount away.
            let began = Instant::now();
            while is_mounted(&self.tree()) && began.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if let Some((mount, run)) = self.running.take() {
            if mount.unmount(byteback_mount::Unmount::IfIdle).is_err() {
                let _ = mount.unmount(byteback_mount::Unmount::Detach);
            }
            let _ = run.join();
        }
    }
}

/// Waits until `is_so`, for 30 seconds at most; `what` says for what, and leads the message.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
