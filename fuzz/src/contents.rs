//! Contents out of the fuzzer's bytes: a base, and a new content made from it by edits, so that the
//! two have something in common.

use std::convert::Infallible;

use byteback_delta::find::{ExtentSink, FoundExtents, IntoDelta};
use byteback_delta::{Base, DeltaReader, DeltaWriter, Source, WriterOptions, apply_to_new};
use byteback_extents::ByteRange;

/// No content becomes longer.
pub const LEN_MAX: usize = 64 << 10;

/// Takes numbers off the front of an input; zeros when it is used up.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.some(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes as a number.
    pub fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// Up to so many bytes.
    pub fn some(&mut self, len: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// Whether anything is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Bytes of the kinds that differ for a finder: noise, few values, a short period, zeros.
fn bytes_of(kind: u8, len: usize, seed: u8) -> Vec<u8> {
    let mut x = u64::from(seed) * 2 + 1;
    let noise = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    });
    match kind % 4 {
        0 => noise.take(len).collect(),
        1 => noise.map(|byte| byte & 1).take(len).collect(),
        2 => (0..=usize::from(seed % 9))
            .map(|at| at as u8)
            .cycle()
            .take(len)
            .collect(),
        _ => vec![0; len],
    }
}

/// A base and a new content, out of pieces and edits.
pub fn base_and_new(input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
    let mut base = Vec::new();
    for _ in 0..input.byte() % 4 {
        let (kind, len, seed) = (input.byte(), input.number() % (LEN_MAX / 4), input.byte());
        base.extend(bytes_of(kind, len, seed));
    }
    let mut new = base.clone();
    for _ in 0..32 {
        if input.is_empty() {
            break;
        }
        let (what, at, len) = (input.byte(), input.number(), input.number());
        let at = at % (new.len() + 1);
        let end = (at + len % 5000).min(new.len());
        match what % 6 {
            0 => drop(new.splice(at..at, input.some(len % 64).iter().copied())),
            1 => drop(new.drain(at..end)),
            2 => new[at..end].iter_mut().for_each(|byte| *byte ^= 0xff),
            3 => {
                let copied = new[at..end].to_vec();
                let to = input.number() % (new.len() + 1);
                drop(new.splice(to..to, copied));
            }
            4 => new[at..end].fill(0),
            _ => {
                let some = bytes_of(len as u8, len % 5000, what);
                drop(new.splice(at..at, some));
            }
        }
        new.truncate(LEN_MAX);
    }
    (base, new)
}

/// The content that a base and what was found make. Panics where something is missing, or lies
/// twice.
pub fn compose(base: &[u8], found: &FoundExtents) -> Vec<u8> {
    let mut new = Vec::new();
    for (range, source) in &found.extents {
        assert_eq!(
            range.start(),
            new.len() as u64,
            "an extent does not begin where the one before ends"
        );
        match source {
            Source::Literal(bytes) => new.extend_from_slice(bytes),
            Source::Copy { base_offset } => {
                let mut copied = vec![0; range.len_bytes() as usize];
                base.read_range(*base_offset, &mut copied)
                    .expect("a copy from behind the base's end");
                new.extend(copied);
            }
            Source::Zero => new.resize(range.end() as usize, 0),
        }
        assert_eq!(range.end(), new.len() as u64, "an extent is not as long as it says");
    }
    new
}

/// What makes the new content of what is found: at once, and as a stream that is applied. It keeps
/// no extents, so that the memory that an input takes is the finder's.
pub struct Made<'b> {
    base: &'b [u8],
    new: Vec<u8>,
    stream: DeltaWriter<Vec<u8>>,
}

impl<'b> Made<'b> {
    /// Nothing yet of a new content of so many bytes.
    pub fn new(base: &'b [u8], new_len: usize) -> Self {
        let options = WriterOptions {
            copies: true,
            compress: new_len.is_multiple_of(2),
        };
        let stream = DeltaWriter::new(Vec::new(), base.len() as u64, new_len as u64, options);
        Self {
            base,
            new: Vec::new(),
            stream: stream.expect("lengths of files"),
        }
    }

    /// Panics unless it made `new`, both ways.
    pub fn check(self, new: &[u8]) {
        assert!(self.new == new, "what is found does not make the new content");
        drop(self.new);
        let (stream, _) = self.stream.finish().expect("what was found is no delta");
        let mut target = Vec::new();
        apply_to_new(
            self.base,
            &mut DeltaReader::new(&stream[..]).expect("ours"),
            &mut target,
        )
        .expect("ours");
        assert!(target == new, "the stream does not make the new content");
    }
}

impl ExtentSink for Made<'_> {
    type Error = Infallible;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        assert_eq!(
            offset,
            self.new.len() as u64,
            "a literal does not begin where all before ends"
        );
        self.new.extend_from_slice(bytes);
        IntoDelta(&mut self.stream).literal(offset, bytes).expect("no delta");
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Infallible> {
        assert_eq!(
            range.start(),
            self.new.len() as u64,
            "a copy does not begin where all before ends"
        );
        let (from, len) = (base_offset as usize, range.len_bytes() as usize);
        let copied = self.base.get(from..from + len);
        self.new
            .extend_from_slice(copied.expect("a copy from behind the base's end"));
        IntoDelta(&mut self.stream).copy(range, base_offset).expect("no delta");
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), Infallible> {
        assert_eq!(
            range.start(),
            self.new.len() as u64,
            "a hole does not begin where all before ends"
        );
        self.new.resize(range.end() as usize, 0);
        IntoDelta(&mut self.stream).zero(range).expect("no delta");
        Ok(())
    }
}

/// Inputs for [`base_and_new`], behind the bytes of whoever calls it.
pub fn seeds(before: &[u8]) -> Vec<Vec<u8>> {
    let edits: [&[u8]; 4] = [
        // Noise; a block inverted in place.
        &[1, 0, 40, 0, 3, 2, 16, 0, 4, 0],
        // Noise and zeros; something inserted in front, something cut.
        &[
            2, 0, 30, 0, 3, 3, 10, 0, 0, 0, 0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 1, 20, 0, 2, 0,
        ],
        // A period; a part copied to the end.
        &[1, 2, 50, 0, 6, 3, 5, 0, 8, 0, 49, 0],
        // Few values; zeros in the middle, and more behind.
        &[1, 1, 60, 0, 9, 4, 30, 0, 9, 0, 5, 60, 0, 3, 8],
    ];
    edits.map(|edits| [before, edits].concat()).into()
}

/// An input for [`base_and_new`] that makes them as long as they become, the new content of noise
/// that nowhere goes on as the base does: with blocks of one byte, nothing takes more memory.
/// Behind the bytes of whoever calls it.
pub fn longest(before: &[u8]) -> Vec<u8> {
    let mut input = before.to_vec();
    input.push(3);
    for seed in 0..3 {
        input.extend([0, 0x3f, 0xff, seed]);
    }
    // Inverted from the front, 4996 bytes at a time; then noise is put in at the front.
    for at in (0..10_u16).map(|edit| edit * 4996) {
        input.push(2);
        input.extend([at, 4996].map(u16::to_be_bytes).concat());
    }
    for what in (5..).step_by(6).take(6) {
        input.extend([what, 0, 0]);
        input.extend(4996_u16.to_be_bytes());
    }
    input
}

/// All of a content as one range; `None` if it is empty.
pub fn all_of(content: &[u8]) -> Option<ByteRange> {
    ByteRange::new(0, content.len() as u64)
}
