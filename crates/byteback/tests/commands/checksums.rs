//! `checksums` without any storage that keeps some: arguments that are no files or have odd names,
//! and missing programs. The systems themselves are in `evaluation/systems`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use byteback_testkit::command::{Ran, finish};
use byteback_testkit::tools::run;
use serde_json::Value;

use crate::disk::Disk;
use crate::world::{USER, World};

/// Asserts a failure with this text in its one JSON line; returns the next step, which may be
/// empty.
#[track_caller]
fn refused(ran: Ran, text: &str) -> String {
    let ran = ran.ends_with(1);
    assert_eq!(ran.stdout, "", "{}", ran.what);
    let [said] = &ran.json_errors()[..] else {
        panic!("{}", ran.stderr)
    };
    assert_eq!(
        (&said["message_type"], &said["code"]),
        (&"exit_error".into(), &1.into())
    );
    let message = said["message"].as_str().unwrap();
    assert!(message.contains(text), "not '{text}': {message}");
    said["next"].as_str().unwrap_or_default().to_owned()
}

impl World {
    fn checksums(&self, what: impl AsRef<OsStr>, more: &[&str]) -> Ran {
        let mut arguments: Vec<OsString> = ["checksums", "--json"].map(OsString::from).into();
        arguments.extend(more.iter().map(OsString::from));
        arguments.push("--".into());
        arguments.push(what.as_ref().to_owned());
        self.run(&arguments)
    }

    /// The same, with only these folders searched for programs.
    fn checksums_in(&self, path: &str, what: &str, more: &[&str]) -> Ran {
        let mut command = self.command(&[&["checksums", "--json", what], more].concat());
        command.env("PATH", path);
        finish(what, command)
    }
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let world = World::new();
    let tree = world.tree();
    fs::write(tree.join("file"), "content").unwrap();
    fs::create_dir(tree.join("directory")).unwrap();
    run("mkfifo", &[tree.join("pipe").to_str().unwrap()]);
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    symlink("pipe", tree.join("link")).unwrap();
    fs::write(tree.join("closed"), "content").unwrap();
    fs::set_permissions(tree.join("closed"), PermissionsExt::from_mode(0o600)).unwrap();
    let file = tree.join("file");
    for (name, why) in [
        ("directory", "is a directory, not a regular file"),
        // The pipe has no writer, so opening it would block for ever.
        ("pipe", "is a pipe, not a regular file"),
        ("link", "is a pipe, not a regular file"),
        ("socket", "is a socket, not a regular file"),
        ("/dev/null", "is a device, not a regular file"),
        ("dangling", "No such file"),
        ("missing", "No such file"),
        ("", "No such file"),
    ] {
        let path = match name {
            "" => OsString::new(),
            name => tree.join(name).into(),
        };
        refused(world.checksums(&path, &[]), why);
        refused(world.checksums(&path, &["--against", file.to_str().unwrap()]), why);
        if !name.is_empty() {
            let mut moosefs = OsString::from("moosefs:");
            moosefs.push(&path);
            refused(world.checksums(moosefs, &["--store", tree.to_str().unwrap()]), why);
        }
    }
    // A missing folder would have none of the file's chunks.
    for what in ["moosefs", "casync"] {
        let what = format!("{what}:{}", file.display());
        for (store, why) in [("missing", "No such file"), ("file", "Not a directory")] {
            let store = tree.join(store);
            let said = format!("cannot read {}: {why}", store.display());
            refused(world.checksums(&what, &["--store", store.to_str().unwrap()]), &said);
        }
    }
    for list in ["casync", "recipe"] {
        for name in ["pipe", "directory", "/dev/null"] {
            let list = format!("{list}:{}", tree.join(name).display());
            refused(world.checksums(list, &[]), "not a regular file");
        }
    }
    let closed = tree.join("closed");
    let ran = world.run_as_user(&["checksums", "--json", closed.to_str().unwrap()]);
    refused(ran, "closed: Permission denied");
}

#[test]
fn checksums_refuses_unknown_addresses_and_lists_known_ones() {
    let world = World::new();
    for (address, scheme) in [
        ("foo://bar/baz", "'foo://'"),
        ("http://127.0.0.1/x", "'http://'"),
        ("S3://bucket/key", "'S3://'"),
        ("svn+ssh://x", "'svn+ssh://'"),
        ("file:///etc/passwd", "'file://'"),
    ] {
        let next = refused(world.checksums(address, &[]), scheme);
        for known in [
            "s3://, ",
            "seaweedfs://, ",
            "hdfs://, ",
            "webhdfs://, ",
            "ceph://, ",
            "casync: and recipe:",
        ] {
            assert!(next.contains(known), "not '{known}': {next}");
        }
        assert!(next.contains(&format!("./{address}")), "{next}");
        refused(world.checksums("file", &["--against", address]), "No such file");
        let next = refused(world.checksums(address, &["--against", "file"]), scheme);
        assert!(next.contains("casync:"), "{next}");
    }
    // These have one slash where two are needed.
    for (path, meant) in [
        ("hdfs:/x", " hdfs://;"),
        ("s3:bucket/key", " s3://;"),
        ("webhdfs:x", " webhdfs://;"),
    ] {
        let next = refused(world.checksums(path, &[]), "No such file");
        assert!(next.contains(meant), "{next}");
    }
    assert_eq!(refused(world.checksums("tree:/x", &[]), "No such file"), "");
    // These are wrong in another way.
    for (address, right) in [
        ("s3://bucket", "s3://BUCKET/KEY"),
        ("seaweedfs://host", "seaweedfs://HOST:PORT/PATH"),
        ("hdfs://host", "hdfs://[USER@]HOST[:PORT]/PATH"),
        ("ceph:///folder?pg=1.0", "ceph://FOLDER?pg=PG&object=NAME"),
    ] {
        refused(world.checksums(address, &[]), right);
    }
    // With an invalid port, no server at the default port is asked instead.
    for (address, port) in [
        ("seaweedfs://127.0.0.1:8888x/file", "8888x"),
        ("seaweedfs://[::1]:99999/file", "99999"),
        ("seaweedfs://127.0.0.1:/file", ""),
        ("hdfs://hdfs@127.0.0.1:75406/file", "75406"),
        ("hdfs://127.0.0.1:0/file", "0"),
    ] {
        refused(
            world.checksums(address, &[]),
            &format!(": '{port}' is not a valid port"),
        );
    }
    for address in ["seaweedfs://[::1]:1/file", "hdfs://127.0.0.1:1/file"] {
        refused(world.checksums(address, &[]), "cannot reach the ");
    }
}

/// Files may have names like addresses, or names that are not text.
#[test]
fn files_with_odd_names_are_told_under_their_names() {
    let Some(disk) = Disk::new("crc32c", 128, "") else {
        return;
    };
    let world = World::new();
    let reported = |path: &Path, argument: &[u8]| {
        let mut command = world.command(&["checksums", "--json", "--verify", "--"]);
        command.arg(OsStr::from_bytes(argument)).current_dir(path);
        finish("checksums", command).fine().line("summary")
    };
    let folder = disk.path();
    fs::create_dir(folder.join("foo:")).unwrap();
    let all = [
        "new\nline",
        "-dash",
        "./foo://bar",
        "./hdfs:x",
        "2026-11-27T12:00:00",
        " ",
        "\u{fc}",
    ];
    for name in all {
        fs::write(folder.join(name), "content ".repeat(2048)).unwrap();
        let said = reported(&folder, name.as_bytes());
        assert_eq!(
            (&said["path"], &said["verified"]["bytes"]),
            (&name.into(), &16_384.into())
        );
    }
    let odd = OsStr::from_bytes(b"\xfe\xff");
    fs::write(folder.join(odd), "content ".repeat(2048)).unwrap();
    let in_base64: Value = serde_json::json!({ "base64": "/v8=" });
    assert_eq!(reported(&folder, b"\xfe\xff")["path"], in_base64);
    let mut command = world.command(&["checksums", "--json", "--against"]);
    command.args([odd, odd]).current_dir(&folder);
    let said = finish("checksums", command).fine().line("summary");
    assert_eq!((&said["path"], &said["against"]), (&in_base64, &in_base64));
    // An empty file, a file that is one hole, and inline content.
    fs::write(folder.join("empty"), "").unwrap();
    assert_eq!(reported(&folder, b"empty")["len_bytes"], 0);
    fs::File::create(folder.join("hole"))
        .unwrap()
        .set_len(10 << 20)
        .unwrap();
    let said = reported(&folder, b"hole");
    assert_eq!(
        (&said["zero_bytes"], &said["verified"]["zero_bytes"]),
        (&(10 << 20).into(), &(10 << 20).into())
    );
    fs::write(folder.join("short"), "short").unwrap();
    assert_eq!(reported(&folder, b"short")["unknown"]["inline"], 5);
}

/// The error for a missing program names it, and says whether it exists.
#[test]
fn checksums_tells_missing_programs_from_closed_ones() {
    let world = World::new();
    let file = world.tree().join("file");
    fs::write(&file, "content").unwrap();
    let moosefs = format!("moosefs:{}", file.display());
    let folder = world.tree();
    let store = ["--store", folder.to_str().unwrap()];
    let asked = [
        ("mfsfileinfo", &moosefs[..], &store[..]),
        ("ceph-objectstore-tool", "ceph:///nowhere?pg=1.0&object=x", &[]),
    ];
    let there = world.path("there");
    fs::create_dir(&there).unwrap();
    for (name, what, more) in asked {
        refused(
            world.checksums_in("/nowhere", what, more),
            &format!("{name} is not installed, or not in PATH; install it"),
        );
        // Without any execute bit, not even root can run it.
        fs::write(there.join(name), "#!/bin/sh\necho it ran >&2\nexit 1\n").unwrap();
        let path = format!("/nowhere:{}", there.display());
        refused(
            world.checksums_in(&path, what, more),
            &format!("cannot run {name}: this user may not run {}/{name}", there.display()),
        );
        fs::set_permissions(there.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        refused(world.checksums_in(&path, what, more), "it ran");
    }
    // An ordinary user cannot see what is in root's folder.
    fs::set_permissions(&there, PermissionsExt::from_mode(0o700)).unwrap();
    let anybody = || {
        // This copies the program to a place where that user may run it.
        world.run_as_user(&["--version"]).fine();
        let mut command = Command::new(world.path("user/byteback"));
        command
            .args(["checksums", "--json", &moosefs])
            .args(store)
            .env_clear()
            .env("HOME", world.path("user"))
            .env("PATH", &there)
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::null());
        finish(&moosefs, command)
    };
    let closed = format!("cannot run mfsfileinfo: this user may not search {}", there.display());
    refused(anybody(), &closed);
    fs::set_permissions(&there, PermissionsExt::from_mode(0o755)).unwrap();
    refused(anybody(), "it ran");
}
