use super::*;
use byteback_model::{ByteString, Xattr};
use proptest::prelude::*;

fn attributes() -> Attributes {
    Attributes {
        kind: NodeKind::File,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        size: 12,
        mtime_ns: 1_700_000_000_123_456_789,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

fn of(entries: &[(&str, Attributes)]) -> [u8; 32] {
    let mut digest = DirectoryEntries::default();
    for (name, attributes) in entries {
        digest.push(name.as_bytes(), attributes);
    }
    digest.finish().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_version_1() {
    let file = of(&[("file", attributes())]);
    let root = of(&[(
        "dir",
        Attributes {
            kind: NodeKind::Directory,
            mode: 0o755,
            size: 0,
            ..attributes()
        },
    )]);
    let combined = combine(&[
        DigestedDirectory {
            above: None,
            entries: Some(root),
        },
        DigestedDirectory {
            above: Some(0),
            entries: Some(file),
        },
    ]);
    let [Some(root), Some(dir)] = combined[..] else {
        panic!("{combined:?}");
    };
    assert_eq!(
        hex(&file),
        "b13eac206fee15e35526f803c57dd12501e941cfca8b1000d04c529091121f6d"
    );
    assert_eq!(
        hex(&dir),
        "0c382fb00c50f1ede8e827aa5c1e16160309e0286cf9d37efb7487781e6a4f7b"
    );
    assert_eq!(
        hex(&root),
        "4da8ec7579f9c5013f8b29dc56a2d2c59e98df2d6f01923b6a4c99e3572cfd95"
    );
    let mut list = DirectoryDigests::default();
    list.insert(PathKey::of(b""), &root);
    list.insert(PathKey::of(b"dir"), &dir);
    let bytes = list.encode();
    assert_eq!(
        hex(&bytes),
        "8942424449520d0a010000000200000004d297b107904bba4da8ec7579f9c5013f8b29dc56a2d2c5c6524ec0ee2afca00c382fb00c50f1ede8e827aa5c1e16164893a947"
    );
    assert_eq!(DirectoryDigests::decode(&bytes).unwrap(), list);
    let key = PathKey::of(b"dir");
    assert!(list.agree(key, &dir) && !list.agree(key, &root) && !list.agree(PathKey::of(b"di"), &dir));
}

/// Every attribute counts, but for the names of owners; and so do names, their number and their
/// borders.
#[test]
fn digest_of_entries_changes_with_everything_in_them() {
    let base = || vec![("a", attributes()), ("b", attributes())];
    type Change = fn(&mut Attributes);
    let changes: [Change; 12] = [
        |it| it.kind = NodeKind::Fifo,
        |it| it.mode ^= 1,
        |it| it.uid += 1,
        |it| it.gid += 1,
        |it| it.size += 1,
        |it| it.mtime_ns += 1,
        |it| it.mtime_ns += 1 << 64,
        |it| it.rdev += 1,
        |it| it.inode_flags ^= 16,
        |it| it.target = Some(ByteString::from("")),
        |it| it.target = Some(ByteString::from("t")),
        |it| {
            it.xattrs.push(Xattr {
                name: ByteString::from("user.x"),
                value: ByteString::from(""),
            });
        },
    ];
    let mut digests = vec![of(&base())];
    for change in changes {
        let mut entries = base();
        change(&mut entries[1].1);
        digests.push(of(&entries));
    }
    digests.push(of(&base()[..1]));
    digests.push(of(&[]));
    digests.push(of(&[("a", attributes()), ("c", attributes())]));
    digests.push(of(&[("ab", attributes())]));
    let mut owned = base();
    owned[1].1.user = Some(ByteString::from("me"));
    owned[1].1.group = Some(ByteString::from("us"));
    assert_eq!(of(&owned), digests[0]);
    let number = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), number);
}

#[test]
fn what_is_below_counts_in_all_directories_above() {
    let entries = |number: u8| Some([number; 32]);
    let tree = |deepest: Option<[u8; 32]>| {
        let above = [None, Some(0), Some(1), Some(0)];
        let entries = [entries(1), entries(2), deepest, entries(4)];
        let directories = above.into_iter().zip(entries);
        combine(
            &directories
                .map(|(above, entries)| DigestedDirectory { above, entries })
                .collect::<Vec<_>>(),
        )
    };
    let (one, other, unknown) = (tree(entries(3)), tree(entries(5)), tree(None));
    for index in 0..3 {
        assert_ne!(one[index], other[index]);
        assert_eq!(unknown[index], None);
    }
    assert_eq!(one[3], other[3]);
    assert_eq!(one[3], unknown[3]);
    assert!(one.iter().all(Option::is_some));
    let mut given_up = DirectoryEntries::default();
    given_up.push(b"a", &attributes());
    given_up.give_up();
    assert_eq!(given_up.finish(), None);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(paths in prop::collection::vec(("[a-c/]{0,6}", any::<[u8; 32]>()), 0..30)) {
        let mut list = DirectoryDigests::default();
        for (path, digest) in &paths {
            list.insert(PathKey::of(path.as_bytes()), digest);
        }
        let bytes = list.encode();
        prop_assert_eq!(&DirectoryDigests::decode(&bytes).unwrap(), &list);
        let bit = bytes.len() * 3;
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(DirectoryDigests::decode(&flipped).is_err());
    }

    #[test]
    fn bytes_of_anybody_do_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..100), count in 0..5_u32) {
        let _ = DirectoryDigests::decode(&bytes);
        let mut valid = DirectoryDigests::default().encode();
        valid.truncate(12);
        valid.extend_from_slice(&count.to_le_bytes());
        valid.append(&mut bytes);
        let crc = crc32c::crc32c(&valid);
        valid.extend_from_slice(&crc.to_le_bytes());
        let _ = DirectoryDigests::decode(&valid);
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let mut list = DirectoryDigests::default();
    list.insert(PathKey::of(b""), &[1; 32]);
    list.insert(PathKey::of(b"a/b"), &[2; 32]);
    let bytes = list.encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(DirectoryDigests::decode(&flipped).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(DirectoryDigests::decode(&bytes[..len]).is_err(), "{len} bytes");
    }
}
