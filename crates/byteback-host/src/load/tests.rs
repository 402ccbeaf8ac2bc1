use super::*;

#[test]
fn the_load_is_the_first_number() {
    assert_eq!(load_of("0.42 0.36 0.30 2/345 6789\n"), Some(0.42));
    for text in ["", "\n", "load", "-"] {
        assert_eq!(load_of(text), None, "{text:?}");
    }
}

#[test]
fn a_thread_shares_with_those_that_run() {
    assert_eq!(share(0.0, 2), Some(1.0));
    assert_eq!(share(1.0, 2), Some(1.0));
    assert_eq!(share(3.0, 2), Some(0.5));
    assert_eq!(share(0.0, 1), Some(1.0));
    for load in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(share(load, 2), None);
    }
}

#[test]
fn this_machine_tells() {
    let share = thread_share().unwrap();
    assert!(share > 0.0 && share <= 1.0, "{share}");
}
