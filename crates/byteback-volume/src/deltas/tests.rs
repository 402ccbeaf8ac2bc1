use super::*;
use crate::create::{CreateOptions, create};
use crate::format::{INODE_SLOTS, VolumeId};
use crate::names::NewFile;
use crate::volume::{OpenOptions, Volume};
use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice, CountedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;
use std::sync::Arc;

/// The example of the paper: what is spared must be more than 80 bytes.
#[test]
fn a_delta_is_replaced_if_that_is_worth_more_than_it_costs() {
    let costs = Costs {
        delta_len_bytes: 72.0,
        keep_ns: 25_300.0,
        write_ns: 954_000.0,
        restore_ns: 6_900.0,
        hit_rate: 0.741,
        hit_ns: 9_200.0,
        miss_ns: 250_000.0,
    };
    assert!(costs.is_worth(81));
    assert!(!costs.is_worth(80));
    // Where writing a page costs no more than a delta nothing is worth it.
    let cheap = Costs {
        write_ns: 20_000.0,
        ..costs
    };
    assert!(!cheap.is_worth(250));
}

fn volume(keeps_deltas: bool) -> (Arc<CountedDevice<SimBlockDevice>>, Volume) {
    let device = Arc::new(CountedDevice::new(SimBlockDevice::new(20_000)));
    let dynamic = Arc::clone(&device) as Arc<dyn BlockDevice>;
    create(&dynamic, &CreateOptions::new(VolumeId([4; 16]), 5)).unwrap();
    (device, open(dynamic, keeps_deltas))
}

fn open(device: Arc<dyn BlockDevice>, keeps_deltas: bool) -> Volume {
    let options = OpenOptions {
        keeps_deltas,
        cache_len_bytes: 80 * BLOCK_LEN_BYTES,
        ..OpenOptions::default()
    };
    Volume::open(device, &options).unwrap()
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(1, name, &new).unwrap().ino
}

fn read(volume: &Volume, ino: u32) -> Vec<u8> {
    let len = volume.attributes(ino).unwrap().len_bytes;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn what_changes_little_is_not_written() {
    let mut written = Vec::new();
    for keeps_deltas in [false, true] {
        let mut random = SplitMix64::new(1);
        let (device, volume) = volume(keeps_deltas);
        let ino = file(&volume, b"database");
        let mut content = random.bytes(60 * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        let before = device.counters().written_bytes;
        for _ in 0..50 {
            let at = random.below(content.len() as u64 - 20) as usize;
            let bytes = random.bytes(20);
            content[at..at + 20].copy_from_slice(&bytes);
            volume.write(ino, at as u64, &bytes).unwrap();
            volume.sync_file(ino).unwrap();
        }
        written.push(device.counters().written_bytes - before);
        assert!(read(&volume, ino) == content);
        volume.close().unwrap();
        // Whoever does not keep deltas reads those that are there.
        let again = open(device, false);
        assert!(read(&again, ino) == content);
        again.write(ino, 0, &[1; 4]).unwrap();
        content[..4].fill(1);
        assert!(read(&again, ino) == content);
    }
    // A page and an inode each time, or the inode alone.
    assert!(written[1] * 10 < written[0] * 6, "{written:?}");
}

#[test]
fn addresses_and_longer_deltas_make_their_way() {
    let mut random = SplitMix64::new(2);
    let (device, volume) = volume(true);
    let ino = file(&volume, b"file");
    let mut content = random.bytes(300 * BLOCK_LEN_BYTES);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    for page in 0..200 {
        let at = page * BLOCK_LEN_BYTES + random.below(4_000) as usize;
        let len = 1 + random.below(90) as usize;
        let bytes = random.bytes(len);
        content[at..at + len].copy_from_slice(&bytes);
        volume.write(ino, at as u64, &bytes).unwrap();
    }
    assert!(volume.delta_counts().kept > 30, "{:?}", volume.delta_counts());
    assert!(read(&volume, ino) == content);
    volume.sync().unwrap();
    // Page after page, until all slots are taken.
    for page in 300..usize::try_from(INODE_SLOTS).unwrap() + 20 {
        let bytes = random.bytes(BLOCK_LEN_BYTES);
        volume.write(ino, (page * BLOCK_LEN_BYTES) as u64, &bytes).unwrap();
        content.extend(bytes);
    }
    assert!(volume.delta_counts().pushed_out > 30, "{:?}", volume.delta_counts());
    assert!(read(&volume, ino) == content);
    volume.close().unwrap();
    assert!(read(&open(device, true), ino) == content);
}

/// What is in an inode beside what it should be: nothing of it is believed, and nothing panics.
#[test]
fn damaged_deltas_are_errors() {
    let mut inode = Inode::default();
    assert!(inode.put_delta(3, &[0, 1, 0xff]) && inode.put_delta(4, &[9; 200]));
    assert_eq!(inode.delta_of(3), Some(&[0, 1, 0xff][..]));
    assert_eq!(inode.delta_of(4), Some(&[9; 200][..]));
    assert_eq!(inode.delta_of(5), None);
    inode.remove_deltas(|page| page == 4);
    assert_eq!((inode.deltas(), inode.delta_of(3)), (1, Some(&[0, 1, 0xff][..])));
    let mut random = SplitMix64::new(3);
    for _ in 0..2_000 {
        let noise = random.bytes(BLOCK_LEN_BYTES);
        let mut inode = Inode(Arc::new(noise[..].try_into().unwrap()));
        let _ = (
            inode.delta_of(1),
            inode.delta_room(),
            inode.used_slots(),
            inode.deltas_of().count(),
        );
        inode.remove_deltas(|page| page % 2 == 0);
        let _ = inode.put_delta(1, &[1, 2, 3]);
    }
}
