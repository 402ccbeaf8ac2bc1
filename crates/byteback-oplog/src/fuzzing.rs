//! Entry points of the fuzz targets (`fuzz/`) to the private readers of durable records. Compiled
//! for tests, which call them with the seeds, and with the feature `fuzzing`.
//!
//! Each takes any bytes, and panics unless a record that was read is written as the same record
//! again.

use byteback_extents::ExtentSet;
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::sim::SimDisk;
use byteback_model::{NodeId, NodeKind};

use crate::codec::seal;
use crate::database::rows::{KeyRow, NameRow, NodeRow, PlaceRow};
use crate::ids::Epoch;
use crate::intents::{FILE_NAME, Generation, IntentFile, SECTOR_BYTES};
use crate::layer::{Layer, Unit, WholeReason};
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::marks::{ConsumerState, DropReason, Dropped, FileMark, PendingCut};
use crate::mlog;
use crate::packed::{self, Row};
use crate::record::{DiskKey, Fence, NodeRecord};

/// Any record of the database: the first byte selects the kind, the others are the record without
/// its checksum, which is added.
pub fn record(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    // Also without an added checksum: mostly refused for that.
    for bytes in [seal(bytes.to_vec()), bytes.to_vec()] {
        match which % 9 {
            0 => same(&bytes, |bytes| Layer::decode(bytes).ok(), Layer::encode),
            1 => pack::<NodeRow>(&bytes),
            2 => same(&bytes, |bytes| ConsumerState::decode(bytes).ok(), ConsumerState::encode),
            3 => same(&bytes, |bytes| FileMark::decode(bytes).ok(), |mark| mark.encode()),
            4 => same(&bytes, |bytes| LedgerEntry::decode(bytes).ok(), LedgerEntry::encode),
            5 => mlogs(&bytes),
            6 => pack::<KeyRow>(&bytes),
            7 => pack::<NameRow>(&bytes),
            _ => pack::<PlaceRow>(&bytes),
        }
        if which % 9 == 0
            && let Ok(layer) = Layer::decode(&bytes)
        {
            assert_eq!(
                layer.is_unknown(),
                Layer::is_encoded_unknown(&bytes),
                "the short look tells otherwise"
            );
        }
    }
}

/// Asserts that a value that was read is the same after writing and reading it.
fn same<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>, encode: impl Fn(&T) -> Vec<u8>) {
    let Some(value) = decode(bytes) else { return };
    let written = encode(&value);
    let again = decode(&written).map(|value| encode(&value));
    assert_eq!(again.as_ref(), Some(&written), "another record comes back");
}

fn pack<R: Row>(bytes: &[u8]) {
    same(
        bytes,
        |bytes| packed::decode::<R>(bytes).ok(),
        |rows| packed::encode(rows),
    );
}

fn mlogs(bytes: &[u8]) {
    for unit in [Unit::Byte, Unit::Page] {
        let Ok(ranges) = mlog::decode(bytes, unit) else {
            continue;
        };
        let written = mlog::encode(&ranges, unit);
        let again = written.ok().and_then(|bytes| mlog::decode(&bytes, unit).ok());
        let pairs = |set: &ExtentSet| set.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>();
        assert_eq!(
            again.as_ref().map(pairs),
            Some(pairs(&ranges)),
            "other ranges come back"
        );
    }
}

/// Records of every kind, as [`record`] takes them.
#[must_use]
pub fn record_seeds() -> Vec<Vec<u8>> {
    let layer = |ranges: &[(u64, u64)], whole, unit| {
        let mut layer = Layer {
            whole,
            unit,
            ..Layer::default()
        };
        for &(start, end) in ranges {
            layer.ranges.extend(byteback_extents::ByteRange::new(start, end));
        }
        layer.encode()
    };
    let state = ConsumerState {
        mark: Some(Epoch(3)),
        pending: Some(PendingCut {
            epoch: Epoch(7),
            batch: 2,
        }),
        saved_at_ns: 5,
        note: b"{}".to_vec(),
        heard_at_ns: -6,
        file_marks: 1,
        dropped: Some(Dropped {
            at_ns: 9,
            reason: DropReason::Expired,
        }),
    };
    let ledger = |event| LedgerEntry { at_ns: 1, event }.encode();
    let with = |which: u8, record: Vec<u8>| [vec![which], record[..record.len() - 4].to_vec()].concat();
    vec![
        with(0, layer(&[(0, 1), (5, 4096), (8192, 12_288)], None, Unit::Byte)),
        with(0, layer(&[(4096, 8192)], None, Unit::Page)),
        with(0, layer(&[], Some(WholeReason::Created), Unit::Byte)),
        with(1, node_pack()),
        with(2, state.encode()),
        with(3, FileMark(Epoch(2)).encode()),
        with(4, ledger(LedgerEvent::Interrupted { open_files: 3 })),
        with(
            4,
            ledger(LedgerEvent::ConsumerDropped {
                consumer: "a".to_owned(),
                reason: DropReason::Ordered,
            }),
        ),
        vec![5, 1, 0, 2, 0x80, 9, 0, 0, 0, 0, 0, 2, 0],
        with(6, key_pack()),
        with(7, name_pack()),
        with(8, place_pack()),
    ]
}

const KEY: DiskKey = DiskKey {
    device: 0,
    inode: 77,
    birth_ns: 1_000,
};

fn node_pack() -> Vec<u8> {
    let fence = Fence {
        size_bytes: 5,
        mtime_ns: 900,
        ctime_ns: 1_100,
        mode: 0o644,
        uid: 3,
        gid: 4,
    };
    let row = |node, kind, fence| NodeRow {
        node: NodeId(node),
        record: NodeRecord {
            kind,
            key: KEY,
            born: Epoch(9),
            fence,
        },
    };
    packed::encode(&[
        row(1, NodeKind::Directory, None),
        row(2, NodeKind::File, Some(fence)),
        row(9, NodeKind::File, Some(fence)),
    ])
}

fn key_pack() -> Vec<u8> {
    let row = |device, inode| KeyRow {
        key: DiskKey { device, inode, ..KEY },
        node: NodeId(5),
    };
    packed::encode(&[row(0, 77), row(0, 78), row(3, 1)])
}

fn name_pack() -> Vec<u8> {
    let row = |parent, name: &[u8]| NameRow {
        parent: NodeId(parent),
        name: name.to_vec(),
        child: NodeId(5),
    };
    packed::encode(&[row(1, b"a.txt"), row(1, b"a.txt~"), row(4, b"b")])
}

fn place_pack() -> Vec<u8> {
    let row = |node, parent, name: &[u8]| PlaceRow {
        node: NodeId(node),
        parent: NodeId(parent),
        name: name.to_vec(),
    };
    packed::encode(&[row(2, 1, b"a"), row(2, 1, b"ab"), row(3, 2, b"c")])
}

/// The file of write intents, as a start finds it. The first bytes give the length of its halves
/// and the generation that counts.
pub fn intents(data: &[u8]) {
    let Some((&[sectors, generation], content)) = data.split_first_chunk() else {
        return;
    };
    let (half_sectors, generation) = (u64::from(sectors % 4) + 1, Generation(u64::from(generation)));
    let disk = SimDisk::new(1);
    let written = disk
        .open(FILE_NAME, OpenMode::CreateIfMissing)
        .and_then(|file| file.write_all_at(0, content));
    assert!(written.is_ok(), "the simulated disk failed");
    let Ok((_, open)) = IntentFile::open(&disk, generation, half_sectors) else {
        return;
    };
    // 16 intents to a sector.
    assert!(
        open.nodes.len() as u64 <= 2 * half_sectors * 16,
        "more intents than there is room for"
    );
    // A file that is not ours is made anew, and the loss is reported; a second start right after
    // that must report it too.
    let again = IntentFile::open(&disk, generation, half_sectors).map(|(_, again)| (again.nodes, again.every_node));
    assert_eq!(
        again.ok(),
        Some((open.nodes, open.every_node)),
        "another start finds other intents"
    );
}

/// Files of intents: a new one, one with an intent, one with a torn intent.
#[must_use]
pub fn intents_seeds() -> Vec<Vec<u8>> {
    let disk = SimDisk::new(1);
    let content = IntentFile::open(&disk, Generation(0), 1).ok().and_then(|_| {
        let file = disk.open(FILE_NAME, OpenMode::Existing).ok()?;
        let mut content = vec![0; usize::try_from(file.len().ok()?).ok()?];
        file.read_exact_at(0, &mut content).ok()?;
        Some(content)
    });
    let content = content.unwrap_or_default();
    let mut with_intent = content.clone();
    let intent = crate::intents::encode(byteback_model::NodeId(42), Generation(0));
    with_intent[SECTOR_BYTES..][..intent.len()].copy_from_slice(&intent);
    let mut torn = with_intent.clone();
    torn[SECTOR_BYTES + 9] ^= 1;
    [content, with_intent, torn]
        .map(|content| [vec![0, 0], content].concat())
        .into()
}

#[cfg(test)]
mod tests;
