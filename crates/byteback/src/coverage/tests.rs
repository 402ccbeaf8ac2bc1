//! Ledgers and the coverage that they mean.

use super::*;

fn ledger(events: &[(i64, LedgerEvent)]) -> Vec<LedgerEntry> {
    events
        .iter()
        .map(|(at_ns, event)| LedgerEntry {
            at_ns: *at_ns,
            event: event.clone(),
        })
        .collect()
}

#[test]
fn a_mount_without_interruption_has_no_gap() {
    let coverage = Coverage::of(&ledger(&[
        (1, LedgerEvent::Created),
        (2, LedgerEvent::UntrackedChanges { files: 9, names: 9 }),
        (3, LedgerEvent::TrackingBegan),
    ]));
    assert_eq!(
        coverage,
        Coverage {
            tracked_since_ns: Some(3),
            gaps: Vec::new()
        }
    );
}

#[test]
fn each_gap_has_its_cause_and_what_was_found() {
    let coverage = Coverage::of(&ledger(&[
        (1, LedgerEvent::TrackingBegan),
        (2, LedgerEvent::TrackingEnded),
        (3, LedgerEvent::UntrackedChanges { files: 1, names: 0 }),
        (4, LedgerEvent::UntrackedChanges { files: 1, names: 2 }),
        (5, LedgerEvent::TrackingBegan),
        (8, LedgerEvent::Interrupted { open_files: 3 }),
        (9, LedgerEvent::TrackingBegan),
        (10, LedgerEvent::TrackingEnded),
    ]));
    assert_eq!(coverage.tracked_since_ns, None);
    let [unmounted, interrupted, last] = coverage.gaps.as_slice() else {
        panic!("{:?}", coverage.gaps)
    };
    assert_eq!(
        (unmounted.from_ns, unmounted.to_ns, unmounted.cause),
        (2, Some(5), Cause::NotMounted)
    );
    assert!(
        unmounted
            .words()
            .ends_with("not mounted; found changed: 2 files and 2 names"),
        "{}",
        unmounted.words()
    );
    assert_eq!((interrupted.from_ns, interrupted.to_ns), (8, Some(9)));
    assert!(
        interrupted
            .words()
            .contains("3 files were being changed, to be read in full; nothing else")
    );
    assert_eq!((last.from_ns, last.to_ns), (10, None));
    assert!(last.words().starts_with("since "), "{}", last.words());
}
