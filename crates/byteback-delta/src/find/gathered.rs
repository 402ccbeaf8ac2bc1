//! A delta between the rests of two contents, turned into one between the contents
//! ([`crate::groups`]).
//!
//! To the finder, the rest without the groups that are equal in place is a content like any other:
//! it reads through [`LeftContent`], and its extents go through [`IntoContent`], which maps them to
//! the content and adds the equal groups between them.

use std::io;

use byteback_extents::ByteRange;

use super::aligned::BlockSums;
use super::{ExtentSink, FindStats, Known, SkyError, find_sky};
use crate::apply::Base;
use crate::groups::{Gathering, GroupAnswer};

/// As [`find_sky`], from the answer to a list of groups. `known` describes the rest of the new
/// content, `content` is all of it. Groups that are equal in place are copied, and not read.
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

/// The rest of a content, as a readable content.
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
            // At most the rest of the buffer.
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

/// A sink for extents of the rest, which passes them on as extents of the content.
struct IntoContent<'a, S> {
    gathering: &'a Gathering,
    /// The equal ranges that were not passed on yet.
    equal: &'a [ByteRange],
    sink: S,
}

impl<S: ExtentSink> IntoContent<'_, S> {
    /// Passes on the equal ranges before `offset`.
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

    /// Passes on the remaining equal ranges.
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
            // At most the remaining bytes.
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
            // Parts of both contents bound each piece.
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
