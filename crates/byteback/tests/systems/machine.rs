//! Tests that run in a virtual machine, because the kernel of this one may lack what they need:
//! this very program is started there (`evaluation/systems/machine`) with the names of some of its
//! tests, which are ignored otherwise.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::assert_tests_passed;
use crate::server::script;

/// A virtual machine that is not started yet.
pub(crate) struct Machine {
    dir: tempfile::TempDir,
    modules: Vec<&'static str>,
    disks: Vec<PathBuf>,
    programs: Vec<&'static str>,
}

/// Asserts that this is the virtual machine that a test started: its tests must leave other
/// machines' disks alone.
#[track_caller]
pub(crate) fn must_be_inside() {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap();
    assert!(
        line.contains("byteback_test_machine"),
        "this test runs in a virtual machine that another test starts"
    );
}

impl Machine {
    pub(crate) fn new(modules: &[&'static str]) -> Self {
        Self {
            dir: tempfile::Builder::new()
                .prefix("byteback-machine-")
                .tempdir_in("/var/tmp")
                .unwrap(),
            modules: modules.to_vec(),
            disks: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// Adds a disk, formatted by `make`, whose last argument is the image's path. The first disk is
    /// `/dev/vdb`.
    pub(crate) fn disk(mut self, mib: u64, make: &[&str]) -> Self {
        let image = self.dir.path().join(format!("disk{}", self.disks.len()));
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        if let Some((program, arguments)) = make.split_first() {
            let mut arguments = arguments.to_vec();
            arguments.push(image.to_str().unwrap());
            crate::disk::run(program, &arguments);
        }
        self.disks.push(image);
        self
    }

    /// Adds a program of this machine.
    pub(crate) fn program(mut self, path: &'static str) -> Self {
        self.programs.push(path);
        self
    }

    /// Runs the ignored tests whose names begin with `tests`, and prints their output.
    #[track_caller]
    pub(crate) fn run(self, tests: &str) {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("nice");
        command.arg("-n").arg("10").arg(script("machine")).arg("run");
        for module in &self.modules {
            command.args(["--module", module]);
        }
        for disk in &self.disks {
            command.arg("--disk").arg(disk);
        }
        for file in [&program, Path::new(env!("CARGO_BIN_EXE_byteback"))] {
            command.arg("--file").arg(file);
        }
        for file in &self.programs {
            command.args(["--file", file]);
        }
        let inside = format!("{} --ignored --nocapture --test-threads=1 {tests}", program.display());
        let output = command
            .args(["--", &inside])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert_tests_passed(&output);
    }
}

/// The offsets at which a disk holds these bytes, which must belong to nothing else.
pub(crate) fn find(device: &str, wanted: &[u8]) -> Vec<u64> {
    let disk = File::open(device).unwrap();
    let (mut found, mut at) = (Vec::new(), 0_u64);
    // Reads overlap by the length of `wanted`, so that a match across two reads is found.
    let mut buffer = vec![0; (1 << 20) + wanted.len()];
    loop {
        let len = disk.read_at(&mut buffer, at).unwrap();
        for start in 0..len.saturating_sub(wanted.len() - 1).min(1 << 20) {
            if buffer[start] == wanted[0] && buffer[start..].starts_with(wanted) {
                found.push(at + start as u64);
            }
        }
        if len < buffer.len() {
            return found;
        }
        at += 1 << 20;
    }
}
