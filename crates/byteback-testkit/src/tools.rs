//! Programs of the system that tests need. One that is missing or fails ends the test.

use std::process::{Command, Stdio};

/// Runs a program that must succeed, and returns what it printed.
#[track_caller]
pub fn run(name: &str, arguments: &[&str]) -> String {
    printed(Command::new(name).args(arguments))
}

/// As [`run`], for a command with a directory or an environment of its own.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/install-dependencies installs what tests need"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
