use super::*;

#[test]
fn a_linear_axis_has_few_round_ticks_and_room_for_all() {
    for largest in [0.003, 0.99, 1.0, 7.3, 41.0, 99.0, 12_345.0] {
        let axis = Axis::over(&[largest, largest / 3.0], false);
        let ticks = axis.ticks();
        assert!((4..=12).contains(&ticks.len()), "{largest}: {ticks:?}");
        assert!(axis.place(largest) <= 1.0 && axis.place(largest) > 0.6, "{largest}");
        assert_eq!(axis.place(0.0), 0.0);
    }
}

#[test]
fn a_logarithmic_axis_spans_whole_decades() {
    let axis = Axis::over(&[0.02, 300.0, 0.0], true);
    assert_eq!(axis, Axis::Decades { first: -2, last: 3 });
    assert_eq!(axis.place(0.0), 0.0, "nothing has no logarithm");
    assert!(Axis::over(&[5.0], true).ticks().len() >= 2);
}

#[test]
fn ticks_are_told_short() {
    assert_eq!(
        [0.0, 0.25, 1000.0, 1_250_000.0].map(axis::label),
        ["0", "0.25", "1,000", "1,250,000"]
    );
}

#[test]
fn every_value_has_its_mark_and_names_are_escaped() {
    let mut panel =
        Panel::new("Time < all", "size", "ms", &["ours & more", "paper"]).drawn_as(Chart::Bars { logarithmic: true });
    panel.push("1 KiB", vec![Some(Cell::from(2.0)), Some(Cell::from(9.0))]);
    panel.push("1 MiB", vec![Some(Cell::from(3.0)), None]);
    let text = svg(&panel).unwrap();
    // One for each value, beside two of the legend and the background.
    assert_eq!(text.matches("<rect").count(), 3 + 2 + 1);
    assert!(
        text.contains("Time &lt; all") && text.contains("ours &amp; more") && text.contains(PAPER_COLOUR),
        "{text}"
    );
    assert!(svg(&Panel::new("", "", "", &["a"]).drawn_as(Chart::Stacks)).is_none());
}
