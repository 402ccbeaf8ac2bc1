//! Units for systemd: their text, what systemd makes of them, and that removal leaves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use byteback_testkit::command::{Ran, in_place_of};
use byteback_testkit::tools::run;
use serde_json::Value;

use crate::world::{LET_GO, World};

/// Every path below a directory.
fn listing(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut to_do = vec![dir.to_owned()];
    while let Some(dir) = to_do.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            found.insert(entry.path());
            if entry.file_type().unwrap().is_dir() {
                to_do.push(entry.path());
            }
        }
    }
    found
}

/// `byteback service VERB --root ROOT ...`
fn in_root(world: &World, words: &[&str]) -> Ran {
    let root = world.path("root");
    let all = [&["service", words[0], "--root", root.to_str().unwrap()], &words[1..]].concat();
    world.run(&all)
}

#[test]
fn units_are_valid_enabled_and_gone_without_a_trace() {
    let world = World::new();
    let root = world.path("root");
    fs::create_dir(&root).unwrap();
    let units = root.join("etc/systemd/system");
    let odd = "/data/My files 100%/$HOME";
    let installed = [
        (
            vec!["serve", "--data", "/srv/backup", "--listen", "0.0.0.0:7117"],
            "/srv/backup",
        ),
        (vec!["sync", "/data/mail", "--delay", "1s"], "/data/mail"),
        (vec!["mount", odd, "--mode", "fast", "--scrub-rate", "0"], odd),
    ];
    let mut names = Vec::new();
    for (words, path) in &installed {
        let all = [&["install", "--json"], &words[..]].concat();
        let summary = in_root(&world, &all).fine().line("summary");
        assert_eq!(
            (&summary["path"], &summary["started"]),
            (&Value::from(*path), &Value::from(false))
        );
        let name = summary["unit"].as_str().unwrap().to_owned();
        let escaped = run("systemd-escape", &["--path", "--", path]);
        assert_eq!(name, format!("byteback-{}-{}.service", words[0], escaped.trim()));
        // systemd finds nothing wrong with the unit, and takes it for enabled.
        let file = units.join(&name);
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&file)
            .output()
            .unwrap();
        let complaints = String::from_utf8(verified.stderr).unwrap();
        assert!(
            verified.status.success() && complaints.is_empty(),
            "{name}: {complaints}"
        );
        let enabled = run("systemctl", &["--root", root.to_str().unwrap(), "is-enabled", &name]);
        assert_eq!(enabled.trim(), "enabled");
        names.push(name);
    }
    let text = fs::read_to_string(units.join(&names[1])).unwrap();
    for line in [
        "Type=notify",
        "Restart=on-failure",
        "RequiresMountsFor=/data/mail",
        "WantedBy=multi-user.target",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
    let state = world.path("home/state");
    assert!(
        text.contains(&format!("Environment=BYTEBACK_STATE_DIR={}", state.display())),
        "{text}"
    );
    // A file that every user can read has no secret in it.
    assert!(!text.contains("TOKEN="), "{text}");
    let odd_text = fs::read_to_string(units.join(&names[2])).unwrap();
    assert!(
        odd_text.contains("--foreground -- \"/data/My files 100%%/$$HOME\"\n"),
        "{odd_text}"
    );

    in_root(&world, &["install", "sync", "/data/mail", "--delay", "1s"])
        .fine()
        .says("was already installed");
    in_root(&world, &["install", "sync", "/data/mail", "--delay", "2s"])
        .fine()
        .says("is updated");
    in_root(&world, &["install", "mount", "/data/mail"])
        .ends_with(11)
        .says("already has a service")
        .says("byteback service remove");
    in_root(&world, &["install", "sync", "mail"])
        .ends_with(1)
        .says("not absolute");
    let listed = in_root(&world, &["status", "--json"]).fine();
    assert_eq!(listed.json().len(), 3, "{}", listed.stdout);
    assert!(
        listed.json().iter().all(|line| line["enabled"] == true),
        "{}",
        listed.stdout
    );

    // A foreign file is left alone.
    let theirs = units.join("byteback-mount-theirs.service");
    fs::write(&theirs, "[Service]\nExecStart=/bin/true\n").unwrap();
    in_root(&world, &["install", "mount", "/theirs"])
        .ends_with(1)
        .says("not written by Byteback");
    in_root(&world, &["remove", "/theirs"])
        .ends_with(1)
        .says("no service is installed");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "[Service]\nExecStart=/bin/true\n");
    fs::remove_file(&theirs).unwrap();

    in_root(&world, &["remove", "/srv/backup", "/data/mail"]).fine();
    in_root(&world, &["remove", &names[2]]).fine().says("is removed");
    assert_eq!(listing(&root), BTreeSet::new(), "what the installation made is gone");
}

#[test]
fn a_unit_can_be_looked_at_before_it_is_installed() {
    let world = World::served();
    let tree = world.tree();
    let shown = world
        .run(&["service", "install", "--user", "-n", "sync", tree.to_str().unwrap()])
        .fine()
        .says("ExecStart=")
        .says("WantedBy=default.target");
    assert!(!world.path("home/config/systemd").exists(), "{}", shown.stdout);
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    world
        .run(&["service", "install", "--user", "-n", "sync", other.to_str().unwrap()])
        .ends_with(10)
        .says("is not bound");
}

/// A user's systemd, in a mount namespace of its own in which it believes that the machine was
/// booted by systemd.
const LIFE: &str = r#"
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
/lib/systemd/systemd --user --log-target=console > "$LOG" 2>&1 &
manager=$!
trap 'kill $manager; wait $manager' EXIT
for _ in $(seq 600); do
    systemctl --user daemon-reload 2> /dev/null && break
    kill -0 $manager 2> /dev/null || { echo "no systemd of a user runs here: $(tail -n 1 "$LOG")"; trap - EXIT; exit 77; }
    sleep 0.1
done
find "$XDG_CONFIG_HOME" | sort > "$LOG.before"
is_mounted() { grep -q " $TREE .* fuse.byteback " /proc/self/mountinfo; }
fails() { if "$@" > /dev/null 2>&1; then echo "it did not fail: $*"; exit 1; fi; }
pid() { systemctl --user show -P MainPID "$UNIT"; }

"$BYTEBACK" service install --user sync "$TREE"
is_mounted
test "$(systemctl --user is-active "$UNIT")" = active
test "$(systemctl --user is-enabled "$UNIT")" = enabled
echo written > "$TREE/file"
"$BYTEBACK" service status --user | grep -q 'at login *active'

first=$(pid)
kill -9 "$first"
for _ in $(seq 600); do
    test "$(pid)" != "$first" && test "$(systemctl --user is-active "$UNIT")" = active && break
    sleep 0.1
done
test "$(pid)" != "$first"
is_mounted
test "$(cat "$TREE/file")" = written

# Unmounted by hand, it stays so until it is started again.
"$BYTEBACK" umount "$TREE"
for _ in $(seq 600); do
    test "$(systemctl --user is-active "$UNIT")" = inactive && break
    sleep 0.1
done
fails "$BYTEBACK" service status --user
systemctl --user start "$UNIT"
is_mounted

"$BYTEBACK" service remove --user "$TREE"
fails is_mounted
fails "$BYTEBACK" service remove --user "$TREE"
test "$(systemctl --user show -P LoadState "$UNIT")" = not-found
find "$XDG_CONFIG_HOME" | sort | diff "$LOG.before" -
echo "LIFE IS OVER"
"#;

#[test]
fn a_real_systemd_starts_restarts_and_forgets_a_service() {
    let world = World::served();
    let tree = world.tree();
    let escaped = run("systemd-escape", &["--path", tree.to_str().unwrap()]);
    let nothing: [&str; 0] = [];
    let as_command = world.command(&nothing);
    let mut shell = Command::new("unshare");
    shell.args(["-m", "bash", "-euc", &format!("{LET_GO}{LIFE}")]);
    let ran = in_place_of(&mut shell, &as_command)
        .env("BYTEBACK", env!("CARGO_BIN_EXE_byteback"))
        .env("TREE", &tree)
        .env("UNIT", format!("byteback-sync-{}.service", escaped.trim()))
        .env("LOG", world.path("systemd.log"))
        .env("XDG_RUNTIME_DIR", "/run/user")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    if ran.status.code() == Some(77) {
        println!("left out: {said}");
        return;
    }
    let log = fs::read_to_string(world.path("systemd.log")).unwrap_or_default();
    assert!(ran.status.success() && said.contains("LIFE IS OVER"), "{said}\n{log}");
}
