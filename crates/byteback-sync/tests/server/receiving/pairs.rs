//! Every pair of changes that two machines can make at once: one makes this, the other that,
//! neither knowing of it; one after the other (as all pairs exist both ways round, that is both
//! orders), and together. Changes that do not depend on their order on one machine are merged,
//! without any conflict; of everything else both machines make the same, and everything that a
//! program wrote is still there, in a file or in a conflict copy.

use super::{Machine, assert_same, look, rig, settle};
use crate::engine::assert_server_has;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

type Change = (&'static str, fn(&Path, &str) -> io::Result<()>);

/// Two of these are in conflict: contents are merged by whole files.
const OF_CONTENTS: [&str; 3] = ["overwrite", "append", "shorten"];

/// The possible changes in a directory as `prepare` leaves it. The written bytes name the writer.
const CHANGES: [Change; 24] = [
    ("nothing", |_, _| Ok(())),
    ("overwrite", |dir, who| {
        let file = File::options().write(true).open(dir.join("file"))?;
        file.write_all_at(who.as_bytes(), 5000)
    }),
    ("append", |dir, who| {
        use io::Write;
        File::options()
            .append(true)
            .open(dir.join("file"))?
            .write_all(who.as_bytes())
    }),
    ("shorten", |dir, _| {
        File::options().write(true).open(dir.join("file"))?.set_len(10)
    }),
    ("save by rename", |dir, who| {
        fs::write(dir.join(format!("temporary of {who}")), who)?;
        fs::rename(dir.join(format!("temporary of {who}")), dir.join("file"))
    }),
    ("remove", |dir, _| fs::remove_file(dir.join("file"))),
    ("rename", |dir, who| {
        fs::rename(dir.join("file"), dir.join(format!("renamed by {who}")))
    }),
    ("rename the same way", |dir, _| rename_to_new(dir, "file", "renamed")),
    ("move into the directory", |dir, _| {
        rename_to_new(dir, "file", "dir/file")
    }),
    ("replace by another", |dir, _| {
        File::open(dir.join("other"))?;
        fs::rename(dir.join("other"), dir.join("file"))
    }),
    ("mode", |dir, who| {
        let mode = if who == "one" { 0o600 } else { 0o640 };
        fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(mode))
    }),
    ("link", |dir, who| {
        fs::hard_link(dir.join("file"), dir.join(format!("link of {who}")))
    }),
    ("make a file", |dir, who| new_file(&dir.join("new"), who)),
    ("make a directory", |dir, who| {
        fs::create_dir(dir.join("new"))?;
        new_file(&dir.join("new").join(who), who)
    }),
    ("make a symlink", |dir, who| symlink(who, dir.join("new"))),
    ("fill the directory", |dir, who| {
        new_file(&dir.join("dir").join(who), who)
    }),
    ("fill below", |dir, who| new_file(&dir.join("dir/sub").join(who), who)),
    ("write below", |dir, who| {
        File::options()
            .write(true)
            .open(dir.join("dir/sub/deep"))?
            .write_all_at(who.as_bytes(), 1)
    }),
    ("remove below", |dir, _| fs::remove_file(dir.join("dir/sub/deep"))),
    ("move out", |dir, who| {
        fs::rename(dir.join("dir/sub"), dir.join(format!("moved by {who}")))
    }),
    ("remove the directory", |dir, _| {
        File::open(dir.join("dir"))?;
        fs::remove_dir_all(dir.join("dir"))
    }),
    ("rename the directory", |dir, who| {
        fs::rename(dir.join("dir"), dir.join(format!("directory of {who}")))
    }),
    ("move the directory into the other", |dir, _| {
        rename_to_new(dir, "dir", "directory/dir")
    }),
    ("move the other into the directory", |dir, _| {
        rename_to_new(dir, "directory", "dir/directory")
    }),
];

fn new_file(path: &Path, who: &str) -> io::Result<()> {
    use io::Write;
    File::options()
        .write(true)
        .create_new(true)
        .open(path)?
        .write_all(who.as_bytes())
}

fn rename_to_new(dir: &Path, from: &str, to: &str) -> io::Result<()> {
    match dir.join(to).symlink_metadata() {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(dir.join(from), dir.join(to)),
    }
}

fn prepare(dir: &Path) {
    fs::create_dir_all(dir.join("dir/sub")).unwrap();
    fs::create_dir(dir.join("directory")).unwrap();
    fs::write(dir.join("file"), vec![b'f'; 10_000]).unwrap();
    fs::write(dir.join("other"), b"other").unwrap();
    fs::write(dir.join("dir/sub/deep"), b"deep content").unwrap();
    fs::write(dir.join("directory/inside"), b"inside").unwrap();
}

type Contents = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Like [`look`], without times: those of a merged change are one's own.
fn contents(dir: &Path) -> Contents {
    let found = look(dir).into_iter();
    found
        .map(|(path, (mode, content, _))| (path, (mode, content)))
        .collect()
}

/// The result of two changes in this order; nothing if one of them cannot be made then.
fn in_order(dir: &Path, first: (&Change, &str), second: (&Change, &str)) -> Option<Contents> {
    prepare(dir);
    first.0.1(dir, first.1).ok()?;
    second.0.1(dir, second.1).ok()?;
    Some(contents(dir))
}

fn has(contents: &Contents, bytes: &str) -> bool {
    let mut all = contents.values();
    all.any(|(_, content)| content.windows(bytes.len()).any(|part| part == bytes.as_bytes()))
}

#[test]
fn whatever_two_machines_do_at_once_is_merged_or_kept() {
    merged_or_kept("together");
}

#[test]
fn whatever_two_machines_do_in_turn_is_merged_or_kept() {
    merged_or_kept("one first");
}

fn merged_or_kept(order: &str) {
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut failures = Vec::new();
    let rig = rig(105);
    let mut one = Machine::started(&rig, "one");
    let pairs: Vec<(String, &Change, &Change)> = CHANGES
        .iter()
        .flat_map(|one| {
            CHANGES
                .iter()
                .map(move |two| (format!("{} and {}", one.0, two.0), one, two))
        })
        .collect();
    for (name, ..) in &pairs {
        fs::create_dir(one.path(name)).unwrap();
        prepare(&one.path(name));
    }
    settle(&rig, &[&one], "prepared");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "both have it");
    assert_same(&[&one, &two], "both have it");
    one.stop();
    two.stop();
    for (name, by_one, by_two) in &pairs {
        by_one.1(&one.path(name), "one").unwrap();
        by_two.1(&two.path(name), "two").unwrap();
    }
    match order {
        "one first" => {
            one.begin();
            settle(&rig, &[&one], order);
            two.begin();
        }
        _ => {
            one.begin();
            two.begin();
        }
    }
    settle(&rig, &[&one, &two], order);
    assert_same(&[&one, &two], order);
    for (number, (name, by_one, by_two)) in pairs.iter().enumerate() {
        let found = contents(&one.path(name));
        let both = |first: (&Change, &str), second: (&Change, &str)| {
            let dir = plain.path().join(format!("{order} {number} {}", first.1));
            in_order(&dir, first, second)
        };
        let (ahead, behind) = (
            both((by_one, "one"), (by_two, "two")),
            both((by_two, "two"), (by_one, "one")),
        );
        let tell = |found: &Contents| {
            let lines = found.iter().filter(|(path, _)| {
                let is_fixture = ["dir", "dir/sub", "directory", "directory/inside", "other"];
                !is_fixture.iter().any(|name| *path == Path::new(name))
            });
            let lines = lines.map(|(path, (mode, content))| {
                let text = String::from_utf8_lossy(content).replace("ffff", "");
                format!("{} {mode:o} {text}", path.display())
            });
            lines.collect::<Vec<_>>().join("; ")
        };
        let are_merged = !(OF_CONTENTS.contains(&by_one.0) && OF_CONTENTS.contains(&by_two.0));
        if let (Some(ahead), Some(behind)) = (&ahead, &behind)
            && ahead == behind
            && are_merged
        {
            if found != *ahead {
                failures.push(format!(
                    "{order}: {name}: found {}\n    expected {}",
                    tell(&found),
                    tell(ahead)
                ));
            }
            continue;
        }
        for (change, who) in [(by_one, "one"), (by_two, "two")] {
            let dir = plain.path().join(format!("{order} {number} {who} alone"));
            let alone = in_order(&dir, (change, who), (&CHANGES[0], who)).unwrap();
            if has(&alone, who) && !has(&found, who) {
                failures.push(format!("{order}: {name}: what {who} wrote is gone: {}", tell(&found)));
            }
        }
    }
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.place.tree(), order);
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
