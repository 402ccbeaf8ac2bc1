//! `byteback server`: what this machine knows about the servers that it uses.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::moved_server;
use crate::repository::Repository;
use crate::settings::Settings;
use crate::wording::counted;

/// Flags of `server`.
#[derive(Args, Debug)]
pub(crate) struct ServerArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Move all folders of this machine, and its token, to the new address, port or name of a
    /// server
    #[command(after_help = "Example:
  byteback server set-address https://192.0.2.7:7117 https://backup.example.org:7117

The server must answer there, with the certificate that this machine knows. No files are sent or
compared again. Joining again with a code that names the new address does the same.")]
    SetAddress {
        /// Old address, as 'byteback status' shows it: https://HOST:PORT
        #[arg(value_name = "OLD")]
        old: String,
        /// New address: https://HOST:PORT
        #[arg(value_name = "NEW")]
        new: String,
    },
}

#[derive(Serialize)]
struct Summary {
    old: String,
    new: String,
    directories: Vec<String>,
}

pub(crate) fn run(arguments: &ServerArguments, settings: &Settings) -> Result<()> {
    let What::SetAddress { old, new } = &arguments.what;
    let (old, new) = (address(old)?, address(new)?);
    let moved = moved_server::follow(&old, &new, false, settings)?;
    let directories: Vec<String> = moved.iter().map(|directory| directory.display().to_string()).collect();
    let output = settings.output;
    if output.json {
        return output.object("summary", &Summary { old, new, directories });
    }
    let folders = counted(directories.len() as u64, "folder belongs", "folders belong");
    output.say(format!("{folders} to {new} from now on."))?;
    for directory in directories {
        output.say(format!("  {directory}"))?;
    }
    Ok(())
}

/// Parses an address into the form in which it is recorded.
fn address(text: &str) -> Result<String> {
    let folder = format!("{}/x", text.trim_end_matches('/'));
    let repository: Repository = folder.parse().map_err(|_| {
        CommandError::new(format!("'{text}' is not the address of a server"))
            .next("Write https://HOST:PORT, for example https://192.0.2.7:7117")
    })?;
    Ok(repository.server)
}
