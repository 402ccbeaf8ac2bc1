//! The disk of the log is full while programs write to the mount.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use byteback_host::random::SplitMix64;
use byteback_testkit::seed::{Draw, fresh_seed};
use byteback_testkit::waiting::settle;

use crate::disk::Disk;
use crate::rig::{Mode, Rig};
use crate::scene::{bound, fill, save, save_for_good};

/// Leaves no byte free on the disk at `point`.
fn fill_up(point: &Path) {
    let ballast = fs::File::options()
        .create(true)
        .append(true)
        .open(point.join("ballast"))
        .unwrap();
    let mut at = ballast.metadata().unwrap().len();
    for step in [64 << 10, 4096, 512, 1] {
        while ballast.write_all_at(&vec![1; step], at).is_ok() {
            at += step as u64;
        }
    }
}

/// Makes a change. It may be refused for lack of space, and was then not made, or only half of it.
fn change(tree: &Path, number: u64, random: &mut SplitMix64) -> Result<(), std::io::Error> {
    let file = format!("{}/file{}", ["one", "two"][random.index(2)], random.below(4));
    let fresh = tree.join(format!("one/fresh{}", random.below(6)));
    match random.below(5) {
        0 => fs::write(fresh, number.to_string()),
        1 => fs::remove_file(fresh).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }),
        _ => {
            let file = fs::File::options().write(true).open(tree.join(file))?;
            file.write_all_at(&number.to_le_bytes(), random.below(19_000))
        }
    }
}

#[test]
fn a_log_without_room_loses_nothing() {
    let mut random = SplitMix64::new(fresh_seed());
    let mut rig = Rig::new(Mode::Exact);
    let tree_was = rig.tree();
    // Outside the rig's directory, which is removed before the disk is unmounted.
    let beside = tempfile::Builder::new()
        .prefix("byteback-disk-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let point = beside.path().join("disk");
    // The state lies on the small disk, the folder does not.
    let _disk = Disk::memory(&point, 12_000);
    fs::create_dir(rig.directory().join("elsewhere")).unwrap();
    rig.move_client(&rig.directory().join("elsewhere"));
    fs::create_dir(point.join("state")).unwrap();
    std::os::unix::fs::symlink(point.join("state"), rig.state()).unwrap();
    assert_ne!(rig.tree(), tree_was);
    let mut rig = bound(rig);
    fill(&rig.tree());
    settle();
    rig.mount();
    save(&rig, "the first backup");
    let (mut done, mut refused) = (0, 0);
    for round in 0..4_u64 {
        fill_up(&point);
        for number in 0..40 {
            match change(&rig.tree(), round * 100 + number, &mut random) {
                Ok(()) => done += 1,
                Err(error) => {
                    let expected = matches!(error.raw_os_error(), Some(28 | 122));
                    assert!(expected, "round {round}: {error:?}");
                    refused += 1;
                }
            }
            if number % 10 == 3 {
                // If the backup fails, its message names the lack of space.
                let ran = rig.backup(None);
                let said = ran.stderr.to_lowercase();
                assert!(ran.status.success() || said.contains("space"), "{said}");
            }
        }
        if round % 2 == 1 {
            // Killed in that state, and started in it as well, which may be refused.
            rig.kill_daemon();
            rig.wait_until_free();
            let ran = rig.run(&["--json", "mount", rig.tree().to_str().unwrap()]);
            if ran.status.success() {
                rig.run(&["--json", "umount", rig.tree().to_str().unwrap()])
                    .succeeds("umount");
            } else {
                assert!(ran.stderr.to_lowercase().contains("space"), "{}", ran.stderr);
            }
        }
        fs::remove_file(point.join("ballast")).unwrap();
        if !rig.has_daemon() {
            rig.mount();
        }
        save_for_good(&rig, &format!("space again, round {round}"));
    }
    println!("{done} changes done, {refused} refused");
    rig.umount();
}
