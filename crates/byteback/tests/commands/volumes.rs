//! Volumes: made, checked, damaged and repaired; two who want the same one; what is no volume.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use byteback_host::block::{Access, RealBlockDevice};
use byteback_volume::{NewFile, OpenOptions, Volume};

use crate::world::World;

fn write_at(world: &World, image: &str, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(world.path(image)).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

fn open(world: &World, image: &str) -> Volume {
    let device = RealBlockDevice::open(world.path(image), Access::ReadWrite).unwrap();
    Volume::open(Arc::new(device), &OpenOptions::default()).unwrap()
}

#[test]
fn a_volume_is_made_and_whole() {
    let world = World::new();
    world
        .run(&["volume", "create", "card.img"])
        .ends_with(1)
        .says("--size 4G");
    world
        .run(&["volume", "create", "card.img", "--size", "5M"])
        .ends_with(1)
        .says("a volume has at least");
    assert!(!world.path("card.img").exists(), "nothing is left of what failed");
    let made = world.run(&["volume", "create", "card.img", "--size", "40M", "--label", "a card"]);
    made.fine().says("Made a volume of 40.0 MiB");
    world
        .run(&["volume", "check", "card.img"])
        .fine()
        .says("card.img is whole. 0 files in 1 directory");
    let again = world.run(&["volume", "create", "card.img", "--size", "40M"]);
    again.ends_with(1).says("is there already");
    world
        .run(&["volume", "create", "card.img"])
        .ends_with(1)
        .says("is not empty");
    world.run(&["volume", "create", "card.img", "--force"]).fine();
}

#[test]
fn a_volume_that_is_in_use_is_left_alone() {
    let world = World::new();
    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let volume = open(&world, "v");
    for arguments in [
        &["volume", "check", "v"][..],
        &["volume", "check", "--repair", "v"],
        &["volume", "create", "--force", "v"],
    ] {
        world.run(arguments).ends_with(11).says("is in use; unmount it");
    }
    volume.close().unwrap();
    world.run(&["volume", "check", "v"]).fine();
}

#[test]
fn what_is_no_volume_is_told_apart() {
    let world = World::new();
    fs::write(world.path("text"), vec![b'a'; 100_000]).unwrap();
    world
        .run(&["volume", "check", "text"])
        .ends_with(1)
        .says("text: this is no Byteback volume");
    world.run(&["volume", "check", "--repair", "text"]).ends_with(1);
    assert_eq!(fs::read(world.path("text")).unwrap(), vec![b'a'; 100_000]);
    fs::write(world.path("empty"), "").unwrap();
    world.run(&["volume", "check", "empty"]).ends_with(1);
    world.run(&["volume", "check", "nowhere"]).ends_with(1).says("nowhere");
    world
        .run(&["volume", "check", "/dev/null"])
        .ends_with(1)
        .says("neither a file nor a block device");

    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let len = fs::metadata(world.path("v")).unwrap().len();
    fs::copy(world.path("v"), world.path("short")).unwrap();
    let short = fs::OpenOptions::new().write(true).open(world.path("short")).unwrap();
    short.set_len(len - 8192).unwrap();
    world
        .run(&["volume", "check", "short"])
        .ends_with(1)
        .says("part of it is missing");
    // The version stands at the same place in all versions.
    for offset in [0, len - 4096] {
        write_at(&world, "v", offset + 8, &7u32.to_le_bytes());
    }
    world
        .run(&["volume", "check", "v"])
        .ends_with(1)
        .says("format version 7")
        .says("update");
    world
        .run(&["volume", "check", "--repair", "v"])
        .ends_with(1)
        .says("format version 7");
}

#[test]
fn damage_is_told_by_name_and_costs_nothing_else() {
    let world = World::new();
    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let volume = open(&world, "v");
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    for name in ["one.txt", "other.txt"] {
        let ino = volume.make(1, name.as_bytes(), &new).unwrap().ino;
        let content = name.repeat(2_000);
        assert_eq!(volume.write(ino, 0, content.as_bytes()).unwrap(), content.len());
    }
    volume.close().unwrap();
    let image = fs::read(world.path("v")).unwrap();
    let is_of_one = |page: &&[u8]| page.windows(14).any(|bytes| bytes == b"one.txtone.txt");
    let pages: Vec<usize> = image
        .chunks(4096)
        .enumerate()
        .filter(|(_, page)| is_of_one(page))
        .map(|(at, _)| at)
        .collect();
    write_at(&world, "v", pages[1] as u64 * 4096 + 100, b"rot");
    write_at(&world, "v", 0, &[0; 4096]);
    let found = world.run(&["volume", "check", "v"]).ends_with(1);
    found
        .says("/one.txt: 4096 bytes at offset 4096")
        .says("the superblock at block 0 is damaged")
        .says("--repair");
    let repaired = world.run(&["volume", "check", "--repair", "v"]).ends_with(1);
    repaired
        .says("had 2 problems")
        .says("This is left:")
        .says("until the file is removed or written over");
    world.run(&["volume", "check", "--no-contents", "v"]).fine();
    let volume = open(&world, "v");
    let one = volume.look_up(1, b"one.txt").unwrap();
    let mut bytes = vec![0; 4096];
    assert_eq!(volume.read(one.ino, 0, &mut bytes).unwrap(), 4096);
    assert!(
        volume.read(one.ino, 4096, &mut bytes).is_err(),
        "damaged bytes are not handed out"
    );
    assert_eq!(volume.write(one.ino, 4096, &[b'n'; 4096]).unwrap(), 4096);
    volume.close().unwrap();
    world
        .run(&["volume", "check", "v"])
        .fine()
        .says("2 files in 1 directory");
}
