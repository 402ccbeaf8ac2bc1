//! Names and attributes, step by step.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use byteback_control::{Expected, Landed};
use byteback_host::tree as host;
use byteback_model::{ByteString, NodeId, NodeKind, Xattr};
use byteback_mount::CacheMode;

use super::*;
use crate::coverage::assert_saved;
use crate::operations::look;
use crate::other_mount::Disk;
use crate::saved::{OpenBackup, Saved};

const UNQUEUED: Expected<'static> = Expected::Unqueued;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn prepare(tree: &Path) {
    fs::create_dir_all(tree.join("dir/sub")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    for name in ["dir/one", "dir/two", "dir/three", "dir/sub/deep"] {
        fs::write(tree.join(name), name.repeat(1000)).unwrap();
    }
    fs::hard_link(tree.join("dir/one"), tree.join("also one")).unwrap();
}

/// Checks that a consumer has saved what is there.
fn check_log(rig: &Rig, saved: &mut Saved, step: &str) {
    let client = rig.fixture.client();
    OpenBackup::cut(&client, "other").save(&client, saved);
    assert_saved(CacheMode::Exact, saved, &look(&rig.fixture.tree()), &|| step.to_owned());
}

#[test]
fn each_step_is_seen_at_once_and_logged_and_not_sent() {
    let rig = Rig::new(prepare);
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let client = rig.fixture.client();
    let mut saved = Saved::default();
    check_log(&rig, &mut saved, "before");
    let cut = byteback_control::TreeService::open_cut(&client, &ByteString::from(b"before".to_vec())).unwrap();
    let cut = std::path::PathBuf::from(std::ffi::OsString::from_vec(cut.path.into_bytes()));
    let before = look(&tree);
    let check = |saved: &mut Saved, step: &str| {
        rig.assert_silent();
        check_log(&rig, saved, step);
        rig.assert_silent();
    };
    let mut check = |step: &str| check(&mut saved, step);

    // The kernel knows that these names are missing, what is in the directory, and what the others
    // stand for.
    let dir = tree.join("dir");
    for name in ["new", "new dir", "link", "pipe", "null", "socket", "moved"] {
        assert!(!dir.join(name).exists());
    }
    assert_eq!(names(&dir), ["one", "sub", "three", "two"]);
    let parent = rig.node("dir");
    let mtime = fs::metadata(&dir).unwrap().mtime_nsec();

    let mut wanted = attributes(NodeKind::File);
    wanted.mode = 0o4751;
    wanted.xattrs = vec![Xattr {
        name: ByteString::from(b"user.note".to_vec()),
        value: ByteString::from(b"from afar".to_vec()),
    }];
    let (new, missed) = done(landing.make(&name_in(parent, "new"), &wanted, UNQUEUED));
    assert_eq!(missed, Vec::new());
    let seen = fs::metadata(dir.join("new")).unwrap();
    assert_eq!(
        (seen.mode() & 0o7777, seen.uid(), seen.gid(), seen.len()),
        (0o4751, 1234, 2345, 0)
    );
    assert_eq!((seen.mtime(), seen.mtime_nsec()), (1_600_000_000, 123_456_789));
    let file = fs::File::open(dir.join("new")).unwrap();
    let xattr = host::get_xattr(&file, "user.note".as_ref()).unwrap();
    assert_eq!(xattr.as_deref(), Some(&b"from afar"[..]));
    assert_eq!(landing.look(new).unwrap().unwrap().attributes, wanted);
    // The sender reports the directory's time; the landing leaves it alone.
    assert_eq!(fs::metadata(&dir).unwrap().mtime_nsec(), mtime);
    check("make a file");

    let (new_dir, _) = done(landing.make(&name_in(parent, "new dir"), &attributes(NodeKind::Directory), UNQUEUED));
    assert_eq!(names(&dir.join("new dir")), Vec::<String>::new());
    assert_eq!(names(&dir), ["new", "new dir", "one", "sub", "three", "two"]);
    let mut link = attributes(NodeKind::Symlink);
    link.target = Some(ByteString::from(b"new dir/../one".to_vec()));
    // Links have no permissions of their own.
    link.mode = 0o777;
    done(landing.make(&name_in(parent, "link"), &link, UNQUEUED));
    assert_eq!(fs::read(dir.join("link")).unwrap(), "dir/one".repeat(1000).as_bytes());
    for (name, kind) in [
        ("pipe", NodeKind::Fifo),
        ("socket", NodeKind::Socket),
        ("null", NodeKind::CharDevice),
    ] {
        let mut wanted = attributes(kind);
        if kind == NodeKind::CharDevice {
            wanted.rdev = rustix::fs::makedev(1, 3);
        }
        let (node, missed) = done(landing.make(&name_in(parent, name), &wanted, UNQUEUED));
        assert_eq!(missed, Vec::new());
        assert_eq!(landing.look(node).unwrap().unwrap().attributes, wanted);
    }
    assert!(fs::metadata(dir.join("pipe")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(dir.join("socket")).unwrap().file_type().is_socket());
    assert_eq!(
        fs::metadata(dir.join("null")).unwrap().rdev(),
        rustix::fs::makedev(1, 3)
    );
    check("make all kinds");

    let listed = landing.entries(parent, None).unwrap();
    let listed_names: Vec<&[u8]> = listed.iter().map(|entry| entry.name.as_bytes()).collect();
    let shown = names(&dir);
    assert_eq!(
        listed_names,
        shown.iter().map(|name| name.as_bytes()).collect::<Vec<_>>()
    );
    let behind = landing.entries(parent, Some(&listed[2].name)).unwrap();
    assert_eq!(behind[0].name, listed[3].name);
    assert_eq!(
        landing.entries(parent, Some(&listed.last().unwrap().name)).unwrap(),
        Vec::new()
    );

    let one = rig.node("dir/one");
    assert_eq!(fs::metadata(dir.join("one")).unwrap().nlink(), 2);
    done(landing.link(one, &name_in(new_dir, "third"), UNQUEUED));
    assert_eq!(fs::metadata(dir.join("one")).unwrap().nlink(), 3);
    assert_eq!(
        fs::read(dir.join("new dir/third")).unwrap(),
        "dir/one".repeat(1000).as_bytes()
    );
    assert_eq!(landing.look(one).unwrap().unwrap().names.len(), 3);
    check("link");

    // To a free name, and over another file that a program has open.
    let two = rig.node("dir/two");
    let three = rig.node("dir/three");
    let opened = fs::File::open(dir.join("three")).unwrap();
    done(landing.rename(two, &name_in(parent, "two"), &name_in(new_dir, "moved"), None, UNQUEUED));
    assert!(!dir.join("two").exists());
    assert_eq!(
        fs::read(dir.join("new dir/moved")).unwrap(),
        "dir/two".repeat(1000).as_bytes()
    );
    done(landing.rename(
        two,
        &name_in(new_dir, "moved"),
        &name_in(parent, "three"),
        Some(three),
        UNQUEUED,
    ));
    assert_eq!(names(&dir.join("new dir")), ["third"]);
    assert_eq!(fs::read(dir.join("three")).unwrap(), "dir/two".repeat(1000).as_bytes());
    assert_eq!(opened.metadata().unwrap().nlink(), 0);
    assert_eq!(std::io::read_to_string(&opened).unwrap(), "dir/three".repeat(1000));
    assert_eq!(landing.look(three).unwrap(), None);
    check("rename");

    // A directory in which a program works.
    let sub = rig.node("dir/sub");
    let within = fs::File::open(dir.join("sub")).unwrap();
    done(landing.rename(
        sub,
        &name_in(parent, "sub"),
        &name_in(NodeId::ROOT, "sub"),
        None,
        UNQUEUED,
    ));
    assert_eq!(
        fs::read(tree.join("sub/deep")).unwrap(),
        "dir/sub/deep".repeat(1000).as_bytes()
    );
    assert!(!dir.join("sub").exists());
    assert!(host::stat_at(&within, "deep".as_ref()).is_ok());
    let empty = rig.node("empty");
    done(landing.exchange((&rig.place("sub"), sub), (&rig.place("empty"), empty), UNQUEUED));
    assert_eq!(names(&tree.join("empty")), ["deep"]);
    assert_eq!(names(&tree.join("sub")), Vec::<String>::new());
    check("move and exchange directories");

    let mut wanted = attributes(NodeKind::File);
    wanted.mode = 0o600;
    let missed = done(landing.set_attributes(new, &wanted, UNQUEUED));
    assert_eq!(missed, Vec::new());
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(host::list_xattrs(&file).unwrap(), Vec::<std::ffi::OsString>::new());
    check("attributes");

    done(landing.remove(&rig.place("sub"), empty, UNQUEUED));
    assert!(!tree.join("sub").exists());
    done(landing.remove(&name_in(parent, "one"), one, UNQUEUED));
    assert!(!dir.join("one").exists());
    assert_eq!(fs::metadata(tree.join("also one")).unwrap().nlink(), 2);
    done(landing.remove(&name_in(parent, "new"), new, UNQUEUED));
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(names(&dir), ["link", "new dir", "null", "pipe", "socket", "three"]);
    check("remove");
    landing.sync().unwrap();

    // The cut shows the state before all that.
    let mut then = look(&cut);
    assert_eq!(then.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for (path, seen) in &before {
        let kept = then.remove(path).unwrap();
        assert!(kept.content == seen.content && kept.mode == seen.mode, "{path:?}");
    }
    drop((opened, within, file));
    rig.end();
}

#[test]
fn landing_changes_nothing_if_an_expectation_fails() {
    let rig = Rig::new(prepare);
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let before = look(&tree);
    let dir = rig.node("dir");
    let (one, two, sub) = (rig.node("dir/one"), rig.node("dir/two"), rig.node("dir/sub"));
    let (one_at, two_at) = (rig.place("dir/one"), rig.place("dir/two"));
    let free = name_in(dir, "free");
    let file = attributes(NodeKind::File);
    overtaken(landing.make(&one_at, &file, UNQUEUED));
    overtaken(landing.make(&name_in(one, "in a file"), &file, UNQUEUED));
    overtaken(landing.make(&name_in(NodeId(999_999), "in nothing"), &file, UNQUEUED));
    overtaken(landing.link(one, &two_at, UNQUEUED));
    overtaken(landing.link(NodeId(999_999), &free, UNQUEUED));
    overtaken(landing.rename(two, &one_at, &free, None, UNQUEUED));
    overtaken(landing.rename(one, &one_at, &two_at, None, UNQUEUED));
    overtaken(landing.rename(one, &one_at, &two_at, Some(sub), UNQUEUED));
    overtaken(landing.rename(one, &one_at, &free, Some(two), UNQUEUED));
    overtaken(landing.rename(one, &free, &two_at, Some(two), UNQUEUED));
    overtaken(landing.rename(one, &one_at, &rig.place("also one"), Some(one), UNQUEUED));
    overtaken(landing.exchange((&one_at, one), (&two_at, sub), UNQUEUED));
    overtaken(landing.displace(two, &one_at, &free, false));
    overtaken(landing.displace(two, &one_at, &free, true));
    overtaken(landing.displace(one, &one_at, &two_at, false));
    overtaken(landing.displace(one, &one_at, &two_at, true));
    overtaken(landing.remove(&one_at, two, UNQUEUED));
    overtaken(landing.remove(&free, two, UNQUEUED));
    overtaken(landing.remove(&rig.place("dir/sub"), sub, UNQUEUED));
    overtaken(landing.set_attributes(NodeId(999_999), &file, UNQUEUED));
    // Names that no program could ask for are an error.
    let names = ["", ".", "..", "a/b", "../escape", "nul\0", "/", &"x".repeat(300)];
    for name in names {
        assert!(landing.make(&name_in(dir, name), &file, UNQUEUED).is_err(), "{name:?}");
        let at = name_in(dir, name);
        assert!(
            !matches!(landing.rename(one, &one_at, &at, None, UNQUEUED), Ok(Landed::Done(()))),
            "{name:?}"
        );
    }
    assert!(
        landing
            .make(&name_in(NodeId::ROOT, ".byteback"), &file, UNQUEUED)
            .is_err()
    );
    assert!(
        landing
            .rename(sub, &rig.place("dir/sub"), &name_in(sub, "itself"), None, UNQUEUED)
            .is_err()
    );
    assert!(landing.watch_file(dir, UNQUEUED).is_err());
    let first = done(landing.watch_file(one, UNQUEUED));
    assert!(landing.watch_file(one, UNQUEUED).is_err());
    drop(first);
    rig.assert_silent();
    assert!(before == look(&tree));
    rig.end();
}

#[test]
fn landing_does_not_overwrite_what_is_to_be_sent() {
    let mut rig = Rig::new(prepare);
    // Nothing is sent before a sender asks for it.
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let place = |path: &str| place_at(&*landing, path);
    let (dir, one, two, three) = (
        rig.node("dir"),
        rig.node("dir/one"),
        rig.node("dir/two"),
        rig.node("dir/three"),
    );
    let file = attributes(NodeKind::File);
    assert!(!landing.is_node_queued(one));
    fs::write(tree.join("dir/one"), b"local").unwrap();
    assert!(landing.is_node_queued(one) && !landing.is_node_queued(two));
    assert!(!landing.is_name_queued(&place("dir/one")));
    overtaken(landing.set_attributes(one, &file, UNQUEUED));
    overtaken(landing.remove(&place("also one"), one, UNQUEUED));
    overtaken(landing.rename(two, &place("dir/two"), &place("dir/one"), Some(one), UNQUEUED));
    overtaken(landing.watch_file(one, UNQUEUED));
    overtaken(landing.watch_file(one, Expected::Folded(&[])));
    fs::rename(tree.join("dir/two"), tree.join("dir/moved")).unwrap();
    assert!(landing.is_name_queued(&place("dir/two")) && landing.is_name_queued(&place("dir/moved")));
    overtaken(landing.make(&place("dir/two"), &file, UNQUEUED));
    fs::remove_file(tree.join("dir/moved")).unwrap();
    overtaken(landing.make(&place("dir/two"), &file, UNQUEUED));
    fs::set_permissions(
        tree.join("dir/three"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    overtaken(landing.link(three, &name_in(dir, "free"), UNQUEUED));
    // An entry of a directory is to be sent; the directory itself looks as if it could be removed.
    fs::remove_file(tree.join("dir/sub/deep")).unwrap();
    overtaken(landing.remove(&place("dir/sub"), rig.node("dir/sub"), UNQUEUED));
    // Elsewhere it does not matter.
    done(landing.make(&name_in(NodeId::ROOT, "free"), &file, UNQUEUED));

    // In the way of a name that lands: it is moved away by this machine, which is to be sent as
    // well.
    done(landing.displace(one, &place("dir/one"), &place("dir/one (conflict)"), false));
    assert!(landing.is_name_queued(&place("dir/one (conflict)")));
    assert_eq!(fs::read(tree.join("dir/one (conflict)")).unwrap(), b"local");
    overtaken(landing.make(&place("dir/one"), &file, UNQUEUED));

    // When all that waits is folded, a watch must say that nothing changed since the look.
    rig.served().live.give_up("the test says so");
    assert!(landing.is_node_queued(three) && landing.is_name_queued(&place("anything")));
    overtaken(landing.make(&place("dir/one"), &file, UNQUEUED));
    let watch = done(landing.watch(dir));
    done(landing.make(&place("dir/one"), &file, Expected::Folded(&[&*watch])));
    assert_eq!(fs::read(tree.join("dir/one")).unwrap(), b"");
    assert_eq!(watch.overtaken(), None);
    fs::write(tree.join("dir/other"), b"").unwrap();
    assert!(watch.overtaken().is_some());
    overtaken(landing.make(&place("dir/one more"), &file, Expected::Folded(&[&*watch])));
    drop(watch);

    // The file is sent as it is then.
    let new = rig.node("dir/one");
    rig.drain.finish();
    crate::live::check_tree(&rig.drain.server, &tree);
    assert!(!landing.is_node_queued(new) && !landing.is_node_queued(one));
    rig.end();
}

#[test]
fn a_watch_notices_whatever_is_done() {
    let rig = Rig::new(prepare);
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    type Doing = Box<dyn Fn(&Path)>;
    let open = |path: &Path| fs::File::options().write(true).open(path).unwrap();
    let doings: Vec<(&str, Doing)> = vec![
        (
            "write",
            Box::new(move |path| std::io::Write::write_all(&mut open(path), b"x").unwrap()),
        ),
        ("truncate", Box::new(move |path| open(path).set_len(5).unwrap())),
        (
            "touch",
            Box::new(move |path| open(path).set_modified(std::time::SystemTime::now()).unwrap()),
        ),
        (
            "chmod",
            Box::new(|path| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o611)).unwrap()),
        ),
        (
            "link",
            Box::new(|path| fs::hard_link(path, path.with_extension("link")).unwrap()),
        ),
        (
            "rename",
            Box::new(|path| fs::rename(path, path.with_extension("moved")).unwrap()),
        ),
        (
            "back",
            Box::new(|path| fs::rename(path.with_extension("moved"), path).unwrap()),
        ),
        (
            "replace",
            Box::new(|path| fs::rename(path.with_file_name("three"), path).unwrap()),
        ),
    ];
    let (one, dir) = (rig.node("dir/one"), rig.node("dir"));
    let path = tree.join("dir/one");
    for (what, doing) in doings {
        let (watch, quiet) = (done(landing.watch(one)), done(landing.watch(dir)));
        assert!(watch.overtaken().is_none() && quiet.overtaken().is_none(), "{what}");
        doing(&path);
        assert!(watch.overtaken().is_some(), "{what}");
        let is_name = ["link", "rename", "back", "replace"].contains(&what);
        assert_eq!(quiet.overtaken().is_some(), is_name, "{what}");
    }
    // The name was replaced, so that it has one other.
    assert_eq!(landing.look(one).unwrap().unwrap().names.len(), 2);
    rig.end();
}

#[test]
fn a_file_that_is_open_for_writing_keeps_its_last_name() {
    let rig = Rig::new(prepare);
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let (two, three) = (rig.node("dir/two"), rig.node("dir/three"));
    let (two_at, three_at) = (rig.place("dir/two"), rig.place("dir/three"));
    let reading = fs::File::open(tree.join("dir/three")).unwrap();
    assert!(!landing.is_open_for_writing(three).unwrap());
    let mut appending = fs::File::options().append(true).open(tree.join("dir/three")).unwrap();
    assert!(landing.is_open_for_writing(three).unwrap());
    overtaken(landing.remove(&three_at, three, UNQUEUED));
    overtaken(landing.rename(two, &two_at, &three_at, Some(three), UNQUEUED));
    // A further name may go, and what has one left may be replaced.
    done(landing.link(three, &place_at(&*landing, "dir/another"), UNQUEUED));
    done(landing.rename(two, &two_at, &three_at, Some(three), UNQUEUED));
    overtaken(landing.remove(&place_at(&*landing, "dir/another"), three, UNQUEUED));
    std::io::Write::write_all(&mut appending, b"the last line").unwrap();
    let content = fs::read(tree.join("dir/another")).unwrap();
    assert!(content.ends_with(b"the last line"));
    drop(appending);
    let began = std::time::Instant::now();
    while landing.is_open_for_writing(three).unwrap() {
        // The kernel reports a close a moment later.
        assert!(began.elapsed() < Duration::from_secs(600));
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.served().live.give_up("the test says so");
    done(landing.remove(&place_at(&*landing, "dir/another"), three, Expected::Folded(&[])));
    drop(reading);
    rig.end();
}

#[test]
fn what_is_displaced_leaves_its_name_until_it_is_replaced() {
    let mut rig = Rig::new(prepare);
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    let (two, three) = (rig.node("dir/two"), rig.node("dir/three"));
    let copy = place_at(&*landing, "dir/three (conflict)");
    fs::write(tree.join("dir/three"), b"local").unwrap();
    rig.served().live.give_up("the test says so");
    done(landing.displace(three, &rig.place("dir/three"), &copy, true));
    assert_eq!(fs::read(tree.join("dir/three")).unwrap(), b"local");
    assert_eq!(fs::read(tree.join("dir/three (conflict)")).unwrap(), b"local");
    assert_eq!(landing.look(three).unwrap().unwrap().names.len(), 2);
    let (from, to) = (rig.place("dir/two"), rig.place("dir/three"));
    done(landing.rename(two, &from, &to, Some(three), Expected::Folded(&[])));
    assert_eq!(
        fs::read(tree.join("dir/three")).unwrap(),
        "dir/two".repeat(1000).as_bytes()
    );
    assert_eq!(fs::metadata(tree.join("dir/three (conflict)")).unwrap().nlink(), 1);
    rig.drain.finish();
    crate::live::check_tree(&rig.drain.server, &tree);
    // A directory has one name, and is moved.
    let sub = rig.node("dir/sub");
    done(landing.displace(sub, &rig.place("dir/sub"), &place_at(&*landing, "dir/moved"), true));
    assert!(!tree.join("dir/sub").exists() && tree.join("dir/moved/deep").exists());
    rig.drain.finish();
    rig.end();
}

/// The time of the last modification, in nanoseconds.
fn mtime_ns(path: &Path) -> i128 {
    let stat = fs::metadata(path).unwrap();
    i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec())
}

#[test]
fn time_of_a_directory_moves_to_the_next_that_there_is() {
    let rig = Rig::new(prepare);
    let dir = rig.fixture.tree().join("dir");
    let before = mtime_ns(&dir);
    rig.landing().advance_time(rig.node("dir"), before).unwrap();
    assert_eq!(mtime_ns(&dir), before + 1);
    rig.landing().advance_time(rig.node("dir"), before).unwrap();
    assert_eq!(mtime_ns(&dir), before + 1, "a program has set it since");
    rig.end();
}

#[test]
fn time_of_a_directory_moves_where_times_are_whole_seconds() {
    let Some(disk) = Disk::of_seconds() else { return };
    let rig = Rig::of(Fixture::inside(&disk.path(), CacheMode::Exact), prepare);
    let dir = rig.fixture.tree().join("dir");
    let before = mtime_ns(&dir);
    assert_eq!(before % 1_000_000_000, 0);
    rig.landing().advance_time(rig.node("dir"), before).unwrap();
    assert_eq!(mtime_ns(&dir), before + 1_000_000_000);
    rig.end();
}
