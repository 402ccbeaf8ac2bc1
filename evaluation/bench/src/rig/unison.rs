//! Unison: a client that runs for each sync, and a server that waits for it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::process::{Background, Cost, program, run, wait_for};
use super::proxy::{CountingProxy, Wire};
use crate::SuiteError;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server, and the cost of its clients.
#[derive(Debug)]
pub(crate) struct Unison {
    server: Background,
    proxy: CountingProxy,
    home: PathBuf,
    folder: PathBuf,
    copy: PathBuf,
    client: Cost,
}

/// Whether the program is installed.
pub(crate) fn is_installed() -> bool {
    run(program("unison").arg("-version")).is_ok()
}

impl Unison {
    /// Starts the server with both ends' state below `work`.
    pub(crate) fn start(work: &Path, folder: &Path, copy: &Path) -> Result<Self, SuiteError> {
        let (home, server_home) = (work.join("unison-client"), work.join("unison-server"));
        for home in [&home, &server_home] {
            fs::create_dir(home)?;
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let log = File::create(work.join("unison.log"))?;
        let mut command = program("unison");
        command
            .args(["-socket", &port.to_string()])
            .env("UNISON", &server_home)
            .env("HOME", &server_home);
        command.stdout(log.try_clone()?).stderr(log);
        let server = Background::start("the unison server", &mut command)?;
        wait_for("the unison server's start", START_TIMEOUT, || {
            if server.has_ended() {
                let said = fs::read_to_string(work.join("unison.log")).unwrap_or_default();
                return Err(format!("the unison server did not start; its output:\n{said}").into());
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        let mut this = Self {
            server,
            proxy: CountingProxy::start(address)?,
            home,
            folder: folder.to_owned(),
            copy: copy.to_owned(),
            client: Cost::default(),
        };
        this.bring()?;
        Ok(this)
    }

    /// Makes the copy equal to the folder.
    pub(crate) fn bring(&mut self) -> Result<(), SuiteError> {
        let mut command = program("unison");
        command
            .arg(&self.folder)
            .arg(format!("socket://{}/{}", self.proxy.address(), self.copy.display()));
        command.args([
            "-ui",
            "text",
            "-batch",
            "-auto",
            "-silent",
            "-confirmbigdel=false",
            "-times",
        ]);
        let finished = run(command.env("UNISON", &self.home).env("HOME", &self.home))?;
        self.client.cpu_s += finished.cost.cpu_s;
        Ok(())
    }

    /// The cost of the clients and the server so far, and the traffic between them.
    pub(crate) fn spent(&self) -> Result<(Cost, Cost, Wire), SuiteError> {
        Ok((self.client, self.server.cost()?, self.proxy.so_far()))
    }
}
