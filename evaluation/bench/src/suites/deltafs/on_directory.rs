//! Replay of a trace on a file system of the kernel, on a loop device with the kernel's own
//! counters.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::stage::Stage;
use crate::SuiteError;
use crate::rig::process::{program, run};
use crate::rig::scratch::Scratch;
use crate::traces::operation::Operation;
use crate::traces::{Replayer, Trace};

/// Linux counts sectors of this length, whatever the device's is.
const SECTOR_LEN_BYTES: u64 = 512;

/// A file system, and the way to create and mount it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileSystem {
    Ext4,
    Btrfs,
    BtrfsZstd,
    F2fs,
    /// Never writes in place, as in the paper's measurements.
    F2fsLfs,
    F2fsCompressed,
}

impl FileSystem {
    /// File systems that many kernels lack; they are measured in a virtual machine.
    pub(crate) const IN_GUEST: [Self; 3] = [Self::F2fs, Self::F2fsLfs, Self::F2fsCompressed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::BtrfsZstd => "btrfs, zstd",
            Self::F2fs => "F2FS",
            Self::F2fsLfs => "F2FS, lfs",
            Self::F2fsCompressed => "F2FS, compressed",
        }
    }

    /// The program that creates it, and its arguments.
    fn maker(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F"]),
            Self::Btrfs | Self::BtrfsZstd => ("mkfs.btrfs", &["-q", "--force"]),
            Self::F2fs | Self::F2fsLfs => ("mkfs.f2fs", &["-q", "-f"]),
            Self::F2fsCompressed => ("mkfs.f2fs", &["-q", "-f", "-O", "extra_attr,compression"]),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs | Self::BtrfsZstd => "btrfs",
            Self::F2fs | Self::F2fsLfs | Self::F2fsCompressed => "f2fs",
        }
    }

    /// The mount options: none updates access times, like the volume.
    fn options(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Btrfs | Self::F2fs => "noatime",
            Self::BtrfsZstd => "noatime,compress=zstd",
            Self::F2fsLfs => "noatime,mode=lfs",
            Self::F2fsCompressed => "noatime,compress_algorithm=lz4,compress_extension=*",
        }
    }
}

/// A file system that is mounted until this is dropped.
pub(crate) struct Mounted {
    point: PathBuf,
    /// A device, or an image that is mounted through a loop device.
    device: PathBuf,
    is_image: bool,
    system: FileSystem,
    is_mounted: bool,
}

impl Mounted {
    /// Creates one in an image, and mounts it.
    ///
    /// # Errors
    /// If it cannot be created or mounted: not root, no loop devices, no support in the kernel.
    pub(crate) fn make(scratch: &Scratch, system: FileSystem, len_bytes: u64) -> Result<Self, SuiteError> {
        let device = make_image(scratch, system, len_bytes)?;
        let point = scratch.path().join(format!("{system:?}"));
        fs::create_dir_all(&point)?;
        Self::mount_at(device, true, system, point)
    }

    /// Mounts one from a device.
    ///
    /// # Errors
    /// As [`Mounted::make`].
    pub(crate) fn on_device(device: &Path, system: FileSystem, point: &Path) -> Result<Self, SuiteError> {
        Self::mount_at(device.to_owned(), false, system, point.to_owned())
    }

    fn mount_at(device: PathBuf, is_image: bool, system: FileSystem, point: PathBuf) -> Result<Self, SuiteError> {
        let mut made = Self {
            point,
            device,
            is_image,
            system,
            is_mounted: false,
        };
        made.mount()?;
        Ok(made)
    }

    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// The device or image.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    fn mount(&mut self) -> Result<(), SuiteError> {
        let options = match self.is_image {
            true => format!("loop,{}", self.system.options()),
            false => self.system.options().to_owned(),
        };
        let mut mount = program("mount");
        mount.args(["-t", self.system.kind(), "-o", &options]);
        run(mount.args([&self.device, &self.point]))?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), SuiteError> {
        run(program("umount").arg(&self.point))?;
        self.is_mounted = false;
        Ok(())
    }

    /// Unmounts and mounts it again, so that nothing of it is in memory, neither above nor below
    /// it.
    ///
    /// # Errors
    /// If the file system is in use.
    pub(crate) fn mount_again(&mut self) -> Result<(), SuiteError> {
        self.unmount()?;
        forget_image(&self.device)?;
        self.mount()
    }

    /// Bytes written to its device so far; only differences are meaningful.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub(crate) fn written_bytes(&self) -> Result<u64, SuiteError> {
        let table = fs::read_to_string("/proc/self/mounts")?;
        let point = self.point.to_str().ok_or("a path that is not UTF-8")?;
        let line = table
            .lines()
            .rev()
            .find(|line| line.split(' ').nth(1) == Some(point))
            .ok_or_else(|| format!("{point} is not mounted"))?;
        let device = line.split(' ').next().and_then(|device| device.rsplit('/').next());
        written_bytes_of(device.unwrap_or_default())
    }
}

/// Creates an image with an empty file system.
///
/// # Errors
/// If the program that creates it is missing, or there is no room.
pub(crate) fn make_image(scratch: &Scratch, system: FileSystem, len_bytes: u64) -> Result<PathBuf, SuiteError> {
    let image = scratch.path().join(format!("{system:?}.image"));
    File::create(&image)?.set_len(len_bytes)?;
    let (maker, arguments) = system.maker();
    run(program(maker).args(arguments).arg(&image))?;
    Ok(image)
}

/// Bytes written to the block device of this name.
///
/// # Errors
/// If the kernel does not report it.
fn written_bytes_of(device: &str) -> Result<u64, SuiteError> {
    let path = format!("/sys/block/{device}/stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let sectors: u64 = text
        .split_whitespace()
        .nth(6)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| format!("{path} has no counter of written sectors"))?;
    Ok(sectors * SECTOR_LEN_BYTES)
}

/// Writes an image's dirty pages back and drops it from the page cache.
///
/// # Errors
/// The system's error.
pub(crate) fn forget_image(image: &Path) -> Result<(), SuiteError> {
    let file = File::open(image)?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            // The scratch folder unmounts it if this fails.
            let _ = self.unmount();
        }
        if self.is_image {
            let _ = fs::remove_file(&self.device);
        }
    }
}

/// Replays a trace in a folder.
pub(crate) struct OnDirectory<'a> {
    replayer: Replayer<'a>,
    root: File,
}

impl<'a> OnDirectory<'a> {
    /// A replay before its first operation; `target` holds the initial tree.
    ///
    /// # Errors
    /// If the folder cannot be opened.
    pub(crate) fn begin(trace: &'a Trace, target: &'a Path) -> Result<Self, SuiteError> {
        Ok(Self {
            replayer: Replayer::begin(trace, target, true)?,
            root: File::open(target)?,
        })
    }
}

impl Stage for OnDirectory<'_> {
    fn carry_out(&mut self, operation: &Operation) -> Result<(), SuiteError> {
        Ok(self.replayer.carry_out(operation)?)
    }

    fn sync(&mut self) -> Result<(), SuiteError> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}
