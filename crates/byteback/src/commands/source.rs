//! The repository that a listing command is about: named by `-r`, by the environment, or by the folder it is bound to.

use byteback_api::FolderName;
use byteback_api::messages::Snapshot;
use byteback_sync::{ServerClient, SnapshotSpec, resolve_snapshot};

use crate::arguments::SourceArguments;
use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::repository::Repository;
use crate::settings::Settings;
use crate::tracked_folder;

/// An opened repository.
pub(super) struct Source {
    pub(super) repository: Repository,
    pub(super) server: ServerClient,
}

impl Source {
    /// Finds and opens it.
    pub(super) fn open(arguments: &SourceArguments, settings: &Settings) -> Result<Self> {
        let binding = match (&arguments.dir, settings.repository()) {
            (None, Some(_)) => None,
            (Some(dir), _) => Some(tracked_folder::bound_folder(Some(dir), settings)?.binding),
            (None, None) => match tracked_folder::folder_here(settings)? {
                Some(folder) => Binding::read(&folder)?,
                None => None,
            },
        };
        let repository = settings
            .repository()
            .cloned()
            .or_else(|| binding.as_ref().map(|b| b.repository.clone()));
        let repository = repository.ok_or_else(|| {
            CommandError::with_exit(Exit::NoRepository, "no repository is named")
                .next("Use -r https://HOST:PORT/FOLDER, or --dir with a folder that is bound to one.")
        })?;
        let (server, _) = settings.connect(&repository.server, binding.as_ref())?;
        Ok(Self { repository, server })
    }

    pub(super) fn folder(&self) -> &FolderName {
        &self.repository.folder
    }

    /// Finds a snapshot.
    pub(super) fn snapshot(&self, spec: SnapshotSpec) -> Result<Snapshot> {
        Ok(resolve_snapshot(&self.server, self.folder(), spec)?)
    }
}
