use super::*;

#[test]
fn durations_stand_below_each_other() {
    let one = finished("a step", Duration::from_millis(1250));
    let other = finished("another one, with a longer title", Duration::from_millis(123_449));
    assert!(one.starts_with("  a step ..."), "{one}");
    assert!(one.ends_with("...   1.2 s"), "{one}");
    assert!(other.ends_with("... 123.4 s"), "{other}");
    assert_eq!(one.len(), other.len());
    let long = finished(&"x".repeat(100), Duration::ZERO);
    assert!(long.ends_with("x ..   0.0 s"), "{long}");
}

#[test]
fn the_end_of_a_step_can_become_known() {
    let step = Step(ProgressBar::hidden());
    step.reach(0, 0);
    assert_eq!(step.0.length(), None);
    step.reach(5, 20);
    assert_eq!((step.0.position(), step.0.length()), (5, Some(20)));
}
