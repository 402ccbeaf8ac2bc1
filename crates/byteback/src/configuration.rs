//! The configuration files: `/etc/byteback/config.toml`, then the user's `config.toml` over it.
//!
//! ```toml
//! [defaults]
//! repo = "https://backup.example.org:7117/mail"
//! token_file = "/etc/byteback/token"
//! progress_fps = 2
//! undo_window = "30m"
//! undo_budget = "1G"
//!
//! [log]
//! granularity = "byte"
//! extents_per_file = 131072
//! extents_memory_mib = 16
//! consumers = 1000
//! warn_after_days = 90
//! drop_after_days = 180
//! ```
//!
//! An unknown key is an error that names the key: a misspelt one would otherwise silently do
//! nothing.

use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use byteback_oplog::{Granularity, LogOptions};
use clap::ValueEnum;
use serde::Deserialize;

use crate::error::{CommandError, Result};

/// The system's configuration folder.
const SYSTEM_DIR: &str = "/etc/byteback";

/// Both files, merged.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Configuration {
    /// The section `[defaults]`.
    #[serde(default)]
    pub(crate) defaults: Defaults,
    /// The section `[log]`.
    #[serde(default)]
    pub(crate) log: LogSection,
}

/// How operation logs are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSection {
    /// Unit of the changed ranges.
    pub(crate) granularity: Option<GranularityName>,
    /// Most ranges kept per file.
    pub(crate) extents_per_file: Option<NonZeroU32>,
    /// Most memory for the ranges of all files, in MiB.
    pub(crate) extents_memory_mib: Option<NonZeroU32>,
    /// Most consumers of one folder.
    pub(crate) consumers: Option<NonZeroU32>,
    /// Days of silence after which users are warned that a consumer will be dropped.
    pub(crate) warn_after_days: Option<u32>,
    /// Days of silence after which a consumer is dropped.
    pub(crate) drop_after_days: Option<u32>,
}

/// A granularity, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GranularityName {
    /// Exact bytes; beyond the limit of ranges, the closest ones are merged
    Byte,
    /// Pages of 4 KiB
    Page,
    /// Bytes up to the limit of ranges, then pages
    Adaptive,
}

impl LogSection {
    fn over(self, below: Self) -> Self {
        Self {
            granularity: self.granularity.or(below.granularity),
            extents_per_file: self.extents_per_file.or(below.extents_per_file),
            extents_memory_mib: self.extents_memory_mib.or(below.extents_memory_mib),
            consumers: self.consumers.or(below.consumers),
            warn_after_days: self.warn_after_days.or(below.warn_after_days),
            drop_after_days: self.drop_after_days.or(below.drop_after_days),
        }
    }

    /// The options of the log.
    pub(crate) fn options(self) -> LogOptions {
        let mut options = LogOptions::default();
        let days = |days: u32| Duration::from_secs(u64::from(days) * 24 * 60 * 60);
        if let Some(granularity) = self.granularity {
            options.granularity = match granularity {
                GranularityName::Byte => Granularity::Byte,
                GranularityName::Page => Granularity::Page,
                GranularityName::Adaptive => Granularity::Adaptive,
            };
        }
        if let Some(extents) = self.extents_per_file {
            options.extents_per_file_max = extents.get();
        }
        if let Some(memory) = self.extents_memory_mib {
            options.extents_memory_bytes = u64::from(memory.get()) << 20;
        }
        if let Some(consumers) = self.consumers {
            options.consumers_max = consumers.get();
        }
        if let Some(after) = self.warn_after_days {
            options.expiry.warn_after = days(after);
        }
        if let Some(after) = self.drop_after_days {
            options.expiry.drop_after = days(after);
        }
        options
    }
}

/// Defaults, which flags and environment variables override.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    /// The repository.
    pub(crate) repo: Option<String>,
    /// The file with the device token.
    pub(crate) token_file: Option<PathBuf>,
    /// Progress updates per second.
    pub(crate) progress_fps: Option<f64>,
    /// How long `mount` keeps overwritten bytes.
    pub(crate) undo_window: Option<String>,
    /// How many overwritten bytes `mount` keeps at most.
    pub(crate) undo_budget: Option<String>,
}

impl Configuration {
    /// Reads both files; a missing file counts as empty.
    pub(crate) fn read(user_dir: Option<&Path>) -> Result<Self> {
        let system = read_file(&Path::new(SYSTEM_DIR).join("config.toml"))?;
        let Some(user_dir) = user_dir else { return Ok(system) };
        let user = read_file(&user_dir.join("config.toml"))?;
        Ok(Self {
            defaults: user.defaults.over(system.defaults),
            log: user.log.over(system.log),
        })
    }
}

impl Defaults {
    fn over(self, below: Self) -> Self {
        Self {
            repo: self.repo.or(below.repo),
            token_file: self.token_file.or(below.token_file),
            progress_fps: self.progress_fps.or(below.progress_fps),
            undo_window: self.undo_window.or(below.undo_window),
            undo_budget: self.undo_budget.or(below.undo_budget),
        }
    }
}

fn read_file(path: &Path) -> Result<Configuration> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Configuration::default())
        }
        Err(error) => Err(CommandError::file("read the configuration", path, &error)),
    }
}

fn parse(text: &str, path: &Path) -> Result<Configuration> {
    toml::from_str(text).map_err(|error| {
        let error = error.to_string();
        CommandError::new(format!(
            "cannot parse the configuration {}:\n{}",
            path.display(),
            error.trim_end()
        ))
        .next(
            "Known keys are repo, token_file, progress_fps, undo_window and undo_budget in the section [defaults], and \
             granularity, extents_per_file, extents_memory_mib, consumers, warn_after_days and drop_after_days in the section [log].",
        )
    })
}

#[cfg(test)]
mod tests;
