//! Running byteback, and what it says.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What it said: its exit code, its JSON lines, and everything on standard error.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) lines: Vec<Value>,
    pub(crate) errors: String,
}

/// `byteback checksums --json --verify WHAT`, with some environment variables.
pub(crate) fn checksums(what: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Said {
    run(&[OsStr::new("--verify"), what.as_ref()], variables)
}

/// `byteback checksums --json --verify WHAT FLAGS...`.
pub(crate) fn checksums_with(what: impl AsRef<OsStr>, flags: &[&str]) -> Said {
    let mut arguments = vec![OsStr::new("--verify"), what.as_ref()];
    arguments.extend(flags.iter().map(OsStr::new));
    run(&arguments, &[])
}

/// `byteback checksums --json --ranges --against BASE NEW`, with some environment variables.
pub(crate) fn against(base: impl AsRef<OsStr>, new: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Said {
    let arguments = [
        OsStr::new("--ranges"),
        OsStr::new("--against"),
        base.as_ref(),
        new.as_ref(),
    ];
    run(&arguments, variables)
}

/// Runs this very program where `tests/systems/SYSTEM` starts a system, with the names of some of its tests: those that begin with `tests`, ignored ones only.
#[track_caller]
pub(crate) fn in_namespaces(system: &str, tests: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/systems")
        .join(system);
    let output = Command::new(script)
        .args(["run", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--test-threads=1", tests])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}; see above", output.status);
    assert!(
        said.contains("test result: ok. ") && !said.contains("ok. 0 passed"),
        "no test ran"
    );
}

fn run(arguments: &[&OsStr], variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_byteback"));
    command
        .args(["checksums", "--json"])
        .args(arguments)
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
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Said {
    /// The last line of a command that had nothing to complain about.
    #[track_caller]
    pub(crate) fn fine(self) -> Value {
        self.all_fine().pop().expect("it said nothing")
    }

    /// Its lines.
    #[track_caller]
    pub(crate) fn all_fine(self) -> Vec<Value> {
        assert_eq!((self.code, &self.errors[..]), (Some(0), ""));
        self.lines
    }

    /// It must have failed, with this in what it said.
    #[track_caller]
    pub(crate) fn fails_with(self, text: &str) {
        assert_eq!(self.code, Some(1), "{}", self.errors);
        assert!(self.errors.contains(text), "not '{text}': {}", self.errors);
        assert!(self.lines.is_empty(), "it said something nevertheless");
    }
}
