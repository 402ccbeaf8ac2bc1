//! A failure of the storage leaves a line with the operation, the file and the error; everyday
//! errors leave none.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use byteback_host::block::{BlockDevice, RealBlockDevice};
use byteback_host::clock::RealClock;
use byteback_mount::cuts::Report;
use byteback_mount::tracked::Tracked;
use byteback_mount::volume_tree::VolumeTree;
use byteback_mount::{Mount, MountOptions};
use byteback_volume::format::VolumeId;
use byteback_volume::{CreateOptions, create};

use crate::harness::require_fuse;

const LEN_BLOCKS: u64 = 1 << 14;

/// As many as one operation may leave in a minute.
const LINES_MAX: usize = 5;

/// A device that fails to write when it is told to.
#[derive(Debug)]
struct Failing {
    inner: RealBlockDevice,
    fails: Arc<AtomicBool>,
}

impl Failing {
    fn check(&self) -> io::Result<()> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

impl BlockDevice for Failing {
    fn len_blocks(&self) -> u64 {
        self.inner.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        self.inner.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        self.check()?;
        self.inner.write_blocks(first, blocks)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()?;
        self.inner.flush()
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.inner.discard(first, count)
    }
}

#[test]
fn io_error_leaves_few_lines_with_operation_and_path() {
    require_fuse();
    let dir = tempfile::Builder::new()
        .prefix("byteback-mount-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let device: Arc<dyn BlockDevice> = Arc::new(Failing {
        inner: RealBlockDevice::create(&image, LEN_BLOCKS).unwrap(),
        fails: Arc::clone(&fails),
    });
    create(&device, &CreateOptions::new(VolumeId([1; 16]), 1)).unwrap();
    let volume = VolumeTree::on(device, Path::new("volume"), Arc::new(RealClock)).unwrap();
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = Arc::clone(&said);
    let mut options = MountOptions::new(&tree);
    options.root = Some(Arc::new(volume.root()));
    options.report = Report::new(move |line| lines.lock().unwrap().push(line.to_owned()));
    let mount = Mount::start(&options, Arc::new(Tracked::new()), || Ok(())).unwrap();

    fs::create_dir(tree.join("dir")).unwrap();
    let path = tree.join("dir/file");
    fs::write(&path, [7; 10_000]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    assert!(File::open(tree.join("missing")).is_err());
    assert!(fs::create_dir(tree.join("dir")).is_err());
    assert!(fs::remove_dir(tree.join("dir")).is_err());
    assert_eq!(*said.lock().unwrap(), [""; 0]);

    fails.store(true, Ordering::Relaxed);
    file.set_len(20_000).unwrap();
    let failed = file.sync_all().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    // From its first failure on the volume is read-only.
    for _ in 0..100 {
        let failed = file.set_len(30_000).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EROFS));
    }
    let said = said.lock().unwrap().clone();
    let count = |start: &str| said.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("cannot sync \"dir/file\": Input/output error"), 1, "{said:?}");
    let refused = "cannot set the attributes of \"dir/file\": Read-only file system";
    assert_eq!(count(refused), LINES_MAX, "{said:?}");
    drop(file);
    drop(mount);
    drop(volume);
}
