use crate::sim::SimDisk;

use super::*;

const FILE: VersionedJson = VersionedJson {
    name: "a.json",
    version: 3,
    len_max_bytes: 200,
};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Body {
    numbers: Vec<u64>,
}

fn put(disk: &SimDisk, bytes: &[u8]) {
    let file = disk.open(FILE.name, OpenMode::CreateIfMissing).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(0, bytes).unwrap();
}

fn why(disk: &SimDisk) -> String {
    match FILE.read::<Body>(disk) {
        Err(VersionedJsonError::Damaged(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn versioned_json_refuses_any_damage_with_its_reason() {
    let disk = SimDisk::new(1);
    assert_eq!(FILE.read::<Body>(&disk).unwrap(), None);
    for numbers in [vec![], vec![u64::MAX, 0]] {
        let body = Body { numbers };
        FILE.write(&disk, &body).unwrap();
        assert_eq!(FILE.read(&disk).unwrap(), Some(body));
    }
    let bytes = FILE.bytes_of(&Body { numbers: vec![7] }).unwrap();
    assert_eq!(bytes, br#"{"version":3,"numbers":[7],"crc32c":"f4b395c0"}"#);
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        put(&disk, &bytes);
        why(&disk);
    }
    for len in 0..bytes.len() {
        put(&disk, &bytes[..len]);
        why(&disk);
    }
    let newer = VersionedJson { version: 4, ..FILE };
    put(&disk, &newer.bytes_of(&Body { numbers: vec![] }).unwrap());
    assert_eq!(why(&disk), "it has version 4, but this program knows only version 3");
    put(&disk, &[b' '; 201]);
    assert_eq!(why(&disk), "it is too long (201 bytes)");
    // Fields that this program does not know would be lost by writing them again.
    put(&disk, br#"{"version":3,"numbers":[7],"more":1,"crc32c":"f4b395c0"}"#);
    assert_eq!(why(&disk), "its checksum is wrong");
}

#[test]
fn versioned_json_reads_its_fuzz_seed() {
    for seed in fuzzing::versioned_json_seeds() {
        fuzzing::versioned_json(&seed);
        let read = FILE.body_of::<serde_json::Value>(&seed);
        assert!(read.is_err(), "a record of version 1 was read as one of version 3");
    }
}
