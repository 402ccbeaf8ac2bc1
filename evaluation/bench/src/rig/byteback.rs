//! Byteback as its users run it: the released binary, its server and its daemons, with their own
//! state below the scratch folder.
//!
//! The client reaches the server through a counting proxy. Nothing of the user's own configuration
//! is read or changed.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use byteback_daemon::StateFolder;
use rustix::process::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::process::{Background, Cost, Finished, program, run, run_watched, wait_for};
use super::proxy::{CountingProxy, Wire};
use super::scratch::mounts_below;
use crate::SuiteError;

#[cfg(test)]
mod tests;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The program, and the folder of its state.
#[derive(Clone, Debug)]
pub(crate) struct Byteback {
    binary: PathBuf,
    home: PathBuf,
}

/// A backup's report about itself; [`Backup`] has the values measured from outside.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Summary {
    pub(crate) changed_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) hashed_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) snapshot_id: Option<u64>,
}

/// A backup and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(crate) summary: Summary,
    /// The cost of the program that the user runs.
    pub(crate) command: Cost,
    /// The cost of the mount's daemon while that program ran.
    pub(crate) daemon: Cost,
    /// The cost of the server while that program ran.
    pub(crate) server: Cost,
    pub(crate) wire: Wire,
    pub(crate) wall_s: f64,
}

impl Backup {
    /// CPU time on the client's side: the program and the daemon.
    pub(crate) fn client_cpu_s(&self) -> f64 {
        self.command.cpu_s + self.daemon.cpu_s
    }

    /// Bytes read on the client's side by any call: an upper bound of the bytes read from the
    /// folder.
    pub(crate) fn client_read_bytes(&self) -> u64 {
        self.command.read_bytes + self.daemon.read_bytes
    }
}

impl Byteback {
    /// The binary that was built beside this program.
    pub(crate) fn locate(home: PathBuf) -> Result<Self, SuiteError> {
        let binary = std::env::current_exe()?.with_file_name("byteback");
        if !binary.is_file() {
            return Err(format!(
                "{} is missing; build it as this program was built, for example: cargo build --release -p byteback",
                binary.display()
            )
            .into());
        }
        Ok(Self { binary, home })
    }

    /// A command of the program, with a clean environment.
    pub(crate) fn command(&self) -> Command {
        let mut command = program(&self.binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("BYTEBACK_") {
                command.env_remove(name);
            }
        }
        command
            .env("HOME", &self.home)
            .env("BYTEBACK_STATE_DIR", self.home.join("state"));
        command
            .env("XDG_CONFIG_HOME", self.home.join("config"))
            .env("XDG_STATE_HOME", self.home.join("state"));
        command
    }

    /// The control socket of the daemon of `folder`.
    pub(crate) fn socket(&self, folder: &Path) -> Result<PathBuf, SuiteError> {
        Ok(StateFolder::of(folder, &self.home.join("state"))?.socket())
    }

    /// Starts a server with an embedded store in `data`, on a free port of loopback, and a proxy
    /// before it. The server runs without TLS, as the peers do; docs/benchmarks.md has the cost of
    /// TLS.
    pub(crate) fn serve(&self, data: &Path) -> Result<Server, SuiteError> {
        self.serve_with(data, Scheme::Plain)
    }

    /// Like [`serve`](Self::serve), with TLS, which is the default without flags.
    pub(crate) fn serve_tls(&self, data: &Path) -> Result<Server, SuiteError> {
        self.serve_with(data, Scheme::Tls)
    }

    fn serve_with(&self, data: &Path, scheme: Scheme) -> Result<Server, SuiteError> {
        let log_path = self.home.join("serve.log");
        let log = File::create(&log_path).map_err(|error| format!("cannot write {}: {error}", log_path.display()))?;
        let mut command = self.command();
        command
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(["--listen", "127.0.0.1:0"]);
        if scheme == Scheme::Plain {
            command.arg("--plain");
        }
        command.stdout(log.try_clone()?).stderr(log);
        let process = Background::start("byteback serve", &mut command)?;
        let address = wait_for("the start of byteback serve", START_TIMEOUT, || {
            let said = fs::read_to_string(&log_path)?;
            if process.has_ended() {
                return Err(format!("byteback serve did not start; its output:\n{said}").into());
            }
            Ok(listening_on(&said))
        })?;
        Ok(Server {
            scheme,
            process,
            proxy: CountingProxy::start(address)?,
            data: data.to_owned(),
        })
    }

    /// Joins the server and binds `folder` to the folder `name` there.
    pub(crate) fn init(&self, server: &Server, folder: &Path, name: &str) -> Result<(), SuiteError> {
        let mut command = self.command();
        command.arg("init").arg(folder).arg("-r").arg(server.repository(name));
        run(command.arg("--join-token-file").arg(server.data.join("join-token")))?;
        Ok(())
    }

    /// Like [`Self::init`], on a machine that joins with a code for the folder `name`, which the
    /// server issues.
    pub(crate) fn init_invited(&self, server: &Server, folder: &Path, name: &str) -> Result<(), SuiteError> {
        let mut command = self.command();
        command.args(["invite", name, "--data"]).arg(&server.data);
        command.args(["--address", &server.proxy.address().to_string()]);
        let code = self.home.join("code");
        fs::write(&code, run(&mut command)?.text())?;
        let mut command = self.command();
        command.arg("init").arg(folder).arg("-r").arg(server.repository(name));
        run(command.arg("--join-token-file").arg(code))?;
        Ok(())
    }

    /// Mounts `folder` over itself, or at another place.
    pub(crate) fn mount(&self, folder: &Path, at: Option<&Path>) -> Result<Mount, SuiteError> {
        let mut command = self.command();
        command.args(["mount", "--json"]).arg(folder);
        if let Some(at) = at {
            command.arg("--at").arg(at);
        }
        // In our charge from here on, so that an unexpected answer leaves no mount either.
        let mut mount = Mount {
            byteback: self.clone(),
            folder: folder.to_owned(),
            point: at.unwrap_or(folder).to_owned(),
            daemon: None,
        };
        mount.started(&mut command)?;
        Ok(mount)
    }

    /// Creates a volume in a file.
    pub(crate) fn create_volume(&self, image: &Path, len_bytes: u64) -> Result<(), SuiteError> {
        let mut command = self.command();
        command.args(["volume", "create", "--size", &len_bytes.to_string()]);
        run(command.arg(image))?;
        Ok(())
    }

    /// Mounts the volume in a file at an empty directory.
    pub(crate) fn mount_volume(&self, image: &Path, at: &Path) -> Result<Mount, SuiteError> {
        let mut command = self.command();
        command.args(["mount", "--json", "--volume"]).arg(image).arg(at);
        let mut mount = Mount {
            byteback: self.clone(),
            folder: at.to_owned(),
            point: at.to_owned(),
            daemon: None,
        };
        mount.started(&mut command)?;
        Ok(mount)
    }

    /// Mounts a bound folder over itself and keeps its server up to date; changes are sent after
    /// `delay_ms` without further ones.
    pub(crate) fn sync(&self, folder: &Path, delay_ms: u64) -> Result<Mount, SuiteError> {
        let mut command = self.command();
        command
            .args(["sync", "--json", "--delay", &format!("{delay_ms}ms")])
            .arg(folder);
        let mut mount = Mount {
            byteback: self.clone(),
            folder: folder.to_owned(),
            point: folder.to_owned(),
            daemon: None,
        };
        mount.started(&mut command)?;
        Ok(mount)
    }

    /// Fills the missing folder `target` with the server's folder `name`.
    pub(crate) fn pull(&self, server: &Server, name: &str, target: &Path) -> Result<(), SuiteError> {
        run(self.command().arg("pull").arg(server.repository(name)).arg(target))?;
        Ok(())
    }

    /// Backs up a mounted folder. `on_status` is called with its progress.
    pub(crate) fn backup(
        &self,
        server: &Server,
        mount: &Mount,
        on_status: impl Fn(Status) + Send,
    ) -> Result<Backup, SuiteError> {
        let (server_before, daemon_before) = (server.process.cost()?, mount.cost()?);
        // The daemon keeps its connection to the server.
        let wire_before = server.proxy.quiet()?;
        let mut command = self.command();
        command.args(["backup", "--json"]).arg(&mount.folder);
        let finished = run_watched(&mut command, move |line| tell_status(line, &on_status))?;
        let wire = server.proxy.quiet()?.since(wire_before);
        Ok(Backup {
            summary: summary(&finished)?,
            command: finished.cost,
            daemon: mount.cost()?.since(daemon_before),
            server: server.process.cost()?.since(server_before),
            wire,
            wall_s: finished.wall_s,
        })
    }

    /// Backs up a folder that is not mounted; `delta` selects the way of finding changes.
    pub(crate) fn backup_unmounted(&self, server: &Server, folder: &Path, delta: &str) -> Result<Backup, SuiteError> {
        let mut command = self.command();
        self.without_mount(server, command.args(["backup", "--json", "--delta", delta]).arg(folder))
    }

    /// Makes the server's folder `name` equal to `folder`, which is neither mounted nor bound.
    pub(crate) fn push(&self, server: &Server, folder: &Path, name: &str) -> Result<Backup, SuiteError> {
        let mut command = self.command();
        command.args(["push", "--json", "--delete"]).arg(folder);
        command.arg(server.repository(name));
        // Only the first push needs the code; the later ones ignore it.
        command.arg("--join-token-file").arg(server.data.join("join-token"));
        self.without_mount(server, &mut command)
    }

    /// Runs a command that saves a folder by itself, without a mount's daemon.
    fn without_mount(&self, server: &Server, command: &mut Command) -> Result<Backup, SuiteError> {
        let (server_before, wire_before) = (server.process.cost()?, server.proxy.settled()?);
        let finished = run(command)?;
        let wire = server.proxy.settled()?.since(wire_before);
        Ok(Backup {
            summary: summary(&finished)?,
            command: finished.cost,
            daemon: Cost::default(),
            server: server.process.cost()?.since(server_before),
            wire,
            wall_s: finished.wall_s,
        })
    }

    /// Whether the program knows this way of finding changes.
    pub(crate) fn knows_delta(&self, delta: &str) -> Result<bool, SuiteError> {
        let help = run(self.command().args(["backup", "--help"]))?.text();
        Ok(help
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .any(|word| word == delta))
    }

    /// Restores a snapshot of `folder` into the empty folder `target`. `on_status` is called with
    /// its progress.
    pub(crate) fn restore(
        &self,
        folder: &Path,
        snapshot: u64,
        target: &Path,
        on_status: impl Fn(Status) + Send,
    ) -> Result<Finished, SuiteError> {
        let mut command = self.command();
        command
            .args(["restore", "--json"])
            .arg(snapshot.to_string())
            .arg("--dir")
            .arg(folder)
            .arg("--target")
            .arg(target);
        run_watched(&mut command, move |line| tell_status(line, &on_status))
    }

    /// Verifies the newest moment of `folder`; returns the stored bytes that the server read.
    pub(crate) fn verify(&self, folder: &Path) -> Result<(u64, Finished), SuiteError> {
        #[derive(Deserialize)]
        struct Verified {
            bytes: u64,
        }
        let mut command = self.command();
        command.args(["verify", "--json", "--dir"]).arg(folder);
        let finished = run_watched(&mut command, |_| ())?;
        let verified: Verified = summary(&finished)?;
        Ok((verified.bytes, finished))
    }
}

/// The progress of a command.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) bytes_done: u64,
    pub(crate) total_bytes: u64,
}

fn tell_status(line: &str, on_status: &impl Fn(Status)) {
    // Lines of other types lack these fields or are not about progress.
    if let (true, Ok(status)) = (is_of_type(line, "status"), serde_json::from_str(line)) {
        on_status(status);
    }
}

/// The object with the type `summary` among the lines that a command printed.
fn summary<T: DeserializeOwned>(command: &Finished) -> Result<T, SuiteError> {
    let text = command.text();
    let line = summary_line(&text).ok_or_else(|| format!("a command with --json printed no summary:\n{text}"))?;
    Ok(serde_json::from_str(line)?)
}

fn summary_line(text: &str) -> Option<&str> {
    text.lines().find(|line| is_of_type(line, "summary"))
}

fn is_of_type(line: &str, message_type: &str) -> bool {
    #[derive(Deserialize)]
    struct Line {
        message_type: String,
    }
    serde_json::from_str::<Line>(line).is_ok_and(|line| line.message_type == message_type)
}

/// The output of `mount --json`.
#[derive(Deserialize)]
struct Ready {
    pid: i32,
}

/// The address in a complete line `... listening on http://ADDRESS ...`, or with `https`.
fn listening_on(said: &str) -> Option<SocketAddr> {
    let (complete, _) = said.rsplit_once('\n')?;
    let url = complete
        .lines()
        .find_map(|line| Some(line.split_once("listening on ")?.1))?;
    let rest = [Scheme::Plain, Scheme::Tls]
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme.prefix()))?;
    rest.split_whitespace().next()?.trim_end_matches('/').parse().ok()
}

/// The scheme of a server's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Plain,
    Tls,
}

impl Scheme {
    fn prefix(self) -> &'static str {
        match self {
            Self::Plain => "http://",
            Self::Tls => "https://",
        }
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    scheme: Scheme,
    process: Background,
    proxy: CountingProxy,
    data: PathBuf,
}

impl Server {
    /// The URL of a folder on the server, through the proxy.
    fn repository(&self, name: &str) -> String {
        format!("{}{}/{name}", self.scheme.prefix(), self.proxy.address())
    }

    /// The server's cost so far.
    pub(crate) fn cost(&self) -> Result<Cost, SuiteError> {
        self.process.cost()
    }

    /// The traffic between the server and its clients so far.
    pub(crate) fn wire(&self) -> Wire {
        self.proxy.so_far()
    }

    /// Limits the link to the server to this rate in each direction; `None` for no limit.
    pub(crate) fn limit_link(&self, bits_per_s: Option<u64>) {
        self.proxy.limit(bits_per_s);
    }

    /// Begins a new measurement of the server's peak memory.
    pub(crate) fn reset_peak(&self) -> Result<(), SuiteError> {
        self.process.reset_peak()
    }

    /// Stops the server. Returns its total cost.
    pub(crate) fn stop(mut self) -> Result<Cost, SuiteError> {
        self.process.stop()
    }
}

/// A mounted folder. Unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mount {
    byteback: Byteback,
    folder: PathBuf,
    point: PathBuf,
    daemon: Option<Background>,
}

impl Mount {
    /// Runs the command that mounts, and takes charge of the daemon.
    fn started(&mut self, command: &mut Command) -> Result<(), SuiteError> {
        let ready: Ready = summary(&run(command)?)?;
        let pid = Pid::from_raw(ready.pid).ok_or("the command that mounts reported no process")?;
        self.daemon = Some(Background::adopt("the mount's daemon", pid));
        Ok(())
    }

    /// The path at which programs see the folder.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// The cost of the mount's daemon so far.
    pub(crate) fn cost(&self) -> Result<Cost, SuiteError> {
        self.daemon.as_ref().ok_or("the folder is not mounted")?.cost()
    }

    /// Resident memory of the mount's daemon now, bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, SuiteError> {
        self.daemon
            .as_ref()
            .ok_or("the folder is not mounted")?
            .resident_bytes()
    }

    /// Begins a new measurement of the daemon's peak memory.
    pub(crate) fn reset_peak(&self) -> Result<(), SuiteError> {
        self.daemon.as_ref().ok_or("the folder is not mounted")?.reset_peak()
    }

    /// Unmounts the folder; the daemon ends.
    pub(crate) fn unmount(mut self) -> Result<(), SuiteError> {
        run(self.byteback.command().arg("umount").arg(&self.folder))?;
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end()?;
        }
        match mounts_below(&self.point)?.first() {
            Some(point) => Err(format!("{} is still mounted after byteback umount", point.display()).into()),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.daemon.is_none() {
            return;
        }
        // Not through `run`, which does nothing once the user has asked to stop. The scratch folder
        // clears any leftovers.
        let mut command = self.byteback.command();
        command
            .arg("umount")
            .arg(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = command.status();
    }
}
