//! Answers in the kernel's format, broken ones, and random bytes.

use super::*;
use byteback_host::random::SplitMix64;

fn info(csum_type: u16, csum_len: u16, sector_len: u32, flags: u64) -> [u8; FS_INFO_LEN] {
    let mut bytes = [0; FS_INFO_LEN];
    bytes[32..36].copy_from_slice(&16384_u32.to_ne_bytes());
    bytes[36..40].copy_from_slice(&sector_len.to_ne_bytes());
    bytes[44..46].copy_from_slice(&csum_type.to_ne_bytes());
    bytes[46..48].copy_from_slice(&csum_len.to_ne_bytes());
    bytes[48..56].copy_from_slice(&flags.to_ne_bytes());
    bytes[56..64].copy_from_slice(&77_u64.to_ne_bytes());
    bytes
}

#[test]
fn the_file_system_is_known_or_left_alone() {
    let known = FsInfo::parse(&info(1, 8, 4096, 7)).unwrap().unwrap();
    let expected = FsInfo {
        node_len: 16384,
        sector_len: 4096,
        kind: Kind::Xxh64,
        generation: 77,
    };
    assert_eq!(known, expected);
    // Kernels before 5.9 set neither flag; checksums of the future are not ours.
    for (csum_type, flags) in [(0, 0), (0, 1), (0, 2), (4, 3)] {
        assert_eq!(FsInfo::parse(&info(csum_type, 4, 4096, flags)).unwrap(), None);
    }
    for (csum_type, csum_len, sector_len) in [(0, 8, 4096), (2, 0, 4096), (0, 4, 0), (0, 4, 4095), (0, 4, 1 << 31)] {
        assert!(FsInfo::parse(&info(csum_type, csum_len, sector_len, 3)).is_err());
    }
}

/// An item in the format of the tree search.
fn item(objectid: u64, item_type: u32, offset: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = 5_u64.to_ne_bytes().to_vec();
    bytes.extend(objectid.to_ne_bytes());
    bytes.extend(offset.to_ne_bytes());
    bytes.extend(item_type.to_ne_bytes());
    bytes.extend((body.len() as u32).to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// The body of a file extent item.
fn extent(kind: u8, compression: u8, disk: [u64; 2], offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = 9_u64.to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend([compression, 0, 0, 0, kind]);
    for number in [disk[0], disk[1], offset, len] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

#[test]
fn file_extents_are_taken_apart() {
    let parse = |start, body: &[u8]| Extent::parse(start, body, 4096);
    let place = |start, len_bytes, body| Ok(Extent { start, len_bytes, body });
    let data = extent(1, 0, [1 << 30, 16 << 12], 3 << 12, 5 << 12);
    let address = (1 << 30) + (3 << 12);
    assert_eq!(parse(8192, &data), place(8192, 5 << 12, Body::Data { address }));
    let hole = extent(1, 0, [0, 0], 0, 1 << 40);
    assert_eq!(parse(4096, &hole), place(4096, 1 << 40, Body::Zeros));
    let preallocated = extent(2, 0, [1 << 30, 1 << 20], 0, 1 << 20);
    assert_eq!(parse(0, &preallocated), place(0, 1 << 20, Body::Zeros));
    // The content is longer than the extent on the disk, which is correct.
    let packed = extent(1, 3, [1 << 30, 4096], 65536, 65536);
    assert_eq!(parse(0, &packed), place(0, 65536, Body::Unknown(Unknown::Compressed)));
    let mut encrypted = data.clone();
    encrypted[17] = 1;
    assert_eq!(parse(0, &encrypted).unwrap().body, Body::Unknown(Unknown::Encoded));
    let mut inline = extent(0, 0, [0, 0], 0, 100);
    assert_eq!(parse(0, &inline), place(0, 4096, Body::Unknown(Unknown::Inline)));
    inline.truncate(21);
    assert!(parse(0, &inline).is_ok());
    assert!(
        parse(4096, &inline).is_err(),
        "only the first bytes of a file are inline"
    );
    for bad in [
        extent(3, 0, [1 << 30, 4096], 0, 4096),
        extent(1, 0, [1 << 30, 4096], 0, 0),
        extent(1, 0, [1 << 30, 4096], 0, 100),
        extent(1, 0, [1 << 30, 4096], 0, 8192),
        extent(1, 0, [1 << 30, 8192], 100, 4096),
        extent(1, 0, [u64::MAX - 4095, 8192], 0, 8192),
        extent(1, 0, [4096, u64::MAX], 0, 1 << 40),
        extent(0, 0, [0, 0], 0, u64::MAX),
        data[..52].to_vec(),
        [&data[..], &[0]].concat(),
        Vec::new(),
    ] {
        assert!(parse(0, &bad).is_err(), "{bad:?}");
    }
    assert!(parse(1, &data).is_err());
    assert!(parse(u64::MAX - 4095, &data).is_err(), "it ends behind the last byte");
}

#[test]
fn checksum_items_are_taken_apart() {
    let parsed = CsumItem::parse(8192, &[1; 12], 4096, 4).unwrap();
    assert_eq!(
        (parsed.address, parsed.end, parsed.sums.len()),
        (8192, 8192 + 3 * 4096, 12)
    );
    for (address, len) in [(8192, 0), (8192, 11), (8193, 12), (u64::MAX - 4095, 12)] {
        assert!(CsumItem::parse(address, &vec![1; len], 4096, 4).is_err());
    }
}

#[test]
fn items_end_where_the_answer_ends() {
    let answer = [
        item(257, 108, 0, b"one"),
        item(257, 108, 4096, b""),
        item(257, 108, 9, b"three"),
    ]
    .concat();
    let all: Vec<_> = Items::new(&answer, 3)
        .map(|item| item.map(|item| (item.offset, item.body.to_vec())))
        .collect();
    assert_eq!(
        all,
        [Ok((0, b"one".to_vec())), Ok((4096, vec![])), Ok((9, b"three".to_vec()))]
    );
    assert_eq!(Items::new(&answer, 2).count(), 2);
    // With any count, the first missing item is the last one.
    for len in 0..answer.len() {
        let items: Vec<_> = Items::new(&answer[..len], u32::MAX).collect();
        assert!(items.len() <= 3);
        assert!(items.last().unwrap().is_err());
        assert!(items[..items.len() - 1].iter().all(Result::is_ok));
    }
}

#[test]
fn btrfs_items_of_any_bytes_parse_in_bounded_time() {
    let mut random = SplitMix64::new(1);
    let whole: Vec<u8> = (0..20)
        .flat_map(|n| item(257, 108, n << 12, &extent(1, 0, [1 << 30, 1 << 20], n << 12, 1 << 12)))
        .collect();
    let mut told_apart = 0;
    for _ in 0..200_000 {
        let mut answer = whole.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(answer.len() as u64) as usize;
            match random.below(3) {
                0 => answer[at] ^= 1 << random.below(8),
                1 => answer[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                _ => answer.truncate(at.max(1)),
            }
        }
        let mut len = 0;
        for item in Items::new(&answer, random.next_u64() as u32) {
            let Ok(item) = item else {
                told_apart += 1;
                continue;
            };
            len += ITEM_HEADER_LEN + item.body.len();
            if let Ok(extent) = Extent::parse(item.offset, item.body, 4096) {
                assert!(extent.len_bytes > 0 && extent.end() > extent.start);
                if let Body::Data { address } = extent.body {
                    assert!(address.checked_add(extent.len_bytes).is_some() && extent.len_bytes <= DATA_LEN_MAX);
                }
            }
            if let Ok(sums) = CsumItem::parse(item.offset, item.body, 4096, 4) {
                assert!(sums.end > sums.address);
            }
        }
        assert!(len <= answer.len());
        let mut info = info(random.below(5) as u16, 4, 4096, 3);
        info[random.below(64) as usize] = random.next_u64() as u8;
        let _ = FsInfo::parse(&info);
    }
    assert!(told_apart > 1000, "{told_apart}");
}
