//! Continuous sync of a mounted folder: the engine in a thread of its own, and its connections with
//! the daemon that holds the mount.
//!
//! [`SyncRuntime::start`] opens the engine on the daemon's tree, lets it meet the server (unless
//! traffic is not allowed just now), and gives the daemon its callbacks: the status of sync, wishes
//! about the rate, repairs. [`SyncRuntime::end`] ends the engine; unsent changes are kept.
//!
//! Out of scope: what the flags mean, mounting, printing: the command's.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use byteback_client::ServerClient;
use byteback_client::throttle::{Throttle, Wish};
use byteback_control::SyncStatus;
use byteback_daemon::{Daemon, StateFolder};
use byteback_host::durable::RealDir;
use byteback_host::random::RealRandomness;
use byteback_model::ByteString;
use byteback_mount::Unmount;
use byteback_sync::engine::{Engine, EngineError, EngineHandle, EngineParts, PauseOptions, Renew, StopSign};

use crate::background;
use crate::credentials::{self, Credentials};
use crate::repository::Repository;
use crate::throttling;
use crate::timestamp;

/// How long the end waits for the engine. The next start asks for the outcome of a batch that was
/// under way.
const END_TIMEOUT: Duration = Duration::from_secs(25);

/// The decisions of a command about sync of a folder.
pub(crate) struct SyncSpec {
    pub(crate) folder: StateFolder,
    pub(crate) repository: Repository,
    /// The file of the token, which another join may replace.
    pub(crate) token_path: PathBuf,
    pub(crate) credentials: Credentials,
    /// A client that retries little: the engine does the long-term retrying.
    pub(crate) server: Arc<ServerClient>,
    /// The client's throttle.
    pub(crate) throttle: Arc<Throttle>,
    /// The noted wishes about the rate.
    pub(crate) wish: Wish,
    /// No traffic is allowed just now.
    pub(crate) is_still: bool,
    /// The folder of the engine's state.
    pub(crate) dir: RealDir,
    /// This machine, for people.
    pub(crate) host: ByteString,
    /// Ends the engine when raised; the client listens to it as well.
    pub(crate) stop: StopSign,
}

/// Sync that could not start. The mount is gone then.
#[derive(Debug)]
pub(crate) enum RuntimeError {
    /// The mount lacks what sync needs.
    Mount(&'static str),
    /// The engine refused.
    Engine(EngineError),
    /// No thread could be started.
    Thread(std::io::Error),
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(why) => write!(f, "cannot sync: {why}"),
            Self::Engine(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

/// The engine in its thread.
pub(crate) struct SyncRuntime {
    handle: EngineHandle,
    running: JoinHandle<()>,
}

impl SyncRuntime {
    /// Starts sync of the mount that `daemon` holds. Returns both, and why the server is not
    /// connected, if it is not.
    ///
    /// # Errors
    /// [`RuntimeError`]; the daemon has been ended and its mount removed.
    pub(crate) fn start(daemon: Daemon, spec: SyncSpec) -> Result<(Daemon, Self, Option<String>), RuntimeError> {
        match Self::start_with(&daemon, spec) {
            Ok((runtime, problem)) => Ok((daemon, runtime, problem)),
            Err(error) => {
                give_back(daemon);
                Err(error)
            }
        }
    }

    fn start_with(daemon: &Daemon, spec: SyncSpec) -> Result<(Self, Option<String>), RuntimeError> {
        let (folder, wish, throttle) = (spec.folder, spec.wish, spec.throttle);
        let live = daemon
            .live()
            .ok_or(RuntimeError::Mount("the mount does not report changes"))?;
        let landing = daemon.landing().ok_or(RuntimeError::Mount(
            "the mount does not accept changes from other machines",
        ))?;
        let mut engine = Engine::open(EngineParts {
            live,
            tree: daemon.service(),
            landing,
            is_listening: true,
            server: spec.server,
            folder: spec.repository.folder,
            device: spec.credentials.device,
            renew: Some(renewal(spec.token_path, spec.credentials)),
            dir: Arc::new(spec.dir),
            host: spec.host,
            east_of_utc_s: timestamp::east_of_utc_s(),
            path: ByteString::from(folder.directory().as_os_str().as_bytes()),
            part_len_bytes: EngineParts::PART_LEN_BYTES,
            examined_from_bytes: EngineParts::EXAMINED_FROM_BYTES,
            pauses: PauseOptions::default(),
            randomness: Arc::new(RealRandomness),
            stop: spec.stop,
        })
        .map_err(RuntimeError::Engine)?;
        let problem = match spec.is_still {
            // The server is contacted once traffic is allowed.
            true => Some(still(&wish, &folder)),
            false => match engine.greet() {
                Err(error) if !error.is_passing() => return Err(RuntimeError::Engine(error)),
                met => met.err().as_ref().map(ToString::to_string),
            },
        };
        let handle = engine.handle();
        connect(daemon, &handle, &throttle, &folder);
        // Picks up a change since the first reading; later ones arrive through the callback.
        throttle.set(throttling::noted(&folder).unwrap_or(wish));
        let running = std::thread::Builder::new()
            .name("sync".to_owned())
            .spawn(move || send(engine))
            .map_err(RuntimeError::Thread)?;
        Ok((Self { handle, running }, problem))
    }

    /// Ends the engine and waits for it, but not for long.
    pub(crate) fn end(self) {
        self.handle.stop();
        let began = Instant::now();
        while !self.running.is_finished() && began.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.running.is_finished() {
            let _ = self.running.join();
        }
    }
}

/// Gives the daemon its callbacks.
fn connect(daemon: &Daemon, handle: &EngineHandle, throttle: &Arc<Throttle>, folder: &StateFolder) {
    let (reported, wanted) = (handle.clone(), Arc::clone(throttle));
    daemon.set_sync_reporter(Box::new(move || {
        let wish = wanted.wish();
        SyncStatus {
            paused_since_ns: wish.paused_since_ns,
            limits: throttling::reported(&wish.limits),
            bytes_per_second_max: wanted.bytes_per_second_max(),
            ..reported.status()
        }
    }));
    let (wanted, folder) = (Arc::clone(throttle), folder.clone());
    daemon.set_sync_wishes_reader(Box::new(move || {
        wanted.set(throttling::noted_for_others(&folder)?);
        Ok(())
    }));
    let asked = handle.clone();
    daemon.repair_with(Box::new(move |request| asked.repair(request)));
}

/// Checks whether this machine has joined again and has another token.
fn renewal(path: PathBuf, shown: Credentials) -> Renew {
    let shown = Mutex::new(shown);
    Arc::new(move || {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let now = credentials::read(&path).ok().flatten()?;
        // A token for another server or another certificate would need a new client.
        let is_of_this = now.server == shown.server && now.certificate == shown.certificate;
        if !is_of_this || now.token == shown.token {
            return None;
        }
        *shown = now.clone();
        Some((now.token, now.device))
    })
}

/// Why nothing moves.
fn still(wish: &Wish, folder: &StateFolder) -> String {
    let directory = folder.directory().display();
    match wish.paused_since_ns {
        Some(since_ns) => format!(
            "Sync has been paused since {}; to resume: byteback resume {directory}",
            timestamp::local(since_ns)
        ),
        None => format!(
            "Nothing is sent at this time of day ({})",
            throttling::reported(&wish.limits).join(", ")
        ),
    }
}

fn send(mut engine: Engine) {
    if let Err(error) = engine.run() {
        background::log(&format!("sync has ended: {error}"));
    }
}

/// Removes a mount that was not announced yet.
fn give_back(daemon: Daemon) {
    if daemon.mount().unmount(Unmount::IfIdle).is_err() {
        let _ = daemon.mount().unmount(Unmount::Detach);
        return;
    }
    // If something holds the mount meanwhile, this process ends all the same.
    if daemon.mount().has_ended() {
        // The next start finds what the last checkpoint cannot record.
        let _ = daemon.run();
    }
}
