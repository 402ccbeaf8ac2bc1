use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::alternate::{Results, Samples};
use crate::figure::{Figure, GoalRow, Limit, Panel};
use crate::report::{Goal, Metric, record};

fn written(suite: &str, figures: &[Measured]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("figures.json");
    write(&path, suite, figures).unwrap();
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn records_become_figures_of_each_contender() {
    let samples = |values: [f64; 3]| BTreeMap::from([("time", values.into_iter().collect::<Samples>())]);
    let results = Results::from([
        (OURS, samples([1.0, 2.0, 4.0])),
        ("rsync", samples([400.0, 300.0, 500.0])),
    ]);
    let metric = Metric {
        name: "time",
        unit: "s",
        goal: Some(Goal::TimesPeer(0.5, "rsync")),
    };
    let records = [record("image", "1 MiB", metric, &results).unwrap()];
    assert_eq!(
        written("image", &of_records(&records)),
        json!({"version": 1, "suite": "image", "figures": [
            {"case": "1 MiB", "metric": "time", "unit": "s", "contender": "byteback",
             "median": 2.0, "min": 1.0, "max": 4.0, "runs": 3, "goal": "<= 0.5 x rsync", "met": true},
            {"case": "1 MiB", "metric": "time", "unit": "s", "contender": "rsync",
             "median": 400.0, "min": 300.0, "max": 500.0, "runs": 3, "goal": null, "met": null},
        ]})
    );
}

#[test]
fn findings_become_figures_with_their_goals() {
    let mut panel = Panel::new("Time", "size", "ms", &["ours", "theirs"]);
    panel.push("1 KiB", vec![Some(Cell::from(2.0)), None]);
    let findings = Findings {
        figures: vec![Figure {
            id: "f7",
            title: "A figure".into(),
            about: "How.".into(),
            panels: vec![panel],
        }],
        goals: vec![
            GoalRow::new("speed", "ms", Limit::AtMost(1.5), 2.0),
            GoalRow::new("gain", "", Limit::AtLeast(2.0), f64::NAN),
        ],
    };
    let figures = &written("solfs", &of_findings(&findings))["figures"];
    assert_eq!(figures[0]["case"], "f7: size 1 KiB");
    assert_eq!((&figures[0]["goal"], &figures[0]["met"]), (&json!(null), &json!(null)));
    assert_eq!(
        (&figures[1]["goal"], &figures[1]["met"]),
        (&json!("<= 1.50"), &json!(false))
    );
    assert_eq!(
        (&figures[2]["goal"], &figures[2]["median"], &figures[2]["met"]),
        (&json!(">= 2.00"), &json!(null), &json!(false)),
        "what could not be measured is not met"
    );
    assert_eq!(figures.as_array().unwrap().len(), 3);
}
