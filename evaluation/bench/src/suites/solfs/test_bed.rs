//! The same folder in several variants: plain, mounted without tracking, and mounted with tracking
//! in both cache modes.
//!
//! All variants exist at the same time, each with its own backing folder, which was filled before
//! anything was mounted, so that a tracked mount knows the files as clean. Work is done in all of
//! them in turn.

use std::fs;
use std::path::{Path, PathBuf};

use byteback_daemon::StateFolder;
use byteback_mount::CacheMode;

use crate::SuiteError;
use crate::rig::hold::{Held, HeldMount};
use crate::rig::process::Cost;
use crate::rig::scheduling::Placement;

/// The way in which programs reach a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    /// Without a mount.
    Native,
    /// Mounted, mode `exact`, tracking off.
    Untracked,
    /// Mounted, mode `exact`: the default.
    Tracked,
    /// Mounted, mode `fast`.
    Fast,
}

impl Variant {
    pub(crate) const ALL: [Self; 4] = [Self::Native, Self::Untracked, Self::Tracked, Self::Fast];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Untracked => "mount, tracking off",
            Self::Tracked => "mount, tracking on",
            Self::Fast => "mount, mode fast",
        }
    }

    fn folder_name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Untracked => "off",
            Self::Tracked => "on",
            Self::Fast => "fast",
        }
    }
}

/// A variant that is ready for use.
pub(crate) struct Ready {
    pub(crate) variant: Variant,
    /// The folder, mounted over itself as users do.
    folder: PathBuf,
    /// The folder of the log.
    state: Option<PathBuf>,
    mount: Option<HeldMount>,
}

impl Ready {
    /// The folder with the files.
    pub(crate) fn root(&self) -> &Path {
        &self.folder
    }

    /// The cost of the daemon so far; nothing without a daemon.
    pub(crate) fn cost(&self) -> Result<Cost, SuiteError> {
        self.mount.as_ref().map_or(Ok(Cost::default()), HeldMount::cost)
    }

    /// The daemon's resident memory now.
    pub(crate) fn resident_bytes(&self) -> Result<u64, SuiteError> {
        self.mount.as_ref().map_or(Ok(0), HeldMount::resident_bytes)
    }

    /// The control socket of a tracked variant's daemon.
    pub(crate) fn socket(&self) -> Result<PathBuf, SuiteError> {
        let state = self.state.as_deref().ok_or("this variant tracks nothing")?;
        Ok(StateFolder::of(&self.folder, state)?.socket())
    }

    /// Bytes that the log's files take.
    pub(crate) fn log_file_bytes(&self) -> Result<u64, SuiteError> {
        self.state.as_deref().map_or(Ok(0), allocated_bytes)
    }

    /// Unmounts; the folder stays.
    pub(crate) fn unmount(&mut self) -> Result<(), SuiteError> {
        if let Some(mount) = self.mount.take() {
            mount.end()?;
        }
        Ok(())
    }
}

/// Creates the variants below the empty folder `place`. `fill` puts the files that the work needs
/// into a backing folder.
pub(crate) fn make(
    place: &Path,
    variants: &[Variant],
    placement: Placement,
    mut fill: impl FnMut(&Path) -> Result<(), SuiteError>,
) -> Result<Vec<Ready>, SuiteError> {
    let mut filled = Vec::new();
    for &variant in variants {
        let backing = place.join(variant.folder_name());
        fs::create_dir_all(&backing).map_err(|error| format!("cannot create {}: {error}", backing.display()))?;
        fill(&backing)?;
        filled.push((variant, backing));
    }
    // The initial files must not be written back during a measurement.
    sync_file_system(place)?;
    let mut ready = Vec::new();
    for (variant, backing) in filled {
        let name = variant.folder_name();
        let (state, mode) = match variant {
            Variant::Native => {
                ready.push(Ready {
                    variant,
                    folder: backing,
                    state: None,
                    mount: None,
                });
                continue;
            }
            Variant::Untracked => (None, CacheMode::Exact),
            Variant::Tracked => (Some(place.join(format!("{name}-state"))), CacheMode::Exact),
            Variant::Fast => (Some(place.join(format!("{name}-state"))), CacheMode::Fast),
        };
        let held = Held {
            directory: &backing,
            state: state.as_deref(),
            mode,
            placement,
            sync: None,
        };
        let mount = Some(HeldMount::start(&held, &place.join(format!("{name}.log")))?);
        ready.push(Ready {
            variant,
            folder: backing,
            state,
            mount,
        });
    }
    Ok(ready)
}

/// Writes back everything dirty of the file system that `path` is on.
pub(crate) fn sync_file_system(path: &Path) -> Result<(), SuiteError> {
    Ok(rustix::fs::syncfs(fs::File::open(path)?)?)
}

/// The space that the files below `folder` take on the disk.
pub(crate) fn allocated_bytes(folder: &Path) -> Result<u64, SuiteError> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() {
            allocated_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(sum)
}
