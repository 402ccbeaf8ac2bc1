//! Files that a program changes in one atomic operation are in conflict together (DeltaCFS section
//! III-C), on real mounts: others see under the true names all of it or nothing.

use super::{Machine, assert_same, conflicts, rig, settle};
use crate::engine::assert_server_has;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

fn open(machine: &Machine, name: &str) -> io::Result<File> {
    File::options().write(true).open(machine.path(name))
}

/// A database of two files, as sqlite has them, and a third one that is new: written while all of
/// them are open.
fn transact(machine: &Machine, who: &str) {
    let (data, log) = (open(machine, "base/db").unwrap(), open(machine, "base/db-wal").unwrap());
    log.write_all_at(who.as_bytes(), 100).unwrap();
    data.write_all_at(who.as_bytes(), 50_000).unwrap();
    fs::write(machine.path("base/db-new"), who).unwrap();
    log.write_all_at(who.as_bytes(), 200).unwrap();
}

struct Copies {
    data: Vec<u8>,
    log: Vec<u8>,
}

/// The files after that.
fn transacted(who: &str) -> Copies {
    let (mut data, mut log) = (vec![b'd'; 100_000], vec![b'l'; 10_000]);
    data[50_000..][..who.len()].copy_from_slice(who.as_bytes());
    for at in [100, 200] {
        log[at..][..who.len()].copy_from_slice(who.as_bytes());
    }
    Copies { data, log }
}

#[test]
fn all_files_of_an_operation_are_in_conflict_or_none_is() {
    let rig = rig(107);
    let mut one = Machine::started(&rig, "one");
    fs::create_dir_all(one.path("base")).unwrap();
    fs::write(one.path("base/db"), vec![b'd'; 100_000]).unwrap();
    fs::write(one.path("base/db-wal"), vec![b'l'; 10_000]).unwrap();
    fs::write(one.path("base/beside"), b"beside").unwrap();
    fs::write(one.path("elsewhere"), b"elsewhere").unwrap();
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "both have it");

    // Without changes elsewhere: an operation like every other.
    two.stop();
    transact(&two, "the second machine");
    two.begin();
    settle(&rig, &[&one, &two], "without a conflict");
    assert_same(&[&one, &two], "without a conflict");
    assert_eq!(conflicts(&one.place.tree()), Vec::<std::path::PathBuf>::new());

    // One changes one of the files, and is first.
    two.stop();
    let mine = "written by two";
    transact(&two, mine);
    open(&two, "base/beside").unwrap().write_all_at(b"BY TWO", 0).unwrap();
    open(&two, "elsewhere").unwrap().write_all_at(b"BY TWO", 0).unwrap();
    let theirs = b"written by one";
    open(&one, "base/db").unwrap().write_all_at(theirs, 7).unwrap();
    settle(&rig, &[&one], "one was first");
    two.begin();
    settle(&rig, &[&one, &two], "with a conflict");
    assert_same(&[&one, &two], "with a conflict");
    let before = transacted("the second machine");
    let mut data = before.data;
    data[7..][..theirs.len()].copy_from_slice(theirs);
    assert_eq!(fs::read(two.path("base/db")).unwrap(), data);
    assert_eq!(
        fs::read(two.path("base/db-wal")).unwrap(),
        before.log,
        "theirs, with the log of it"
    );
    assert_eq!(fs::read(two.path("base/db-new")).unwrap(), b"the second machine");
    // Changes that only happened meanwhile, or lie elsewhere, are in no conflict.
    assert_eq!(fs::read(one.path("base/beside")).unwrap(), b"BY TWO");
    assert_eq!(fs::read(one.path("elsewhere")).unwrap(), b"BY TWOere");
    let found = conflicts(&one.place.tree());
    assert_eq!(found.len(), 3, "{found:?}");
    let reported = two.status().conflicts;
    assert_eq!(reported.len(), 3, "{reported:?}");
    assert!(
        reported
            .iter()
            .all(|conflict| conflict.set.is_some() && conflict.set == reported[0].set),
        "{reported:?}"
    );
    let copy_of = |name: &str| {
        let copies = reported
            .iter()
            .find(|conflict| conflict.path.as_bytes() == name.as_bytes());
        let copy = copies
            .unwrap_or_else(|| panic!("{name}: {reported:?}"))
            .copy
            .as_bytes()
            .to_vec();
        fs::read(one.path(&String::from_utf8(copy).unwrap())).unwrap()
    };
    // The files of two: its operation before, and this one.
    let mut mine_now = transacted("the second machine");
    mine_now.data[50_000..][..mine.len()].copy_from_slice(mine.as_bytes());
    for at in [100, 200] {
        mine_now.log[at..][..mine.len()].copy_from_slice(mine.as_bytes());
    }
    assert_eq!(copy_of("base/db"), mine_now.data);
    assert_eq!(copy_of("base/db-wal"), mine_now.log);
    assert_eq!(copy_of("base/db-new"), mine.as_bytes());

    // Mine are kept: they take the names, and it is over.
    for conflict in &reported {
        let path = |name: &byteback_model::ByteString| two.path(std::str::from_utf8(name.as_bytes()).unwrap());
        fs::rename(path(&conflict.copy), path(&conflict.path)).unwrap();
    }
    settle(&rig, &[&one, &two], "it is decided");
    assert_same(&[&one, &two], "it is decided");
    assert_eq!(fs::read(one.path("base/db-wal")).unwrap(), mine_now.log);
    assert_eq!(two.status().conflicts, []);
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.place.tree(), "at the end");
}
