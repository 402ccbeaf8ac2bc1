//! Running byteback, and its output.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::server::script;

/// The output of a command: its exit code, its JSON lines, and its standard error.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) lines: Vec<Value>,
    pub(crate) errors: String,
}

/// `byteback checksums --json --verify WHAT`, with some environment variables.
pub(crate) fn checksums(what: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> CommandOutput {
    run(&[OsStr::new("--verify"), what.as_ref()], variables)
}

/// `byteback checksums --json --verify WHAT FLAGS...`.
pub(crate) fn checksums_with(what: impl AsRef<OsStr>, flags: &[&str]) -> CommandOutput {
    let mut arguments = vec![OsStr::new("--verify"), what.as_ref()];
    arguments.extend(flags.iter().map(OsStr::new));
    run(&arguments, &[])
}

/// `byteback checksums --json --ranges --against BASE NEW`, with some environment variables.
pub(crate) fn against(base: impl AsRef<OsStr>, new: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> CommandOutput {
    let arguments = [
        OsStr::new("--ranges"),
        OsStr::new("--against"),
        base.as_ref(),
        new.as_ref(),
    ];
    run(&arguments, variables)
}

/// Runs this very program where `evaluation/systems/SYSTEM` starts a system: its ignored tests
/// whose names begin with `tests`.
#[track_caller]
pub(crate) fn in_namespaces(system: &str, tests: &str) {
    let output = Command::new(script(system))
        .args(["run", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--test-threads=1", tests])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert_tests_passed(&output);
}

/// Asserts that tests that ran elsewhere passed, and prints their output.
#[track_caller]
pub(crate) fn assert_tests_passed(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}; see above", output.status);
    assert!(
        said.contains("test result: ok. ") && !said.contains("ok. 0 passed"),
        "no test ran"
    );
}

/// `byteback checksums ARGUMENTS...` as a user without any rights of its own.
pub(crate) fn as_nobody(arguments: &[&OsStr]) -> CommandOutput {
    as_nobody_with(arguments, &[])
}

/// The same with some environment variables.
pub(crate) fn as_nobody_with(arguments: &[&OsStr], variables: &[(&str, &str)]) -> CommandOutput {
    // Folders above the program may be closed to that user.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_byteback")).unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command
        .uid(65_534)
        .gid(65_534)
        .env("HOME", "/nowhere")
        .env_remove("XDG_CONFIG_HOME");
    said(&mut command, arguments, variables)
}

fn run(arguments: &[&OsStr], variables: &[(&str, &str)]) -> CommandOutput {
    said(&mut Command::new(env!("CARGO_BIN_EXE_byteback")), arguments, variables)
}

fn said(command: &mut Command, arguments: &[&OsStr], variables: &[(&str, &str)]) -> CommandOutput {
    command
        .args(["checksums", "--json"])
        .args(arguments)
        .stdin(Stdio::null());
    // The settings of the user who runs the tests must not apply.
    for name in [
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    ] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    CommandOutput {
        code: output.status.code(),
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl CommandOutput {
    /// The last line of a command that must have had nothing to complain about.
    #[track_caller]
    pub(crate) fn fine(self) -> Value {
        self.all_fine().pop().expect("it said nothing")
    }

    /// All lines of such a command.
    #[track_caller]
    pub(crate) fn all_fine(self) -> Vec<Value> {
        assert_eq!((self.code, &self.errors[..]), (Some(0), ""));
        self.lines
    }

    /// Asserts that the command failed, with this text in its message.
    #[track_caller]
    pub(crate) fn fails_with(self, text: &str) {
        assert_eq!(self.code, Some(1), "{}", self.errors);
        assert!(self.errors.contains(text), "not '{text}': {}", self.errors);
        assert!(self.lines.is_empty(), "it said something nevertheless");
    }
}
