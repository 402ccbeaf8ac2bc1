//! Parsers for a filer's answer about a file: JSON in, stretches of the file out. Nothing is
//! trusted: every number is checked, and an impossible one is an error.

use base64::Engine;
use byteback_extents::ByteRange;
use serde::Deserialize;

use byteback_checksums::source::Unknown;

/// The mode bit of directories (Go's `ModeDir`).
const MODE_DIRECTORY: u64 = 1 << 31;

/// Limit of a plausible file length, in bytes.
const FILE_LEN_MAX: u64 = 1 << 60;

/// A file as the filer reports it. Names are the filer's; missing values count as 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    #[serde(rename = "FullPath")]
    path: String,
    #[serde(rename = "Mtime")]
    mtime: String,
    #[serde(rename = "Mode")]
    mode: u64,
    #[serde(rename = "SymlinkTarget")]
    symlink_target: Option<String>,
    #[serde(rename = "FileSize")]
    len_bytes: u64,
    #[serde(rename = "Md5")]
    md5: Option<String>,
    /// The bytes of a short file, if the filer keeps them itself.
    #[serde(rename = "Content")]
    content: Option<String>,
    /// The file's place in another store, if its bytes are there.
    #[serde(rename = "Remote")]
    remote: Option<serde::de::IgnoredAny>,
    chunks: Option<Vec<Chunk>>,
}

/// A part of a file. Later chunks hide earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Chunk {
    file_id: String,
    offset: i64,
    size: u64,
    modified_ts_ns: i64,
    e_tag: String,
    is_compressed: bool,
    cipher_key: Option<String>,
    is_chunk_manifest: bool,
}

/// The knowledge about a stretch of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The stretch is one needle, with this id, whose CRC-32C is that of the stretch.
    Needle(String),
    /// A hole: nothing was written there.
    Zeros,
    /// Nothing is known.
    Unknown(Unknown),
}

/// The reason why a file has no checksums here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The file is of another kind.
    NotHere(&'static str),
    /// The answer is impossible.
    Malformed(&'static str),
}

/// A file as contiguous stretches, from its first byte to its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) len_bytes: u64,
    pub(crate) stretches: Vec<(ByteRange, What)>,
    /// The length of all stretches but the last one, which may be shorter, if all are equal; else
    /// the length of the longest one.
    pub(crate) block_len: u32,
    pub(crate) is_even: bool,
}

impl Entry {
    /// Parses the answer to `?metadata=true`.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        serde_json::from_slice(body).map_err(|_| Refusal::Malformed("a filer's answer that does not describe a file"))
    }

    /// A digest of everything that distinguishes this state of the file from another one. A write
    /// creates new needles, with new ids, and a new time.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut digest = blake3::Hasher::new();
        let mut text = |text: &str| {
            digest
                .update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        };
        let numbers = format!("{} {} {}", self.mode, self.len_bytes, self.chunks().len());
        for part in [&self.path, &self.mtime, &numbers] {
            text(part);
        }
        for part in [&self.md5, &self.content, &self.symlink_target] {
            text(part.as_deref().unwrap_or("none"));
        }
        for chunk in self.chunks() {
            text(&chunk.file_id);
            text(&chunk.e_tag);
            text(chunk.cipher_key.as_deref().unwrap_or("none"));
            text(&format!(
                "{} {} {} {} {}",
                chunk.offset, chunk.size, chunk.modified_ts_ns, chunk.is_compressed, chunk.is_chunk_manifest
            ));
        }
        *digest.finalize().as_bytes()
    }

    fn chunks(&self) -> &[Chunk] {
        self.chunks.as_deref().unwrap_or_default()
    }

    /// The stretches of the file.
    pub(crate) fn shape(&self) -> Result<Shape, Refusal> {
        // Other JSON must not pass for a file without bytes.
        if !self.path.starts_with('/') {
            return Err(Refusal::Malformed("a filer's answer that does not describe a file"));
        }
        if self.mode & MODE_DIRECTORY != 0 {
            return Err(Refusal::NotHere("a folder"));
        }
        if self.symlink_target.as_deref().is_some_and(|target| !target.is_empty()) {
            return Err(Refusal::NotHere("a symbolic link"));
        }
        if self.remote.is_some() {
            return Err(Refusal::NotHere(
                "the file's bytes are in another store, which the filer only caches",
            ));
        }
        if self.chunks().iter().any(|chunk| chunk.is_chunk_manifest) {
            return Err(Refusal::NotHere(
                "the file has too many chunks for the filer to list them all at once",
            ));
        }
        let content = match &self.content {
            Some(text) => base64::engine::general_purpose::STANDARD
                .decode(text)
                .map_err(|_| Refusal::Malformed("bytes that are not base64"))?,
            None => Vec::new(),
        };
        let mut ranges = self.chunks().iter().map(Chunk::range).collect::<Result<Vec<_>, _>>()?;
        ranges.sort_by_key(|(range, _)| (range.start(), range.end()));
        let end_of_chunks = ranges.iter().map(|(range, _)| range.end()).max().unwrap_or_default();
        let len_bytes = self.len_bytes.max(end_of_chunks).max(content.len() as u64);
        if len_bytes > FILE_LEN_MAX {
            return Err(Refusal::Malformed("a file that is too long"));
        }
        let mut stretches: Vec<(ByteRange, What)> = Vec::new();
        if !content.is_empty() {
            if !ranges.is_empty() || len_bytes != content.len() as u64 {
                return Err(Refusal::Malformed("a short file that is not wholly in its entry"));
            }
            stretches.extend(ByteRange::new(0, len_bytes).map(|range| (range, What::Unknown(Unknown::Inline))));
        }
        for (range, what) in ranges {
            match stretches.last_mut() {
                // Only the filer knows which of them is visible where.
                Some((before, known)) if before.end() > range.start() => {
                    *before = before.hull(range);
                    *known = What::Unknown(Unknown::NotSummed);
                }
                before => {
                    let end = before.map_or(0, |(before, _)| before.end());
                    stretches.extend(ByteRange::new(end, range.start()).map(|hole| (hole, What::Zeros)));
                    stretches.push((range, what));
                }
            }
        }
        let end = stretches.last().map_or(0, |(last, _)| last.end());
        stretches.extend(ByteRange::new(end, len_bytes).map(|hole| (hole, What::Zeros)));
        Ok(Shape::of(len_bytes, stretches))
    }
}

impl Chunk {
    /// The chunk's range, and the knowledge about it unless another chunk overlaps it.
    fn range(&self) -> Result<(ByteRange, What), Refusal> {
        let offset = u64::try_from(self.offset).ok();
        let range = offset.and_then(|offset| ByteRange::from_offset_len(offset, self.size));
        let range = range.ok_or(Refusal::Malformed("a chunk that is empty, or at an impossible place"))?;
        if !is_needle_id(&self.file_id) {
            return Err(Refusal::Malformed("a chunk with a name that is not a needle's"));
        }
        let is_encrypted = self.cipher_key.as_deref().is_some_and(|key| !key.is_empty());
        // A needle's checksum is that of the stored bytes.
        let what = match (is_encrypted, self.is_compressed, u32::try_from(self.size)) {
            (true, ..) => What::Unknown(Unknown::Encoded),
            (_, true, _) => What::Unknown(Unknown::Compressed),
            (.., Err(_)) => What::Unknown(Unknown::NotSummed),
            (.., Ok(_)) => What::Needle(self.file_id.clone()),
        };
        Ok((range, what))
    }
}

/// Whether this is `VOLUME,KEY`, with the key in hexadecimal digits, so that it cannot alter the
/// request.
fn is_needle_id(text: &str) -> bool {
    let Some((volume, key)) = text.split_once(',') else {
        return false;
    };
    let is_all = |text: &str, is_digit: fn(&u8) -> bool| {
        !text.is_empty() && text.len() <= 40 && text.bytes().all(|byte| is_digit(&byte))
    };
    is_all(volume, u8::is_ascii_digit) && is_all(key, u8::is_ascii_hexdigit)
}

impl Shape {
    fn of(len_bytes: u64, stretches: Vec<(ByteRange, What)>) -> Self {
        let summed = || {
            let needles = stretches.iter().filter(|(_, what)| matches!(what, What::Needle(_)));
            needles.map(|(range, _)| range.len_bytes())
        };
        // Needles are shorter than 4 GiB.
        let longest = u32::try_from(summed().max().unwrap_or_default())
            .unwrap_or(u32::MAX)
            .max(1);
        let first = u32::try_from(summed().next().unwrap_or_default())
            .unwrap_or(u32::MAX)
            .max(1);
        let is_border = |offset: u64| offset == len_bytes || offset.is_multiple_of(u64::from(first));
        let is_even = longest == first
            && stretches.iter().all(|(range, what)| {
                let is_block = !matches!(what, What::Needle(_))
                    || range.len_bytes() == u64::from(first)
                    || range.end() == len_bytes;
                is_block && is_border(range.start()) && is_border(range.end())
            });
        Self {
            len_bytes,
            stretches,
            block_len: longest,
            is_even,
        }
    }
}

/// The CRC-32C in a needle's ETag of eight hexadecimal digits, as a number.
pub(crate) fn needle_crc(etag: &str) -> Option<u32> {
    let digits = etag.strip_prefix('"')?.strip_suffix('"')?;
    let are_digits = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then(|| u32::from_str_radix(digits, 16).ok())?
}
