//! `explain`, and `backup --delta`: which way a change was found, and why.

use std::fs;
use std::os::unix::fs::FileExt;

use byteback_host::random::noise;

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
        .says("nothing is on record")
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
        // Every byte another one: what is written as it was is not a change.
        let other: Vec<u8> = first[at as usize..][..1000].iter().map(|byte| !byte).collect();
        file.write_all_at(&other, at).unwrap();
    };
    write();
    world.backup();
    world
        .run(&["explain", name])
        .fine()
        .says("the changed ranges were sent")
        .says("the log knew which bytes had been written")
        .says("hashed   nothing")
        .says("sent     1000 B");
    for (delta, how, literal_max) in [
        ("rsync", "rolling checksums", 3000),
        ("hash", "hashes of its blocks", 3000),
        ("webr", "the server looked for the file's blocks", 3000),
        // Chunks have up to 12 KiB.
        ("cdc", "cut into chunks by its content", 1000 + 3 * 12 * 1024),
        // Blocks are made of 4 KiB.
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
            .says("that was asked for (--delta)");
        let decision = world.run(&["explain", "--json", name]).fine().line("decision");
        assert_eq!(decision["method"], delta.replace('-', "_"));
        assert_eq!(decision["changed_bytes"], 1000);
        let literal_bytes = decision["literal_bytes"].as_u64().unwrap();
        assert!((1000..=literal_max).contains(&literal_bytes), "{decision}");
        world.assert_restores("latest");
    }
    // Behind the mount's back, as far as the log is concerned.
    drop(file);
    world.on_tree("umount", &[]).fine();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"untracked", 5).unwrap();
    drop(file);
    world.backup();
    // Which way is worth its cost here depends on the link and the machine.
    world
        .run(&["explain", name])
        .fine()
        .says("it had changed while the folder was not mounted");
    world.assert_restores("latest");
    let gone = world.tree().join("gone");
    world
        .run(&["explain", gone.to_str().unwrap()])
        .ends_with(1)
        .says("there is no");
    world
        .on_tree("explain", &[])
        .ends_with(1)
        .says("is a tracked folder, not a file in one");
    world
        .run(&["backup", "--delta", "magic", "."])
        .ends_with(2)
        .says("rsync");
}
