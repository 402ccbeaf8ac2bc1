//! Files that are read and replaced as a whole.

use std::io;
use std::sync::Arc;

use super::{DurableDir, DurableFile, OpenMode};

/// Makes `bytes` the contents of the file `name`, durably and at once: a crash leaves the old file
/// or the new one. The bytes are synced under the name `NAME.new`, the file renamed, the directory
/// synced. Returns the new file.
///
/// # Errors
/// The system's error. The old file is then still there, unless the sync of the directory failed:
/// a crash may leave either. The file beside it is removed, as far as possible.
pub fn replace(dir: &dyn DurableDir, name: &str, bytes: &[u8]) -> io::Result<Arc<dyn DurableFile>> {
    let new_name = format!("{name}.new");
    let write = || -> io::Result<Arc<dyn DurableFile>> {
        // The rest of an earlier attempt: a file of its own shows nothing of that.
        match dir.remove(&new_name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = dir.open(&new_name, OpenMode::CreateNew)?;
        file.write_all_at(0, bytes)?;
        file.sync_data()?;
        dir.rename(&new_name, name)?;
        Ok(file)
    };
    let file = write().inspect_err(|_| {
        // Half a file takes room that others need; if it cannot go now, the next attempt removes
        // it.
        let _ = dir.remove(&new_name);
    })?;
    dir.sync()?;
    Ok(file)
}

/// The contents of the file `name`; `None` if no such file exists.
///
/// # Errors
/// The system's error; `FileTooLarge` if the file has more than `len_max_bytes`.
pub fn read_whole(dir: &dyn DurableDir, name: &str, len_max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match dir.open(name, OpenMode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len_bytes = file.len()?;
    if len_bytes > len_max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has {len_bytes} bytes"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(len_bytes).map_err(io::Error::other)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(Some(bytes))
}
