//! A server's digests of directories.
#![no_main]

use byteback_api::directory_digests::{DigestedDirectory, DirectoryDigests, PathKey, combine};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    if let Ok(digests) = DirectoryDigests::decode(data) {
        let again = DirectoryDigests::decode(&digests.encode()).expect("it was made here");
        assert_eq!(again, digests);
        assert!(digests.len() * 24 <= data.len());
    }
    // A tree of any form, even one whose directories come before those above them.
    let directories: Vec<DigestedDirectory> = data
        .iter()
        .map(|byte| DigestedDirectory {
            above: byte.checked_sub(1).map(usize::from),
            entries: (byte % 7 != 0).then_some([*byte; 32]),
        })
        .collect();
    assert_eq!(combine(&directories).len(), directories.len());
}

fn seeds() -> Vec<Vec<u8>> {
    let mut some = DirectoryDigests::default();
    for path in ["", "a", "a/b"] {
        some.insert(PathKey::of(path.as_bytes()), &[path.len() as u8; 32]);
    }
    vec![DirectoryDigests::default().encode(), some.encode(), vec![0, 1, 1, 2, 4]]
}
