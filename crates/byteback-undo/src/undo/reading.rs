//! Reading as of a time: which inode a name stood for, and which bytes a file had.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_model::NodeId;
use parking_lot::Mutex;

use super::{Undo, read_exactly};
use crate::error::{NotKept, UndoError, failed};
use crate::name_history::NameEvent;
use crate::node_history::{Moment, NodeHistory, Old, StoredMoment};
use crate::record::{self, DATA_LEN_BYTES_MAX, Rights};

/// A piece of content as of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes at an offset.
    Data(u64, &'a [u8]),
    /// Zeros.
    Zeros(ByteRange),
}

/// A file as of a time, see [`Undo::as_of`].
#[derive(Clone, Debug)]
pub struct AsOf {
    /// The file.
    pub node: NodeId,
    /// The moment whose content it is, in nanoseconds since 1970; `None`: as it is now.
    pub moment_ns: Option<i64>,
    /// Of a file that was removed since: the rights that it had then.
    pub rights: Option<Rights>,
    number: u64,
    /// Held, so that the history is not forgotten meanwhile: one begun anew would count its moments
    /// from 0 again.
    history: Arc<Mutex<NodeHistory>>,
}

impl Undo {
    /// The changes of a name, oldest first.
    #[must_use]
    pub fn name_events(&self, parent: NodeId, name: &OsStr) -> Vec<NameEvent> {
        self.names.lock().events(parent, name).to_vec()
    }

    /// The node that had the name `name` in `parent` just before `at_ns`; `now` returns the present
    /// one.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] if that is not known.
    pub fn child_at(
        &self,
        parent: NodeId,
        name: &OsStr,
        at_ns: i64,
        now: impl FnOnce() -> Result<Option<NodeId>, UndoError>,
    ) -> Result<Option<NodeId>, UndoError> {
        self.watch_clock();
        self.check(at_ns, None)?;
        // Before the names are looked at: a change in between is then among them.
        let present = now()?;
        let names = self.names.lock();
        let barrier = names.barrier(parent, name);
        let found = names
            .events(parent, name)
            .iter()
            .find(|event| event.at_ns >= at_ns)
            .map(|event| event.before);
        drop(names);
        self.check(at_ns, barrier)?;
        Ok(found.unwrap_or(present))
    }

    /// The moments of a file, oldest first.
    #[must_use]
    pub fn moments(&self, node: NodeId) -> Vec<Moment> {
        let Some(shared) = self.nodes.lock().get(&node).cloned() else {
            return Vec::new();
        };
        let mut history = shared.lock();
        self.drop_given_up(&mut history);
        history.moments.iter().map(|kept| self.moment(&history, kept)).collect()
    }

    fn moment(&self, history: &NodeHistory, kept: &StoredMoment) -> Moment {
        let not_kept = match self.check(kept.start_ns, history.barrier) {
            Err(UndoError::NotKept { why, .. }) => Some(why),
            _ => None,
        };
        Moment {
            at_ns: kept.start_ns,
            size_before_bytes: kept.size,
            how: kept.how,
            kept_bytes: kept.old.covered_bytes(),
            kept_ranges: kept.old.len() as u64,
            not_kept,
        }
    }

    /// Since when, and why not longer, nothing is known of a file, if there is such a time.
    #[must_use]
    pub fn barrier(&self, node: NodeId) -> Option<(i64, NotKept)> {
        let shared = self.nodes.lock().get(&node).cloned();
        let own = shared.and_then(|shared| shared.lock().barrier);
        own.into_iter().chain(self.horizon()).max_by_key(|(at_ns, _)| *at_ns)
    }

    /// The file `node` as of `at_ns`: as it was at some instant in the quantum before that. The
    /// start of a moment answers what was before it.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] with the reason.
    pub fn as_of(&self, node: NodeId, at_ns: i64) -> Result<AsOf, UndoError> {
        self.watch_clock();
        let shared = self.history_of(node);
        let mut history = shared.lock();
        self.drop_given_up(&mut history);
        self.check(at_ns, history.barrier)?;
        // Later changes must not join a moment that lies before this border.
        history.close();
        let number = history.border(at_ns);
        let moment_ns = history.from(number).next().map(|kept| kept.start_ns);
        let rights = history.from(number).find_map(|kept| kept.rights);
        drop(history);
        Ok(AsOf {
            node,
            moment_ns,
            rights,
            number,
            history: shared,
        })
    }

    /// How long it was. `present` answers how long the file is now, `None` if it was removed; it is
    /// asked under the file's lock.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] if it was given up meanwhile; [`UndoError::NoFile`] if the file is as
    /// it is now, and that is gone: this is so from the instant in which its removal was told until
    /// its name is told to have gone; what `present` answers.
    pub fn size(&self, as_of: &AsOf, present: impl FnOnce() -> io::Result<Option<u64>>) -> Result<u64, UndoError> {
        let mut history = as_of.history.lock();
        self.check_still_kept(as_of, &mut history)?;
        let size = history.from(as_of.number).next().map(|kept| kept.size);
        match size {
            Some(size) => Ok(size),
            None => present().map_err(failed("inspect the file"))?.ok_or(UndoError::NoFile),
        }
    }

    /// Reads `range`, which lies within [`Undo::size`], and hands it to `sink` in order. `present`
    /// reads the file as it is now.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] if it was given up meanwhile; [`UndoError::Damaged`]; what `present`
    /// or `sink` answers.
    pub fn read(
        &self,
        as_of: &AsOf,
        range: ByteRange,
        mut present: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
        sink: &mut dyn FnMut(Piece<'_>) -> io::Result<()>,
    ) -> Result<(), UndoError> {
        let mut at = range.start();
        while let Some(piece) = ByteRange::new(at, range.end().min(at.saturating_add(DATA_LEN_BYTES_MAX))) {
            at = piece.end();
            let mut parts: Vec<(ByteRange, Option<Vec<u8>>)> = Vec::new();
            {
                let mut history = as_of.history.lock();
                self.check_still_kept(as_of, &mut history)?;
                for (range, old) in history.tiles(as_of.number, piece) {
                    let bytes = match old {
                        Some(Old::Zeros) => None,
                        Some(Old::At {
                            segment,
                            record_at,
                            within,
                        }) => Some(self.kept_at(segment, record_at, within, range)?),
                        None => Some(read_exactly(range, &mut present).map_err(failed("read the file"))?),
                    };
                    parts.push((range, bytes));
                }
            }
            for (range, bytes) in &parts {
                let piece = match bytes {
                    None => Piece::Zeros(*range),
                    Some(bytes) => Piece::Data(range.start(), bytes),
                };
                sink(piece).map_err(failed("pass on the old bytes"))?;
            }
        }
        Ok(())
    }

    fn check_still_kept(&self, as_of: &AsOf, history: &mut NodeHistory) -> Result<(), UndoError> {
        self.drop_given_up(history);
        let oldest = history
            .moments
            .front()
            .map_or(history.next_number, |moment| moment.number);
        // Either its own moment is gone, or a change came that was not kept.
        if oldest > as_of.number {
            return Err(self.given_up());
        }
        Ok(())
    }

    fn kept_at(&self, segment: u64, record_at: u64, within: u64, range: ByteRange) -> Result<Vec<u8>, UndoError> {
        let Some(file) = self.journal.lock().file(segment) else {
            return Err(self.given_up());
        };
        let failed = || failed("read the undo journal");
        let mut head = [0; record::HEADER_LEN_BYTES];
        file.read_exact_at(record_at, &mut head).map_err(failed())?;
        let framed = record::decode(&head).ok_or(UndoError::Damaged)?;
        let mut data = vec![0; usize::try_from(framed.data_len).unwrap_or_default()];
        file.read_exact_at(record_at + framed.data_at, &mut data)
            .map_err(failed())?;
        if crc32c::crc32c(&data) != framed.data_crc {
            return Err(UndoError::Damaged);
        }
        let start = usize::try_from(within).unwrap_or(usize::MAX);
        let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
        let wanted = data.get(start..start.saturating_add(len)).ok_or(UndoError::Damaged)?;
        Ok(wanted.to_vec())
    }
}
