//! `byteback invite`: a join token for one more machine, also while the server runs.

use std::path::PathBuf;

use byteback_store::token;
use clap::Args;
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::settings::Settings;
use crate::timestamp;

/// How long a join token may wait to be used: a week, for a machine that is only being set up.
pub(crate) const JOIN_TOKEN_VALID_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// Flags of `invite`.
#[derive(Args, Debug)]
#[command(
    after_help = "The token is printed once and can be used once, within a week. Pass it on privately, for example:
  byteback invite --data /srv/backup | ssh HOST byteback init DIR -r URL --join-token -"
)]
pub(crate) struct InviteArguments {
    /// The server's data folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

#[derive(Serialize)]
struct Summary {
    join_token: String,
    expires: String,
}

pub(crate) fn run(arguments: &InviteArguments, settings: &Settings) -> Result<()> {
    let data = &arguments.data;
    if !data.join("catalog.sqlite").exists() {
        return Err(
            CommandError::with_exit(Exit::NoRepository, format!("there is no store in {}", data.display()))
                .next("Name the folder that 'byteback serve --data' was started with."),
        );
    }
    let join_token = token::invite(data, JOIN_TOKEN_VALID_NS)?;
    let expires = timestamp::rfc3339(timestamp::now_ns().saturating_add(JOIN_TOKEN_VALID_NS));
    let output = settings.output;
    if output.json {
        return output.object("summary", &Summary { join_token, expires });
    }
    output.line(join_token)
}
