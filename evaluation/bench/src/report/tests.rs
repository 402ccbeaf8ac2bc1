use super::*;

fn results() -> Results {
    let samples = |values: [f64; 3]| BTreeMap::from([("time", values.into_iter().collect())]);
    Results::from([
        (OURS, samples([1.0, 2.0, 4.0])),
        ("rsync", samples([400.0, 300.0, 500.0])),
    ])
}

#[test]
fn goals_are_judged_by_medians() {
    let metric = |factor, peer| Metric {
        name: "time",
        unit: "s",
        goal: Some(Goal::TimesPeer(factor, peer)),
    };
    let met = |metric| record("image", "1 MiB", metric, &results()).unwrap().met;
    assert_eq!(met(metric(0.005, "rsync")), Some(true));
    assert_eq!(met(metric(0.004_99, "rsync")), Some(false));
    assert_eq!(met(metric(1.0, "absent")), Some(false));
    assert_eq!(
        met(Metric {
            name: "time",
            unit: "s",
            goal: None
        }),
        None
    );
    assert!(
        record(
            "image",
            "1 MiB",
            Metric {
                name: "bytes",
                unit: "B",
                goal: None
            },
            &results()
        )
        .is_none()
    );
}

#[test]
fn the_table_shows_medians_spreads_and_goals() {
    let metric = Metric {
        name: "time",
        unit: "s",
        goal: Some(Goal::TimesPeer(0.5, "rsync")),
    };
    let records = [record("image", "1 MiB", metric, &results()).unwrap()];
    let mut table = Vec::new();
    write_table(&mut table, &records).unwrap();
    assert_eq!(
        String::from_utf8(table).unwrap(),
        "case   metric    ours                 peers                    goal          met\n\
         1 MiB  time (s)  2.00 [1.00 .. 4.00]  rsync 400 [300 .. 500]  <= 0.5 x rsync  yes\n"
            .replace("goal          met", "goal            met")
            .replace("peers                    goal", "peers                   goal")
    );
}

#[test]
fn goals_of_the_best_peer_take_the_least_that_was_measured() {
    let goal = |at_most| Goal::TimesBest {
        factor: 1.5,
        peers: &["rsync", "xdelta3"],
        plus: 2.0,
        at_most,
    };
    let both = BTreeMap::from([("rsync", 10.0), ("xdelta3", 6.0), ("other", 1.0)]);
    let one = BTreeMap::from([("rsync", 10.0)]);
    assert_eq!(goal(None).limit(&both), Some(11.0));
    assert_eq!(goal(None).limit(&one), Some(17.0));
    assert_eq!(goal(Some(12.0)).limit(&one), Some(12.0));
    assert_eq!(goal(Some(12.0)).limit(&both), Some(11.0));
    assert_eq!(goal(Some(12.0)).limit(&BTreeMap::new()), None);
}
