//! The common part of `push` and `pull`: their flags, and access to a server without a bound
//! folder.

use std::path::PathBuf;

use byteback_backup::Exclude;
use byteback_client::ServerClient;
use clap::Args;

use super::init::{JoinArguments, join_server, known_credentials};
use crate::binding::Binding;
use crate::credentials::Credentials;
use crate::error::{CommandError, Result};
use crate::repository::Repository;
use crate::settings::Settings;
use crate::throttling::rate;

/// Flags of both.
#[derive(Args, Debug)]
pub(super) struct PlainArguments {
    /// Show what would be done, without doing it
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Remove at the destination what the source does not have
    #[arg(long)]
    pub(super) delete: bool,
    /// Leave alone paths that match this pattern, as in a .gitignore; may be given several times
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Read exclude patterns from this file, one per line; may be given several times
    #[arg(long, value_name = "FILE")]
    exclude_file: Vec<PathBuf>,
    /// Compare contents even where length and time are the same
    #[arg(short = 'c', long)]
    pub(super) checksum: bool,
    /// Limit the traffic per second, both directions together: 500K, 2M
    #[arg(long, value_name = "RATE")]
    bwlimit: Option<String>,
    #[command(flatten)]
    join: JoinArguments,
}

impl PlainArguments {
    /// The exclude patterns, those from files first.
    pub(super) fn exclude(&self) -> Result<Exclude> {
        let mut patterns = Vec::new();
        for path in &self.exclude_file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| CommandError::file("read the patterns in", path, &error))?;
            patterns.extend(text.lines().map(str::to_owned));
        }
        patterns.extend(self.exclude.iter().cloned());
        Ok(Exclude::new(patterns)?)
    }

    /// A client of the server. With a join token, this machine joins first if it has not joined
    /// yet.
    pub(super) fn connect(
        &self,
        repository: &Repository,
        binding: Option<&Binding>,
        settings: &Settings,
    ) -> Result<(ServerClient, Credentials)> {
        let limit = match &self.bwlimit {
            None => None,
            Some(text) => Some(rate(text)?),
        };
        if self.join.is_given() {
            let token_path = settings.token_path(&repository.server, binding)?;
            if known_credentials(&self.join, settings, repository, &token_path)?.is_none() {
                join_server(&self.join, settings, repository, &token_path)?;
            }
        }
        settings.connect_limited(&repository.server, binding, limit)
    }
}
