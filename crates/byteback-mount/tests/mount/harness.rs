//! A mount over a temporary directory, for one test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use byteback_host::block::{BlockDevice, RealBlockDevice};
use byteback_host::clock::RealClock;
use byteback_mount::tracked::Tracked;
use byteback_mount::volume_tree::{VolumeTree, VolumeTreeError};
use byteback_mount::{CacheMode, Mount, MountOptions};
use byteback_volume::format::VolumeId;
use byteback_volume::{CreateOptions, create};

/// A mounted temporary directory, or a volume. The backing directory is seen at [`Self::below`] by
/// a bind mount made before.
pub(crate) struct Fixture {
    mount: Option<Mount>,
    volume: Option<VolumeTree>,
    dir: tempfile::TempDir,
}

/// The file in which a fixture's volume lies.
const IMAGE: &str = "image";
const IMAGE_LEN_BLOCKS: u64 = 1 << 17;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn require_fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing: these tests need a machine (or container) with FUSE"
    );
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests must run as root: they mount, bind-mount and change owners"
    );
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_mode(CacheMode::Exact)
    }

    pub(crate) fn with_mode(mode: CacheMode) -> Self {
        Self::prepared(mode, |_| {})
    }

    /// `prepare` fills the backing directory before it is mounted.
    pub(crate) fn prepared(mode: CacheMode, prepare: impl FnOnce(&Path)) -> Self {
        require_fuse();
        // The machine's disk rather than a tmpfs that /tmp may be: extended attributes and holes
        // are wanted.
        let dir = tempfile::Builder::new()
            .prefix("byteback-mount-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let (tree, below) = (dir.path().join("tree"), dir.path().join("below"));
        for path in [&tree, &below] {
            std::fs::create_dir(path).unwrap();
            set_mode(path, 0o777);
        }
        set_mode(dir.path(), 0o755);
        prepare(&tree);
        rustix::mount::mount_bind(&tree, &below).unwrap();
        let mut options = MountOptions::new(&tree);
        options.mode = mode;
        let mount = Mount::start(&options, Arc::new(Tracked::new()), || Ok(())).unwrap();
        Self {
            mount: Some(mount),
            volume: None,
            dir,
        }
    }

    /// The same over a volume of its own; there is no [`Self::below`].
    pub(crate) fn in_volume(mode: CacheMode) -> Self {
        require_fuse();
        let dir = tempfile::Builder::new()
            .prefix("byteback-mount-")
            .tempdir_in("/var/tmp")
            .unwrap();
        set_mode(dir.path(), 0o755);
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        let image = RealBlockDevice::create(dir.path().join(IMAGE), IMAGE_LEN_BLOCKS).unwrap();
        let image: Arc<dyn BlockDevice> = Arc::new(image);
        create(&image, &CreateOptions::new(VolumeId([1; 16]), 1)).unwrap();
        drop(image);
        let mut fixture = Self {
            mount: None,
            volume: None,
            dir,
        };
        fixture.mount_volume(mode);
        set_mode(&fixture.tree(), 0o777);
        fixture
    }

    /// Mounts the volume, again if it is mounted: closed clean and opened anew.
    pub(crate) fn mount_volume(&mut self, mode: CacheMode) {
        drop(self.mount.take());
        if let Some(volume) = self.volume.take() {
            volume.close().unwrap();
        }
        let image = self.dir.path().join(IMAGE);
        let started = Instant::now();
        let volume = loop {
            match VolumeTree::open(&image, Arc::new(RealClock)) {
                // A process forked by another test has our lock, too, until it has closed the
                // inherited descriptors; and a thread that served the last mount may just be
                // ending.
                Err(VolumeTreeError::Device { source, .. })
                    if source.kind() == std::io::ErrorKind::ResourceBusy && started.elapsed() < PATIENCE =>
                {
                    std::thread::yield_now();
                }
                opened => break opened.unwrap(),
            }
        };
        let mut options = MountOptions::new(self.tree());
        options.mode = mode;
        options.root = Some(Arc::new(volume.root()));
        let mount = Mount::start(&options, Arc::new(Tracked::new()), || Ok(()));
        (self.mount, self.volume) = (Some(mount.unwrap()), Some(volume));
    }

    /// Unmounts; [`Self::below`] stays.
    pub(crate) fn end(&mut self) {
        drop(self.mount.take());
    }

    pub(crate) fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    /// The tree as programs see it.
    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// A folder beside the tree that every user can enter.
    pub(crate) fn beside(&self) -> &Path {
        self.dir.path()
    }

    /// A path in the tree.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.tree().join(name)
    }

    /// The same path in the backing directory.
    pub(crate) fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join("below").join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.mount.take());
        // Also what a test mounted there itself.
        for name in ["below", "tree"] {
            while rustix::mount::unmount(self.dir.path().join(name), rustix::mount::UnmountFlags::DETACH).is_ok() {}
        }
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `script` with `sh` in `dir` as `uid` (and a group of the same number, and `groups`);
/// returns what it printed. The script must succeed.
pub(crate) fn run_as(uid: u32, groups: &str, dir: &Path, script: &str) -> String {
    let (success, said) = try_as(uid, groups, dir, script);
    assert!(success, "as {uid}: {script}\n{said}");
    said
}

/// Like [`run_as`], but the script may fail.
pub(crate) fn try_as(uid: u32, groups: &str, dir: &Path, script: &str) -> (bool, String) {
    let mut command = std::process::Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
    if groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        command.arg(format!("--groups={groups}"));
    }
    let output = command
        // An ordinary user's mount lets nobody else in, so the script enters the directory by
        // itself.
        .args(["sh", "-c", &format!("cd \"$1\" || exit\n{script}"), "sh"])
        .arg(dir)
        .output()
        .expect("setpriv and sh are part of the base system");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

/// Mode with type bits removed.
pub(crate) fn mode_of(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}
