//! A server with a new address: everything that this machine keeps under the old address is moved
//! to the new one, for all folders at once.
//!
//! Order: the token under the new address; of each folder the record of its sync, then its binding;
//! the token under the old address last. After a crash in between, the same command run again
//! completes the move.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use byteback_control::TreeService;
use byteback_daemon::StateFolder;
use byteback_host::durable::{DurableDir, RealDir};
use byteback_sync::standing::Standing;

use crate::binding::Binding;
use crate::credentials::{self, Credentials};
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::repository::Repository;
use crate::settings::Settings;
use crate::throttling;
use crate::tracked_folder;

/// Moves everything from `old` to `new` and returns the folders. `is_proven` says that the same
/// server is already known to answer at `new`; otherwise it is asked.
pub(crate) fn follow(old: &str, new: &str, is_proven: bool, settings: &Settings) -> Result<Vec<PathBuf>> {
    let mut bound: Vec<(StateFolder, Binding)> = Vec::new();
    for folder in tracked_folder::known_folders(settings)? {
        match Binding::read(&folder)? {
            Some(binding) if binding.repository.server == old => bound.push((folder, binding)),
            _ => {}
        }
    }
    for (folder, _) in &bound {
        refuse_running(folder)?;
    }
    let (old_path, new_path) = (settings.token_path(old, None)?, settings.token_path(new, None)?);
    let own = bound.iter().filter_map(|(_, binding)| binding.token_file.clone());
    let paths: BTreeSet<PathBuf> = own.chain([old_path.clone()]).collect();
    let mut is_known = credentials::read(&new_path)?.is_some_and(|known| known.server == new);
    for path in &paths {
        let Some(known) = credentials::read(path)?.filter(|known| known.server == old) else {
            continue;
        };
        let moved = Credentials {
            server: new.to_owned(),
            addresses: known
                .addresses
                .iter()
                .filter(|other| !new.ends_with(other.as_str()))
                .cloned()
                .collect(),
            ..known
        };
        if !is_proven {
            // The client checks certificate or name as always; and the server must know this
            // machine.
            settings.client(&moved)?.folders()?;
        }
        let to = if *path == old_path { &new_path } else { path };
        credentials::write(to, &moved)?;
        is_known = true;
    }
    if !is_known {
        return Err(
            CommandError::with_exit(Exit::WrongCredentials, format!("this machine has no token for {old}"))
                .next("'byteback status' shows which servers its folders belong to."),
        );
    }
    for (folder, binding) in &bound {
        let path = folder.path().join(throttling::DIR_NAME);
        if path.is_dir() {
            let dir = RealDir::open(&path).map_err(|error| CommandError::file("open", &path, &error))?;
            let dir: Arc<dyn DurableDir> = Arc::new(dir);
            Standing::follow(&dir, old, new).map_err(|error| CommandError::new(error.to_string()))?;
        }
        let repository = Repository {
            server: new.to_owned(),
            folder: binding.repository.folder.clone(),
        };
        let binding = Binding {
            repository,
            ..binding.clone()
        };
        binding.write(folder)?;
    }
    if old_path != new_path && credentials::read(&old_path)?.is_some_and(|known| known.server == old) {
        fs::remove_file(&old_path).map_err(|error| CommandError::file("remove", &old_path, &error))?;
    }
    Ok(bound
        .into_iter()
        .map(|(folder, _)| folder.directory().to_owned())
        .collect())
}

/// A running sync would go on with the old address, and note it again.
fn refuse_running(folder: &StateFolder) -> Result<()> {
    match tracked_folder::daemon(folder)? {
        Some(daemon) if daemon.status()?.sync.is_some() => {
            let directory = folder.directory().display();
            Err(
                CommandError::with_exit(Exit::Locked, format!("{directory} is being kept in sync")).next(format!(
                    "Stop it first: byteback umount {directory}    (afterwards: byteback sync {directory})"
                )),
            )
        }
        _ => Ok(()),
    }
}
