use super::*;
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use crate::{NewFile, OpenOptions, SetAttribute, Volume};
use byteback_host::block::{BlockDevice, CountedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;
use std::sync::Arc;

const FILE: NewFile = NewFile {
    mode: 0o100_644,
    uid: 0,
    gid: 0,
    device: 0,
};

/// A volume with a directory, and what is below its device.
fn volume() -> (SimBlockDevice, Arc<CountedDevice<SimBlockDevice>>, Volume, u32) {
    let below = SimBlockDevice::new(5_000);
    let device = Arc::new(CountedDevice::new(below.clone()));
    let dynamic = Arc::clone(&device) as Arc<dyn BlockDevice>;
    create(&dynamic, &CreateOptions::new(VolumeId([3; 16]), 5)).unwrap();
    let volume = Volume::open(dynamic, &OpenOptions::default()).unwrap();
    let dir = volume
        .make(
            1,
            b"dir",
            &NewFile {
                mode: 0o040_755,
                ..FILE
            },
        )
        .unwrap()
        .ino;
    volume.sync().unwrap();
    (below, device, volume, dir)
}

/// The way a database uses its journal: only its own writes are written.
#[test]
fn a_journal_that_is_made_anew_costs_no_checkpoint() {
    let (below, device, volume, dir) = volume();
    let mut random = SplitMix64::new(1);
    let database = volume.make(dir, b"database", &FILE).unwrap().ino;
    volume.write(database, 0, &random.bytes(100_000)).unwrap();
    volume.sync().unwrap();
    let checkpoints = || volume.with_state(|state| Ok(state.durability.version)).unwrap();
    let before = (checkpoints(), volume.stats().written.nodes, device.counters().flushes);
    for _ in 0..20 {
        let journal = volume.make(dir, b"journal", &FILE).unwrap().ino;
        volume.write(journal, 0, &random.bytes(5_000)).unwrap();
        volume.sync_file(journal).unwrap();
        volume.sync_file(dir).unwrap();
        volume
            .write(database, random.below(90_000), &random.bytes(4_000))
            .unwrap();
        volume.sync_file(database).unwrap();
        volume.unlink(dir, b"journal").unwrap();
    }
    // For each of both files its inode and a flush.
    let after = (checkpoints(), volume.stats().written.nodes, device.counters().flushes);
    assert_eq!(after, (before.0, before.1 + 40, before.2 + 40));
    // A name that nothing has any more must not come back.
    volume.sync_file(dir).unwrap();
    assert_eq!(checkpoints(), before.0 + 1);
    std::mem::forget(volume);
    let again = Volume::open(Arc::new(below.recover(1)), &OpenOptions::default()).unwrap();
    assert_eq!(again.list(dir, 0, 9).unwrap().len(), 1);
}

/// A directory in which nothing happened is durable; one of which anything else changed than that
/// synced files were made is not.
#[test]
fn other_changes_of_a_directory_are_a_checkpoint() {
    type Change = fn(&Volume, u32);
    let changes: [(&str, Change, bool); 9] = [
        ("nothing", |_, _| (), false),
        (
            "a file without a name",
            |volume, _| {
                volume.make_unnamed(&FILE).unwrap();
            },
            false,
        ),
        (
            "made and gone again",
            |volume, dir| {
                volume.make(dir, b"new", &FILE).unwrap();
                volume.unlink(dir, b"new").unwrap();
            },
            false,
        ),
        (
            "made, and not synced",
            |volume, dir| {
                volume.make(dir, b"new", &FILE).unwrap();
            },
            true,
        ),
        (
            "made, synced and gone again",
            |volume, dir| {
                let ino = volume.make(dir, b"new", &FILE).unwrap().ino;
                volume.sync_file(ino).unwrap();
                volume.unlink(dir, b"new").unwrap();
            },
            true,
        ),
        ("gone", |volume, dir| volume.unlink(dir, b"old").unwrap(), true),
        (
            "renamed",
            |volume, dir| {
                let how = crate::Rename::Replace;
                volume.rename((dir, b"old"), (dir, b"new"), how).unwrap();
            },
            true,
        ),
        (
            "attributes",
            |volume, dir| {
                let set = crate::SetAttributes {
                    mode: Some(0o700),
                    ..Default::default()
                };
                volume.set_attributes(dir, &set).unwrap();
            },
            true,
        ),
        (
            "extended attributes",
            |volume, dir| volume.set_xattr(dir, b"user.a", b"b", SetAttribute::Any).unwrap(),
            true,
        ),
    ];
    for (what, change, is_checkpoint) in changes {
        let (_, device, volume, dir) = volume();
        volume.make(dir, b"old", &FILE).unwrap();
        volume.sync().unwrap();
        change(&volume, dir);
        let checkpoints = || volume.with_state(|state| Ok(state.durability.version)).unwrap();
        let before = checkpoints();
        volume.sync_file(dir).unwrap();
        assert_eq!(checkpoints() > before, is_checkpoint, "{what}");
        // Then it is durable.
        let before = device.counters().writes;
        volume.sync_file(dir).unwrap();
        assert_eq!(device.counters().writes, before, "{what}");
    }
}

/// More names than are remembered: nothing is taken for durable.
#[test]
fn too_many_names_are_a_checkpoint() {
    let mut names = NameChanges::default();
    for number in 0..NAMES_MAX {
        names.added(Nid(3), format!("{number}").as_bytes());
    }
    assert_eq!(names.of(Nid(3)).map(|names| names.len()), Some(NAMES_MAX));
    names.removed(Nid(4), b"one more");
    assert!(names.of(Nid(3)).is_none() && names.of(Nid(4)).is_none() && names.of(Nid(5)).is_none());
    names.synced(Nid(3), b"1");
    assert!(names.of(Nid(3)).is_none() && names.of.is_empty());
}
