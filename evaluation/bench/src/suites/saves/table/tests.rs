use super::super::{METRICS, goal};
use super::*;
use crate::suites::saves::contenders::{BACKUP, PUSH, RSYNC, XDELTA};

fn row(up_bytes: [u64; 4]) -> Row {
    let spent = |up_bytes| Spent {
        up_bytes,
        ..Spent::default()
    };
    let [backup, push, rsync, xdelta] = up_bytes.map(spent);
    Row {
        work: "document".to_owned(),
        saves: 2,
        files: 2,
        goal: goal(2, 2, None),
        spent: BTreeMap::from([(BACKUP, backup), (PUSH, push), (RSYNC, rsync), (XDELTA, xdelta)]),
    }
}

fn written(rows: &[Row], metric: usize) -> String {
    let mut out = Vec::new();
    write_markdown(&mut out, &[BACKUP, PUSH, RSYNC, XDELTA], rows, &METRICS[metric]).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn table_marks_values_of_ours_that_miss_the_goal() {
    // 1.3 x 100 + 2 x 2.048 KB are allowed.
    let expected = "**up** (KB)\n\n\
         | work | saves, files | backup | push | rsync | xdelta3 | goal |\n\
         |---|---|---|---|---|---|---|\n\
         | document | 2, 2 | 134 | **135** | 200 | 100 | 134 |\n\n";
    assert_eq!(written(&[row([134_000, 135_000, 200_000, 100_000])], 0), expected);
}

#[test]
fn table_of_a_metric_without_goal_marks_nothing() {
    let expected = "**down** (KB)\n\n\
         | work | saves, files | backup | push | rsync | xdelta3 |\n\
         |---|---|---|---|---|---|\n\
         | document | 2, 2 | 0.00 | 0.00 | 0.00 | 0.00 |\n\n";
    assert_eq!(written(&[row([1, 2, 3, 4])], 1), expected);
}

#[test]
fn table_without_peers_meets_no_goal() {
    let mut row = row([1000, 1000, 0, 0]);
    row.spent.retain(|name, _| COMMANDS.contains(name));
    assert!(written(&[row], 0).contains("| document | 2, 2 | **1.00** | **1.00** |  |  |  |\n"));
}
