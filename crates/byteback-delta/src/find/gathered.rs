//! The delta between what is left of two contents, as one between the contents ([`crate::groups`]).
//!
//! What is left when the groups that are equal in place are taken out is a content for the finder,
//! too: it reads through [`LeftContent`], and what it tells goes through [`IntoContent`], which
//! knows where it is, and tells the equal groups between.

use std::io;

use byteback_extents::ByteRange;

use super::aligned::BlockSums;
use super::{ExtentSink, FindStats, Known, SkyError, find_sky};
use crate::apply::Base;
use crate::groups::{Gathering, GroupAnswer};

/// As [`find_sky`], from the answer to a list of groups. `known` is of what is left of the new
/// content, `content` all of it. What is equal in place is copied, and not read.
///
/// # Errors
/// As [`find_sky`].
pub fn find_gathered<S, N, C, T>(
    answer: &GroupAnswer,
    known: Known<C, T>,
    content: &N,
    sink: S,
) -> Result<(S, FindStats), SkyError<S::Error>>
where
    S: ExtentSink,
    N: Base + ?Sized,
    C: BlockSums,
    T: BlockSums,
{
    let gathering = answer.gathering();
    let left_len = answer.left_len_bytes();
    let left = LeftContent { gathering, content };
    let sink = IntoContent {
        gathering,
        equal: gathering.equal(),
        sink,
    };
    let (sink, mut stats) = find_sky(answer.signature(), known, &left, left_len, sink)?;
    let equal_len = gathering.equal_len_bytes();
    stats.copied_bytes += equal_len;
    stats.unread_bytes += equal_len;
    Ok((sink.finish().map_err(SkyError::Sink)?, stats))
}

/// What is left of a content, for whoever reads it.
struct LeftContent<'a, N: ?Sized> {
    gathering: &'a Gathering,
    content: &'a N,
}

impl<N: Base + ?Sized> Base for LeftContent<'_, N> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.gathering.left_len_bytes(self.content.len_bytes()?))
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(range) = ByteRange::from_offset_len(offset, buffer.len() as u64) else {
            return Ok(());
        };
        let mut rest = buffer;
        for part in self.gathering.in_content(range) {
            // At most what the buffer has left.
            let (now, later) = rest.split_at_mut(part.len_bytes() as usize);
            self.content.read_range(part.start(), now)?;
            rest = later;
        }
        Ok(())
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        let mut rest = Some(range);
        while let Some(left) = rest {
            let (part, later) = self.gathering.first_of(left);
            let data = self.content.next_data(part)?.and_then(|data| data.intersect(part));
            if let Some(data) = data {
                let start = left.start() + (data.start() - part.start());
                return Ok(ByteRange::from_offset_len(start, data.len_bytes()));
            }
            rest = later;
        }
        Ok(None)
    }
}

/// Tells of a content what is told of what is left of it.
struct IntoContent<'a, S> {
    gathering: &'a Gathering,
    /// Those equal ranges that were not told yet.
    equal: &'a [ByteRange],
    sink: S,
}

impl<S: ExtentSink> IntoContent<'_, S> {
    /// Tells what is equal before `offset`.
    fn pass_to(&mut self, offset: u64) -> Result<(), S::Error> {
        while let Some((equal, later)) = self.equal.split_first() {
            if equal.start() >= offset {
                break;
            }
            self.sink.copy(*equal, equal.start())?;
            self.equal = later;
        }
        Ok(())
    }

    /// Tells the rest that is equal.
    fn finish(mut self) -> Result<S, S::Error> {
        self.pass_to(u64::MAX)?;
        Ok(self.sink)
    }
}

impl<S: ExtentSink> ExtentSink for IntoContent<'_, S> {
    type Error = S::Error;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), S::Error> {
        let Some(range) = ByteRange::from_offset_len(offset, bytes.len() as u64) else {
            return Ok(());
        };
        let mut rest = bytes;
        for part in self.gathering.in_content(range) {
            self.pass_to(part.start())?;
            // At most what is left of the bytes.
            let (now, later) = rest.split_at(part.len_bytes() as usize);
            self.sink.literal(part.start(), now)?;
            rest = later;
        }
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), S::Error> {
        let base = ByteRange::from_offset_len(base_offset, range.len_bytes());
        let mut from = base.into_iter().flat_map(|base| self.gathering.in_content(base));
        let mut from_now = from.next();
        for mut part in self.gathering.in_content(range) {
            self.pass_to(part.start())?;
            // Both ends' parts cut each other.
            while let Some(here) = from_now {
                let len = part.len_bytes().min(here.len_bytes());
                let (now, later) = part.split_at(part.start() + len);
                if let Some(now) = now {
                    self.sink.copy(now, here.start())?;
                }
                from_now = here.split_at(here.start() + len).1.or_else(|| from.next());
                let Some(later) = later else { break };
                part = later;
            }
        }
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), S::Error> {
        for part in self.gathering.in_content(range) {
            self.pass_to(part.start())?;
            self.sink.zero(part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
