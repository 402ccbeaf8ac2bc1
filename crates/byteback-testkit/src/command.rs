//! The `byteback` program as a process: its commands, their ends, and its server.
//!
//! The path of the program comes from the test, since only the tests of the crate `byteback` are
//! told it (`CARGO_BIN_EXE_byteback`). No command sees the configuration of the machine.

use crate::processes::{Frozen, handle, kernel_stacks, kill, signal};
use crate::waiting::{PATIENCE, eventually};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// A command of `program` with a home of its own, isolated from the machine's configuration.
pub fn isolated<A: AsRef<OsStr>>(program: &Path, home: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("BYTEBACK_PROGRESS_FPS", "0")
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    at_home(&mut command, home);
    command
}

/// Gives a command another home, with the configuration and the state below it.
pub fn at_home<'c>(command: &'c mut Command, home: &Path) -> &'c mut Command {
    command
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("BYTEBACK_STATE_DIR", home.join("state"))
}

/// A command, run by `wrapper` (such as `nsenter` with its flags): program and arguments are added
/// to those of the wrapper, which gets the command's environment and directory.
pub fn run_by(mut wrapper: Command, command: &Command) -> Command {
    wrapper.arg(command.get_program()).args(command.get_args());
    in_place_of(&mut wrapper, command);
    wrapper
}

/// Gives `other`, which runs a script for example, the environment and the directory of a command.
pub fn in_place_of<'c>(other: &'c mut Command, command: &Command) -> &'c mut Command {
    other.env_clear().stdin(Stdio::null());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(dir) = command.get_current_dir() {
        other.current_dir(dir);
    }
    other
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    /// The words of the command, for messages.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// The exit code; `None` after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Asserts that the command ended with this code.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(
            self.code(),
            Some(code),
            "byteback {}\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that `status` printed the state, whether a folder needs attention or not.
    #[track_caller]
    pub fn reports_health(self) -> Self {
        assert!(
            matches!(self.code(), Some(0 | 4)),
            "byteback {}\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts success without any complaint.
    #[track_caller]
    pub fn fine(self) -> Self {
        let ran = self.ends_with(0);
        // Tests in mount namespaces of their own may hold copies of other tests' mounts for a
        // while.
        let is_of_others =
            |line: &&str| line.starts_with("byteback: note: ") && line.contains("is in another mount namespace");
        let complaints: Vec<&str> = ran.stderr.lines().filter(|line| !is_of_others(line)).collect();
        assert!(complaints.is_empty(), "byteback {}: {complaints:#?}", ran.what);
        ran
    }

    /// Asserts success, which complaints do not change. Returns the summary, or null.
    #[track_caller]
    pub fn succeeds(self, context: &str) -> Value {
        assert!(
            self.status.success(),
            "{context}: byteback {}: {}\n{}{}",
            self.what,
            self.status,
            self.stderr,
            self.stdout
        );
        self.summary().unwrap_or(Value::Null)
    }

    /// Asserts that this text was printed.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(
            self.stdout.contains(text) || self.stderr.contains(text),
            "byteback {} does not say '{text}':\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The JSON lines of standard output.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        parsed(&self.stdout)
    }

    /// The JSON lines of standard error.
    #[track_caller]
    pub fn json_errors(&self) -> Vec<Value> {
        parsed(&self.stderr)
    }

    /// The line with this `message_type`.
    #[track_caller]
    pub fn line(&self, message_type: &str) -> Value {
        let found = self
            .json()
            .into_iter()
            .find(|line| line["message_type"] == message_type);
        found.unwrap_or_else(|| panic!("byteback {}: no {message_type} in\n{}", self.what, self.stdout))
    }

    /// The JSON object with `message_type` `summary`, if there is one. A command that was killed
    /// may have left half a line.
    pub fn summary(&self) -> Option<Value> {
        let mut lines = self
            .stdout
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["message_type"] == "summary")
    }
}

#[track_caller]
fn parsed(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Runs a command, called `what` in messages, to its end; see [`ended`].
pub fn finish(what: &str, mut command: Command) -> Ran {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(what, child)
}

/// The words of a command, for messages.
pub fn words<A: AsRef<OsStr>>(arguments: &[A]) -> String {
    let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
    words.collect::<Vec<_>>().join(" ")
}

/// Waits for the end of a process with pipes for its output, and for the end of both pipes: a
/// daemon that it left behind must not hold them. One that hangs fails the test.
pub fn ended(what: &str, child: Child) -> Ran {
    let (pid, process) = (child.id(), handle(child.id()));
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(child.wait_with_output()));
    let Ok(output) = answered.recv_timeout(PATIENCE) else {
        let stacks = kernel_stacks(pid);
        kill(&process);
        panic!("{}", hanging(what, &stacks, ""));
    };
    let Output { status, stdout, stderr } = output.unwrap();
    Ran {
        what: what.to_owned(),
        status,
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn hanging(what: &str, stacks: &str, stderr: &str) -> String {
    format!("'byteback {what}' has not ended after {PATIENCE:?}; it waits in\n{stacks}\n{stderr}")
}

/// A running command, killed when this is dropped. Its output goes to files, which no daemon can
/// hold up.
pub struct Running {
    child: Child,
    what: String,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl Running {
    /// Starts a command; its output goes to files in `directory`.
    pub fn start(mut command: Command, directory: &Path) -> Self {
        let stdout = NamedTempFile::new_in(directory).unwrap();
        let stderr = NamedTempFile::new_in(directory).unwrap();
        let what = words(&command.get_args().collect::<Vec<_>>());
        let child = command
            .stdout(stdout.reopen().unwrap())
            .stderr(stderr.reopen().unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            what,
            stdout,
            stderr,
        }
    }

    /// Waits for the end of the command. One that hangs fails the test.
    pub fn wait(mut self) -> Ran {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let stacks = kernel_stacks(self.child.id());
                let said = fs::read_to_string(self.stderr.path()).unwrap_or_default();
                panic!("{}", hanging(&self.what, &stacks, &said));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Ran {
            what: std::mem::take(&mut self.what),
            status,
            stdout: fs::read_to_string(self.stdout.path()).unwrap(),
            stderr: fs::read_to_string(self.stderr.path()).unwrap(),
        }
    }

    /// Kills the command with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// A handle with which another thread may kill the command.
    pub fn handle(&self) -> OwnedFd {
        handle(self.child.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that was not waited for may still be there, perhaps stopped.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A server of the program, killed when this is dropped.
pub struct ServerProcess {
    child: Child,
    said: PathBuf,
    url: String,
}

impl ServerProcess {
    /// Starts `byteback serve`, whose standard output goes to the file `said`, and waits until it
    /// listens.
    #[track_caller]
    pub fn start(command: &mut Command, said: &Path) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(said).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            said: said.to_owned(),
            url: String::new(),
        };
        server.url = eventually("the server listens", || {
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!("the server ended at once: {status}");
            }
            server.line_after("listening on ").or_else(|| server.url_in_json())
        });
        server
    }

    /// The rest of the first complete line of its output that begins with `start`.
    pub fn line_after(&self, start: &str) -> Option<String> {
        self.find_line(|line| line.strip_prefix(start).map(str::to_owned))
    }

    fn url_in_json(&self) -> Option<String> {
        self.find_line(|line| {
            let said: Value = serde_json::from_str(line).ok()?;
            said["url"].as_str().map(str::to_owned)
        })
    }

    fn find_line(&self, find: impl Fn(&str) -> Option<String>) -> Option<String> {
        let said = fs::read_to_string(&self.said).unwrap();
        let mut complete = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        complete.find_map(find)
    }

    /// Its address, as a URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address: host and port.
    pub fn address(&self) -> &str {
        self.url.split_once("://").map_or(&self.url, |(_, address)| address)
    }

    /// Kills the server with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the server in good order. Returns its exit code.
    pub fn stop(mut self) -> Option<i32> {
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap().code()
    }

    /// Freezes the server, like a machine that hangs, until the returned value is dropped.
    pub fn freeze(&self) -> Frozen {
        Frozen::new(&self.child)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Neither does anything to a process that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
