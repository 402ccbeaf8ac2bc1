//! Immutable and append-only files and directories: always saved, restored with `--flags`, and an
//! obstacle without it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use byteback_host::tree::{InodeFlags, inode_flags, open_path_at};
use byteback_testkit::tools::run;

use crate::world::World;

/// A world that clears its flags when it is dropped: otherwise nothing could remove it.
struct Flagged(World);

impl Drop for Flagged {
    fn drop(&mut self) {
        let _ = Command::new("chattr")
            .args(["-R", "-f", "-ia"])
            .arg(self.0.path(""))
            .stderr(Stdio::null())
            .status();
    }
}

fn chattr(flags: &str, path: &Path) {
    run("chattr", &[flags, path.to_str().unwrap()]);
}

fn flags_of(dir: &Path, name: &str) -> InodeFlags {
    let path = dir.join(name);
    let above = fs::File::open(path.parent().unwrap()).unwrap();
    let named = open_path_at(above, path.file_name().unwrap()).unwrap();
    inode_flags(named).unwrap()
}

/// Flags of each of the files below, in this order.
fn all_flags(dir: &Path) -> [InodeFlags; 5] {
    ["archive", "archive/inside", "fixed", "journal", "plain"].map(|name| flags_of(dir, name))
}

const SET: [InodeFlags; 5] = [
    InodeFlags::IMMUTABLE,
    InodeFlags::IMMUTABLE,
    InodeFlags::IMMUTABLE,
    InodeFlags::APPEND_ONLY,
    InodeFlags::NONE,
];

const UNSET: [InodeFlags; 5] = [InodeFlags::NONE; 5];

fn flag_all(dir: &Path) {
    chattr("+i", &dir.join("archive/inside"));
    chattr("+i", &dir.join("archive"));
    chattr("+i", &dir.join("fixed"));
    chattr("+a", &dir.join("journal"));
}

fn unflag_all(dir: &Path) {
    for name in ["archive", "archive/inside", "fixed", "journal"] {
        chattr("-ia", &dir.join(name));
    }
}

fn flagged_tree() -> Flagged {
    let flagged = Flagged(World::mounted());
    let tree = flagged.0.tree();
    fs::create_dir(tree.join("archive")).unwrap();
    fs::write(tree.join("archive/inside"), "inside").unwrap();
    fs::hard_link(tree.join("archive/inside"), tree.join("archive/second name")).unwrap();
    fs::write(tree.join("fixed"), "never to be changed").unwrap();
    fs::write(tree.join("journal"), "one line\n").unwrap();
    fs::write(tree.join("plain"), "as always").unwrap();
    flag_all(&tree);
    flagged.0.backup();
    flagged
}

/// Changes every file, and sets the flags again.
fn change_all(tree: &Path) {
    unflag_all(tree);
    fs::write(tree.join("archive/inside"), "INSIDE").unwrap();
    fs::write(tree.join("archive/new"), "new").unwrap();
    fs::write(tree.join("fixed"), "changed after all").unwrap();
    fs::write(tree.join("journal"), "another\n").unwrap();
    flag_all(tree);
}

fn assert_same_files(one: &Path, other: &Path) {
    let names = [
        "archive/inside",
        "archive/second name",
        "archive/new",
        "fixed",
        "journal",
        "plain",
    ];
    for name in names {
        assert_eq!(fs::read(one.join(name)).ok(), fs::read(other.join(name)).ok(), "{name}");
    }
}

#[test]
fn flags_come_back_where_they_are_asked_for() {
    let flagged = flagged_tree();
    let world = &flagged.0;
    let restore = |target: &str, more: &[&str]| {
        let target = world.path(target);
        world.about_tree(
            "restore",
            &[&["latest", "--target", target.to_str().unwrap()], more].concat(),
        )
    };
    let (plain, target) = (world.path("without"), world.path("with"));
    restore("without", &[]).fine();
    assert_eq!(all_flags(&plain), UNSET);
    restore("with", &["--flags"]).fine();
    assert_eq!(all_flags(&target), SET);
    assert_same_files(&world.tree(), &target);
    let times = fs::metadata(target.join("archive")).unwrap().modified().unwrap();

    // Flagged files block a restore without --flags, which is reported.
    change_all(&world.tree());
    world.backup();
    let refused = restore("with", &["--overwrite"]).ends_with(1);
    assert!(
        refused
            .stderr
            .contains("is immutable or append-only here (lsattr); --flags replaces it"),
        "{}",
        refused.stderr
    );
    assert_eq!(all_flags(&target), SET);
    assert_eq!(fs::read(target.join("fixed")).unwrap(), b"never to be changed");

    // With --flags they do not; files to be removed go as well.
    fs::create_dir_all(target.join("left over/below")).unwrap();
    fs::write(target.join("left over/below/file"), "x").unwrap();
    let elsewhere = world.path("elsewhere");
    fs::hard_link(target.join("left over/below/file"), &elsewhere).unwrap();
    for name in ["left over/below/file", "left over/below", "left over"] {
        chattr("+i", &target.join(name));
    }
    restore("with", &["--overwrite", "--delete", "--flags"]).fine();
    assert_same_files(&world.tree(), &target);
    assert_eq!(all_flags(&target), SET);
    assert!(!target.join("left over").exists());
    assert_eq!(flags_of(&world.path(""), "elsewhere"), InodeFlags::IMMUTABLE);
    assert_ne!(fs::metadata(target.join("archive")).unwrap().modified().unwrap(), times);

    // Flags that were cleared are cleared by a restore.
    unflag_all(&world.tree());
    world.backup();
    let reported = world.about_tree("diff", &["latest~1", "latest"]).fine();
    assert!(reported.stdout.contains("flags"), "{}", reported.stdout);
    restore("with", &["--overwrite", "--flags"]).fine();
    assert_eq!(all_flags(&target), UNSET);
}

#[test]
fn flags_in_a_mounted_folder_are_taken_away_and_set() {
    let flagged = flagged_tree();
    let (world, tree) = (&flagged.0, flagged.0.tree());
    change_all(&tree);
    let restore = |more: &[&str]| {
        let arguments = ["latest", "--target", tree.to_str().unwrap(), "--overwrite"];
        world.about_tree("restore", &[&arguments, more].concat())
    };
    restore(&[])
        .ends_with(1)
        .says("is immutable or append-only here (lsattr); --flags replaces it");
    assert_eq!(fs::read(tree.join("fixed")).unwrap(), b"changed after all");
    restore(&["--flags"]).fine();
    assert_eq!(all_flags(&tree), SET);
    assert_eq!(fs::read(tree.join("fixed")).unwrap(), b"never to be changed");
    assert_eq!(fs::read(tree.join("archive/inside")).unwrap(), b"inside");
    assert_eq!(fs::read(tree.join("journal")).unwrap(), b"one line\n");
}

#[test]
fn single_file_is_restored_into_a_directory_with_flags() {
    let flagged = flagged_tree();
    let world = &flagged.0;
    let target = world.path("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("fixed"), "something else").unwrap();
    chattr("+i", &target.join("fixed"));
    chattr("+i", &target);
    let restore = |more: &[&str]| {
        let arguments = ["latest:fixed", "--target", target.to_str().unwrap(), "--overwrite"];
        world.about_tree("restore", &[&arguments, more].concat())
    };
    restore(&[]).ends_with(1);
    assert_eq!(fs::read(target.join("fixed")).unwrap(), b"something else");
    restore(&["--flags"]).fine();
    assert_eq!(fs::read(target.join("fixed")).unwrap(), b"never to be changed");
    assert_eq!(flags_of(&target, "fixed"), InodeFlags::IMMUTABLE);
    assert_eq!(flags_of(&world.path(""), "target"), InodeFlags::IMMUTABLE);
}

#[test]
fn pull_changes_what_has_other_flags_and_nothing_else() {
    let flagged = flagged_tree();
    let world = &flagged.0;
    let target = world.path("pulled");
    let repository = world.repository();
    let pull = |more: &[&str]| {
        let arguments = [&["pull", &repository, target.to_str().unwrap()], more].concat();
        world.run(&arguments)
    };
    pull(&[]).fine();
    assert_eq!(all_flags(&target), UNSET);
    let foreseen = pull(&["-n", "--flags"]).fine();
    assert!(
        foreseen.stdout.contains("4 attribute-only changes"),
        "{}",
        foreseen.stdout
    );
    assert_eq!(all_flags(&target), UNSET);
    pull(&["--flags"]).fine();
    assert_eq!(all_flags(&target), SET);
    for more in [&["--flags"][..], &[]] {
        let again = pull(more).fine();
        assert!(again.stdout.contains("already"), "{}", again.stdout);
    }
    change_all(&world.tree());
    world.backup();
    pull(&[]).ends_with(1);
    assert_eq!(all_flags(&target), SET);
    pull(&["--flags"]).fine();
    assert_same_files(&world.tree(), &target);
    assert_eq!(all_flags(&target), SET);
}

#[test]
fn push_tells_the_flags_of_what_it_sends() {
    let flagged = Flagged(World::served());
    let world = &flagged.0;
    let (source, target) = (world.path("source"), world.path("pulled"));
    fs::create_dir_all(source.join("archive")).unwrap();
    for name in ["archive/inside", "fixed", "journal", "plain"] {
        fs::write(source.join(name), name).unwrap();
    }
    let url = format!("{}/pushed", world.url());
    let push = || world.run(&["push", source.to_str().unwrap(), &url]);
    let pull = || world.run(&["pull", "--flags", &url, target.to_str().unwrap()]);
    push().fine();
    flag_all(&source);
    push().fine();
    pull().fine();
    assert_eq!(all_flags(&target), SET);
    unflag_all(&source);
    push().fine();
    pull().fine();
    assert_eq!(all_flags(&target), UNSET);
}
