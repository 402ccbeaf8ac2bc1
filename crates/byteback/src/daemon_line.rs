//! The line of a folder's daemon, on which `byteback backup` makes its calls of the server.
//!
//! The daemon stays, and so does its connection: a small backup then costs no handshake, at either
//! end. Both ends are here: [`lend`] in the daemon, [`DaemonLine`] in the command. Where the daemon
//! does not carry calls (it has no token yet, it cannot reach the server, another command is at
//! work), the command connects to the server by itself and nobody notices but the network.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use byteback_client::{ClientOptions, Connection, LineRelay, Network, ServerClient, UnixConnection};
use byteback_control::{Client, ErrorKind, ServiceError};
use byteback_daemon::{Daemon, StateFolder};

use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::settings::Settings;

/// The daemon tries this long to reach the server, while the command waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon waits this long for the next call of a command. A command that examines files for
/// longer connects again.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// The daemon waits this long for a command that does not take its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Lets the daemon of a folder carry calls to the server that the folder is bound to.
pub(crate) fn lend(daemon: &Daemon, folder: &StateFolder, settings: &Settings) {
    let (folder, settings) = (folder.clone(), settings.clone());
    let kept = Mutex::new(None);
    daemon.carry_lines_with(Box::new(move |connection| {
        let refused = |why: String| ServiceError::new(ErrorKind::Refused, why);
        let relay = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            relay(&folder, &settings, &mut kept).map_err(|error| match error {
                CommandError::Failed(failure) => refused(failure.message),
                _ => refused("the server of the folder is unknown".to_owned()),
            })?
        };
        connection
            .set_read_timeout(Some(CALL_TIMEOUT))
            .and_then(|()| connection.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .and_then(|()| {
                // How it ends is seen at the other end.
                let serve = move || drop(relay.serve(&connection));
                std::thread::Builder::new().name("line-relay".to_owned()).spawn(serve)
            })
            .map_err(|error| refused(error.to_string()))?;
        Ok(())
    }));
}

/// The relay to the server that the folder is bound to now, with the token that counts now.
fn relay(folder: &StateFolder, settings: &Settings, kept: &mut Option<Arc<LineRelay>>) -> Result<Arc<LineRelay>> {
    let binding = Binding::read(folder)?.ok_or_else(|| CommandError::new("the folder is not bound to a server"))?;
    let server = settings
        .repository()
        .map_or(&binding.repository.server, |repository| &repository.server);
    let credentials = settings.credentials(server, Some(&binding))?;
    if let Some(relay) = kept.as_ref().filter(|relay| relay.is_of(server, &credentials.token)) {
        return Ok(Arc::clone(relay));
    }
    let options = ClientOptions {
        connect_timeout: CONNECT_TIMEOUT,
        ..settings.options_for(&credentials)?
    };
    let client = ServerClient::new(&credentials.server, &credentials.token, options)?;
    let relay = Arc::new(LineRelay::new(client));
    *kept = Some(Arc::clone(&relay));
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
