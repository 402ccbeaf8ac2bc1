//! Listing directories.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::harness::Fixture;

fn fill(dir: &Path, count: usize) {
    fs::create_dir(dir).unwrap();
    for n in 0..count {
        fs::write(dir.join(format!("file-with-a-longer-name-{n}")), b"").unwrap();
    }
}

fn names(dir: &Path) -> BTreeSet<std::ffi::OsString> {
    let mut count = 0;
    let names: BTreeSet<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            count += 1;
            entry.unwrap().file_name()
        })
        .collect();
    assert_eq!(count, names.len(), "each name once");
    names
}

#[test]
fn a_large_directory_is_listed_whole() {
    let fixture = Fixture::new();
    fill(&fixture.at("d"), 5000);
    for _ in 0..2 {
        assert_eq!(names(&fixture.at("d")), names(&fixture.below("d")));
    }
    fs::remove_file(fixture.at("d/file-with-a-longer-name-77")).unwrap();
    fs::write(fixture.at("d/another"), b"").unwrap();
    assert_eq!(names(&fixture.at("d")), names(&fixture.below("d")));
}

#[test]
fn removing_while_listing_misses_nothing() {
    let fixture = Fixture::new();
    fill(&fixture.at("d"), 3000);
    let mut seen = 0;
    for entry in fs::read_dir(fixture.at("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 3000);
    fs::remove_dir(fixture.at("d")).unwrap();
}

#[test]
fn positions_can_be_returned_to() {
    let fixture = Fixture::new();
    fill(&fixture.at("d"), 1000);
    let path = std::ffi::CString::new(fixture.at("d").as_os_str().as_bytes()).unwrap();
    // SAFETY: the stream is used by this thread only and closed at the end; entries are copied at
    // once.
    unsafe {
        let dir = libc::opendir(path.as_ptr());
        assert!(!dir.is_null());
        let next = || {
            let entry = libc::readdir(dir);
            (!entry.is_null()).then(|| CStr::from_ptr((*entry).d_name.as_ptr()).to_owned())
        };
        let mut listed = Vec::new();
        loop {
            let position = libc::telldir(dir);
            let Some(name) = next() else { break };
            listed.push((position, name));
        }
        assert_eq!(listed.len(), 1002, "with . and ..");
        for n in [900, 3, 500, 501, 0] {
            libc::seekdir(dir, listed[n].0);
            assert_eq!(next().as_ref(), Some(&listed[n].1));
        }
        libc::rewinddir(dir);
        assert_eq!(next().as_ref(), Some(&listed[0].1));
        libc::closedir(dir);
    }
}

/// No descriptor per inode: far more directories and files than are kept open.
#[test]
fn a_walk_over_many_directories_costs_few_descriptors() {
    let fixture = Fixture::prepared(byteback_mount::CacheMode::Exact, |tree| {
        for n in 0..1500 {
            fs::create_dir(tree.join(format!("d{n}"))).unwrap();
            for m in 0..14 {
                fs::write(tree.join(format!("d{n}/f{m}")), b"").unwrap();
            }
        }
    });
    let mut files = 0;
    for dir in fs::read_dir(fixture.tree()).unwrap() {
        for file in fs::read_dir(dir.unwrap().path()).unwrap() {
            files += 1;
            file.unwrap().metadata().unwrap();
        }
    }
    assert_eq!(files, 21_000);
    // The daemon is this very process, and other tests run in it too.
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 2_500, "{open} descriptors");
}

#[test]
fn trees_are_removed_by_the_usual_tools() {
    let fixture = Fixture::new();
    for n in 0..20 {
        fs::create_dir_all(fixture.at(&format!("t/{n}/x/y"))).unwrap();
        fill(&fixture.at(&format!("t/{n}/many")), 60);
    }
    let status = std::process::Command::new("rm")
        .arg("-r")
        .arg(fixture.at("t"))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(!fixture.below("t").exists());
}

/// Names under which `sync` writes files before they get their own.
#[test]
fn names_on_their_way_are_in_no_listing() {
    let fixture = Fixture::new();
    let digits = "0123456789abcdef0123456789abcdef";
    fs::create_dir(fixture.at("dir")).unwrap();
    let ours = ["new", "moved"].map(|what| format!(".byteback-landing-{what}-{digits}"));
    let others = [
        format!(".byteback-landing-new-{digits}0"),
        format!("dir/{}", ours[0]),
        "file".to_owned(),
    ];
    for name in ours.iter().chain(&others) {
        fs::write(fixture.at(name), name).unwrap();
    }
    let expected = [&others[0], "dir", "file"].map(std::ffi::OsString::from);
    assert_eq!(names(&fixture.tree()), BTreeSet::from(expected));
    let inside = [std::ffi::OsString::from(&ours[0])];
    assert_eq!(names(&fixture.at("dir")), BTreeSet::from(inside), "only in the root");
    for name in ours {
        assert_eq!(
            fs::read_to_string(fixture.at(&name)).unwrap(),
            name,
            "whoever knows the name finds it"
        );
        fs::remove_file(fixture.at(&name)).unwrap();
    }
}
