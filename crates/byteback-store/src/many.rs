//! The contents of many small files at one moment, for a client that restores them.
//!
//! Work goes in *windows* of some files in the order of the request. For each window the places of
//! its bytes are looked up in one transaction; then the files are read in the order in which their
//! bytes lie in the segments, which is the order that a disk likes; then their contents go out in
//! the order of the request. The receiver of the stream takes a window while the next one is
//! prepared.
//!
//! A file that has no content to send here (it is no file, too long, scattered over too many
//! pieces, or unreadable) is left out, and does not fail the others: its reader asks for it alone
//! and learns why. Damage is noted as by every other reader.
//!
//! Memory: one window, and the cache of decoded frames.

use crate::catalog::{CatalogRead, FolderRow};
use crate::content::{FrameCache, unless_per_file, unresolved};
use crate::damage::is_of_frame;
use crate::error::StoreError;
use crate::layer::Literal;
use crate::numbers::{LayerNumber, SegmentNumber};
use crate::read::file_at;
use crate::resolve::{Resolver, layer_rows};
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::Source;
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::{CONTENT_LEN_MAX, ContentsWriter};
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};
use std::io::{self, Write};

/// Most files of a window.
const WINDOW_FILES_MAX: usize = 256;

/// Bytes of contents after which a window is full.
const WINDOW_LEN: u64 = 1 << 20;

/// Pieces of contents after which a window is full.
const WINDOW_PIECES: usize = 4096;

/// Most pieces of one file.
const PIECES_MAX: usize = 1024;

/// Contents that are about to be read.
#[derive(Debug)]
pub struct ManyContents {
    store: Store,
    folder: FolderRow,
    at: Seq,
    files: Vec<FileId>,
}

/// The places of a content's bytes.
struct Plan {
    len: u64,
    /// Ascending; the rest is zeros.
    pieces: Vec<(ByteRange, Literal)>,
}

impl Plan {
    /// The place of the first bytes.
    fn first(&self) -> Option<(SegmentNumber, u64)> {
        let (_, literal) = self.pieces.first()?;
        Some((literal.frame.segment, literal.frame.offset))
    }
}

impl Store {
    /// Begins to read the contents of many files at a moment.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn many_contents(&self, folder: &str, at: Seq, files: Vec<FileId>) -> Result<ManyContents, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, Some(at))?;
        drop(catalog);
        Ok(ManyContents {
            store: self.clone(),
            folder,
            at,
            files,
        })
    }
}

impl ManyContents {
    /// Writes the contents as a stream ([`byteback_delta::contents`]), in the order of the request.
    ///
    /// # Errors
    /// `Ok(Err)` when `out` fails; `Err` when the catalog or a segment fails as such.
    pub fn write(self, out: impl Write) -> Result<io::Result<()>, StoreError> {
        let count = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let mut writer = match ContentsWriter::new(out, count) {
            Ok(writer) => writer,
            Err(error) => return Ok(Err(error)),
        };
        let mut frames = FrameCache::new()?;
        let mut rest = self.files.as_slice();
        while !rest.is_empty() {
            let plans = self.plans(rest)?;
            let (window, later) = rest.split_at(plans.len());
            let contents = self.read(&plans, &mut frames)?;
            for (file, content) in window.iter().zip(contents) {
                if let Err(error) = writer.push(file.to_bytes(), content.as_ref()) {
                    return Ok(Err(error));
                }
            }
            rest = later;
        }
        Ok(writer.finish().map(drop))
    }

    /// Looks up the next window: the first of `files`, at least one.
    fn plans(&self, files: &[FileId]) -> Result<Vec<Option<Plan>>, StoreError> {
        let catalog = self.store.catalog().read()?;
        let (mut plans, mut len, mut pieces) = (Vec::new(), 0, 0);
        for file in files.iter().take(WINDOW_FILES_MAX) {
            let plan = unless_per_file(self.plan(&*catalog, *file))?;
            if let Some(plan) = &plan {
                len += plan.len;
                pieces += plan.pieces.len();
            }
            plans.push(plan);
            if len >= WINDOW_LEN || pieces >= WINDOW_PIECES {
                break;
            }
        }
        Ok(plans)
    }

    fn plan(&self, catalog: &dyn CatalogRead, file: FileId) -> Result<Option<Plan>, StoreError> {
        let (node, row) = file_at(catalog, &self.folder, file, self.at)?;
        let len = row.attributes.size;
        if len > CONTENT_LEN_MAX {
            return Ok(None);
        }
        let rows = layer_rows(catalog, node, row.layer, LayerNumber::NONE)?;
        let mut resolver = Resolver::to_bottom(rows, ByteRange::new(0, len));
        let mut pieces = Vec::new();
        while let Some((range, source)) = resolver.next_piece(catalog)? {
            match source {
                Source::Literal(_) if pieces.len() >= PIECES_MAX => return Ok(None),
                Source::Literal(literal) => pieces.push((range, literal)),
                Source::Zero => {}
                Source::Copy { .. } => return Err(unresolved()),
            }
        }
        Ok(Some(Plan { len, pieces }))
    }

    /// Reads a window; its contents come in the order of the plans.
    fn read(&self, plans: &[Option<Plan>], frames: &mut FrameCache) -> Result<Vec<Option<ShortContent>>, StoreError> {
        let mut order: Vec<(usize, &Plan)> = (0..)
            .zip(plans)
            .filter_map(|(index, plan)| Some((index, plan.as_ref()?)))
            .collect();
        order.sort_by_key(|(_, plan)| plan.first());
        let mut contents = vec![None; plans.len()];
        for (index, plan) in order {
            let content = match self.read_one(plan, frames) {
                Err(error) if is_of_frame(&error) => {
                    // Damage that is not noted is found by the next verification.
                    let _ = self.store.note_damage(&error);
                    None
                }
                content => Some(content?),
            };
            if let Some(place) = contents.get_mut(index) {
                *place = content;
            }
        }
        Ok(contents)
    }

    fn read_one(&self, plan: &Plan, frames: &mut FrameCache) -> Result<ShortContent, StoreError> {
        let mut content = ShortContent::zeros(plan.len);
        for (range, literal) in &plan.pieces {
            let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
            content.push(range.start(), frames.bytes(&*self.store.parts.segments, literal, len)?);
        }
        Ok(content)
    }
}
