//! SkySync between any two sources: one has the base, the other the new content. Each end uses what
//! its storage knows, and reads the rest. The delta is made, sent as a stream, applied, and
//! compared with the new content.

use std::cell::Cell;
use std::io;

use byteback_checksums::source::{FileChecksums, Kind, Layout, Run, Source, Tail};
use byteback_delta::chunks::{ChunkList, ChunkParams, MatchParams, list_chunks_with_crcs};
use byteback_delta::crc::{BlockLayout, CrcKind, CrcList, LastBlock, RangeCrcs};
use byteback_delta::find::{
    ChunkFinder, CrcSums, ExtentSink, FindStats, IntoDelta, Known, NameKind, NamedChunks, SumKind, SumLayout, SumList,
    find_named, find_sky, match_chunks, prove_matches,
};
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_delta::{Base, DeltaReader, DeltaWriter, WriterOptions, apply_to_new};
use byteback_extents::{ByteRange, ExtentSet};

/// A source as a content that is read in parts; the bytes read are counted.
pub(crate) struct Content<'a> {
    source: &'a dyn Source,
    len_bytes: u64,
    pub(crate) read_bytes: Cell<u64>,
}

impl<'a> Content<'a> {
    pub(crate) fn new(source: &'a dyn Source, reported: &FileChecksums) -> Self {
        Self {
            source,
            len_bytes: reported.stamp().len_bytes,
            read_bytes: Cell::new(0),
        }
    }
}

impl Base for Content<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_bytes.set(self.read_bytes.get() + buffer.len() as u64);
        match self.source.read_at(offset, buffer) {
            Ok(len) if len == buffer.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

fn last_block(layout: &Layout) -> LastBlock {
    match layout.tail {
        Tail::AsIs => LastBlock::AsItIs,
        Tail::ZeroPadded => LastBlock::ZeroPadded,
    }
}

fn crc_kind(kind: Kind) -> Option<CrcKind> {
    match kind {
        Kind::Crc32c => Some(CrcKind::Crc32c),
        Kind::Crc32 => Some(CrcKind::Crc32),
        Kind::Crc64Nvme => Some(CrcKind::Crc64Nvme),
        _ => None,
    }
}

/// Calls `each` for every block, with its checksum if that is known.
fn each_block(reported: &FileChecksums, mut each: impl FnMut(Option<&[u8]>)) {
    let sum_len = reported.layout().kind.len_bytes();
    for run in reported.runs() {
        match run {
            Run::Sums { sums, .. } => sums.chunks_exact(sum_len).for_each(|sum| each(Some(sum))),
            run => (0..reported.layout().block_count(run.range())).for_each(|_| each(None)),
        }
    }
}

/// The CRCs of a description, if it has any.
pub(crate) fn crcs(reported: &FileChecksums) -> Option<CrcList> {
    let layout = reported.layout();
    let mut list = CrcList::new(BlockLayout {
        kind: crc_kind(layout.kind)?,
        block_len_bytes: layout.block_len,
        content_len_bytes: reported.stamp().len_bytes,
        last: last_block(layout),
    });
    each_block(reported, |sum| {
        list.push(sum.map(|sum| sum.iter().rev().fold(0, |crc, byte| crc << 8 | u64::from(*byte))));
    });
    Some(list)
}

/// The cryptographic checksums of a description, if it has any that can be compared.
pub(crate) fn strong(reported: &FileChecksums) -> Option<SumList> {
    let layout = reported.layout();
    if !layout.salt.is_empty() {
        return None;
    }
    let mut list = SumList::new(SumLayout {
        kind: match layout.kind {
            Kind::Sha256 => SumKind::Sha256,
            Kind::Blake2b256 => SumKind::Blake2b256,
            _ => return None,
        },
        sum_len_bytes: 32,
        block_len_bytes: layout.block_len,
        content_len_bytes: reported.stamp().len_bytes,
        last: last_block(layout),
    });
    each_block(reported, |sum| list.push(sum));
    Some(list)
}

/// The cost of a sync.
pub(crate) struct Synced {
    pub(crate) stats: FindStats,
    /// Bytes of the new content read where it is, without those for borders of chunks.
    pub(crate) new_read_bytes: u64,
    /// Bytes of the base read where it is, before the delta arrived.
    pub(crate) base_read_bytes: u64,
    pub(crate) delta_len: usize,
}

/// SkySync-F (section 3.2): a signature of the base goes to the new content's end, a delta comes
/// back. Blocks have `block_len` bytes; strong checksums are of the kind that the new end has
/// (section 3.3.2), or SHA-256.
pub(crate) fn fixed(base: &dyn Source, new: &dyn Source, block_len: u32, expected: &[u8]) -> Synced {
    let (base_checksums, new_checksums) = (base.collect().unwrap(), new.collect().unwrap());
    let (base_content, new_content) = (Content::new(base, &base_checksums), Content::new(new, &new_checksums));
    let is_padded = new_checksums.layout().tail == Tail::ZeroPadded;
    let params = SignatureParams {
        block_len_bytes: block_len,
        weak: match (new_checksums.layout().kind, is_padded) {
            (Kind::Crc32, true) => WeakKind::Crc32Padded,
            (_, true) => WeakKind::Crc32cPadded,
            (_, false) => WeakKind::Crc32c,
        },
        strong: match (new_checksums.layout().kind, is_padded) {
            (Kind::Blake2b256, true) => StrongKind::Blake2b256Padded,
            (Kind::Blake2b256, false) => StrongKind::Blake2b256,
            (_, true) => StrongKind::Sha256Padded,
            (_, false) => StrongKind::Sha256,
        },
        strong_len_bytes: 32,
        seed: 0,
    };
    let len_bytes = base_checksums.stamp().len_bytes;
    let mut writer = SignatureWriter::new(Vec::new(), params, len_bytes).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < len_bytes {
        let len = buffer.len().min((len_bytes - at) as usize);
        base_content.read_range(at, &mut buffer[..len]).unwrap();
        writer.push(&buffer[..len]).unwrap();
        at += len as u64;
    }
    let signature = writer.finish().unwrap();
    let signature = Signature::read(&signature[..], 1 << 20).unwrap();
    let base_read_bytes = base_content.read_bytes.get();
    let known = Known {
        crcs: crcs(&new_checksums).map(CrcSums),
        strong: strong(&new_checksums),
    };
    let mut stats = FindStats::default();
    let new_len = new_checksums.stamp().len_bytes;
    let delta_len = through_a_delta(&base_content, new_len, expected, |sink| {
        stats = find_sky(&signature, known, &new_content, new_len, sink).unwrap().1;
    });
    // The result counts only if the new content did not change meanwhile.
    assert!(new.is_unchanged(new_checksums.stamp()).unwrap());
    Synced {
        stats,
        new_read_bytes: new_content.read_bytes.get(),
        base_read_bytes,
        delta_len,
    }
}

/// SkySync-C (section 3.2.1): both ends are cut by content; the chunks' CRCs follow from those of
/// the storage's blocks.
pub(crate) fn chunked(base: &dyn Source, new: &dyn Source, expected: &[u8]) -> Synced {
    chunked_to(ChunkParams::new(4096, 8192, 12_288).unwrap(), base, new, expected)
}

/// The same with chunks of other lengths: the CRCs of chunks shorter than a source's blocks cannot
/// be derived.
pub(crate) fn chunked_to(params: ChunkParams, base: &dyn Source, new: &dyn Source, expected: &[u8]) -> Synced {
    let (base_checksums, new_checksums) = (base.collect().unwrap(), new.collect().unwrap());
    let (base_content, new_content) = (Content::new(base, &base_checksums), Content::new(new, &new_checksums));
    let list_of = |reported: &FileChecksums, content: &Content<'_>| -> (ChunkList, u64) {
        let mut crcs = RangeCrcs::new(crcs(reported).expect("no CRCs"));
        let (list, stats) = list_chunks_with_crcs(content, None, params, &mut crcs).unwrap();
        (list, stats.summed_bytes)
    };
    let (base_list, summed) = list_of(&base_checksums, &base_content);
    // Storage's checksums save the summing, as intended.
    assert!(
        summed < base_checksums.stamp().len_bytes / 2,
        "{summed} bytes were summed"
    );
    let (new_list, _) = list_of(&new_checksums, &new_content);
    let runs = match_chunks(&new_list, &base_list);
    let (answer, base_read_bytes) = prove_matches(&new_list, &runs, &base_content, MatchParams::new(7)).unwrap();
    let mut stats = FindStats::default();
    let new_len = new_checksums.stamp().len_bytes;
    let delta_len = through_a_delta(&base_content, new_len, expected, |sink| {
        let mut finder = ChunkFinder::new(&new_list, &answer, sink);
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < new_len {
            let len = buffer.len().min((new_len - at) as usize);
            new_content.read_range(at, &mut buffer[..len]).unwrap();
            finder.push(&buffer[..len]).unwrap();
            at += len as u64;
        }
        stats = finder.finish().unwrap().1;
    });
    assert!(new.is_unchanged(new_checksums.stamp()).unwrap());
    Synced {
        stats,
        new_read_bytes: new_content.read_bytes.get(),
        base_read_bytes,
        delta_len,
    }
}

/// The kind of chunk names for a kind of checksum; `None` if it names no chunks.
fn name_kind(kind: Kind) -> Option<NameKind> {
    Some(match kind {
        Kind::Sha256 => NameKind::Sha256,
        Kind::Sha512 => NameKind::Sha512,
        Kind::Sha512Of256 => NameKind::Sha512Of256,
        Kind::Blake2b256 => NameKind::Blake2b256,
        Kind::Blake3 => NameKind::Blake3,
        _ => return None,
    })
}

/// The chunks that a store has cut and named; `None` for another kind of source.
fn names(reported: &FileChecksums) -> Option<NamedChunks> {
    let kind = reported.layout().kind;
    let mut list = NamedChunks::new(name_kind(kind)?);
    for run in reported.runs() {
        let Run::Chunks { range, ends, sums } = run else {
            return None;
        };
        let mut start = range.start();
        for (end, sum) in ends.iter().zip(sums.chunks_exact(kind.len_bytes())) {
            assert!(list.push(end - start, sum));
            start = *end;
        }
    }
    Some(list)
}

/// SkySync-C where a deduplicating store has cut and named the chunks of the new content (section
/// 3.1). A base in such a store is also known by its list; another base is summed where the new
/// content's chunks would lie.
pub(crate) fn named(base: &dyn Source, new: &dyn Source, expected: &[u8]) -> Synced {
    let (base_checksums, new_checksums) = (base.collect().unwrap(), new.collect().unwrap());
    let (base_content, new_content) = (Content::new(base, &base_checksums), Content::new(new, &new_checksums));
    let list = names(&new_checksums).expect("no named chunks");
    let base_list = names(&base_checksums).filter(|own| own.kind() == list.kind());
    let base_list = base_list.unwrap_or_else(|| {
        let layout = Layout {
            tail: Tail::AsIs,
            ..new_checksums.layout().clone()
        };
        let mut summed = NamedChunks::new(list.kind());
        for len in list.lens() {
            let start = summed.content_len_bytes();
            let len = len.min(base_checksums.stamp().len_bytes - start);
            let mut bytes = vec![0; len as usize];
            base_content.read_range(start, &mut bytes).unwrap();
            let mut name = Vec::new();
            layout.append_sum(&bytes, &mut name);
            if !summed.push(len, &name) {
                break;
            }
        }
        summed
    });
    let base_read_bytes = base_content.read_bytes.get();
    let mut stats = FindStats::default();
    let delta_len = through_a_delta(&base_content, new_checksums.stamp().len_bytes, expected, |sink| {
        stats = find_named(&base_list, &list, &new_content, sink).unwrap().1;
    });
    assert!(new.is_unchanged(new_checksums.stamp()).unwrap() && base.is_unchanged(base_checksums.stamp()).unwrap());
    Synced {
        stats,
        new_read_bytes: new_content.read_bytes.get(),
        base_read_bytes,
        delta_len,
    }
}

/// A sync whose ends already know which ranges differ in place: the new content's ranges are sent,
/// the base is not read.
pub(crate) fn in_place(base: &dyn Source, new: &dyn Source, differing: &ExtentSet, expected: &[u8]) -> Synced {
    let (base_checksums, new_checksums) = (base.collect().unwrap(), new.collect().unwrap());
    let (base_content, new_content) = (Content::new(base, &base_checksums), Content::new(new, &new_checksums));
    let new_len = new_checksums.stamp().len_bytes;
    let mut stats = FindStats::default();
    let mut base_read_bytes = 0;
    let delta_len = through_a_delta(&base_content, new_len, expected, |mut sink| {
        let mut at = 0;
        for range in differing.iter() {
            if let Some(equal) = ByteRange::new(at, range.start()) {
                sink.copy(equal, at).unwrap();
                stats.copied_bytes += equal.len_bytes();
            }
            let mut bytes = vec![0; range.len_bytes() as usize];
            new_content.read_range(range.start(), &mut bytes).unwrap();
            sink.literal(range.start(), &bytes).unwrap();
            stats.literal_bytes += range.len_bytes();
            at = range.end();
        }
        if let Some(equal) = ByteRange::new(at, new_len) {
            sink.copy(equal, at).unwrap();
            stats.copied_bytes += equal.len_bytes();
        }
        base_read_bytes = base_content.read_bytes.get();
    });
    assert!(new.is_unchanged(new_checksums.stamp()).unwrap());
    Synced {
        stats,
        new_read_bytes: new_content.read_bytes.get(),
        base_read_bytes,
        delta_len,
    }
}

fn through_a_delta(
    base: &Content<'_>,
    new_len: u64,
    expected: &[u8],
    find: impl FnOnce(IntoDelta<'_, Vec<u8>>),
) -> usize {
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), base.len_bytes, new_len, options).unwrap();
    find(IntoDelta(&mut writer));
    let (stream, _) = writer.finish().unwrap();
    let mut target = Vec::new();
    apply_to_new(base, &mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
    assert!(target == expected, "base and delta do not make the new content");
    stream.len()
}
