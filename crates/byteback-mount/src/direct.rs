//! Programs of this process that use a tree without a kernel in between: for simulations, in which
//! it must be known when each call is made.
//!
//! Each call is what the kernel would ask for when a program made it, and passes the same tree and
//! the same gate. The rest of the kernel's part is missing: nothing is cached or held back, no
//! permissions are checked and calls are not serialised, so that one is made at a time.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use byteback_host::tree::Inode;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, openat};

use crate::credentials::Caller;
use crate::inodes::InodeNumber;
use crate::landing::Landing;
use crate::live::LiveTree;
use crate::mounted_within::MountedWithin;
use crate::stores::Stores;
use crate::tracked::{Origin, Tracked};
use crate::tree::Tree;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;

/// A file that a program has open.
#[derive(Debug, PartialEq, Eq)]
pub struct DirectFile(u64);

/// See the module. Paths are relative to the tree's root.
#[derive(Debug)]
pub struct Direct {
    tree: Arc<Tree>,
    stores: Arc<Stores>,
}

fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: 0,
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Direct {
    /// Opens the tree at `directory`, with each modification through `tracked`.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn new(directory: &Path, tracked: Arc<Tracked>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::on(Inode::from(openat(CWD, directory, flags, Mode::empty())?), tracked)
    }

    /// The same for a tree that no directory of the machine is.
    ///
    /// # Errors
    /// If the root cannot be looked at.
    pub fn on(root: Inode, tracked: Arc<Tracked>) -> io::Result<Self> {
        let tree = Arc::new(Tree::new(root, tracked)?);
        let stores = Arc::new(Stores::without_kernel(Arc::clone(&tree)));
        Ok(Self { tree, stores })
    }

    /// The entrance for what others changed.
    #[must_use]
    pub fn landing(&self, live: LiveTree) -> Landing {
        let mounted = MountedWithin::new(Vec::new());
        Landing::new(Arc::clone(&self.tree), Arc::clone(&self.stores), live, mounted)
    }

    /// Calls `with` with a name and its directory.
    fn at<T>(&self, path: &Path, with: impl FnOnce(InodeNumber, &OsStr) -> io::Result<T>) -> io::Result<T> {
        let name = path.file_name().ok_or_else(missing)?;
        let mut parent = InodeNumber::ROOT;
        for component in path.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(name) = component else {
                return Err(missing());
            };
            let found = self.tree.lookup(parent, name)?.ok_or_else(missing)?;
            parent = found.interned.node;
        }
        with(parent, name)
    }

    fn node(&self, path: &Path) -> io::Result<InodeNumber> {
        self.at(path, |parent, name| {
            let found = self.tree.lookup(parent, name)?.ok_or_else(missing)?;
            Ok(found.interned.node)
        })
    }

    /// Makes a file under a name that is free, and opens it.
    ///
    /// # Errors
    /// As a file system's.
    pub fn create(&self, path: &Path, mode: u32) -> io::Result<DirectFile> {
        self.at(path, |parent, name| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let (_, handle, _) = self.tree.create(parent, name, creation(mode), flags)?;
            Ok(DirectFile(handle))
        })
    }

    /// Opens a file to be read and written.
    ///
    /// # Errors
    /// As a file system's.
    pub fn open(&self, path: &Path) -> io::Result<DirectFile> {
        let (handle, _) = self.tree.open(self.node(path)?, caller(), OFlags::RDWR)?;
        Ok(DirectFile(handle))
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As a file system's.
    pub fn write(&self, file: &DirectFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.tree.write(file.0, offset, bytes, Origin::Program, false)? {
            written if written.len_bytes == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Writes all of `bytes` behind the end, as a program does that opened the file to append.
    ///
    /// # Errors
    /// As a file system's.
    pub fn append(&self, file: &DirectFile, bytes: &[u8]) -> io::Result<()> {
        let offset = self.tree.open_file_stat(file.0)?.size;
        match self.tree.write(file.0, offset, bytes, Origin::Append, false)? {
            written if written.len_bytes == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Which inode a file is.
    ///
    /// # Errors
    /// As a file system's.
    pub fn inode(&self, file: &DirectFile) -> io::Result<u64> {
        Ok(self.tree.open_file_stat(file.0)?.ino)
    }

    /// Forces a file to the disk.
    ///
    /// # Errors
    /// As a file system's.
    pub fn sync(&self, file: &DirectFile) -> io::Result<()> {
        self.tree.sync(file.0, false)
    }

    /// Closes a file.
    pub fn close(&self, file: DirectFile) {
        self.tree.release(file.0);
    }

    /// Sets a file's length in bytes.
    ///
    /// # Errors
    /// As a file system's.
    pub fn truncate(&self, path: &Path, len_bytes: u64) -> io::Result<()> {
        let new = SetAttributes {
            len_bytes: Some(len_bytes),
            ..SetAttributes::default()
        };
        let node = self.node(path)?;
        self.tree.set_attributes(node, None, caller(), &new).map(drop)
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// As a file system's.
    pub fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let new = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let node = self.node(path)?;
        self.tree.set_attributes(node, None, caller(), &new).map(drop)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As a file system's.
    pub fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.at(path, |parent, name| {
            self.tree.mkdir(parent, name, creation(mode)).map(drop)
        })
    }

    /// Makes a symlink.
    ///
    /// # Errors
    /// As a file system's.
    pub fn make_symlink(&self, path: &Path, target: &OsStr) -> io::Result<()> {
        self.at(path, |parent, name| {
            self.tree.symlink(parent, name, caller(), target).map(drop)
        })
    }

    /// Gives what has the name `path` one more.
    ///
    /// # Errors
    /// As a file system's.
    pub fn link(&self, path: &Path, new: &Path) -> io::Result<()> {
        let node = self.node(path)?;
        self.at(new, |parent, name| self.tree.link(node, parent, name).map(drop))
    }

    /// Removes a name of something else than a directory.
    ///
    /// # Errors
    /// As a file system's.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.at(path, |parent, name| self.tree.unlink(parent, name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As a file system's.
    pub fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.at(path, |parent, name| self.tree.rmdir(parent, name))
    }

    /// Moves a name, over what the other one stands for.
    ///
    /// # Errors
    /// As a file system's.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Exchanges two names.
    ///
    /// # Errors
    /// As a file system's.
    pub fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.rename_with(one, other, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.at(from, |parent, name| {
            self.at(to, |new_parent, new_name| {
                self.tree.rename(parent, name, new_parent, new_name, flags)
            })
        })
    }
}

fn creation(mode: u32) -> Creation {
    Creation {
        caller: caller(),
        umask: 0,
        mode,
    }
}
