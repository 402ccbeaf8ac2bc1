//! Systems that a script below `evaluation/systems` starts on this machine, as processes of the
//! user who runs the tests, and requests to them with curl.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A system, which runs as long as this lives.
pub(crate) struct Server {
    name: &'static str,
    dir: tempfile::TempDir,
    said: String,
}

/// Path of the script `evaluation/systems/NAME`.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../evaluation/systems")
        .join(name)
}

impl Server {
    pub(crate) fn start(name: &'static str) -> Self {
        Self::start_with(name, &[])
    }

    /// Starts a system with variables in its environment.
    pub(crate) fn start_with(name: &'static str, variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("byteback-{name}-"))
            .tempdir_in("/var/tmp");
        let mut server = Self {
            name,
            dir: dir.unwrap(),
            said: String::new(),
        };
        server.begin(variables);
        server
    }

    fn begin(&mut self, variables: &[(&str, &str)]) {
        let output = self
            .command("start", &[])
            .envs(variables.iter().copied())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "evaluation/systems/{} start failed", self.name);
        self.said = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }

    /// Stops the system, calls `meanwhile` with its directory, and starts it again with that; its
    /// address may have changed then.
    pub(crate) fn restart(&mut self, meanwhile: impl FnOnce(&Path)) {
        assert!(self.command("stop", &[]).status().unwrap().success());
        meanwhile(self.dir());
        self.begin(&[]);
    }

    /// The command `evaluation/systems/NAME WHAT DIR ARGUMENTS...`.
    pub(crate) fn command(&self, what: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(script(self.name));
        command.arg(what).arg(self.dir()).args(arguments).stdin(Stdio::null());
        command
    }

    /// Directory of all its files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The output of its start: its address or the like.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// A file to be sent to the system; the next one takes its place.
    pub(crate) fn upload(&self, content: &[u8]) -> PathBuf {
        let file = self.dir().join("upload");
        std::fs::write(&file, content).unwrap();
        file
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.command("stop", &[]).status();
        assert!(stopped.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// A server's answer, which must report success.
#[track_caller]
pub(crate) fn curl(arguments: &[&str], url: &str) -> String {
    let output = Command::new("curl")
        .args(["-sS", "--fail-with-body"])
        .args(arguments)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?} {url}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
