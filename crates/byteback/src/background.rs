//! Going to the background: the command starts itself once more, detached, and waits until that one
//! is ready.
//!
//! Nothing is forked: a process with threads cannot be. The second process leads a session of its
//! own, has nowhere as input, the log file as standard error, and as standard output a pipe to the
//! first. Over the pipe it tells, one JSON object per line, how far it is, that it is ready, or why
//! it is not; then it lets go of the pipe. If the first process is gone before that (Ctrl-C), the
//! second one notices when it writes, and ends as well. If the second one dies, the pipe ends, and
//! the first one says where its log is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};

/// A longer log begins anew at the next start; the one before is kept beside it.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// What the detached process tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub(crate) enum Tell<R> {
    /// So many entries are compared with the record.
    Compared {
        /// How many.
        nodes: u64,
    },
    /// It serves.
    Ready(R),
    /// It cannot.
    Failed {
        /// The exit code.
        code: u8,
        /// Why.
        message: String,
        /// What to do next.
        next: Option<String>,
    },
}

/// How the detached process ended its start.
pub(crate) enum Started<R> {
    /// It serves.
    Ready(R),
    /// It does not.
    Failed {
        code: u8,
        message: String,
        next: Option<String>,
    },
}

/// Starts this program again with `arguments` and waits until it serves; `compared` hears how far
/// it is.
pub(crate) fn start<R: for<'de> Deserialize<'de>>(
    arguments: &[std::ffi::OsString],
    log: &Path,
    mut compared: impl FnMut(u64),
) -> Result<Started<R>> {
    let failed = |error: io::Error| CommandError::new(format!("cannot start the daemon: {error}"));
    // Also right after the file was replaced by a newer version: it is this very program.
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
            Ok(Tell::Compared { nodes }) => compared(nodes),
            Ok(Tell::Ready(ready)) => return Ok(Started::Ready(ready)),
            Ok(Tell::Failed { code, message, next }) => {
                let _ = child.wait();
                return Ok(Started::Failed { code, message, next });
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
    let ended = child.wait().map_err(failed)?;
    Err(
        CommandError::new(format!("the daemon ended before the mount was live ({ended})"))
            .next(format!("Its log may say why: {}", log.display())),
    )
}

/// Where the daemon of a folder writes its log.
pub(crate) fn log_path(state_folder: &Path) -> PathBuf {
    state_folder.join("daemon.log")
}

fn open_log(path: &Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        // If it cannot be moved it grows on, which harms nobody.
        let _ = fs::rename(path, path.with_extension("log.old"));
    }
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|error| CommandError::file("open the daemon's log", path, &error))
}

/// The other end: what the detached process does.
pub(crate) struct Starter {
    out: io::Stdout,
}

impl Starter {
    /// Leaves the terminal and the directory of whoever started us.
    pub(crate) fn detach() -> Self {
        // Refused only for the leader of a process group, which then has no terminal to lose.
        let _ = rustix::process::setsid();
        let _ = rustix::process::chdir("/");
        Self { out: io::stdout() }
    }

    /// Tells something; false if nobody listens any more.
    pub(crate) fn tell<R: Serialize>(&mut self, tell: &Tell<R>) -> bool {
        let Ok(mut line) = serde_json::to_vec(tell) else {
            return false;
        };
        line.push(b'\n');
        self.out.write_all(&line).and_then(|()| self.out.flush()).is_ok()
    }

    /// Lets go of the pipe.
    pub(crate) fn let_go(self) {
        let nowhere = OpenOptions::new().write(true).open("/dev/null");
        if let Ok(nowhere) = nowhere {
            let _ = rustix::stdio::dup2_stdout(&nowhere);
        }
    }
}
