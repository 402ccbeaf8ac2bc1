//! `explain` and `backup --delta`: how a change was found, and why in that way.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use byteback_host::random::noise;
use byteback_testkit::local_tree::{differences, seen};

use crate::world::World;

#[test]
fn each_way_is_told_with_its_reason() {
    let world = World::mounted();
    let path = world.tree().join("image");
    let first = noise(1, 300_000);
    fs::write(&path, &first).unwrap();
    let name = path.to_str().unwrap();
    world
        .run(&["explain", name])
        .ends_with(1)
        .says("there is no record of how")
        .says("byteback changes");
    world.backup();
    world
        .run(&["explain", name])
        .fine()
        .says("the whole file was sent")
        .says("the server had no version of it");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let mut at = 0;
    let mut write = || {
        at += 10_000;
        // Every byte differs: rewriting the same bytes is no change.
        let other: Vec<u8> = first[at as usize..][..1000].iter().map(|byte| !byte).collect();
        file.write_all_at(&other, at).unwrap();
    };
    write();
    world.backup();
    world
        .run(&["explain", name])
        .fine()
        .says("recorded as changed were sent")
        .says("the log knew which bytes had been written")
        .says("hashed   nothing")
        .says("sent     1000 B");
    for (delta, how, literal_max) in [
        ("rsync", "rolling checksums", 3000),
        ("hash", "hashes of its blocks", 3000),
        ("webr", "the server searched its version", 3000),
        // Chunks have up to 12 KiB.
        ("cdc", "cut into content-defined chunks", 1000 + 3 * 12 * 1024),
        // Blocks have 4 KiB.
        ("sky-f", "(SkySync-F)", 1000 + 2 * 4096),
        ("sky-c", "(SkySync-C)", 1000 + 3 * 12 * 1024),
        ("full", "the whole file", 300_000),
    ] {
        write();
        world.on_tree("backup", &["--delta", delta]).fine();
        world
            .run(&["explain", name])
            .fine()
            .says(how)
            .says("it was requested with --delta");
        let decision = world.run(&["explain", "--json", name]).fine().line("decision");
        assert_eq!(decision["method"], delta.replace('-', "_"));
        assert_eq!(decision["changed_bytes"], 1000);
        let literal_bytes = decision["literal_bytes"].as_u64().unwrap();
        assert!((1000..=literal_max).contains(&literal_bytes), "{decision}");
        world.assert_restores("latest");
    }
    // An unmounted change, which the log does not see.
    drop(file);
    world.on_tree("umount", &[]).fine();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"untracked", 5).unwrap();
    drop(file);
    world.backup();
    // The cheapest method here depends on the link and the machine.
    world
        .run(&["explain", name])
        .fine()
        .says("it had changed while the folder was not mounted");
    world.assert_restores("latest");
    let gone = world.tree().join("gone");
    world
        .run(&["explain", gone.to_str().unwrap()])
        .ends_with(1)
        .says("does not exist in");
    world
        .on_tree("explain", &[])
        .ends_with(1)
        .says("is a tracked folder, not a file in one");
    world
        .run(&["backup", "--delta", "magic", "."])
        .ends_with(2)
        .says("rsync");
}

/// As on a newly installed machine: the folder is there, but no state of it.
#[test]
fn a_folder_whose_state_is_gone_costs_what_differs_and_says_so() {
    const LEN: usize = 50 << 20;
    let world = World::served();
    let tree = world.tree();
    let image = tree.join("images/disk");
    fs::create_dir(tree.join("images")).unwrap();
    fs::write(&image, noise(1, LEN)).unwrap();
    fs::write(tree.join("images/same"), noise(2, 3 << 20)).unwrap();
    fs::write(tree.join("small"), noise(3, 5000)).unwrap();
    world.backup();
    let before = seen(&tree);
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&noise(4, 1 << 20), 20_000_001).unwrap();
    drop(file);
    fs::remove_dir_all(world.path("home/state")).unwrap();
    world.on_tree("init", &["-r", &world.repository()]).ends_with(0);
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let report = ran.line("summary");
    assert!(report["everything_because"].is_string(), "{report}");
    assert_eq!(report["followed_files"], 3, "{report}");
    let changed = 1 << 20..(1 << 20) + 40_000_u64;
    for field in ["literal_bytes", "stored_bytes"] {
        let bytes = report[field].as_u64().unwrap();
        assert!(changed.contains(&bytes), "{field}: {report}");
    }
    // This includes a signature of 50 MB, which one side or the other sends.
    let wire = |way: &str| report["wire"][way].as_u64().unwrap();
    assert!(wire("sent") + wire("received") < (1 << 20) + 200_000, "{report}");
    world
        .run(&["explain", image.to_str().unwrap()])
        .fine()
        .says("the server had a file at this path");
    // The cheapest method depends on the link and the machine.
    let decision = world
        .run(&["explain", "--json", image.to_str().unwrap()])
        .fine()
        .line("decision");
    assert_eq!(decision["cause"], "same_path", "{decision}");
    assert!(
        decision["method"] != "full" && decision["fallback"].is_null(),
        "{decision}"
    );
    world
        .run(&["explain", tree.join("small").to_str().unwrap()])
        .fine()
        .says("the server had a file at this path");
    world.assert_restores("latest");
    let old = world.restore("latest~1");
    let differing = differences(&before, &seen(&old), true);
    assert!(differing.is_empty(), "{differing:#?}");
    world.about_tree("verify", &[]).fine();
    // From now on the log knows the folder again.
    fs::write(tree.join("small"), "other").unwrap();
    let report = world.backup();
    assert_eq!(report["everything_because"], serde_json::Value::Null, "{report}");
}

/// Two copies, one of which was sent to the server without a log.
#[test]
fn first_backup_into_a_pushed_folder_costs_only_what_differs() {
    let world = World::served();
    let tree = world.tree();
    fs::create_dir(tree.join("images")).unwrap();
    fs::write(tree.join("images/disk"), noise(1, 8 << 20)).unwrap();
    let pushed = format!("{}/pushed", world.url());
    world.run(&["push", tree.to_str().unwrap(), &pushed]).ends_with(0);
    let other = world.path("other");
    fs::create_dir_all(other.join("images")).unwrap();
    let mut bytes = noise(1, 8 << 20);
    bytes.splice(1_000_003..1_000_003, noise(2, 1000));
    fs::write(other.join("images/disk"), bytes).unwrap();
    let other = other.to_str().unwrap();
    world.run(&["init", "-r", &pushed, other]).ends_with(0);
    let report = world.run(&["backup", "--json", other]).ends_with(0).line("summary");
    assert_eq!(report["followed_files"], 1, "{report}");
    assert!(report["literal_bytes"].as_u64().unwrap() < 20_000, "{report}");
    let target = world.path("back");
    let target = target.to_str().unwrap();
    world
        .run(&["restore", "latest", "--target", target, "--dir", other])
        .fine();
    let differing = differences(&seen(&world.path("other")), &seen(&world.path("back")), true);
    assert!(differing.is_empty(), "{differing:#?}");
}

/// As editors and office programs save: the new version under another name, then a rename.
#[test]
fn document_saved_by_a_rename_costs_its_change() {
    let world = World::mounted();
    let tree = world.tree();
    let [document, temporary] = ["document", ".document.tmp"].map(|name| tree.join(name));
    let mut bytes = noise(1, 8 << 20);
    fs::write(&document, &bytes).unwrap();
    world.backup();
    for save in 0..3 {
        bytes.splice(3_000_000..3_000_000, noise(2 + save, 5000));
        fs::write(&temporary, &bytes).unwrap();
        fs::rename(&temporary, &document).unwrap();
    }
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let report = ran.line("summary");
    assert_eq!(report["followed_files"], 1, "{report}");
    let literal_bytes = report["literal_bytes"].as_u64().unwrap();
    assert!((15_000..40_000).contains(&literal_bytes), "{report}");
    let name = document.to_str().unwrap();
    let decision = world.run(&["explain", "--json", name]).fine().line("decision");
    assert_eq!(decision["cause"], "replaced", "{decision}");
    world
        .run(&["explain", name])
        .fine()
        .says("replaced a file that the server has");
    world.assert_restores("latest");
}

/// A mail is taken out of a mailbox in place: all that follows is written anew.
#[test]
fn removal_in_place_costs_its_change() {
    let world = World::mounted();
    let mailbox = world.tree().join("mailbox");
    let mut bytes = noise(1, 5 << 20);
    fs::write(&mailbox, &bytes).unwrap();
    world.backup();
    bytes.drain(2_000_000..2_020_000);
    let file = File::options().write(true).open(&mailbox).unwrap();
    file.write_all_at(&bytes[2_000_000..], 2_000_000).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    drop(file);
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let literal_bytes = ran.line("summary")["literal_bytes"].as_u64().unwrap();
    assert!(literal_bytes < 10_000, "{literal_bytes}");
    let name = mailbox.to_str().unwrap();
    let decision = world.run(&["explain", "--json", name]).fine().line("decision");
    // The mount still has what was overwritten.
    assert_eq!(decision["method"], "log_compared", "{decision}");
    let explained = world.run(&["explain", name]).fine();
    explained.says("were compared with what programs overwrote");
    world.assert_restores("latest");
}

/// Far more pieces than a file of the paper's log has ranges (SolFS, section 3.2.1).
#[test]
fn scattered_pieces_cost_themselves_and_no_more() {
    const PIECES: u64 = 12_000;
    let world = World::mounted();
    let image = world.tree().join("image");
    fs::write(&image, noise(1, 24 << 20)).unwrap();
    world.backup();
    let file = File::options().write(true).open(&image).unwrap();
    let pieces = noise(2, 256 * PIECES as usize);
    for (number, piece) in (0..PIECES).zip(pieces.chunks(256)) {
        file.write_all_at(piece, (number * 7919 % PIECES) * 2000 + number % 1000)
            .unwrap();
    }
    drop(file);
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let report = ran.line("summary");
    // A byte that happens to be what it was may be left out.
    let literal_bytes = report["literal_bytes"].as_u64().unwrap();
    assert!((250 * PIECES..=256 * PIECES).contains(&literal_bytes), "{report}");
    world.assert_restores("latest");
}

/// As `cp` copies, which lets the kernel do it.
#[test]
fn copy_in_the_folder_costs_next_to_nothing() {
    let world = World::mounted();
    let [file, copy, copy_of_copy] = ["file", "file (copy)", "copy of it"].map(|name| world.tree().join(name));
    fs::write(&file, noise(1, 8 << 20)).unwrap();
    world.backup();
    fs::copy(&file, &copy).unwrap();
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let report = ran.line("summary");
    assert_eq!(
        (&report["followed_files"], &report["literal_bytes"]),
        (&1.into(), &0.into()),
        "{report}"
    );
    let name = copy.to_str().unwrap();
    let decision = world.run(&["explain", "--json", name]).fine().line("decision");
    assert_eq!(decision["cause"], "copied", "{decision}");
    world.assert_restores("latest");
    // Changed before it is saved.
    fs::copy(&copy, &copy_of_copy).unwrap();
    let changed = File::options().write(true).open(&copy_of_copy).unwrap();
    changed.write_all_at(&noise(2, 5000), 4_000_000).unwrap();
    drop(changed);
    let ran = world.on_tree("backup", &["--json"]).ends_with(0);
    let literal_bytes = ran.line("summary")["literal_bytes"].as_u64().unwrap();
    assert!((5000..20_000).contains(&literal_bytes), "{literal_bytes}");
    world.assert_restores("latest");
}
