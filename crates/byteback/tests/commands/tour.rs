//! A complete session, with real programs changing the folder.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use byteback_host::random::noise;
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::tools::run;
use serde_json::Value;

use crate::world::World;

/// Large compared with the changes in it.
const IMAGE_BYTES: usize = 8 << 20;

/// Makes a tree with every kind of entry that must be restored.
fn plant(tree: &Path) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    run(
        "sqlite3",
        &[
            &text(&tree.join("data.db")),
            "create table t(a integer primary key, b text);
             with recursive n(a) as (select 1 union all select a + 1 from n where a < 20000)
             insert into t select a, 'row number ' || a from n;",
        ],
    );
    fs::write(tree.join("image"), noise(1, IMAGE_BYTES)).unwrap();
    fs::create_dir_all(tree.join("src/deep")).unwrap();
    for number in 0..40 {
        fs::write(
            tree.join(format!("src/deep/{number}.c")),
            format!("int x = {number};\n"),
        )
        .unwrap();
    }
    fs::write(tree.join("inbox"), "From somebody\n\nhello\n".repeat(500)).unwrap();
    fs::hard_link(tree.join("inbox"), tree.join("src/inbox")).unwrap();
    symlink("data.db", tree.join("link")).unwrap();
    symlink("/nowhere/at all", tree.join("dangling")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), "x").unwrap();
    fs::write(tree.join("tab\tand\nnewline"), "x").unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&noise(2, 5000), 40 << 20).unwrap();

    run("mkfifo", &[&text(&tree.join("fifo"))]);
    run("mknod", &[&text(&tree.join("null")), "c", "1", "3"]);
    run(
        "setfattr",
        &["-n", "user.color", "-v", "blue", &text(&tree.join("src"))],
    );
    run(
        "setfacl",
        &["-m", "u:1000:r,g:1001:rwx", &text(&tree.join("src/deep/1.c"))],
    );
    run("setfacl", &["-d", "-m", "u:1000:rw", &text(&tree.join("src"))]);
    chown(tree.join("src/deep/2.c"), Some(1000), Some(1001)).unwrap();
    std::os::unix::fs::lchown(tree.join("dangling"), Some(1002), Some(1003)).unwrap();
    fs::set_permissions(tree.join("src/deep/3.c"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    for (path, time) in [
        ("src/deep/4.c", "2001-02-03 04:05:06.123456789"),
        ("src/deep/5.c", "1961-04-12 06:07:00.000000001"),
        ("empty", "2011-11-11 11:11:11.111111111"),
        ("link", "2012-12-12 12:12:12.121212121"),
    ] {
        run("touch", &["-h", "-d", time, &text(&tree.join(path))]);
    }
}

/// Makes changes of each kind through the mount. Returns an upper bound of the bytes that they
/// touched.
fn change(tree: &Path) -> u64 {
    let text = |path: &str| tree.join(path).to_str().unwrap().to_owned();
    run(
        "sqlite3",
        &[
            &text("data.db"),
            "update t set b = 'changed' where a in (5, 9000, 19000);",
        ],
    );
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={}", text("image")),
            "bs=1k",
            "seek=5000",
            "count=3",
            "conv=notrunc",
            "status=none",
        ],
    );
    run("fallocate", &["-p", "-o", "1048576", "-l", "65536", &text("image")]);
    run("sed", &["-i", "s/6/six/", &text("src/deep/6.c")]);
    run("mv", &[&text("src/deep/7.c"), &text("src/seven.c")]);
    run("ln", &[&text("src/deep/8.c"), &text("eight")]);
    run("rm", &[&text("src/deep/9.c")]);
    run("rmdir", &[&text("empty")]);
    run("chmod", &["600", &text("src/deep/10.c")]);
    run("touch", &["-d", "1999-12-31 23:59:59.5", &text("src/deep/11.c")]);
    run("setfattr", &["-n", "user.k", "-v", "v", &text("src/deep/12.c")]);
    run("setfacl", &["-m", "u:1234:rw", &text("src/deep/13.c")]);
    run("chown", &["7:8", &text("src/deep/14.c")]);
    run("truncate", &["-s", "3", &text("src/deep/15.c")]);
    run("truncate", &["-s", "300000", &text("src/deep/16.c")]);
    run("sh", &["-c", "echo more >> \"$0\"", &text("inbox")]);
    run("mkdir", &[&text("new directory")]);
    run("cp", &["-p", &text("data.db"), &text("new directory/copy.db")]);
    run("ln", &["-sfn", "image", &text("link")]);
    let copy = fs::metadata(tree.join("new directory/copy.db")).unwrap().len();
    // SQLite rewrites a few pages; the length gained by 16.c is zeros.
    copy + (3 << 10) + (64 << 10) + 300_000 + 200_000
}

#[test]
fn the_whole_tour_brings_back_every_byte_and_every_attribute() {
    let mut world = World::new();
    plant(&world.tree());
    let planted = seen(&world.tree());
    world.serve();
    world.init().fine().says("is now bound to").says("byteback mount");
    world.on_tree("mount", &[]).fine().says("is tracked from now on");
    assert!(is_mounted(&world.tree()));
    world.on_tree("status", &[]).fine().says("never backed up yet");

    let first = world.backup();
    assert_eq!(first["mounted"], true);
    assert_eq!(first["snapshot_id"], 1);
    assert!(differences(&planted, &seen(&world.tree()), true).is_empty());
    world.assert_restores("latest");

    let touched = change(&world.tree());
    let tree = world.tree();
    let changes = world.on_tree("changes", &["--json"]).fine();
    // Looking does not move the mark: the second list is the same.
    assert_eq!(
        changes.json().len(),
        world.on_tree("changes", &["--json"]).fine().json().len()
    );
    assert!(
        changes
            .json()
            .iter()
            .any(|line| line["path"] == "image" && line["content"]["ranges"][0][0] == 1 << 20)
    );
    assert!(!changes.line("status")["since"].is_null());
    world
        .on_tree("changes", &[])
        .fine()
        .says("src/deep/10.c: only attributes")
        .says("- src/deep/9.c");

    let dry = world.on_tree("backup", &["--json", "--dry-run"]).fine().line("summary");
    assert_eq!(
        (&dry["snapshot_id"], &dry["files_new"]),
        (&Value::Null, &Value::from(2)),
        "{dry}"
    );
    let second = world.backup();
    assert_eq!(second["snapshot_id"], 2);
    assert_eq!(second["everything_because"], Value::Null, "{second}");
    // The cost follows the change, not the 8 MiB image or the 64 MiB hollow file.
    for what in ["read_bytes", "changed_bytes"] {
        let bytes = second[what].as_u64().unwrap();
        assert!(bytes > 0 && bytes < touched, "{what} is {bytes} of {touched}: {second}");
    }
    assert!(second["wire"]["sent"].as_u64().unwrap() < touched, "{second}");
    world.assert_restores("latest");
    let old = world.restore("latest~1");
    let differing = differences(&planted, &seen(&old), true);
    assert!(differing.is_empty(), "{differing:#?}");

    // The hollow file is hollow again, and the hard links are one file.
    let restored = world.restore("2");
    assert!(fs::metadata(restored.join("sparse")).unwrap().blocks() * 512 < 1 << 20);
    let inode = |path: &str| fs::metadata(restored.join(path)).unwrap().ino();
    assert_eq!(inode("inbox"), inode("src/inbox"));
    assert_eq!(inode("eight"), inode("src/deep/8.c"));
    run(
        "sqlite3",
        &[restored.join("data.db").to_str().unwrap(), "pragma integrity_check"],
    );

    let third = world.backup();
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert_eq!(
        (&third["snapshot_id"], &status["last_snapshot"]),
        (&Value::from(3), &Value::from(3))
    );
    assert_eq!(
        (&third["changed_bytes"], &third["files_changed"]),
        (&Value::from(0), &Value::from(0))
    );

    assert_eq!(world.about_tree("snapshots", &["--json"]).fine().json().len(), 3);
    let rows = world.about_tree("snapshots", &[]).fine().stdout;
    assert_eq!(rows.lines().count(), 4, "{rows}");
    let listed = world.about_tree("ls", &["latest"]).fine().stdout;
    assert!(listed.contains("not utf-8 \\xff\\xfe"), "{listed}");
    assert!(listed.contains("tab\\tand\\nnewline"), "{listed}");
    assert_eq!(
        listed.lines().count(),
        seen(&tree).len() - 1,
        "all names but the root: {listed}"
    );
    world
        .about_tree("ls", &["-l", "2:src/deep/3.c"])
        .fine()
        .says("-rwsr-x---");
    world.about_tree("ls", &["-l", "2"]).fine().says("link -> image");

    world
        .about_tree("diff", &["1", "2"])
        .fine()
        .says("- empty")
        .says("+ new directory/copy.db")
        .says("U src/deep/10.c  (mode)")
        .says("M image");
    world.about_tree("diff", &["2", "3"]).fine().says("are equal");
    world
        .about_tree("diff", &["2", "1"])
        .ends_with(1)
        .says("byteback diff 1 2");

    world.about_tree("verify", &[]).fine().says("all checksums correct");
    world.about_tree("verify", &["--deep"]).fine().says("all equal");
    fs::write(tree.join("src/deep/20.c"), "int y = 20;\n").unwrap();
    let differs = world.about_tree("verify", &["--deep"]).ends_with(1);
    differs.says("src/deep/20.c: has different content, first at offset 4");

    world.on_tree("umount", &[]).fine().says("is no longer tracked");
    assert!(!is_mounted(&tree));
    assert_eq!(fs::read_to_string(tree.join("src/deep/20.c")).unwrap(), "int y = 20;\n");
    world.on_tree("status", &[]).fine().says("changes are not tracked");
    assert_eq!(world.stop_server(), Some(0));
}

#[test]
fn restore_handles_snapshot_parts_and_used_targets_as_asked() {
    let world = World::mounted();
    let tree = world.tree();
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), "old").unwrap();
    fs::write(tree.join("beside"), "beside").unwrap();
    world.backup();
    let part = world.restore("latest:a/b");
    assert_eq!(fs::read_to_string(part.join("file")).unwrap(), "old");
    assert_eq!(fs::read_dir(&part).unwrap().count(), 1);
    let file = world.restore("latest:/a/b/file");
    assert_eq!(fs::read_to_string(file.join("file")).unwrap(), "old");
    world
        .about_tree("restore", &["latest:a/c", "--target", "nowhere"])
        .ends_with(1)
        .says("snapshot 1 has no file \"a/c\"");
    assert!(!world.path("nowhere").join("c").exists());

    let target = world.restore("latest");
    let to = target.to_str().unwrap().to_owned();
    world
        .about_tree("restore", &["latest", "--target", &to])
        .ends_with(1)
        .says("--overwrite");
    fs::write(target.join("beside"), "BESIDE").unwrap();
    fs::write(target.join("more"), "more").unwrap();
    world
        .about_tree("restore", &["latest", "--target", &to, "--overwrite"])
        .fine();
    assert_eq!(fs::read_to_string(target.join("beside")).unwrap(), "beside");
    assert_eq!(
        fs::read_to_string(target.join("more")).unwrap(),
        "more",
        "nobody asked to delete it"
    );
    world
        .about_tree("restore", &["latest", "--target", &to, "--overwrite", "--delete"])
        .fine();
    assert!(!target.join("more").exists());
    world
        .about_tree("restore", &["latest", "--target", &to, "--delete"])
        .ends_with(2);
    world
        .about_tree("restore", &["7", "--target", "nowhere"])
        .ends_with(1)
        .says("'byteback snapshots'");
    world
        .about_tree("restore", &["newest", "--target", "nowhere"])
        .ends_with(2)
        .says("is neither a snapshot");
}

#[test]
fn backup_of_a_file_that_only_grew_costs_nothing_but_its_length() {
    let world = World::mounted();
    let tree = world.tree();
    for name in ["truncated", "allocated", "hole"] {
        fs::write(tree.join(name), noise(3, 1 << 20)).unwrap();
    }
    world.backup();
    let path = |name: &str| tree.join(name).to_str().unwrap().to_owned();
    run("truncate", &["-s", "1G", &path("truncated")]);
    run("fallocate", &["-l", "2M", &path("allocated")]);
    let hole = fs::OpenOptions::new().write(true).open(path("hole")).unwrap();
    hole.write_all_at(b"end", 5 << 20).unwrap();
    let report = world.backup();
    assert_eq!(report["everything_because"], Value::Null, "{report}");
    assert!(report["stored_bytes"].as_u64().unwrap() < 4096, "{report}");
    assert!(report["wire"]["sent"].as_u64().unwrap() < 16 << 10, "{report}");
    run("truncate", &["-s", "3M", &path("truncated")]);
    world.backup();
    world.assert_restores("latest");
}

#[test]
fn tags_and_hosts_are_kept_and_found() {
    let world = World::served();
    world
        .on_tree("backup", &["--tag", "daily", "--tag", "db", "--host", "alpha"])
        .fine();
    world.on_tree("backup", &["--host", "beta"]).fine();
    let tagged = world.about_tree("snapshots", &["--json", "--tag", "db"]).fine().json();
    assert_eq!(tagged.len(), 1);
    assert_eq!(tagged[0]["tags"], serde_json::json!(["daily", "db"]));
    let hosted = world
        .about_tree("snapshots", &["--json", "--host", "beta"])
        .fine()
        .json();
    assert_eq!((hosted.len(), &hosted[0]["id"]), (1, &Value::from(2)));
}

/// The sessions of README.md, run by the script that makes their data and can rewrite them.
#[test]
fn docs_show_what_is_printed() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/docs-tour");
    let output = std::process::Command::new(script)
        .arg(env!("CARGO_BIN_EXE_byteback"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
