//! Versions of a file laid over each other in an [`ExtentMap`]: each range of bytes knows in which
//! version it was stored, and a reader is told where each piece of the file lies.
//!
//! `cargo run -p byteback-extents --example layered_versions`

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example")]

use byteback_extents::{ByteRange, ExtentMap, ExtentValue};

/// The place of the first byte of a range: in the data of this version, at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    version: u32,
    at: u64,
}

/// Extents can be cut, as their tail lies further on, and joined, if the next one lies behind.
impl ExtentValue for Stored {
    fn advance(&self, by_bytes: u64) -> Self {
        Self {
            at: self.at + by_bytes,
            ..*self
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.advance(len_bytes) == *next
    }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).expect("the start is below the end")
}

pub(crate) fn main() {
    // Version 1 is the whole file, version 2 changes two ranges of it.
    let mut file = ExtentMap::new();
    file.insert(range(0, 1_000), Stored { version: 1, at: 0 });
    let mut newer = ExtentMap::new();
    newer.insert(range(200, 300), Stored { version: 2, at: 0 });
    newer.insert(range(900, 1_100), Stored { version: 2, at: 100 });

    file.overlay(&newer);
    for (range, stored) in file.iter() {
        println!("{range:?}: version {}, from byte {} on", stored.version, stored.at);
    }
    assert_eq!(file.len(), 4);

    // A reader asks for bytes 250 to 350, and for some past the end, which nothing covers.
    let pieces: Vec<_> = file.pieces(range(250, 350)).collect();
    assert_eq!(
        pieces,
        [
            (range(250, 300), Stored { version: 2, at: 50 }),
            (range(300, 350), Stored { version: 1, at: 300 }),
        ]
    );
    assert_eq!(
        file.gaps(range(1_000, 2_000)).collect::<Vec<_>>(),
        [range(1_100, 2_000)]
    );

    // Version 2 is taken back where it overlaps version 1: the pieces of that are one extent again.
    file.insert(range(200, 300), Stored { version: 1, at: 200 });
    println!("after the first change was taken back: {file:?}");
    assert_eq!(file.get(0), Some((range(0, 900), &Stored { version: 1, at: 0 })));
}
