//! A world of its own for each test: server, folder, configuration and state below one temporary
//! directory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use byteback_testkit::command::{Ran, ServerProcess, finish, isolated, words};
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::mounts::{assert_fuse, mounts};
use byteback_testkit::processes::Frozen;
use byteback_testkit::tools::run;
use serde_json::Value;

/// An ordinary user. fusermount3 needs one with a name, and every system has this one.
pub(crate) const USER: u32 = 65_534;

/// The world of one test; see the module.
pub(crate) struct World {
    dir: tempfile::TempDir,
    server: Option<ServerProcess>,
    url: String,
    /// Mounts that are not ours, to be unmounted at the end.
    other_mounts: Vec<PathBuf>,
}

impl World {
    /// Directories only; no process runs yet.
    pub(crate) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests mount, so they need root"
        );
        assert_fuse();
        // A tmpfs lacks attributes that must be restored.
        let dir = tempfile::Builder::new()
            .prefix("byteback-commands-")
            .tempdir_in("/var/tmp")
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        Self {
            dir,
            server: None,
            url: String::new(),
            other_mounts: Vec::new(),
        }
    }

    /// Also with a server, and the folder bound to it.
    pub(crate) fn served() -> Self {
        let mut world = Self::new();
        world.serve();
        world.init().fine();
        world
    }

    /// Also with the folder mounted.
    pub(crate) fn mounted() -> Self {
        let world = Self::served();
        world.on_tree("mount", &[]).fine();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The folder that is backed up.
    pub(crate) fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// The repository of the folder.
    pub(crate) fn repository(&self) -> String {
        format!("{}/mail", self.url)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A `byteback` command, isolated from the machine's configuration.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        self.command_at(Path::new(env!("CARGO_BIN_EXE_byteback")), "home", arguments)
    }

    fn command_at<A: AsRef<OsStr>>(&self, program: &Path, home: &str, arguments: &[A]) -> Command {
        let mut command = isolated(program, &self.path(home), arguments);
        command.current_dir(self.dir.path());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        finish(&words(arguments), self.command(arguments))
    }

    /// Runs a command as [`USER`], with a home of that user's own.
    pub(crate) fn run_as_user<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        let home = self.path("user");
        let program = home.join("byteback");
        if !home.exists() {
            fs::create_dir(&home).unwrap();
            chown(&home, Some(USER), Some(USER)).unwrap();
            // The folder with the built program may be closed to other users. The copy is made by
            // another process: a copy that this process has open for writing would also be open in
            // the programs that other tests start at that moment, and a program that is open for
            // writing cannot be run.
            let copied = Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_byteback"))
                .arg(&program)
                .status();
            assert!(copied.unwrap().success());
        }
        let mut command = self.command_at(&program, "user", arguments);
        command.uid(USER).gid(USER);
        finish(&words(arguments), command)
    }

    /// Runs a command as [`USER`], after [`Self::run_as_user`], in a mount namespace of its own
    /// where every user may open `/dev/fuse` and root has run the shell command `prepare`.
    pub(crate) fn run_as_user_behind(&self, prepare: &str, arguments: &[&str]) -> Ran {
        let device = self.path("fuse");
        let (device, program) = (device.to_str().unwrap(), self.path("user/byteback"));
        let script = format!(
            "set -e; [ -e {device} ] || mknod -m 666 {device} c 10 229; mount --bind {device} /dev/fuse; {prepare}; \
             exec setpriv --reuid {USER} --regid {USER} --clear-groups -- \"$@\""
        );
        let mut all = vec!["-m", "sh", "-c", &script, "sh", program.to_str().unwrap()];
        all.extend(arguments);
        finish(&words(arguments), self.command_at(Path::new("unshare"), "user", &all))
    }

    /// `byteback COMMAND ARGUMENTS TREE`.
    pub(crate) fn on_tree(&self, command: &str, arguments: &[&str]) -> Ran {
        let tree = self.tree();
        let mut all = vec![command];
        all.extend(arguments);
        all.push(tree.to_str().unwrap());
        self.run(&all)
    }

    /// `byteback COMMAND ARGUMENTS --dir TREE`.
    pub(crate) fn about_tree(&self, command: &str, arguments: &[&str]) -> Ran {
        let tree = self.tree();
        let mut all = vec![command];
        all.extend(arguments);
        all.extend(["--dir", tree.to_str().unwrap()]);
        self.run(&all)
    }

    /// Starts the server at its previous address, or at a free one.
    pub(crate) fn serve(&mut self) {
        let listen = self.url.strip_prefix("https://").unwrap_or("127.0.0.1:0").to_owned();
        self.serve_at(&listen);
    }

    /// Starts the server at an address.
    pub(crate) fn serve_at(&mut self, listen: &str) {
        let data = self.path("data");
        let mut command = self.command(&["serve", "--data", data.to_str().unwrap(), "--listen", listen]);
        let server = ServerProcess::start(command.stderr(Stdio::null()), &self.path("serve.out"));
        server.url().clone_into(&mut self.url);
        self.server = Some(server);
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Freezes the server, like a machine that hangs, until the returned value is dropped.
    pub(crate) fn freeze_server(&self) -> Frozen {
        self.server.as_ref().unwrap().freeze()
    }

    /// Stops the server in good order.
    pub(crate) fn stop_server(&mut self) -> Option<i32> {
        self.server.take().unwrap().stop()
    }

    /// Binds the folder to the server.
    pub(crate) fn init(&self) -> Ran {
        let token = self.path("data").join("join-token");
        self.on_tree(
            "init",
            &["-r", &self.repository(), "--join-token-file", token.to_str().unwrap()],
        )
    }

    /// Backs up the folder, and returns the summary.
    #[track_caller]
    pub(crate) fn backup(&self) -> Value {
        self.on_tree("backup", &["--json"]).fine().line("summary")
    }

    /// Restores a snapshot into a fresh directory.
    #[track_caller]
    pub(crate) fn restore(&self, what: &str) -> PathBuf {
        let target = (0..)
            .map(|number| self.path(&format!("restored-{number}")))
            .find(|path| !path.exists())
            .unwrap();
        self.about_tree("restore", &[what, "--target", target.to_str().unwrap()])
            .fine();
        target
    }

    /// Asserts that a snapshot equals the present folder, to the last attribute.
    #[track_caller]
    pub(crate) fn assert_restores(&self, what: &str) {
        let restored = self.restore(what);
        let differing = differences(&seen(&self.tree()), &seen(&restored), true);
        assert!(differing.is_empty(), "{differing:#?}");
        fs::remove_dir_all(restored).unwrap();
    }

    /// Mounts a small file system of its own at `name`.
    pub(crate) fn small_disk(&mut self, name: &str, size: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size}"),
                "tmpfs",
                path.to_str().unwrap(),
            ],
        );
        self.other_mounts.push(path.clone());
        path
    }

    /// The process number of the folder's daemon.
    pub(crate) fn daemon_pid(&self) -> i32 {
        let status = self.on_tree("status", &["--json"]).fine().line("folder");
        i32::try_from(status["pid"].as_i64().unwrap_or_else(|| panic!("no daemon: {status}"))).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.server.take());
        let below: Vec<_> = mounts()
            .into_iter()
            .filter(|point| point.starts_with(self.dir.path()))
            .collect();
        for point in below.iter().rev().chain(&self.other_mounts) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        // The directory below a volume may still be protected.
        let _ = Command::new("chattr")
            .arg("-i")
            .arg(self.tree())
            .stderr(Stdio::null())
            .status();
    }
}

/// For a shell in a mount namespace of its own: releases the copies of other tests' mounts, which
/// it would keep alive.
pub(crate) const LET_GO: &str = r#"
grep ' - fuse.byteback ' /proc/self/mountinfo | while read -r _ _ _ _ point _; do
    test "$point" = "$TREE" || umount -l "$point"
done
"#;

/// Every user can open `/dev/fuse` while this lives. Distributions ship it that way; a bare machine
/// may not.
pub(crate) struct DeviceForAll;

static DEVICE: Mutex<(usize, u32)> = Mutex::new((0, 0));

impl DeviceForAll {
    pub(crate) fn new() -> Self {
        let mut device = DEVICE.lock().unwrap();
        if device.0 == 0 {
            device.1 = fs::metadata("/dev/fuse").unwrap().permissions().mode();
            fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(device.1 | 0o666)).unwrap();
        }
        device.0 += 1;
        Self
    }
}

impl Drop for DeviceForAll {
    fn drop(&mut self) {
        let mut device = DEVICE.lock().unwrap();
        device.0 -= 1;
        if device.0 == 0 {
            fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(device.1)).unwrap();
        }
    }
}
