//! Reads contents: any range of any version, with bounded memory.
//!
//! A [`ContentReader`] walks the layers lazily (`resolve`) and reads and decodes only frames that
//! the range needs. It keeps decoded frames, as neighbouring extents share them: where versions
//! changed a file here and there, its bytes come from a frame of each of them in turn. Each call
//! runs in a short transaction of its own, which is enough, because the past does not change.

use crate::catalog::CatalogRead;
use crate::error::StoreError;
use crate::layer::Literal;
use crate::numbers::LayerNumber;
use crate::read::file_at;
use crate::resolve::{Piece, Resolver, layer_rows};
use crate::segments::{FrameRef, Segments};
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::bundle::{self, ShortContent};
use byteback_delta::{
    Codec, ContentDigest, DIGEST_LEN, DeltaWriter, FRAME_RAW_LEN_MAX, FrameDecoder, Source, WriteError, WriterOptions,
};
use byteback_extents::{ByteRange, ExtentValue};
use byteback_model::{FileId, Seq};
use std::collections::VecDeque;
use std::io::{self, Write};

/// Bytes of decoded frames that are kept; each has at most 256 KiB.
const FRAMES_KEPT_LEN: usize = 8 << 20;

/// Most decoded frames that are kept: they are searched one by one.
const FRAMES_KEPT: usize = 512;

/// A part of a content: its range, and its bytes or `None` for zeros.
pub(crate) type Part<'a> = (ByteRange, Option<&'a [u8]>);

/// Contents that are being read.
pub struct ContentReader {
    store: Store,
    resolver: Resolver,
    size: u64,
    /// Rest of the piece that did not fit into the last chunk.
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

    /// Begins to read a range of a file's contents at a moment; all of it when there is no range. A
    /// range is cut at the contents' end.
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
        let rows = layer_rows(&*catalog, node, row.layer, LayerNumber::NONE)?;
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

impl Store {
    /// The digests of contents at a moment, in the order asked: of those of at most `len_max`
    /// bytes, and of longer ones as long as these have at most `total_max` bytes together. `None`
    /// for a file that is missing, too long or unreadable.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn digests(
        &self,
        folder: &str,
        at: Seq,
        files: &[FileId],
        (len_max, total_max): (u64, u64),
    ) -> Result<Vec<Option<[u8; DIGEST_LEN]>>, StoreError> {
        self.content_moment(folder, at)?;
        let mut room = total_max;
        let mut digest = |file: &FileId| unless_per_file(self.digest_within(folder, at, *file, len_max, &mut room));
        files.iter().map(&mut digest).collect()
    }

    /// Contents of at most `len_max` bytes at a moment as a bundle ([`byteback_delta::bundle`]), in
    /// the order asked, as long as there is room for them in `total_max`. Files that are missing,
    /// too long or unreadable have no contents in it.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn bundle(
        &self,
        folder: &str,
        at: Seq,
        files: &[FileId],
        len_max: u64,
        total_max: u64,
    ) -> Result<Vec<u8>, StoreError> {
        self.content_moment(folder, at)?;
        let mut room = total_max;
        let mut content = |file: &FileId| {
            let content = unless_per_file(self.short_content(folder, at, *file, len_max.min(room)))?;
            room -= content.as_ref().map_or(0, ShortContent::len_bytes);
            Ok(content)
        };
        let contents = files.iter().map(&mut content);
        let contents = contents.collect::<Result<Vec<Option<ShortContent>>, StoreError>>()?;
        let mut stream = Vec::new();
        bundle::write(&contents, &mut stream).map_err(|e| StoreError::io("bundle contents", e))?;
        Ok(stream)
    }

    fn short_content(
        &self,
        folder: &str,
        at: Seq,
        file: FileId,
        len_max: u64,
    ) -> Result<Option<ShortContent>, StoreError> {
        let mut reader = self.content(folder, file, Some(at), None)?;
        if reader.size() > len_max {
            return Ok(None);
        }
        let mut content = ShortContent::zeros(reader.size());
        while let Some((range, bytes)) = reader.next_part()? {
            if let Some(bytes) = bytes {
                content.push(range.start(), bytes);
            }
        }
        Ok(Some(content))
    }

    fn content_moment(&self, folder: &str, at: Seq) -> Result<Seq, StoreError> {
        let catalog = self.catalog().read()?;
        existing_seq(&folder_row(&*catalog, folder)?, Some(at))
    }

    /// A digest, unless the content is longer than `len_max` and than the `room` for long ones,
    /// which it takes.
    fn digest_within(
        &self,
        folder: &str,
        at: Seq,
        file: FileId,
        len_max: u64,
        room: &mut u64,
    ) -> Result<Option<[u8; DIGEST_LEN]>, StoreError> {
        let mut reader = self.content(folder, file, Some(at), None)?;
        if reader.size() > len_max {
            match room.checked_sub(reader.size()) {
                Some(left) => *room = left,
                None => return Ok(None),
            }
        }
        let mut digest = ContentDigest::new(reader.size());
        let mut chunk = Vec::new();
        loop {
            reader.next_chunk(&mut chunk, 64 * 1024)?;
            if chunk.is_empty() {
                return Ok(digest.finish());
            }
            digest.push(&chunk);
        }
    }
}

impl ContentReader {
    /// A reader of contents of `size` bytes that `resolver` resolves.
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

    /// Writes the contents as a delta stream over nothing: zeros become holes. The stream of a
    /// range has the whole contents' length and says nothing of what lies outside the range.
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

    /// The next part of the range: bytes, or `None` for zeros. Each part has a short transaction of
    /// its own, because the caller may be slow.
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

/// Maps an error that concerns only one file to `None`, so that it does not fail a request for many
/// files.
pub(crate) fn unless_per_file<T>(reported: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
    match reported {
        Err(StoreError::NodeNotFound(_) | StoreError::InvalidParameter(_)) => Ok(None),
        Err(error) if crate::damage::is_of_frame(&error) => Ok(None),
        reported => reported,
    }
}

fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Write(source) => source,
        other => io::Error::other(other),
    }
}

pub(crate) fn unresolved() -> StoreError {
    StoreError::CatalogDamaged("a copy was left unresolved".to_owned())
}

/// The most recently used decoded frames.
pub(crate) struct FrameCache {
    decoder: FrameDecoder,
    /// Least recently used first.
    frames: VecDeque<(FrameRef, Vec<u8>)>,
    /// Memory of these frames, in bytes.
    kept_len: usize,
    stored: Vec<u8>,
}

impl FrameCache {
    pub(crate) fn new() -> Result<Self, StoreError> {
        let decoder = FrameDecoder::new().map_err(|e| StoreError::io("set up the decompressor", e))?;
        Ok(Self {
            decoder,
            frames: VecDeque::new(),
            kept_len: 0,
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
        let raw = match self.frames.iter().rposition(|(known, _)| *known == frame) {
            Some(index) => self.frames.remove(index).map(|(_, raw)| raw).unwrap_or_default(),
            None => {
                let raw = self.decoded(segments, &frame)?;
                self.kept_len += raw.capacity();
                raw
            }
        };
        self.frames.push_back((frame, raw));
        let start = usize::try_from(literal.skip).unwrap_or(usize::MAX);
        let raw = self.frames.back().map(|(_, raw)| raw.as_slice()).unwrap_or_default();
        raw.get(start..start.saturating_add(len))
            .ok_or_else(|| damaged(&frame, "an extent reaches past its frame".to_owned()))
    }

    /// Reads and decodes a frame again, without the cache.
    pub(crate) fn decode_uncached(&mut self, segments: &dyn Segments, frame: &FrameRef) -> Result<Vec<u8>, StoreError> {
        let mut raw = Vec::new();
        self.decode(segments, frame, &mut raw)?;
        Ok(raw)
    }

    /// Reads and decodes a frame that is not in the cache, into the memory of a frame that it
    /// evicts.
    fn decoded(&mut self, segments: &dyn Segments, frame: &FrameRef) -> Result<Vec<u8>, StoreError> {
        let mut raw = Vec::new();
        // The decoder ensures that no frame exceeds the longest, whatever the catalog says.
        let room = FRAMES_KEPT_LEN.saturating_sub(FRAME_RAW_LEN_MAX as usize);
        while self.kept_len > room || self.frames.len() >= FRAMES_KEPT {
            let Some((_, oldest)) = self.frames.pop_front() else {
                break;
            };
            self.kept_len -= oldest.capacity();
            raw = oldest;
        }
        self.decode(segments, frame, &mut raw)?;
        Ok(raw)
    }

    fn decode(&mut self, segments: &dyn Segments, frame: &FrameRef, raw: &mut Vec<u8>) -> Result<(), StoreError> {
        segments.read(frame, &mut self.stored)?;
        let codec = Codec::from_code(frame.codec)
            .ok_or_else(|| damaged(frame, format!("the frame has unknown codec {}", frame.codec)))?;
        self.decoder
            .decode(codec, &self.stored, frame.raw_len, raw)
            .map_err(|e| damaged(frame, e.to_string()))
    }
}

fn damaged(frame: &FrameRef, what: String) -> StoreError {
    StoreError::Damaged {
        segment: frame.segment,
        offset: frame.offset,
        what,
    }
}
