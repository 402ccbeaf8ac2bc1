//! A file in which something lands, piece by piece.
//!
//! Each piece goes through the gate with `Order` held exclusively, so that it is one moment in
//! which no program changes anything; pieces are short, because programs wait. Then the kernel is
//! made to forget what it read there, with no lock held. Before the first piece the kernel has
//! passed on what programs had stored through mappings; if there was anything, that is a change
//! that came before.
//!
//! **Length.** The content that lands has a length of its own, which is the one that is reported
//! here from the first piece on. The file may then have another one, by what programs did, as
//! [`super::watch`] says. Bytes between the end of what landed and what programs wrote beyond it
//! are zeros, as in a file that was written so.

use std::io;
use std::sync::Arc;

use byteback_checksums::written::Change;
use byteback_control::{Overtaken, WatchedFile, WatchedNode};
use byteback_delta::{Base, Target};
use byteback_extents::ByteRange;
use byteback_model::NodeId;
use byteback_mount::landing::{ContentHow, Landing, LandingContent, LandingError, LandingFile};

use super::watch::Watched;
use crate::live::spool::{next_data, read_up_to};

/// The longest piece.
const PIECE_LEN: u64 = 256 << 10;

/// How much of a part that is cut off is kept in doubt. Stores through a mapping further behind
/// count with their whole pages.
const CUT_DOUBT_LEN: u64 = 16 << 20;

/// A file in which something lands, see the module.
pub(super) struct LandedFile {
    landing: Landing,
    file: Arc<LandingFile>,
    watched: Watched,
    /// The length of the content that lands so far, from the first piece on.
    landed_bytes: Option<u64>,
}

pub(super) fn failed(error: LandingError) -> io::Error {
    match error {
        LandingError::Overtaken(why) => io::Error::other(Overtaken(why)),
        LandingError::Failed(error) => error,
        error @ LandingError::Collides => io::Error::other(error),
    }
}

pub(super) fn write_all(file: &LandingFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        match file.write_at(at, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                at = at.saturating_add(count as u64);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn zero(file: &LandingFile, range: ByteRange) -> io::Result<()> {
    match file.punch_hole(range.start(), range.len_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            let zeros = vec![0; PIECE_LEN as usize];
            let mut at = range.start();
            while at < range.end() {
                let count = range.end().saturating_sub(at).min(PIECE_LEN);
                let count = usize::try_from(count).unwrap_or(0);
                write_all(file, at, zeros.get(..count).unwrap_or_default())?;
                at = at.saturating_add(count as u64);
            }
            Ok(())
        }
        done => done,
    }
}

/// A piece that lands.
struct Piece<'a> {
    file: &'a LandingFile,
    watched: &'a Watched,
    what: What<'a>,
    /// The ranges of it that are changed.
    ranges: Vec<ByteRange>,
    /// The lengths of the file before and after, once they are decided.
    lens: Option<(u64, u64)>,
}

#[derive(Clone, Copy)]
enum What<'a> {
    /// Bytes, from an offset on.
    Bytes(u64, &'a [u8]),
    /// Zeros.
    Zeros(ByteRange),
    /// The length of the content that lands.
    Len(u64),
}

impl Piece<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.stat()?.size)
    }

    fn is_of_nothing(&self) -> bool {
        self.ranges.is_empty()
            && self
                .lens
                .is_none_or(|(before_bytes, after_bytes)| before_bytes == after_bytes)
    }

    /// Keeps the bytes of a range, which the kernel may have in its pages.
    fn doubt(&self, range: ByteRange) -> io::Result<()> {
        let mut old = vec![0; usize::try_from(range.len_bytes()).map_err(io::Error::other)?];
        let count = read_up_to(self.file, range.start(), &mut old)?;
        old.truncate(count);
        self.watched.noticed().doubt(range.start(), old);
        Ok(())
    }

    fn decide_len(&mut self, landed_bytes: u64) -> io::Result<Vec<ByteRange>> {
        let now_bytes = self.len_bytes()?;
        let (after_bytes, zeroed) = {
            let noticed = self.watched.noticed();
            let after_bytes = noticed.len_with(landed_bytes, now_bytes);
            let kept = ByteRange::new(landed_bytes, now_bytes.min(after_bytes));
            let zeroed = kept.map(|kept| noticed.free_within(kept)).unwrap_or_default();
            (after_bytes, zeroed)
        };
        self.lens = Some((now_bytes, after_bytes));
        self.watched.noticed().resizes(now_bytes, after_bytes);
        self.ranges = zeroed;
        for range in &self.ranges {
            let in_doubt = range.split_at(range.start().saturating_add(CUT_DOUBT_LEN)).0;
            self.doubt(in_doubt.unwrap_or(*range))?;
        }
        let cut = ByteRange::new(after_bytes, now_bytes.min(after_bytes.saturating_add(CUT_DOUBT_LEN)));
        if let Some(cut) = cut {
            self.doubt(cut)?;
        }
        let resized = ByteRange::new(now_bytes.min(after_bytes), now_bytes.max(after_bytes));
        Ok(self.ranges.iter().copied().chain(resized).collect())
    }
}

impl LandingContent for Piece<'_> {
    fn decide(&mut self) -> io::Result<Result<Vec<ByteRange>, String>> {
        if let Err(why) = self.watched.noticed().begin() {
            return Ok(Err(why));
        }
        self.watched.live().watches.lands_in(self.watched.queue_node());
        let len_bytes = self.len_bytes()?;
        self.watched.noticed().was_of(len_bytes);
        let range = match self.what {
            What::Bytes(offset, bytes) => ByteRange::from_offset_len(offset, bytes.len() as u64),
            What::Zeros(range) => Some(range),
            What::Len(landed_bytes) => return self.decide_len(landed_bytes).map(Ok),
        };
        let now_bytes = self.len_bytes()?;
        self.lens = Some((now_bytes, now_bytes));
        let free = range.map(|range| self.watched.noticed().free_within(range));
        self.ranges = free.unwrap_or_default();
        for range in &self.ranges {
            self.doubt(*range)?;
        }
        Ok(Ok(self.ranges.clone()))
    }

    fn parts(&self) -> Vec<Change<'_>> {
        let part = |range: &ByteRange| match self.what {
            What::Bytes(offset, bytes) => {
                let from = usize::try_from(range.start().saturating_sub(offset)).unwrap_or(usize::MAX);
                let to = usize::try_from(range.end().saturating_sub(offset)).unwrap_or(usize::MAX);
                let (offset, data) = (range.start(), bytes.get(from..to).unwrap_or_default());
                Change::Written { offset, data }
            }
            What::Zeros(_) | What::Len(_) => Change::Zeroed(*range),
        };
        let resized = self
            .lens
            .filter(|(before_bytes, after_bytes)| before_bytes != after_bytes);
        let resized = resized.map(|(_, after_bytes)| Change::Truncated(after_bytes));
        self.ranges.iter().map(part).chain(resized).collect()
    }

    fn perform(&self, part: &Change<'_>) -> io::Result<()> {
        match *part {
            Change::Written { offset, data } => write_all(self.file, offset, data),
            Change::Zeroed(range) => zero(self.file, range),
            Change::Truncated(len_bytes) => self.file.truncate(len_bytes),
            _ => Ok(()),
        }
    }

    fn mark_landed(&mut self) {
        let Some((before_bytes, after_bytes)) = self.lens else {
            return;
        };
        if before_bytes != after_bytes && self.watched.noticed().was_changed() {
            let live = self.watched.live();
            live.landed_len(self.watched.queue_node(), before_bytes, after_bytes);
        }
    }
}

impl LandedFile {
    pub(super) fn new(landing: Landing, file: Arc<LandingFile>, watched: Watched) -> Self {
        Self {
            landing,
            file,
            watched,
            landed_bytes: None,
        }
    }

    fn land(&mut self, how: ContentHow, what: What<'_>) -> io::Result<()> {
        let done = self.land_piece(how, what);
        if done.is_err()
            && let Some(len_bytes) = self.watched.untouched_growth()
        {
            // The zeros in place of what cannot be written must not be seen. A retry begins with
            // the length; if this fails, too, then with the length that is there.
            let _ = self.land_piece(ContentHow::Truncated, What::Len(len_bytes));
        }
        done
    }

    fn land_piece(&mut self, how: ContentHow, what: What<'_>) -> io::Result<()> {
        if self.landed_bytes.is_none() {
            // Stores of programs from before pass the gate now, and are noticed.
            self.landing.flush_file(&self.file).map_err(failed)?;
        }
        let mut piece = Piece {
            file: &self.file,
            watched: &self.watched,
            what,
            ranges: Vec::new(),
            lens: None,
        };
        let done = self.landing.content(&self.file, how, &mut piece);
        let (lens, is_of_nothing) = (piece.lens, piece.is_of_nothing());
        let range = match what {
            What::Bytes(offset, bytes) => ByteRange::from_offset_len(offset, bytes.len() as u64),
            What::Zeros(range) => Some(range),
            What::Len(_) => None,
        };
        if !is_of_nothing {
            self.landing.forget_content(&self.file, range);
        }
        if !is_of_nothing && range.is_none() {
            // The kernel knows the new end before any read shows it: a read that ends there does
            // not move an end that was reported later than the read was requested, and programs
            // would see zeros up to the old one.
            self.watched.noticed().report_len();
            self.landing.report_len(&self.file);
            self.watched.noticed().show_end();
            // Pages that were read meanwhile hold old bytes behind the end, which a program that
            // lengthens the file would see.
            self.landing.forget_content(&self.file, None);
        }
        self.watched.noticed().believe();
        // From the first piece on: as long as the file was then, when no program had touched it.
        self.landed_bytes = self.landed_bytes.or(lens.map(|(before_bytes, _)| before_bytes));
        done.map_err(failed)?;
        if let What::Len(landed_bytes) = what {
            self.landed_bytes = Some(landed_bytes);
        }
        Ok(())
    }
}

impl Drop for LandedFile {
    fn drop(&mut self) {
        if self.watched.end_growth() {
            self.landing.report_len(&self.file);
        }
    }
}

impl Base for LandedFile {
    fn len_bytes(&self) -> io::Result<u64> {
        match self.landed_bytes {
            Some(landed_bytes) => Ok(landed_bytes),
            None => Ok(self.file.stat()?.size),
        }
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let count = read_up_to(&self.file, offset, buffer)?;
        let rest = buffer.get_mut(count..).unwrap_or_default();
        match (rest.is_empty(), self.landed_bytes) {
            (true, _) => Ok(()),
            (false, None) => Err(io::ErrorKind::UnexpectedEof.into()),
            // A program has cut the file off: nothing lands there.
            (false, Some(_)) => {
                rest.fill(0);
                Ok(())
            }
        }
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        next_data(&self.file, range)
    }
}

impl Target for LandedFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(self)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for piece in bytes.chunks(PIECE_LEN as usize) {
            self.land(ContentHow::Written, What::Bytes(at, piece))?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        let mut rest = Some(range);
        while let Some(range) = rest {
            // Where there is a hole already nothing changes; a program that writes there meanwhile
            // keeps its bytes. The first piece marks the beginning.
            let data = match self.landed_bytes {
                None => Some(range),
                Some(_) => self.next_data(range)?,
            };
            let Some(data) = data else { break };
            let (piece, _) = data.split_at(data.start().saturating_add(PIECE_LEN));
            let piece = piece.unwrap_or(data);
            self.land(ContentHow::Allocated, What::Zeros(piece))?;
            rest = range.split_at(piece.end()).1;
        }
        Ok(())
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.land(ContentHow::Truncated, What::Len(len_bytes))
    }
}

impl WatchedNode for LandedFile {
    fn node(&self) -> NodeId {
        self.watched.node()
    }

    fn overtaken(&self) -> Option<Overtaken> {
        self.watched.overtaken()
    }
}

impl WatchedFile for LandedFile {
    fn was_changed(&self) -> bool {
        self.watched.noticed().was_changed()
    }
}
