use super::*;

fn at(link_bytes_per_s: u64, processor_share: f64) -> Effort {
    effort(&Conditions {
        link_bytes_per_s,
        processor_share,
        ..Conditions::default()
    })
}

#[test]
fn effort_follows_link_speed_and_is_thorough_where_it_is_slow() {
    for (mbit_per_s, expected) in [
        (1, Effort::Thorough),
        (10, Effort::Thorough),
        (20, Effort::Standard),
        (100, Effort::Standard),
        (200, Effort::Standard),
        (400, Effort::Fast),
        (1000, Effort::Fast),
        (10_000, Effort::Fast),
        (80_000, Effort::Fast),
    ] {
        assert_eq!(at(mbit_per_s * 125_000, 1.0), expected, "{mbit_per_s} Mbit/s");
    }
    // Without any measurement.
    assert_eq!(effort(&Conditions::default()), Effort::Standard);
    assert_eq!([at(0, 1.0), at(u64::MAX, 1.0)], [Effort::Thorough, Effort::Fast]);
}

#[test]
fn a_busy_machine_works_less_but_not_at_the_cost_of_a_slow_link() {
    assert_eq!(at(12_500_000, 0.25), Effort::Fast);
    assert_eq!(at(2_500_000, 0.25), Effort::Standard);
    assert_eq!(at(1_000_000, 0.25), Effort::Standard);
    let by_work = |effort| Effort::ALL.iter().position(|known| *known == effort);
    for link in [1, 1000, 1 << 20, 1 << 24, 1 << 28, 1 << 40] {
        for share in [-1.0, 0.0, 0.1, 0.5, 1.0, 7.0, f64::INFINITY] {
            // More of the processor, or less of the link, never means less work.
            assert!(by_work(at(link, share)) <= by_work(at(link, 1.0)));
            assert!(by_work(at(link, share)) >= by_work(at(link * 2, share)));
        }
    }
}
