//! Damage x place: what is lost is named, what is not lost is read, verification lists it, and backups go on.

use crate::lab::{Batch, Lab};
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::random::noise;
use byteback_store::StoreError;
use byteback_store::model::FileId;
use byteback_store::verify::VerifyEvent;
use std::ops::ControlFlow;

fn damaged_files(lab: &Lab) -> Vec<FileId> {
    let mut found = Vec::new();
    let totals = lab
        .store
        .verify("f", None, |event| {
            if let VerifyEvent::Damage { id, path, error } = event {
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                assert_eq!(path, Some(format!("file{}", id.0).into_bytes()));
                found.push(id);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((totals.files, totals.damaged_files), (3, found.len() as u64));
    found
}

#[test]
fn every_kind_of_damage_is_told_apart_from_what_is_whole() {
    // Each file gets a segment of its own: a frame is longer than a segment may be.
    let files: Vec<Vec<u8>> = (2..5).map(|id| noise(id, 9000)).collect();
    for damage in [
        "flip in frame",
        "flip in frame head",
        "truncate",
        "truncate to nothing",
        "remove",
        "other frame",
    ] {
        let lab = Lab::new(1000);
        lab.first(&[(2, &files[0]), (3, &files[1]), (4, &files[2])]);
        let names = lab.disk.list().unwrap();
        assert_eq!(names.len(), 3);
        assert!(damaged_files(&lab).is_empty());
        let disk = lab.disk.clone();
        let lab = lab.reopen(disk);
        let file = lab.disk.open(&names[1], OpenMode::Existing).unwrap();
        let flip = |at: u64| {
            let mut byte = [0];
            file.read_exact_at(at, &mut byte).unwrap();
            file.write_all_at(at, &[byte[0] ^ 8]).unwrap();
        };
        match damage {
            "flip in frame" => flip(5000),
            "flip in frame head" => flip(25),
            "truncate" => file.set_len(5000).unwrap(),
            "truncate to nothing" => file.set_len(0).unwrap(),
            "remove" => lab.disk.remove(&names[1]).unwrap(),
            _ => {
                // A frame that is whole, but another one.
                let other = lab.disk.open(&names[0], OpenMode::Existing).unwrap();
                let mut bytes = vec![0; 4000];
                other.read_exact_at(20, &mut bytes).unwrap();
                file.write_all_at(20, &bytes).unwrap();
            }
        }
        match lab.read(3, 1) {
            Err(StoreError::Damaged {
                segment: 2,
                offset: 0 | 20,
                ..
            }) => {}
            other => panic!("{damage}: {other:?}"),
        }
        assert_eq!(damaged_files(&lab), [FileId(3)], "{damage}");
        assert_eq!(
            (lab.read(2, 1).unwrap(), lab.read(4, 1).unwrap()),
            (files[0].clone(), files[2].clone())
        );
        // The next backup completes; new bytes of the damaged file are readable where they are its own.
        lab.send(2, Some(1), &Batch::default().patch(3, 9000, &[(0, &files[2])]))
            .unwrap();
        assert_eq!(lab.read(3, 2).unwrap(), files[2], "{damage}");
        assert!(
            damaged_files(&lab).is_empty(),
            "{damage}: the present needs nothing damaged"
        );
    }
}
