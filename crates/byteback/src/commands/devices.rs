//! `byteback devices`: the machines that have joined and their rights, and ending these.

use byteback_api::messages::{DeviceInfo, InvitationInfo};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::desk::{Desk, DeskArguments};
use crate::error::{CommandError, Result};
use crate::output::table;
use crate::settings::Settings;
use crate::timestamp;
use crate::wording::age;

/// Flags of `devices`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = false,
    after_help = "DEVICE is a number or a name from the list; i with a number, such as i3, is an unused invitation."
)]
pub(crate) struct DevicesArguments {
    #[command(flatten)]
    desk: DeskArguments,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List devices and invitations (the default)
    List,
    /// Rename a device
    Rename {
        /// Device to rename
        #[arg(value_name = "DEVICE")]
        device: String,
        /// New name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Revoke a device's access at once, or withdraw an invitation; what the device saved stays
    Revoke {
        /// Device or invitation to revoke
        #[arg(value_name = "DEVICE")]
        device: String,
    },
}

#[derive(Serialize)]
struct DeviceLine<'a> {
    id: u64,
    name: &'a str,
    joined: String,
    seen: Option<String>,
    revoked: Option<String>,
    manages: bool,
    folders: &'a [byteback_api::messages::GrantInfo],
}

#[derive(Serialize)]
struct InvitationLine<'a> {
    id: u64,
    folder: Option<&'a str>,
    read_only: bool,
    name: &'a str,
    expires: String,
}

#[derive(Serialize)]
struct Summary<'a> {
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invitation: Option<u64>,
    name: &'a str,
}

enum Found {
    Device(DeviceInfo),
    Invitation(InvitationInfo),
}

pub(crate) fn run(arguments: &DevicesArguments, settings: &Settings) -> Result<()> {
    let desk = Desk::open(&arguments.desk, settings)?;
    let (devices, invitations) = desk.list()?;
    let (verb, device) = match &arguments.verb {
        None | Some(Verb::List) => return list(&devices, &invitations, settings),
        Some(verb @ (Verb::Rename { device, .. } | Verb::Revoke { device })) => (verb, device),
    };
    let found = find(device, devices, invitations)?;
    let (device, invitation) = match &found {
        Found::Device(found) => (Some(found.id), None),
        Found::Invitation(found) => (None, Some(found.id)),
    };
    let (action, name, said) = match (verb, &found) {
        (Verb::Rename { name, .. }, Found::Device(found)) => {
            desk.rename(found.id, name)?;
            ("renamed", name, format!("Device {} is now called {name}.", found.id))
        }
        (Verb::Rename { .. }, Found::Invitation(_)) => {
            return Err(CommandError::new("an invitation cannot be renamed")
                .next("Withdraw it and create another one: byteback devices revoke, byteback invite --for NAME"));
        }
        (_, Found::Device(found)) => {
            desk.revoke(found.id)?;
            let said = format!(
                "Device {} ({}) is revoked: the server accepts nothing from it any longer.",
                found.id, found.name
            );
            ("revoked", &found.name, said)
        }
        (_, Found::Invitation(found)) => {
            desk.withdraw(found.id)?;
            let said = format!("Invitation i{} is withdrawn: its code no longer works.", found.id);
            ("withdrawn", &found.name, said)
        }
    };
    if !settings.output.json {
        return settings.output.say(said);
    }
    let summary = Summary {
        action,
        device,
        invitation,
        name,
    };
    settings.output.object("summary", &summary)
}

fn find(text: &str, devices: Vec<DeviceInfo>, invitations: Vec<InvitationInfo>) -> Result<Found> {
    let by_number = |text: &str| text.parse::<u64>().ok();
    let list = "'byteback devices' lists them.";
    let mut named: Vec<DeviceInfo> = Vec::new();
    for device in devices {
        if by_number(text) == Some(device.id) {
            return Ok(Found::Device(device));
        }
        if device.name == text && device.revoked_ns.is_none() {
            named.push(device);
        }
    }
    if named.len() > 1 {
        let message = format!("{} devices are called '{text}'", named.len());
        return Err(CommandError::new(message).next(format!("Give the number of the device; {list}")));
    }
    let invited = text.strip_prefix('i').and_then(by_number);
    let invitation = invitations
        .into_iter()
        .find(|invitation| invited == Some(invitation.id));
    let found = named.pop().map(Found::Device).or(invitation.map(Found::Invitation));
    found.ok_or_else(|| CommandError::new(format!("there is no device '{text}'")).next(list))
}

fn list(devices: &[DeviceInfo], invitations: &[InvitationInfo], settings: &Settings) -> Result<()> {
    let output = settings.output;
    if output.json {
        for device in devices {
            let line = DeviceLine {
                id: device.id,
                name: &device.name,
                joined: timestamp::rfc3339(device.created_ns),
                seen: device.seen_ns.map(timestamp::rfc3339),
                revoked: device.revoked_ns.map(timestamp::rfc3339),
                manages: device.manages,
                folders: &device.folders,
            };
            output.object("device", &line)?;
        }
        for invitation in invitations {
            let line = InvitationLine {
                id: invitation.id,
                folder: invitation.folder.as_deref(),
                read_only: invitation.read_only,
                name: &invitation.name,
                expires: timestamp::rfc3339(invitation.expires_ns),
            };
            output.object("invitation", &line)?;
        }
        return Ok(());
    }
    let now_ns = timestamp::now_ns();
    let mut rows: Vec<[String; 4]> = Vec::new();
    for device in devices {
        let seen = match (device.revoked_ns, device.seen_ns) {
            (Some(ns), _) => format!("revoked {} ago", age(ns, now_ns)),
            (None, Some(ns)) => format!("{} ago", age(ns, now_ns)),
            (None, None) => "never".to_owned(),
        };
        rows.push([device.id.to_string(), device.name.clone(), seen, folders(device)]);
    }
    for invitation in invitations {
        let name = match invitation.name.as_str() {
            "" => "(invited)".to_owned(),
            name => format!("{name} (invited)"),
        };
        let until = format!("until {}", timestamp::local(invitation.expires_ns));
        let folder = match &invitation.folder {
            None => ALL.to_owned(),
            Some(folder) => granted(folder, invitation.read_only),
        };
        rows.push([format!("i{}", invitation.id), name, until, folder]);
    }
    if rows.is_empty() {
        return output.say("No machine has joined yet. Create a code for one: byteback invite FOLDER");
    }
    table(output, ["ID", "Name", "Last seen", "Folders"], &rows)
}

const ALL: &str = "all, manages devices";

fn folders(device: &DeviceInfo) -> String {
    if device.manages {
        return ALL.to_owned();
    }
    let granted = device
        .folders
        .iter()
        .map(|grant| granted(&grant.folder, grant.read_only));
    granted.collect::<Vec<_>>().join(", ")
}

fn granted(folder: &str, read_only: bool) -> String {
    match read_only {
        true => format!("{folder} (read-only)"),
        false => folder.to_owned(),
    }
}
