//! Verification of a source's checksums against the file's bytes, all of which are read once.

use byteback_extents::ByteRange;

use super::{FileChecksums, Layout, Run, Source, SourceError, Summer, Tail};

/// Bytes of one read.
const READ_LEN: usize = 4 << 20;

/// The verified part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of checksums that match their blocks.
    pub blocks: u64,
    /// The number of bytes in those blocks.
    pub bytes: u64,
    /// The number of bytes that are zeros as reported.
    pub zero_bytes: u64,
}

/// The reason why a file could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file could not be read, or changed meanwhile.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A checksum does not match its block.
    #[error(
        "the checksum of the block at byte {offset} does not match its {len_bytes} bytes: one of them is damaged; \
         compare the file with another copy"
    )]
    Differs {
        /// The block's first byte.
        offset: u64,
        /// The block's length.
        len_bytes: u64,
    },
    /// Bytes that were reported as zeros are not.
    #[error("byte {offset} is not zero, although the source reports zeros there; compare the file with another copy")]
    NotZero {
        /// The first byte that is not zero.
        offset: u64,
    },
}

/// Reads the stretches that `reported` has checksums of, and compares. The checksums are those of
/// the described state: a file that changed since, or meanwhile, is an error.
///
/// # Errors
/// See [`VerifyError`].
pub fn verify(source: &dyn Source, reported: &FileChecksums) -> Result<Verified, VerifyError> {
    let found = compare(source, reported);
    if !source.is_unchanged(reported.stamp())? {
        // The result is of another state, which proves no damage.
        return Err(SourceError::ChangedMeanwhile.into());
    }
    found
}

fn compare(source: &dyn Source, reported: &FileChecksums) -> Result<Verified, VerifyError> {
    let layout = reported.layout();
    let mut summer = Summer::new(layout);
    let (block_len, sum_len) = (u64::from(layout.block_len.max(1)), layout.kind.len_bytes());
    let as_they_are = Layout {
        tail: Tail::AsIs,
        ..layout.clone()
    };
    let mut of_chunks = Summer::new(&as_they_are);
    let mut buffer = vec![0; READ_LEN];
    let mut verified = Verified::default();
    for run in reported.runs() {
        match run {
            Run::Unknown { .. } => {}
            Run::Zeros { range } => {
                each_piece(source, range, &mut buffer, |offset, piece| {
                    match piece.iter().position(|byte| *byte != 0) {
                        Some(at) => Err(VerifyError::NotZero {
                            offset: offset + at as u64,
                        }),
                        None => Ok(()),
                    }
                })?;
                verified.zero_bytes += range.len_bytes();
            }
            Run::Sums { range, sums } => {
                let starts = (range.start()..range.end()).step_by(layout.block_len.max(1) as usize);
                let ends = starts.map(|start| range.end().min(start.saturating_add(block_len)));
                let expected = Expected { range, sums, sum_len };
                expected.compare(source, &mut summer, ends, &mut buffer, &mut verified)?;
            }
            Run::Chunks { range, ends, sums } => {
                let expected = Expected { range, sums, sum_len };
                let ends = ends.iter().copied();
                expected.compare(source, &mut of_chunks, ends, &mut buffer, &mut verified)?;
            }
        }
    }
    Ok(verified)
}

/// A stretch and its checksums.
struct Expected<'a> {
    range: ByteRange,
    sums: &'a [u8],
    sum_len: usize,
}

impl Expected<'_> {
    /// Sums the blocks of the stretch, which end at `ends`, and compares.
    fn compare(
        &self,
        source: &dyn Source,
        summer: &mut Summer,
        ends: impl Iterator<Item = u64>,
        buffer: &mut [u8],
        verified: &mut Verified,
    ) -> Result<(), VerifyError> {
        const NO_ORDER: SourceError = SourceError::Malformed("blocks that are not in order");
        const OTHERS: SourceError = SourceError::Malformed("blocks that do not belong to their run");
        let mut sums = self.sums.chunks_exact(self.sum_len);
        let mut ends = ends;
        let mut next = |start| match ends.next() {
            Some(end) => ByteRange::new(start, end).map(Some).ok_or(NO_ORDER),
            None => Ok(None),
        };
        let mut block = next(self.range.start())?;
        let mut made = Vec::with_capacity(self.sum_len);
        // Many blocks at once: each read of a source may be a request to a server.
        each_piece(source, self.range, buffer, |mut offset, mut piece| {
            while !piece.is_empty() {
                let present = block.ok_or(OTHERS)?;
                let len = usize::try_from(present.end() - offset).unwrap_or(usize::MAX);
                let (own, rest) = piece.split_at(len.min(piece.len()));
                summer.push(own);
                (offset, piece) = (offset + own.len() as u64, rest);
                if offset < present.end() {
                    break;
                }
                made.clear();
                summer.end_block(&mut made);
                if sums.next() != Some(&made[..]) {
                    return Err(VerifyError::Differs {
                        offset: present.start(),
                        len_bytes: present.len_bytes(),
                    });
                }
                verified.blocks += 1;
                verified.bytes += present.len_bytes();
                block = next(offset)?;
            }
            Ok(())
        })?;
        match block {
            None => Ok(()),
            Some(_) => Err(OTHERS.into()),
        }
    }
}

/// Reads a range piece by piece.
fn each_piece(
    source: &dyn Source,
    range: ByteRange,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let mut offset = range.start();
    while offset < range.end() {
        let len = usize::try_from(range.end() - offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let piece = buffer.get_mut(..len).unwrap_or_default();
        let read = source.read_at(offset, piece)?;
        let piece = piece.get(..read).unwrap_or_default();
        if piece.is_empty() {
            // The file is shorter than it was described.
            return Err(SourceError::ChangedMeanwhile.into());
        }
        each(offset, piece)?;
        offset += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
