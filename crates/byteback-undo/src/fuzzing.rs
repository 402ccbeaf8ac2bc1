//! Entry points of the fuzz targets (`fuzz/`) to the private readers of the journal. Compiled for
//! tests, which call them with the seeds, and with the feature `fuzzing`.

use std::sync::Arc;

use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::sim::SimDisk;

use crate::journal::Journal;
use crate::record::{ContentHow, Framed, HEADER_LEN_BYTES, Record, Rights, Step, decode, head_len};

/// So much that nothing is dropped for want of room.
const BUDGET_BYTES: u64 = 1 << 30;

/// A segment behind its header, found by a start. Checksums of heads are made right, so that what
/// they say counts.
pub fn segment(data: &[u8]) {
    let mut bytes = data.to_vec();
    seal(&mut bytes);
    let disk = SimDisk::new(1);
    let (first, name) = new_segment(&disk);
    let written = disk
        .open(&name, OpenMode::Existing)
        .and_then(|file| file.write_all_at(first, &bytes));
    assert!(written.is_ok(), "the simulated disk failed");
    let Ok((mut journal, found)) = Journal::open(Arc::new(disk.clone()), BUDGET_BYTES) else {
        return;
    };
    for (_, framed) in &found.records {
        same(framed);
    }
    // It goes on: what was found is found again, with what came after it.
    let barrier = Record::NodeBarrier { node: 5, why: 1 };
    let appended = journal.append(77, &barrier, &[]).and_then(|_| journal.sync());
    assert!(appended.is_ok(), "nothing can be appended to what was found");
    drop(journal);
    let records = |found: &[(_, Framed)]| {
        found
            .iter()
            .map(|(_, framed)| framed.record.clone())
            .collect::<Vec<_>>()
    };
    let mut expected = records(&found.records);
    expected.push(barrier);
    let again =
        Journal::open(Arc::new(disk), BUDGET_BYTES).map(|(_, again)| (records(&again.records), again.is_damaged));
    assert_eq!(
        again.ok(),
        Some((expected, false)),
        "another start finds something else"
    );
}

/// A journal with one empty segment: where records begin in it, and its name.
fn new_segment(disk: &SimDisk) -> (u64, String) {
    let made = Journal::open(Arc::new(disk.clone()), BUDGET_BYTES).and_then(|(mut journal, _)| journal.roll());
    assert!(made.is_ok(), "no journal can be made");
    let names = disk.list().unwrap_or_default();
    assert_eq!(names.len(), 1);
    (HEADER_LEN_BYTES as u64, names.into_iter().next().unwrap_or_default())
}

/// Gives each record in a row the checksum of its head, as far as heads follow each other.
fn seal(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(len) = bytes.get(at..).and_then(head_len) {
        let Some(head) = bytes.get_mut(at..at + len) else {
            return;
        };
        let crc = crc32c::crc32c(head.get(4..).unwrap_or_default());
        head.get_mut(..4)
            .unwrap_or_default()
            .copy_from_slice(&crc.to_le_bytes());
        let Some(framed) = decode(head) else { return };
        let Ok(len) = usize::try_from(framed.len) else { return };
        at += len;
    }
}

/// Asserts that a head that was read is written as the same head.
fn same(framed: &Framed) {
    let data = vec![0; usize::try_from(framed.data_len).unwrap_or_default()];
    let again = decode(&framed.record.encode(framed.time_ns, &data));
    let reported = |framed: &Framed| (framed.time_ns, framed.record.clone(), framed.data_len, framed.len);
    assert_eq!(
        again.as_ref().map(reported),
        Some(reported(framed)),
        "another record comes back"
    );
}

/// Segments behind their headers: records of every kind, the last one torn.
#[must_use]
pub fn segment_seeds() -> Vec<Vec<u8>> {
    let name = b"name".to_vec();
    let records = [
        (
            Record::Session {
                tree: 9,
                step: Step::Opened,
            },
            0,
        ),
        (
            Record::Moment {
                node: 2,
                size: 4096,
                how: ContentHow::Written,
                quantum_ns: 1,
            },
            0,
        ),
        (
            Record::Old {
                node: 2,
                offset: 8,
                len: 5,
                is_zeros: false,
            },
            5,
        ),
        (
            Record::Old {
                node: 2,
                offset: 4096,
                len: 1 << 40,
                is_zeros: true,
            },
            0,
        ),
        (
            Record::Name {
                parent: 1,
                before: 2,
                after: 0,
                how: 1,
                name: name.clone(),
            },
            0,
        ),
        (
            Record::Rights {
                node: 2,
                rights: Rights {
                    mode: 0o640,
                    uid: 1,
                    gid: 2,
                },
            },
            0,
        ),
        (Record::NodeBarrier { node: 2, why: 1 }, 0),
        (
            Record::NameBarrier {
                parent: 1,
                why: 2,
                name,
            },
            0,
        ),
    ];
    let all: Vec<u8> = records
        .iter()
        .flat_map(|(record, len)| record.encode(1000, &vec![7; *len]))
        .collect();
    let torn = all[..all.len() - 3].to_vec();
    vec![Vec::new(), all, torn]
}

#[cfg(test)]
mod tests;
