//! Errors of a volume, and the remedy for each.

use std::io;

use crate::format::{Address, Nid};

/// Result of a call to a volume.
pub type Result<T, E = VolumeError> = std::result::Result<T, E>;

/// Errors of a volume, see each case. [`VolumeError::errno`] is the number returned to programs.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] io::Error),
    /// The device holds something else, or nothing.
    #[error("not a Byteback volume; 'byteback volume create' makes one, and erases what is there")]
    NotAVolume,
    /// The volume was created by a later version.
    #[error("the volume has format version {found}, but this program supports at most {known}; update Byteback")]
    NewerVersion {
        /// The volume's version.
        found: u32,
        /// The last version that this program knows.
        known: u32,
    },
    /// The volume uses a feature that this version does not know.
    #[error("the volume uses features that this program does not support ({0:#x}); update Byteback")]
    UnknownFeatures(u64),
    /// The device is smaller than the volume.
    #[error(
        "the volume has {volume_blocks} blocks of 4 KiB, but the device {device_blocks}: \
         its end is missing; copy it again"
    )]
    CutOff {
        /// The length of the volume.
        volume_blocks: u64,
        /// The length of the device.
        device_blocks: u64,
    },
    /// The volume would be too small to be of use.
    #[error("a volume needs at least {min_bytes} bytes, but this device has {device_bytes}")]
    TooSmall {
        /// The least length.
        min_bytes: u64,
        /// The length of the device.
        device_bytes: u64,
    },
    /// The volume would be too large for its addresses.
    #[error(
        "a volume can have at most {max_bytes} bytes, but this device has {device_bytes}; create it with a smaller size"
    )]
    TooLarge {
        /// The greatest length.
        max_bytes: u64,
        /// The length of the device.
        device_bytes: u64,
    },
    /// A block does not hold what was written there.
    #[error("block {address} ({what}) is damaged; 'byteback volume check' shows what is lost")]
    Damaged {
        /// The block's address.
        address: Address,
        /// The expected content.
        what: &'static str,
    },
    /// The device cannot read a block.
    #[error("cannot read block {address}: {source}; 'byteback volume check' shows what is lost")]
    Unreadable {
        /// The block's address.
        address: Address,
        /// The error of the device.
        source: io::Error,
    },
    /// A node that something refers to is missing.
    #[error("node {nid} ({what}) is missing; 'byteback volume check' shows what is lost")]
    Missing {
        /// The node.
        nid: Nid,
        /// The expected content.
        what: &'static str,
    },
    /// The volume is full.
    #[error("the volume is full; remove something first")]
    Full,
    /// The file does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("the name already exists")]
    Exists,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The operation needs something other than a directory.
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name is longer than 255 bytes, empty, or contains a slash or a zero.
    #[error("a name must have 1 to 255 bytes, without '/' and NUL")]
    BadName,
    /// The request makes no sense here.
    #[error("{0}")]
    Invalid(&'static str),
    /// The file would become longer than a file may be.
    #[error("a file on this volume can have at most {0} bytes")]
    FileTooLarge(u64),
    /// The file has as many names as a file may have.
    #[error("a file can have at most {0} names")]
    TooManyLinks(u32),
    /// The attribute does not exist.
    #[error("no such extended attribute")]
    NoAttribute,
    /// The extended attributes of the file would take more room than there is for them.
    #[error("the extended attributes of a file can have at most {0} bytes")]
    AttributesTooLarge(usize),
    /// An earlier error made further writing impossible.
    #[error("the volume became read-only after a failure: {0}; unmount it and run 'byteback volume check'")]
    Stopped(String),
    /// The volume was opened for reading only.
    #[error("the volume is open read-only")]
    ReadOnly,
}

impl VolumeError {
    /// Whether a part of the volume is lost, and nothing else is wrong: the rest can be used.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Missing { .. } | Self::Unreadable { .. }
        )
    }

    /// The system's number for the error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Device(error) | Self::Unreadable { source: error, .. } => {
                return byteback_host::errno_of(error).unwrap_or(Errno::IO.raw_os_error());
            }
            Self::NotAVolume
            | Self::NewerVersion { .. }
            | Self::UnknownFeatures(_)
            | Self::CutOff { .. }
            | Self::TooSmall { .. }
            | Self::TooLarge { .. }
            | Self::Invalid(_)
            | Self::BadName => Errno::INVAL,
            Self::Damaged { .. } | Self::Missing { .. } => Errno::IO,
            Self::Full => Errno::NOSPC,
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotADirectory => Errno::NOTDIR,
            Self::IsADirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::FileTooLarge(_) => Errno::FBIG,
            Self::TooManyLinks(_) => Errno::MLINK,
            Self::NoAttribute => Errno::NODATA,
            Self::AttributesTooLarge(_) => Errno::NOSPC,
            Self::Stopped(_) | Self::ReadOnly => Errno::ROFS,
        };
        errno.raw_os_error()
    }
}
