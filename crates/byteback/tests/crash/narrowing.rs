//! The daemon is killed while a large file is being written: the next backup sends roughly the
//! differences, and is right.
//!
//! Measured in bytes. A file that was open when its daemon died is reported whole; without hashing,
//! all of it would be sent.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use byteback_host::random::noise;
use byteback_testkit::local_tree::{differences, seen};

use crate::rig::{Mode, Rig};

const FILE_BYTES: usize = 64 << 20;
const CHANGED_BYTES: usize = 200_000;

/// Kills the daemon after small writes to a large file, and returns the report of the next backup.
fn crash_and_back_up(with_checksums: bool) -> serde_json::Value {
    let mut rig = Rig::new(Mode::Exact);
    let url = rig.start_server("127.0.0.1:0");
    rig.init(&rig.tree(), &url, "folder");
    if with_checksums {
        let tree = rig.tree();
        rig.run(&["--json", "init", tree.to_str().unwrap(), "--block-checksums"])
            .succeeds("turning checksums on");
    }
    let path = rig.tree().join("image");
    fs::write(&path, noise(1, FILE_BYTES)).unwrap();
    rig.mount();
    rig.backup(None).succeeds("the first backup");
    let file = File::options().write(true).open(&path).unwrap();
    for piece in 0..4_u64 {
        let bytes = noise(10 + piece, CHANGED_BYTES / 4);
        file.write_all_at(&bytes, 5_000_000 + piece * 15_000_001).unwrap();
    }
    rig.kill_daemon();
    rig.wait_until_free();
    drop(file);
    rig.mount();
    let mut arguments = rig.backup_arguments(None);
    if !with_checksums {
        // Over this link, sending the whole file may be expected to be as fast.
        arguments.extend(["--delta", "rsync"].map(str::to_owned));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = rig.run(&arguments).succeeds("the backup after the crash");
    assert_eq!(report["whole"]["interrupted"], 1, "{report}");
    assert_eq!(report["examined_files"], 1, "{report}");
    let snapshot = report["snapshot_id"].as_u64().unwrap();
    let restored = rig.restore(snapshot, None);
    assert_eq!(
        differences(&seen(&rig.tree()), &seen(restored.path()), true),
        Vec::<String>::new()
    );
    let after = rig.backup(None).succeeds("the one after it");
    assert_eq!(after["changed_bytes"], 0, "{after}");
    rig.umount();
    report
}

fn number(report: &serde_json::Value, name: &str) -> u64 {
    report[name].as_u64().unwrap()
}

#[test]
fn after_a_crash_the_server_s_signature_narrows_a_large_file() {
    let report = crash_and_back_up(false);
    // Four places, each with up to two blocks of 8 KiB beside it.
    let literal = number(&report, "literal_bytes");
    assert!(literal <= (CHANGED_BYTES + 4 * 2 * 8192) as u64, "{report}");
    assert_eq!(number(&report, "hashed_bytes"), FILE_BYTES as u64);
    let sent = report["wire"]["sent"].as_u64().unwrap();
    assert!(sent < literal + 10_000, "{report}");
    let received = report["wire"]["received"].as_u64().unwrap();
    assert!(received < 8192 * 16, "the signature: {report}");
}

#[test]
fn after_a_crash_the_client_s_own_checksums_narrow_a_large_file() {
    let report = crash_and_back_up(true);
    let literal = number(&report, "literal_bytes");
    assert!(literal <= (CHANGED_BYTES + 4 * 2 * 4096) as u64, "{report}");
    let wire = &report["wire"];
    let total = wire["sent"].as_u64().unwrap() + wire["received"].as_u64().unwrap();
    assert!(total < literal + 15_000, "no signature: {report}");
}
