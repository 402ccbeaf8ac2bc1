//! `byteback serve`: a server with its embedded store, until a signal stops it.
//!
//! It speaks TLS with a certificate of its own, made at the first start and durable before any
//! client sees it: `certificate.pem` in the data folder, key and certificate in one file of mode
//! 0600, so that no crash leaves one without the other. Codes carry the certificate's SHA-256.
//!
//! The first start writes a code into the data folder, readable by its owner only: without a code
//! no machine could ever join, and a code on the screen would end up in logs. It lets a machine use
//! every folder and manage others.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use byteback_api::join_code::{Address, JoinCode};
use byteback_server::{GUIDE_PATH, Guide, Identity, Server, ServerConfig};
use byteback_store::devices::NewInvitation;
use byteback_store::{Store, StoreLimits};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::error::{CommandError, Result, chain};
use crate::notify;
use crate::private_file;
use crate::served::{self, Served, reachable};
use crate::settings::Settings;
use crate::signals;

/// Default port.
pub(super) const PORT: u16 = 7117;

/// How long the first code is valid: a week, for a machine that is still being set up.
const FIRST_CODE_VALID_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// Flags of `serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "The server makes its own certificate, by which the machines that join recognise it. With
--certificate and --key it presents yours instead: machines then check it against the authorities
that they trust, and --address gives the name that it is issued for.

Behind a proxy that terminates TLS: --plain --address https://PROXY"
)]
pub(crate) struct ServeArguments {
    /// Folder for all data of the server; created if missing
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Listen on this address; port 0 takes any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    listen: String,
    /// Name this address in codes: HOST[:PORT], or a URL if a proxy terminates TLS; may be given
    /// several times, best first (default: the addresses that it listens on)
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<String>,
    /// Speak HTTP without TLS: tokens and files can be read in transit
    #[arg(long)]
    plain: bool,
    /// Present this certificate instead of one of its own (PEM, with its intermediate certificates)
    #[arg(long, value_name = "FILE", requires = "key", conflicts_with = "plain")]
    certificate: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Show the pages in this folder to browsers, at /guide/ and without a token; scripts/book
    /// builds such a folder
    #[arg(long, value_name = "DIR")]
    guide: Option<PathBuf>,
}

impl ServeArguments {
    /// The data folder, as given.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// The folder of the guide, as given.
    pub(super) fn guide(&self) -> Option<&Path> {
        self.guide.as_deref()
    }

    /// The same flags for a process in another working directory, with the data folder `data`.
    pub(super) fn passed_on(&self, data: &Path) -> Vec<OsString> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let mut passed_on: Vec<OsString> = vec!["--data".into(), data.into()];
        passed_on.extend(["--listen".into(), self.listen.clone().into()]);
        for address in &self.address {
            passed_on.extend(["--address".into(), address.into()]);
        }
        if self.plain {
            passed_on.push("--plain".into());
        }
        let paths = [
            ("--certificate", &self.certificate),
            ("--key", &self.key),
            ("--guide", &self.guide),
        ];
        for (flag, path) in paths {
            if let Some(path) = path {
                passed_on.extend([flag.into(), absolute(path).into()]);
            }
        }
        passed_on
    }

    /// Whether the flags make sense.
    pub(super) fn check(&self) -> Result<()> {
        resolve(&self.listen).map(drop)
    }
}

#[derive(Serialize)]
struct Listening {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guide: Option<String>,
}

pub(crate) fn run(arguments: &ServeArguments, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let listen = resolve(&arguments.listen)?;
    let guide = arguments.guide.as_deref().map(open_guide).transpose()?;
    let shows_guide = guide.is_some();
    raise_open_file_limit();
    let store = Store::open(&arguments.data, StoreLimits::default()).map_err(|error| {
        let message = format!("cannot open the store in {}", arguments.data.display());
        prefixed(&message, error.into())
    })?;
    // The store is locked by this process, so no other one makes a certificate.
    let identity = identity(arguments)?;
    let certificate = identity.as_ref().map(Identity::fingerprint);

    let (stop, stopped) = mpsc::channel();
    signals::on_stop_signals(move || {
        let _ = stop.send(());
    })?;
    let config = ServerConfig {
        listen,
        identity,
        guide,
        report: Some(Arc::new(move |message| output.item_error("serve", None, message))),
        ..ServerConfig::default()
    };
    let server = Server::start(config, store.clone()).map_err(|error| CommandError::new(chain(&error)))?;
    let (given, is_plain) = served::given(&arguments.address, arguments.plain, server.address().port())?;
    let addresses = if given.is_empty() {
        reachable(server.address())
    } else {
        given
    };
    // Codes name the certificate that machines are shown, if it is ours.
    let is_ours = arguments.certificate.is_none() && is_plain == arguments.plain;
    let served = Served::new(&addresses, is_plain, certificate.filter(|_| is_ours));
    served.write(&arguments.data)?;
    let token_file = first_code(&store, &arguments.data, addresses.clone(), &served)?;
    if arguments.plain && !listen.ip().is_loopback() {
        output.warn(
            "--plain: tokens and files can be read and changed in transit; leave it out, or put a proxy that \
             terminates TLS in front",
        );
    }
    let scheme = if arguments.plain { "http" } else { "https" };
    let url = format!("{scheme}://{}", server.address());
    let guide = shows_guide.then(|| format!("{url}{GUIDE_PATH}"));
    if output.json {
        let listening = Listening {
            url,
            join_token_file: token_file.map(|path| path.display().to_string()),
            certificate: certificate.map(|certificate| certificate.to_string()),
            addresses: served.addresses,
            guide,
        };
        output.object("status", &listening)?;
    } else {
        if let Some(path) = token_file {
            let path = path.display();
            output.say(format!("A code for the first machine is in {path}. On this machine:"))?;
            output.say(format!("  byteback join {path} DIR"))?;
        }
        let named: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        output.say(match addresses.iter().all(served::is_loopback) {
            true => format!(
                "Codes name {}: only this machine can reach it (for all networks: --listen 0.0.0.0:{PORT}).",
                named.join(", ")
            ),
            false => format!("Codes name {}.", named.join(", ")),
        })?;
        if let Some(guide) = guide {
            output.say(format!("The guide is at {guide}"))?;
        }
        // Programs wait for this line, so it is printed even with `--quiet`.
        output.line(format!("listening on {url}"))?;
    }
    notify::ready(settings.notify_socket.as_deref());

    // A closed channel would mean that the signal thread has ended: then the server stops as well.
    let _ = stopped.recv();
    notify::stopping(settings.notify_socket.as_deref());
    output.say("stopping: requests in progress are finished first")?;
    server.shutdown().map_err(|error| CommandError::new(chain(&error)))
}

/// Raises the limit of open files: each connection and each segment that is read takes a
/// descriptor, and many systems allow only 1024 by default.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If this is refused and descriptors run out, the server closes connections of strangers.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        );
    }
}

fn resolve(listen: &str) -> Result<SocketAddr> {
    let wrong = |why: &str| {
        CommandError::new(format!("cannot listen on '{listen}': {why}"))
            .next("Write --listen HOST:PORT, for example --listen 0.0.0.0:7117 for all networks.")
    };
    let mut addresses = listen.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("the name has no address"))
}

fn open_guide(dir: &Path) -> Result<Guide> {
    Guide::open(dir).map_err(|error| {
        CommandError::new(error.to_string())
            .next("Build the guide in a checkout of Byteback with scripts/book, which prints its folder.")
    })
}

/// The certificate to present; `None` with `--plain`.
fn identity(arguments: &ServeArguments) -> Result<Option<Identity>> {
    if arguments.plain {
        return Ok(None);
    }
    let read = |path: &Path| fs::read(path).map_err(|error| CommandError::file("read", path, &error));
    if let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) {
        let pem = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
        return Identity::from_pem(&pem).map(Some).map_err(|error| {
            CommandError::file("use the certificate", certificate, &chain(&error))
                .next("Give both in PEM format: the certificate with its intermediate ones, and its private key.")
        });
    }
    let path = arguments.data.join("certificate.pem");
    let pem = match fs::read(&path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let pem = Identity::make(&names()).map_err(|error| CommandError::new(chain(&error)))?;
            private_file::write(&path, pem.as_bytes())
                .map_err(|error| CommandError::file("write the certificate", &path, &error))?;
            pem.into_bytes()
        }
        Err(error) => return Err(CommandError::file("read the certificate", &path, &error)),
    };
    Identity::from_pem(&pem).map(Some).map_err(|error| {
        CommandError::file("use the certificate", &path, &chain(&error)).next(
            "Restore it from a backup of the data folder. If there is none, remove it: the next start makes a new one, \
             and every machine must join again.",
        )
    })
}

/// The names in the certificate, for other programs. Our clients check the certificate itself.
fn names() -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_ascii_lowercase();
    if Address::parse(&host, 1).is_ok() && !names.contains(&host) {
        names.push(host);
    }
    names
}

/// Writes a code if no machine has joined or could join.
fn first_code(store: &Store, data: &Path, addresses: Vec<Address>, served: &Served) -> Result<Option<PathBuf>> {
    if store.roster().has_credentials()? {
        return Ok(None);
    }
    let token = store.create_join_token(NewInvitation::to_manage(FIRST_CODE_VALID_NS).valid_ns)?;
    let code = JoinCode::new(addresses, served.plain, served.certificate, &token)
        .ok_or_else(|| CommandError::new("cannot make a code for these addresses"))?;
    let path = std::path::absolute(data)
        .unwrap_or_else(|_| data.to_owned())
        .join("join-token");
    private_file::write(&path, format!("{code}\n").as_bytes())
        .map_err(|error| CommandError::file("write the code to", &path, &error))?;
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
