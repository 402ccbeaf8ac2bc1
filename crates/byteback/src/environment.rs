//! The environment variables, all of them, and the only place that reads them.
//!
//! `docs/environment.md` is generated from this file; a test keeps the two equal. Precedence
//! everywhere: flag, then environment variable, then the user's configuration, then the system's,
//! then the default.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A variable, for the documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
}

macro_rules! variables {
    ($( $constant:ident = $name:literal: $meaning:literal; )*) => {
        $( const $constant: &str = $name; )*
        /// Every variable that is read.
        pub(crate) const VARIABLES: &[Variable] = &[ $( Variable { name: $name, meaning: $meaning }, )* ];
    };
}

variables! {
    REPOSITORY = "BYTEBACK_REPOSITORY":
        "Repository of the commands, `https://HOST:PORT/FOLDER`, unless `-r` names another; overrides the binding of a folder.";
    TOKEN_FILE = "BYTEBACK_TOKEN_FILE":
        "File with the device token to use, instead of the one saved when this machine joined the server.";
    CACERT = "BYTEBACK_CACERT":
        "PEM file with the certificate authorities to trust for the server, instead of the public ones.";
    HOST = "BYTEBACK_HOST":
        "Host name to record in snapshots and to join as, instead of the machine's own.";
    PROGRESS_FPS = "BYTEBACK_PROGRESS_FPS":
        "Progress updates per second (default 10 on a terminal, 1 with `--json`; 0: none).";
    STATE_DIR = "BYTEBACK_STATE_DIR":
        "Directory of the operation logs, instead of `/var/lib/byteback` (root) or `$XDG_STATE_HOME/byteback`.";
    AWS_ENDPOINT_URL_S3 = "AWS_ENDPOINT_URL_S3":
        "The S3 server for `checksums s3://...`, `http://HOST:PORT` or `https://HOST`, instead of Amazon's.";
    AWS_ENDPOINT_URL = "AWS_ENDPOINT_URL":
        "The same, if `AWS_ENDPOINT_URL_S3` is not set.";
    AWS_REGION = "AWS_REGION":
        "The region of that server (default `us-east-1`).";
    AWS_ACCESS_KEY_ID = "AWS_ACCESS_KEY_ID":
        "The public part of the key for that server; without it requests are not signed.";
    AWS_SECRET_ACCESS_KEY = "AWS_SECRET_ACCESS_KEY":
        "The secret part of that key.";
    AWS_SESSION_TOKEN = "AWS_SESSION_TOKEN":
        "The session token of a temporary key.";
    XDG_CONFIG_HOME = "XDG_CONFIG_HOME":
        "Base of the user's configuration and tokens (default `~/.config`).";
    XDG_STATE_HOME = "XDG_STATE_HOME":
        "Base of an ordinary user's operation logs (default `~/.local/state`).";
    XDG_RUNTIME_DIR = "XDG_RUNTIME_DIR":
        "Where `service` checks whether the user's own systemd is running.";
    HOME = "HOME":
        "The home directory, the base of the defaults above.";
    PATH = "PATH":
        "Where `checksums` looks for storage programs (`zdb`, `mfsfileinfo`, `ceph-objectstore-tool`), before `/usr/local/sbin`, `/usr/sbin` and `/sbin`.";
    TMPDIR = "TMPDIR":
        "Directory for the objects that `checksums ceph://...` reads (default `/var/tmp`).";
    NOTIFY_SOCKET = "NOTIFY_SOCKET":
        "Set by systemd: where `serve`, `mount --foreground` and `sync --foreground` report that they are ready.";
}

/// Access to S3: the variables that S3's own tools use.
#[derive(Clone, Default)]
pub(crate) struct S3Environment {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) access_key: Option<String>,
    pub(crate) secret_key: Option<String>,
    pub(crate) session_token: Option<String>,
}

impl std::fmt::Debug for S3Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets and tokens are left out.
        let shown = (&self.endpoint, &self.region, &self.access_key);
        f.debug_tuple("S3Environment").field(&shown).finish()
    }
}

/// The variables as they were at the start. An empty variable counts as not set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) repository: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) host: Option<OsString>,
    pub(crate) progress_fps: Option<String>,
    pub(crate) notify_socket: Option<OsString>,
    pub(crate) s3: S3Environment,
    /// Folders that are searched for programs.
    pub(crate) program_folders: Vec<PathBuf>,
    /// Folder for large temporary files.
    pub(crate) scratch: Option<PathBuf>,
    /// Folder of the sockets of the user's programs.
    pub(crate) runtime_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    xdg_config_home: Option<PathBuf>,
    xdg_state_home: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Environment {
    /// Reads the process's environment.
    pub(crate) fn read() -> Self {
        let get = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = |name: &str| get(name).map(PathBuf::from);
        // The XDG rules: a relative path is ignored.
        let base = |name: &str| path(name).filter(|path| path.is_absolute());
        let text = |name: &str| get(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            repository: text(REPOSITORY),
            token_file: path(TOKEN_FILE),
            cacert: path(CACERT),
            host: get(HOST),
            progress_fps: text(PROGRESS_FPS),
            notify_socket: get(NOTIFY_SOCKET),
            s3: S3Environment {
                endpoint: text(AWS_ENDPOINT_URL_S3).or_else(|| text(AWS_ENDPOINT_URL)),
                region: text(AWS_REGION),
                access_key: text(AWS_ACCESS_KEY_ID),
                secret_key: text(AWS_SECRET_ACCESS_KEY),
                session_token: text(AWS_SESSION_TOKEN),
            },
            program_folders: get(PATH).map_or_else(Vec::new, |folders| std::env::split_paths(&folders).collect()),
            scratch: base(TMPDIR),
            runtime_dir: base(XDG_RUNTIME_DIR),
            state_dir: path(STATE_DIR),
            xdg_config_home: base(XDG_CONFIG_HOME),
            xdg_state_home: base(XDG_STATE_HOME),
            home: base(HOME),
        }
    }

    /// The variables that a service needs to find the same server, tokens and state as a command
    /// does, with their present values.
    pub(crate) fn of_services(&self) -> Vec<(&'static str, OsString)> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .unwrap_or_else(|_| path.clone())
                .into_os_string()
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(absolute);
        let variables = [
            (HOME, path(&self.home)),
            (XDG_CONFIG_HOME, path(&self.xdg_config_home)),
            (XDG_STATE_HOME, path(&self.xdg_state_home)),
            (STATE_DIR, path(&self.state_dir)),
            (TOKEN_FILE, path(&self.token_file)),
            (CACERT, path(&self.cacert)),
            (HOST, self.host.clone()),
        ];
        variables
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// Root of the user's configuration folders.
    pub(crate) fn config_home(&self) -> Option<PathBuf> {
        self.xdg_config_home.clone().or_else(|| self.in_home(".config"))
    }

    /// Folder of the user's configuration and tokens; `None` without a home directory.
    pub(crate) fn config_dir(&self) -> Option<PathBuf> {
        Some(self.config_home()?.join("byteback"))
    }

    /// Folder of the operation logs, unless a flag names another; `None` without a home directory.
    pub(crate) fn state_root(&self, is_root: bool) -> Option<PathBuf> {
        if let Some(dir) = &self.state_dir {
            return Some(dir.clone());
        }
        if is_root {
            return Some(PathBuf::from("/var/lib/byteback"));
        }
        let base = self.xdg_state_home.clone().or_else(|| self.in_home(".local/state"))?;
        Some(base.join("byteback"))
    }

    fn in_home(&self, below: &str) -> Option<PathBuf> {
        self.home.as_deref().map(|home: &Path| home.join(below))
    }
}

#[cfg(test)]
mod tests;
