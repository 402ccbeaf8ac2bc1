//! The simulator itself is tested: it must be able to break what is wrong, never break what is
//! right, and do both again from the same seed.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use super::*;
use crate::durable::conformance;
use crate::errno_of;

fn contents(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    disk.set_short_reads(false);
    let file = disk.open(name, OpenMode::Existing).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(0, &mut bytes).unwrap();
    Some(bytes)
}

/// A disk with a durable file `f` of `bytes`.
fn disk_with(bytes: &[u8]) -> (SimDisk, Arc<dyn DurableFile>) {
    let disk = SimDisk::new(1);
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.write_all_at(0, bytes).unwrap();
    file.sync_data().unwrap();
    disk.sync().unwrap();
    (disk, file)
}

#[test]
fn the_simulated_disk_keeps_the_contract() {
    conformance::contract(&SimDisk::new(7));
    conformance::contract(&*SimDisk::new(7).subdir("below").unwrap());
}

#[test]
fn the_simulated_disk_agrees_with_the_model() {
    for seed in 0..40 {
        conformance::random_operations(&SimDisk::new(seed), seed, 1000);
    }
}

#[test]
fn the_same_seeds_leave_the_same_disk() {
    let run = |seed| {
        let disk = SimDisk::new(3);
        conformance::random_operations(&disk, 5, 503);
        for name in disk.list().unwrap() {
            disk.open(&name, OpenMode::Existing)
                .unwrap()
                .write_all_at(100, &[7; 5000])
                .unwrap();
        }
        let after = disk.crash(seed);
        let bytes: Vec<_> = after
            .list()
            .unwrap()
            .into_iter()
            .map(|name| (contents(&after, &name), name))
            .collect();
        (disk.counters(), bytes)
    };
    assert_eq!(run(11), run(11));
    let different: BTreeSet<_> = (0..50).map(|seed| run(seed).1).collect();
    assert!(different.len() > 5, "{} different survivors of 50", different.len());
}

#[test]
fn sim_disk_keeps_synced_bytes_in_every_crash() {
    for seed in 0..2000 {
        let (disk, file) = disk_with(&[1; 3000]);
        file.write_all_at(1000, &[2; 1000]).unwrap();
        file.sync_data().unwrap();
        disk.open("unsynced", OpenMode::CreateNew).unwrap();
        let after = disk.crash(seed);
        let bytes = contents(&after, "f").unwrap();
        assert_eq!(bytes.len(), 3000);
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(i, b)| *b == if (1000..2000).contains(&i) { 2 } else { 1 }),
            "{seed}"
        );
        let names = after.list().unwrap();
        let again = after.crash(seed + 1);
        assert_eq!(contents(&again, "f").unwrap(), bytes, "what came back is durable");
        assert_eq!(again.list().unwrap(), names);
    }
}

#[test]
fn canary_unsynced_writes_are_lost_kept_torn_and_reordered() {
    let (mut lost, mut kept, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..500 {
        let (disk, file) = disk_with(&[0; 4096]);
        file.write_all_at(0, &[1; 2048]).unwrap();
        file.write_all_at(2048, &[2; 2048]).unwrap();
        let bytes = contents(&disk.crash(seed), "f").unwrap();
        assert_eq!(bytes.len(), 4096);
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| byte == &sector[0]), "a sector is whole");
        }
        let first = bytes[..2048].iter().filter(|byte| **byte == 1).count();
        let second = bytes[2048..].iter().filter(|byte| **byte == 2).count();
        lost += u32::from(first + second == 0);
        kept += u32::from(first + second == 4096);
        torn += u32::from(!matches!(first, 0 | 2048));
        reordered += u32::from(first == 0 && second > 0);
    }
    assert!(
        lost > 20 && kept > 20 && torn > 50 && reordered > 5,
        "{lost} {kept} {torn} {reordered}"
    );
}

#[test]
fn canary_a_sector_may_show_any_of_the_writes_to_it() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let (disk, file) = disk_with(&[0; 512]);
        for value in 1..=4 {
            file.write_all_at(0, &[value; 512]).unwrap();
        }
        seen.insert(contents(&disk.crash(seed), "f").unwrap()[0]);
    }
    assert_eq!(seen, (0..=4).collect());
}

#[test]
fn canary_names_are_lost_and_kept_in_any_combination() {
    let mut seen = BTreeSet::new();
    for seed in 0..500 {
        let disk = SimDisk::new(1);
        for name in ["a", "b", "c"] {
            disk.open(name, OpenMode::CreateNew).unwrap().sync_data().unwrap();
        }
        seen.insert(disk.crash(seed).list().unwrap().concat());
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn operations_that_share_a_name_keep_their_order() {
    // Rotating a log: at no time may the old bytes be gone from both names.
    for seed in 0..2000 {
        let (disk, _file) = disk_with(b"old");
        disk.rename("f", "f.1").unwrap();
        disk.open("f", OpenMode::CreateNew).unwrap();
        let after = disk.crash(seed);
        let (new, rotated) = (contents(&after, "f"), contents(&after, "f.1"));
        assert!(
            new.as_deref() == Some(b"old") || rotated.as_deref() == Some(b"old"),
            "{seed}: {new:?} {rotated:?}"
        );
        assert!(!(new.is_none() && rotated.is_none()));
    }
}

#[test]
fn sim_disk_lengths_are_of_some_moment_and_cut_bytes_stay_gone() {
    let (mut shorter, mut longer) = (0, 0);
    for seed in 0..3000 {
        let (disk, file) = disk_with(&[1; 2000]);
        file.set_len(700).unwrap();
        file.set_len(1500).unwrap();
        let bytes = contents(&disk.crash(seed), "f").unwrap();
        match bytes.len() {
            2000 => assert!(bytes.iter().all(|byte| *byte == 1), "{seed}: nothing happened yet"),
            700 => shorter += 1,
            1500 => {
                longer += 1;
                assert!(bytes[700..].iter().all(|byte| *byte == 0), "{seed}: bytes came back");
            }
            other => panic!("{seed}: a length that never was: {other}"),
        }
        assert!(bytes[..700].iter().all(|byte| *byte == 1), "{seed}");
    }
    assert!(shorter > 100 && longer > 100, "{shorter} {longer}");
}

#[test]
fn a_growing_write_may_stop_anywhere_and_leave_zeros() {
    let mut lengths = BTreeSet::new();
    let mut zeros = 0;
    for seed in 0..1000 {
        let (disk, file) = disk_with(&[1; 100]);
        file.write_all_at(100, &[2; 5000]).unwrap();
        let bytes = contents(&disk.crash(seed), "f").unwrap();
        assert!(bytes[..100].iter().all(|byte| *byte == 1));
        assert!(bytes[100..].iter().all(|byte| matches!(byte, 0 | 2)));
        zeros += u32::from(bytes[100..].contains(&0));
        lengths.insert(bytes.len());
    }
    assert!(
        lengths.contains(&100) && lengths.contains(&5100) && lengths.len() > 6,
        "{lengths:?}"
    );
    assert!(zeros > 100, "{zeros}");
}

/// Replaces `f` through a temporary file; the sync of the file, which many programs forget, is
/// optional.
fn replace(disk: &SimDisk, bytes: &[u8], sync_file: bool) -> io::Result<()> {
    let file = disk.open("f.tmp", OpenMode::CreateIfMissing)?;
    file.set_len(0)?;
    file.write_all_at(0, bytes)?;
    if sync_file {
        file.sync_data()?;
    }
    disk.rename("f.tmp", "f")?;
    disk.sync()
}

#[test]
fn a_rename_without_a_file_sync_breaks_and_with_one_never_does() {
    let broken = |sync_file| {
        let mut broken = 0;
        for seed in 0..500 {
            for nth in 1..=4 {
                for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
                    let (disk, _) = disk_with(&[1; 3000]);
                    disk.crash_at_sync(disk.counters().syncs + nth, phase);
                    let done =
                        replace(&disk, &[2; 4000], sync_file).and_then(|()| replace(&disk, &[3; 2000], sync_file));
                    let bytes = contents(&disk.recover(seed), "f");
                    let legal: &[&[u8]] = match &done {
                        Ok(()) => &[&[3; 2000]],
                        Err(error) => {
                            assert!(is_power_cut(error), "{error}");
                            &[&[1; 3000], &[2; 4000], &[3; 2000]]
                        }
                    };
                    broken += u32::from(!bytes.as_ref().is_some_and(|bytes| legal.contains(&bytes.as_slice())));
                }
            }
        }
        broken
    };
    assert_eq!(broken(true), 0);
    let without = broken(false);
    assert!(
        without > 100,
        "the forgotten sync was noticed in {without} of 6000 crashes"
    );
}

#[test]
fn a_power_cut_at_a_sync_is_heard_and_final() {
    for (phase, made_durable) in [
        (CrashPhase::Before, false),
        (CrashPhase::Middle, false),
        (CrashPhase::After, true),
    ] {
        let (disk, file) = disk_with(&[1; 2048]);
        file.write_all_at(0, &[2; 2048]).unwrap();
        disk.crash_at_sync(3, phase);
        assert!(is_power_cut(&file.sync_data().unwrap_err()));
        assert!(disk.is_cut());
        for error in [
            file.len().unwrap_err(),
            file.read_at(0, &mut [0]).unwrap_err(),
            file.write_all_at(0, b"x").unwrap_err(),
            file.set_len(0).unwrap_err(),
            file.allocate(1).unwrap_err(),
            file.sync_data().unwrap_err(),
            disk.sync().unwrap_err(),
            disk.list().unwrap_err(),
            disk.rename("f", "g").unwrap_err(),
            disk.remove("f").unwrap_err(),
            disk.subdir("d").unwrap_err(),
            disk.open("f", OpenMode::Existing).unwrap_err(),
        ] {
            assert!(is_power_cut(&error), "{error}");
        }
        let mut new_sectors = BTreeSet::new();
        for seed in 0..100 {
            let after = disk.recover(seed);
            assert!(!after.is_cut());
            assert_eq!(after.counters(), Counters::default());
            new_sectors.insert(contents(&after, "f").unwrap().iter().filter(|byte| **byte == 2).count() / 512);
        }
        if made_durable {
            assert_eq!(new_sectors, [4].into());
        } else {
            assert_eq!(new_sectors.len(), 5, "{phase:?}: {new_sectors:?}");
        }
    }
}

#[test]
fn a_power_cut_at_an_operation_leaves_it_undone() {
    for nth in 1..20 {
        let disk = SimDisk::new(0);
        disk.crash_at_op(nth);
        let mut done = 0;
        let result = (0..20).try_for_each(|i| {
            disk.open(&format!("{i:02}"), OpenMode::CreateNew)?;
            done += 1;
            Ok::<_, io::Error>(())
        });
        assert!(is_power_cut(&result.unwrap_err()));
        assert_eq!(done, nth - 1);
        assert!((0..50).all(|seed| disk.recover(seed).list().unwrap().len() as u64 <= done));
    }
}

#[test]
fn sim_disk_loses_a_synced_file_in_an_unsynced_directory() {
    let gone = (0..200)
        .filter(|seed| {
            let disk = SimDisk::new(0);
            let sub = disk.subdir("sub").unwrap();
            let file = sub.open("f", OpenMode::CreateNew).unwrap();
            file.write_all_at(0, b"x").unwrap();
            file.sync_data().unwrap();
            sub.sync().unwrap();
            let after = disk.crash(*seed);
            let kept = !after.list().unwrap().is_empty();
            assert!(!kept || after.subdir("sub").unwrap().list().unwrap() == ["f"], "{seed}");
            !kept
        })
        .count();
    assert!((40..160).contains(&gone), "{gone}");
}

#[test]
fn a_full_disk_takes_what_fits_and_says_so() {
    let (disk, file) = disk_with(&[1; 1000]);
    disk.set_capacity(2000);
    let other = disk.open("other", OpenMode::CreateNew).unwrap();
    other.write_all_at(0, &[2; 700]).unwrap();
    let error = other.write_all_at(700, &[3; 700]).unwrap_err();
    assert_eq!(
        (error.kind(), errno_of(&error)),
        (ErrorKind::StorageFull, Some(rustix::io::Errno::NOSPC.raw_os_error()))
    );
    assert_eq!(other.len().unwrap(), 1000);
    assert_eq!(other.allocate(5000).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(other.set_len(1001).unwrap_err().kind(), ErrorKind::StorageFull);
    file.write_all_at(0, &[4; 1000]).unwrap();
    disk.remove("other").unwrap();
    file.write_all_at(1000, &[5; 1000]).unwrap();
    assert!(!is_power_cut(&error));
}

#[test]
fn a_failed_operation_fails_once_and_does_nothing() {
    let (disk, file) = disk_with(&[1; 10]);
    disk.fail_op(disk.counters().ops + 2, rustix::io::Errno::IO.raw_os_error());
    file.write_all_at(0, &[2; 5]).unwrap();
    let error = file.write_all_at(5, &[3; 5]).unwrap_err();
    assert_eq!(errno_of(&error), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(contents(&disk, "f").unwrap(), [2, 2, 2, 2, 2, 1, 1, 1, 1, 1]);
    file.write_all_at(5, &[3; 5]).unwrap();
}

#[test]
fn sim_disk_sync_after_a_failed_one_succeeds_without_lost_bytes() {
    let mut lost = 0;
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        file.write_all_at(0, &[1; 4096]).unwrap();
        file.sync_data().unwrap();
        disk.sync().unwrap();
        file.write_all_at(0, &[2; 4096]).unwrap();
        disk.fail_op(disk.counters().ops + 1, rustix::io::Errno::IO.raw_os_error());
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(
            contents(&disk, "f").unwrap(),
            [2; 4096],
            "the program still sees what it wrote"
        );
        lost += u32::from(contents(&disk.crash(0), "f").unwrap() != [2; 4096]);
    }
    assert!(lost > 100, "{lost}");
}

#[test]
fn reads_fall_short_but_never_lie() {
    let bytes: Vec<u8> = (0..200).collect();
    let (disk, file) = disk_with(&bytes);
    let mut lengths = BTreeSet::new();
    for _ in 0..500 {
        let mut buf = [0; 100];
        let n = file.read_at(50, &mut buf).unwrap();
        assert_eq!(buf[..n], bytes[50..50 + n]);
        lengths.insert(n);
    }
    assert!(
        lengths.len() > 20 && !lengths.contains(&0) && lengths.contains(&100),
        "{lengths:?}"
    );
    disk.set_short_reads(false);
    assert!((0..100).all(|_| file.read_at(50, &mut [0; 100]).unwrap() == 100));
}

#[test]
fn counters_count() {
    let (disk, file) = disk_with(&[1; 10]);
    file.read_exact_at(0, &mut [0; 4]).unwrap();
    file.allocate(30).unwrap();
    let counted = disk.counters();
    assert_eq!((counted.syncs, counted.reads, counted.writes), (2, 1, 2));
    assert_eq!((counted.bytes_read, counted.bytes_written, counted.ops), (4, 30, 6));
}

#[test]
fn sim_disk_sectors_survive_as_of_some_moment_since_the_sync() {
    for seed in 0..400 {
        let (disk, file) = disk_with(&[1; 1500]);
        let mut random = crate::random::SplitMix64::new(seed);
        let mut moments = vec![contents(&disk, "f").unwrap()];
        for value in 2..2 + random.below(12) as u8 {
            let at = random.below(4000);
            match random.below(4) {
                0 => file.set_len(at).unwrap(),
                1 if value > 8 => {
                    file.sync_data().unwrap();
                    moments.clear();
                }
                _ => file
                    .write_all_at(at, &vec![value; random.below(1500) as usize])
                    .unwrap(),
            }
            moments.push(contents(&disk, "f").unwrap());
        }
        for crash in 0..20 {
            let bytes = contents(&disk.recover(crash), "f").unwrap();
            let lengths = moments.iter().map(Vec::len);
            assert!(
                bytes.len().is_multiple_of(512) || lengths.clone().any(|len| len == bytes.len()),
                "seed {seed}.{crash}"
            );
            assert!(lengths.max().unwrap() >= bytes.len());
            for (i, sector) in bytes.chunks(512).enumerate() {
                let possible = moments.iter().any(|moment| {
                    let at_that_moment = moment.iter().skip(i * 512).chain(std::iter::repeat(&0));
                    sector
                        .iter()
                        .zip(at_that_moment)
                        .all(|(survived, then)| survived == then)
                });
                assert!(possible, "seed {seed}.{crash}: sector {i} shows what it never was");
            }
        }
    }
}
