//! A daemon over a temporary directory, in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use byteback_control::{Client, TreeService};
use byteback_daemon::{Daemon, DaemonError, DaemonOptions, Rhythm, Service, StateFolder, TrackedTree};
use byteback_mount::{CacheMode, Mount, MountOptions};
use byteback_oplog::{Granularity, LogOptions};
use byteback_undo::UndoOptions;

/// The mount, and the thread that serves it until it is gone.
type Running = (Arc<Mount>, JoinHandle<Result<(), DaemonError>>);

pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    mode: CacheMode,
    rhythm: Rhythm,
    log: LogOptions,
    running: Option<Running>,
    /// Whether old bytes are kept when it is mounted next.
    pub(crate) undo: Option<UndoOptions>,
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
            log: LogOptions::default(),
            running: None,
            undo: None,
        }
    }

    /// Whatever else happens once in a while, or in large trees, happens all the time: nodes are closed while programs are at work,
    /// layers are merged, files have more ranges than are kept.
    pub(crate) fn restless(&mut self, granularity: Granularity) {
        self.rhythm = Rhythm {
            checkpoint_every: Duration::from_millis(2),
            close_after: Duration::from_millis(25),
            compact_layers: 3,
        };
        self.log.extents_per_file_max = 5;
        self.log.granularity = granularity;
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub(crate) fn folder(&self) -> StateFolder {
        StateFolder::of(&self.tree(), &self.dir.path().join("state")).unwrap()
    }

    fn open(&self, to_mount: bool) -> TrackedTree {
        // A connection that has just ended may hold on to the last daemon for a moment; in a process of its own it could not.
        for _ in 0..200 {
            let opened = match self.undo {
                Some(undo) if to_mount => TrackedTree::open_with_undo(self.folder(), self.log, undo, &mut |_| {}),
                _ => TrackedTree::open_with(self.folder(), self.log, &mut |_| {}),
            };
            match opened {
                Err(DaemonError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
                opened => return opened.unwrap(),
            }
        }
        panic!("the tree is still in use");
    }

    /// The tree without a mount, as a backup of an unmounted folder has it.
    pub(crate) fn unmounted(&self) -> Service {
        Service::unmounted(Arc::new(self.open(false)))
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
        let rhythm = self.rhythm;
        let daemon = Daemon::start(tree, &DaemonOptions { mount, rhythm }).unwrap();
        let mount = Arc::clone(daemon.mount());
        self.running = Some((mount, std::thread::spawn(move || daemon.run())));
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.folder().socket()).unwrap()
    }

    pub(crate) fn programs_below(&self) -> Vec<byteback_mount::ProgramBelow> {
        self.running.as_ref().unwrap().0.programs_below()
    }

    /// Unmounts as somebody's `umount -l` does.
    pub(crate) fn detach(&self) {
        let (mount, _) = self.running.as_ref().unwrap();
        mount.unmount(byteback_mount::Unmount::Detach).unwrap();
    }

    /// Unmounts in good order, through the control socket.
    pub(crate) fn umount(&mut self) {
        self.client().unmount().unwrap();
        let (mount, run) = self.running.take().unwrap();
        run.join().unwrap().unwrap();
        drop(mount);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some((mount, run)) = self.running.take() {
            if mount.unmount(byteback_mount::Unmount::IfIdle).is_err() {
                let _ = mount.unmount(byteback_mount::Unmount::Detach);
            }
            let _ = run.join();
        }
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
