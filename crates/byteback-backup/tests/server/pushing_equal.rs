//! Pushes of trees most of which is equal at the server: one digest stands for a directory.

use crate::pushing::{Push, mtime_ns, set_mtime};
use byteback_api::{Code, Problem};
use byteback_backup::Exclude;
use byteback_host::random::noise;
use byteback_testkit::clients::patient;
use byteback_testkit::local_tree::assert_same;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

const DIRS: usize = 40;
const FILES: usize = 50;

/// A push that notes the calls which read the server's tree, and whose server answers those of
/// directory digests so.
fn hearing_push(answer: impl Fn() -> Option<Problem> + Send + Sync + 'static) -> (Push, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&calls);
    let hear = move |head: &str, _: &[u8]| {
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let is_digests = target.contains("/directory-digests");
        if is_digests || target.contains("/tree") {
            heard.lock().unwrap().push(target);
        }
        answer().filter(|_| is_digests)
    };
    let rig = Rig::through(1, patient(), |to, _| hearing(to, hear));
    (Push::of(rig), calls)
}

/// Whether a call lists a directory, and does not only ask for a node.
fn is_listing(call: &str) -> bool {
    call.contains("/tree?") && !call.contains("limit=")
}

/// Directories of small files, and one below another.
fn with_directories(push: &Push) {
    for dir in 0..DIRS {
        let path = push.file(&format!("dir{dir}/below"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..FILES {
            let path = path.join(format!("file {file}"));
            fs::write(path, format!("{dir} {file}")).unwrap();
        }
    }
    fs::write(push.file("notes"), "short").unwrap();
}

/// Names below the source.
const NAMES: u64 = (DIRS * (FILES + 2) + 1) as u64;

#[test]
fn push_of_an_equal_tree_lists_none_of_it() {
    let (push, calls) = hearing_push(|| None);
    with_directories(&push);
    push.push().unwrap();
    calls.lock().unwrap().clear();
    let report = push.push().unwrap();
    assert!(!report.has_changes(), "{report:?}");
    assert_eq!(report.unchanged, NAMES + 1);
    // 81 directories of 24 bytes each, twice the root.
    assert!(report.wire.sent + report.wire.received < 5000, "{:?}", report.wire);
    let calls = calls.lock().unwrap();
    assert!(!calls.iter().any(|call| is_listing(call)), "{calls:?}");
}

#[test]
fn push_lists_only_directories_that_differ() {
    let (mut push, calls) = hearing_push(|| None);
    push.options.delete = true;
    with_directories(&push);
    push.push().unwrap();
    calls.lock().unwrap().clear();
    fs::write(push.file("dir7/below/file 3"), "another").unwrap();
    fs::remove_file(push.file("dir9/below/file 3")).unwrap();
    let report = push.push().unwrap();
    assert_eq!((report.files_changed, report.removed), (1, 1), "{report:?}");
    // The root, two directories, and one below each.
    let listed = calls.lock().unwrap().iter().filter(|call| is_listing(call)).count();
    assert_eq!(listed, 5);
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn every_attribute_of_a_node_makes_its_directory_differ() {
    let push = Push::new(3);
    with_directories(&push);
    push.push().unwrap();
    let file = push.file("dir3/below/file 1");
    let set = |args: &[&str]| {
        let file = file.to_str().unwrap();
        let (program, args) = args.split_first().unwrap();
        byteback_testkit::tools::run(program, &[args, &[file]].concat());
    };
    for args in [
        &["chmod", "600"][..],
        &["chown", "12:0"],
        &["chown", "12:13"],
        &["touch", "-d", "2020-01-02"],
        &["setfattr", "-n", "user.x", "-v", "1"],
        &["setfattr", "-n", "user.x", "-v", "2"],
        &["setfattr", "-x", "user.x"],
    ] {
        set(args);
        let report = push.push().unwrap();
        assert!(report.has_changes(), "{args:?}: {report:?}");
        assert_same(&push.source, &push.fetched(b""));
        assert!(!push.push().unwrap().has_changes(), "{args:?}");
    }
}

/// A file with two names at the server that are two files here: each keeps its content.
#[test]
fn names_of_one_file_are_compared_wherever_they_are() {
    let push = Push::new(4);
    with_directories(&push);
    fs::hard_link(push.file("dir1/below/file 1"), push.file("dir2/below/linked")).unwrap();
    push.push().unwrap();
    // The same bytes and times, but another inode.
    let linked = push.file("dir2/below/linked");
    let time = mtime_ns(&linked);
    fs::copy(&linked, push.file("copy")).unwrap();
    set_mtime(&push.file("copy"), time);
    fs::rename(push.file("copy"), &linked).unwrap();
    push.push().unwrap();
    fs::write(push.file("dir1/below/file 1"), "only here").unwrap();
    push.push().unwrap();
    assert_same(&push.source, &push.fetched(b""));
}

/// The same of symlinks and special files, which have several names as well.
#[test]
fn names_of_one_symlink_are_compared_wherever_they_are() {
    let push = Push::new(8);
    with_directories(&push);
    let (one, other) = (push.file("dir1/below/link"), push.file("dir2/below/link"));
    symlink("old", &one).unwrap();
    fs::hard_link(&one, &other).unwrap();
    push.push().unwrap();
    // Another symlink takes the one name; the other one stays, and its directory is as before.
    symlink("new", push.file("dir1/below/made")).unwrap();
    fs::rename(push.file("dir1/below/made"), &one).unwrap();
    push.push().unwrap();
    assert_same(&push.source, &push.fetched(b""));
}

/// A listing of more than a page, on both ends.
#[test]
fn directories_of_many_names_are_equal_as_a_whole() {
    let (push, calls) = hearing_push(|| None);
    fs::create_dir(push.file("many")).unwrap();
    for number in 0..2500 {
        fs::write(push.file(&format!("many/{number}")), number.to_string()).unwrap();
    }
    push.push().unwrap();
    calls.lock().unwrap().clear();
    assert!(!push.push().unwrap().has_changes());
    assert!(!calls.lock().unwrap().iter().any(|call| is_listing(call)));
    fs::write(push.file("many/2499"), "another").unwrap();
    assert_eq!(push.push().unwrap().files_changed, 1);
    assert_same(&push.source, &push.fetched(b""));
}

/// A few files on their way into a large tree are no reason to digest it.
#[test]
fn small_push_into_a_large_tree_digests_little() {
    let (push, calls) = hearing_push(|| None);
    fs::create_dir(push.file("many")).unwrap();
    for number in 0..12_000 {
        fs::write(push.file(&format!("many/{number}")), "").unwrap();
    }
    push.push().unwrap();
    fs::remove_dir_all(push.file("many")).unwrap();
    for number in 0..20 {
        fs::write(push.file(&format!("few {number}")), "few").unwrap();
    }
    push.push().unwrap();
    calls.lock().unwrap().clear();
    assert!(!push.push().unwrap().has_changes());
    let heard = calls.lock().unwrap();
    assert!(heard.iter().any(|call| call.contains("names_max=10080")), "{heard:?}");
    assert!(heard.iter().any(|call| is_listing(call)), "{heard:?}");
}

#[test]
fn new_hard_links_are_seen_in_equal_directories() {
    let push = Push::new(5);
    with_directories(&push);
    for dir in ["dir1", "dir2"] {
        fs::write(push.file(&format!("{dir}/below/twin")), "the same").unwrap();
        set_mtime(&push.file(&format!("{dir}/below/twin")), 1_600_000_000_000_000_000);
    }
    push.push().unwrap();
    let (one, other) = (push.file("dir1/below/twin"), push.file("dir2/below/twin"));
    // The directory's time is as before.
    let time = mtime_ns(&push.file("dir2/below"));
    fs::remove_file(&other).unwrap();
    fs::hard_link(&one, &other).unwrap();
    set_mtime(&push.file("dir2/below"), time);
    push.push().unwrap();
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn copies_from_directories_that_were_skipped_are_found() {
    let push = Push::new(6);
    with_directories(&push);
    fs::write(push.file("dir4/below/image"), noise(1, 2_000_000)).unwrap();
    push.push().unwrap();
    fs::create_dir(push.file("new")).unwrap();
    fs::copy(push.file("dir4/below/image"), push.file("new/copy")).unwrap();
    let report = push.push().unwrap();
    assert_eq!(report.files_copied, 1, "{report:?}");
    assert!(report.wire.sent < 20_000, "{:?}", report.wire);
    assert_same(&push.source, &push.fetched(b""));
}

#[test]
fn excluded_names_hinder_no_digest() {
    let (mut push, calls) = hearing_push(|| None);
    with_directories(&push);
    push.options.exclude = Exclude::new(["*.tmp"]).unwrap();
    fs::write(push.file("dir1/below/here.tmp"), "not sent").unwrap();
    push.push().unwrap();
    calls.lock().unwrap().clear();
    assert!(!push.push().unwrap().has_changes());
    assert!(!calls.lock().unwrap().iter().any(|call| is_listing(call)));
}

#[test]
fn older_and_failing_servers_are_listed() {
    for code in [Code::RouteNotFound, Code::Internal] {
        let (push, calls) = hearing_push(move || Some(Problem::new(code, "no digests")));
        with_directories(&push);
        push.push().unwrap();
        calls.lock().unwrap().clear();
        fs::write(push.file("dir7/below/file 3"), "another").unwrap();
        let report = push.push().unwrap();
        assert_eq!((report.files_changed, report.unchanged), (1, NAMES), "{code:?}");
        let heard = std::mem::take(&mut *calls.lock().unwrap());
        let digests = heard.iter().filter(|call| call.contains("digests")).count();
        let listings = heard.iter().filter(|call| is_listing(call)).count();
        assert_eq!((digests, listings), (1, 2 * DIRS + 1), "{code:?}");
        assert_same(&push.source, &push.fetched(b""));
    }
}

#[test]
fn push_by_content_asks_for_no_digests() {
    let (mut push, calls) = hearing_push(|| None);
    with_directories(&push);
    push.push().unwrap();
    let file = push.file("dir3/below/file 1");
    let time = mtime_ns(&file);
    fs::write(&file, "3 2").unwrap();
    set_mtime(&file, time);
    assert!(!push.push().unwrap().has_changes(), "equal by length and time");
    push.options.checksum = true;
    calls.lock().unwrap().clear();
    assert_eq!(push.push().unwrap().files_changed, 1);
    assert!(!calls.lock().unwrap().iter().any(|call| call.contains("digests")));
    assert_same(&push.source, &push.fetched(b""));
}
