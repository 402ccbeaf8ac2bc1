//! Owners of new files, permissions, and the fate of set-id bits. The mount runs as root and serves
//! others.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use byteback_mount::CacheMode;

use crate::harness::{Fixture, mode_of, run_as, set_mode, try_as};
use crate::other_user::{call_script, program_in};

const ANNA: u32 = 61_001;
const BERT: u32 = 61_002;
const CLUB: u32 = 61_100;

fn owner(fixture: &Fixture, name: &str) -> (u32, u32) {
    let seen = fs::symlink_metadata(fixture.below(name)).unwrap();
    (seen.uid(), seen.gid())
}

#[test]
fn new_files_have_the_callers_owner_group_and_umask() {
    let fixture = Fixture::new();
    run_as(
        ANNA,
        "",
        &fixture.tree(),
        "umask 027; echo x > file; mkdir dir; ln -s a link; mkfifo fifo; umask 0; echo y > open",
    );
    for name in ["file", "dir", "link", "fifo", "open"] {
        assert_eq!(owner(&fixture, name), (ANNA, ANNA), "{name}");
    }
    let modes: Vec<u32> = ["file", "dir", "fifo", "open"]
        .iter()
        .map(|name| mode_of(&fixture.below(name)))
        .collect();
    assert_eq!(modes, [0o640, 0o750, 0o640, 0o666]);
    // And root's own afterwards, by the same threads.
    for n in 0..20 {
        fs::write(fixture.at(&format!("root{n}")), b"").unwrap();
        assert_eq!(owner(&fixture, &format!("root{n}")), (0, 0));
    }
}

#[test]
fn set_group_id_directories_pass_on_their_group() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("shared")).unwrap();
    chown(fixture.at("shared"), None, Some(CLUB)).unwrap();
    set_mode(&fixture.at("shared"), 0o2777);
    run_as(ANNA, "", &fixture.at("shared"), "echo x > file; mkdir dir");
    assert_eq!(owner(&fixture, "shared/file"), (ANNA, CLUB));
    assert_eq!(owner(&fixture, "shared/dir"), (ANNA, CLUB));
    assert_eq!(mode_of(&fixture.below("shared/dir")) & 0o2000, 0o2000);
}

/// Only a member of the group may create a program with that group's rights.
#[test]
fn set_group_id_of_new_files_depends_on_membership() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("shared")).unwrap();
    chown(fixture.at("shared"), None, Some(CLUB)).unwrap();
    set_mode(&fixture.at("shared"), 0o2777);
    let program = program_in(fixture.beside());
    let script = |name: &str| call_script(&program, &["create", name, "2775"]);
    run_as(ANNA, "", &fixture.at("shared"), &script("outsider"));
    run_as(ANNA, &CLUB.to_string(), &fixture.at("shared"), &script("member"));
    assert_eq!(mode_of(&fixture.below("shared/outsider")), 0o775);
    assert_eq!(mode_of(&fixture.below("shared/member")), 0o2775);
}

#[test]
fn permissions_are_enforced() {
    let fixture = Fixture::new();
    fs::write(fixture.at("secret"), b"s").unwrap();
    set_mode(&fixture.at("secret"), 0o600);
    assert!(!try_as(ANNA, "", &fixture.tree(), "cat secret").0);
    chown(fixture.at("secret"), None, Some(CLUB)).unwrap();
    set_mode(&fixture.at("secret"), 0o640);
    assert!(!try_as(ANNA, "", &fixture.tree(), "cat secret").0);
    assert_eq!(run_as(ANNA, &CLUB.to_string(), &fixture.tree(), "cat secret"), "s");
    assert!(!try_as(ANNA, &CLUB.to_string(), &fixture.tree(), "echo x > secret").0);
    // A sticky directory keeps others from removing.
    fs::create_dir(fixture.at("tmp")).unwrap();
    set_mode(&fixture.at("tmp"), 0o1777);
    run_as(ANNA, "", &fixture.at("tmp"), "echo a > hers");
    assert!(!try_as(BERT, "", &fixture.at("tmp"), "rm -f hers").0);
    assert!(!try_as(BERT, "", &fixture.at("tmp"), "chmod 777 hers").0);
    run_as(ANNA, "", &fixture.at("tmp"), "rm hers");
    // Creating where a group may, by a supplementary group.
    fs::create_dir(fixture.at("club")).unwrap();
    chown(fixture.at("club"), None, Some(CLUB)).unwrap();
    set_mode(&fixture.at("club"), 0o770);
    assert!(!try_as(ANNA, "", &fixture.tree(), "echo x > club/f").0);
    run_as(ANNA, &CLUB.to_string(), &fixture.tree(), "echo x > club/f");
    assert_eq!(owner(&fixture, "club/f"), (ANNA, ANNA));
}

#[test]
fn set_id_bits_go_when_another_user_changes_the_data() {
    let fixture = Fixture::new();
    let copy = call_script(&program_in(fixture.beside()), &["copy", "src", "f"]);
    let changes = [
        ("write", "printf x | dd of=f conv=notrunc status=none"),
        ("open-trunc", "true > f"),
        ("truncate", "truncate -s 3 f"),
        ("fallocate", "fallocate -l 100000 f"),
        ("copy", &*copy),
    ];
    fs::write(fixture.at("src"), b"source").unwrap();
    for (kind, script) in changes {
        for (before, after) in [(0o6777, 0o777), (0o2767, 0o2767)] {
            fs::write(fixture.at("f"), b"program").unwrap();
            set_mode(&fixture.at("f"), before);
            run_as(ANNA, "", &fixture.tree(), script);
            assert_eq!(mode_of(&fixture.below("f")), after, "{kind} below, from {before:o}");
            assert_eq!(mode_of(&fixture.at("f")), after, "{kind} as seen, from {before:o}");
        }
    }
    // Root keeps them, a new owner does not.
    set_mode(&fixture.at("f"), 0o6755);
    fs::write(fixture.at("f"), b"root writes").unwrap();
    assert_eq!(mode_of(&fixture.at("f")), 0o6755);
    chown(fixture.at("f"), Some(ANNA), None).unwrap();
    assert_eq!(mode_of(&fixture.at("f")), 0o755);
}

/// Nobody looks at the program between the change and its start: the kernel must not go by the mode
/// that it remembers.
#[test]
fn a_changed_program_runs_without_the_owners_rights() {
    let changes = [
        ("write", "printf x >> p"),
        (
            "direct write",
            "dd if=/dev/zero of=p bs=4096 count=1 oflag=direct,append conv=notrunc status=none",
        ),
        ("fallocate", "fallocate -l 1000000 p"),
        ("truncate", "truncate -s 1000000 p"),
    ];
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        for fixture in [Fixture::with_mode(mode), Fixture::in_volume(mode)] {
            for (kind, script) in changes {
                let program = fixture.at("p");
                // By another process: a descriptor of ours could be inherited by what another test
                // starts just then.
                run_as(0, "0", &fixture.tree(), "cp /usr/bin/id p");
                chown(&program, Some(ANNA), None).unwrap();
                set_mode(&program, 0o4777);
                let before = run_as(BERT, "", &fixture.tree(), "./p -u");
                assert_eq!(before.trim(), ANNA.to_string(), "{mode:?}, {kind}");
                let after = run_as(BERT, "", &fixture.tree(), &format!("{script} && ./p -u"));
                assert_eq!(after.trim(), BERT.to_string(), "{mode:?}, {kind}");
                fs::remove_file(&program).unwrap();
            }
        }
    }
}

#[test]
fn capabilities_of_a_program_go_when_it_is_changed() {
    for fixture in [Fixture::new(), Fixture::in_volume(CacheMode::Exact)] {
        for script in ["printf x >> p", "true > p", "truncate -s 3 p", "fallocate -l 1000000 p"] {
            fs::copy("/usr/bin/id", fixture.at("p")).unwrap();
            set_mode(&fixture.at("p"), 0o777);
            let has_it = "getfattr -d -m security.capability p";
            // cap_net_raw, as setcap would write it.
            let give = "setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 p";
            let given = run_as(0, "0", &fixture.tree(), &format!("{give} && {has_it}"));
            assert!(given.contains("security.capability"), "{given}");
            let left = run_as(BERT, "", &fixture.tree(), &format!("{script} && {has_it}"));
            assert_eq!(left, "", "{script}");
            fs::remove_file(fixture.at("p")).unwrap();
        }
    }
}

#[test]
fn acls_are_kept_and_enforced() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"acl").unwrap();
    set_mode(&fixture.at("f"), 0o600);
    assert!(!try_as(ANNA, "", &fixture.tree(), "cat f").0);
    run_as(0, "0", &fixture.tree(), &format!("setfacl -m u:{ANNA}:r f"));
    assert_eq!(run_as(ANNA, "", &fixture.tree(), "cat f"), "acl");
    assert!(!try_as(BERT, "", &fixture.tree(), "cat f").0);
    assert!(!try_as(ANNA, "", &fixture.tree(), "echo x >> f").0);
    // chmod moves the mask, and with it what Anna may.
    set_mode(&fixture.at("f"), 0o600);
    assert!(!try_as(ANNA, "", &fixture.tree(), "cat f").0);
    let shown = run_as(0, "0", &fixture.tree(), "getfacl -cn f");
    assert!(
        shown.contains(&format!("user:{ANNA}:r--")) && shown.contains("mask::---"),
        "{shown}"
    );
}

#[test]
fn default_acls_replace_the_umask() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    set_mode(&fixture.at("d"), 0o777);
    run_as(
        0,
        "0",
        &fixture.tree(),
        &format!("setfacl -d -m u::rwx,g::rwx,o::r-x,u:{BERT}:rwx d"),
    );
    run_as(ANNA, "", &fixture.at("d"), "umask 077; echo x > f; mkdir sub");
    let native = fixture.below("native");
    fs::create_dir(&native).unwrap();
    set_mode(&native, 0o777);
    run_as(
        0,
        "0",
        &native,
        &format!("setfacl -d -m u::rwx,g::rwx,o::r-x,u:{BERT}:rwx ."),
    );
    run_as(ANNA, "", &native, "umask 077; echo x > f; mkdir sub");
    for name in ["f", "sub"] {
        let shown = |dir: &std::path::Path| run_as(0, "0", dir, &format!("getfacl -cn {name}"));
        assert_eq!(shown(&fixture.at("d")), shown(&native), "{name}");
    }
}

#[test]
fn an_acl_set_from_outside_the_group_takes_set_group_id_away() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"").unwrap();
    chown(fixture.at("f"), Some(ANNA), Some(CLUB)).unwrap();
    for (groups, after) in [("", 0), (&*CLUB.to_string(), 0o2000)] {
        set_mode(&fixture.at("f"), 0o2770);
        run_as(ANNA, groups, &fixture.tree(), &format!("setfacl -m u:{BERT}:r f"));
        assert_eq!(mode_of(&fixture.at("f")) & 0o2000, after, "groups {groups:?}");
    }
}
