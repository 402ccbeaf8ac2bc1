//! Systems that a script below `tests/systems` starts on this machine, as processes of whoever runs
//! the tests, and asking them by curl.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A system as long as it lives.
pub(crate) struct Server {
    name: &'static str,
    dir: tempfile::TempDir,
    said: String,
}

/// `tests/systems/NAME`.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/systems")
        .join(name)
}

impl Server {
    pub(crate) fn start(name: &'static str) -> Self {
        Self::start_with(name, &[])
    }

    /// With variables in its environment.
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
        assert!(output.status.success(), "tests/systems/{} start failed", self.name);
        self.said = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }

    /// Ends it, does something to what it left, and starts it again with that; it may have another
    /// address then.
    pub(crate) fn restart(&mut self, meanwhile: impl FnOnce(&Path)) {
        assert!(self.command("stop", &[]).status().unwrap().success());
        meanwhile(self.dir());
        self.begin(&[]);
    }

    /// `tests/systems/NAME WHAT DIR ARGUMENTS...`.
    pub(crate) fn command(&self, what: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(script(self.name));
        command.arg(what).arg(self.dir()).args(arguments).stdin(Stdio::null());
        command
    }

    /// Where all of it is.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it said when it was started: where it is to be found.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// A file that is to be sent to it; the next one takes its place.
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

/// What a server answers, which must be that all is well.
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
