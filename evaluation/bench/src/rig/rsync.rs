//! rsync as its users run it against a server: a daemon on loopback, one for each transfer.
//!
//! The daemon of one transfer ends with it, and its accounts then include those of all its children
//! to the microsecond. Its start costs a few milliseconds, which are charged to rsync and are
//! negligible next to seconds of work.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::process::{Background, Cost, Finished, program, run, wait_for};
use super::proxy::{CountingProxy, Wire};
use crate::SuiteError;

#[cfg(test)]
mod tests;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A destination of rsync.
#[derive(Debug)]
pub(crate) struct Rsync {
    destination: PathBuf,
    work: PathBuf,
    bits_per_s: Option<u64>,
}

/// The cost of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// The cost of the program that the user runs, with its children. Bytes read include those from
    /// its socket.
    pub(crate) client: Cost,
    /// The cost of the daemon with its children.
    pub(crate) server: Cost,
    pub(crate) wire: Wire,
    pub(crate) wall_s: f64,
    pub(crate) stats: Stats,
}

impl Transfer {
    /// Bytes that the client read from files: all bytes read, less those from the socket.
    pub(crate) fn file_read_bytes(&self) -> u64 {
        self.client.read_bytes.saturating_sub(self.wire.to_client)
    }

    /// Bytes that the daemon read from files: all bytes read, less those from the socket.
    pub(crate) fn server_file_read_bytes(&self) -> u64 {
        self.server.read_bytes.saturating_sub(self.wire.to_server)
    }

    /// Bytes that were hashed to find the changes: each file that was not skipped, as a whole, on
    /// both sides.
    pub(crate) fn hashed_bytes(&self) -> u64 {
        2 * self.stats.transferred_file_bytes
    }
}

/// rsync's report on a transfer (`--stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Total length of the files that were not skipped by size and time. Each is read and hashed as
    /// a whole.
    pub(crate) transferred_file_bytes: u64,
    /// Bytes of content that were sent.
    pub(crate) literal_bytes: u64,
    /// Bytes of content that the other side had.
    pub(crate) matched_bytes: u64,
}

impl Stats {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
            let digits: String = value
                .split_whitespace()
                .next()?
                .chars()
                .filter(|&digit| digit != ',')
                .collect();
            digits.parse().ok()
        };
        Some(Self {
            transferred_file_bytes: field("Total transferred file size")?,
            literal_bytes: field("Literal data")?,
            matched_bytes: field("Matched data")?,
        })
    }
}

impl Rsync {
    /// Transfers go into `destination`; `work` is for the daemon's files.
    pub(crate) fn new(destination: &Path, work: &Path) -> Self {
        Self {
            destination: destination.to_owned(),
            work: work.to_owned(),
            bits_per_s: None,
        }
    }

    /// Limits the link to this rate in each direction.
    pub(crate) fn over_link(mut self, bits_per_s: u64) -> Self {
        self.bits_per_s = Some(bits_per_s);
        self
    }

    /// The version of the program.
    pub(crate) fn version() -> Result<String, SuiteError> {
        let text = run(program("rsync").arg("--version"))?.text();
        let version = text.split_whitespace().skip_while(|&word| word != "version").nth(1);
        Ok(version.unwrap_or("of unknown version").to_owned())
    }

    /// Starts the daemon, for any number of transfers.
    pub(crate) fn start(&self) -> Result<Running, SuiteError> {
        let (daemon, address) = self.start_daemon()?;
        let proxy = CountingProxy::start(address)?;
        proxy.limit(self.bits_per_s);
        Ok(Running { daemon, proxy })
    }

    /// Transfers the contents of the folder `source`.
    pub(crate) fn transfer(&self, source: &Path, options: &[&str]) -> Result<Transfer, SuiteError> {
        let running = self.start()?;
        let finished = running.transfer(source, options)?;
        let (server, wire) = running.end()?;
        let text = finished.text();
        let stats = Stats::parse(&text).ok_or_else(|| format!("cannot parse the output of rsync --stats:\n{text}"))?;
        Ok(Transfer {
            client: finished.cost,
            server,
            wire,
            wall_s: finished.wall_s,
            stats,
        })
    }

    /// Starts the daemon itself.
    fn start_daemon(&self) -> Result<(Background, SocketAddr), SuiteError> {
        // rsync cannot choose a free port itself. Another process is unlikely to take this one
        // meanwhile; if one does, the start fails.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let config = self.work.join("rsyncd.conf");
        let log = self.work.join("rsyncd.log");
        // As root the daemon keeps owners; otherwise it can only act as the user.
        let user = if rustix::process::geteuid().is_root() {
            "uid = 0\ngid = 0\n"
        } else {
            ""
        };
        let text = format!(
            "use chroot = no\nmunge symlinks = no\nlog file = {}\n{user}[destination]\npath = {}\nread only = no\n",
            log.display(),
            self.destination.display()
        );
        fs::write(&config, text).map_err(|error| format!("cannot write {}: {error}", config.display()))?;
        let mut command = program("rsync");
        command
            .arg("--daemon")
            .arg("--no-detach")
            .arg("--address=127.0.0.1")
            .arg(format!("--port={port}"));
        command
            .arg(format!("--config={}", config.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let daemon = Background::start("the rsync daemon", &mut command)?;
        wait_for("the rsync daemon's start", START_TIMEOUT, || {
            if daemon.has_ended() {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("the rsync daemon did not start; its log:\n{said}").into());
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok((daemon, address))
    }
}

/// A daemon that waits for transfers, and the proxy before it.
#[derive(Debug)]
pub(crate) struct Running {
    daemon: Background,
    proxy: CountingProxy,
}

impl Running {
    /// Transfers the contents of the folder `source`.
    pub(crate) fn transfer(&self, source: &Path, options: &[&str]) -> Result<Finished, SuiteError> {
        let mut from = source.as_os_str().to_owned();
        from.push("/");
        let to = format!("rsync://{}/destination/", self.proxy.address());
        run(program("rsync").args(options).arg("--stats").arg(from).arg(to))
    }

    /// Stops the daemon. Returns its cost with its serving children, and the traffic.
    pub(crate) fn end(mut self) -> Result<(Cost, Wire), SuiteError> {
        let wire = self.proxy.settled()?;
        Ok((self.daemon.stop()?, wire))
    }
}
