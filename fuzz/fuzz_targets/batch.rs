//! A piece of a batch from anybody: read record by record, written again.
#![no_main]

use std::io::Read;

use byteback_api::Digest;
use byteback_api::batch::{BatchError, BatchReader, BatchWriter, DirectoryTimeRecord, ProofRecord, Record};
use byteback_model::{
    Attributes, ByteString, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, Totals,
};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    let (records, end) = read(data);
    let (again, _) = read(&written(&records));
    assert_eq!(again, records, "other records come back");
    if end.is_ok() {
        assert!(
            records
                .iter()
                .filter(|(record, _)| matches!(record, Record::End(_)))
                .count()
                <= 1
        );
    }
}

/// Records, deltas with their streams.
type Records = Vec<(Record, Vec<u8>)>;

/// All records up to the first that is wrong.
fn read(data: &[u8]) -> (Records, Result<(), BatchError>) {
    let mut reader = BatchReader::new(data);
    let mut records = Vec::new();
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => return (records, Ok(())),
            Err(error) => {
                assert!(
                    matches!(reader.next_record(), Ok(None)),
                    "after an error, something comes"
                );
                return (records, Err(error));
            }
        };
        let mut stream = Vec::new();
        if let Record::Delta { len, .. } = record {
            let got = reader.delta().read_to_end(&mut stream).map_err(BatchError::from);
            if let Err(error) = got.and_then(|_| reader.finish_delta()) {
                return (records, Err(error));
            }
            assert_eq!(stream.len() as u64, len);
        }
        records.push((record, stream));
    }
}

fn written(records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    // The totals of a piece count those of the pieces before it.
    let end = records.iter().find_map(|(record, _)| match record {
        Record::End(totals) => Some(*totals),
        _ => None,
    });
    let count = |is: fn(&Record) -> bool| records.iter().filter(|(record, _)| is(record)).count() as u64;
    let counted = Totals {
        nodes: count(|record| matches!(record, Record::Node(_))),
        entries: count(|record| matches!(record, Record::Entry(_))),
        deltas: count(|record| matches!(record, Record::Delta { .. })),
        proofs: count(|record| matches!(record, Record::Proof(_))),
        directory_times: count(|record| matches!(record, Record::DirectoryTime(_))),
    };
    let before = end.map_or_else(Totals::default, |end| Totals {
        nodes: end.nodes.wrapping_sub(counted.nodes),
        entries: end.entries.wrapping_sub(counted.entries),
        deltas: end.deltas.wrapping_sub(counted.deltas),
        proofs: end.proofs.wrapping_sub(counted.proofs),
        directory_times: end.directory_times.wrapping_sub(counted.directory_times),
    });
    let is_possible = end.is_none_or(|end| {
        end.nodes >= counted.nodes
            && end.entries >= counted.entries
            && end.deltas >= counted.deltas
            && end.proofs >= counted.proofs
            && end.directory_times >= counted.directory_times
    });
    let before = if is_possible { before } else { Totals::default() };
    let mut writer = BatchWriter::resume(Vec::new(), before).expect("memory");
    let mut ends = false;
    for (record, stream) in records {
        match record {
            Record::Manifest(manifest) => writer.manifest(manifest),
            Record::Node(node) => writer.node(node),
            Record::Entry(entry) => writer.entry(entry),
            Record::Delta { file, .. } => writer.delta(*file, stream),
            Record::Proof(proof) => writer.proof(proof),
            Record::DirectoryTime(time) => writer.directory_time(time),
            Record::End(_) => {
                ends = true;
                Ok(())
            }
        }
        .expect("it was read");
    }
    match ends {
        // Totals that do not count what there is are the store's to refuse; they cannot be written.
        true if is_possible => writer.end().expect("memory"),
        true => {
            let (mut bytes, _) = writer.into_parts().expect("memory");
            let json = serde_json::to_vec(&end).expect("numbers");
            bytes.push(5);
            bytes.push(u8::try_from(json.len()).unwrap_or(0x7f) | if json.len() > 127 { 0x80 } else { 0 });
            if json.len() > 127 {
                bytes.pop();
                bytes.extend([(json.len() & 0x7f) as u8 | 0x80, (json.len() >> 7) as u8]);
            }
            bytes.extend(json);
            bytes.extend([0; 4]);
            bytes
        }
        false => writer.into_parts().expect("memory").0,
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let id = FileId::from_bytes([7; 16]);
    let attributes = Attributes {
        kind: NodeKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: 5,
        mtime_ns: 1,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: Some(ByteString(vec![0xff])),
    };
    let write = |writer: &mut BatchWriter<Vec<u8>>| {
        writer.manifest(&Manifest {
            device: 1,
            counter: 2,
            base_seq: None,
            replaces: None,
            follows: None,
            root: id,
            created_ns: 3,
            host: "h".into(),
            path: "/p".into(),
            snapshot: None,
        })?;
        writer.node(&NodeRecord {
            id,
            attributes: attributes.clone(),
            content: Some(ContentChange {
                deltas: 1,
                base: ContentBase::Empty,
            }),
        })?;
        writer.entry(&NameChange {
            parent: id,
            name: "n".into(),
            child: Some(id),
        })?;
        writer.delta(id, b"a stream")?;
        writer.directory_time(&DirectoryTimeRecord { id, mtime_ns: 5 })?;
        writer.proof(&ProofRecord {
            id,
            digest: Digest([9; 32]),
            sums: None,
            ranges: vec![(0, 8)],
        })
    };
    let mut first = BatchWriter::new(Vec::new()).expect("memory");
    write(&mut first).expect("memory");
    let (piece, totals) = first.into_parts().expect("memory");
    let last = BatchWriter::resume(Vec::new(), totals)
        .expect("memory")
        .end()
        .expect("memory");
    let mut whole = BatchWriter::new(Vec::new()).expect("memory");
    write(&mut whole).expect("memory");
    let whole = whole.end().expect("memory");
    let packed = byteback_api::batch::packed(&whole).expect("it becomes shorter");
    vec![piece, last, whole, packed]
}
