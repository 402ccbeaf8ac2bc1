//! The real program under test: a server, a mounted folder and backups of it, as processes.
//!
//! | part | content |
//! |---|---|
//! | `rig` (this file) | starting, killing and asking the processes; cleaning up after a failure |
//! | `random` | a seeded generator, printed so that a run can be repeated |
//! | `operation` | one change of a tree: performed on a real directory, and on a model in memory |
//! | `hand` | the process that performs it: this one, or one of its own that may die |
//! | `lane` | a sequence of operations with a history, and the question whether a restored tree is a moment of it |
//! | `tree` | a directory with all its attributes, and the comparison of two of them |
//! | `proxy` | a wire between client and server that can be cut at a chosen point |
//!
//! Everything lives below one temporary directory. However a test ends, dropping the [`Rig`] ends
//! the processes by their handles and removes the mount.

pub(crate) mod hand;
pub(crate) mod lane;
pub(crate) mod operation;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod tool;
pub(crate) mod tree;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// Longer than anything here takes on a busy machine; anything slower hangs.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// How long the death of a daemon may keep the folder from being plain again.
const FREE_WITHIN: Duration = Duration::from_secs(10);

/// How the mount treats writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exact,
    Fast,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    /// The JSON object with `message_type` `summary`, if there was one.
    pub(crate) summary: Option<Value>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The summary of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn fine(self, what: &str) -> Value {
        assert!(
            self.status.success(),
            "{what}: {}\n{}{}",
            self.status,
            self.stderr,
            self.stdout
        );
        self.summary.unwrap_or(Value::Null)
    }
}

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    url: String,
}

impl ServerProcess {
    /// Kills the server with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct DaemonProcess {
    pid: u32,
    process: OwnedFd,
}

/// The processes and directories of one test; see the module.
pub(crate) struct Rig {
    dir: tempfile::TempDir,
    /// The directory of the folder and its state.
    client: PathBuf,
    mode: Mode,
    server: Option<ServerProcess>,
    daemon: Option<DaemonProcess>,
    /// The last daemon that was killed. It holds the lock of its log until its last thread is gone.
    dying: Option<OwnedFd>,
    restored: std::sync::atomic::AtomicU64,
}

impl Rig {
    /// Directories only; no process runs yet.
    pub(crate) fn new(mode: Mode) -> Self {
        assert!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: these tests need a machine with FUSE"
        );
        // A tmpfs has other rules for times and listings.
        let dir = tempfile::Builder::new()
            .prefix("byteback-rig-")
            .tempdir_in("/var/tmp")
            .unwrap();
        fs::create_dir(dir.path().join("restored")).unwrap();
        let rig = Self {
            client: dir.path().to_owned(),
            dir,
            mode,
            server: None,
            daemon: None,
            dying: None,
            restored: std::sync::atomic::AtomicU64::new(0),
        };
        fs::create_dir(rig.tree()).unwrap();
        rig
    }

    /// Moves folder and state below `client`, a directory on a disk of its own. To be called before
    /// anything runs.
    pub(crate) fn move_client(&mut self, client: &Path) {
        client.clone_into(&mut self.client);
        fs::create_dir(self.tree()).unwrap();
    }

    /// The folder that is backed up, and its mount point.
    pub(crate) fn tree(&self) -> PathBuf {
        self.client.join("tree")
    }

    /// The directory of everything, also for other files of a test.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of the states of folders.
    pub(crate) fn state(&self) -> PathBuf {
        self.client.join("state")
    }

    /// The state folder of the tree, which must exist.
    pub(crate) fn state_folder(&self) -> PathBuf {
        let folders = fs::read_dir(self.state().join("trees")).unwrap();
        let folder = folders.map(|folder| folder.unwrap().path()).next();
        folder.unwrap()
    }

    /// Whether the mount sees every write at once.
    pub(crate) fn is_exact(&self) -> bool {
        self.mode == Mode::Exact
    }

    /// A `byteback` command with `arguments`, isolated from the machine's configuration.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_byteback"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path().join("home"))
            .env("XDG_CONFIG_HOME", self.dir.path().join("config"))
            .env("BYTEBACK_STATE_DIR", self.state())
            .env("BYTEBACK_PROGRESS_FPS", "0")
            .stdin(Stdio::null());
        command
    }

    /// Starts a command whose output goes to files, since a daemon could hold a pipe open.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Running {
        let stdout = tempfile::NamedTempFile::new_in(self.dir.path()).unwrap();
        let stderr = tempfile::NamedTempFile::new_in(self.dir.path()).unwrap();
        let child = self
            .command(arguments)
            .stdout(stdout.reopen().unwrap())
            .stderr(stderr.reopen().unwrap())
            .spawn()
            .unwrap();
        Running {
            child,
            what: arguments.join(" "),
            stdout,
            stderr,
        }
    }

    /// Runs a command to its end. One that does not end fails the test.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.spawn(arguments).wait()
    }

    /// Starts the server. Returns its address as a URL.
    pub(crate) fn start_server(&mut self, listen: &str) -> String {
        let server = self.launch_server(listen);
        let url = server.url.clone();
        self.server = Some(server);
        url
    }

    /// Starts a server that the caller keeps.
    pub(crate) fn launch_server(&self, listen: &str) -> ServerProcess {
        let log = fs::File::create(self.dir.path().join("serve.out")).unwrap();
        let errors = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("serve.err"))
            .unwrap();
        let data = self.dir.path().join("data");
        let mut child = self
            .command(&[
                "--json",
                "serve",
                "--plain",
                "--data",
                data.to_str().unwrap(),
                "--listen",
                listen,
            ])
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let url = loop {
            let text = fs::read_to_string(self.dir.path().join("serve.out")).unwrap();
            let line = text.split_inclusive('\n').find(|line| line.ends_with('\n'));
            let said = line.and_then(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(url) = said.as_ref().and_then(|said| said["url"].as_str()) {
                break url.to_owned();
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the server ended at once: {status}\n{}", self.server_errors());
            }
            assert!(Instant::now() < deadline, "the server says nothing");
            std::thread::sleep(Duration::from_millis(5));
        };
        ServerProcess { child, url }
    }

    /// Hands the server over to the caller.
    pub(crate) fn take_server(&mut self) -> ServerProcess {
        self.server.take().unwrap()
    }

    /// Takes a server back.
    pub(crate) fn put_server(&mut self, server: ServerProcess) {
        self.server = Some(server);
    }

    /// The standard error of all servers so far.
    pub(crate) fn server_errors(&self) -> String {
        fs::read_to_string(self.dir.path().join("serve.err")).unwrap_or_default()
    }

    /// Host and port of the server.
    pub(crate) fn server_address(&self) -> String {
        let url = &self.server.as_ref().unwrap().url;
        url.strip_prefix("http://").unwrap().to_owned()
    }

    /// The server's address as a URL.
    pub(crate) fn server_url(&self) -> String {
        self.server.as_ref().unwrap().url.clone()
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill_server(&mut self) {
        self.take_server().kill();
    }

    /// Binds a directory to `folder` of the server at `url`, joining the server the first time.
    pub(crate) fn init(&self, directory: &Path, url: &str, folder: &str) {
        let token = self.dir.path().join("data").join("join-token");
        let repository = format!("{url}/{folder}");
        self.run(&[
            "--json",
            "init",
            directory.to_str().unwrap(),
            "-r",
            &repository,
            "--join-token-file",
            token.to_str().unwrap(),
        ])
        .fine("init");
    }

    /// Makes a further folder at the server, to which the tree can be backed up with `-r`.
    pub(crate) fn init_another(&self, url: &str, folder: &str) {
        let directory = self.dir.path().join(format!("unused-{folder}"));
        fs::create_dir(&directory).unwrap();
        self.init(&directory, url, folder);
    }

    /// Mounts the tree.
    pub(crate) fn mount(&mut self) -> Value {
        let tree = self.tree();
        let ready = self
            .run(&["--json", "mount", "--mode", self.mode.name(), tree.to_str().unwrap()])
            .fine("mount");
        let pid = u32::try_from(ready["pid"].as_u64().unwrap()).unwrap();
        let process = pidfd_open(raw_pid(pid), PidfdFlags::empty()).unwrap();
        self.daemon = Some(DaemonProcess { pid, process });
        ready
    }

    /// Unmounts the tree in good order.
    pub(crate) fn umount(&mut self) {
        let tree = self.tree();
        self.run(&["--json", "umount", tree.to_str().unwrap()]).fine("umount");
        self.daemon = None;
        assert!(!is_mounted(&tree), "umount succeeded, but the mount is still there");
    }

    /// Whether a daemon was started and not killed.
    pub(crate) fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Kills the daemon with SIGKILL, without waiting for its watcher to react.
    pub(crate) fn kill_daemon(&mut self) {
        let daemon = self.daemon.take().unwrap();
        kill(&daemon.process);
        self.dying = Some(daemon.process);
    }

    /// A handle with which another thread may kill the daemon.
    pub(crate) fn daemon_handle(&self) -> OwnedFd {
        self.daemon.as_ref().unwrap().process.try_clone().unwrap()
    }

    /// Bytes that the daemon has read from files so far.
    pub(crate) fn daemon_read_bytes(&self) -> u64 {
        let pid = self.daemon.as_ref().unwrap().pid;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok());
        read.unwrap()
    }

    /// Forgets a daemon that another thread has killed.
    pub(crate) fn forget_daemon(&mut self) {
        self.dying = self.daemon.take().map(|daemon| daemon.process);
    }

    /// Waits until the folder is a plain directory again after its daemon was killed. Looking at it
    /// must never hang.
    pub(crate) fn wait_until_free(&self) -> Duration {
        let tree = self.tree();
        let began = Instant::now();
        loop {
            let path = tree.clone();
            let (answer, answered) = std::sync::mpsc::channel();
            // In a thread of its own, which is left behind if it hangs.
            std::thread::spawn(move || {
                let _ = answer.send(fs::symlink_metadata(path).map(|_| ()));
            });
            match answered.recv_timeout(FREE_WITHIN) {
                Err(_) => panic!("stat of {} hangs after the daemon was killed", tree.display()),
                Ok(Ok(())) if !is_mounted(&tree) && self.is_dead() => return began.elapsed(),
                // Refused by a mount without a daemon, which the watcher is about to remove.
                Ok(_) => {}
            }
            assert!(
                began.elapsed() < FREE_WITHIN,
                "{} is still mounted {FREE_WITHIN:?} after its daemon was killed",
                tree.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_dead(&self) -> bool {
        let Some(process) = &self.dying else { return true };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    /// The arguments of a backup, to the bound repository or to another one.
    pub(crate) fn backup_arguments(&self, repository: Option<&str>) -> Vec<String> {
        let mut arguments = vec![
            "--json".to_owned(),
            "backup".to_owned(),
            self.tree().display().to_string(),
        ];
        if let Some(repository) = repository {
            arguments.extend(["-r".to_owned(), repository.to_owned()]);
        }
        arguments
    }

    /// Backs up the tree.
    pub(crate) fn backup(&self, repository: Option<&str>) -> Ran {
        let arguments = self.backup_arguments(repository);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Asserts that a backup now finds nothing to do.
    #[track_caller]
    pub(crate) fn assert_nothing_changed(&self, context: &str) {
        let again = self.backup(None).fine(context);
        for what in [
            "files_new",
            "files_changed",
            "names_added",
            "names_removed",
            "changed_bytes",
        ] {
            assert_eq!(again[what], 0, "{context}: nothing has changed since: {again}");
        }
    }

    /// Restores a snapshot of the bound repository, or of another one, into a fresh directory.
    pub(crate) fn restore(&self, snapshot: u64, repository: Option<&str>) -> Restored {
        let number = self.restored.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let target = self.dir.path().join("restored").join(number.to_string());
        let snapshot = snapshot.to_string();
        let tree = self.tree();
        let mut arguments = vec!["--json", "restore", &snapshot, "--target", target.to_str().unwrap()];
        match repository {
            Some(repository) => arguments.extend(["-r", repository]),
            None => arguments.extend(["--dir", tree.to_str().unwrap()]),
        }
        self.run(&arguments).fine(&format!("restore of snapshot {snapshot}"));
        Restored { path: target }
    }

    /// The ids of all snapshots.
    pub(crate) fn snapshot_ids(&self, repository: &str) -> Vec<u64> {
        let ran = self.run(&["--json", "snapshots", "-r", repository]);
        assert!(ran.status.success(), "snapshots: {}", ran.stderr);
        let lines = ran
            .stdout
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter(|line| line["message_type"] == "snapshot")
            .map(|line| line["id"].as_u64().unwrap())
            .collect()
    }

    /// The daemon's log.
    pub(crate) fn daemon_log(&self) -> String {
        let trees = fs::read_dir(self.state().join("trees"));
        let logs = trees.into_iter().flatten().flatten();
        logs.map(|folder| fs::read_to_string(folder.path().join("daemon.log")).unwrap_or_default())
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the daemon's log:\n{}", self.daemon_log());
            println!("the server's errors:\n{}", self.server_errors());
        }
        if let Some(daemon) = self.daemon.take() {
            let _ = pidfd_send_signal(&daemon.process, Signal::KILL);
        }
        if let Some(server) = &mut self.server {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
        let deadline = Instant::now() + FREE_WITHIN;
        while is_mounted(&self.tree()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        if is_mounted(&self.tree()) {
            // The watcher did not do it; neither the mount nor a process that waits for an answer
            // may stay behind.
            let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.tree(), flags);
        }
    }
}

/// A restored tree, which is removed when this is dropped.
pub(crate) struct Restored {
    path: PathBuf,
}

impl Restored {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A running command.
pub(crate) struct Running {
    child: Child,
    what: String,
    stdout: tempfile::NamedTempFile,
    stderr: tempfile::NamedTempFile,
}

impl Running {
    /// Waits for the end of the command.
    pub(crate) fn wait(mut self) -> Ran {
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let stacks = kernel_stacks(self.child.id());
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!(
                    "'byteback {}' has not ended after {COMMAND_TIMEOUT:?}; it waits in\n{stacks}\n{}",
                    self.what,
                    fs::read_to_string(self.stderr.path()).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stdout = fs::read_to_string(self.stdout.path()).unwrap();
        let stderr = fs::read_to_string(self.stderr.path()).unwrap();
        let summary = stdout
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["message_type"] == "summary");
        Ran {
            status,
            summary,
            stdout,
            stderr,
        }
    }

    /// Kills the command with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// A handle with which another thread may kill the command.
    pub(crate) fn handle(&self) -> OwnedFd {
        pidfd_open(raw_pid(self.child.id()), PidfdFlags::empty()).unwrap()
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

/// Kills the process of a handle with SIGKILL; a process that has ended is left alone.
pub(crate) fn kill(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
}

fn raw_pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// Where in the kernel the threads of a process wait, for the message about one that hangs.
fn kernel_stacks(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text.push_str(&format!("{} {}\n", read("comm").trim(), read("wchan").trim()));
    }
    text
}

/// Whether something is mounted at `path`, by the mount table and without accessing the path.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}
