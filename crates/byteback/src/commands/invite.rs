//! `byteback invite`: a code with which one more machine can join, also while the server runs.

use std::io::IsTerminal;

use byteback_api::messages::InviteRequest;
use byteback_api::{FolderName, JoinCode};
use clap::Args;
use serde::Serialize;

use super::desk::{Desk, DeskArguments, Reach};
use crate::error::{CommandError, Result};
use crate::served;
use crate::settings::Settings;
use crate::timestamp;
use crate::when;

/// Flags of `invite`.
#[derive(Args, Debug)]
#[command(
    after_help = "The code is printed once, works once, and contains everything that the other machine needs. Until \
it is used it is a secret: pass it on privately, for example:
  byteback invite mail --data /srv/backup | ssh HOST byteback join - /data/mail"
)]
pub(crate) struct InviteArguments {
    /// Folder on the server that the machine gets; created if it is missing
    #[arg(value_name = "FOLDER", required_unless_present = "admin", conflicts_with = "admin")]
    folder: Option<FolderName>,
    /// Let the machine use every folder, invite others and revoke them
    #[arg(long)]
    admin: bool,
    /// Let the machine read the folder, but not change it
    #[arg(long, conflicts_with = "admin")]
    read_only: bool,
    /// Name of the machine in lists (default: the name it gives itself)
    #[arg(long = "for", value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// Let the code expire after this time: 30m, 1d
    #[arg(long, value_name = "TIME", default_value = "1d")]
    expires: String,
    /// Address at which the machine reaches the server, instead of those that the server knows:
    /// HOST:PORT, or a URL if a proxy terminates TLS; may be given several times, the best first
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<String>,
    #[command(flatten)]
    desk: DeskArguments,
}

#[derive(Serialize)]
struct Summary<'a> {
    code: String,
    join_token: String,
    invitation: u64,
    folder: Option<&'a str>,
    folder_is_new: bool,
    read_only: bool,
    name: &'a str,
    expires: String,
}

pub(crate) fn run(arguments: &InviteArguments, settings: &Settings) -> Result<()> {
    let valid_ns = when::duration(&arguments.expires).map_err(CommandError::new)?;
    let desk = Desk::open(&arguments.desk, settings)?;
    let reach = reach(arguments, &desk)?;
    let output = settings.output;
    if arguments.address.is_empty() && reach.addresses.iter().all(served::is_loopback) {
        output.warn(
            "the code names only loopback addresses, so no other machine can use it. Let the server listen elsewhere \
             (byteback serve --listen 0.0.0.0:7117), or give its address: byteback invite --address HOST",
        );
    }
    let invited = desk.invite(&InviteRequest {
        folder: arguments.folder.clone(),
        read_only: arguments.read_only,
        name: arguments.name.clone(),
        valid_ns: valid_ns.unsigned_abs(),
    })?;
    let code = JoinCode::new(reach.addresses, reach.is_plain, reach.certificate, &invited.join_token);
    let mut code = code.ok_or_else(|| CommandError::new("cannot make a code from the server's answer"))?;
    code.folder.clone_from(&arguments.folder);
    code.read_only = arguments.read_only;
    let folder = arguments.folder.as_ref().map(FolderName::as_str);
    if output.json {
        let summary = Summary {
            code: code.to_string(),
            join_token: invited.join_token,
            invitation: invited.id,
            folder,
            folder_is_new: invited.folder_is_new,
            read_only: arguments.read_only,
            name: &arguments.name,
            expires: timestamp::rfc3339(invited.expires_ns),
        };
        return output.object("summary", &summary);
    }
    if let Some(folder) = folder.filter(|_| invited.folder_is_new) {
        output.warn(&format!("the server had no folder {folder}; it was created"));
    }
    // Nothing but the code if a program reads the output.
    output.line(&code)?;
    if std::io::stdout().is_terminal() {
        let until = timestamp::local(invited.expires_ns);
        output.say(format!("On the other machine, until {until}:  byteback join CODE DIR"))?;
    }
    Ok(())
}

fn reach(arguments: &InviteArguments, desk: &Desk) -> Result<Reach> {
    let mut reach = desk.reach()?;
    if arguments.address.is_empty() {
        reach.addresses = served::for_others(reach.addresses);
        return Ok(reach);
    }
    let (addresses, is_plain) = served::given(&arguments.address, reach.is_plain, super::serve::PORT)?;
    if is_plain != reach.is_plain {
        // A proxy stands before the server and has a certificate of its own.
        reach.certificate = None;
    }
    (reach.addresses, reach.is_plain) = (addresses, is_plain);
    Ok(reach)
}
