//! Files that programs use just when others' changes of them arrive.

use super::super::engine::rig;
use super::{Machine, assert_same, conflicts, settle};
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

/// Sets or takes flags of a file, as `chattr` does.
fn chattr(flags: &str, path: &std::path::Path) {
    let done = std::process::Command::new("chattr")
        .arg(flags)
        .arg(path)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Takes the flags away, also where an assertion fails: the directory of the test is removed.
struct Flagged(Vec<(&'static str, PathBuf)>);

impl Flagged {
    fn end(&mut self) {
        for (flags, path) in self.0.drain(..) {
            let _ = std::process::Command::new("chattr").arg(flags).arg(path).output();
        }
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn what_cannot_be_changed_is_named_and_all_else_goes_on() {
    let rig = rig(153);
    let mut one = Machine::started(&rig, "one");
    fs::create_dir(one.path("dir")).unwrap();
    for name in ["immutable", "growing", "removed", "replaced", "dir/inner", "other"] {
        fs::write(one.path(name), format!("{name}, at first")).unwrap();
    }
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    let mut flagged = Flagged(Vec::new());
    let below = two.place.tree();
    for name in ["immutable", "removed", "replaced", "dir/inner"] {
        chattr("+i", &below.join(name));
        flagged.0.push(("-i", below.join(name)));
    }
    chattr("+a", &below.join("growing"));
    flagged.0.push(("-a", below.join("growing")));
    for (round, text) in ["one has written", "one has written again"].into_iter().enumerate() {
        for name in ["immutable", "growing", "other"] {
            fs::write(one.path(name), format!("{name}, {text}")).unwrap();
        }
        if round == 0 {
            fs::remove_file(one.path("removed")).unwrap();
            fs::remove_dir_all(one.path("dir")).unwrap();
        }
        fs::write(one.path("new"), format!("replaced, {text}")).unwrap();
        fs::rename(one.path("new"), one.path("replaced")).unwrap();
        settle(&rig, &[&one, &two], text);
        assert_eq!(fs::read_to_string(two.path("other")).unwrap(), format!("other, {text}"));
        for name in ["immutable", "growing", "removed", "replaced", "dir/inner"] {
            let held = fs::read_to_string(two.path(name)).unwrap();
            assert_eq!(held, format!("{name}, at first"), "{text}");
        }
        let status = two.status();
        assert_eq!(status.error, None, "{text}");
        let mut told: Vec<String> = status
            .left_out
            .iter()
            .map(|left_out| left_out.path.to_string())
            .collect();
        told.sort();
        assert_eq!(
            told,
            ["dir", "dir/inner", "growing", "immutable", "removed", "replaced"],
            "{text}"
        );
        assert!(
            status.left_out.iter().all(|left_out| left_out.blocked.is_some()),
            "{status:?}"
        );
        // The other direction goes on as well.
        fs::write(two.path("of two"), text).unwrap();
        settle(&rig, &[&one, &two], text);
        assert_eq!(fs::read_to_string(one.path("of two")).unwrap(), text);
        // It is remembered.
        two.end();
        two.mount_at_once();
        two.begin();
        settle(&rig, &[&one, &two], "two was started again");
    }
    flagged.end();
    fs::write(one.path("other"), "whatever comes lets it be tried again").unwrap();
    settle(&rig, &[&one, &two], "nothing is in the way any more");
    assert_same(&[&one, &two], "nothing is in the way any more");
    assert_eq!(two.status().left_out_names, 0);
    assert_eq!(conflicts(&two.place.tree()), Vec::<PathBuf>::new());
    assert!(!two.path("removed").exists() && !two.path("dir").exists());
    one.end();
    two.end();
}

/// How long it takes to join with an equal copy and with nothing, and to remove everything elsewhere.
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
