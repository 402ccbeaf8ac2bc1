//! A machine whose file system does not tell some names apart, in sync with one whose does: nothing
//! is overwritten, names that cannot exist there are left out and reported, they come when they
//! can, and their absence is never sent to others.

use super::engine::rig;
use super::folding_disk::FoldingDisk;
use super::receiving::{Looked, Machine, assert_same, conflicts, look, settle, try_look};
use byteback_control::SyncLeftOut;
use byteback_host::random::SplitMix64;
use byteback_testkit::mounted::PATIENCE;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A machine on a folding file system. The disk goes last.
struct Folded {
    machine: Machine,
    _disk: FoldingDisk,
}

impl Folded {
    fn started(rig: &Rig, name: &str) -> Self {
        let mut machine = Machine::new(rig, name);
        let disk = FoldingDisk::over(&machine.path(""));
        machine.mount_at_once();
        machine.begin();
        Self { machine, _disk: disk }
    }

    fn restart(&mut self) {
        self.machine.end();
        self.machine.mount_at_once();
        self.machine.begin();
    }

    fn left_out(&self) -> Vec<String> {
        let reported = self.machine.status().left_out;
        assert_eq!(reported.len() as u64, self.machine.status().left_out_names);
        let path = |left_out: &SyncLeftOut| {
            assert!(left_out.collides, "{left_out:?}");
            String::from_utf8(left_out.path.as_bytes().to_vec()).unwrap()
        };
        reported.iter().map(path).collect()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn folded(path: &Path) -> String {
    path.to_str().unwrap().replace("e\u{301}", "\u{e9}").to_lowercase()
}

/// Waits until both machines have nothing to send or to receive, and names that can be let in are
/// there.
fn settled(rig: &Rig, one: &Machine, two: &Folded, what: &str) {
    let began = Instant::now();
    loop {
        settle(rig, &[one, &two.machine], what);
        let left_out = two.left_out();
        // A left-out name may be let in just now.
        let here = try_look(&two.machine.path(""));
        let is_in_its_way = |left_out: &str, path: &Path| {
            let left_out = Path::new(left_out);
            path != left_out && folded(path) == folded(left_out)
        };
        let is_left_out = |here: &Looked, left_out: &String| here.keys().any(|path| is_in_its_way(left_out, path));
        let is_calm = |here: &Looked| left_out.iter().all(|left_out| is_left_out(here, left_out));
        if here.as_ref().is_ok_and(is_calm) {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{what}: {left_out:?} could be there: {:?}",
            here.map(|here| here.into_keys().collect::<Vec<_>>())
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn colliding_names_overwrite_nothing_and_land_when_they_can() {
    let rig = rig(141);
    let mut one = Machine::started(&rig, "one");
    let mut two = Folded::started(&rig, "two");
    fs::write(one.path("A"), "upper").unwrap();
    settled(&rig, &one, &two, "the first");
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    fs::write(one.path("a"), "lower").unwrap();
    for (dir, file) in [("D", "x"), ("d", "y")] {
        fs::create_dir(one.path(dir)).unwrap();
        fs::write(one.path(dir).join(file), file).unwrap();
    }
    for name in [decomposed, composed] {
        fs::write(one.path(name), name).unwrap();
        settled(&rig, &one, &two, "the second");
    }
    let all = ["A", "D", "a", decomposed, composed, "d"].map(str::to_owned);
    let all: BTreeSet<String> = all.into();
    let check = |one: &Machine, two: &Folded| {
        assert_eq!(names(&one.path("")), all.iter().cloned().collect::<Vec<_>>());
        assert_eq!(names(&two.machine.path("")), ["A", "D", decomposed]);
        assert_eq!(fs::read(two.machine.path("A")).unwrap(), b"upper");
        assert_eq!(fs::read(two.machine.path(decomposed)).unwrap(), decomposed.as_bytes());
        assert_eq!(names(&two.machine.path("D")), ["x"]);
        assert_eq!(
            BTreeSet::from_iter(two.left_out()),
            ["a", "d", composed].map(str::to_owned).into()
        );
    };
    check(&one, &two);
    // Changes of these names elsewhere change nothing here.
    fs::write(one.path("a"), "lower, again").unwrap();
    fs::write(one.path("d/z"), "z").unwrap();
    settled(&rig, &one, &two, "they change");
    check(&one, &two);
    // Neither does a restart, nor sending everything once more.
    two.restart();
    settled(&rig, &one, &two, "restarted");
    check(&one, &two);
    two.machine.give_up();
    fs::write(two.machine.path("D/w"), "w").unwrap();
    settled(&rig, &one, &two, "everything");
    fs::remove_file(two.machine.path("D/w")).unwrap();
    settled(&rig, &one, &two, "everything");
    two.restart();
    check(&one, &two);
    // Names that it does not hold are not taken from others when its whole tree is sent in place of
    // the server's.
    fs::create_dir_all(one.path("d/deep/deeper")).unwrap();
    fs::write(one.path("d/deep/deeper/v"), "v").unwrap();
    settled(&rig, &one, &two, "deep");
    let before = look(&one.path(""));
    two.machine.lose_mark();
    fs::write(two.machine.path("D/w"), "w").unwrap();
    settled(&rig, &one, &two, "in place of what is there");
    fs::remove_file(two.machine.path("D/w")).unwrap();
    settled(&rig, &one, &two, "in place of what is there");
    check(&one, &two);
    let after = look(&one.path(""));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert_eq!(fs::read(one.path("d/deep/deeper/v")).unwrap(), b"v");
    fs::remove_dir_all(one.path("d/deep")).unwrap();
    settled(&rig, &one, &two, "as before");
    // The name in the way is renamed here, or removed there.
    fs::rename(two.machine.path("A"), two.machine.path("B")).unwrap();
    settled(&rig, &one, &two, "renamed here");
    assert_eq!(fs::read(two.machine.path("a")).unwrap(), b"lower, again");
    assert_eq!(fs::read(two.machine.path("B")).unwrap(), b"upper");
    fs::remove_dir_all(one.path("D")).unwrap();
    settled(&rig, &one, &two, "removed there");
    assert_eq!(names(&two.machine.path("d")), ["y", "z"]);
    fs::remove_file(one.path(composed)).unwrap();
    settled(&rig, &one, &two, "left out no more");
    assert_eq!(two.left_out(), Vec::<String>::new());
    assert_same(&[&one, &two.machine], "no name is left out");
    // A name that is only spelled in another way.
    fs::rename(one.path("B"), one.path("b")).unwrap();
    fs::rename(one.path("d"), one.path("D")).unwrap();
    settled(&rig, &one, &two, "spelled otherwise");
    assert_eq!(names(&two.machine.path("")), ["D", "a", "b", decomposed]);
    assert_same(&[&one, &two.machine], "spelled otherwise");
    assert_eq!(conflicts(&one.path("")), Vec::<PathBuf>::new());
    one.end();
    two.machine.end();
}

/// A program that takes a left-out name over at the moment when it gets free does not take the node
/// behind it from others.
#[test]
fn left_out_name_taken_by_a_program_costs_others_nothing() {
    let rig = rig(142);
    let mut one = Machine::started(&rig, "one");
    let mut two = Folded::started(&rig, "two");
    fs::write(one.path("A"), "upper").unwrap();
    fs::write(one.path("a"), "lower").unwrap();
    settled(&rig, &one, &two, "both");
    assert_eq!(two.left_out(), ["a"]);
    two.machine.stop();
    fs::remove_file(two.machine.path("A")).unwrap();
    fs::write(two.machine.path("a"), "by two").unwrap();
    two.machine.begin();
    settled(&rig, &one, &two, "taken over");
    assert_same(&[&one, &two.machine], "taken over");
    let held: BTreeSet<Vec<u8>> = names(&one.path(""))
        .iter()
        .map(|name| fs::read(one.path(name)).unwrap())
        .collect();
    assert_eq!(
        held,
        [b"lower".to_vec(), b"by two".to_vec()].into(),
        "{:?}",
        names(&one.path(""))
    );
    one.end();
    two.machine.end();
}

/// Spellings of some names.
const SPELLINGS: [&str; 8] = ["a", "A", "b", "B", "caf\u{e9}", "cafe\u{301}", "CAF\u{c9}", "x"];

fn paths(top: &Path, want_dir: bool) -> Vec<PathBuf> {
    let found = look(top).into_iter();
    let is_dir = |mode: u32| mode & 0o170_000 == 0o040_000;
    let found = found.filter(|(_, (mode, ..))| is_dir(*mode) == want_dir);
    found.map(|(path, _)| path).collect()
}

fn one_of<T: Clone>(random: &mut SplitMix64, all: &[T]) -> Option<T> {
    (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize].clone())
}

/// A program changes something. Impossible changes are not made.
fn change(top: &Path, random: &mut SplitMix64, may_respell: bool) {
    let mut dirs = paths(top, true);
    dirs.push(PathBuf::new());
    let files = paths(top, false);
    let name = SPELLINGS[random.below(SPELLINGS.len() as u64) as usize];
    let dir = top.join(one_of(random, &dirs).unwrap());
    // A program of a folding machine that means a name by another spelling finds the existing node.
    let spelled = names(&dir);
    let is_other = |other: &String| *other != name && other.to_lowercase() == name.to_lowercase();
    if !may_respell && (spelled.iter().any(is_other) || !name.is_ascii()) {
        return;
    }
    let len = 1 + random.below(3000) as usize;
    let (target, content) = (dir.join(name), random.bytes(len));
    let file = one_of(random, &files).map(|file| top.join(file));
    match (random.below(8), file) {
        (0..3, _) => drop(fs::write(&target, content)),
        (3, _) => drop(fs::create_dir(&target)),
        (4, Some(file)) => drop(fs::rename(file, &target)),
        (5, Some(file)) => drop(fs::remove_file(file)),
        (6, Some(file)) => drop(fs::write(file, content)),
        (7, _) => match dirs.len() > 1 && random.below(3) == 0 {
            true => drop(fs::remove_dir_all(top.join(&dirs[0]))),
            false => drop(fs::rename(top.join(&dirs[0]), &target)),
        },
        _ => {}
    }
}

#[test]
fn folding_loses_nothing_and_ends_equal_but_for_collisions() {
    let first = seed(143);
    for life in 0..3 {
        let seed = first + life;
        let mut random = SplitMix64::new(seed);
        let rig = rig(seed);
        let mut one = Machine::started(&rig, "one");
        let mut two = Folded::started(&rig, "two");
        for round in 0..12 {
            let what = format!("seed {seed}, round {round}");
            for _ in 0..random.below(5) {
                change(&one.path(""), &mut random, true);
            }
            if random.coin() {
                settled(&rig, &one, &two, &what);
            }
            for _ in 0..random.below(3) {
                change(&two.machine.path(""), &mut random, false);
            }
            match random.below(6) {
                0 => two.restart(),
                1 => two.machine.give_up(),
                _ => {}
            }
            settled(&rig, &one, &two, &what);
            let (there, here) = (look(&one.path("")), look(&two.machine.path("")));
            for (path, found) in &here {
                assert_eq!(
                    there.get(path).map(|there| (there.0, &there.1)),
                    Some((found.0, &found.1)),
                    "{what}: {path:?}"
                );
            }
            let left_out: Vec<PathBuf> = two.left_out().iter().map(PathBuf::from).collect();
            for left_out in &left_out {
                assert!(
                    there.contains_key(left_out) && !here.contains_key(left_out),
                    "{what}: {left_out:?}"
                );
            }
            for path in there.keys().filter(|path| !here.contains_key(*path)) {
                assert!(
                    left_out.iter().any(|above| path.starts_with(above)),
                    "{what}: {path:?} is missing"
                );
            }
        }
        // Colliding names are removed on the machine that has both.
        let what = format!("seed {seed}, at the end");
        for left_out in two.left_out() {
            let path = one.path(&left_out);
            match path.is_dir() {
                true => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
        settled(&rig, &one, &two, &what);
        assert_eq!(two.left_out(), Vec::<String>::new(), "{what}");
        assert_same(&[&one, &two.machine], &what);
        one.end();
        two.machine.end();
    }
}
