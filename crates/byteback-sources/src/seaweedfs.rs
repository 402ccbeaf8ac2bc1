//! The checksums that SeaweedFS keeps of files: each chunk of a file is a needle of a volume, and
//! each needle has a CRC-32C (SkySync, Table 1: distributed systems; Haystack, whose design
//! SeaweedFS follows).
//!
//! ## Where they come from
//!
//! Everything comes from the filer: the list of a file's chunks (`?metadata=true`), and each
//! needle's CRC as its ETag (`?proxyChunkId=`, which the filer forwards to the volume's server).
//! The filer's is the only address needed.
//!
//! ## When a checksum counts
//!
//! Needles are never changed: a write to a file creates new ones, with new ids, and a new entry at
//! the filer. So the answers to several requests are about one state of the file if the entry is
//! the same before and after, which a digest of all of it shows. Bytes are read through the filer,
//! and count if the entry is still the same afterwards.
//!
//! ## Which blocks
//!
//! Chunks of 4 MiB mostly. A chunk that others overlap, wholly or in part (in a file with random
//! writes), has no checksum, nor has one that is compressed or encrypted: the needle's checksum is
//! of the stored bytes. Chunks of different lengths are [`Run::Chunks`].
//!
//! ## What it does not do
//!
//! The MD5s of chunks, which the entry has, are broken and may be missing; they distinguish states,
//! and are not used as checksums here. Files of more than some 1000 chunks, which the filer lists
//! in several steps, are refused with a message.

pub(crate) mod answers;

use std::io;

use byteback_extents::ByteRange;
use parking_lot::Mutex;

use self::answers::{Entry, Refusal, Shape, What, needle_crc};
use crate::http::{Answer, Http, Method, Request};
use crate::s3::escaped;
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, SourceError, Stamp, Tail, Unknown,
};

/// The description of the SeaweedFS source.
pub const DESCRIPTION: Description = Description {
    name: "seaweedfs",
    coverage: "each chunk (usually 4 MiB) that no other overlaps and that is neither compressed nor encrypted",
    cost: "two requests for the file's entry, and one for each chunk",
    permissions: "access to the filer; without tokens",
};

/// Limit of an entry, in bytes: 1000 chunks take some 300 KB, and files written through a mount may
/// have more.
const ENTRY_LEN_MAX: u64 = 16 << 20;

/// The number of attempts for a file that is written to meanwhile.
const ATTEMPTS: u32 = 3;

/// The address of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The filer: `http://HOST:PORT`, without a slash at the end.
    pub filer: String,
    /// The file's path there, from `/` on.
    pub path: String,
}

impl Place {
    /// Parses `seaweedfs://HOST:PORT/PATH`.
    ///
    /// # Errors
    /// The defect of the address, in words.
    pub fn new(url: &str) -> std::result::Result<Self, &'static str> {
        const SHAPE: &str = "a file's address is seaweedfs://HOST:PORT/PATH, with the filer's host and port";
        let rest = url.strip_prefix("seaweedfs://").ok_or(SHAPE)?;
        let (host, path) = rest.split_once('/').ok_or(SHAPE)?;
        let is_host = !host.is_empty()
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte));
        if !is_host || path.is_empty() || path.ends_with('/') {
            return Err(SHAPE);
        }
        // A server would normalize such a path to another one.
        if path
            .split('/')
            .any(|part| part.is_empty() || part == "." || part == "..")
        {
            return Err("a path must not have '.', '..' or nothing between slashes");
        }
        Ok(Self {
            filer: format!("http://{host}"),
            path: format!("/{path}"),
        })
    }
}

/// A file, as a source.
pub struct SeaweedFsSource<'a> {
    http: &'a dyn Http,
    place: Place,
    /// Digest and length of the state described last; only its bytes are read.
    described: Mutex<Option<([u8; 32], u64)>>,
}

impl<'a> SeaweedFsSource<'a> {
    /// The source for the file at `place`. No request is sent yet.
    #[must_use]
    pub fn new(http: &'a dyn Http, place: Place) -> Self {
        Self {
            http,
            place,
            described: Mutex::new(None),
        }
    }

    fn ask(
        &self,
        method: Method,
        path_and_query: &str,
        headers: Vec<(&'static str, String)>,
        body_len_max: u64,
    ) -> Result<Answer> {
        let request = Request {
            method,
            url: format!("{}{path_and_query}", self.place.filer),
            headers,
            body_len_max,
        };
        self.http.ask(&request).map_err(SourceError::io("reach the filer"))
    }

    fn refusal(what: &'static str, status: u16) -> SourceError {
        match status {
            401 | 403 => SourceError::Denied(
                "the filer requires a token (jwt.filer_signing.read in its security.toml), which this program does not \
                 send; use a filer without that key, or read the file instead ('weed mount', or over S3)",
            ),
            404 => SourceError::Missing("the filer has no such file"),
            status => SourceError::Server {
                what,
                status,
                code: String::new(),
            },
        }
    }

    fn entry(&self) -> Result<Entry> {
        let query = format!("{}?metadata=true", escaped(&self.place.path, true));
        let answer = self.ask(Method::Get, &query, Vec::new(), ENTRY_LEN_MAX)?;
        match answer.status {
            200 => Entry::parse(&answer.body).map_err(refused),
            status => Err(Self::refusal("describe the file", status)),
        }
    }

    /// The CRC-32C of a needle of `len_bytes`; `None` if its server reports that it is stored in
    /// another form.
    fn crc(&self, id: &str, len_bytes: u64) -> Result<Option<u32>> {
        let answer = self.ask(Method::Head, &format!("/?proxyChunkId={id}"), Vec::new(), 0)?;
        match answer.status {
            200 => {}
            // The needle was deleted: the file was changed since, or it is damaged.
            404 => return Err(SourceError::ChangedMeanwhile),
            status => return Err(Self::refusal("report a chunk's checksum", status)),
        }
        if answer.header("content-encoding").is_some() {
            return Ok(None);
        }
        if answer.header("content-length").and_then(|text| text.parse().ok()) != Some(len_bytes) {
            return Err(SourceError::Malformed("a chunk whose length differs from the filer's"));
        }
        let crc = answer.header("etag").and_then(needle_crc);
        crc.map(Some)
            .ok_or(SourceError::Malformed("a chunk without a checksum"))
    }

    fn begin(&self) -> Result<Passage<'_, 'a>> {
        let entry = self.entry()?;
        let shape = entry.shape().map_err(refused)?;
        let layout = Layout {
            kind: Kind::Crc32c,
            salt: Vec::new(),
            block_len: shape.block_len,
            tail: Tail::AsIs,
        };
        Ok(Passage {
            source: self,
            digest: entry.digest(),
            layout,
            shape,
            next: 0,
            end: [0],
            sum: [0; 4],
        })
    }
}

fn refused(refusal: Refusal) -> SourceError {
    match refusal {
        Refusal::NotHere(why) => SourceError::NotHere(why),
        Refusal::Malformed(what) => SourceError::Malformed(what),
    }
}

/// A single pass over a file's chunks.
struct Passage<'s, 'a> {
    source: &'s SeaweedFsSource<'a>,
    digest: [u8; 32],
    layout: Layout,
    shape: Shape,
    /// The index of the next stretch.
    next: usize,
    /// The end and the checksum of the current chunk.
    end: [u64; 1],
    sum: [u8; 4],
}

impl Extraction for Passage<'_, '_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.shape.len_bytes
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let Some((range, what)) = self.shape.stretches.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let range = *range;
        let crc = match what {
            What::Zeros => return Ok(Some(Run::Zeros { range })),
            What::Unknown(why) => return Ok(Some(Run::Unknown { range, why: *why })),
            What::Needle(id) => self.source.crc(id, range.len_bytes())?,
        };
        let Some(crc) = crc else {
            let why = Unknown::Compressed;
            return Ok(Some(Run::Unknown { range, why }));
        };
        (self.end, self.sum) = ([range.end()], crc.to_le_bytes());
        let sums = &self.sum[..];
        Ok(Some(match self.shape.is_even {
            true => Run::Sums { range, sums },
            false => Run::Chunks {
                range,
                ends: &self.end,
                sums,
            },
        }))
    }

    fn finish(self) -> Result<Stamp> {
        match self.source.entry()?.digest() == self.digest {
            true => {
                *self.source.described.lock() = Some((self.digest, self.shape.len_bytes));
                Ok(Stamp::elsewhere(self.shape.len_bytes, self.digest))
            }
            false => Err(SourceError::ChangedMeanwhile),
        }
    }
}

impl Source for SeaweedFsSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || self.begin())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let described = *self.described.lock();
        let (digest, len_bytes) = match described {
            Some(described) => described,
            None => {
                let entry = self.entry()?;
                let described = (entry.digest(), entry.shape().map_err(refused)?.len_bytes);
                *self.described.lock().insert(described)
            }
        };
        let Some(range) = ByteRange::new(offset, len_bytes.min(offset.saturating_add(buffer.len() as u64))) else {
            return Ok(0);
        };
        let last = range.end() - 1;
        let headers = vec![("range", format!("bytes={offset}-{last}"))];
        // The filer's error message may be longer than the requested bytes.
        let body_len_max = range.len_bytes().max(64 << 10);
        let answer = self.ask(Method::Get, &escaped(&self.place.path, true), headers, body_len_max)?;
        let expected = format!("bytes {offset}-{last}/{len_bytes}");
        match answer.status {
            206 if answer.header("content-range") == Some(&expected) => {}
            // The whole file was requested.
            200 if range.len_bytes() == len_bytes => {}
            200 | 206 | 416 => return Err(SourceError::ChangedMeanwhile),
            status => return Err(Self::refusal("send the file's bytes", status)),
        }
        if self.entry()?.digest() != digest {
            return Err(SourceError::ChangedMeanwhile);
        }
        match buffer.get_mut(..answer.body.len()) {
            Some(taken) if answer.body.len() as u64 == range.len_bytes() => {
                taken.copy_from_slice(&answer.body);
                Ok(taken.len())
            }
            _ => Err(SourceError::io("read the file")(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        match self.entry() {
            Ok(entry) => Ok(entry.digest() == stamp.witness),
            Err(SourceError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
