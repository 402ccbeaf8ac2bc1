//! Clocks: the real ones move, the simulated one moves only when told.

use std::time::Duration;

use super::{Clock, RealClock, SimClock};

#[test]
fn the_real_clocks_move_forward_through_a_sleep() {
    let clock = RealClock;
    let (wall, mono) = (clock.now_ns(), clock.monotonic_ns());
    clock.sleep(Duration::from_millis(3));
    assert!(clock.monotonic_ns() - mono >= 3_000_000);
    assert!(
        wall > 1_600_000_000_000_000_000,
        "the machine's clock is before 2020: {wall}"
    );
}

#[test]
fn the_simulated_clock_moves_only_when_told() {
    let clock = SimClock::new(-5);
    assert_eq!((clock.now_ns(), clock.monotonic_ns()), (-5, 0));
    clock.sleep(Duration::from_nanos(12));
    assert_eq!((clock.now_ns(), clock.monotonic_ns()), (7, 12));
    clock.set_wall_ns(3);
    assert_eq!(
        (clock.now_ns(), clock.monotonic_ns()),
        (3, 12),
        "a set-back wall clock leaves the monotonic one alone"
    );
    clock.advance(Duration::MAX);
    assert_eq!(clock.monotonic_ns(), u64::MAX, "saturates instead of wrapping");
}
