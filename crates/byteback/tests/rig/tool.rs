//! Programs of the system that tests need.

use std::process::{Command, Stdio};

/// Runs a program that must exist and succeed; returns its output.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/install-dependencies"));
    assert!(
        ran.status.success(),
        "{program} {arguments:?}: {}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8_lossy(&ran.stdout).into_owned()
}
