use super::*;

fn lost(reason: &str) -> LostWrites {
    LostWrites {
        at_ns: 7,
        volume: ByteString::from("/card.img"),
        reason: reason.to_owned(),
    }
}

#[test]
fn the_first_loss_is_noted_without_growing_the_file() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("d");
    fs::create_dir(&directory).unwrap();
    let folder = StateFolder::of(&directory, &temp.path().join("state")).unwrap();
    folder.create().unwrap();
    assert_eq!(read(&folder), None);
    reserve(&folder).unwrap();
    let len = || fs::metadata(folder.path().join(LOST_NAME)).unwrap().len();
    assert_eq!((read(&folder), len()), (None, LEN_BYTES as u64));
    note(&folder, lost(&"no room \u{e9}".repeat(1000))).unwrap();
    note(&folder, lost("later")).unwrap();
    let read_again = read(&folder).unwrap();
    assert!(read_again.reason.starts_with("no room"), "{read_again:?}");
    assert_eq!(len(), LEN_BYTES as u64);
    reserve(&folder).unwrap();
    assert_eq!(read(&folder), Some(read_again));
    reset(&folder).unwrap();
    assert_eq!(read(&folder), None);
}
