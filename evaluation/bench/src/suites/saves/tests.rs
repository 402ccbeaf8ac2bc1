use super::*;
use crate::suites::saves::contenders::{BACKUP, RSYNC, SYNC, XDELTA};

fn spent(up_bytes: u64) -> Spent {
    Spent {
        client_cpu_s: 0.5,
        server_cpu_s: 0.25,
        up_bytes,
        down_bytes: 10,
    }
}

fn row(at_most_kb: Option<f64>) -> Row {
    Row {
        work: "document".to_owned(),
        saves: 3,
        files: 5,
        goal: goal(3, 5, at_most_kb),
        spent: BTreeMap::from([
            (BACKUP, spent(140_000)),
            (SYNC, spent(141_000)),
            (RSYNC, spent(100_000)),
            (XDELTA, spent(200_000)),
        ]),
    }
}

#[test]
fn records_are_one_for_each_command_and_metric() {
    let records = of_row(&row(None));
    let cases: Vec<(&str, &str)> = records
        .iter()
        .map(|record| (record.case.as_str(), record.metric))
        .collect();
    assert_eq!(cases.len(), 2 * METRICS.len());
    assert_eq!(cases[0], ("document: backup", "up"));
    assert_eq!(cases[METRICS.len()], ("document: sync", "up"));
    // 1.3 x 100 + 5 x 2.048 KB.
    assert_eq!((records[0].ours, records[0].met), (140.0, Some(true)));
    assert_eq!(records[METRICS.len()].met, Some(false));
    assert_eq!(records[1].goal, None);
    assert_eq!(records[0].peers, BTreeMap::from([(RSYNC, 100.0), (XDELTA, 200.0)]));
}

#[test]
fn absolute_goals_hold_beside_the_relative_one() {
    let met = |limit| of_row(&row(Some(limit)))[0].met;
    assert_eq!(met(139.0), Some(false));
    assert_eq!(met(140.0), Some(true));
    let of_sync = &of_row(&row(Some(1000.0)))[METRICS.len()];
    assert_eq!(of_sync.met, Some(false), "the relative goal is the lower one");
}

#[test]
fn names_are_meant_by_any_text_or_by_none() {
    let texts = ["doc".to_owned(), "cp".to_owned()];
    assert!(is_meant(&texts, "document") && is_meant(&texts, "cp --reflink=auto"));
    assert!(!is_meant(&texts, "insertion"));
    assert!(is_meant(&[], "insertion"));
}
