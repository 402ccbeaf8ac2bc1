//! Running in the background: the command starts itself once more, detached, and waits until the
//! second process is ready.
//!
//! Nothing is forked: a process with threads cannot be. The second process leads a session of its
//! own; its standard input is /dev/null, its standard error is the log file, and its standard
//! output is a pipe to the first process. Over the pipe it reports, one JSON object per line, its
//! progress, that it is ready, or why it is not; then it closes the pipe. If the first process has
//! ended before that (Ctrl-C), the second one notices when it writes, and ends as well. If the
//! second one dies, the pipe ends, and the first one says where the log is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::timestamp;

/// Size in bytes beyond which the next start begins a new log. The previous log is kept beside it.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// A message from the detached process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub(crate) enum StartMessage<R> {
    /// Progress: entries compared with the record so far.
    Compared {
        /// Number of entries.
        nodes: u64,
    },
    /// The mount is live.
    Ready(R),
    /// The start failed.
    Failed {
        /// The exit code.
        code: u8,
        /// The cause.
        message: String,
        /// The next step for the user.
        next: Option<String>,
    },
}

/// Outcome of the start of a detached process.
pub(crate) enum Started<R> {
    /// The mount is live.
    Ready(R),
    /// The start failed.
    Failed {
        code: u8,
        message: String,
        next: Option<String>,
    },
}

/// Starts this program again with `arguments` and waits until its mount is live. `compared` is
/// called with the number of entries compared so far.
pub(crate) fn start<R: for<'de> Deserialize<'de>>(
    arguments: &[std::ffi::OsString],
    log: &Path,
    mut compared: impl FnMut(u64),
) -> Result<Started<R>> {
    let failed = |error: io::Error| CommandError::new(format!("cannot start the daemon: {error}"));
    // Even after its file was replaced by a newer version, /proc/self/exe is this very program.
    let program = Path::new("/proc/self/exe");
    let program = fs::read_link(program)
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| program.to_owned());
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(open_log(log)?)
        .spawn()
        .map_err(failed)?;
    let pipe = child
        .stdout
        .take()
        .ok_or_else(|| failed(io::Error::other("it has no standard output")))?;
    for line in BufReader::new(pipe).lines() {
        match serde_json::from_str(&line.map_err(failed)?) {
            Ok(StartMessage::Compared { nodes }) => compared(nodes),
            Ok(StartMessage::Ready(ready)) => return Ok(Started::Ready(ready)),
            Ok(StartMessage::Failed { code, message, next }) => {
                let _ = child.wait();
                return Ok(Started::Failed { code, message, next });
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
    let ended = child.wait().map_err(failed)?;
    Err(
        CommandError::new(format!("the daemon exited before the mount was ready ({ended})"))
            .next(format!("Its log may show the cause: {}", log.display())),
    )
}

/// Path of the log of a folder's daemon.
pub(crate) fn log_path(state_folder: &Path) -> PathBuf {
    state_folder.join("daemon.log")
}

fn open_log(path: &Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        // A log that cannot be moved keeps growing, which does no harm.
        let _ = fs::rename(path, path.with_extension("log.old"));
    }
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|error| CommandError::file("open the daemon's log", path, &error))
}

/// The detached process's side of the start.
pub(crate) struct Starter {
    out: io::Stdout,
}

impl Starter {
    /// Leaves the terminal and the current directory of the process that started this one.
    pub(crate) fn detach() -> Self {
        // Fails only for the leader of a process group, which then has no terminal to lose.
        let _ = rustix::process::setsid();
        let _ = rustix::process::chdir("/");
        Self { out: io::stdout() }
    }

    /// Sends a message; false if the other end of the pipe is closed.
    pub(crate) fn tell<R: Serialize>(&mut self, tell: &StartMessage<R>) -> bool {
        let Ok(mut line) = serde_json::to_vec(tell) else {
            return false;
        };
        line.push(b'\n');
        self.out.write_all(&line).and_then(|()| self.out.flush()).is_ok()
    }

    /// Closes the pipe.
    pub(crate) fn let_go(self) {
        let nowhere = OpenOptions::new().write(true).open("/dev/null");
        if let Ok(nowhere) = nowhere {
            let _ = rustix::stdio::dup2_stdout(&nowhere);
        }
    }
}

/// Writes a line to the daemon's log, which is its standard error.
pub(crate) fn log(text: &str) {
    let _ = writeln!(
        std::io::stderr().lock(),
        "{} {text}",
        timestamp::rfc3339(timestamp::now_ns())
    );
}
