//! The bytes of the intent file, and how damaged ones are read. Crashes are tested with the log as
//! a whole.

use byteback_host::sim::SimDisk;

use super::*;

const HALF: u64 = 4;

fn opened(disk: &SimDisk, counted_from: u64) -> (IntentFile, OpenIntents) {
    IntentFile::open(disk, Generation(counted_from), HALF).unwrap()
}

fn nodes(found: &OpenIntents) -> Vec<u64> {
    let mut nodes: Vec<u64> = found.nodes.iter().map(|node| node.0).collect();
    nodes.sort_unstable();
    nodes
}

fn bytes(disk: &SimDisk, offset: u64, len: usize) -> Vec<u8> {
    let file = disk.open(FILE_NAME, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(offset, &mut bytes).unwrap();
    bytes
}

fn put(disk: &SimDisk, offset: u64, bytes: &[u8]) {
    let file = disk.open(FILE_NAME, OpenMode::Existing).unwrap();
    file.write_all_at(offset, bytes).unwrap();
}

#[test]
fn golden_bytes_of_version_1() {
    let disk = SimDisk::new(1);
    let (intents, found) = opened(&disk, 0);
    assert!(found.nodes.is_empty() && !found.every_node);
    // Generation 3 lives in the second half, generation 4 in the first.
    for _ in 0..3 {
        intents.rotate(|_| Vec::new()).unwrap();
    }
    assert_eq!(
        intents.append(NodeId(0x0102)).unwrap(),
        Appended::Durable(Generation(3))
    );
    assert_eq!(intents.append(NodeId(5)).unwrap(), Appended::Durable(Generation(3)));

    let file = disk.open(FILE_NAME, OpenMode::Existing).unwrap();
    assert_eq!(file.len().unwrap(), 512 + 2 * HALF * 512);
    let mut head = b"BBINTENT".to_vec();
    head.extend([0x01, 0, 0, 0]); // version
    head.extend([0x04, 0, 0, 0, 0, 0, 0, 0]); // sectors per half
    head.extend([0xa7, 0x7a, 0x0d, 0x83]); // crc of what is before
    head.resize(512, 0);
    assert_eq!(bytes(&disk, 0, 512), head);

    let mut record = vec![0x02, 0x01, 0, 0, 0, 0, 0, 0]; // node
    record.extend([0x03, 0, 0, 0, 0, 0, 0, 0]); // generation
    record.extend(b"BINT");
    record.extend([0xb5, 0xc0, 0x2c, 0xeb]); // crc of what is before
    record.resize(512, 0);
    let second_half = 512 + HALF * 512;
    assert_eq!(bytes(&disk, second_half, 512), record);
    // Another group begins in a sector of its own.
    assert_eq!(bytes(&disk, second_half + 512, 1), [5]);
    drop(intents);
    assert_eq!(nodes(&opened(&disk, 3).1), [5, 0x0102]);
    assert!(nodes(&opened(&disk, 4).1).is_empty());
}

#[test]
fn younger_generations_count_and_elder_ones_do_not() {
    let disk = SimDisk::new(2);
    let (intents, _) = opened(&disk, 0);
    intents.rotate(|_| vec![NodeId(11), NodeId(12)]).unwrap();
    intents.rotate(|_| vec![NodeId(12), NodeId(13)]).unwrap();
    drop(intents);
    // The transaction that says "generation 2" may not have arrived.
    assert_eq!(nodes(&opened(&disk, 1).1), [11, 12, 13]);
    let (intents, found) = opened(&disk, 2);
    assert_eq!(nodes(&found), [12, 13]);
    // New ones are younger than all that were found, whatever the database says.
    assert_eq!(intents.current(), Generation(2));
    assert_eq!(opened(&disk, 1).0.current(), Generation(2));
    assert_eq!(intents.append(NodeId(1)).unwrap(), Appended::Full(Generation(2)));
}

#[test]
fn intents_beyond_half_a_half_stand_for_every_node() {
    let disk = SimDisk::new(3);
    let (intents, _) = opened(&disk, 0);
    let many = |count: u64| (1..=count).map(NodeId).collect::<Vec<_>>();
    intents.rotate(|_| many(32)).unwrap();
    assert_eq!(opened(&disk, 1).1.nodes.len(), 32);
    intents.rotate(|_| many(33)).unwrap();
    assert_eq!(bytes(&disk, 512, 8), [0xff; 8]);
    let (_, found) = opened(&disk, 2);
    assert!(found.every_node && found.nodes.is_empty());
}

#[test]
fn a_record_with_any_bit_flipped_opens_every_node() {
    let disk = SimDisk::new(4);
    let (intents, _) = opened(&disk, 0);
    intents.rotate(|_| vec![NodeId(1), NodeId(2), NodeId(3)]).unwrap();
    drop(intents);
    let at = 512 + HALF * 512 + 32;
    let record = bytes(&disk, at, 32);
    for byte in 0..32 {
        let mut flipped = record.clone();
        flipped[byte] ^= 0x08;
        put(&disk, at, &flipped);
        let (_, found) = opened(&disk, 1);
        assert_eq!((nodes(&found), found.every_node), (vec![1, 3], true), "byte {byte}");
    }
    put(&disk, at, &record);
    assert_eq!(nodes(&opened(&disk, 1).1), [1, 2, 3]);
}

#[test]
fn a_file_that_was_taken_away_cut_or_replaced_opens_every_node() {
    let damages: [&dyn Fn(&SimDisk); 5] = [
        &|disk| disk.remove(FILE_NAME).unwrap(),
        &|disk| disk.open(FILE_NAME, OpenMode::Existing).unwrap().set_len(0).unwrap(),
        &|disk| {
            let len = 512 + 2 * HALF * 512;
            disk.open(FILE_NAME, OpenMode::Existing)
                .unwrap()
                .set_len(len - 1)
                .unwrap();
        },
        // The head: its magic, and the number of sectors.
        &|disk| put(disk, 0, b"X"),
        &|disk| put(disk, 12, &[5]),
    ];
    for (number, damage) in damages.iter().enumerate() {
        let disk = SimDisk::new(5);
        let (intents, _) = opened(&disk, 0);
        intents.rotate(|_| vec![NodeId(1)]).unwrap();
        drop(intents);
        damage(&disk);
        let (_, found) = opened(&disk, 1);
        assert!(found.every_node, "damage {number}");
        // A crash before the next generation is in the database leaves that to the next start.
        let (intents, found) = opened(&disk, 1);
        assert!(found.every_node, "damage {number}");
        assert_eq!(intents.rotate(|_| Vec::new()).unwrap(), Generation(2));
        drop(intents);
        assert!(opened(&disk, 1).1.every_node, "damage {number}");
        let (_, found) = opened(&disk, 2);
        assert!(!found.every_node && found.nodes.is_empty(), "damage {number}");
    }
}

#[test]
fn another_version_is_refused_and_left_alone() {
    let disk = SimDisk::new(6);
    let (intents, _) = opened(&disk, 0);
    intents.rotate(|_| vec![NodeId(1)]).unwrap();
    drop(intents);
    let version_1 = bytes(&disk, 0, 24);
    let mut version_2 = version_1.clone();
    version_2[8] = 2;
    let check = crc32c::crc32c(&version_2[..20]).to_le_bytes();
    version_2[20..].copy_from_slice(&check);
    put(&disk, 0, &version_2);
    for _ in 0..2 {
        let refused = IntentFile::open(&disk, Generation(1), HALF).map(drop).unwrap_err();
        assert!(matches!(refused, LogError::Version { found: 2, known: 1 }), "{refused}");
    }
    put(&disk, 0, &version_1);
    assert_eq!(nodes(&opened(&disk, 1).1), [1]);
    // A version that does not agree with the checksum is damage.
    put(&disk, 8, &[2]);
    assert!(opened(&disk, 1).1.every_node);
}
