//! Replay of a trace on a volume that is called as a library: FUSE costs nothing here, and the
//! device is counted below it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use byteback_host::block::{Access, BlockCounters, BlockDevice, CountedDevice, RealBlockDevice};
use byteback_volume::format::{Time, VolumeId};
use byteback_volume::{
    Allocate, Attributes, CreateOptions, NewFile, OpenOptions, Rename, SetAttribute, SetAttributes, Volume,
    VolumeError, create,
};
use rustix::fs::FileType;

use super::stage::Stage;
use crate::SuiteError;
use crate::rig::interrupt;
use crate::traces::Trace;
use crate::traces::operation::{Handle, Operation, Owner};

/// Bytes that are read or written at once when files are copied.
const STEP_LEN_BYTES: usize = 1 << 20;
/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// A volume in a file, with its device counted.
pub(crate) struct OnVolume<'a> {
    volume: Volume,
    device: Arc<CountedDevice<RealBlockDevice>>,
    trace: &'a Trace,
    handles: HashMap<Handle, u32>,
}

/// Creates a volume in a new file of `len_bytes`, with or without compression of pages, and copies
/// the tree below `content` into it.
///
/// # Errors
/// No room, or the system's error.
pub(crate) fn make(image: &Path, len_bytes: u64, is_compressed: bool, content: &Path) -> Result<(), SuiteError> {
    let len_blocks = len_bytes / byteback_host::block::BLOCK_LEN_BYTES as u64;
    let device: Arc<dyn BlockDevice> = Arc::new(RealBlockDevice::create(image, len_blocks)?);
    let options = CreateOptions {
        is_compressed,
        ..CreateOptions::new(VolumeId(*b"byteback's bench"), 1)
    };
    create(&device, &options)?;
    let volume = Volume::open(device, &OpenOptions::default())?;
    let mut names = HashMap::new();
    lay_in(&volume, volume.root(), content, &mut names)?;
    volume.close()?;
    Ok(())
}

/// Copies the tree below a folder of the machine into a directory of the volume. `names` maps
/// inodes of files that were copied already.
fn lay_in(volume: &Volume, dir: u32, folder: &Path, names: &mut HashMap<u64, u32>) -> Result<(), SuiteError> {
    interrupt::check()?;
    for entry in fs::read_dir(folder)? {
        let (name, path) = {
            let entry = entry?;
            (entry.file_name(), entry.path())
        };
        let (name, metadata) = (name.as_bytes(), fs::symlink_metadata(&path)?);
        let new = NewFile {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            device: 0,
        };
        if metadata.is_symlink() {
            volume.make_symlink(dir, name, fs::read_link(&path)?.as_os_str().as_bytes(), &new)?;
            continue;
        }
        if let Some(ino) = names.get(&metadata.ino()).filter(|_| !metadata.is_dir()) {
            volume.link(*ino, dir, name)?;
            continue;
        }
        let ino = volume.make(dir, name, &new)?.ino;
        names.insert(metadata.ino(), ino);
        if metadata.is_dir() {
            lay_in(volume, ino, &path, names)?;
        } else if metadata.is_file() {
            let mut file = File::open(&path)?;
            let mut bytes = vec![0; STEP_LEN_BYTES];
            let mut offset = 0;
            loop {
                let len = file.read(&mut bytes)?;
                if len == 0 {
                    break;
                }
                write_all(volume, ino, offset, &bytes[..len])?;
                offset += len as u64;
            }
        } else if !metadata.file_type().is_fifo() && !metadata.file_type().is_socket() {
            return Err(format!("{}: devices are not supported", path.display()).into());
        }
    }
    Ok(())
}

fn write_all(volume: &Volume, ino: u32, offset: u64, bytes: &[u8]) -> Result<(), SuiteError> {
    match volume.write(ino, offset, bytes)? {
        written if written == bytes.len() => Ok(()),
        written => Err(format!("only {written} of {} bytes were written", bytes.len()).into()),
    }
}

impl<'a> OnVolume<'a> {
    /// Opens a volume created by [`make`].
    ///
    /// # Errors
    /// The error of the device, or the volume.
    pub(crate) fn open(image: &Path, options: &OpenOptions, trace: &'a Trace) -> Result<Self, SuiteError> {
        let device = Arc::new(CountedDevice::new(RealBlockDevice::open(image, Access::ReadWrite)?));
        let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options)?;
        Ok(Self {
            volume,
            device,
            trace,
            handles: HashMap::new(),
        })
    }

    pub(crate) fn counters(&self) -> BlockCounters {
        self.device.counters()
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Closes the volume as an unmount does.
    ///
    /// # Errors
    /// The error of the device.
    pub(crate) fn close(self) -> Result<(), SuiteError> {
        Ok(self.volume.close()?)
    }

    /// Copies the whole volume into an empty folder of the machine.
    ///
    /// # Errors
    /// If a part cannot be read or written.
    pub(crate) fn lay_out(&self, folder: &Path) -> Result<(), SuiteError> {
        let mut names = HashMap::new();
        self.lay_out_below(self.volume.root(), folder, &mut names)
    }

    fn lay_out_below(
        &self,
        dir: u32,
        folder: &Path,
        names: &mut HashMap<u32, std::path::PathBuf>,
    ) -> Result<(), SuiteError> {
        use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
        let mut from = 0;
        loop {
            interrupt::check()?;
            let listed = self.volume.list(dir, from, 256)?;
            let Some(last) = listed.last() else {
                return Ok(());
            };
            from = last.next;
            for entry in listed {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let path = folder.join(std::ffi::OsStr::from_bytes(&entry.name));
                let attributes = self.volume.attributes(entry.ino)?;
                let permissions = fs::Permissions::from_mode(attributes.mode & PERMISSIONS);
                if let Some(first) = names.get(&entry.ino) {
                    fs::hard_link(first, &path)?;
                    continue;
                }
                match FileType::from_raw_mode(attributes.mode) {
                    FileType::Directory => {
                        fs::create_dir(&path)?;
                        self.lay_out_below(entry.ino, &path, names)?;
                        fs::set_permissions(&path, permissions)?;
                        self.lay_out_xattrs(entry.ino, &path)?;
                        continue;
                    }
                    FileType::Symlink => {
                        let target = self.volume.read_symlink(entry.ino)?;
                        symlink(std::ffi::OsStr::from_bytes(&target), &path)?;
                        continue;
                    }
                    FileType::RegularFile => {
                        let file = File::create(&path)?;
                        file.set_len(attributes.len_bytes)?;
                        let mut bytes = vec![0; STEP_LEN_BYTES];
                        let mut offset = 0;
                        while offset < attributes.len_bytes {
                            let len = self.volume.read(entry.ino, offset, &mut bytes)?;
                            file.write_all_at(&bytes[..len], offset)?;
                            offset += len as u64;
                        }
                        self.lay_out_xattrs(entry.ino, &path)?;
                        file.set_permissions(permissions)?;
                    }
                    other => {
                        let mode = rustix::fs::Mode::from_raw_mode(attributes.mode);
                        rustix::fs::mknodat(rustix::fs::CWD, &path, other, mode, 0)?;
                        fs::set_permissions(&path, permissions)?;
                    }
                }
                names.insert(entry.ino, path);
            }
        }
    }

    fn lay_out_xattrs(&self, ino: u32, path: &Path) -> Result<(), SuiteError> {
        for name in self.volume.xattr_names(ino)? {
            let value = self.volume.xattr(ino, &name)?;
            rustix::fs::setxattr(path, name.as_slice(), &value, rustix::fs::XattrFlags::empty())?;
        }
        Ok(())
    }

    /// The inode that a path names.
    pub(crate) fn find(&self, path: &Path) -> Result<u32, SuiteError> {
        let mut ino = self.volume.root();
        for component in path.components() {
            if let Component::Normal(name) = component {
                ino = self.volume.look_up(ino, name.as_bytes())?.ino;
            }
        }
        Ok(ino)
    }

    /// The directory of a path's last name, and that name.
    fn place<'p>(&self, path: &'p Path) -> Result<(u32, &'p [u8]), SuiteError> {
        let name = path.file_name().ok_or("the root has no name")?;
        let dir = self.find(path.parent().unwrap_or(Path::new("")))?;
        Ok((dir, name.as_bytes()))
    }

    /// The file that is open under a handle, or else that of a path.
    pub(crate) fn of(&self, handle: Option<Handle>, path: Option<&Path>) -> Result<Option<u32>, SuiteError> {
        if let Some(ino) = handle.and_then(|handle| self.handles.get(&handle)) {
            return Ok(Some(*ino));
        }
        path.map(|path| self.find(path)).transpose()
    }

    fn keep_open(&mut self, handle: Handle, ino: u32) {
        self.volume.hold(ino);
        self.handles.insert(handle, ino);
    }

    fn set(&self, ino: u32, set: SetAttributes) -> Result<(), SuiteError> {
        self.volume.set_attributes(ino, &set)?;
        Ok(())
    }

    fn new_file(mode: u32, owner: Option<Owner>) -> NewFile {
        let owner = owner.unwrap_or(Owner { uid: None, gid: None });
        NewFile {
            mode,
            uid: owner.uid.unwrap_or(0),
            gid: owner.gid.unwrap_or(0),
            device: 0,
        }
    }

    fn make_file(&self, path: &Path, mode: u32, owner: Option<Owner>) -> Result<Attributes, SuiteError> {
        let (dir, name) = self.place(path)?;
        Ok(self.volume.make(dir, name, &Self::new_file(mode, owner))?)
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Converts the mode bits of `fallocate`: keep the length 1, punch 2, zero 16.
fn allocate(mode: u32) -> Result<Allocate, SuiteError> {
    Ok(match mode {
        0 => Allocate::Room,
        1 => Allocate::RoomKeepingLength,
        3 => Allocate::Punch,
        16 => Allocate::Zero,
        17 => Allocate::ZeroKeepingLength,
        other => return Err(format!("fallocate with mode {other} is not supported").into()),
    })
}

impl Stage for OnVolume<'_> {
    fn carry_out(&mut self, operation: &Operation) -> Result<(), SuiteError> {
        match operation {
            Operation::Create {
                path,
                handle,
                mode,
                excl,
                owner,
            } => {
                let (dir, name) = self.place(path)?;
                let ino = match self.volume.look_up(dir, name) {
                    Ok(found) if !excl => found.ino,
                    Ok(_) => return Err(VolumeError::Exists.into()),
                    Err(VolumeError::NotFound) => {
                        let mode = FileType::RegularFile.as_raw_mode() | mode & PERMISSIONS;
                        self.volume.make(dir, name, &Self::new_file(mode, *owner))?.ino
                    }
                    Err(error) => return Err(error.into()),
                };
                self.keep_open(*handle, ino);
            }
            Operation::Open {
                path: Some(path),
                handle,
                trunc,
            } => {
                let ino = self.find(path)?;
                self.keep_open(*handle, ino);
                if *trunc {
                    let len_bytes = Some(0);
                    self.set(
                        ino,
                        SetAttributes {
                            len_bytes,
                            ..SetAttributes::default()
                        },
                    )?;
                }
            }
            Operation::Write { handle, offset, data } => {
                if let Some(ino) = self.handles.get(handle) {
                    write_all(&self.volume, *ino, *offset, self.trace.bytes(*data))?;
                }
            }
            Operation::Close { handle } => {
                if let Some(ino) = self.handles.remove(handle) {
                    self.volume.release_hold(ino, 1)?;
                }
            }
            Operation::Truncate {
                path,
                handle,
                len_bytes,
            } => {
                if let Some(ino) = self.of(*handle, path.as_deref())? {
                    let len_bytes = Some(*len_bytes);
                    self.set(
                        ino,
                        SetAttributes {
                            len_bytes,
                            ..SetAttributes::default()
                        },
                    )?;
                }
            }
            Operation::Fallocate {
                handle,
                mode,
                offset,
                len_bytes,
            } => {
                if let Some(ino) = self.handles.get(handle) {
                    self.volume.allocate(*ino, allocate(*mode)?, *offset, *len_bytes)?;
                }
            }
            Operation::Fsync { path, handle, .. } => {
                if let Some(ino) = self.of(*handle, path.as_deref())? {
                    self.volume.sync_file(ino)?;
                }
            }
            Operation::FsyncDir { path: Some(path) } => self.volume.sync_file(self.find(path)?)?,
            Operation::Rename { from, to, flags } => {
                let how = match flags {
                    1 => Rename::NoReplace,
                    2 => Rename::Exchange,
                    _ => Rename::Replace,
                };
                self.volume.rename(self.place(from)?, self.place(to)?, how)?;
            }
            Operation::Link { from, to } => {
                let (dir, name) = self.place(to)?;
                self.volume.link(self.find(from)?, dir, name)?;
            }
            Operation::Symlink { path, target, owner } => {
                let (dir, name) = self.place(path)?;
                let new = Self::new_file(FileType::Symlink.as_raw_mode() | 0o777, *owner);
                self.volume.make_symlink(dir, name, target.as_bytes(), &new)?;
            }
            Operation::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                self.volume.unlink(dir, name)?;
            }
            Operation::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                self.volume.remove_directory(dir, name)?;
            }
            Operation::Mkdir { path, mode, owner } => {
                let mode = FileType::Directory.as_raw_mode() | mode & PERMISSIONS;
                self.make_file(path, mode, *owner)?;
            }
            Operation::Mknod { path, mode, owner } => {
                self.make_file(path, *mode, *owner)?;
            }
            Operation::Chmod { path: Some(path), mode } => {
                let mode = Some(mode & PERMISSIONS);
                self.set(
                    self.find(path)?,
                    SetAttributes {
                        mode,
                        ..SetAttributes::default()
                    },
                )?;
            }
            Operation::Chown {
                path: Some(path),
                owner,
            } => {
                self.set(
                    self.find(path)?,
                    SetAttributes {
                        uid: owner.uid,
                        gid: owner.gid,
                        ..SetAttributes::default()
                    },
                )?;
            }
            Operation::SetTimes {
                path: Some(path),
                accessed_ns,
                modified_ns,
                now,
            } => {
                let time = |time_ns: Option<i64>| match now {
                    true => Some(Time::of_ns(now_ns())),
                    false => time_ns.map(Time::of_ns),
                };
                self.set(
                    self.find(path)?,
                    SetAttributes {
                        accessed: time(*accessed_ns),
                        modified: time(*modified_ns),
                        ..SetAttributes::default()
                    },
                )?;
            }
            Operation::SetXattr {
                path: Some(path),
                name,
                value,
            } => {
                let value = self.trace.bytes(*value);
                self.volume
                    .set_xattr(self.find(path)?, name.as_bytes(), value, SetAttribute::Any)?;
            }
            Operation::RemoveXattr { path: Some(path), name } => {
                self.volume.remove_xattr(self.find(path)?, name.as_bytes())?;
            }
            // Operations on files without a name, or nothing at all.
            Operation::Open { path: None, .. }
            | Operation::FsyncDir { path: None }
            | Operation::Chmod { path: None, .. }
            | Operation::Chown { path: None, .. }
            | Operation::SetTimes { path: None, .. }
            | Operation::SetXattr { path: None, .. }
            | Operation::RemoveXattr { path: None, .. }
            | Operation::Mark
            | Operation::Nothing => {}
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SuiteError> {
        self.volume.sync()?;
        // As the mount does while it is idle.
        self.volume.tidy()?;
        Ok(())
    }
}
