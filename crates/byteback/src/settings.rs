//! Flags, environment and configuration, merged into one answer each.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use byteback_client::{ClientOptions, ServerClient};
use byteback_model::ByteString;
use byteback_sources::Programs;
use byteback_undo::UndoOptions;

use crate::arguments::GlobalArguments;
use crate::binding::Binding;
use crate::configuration::{Configuration, LogSection};
use crate::credentials::{self, Credentials};
use crate::environment::{Environment, S3Environment};
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::repository::Repository;
use crate::signals;
use crate::when;

/// Default limit of the bytes that undo keeps.
const UNDO_BUDGET: &str = "1G";
/// Smallest undo budget: a smaller one would hold nothing for any time.
const UNDO_BUDGET_BYTES_MIN: u64 = 16 << 20;
/// Most progress updates per second: more would only cost time.
const PROGRESS_FPS_MAX: f64 = 60.0;

/// Where distributions keep their trusted certificates.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The settings of this run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) output: Output,
    /// Time between two updates of the progress; `None` if it is not shown.
    pub(crate) progress_every: Option<Duration>,
    pub(crate) notify_socket: Option<OsString>,
    repository: Option<Repository>,
    token_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
    state_root: Option<PathBuf>,
    config_dir: Option<PathBuf>,
    host: Option<OsString>,
    /// Options of the operation logs.
    pub(crate) log: LogSection,
    undo_window: Option<String>,
    undo_budget: Option<String>,
    /// Access to S3.
    pub(crate) s3: S3Environment,
    program_folders: Vec<PathBuf>,
    /// The given flags that all commands have, with absolute paths.
    flags: Vec<OsString>,
    /// The environment variables that services are given.
    pub(crate) of_services: Vec<(&'static str, OsString)>,
    /// Root of the user's configuration folders; `None` without a home directory.
    pub(crate) config_home: Option<PathBuf>,
    /// Folder of the socket of the user's own systemd, if that runs.
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Folder for large temporary files.
    pub(crate) scratch: PathBuf,
}

impl Settings {
    /// Merges flags, environment and configuration.
    pub(crate) fn new(global: &GlobalArguments, environment: Environment) -> Result<Self> {
        let config_dir = environment.config_dir();
        let (of_services, config_home) = (environment.of_services(), environment.config_home());
        let Configuration { defaults, log } = Configuration::read(config_dir.as_deref())?;
        let is_root = rustix::process::geteuid().is_root();
        let state_root = global.state_dir.clone().or_else(|| environment.state_root(is_root));
        let output = global.output();
        let repository = match (&global.repo, environment.repository, defaults.repo) {
            (Some(repository), _, _) => Some(repository.clone()),
            (None, Some(text), _) => Some(parse(&text, "BYTEBACK_REPOSITORY")?),
            (None, None, Some(text)) => Some(parse(&text, "the configuration's repo")?),
            (None, None, None) => None,
        };
        let fps = match &environment.progress_fps {
            Some(text) => Some(text.parse::<f64>().map_err(|_| {
                CommandError::new(format!("BYTEBACK_PROGRESS_FPS is '{text}', which is not a number"))
                    .next("Set it to the number of updates per second, for example 2, or to 0 for none.")
            })?),
            None => defaults.progress_fps,
        };
        Ok(Self {
            output,
            progress_every: progress_every(fps, output),
            notify_socket: environment.notify_socket,
            repository,
            token_file: global
                .token_file
                .clone()
                .or(environment.token_file)
                .or(defaults.token_file),
            cacert: global.cacert.clone().or(environment.cacert),
            state_root: state_root.map(|path| std::path::absolute(&path).unwrap_or(path)),
            config_dir,
            host: environment.host,
            log,
            undo_window: defaults.undo_window,
            undo_budget: defaults.undo_budget,
            s3: environment.s3,
            program_folders: environment.program_folders,
            flags: flags_again(global),
            of_services,
            config_home,
            runtime_dir: environment.runtime_dir,
            scratch: environment.scratch.unwrap_or_else(|| "/var/tmp".into()),
        })
    }

    /// The programs of storage systems.
    pub(crate) fn programs(&self) -> Programs {
        let folders = self.program_folders.iter().cloned();
        // The administrators' folders are not in every user's PATH.
        Programs::new(folders.chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from)))
    }

    /// How long a mount keeps overwritten bytes, and how many, as given or else as configured;
    /// `None` if it keeps none.
    pub(crate) fn undo(&self, window: Option<&str>, budget: Option<&str>) -> Result<Option<UndoOptions>> {
        let Some(window) = window.or(self.undo_window.as_deref()).filter(|window| *window != "off") else {
            return Ok(None);
        };
        let budget = budget.or(self.undo_budget.as_deref()).unwrap_or(UNDO_BUDGET);
        let window_ns = when::duration(window).map_err(CommandError::new)?;
        let budget_bytes = when::amount(budget).map_err(CommandError::new)?;
        if budget_bytes < UNDO_BUDGET_BYTES_MIN {
            return Err(CommandError::new(format!("an undo budget of {budget} is too small"))
                .next("It must be at least 16M; the default is 1G."));
        }
        Ok(Some(UndoOptions::new(window_ns, budget_bytes)))
    }

    /// The repository that a flag, the environment or the configuration names.
    pub(crate) fn repository(&self) -> Option<&Repository> {
        self.repository.as_ref()
    }

    /// The token file that a flag, the environment or the configuration names.
    pub(crate) fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// Folder of the operation logs.
    pub(crate) fn state_root(&self) -> Result<&Path> {
        self.state_root.as_deref().ok_or_else(|| {
            CommandError::new("cannot locate the operation logs: HOME is not set")
                .next("Set HOME or XDG_STATE_HOME, or use --state-dir.")
        })
    }

    /// Name of this machine: `given`, the environment's, or the system's own name.
    pub(crate) fn host(&self, given: Option<&OsString>) -> ByteString {
        match given.or(self.host.as_ref()) {
            Some(host) => ByteString::from(host.as_bytes()),
            None => ByteString::from(rustix::system::uname().nodename().to_bytes()),
        }
    }

    /// Path of the token of a server, where it is looked for, and kept when this machine joins.
    pub(crate) fn token_path(&self, server: &str, binding: Option<&Binding>) -> Result<PathBuf> {
        if let Some(path) = &self.token_file {
            return Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
        if let Some(path) = binding.and_then(|binding| binding.token_file.clone()) {
            return Ok(path);
        }
        let config_dir = self.config_dir.as_deref().ok_or_else(|| {
            CommandError::with_exit(Exit::WrongCredentials, "cannot locate the tokens: HOME is not set")
                .next("Set HOME or XDG_CONFIG_HOME, or use --token-file.")
        })?;
        Ok(credentials::default_path(config_dir, server))
    }

    /// This machine's credentials for the server.
    pub(crate) fn credentials(&self, server: &str, binding: Option<&Binding>) -> Result<Credentials> {
        Self::credentials_of(&self.token_path(server, binding)?, server)
    }

    /// A client of the server, with the credentials that it presents.
    pub(crate) fn connect(&self, server: &str, binding: Option<&Binding>) -> Result<(ServerClient, Credentials)> {
        let credentials = self.credentials(server, binding)?;
        Ok((self.client(&credentials)?, credentials))
    }

    /// A client that presents these credentials.
    pub(crate) fn client(&self, credentials: &Credentials) -> Result<ServerClient> {
        let options = self.options_for(credentials)?;
        Ok(ServerClient::new(&credentials.server, &credentials.token, options)?)
    }

    /// The credentials in `path`, which must be for `server`.
    fn credentials_of(path: &Path, server: &str) -> Result<Credentials> {
        let credentials = credentials::read(path)?.ok_or_else(|| {
            let message = format!("this machine has no token for {server} (looked for {})", path.display());
            CommandError::with_exit(Exit::WrongCredentials, message).next(
                "Join the server: 'byteback invite FOLDER' on the server makes a code; use it here with 'byteback join CODE DIR', \
                 or with 'push' or 'pull' and --join-token-file. If the server only moved: 'byteback server set-address OLD NEW'.",
            )
        })?;
        if credentials.server != server {
            let message = format!(
                "the token in {} is for {}, not for {server}",
                path.display(),
                credentials.server
            );
            return Err(CommandError::with_exit(Exit::WrongCredentials, message)
                .next("Name the right file with --token-file, or leave it out to use the one saved when joining."));
        }
        Ok(credentials)
    }

    /// As [`Self::connect`], with at most `limit` bytes per second.
    pub(crate) fn connect_limited(
        &self,
        server: &str,
        binding: Option<&Binding>,
        limit: Option<u64>,
    ) -> Result<(ServerClient, Credentials)> {
        self.connect_with(server, binding, |options| ClientOptions {
            bytes_per_second_max: limit,
            ..options
        })
    }

    /// As [`Self::connect`], with options altered by `change`.
    pub(crate) fn connect_with(
        &self,
        server: &str,
        binding: Option<&Binding>,
        change: impl FnOnce(ClientOptions) -> ClientOptions,
    ) -> Result<(ServerClient, Credentials)> {
        let credentials = self.credentials(server, binding)?;
        let options = change(self.options_for(&credentials)?);
        let client = ServerClient::new(server, &credentials.token, options)?;
        Ok((client, credentials))
    }

    /// Whether the user says which issuers to trust: then no other process decides that.
    pub(crate) fn names_issuers(&self) -> bool {
        self.cacert.is_some()
    }

    /// The flags for reaching a server, for a process of ours in another working directory.
    pub(crate) fn passed_on(&self) -> Vec<OsString> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let flags = [("--token-file", &self.token_file), ("--cacert", &self.cacert)];
        flags
            .into_iter()
            .filter_map(|(flag, path)| Some([flag.into(), absolute(path.as_ref()?).into()]))
            .flatten()
            .collect()
    }

    /// The given flags that all commands have, for a service: those that name the server, the token
    /// and the state.
    pub(crate) fn of_flags(&self) -> Vec<OsString> {
        self.flags.clone()
    }

    /// The trusted issuers (PEM) of certificates of servers that are not ours; `None` means the
    /// built-in list.
    pub(crate) fn roots(&self) -> Result<Option<Vec<u8>>> {
        match &self.cacert {
            Some(path) => fs::read(path)
                .map(Some)
                .map_err(|error| CommandError::file("read the certificates", path, &error)),
            None => Ok(SYSTEM_ROOTS.iter().find_map(|path| fs::read(path).ok())),
        }
    }

    /// The options for reaching the server that issued these credentials.
    pub(crate) fn options_for(&self, credentials: &Credentials) -> Result<ClientOptions> {
        let mut options = ClientOptions {
            is_cancelled: std::sync::Arc::new(signals::stop_is_asked),
            certificate: credentials.certificate,
            other_addresses: credentials.addresses.clone(),
            ..ClientOptions::default()
        };
        if let Some(path) = &self.cacert {
            let pem = fs::read(path).map_err(|error| CommandError::file("read the certificates", path, &error))?;
            options.ca_pem = Some(pem);
        } else if credentials.certificate.is_none() && credentials.server.starts_with("https://") {
            // The issuers that this machine trusts; without them, the built-in list.
            options.ca_pem = SYSTEM_ROOTS.iter().find_map(|path| fs::read(path).ok());
        }
        Ok(options)
    }
}

/// The flags of all commands that name the server, the token and the state, with absolute paths.
fn flags_again(global: &GlobalArguments) -> Vec<OsString> {
    let mut flags: Vec<OsString> = Vec::new();
    if let Some(repository) = &global.repo {
        flags.extend(["-r".into(), repository.to_string().into()]);
    }
    for (flag, path) in [
        ("--token-file", &global.token_file),
        ("--cacert", &global.cacert),
        ("--state-dir", &global.state_dir),
    ] {
        if let Some(path) = path {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            flags.extend([flag.into(), path.into()]);
        }
    }
    flags
}

fn parse(text: &str, whose: &str) -> Result<Repository> {
    text.parse()
        .map_err(|error| CommandError::with_exit(Exit::NoRepository, format!("{whose} is invalid: {error}")))
}

fn progress_every(fps: Option<f64>, output: Output) -> Option<Duration> {
    let shows = output.shows_progress() || (output.json && !output.quiet);
    if !shows {
        return None;
    }
    let fps = fps.unwrap_or(if output.json { 1.0 } else { 10.0 });
    // Zero, negative numbers and NaN mean never.
    (fps > 0.0).then(|| Duration::from_secs_f64(1.0 / fps.clamp(0.001, PROGRESS_FPS_MAX)))
}
