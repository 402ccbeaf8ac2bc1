//! The moments before the server commits, and between the commit and the client's learning of it:
//! whichever process dies there, the batch is neither lost nor applied twice.

use std::fs;
use std::time::Duration;

use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::wire::{Held, Wire};
use rustix::process::{Signal, pidfd_send_signal};

use crate::rig::{Mode, Rig};

/// The processes that die in that moment. The connection is cut in any case.
#[derive(Clone, Copy, Default)]
struct Deaths {
    command: bool,
    daemon: bool,
    server: bool,
}

const PIECE_BYTES: usize = 5000;

fn die_after_the_commit(deaths: Deaths) {
    let mut rig = Rig::new(Mode::Exact);
    rig.start_server("127.0.0.1:0");
    let address = rig.server_address();
    let wire = Wire::start(&address);
    let repository = format!("{}/folder", wire.url());
    rig.init(&rig.tree(), wire.url(), "folder");
    let file = rig.tree().join("file");
    fs::write(&file, vec![b'0'; 20 * PIECE_BYTES]).unwrap();
    rig.mount();
    let first = rig.backup(None).succeeds("the first backup");
    let change = |number: usize, byte: u8| {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&file).unwrap();
        file.write_all_at(&vec![byte; PIECE_BYTES], (number * PIECE_BYTES) as u64)
            .unwrap();
    };
    change(3, b'1');
    fs::write(rig.tree().join("new"), b"made before the second backup").unwrap();
    let at_the_commit = seen(&rig.tree());

    let armed = wire.arm(Held::Answer);
    let arguments = rig.backup_arguments(None);
    let mut second = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        armed.wait_for_it(Duration::from_secs(30)),
        "the server has not committed anything"
    );
    if deaths.command {
        second.kill();
    }
    if deaths.daemon {
        rig.kill_daemon();
    }
    if deaths.server {
        rig.kill_server();
    }
    drop(armed);
    if deaths.server {
        // At another address, so that the old server's silence is not taken for an answer.
        rig.start_server("127.0.0.1:0");
        wire.pass_on_to(&rig.server_address());
    }
    let second = second.wait();
    if deaths.command {
        assert!(!second.status.success());
    }
    if deaths.daemon {
        rig.wait_until_free();
        rig.mount();
    }

    // The server's content is complete, whether the client was told or not.
    let committed = rig.snapshot_ids(&repository);
    assert_eq!(committed.len(), 2, "snapshots {committed:?}");
    let restored = rig.restore(committed[1], None);
    let found = differences(&at_the_commit, &seen(restored.path()), true);
    assert!(found.is_empty(), "the committed snapshot: {found:#?}");

    change(7, b'2');
    let third = rig.backup(None).succeeds("the backup after it");
    let restored = rig.restore(third["snapshot_id"].as_u64().unwrap(), None);
    let found = differences(&seen(&rig.tree()), &seen(restored.path()), true);
    assert!(found.is_empty(), "the snapshot after it: {found:#?}");
    assert_eq!(rig.snapshot_ids(&repository).len(), 3);
    let seq = |summary: &serde_json::Value| summary["seq"].as_u64().unwrap();
    assert_eq!(seq(&third), seq(&first) + 2, "a batch was applied twice: {third}");
    if !deaths.daemon {
        // The mark has moved past the committed changes. (A daemon's memory dies with it: a file
        // that was open is sent whole.)
        assert_eq!(third["changed_bytes"].as_u64(), Some(PIECE_BYTES as u64), "{third}");
        assert_eq!(third["files_new"], 0, "{third}");
    }
    rig.umount();
}

#[test]
fn a_cut_wire_after_the_commit() {
    die_after_the_commit(Deaths::default());
}

#[test]
fn the_command_dies_after_the_commit() {
    die_after_the_commit(Deaths {
        command: true,
        ..Deaths::default()
    });
}

#[test]
fn the_daemon_dies_after_the_commit() {
    die_after_the_commit(Deaths {
        daemon: true,
        ..Deaths::default()
    });
}

#[test]
fn the_server_dies_after_the_commit() {
    die_after_the_commit(Deaths {
        server: true,
        ..Deaths::default()
    });
}

#[test]
fn all_die_after_the_commit() {
    die_after_the_commit(Deaths {
        command: true,
        daemon: true,
        server: true,
    });
}

/// The server dies before it has seen the batch, and the user does not wait for its return: nothing
/// counts as saved.
#[test]
fn the_server_dies_before_the_commit() {
    let mut rig = Rig::new(Mode::Exact);
    rig.start_server("127.0.0.1:0");
    let wire = Wire::start(&rig.server_address());
    rig.init(&rig.tree(), wire.url(), "folder");
    fs::write(rig.tree().join("file"), b"before").unwrap();
    rig.mount();
    let first = rig.backup(None).succeeds("the first backup");
    fs::write(rig.tree().join("file"), b"after").unwrap();
    fs::write(rig.tree().join("new"), b"made before the second backup").unwrap();

    let armed = wire.arm(Held::Request);
    let arguments = rig.backup_arguments(None);
    let second = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(armed.wait_for_it(Duration::from_secs(30)), "no batch was sent");
    rig.kill_server();
    drop(armed);
    std::thread::sleep(Duration::from_millis(300));
    pidfd_send_signal(second.handle(), Signal::INT).unwrap();
    let second = second.wait();
    assert!(!second.status.success(), "{}", second.stdout);

    rig.start_server("127.0.0.1:0");
    wire.pass_on_to(&rig.server_address());
    let third = rig.backup(None).succeeds("the backup after it");
    let restored = rig.restore(third["snapshot_id"].as_u64().unwrap(), None);
    let found = differences(&seen(&rig.tree()), &seen(restored.path()), true);
    assert!(found.is_empty(), "the snapshot after it: {found:#?}");
    assert_eq!(
        third["seq"].as_u64(),
        first["seq"].as_u64().map(|seq| seq + 1),
        "{third}"
    );
    rig.umount();
}
