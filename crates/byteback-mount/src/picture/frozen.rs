//! Files of a picture that are read like any other file: any part, any number of times, by anybody.
//!
//! A backup reads each byte once and does not need it afterwards; bytes that are read here stay
//! needed for as long as the picture is open. So that a walk over a million files leaves nothing
//! behind in memory, a node that was only looked at is forgotten at once: a [`Visit`] lasts as long
//! as one look, and afterwards the picture holds nothing of the node, or what a change left there.
//! Of a file that a backup has read only its number is kept.
//!
//! **Invariant.** A node that is needed and has no entry in the picture is unchanged since the cut.
//! A reader holds the node's entry, locked, and a writer takes the same entry first; it is removed
//! only when no other thread has it.

use std::io;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::NodeId;
use parking_lot::Mutex;

use super::keep::KeptBytes;
use super::{Content, NodeState, Picture, PictureError, Source, not_in_picture, size_of};
use crate::live::LiveTree;

/// The entry of a node during a visit.
pub(super) struct Visit<'a> {
    picture: &'a Picture,
    node: NodeId,
    pub(super) state: Arc<Mutex<NodeState>>,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut scope = self.picture.nodes.lock();
        // One in the table and this one: nobody else has it, and nobody gets it while the table is
        // locked.
        if !scope.whole.contains(self.node.0)
            || Arc::strong_count(&self.state) != 2
            || scope
                .nodes
                .get(&self.node)
                .is_none_or(|state| !Arc::ptr_eq(state, &self.state))
        {
            return;
        }
        let (is_blank, is_read) = {
            let state = self.state.lock();
            (state.is_blank(), state.done.covers(super::ALL))
        };
        if is_blank {
            if is_read && let Some(number) = ByteRange::new(self.node.0, self.node.0.saturating_add(1)) {
                scope.read.insert(number);
            }
            scope.nodes.remove(&self.node);
        }
    }
}

impl NodeState {
    /// Whether nothing is known of the node but that all or nothing of it was read: then it need
    /// not be listed.
    fn is_blank(&self) -> bool {
        let Self {
            needed,
            done,
            kept,
            attributes,
            fd,
            is_kept_whole,
            failed,
            is_written,
        } = self;
        matches!(needed, super::Needed::All)
            && (done.is_empty() || done.covers(super::ALL))
            && kept.is_empty()
            && attributes.is_none()
            && fd.is_none()
            && !is_kept_whole
            && failed.is_none()
            && !is_written
    }
}

/// An open file of a picture.
#[derive(Debug)]
pub struct FrozenFile {
    picture: Arc<Picture>,
    node: NodeId,
    source: Source,
}

impl Picture {
    pub(super) fn visit(&self, node: NodeId) -> Result<Visit<'_>, PictureError> {
        let state = self.state_of(node).ok_or_else(not_in_picture)?;
        Ok(Visit {
            picture: self,
            node,
            state,
        })
    }

    /// As [`Picture::read`], but bytes that were read stay needed.
    ///
    /// # Errors
    /// As [`Picture::read`].
    pub fn peek(
        &self,
        live: &LiveTree,
        node: NodeId,
        ranges: impl IntoIterator<Item = ByteRange>,
        sink: &mut dyn FnMut(Content<'_>) -> Result<(), PictureError>,
    ) -> Result<(), PictureError> {
        self.check()?;
        let visit = self.visit(node)?;
        let source = self.source(live, &visit.state, node)?;
        self.read_ranges((node, &visit.state), &source, ranges, false, sink)
    }

    /// Ends the need for the content of `node`, which its reader has by other calls.
    ///
    /// # Errors
    /// [`PictureError::Lost`]; the node is not in the picture.
    pub fn release(&self, node: NodeId) -> Result<(), PictureError> {
        self.check()?;
        self.found.take(node);
        self.visit(node)?.state.lock().done.insert(super::ALL);
        Ok(())
    }

    /// Whether the backing file holds what `node` held at the cut, because nothing of it has
    /// changed since. A fact found out about the backing file elsewhere is true of the cut if this
    /// is true *afterwards*: the picture hears of a change before it reaches the file.
    ///
    /// # Errors
    /// [`PictureError::Node`] if the node is not needed, or its state at the cut is not known any
    /// more; [`PictureError::Lost`].
    pub fn is_unwritten(&self, node: NodeId) -> Result<bool, PictureError> {
        let visit = self.visit(node)?;
        let state = visit.state.lock();
        self.check()?;
        state.check()?;
        // Cut off from its name, it can be changed by programs that have it open, which nobody
        // would find by its name.
        Ok(!state.is_written && state.fd.is_none() && !state.is_kept_whole)
    }

    /// Opens the regular file `node` as it was at the cut. `live`: where it is found if it was not
    /// changed since.
    ///
    /// # Errors
    /// [`PictureError::Node`] if this file cannot be read; [`PictureError::Lost`].
    pub fn open_file(self: &Arc<Self>, live: &LiveTree, node: NodeId) -> Result<FrozenFile, PictureError> {
        self.check()?;
        let source = {
            let visit = self.visit(node)?;
            visit.state.lock().check()?;
            self.source(live, &visit.state, node)?
        };
        Ok(FrozenFile {
            picture: Arc::clone(self),
            node,
            source,
        })
    }
}

impl FrozenFile {
    /// The node that is open.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its length at the cut.
    ///
    /// # Errors
    /// As [`FrozenFile::read_at`].
    pub fn size_bytes(&self) -> Result<u64, PictureError> {
        self.picture.check()?;
        let visit = self.picture.visit(self.node)?;
        let state = visit.state.lock();
        self.picture.check()?;
        state.check()?;
        size_of(&state, &self.source)
    }

    /// Fills `buffer` with the bytes at `offset`; answers how many there are: fewer only at the end
    /// of the file.
    ///
    /// # Errors
    /// [`PictureError::Node`] if its state at the cut is not known any more or the disk fails;
    /// [`PictureError::Lost`].
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, PictureError> {
        let Some(range) = ByteRange::new(offset, offset.saturating_add(buffer.len() as u64)) else {
            return Ok(0);
        };
        self.picture.check()?;
        let visit = self.picture.visit(self.node)?;
        let mut end = offset;
        let mut put = |at: u64, len_bytes: u64, bytes: Option<&[u8]>| {
            let start = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
            if let Some(target) = buffer.get_mut(start..start.saturating_add(len)) {
                match bytes {
                    Some(bytes) => target.copy_from_slice(bytes),
                    None => target.fill(0),
                }
            }
            end = at.saturating_add(len_bytes);
        };
        let mut sink = |content: Content<'_>| {
            match content {
                Content::Data(at, bytes) => put(at, bytes.len() as u64, Some(bytes)),
                Content::Hole(hole) => put(hole.start(), hole.len_bytes(), None),
            }
            Ok(())
        };
        self.picture
            .read_ranges((self.node, &visit.state), &self.source, [range], false, &mut sink)?;
        Ok(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
    }

    /// Hands the bytes of `range`, clipped to the file's length, to `sink` in order, with holes
    /// where there are some.
    ///
    /// # Errors
    /// As [`FrozenFile::read_at`]; [`PictureError::Stopped`] if `sink` says so.
    pub fn peek(
        &self,
        range: ByteRange,
        sink: &mut dyn FnMut(Content<'_>) -> Result<(), PictureError>,
    ) -> Result<(), PictureError> {
        self.picture.check()?;
        let visit = self.picture.visit(self.node)?;
        self.picture
            .read_ranges((self.node, &visit.state), &self.source, [range], false, sink)
    }

    /// The first position from `from` on that lies in data, or in a hole (the end of the file
    /// counts as one); `None` if there is none, or `from` is not in the file.
    ///
    /// # Errors
    /// As [`FrozenFile::read_at`].
    pub fn seek(&self, from: u64, to_data: bool) -> Result<Option<u64>, PictureError> {
        self.picture.check()?;
        let visit = self.picture.visit(self.node)?;
        let state = visit.state.lock();
        self.picture.check()?;
        state.check()?;
        let size = size_of(&state, &self.source)?;
        let Some(rest) = ByteRange::new(from, size) else {
            return Ok(None);
        };
        for (tile, kept) in state.kept.tiles(rest) {
            let found = match (kept, &self.source) {
                (Some(KeptBytes::Hole), _) => (!to_data).then_some(tile.start()),
                (Some(KeptBytes::At { .. }), _) => to_data.then_some(tile.start()),
                (None, Source::Kept) => return Err(not_in_picture()),
                (None, Source::File(file)) => {
                    seek_in_backing(file, tile, to_data).map_err(|source| PictureError::Node { source })?
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok((!to_data).then_some(size))
    }
}

fn seek_in_backing(file: &Inode, tile: ByteRange, to_data: bool) -> io::Result<Option<u64>> {
    let found = if to_data {
        file.seek_data(tile.start())?
    } else {
        file.seek_hole(tile.start())?
    };
    Ok(found.filter(|at| *at < tile.end()))
}

#[cfg(test)]
mod tests;
