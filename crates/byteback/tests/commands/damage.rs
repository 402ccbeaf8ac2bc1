//! Flipped bits in the server's segments: what is restored, what is reported, and how it is healed.

use crate::world::World;
use byteback_host::random::noise;
use serde_json::Value;
use std::fs;

/// Flips a bit of bytes that lie uncompressed in the server's segments.
fn rot(world: &World, bytes: &[u8]) {
    let segments = fs::read_dir(world.path("data/segments")).unwrap();
    for segment in segments.map(|segment| segment.unwrap().path()) {
        let mut raw = fs::read(&segment).unwrap();
        if let Some(at) = raw.windows(bytes.len()).position(|window| window == bytes) {
            raw[at] ^= 4;
            fs::write(&segment, raw).unwrap();
            return;
        }
    }
    panic!("the bytes are in no segment");
}

/// A file of six frames, three snapshots that share most of them, and two damaged frames.
fn rotten() -> (World, Vec<u8>) {
    let world = World::mounted();
    let mut bytes = noise(1, 1_500_000);
    fs::write(world.tree().join("image"), &bytes).unwrap();
    fs::write(world.tree().join("small"), "small").unwrap();
    world.backup();
    let image = fs::OpenOptions::new()
        .write(true)
        .open(world.tree().join("image"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"changed", 1_400_000).unwrap();
    drop(image);
    bytes[1_400_000..1_400_007].copy_from_slice(b"changed");
    world.backup();
    rot(&world, &bytes[300_000..300_032]);
    rot(&world, &bytes[800_000..800_032]);
    (world, bytes)
}

/// Bytes of the damaged frames. Frames have 256 KiB.
const LOST: [(usize, usize); 2] = [(262_144, 524_288), (786_432, 1_048_576)];

#[test]
fn salvage_restores_what_is_whole_and_lists_the_rest() {
    let (world, bytes) = rotten();
    let target = world.path("restored");
    let to = target.to_str().unwrap();
    world
        .about_tree("restore", &["latest", "--target", to])
        .ends_with(1)
        .says("bytes 262144 to 524288, 786432 to 1048576 (524288 in all) are damaged at the server")
        .says("--salvage");
    assert!(!target.join("image").exists(), "a name stands for whole content");
    assert_eq!(fs::read(target.join("small")).unwrap(), b"small");
    let salvage = ["latest", "--target", to, "--overwrite", "--salvage"];
    let ran = world.about_tree("restore", &salvage).ends_with(3);
    let ran = ran.says("image: 512.0 KiB of 1.4 MiB are lost");
    ran.says("a hole from byte 262144 to 524288")
        .says("a hole from byte 786432 to 1048576");
    let mut expected = bytes;
    for (start, end) in LOST {
        expected[start..end].fill(0);
    }
    assert!(fs::read(target.join("image")).unwrap() == expected);
    // The salvaged file is not taken for complete: a restore tries it again, also without
    // --salvage.
    world
        .about_tree("restore", &["latest", "--target", to, "--overwrite"])
        .ends_with(1);
    let summary = world
        .about_tree("restore", &[&salvage[..], &["--json"]].concat())
        .ends_with(3)
        .line("summary");
    let lost: Vec<Value> = LOST
        .iter()
        .map(|(start, end)| serde_json::json!({"offset": start, "len": end - start}))
        .collect();
    let salvaged = serde_json::json!([{"path": "image", "size": 1_500_000, "lost": lost, "lost_bytes": 524_288}]);
    assert_eq!(summary["salvaged"], salvaged);
    assert_eq!(summary["not_restored"], serde_json::json!([]));
}

#[test]
fn a_backup_heals_the_store_with_bytes_that_are_here() {
    let (world, _) = rotten();
    world
        .about_tree("verify", &[])
        .ends_with(1)
        .says("image: 512.0 KiB lost (bytes 262144 to 524288, bytes 786432 to 1048576)")
        .says("can be healed");
    let summary = world.about_tree("verify", &["--json"]).ends_with(1).line("summary");
    assert_eq!(summary["damaged"][0]["healable"], true);
    let report = world.backup();
    assert_eq!(
        (&report["healed_frames"], &report["damaged_files"]),
        (&2.into(), &0.into())
    );
    world.about_tree("verify", &["--deep"]).fine();
    // The earlier snapshots are healed as well.
    world.about_tree("verify", &["1"]).fine();
    world.assert_restores("latest");
    let report = world.backup();
    assert_eq!(report["healed_frames"], 0);
}

#[test]
fn backup_resends_a_changed_file_where_it_cannot_be_healed() {
    let (world, _) = rotten();
    // Part of the first damaged frame is gone here, and the second is intact.
    let image = fs::OpenOptions::new()
        .write(true)
        .open(world.tree().join("image"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"other", 400_000).unwrap();
    drop(image);
    world.about_tree("verify", &[]).ends_with(1);
    let report = world.backup();
    assert_eq!(
        (&report["healed_frames"], &report["damaged_files"]),
        (&1.into(), &1.into())
    );
    world.about_tree("verify", &["--deep"]).fine();
    world.assert_restores("latest");
    // The earlier snapshot keeps the damage in bytes that exist nowhere any more.
    world.about_tree("verify", &["2"]).ends_with(1).says("262144");
}
