//! A btrfs in an image file below the scratch folder, mounted as long as the scratch folder lives,
//! which unmounts it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::process::{program, run};
use super::scratch::Scratch;
use crate::SuiteError;

/// Creates and mounts it, and returns its mount point. `checksum` is its kind of checksums, as in
/// `mkfs.btrfs --csum`; `len_bytes` is its size, of which the image takes only the used part.
///
/// # Errors
/// If it cannot be created or mounted: not root, no loop devices, or a kernel without btrfs.
pub(crate) fn mount(scratch: &Scratch, checksum: &str, len_bytes: u64) -> Result<PathBuf, SuiteError> {
    let image = scratch.path().join(format!("btrfs-{checksum}.image"));
    File::create(&image)?.set_len(len_bytes)?;
    let point = scratch.folder(&format!("btrfs-{checksum}"))?;
    let made = make(&image, checksum).and_then(|()| run(program("mount").args(["-o", "loop"]).args([&image, &point])));
    match made {
        Ok(_) => Ok(point),
        Err(error) => {
            fs::remove_dir(&point)?;
            fs::remove_file(&image)?;
            Err(error)
        }
    }
}

fn make(image: &Path, checksum: &str) -> Result<(), SuiteError> {
    run(program("mkfs.btrfs").args(["-q", "--csum", checksum]).arg(image))?;
    Ok(())
}
