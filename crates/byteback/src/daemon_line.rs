//! The line of a folder's daemon, on which `byteback backup` makes its calls of the server.
//!
//! The daemon stays, and so does its connection: a small backup then costs no handshake, at either
//! end. Both ends are here: [`lend`] in the daemon, [`DaemonLine`] in the command. Where the daemon
//! does not carry calls (it has no token yet, it cannot reach the server, it is of another user,
//! another command is at work), the command connects to the server by itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use byteback_client::{ClientOptions, Connection, LineRelay, Network, ServerClient, UnixConnection};
use byteback_control::{Client, ErrorKind, ServiceError};
use byteback_daemon::{Daemon, StateFolder};

use crate::binding::Binding;
use crate::credentials::Credentials;
use crate::error::{CommandError, Result};
use crate::settings::Settings;

/// The daemon tries this long to reach the server, while the command waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon waits this long for the next call of a command. A command that examines files for
/// longer connects again.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// The daemon waits this long for a process that has not shown the token yet.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

/// Most connections that are served, or wait for that.
const CONNECTIONS_MAX: usize = 8;

/// The daemon waits this long for a command that does not take its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Lets the daemon of a folder carry calls to the server that the folder is bound to.
pub(crate) fn lend(daemon: &Daemon, folder: &StateFolder, settings: &Settings) {
    let (folder, settings) = (folder.clone(), settings.clone());
    let kept = Mutex::new(None);
    let connections = Arc::new(());
    daemon.carry_lines_with(Box::new(move |connection| {
        let refused = |why: String| ServiceError::new(ErrorKind::Refused, why);
        let place = Arc::clone(&connections);
        if Arc::strong_count(&place) > CONNECTIONS_MAX + 1 {
            return Err(refused("too many commands use the connection to the server".to_owned()));
        }
        let relay = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            relay(&folder, &settings, &mut kept).map_err(|error| match error {
                CommandError::Failed(failure) => refused(failure.message),
                _ => refused("the server of the folder is unknown".to_owned()),
            })?
        };
        connection
            .set_read_timeout(Some(OPENING_TIMEOUT))
            .and_then(|()| connection.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .and_then(|()| {
                let serve = move || {
                    // If it cannot be set, the shorter timeout ends a line that could stay.
                    let opened = || drop(connection.set_read_timeout(Some(CALL_TIMEOUT)));
                    // How it ends is seen at the other end.
                    drop(relay.serve(&connection, opened));
                    drop(place);
                };
                std::thread::Builder::new().name("line-relay".to_owned()).spawn(serve)
            })
            .map_err(|error| refused(error.to_string()))?;
        Ok(())
    }));
}

/// A relay, and what it was made of.
struct Kept {
    relay: Arc<LineRelay>,
    credentials: Credentials,
    issuers_pem: Option<Vec<u8>>,
}

/// The relay to the server that the folder is bound to now, with the token and the trust that count
/// now.
fn relay(folder: &StateFolder, settings: &Settings, kept: &mut Option<Kept>) -> Result<Arc<LineRelay>> {
    let binding = Binding::read(folder)?.ok_or_else(|| CommandError::new("the folder is not bound to a server"))?;
    let server = settings
        .repository()
        .map_or(&binding.repository.server, |repository| &repository.server);
    let credentials = settings.credentials(server, Some(&binding))?;
    let options = ClientOptions {
        connect_timeout: CONNECT_TIMEOUT,
        ..settings.options_for(&credentials)?
    };
    let is_same = |kept: &&Kept| kept.credentials == credentials && kept.issuers_pem == options.ca_pem;
    if let Some(kept) = kept.as_ref().filter(is_same) {
        return Ok(Arc::clone(&kept.relay));
    }
    let issuers_pem = options.ca_pem.clone();
    let client = ServerClient::new(&credentials.server, &credentials.token, options)?;
    let relay = Arc::new(LineRelay::new(client));
    *kept = Some(Kept {
        relay: Arc::clone(&relay),
        credentials,
        issuers_pem,
    });
    Ok(relay)
}

/// Connections to the line of a folder's daemon.
#[derive(Debug)]
pub(crate) struct DaemonLine {
    socket: PathBuf,
}

impl DaemonLine {
    /// The line of the daemon of `folder`, if one answers when a connection is made.
    pub(crate) fn of(folder: &StateFolder) -> Arc<dyn Network> {
        Arc::new(Self {
            socket: folder.socket(),
        })
    }
}

impl Network for DaemonLine {
    fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let stream = Client::line(&self.socket).map_err(io::Error::other)?;
        Ok(Box::new(UnixConnection::new(stream)))
    }
}
