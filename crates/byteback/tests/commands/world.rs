//! A world of its own for each test: server, folder, configuration and state below one temporary
//! directory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tree::{differences, look};

/// Longer than anything here takes on a busy machine; anything slower hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An ordinary user. fusermount3 needs one with a name, and every system has this one.
pub(crate) const USER: u32 = 65_534;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) what: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts that the command ended with this code.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "byteback {}\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that `status` printed the state, whether a folder needs attention or not.
    #[track_caller]
    pub(crate) fn reports_health(self) -> Self {
        assert!(
            matches!(self.code, Some(0 | 4)),
            "byteback {}\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts success without any complaint.
    #[track_caller]
    pub(crate) fn fine(self) -> Self {
        let ran = self.ends_with(0);
        // Tests in mount namespaces of their own may hold copies of other tests' mounts for a
        // while.
        let is_of_others =
            |line: &&str| line.starts_with("byteback: note: ") && line.contains("is in another mount namespace");
        let complaints: Vec<&str> = ran.stderr.lines().filter(|line| !is_of_others(line)).collect();
        assert!(complaints.is_empty(), "byteback {}: {complaints:#?}", ran.what);
        ran
    }

    /// Asserts that this text was printed.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(
            self.stdout.contains(text) || self.stderr.contains(text),
            "byteback {} does not say '{text}':\n{}{}",
            self.what,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The JSON lines of standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        parsed(&self.stdout)
    }

    /// The JSON lines of standard error.
    #[track_caller]
    pub(crate) fn json_errors(&self) -> Vec<Value> {
        parsed(&self.stderr)
    }

    /// The line with this `message_type`.
    #[track_caller]
    pub(crate) fn line(&self, message_type: &str) -> Value {
        let found = self
            .json()
            .into_iter()
            .find(|line| line["message_type"] == message_type);
        found.unwrap_or_else(|| panic!("byteback {}: no {message_type} in\n{}", self.what, self.stdout))
    }
}

#[track_caller]
fn parsed(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The world of one test; see the module.
pub(crate) struct World {
    dir: tempfile::TempDir,
    server: Option<Child>,
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
        assert!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: these tests need a machine with FUSE"
        );
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
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path(home))
            .env("XDG_CONFIG_HOME", self.path(home).join("config"))
            .env("BYTEBACK_STATE_DIR", self.path(home).join("state"))
            .env("BYTEBACK_PROGRESS_FPS", "0")
            .env("TZ", "UTC")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        finish(arguments, self.command(arguments))
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
        finish(arguments, command)
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
        finish(arguments, self.command_at(Path::new("unshare"), "user", &all))
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
        let said = self.path("serve.out");
        let mut child = self
            .command(&["serve", "--data", data.to_str().unwrap(), "--listen", listen])
            .stdout(fs::File::create(&said).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.url = eventually("the server listens", || {
            assert!(child.try_wait().unwrap().is_none(), "the server ended at once");
            let said = fs::read_to_string(&said).unwrap();
            let line = said
                .split_inclusive('\n')
                .find(|line| line.starts_with("listening on ") && line.ends_with('\n'))?;
            Some(line.trim_start_matches("listening on ").trim_end().to_owned())
        });
        self.server = Some(child);
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill_server(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Freezes the server, like a machine that hangs, until the returned value is dropped.
    pub(crate) fn freeze_server(&self) -> Frozen {
        let server = self.server.as_ref().unwrap();
        signal(server, rustix::process::Signal::STOP);
        Frozen(rustix::process::Pid::from_child(server))
    }

    /// Stops the server in good order.
    pub(crate) fn stop_server(&mut self) -> Option<i32> {
        let mut server = self.server.take().unwrap();
        signal(&server, rustix::process::Signal::TERM);
        server.wait().unwrap().code()
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
        let differing = differences(&look(&self.tree()), &look(&restored), true);
        assert!(differing.is_empty(), "{differing:#?}");
        fs::remove_dir_all(restored).unwrap();
    }

    /// Mounts a small file system of its own at `name`.
    pub(crate) fn small_disk(&mut self, name: &str, size: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        program(
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

/// A stopped process. It continues when this is dropped, also after a failure.
pub(crate) struct Frozen(rustix::process::Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
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

/// All mount points.
pub(crate) fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(PathBuf::from).collect()
}

/// Whether a process lives; a zombie does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|state| !state.is_empty() && !state.starts_with(['Z', 'X']))
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    mounts().iter().any(|point| point == path)
}

fn finish<A: AsRef<OsStr>>(arguments: &[A], mut command: Command) -> Ran {
    let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
    let what = words.collect::<Vec<_>>().join(" ");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(what, child)
}

/// Waits for the end of a process; one that hangs fails the test.
pub(crate) fn ended(what: String, child: Child) -> Ran {
    let pid = child.id();
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(child.wait_with_output()));
    let Ok(output) = answered.recv_timeout(PATIENCE) else {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("'byteback {what}' has not ended after {PATIENCE:?}");
    };
    let Output { status, stdout, stderr } = output.unwrap();
    Ran {
        what,
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// Unmounts as `umount` does, bypassing our command. A file that was closed a moment ago may still
/// be on its way through the kernel.
#[track_caller]
pub(crate) fn unmount(path: &Path) {
    eventually("it is not busy", || {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).ok()
    });
}

/// For a shell in a mount namespace of its own: releases the copies of other tests' mounts, which
/// it would keep alive.
pub(crate) const LET_GO: &str = r#"
grep ' - fuse.byteback ' /proc/self/mountinfo | while read -r _ _ _ _ point _; do
    test "$point" = "$TREE" || umount -l "$point"
done
"#;

/// Sends a signal to a child process that was not waited for yet.
pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Runs a program that must succeed, and returns what it printed.
#[track_caller]
pub(crate) fn program(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {name}, which these tests need: {error}"));
    assert!(
        output.status.success(),
        "{name} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `look` returns a value.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "after {PATIENCE:?}, it is still not so that {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the changes so far are too old for the file system's clock to confuse with the next
/// ones.
pub(crate) fn settle() {
    std::thread::sleep(Duration::from_millis(60));
}

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
