use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};

use super::noted::{Body, FILE};
use super::*;

fn limit(during: Option<(u16, u16)>, bytes_per_second_max: Option<u64>) -> RateLimit {
    RateLimit {
        during: during.map(|(from, to)| PartOfDay::new(from, to).unwrap()),
        bytes_per_second_max,
    }
}

fn random_wish(random: &mut SplitMix64) -> Wish {
    let limits = (0..random.below(5)).map(|_| {
        let part = PartOfDay::new(random.below(1440) as u16, random.below(1441) as u16);
        RateLimit {
            during: part.filter(|_| random.coin()),
            bytes_per_second_max: [None, Some(0), Some(random.below(1 << 40))][random.below(3) as usize],
        }
    });
    let limits = RateLimits(limits.collect());
    Wish {
        paused_since_ns: random.coin().then_some(random.below(1 << 60) as i64),
        limits,
    }
}

/// A day laid out minute by minute.
#[test]
fn throttle_limit_at_each_minute_matches_a_table_of_the_day() {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(1);
    println!("BYTEBACK_SEED={seed}");
    let mut random = SplitMix64::new(seed);
    for _ in 0..200 {
        let wish = random_wish(&mut random);
        let mut table = [None; MINUTES_PER_DAY as usize];
        for limit in wish.limits.0.iter().filter(|limit| limit.during.is_none()) {
            table = [limit.bytes_per_second_max; MINUTES_PER_DAY as usize];
        }
        for limit in &wish.limits.0 {
            let Some(during) = limit.during else { continue };
            let mut minute = during.from_minute;
            while minute != during.to_minute % MINUTES_PER_DAY {
                table[minute as usize] = limit.bytes_per_second_max;
                minute = (minute + 1) % MINUTES_PER_DAY;
            }
        }
        for minute in 0..MINUTES_PER_DAY {
            let throttle = Throttle::new(
                Wish {
                    paused_since_ns: None,
                    limits: wish.limits.clone(),
                },
                move || minute,
            );
            assert_eq!(
                throttle.bytes_per_second_max(),
                table[minute as usize],
                "{minute}: {wish:?}"
            );
            throttle.set(Wish {
                paused_since_ns: Some(1),
                limits: wish.limits.clone(),
            });
            assert_eq!(throttle.bytes_per_second_max(), Some(0), "paused");
        }
    }
}

#[test]
fn a_part_of_a_day_is_one() {
    for (from, to) in [(5, 5), (1440, 5), (5, 1441), (0, 0)] {
        assert_eq!(PartOfDay::new(from, to), None);
    }
    assert_eq!(PartOfDay::new(8 * 60, 18 * 60 + 5).unwrap().to_string(), "08:00-18:05");
    assert_eq!(PartOfDay::new(22 * 60, 1440).unwrap().to_string(), "22:00-24:00");
}

#[test]
fn golden_bytes_of_version_1_and_any_flipped_bit() {
    let wish = Wish {
        paused_since_ns: Some(7),
        limits: RateLimits(vec![limit(None, Some(1 << 20)), limit(Some((480, 1080)), None)]),
    };
    let bytes = FILE.bytes_of(&wish.body()).unwrap();
    let read = |bytes: &[u8]| FILE.body_of::<Body>(bytes).map_err(NotedError::from).and_then(Wish::of);
    let golden = concat!(
        r#"{"version":1,"paused_since_ns":7,"limits":[{"during":null,"bytes_per_second_max":1048576},"#,
        r#"{"during":{"from_minute":480,"to_minute":1080},"bytes_per_second_max":null}],"crc32c":"#
    );
    assert!(
        bytes.starts_with(golden.as_bytes()),
        "{}",
        String::from_utf8_lossy(&bytes)
    );
    assert_eq!(read(&bytes).unwrap(), wish);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        read(&damaged).unwrap_err();
    }
    for len in 0..bytes.len() {
        read(&bytes[..len]).unwrap_err();
    }
    // Whole, and still not ours.
    let wrong = RateLimit {
        during: Some(PartOfDay {
            from_minute: 9,
            to_minute: 9,
        }),
        bytes_per_second_max: None,
    };
    let wish = Wish {
        paused_since_ns: None,
        limits: RateLimits(vec![wrong]),
    };
    read(&FILE.bytes_of(&wish.body()).unwrap()).unwrap_err();
}

#[test]
fn throttle_is_the_old_or_the_new_after_a_power_cut() {
    let wishes = [
        Wish::default(),
        Wish {
            paused_since_ns: Some(1),
            limits: RateLimits(vec![limit(None, Some(9000))]),
        },
    ];
    let work = |disk: &SimDisk| {
        wishes[0].write(disk)?;
        wishes[1].write(disk)
    };
    let trial = SimDisk::new(0);
    work(&trial).unwrap();
    for nth in 1..=trial.counters().syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(0);
            disk.crash_at_sync(nth, phase);
            assert!(work(&disk).is_err());
            for survivor in 0..20 {
                let disk = disk.recover(survivor);
                assert!(wishes.contains(&Wish::read(&disk).unwrap()));
                work(&disk).unwrap();
                assert_eq!(Wish::read(&disk).unwrap(), wishes[1]);
            }
        }
    }
}
