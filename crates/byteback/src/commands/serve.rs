//! `byteback serve`: a server with its embedded store, until it is told to stop.
//!
//! At the first start a join token is written into the data folder, for its owner only: without one nobody could ever
//! join, and a token on the screen would end in logs.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use byteback_server::{Server, ServerConfig};
use byteback_store::{Store, StoreLimits};
use clap::Args;
use serde::Serialize;

use super::invite::JOIN_TOKEN_VALID_NS;
use crate::error::{CommandError, Result, chain};
use crate::notify;
use crate::private_file;
use crate::settings::Settings;
use crate::signals;

/// Flags of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Folder that holds everything; made if it is missing
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    listen: String,
}

#[derive(Serialize)]
struct Listening {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_token_file: Option<String>,
}

pub(crate) fn run(arguments: &ServeArguments, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let listen = resolve(&arguments.listen)?;
    let store = Store::open(&arguments.data, StoreLimits::default()).map_err(|error| {
        let message = format!("cannot open the store in {}", arguments.data.display());
        prefixed(&message, error.into())
    })?;
    let token_file = first_join_token(&store, &arguments.data)?;

    let (stop, stopped) = mpsc::channel();
    signals::on_stop_signals(move || {
        let _ = stop.send(());
    })?;
    let config = ServerConfig {
        listen,
        report: Some(Arc::new(move |message| output.item_error("serve", None, message))),
        ..ServerConfig::default()
    };
    let server = Server::start(config, store).map_err(|error| CommandError::new(chain(&error)))?;
    let url = format!("http://{}", server.address());
    if output.json {
        let join_token_file = token_file.map(|path| path.display().to_string());
        output.object(
            "status",
            &Listening {
                url: url.clone(),
                join_token_file,
            },
        )?;
    } else {
        if let Some(path) = token_file {
            let path = path.display();
            output.say(format!(
                "A join token for the first machine is in {path}. On that machine:"
            ))?;
            output.say(format!("  byteback init DIR -r {url}/NAME --join-token-file {path}"))?;
        }
        // Programs wait for this line, so it comes also with --quiet.
        output.line(format!("listening on {url}"))?;
    }
    notify::ready(settings.notify_socket.as_deref());

    // A closed channel would mean that the thread of the signals ended; then only being killed is left.
    let _ = stopped.recv();
    notify::stopping(settings.notify_socket.as_deref());
    output.say("stopping: requests at work are finished first")?;
    server.shutdown().map_err(|error| CommandError::new(chain(&error)))
}

fn resolve(listen: &str) -> Result<SocketAddr> {
    let wrong = |why: &str| {
        CommandError::new(format!("cannot listen on '{listen}': {why}"))
            .next("Write --listen HOST:PORT, for example --listen 0.0.0.0:7117 for all networks.")
    };
    let mut addresses = listen.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("it stands for no address"))
}

/// Writes a join token if nobody has joined or could join.
fn first_join_token(store: &Store, data: &Path) -> Result<Option<PathBuf>> {
    if store.has_credentials()? {
        return Ok(None);
    }
    let token = store.create_join_token(JOIN_TOKEN_VALID_NS)?;
    let path = std::path::absolute(data)
        .unwrap_or_else(|_| data.to_owned())
        .join("join-token");
    private_file::write(&path, format!("{token}\n").as_bytes())
        .map_err(|error| CommandError::file("write the join token to", &path, &error))?;
    Ok(Some(path))
}

fn prefixed(message: &str, error: CommandError) -> CommandError {
    match error {
        CommandError::Failed(mut failure) => {
            failure.message = format!("{message}: {}", failure.message);
            CommandError::Failed(failure)
        }
        other => other,
    }
}
