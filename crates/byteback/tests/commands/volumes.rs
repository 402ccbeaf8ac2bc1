//! Volumes: made, checked, damaged and repaired; two processes that want the same one; other files.

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
        .says("a volume needs at least");
    assert!(!world.path("card.img").exists(), "nothing is left of what failed");
    let made = world.run(&["volume", "create", "card.img", "--size", "40M", "--label", "a card"]);
    made.fine().says("Created a volume of 40.0 MiB");
    world
        .run(&["volume", "check", "card.img"])
        .fine()
        .says("card.img is intact. 0 files in 1 directory");
    let again = world.run(&["volume", "create", "card.img", "--size", "40M"]);
    again.ends_with(1).says("already exists");
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
        .says("text: not a Byteback volume");
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
        .says("its end is missing");
    // The version is at the same place in all versions.
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
        .says("These problems remain:")
        .says("until the file is removed or overwritten");
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

/// Block numbers of the segment table, from the superblock.
fn segment_table(image: &[u8]) -> std::ops::Range<u64> {
    let number = |at: usize| u64::from(u32::from_le_bytes(image[at..at + 4].try_into().unwrap()));
    number(80)..number(80) + 2 * number(84)
}

#[test]
fn a_tree_is_copied_out_of_a_volume() {
    let world = World::new();
    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let volume = open(&world, "v");
    let new = |mode| NewFile {
        mode,
        uid: 12,
        gid: 34,
        ..NewFile::default()
    };
    let dir = volume.make(1, b"dir", &new(0o040_750)).unwrap().ino;
    let file = volume.make(dir, b"a \xff file", &new(0o100_640)).unwrap().ino;
    volume.write(file, 3_000_000, b"behind a hole").unwrap();
    volume
        .set_xattr(file, b"user.colour", b"blue", byteback_volume::SetAttribute::Any)
        .unwrap();
    volume.link(file, 1, b"other name").unwrap();
    volume
        .make_symlink(1, b"link", b"dir/nowhere", &new(0o120_777))
        .unwrap();
    volume.make(1, b"pipe", &new(0o010_600)).unwrap();
    let time = byteback_volume::format::Time {
        seconds: 1_000_000,
        nanoseconds: 7,
    };
    for ino in [file, dir] {
        let set = byteback_volume::SetAttributes {
            modified: Some(time),
            ..Default::default()
        };
        volume.set_attributes(ino, &set).unwrap();
    }
    volume.close().unwrap();
    world
        .run(&["volume", "extract", "v", "out"])
        .fine()
        .says("Copied 3 files in 2 directories, ");
    let file = {
        use std::os::unix::ffi::OsStrExt;
        world.path("out/dir").join(std::ffi::OsStr::from_bytes(b"a \xff file"))
    };
    let (found, other) = (
        fs::metadata(&file).unwrap(),
        fs::metadata(world.path("out/other name")).unwrap(),
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!((found.ino(), found.nlink()), (other.ino(), 2));
    assert_eq!(
        (found.mode(), found.len(), found.mtime(), found.mtime_nsec()),
        (0o100_640, 3_000_013, 1_000_000, 7)
    );
    assert!(found.blocks() < 100, "a hole is a hole: {}", found.blocks());
    assert_eq!(&fs::read(&file).unwrap()[3_000_000..], b"behind a hole");
    let fd = fs::File::open(&file).unwrap();
    let colour = byteback_host::tree::get_xattr(&fd, "user.colour".as_ref()).unwrap();
    assert_eq!(colour.as_deref(), Some(&b"blue"[..]));
    let dir = fs::metadata(world.path("out/dir")).unwrap();
    assert_eq!((dir.mode(), dir.mtime()), (0o040_750, 1_000_000));
    assert_eq!((found.uid(), dir.gid()), (12, 34));
    assert_eq!(
        fs::read_link(world.path("out/link")).unwrap(),
        std::path::Path::new("dir/nowhere")
    );
    world
        .run(&["volume", "extract", "v", "out"])
        .ends_with(1)
        .says("out is not empty");
}

/// The readable content of a dying card is copied without a byte written to it.
#[test]
fn what_can_be_read_of_a_damaged_volume_is_copied_out_of_it() {
    let world = World::new();
    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let volume = open(&world, "v");
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let page = |of: u8| [of; 4096];
    for name in [&b"whole"[..], b"damaged"] {
        let ino = volume.make(1, name, &new).unwrap().ino;
        for (at, of) in (0..).step_by(4096).zip([name[0], name[1], name[2]]) {
            volume.write(ino, at, &page(of)).unwrap();
        }
    }
    volume.close().unwrap();
    let image = fs::read(world.path("v")).unwrap();
    let lost = image.chunks(4096).position(|bytes| *bytes == page(b'a')).unwrap();
    write_at(&world, "v", lost as u64 * 4096 + 100, b"rot");
    for block in segment_table(&image) {
        write_at(&world, "v", block * 4096, b"rot");
    }
    let image = fs::read(world.path("v")).unwrap();
    let copied = world.run(&["volume", "extract", "v", "out"]).ends_with(3);
    copied
        .says("damaged: 4.0 KiB cannot be read and became holes")
        .says("Copied 2 files in 1 directory, 20.0 KiB, to out. 1 of them is not complete, see above.");
    assert_eq!(
        fs::read(world.path("out/whole")).unwrap(),
        [page(b'w'), page(b'h'), page(b'o')].concat()
    );
    assert_eq!(
        fs::read(world.path("out/damaged")).unwrap(),
        [page(b'd'), page(0), page(b'm')].concat()
    );
    assert!(fs::read(world.path("v")).unwrap() == image, "nothing is written to it");
    world
        .run(&["--json", "volume", "extract", "v", "again"])
        .ends_with(3)
        .says(r#""incomplete":1"#);
}

/// A hole whose end is lost with the addresses behind it: the copy ends, and the hole is kept.
#[test]
fn volume_extract_copies_a_file_whose_hole_has_no_known_end() {
    use std::os::unix::fs::MetadataExt;
    let world = World::new();
    world.run(&["volume", "create", "v", "--size", "20M"]).fine();
    let volume = open(&world, "v");
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let ino = volume.make(1, b"file", &new).unwrap().ino;
    volume.write(ino, 5_000_000, &[b'a'; 4096]).unwrap();
    volume.write(ino, 20_000_000, &[b'b'; 4096]).unwrap();
    volume.close().unwrap();
    let image = fs::read(world.path("v")).unwrap();
    // The file's nodes that refer to other nodes, at place 3.
    let number = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    let is_upper = |block: &[u8]| number(block, 4072) == ino && number(block, 4076) >> 3 == 3;
    let upper: Vec<usize> = (image.chunks(4096).enumerate())
        .filter(|(_, block)| is_upper(block))
        .map(|(at, _)| at)
        .collect();
    assert!(!upper.is_empty());
    for at in upper {
        write_at(&world, "v", at as u64 * 4096 + 3_000, b"rot");
    }
    world
        .run(&["volume", "extract", "v", "out"])
        .ends_with(3)
        .says("cannot be read and became holes");
    let copy = fs::read(world.path("out/file")).unwrap();
    assert!(copy.len() == 20_004_096 && copy[5_000_000..5_004_096] == [b'a'; 4096]);
    assert!(copy[..5_000_000].iter().all(|byte| *byte == 0));
    let blocks = fs::metadata(world.path("out/file")).unwrap().blocks();
    assert!(blocks < 3_000, "{blocks}");
}
