//! The JSON lines of every command, compared with docs/environment.md: every line and field must be
//! listed there, and every listed one must occur.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use byteback_testkit::command::{Ran, finish};
use byteback_testkit::waiting::eventually;
use serde_json::Value;

use crate::disk::{Disk, text};
use crate::world::World;

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md"));

/// Fields of one command and message type; the document marks optional ones with `?`.
struct Promise {
    required: BTreeSet<String>,
    optional: BTreeSet<String>,
}

/// Reads the table below "JSON lines": `| command | message type | fields |`.
fn promises() -> BTreeMap<(String, String), Promise> {
    let (_, section) = DOCUMENT.split_once("\n## JSON lines\n").expect("the section is gone");
    let section = section.split("\n## ").next().unwrap();
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| any"));
    let mut promises = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [command, message_type, fields] = cells[..] else {
            panic!("not three cells: {row}");
        };
        let names = fields
            .split(", ")
            .map(|field| field.split(' ').next().unwrap().trim_matches('`').to_owned());
        let (optional, required): (BTreeSet<_>, BTreeSet<_>) = names.partition(|name| name.ends_with('?'));
        let optional = optional
            .iter()
            .map(|name| name.trim_end_matches('?').to_owned())
            .collect();
        let key = (
            command.trim_matches('`').to_owned(),
            message_type.trim_matches('`').to_owned(),
        );
        let before = promises.insert(key, Promise { required, optional });
        assert!(before.is_none(), "told twice: {row}");
    }
    promises
}

/// Compares lines with the promises, and ticks off those that occurred.
pub(crate) struct Check {
    promises: BTreeMap<(String, String), Promise>,
    seen: BTreeSet<(String, String)>,
}

impl Check {
    pub(crate) fn new() -> Self {
        Self {
            promises: promises(),
            seen: BTreeSet::new(),
        }
    }

    #[track_caller]
    pub(crate) fn of(&mut self, command: &str, ran: &Ran) {
        let (lines, errors) = (ran.json(), ran.json_errors());
        for line in lines.iter().chain(&errors) {
            self.line(command, line);
        }
    }

    #[track_caller]
    fn line(&mut self, command: &str, line: &Value) {
        let message_type = line["message_type"]
            .as_str()
            .unwrap_or_else(|| panic!("no message_type: {line}"));
        // Changes come in kinds, each with fields of its own.
        let message_type = match line["change"].as_str() {
            Some(kind) => format!("{message_type}: {kind}"),
            None => message_type.to_owned(),
        };
        let key = [command, "any"]
            .map(|command| (command.to_owned(), message_type.clone()))
            .into_iter()
            .find(|key| self.promises.contains_key(key));
        let key = key.unwrap_or_else(|| panic!("not documented of {command}: {line}"));
        let promise = &self.promises[&key];
        let fields: BTreeSet<String> = line.as_object().unwrap().keys().cloned().collect();
        let fields: BTreeSet<_> = fields.into_iter().filter(|field| field != "message_type").collect();
        let unknown: Vec<_> = fields
            .iter()
            .filter(|field| !promise.required.contains(*field) && !promise.optional.contains(*field))
            .collect();
        assert!(
            unknown.is_empty(),
            "{command} {message_type}: not documented: {unknown:?} in {line}"
        );
        let missing: Vec<_> = promise.required.difference(&fields).collect();
        assert!(
            missing.is_empty(),
            "{command} {message_type}: missing: {missing:?} in {line}"
        );
        self.seen.insert(key);
    }
}

#[test]
fn every_line_of_every_command_has_just_the_documented_fields() {
    let mut check = Check::new();
    let mut world = World::new();
    let tree = world.tree();
    world.serve();
    let other = world.path("other-data");
    fs::create_dir(&other).unwrap();
    let guide = world.path("guide");
    fs::create_dir(&guide).unwrap();
    fs::write(guide.join("index.html"), "guide").unwrap();
    {
        // A second server, for the first line that it prints with --json.
        let out = world.path("other.out");
        let mut child = world
            .command(&[
                "serve",
                "--json",
                "--data",
                other.to_str().unwrap(),
                "--listen",
                "127.0.0.1:0",
                "--guide",
                guide.to_str().unwrap(),
            ])
            .stdout(fs::File::create(&out).unwrap())
            .spawn()
            .unwrap();
        let line = eventually("it listens", || {
            let said = fs::read_to_string(&out).unwrap();
            said.ends_with('\n')
                .then(|| serde_json::from_str::<Value>(said.trim()).unwrap())
        });
        check.line("serve", &line);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    check.of(
        "invite",
        &world
            .run(&["invite", "--json", "--admin", "--data", "data"])
            .ends_with(0),
    );
    let code = world
        .run(&["invite", "--json", "joined", "--data", "data"])
        .ends_with(0);
    let code = code.line("summary")["code"].as_str().unwrap().to_owned();
    check.of("devices", &world.run(&["devices", "--json", "--data", "data"]).fine());
    let mut join = world.command(&["join", "--json", &code, "joined"]);
    // A home of its own, as the folder below is for the first device.
    join.env("XDG_CONFIG_HOME", world.path("other-config"));
    check.of("join", &finish("join", join).fine());
    check.of("devices", &world.run(&["devices", "--json", "--data", "data"]).fine());
    let of = "devices rename`, `devices revoke";
    check.of(
        of,
        &world
            .run(&["devices", "--json", "--data", "data", "rename", "1", "x"])
            .fine(),
    );
    check.of(
        of,
        &world
            .run(&["devices", "--json", "--data", "data", "revoke", "i2"])
            .fine(),
    );
    let token = world.path("data/join-token");
    let init = [
        "--json",
        "-r",
        &world.repository(),
        "--join-token-file",
        token.to_str().unwrap(),
    ]
    .map(str::to_owned);
    let init: Vec<&str> = init.iter().map(String::as_str).collect();
    check.of("init", &world.on_tree("init", &init).fine());
    check.of("status", &world.run(&["status", "--json"]).fine());

    fs::write(tree.join("file"), "content").unwrap();
    fs::create_dir(tree.join("directory")).unwrap();
    std::os::unix::fs::symlink("file", tree.join("link")).unwrap();
    check.of(
        "mount",
        &world.on_tree("mount", &["--json", "--undo-window", "1h"]).fine(),
    );
    let mut backup = world.command(&["backup", "-v", "--json", tree.to_str().unwrap()]);
    backup.env("BYTEBACK_PROGRESS_FPS", "50");
    check.of("backup", &finish("backup", backup).fine());
    check.of("consumers", &world.on_tree("consumers", &["--json"]).fine());
    let begun = world
        .run(&["consumers", "begin", "c", tree.to_str().unwrap(), "--json"])
        .fine();
    check.of("consumers begin`, `consumers done", &begun);
    let epoch = begun.line("summary")["epoch"].to_string();
    let drop = ["consumers", "drop", "d", tree.to_str().unwrap(), "--json"];
    world.run(&["consumers", "begin", "d", tree.to_str().unwrap()]).fine();
    check.of("consumers drop", &world.run(&drop).fine());
    let (file, delta) = (tree.join("file"), world.path("delta"));
    let exported = [
        "export-delta",
        "--json",
        file.to_str().unwrap(),
        "-o",
        delta.to_str().unwrap(),
    ];
    check.of("export-delta", &world.run(&exported).fine());
    let done = world.run(&["consumers", "done", "c", &epoch, tree.to_str().unwrap(), "--json"]);
    check.of("consumers begin`, `consumers done", &done.fine());
    fs::write(tree.join("file"), "changed").unwrap();
    fs::rename(tree.join("link"), tree.join("directory/link")).unwrap();
    check.of("changes", &world.on_tree("changes", &["--json"]).fine());
    world.backup();
    let file = tree.join("file");
    check.of(
        "versions",
        &world.run(&["versions", "--json", file.to_str().unwrap()]).fine(),
    );
    let (old, new) = (world.url(), world.url());
    let moved = world.run(&["server", "set-address", "--json", old, new]).fine();
    check.of("server set-address", &moved);
    check.of("snapshots", &world.about_tree("snapshots", &["--json"]).fine());
    check.of("ls", &world.about_tree("ls", &["--json"]).fine());
    check.of("diff", &world.about_tree("diff", &["--json", "1"]).fine());
    check.of("verify", &world.about_tree("verify", &["--json"]).fine());
    match Disk::new("crc32c", 128, "") {
        Some(disk) => {
            let file = disk.path().join("file");
            fs::write(&file, "content ".repeat(10_000)).unwrap();
            check.of(
                "checksums",
                &world.run(&["checksums", "--json", "--verify", text(&file)]).fine(),
            );
            let against = ["checksums", "--json", "--ranges", "--against", text(&file), text(&file)];
            check.of("checksums --against", &world.run(&against).fine());
        }
        // `Disk::new` has reported why there is no btrfs.
        None => {
            check
                .promises
                .retain(|(command, _), _| !command.starts_with("checksums"));
        }
    }
    fs::write(tree.join("file"), "differs").unwrap();
    check.of(
        "verify",
        &world.about_tree("verify", &["--json", "--deep"]).ends_with(1),
    );
    let restored = world.path("restored");
    check.of(
        "restore",
        &world
            .about_tree(
                "restore",
                &["-v", "--json", "latest", "--target", restored.to_str().unwrap()],
            )
            .fine(),
    );
    let folder = tree.to_str().unwrap();
    let (place, pulled) = (format!("{}/plain", world.url()), world.path("pulled"));
    check.of("push", &world.run(&["push", "-v", "--json", folder, &place]).fine());
    check.of(
        "pull",
        &world
            .run(&["pull", "-v", "--json", &place, pulled.to_str().unwrap()])
            .fine(),
    );
    for verb in [&["create", "one"][..], &["ls"], &["rm", "one"]] {
        let arguments = [&["--json", "cut"], verb, &[folder]].concat();
        check.of("cut", &world.run(&arguments).fine());
    }
    let path = tree.join("file");
    fs::write(&path, "once more").unwrap();
    let path = path.to_str().unwrap();
    check.of("history", &world.run(&["history", "--json", path]).fine());
    check.of("explain", &world.run(&["explain", "--json", path]).fine());
    let beside = world.path("beside");
    let past = ["restore", "--json", "--at", "now", path, "-o", beside.to_str().unwrap()];
    check.of("restore --at", &world.run(&past).fine());
    check.of("status", &world.on_tree("status", &["--json"]).fine());
    check.of("umount", &world.on_tree("umount", &["--json"]).fine());
    check.of("sync", &world.on_tree("sync", &["--json"]).fine());
    check.of(
        "sync --limit-rate",
        &world.on_tree("sync", &["--json", "--limit-rate", "1G"]).fine(),
    );
    check.of("pause", &world.on_tree("pause", &["--json"]).fine());
    check.of("resume", &world.on_tree("resume", &["--json"]).fine());
    check.of("status", &world.on_tree("status", &["--json"]).fine());
    check.of("umount", &world.on_tree("umount", &["--json"]).fine());
    let service = |words: &[&str]| {
        let all = [&["service", words[0], "--json", "--root", "."], &words[1..]].concat();
        world.run(&all).fine()
    };
    check.of("service install", &service(&["install", "sync", "/data/mail"]));
    check.of("service status", &service(&["status"]));
    check.of("service remove", &service(&["remove", "/data/mail"]));
    let failed = world.run(&["backup", "--json", "nowhere"]).ends_with(1);
    check.of("backup", &failed);
    assert_eq!(failed.json_errors()[0]["code"], 1);
    let image = "a volume";
    let made = world
        .run(&["volume", "create", "--json", image, "--size", "20M"])
        .fine();
    check.of("volume create", &made);
    check.of("volume check", &world.run(&["volume", "check", "--json", image]).fine());
    let extracted = world.run(&["volume", "extract", "--json", image, "out of it"]).fine();
    check.of("volume extract", &extracted);
    // The last superblock.
    let len = fs::metadata(world.path(image)).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(world.path(image)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"damaged", len - 4096).unwrap();

    check.of(
        "volume check",
        &world.run(&["volume", "check", "--json", image]).ends_with(1),
    );
    let repaired = world.run(&["volume", "check", "--repair", "--json", image]).fine();
    check.of("volume check --repair", &repaired);
    // Lines that occur only in failures that other tests cause; `repair`'s is checked there.
    for (command, message_type) in [("any", "error"), ("repair", "damaged")] {
        check.seen.insert((command.to_owned(), message_type.to_owned()));
    }
    let unseen: Vec<_> = check.promises.keys().filter(|key| !check.seen.contains(*key)).collect();
    assert!(unseen.is_empty(), "documented, but never printed: {unseen:?}");
}
