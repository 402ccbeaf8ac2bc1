//! Names of conflict copies.

use super::super::names::{ConflictLabel, is_name_on_its_way, name_on_its_way};
use byteback_model::FileId;

fn label() -> ConflictLabel {
    // 2026-11-22 13:05:33 UTC, an hour further east.
    ConflictLabel::new("lap/top", 1_795_352_733, 3600)
}

#[test]
fn names_keep_their_extensions_and_fit() {
    let tag = " (conflict from lap_top, 2026-11-22 14.05.33)";
    for (name, stem, extension) in [
        ("letter.txt", "letter", ".txt"),
        ("backup.tar.gz", "backup", ".tar.gz"),
        (".bashrc", ".bashrc", ""),
        (".config.json", ".config", ".json"),
        (".tar.gz", ".tar", ".gz"),
        ("Makefile", "Makefile", ""),
        ("ends.", "ends.", ""),
        ("Mr. Jones and all the others", "Mr. Jones and all the others", ""),
        ("...", "...", ""),
    ] {
        let made = label().apply(name.as_bytes(), 1);
        assert_eq!(String::from_utf8(made).unwrap(), format!("{stem}{tag}{extension}"));
    }
    let second = label().apply(b"a.b", 2);
    assert_eq!(second, b"a (conflict from lap_top, 2026-11-22 14.05.33, 2).b");
}

#[test]
fn long_names_are_cut_between_characters_and_bytes_stay_bytes() {
    let long = format!("x{}.txt", "\u{e4}".repeat(125));
    let made = label().apply(long.as_bytes(), 12);
    let text = String::from_utf8(made).unwrap();
    assert!(
        text.len() <= 255 && text.len() >= 253 && text.ends_with(", 12).txt"),
        "{text}"
    );
    let bytes = [0xff; 255];
    let made = label().apply(&bytes, 1);
    assert_eq!(made.len(), 255);
    assert!(made.starts_with(&[0xff; 200]));
    let tails = [0x80; 255];
    assert_eq!(label().apply(&tails, 1).len(), 255);
    let host = ConflictLabel::new(&"\u{df}".repeat(100), 0, 0);
    assert!(String::from_utf8(host.apply(b"a", 1)).is_ok_and(|name| name.contains("1970-01-01 00.00.00")));
}

#[test]
fn dates_are_right_at_the_borders() {
    for (time_s, date) in [
        (951_782_399, "2000-02-28 23.59.59"),
        (951_782_400, "2000-02-29 00.00.00"),
        (4_107_542_400, "2100-03-01 00.00.00"),
        (-1, "1969-12-31 23.59.59"),
        (1_798_761_599, "2026-12-31 23.59.59"),
    ] {
        let name = ConflictLabel::new("h", time_s, 0).apply(b"a", 1);
        assert!(String::from_utf8(name).unwrap().contains(date), "{date}");
    }
}

#[test]
fn only_whole_names_on_their_way_are_that() {
    for is_new in [true, false] {
        let name = name_on_its_way(FileId(7), is_new);
        assert!(is_name_on_its_way(&name));
        assert!(!is_name_on_its_way(&name[..name.len() - 1]));
    }
    assert!(!is_name_on_its_way(b".byteback-landing-new-"));
    assert!(!is_name_on_its_way(b"letter"));
}

#[test]
fn names_on_their_way_are_those_that_no_listing_shows() {
    use std::os::unix::ffi::OsStrExt;
    let hides = |name: &[u8]| byteback_mount::landing::is_name_on_its_way(std::ffi::OsStr::from_bytes(name));
    for is_new in [true, false] {
        let name = name_on_its_way(FileId(0x1234_abcd << 90), is_new);
        assert!(hides(&name) && is_name_on_its_way(&name));
        let longer = [&name[..], b"0"].concat();
        for other in [&name[1..], &name[..name.len() - 1], &longer, b".byteback", b"file"] {
            assert_eq!(hides(other), is_name_on_its_way(other));
            assert!(!hides(other));
        }
    }
}
