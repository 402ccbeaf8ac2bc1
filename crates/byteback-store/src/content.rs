//! Reads contents: any range of any version, with bounded memory.
//!
//! A [`ContentReader`] walks the layers lazily (`resolve`) and reads and decodes only frames that the range needs. It
//! keeps the last few decoded frames, because neighbouring extents share them. Each call runs in a short transaction
//! of its own, which is enough, because the past does not change.

use crate::catalog::CatalogRead;
use crate::error::StoreError;
use crate::layer::Literal;
use crate::model::{FileId, Seq};
use crate::read::file_at;
use crate::resolve::{Piece, Resolver, layer_rows};
use crate::segments::{FrameRef, Segments};
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::{Codec, DeltaWriter, FrameDecoder, Source, WriteError, WriterOptions};
use byteback_extents::{ByteRange, ExtentValue};
use std::collections::VecDeque;
use std::io::{self, Write};

/// Decoded frames that are kept; each has at most 256 KiB.
const FRAMES_KEPT: usize = 4;

/// A part of a content: where, and its bytes or `None` for zeros.
pub(crate) type Part<'a> = (ByteRange, Option<&'a [u8]>);

/// Contents that are being read.
pub struct ContentReader {
    store: Store,
    resolver: Resolver,
    size: u64,
    /// What is left of the piece that did not fit into the last chunk.
    rest: Option<Piece>,
    frames: FrameCache,
}

impl std::fmt::Debug for ContentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentReader")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Length of a file's contents at a moment, in bytes, and the moment.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the catalog fails.
    pub fn content_size(&self, folder: &str, file: FileId, at: Option<Seq>) -> Result<(u64, Seq), StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        Ok((file_at(&*catalog, &folder, file, at)?.1.attributes.size, at))
    }

    /// Begins to read a range of a file's contents at a moment; all of it when there is no range. A range is cut at the
    /// contents' end.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the catalog fails.
    pub fn content(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        range: Option<ByteRange>,
    ) -> Result<ContentReader, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let (node, row) = file_at(&*catalog, &folder, file, at)?;
        let rows = layer_rows(&*catalog, node, row.layer, 0)?;
        drop(catalog);
        let size = row.attributes.size;
        let whole = ByteRange::new(0, size);
        let range = match range {
            Some(range) => whole.and_then(|whole| whole.intersect(range)),
            None => whole,
        };
        ContentReader::of_resolver(self, Resolver::to_bottom(rows, range), size)
    }
}

impl ContentReader {
    /// Of contents of `size` bytes, through whatever resolves them.
    pub(crate) fn of_resolver(store: &Store, resolver: Resolver, size: u64) -> Result<Self, StoreError> {
        Ok(Self {
            store: store.clone(),
            resolver,
            size,
            rest: None,
            frames: FrameCache::new()?,
        })
    }

    /// Length of the whole contents in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Replaces `out` by the next bytes, at most `len_max`; leaves it empty at the end.
    ///
    /// # Errors
    /// A frame is damaged; the catalog or a segment fails.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>, len_max: usize) -> Result<(), StoreError> {
        out.clear();
        let store = self.store.clone();
        let catalog = store.catalog().read()?;
        while out.len() < len_max {
            let Some((range, source)) = self.take_piece(&*catalog)? else {
                break;
            };
            let room = u64::try_from(len_max.saturating_sub(out.len())).unwrap_or(u64::MAX);
            let (now, later) = range.split_at(range.start().saturating_add(room));
            if let Some(later) = later {
                self.rest = Some((later, source.advance(later.start() - range.start())));
            }
            let len = usize::try_from(now.map_or(0, ByteRange::len_bytes)).unwrap_or(usize::MAX);
            match source {
                Source::Zero => out.resize(out.len().saturating_add(len), 0),
                Source::Literal(literal) => {
                    out.extend_from_slice(self.frames.bytes(&*store.parts.segments, &literal, len)?);
                }
                Source::Copy { .. } => return Err(unresolved()),
            }
        }
        Ok(())
    }

    /// Writes the contents as a delta stream over nothing: zeros become holes. The stream of a range has the whole
    /// contents' length and says nothing of what lies outside the range.
    ///
    /// # Errors
    /// `Ok(Err)` when `out` fails; `Err` when the store does.
    pub fn write_delta(mut self, out: impl Write) -> Result<Result<(), io::Error>, StoreError> {
        let mut writer = match DeltaWriter::new(out, 0, self.size, WriterOptions::default()) {
            Ok(writer) => writer,
            Err(e) => return Ok(Err(into_io(e))),
        };
        while let Some((range, bytes)) = self.next_part()? {
            let written = match bytes {
                None => writer.zero(range),
                Some(bytes) => writer.literal(range, bytes),
            };
            if let Err(e) = written {
                return Ok(Err(into_io(e)));
            }
        }
        Ok(writer.finish().map(|_| ()).map_err(into_io))
    }

    /// The next part of the range: bytes, or `None` for zeros. A short transaction per part: who uses it may be slow.
    ///
    /// # Errors
    /// A frame is damaged; the catalog or a segment fails.
    pub(crate) fn next_part(&mut self) -> Result<Option<Part<'_>>, StoreError> {
        let store = self.store.clone();
        let catalog = store.catalog().read()?;
        let Some((range, source)) = self.take_piece(&*catalog)? else {
            return Ok(None);
        };
        drop(catalog);
        match source {
            Source::Zero => Ok(Some((range, None))),
            Source::Literal(literal) => {
                let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
                let bytes = self.frames.bytes(&*store.parts.segments, &literal, len)?;
                Ok(Some((range, Some(bytes))))
            }
            Source::Copy { .. } => Err(unresolved()),
        }
    }

    fn take_piece(&mut self, catalog: &dyn CatalogRead) -> Result<Option<Piece>, StoreError> {
        match self.rest.take() {
            Some(piece) => Ok(Some(piece)),
            None => self.resolver.next_piece(catalog),
        }
    }
}

fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Write(source) => source,
        other => io::Error::other(other),
    }
}

fn unresolved() -> StoreError {
    StoreError::CatalogDamaged("a copy was left unresolved".to_owned())
}

/// The last few decoded frames.
pub(crate) struct FrameCache {
    decoder: FrameDecoder,
    frames: VecDeque<(FrameRef, Vec<u8>)>,
    stored: Vec<u8>,
}

impl FrameCache {
    pub(crate) fn new() -> Result<Self, StoreError> {
        let decoder = FrameDecoder::new().map_err(|e| StoreError::io("set up the decompressor", e))?;
        Ok(Self {
            decoder,
            frames: VecDeque::new(),
            stored: Vec::new(),
        })
    }

    /// The `len` bytes of a literal.
    pub(crate) fn bytes(
        &mut self,
        segments: &dyn Segments,
        literal: &Literal,
        len: usize,
    ) -> Result<&[u8], StoreError> {
        let frame = literal.frame;
        let damaged = |what: String| StoreError::Damaged {
            segment: frame.segment,
            offset: frame.offset,
            what,
        };
        let position = self.frames.iter().position(|(known, _)| *known == frame);
        let index = match position {
            Some(index) => index,
            None => {
                // The oldest one's memory takes the new one.
                let mut raw = match self.frames.len() {
                    FRAMES_KEPT => self.frames.pop_front().map(|(_, raw)| raw).unwrap_or_default(),
                    _ => Vec::new(),
                };
                segments.read(&frame, &mut self.stored)?;
                let codec = Codec::from_code(frame.codec)
                    .ok_or_else(|| damaged(format!("the frame has the unknown codec {}", frame.codec)))?;
                self.decoder
                    .decode(codec, &self.stored, frame.raw_len, &mut raw)
                    .map_err(|e| damaged(e.to_string()))?;
                self.frames.push_back((frame, raw));
                self.frames.len() - 1
            }
        };
        let start = usize::try_from(literal.skip).unwrap_or(usize::MAX);
        let raw = self
            .frames
            .get(index)
            .map(|(_, raw)| raw.as_slice())
            .unwrap_or_default();
        raw.get(start..start.saturating_add(len))
            .ok_or_else(|| damaged("an extent reaches past its frame".to_owned()))
    }
}
