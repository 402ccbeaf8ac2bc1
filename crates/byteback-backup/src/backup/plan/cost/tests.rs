use super::*;

const ALL: [DeltaMethod; 7] = [
    DeltaMethod::Full,
    DeltaMethod::Rsync,
    DeltaMethod::Hash,
    DeltaMethod::Webr,
    DeltaMethod::Cdc,
    DeltaMethod::SkyF,
    DeltaMethod::SkyC,
];
const WAYS: [DeltaMethod; 4] = [
    DeltaMethod::Full,
    DeltaMethod::Rsync,
    DeltaMethod::Webr,
    DeltaMethod::Cdc,
];

fn file(size_bytes: u64, changed_share: f64) -> FileFacts {
    FileFacts {
        size_bytes,
        changed_share,
        base_bytes: size_bytes,
    }
}

fn megabits(per_s: u64) -> Conditions {
    Conditions {
        link_bytes_per_s: per_s * 125_000,
        ..Conditions::default()
    }
}

#[test]
fn a_file_of_which_little_is_kept_is_sent_whole() {
    let chosen = cheapest(WAYS, &file(100 << 20, 1.0), &megabits(100));
    assert_eq!(chosen, Some(DeltaMethod::Full));
    let chosen = cheapest(WAYS, &file(100 << 20, 0.2), &megabits(100));
    assert_ne!(chosen, Some(DeltaMethod::Full));
}

#[test]
fn a_far_server_is_asked_less() {
    let near = Conditions {
        round_trip_ns: 100_000,
        ..megabits(100)
    };
    let far = Conditions {
        round_trip_ns: 200_000_000,
        ..megabits(100)
    };
    let of_a_megabyte = file(1 << 20, 0.1);
    assert_ne!(cheapest(WAYS, &of_a_megabyte, &near), Some(DeltaMethod::Full));
    assert_eq!(cheapest(WAYS, &of_a_megabyte, &far), Some(DeltaMethod::Full));
}

#[test]
fn a_busy_client_leaves_the_search_to_the_server() {
    let busy = Conditions {
        processor_share: 0.05,
        ..megabits(100)
    };
    let methods = [DeltaMethod::Rsync, DeltaMethod::Webr];
    let large = file(100 << 20, 0.3);
    assert_eq!(cheapest(methods, &large, &busy), Some(DeltaMethod::Webr));
    assert_eq!(cheapest(methods, &large, &megabits(100)), Some(DeltaMethod::Rsync));
}

/// A signature comes down, checksums of all blocks go up: with equal work, the way up is spared.
#[test]
fn checksums_come_down_rather_than_go_up() {
    let fast_link = Conditions {
        link_bytes_per_s: u64::MAX,
        round_trip_ns: 100_000,
        processor_share: 0.6,
    };
    let methods = [DeltaMethod::Webr, DeltaMethod::Rsync];
    for saved in [file(2 << 20, 0.001), file(11 << 20, 0.01), file(100 << 20, 0.001)] {
        assert_eq!(cheapest(methods, &saved, &fast_link), Some(DeltaMethod::Rsync));
        assert_eq!(cheapest(methods, &saved, &megabits(100)), Some(DeltaMethod::Rsync));
    }
}

/// Bad guesses (they come from records and measurements that may be damaged) still lead to one of
/// the methods asked about.
#[test]
fn nonsense_gets_an_answer() {
    let shares = [-1.0, 0.0, 0.5, 2.0, f64::NAN, f64::INFINITY];
    for size in [0, 1, u64::MAX] {
        for share in shares {
            for link_bytes_per_s in [0, 1, u64::MAX] {
                let conditions = Conditions {
                    link_bytes_per_s,
                    round_trip_ns: u64::MAX,
                    processor_share: share,
                };
                assert!(cheapest(ALL, &file(size, share), &conditions).is_some());
            }
        }
    }
    assert_eq!(cheapest([], &file(1, 0.0), &Conditions::default()), None);
}
