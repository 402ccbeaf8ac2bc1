//! The tree was changed, replaced or restored by other programs while it was not mounted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use byteback_host::random::noise;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::settle;

use crate::disk::Disk;
use crate::rig::{Mode, Rig};
use crate::scene::{bound, change_unseen, fill, save, save_for_good, scene, set_time, write_at};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Mounts, works a little, saves that, and unmounts.
fn work(rig: &mut Rig) {
    rig.mount();
    save(rig, "the first backup");
    let tree = rig.tree();
    write_at(&tree.join("large"), 1000, b"through the mount");
    fs::remove_file(tree.join("one/file1")).unwrap();
    fs::write(tree.join("one/new"), noise(5, 3000)).unwrap();
    // Same size; the time will again be that of the older copy.
    change_unseen(&tree.join("two/file2"), 50, b"later");
    save(rig, "the second backup");
    rig.umount();
}

#[test]
fn changes_of_a_folder_that_is_not_mounted_are_found() {
    let mut rig = scene();
    work(&mut rig);
    let tree = rig.tree();
    change_unseen(&tree.join("large"), 200_000, b"by somebody else");
    fs::rename(tree.join("two/file0"), tree.join("one/file0")).unwrap();
    fs::write(tree.join("two/file3"), b"").unwrap();
    rig.mount();
    let summary = save_for_good(&rig, "after changes without a mount");
    // The file that was renamed by itself has a new change time too.
    assert_eq!(summary["whole"]["untracked"], 3, "{summary}");
    rig.umount();
}

#[test]
fn backup_saves_a_tree_restored_over_the_tracked_one_as_it_is() {
    for tool in ["rsync", "rsync in place", "cp", "tar"] {
        let mut rig = scene();
        let tree = rig.tree();
        let older = rig.directory().join("elder");
        run("cp", &["-a", text(&tree), text(&older)]);
        work(&mut rig);
        let (from, to) = (format!("{}/", older.display()), format!("{}/", tree.display()));
        match tool {
            "rsync" => run("rsync", &["-aH", "--delete", &from, &to]),
            "rsync in place" => run("rsync", &["-aH", "--inplace", "--ignore-times", &from, &to]),
            "cp" => run("cp", &["-a", "-T", text(&older), text(&tree)]),
            _ => {
                let archive = rig.directory().join("elder.tar");
                run("tar", &["-C", text(&older), "-cf", text(&archive), "."]);
                run("tar", &["-C", text(&tree), "-xpf", text(&archive)])
            }
        };
        rig.mount();
        save_for_good(&rig, tool);
        rig.umount();
    }
}

#[test]
fn directories_that_changed_places_are_saved_as_they_are() {
    let mut rig = scene();
    let tree = rig.tree();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    // The names, sizes and times inside are the same.
    fs::rename(tree.join("one"), tree.join("between")).unwrap();
    fs::rename(tree.join("two"), tree.join("one")).unwrap();
    fs::rename(tree.join("between"), tree.join("two")).unwrap();
    rig.mount();
    let summary = save_for_good(&rig, "directories exchanged");
    assert_eq!(summary["read_bytes"], 0, "a rename costs nothing: {summary}");
    rig.umount();

    // The folder itself changes places with another one, which was a copy of it.
    let other = rig.directory().join("other");
    run("cp", &["-a", text(&tree), text(&other)]);
    change_unseen(&other.join("one/file2"), 7, b"in the copy");
    rustix::fs::renameat_with(
        rustix::fs::CWD,
        &other,
        rustix::fs::CWD,
        &tree,
        rustix::fs::RenameFlags::EXCHANGE,
    )
    .unwrap();
    rig.mount();
    save_for_good(&rig, "the folder itself exchanged");
    rig.umount();
}

#[test]
fn new_file_with_an_old_inode_size_and_time_is_another_file() {
    let mut rig = scene();
    let path = rig.tree().join("one/file0");
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    let old = fs::metadata(&path).unwrap();
    let mut reused = false;
    for attempt in 0..200 {
        fs::remove_file(&path).unwrap();
        fs::write(&path, noise(1000 + attempt, 20_000)).unwrap();
        set_time(&path, old.mtime(), old.mtime_nsec());
        reused = fs::metadata(&path).unwrap().ino() == old.ino();
        if reused {
            break;
        }
    }
    println!("the number was used again: {reused}");
    rig.mount();
    save_for_good(&rig, "a new file in place of an old one");
    rig.umount();
}

#[test]
fn a_snapshot_put_in_place_of_the_folder_is_saved_as_it_is() {
    let mut rig = Rig::new(Mode::Exact);
    let point = rig.directory().join("disk");
    let _disk = Disk::image(&point, 256, &["mkfs.btrfs", "-q"]);
    rig.move_client(&point);
    let tree = rig.tree();
    fs::remove_dir(&tree).unwrap();
    run("btrfs", &["subvolume", "create", text(&tree)]);
    let mut rig = bound(rig);
    fill(&tree);
    settle();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    let snapshot = point.join("snapshot");
    run("btrfs", &["subvolume", "snapshot", text(&tree), text(&snapshot)]);
    work(&mut rig);
    // Inodes, birth times and times are those of the folder as it was.
    fs::rename(&tree, point.join("aside")).unwrap();
    fs::rename(&snapshot, &tree).unwrap();
    rig.mount();
    save_for_good(&rig, "a snapshot in place of the folder");
    change_unseen(&tree.join("large"), 5, b"and on");
    save_for_good(&rig, "work on the snapshot");
    rig.umount();

    // And by way of a stream, which makes new inodes.
    run(
        "btrfs",
        &["subvolume", "snapshot", "-r", text(&tree), text(&point.join("sent"))],
    );
    let stream = rig.directory().join("stream");
    run("btrfs", &["send", "-q", "-f", text(&stream), text(&point.join("sent"))]);
    fs::create_dir(point.join("received")).unwrap();
    run(
        "btrfs",
        &["receive", "-f", text(&stream), text(&point.join("received"))],
    );
    run(
        "btrfs",
        &[
            "property",
            "set",
            "-f",
            "-ts",
            text(&point.join("received/sent")),
            "ro",
            "false",
        ],
    );
    change_unseen(&point.join("received/sent/large"), 77, b"received");
    fs::rename(&tree, point.join("aside2")).unwrap();
    fs::rename(point.join("received/sent"), &tree).unwrap();
    rig.mount();
    save_for_good(&rig, "a received snapshot in place of the folder");
    rig.umount();
}

/// The times on the disk come from a clock that was ahead by a day and is right again; then from
/// one that was behind.
#[test]
fn times_of_a_clock_that_was_wrong_hide_nothing() {
    let mut rig = Rig::new(Mode::Exact);
    let point = rig.directory().join("disk");
    let disk = Disk::image(&point, 64, &["mkfs.ext4", "-q", "-F"]);
    rig.move_client(&point);
    let mut rig = bound(rig);
    fill(&rig.tree());
    settle();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    for days in [1, -1] {
        disk.while_not_mounted(|image| {
            let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
            let time = i64::try_from(seconds).unwrap() + days * 86_400;
            for file in ["large", "one/file0", "two/file3", "one"] {
                for field in ["ctime", "mtime"] {
                    let command = format!("sif /tree/{file} {field} @{time}");
                    run("debugfs", &["-w", "-R", &command, text(image)]);
                }
            }
        });
        for round in 0..3_u8 {
            change_unseen(&rig.tree().join("large"), 9000, &[round; 5]);
            if round == 1 {
                rig.mount();
            }
            save(&rig, &format!("{days} days, round {round}"));
            change_unseen(&rig.tree().join("one/file0"), 40, &[round + 100; 5]);
            if round == 2 {
                rig.umount();
            }
        }
        save(&rig, "in the end");
    }
}
