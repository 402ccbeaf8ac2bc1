use super::*;
use byteback_host::durable::RealDir;

/// Part number and digest, with what a record log adds.
const ENTRY_LEN: usize = 4 + 32 + 20;

fn begun() -> Begun {
    Begun {
        server: "http://h:1".to_owned(),
        folder: "f".to_owned(),
        device: 3,
        to: ByteString::from("a/b"),
        source: ByteString::from(&b"/x\xff"[..]),
        counter: 42,
        base_seq: 7,
        created_ns: -1,
        seed: FileId(0xfeed),
    }
}

fn record(dir: &Arc<dyn DurableDir>, left: Option<Parts>) -> Record {
    let record = Record {
        dir: Some(Arc::clone(dir)),
        begun: begun(),
        is_resumed: left.is_some(),
        parts: Mutex::new(left.unwrap_or_default()),
    };
    record.keep(&crate::Silent);
    record
}

fn stage(record: &Record, part: u32, bytes: &[u8]) -> bool {
    let mut was_sent = false;
    let mut put = || {
        was_sent = true;
        Ok(())
    };
    record.stage(part, (bytes, &[0; 32]), &mut put).unwrap();
    was_sent
}

/// The record on the disk, with all parts still at the server.
fn left(dir: &Arc<dyn DurableDir>) -> Parts {
    let (was, mut parts) = read(dir).unwrap().unwrap();
    assert_eq!(was, begun());
    parts.at_server = (1..100).collect();
    parts
}

fn temporary() -> (tempfile::TempDir, Arc<dyn DurableDir>) {
    let temp = tempfile::tempdir().unwrap();
    let dir: Arc<dyn DurableDir> = Arc::new(RealDir::create(temp.path().join("push")).unwrap());
    (temp, dir)
}

#[test]
fn a_record_of_version_1() {
    let (temp, dir) = temporary();
    let first = record(&dir, None);
    assert!(stage(&first, 1, b"part one"));
    let bytes = std::fs::read(temp.path().join("push/push")).unwrap();
    let json = concat!(
        r#"{"server":"http://h:1","folder":"f","device":3,"to":"a/b","source":{"base64":"L3j/"},"counter":42,"#,
        r#""base_seq":7,"created_ns":-1,"seed":"0000000000000000000000000000feed"}"#
    );
    let entry = [&1u32.to_le_bytes()[..], &digest(b"part one")].concat();
    assert!(bytes.starts_with(b"BBPUSH\0\x01"));
    let contents = FORMAT.contents_of(&bytes).unwrap();
    assert_eq!(
        (contents.head, contents.records),
        (json.as_bytes().to_vec(), vec![entry])
    );
}

#[test]
fn a_part_is_left_out_only_if_the_server_has_these_bytes() {
    let (_temp, dir) = temporary();
    let first = record(&dir, None);
    for (part, bytes) in [(1, "one"), (2, "two"), (3, "three")] {
        assert!(stage(&first, part, bytes.as_bytes()));
    }
    let mut parts = left(&dir);
    parts.at_server.remove(&3);
    let second = record(&dir, Some(parts));
    assert!(!stage(&second, 1, b"one"));
    assert!(stage(&second, 2, b"other"), "other bytes");
    assert!(stage(&second, 3, b"three"), "not at the server any more");
    assert_eq!(second.reused(), (1, 3));
    let third = record(&dir, Some(left(&dir)));
    assert!(stage(&third, 2, b"two"), "those were replaced");
    assert!(!stage(&third, 3, b"three"));
    third.remove();
    assert!(read(&dir).unwrap().is_none());
}

#[test]
fn push_record_forgets_what_was_about_to_be_replaced() {
    let (_temp, dir) = temporary();
    assert!(stage(&record(&dir, None), 1, b"one"));
    let second = record(&dir, Some(left(&dir)));
    // The machine stops while the part is on its way: the server may have either.
    let failed = second.stage(1, (b"other", &[0; 32]), &mut || Err(BackupError::Cancelled));
    assert!(failed.is_err());
    assert!(stage(&record(&dir, Some(left(&dir))), 1, b"one"));
}

#[test]
fn push_record_is_none_if_damaged_and_ends_at_a_tear() {
    let (temp, dir) = temporary();
    let first = record(&dir, None);
    for part in 1..=3 {
        assert!(stage(&first, part, &[part as u8; 100]));
    }
    let path = temp.path().join("push/push");
    let whole = std::fs::read(&path).unwrap();
    let begin = whole.len() - 3 * ENTRY_LEN;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let known = read(&dir).unwrap().map(|(_, parts)| parts.known.len());
        let wanted = at.checked_sub(begin).map(|behind| behind / ENTRY_LEN);
        assert_eq!(known, wanted, "byte {at} flipped");
        std::fs::write(&path, &whole[..at]).unwrap();
        let known = read(&dir).unwrap().map(|(_, parts)| parts.known.len());
        assert_eq!(known, wanted, "cut to {at} bytes");
    }
    // Writing goes on behind a tear.
    std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();
    assert!(stage(&record(&dir, Some(left(&dir))), 3, b"three"));
    assert!(!stage(&record(&dir, Some(left(&dir))), 3, b"three"));
}

#[test]
fn identities_follow_from_push_and_path() {
    let other = Begun {
        seed: FileId(0xfeee),
        ..begun()
    };
    assert_eq!(begun().node_id(b"a/b"), begun().node_id(b"a/b"));
    assert_ne!(begun().node_id(b"a/b"), begun().node_id(b"a/c"));
    assert_ne!(begun().node_id(b"a/b"), other.node_id(b"a/b"));
}

#[test]
fn how_a_push_is_compressed_is_remembered_for_the_next_run() {
    let (temp, dir) = temporary();
    let first = record(&dir, None);
    assert_eq!(first.effort(), None);
    stage(&first, 1, b"part one");
    assert!(first.note_effort(5, Effort::Fast));
    stage(&first, 2, b"part two");
    drop(first);
    let again = record(&dir, Some(left(&dir)));
    assert_eq!(again.effort(), Some((5, Effort::Fast)));
    assert!(!stage(&again, 1, b"part one") && !stage(&again, 2, b"part two"));
    drop(again);
    let bytes = std::fs::read(temp.path().join("push/push")).unwrap();
    let mut entry = vec![0; 36];
    (entry[4], entry[12]) = (5, 1);
    assert!(bytes.windows(entry.len()).any(|window| window == entry));
    for effort in Effort::ALL {
        assert_eq!(effort_of(&effort_entry(u64::MAX, effort)), Some((u64::MAX, effort)));
    }
    assert_eq!(effort_of(&UNKNOWN), None);
}
