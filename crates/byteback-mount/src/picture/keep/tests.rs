//! Files without a name where the file system has no way to make them: each picture gets one of its
//! own.

use super::*;

#[test]
fn pictures_never_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    // A leftover of a crash.
    std::fs::write(dir.path().join("picture"), b"old").unwrap();
    let files: Vec<File> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..200)
                        .map(|_| create_and_unname(dir.path()).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.write_all_at(&number.to_le_bytes(), 0).unwrap();
    }
    for (number, file) in files.iter().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(usize::from_le_bytes(bytes), number);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
