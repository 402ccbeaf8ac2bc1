//! Management of devices: in the server's data folder, or through the server by a machine with the
//! right to do so.

use std::path::{Path, PathBuf};

use byteback_api::Fingerprint;
use byteback_api::join_code::Address;
use byteback_api::messages::{DeviceInfo, InvitationInfo, InviteRequest, InviteResponse};
use byteback_client::ServerClient;
use byteback_model::DeviceId;
use byteback_server::{device_info, invitation_info};
use byteback_store::StoreError;
use byteback_store::devices::{NewInvitation, RosterFile};
use clap::Args;

use crate::binding::Binding;
use crate::credentials::Credentials;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::served::Served;
use crate::settings::Settings;
use crate::tracked_folder;

/// Whose devices are meant.
#[derive(Args, Debug)]
pub(super) struct DeskArguments {
    /// Open the server's data folder, on its machine (default: ask the server of -r or of the
    /// folder you are in)
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
}

/// The place of management; see the module.
pub(super) enum Desk {
    Data {
        file: Box<RosterFile>,
        data: PathBuf,
    },
    Server {
        client: Box<ServerClient>,
        credentials: Credentials,
    },
}

/// How a server is reached, for a code.
pub(super) struct Reach {
    pub(super) addresses: Vec<Address>,
    pub(super) is_plain: bool,
    pub(super) certificate: Option<Fingerprint>,
}

impl Desk {
    pub(super) fn open(arguments: &DeskArguments, settings: &Settings) -> Result<Self> {
        if let Some(data) = &arguments.data {
            return Self::at_data(data);
        }
        let binding = match settings.repository() {
            Some(_) => None,
            None => match tracked_folder::folder_of_current_dir(settings)? {
                Some(folder) => Binding::read(&folder)?,
                None => None,
            },
        };
        let server = settings
            .repository()
            .or(binding.as_ref().map(|binding| &binding.repository))
            .map(|repository| repository.server.clone());
        let Some(server) = server else {
            return Err(CommandError::with_exit(Exit::NoRepository, "no server is given").next(
                "On the server, add --data DIR, the folder that 'byteback serve' was started with. Elsewhere, add \
                     -r with any of its folders, on a machine that may manage devices.",
            ));
        };
        let (client, credentials) = settings.connect(&server, binding.as_ref())?;
        Ok(Self::Server {
            client: Box::new(client),
            credentials,
        })
    }

    fn at_data(data: &Path) -> Result<Self> {
        if !data.join("catalog.sqlite").exists() {
            return Err(CommandError::with_exit(
                Exit::NoRepository,
                format!("{} is not the data folder of a server", data.display()),
            )
            .next("Name the folder that 'byteback serve --data' was started with."));
        }
        Ok(Self::Data {
            file: Box::new(RosterFile::open(data)?),
            data: data.to_owned(),
        })
    }

    /// All devices, and the invitations that are not used yet.
    pub(super) fn list(&self) -> Result<(Vec<DeviceInfo>, Vec<InvitationInfo>)> {
        match self {
            Self::Data { file, .. } => {
                let devices = file.roster().devices()?.into_iter().map(device_info).collect();
                let invitations = file.roster().invitations()?.into_iter().map(invitation_info).collect();
                Ok((devices, invitations))
            }
            Self::Server { client, .. } => {
                let list = client.devices()?;
                Ok((list.devices, list.invitations))
            }
        }
    }

    pub(super) fn rename(&self, device: DeviceId, name: &str) -> Result<()> {
        match self {
            Self::Data { file, .. } => Ok(file.roster().rename(device, name)?),
            Self::Server { client, .. } => Ok(client.rename_device(device, name).map(|_| ())?),
        }
    }

    pub(super) fn revoke(&self, device: DeviceId) -> Result<()> {
        match self {
            Self::Data { file, .. } => Ok(file.roster().revoke(device)?),
            Self::Server { client, .. } => Ok(client.revoke_device(device)?),
        }
    }

    pub(super) fn withdraw(&self, invitation: u64) -> Result<()> {
        match self {
            Self::Data { file, .. } => Ok(file.roster().withdraw(invitation)?),
            Self::Server { client, .. } => Ok(client.withdraw_invitation(invitation)?),
        }
    }

    pub(super) fn invite(&self, request: &InviteRequest) -> Result<InviteResponse> {
        match self {
            Self::Data { file, .. } => {
                let new = NewInvitation {
                    folder: request.folder.as_ref().map(|folder| folder.as_str().to_owned()),
                    writes: !request.read_only,
                    name: request.name.clone(),
                    valid_ns: i64::try_from(request.valid_ns).unwrap_or(i64::MAX),
                };
                let invited = file.roster().invite(&new).map_err(|error| match error {
                    StoreError::FolderNotFound(folder) => CommandError::with_exit(
                        Exit::NoRepository,
                        format!("the server has no folder '{folder}' to read"),
                    )
                    .next("Check the name, or leave out --read-only to create the folder."),
                    error => error.into(),
                })?;
                Ok(InviteResponse {
                    id: invited.id,
                    join_token: invited.token,
                    expires_ns: invited.expires_ns,
                    folder_is_new: invited.folder_is_new,
                })
            }
            Self::Server { client, .. } => Ok(client.invite(request)?),
        }
    }

    /// How the server is reached: from its own note, or as this machine reaches it.
    pub(super) fn reach(&self) -> Result<Reach> {
        let (texts, is_plain, certificate) = match self {
            Self::Data { data, .. } => {
                let served = Served::read(data)?;
                (served.addresses, served.plain, served.certificate)
            }
            Self::Server { credentials, .. } => {
                let (scheme, own) = credentials.server.split_once("://").unwrap_or(("", ""));
                let texts = std::iter::once(own.to_owned()).chain(credentials.addresses.iter().cloned());
                (texts.collect(), scheme == "http", credentials.certificate)
            }
        };
        let port = if is_plain { 80 } else { 443 };
        let addresses = texts.iter().map(|text| Address::parse(text, port));
        Ok(Reach {
            addresses: addresses
                .collect::<Result<_, _>>()
                .map_err(|error| CommandError::new(error.to_string()).next("Name the address: --address HOST:PORT"))?,
            is_plain,
            certificate,
        })
    }
}
