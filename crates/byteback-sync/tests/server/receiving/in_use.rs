//! Files that programs use just when others' changes of them arrive.

use super::super::engine::rig;
use super::{Machine, PATIENCE, assert_same, conflicts, is_settled, settle};
use byteback_testkit::rig::Rig;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn copies_with(machine: &Machine, line: &str) -> Vec<PathBuf> {
    let mut copies = conflicts(&machine.place.tree());
    copies.retain(|copy| {
        fs::read_to_string(machine.path(copy.to_str().unwrap()))
            .unwrap()
            .contains(line)
    });
    copies
}

#[test]
fn a_line_in_a_file_that_others_replaced_or_removed_is_kept() {
    let rig = rig(151);
    let mut one = Machine::started(&rig, "one");
    for name in ["replaced", "removed", "closed"] {
        fs::write(one.path(name), "the first line\n").unwrap();
    }
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    let open = |name: &str| File::options().append(true).open(two.path(name)).unwrap();
    let (mut replaced, mut removed) = (open("replaced"), open("removed"));
    drop(open("closed"));
    for name in ["replaced", "closed"] {
        fs::write(one.path("new"), "written anew\n").unwrap();
        fs::rename(one.path("new"), one.path(name)).unwrap();
    }
    fs::remove_file(one.path("removed")).unwrap();
    settle(&rig, &[&one, &two], "one has replaced and removed them");
    replaced.write_all(b"into the replaced one\n").unwrap();
    removed.write_all(b"into the removed one\n").unwrap();
    drop((replaced, removed));
    settle(&rig, &[&one, &two], "two has written");
    assert_same(&[&one, &two], "two has written");
    for machine in [&one, &two] {
        assert_eq!(fs::read_to_string(machine.path("replaced")).unwrap(), "written anew\n");
        assert_eq!(fs::read_to_string(machine.path("closed")).unwrap(), "written anew\n");
        assert_eq!(copies_with(machine, "into the replaced one").len(), 1);
        let removed = fs::read_to_string(machine.path("removed")).unwrap();
        assert_eq!(removed, "the first line\ninto the removed one\n");
        assert_eq!(conflicts(&machine.place.tree()).len(), 1);
    }
    one.end();
    two.end();
}

#[test]
fn a_name_in_conflict_is_there_at_any_moment() {
    let rig = rig(152);
    let mut one = Machine::started(&rig, "one");
    fs::write(one.path("file"), "at first").unwrap();
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    let (stop, looks, missing) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::SeqCst) }
        for path in [one.path("file"), two.path("file")] {
            let (stop, looks, missing) = (&stop, &looks, &missing);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    looks.fetch_add(1, Ordering::SeqCst);
                    match File::open(&path) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {
                            missing.fetch_add(1, Ordering::SeqCst);
                        }
                        opened => drop(opened.unwrap()),
                    }
                }
            });
        }
        for round in 0..12 {
            two.stop();
            fs::write(one.path("file"), format!("one, {round}")).unwrap();
            fs::write(two.path("file"), format!("two, {round}")).unwrap();
            settle(&rig, &[&one], "one has written");
            two.begin();
            settle(&rig, &[&one, &two], "both have written");
        }
    });
    let found = conflicts(&two.place.tree()).len();
    assert!(found >= 12, "{found} conflicts");
    let (looks, missing) = (looks.load(Ordering::SeqCst), missing.load(Ordering::SeqCst));
    assert!(looks > 100, "{looks} looks");
    assert_eq!(missing, 0, "of {looks} looks");
    assert_same(&[&one, &two], "at the end");
    one.end();
    two.end();
}

/// Collects the status's changes to come and compared files until a machine has joined.
fn told_while_joining(rig: &Rig, one: &Machine, two: &mut Machine) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut to_come, mut compared) = (Vec::new(), Vec::new());
    two.mount_at_once();
    two.begin();
    let began = std::time::Instant::now();
    loop {
        let status = two.status();
        if let Some(receiving) = status.receiving {
            to_come.extend(receiving.changes_to_come);
            compared.extend(receiving.compared);
        } else if is_settled(&status) && status.cursor == rig.seq() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{status:#?}");
        std::thread::yield_now();
    }
    settle(rig, &[one, two], "it has joined");
    (to_come, compared)
}

#[test]
fn a_joining_machine_tells_what_is_to_come_and_compared() {
    const FILES: u64 = 300;
    let rig = rig(159);
    let one = Machine::started(&rig, "one");
    let make = |machine: &Machine| {
        for number in 0..FILES {
            fs::write(machine.path(&number.to_string()), format!("{number} ").repeat(30)).unwrap();
        }
    };
    make(&one);
    settle(&rig, &[&one], "one");
    let mut empty = Machine::new(&rig, "empty");
    let (to_come, _) = told_while_joining(&rig, &one, &mut empty);
    let most = to_come.iter().max().copied().unwrap_or(0);
    assert!(most >= FILES, "{to_come:?}");
    assert!(to_come.iter().any(|left| (1..FILES).contains(left)), "{to_come:?}");
    let mut equal = Machine::new(&rig, "equal");
    fs::create_dir_all(equal.place.tree()).unwrap();
    make(&equal);
    let (_, compared) = told_while_joining(&rig, &one, &mut equal);
    assert!(
        compared.iter().any(|(done, total)| *total == FILES && *done > 0),
        "{compared:?}"
    );
    assert!(compared.iter().all(|(done, total)| done <= total), "{compared:?}");
    for mut machine in [one, empty, equal] {
        machine.end();
    }
}

/// The time it takes to join with an equal copy and with nothing, and to remove everything
/// elsewhere.
#[test]
#[ignore = "it measures"]
fn cost_of_joining_with_an_equal_copy_and_of_removing_it() {
    const FILES: usize = 6000;
    let rig = rig(154);
    let mut one = Machine::started(&rig, "one");
    let make = |machine: &Machine| {
        for number in 0..FILES {
            let dir = machine.place.tree().join(format!("all/dir{}", number / 100));
            if number % 100 == 0 {
                fs::create_dir_all(&dir).unwrap();
            }
            fs::write(dir.join(format!("file{number}")), format!("{number} ").repeat(300)).unwrap();
        }
    };
    make(&one);
    settle(&rig, &[&one], "one");
    for name in ["empty", "equal"] {
        let mut two = Machine::new(&rig, name);
        if name == "equal" {
            make(&two);
        }
        two.mount_at_once();
        let began = std::time::Instant::now();
        two.begin();
        settle(&rig, &[&one, &two], name);
        println!("{FILES} files, {name}: {:?}", began.elapsed());
        assert_eq!(conflicts(&two.place.tree()), Vec::<PathBuf>::new());
        if name == "equal" {
            fs::remove_dir_all(one.path("all")).unwrap();
            let began = std::time::Instant::now();
            settle(&rig, &[&one], name);
            println!("removed at one: {:?}", began.elapsed());
            settle(&rig, &[&one, &two], name);
            println!("removed at two: {:?}", began.elapsed());
        }
        two.end();
    }
    one.end();
}
