//! The repository of a listing command: named by `-r`, by the environment, or by the folder that is
//! bound to it.

use std::path::Path;

use byteback_api::FolderName;
use byteback_api::problem::Code;
use byteback_backup::{BackupError, SnapshotSpec, resolve_snapshot};
use byteback_client::ServerClient;
use byteback_model::Snapshot;

use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::repository::Repository;
use crate::settings::Settings;
use crate::snapshot_path::SnapshotPath;
use crate::tracked_folder;

/// An opened repository.
pub(super) struct Source {
    pub(super) repository: Repository,
    pub(super) server: ServerClient,
}

impl Source {
    /// Finds and opens the repository.
    pub(super) fn open(dir: Option<&Path>, settings: &Settings) -> Result<Self> {
        let binding = match (dir, settings.repository()) {
            (None, Some(_)) => None,
            (Some(dir), _) => Some(tracked_folder::bound_folder(Some(dir), settings)?.binding),
            (None, None) => match tracked_folder::folder_of_current_dir(settings)? {
                Some(folder) => Binding::read(&folder)?,
                None => None,
            },
        };
        let repository = settings
            .repository()
            .cloned()
            .or_else(|| binding.as_ref().map(|b| b.repository.clone()));
        let repository = repository.ok_or_else(|| {
            CommandError::with_exit(Exit::NoRepository, "no repository is given")
                .next("Name a folder that is bound to a server, or use -r https://HOST:PORT/FOLDER.")
        })?;
        let (server, _) = settings.connect(&repository.server, binding.as_ref())?;
        Ok(Self { repository, server })
    }

    pub(super) fn folder(&self) -> &FolderName {
        &self.repository.folder
    }

    /// The error of a request for `what`; a file missing in the snapshot is reported in the user's
    /// terms.
    pub(super) fn in_snapshot(&self, error: BackupError, what: &SnapshotPath) -> CommandError {
        let code = match &error {
            BackupError::Server(error) => error.problem.as_ref().map(|problem| problem.code),
            _ => None,
        };
        let (Some(Code::NodeNotFound), Ok(snapshot)) = (code, self.snapshot(what.snapshot)) else {
            return error.into();
        };
        let (id, path) = (snapshot.id, what.path_text());
        CommandError::new(format!("snapshot {id} has no file \"{path}\"")).next(format!(
            "'byteback ls {id}' lists its contents; paths begin at the folder that was saved."
        ))
    }

    /// Finds a snapshot.
    pub(super) fn snapshot(&self, spec: SnapshotSpec) -> Result<Snapshot> {
        Ok(resolve_snapshot(&self.server, self.folder(), spec)?)
    }
}
