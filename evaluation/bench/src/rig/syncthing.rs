//! Syncthing, as a client and a server that keep one folder in sync.
//!
//! Two processes with configurations of their own; the client dials the server through a counting
//! proxy. No network outside of loopback is used, and the folders are not watched: the client scans
//! on request, which is the best that a watcher could do.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::process::{Background, Cost, program, run, wait_for};
use super::proxy::{CountingProxy, Wire};
use crate::SuiteError;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);
const SCAN_TIMEOUT: Duration = Duration::from_secs(300);
const API_KEY: &str = "bench";
const FOLDER: &str = "bench";

/// Both ends while they run.
#[derive(Debug)]
pub(crate) struct Syncthing {
    client: Background,
    server: Background,
    proxy: CountingProxy,
    client_api: SocketAddr,
    server_id: String,
}

/// An end before it runs.
struct End {
    home: PathBuf,
    id: String,
    api: SocketAddr,
    listen: SocketAddr,
}

/// The answer of `completion`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Completion {
    completion: f64,
    need_bytes: u64,
    need_items: u64,
    need_deletes: u64,
    remote_state: Option<String>,
}

/// Whether the program is installed.
pub(crate) fn is_installed() -> bool {
    run(program("syncthing").arg("--version")).is_ok()
}

/// A port of loopback that another process is unlikely to take meanwhile.
fn free_address() -> Result<SocketAddr, SuiteError> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl End {
    fn make(home: PathBuf) -> Result<Self, SuiteError> {
        let mut command = program("syncthing");
        command
            .arg("generate")
            .arg("--home")
            .arg(&home)
            .arg("--no-default-folder");
        run(command.env("HOME", &home))?;
        let text = fs::read_to_string(home.join("config.xml"))?;
        let id = text
            .split_once("<device id=\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let (id, _) = id.ok_or("syncthing generate names no device")?;
        Ok(Self {
            id: id.to_owned(),
            api: free_address()?,
            listen: free_address()?,
            home,
        })
    }

    /// Starts the end. It dials `other` at the given address, or not at all.
    fn start(
        &self,
        name: &str,
        folder: &Path,
        other: &str,
        dialled: Option<SocketAddr>,
    ) -> Result<Background, SuiteError> {
        let address = dialled.map_or_else(|| "dynamic".to_owned(), |address| format!("tcp://{address}"));
        let text = format!(
            r#"<configuration version="36">
<folder id="{FOLDER}" label="{FOLDER}" path="{}" type="sendreceive" rescanIntervalS="0" fsWatcherEnabled="false" ignorePerms="false">
<device id="{}"></device><device id="{other}"></device></folder>
<device id="{}" name="here" compression="metadata"><address>dynamic</address></device>
<device id="{other}" name="there" compression="metadata"><address>{address}</address></device>
<gui enabled="true" tls="false"><address>{}</address><apikey>{API_KEY}</apikey></gui>
<options><listenAddress>tcp://{}</listenAddress><globalAnnounceEnabled>false</globalAnnounceEnabled>
<localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled><natEnabled>false</natEnabled>
<startBrowser>false</startBrowser><urAccepted>-1</urAccepted><autoUpgradeIntervalH>0</autoUpgradeIntervalH>
<crashReportingEnabled>false</crashReportingEnabled><stunKeepaliveStartS>0</stunKeepaliveStartS>
<reconnectionIntervalS>1</reconnectionIntervalS><setLowPriority>false</setLowPriority></options>
</configuration>
"#,
            folder.display(),
            self.id,
            self.id,
            self.api,
            self.listen
        );
        fs::write(self.home.join("config.xml"), text)?;
        let log = fs::File::create(self.home.join("log"))?;
        let mut command = program("syncthing");
        command
            .args(["serve", "--no-browser", "--no-upgrade", "--home"])
            .arg(&self.home);
        // A single process instead of one that watches over another.
        command.env("STMONITORED", "yes").env("HOME", &self.home);
        command.stdout(log.try_clone()?).stderr(log);
        let process = Background::start(name, &mut command)?;
        wait_for(&format!("the start of {name}"), START_TIMEOUT, || {
            if process.has_ended() {
                let said = fs::read_to_string(self.home.join("log")).unwrap_or_default();
                return Err(format!("{name} did not start; its output:\n{said}").into());
            }
            Ok(call(self.api, "GET", "/rest/system/ping").ok())
        })?;
        Ok(process)
    }
}

impl Syncthing {
    /// Starts both ends with their state below `work`, and waits until `copy` equals `folder`.
    pub(crate) fn start(work: &Path, folder: &Path, copy: &Path) -> Result<Self, SuiteError> {
        let ends = ["syncthing-client", "syncthing-server"].map(|name| End::make(work.join(name)));
        let [client, server] = ends;
        let (client, server) = (client?, server?);
        let server_process = server.start("the server's syncthing", copy, &client.id, None)?;
        let proxy = CountingProxy::start(server.listen)?;
        let client_process = client.start("the client's syncthing", folder, &server.id, Some(proxy.address()))?;
        let this = Self {
            client: client_process,
            server: server_process,
            proxy,
            client_api: client.api,
            server_id: server.id,
        };
        this.bring()?;
        Ok(this)
    }

    /// Scans for changes and waits until the server has them.
    pub(crate) fn bring(&self) -> Result<(), SuiteError> {
        call(self.client_api, "POST", &format!("/rest/db/scan?folder={FOLDER}"))?;
        let path = format!("/rest/db/completion?folder={FOLDER}&device={}", self.server_id);
        wait_for("what Syncthing changed at its server", SYNC_TIMEOUT, || {
            let said: Completion = serde_json::from_str(&call(self.client_api, "GET", &path)?)?;
            let is_there = said.remote_state.is_none_or(|state| state == "valid");
            let is_done = said.completion >= 100.0 && said.need_bytes + said.need_items + said.need_deletes == 0;
            Ok((is_there && is_done).then_some(()))
        })
    }

    /// The cost of client and server so far, and the traffic between them.
    pub(crate) fn spent(&self) -> Result<(Cost, Cost, Wire), SuiteError> {
        Ok((self.client.cost()?, self.server.cost()?, self.proxy.so_far()))
    }
}

/// Calls the API. Returns the body of a successful answer.
fn call(api: SocketAddr, method: &str, path: &str) -> Result<String, SuiteError> {
    let mut stream = TcpStream::connect(api)?;
    stream.set_read_timeout(Some(SCAN_TIMEOUT))?;
    // HTTP/1.0: the answer ends with the connection.
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: {api}\r\nX-API-Key: {API_KEY}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("Syncthing sent an incomplete answer")?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(format!("Syncthing answered {method} {path} with:\n{answer}").into()),
    }
}
