//! restic with a repository in a folder of this machine, as its users run it; no network between.

use std::path::{Path, PathBuf};

use super::process::{Finished, program, run};
use crate::SuiteError;

/// restic always encrypts; this opens repositories of measurements.
const PASSWORD: &str = "measured";

/// A repository.
#[derive(Debug)]
pub(crate) struct Restic {
    repository: PathBuf,
    cache: PathBuf,
}

/// Whether the program is installed.
pub(crate) fn is_installed() -> bool {
    version().is_ok()
}

/// The version of the program.
pub(crate) fn version() -> Result<String, SuiteError> {
    let text = run(program("restic").arg("version"))?.text();
    Ok(text
        .split_whitespace()
        .nth(1)
        .unwrap_or("of unknown version")
        .to_owned())
}

impl Restic {
    /// Makes a repository in the folder `repository`. `cache` is for what restic remembers on the
    /// client.
    pub(crate) fn create(repository: &Path, cache: &Path) -> Result<Self, SuiteError> {
        let this = Self {
            repository: repository.to_owned(),
            cache: cache.to_owned(),
        };
        this.run("init", &[])?;
        Ok(this)
    }

    /// The folder of the repository.
    pub(crate) fn repository(&self) -> &Path {
        &self.repository
    }

    /// Backs up the contents of `folder`.
    pub(crate) fn backup(&self, folder: &Path) -> Result<Finished, SuiteError> {
        self.run("backup", &[folder])
    }

    /// Restores the newest backup below `target`, at the path that `folder` has in full. Returns
    /// that path with the cost.
    pub(crate) fn restore(&self, folder: &Path, target: &Path) -> Result<(PathBuf, Finished), SuiteError> {
        let finished = self.run("restore", &[Path::new("latest"), Path::new("--target"), target])?;
        let below = folder.strip_prefix("/").unwrap_or(folder);
        Ok((target.join(below), finished))
    }

    fn run(&self, command: &str, arguments: &[&Path]) -> Result<Finished, SuiteError> {
        let mut restic = program("restic");
        restic
            .env("RESTIC_PASSWORD", PASSWORD)
            .arg("--repo")
            .arg(&self.repository)
            .arg("--cache-dir")
            .arg(&self.cache)
            .args(["--quiet", command])
            .args(arguments);
        run(&mut restic)
    }
}
