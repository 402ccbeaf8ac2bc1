use super::*;
use byteback_host::sim::{CrashPhase, SimDisk};

fn sources(texts: &[(&[u8], &[u8])], caches: &[&[u8]]) -> Sources {
    let owned = |(directory, text): &(&[u8], &[u8])| (directory.to_vec(), text.to_vec());
    Sources {
        texts: texts.iter().map(owned).collect(),
        caches: caches.iter().map(|path| path.to_vec()).collect(),
    }
}

#[test]
fn golden_bytes_of_version_1_and_any_flipped_bit() {
    let said = sources(&[(b"", b"*.o\n"), (b"a/b", b"\xff")], &[b"target"]);
    let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(0));
    said.note(&disk).unwrap();
    assert_eq!(Sources::read(&*disk).unwrap(), Some(said));
    let body = Body {
        rules: vec![(ByteString::from("a"), ByteString::from("*.o"))],
        caches: vec![ByteString::from("target")],
    };
    let bytes = FILE.bytes_of(&body).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let begin = r#"{"version":1,"rules":[["a","*.o"]],"caches":["target"],"crc32c":""#;
    assert!(text.starts_with(begin), "{text}");
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(FILE.body_of::<Body>(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn ignore_rules_are_the_old_or_the_new_after_a_power_cut() {
    let (old, new) = (sources(&[(b"", b"old")], &[]), sources(&[(b"", b"new")], &[b"c"]));
    let work = |disk: &SimDisk| {
        let disk: Arc<dyn DurableDir> = Arc::new(disk.clone());
        old.note(&disk).and_then(|()| new.note(&disk))
    };
    let trial = SimDisk::new(0);
    work(&trial).unwrap();
    for nth in 1..=trial.counters().syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(0);
            disk.crash_at_sync(nth, phase);
            assert!(work(&disk).is_err());
            for survivor in 0..20 {
                let noted = Sources::read(&disk.recover(survivor)).unwrap();
                // Each note has two syncs.
                let may_be = [None, Some(old.clone()), Some(new.clone())];
                let answered = ((nth - 1) / 2) as usize;
                assert!(
                    may_be[answered..=answered + 1].contains(&noted),
                    "{nth} {phase:?}: {noted:?}"
                );
            }
        }
    }
}

#[test]
fn directories_of_which_other_rules_speak_are_found() {
    let old = sources(&[(b"", b"x"), (b"a/b", b"y")], &[b"c/target"]);
    let differ = |new: &Sources, directory: &[u8]| old.may_differ_in(new, directory);
    assert!(!differ(&old, b"") && !differ(&old, b"a/b"));
    let new = sources(&[(b"", b"x"), (b"a/b", b"z")], &[]);
    for (directory, expected) in [
        (b"".as_slice(), false),
        (b"a", false),
        (b"a/b", true),
        (b"a/b/c", true),
        (b"a/bc", false),
        (b"c", true),
        (b"c/target", true),
        (b"c/target/deep", true),
        (b"d", false),
    ] {
        assert_eq!(
            differ(&new, directory),
            expected,
            "{}",
            String::from_utf8_lossy(directory)
        );
    }
    assert!(differ(&sources(&[(b"a/b", b"y")], &[b"c/target"]), b"d/e"));
}
