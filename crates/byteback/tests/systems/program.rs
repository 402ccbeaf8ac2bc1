//! Running byteback, and what it says.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What it said: its exit code, its JSON line, and everything on standard error.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) line: Option<Value>,
    pub(crate) errors: String,
}

/// `byteback checksums --json --verify WHAT`, with some environment variables.
pub(crate) fn checksums(what: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_byteback"));
    command
        .args(["checksums", "--json", "--verify"])
        .arg(what)
        .stdin(Stdio::null());
    // What whoever runs the tests has set is not for them.
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
    Said {
        code: output.status.code(),
        line: text.lines().next().map(|line| serde_json::from_str(line).unwrap()),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Said {
    /// The line of a command that had nothing to complain about.
    #[track_caller]
    pub(crate) fn fine(self) -> Value {
        assert_eq!((self.code, &self.errors[..]), (Some(0), ""));
        self.line.expect("it said nothing")
    }

    /// It must have failed, with this in what it said.
    #[track_caller]
    pub(crate) fn fails_with(self, text: &str) {
        assert_eq!(self.code, Some(1), "{}", self.errors);
        assert!(self.errors.contains(text), "not '{text}': {}", self.errors);
        assert!(self.line.is_none(), "it said something nevertheless");
    }
}
