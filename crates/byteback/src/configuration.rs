//! The configuration files: `/etc/byteback/config.toml`, then the user's `config.toml` over it.
//!
//! ```toml
//! [defaults]
//! repo = "http://backup.example.org:7117/mail"
//! token_file = "/etc/byteback/token"
//! progress_fps = 2
//! ```
//!
//! A key that is not known is an error that names it: a misspelt one would otherwise do nothing, silently.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{CommandError, Result};

/// The system's configuration folder.
const SYSTEM_DIR: &str = "/etc/byteback";

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
}

/// What holds unless a flag or a variable says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    /// The repository.
    pub(crate) repo: Option<String>,
    /// The file with the device token.
    pub(crate) token_file: Option<PathBuf>,
    /// How often progress is shown per second.
    pub(crate) progress_fps: Option<f64>,
}

impl Defaults {
    /// Reads both files; one that is missing is empty.
    pub(crate) fn read(user_dir: Option<&Path>) -> Result<Self> {
        let system = read_file(&Path::new(SYSTEM_DIR).join("config.toml"))?;
        let Some(user_dir) = user_dir else { return Ok(system) };
        let user = read_file(&user_dir.join("config.toml"))?;
        Ok(user.over(system))
    }

    fn over(self, below: Self) -> Self {
        Self {
            repo: self.repo.or(below.repo),
            token_file: self.token_file.or(below.token_file),
            progress_fps: self.progress_fps.or(below.progress_fps),
        }
    }
}

fn read_file(path: &Path) -> Result<Defaults> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Defaults::default())
        }
        Err(error) => Err(CommandError::file("read the configuration", path, &error)),
    }
}

fn parse(text: &str, path: &Path) -> Result<Defaults> {
    let file: File = toml::from_str(text).map_err(|error| {
        let error = error.to_string();
        CommandError::new(format!(
            "cannot understand the configuration {}:\n{}",
            path.display(),
            error.trim_end()
        ))
        .next("Known keys are repo, token_file and progress_fps, in the section [defaults].")
    })?;
    Ok(file.defaults)
}

#[cfg(test)]
mod tests;
