use std::cell::RefCell;
use std::io;

use byteback_extents::ByteRange;

use super::{Map, Wanted, look};

const BLOCK: u64 = 4096;

/// The blocks of a file that are data below, and those that the kernel holds besides.
struct File {
    below: RefCell<Vec<bool>>,
    held: RefCell<Vec<bool>>,
}

impl File {
    fn new(below: &[bool], held: &[bool]) -> Self {
        Self {
            below: RefCell::new(below.to_vec()),
            held: RefCell::new(held.to_vec()),
        }
    }

    fn first(&self, from: u64, is_data: bool) -> Option<u64> {
        let below = self.below.borrow();
        let blocks = (from / BLOCK..below.len() as u64).find(|block| below[*block as usize] == is_data);
        blocks.map(|block| from.max(block * BLOCK))
    }

    /// Writes back whole blocks, which may make the file below longer.
    fn hand_on(&self, range: ByteRange) {
        let mut held = self.held.borrow_mut();
        let mut below = self.below.borrow_mut();
        let last = ((range.end() - 1) / BLOCK).min(held.len() as u64);
        for block in range.start() / BLOCK..=last {
            if held.get(block as usize) == Some(&true) {
                held[block as usize] = false;
                let len = below.len().max(block as usize + 1);
                below.resize(len, false);
                below[block as usize] = true;
            }
        }
    }
}

impl Map for File {
    fn data(&self, from: u64) -> io::Result<Option<u64>> {
        Ok(self.first(from, true))
    }

    fn hole(&self, from: u64) -> io::Result<Option<u64>> {
        let end = self.below.borrow().len() as u64 * BLOCK;
        Ok((from < end).then(|| self.first(from, false).unwrap_or(end)))
    }
}

/// All small files, with everything that the kernel can hold of them, are searched from each block.
#[test]
fn holes_that_are_found_are_holes_above() {
    const BLOCKS: u32 = 4;
    let bits = |number: u32| (0..BLOCKS).map(|bit| number >> bit & 1 == 1).collect::<Vec<bool>>();
    for below_len in 0..=BLOCKS as usize {
        for (below, held) in (0..1 << BLOCKS).flat_map(|below| (0..1 << BLOCKS).map(move |held| (below, held))) {
            let (below, held) = (&bits(below)[..below_len], bits(held));
            let seen: Vec<bool> = {
                let file = File::new(below, &held);
                file.hand_on(ByteRange::new(0, u64::MAX).unwrap());
                file.below.into_inner()
            };
            let seen = File::new(&seen, &[]);
            for from in (0..u64::from(BLOCKS) + 1).map(|block| block * BLOCK + 5) {
                let file = File::new(below, &held);
                let data = look(&file, Wanted::Data, from, |range| file.hand_on(range)).unwrap();
                assert_eq!(data, seen.data(from).unwrap(), "data: {below:?} {held:?} {from}");
                let file = File::new(below, &held);
                let hole = look(&file, Wanted::Hole, from, |range| file.hand_on(range)).unwrap();
                assert_eq!(hole, seen.hole(from).unwrap(), "hole: {below:?} {held:?} {from}");
            }
        }
    }
}
