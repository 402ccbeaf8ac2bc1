//! The behaviour that all implementations of the durable traits share, tested on the real and the
//! simulated one.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::{DurableDir, DurableFile, OpenMode};
use crate::random::SplitMix64;

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(error) => error.kind(),
    }
}

/// The contract point by point.
pub(crate) fn contract(dir: &dyn DurableDir) {
    // Open modes.
    assert_eq!(kind(dir.open("a", OpenMode::Existing)), ErrorKind::NotFound);
    let file = dir.open("a", OpenMode::CreateNew).unwrap();
    assert_eq!(kind(dir.open("a", OpenMode::CreateNew)), ErrorKind::AlreadyExists);
    file.write_all_at(0, b"abc").unwrap();
    assert_eq!(
        dir.open("a", OpenMode::CreateIfMissing).unwrap().len().unwrap(),
        3,
        "an existing file is not emptied"
    );
    assert_eq!(dir.open("b", OpenMode::CreateIfMissing).unwrap().len().unwrap(), 0);

    // Bytes: gaps read as zeros, reads stop at the end.
    file.write_all_at(6, b"gh").unwrap();
    let mut bytes = [9; 8];
    file.read_exact_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc\0\0\0gh");
    assert_eq!(kind(file.read_exact_at(1, &mut bytes)), ErrorKind::UnexpectedEof);
    assert_eq!(kind(file.read_exact_at(100, &mut bytes)), ErrorKind::UnexpectedEof);
    assert_eq!(file.read_at(8, &mut bytes).unwrap(), 0);
    assert_eq!(file.read_at(100, &mut bytes).unwrap(), 0);
    assert_eq!(file.read_at(0, &mut []).unwrap(), 0);
    file.read_exact_at(100, &mut []).unwrap();
    let read = file.read_at(5, &mut bytes).unwrap();
    assert!((1..=3).contains(&read));
    file.write_all_at(100, &[]).unwrap();
    assert_eq!(file.len().unwrap(), 8, "writing nothing changes nothing");

    // Lengths: what was cut off does not come back.
    file.set_len(2).unwrap();
    file.set_len(4).unwrap();
    file.read_exact_at(0, &mut bytes[..4]).unwrap();
    assert_eq!(&bytes[..4], b"ab\0\0");
    file.allocate(3).unwrap();
    assert_eq!(file.len().unwrap(), 4, "allocating never shortens");
    file.allocate(700_001).unwrap();
    assert_eq!(file.len().unwrap(), 700_001);
    let mut all = vec![1; 700_001];
    file.read_exact_at(0, &mut all).unwrap();
    assert!(all.starts_with(b"ab\0") && all[2..].iter().all(|byte| *byte == 0));
    assert!(
        file.write_all_at(u64::MAX - 1, b"xyz").is_err(),
        "an offset that overflows is refused"
    );
    assert!(file.set_len(u64::MAX).is_err());
    file.sync_data().unwrap();
    dir.sync().unwrap();

    // Names.
    assert_eq!(dir.list().unwrap(), ["a", "b"]);
    dir.rename("a", "b").unwrap();
    assert_eq!(dir.list().unwrap(), ["b"]);
    assert_eq!(dir.open("b", OpenMode::Existing).unwrap().len().unwrap(), 700_001);
    assert_eq!(file.len().unwrap(), 700_001, "an open file survives its rename");
    dir.rename("b", "b").unwrap();
    assert_eq!(kind(dir.rename("a", "c")), ErrorKind::NotFound);
    assert_eq!(kind(dir.remove("a")), ErrorKind::NotFound);
    dir.remove("b").unwrap();
    file.write_all_at(0, b"unlinked").unwrap();
    file.sync_data().unwrap();
    file.read_exact_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"unlinked");
    assert_eq!(dir.list().unwrap(), Vec::<String>::new());

    // Subdirectories.
    let sub = dir.subdir("sub").unwrap();
    sub.open("x", OpenMode::CreateNew).unwrap();
    assert_eq!(dir.subdir("sub").unwrap().list().unwrap(), ["x"]);
    assert_eq!(dir.list().unwrap(), ["sub"]);
    assert_eq!(
        kind(dir.open("sub", OpenMode::CreateIfMissing)),
        ErrorKind::IsADirectory
    );
    assert_eq!(kind(sub.subdir("x")), ErrorKind::NotADirectory);
    assert_eq!(kind(dir.remove("sub")), ErrorKind::IsADirectory);
    dir.open("f", OpenMode::CreateNew).unwrap();
    assert_eq!(kind(dir.rename("f", "sub")), ErrorKind::IsADirectory);
    assert_eq!(kind(dir.rename("sub", "f")), ErrorKind::NotADirectory);
    dir.subdir("other").unwrap().open("y", OpenMode::CreateNew).unwrap();
    assert_eq!(kind(dir.rename("other", "sub")), ErrorKind::DirectoryNotEmpty);
    dir.rename("sub", "moved").unwrap();
    assert_eq!(dir.subdir("moved").unwrap().list().unwrap(), ["x"]);
    sub.sync().unwrap();

    // Invalid names.
    for name in ["", ".", "..", "a/b", "/a", "a\0"] {
        assert_eq!(
            kind(dir.open(name, OpenMode::CreateIfMissing)),
            ErrorKind::InvalidInput,
            "{name:?}"
        );
        assert_eq!(kind(dir.subdir(name)), ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(kind(dir.remove(name)), ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(kind(dir.rename(name, "z")), ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(kind(dir.rename("f", name)), ErrorKind::InvalidInput, "{name:?}");
    }
    let error = dir.open("missing", OpenMode::Existing).unwrap_err();
    assert!(
        error.to_string().contains("missing"),
        "the message names the file: {error}"
    );
    assert_eq!(crate::errno_of(&error), Some(rustix::io::Errno::NOENT.raw_os_error()));
}

/// Random operations against the naive model: a map of names to byte vectors.
pub(crate) fn random_operations(dir: &dyn DurableDir, seed: u64, steps: usize) {
    let mut random = SplitMix64::new(seed);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut open: BTreeMap<String, Arc<dyn DurableFile>> = BTreeMap::new();
    for step in 0..steps {
        let name = format!("f{}", random.below(4));
        let what = format!("seed {seed} step {step} {name}");
        match random.below(12) {
            0 => {
                let target = format!("f{}", random.below(4));
                assert_eq!(dir.rename(&name, &target).is_ok(), model.contains_key(&name), "{what}");
                if let Some(bytes) = model.remove(&name) {
                    model.insert(target.clone(), bytes);
                    let file = open.remove(&name).unwrap();
                    open.insert(target, file);
                }
            }
            1 => {
                assert_eq!(dir.remove(&name).is_ok(), model.remove(&name).is_some(), "{what}");
                open.remove(&name);
            }
            2 => {
                dir.sync().unwrap();
                assert!(dir.list().unwrap().iter().eq(model.keys()), "{what}");
            }
            3 => {
                let missing = !model.contains_key(&name);
                assert_eq!(dir.open(&name, OpenMode::CreateNew).is_ok(), missing, "{what}");
                let file = dir.open(&name, OpenMode::Existing).unwrap();
                model.entry(name.clone()).or_default();
                open.insert(name, file);
            }
            kind => {
                let Some(bytes) = model.get_mut(&name) else { continue };
                let file = &open[&name];
                let at = random.below(5000) as usize;
                match kind {
                    4 | 5 => {
                        let data: Vec<u8> = (0..random.below(2000)).map(|_| random.next_u64() as u8).collect();
                        file.write_all_at(at as u64, &data).unwrap();
                        if !data.is_empty() {
                            let end = at + data.len();
                            bytes.resize(bytes.len().max(end), 0);
                            bytes[at..end].copy_from_slice(&data);
                        }
                    }
                    6 => {
                        file.set_len(at as u64).unwrap();
                        bytes.resize(at, 0);
                    }
                    7 => {
                        file.allocate(at as u64).unwrap();
                        bytes.resize(bytes.len().max(at), 0);
                    }
                    8 => file.sync_data().unwrap(),
                    9 => {
                        let mut read = [7; 300];
                        let n = file.read_at(at as u64, &mut read).unwrap();
                        let rest = bytes.get(at..).unwrap_or_default();
                        assert_eq!(n == 0, rest.is_empty(), "{what}");
                        assert_eq!(read[..n], rest[..n], "{what}");
                    }
                    _ => {
                        let mut read = vec![7; bytes.len()];
                        assert_eq!(file.len().unwrap(), bytes.len() as u64, "{what}");
                        file.read_exact_at(0, &mut read).unwrap();
                        assert!(read == *bytes, "{what}");
                    }
                }
            }
        }
    }
}
