use std::cell::RefCell;

use super::*;

#[test]
fn contenders_rotate_equally_and_the_first_round_does_not_count() {
    let order = RefCell::new(Vec::new());
    let contender = |name: &'static str| {
        let order = &order;
        let mut runs = 0.0;
        Contender::new(name, move || {
            order.borrow_mut().push(name);
            runs += 1.0;
            Ok(Measures::from([("runs", runs)]))
        })
    };
    let results = alternate(3, &mut [contender("a"), contender("b")]).unwrap();
    assert_eq!(order.into_inner(), ["a", "b", "b", "a", "a", "b", "b", "a"]);
    for name in ["a", "b"] {
        assert_eq!(results[name]["runs"], [2.0, 3.0, 4.0].into_iter().collect());
    }
}

#[test]
fn a_run_that_fails_ends_it() {
    let result = alternate(3, &mut [Contender::new("a", || Err("no such program".into()))]);
    assert_eq!(result.unwrap_err().to_string(), "no such program");
}

#[test]
fn median_and_spread() {
    let samples: Samples = [3.0, 1.0, 2.0].into_iter().collect();
    assert_eq!(
        (samples.median(), samples.min(), samples.max(), samples.len()),
        (2.0, 1.0, 3.0, 3)
    );
    let samples: Samples = [4.0, 1.0, 2.0, 3.0].into_iter().collect();
    assert_eq!(samples.median(), 2.5);
    assert!(Samples::default().median().is_nan());
}
