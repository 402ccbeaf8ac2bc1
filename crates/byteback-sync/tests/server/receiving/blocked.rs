//! Changes of others that cannot be made here, and this machine's own changes to the same files
//! meanwhile.

use super::super::engine::rig;
use super::{Machine, PATIENCE, assert_same, conflicts, look, settle};
use byteback_host::random::SplitMix64;
use byteback_testkit::rig::Rig;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sets or takes flags of a file, as `chattr` does.
fn chattr(flags: &str, path: &Path) {
    let done = std::process::Command::new("chattr")
        .arg(flags)
        .arg(path)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Removes the flags even where an assertion fails: the directory of the test is removed.
struct Flagged(Vec<(&'static str, PathBuf)>);

impl Flagged {
    /// `flags`: `+` and a letter.
    fn set(&mut self, flags: &str, path: &Path) {
        chattr(flags, path);
        let takes = if flags == "+a" { "-a" } else { "-i" };
        self.0.push((takes, path.to_owned()));
    }

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
        flagged.set("+i", &below.join(name));
    }
    flagged.set("+a", &below.join("growing"));
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
        let mut reported: Vec<String> = status
            .left_out
            .iter()
            .map(|left_out| left_out.path.to_string())
            .collect();
        // Sent before it was renamed, it waits under its first name.
        reported.retain(|path| path != "new");
        reported.sort();
        assert_eq!(
            reported,
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

/// Two machines that share files with these names, each of which contains its name.
fn sharing(rig: &Rig, names: &[&str]) -> (Machine, Machine) {
    let one = Machine::started(rig, "one");
    for name in names {
        fs::write(one.path(name), format!("{name}, at first\n")).unwrap();
    }
    settle(rig, &[&one], "one");
    let two = Machine::started(rig, "two");
    settle(rig, &[&one, &two], "two has joined");
    (one, two)
}

fn wait_until_unblocked(rig: &Rig, one: &Machine, two: &Machine) {
    let began = Instant::now();
    while (two.status().left_out_names, two.status().held_nodes) != (0, 0) {
        assert!(began.elapsed() < PATIENCE, "{:#?}", two.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    settle(rig, &[one, two], "nothing is blocked");
    assert_same(&[one, two], "nothing is blocked");
}

fn append(path: &Path, text: &str) {
    File::options()
        .append(true)
        .open(path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
}

#[test]
fn flags_of_a_blocked_file_are_set_and_taken_away() {
    let rig = rig(155);
    let (mut one, mut two) = sharing(&rig, &["changed", "removed", "replaced"]);
    let mut flagged = Flagged(Vec::new());
    for name in ["changed", "removed", "replaced"] {
        flagged.set("+i", &two.path(name));
    }
    fs::write(one.path("changed"), "one has written more than there was").unwrap();
    fs::remove_file(one.path("removed")).unwrap();
    fs::write(one.path("new"), "one has replaced it").unwrap();
    fs::rename(one.path("new"), one.path("replaced")).unwrap();
    settle(&rig, &[&one, &two], "one has changed them");
    // A change of attributes of a blocked node is not one of the server's.
    for name in ["changed", "removed", "replaced"] {
        chattr("+i", &two.path(name));
    }
    fs::write(two.path("of two"), "it goes on").unwrap();
    settle(&rig, &[&one, &two], "two has set flags");
    assert_eq!(two.status().error, None);
    assert_eq!(fs::read_to_string(one.path("of two")).unwrap(), "it goes on");
    assert_eq!(
        fs::read_to_string(one.path("changed")).unwrap(),
        "one has written more than there was"
    );
    assert_eq!(fs::read_to_string(one.path("replaced")).unwrap(), "one has replaced it");
    assert!(!one.path("removed").exists());
    // The remedy is a change of attributes itself.
    flagged.end();
    wait_until_unblocked(&rig, &one, &two);
    assert_eq!(conflicts(&two.place.tree()), Vec::<PathBuf>::new());
    assert_eq!(
        fs::read_to_string(two.path("changed")).unwrap(),
        "one has written more than there was"
    );
    assert_eq!(fs::read_to_string(two.path("replaced")).unwrap(), "one has replaced it");
    assert!(!two.path("removed").exists());
    one.end();
    two.end();
}

#[test]
fn lines_in_a_blocked_file_wait_and_all_else_goes_on() {
    let rig = rig(156);
    let (mut one, mut two) = sharing(&rig, &["changed", "removed"]);
    let mut flagged = Flagged(Vec::new());
    for name in ["changed", "removed"] {
        flagged.set("+a", &two.path(name));
    }
    fs::write(one.path("changed"), "one has written\n").unwrap();
    fs::remove_file(one.path("removed")).unwrap();
    settle(&rig, &[&one, &two], "one has changed them");
    let mut lines = String::new();
    for round in 0..4 {
        let line = format!("line {round} of two\n");
        lines += &line;
        append(&two.path("changed"), &line);
        fs::write(two.path("of two"), &line).unwrap();
        fs::write(one.path("of one"), &line).unwrap();
        settle(&rig, &[&one, &two], &line);
        // Where the mark is lost the log reports everything as possibly changed.
        let held = if round == 3 { 1..=2 } else { 1..=1 };
        assert_eq!(two.status().error, None);
        assert!(held.contains(&two.status().held_nodes), "{round}");
        assert_eq!(fs::read_to_string(one.path("of two")).unwrap(), line);
        assert_eq!(fs::read_to_string(two.path("of one")).unwrap(), line);
        assert_eq!(fs::read_to_string(one.path("changed")).unwrap(), "one has written\n");
        let held = fs::read_to_string(two.path("changed")).unwrap();
        assert_eq!(held, format!("changed, at first\n{lines}"));
        match round {
            1 => {
                two.end();
                two.mount_at_once();
                two.begin();
            }
            2 => two.lose_mark(),
            _ => {}
        }
        settle(&rig, &[&one, &two], &line);
    }
    // A line in a file that others removed brings the file back.
    append(&two.path("removed"), "two goes on\n");
    settle(&rig, &[&one, &two], "two goes on");
    fs::set_permissions(one.path("changed"), fs::Permissions::from_mode(0o600)).unwrap();
    settle(&rig, &[&one, &two], "one has changed attributes");
    flagged.end();
    wait_until_unblocked(&rig, &one, &two);
    assert_eq!(
        fs::read_to_string(one.path("removed")).unwrap(),
        "removed, at first\ntwo goes on\n"
    );
    assert_eq!(fs::read_to_string(one.path("changed")).unwrap(), "one has written\n");
    let copies = conflicts(&one.place.tree());
    assert_eq!(copies.len(), 1, "{copies:?}");
    let copy = fs::read_to_string(one.path(copies[0].to_str().unwrap())).unwrap();
    assert_eq!(copy, format!("changed, at first\n{lines}"));
    one.end();
    two.end();
}

#[test]
fn a_tree_sent_in_full_undoes_nothing_that_is_blocked() {
    let rig = rig(157);
    let (mut one, mut two) = sharing(&rig, &["changed", "removed", "replaced", "other"]);
    let mut flagged = Flagged(Vec::new());
    for name in ["changed", "removed", "replaced"] {
        flagged.set("+i", &two.path(name));
    }
    fs::write(one.path("changed"), "one has written").unwrap();
    fs::remove_file(one.path("removed")).unwrap();
    fs::write(one.path("new"), "one has replaced it").unwrap();
    fs::rename(one.path("new"), one.path("replaced")).unwrap();
    settle(&rig, &[&one, &two], "one has changed them");
    two.lose_mark();
    fs::write(two.path("other"), "two has written").unwrap();
    settle(&rig, &[&one, &two], "two has sent everything");
    for machine in [&one, &two] {
        assert_eq!(fs::read_to_string(machine.path("other")).unwrap(), "two has written");
    }
    assert_eq!(fs::read_to_string(one.path("changed")).unwrap(), "one has written");
    assert_eq!(fs::read_to_string(one.path("replaced")).unwrap(), "one has replaced it");
    assert!(!one.path("removed").exists());
    flagged.end();
    wait_until_unblocked(&rig, &one, &two);
    assert_eq!(conflicts(&two.place.tree()), Vec::<PathBuf>::new());
    assert_eq!(fs::read_to_string(two.path("changed")).unwrap(), "one has written");
    assert_eq!(fs::read_to_string(two.path("replaced")).unwrap(), "one has replaced it");
    assert!(!two.path("removed").exists());
    one.end();
    two.end();
}

#[test]
fn what_is_new_at_both_and_cannot_be_moved_waits() {
    let rig = rig(158);
    let (mut one, mut two) = sharing(&rig, &["other"]);
    let mut flagged = Flagged(Vec::new());
    two.stop();
    fs::write(one.path("new"), "of one").unwrap();
    settle(&rig, &[&one], "one has made it");
    fs::write(two.path("new"), "of two").unwrap();
    flagged.set("+i", &two.path("new"));
    two.begin();
    settle(&rig, &[&one, &two], "both have made it");
    fs::write(two.path("other"), "it goes on").unwrap();
    settle(&rig, &[&one, &two], "it goes on");
    assert_eq!(two.status().error, None);
    assert_eq!(fs::read_to_string(one.path("other")).unwrap(), "it goes on");
    assert_eq!(fs::read_to_string(one.path("new")).unwrap(), "of one");
    assert_eq!(fs::read_to_string(two.path("new")).unwrap(), "of two");
    two.lose_mark();
    settle(&rig, &[&one, &two], "two has sent everything");
    assert_eq!(fs::read_to_string(one.path("new")).unwrap(), "of one");
    flagged.end();
    wait_until_unblocked(&rig, &one, &two);
    assert_eq!(fs::read_to_string(two.path("new")).unwrap(), "of one");
    let copies = conflicts(&one.place.tree());
    assert_eq!(copies.len(), 1, "{copies:?}");
    assert_eq!(
        fs::read_to_string(one.path(copies[0].to_str().unwrap())).unwrap(),
        "of two"
    );
    one.end();
    two.end();
}

#[test]
fn lines_in_a_blocked_file_that_others_replaced_wait() {
    let rig = rig(161);
    let (mut one, mut two) = sharing(&rig, &["replaced"]);
    let mut flagged = Flagged(Vec::new());
    flagged.set("+a", &two.path("replaced"));
    append(&two.path("replaced"), "line 0 of two\n");
    two.stop();
    settle(&rig, &[&one], "one alone");
    fs::write(one.path("new"), "one has replaced it").unwrap();
    fs::rename(one.path("new"), one.path("replaced")).unwrap();
    settle(&rig, &[&one], "one has replaced it");
    append(&two.path("replaced"), "line 1 of two\n");
    two.begin();
    settle(&rig, &[&one, &two], "both have changed it");
    append(&two.path("replaced"), "line 2 of two\n");
    fs::write(two.path("of two"), "it goes on").unwrap();
    fs::write(one.path("of one"), "it goes on").unwrap();
    settle(&rig, &[&one, &two], "it goes on");
    assert_eq!(two.status().error, None);
    assert_eq!(fs::read_to_string(one.path("of two")).unwrap(), "it goes on");
    assert_eq!(fs::read_to_string(two.path("of one")).unwrap(), "it goes on");
    assert_eq!(fs::read_to_string(one.path("replaced")).unwrap(), "one has replaced it");
    flagged.end();
    wait_until_unblocked(&rig, &one, &two);
    let copies = conflicts(&one.place.tree());
    assert_eq!(copies.len(), 1, "{copies:?}");
    let copy = fs::read_to_string(one.path(copies[0].to_str().unwrap())).unwrap();
    let lines = "replaced, at first\nline 0 of two\nline 1 of two\nline 2 of two\n";
    assert_eq!(copy, lines);
    one.end();
    two.end();
}

#[test]
fn what_is_new_in_a_directory_that_cannot_be_removed_is_kept() {
    for is_folded in [false, true] {
        let rig = rig(162);
        let (mut one, mut two) = sharing(&rig, &["other"]);
        fs::create_dir_all(one.path("dir/sub")).unwrap();
        for name in ["dir/sibling", "dir/inner", "dir/sub/inner"] {
            fs::write(one.path(name), "at first\n").unwrap();
        }
        settle(&rig, &[&one, &two], "one has made a directory");
        let mut flagged = Flagged(Vec::new());
        for name in ["dir/inner", "dir/sub/inner"] {
            flagged.set("+i", &two.path(name));
        }
        flagged.set("+a", &two.path("dir/sibling"));
        fs::remove_dir_all(one.path("dir")).unwrap();
        settle(&rig, &[&one, &two], "one has removed it");
        for round in 0..3 {
            if is_folded {
                two.give_up();
            }
            fs::write(two.path(&format!("dir/new {round}")), "of two").unwrap();
            fs::write(two.path(&format!("dir/sub/new {round}")), "of two").unwrap();
            symlink("other", two.path(&format!("dir/link {round}"))).unwrap();
            fs::create_dir(two.path(&format!("dir/empty {round}"))).unwrap();
            append(&two.path("dir/sibling"), "of two\n");
            fs::write(two.path("other"), format!("it goes on, {round}")).unwrap();
            settle(&rig, &[&one, &two], "two has made files");
            assert_eq!(two.status().error, None);
            let other = fs::read_to_string(one.path("other")).unwrap();
            assert_eq!(other, format!("it goes on, {round}"));
        }
        flagged.end();
        wait_until_unblocked(&rig, &one, &two);
        for round in 0..3 {
            for name in [format!("dir/new {round}"), format!("dir/sub/new {round}")] {
                assert_eq!(fs::read_to_string(one.path(&name)).unwrap(), "of two", "{name}");
            }
            let link = fs::read_link(one.path(&format!("dir/link {round}"))).unwrap();
            assert_eq!(link, Path::new("other"), "{round}");
            assert!(one.path(&format!("dir/empty {round}")).is_dir(), "{round}");
        }
        let sibling = fs::read_to_string(one.path("dir/sibling")).unwrap();
        assert_eq!(sibling, "at first\nof two\nof two\nof two\n");
        one.end();
        two.end();
    }
}

#[test]
fn a_blocked_file_that_is_removed_comes_back_as_others_have_it() {
    for is_at_once in [false, true] {
        let rig = rig(160);
        let (mut one, mut two) = sharing(&rig, &["changed"]);
        let mut flagged = Flagged(Vec::new());
        flagged.set("+i", &two.path("changed"));
        fs::write(one.path("changed"), "one has written").unwrap();
        settle(&rig, &[&one, &two], "one has changed it");
        if is_at_once {
            two.give_up();
        }
        flagged.end();
        fs::remove_file(two.path("changed")).unwrap();
        wait_until_unblocked(&rig, &one, &two);
        for machine in [&one, &two] {
            assert_eq!(fs::read_to_string(machine.path("changed")).unwrap(), "one has written");
        }
        one.end();
        two.end();
    }
}

/// Appends a line, if the file is there and takes it. True: a program may rely on it.
fn try_append(path: &Path, line: &str) -> bool {
    let appended = File::options()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    let refused = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
    match appended {
        Err(error) if refused.contains(&error.kind()) => false,
        appended => {
            appended.unwrap();
            true
        }
    }
}

/// Lines are only ever appended and files renamed, so at the end each line is in a file or a
/// conflict copy, on both sides.
#[test]
fn random_flags_and_lines_on_both_sides_lose_nothing() {
    let wanted = std::env::var("BYTEBACK_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = wanted.map_or(1600..1604, |seed: u64| seed..seed + 1);
    // They wait most of the time, for what is blocked to be tried again.
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || life_of_flags_and_lines(seed));
        }
    });
}

fn life_of_flags_and_lines(seed: u64) {
    println!("BYTEBACK_SEED={seed}");
    let rig = rig(seed);
    let mut random = SplitMix64::new(seed);
    let names = ["0", "1", "2", "3"];
    let (one, two) = sharing(&rig, &names);
    let mut machines = [one, two];
    let mut flagged = Flagged(Vec::new());
    let mut lines = Vec::new();
    for number in 0..120 {
        let index = usize::from(random.coin());
        let name = names[random.below(4) as usize];
        let path = machines[index].path(name);
        match random.below(24) {
            0..=14 => {
                let line = format!("line {number} of {index}");
                if try_append(&path, &line) {
                    lines.push(line);
                }
            }
            15..=17 => {
                let flag = if random.coin() { "a" } else { "i" };
                if path.exists() {
                    // An immutable file takes no other flag.
                    chattr("-ai", &path);
                    chattr(&format!("+{flag}"), &path);
                    flagged.0.push(("-ai", path));
                }
            }
            18 => {
                if path.exists() {
                    chattr("-ai", &path);
                }
            }
            19 => {
                let renamed = fs::rename(
                    &path,
                    machines[index]
                        .path(names[random.below(4) as usize])
                        .with_extension(number.to_string()),
                );
                drop(renamed);
            }
            20 => machines[index].lose_mark(),
            21 => {
                machines[index].end();
                machines[index].mount_at_once();
                machines[index].begin();
            }
            _ => settle(&rig, &[&machines[0], &machines[1]], &format!("{seed}: {number}")),
        }
    }
    // Renamed files have taken their flags with them.
    for machine in &machines {
        for entry in fs::read_dir(machine.place.tree()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                chattr("-ai", &path);
            }
        }
    }
    let [mut one, mut two] = machines;
    let began = Instant::now();
    while [&one, &two].iter().any(|machine| machine.status().left_out_names > 0) {
        assert!(began.elapsed() < PATIENCE * 2, "{seed}: {:#?}", two.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    settle(&rig, &[&one, &two], &format!("{seed}: the end"));
    assert_same(&[&one, &two], &format!("{seed}: the end"));
    let all = look(&one.place.tree());
    let all: Vec<String> = all
        .into_values()
        .map(|(_, content, _)| String::from_utf8(content).unwrap())
        .collect();
    let is_kept = |line: &&String| all.iter().any(|content| content.lines().any(|found| found == **line));
    let missing: Vec<&String> = lines.iter().filter(|line| !is_kept(line)).collect();
    assert!(missing.is_empty(), "{seed}: {missing:?} of {} lines", lines.len());
    one.end();
    two.end();
}
