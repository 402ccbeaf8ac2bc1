//! The state folder was damaged, put back from an older copy, or copied to another machine.

use std::fs;
use std::path::{Path, PathBuf};

use byteback_host::random::{SplitMix64, noise};
use byteback_testkit::seed::{Draw, fresh_seed, rounds};
use byteback_testkit::tools::run;

use crate::rig::Rig;
use crate::scene::{change_unseen, save, save_for_good, scene, write_at};

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    run("cp", &["-a", "-T", from.to_str().unwrap(), to.to_str().unwrap()]);
}

fn exchange(one: &Path, other: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags).unwrap();
}

/// A few changes of everything, through a mount if there is one.
fn change(rig: &Rig, number: u8) {
    let tree = rig.tree();
    change_unseen(&tree.join("large"), u64::from(number) * 1000, &[number; 30]);
    change_unseen(&tree.join("two/file1"), u64::from(number) * 100, &[number; 30]);
    fs::write(tree.join(format!("one/new{number}")), noise(u64::from(number), 5000)).unwrap();
    fs::rename(tree.join(format!("one/new{number}")), tree.join("one/moved")).unwrap();
}

#[test]
fn a_log_elder_than_the_tree_and_the_server_is_recognised() {
    let mut rig = scene();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    let older = rig.directory().join("elder-state");
    copy(&rig.state(), &older);
    for number in 1..4 {
        rig.mount();
        change(&rig, number);
        save(&rig, "a backup that the elder log does not know");
        rig.umount();
    }
    copy(&older, &rig.state());
    for number in 4..7 {
        rig.mount();
        let ran = rig.backup(None);
        if number == 4 {
            assert!(
                ran.stderr.contains("sending everything"),
                "nobody says why: {}",
                ran.stderr
            );
        }
        save_for_good(&rig, "with an elder log");
        change(&rig, number);
        save(&rig, "later");
        rig.umount();
    }
}

/// As after the machine, or its disk, was set back to a snapshot.
#[test]
fn log_and_tree_that_were_both_set_back_are_saved_as_they_are() {
    for behind in [false, true] {
        let mut rig = scene();
        rig.mount();
        save(&rig, "the first backup");
        rig.umount();
        let (older_state, older_tree) = (rig.directory().join("elder-state"), rig.directory().join("elder-tree"));
        copy(&rig.state(), &older_state);
        // A copy that keeps inodes and times would be another disk; here the changed files are put
        // back one by one.
        run(
            "cp",
            &["-a", rig.tree().to_str().unwrap(), older_tree.to_str().unwrap()],
        );
        rig.mount();
        for number in 1..3 {
            change(&rig, number);
            save(&rig, "a backup of a time that never was");
        }
        rig.umount();
        copy(&older_state, &rig.state());
        let from = format!("{}/", older_tree.display());
        let to = format!("{}/", rig.tree().display());
        run("rsync", &["-aH", "--delete", "--inplace", &from, &to]);
        if behind {
            change(&rig, 9);
        }
        rig.mount();
        save_for_good(&rig, "both set back");
        change(&rig, 10);
        save_for_good(&rig, "and on");
        rig.umount();
    }
}

/// Another machine with a copy of tree and state; both take turns with the same folder of the
/// server.
#[test]
fn a_state_folder_copied_to_another_machine_hides_nothing() {
    let mut rig = scene();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    let there = |name: &str| rig.directory().join(name);
    let (other_state, other_tree) = (there("other-state"), there("other-tree"));
    copy(&rig.state(), &other_state);
    copy(&rig.tree(), &other_tree);
    for number in 1..5 {
        // The paths are the same on both machines, so the two take turns in using them.
        exchange(&rig.state(), &other_state);
        exchange(&rig.tree(), &other_tree);
        rig.mount();
        change(&rig, number);
        save(&rig, &format!("turn {number}"));
        write_at(&rig.tree().join("one/file3"), 10, &[number; 9]);
        save(&rig, &format!("turn {number}, again"));
        rig.umount();
    }
}

/// Damage to a file of the state folder.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Block,
    Cut,
    Empty,
    Remove,
}

impl Damage {
    fn inflict(self, path: &Path, random: &mut SplitMix64) {
        let Ok(mut bytes) = fs::read(path) else { return };
        let len = bytes.len();
        match self {
            Self::Remove => return fs::remove_file(path).unwrap(),
            Self::Empty => bytes.clear(),
            Self::Cut => bytes.truncate(random.index(len.max(1))),
            Self::Flip if len > 0 => {
                let used: Vec<usize> = (0..len).filter(|at| bytes[*at] != 0).collect();
                bytes[used[random.index(used.len())]] ^= 1 << random.below(8);
            }
            Self::Block if len > 0 => {
                let block = random.index(len.div_ceil(4096)) * 4096;
                let end = len.min(block + 4096);
                bytes[block..end].fill(0);
            }
            _ => {}
        }
        // In place, as a disk does it.
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    }
}

/// Checks that the folder can be mounted and saved again. A refusal must come with advice, which is
/// followed.
fn recover(rig: &mut Rig, when: &str, may_refuse: bool) {
    let tree = rig.tree();
    let mut ran = rig.run(&["--json", "mount", tree.to_str().unwrap()]);
    let mut advised = 0;
    while !ran.status.success() {
        advised += 1;
        assert!(
            may_refuse,
            "{when}: a damaged log is no reason to refuse: {}",
            ran.stderr
        );
        assert!(advised < 4, "{when}: the advice does not help: {}", ran.stderr);
        let said = format!("{}{}", ran.stderr, ran.stdout);
        assert!(!said.contains("panicked"), "{when}: {said}");
        follow(rig, &said, when);
        ran = rig.run(&["--json", "mount", tree.to_str().unwrap()]);
    }
    rig.run(&["--json", "umount", tree.to_str().unwrap()])
        .succeeds("umount");
    // The backup reads the binding.
    let ran = rig.backup(None);
    if !ran.status.success() {
        assert!(may_refuse, "{when}: {}", ran.stderr);
        let said = format!("{}{}", ran.stderr, ran.stdout);
        assert!(!said.contains("panicked"), "{when}: {said}");
        follow(rig, &said, when);
    }
}

/// Follows the advice of a message: removes the files of the state folder that it names, and binds
/// the folder again if necessary.
fn follow(rig: &Rig, said: &str, when: &str) {
    let folder = rig.state_folder();
    let mut removed = false;
    for name in [
        "log.redb",
        "intents",
        "binding.json",
        "path",
        "mark.json",
        "held-back.json",
    ] {
        let path = folder.join(name);
        if said.contains(path.to_str().unwrap()) && path.exists() {
            fs::remove_file(path).unwrap();
            removed = true;
        }
    }
    assert!(
        removed || said.contains("byteback init"),
        "{when}: refused, and no advice: {said}"
    );
    if folder.join("binding.json").exists() && !said.contains("byteback init") {
        return;
    }
    let tree = rig.tree();
    let repository = format!("{}/folder", rig.server_url());
    let token = rig.directory().join("data").join("join-token");
    let token = token.to_str().unwrap();
    let arguments = [
        "--json",
        "init",
        tree.to_str().unwrap(),
        "-r",
        &repository,
        "--join-token-file",
        token,
    ];
    let ran = rig.run(&arguments);
    if !ran.status.success() {
        // The damage has changed the address in the binding.
        assert!(ran.stderr.contains("binding.json"), "{when}: {}", ran.stderr);
        fs::remove_file(folder.join("binding.json")).unwrap();
        rig.run(&arguments).succeeds(when);
    }
}

#[test]
fn state_damage_hides_no_change_and_blocks_nobody_for_good() {
    let mut random = SplitMix64::new(fresh_seed());
    let files: [&[&str]; 6] = [
        &["log.redb"],
        &["intents"],
        &["log.redb", "intents"],
        &["binding.json"],
        &["path"],
        &["log.redb", "intents", "binding.json", "path"],
    ];
    let damages = [Damage::Flip, Damage::Block, Damage::Cut, Damage::Empty, Damage::Remove];
    let mut rig = scene();
    rig.mount();
    save(&rig, "the first backup");
    rig.umount();
    let mut number = 0;
    for round in 0..rounds(1) {
        for damage in damages {
            for names in files {
                number += 1;
                let killed = random.chance(40);
                rig.mount();
                change(&rig, u8::try_from(number % 100).unwrap());
                if random.chance(50) {
                    save(&rig, "a backup before the damage");
                    change(&rig, u8::try_from((number + 1) % 100).unwrap());
                }
                if killed {
                    rig.kill_daemon();
                    rig.wait_until_free();
                } else {
                    rig.umount();
                }
                if random.chance(50) {
                    change(&rig, u8::try_from((number + 2) % 100).unwrap());
                }
                let folder = rig.state_folder();
                for name in names {
                    damage.inflict(&folder.join(name), &mut random);
                }
                let when = format!("round {round}: {damage:?} of {names:?}, killed before: {killed}");
                // The binding, and the directory that the state belongs to, cannot be guessed.
                let may_refuse = names.iter().any(|name| ["binding.json", "path"].contains(name));
                recover(&mut rig, &when, may_refuse);
                rig.mount();
                save(&rig, &when);
                rig.umount();
            }
        }
    }
}

#[test]
fn a_lost_log_is_told_with_its_reason() {
    for damage in [Damage::Cut, Damage::Empty, Damage::Remove] {
        let mut rig = scene();
        rig.mount();
        save(&rig, "the first backup");
        rig.umount();
        change(&rig, 1);
        damage.inflict(&rig.state_folder().join("log.redb"), &mut SplitMix64::new(1));
        rig.mount();
        let ran = rig.backup(None);
        let summary = ran.summary().unwrap_or_default();
        assert!(ran.status.success(), "{damage:?}: {}", ran.stderr);
        assert!(summary["everything_because"].is_string(), "{damage:?}: {summary}");
        assert!(ran.stderr.contains("sending everything"), "{damage:?}: {}", ran.stderr);
        let tree = rig.tree();
        let status = rig.run(&["--json", "status", tree.to_str().unwrap()]);
        let said = format!("{}{}", status.stdout, status.stderr);
        assert!(
            said.contains("log_lost"),
            "{damage:?}: the status does not tell: {said}"
        );
        save_for_good(&rig, "with a new log");
        rig.umount();
    }
}

/// All files of the state folder that a power loss could have left empty: with durable names, but
/// not contents.
#[test]
fn a_state_folder_of_empty_files_hides_nothing() {
    let mut rig = scene();
    rig.mount();
    save(&rig, "the first backup");
    change(&rig, 1);
    rig.umount();
    let files: Vec<PathBuf> = fs::read_dir(rig.state_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    for file in files {
        fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
    }
    recover(&mut rig, "all files empty", true);
    rig.mount();
    save_for_good(&rig, "all files empty");
    rig.umount();
}
