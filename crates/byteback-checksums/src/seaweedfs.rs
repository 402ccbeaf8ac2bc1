//! The checksums that SeaweedFS keeps of files: each chunk of a file is a needle of a volume, and
//! each needle has a CRC-32C (SkySync, Table 1: distributed systems; Haystack, whose design
//! SeaweedFS follows).
//!
//! ## From where
//!
//! All from the filer: the list of a file's chunks (`?metadata=true`), and each needle's CRC as its
//! ETag (`?proxyChunkId=`, which the filer hands on to the volume's server). Whoever asks needs no
//! other address.
//!
//! ## When a checksum counts
//!
//! Needles are not changed: whoever writes to a file makes new ones, with new ids, and a new entry
//! at the filer. So what was asked in several requests is of one state of the file if the entry is
//! the same before and after; a digest of all of it tells. Bytes are read through the filer, and
//! count if the entry is still the same afterwards.
//!
//! ## Which blocks
//!
//! Chunks of 4 MiB mostly. A chunk that others lie over, wholly or in part (a file that was written
//! to at random), has no checksum, nor has one that is compressed or encrypted: the needle's is of
//! the stored bytes. If chunks have different lengths they are [`Run::Chunks`].
//!
//! ## What it does not do
//!
//! The MD5s of chunks, which the entry has, are broken and may be missing; they tell states apart
//! and are no checksums here. Files of more than some 1000 chunks, which the filer lists in several
//! steps, are left out, and are said to be.

pub(crate) mod answers;

use std::io;

use byteback_extents::ByteRange;
use parking_lot::Mutex;

use self::answers::{Entry, Refusal, Shape, What, needle_crc};
use crate::http::{Answer, Http, Method, Request};
use crate::s3::escaped;
use crate::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, SourceError, Stamp, Tail, Unknown,
};

/// What SeaweedFS says of itself.
pub const DESCRIPTION: Description = Description {
    name: "seaweedfs",
    coverage: "each chunk (4 MiB mostly) that no other lies over and that is neither compressed nor encrypted",
    cost: "two requests for the file's entry, and one for each chunk",
    permissions: "whoever may ask the filer; without tokens",
};

/// No entry is longer: 1000 chunks have some 300 KB, and what is written through a mount may have
/// more.
const ENTRY_LEN_MAX: u64 = 16 << 20;

/// How often a file that is written to meanwhile is tried again.
const ATTEMPTS: u32 = 3;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The filer: `http://HOST:PORT`, without a slash at the end.
    pub filer: String,
    /// The file's path there, from `/` on.
    pub path: String,
}

impl Place {
    /// Of `seaweedfs://HOST:PORT/PATH`.
    ///
    /// # Errors
    /// What is wrong with the address, in words.
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
        // A server would take such a path for another one.
        if path
            .split('/')
            .any(|part| part.is_empty() || part == "." || part == "..")
        {
            return Err("a path with '.', '..' or nothing between slashes cannot be asked for");
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
    /// Digest and length of the state that was described last: its bytes, and no others, are read.
    described: Mutex<Option<([u8; 32], u64)>>,
}

impl<'a> SeaweedFsSource<'a> {
    /// Of the file at `place`. Nothing is asked yet.
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
                "the filer wants a token (jwt.filer_signing.read in its security.toml), which this program does not send; \
                 ask a filer without that key, or let the file be read ('weed mount', or by S3)",
            ),
            404 => SourceError::Missing("there is no such file at the filer"),
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

    /// The CRC-32C of a needle of so many bytes; `None` if its server says that it is stored in
    /// another form.
    fn crc(&self, id: &str, len_bytes: u64) -> Result<Option<u32>> {
        let answer = self.ask(Method::Head, &format!("/?proxyChunkId={id}"), Vec::new(), 0)?;
        match answer.status {
            200 => {}
            // It was thrown away: the file is another one by now, or it is damaged.
            404 => return Err(SourceError::ChangedMeanwhile),
            status => return Err(Self::refusal("tell a chunk's checksum", status)),
        }
        if answer.header("content-encoding").is_some() {
            return Ok(None);
        }
        if answer.header("content-length").and_then(|text| text.parse().ok()) != Some(len_bytes) {
            return Err(SourceError::Malformed("a chunk of another length than the filer says"));
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

/// One passage through a file's chunks.
struct Passage<'s, 'a> {
    source: &'s SeaweedFsSource<'a>,
    digest: [u8; 32],
    layout: Layout,
    shape: Shape,
    /// The stretch that is told next.
    next: usize,
    /// Of the chunk that was told last.
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
        // What the filer says of an error may be longer than what was asked for.
        let body_len_max = range.len_bytes().max(64 << 10);
        let answer = self.ask(Method::Get, &escaped(&self.place.path, true), headers, body_len_max)?;
        let expected = format!("bytes {offset}-{last}/{len_bytes}");
        match answer.status {
            206 if answer.header("content-range") == Some(&expected) => {}
            // All of it was asked for.
            200 if range.len_bytes() == len_bytes => {}
            200 | 206 | 416 => return Err(SourceError::ChangedMeanwhile),
            status => return Err(Self::refusal("give the file's bytes", status)),
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
