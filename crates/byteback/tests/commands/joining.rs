//! Two machines that join by one code: real processes, each with a home of its own.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use byteback_host::random::noise;
use byteback_testkit::command::{Ran, ServerProcess, at_home, ended, finish, run_by};
use byteback_testkit::proxy::{Way, forward};
use byteback_testkit::waiting::{PATIENCE, eventually};

use crate::world::World;

/// A machine besides the world's own.
pub(crate) struct Machine<'a> {
    world: &'a World,
    pub(crate) home: PathBuf,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(world: &'a World, name: &str) -> Self {
        let home = world.path(name);
        fs::create_dir_all(&home).unwrap();
        Self { world, home }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.command(arguments);
        at_home(&mut command, &self.home)
            .env("BYTEBACK_HOST", self.home.file_name().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        finish(&arguments.join(" "), self.command(arguments))
    }

    pub(crate) fn dir(&self, name: &str) -> String {
        self.home.join(name).to_str().unwrap().to_owned()
    }
}

fn data(world: &World) -> String {
    world.path("data").to_str().unwrap().to_owned()
}

pub(crate) fn invite(world: &World, arguments: &[&str]) -> String {
    let data = data(world);
    let all = [&["invite", "--data", &data], arguments].concat();
    let ran = world.run(&all).ends_with(0);
    assert_eq!(ran.stdout.lines().count(), 1, "nothing but the code: {}", ran.stdout);
    ran.stdout.trim().to_owned()
}

pub(crate) fn served() -> World {
    let mut world = World::new();
    world.serve();
    world
}

#[test]
fn codes_for_this_machine_alone_are_warned_of() {
    let world = served();
    let data = data(&world);
    let reported = world.run(&["invite", "mail", "--data", &data]).ends_with(0);
    assert!(
        reported.stderr.contains("only loopback addresses"),
        "{}",
        reported.stderr
    );
    assert!(reported.stderr.contains("--address HOST"), "{}", reported.stderr);
    let chosen = world
        .run(&["invite", "mail", "--data", &data, "--address", "127.0.0.1:7117"])
        .fine();
    assert_eq!(chosen.stdout.lines().count(), 1);
}

#[test]
fn a_code_for_this_machine_says_so_where_nobody_answers() {
    let mut world = served();
    let code = invite(&world, &["mail"]);
    let refused = format!("cannot reach {}: connection refused", world.url());
    world.kill_server();
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("d");
    machine
        .run(&["join", &code, &dir])
        .ends_with(1)
        .says(&refused)
        .says("Check that the server is running (byteback serve).")
        .says("The code names this machine itself")
        .says("byteback invite --address HOST");
    // The code is still valid.
    world.serve();
    let machine = Machine::new(&world, "machine");
    machine.run(&["join", &code, &dir]).fine();
}

#[test]
fn one_code_is_all_that_another_machine_needs() {
    let world = served();
    let first = Machine::new(&world, "first");
    let dir = first.dir("mail");
    // The very first machine joins by the file that the server wrote; the folder gets the
    // directory's name.
    let file = world.path("data/join-token");
    first
        .run(&["join", file.to_str().unwrap(), &dir])
        .fine()
        .says("Joined https://127.0.0.1:")
        .says("as device 1 (first)")
        .says(&format!("byteback backup {dir}"));
    fs::write(Path::new(&dir).join("inbox"), "From me").unwrap();
    first.run(&["backup", &dir]).fine();

    let code = invite(&world, &["mail", "--for", "kitchen"]);
    let second = Machine::new(&world, "second");
    let copy = second.dir("copy");
    second
        .run(&["join", &code, &copy])
        .fine()
        .says("(kitchen)")
        .says("It holds 1 snapshot,")
        .says("byteback pull");
    second.run(&["pull", &copy]).fine();
    assert_eq!(fs::read_to_string(Path::new(&copy).join("inbox")).unwrap(), "From me");
    second.run(&["snapshots", "--dir", &copy]).fine().says("first");
    let target = second.dir("restored");
    second
        .run(&["restore", "latest", "--dir", &copy, "--target", &target])
        .fine();

    // It was given this folder and no other, and cannot pass the right on.
    let url = world.url();
    let other = second.dir("other");
    fs::create_dir(&other).unwrap();
    let ran = second.run(&["init", &other, "-r", &format!("{url}/other")]);
    ran.ends_with(12)
        .says("no access to a folder 'other'")
        .says("byteback invite");
    second
        .run(&["devices", "-r", &format!("{url}/mail")])
        .ends_with(12)
        .says("may not manage");
    // The first machine manages devices without a shell on the server.
    let listed = first.run(&["devices", "-r", &format!("{url}/mail")]).fine();
    listed.says("all, manages devices").says("kitchen");
    let invited = first
        .run(&["invite", "photos", "-r", &format!("{url}/mail")])
        .ends_with(0);
    let photos = second.dir("photos");
    second
        .run(&["join", invited.stdout.trim(), &photos])
        .fine()
        .says("as device 2 (kitchen)");
    let listed = world.run(&["devices", "--data", &data(&world)]).fine();
    listed.says("mail, photos");
    for machine in [&first, &second] {
        let tokens = fs::read_dir(machine.home.join("config/byteback/tokens")).unwrap();
        let tokens: Vec<_> = tokens.map(|entry| entry.unwrap()).collect();
        assert_eq!(tokens.len(), 1, "no draft is left");
        assert_eq!(tokens[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let key = fs::metadata(world.path("data/certificate.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_code_that_is_not_good_any_more_says_why() {
    let world = served();
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("d");
    let try_it = |code: &str| machine.run(&["join", code, &dir]).ends_with(12);
    let code = invite(&world, &["d"]);
    let mut mistyped = code.clone().into_bytes();
    mistyped[30] = if mistyped[30] == b'x' { b'y' } else { b'x' };
    try_it(&String::from_utf8(mistyped).unwrap()).says("the code is mistyped");
    try_it(&code[..code.len() - 3]).says("the code is mistyped");
    try_it("something").says("begins with bbc_");

    let listed = world.run(&["devices", "--data", &data(&world)]).fine();
    let id = listed
        .stdout
        .lines()
        .find(|line| line.contains("(invited)") && line.ends_with(" d"))
        .unwrap();
    let id = id.split(' ').next().unwrap().to_owned();
    world
        .run(&["devices", "--data", &data(&world), "revoke", &id])
        .fine()
        .says("no longer works");
    try_it(&code).says("withdrawn");

    let code = invite(&world, &["d", "--expires", "1s"]);
    std::thread::sleep(Duration::from_millis(1100));
    try_it(&code).says("expired");

    let code = invite(&world, &["d"]);
    let other = Machine::new(&world, "other");
    let theirs = other.dir("d");
    // By standard input, where no other user sees it.
    let mut child = other
        .command(&["join", "-", &theirs])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(format!("{code}\n").as_bytes())
        .unwrap();
    ended("join -", child).fine();
    let ran = try_it(&code).says("already used").says("byteback devices");
    assert!(!ran.stderr.contains(&code[10..]), "a code is a secret: {}", ran.stderr);
    // The code still works for the machine that used it.
    other.run(&["join", &code, &theirs]).fine().says("as device 1");

    // Another server answers at the same address, without a certificate to tell the two apart: it
    // did not issue the token.
    let elsewhere = world.path("elsewhere");
    let plain = serve(&world, &elsewhere, "127.0.0.1:0", &["--plain"]);
    let foreign = world.run(&[
        "invite",
        "d",
        "--data",
        elsewhere.to_str().unwrap(),
        "--address",
        plain.address(),
    ]);
    let first = foreign.ends_with(0).stdout;
    let address = plain.address().to_owned();
    plain.kill();
    fs::remove_dir_all(&elsewhere).unwrap();
    let _again = serve(&world, &elsewhere, &address, &["--plain"]);
    try_it(first.trim()).says("did not issue this code");
}

/// Starts another server.
fn serve(world: &World, data: &Path, listen: &str, flags: &[&str]) -> ServerProcess {
    let arguments = [&["serve", "--data", data.to_str().unwrap(), "--listen", listen], flags].concat();
    let mut command = world.command(&arguments);
    ServerProcess::start(command.stderr(Stdio::null()), &data.with_extension("out"))
}

#[test]
fn another_server_at_the_same_address_is_not_spoken_to() {
    let mut world = World::served();
    fs::write(world.tree().join("a"), "a").unwrap();
    world.backup();
    let code = invite(&world, &["mail"]);
    world.kill_server();
    let address = world.url().trim_start_matches("https://").to_owned();
    let between = serve(&world, &world.path("between"), &address, &[]);
    let ran = world.on_tree("backup", &[]).ends_with(1).says("another certificate");
    ran.says("join it again with a new code").says("nothing was sent");
    let machine = Machine::new(&world, "machine");
    machine
        .run(&["join", &code, &machine.dir("d")])
        .ends_with(12)
        .says("is not the one in the code")
        .says("nothing was sent");
    between.stop();
    // The certificate is made once: after a restart the server is known as before.
    world.serve();
    world.backup();
    let machine = Machine::new(&world, "machine");
    machine.run(&["join", &code, &machine.dir("d")]).fine();
}

#[test]
fn a_given_certificate_is_trusted_by_who_signed_it() {
    let world = World::new();
    let own = serve(&world, &world.path("own"), "127.0.0.1:0", &[]);
    own.stop();
    // Key and certificate in one file, as a server makes it; given by flags, it works like any
    // other.
    let pem = world.path("own/certificate.pem").to_str().unwrap().to_owned();
    let flags = ["--certificate", &pem, "--key", &pem, "--address", "localhost"];
    let given = serve(&world, &world.path("given"), "127.0.0.1:0", &flags);
    assert!(!world.path("given/certificate.pem").exists());
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("d");
    let file = world.path("given/join-token").to_str().unwrap().to_owned();
    machine.run(&["join", &file, &dir]).ends_with(1).says("securely");
    machine
        .run(&["join", &file, &dir, "--cacert", &pem])
        .fine()
        .says("https://localhost:");
    let ran = machine.run(&["snapshots", "--dir", &dir]).ends_with(1);
    ran.says("certificate");
    machine.run(&["snapshots", "--dir", &dir, "--cacert", &pem]).fine();
    // Without TLS, the server says what it speaks.
    let plain = format!("http://{}/d", given.address());
    let token = fs::read_dir(machine.home.join("config/byteback/tokens"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&token).unwrap();
    let at = text.find("https://").unwrap();
    let end = at + text[at..].find('"').unwrap();
    fs::write(
        machine.home.join("plain"),
        text.replace(&text[at..end], plain.trim_end_matches("/d")),
    )
    .unwrap();
    let file = machine.dir("plain");
    machine
        .run(&["snapshots", "-r", &plain, "--token-file", &file])
        .ends_with(1)
        .says("https://");
}

/// Forwards bytes until it is told to swallow answers: then the server hears everything, and the
/// client nothing.
struct Swallowing {
    address: String,
    swallow: Arc<AtomicBool>,
    heard: Arc<AtomicU64>,
}

impl Swallowing {
    fn start(server: String) -> Self {
        let (swallow, heard) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (swallows, counts) = (Arc::clone(&swallow), Arc::clone(&heard));
        let address = forward(
            move || TcpStream::connect(&server).ok(),
            move |_: &(), way, bytes, mut to| {
                if way == Way::ToClient {
                    counts.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    if swallows.load(Ordering::SeqCst) {
                        return true;
                    }
                }
                to.write_all(bytes).is_ok()
            },
        );
        Self {
            address: address.to_string(),
            swallow,
            heard,
        }
    }
}

#[test]
fn join_repeats_with_the_same_code_if_killed_before_the_answer() {
    let world = World::new();
    let data = world.path("plain");
    let server = serve(&world, &data, "127.0.0.1:0", &["--plain"]);
    let between = Swallowing::start(server.address().to_owned());
    let text = data.to_str().unwrap();
    let code = world
        .run(&["invite", "d", "--data", text, "--address", &between.address])
        .ends_with(0)
        .stdout;
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("d");
    let mut child = machine.command(&["join", code.trim(), &dir]).spawn().unwrap();
    eventually("the server has answered", || {
        (between.heard.load(Ordering::SeqCst) > 100).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let devices = || world.run(&["devices", "--data", text, "--json"]).fine().json();
    assert_eq!(devices().len(), 2, "joined, and the first code waits: {:?}", devices());
    between.swallow.store(false, Ordering::SeqCst);
    machine.run(&["join", code.trim(), &dir]).fine().says("as device 1");
    assert_eq!(devices().len(), 2, "the same one");
    fs::write(Path::new(&dir).join("a"), "a").unwrap();
    machine.run(&["backup", &dir]).fine();
}

#[test]
fn device_revoked_in_an_upload_is_stopped_and_told() {
    let world = World::served();
    let code = invite(&world, &["big"]);
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("big");
    machine.run(&["join", &code, &dir]).fine();
    fs::write(Path::new(&dir).join("large"), noise(3, 64 << 20)).unwrap();
    let place = format!("{}/big", world.url());
    let child = machine
        .command(&["push", &dir, &place, "--bwlimit", "4M"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    world
        .run(&["devices", "--data", &data(&world), "revoke", "machine"])
        .fine()
        .says("accepts nothing");
    let ran = ended("push", child).ends_with(12);
    ran.says("was revoked").says("byteback invite");
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    machine
        .run(&["snapshots", "--dir", &dir])
        .ends_with(12)
        .says("was revoked");
    world.on_tree("backup", &[]).fine();
    // With a new code the machine is a new device.
    let code = invite(&world, &["big"]);
    machine.run(&["join", &code, &dir]).fine().says("as device 3");
    machine.run(&["push", &dir, &place]).fine();
}

#[test]
fn devices_are_listed_renamed_and_kept_to_reading_if_read_only() {
    let world = World::served();
    fs::write(world.tree().join("a"), "a").unwrap();
    world.backup();
    let code = invite(&world, &["mail", "--read-only"]);
    let machine = Machine::new(&world, "reader");
    let dir = machine.dir("d");
    machine.run(&["join", &code, &dir]).fine();
    machine.run(&["pull", &dir]).fine();
    machine.run(&["backup", &dir]).ends_with(12).says("may only read");
    let data = data(&world);
    world.run(&["devices", "--data", &data]).fine().says("mail (read-only)");
    world
        .run(&["devices", "--data", &data, "rename", "reader", "old laptop"])
        .fine();
    world
        .run(&["devices", "--data", &data, "list"])
        .fine()
        .says("old laptop");
    world
        .run(&["devices", "--data", &data, "revoke", "nobody"])
        .ends_with(1)
        .says("no device 'nobody'");
    world.run(&["devices"]).ends_with(10).says("--data");
    world
        .run(&["invite", "missing", "--read-only", "--data", &data])
        .ends_with(10)
        .says("leave out --read-only");
}

/// Two network namespaces, one per machine, with a cable between them.
struct Cable {
    ends: [String; 2],
}

impl Cable {
    /// `None` where network namespaces cannot be made.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let ends = ["a", "b"].map(|end| format!("byteback-{id}-{end}"));
        let ip = |arguments: &str| {
            let mut ip = Command::new("ip");
            ip.args(arguments.split(' ')).stderr(Stdio::null());
            ip.status().is_ok_and(|status| status.success())
        };
        let cable = Self { ends };
        let [a, b] = &cable.ends;
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add bb0 netns {a} type veth peer name bb0 netns {b}"));
        if !made {
            return None;
        }
        for (end, own, other) in [(a, "10.77.3.1", "10.77.3.2"), (b, "10.77.3.2", "10.77.3.1")] {
            assert!(ip(&format!("-n {end} addr add {own}/24 dev bb0")));
            assert!(ip(&format!("-n {end} link set bb0 up")) && ip(&format!("-n {end} link set lo up")));
            assert!(ip(&format!("-n {end} route add default via {other}")));
        }
        Some(cable)
    }

    /// The command, run at one end.
    fn at(&self, end: usize, command: &Command) -> Command {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.ends[end]]);
        run_by(ip, command)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = Command::new("ip")
                .args(["netns", "del", end])
                .stderr(Stdio::null())
                .status();
        }
    }
}

#[test]
fn server_on_all_networks_is_found_by_its_code_from_elsewhere() {
    let world = World::new();
    let Some(cable) = Cable::new() else { return };
    let data = data(&world);
    let serve = world.command(&["serve", "--data", &data, "--listen", "0.0.0.0:7117", "--json"]);
    let mut serve = cable.at(0, &serve);
    let _server = ServerProcess::start(serve.stderr(Stdio::null()), &world.path("serve.out"));
    eventually("it is noted how the server is reached", || {
        fs::read_to_string(world.path("data/serve.json")).ok()
    });
    let served = fs::read_to_string(world.path("data/serve.json")).unwrap();
    assert!(served.contains("\"10.77.3.1:7117\""), "{served}");
    let code = invite(&world, &["mail"]);
    let machine = Machine::new(&world, "machine");
    let dir = machine.dir("mail");
    let there = |arguments: &[&str]| finish(&arguments.join(" "), cable.at(1, &machine.command(arguments)));
    there(&["join", &code, &dir])
        .fine()
        .says("Joined https://10.77.3.1:7117");
    fs::write(Path::new(&dir).join("a"), noise(1, 100_000)).unwrap();
    there(&["backup", &dir]).fine();
    there(&["verify", "--deep", "--dir", &dir]).fine();
}
