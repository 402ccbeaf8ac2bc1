//! The real program under test: a server, a mounted folder and backups of it, as processes. (The
//! rig of the test kit has its server in the test's own process, and no mount.)
//!
//! | part | content |
//! |---|---|
//! | `rig` (this file) | the processes of a test and what is asked of them; cleaning up after a failure |
//! | `operation` | one change of a tree: performed on a real directory, and on a model in memory |
//! | `hand` | the process that performs it: this one, or one of its own that may die |
//! | `lane` | a sequence of operations with a history, and the question whether a restored tree is a moment of it |
//!
//! Everything lives below one temporary directory. However a test ends, dropping the [`Rig`] ends
//! the processes by their handles and removes the mount.

pub(crate) mod hand;
pub(crate) mod lane;
pub(crate) mod operation;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use byteback_testkit::command::{Ran, Running, ServerProcess, isolated};
use byteback_testkit::mounts::{assert_fuse, is_mounted};
use byteback_testkit::processes::{handle, has_ended, kill};
use serde_json::Value;

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
        assert_fuse();
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
        let program = Path::new(env!("CARGO_BIN_EXE_byteback"));
        let mut command = isolated(program, &self.dir.path().join("home"), arguments);
        command.env("BYTEBACK_STATE_DIR", self.state());
        command
    }

    /// Starts a command whose output goes to files, since a daemon could hold a pipe open.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments), self.dir.path())
    }

    /// Runs a command to its end. One that does not end fails the test.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.spawn(arguments).wait()
    }

    /// Starts the server. Returns its address as a URL.
    pub(crate) fn start_server(&mut self, listen: &str) -> String {
        let server = self.launch_server(listen);
        let url = server.url().to_owned();
        self.server = Some(server);
        url
    }

    /// Starts a server that the caller keeps.
    pub(crate) fn launch_server(&self, listen: &str) -> ServerProcess {
        let errors = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("serve.err"))
            .unwrap();
        let data = self.dir.path().join("data");
        let data = data.to_str().unwrap();
        let mut command = self.command(&["--json", "serve", "--plain", "--data", data, "--listen", listen]);
        ServerProcess::start(command.stderr(errors), &self.dir.path().join("serve.out"))
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
        self.server.as_ref().unwrap().address().to_owned()
    }

    /// The server's address as a URL.
    pub(crate) fn server_url(&self) -> String {
        self.server.as_ref().unwrap().url().to_owned()
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
        .succeeds("init");
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
            .succeeds("mount");
        let pid = u32::try_from(ready["pid"].as_u64().unwrap()).unwrap();
        let process = handle(pid);
        self.daemon = Some(DaemonProcess { pid, process });
        ready
    }

    /// Unmounts the tree in good order.
    pub(crate) fn umount(&mut self) {
        let tree = self.tree();
        self.run(&["--json", "umount", tree.to_str().unwrap()])
            .succeeds("umount");
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
        self.dying.as_ref().is_none_or(has_ended)
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
        let again = self.backup(None).succeeds(context);
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
        self.run(&arguments)
            .succeeds(&format!("restore of snapshot {snapshot}"));
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
            kill(&daemon.process);
        }
        drop(self.server.take());
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
