//! A server and the machines that keep a folder the same through it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use byteback_testkit::command::{Ran, ServerProcess, at_home, finish, in_place_of};
use byteback_testkit::local_tree::{Tree, differences, try_seen};
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::processes::is_alive;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::network::{End, Network, SERVER};
use crate::world::World;

/// Limit for sending and landing after a long loss of a link, on a machine with other work:
/// back-off and retransmission take time, too.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// The folder's name at the server.
const FOLDER: &str = "home";

/// A machine: a home, a folder and a link.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    /// The directory that the folder is on.
    pub(crate) disk: PathBuf,
    /// The directory where the folder is mounted.
    pub(crate) dir: PathBuf,
    daemon: Mutex<Option<i32>>,
}

/// The server and all machines. Their processes are ended when this is dropped.
pub(crate) struct Lab {
    pub(crate) machines: Vec<Machine>,
    server: Mutex<Option<ServerProcess>>,
    network: Option<Network>,
    pub(crate) world: World,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for machine in &self.machines {
            if let Some(pid) = *machine.daemon.lock().unwrap_or_else(|error| error.into_inner()) {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        }
        drop(self.server.lock().unwrap_or_else(|error| error.into_inner()).take());
    }
}

impl Lab {
    /// Machines that have joined, none of which is in sync yet.
    pub(crate) fn new(machines: usize) -> Self {
        Self::with_a_small_disk(machines, None)
    }

    /// The same; the machine in `small` has its folder on a disk of its own, of that many MiB:
    /// [`Machine::disk`].
    pub(crate) fn with_a_small_disk(machines: usize, small: Option<(usize, u64)>) -> Self {
        let world = World::new();
        let machines: Vec<Machine> = (0..machines)
            .map(|number| {
                let name = ["kitchen", "study", "garden", "attic"][number].to_owned();
                let home = world.path(&name);
                fs::create_dir(&home).unwrap();
                let disk = home.join("disk");
                fs::create_dir(&disk).unwrap();
                if let Some((_, size_mib)) = small.filter(|(small, _)| *small == number) {
                    let image = world.path("image");
                    fs::File::create(&image).unwrap().set_len(size_mib << 20).unwrap();
                    let (image, disk) = (image.to_str().unwrap(), disk.to_str().unwrap());
                    run("mkfs.ext4", &["-q", "-F", image]);
                    // Unmounted along with all other mounts of the world.
                    run("mount", &["-o", "loop", image, disk]);
                }
                Machine {
                    dir: disk.join(FOLDER),
                    disk,
                    name,
                    home,
                    daemon: Mutex::new(None),
                }
            })
            .collect();
        let network = Network::new(machines.len());
        let mut lab = Self {
            machines,
            server: Mutex::new(None),
            network,
            world,
        };
        lab.join();
        lab
    }

    fn join(&mut self) {
        self.start_server();
        let first = self.world.path("data/join-token");
        for machine in 0..self.machines.len() {
            let code = match machine {
                0 => first.to_str().unwrap().to_owned(),
                _ => self.invite(&[]),
            };
            let dir = self.machines[machine].dir.clone();
            let said = self.run(machine, &["join", &code, dir.to_str().unwrap()]).fine();
            if self.network.is_some() {
                said.says(&format!("Joined https://{SERVER}:7117"));
            }
        }
        // The auditor may only read.
        let code = self.invite(&["--read-only", "--for", "auditor"]);
        let dir = self.world.path("audit");
        let command = self.world.command(&["join", &code, dir.to_str().unwrap()]);
        self.finish("join", None, &command).fine();
    }

    fn invite(&self, arguments: &[&str]) -> String {
        let data = self.world.path("data");
        let all = [&["invite", FOLDER, "--data", data.to_str().unwrap()], arguments].concat();
        self.world.run(&all).ends_with(0).stdout.trim().to_owned()
    }

    fn place(&self, machine: Option<usize>, command: &Command) -> Command {
        if let Some(network) = &self.network {
            return network.at(machine, command);
        }
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        in_place_of(&mut same, command);
        same
    }

    fn finish(&self, what: &str, machine: Option<usize>, command: &Command) -> Ran {
        finish(what, self.place(machine, command))
    }

    /// Starts the server, at its previous address.
    pub(crate) fn start_server(&self) {
        let data = self.world.path("data");
        let listen = match (&self.network, fs::read_to_string(self.world.path("address"))) {
            (Some(_), _) => "0.0.0.0:7117".to_owned(),
            (None, Ok(address)) => address,
            (None, Err(_)) => "127.0.0.1:0".to_owned(),
        };
        let said = self.world.path("serve.out");
        let command = self
            .world
            .command(&["serve", "--data", data.to_str().unwrap(), "--listen", &listen]);
        let mut command = self.place(None, &command);
        let server = ServerProcess::start(command.stderr(Stdio::null()), &said);
        let address = server.address().to_owned();
        fs::write(self.world.path("address"), address).unwrap();
        *self.server.lock().unwrap() = Some(server);
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill_server(&self) {
        self.server.lock().unwrap().take().unwrap().kill();
    }

    /// Cuts a link, or restores it. Returns false where there are no links.
    pub(crate) fn set_link(&self, machine: usize, end: End, is_up: bool) -> bool {
        let Some(network) = &self.network else { return false };
        network.set(machine, end, is_up);
        true
    }

    /// Runs `byteback` on a machine.
    pub(crate) fn run(&self, machine: usize, arguments: &[&str]) -> Ran {
        let at = &self.machines[machine];
        let mut command = self.world.command(arguments);
        at_home(&mut command, &at.home).env("BYTEBACK_HOST", &at.name);
        self.finish(&arguments.join(" "), Some(machine), &command)
    }

    /// Runs `byteback COMMAND ARGUMENTS DIR` on a machine.
    pub(crate) fn on(&self, machine: usize, command: &str, arguments: &[&str]) -> Ran {
        let dir = self.machines[machine].dir.to_str().unwrap();
        self.run(machine, &[&[command], arguments, &[dir]].concat())
    }

    /// Starts sync of the folder on a machine. An unreachable server is no reason not to.
    #[track_caller]
    pub(crate) fn sync(&self, machine: usize, delay: &str) {
        self.on(machine, "sync", &["--delay", delay]).ends_with(0);
        let pid = self.folder_status(machine)["pid"].as_i64().unwrap();
        *self.machines[machine].daemon.lock().unwrap() = Some(i32::try_from(pid).unwrap());
    }

    /// Unmounts the folder in good order.
    #[track_caller]
    pub(crate) fn unmount(&self, machine: usize) {
        self.on(machine, "umount", &[]).ends_with(0);
        *self.machines[machine].daemon.lock().unwrap() = None;
    }

    /// Kills the process behind the folder with SIGKILL. The folder is soon a plain directory.
    #[track_caller]
    pub(crate) fn kill(&self, machine: usize) {
        let pid = self.machines[machine].daemon.lock().unwrap().take().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let dir = &self.machines[machine].dir;
        eventually("the mount is gone", || {
            (!is_mounted(dir) && !is_alive(pid)).then_some(())
        });
    }

    /// Stops the process behind the folder, as a suspended machine does, or lets it continue.
    pub(crate) fn signal(&self, machine: usize, signal: Signal) {
        let pid = self.machines[machine].daemon.lock().unwrap().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn folder_status(&self, machine: usize) -> Value {
        self.on(machine, "status", &["--json"]).reports_health().line("folder")
    }

    /// The part of `status` about continuous sync on a machine.
    pub(crate) fn status(&self, machine: usize) -> Value {
        self.folder_status(machine)["sync"].clone()
    }

    /// Fetches the server's content, which is one moment of the folder.
    #[track_caller]
    pub(crate) fn audit(&self) -> PathBuf {
        self.fetch().ends_with(0);
        self.world.path("audited")
    }

    /// The same; `None` if the server went away.
    pub(crate) fn try_audit(&self) -> Option<PathBuf> {
        let ran = self.fetch();
        (ran.code() == Some(0)).then(|| self.world.path("audited"))
    }

    fn fetch(&self) -> Ran {
        let dir = self.world.path("audited");
        let address = match &self.network {
            Some(_) => format!("{SERVER}:7117"),
            None => fs::read_to_string(self.world.path("address")).unwrap(),
        };
        let url = format!("https://{address}/{FOLDER}");
        // By content: while groups are on their way, the fetched copy may already have a file of
        // the same length and time with less content.
        let command = self
            .world
            .command(&["pull", "--delete", "--checksum", &url, dir.to_str().unwrap()]);
        self.finish("pull", None, &command)
    }

    /// Waits until every change is on all machines and at the server; returns the tree.
    #[track_caller]
    pub(crate) fn wait_until_equal(&self) -> Tree {
        let deadline = Instant::now() + LONG;
        let mut last;
        loop {
            let all: Vec<Value> = (0..self.machines.len()).map(|machine| self.status(machine)).collect();
            last = format!("{all:#?}");
            if all.iter().all(is_at_rest) {
                match self.compare() {
                    Ok(tree) => return tree,
                    Err(differing) => last.push_str(&differing),
                }
            }
            if Instant::now() >= deadline {
                let logs = self.logs();
                panic!("after {LONG:?} the machines are still not equal:\n{last}\n{logs}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn compare(&self) -> Result<Tree, String> {
        let server = self.audit();
        let first = look(&self.machines[0].dir)?;
        let mut problems = String::new();
        // All of them: the ones that agree show which machine did not send, or did not receive.
        let others = self.machines[1..].iter().map(|machine| &machine.dir).chain([&server]);
        for dir in others {
            let differing = differences(&first, &look(dir)?, true);
            if !differing.is_empty() {
                let shown = differing.iter().take(20).collect::<Vec<_>>();
                let first = self.machines[0].dir.display();
                problems.push_str(&format!("{first} and {}: {shown:#?}\n", dir.display()));
            }
        }
        if problems.is_empty() { Ok(first) } else { Err(problems) }
    }

    /// The logs of the daemons, for the message of a failed test.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for machine in &self.machines {
            let trees = fs::read_dir(machine.home.join("state/trees"))
                .into_iter()
                .flatten()
                .flatten();
            for tree in trees {
                let log = fs::read_to_string(tree.path().join("daemon.log")).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let end = &lines[lines.len().saturating_sub(15)..];
                text.push_str(&format!("{}:\n{}\n", machine.name, end.join("\n")));
            }
        }
        text
    }
}

fn is_at_rest(sync: &Value) -> bool {
    sync["connected"] == true
        && sync["waiting_changes"] == 0
        && sync["groups_in_flight"] == 0
        && sync["folded"] == false
}

/// Reads a tree for the comparison between machines; an error if it changes meanwhile.
pub(crate) fn look(dir: &Path) -> Result<Tree, String> {
    try_seen(dir).map_err(|error| error.to_string())
}

/// Seconds since the test began, for its printed events.
pub(crate) fn now() -> String {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    format!("{:8.3}", BEGAN.get_or_init(Instant::now).elapsed().as_secs_f64())
}
