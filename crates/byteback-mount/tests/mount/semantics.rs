//! One test per promise of `docs/semantics.md`.

use std::fs;

use crate::harness::Fixture;

#[test]
fn what_is_written_is_read_here_and_below() {
    let fixture = Fixture::new();
    fs::write(fixture.at("a"), b"hello").unwrap();
    assert_eq!(fs::read(fixture.at("a")).unwrap(), b"hello");
    assert_eq!(fs::read(fixture.below("a")).unwrap(), b"hello");
    fs::create_dir(fixture.at("d")).unwrap();
    fs::rename(fixture.at("a"), fixture.at("d/b")).unwrap();
    assert_eq!(fs::read(fixture.at("d/b")).unwrap(), b"hello");
    let names: Vec<_> = fs::read_dir(fixture.tree())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["d"]);
    fs::remove_file(fixture.at("d/b")).unwrap();
    assert!(!fixture.below("d/b").exists());
}
