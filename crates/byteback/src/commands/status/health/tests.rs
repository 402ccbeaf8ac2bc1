//! The health of folders.

use super::*;

const NOW_NS: i64 = 1_000_000_000_000;

/// A folder in sync, without any problem.
fn in_sync() -> SyncStatus {
    SyncStatus {
        is_connected: true,
        heard_at_ns: Some(NOW_NS - 1),
        ..SyncStatus::default()
    }
}

fn of_changed(change: impl FnOnce(&mut SyncStatus)) -> (Health, String) {
    let mut sync = in_sync();
    change(&mut sync);
    let mut found = Vec::new();
    of_sync(&sync, NOW_NS, &mut found);
    let health = found.iter().map(|(health, _)| *health).max().unwrap_or(Health::Fine);
    let reasons: Vec<String> = found.into_iter().map(|(_, why)| why).collect();
    (health, reasons.join("; "))
}

#[test]
fn a_folder_in_sync_is_fine() {
    assert_eq!(of_changed(|_| {}), (Health::Fine, String::new()));
}

#[test]
fn what_is_on_its_way_makes_a_folder_behind() {
    let changes: [fn(&mut SyncStatus); 8] = [
        |sync| sync.waiting_nodes = 1,
        |sync| sync.groups_in_flight = 1,
        |sync| sync.is_folded = true,
        |sync| sync.receiving = Some(byteback_control::SyncReceiving::default()),
        |sync| sync.is_connected = false,
        |sync| sync.heard_at_ns = None,
        |sync| sync.heard_at_ns = Some(NOW_NS - 40_000_000_000),
        |sync| sync.paused_since_ns = Some(NOW_NS),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let (health, why) = of_changed(change);
        assert_eq!(health, Health::Behind, "{index}");
        assert!(!why.is_empty(), "{index}");
    }
}

#[test]
fn what_stays_wrong_needs_attention() {
    let changes: [fn(&mut SyncStatus); 6] = [
        |sync| sync.has_ended = true,
        |sync| sync.held_nodes = 1,
        // The list may be shorter than the count.
        |sync| sync.left_out_names = 1,
        |sync| sync.needs_attention = true,
        |sync| sync.unsaved_files = 1,
        |sync| {
            sync.conflicts.push(byteback_control::SyncConflict {
                path: byteback_model::ByteString::from(&b"a"[..]),
                copy: byteback_model::ByteString::from(&b"b"[..]),
                at_ns: 0,
                set: None,
            })
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert_eq!(of_changed(change).0, Health::Attention, "{index}");
    }
}

#[test]
fn a_server_that_froze_is_noticed_by_its_silence() {
    let mut sync = in_sync();
    let heard_at_ns = NOW_NS - 16_000_000_000;
    sync.heard_at_ns = Some(heard_at_ns);
    assert_eq!(silence(&sync, NOW_NS), Silence::No, "a sign of life may be this late");
    let later_ns = NOW_NS + 10_000_000_000;
    assert_eq!(silence(&sync, later_ns), Silence::Since(heard_at_ns));
    sync.is_connected = false;
    assert_eq!(silence(&sync, later_ns), Silence::NotConnected);
}
