use super::*;

#[test]
fn the_rate_is_that_of_long_bodies_and_follows_the_link() {
    let meter = LinkMeter::default();
    assert_eq!((meter.bytes_per_s(), meter.round_trip_ns()), (None, None));
    meter.sent(TIMED_LEN_MIN - 1, 1);
    assert_eq!(meter.bytes_per_s(), None);
    meter.sent(10_000_000, 1_000_000_000);
    assert_eq!(meter.bytes_per_s(), Some(10_000_000));
    // The link became ten times as fast: after some hundred megabytes the old rate is forgotten.
    for _ in 0..40 {
        meter.sent(16_000_000, 160_000_000);
    }
    let rate = meter.bytes_per_s().unwrap();
    assert!((98_000_000..=100_000_000).contains(&rate), "{rate}");
}

#[test]
fn a_round_trip_is_the_shortest_one() {
    let meter = LinkMeter::default();
    for ns in [5, 3, 9] {
        meter.answered(ns);
    }
    assert_eq!(meter.round_trip_ns(), Some(3));
}

#[test]
fn clocks_that_stand_still_or_run_wild_divide_nothing_by_zero() {
    let meter = LinkMeter::default();
    meter.sent(u64::MAX, 0);
    assert!(meter.bytes_per_s().unwrap() > 1 << 40);
    meter.sent(u64::MAX, u64::MAX);
    assert!(meter.bytes_per_s().is_some());
}
