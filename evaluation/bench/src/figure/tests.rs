use super::*;

#[test]
fn a_figure_is_a_markdown_table_of_medians_with_their_spread() {
    let samples: Samples = [3.0, 1.0, 2.0].into_iter().collect();
    let mut panel = Panel::new("Time", "size", "ms", &["ours", "theirs"]);
    panel.push("1 KiB", vec![Some(Cell::from(&samples)), None]);
    let figure = Figure {
        id: "f",
        title: "A figure".into(),
        about: "How.".into(),
        panels: vec![panel],
    };
    let mut text = Vec::new();
    figure.write_markdown(&mut text).unwrap();
    let expected = "### A figure\n\nHow.\n\n**Time** (ms)\n\n| size | ours | theirs |\n|---|---|---|\n\
        | 1 KiB | 2.00 (1.00 to 3.00) |  |\n\n";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[test]
fn a_goal_is_met_by_the_median() {
    let samples: Samples = [0.90, 0.99, 0.96].into_iter().collect();
    let goal = |limit| GoalRow::new("speed", "", limit, Cell::from(&samples));
    assert!(goal(Limit::AtLeast(0.95)).is_met());
    assert!(!goal(Limit::AtLeast(0.97)).is_met());
    assert!(goal(Limit::AtMost(0.96)).is_met());
    // A goal that cannot be measured is not met.
    assert!(!GoalRow::new("speed", "", Limit::AtMost(1.0), f64::NAN).is_met());
}
