//! Re-reads and checks everything that one moment of a folder needs.
//!
//! The tree is walked from its root; of each file every piece is resolved and every frame read from its segment,
//! checked and decoded. Checksums that are kept of its bytes are compared with them (`sums`). A damaged file is reported and the walk goes on. Memory: the directories on the way and one
//! number per file that was seen (a file with several names is checked once).

use crate::content::FrameCache;
use crate::error::StoreError;
use crate::model::{FileId, NodeKind, Seq};
use crate::paths::path_of;
use crate::read::root_at;
use crate::resolve::{Resolver, layer_rows};
use crate::segments::FrameRef;
use crate::store::{Store, existing_seq, folder_row};
use crate::sums::audit::Audit;
use byteback_delta::Source;
use byteback_extents::ByteRange;
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Entries that are looked at in one go.
const ENTRIES_AT_ONCE: u32 = 1000;

/// Pieces between two looks at whether to stop.
const PIECES_PER_PROGRESS: u64 = 4096;

/// What was checked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyTotals {
    /// Files.
    pub files: u64,
    /// Frames read.
    pub frames: u64,
    /// Stored bytes read.
    pub bytes: u64,
    /// Files that cannot be read in full.
    pub damaged_files: u64,
    /// Files whose kept checksums did not agree with their bytes. They were thrown away and will be made anew; the bytes are whole. Yet
    /// something lied: a defect, the catalog's disk, or memory.
    pub wrong_sums: u64,
}

/// What a verification tells on its way.
#[derive(Debug)]
pub enum VerifyEvent {
    /// How far it is.
    Progress(VerifyTotals),
    /// A file that cannot be read in full.
    Damage {
        /// The file.
        id: FileId,
        /// One of its paths.
        path: Option<Vec<u8>>,
        /// The first thing that is wrong with it.
        error: StoreError,
    },
}

impl Store {
    /// Checks a moment of a folder. `tell` may stop it; then the totals are of what was checked.
    ///
    /// # Errors
    /// The folder or the moment does not exist, or the tree itself cannot be read.
    pub fn verify(
        &self,
        folder: &str,
        at: Option<Seq>,
        mut tell: impl FnMut(VerifyEvent) -> ControlFlow<()>,
    ) -> Result<VerifyTotals, StoreError> {
        let (at, root) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            let root = root_at(&*catalog, &folder, at)?;
            (at, root)
        };
        let mut totals = VerifyTotals::default();
        let mut frames = FrameCache::new()?;
        let mut seen = HashSet::new();
        // Directories still to be listed, each with the name after which to go on.
        let mut directories: Vec<(i64, Option<Vec<u8>>)> = vec![(root, None)];
        while let Some((directory, after)) = directories.pop() {
            let entries = self
                .catalog()
                .read()?
                .entries(directory, at, after.as_deref(), ENTRIES_AT_ONCE)?;
            if let Some(last) = entries.last() {
                directories.push((directory, Some(last.name.clone())));
            }
            for entry in entries {
                let row = self.catalog().read()?.attributes(entry.child, at)?;
                let Some(row) = row else {
                    return Err(StoreError::CatalogDamaged(format!(
                        "node {} has no attributes",
                        entry.child
                    )));
                };
                match row.attributes.kind {
                    NodeKind::Directory => directories.push((entry.child, None)),
                    NodeKind::File if seen.insert(entry.child) => {
                        let result = self.verify_file(entry.child, &row, &mut frames, &mut totals, &mut tell);
                        totals.files += 1;
                        match result {
                            Ok(ControlFlow::Continue(())) => {}
                            Ok(ControlFlow::Break(())) => return Ok(totals),
                            Err(error) => {
                                totals.damaged_files += 1;
                                let catalog = self.catalog().read()?;
                                let id = catalog.file_id(entry.child)?;
                                let path = path_of(&*catalog, root, entry.child, at)?;
                                drop(catalog);
                                if tell(VerifyEvent::Damage { id, path, error }).is_break() {
                                    return Ok(totals);
                                }
                            }
                        }
                        if tell(VerifyEvent::Progress(totals)).is_break() {
                            return Ok(totals);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(totals)
    }

    fn verify_file(
        &self,
        node: i64,
        row: &crate::catalog::AttributeRow,
        frames: &mut FrameCache,
        totals: &mut VerifyTotals,
        tell: &mut impl FnMut(VerifyEvent) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let rows = layer_rows(&*self.catalog().read()?, node, row.layer, 0)?;
        let length = rows.first().map_or(0, |row| row.new_len);
        if length != row.attributes.size {
            let message = format!(
                "the contents have {length} bytes, the attributes say {}",
                row.attributes.size
            );
            return Err(StoreError::CatalogDamaged(message));
        }
        let mut resolver = Resolver::to_bottom(rows, ByteRange::new(0, length));
        let mut audit = Audit::begin(self, node)?;
        let mut last_frame: Option<FrameRef> = None;
        let mut pieces = 0u64;
        loop {
            let catalog = self.catalog().read()?;
            let piece = resolver.next_piece(&*catalog)?;
            drop(catalog);
            let Some((range, source)) = piece else {
                if let Some(audit) = audit
                    && !audit.finish()?
                {
                    totals.wrong_sums += 1;
                }
                return Ok(ControlFlow::Continue(()));
            };
            let mut bytes = None;
            if let Source::Literal(literal) = source {
                let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
                bytes = Some(frames.bytes(&*self.parts.segments, &literal, len)?);
                if last_frame != Some(literal.frame) {
                    last_frame = Some(literal.frame);
                    totals.frames += 1;
                    totals.bytes = totals.bytes.saturating_add(u64::from(literal.frame.stored_len));
                }
            }
            if let Some(audit) = &mut audit {
                audit.feed(range, source, bytes)?;
            }
            pieces += 1;
            if pieces.is_multiple_of(PIECES_PER_PROGRESS) && tell(VerifyEvent::Progress(*totals)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
}
