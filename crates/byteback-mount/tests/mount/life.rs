//! Beginning and end of a mount: who may end it, and what is left when the daemon dies.
//!
//! The daemon of these tests is this test program once more, as another process, which mounts what
//! it is told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use byteback_mount::tracked::Tracked;
use byteback_mount::{Mount, MountError, MountOptions, Unmount};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Fixture, mode_of, require_fuse, run_as, set_mode};
use crate::other_user::{call_script, program_in};

/// The helper of ordinary users serves only those with an entry in the user database: `nobody`.
const NOBODY: u32 = 65_534;
/// A name that options and the mount table have to escape.
const TREE: &str = "tree, with\\odd name";
const MOUNT_VARIABLE: &str = "BYTEBACK_TEST_MOUNT";

/// No test: the daemon of other tests. Commands come on standard input.
#[test]
#[ignore = "started by other tests as their daemon"]
fn daemon_for_another_test() {
    let Some(directory) = std::env::var_os(MOUNT_VARIABLE) else {
        return;
    };
    let mount = match Mount::start(&MountOptions::new(directory), Arc::new(Tracked::new()), || Ok(())) {
        Ok(mount) => mount,
        Err(error) => {
            println!("DAEMON failed: {error}");
            return;
        }
    };
    println!("DAEMON mounted");
    let (mut others, mut children) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "unmount" => println!("DAEMON {:?}", mount.unmount(Unmount::IfIdle)),
            "wait" => println!("DAEMON {:?}", mount.wait()),
            "flush" => println!("DAEMON {:?}", mount.flush_stores()),
            // Another mount of the same process.
            "also" => {
                let directory = own_tree().with_file_name("also");
                fs::create_dir(&directory).unwrap();
                let also = Mount::start(&MountOptions::new(directory), Arc::new(Tracked::new()), || Ok(()));
                println!("DAEMON {:?}", also.map(|also| others.push(also)));
            }
            "child" => {
                children.push(Command::new("sleep").arg("30").spawn().unwrap());
                println!("DAEMON {}", children.last().unwrap().id());
            }
            "store" => {
                // Opened once it serves, and by one of its own threads.
                std::thread::spawn(|| store_and_sync(&own_tree().join("plain")));
                println!("DAEMON stores");
            }
            other => panic!("unknown command {other}"),
        }
    }
}

fn own_tree() -> PathBuf {
    PathBuf::from(std::env::var_os(MOUNT_VARIABLE).unwrap())
}

/// Stores into a mapping of a file of its own mount and waits until it is written back, again and
/// again.
fn store_and_sync(path: &Path) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync};
    const LEN: usize = 1 << 20;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    file.set_len(LEN as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which nobody else has and which lives as long as the process.
    let map = unsafe { mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0) }.unwrap();
    for value in (0..=u8::MAX).cycle() {
        for at in (0..LEN).step_by(4096) {
            // SAFETY: within the mapping.
            unsafe { map.cast::<u8>().add(at).write_volatile(value) };
        }
        // SAFETY: as above.
        unsafe { msync(map, LEN, MsyncFlags::SYNC) }.unwrap();
    }
}

/// Ordinary users can open `/dev/fuse` while this lives. That is how distributions ship it; a bare
/// machine may not.
struct DeviceForAll;

static DEVICE_MODE: Mutex<(usize, u32)> = Mutex::new((0, 0));

impl DeviceForAll {
    fn new() -> Self {
        let mut users = DEVICE_MODE.lock().unwrap();
        if users.0 == 0 {
            users.1 = mode_of(Path::new("/dev/fuse"));
            set_mode(Path::new("/dev/fuse"), users.1 | 0o666);
        }
        users.0 += 1;
        Self
    }
}

impl Drop for DeviceForAll {
    fn drop(&mut self) {
        let mut users = DEVICE_MODE.lock().unwrap();
        users.0 -= 1;
        if users.0 == 0 {
            set_mode(Path::new("/dev/fuse"), users.1);
        }
    }
}

/// The file system through which ordinary users abort their connections. systemd mounts it; a bare
/// machine may not.
struct FuseControl {
    is_ours: bool,
    /// Other processes with this test wait meanwhile.
    _lock: fs::File,
}

impl FuseControl {
    const POINT: &str = "/sys/fs/fuse/connections";

    fn new() -> Self {
        require_fuse();
        let lock = fs::File::open("/sys/fs/fuse").unwrap();
        lock.lock().unwrap();
        let is_ours = !is_mounted(Path::new(Self::POINT));
        if is_ours {
            mount("fusectl", Self::POINT, "fusectl", MountFlags::empty(), None).unwrap();
        }
        Self { is_ours, _lock: lock }
    }
}

impl Drop for FuseControl {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = unmount(Self::POINT, UnmountFlags::DETACH);
        }
    }
}

struct Daemon {
    _device: DeviceForAll,
    child: Child,
    said: BufReader<std::process::ChildStdout>,
    /// `None` once it was handed on.
    work: Option<tempfile::TempDir>,
}

impl Daemon {
    fn start(uid: u32) -> Self {
        require_fuse();
        let device = DeviceForAll::new();
        let work = tempfile::Builder::new()
            .prefix("byteback-life-")
            .tempdir_in("/var/tmp")
            .unwrap();
        set_mode(work.path(), 0o755);
        let tree = work.path().join(TREE);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("plain"), b"below the mount").unwrap();
        for path in [&tree, &tree.join("plain")] {
            chown(path, Some(uid), Some(uid)).unwrap();
        }
        Self::start_in(uid, work, device)
    }

    /// Starts in a folder that exists.
    fn start_in(uid: u32, work: tempfile::TempDir, device: DeviceForAll) -> Self {
        let tree = work.path().join(TREE);
        // An ordinary user may be unable to reach the program where it was built.
        let program = program_in(work.path());
        let mut command = Command::new("setpriv");
        command.args([
            format!("--reuid={uid}"),
            format!("--regid={uid}"),
            "--clear-groups".into(),
        ]);
        command
            .arg(program)
            .args(["--ignored", "--exact", "life::daemon_for_another_test", "--nocapture"])
            .env(MOUNT_VARIABLE, &tree)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut daemon = Self {
            _device: device,
            child,
            said,
            work: Some(work),
        };
        assert_eq!(daemon.answer(), "mounted");
        daemon
    }

    fn tree(&self) -> PathBuf {
        self.work().join(TREE)
    }

    fn work(&self) -> &Path {
        self.work.as_ref().unwrap().path()
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the daemon ended");
            // The test runner's own words are before and after.
            if let Some((_, said)) = line.split_once("DAEMON ") {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Gives up the dead daemon, but not its folder.
    fn keep(mut self) -> tempfile::TempDir {
        self.work.take().unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn die(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        eventually("it is dead", || self.is_dead());
    }

    /// Whether all its threads are gone. It must have been killed.
    fn is_dead(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The process that watches over this daemon: it holds the other end of one of the daemon's
    /// pipes.
    fn watcher(&self) -> Pid {
        let links = |pid: &str| -> Vec<PathBuf> {
            fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
                .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
                .filter(|link| link.to_string_lossy().starts_with("pipe:"))
                .collect()
        };
        let find = || {
            let ours = links(&self.child.id().to_string());
            fs::read_dir("/proc").unwrap().find_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let comm = fs::read_to_string(format!("/proc/{name}/comm")).ok()?;
                let watches = comm.trim() == "byteback-watch" && links(&name).iter().any(|link| ours.contains(link));
                watches.then(|| Pid::from_raw(name.parse().ok()?)).flatten()
            })
        };
        let mut found = None;
        eventually("a watcher runs", || {
            found = find();
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Daemon {
    /// Never waits for ever, also if what is tested does not work.
    fn drop(&mut self) {
        let _ = self.child.kill();
        if !within(DYING, || self.is_dead()) {
            // It waits for its own mount, and nobody has helped it.
            let _ = unmount(self.tree(), UnmountFlags::FORCE);
            within(DYING, || self.is_dead());
        }
        if self.work.is_some() {
            let _ = unmount(self.tree().with_file_name("also"), UnmountFlags::DETACH);
            let is_gone = within(DYING, || unmount(self.tree(), UnmountFlags::DETACH).is_err());
            assert!(is_gone || std::thread::panicking(), "the mount is still there");
        }
    }
}

/// The limit of everything that should take no time.
const DYING: Duration = Duration::from_secs(5);

fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(within(DYING, holds), "not within {DYING:?}: {what}");
}

/// A program that another test starts holds all of our files open until it is executed.
fn unmount_when_idle(mount: &Mount) {
    eventually("idle", || mount.unmount(Unmount::IfIdle).is_ok());
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let name = path.to_str().unwrap().replace('\\', "\\134").replace(' ', "\\040");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&*name))
}

fn dies_and_leaves_the_plain_directory(uid: u32) {
    let mut daemon = Daemon::start(uid);
    assert!(is_mounted(&daemon.tree()));
    run_as(uid, "", &daemon.tree(), "cat plain && echo written > new");
    let started = Instant::now();
    daemon.die();
    eventually("the plain directory is visible", || {
        fs::read(daemon.tree().join("plain")).is_ok()
    });
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "took {:?}",
        started.elapsed()
    );
    assert!(!is_mounted(&daemon.tree()));
    assert_eq!(fs::read(daemon.tree().join("new")).unwrap(), b"written\n");
}

/// No signal ends the wait for pages that are written back, and nobody is left to write them.
fn dies_while_it_waits_for_its_own_mount(uid: u32) {
    let mut has_waited = false;
    for round in 0..4 {
        let mut daemon = Daemon::start(uid);
        assert_eq!(daemon.ask("store"), "stores");
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        let started = Instant::now();
        daemon.die();
        eventually("the plain directory is visible", || !is_mounted(&daemon.tree()));
        assert_eq!(fs::metadata(daemon.tree().join("plain")).unwrap().uid(), uid);
        // Nearly all the time, unless it was killed between two waits.
        has_waited |= started.elapsed() > Duration::from_millis(900);
    }
    assert!(has_waited, "it never waited when it was killed, so this shows nothing");
}

#[test]
fn daemon_killed_awaiting_its_mount_leaves_the_plain_directory() {
    dies_while_it_waits_for_its_own_mount(0);
}

#[test]
fn user_daemon_killed_awaiting_its_mount_leaves_plain_directory() {
    let _control = FuseControl::new();
    dies_while_it_waits_for_its_own_mount(NOBODY);
}

/// The signal of the daemon's death belongs to one mount, and is neither set off nor kept by
/// anything else that ends or lives.
#[test]
fn mount_of_a_process_outlives_another_until_the_process_dies() {
    let mut daemon = Daemon::start(0);
    let mut children = vec![daemon.ask("child")];
    assert_eq!(daemon.ask("also"), "Ok(())");
    children.push(daemon.ask("child"));
    let threads = PathBuf::from(format!("/proc/{}/task", daemon.child.id()));
    let lifelines = || -> usize {
        let names = fs::read_dir(&threads).unwrap();
        let names = names.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "byteback-life").count()
    };
    assert_eq!(lifelines(), 2, "one of each mount");
    assert_eq!(daemon.ask("unmount"), "Ok(())");
    assert!(!is_mounted(&daemon.tree()));
    eventually("the first lifeline has ended", || lifelines() == 1);
    kill_process(Pid::from_raw(children[0].parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    // Longer than a watcher waits before it helps a death along.
    std::thread::sleep(Duration::from_millis(1500));
    let also = daemon.tree().with_file_name("also");
    fs::write(also.join("f"), b"served").unwrap();
    assert_eq!(fs::read(also.join("f")).unwrap(), b"served");
    assert!(is_mounted(&also));
    daemon.die();
    eventually("the second mount is gone", || !is_mounted(&also));
    assert_eq!(fs::read(also.join("f")).unwrap(), b"served");
    kill_process(Pid::from_raw(children[1].parse().unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_killed_daemon_leaves_the_plain_directory() {
    dies_and_leaves_the_plain_directory(0);
}

#[test]
fn user_daemon_killed_leaves_the_plain_directory() {
    dies_and_leaves_the_plain_directory(NOBODY);
}

#[test]
fn the_watcher_survives_what_is_sent_to_the_whole_group() {
    let mut daemon = Daemon::start(0);
    rustix::process::kill_process_group(daemon.pid(), Signal::TERM).unwrap();
    daemon.child.wait().unwrap();
    eventually("the mount is gone", || !is_mounted(&daemon.tree()));
}

#[test]
fn an_orderly_end_leaves_no_watcher() {
    let mut daemon = Daemon::start(0);
    let watcher = daemon.watcher();
    assert_eq!(daemon.ask("unmount"), "Ok(())");
    assert!(!is_mounted(&daemon.tree()));
    eventually("the watcher is gone", || {
        match fs::read_to_string(format!("/proc/{}/stat", watcher.as_raw_nonzero())) {
            // An init that does not reap leaves a zombie.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        }
    });
}

/// Somebody unmounts ours and mounts something of his own there, before the daemon can say that all
/// is well.
#[test]
fn the_watcher_unmounts_nothing_of_others() {
    let mut daemon = Daemon::start(0);
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    unmount(daemon.tree(), UnmountFlags::DETACH).unwrap();
    mount("none", daemon.tree(), "tmpfs", MountFlags::empty(), None).unwrap();
    let watcher = daemon.watcher();
    daemon.die();
    eventually("the watcher is gone", || {
        match fs::read_to_string(format!("/proc/{}/stat", watcher.as_raw_nonzero())) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        }
    });
    assert!(is_mounted(&daemon.tree()), "the other mount is still there");
}

#[test]
fn a_dead_leftover_is_removed_at_the_next_start() {
    for uid in [0, NOBODY] {
        let mut daemon = Daemon::start(uid);
        kill_process(daemon.watcher(), Signal::KILL).unwrap();
        daemon.die();
        assert!(is_mounted(&daemon.tree()), "nobody has removed it");
        assert!(fs::read(daemon.tree().join("plain")).is_err());
        let (tree, work) = (daemon.tree(), daemon.keep());
        let mut again = Daemon::start_in(uid, work, DeviceForAll::new());
        assert_eq!(run_as(uid, "", &tree, "cat plain"), "below the mount");
        assert_eq!(again.ask("unmount"), "Ok(())");
        assert!(!is_mounted(&tree), "nothing is left below");
    }
}

#[test]
fn others_may_unmount_and_the_session_ends() {
    for (uid, script) in [
        (0, "cd /; umount \"$OLDPWD\""),
        (NOBODY, "cd /; fusermount3 -u \"$OLDPWD\""),
    ] {
        let mut daemon = Daemon::start(uid);
        run_as(uid, "", &daemon.tree(), script);
        assert_eq!(daemon.ask("wait"), "Ok(())");
        assert!(!is_mounted(&daemon.tree()));
        assert_eq!(fs::read(daemon.tree().join("plain")).unwrap(), b"below the mount");
    }
}

#[test]
fn an_ordinary_user_mounts_works_flushes_and_unmounts() {
    let mut daemon = Daemon::start(NOBODY);
    let script = "
        set -e
        umask 022
        mkdir -p d/e; echo one > d/e/f; mv d/e/f d/g; ln d/g d/h; ln -s g d/s; chmod 600 d/g; touch -d @1 d/g
        printf two >> d/s; cp -a d copy; mkfifo p; truncate -s 5 copy/g
        setfacl -m u:1:r d/h || true; test \"$(stat -c %U%h d/h)\" = \"$(stat -c %U%h d/g)\"
        echo ours > w; chmod 200 w; echo more >> w; chmod 600 w; cat w
        cat d/s; rm -r d";
    let said = run_as(NOBODY, "", &daemon.tree(), script);
    assert_eq!(said, "ours\nmore\none\ntwo");
    // The owner of the mount alone is let in.
    assert!(fs::read(daemon.tree().join("plain")).is_err());
    // Root may not enter the mount, so the program goes there by itself.
    let mapped = daemon.tree().join("mapped");
    let script = call_script(&daemon.work().join("program"), &["map", mapped.to_str().unwrap()]);
    let mut writer = Command::new("setpriv")
        .args([
            format!("--reuid={NOBODY}"),
            format!("--regid={NOBODY}"),
            "--clear-groups".into(),
        ])
        .args(["sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
    assert!(
        said.any(|line| line.unwrap().ends_with("CALL ready")),
        "the mapping exists"
    );
    assert_eq!(daemon.ask("flush"), "Ok(Flushed { synced: 1, invalidated: 0 })");
    // In use: refused, and still mounted.
    assert!(daemon.ask("unmount").contains("Busy"));
    drop(writer.stdin.take());
    writer.wait().unwrap();
    eventually("idle", || daemon.ask("unmount") == "Ok(())");
    let below = fs::read(daemon.tree().join("mapped")).unwrap();
    assert_eq!(&below[100..106], b"stored");
    assert_eq!(fs::metadata(daemon.tree().join("w")).unwrap().uid(), NOBODY);
}

#[test]
fn a_busy_mount_is_not_unmounted_unless_detached() {
    let fixture = Fixture::new();
    let file = fs::File::create(fixture.at("f")).unwrap();
    assert!(matches!(
        fixture.mount().unmount(Unmount::IfIdle),
        Err(MountError::Busy { .. })
    ));
    fixture.mount().unmount(Unmount::Detach).unwrap();
    assert!(!is_mounted(&fixture.tree()));
    (&file).write_all(b"still served").unwrap();
    assert!(!fixture.mount().has_ended());
    drop(file);
    fixture.mount().wait().unwrap();
    assert_eq!(fs::read(fixture.tree().join("f")).unwrap(), b"still served");
}

#[test]
fn an_unmount_does_not_wait_for_ever_for_a_copy_of_the_mount() {
    let fixture = Fixture::new();
    let copy = fixture.tree().with_file_name("copy");
    fs::create_dir(&copy).unwrap();
    rustix::mount::mount_bind(fixture.tree(), &copy).unwrap();
    assert!(fixture.mount().holders().is_empty(), "it is in its place");
    unmount_when_idle(fixture.mount());
    assert!(!is_mounted(&fixture.tree()) && !fixture.mount().has_ended());
    let file = fs::File::create(copy.join("f")).unwrap();
    let holders = fixture.mount().holders();
    assert!(
        holders.iter().any(|holder| holder.point.as_deref() == Some(&*copy)),
        "{holders:?}"
    );
    drop(file);
    // Once more: nothing is unmounted twice.
    fixture.mount().unmount(Unmount::IfIdle).unwrap();
    eventually("the copy is idle", || {
        rustix::mount::unmount(&copy, rustix::mount::UnmountFlags::empty()).is_ok()
    });
    fixture.mount().wait().unwrap();
    assert!(fixture.mount().holders().is_empty());
    fs::remove_dir(copy).unwrap();
}

/// The release of the last file is on its way to the daemon in the instant in which the kernel lets
/// go of the mount.
#[test]
fn mount_end_with_a_request_just_taken_is_no_error() {
    for round in 0..40 {
        let fixture = Fixture::new();
        let files: Vec<_> = (0..8)
            .map(|name| fs::File::create(fixture.at(&name.to_string())).unwrap())
            .collect();
        fixture.mount().unmount(Unmount::Detach).unwrap();
        drop(files);
        let end = fixture.mount().wait();
        assert!(end.is_ok(), "round {round}: {end:?}");
    }
}

#[test]
fn one_directory_is_mounted_once() {
    let fixture = Fixture::new();
    let again = Mount::start(&MountOptions::new(fixture.tree()), Arc::new(Tracked::new()), || Ok(()));
    assert!(matches!(again, Err(MountError::AlreadyMounted { .. })));
    let missing = Mount::start(
        &MountOptions::new("/nonexistent/tree"),
        Arc::new(Tracked::new()),
        || Ok(()),
    );
    assert!(matches!(missing, Err(MountError::Directory { .. })));
}

#[test]
fn mount_elsewhere_sees_changes_made_in_the_directory_itself() {
    require_fuse();
    let work = tempfile::Builder::new()
        .prefix("byteback-life-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let (tree, at) = (work.path().join("tree"), work.path().join("at"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&at).unwrap();
    fs::write(tree.join("f"), b"first").unwrap();
    let mut options = MountOptions::new(&tree);
    options.at = Some(at.clone());
    let mount = Mount::start(&options, Arc::new(Tracked::new()), || Ok(())).unwrap();
    assert_eq!(fs::read(at.join("f")).unwrap(), b"first");
    fs::write(tree.join("f"), b"second, longer").unwrap();
    eventually("the new content", || {
        fs::read(at.join("f")).unwrap() == b"second, longer"
    });
    fs::rename(tree.join("f"), tree.join("g")).unwrap();
    eventually("the new name", || {
        fs::read(at.join("g")).is_ok_and(|read| read == b"second, longer")
    });
    eventually("the old name is gone", || !at.join("f").exists());
    unmount_when_idle(&mount);
}
