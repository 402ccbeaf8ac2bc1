//! The reader of the decisions file for the fuzz targets; see `crate::fuzzing`.

use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::sim::SimDisk;

use super::wire::{self, Frame, HEAD};

/// The bytes behind the head of a file, or the payload of one frame: the first byte says which. The
/// frame's checksum is computed.
pub fn decisions(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    let body = if which % 2 == 0 {
        bytes.to_vec()
    } else {
        Frame::decisions(1, bytes)
    };
    let disk = SimDisk::new(1);
    let file = disk.open("decisions", OpenMode::CreateNew).and_then(|file| {
        file.write_all_at(0, &[&HEAD, &body[..]].concat())?;
        Ok(file)
    });
    let Ok(file) = file else {
        unreachable!("the simulated disk failed")
    };
    let (mut again, mut len_bytes) = (HEAD.to_vec(), HEAD.len());
    let read = wire::for_each_frame(&*file, |frame| match frame {
        Frame::Begin { batch, tree, at_ns } => again.extend(Frame::begin(batch, tree, at_ns)),
        Frame::Decisions { batch, bytes } => {
            again.extend(Frame::decisions(batch, bytes));
            for decision in wire::decisions(bytes) {
                let mut written = Vec::new();
                wire::put_decision(&mut written, &decision);
                assert_eq!(
                    wire::decisions(&written).next(),
                    Some(decision),
                    "another decision comes back"
                );
                len_bytes += written.len();
            }
        }
        Frame::End { batch, seq } => again.extend(Frame::end(batch, seq)),
        Frame::Compression { batch, compression } => again.extend(Frame::compression(batch, compression)),
    });
    assert!(
        read.is_ok() && len_bytes <= HEAD.len() + body.len(),
        "more decisions than bytes"
    );
    let ends_whole = wire::ends_whole(&*file, (HEAD.len() + body.len()) as u64);
    assert!(ends_whole.is_ok());
    // Where every frame is of a known kind, the whole file comes back.
    if body.starts_with(&again[HEAD.len()..]) && again.len() == HEAD.len() + body.len() {
        assert!(
            ends_whole.is_ok_and(|whole| whole),
            "a file that was read to its end does not end whole"
        );
    }
}

/// Files and payloads.
#[must_use]
pub fn decisions_seeds() -> Vec<Vec<u8>> {
    let decision = vec![3, 5, 3, 1, 0x11, 0x11, 0x11, 7, 100, 62, 80, 70, 112];
    let file = [
        Frame::begin(1, byteback_oplog::TreeId(2), 3),
        Frame::decisions(1, &decision),
        Frame::end(1, 4),
    ];
    vec![[vec![0], file.concat()].concat(), [vec![1], decision].concat()]
}
