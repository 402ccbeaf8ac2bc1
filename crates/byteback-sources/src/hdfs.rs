//! The checksums that HDFS keeps of files: each block of a file has a CRC for every 512 bytes, on
//! the DataNodes that have the block (SkySync, Table 1 and section 3.4: distributed systems, by
//! their interfaces).
//!
//! ## Where they come from
//!
//! The NameNode gives the blocks of a file and their places by WebHDFS (`GETFILESTATUS`,
//! `GET_BLOCK_LOCATIONS`). The CRCs come from a DataNode that has the block, by the protocol that
//! HDFS's own clients speak to it: asked for composite CRCs of stripes, it combines those that it
//! keeps to one for every 4096 bytes and reads no data for that. So they equal the checksums that
//! btrfs has of its sectors, and the two are compared as they are. Bytes are read through WebHDFS.
//! The client has to reach the NameNode's HTTP port and the DataNodes' transfer and HTTP ports.
//!
//! ## When a checksum counts
//!
//! Appending to a file, or truncating it, makes a new block or a new generation of its last one,
//! and the NameNode reports the file as being written until that is done. So the answers of several
//! requests are of one state of the file if its blocks, their generations and lengths are the same
//! before and after, and the file was not being written. Bytes count if the blocks in which they
//! lie are still the same afterwards. A DataNode is asked for one generation and returns nothing of
//! another one.
//!
//! If a DataNode does not answer, or makes no sense, the next one is asked. If none answers, that
//! is an error which names the last one: the checksums of the other blocks are not worth more than
//! reading the file. A DataNode's answer may be wrong, as any CRC may: CRCs decide what is read,
//! never what is left out.
//!
//! ## Which blocks
//!
//! Blocks of 4096 bytes if HDFS's blocks begin at multiples of that, and shorter ones if at
//! multiples of less; [`Run::Chunks`] if blocks end anywhere (files that were joined). Clusters
//! with a CRC for more than 4096 bytes (`dfs.bytes-per-checksum`) have blocks of that length. Both
//! CRC-32C and CRC-32 (`dfs.checksum.type`) are supported; a block whose kind differs from that of
//! the file's first one has no checksum.
//!
//! ## What it does not do
//!
//! Clusters with Kerberos, block tokens, SASL or encrypted transfer; TLS; encryption zones, whose
//! checksums are those of encrypted bytes; erasure-coded files. Each is an error that says so. A
//! standby NameNode is not followed to the active one. HttpFS, which needs no way to the DataNodes,
//! does not report checksums of parts of blocks.

pub(crate) mod transfer;
pub(crate) mod web;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use byteback_extents::ByteRange;
use parking_lot::Mutex;

use self::transfer::{BlockSums, Failure};
use self::web::{Block, FileStatus, Page, Refusal, State};
use crate::http::{Answer, Http, Method, Request};
use crate::s3::escaped;
use crate::tcp::Connect;
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, SourceError, Stamp, Tail, Unknown,
};

/// The description of the HDFS source.
pub const DESCRIPTION: Description = Description {
    name: "hdfs",
    coverage: "all blocks of a file that is not being written",
    cost: "four requests to the NameNode, two more for every 512 blocks (usually of 128 MiB), and one to a DataNode \
           for each block, which reads the CRCs that it keeps: 0.8 % of the bytes",
    permissions: "read access to the file, and a connection to the NameNode and the DataNodes; without Kerberos",
};

/// The default port of a NameNode's WebHDFS.
const PORT: u16 = 9870;

/// Limit of an answer with blocks, in bytes: 512 blocks take some 1.5 MB.
const PAGE_BODY_LEN_MAX: u64 = 16 << 20;

/// Limit of any other answer, and of an error, in bytes.
const BODY_LEN_MAX: u64 = 64 << 10;

/// The number of attempts for a file that is written to meanwhile.
const ATTEMPTS: u32 = 3;

/// The requested stripes, as long as the blocks of other sources.
const STRIPE_LEN: u64 = 4096;

/// The default number of bytes for each CRC that a DataNode keeps.
const USUAL_BYTES_PER_CRC: u64 = 512;

/// The address of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The NameNode's WebHDFS: `http://HOST:PORT/webhdfs/v1`.
    pub web: String,
    /// The file's path, from `/` on.
    pub path: String,
    /// The user name of the requests; without one, the cluster's default user for strangers.
    pub user: Option<String>,
}

impl Place {
    /// Parses `hdfs://[USER@]HOST[:PORT]/PATH`, also `webhdfs://`; the port is that of WebHDFS,
    /// mostly 9870.
    ///
    /// # Errors
    /// The defect of the address, in words.
    pub fn new(url: &str) -> std::result::Result<Self, &'static str> {
        const SHAPE: &str =
            "a file's address is hdfs://[USER@]HOST[:PORT]/PATH, with the NameNode's host and HTTP port";
        let rest = url.strip_prefix("hdfs://").or(url.strip_prefix("webhdfs://"));
        let (authority, path) = rest.and_then(|rest| rest.split_once('/')).ok_or(SHAPE)?;
        let (user, host) = match authority.split_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let is_made_of = |text: &str, others: &[u8]| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
        };
        let is_user = user.is_none_or(|user| is_made_of(user, b"._-$"));
        if !is_user || !is_made_of(host, b".-:[]_") || path.is_empty() || path.ends_with('/') {
            return Err(SHAPE);
        }
        // A server would normalize such a path to another one.
        if path
            .split('/')
            .any(|part| part.is_empty() || part == "." || part == "..")
        {
            return Err("a path must not have '.', '..' or nothing between slashes");
        }
        // The colons of an IPv6 address are in brackets.
        let has_port = host.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
        let port = match has_port {
            true => String::new(),
            false => format!(":{PORT}"),
        };
        Ok(Self {
            web: format!("http://{host}{port}/webhdfs/v1"),
            path: format!("/{path}"),
            user: user.map(str::to_owned),
        })
    }
}

/// A file, as a source.
pub struct HdfsSource<'a> {
    http: &'a dyn Http,
    tcp: &'a dyn Connect,
    place: Place,
    /// The state described last; only its bytes are read.
    described: Mutex<Option<Arc<State>>>,
    /// DataNodes that did not answer: they are asked last, because each costs a wait.
    silent: Mutex<HashSet<SocketAddr>>,
}

impl<'a> HdfsSource<'a> {
    /// The source for the file at `place`. No request is sent yet.
    #[must_use]
    pub fn new(http: &'a dyn Http, tcp: &'a dyn Connect, place: Place) -> Self {
        Self {
            http,
            tcp,
            place,
            described: Mutex::new(None),
            silent: Mutex::default(),
        }
    }

    fn get(&self, url: String, body_len_max: u64, what: &'static str) -> Result<Answer> {
        let request = Request {
            method: Method::Get,
            url,
            headers: Vec::new(),
            body_len_max,
        };
        self.http.ask(&request).map_err(SourceError::io(what))
    }

    /// Asks the NameNode.
    fn ask_name_node(&self, operation: &str, body_len_max: u64) -> Result<Answer> {
        let path = escaped(&self.place.path, true);
        let user = self.place.user.as_ref();
        let user = user.map_or(String::new(), |user| format!("&user.name={}", escaped(user, false)));
        let url = format!("{}{path}?op={operation}{user}", self.place.web);
        self.get(url, body_len_max, "reach the NameNode by WebHDFS")
    }

    fn body(&self, operation: &str, body_len_max: u64, what: &'static str) -> Result<Vec<u8>> {
        let answer = self.ask_name_node(operation, body_len_max)?;
        match answer.status {
            200 => Ok(answer.body),
            _ => Err(refusal(what, &answer)),
        }
    }

    fn page(&self, start: u64, len_bytes: u64) -> Result<Option<Page>> {
        let operation = format!("GET_BLOCK_LOCATIONS&offset={start}&length={len_bytes}");
        let body = self.body(&operation, PAGE_BODY_LEN_MAX, "list the file's blocks")?;
        unless_open(Page::parse(&body))
    }

    /// The file with all of its blocks; `None` if it is being written.
    fn state(&self) -> Result<Option<State>> {
        let body = self.body("GETFILESTATUS", BODY_LEN_MAX, "describe the file")?;
        let Some(status) = unless_open(FileStatus::parse(&body))? else {
            return Ok(None);
        };
        let page_len = status.page_len();
        let mut state = State::new(status);
        // An empty page is requested, too: the file may be open.
        loop {
            let Some(page) = self.page(state.end(), page_len)? else {
                return Ok(None);
            };
            match unless_open(state.push(page))? {
                Some(true) => {}
                _ => return Err(SourceError::ChangedMeanwhile),
            }
            if state.end() >= state.len_bytes() {
                return Ok(Some(state));
            }
        }
    }

    fn begin(&self) -> Result<Passage<'_, 'a>> {
        let state = Arc::new(self.state()?.ok_or(SourceError::NotHere(
            "the file is being written; take a snapshot of it, wait until it is closed, or read it instead",
        ))?);
        let mut stripes = Stripes::of(&state.blocks, USUAL_BYTES_PER_CRC);
        let (mut kind, mut first) = (Kind::Crc32c, None);
        if let Some(block) = state.blocks.first() {
            let mut reported = self.sums_of(&state, block, stripes.len_bytes)?;
            let other = match reported {
                BlockAnswer::PerCrc(bytes_per_crc) => Some(bytes_per_crc),
                // A first block that is shorter than a stripe has its CRC in any case; the next
                // ones may not have one.
                BlockAnswer::Sums { bytes_per_crc, .. } if state.blocks.len() > 1 => {
                    (!stripes.len_bytes.is_multiple_of(bytes_per_crc)).then_some(bytes_per_crc)
                }
                _ => None,
            };
            if let Some(bytes_per_crc) = other {
                stripes = Stripes::of(&state.blocks, bytes_per_crc);
                reported = self.sums_of(&state, block, stripes.len_bytes)?;
            }
            match reported {
                BlockAnswer::Sums { kind: its, sums, .. } => (kind, first) = (its, Some(sums)),
                BlockAnswer::PerCrc(_) => return Err(SourceError::Malformed("checksums of two lengths for one block")),
                BlockAnswer::Nothing => {
                    return Err(SourceError::NotHere("the cluster keeps no checksums of this file"));
                }
            }
        }
        let layout = Layout {
            kind,
            salt: Vec::new(),
            // No CRC covers more than 4 GiB: see `Stripes`.
            block_len: u32::try_from(stripes.len_bytes).unwrap_or(u32::MAX),
            tail: Tail::AsIs,
        };
        Ok(Passage {
            source: self,
            digest: state.digest(),
            state,
            layout,
            stripes,
            next: 0,
            first,
            ends: Vec::new(),
            sums: Vec::new(),
        })
    }

    /// The DataNodes' checksums of a block; the first sensible answer counts.
    fn sums_of(&self, state: &State, block: &Block, stripe_len: u64) -> Result<BlockAnswer> {
        let mut replicas = block.replicas.clone();
        replicas.sort_by_key(|address| self.silent.lock().contains(address));
        let (mut last, mut closed) = (None, None);
        for address in replicas {
            let reported = self
                .ask_data_node(address, block, Some(stripe_len))
                .and_then(|reported| reported.into_crcs(block.len_bytes, stripe_len));
            match reported {
                Ok((kind, sums, bytes_per_crc)) => {
                    return Ok(BlockAnswer::Sums {
                        kind,
                        sums,
                        bytes_per_crc,
                    });
                }
                Err(Failure::Closed) => closed = Some(address),
                Err(Failure::Io(_)) => {
                    self.silent.lock().insert(address);
                }
                Err(_) => {}
            }
            last = reported.err().map(|failure| (address, failure));
        }
        // They may have been asked for a state that is gone.
        if self.state()?.is_none_or(|now| now.digest() != state.digest()) {
            return Err(SourceError::ChangedMeanwhile);
        }
        // Or for stripes that do not fit their CRCs; then they return nothing either.
        if let Some(address) = closed
            && let Ok(reported) = self.ask_data_node(address, block, None)
        {
            let bytes_per_crc = reported.bytes_per_crc;
            match reported.kind {
                None => return Ok(BlockAnswer::Nothing),
                Some(_)
                    if (1..=u64::from(u32::MAX)).contains(&bytes_per_crc)
                        && !stripe_len.is_multiple_of(bytes_per_crc) =>
                {
                    return Ok(BlockAnswer::PerCrc(bytes_per_crc));
                }
                Some(_) => {}
            }
        }
        Err(match last {
            Some((address, failure)) => failed(address, block, failure),
            None => SourceError::Missing("no DataNode has one of the file's blocks at present; start one that has it"),
        })
    }

    fn ask_data_node(
        &self,
        address: SocketAddr,
        block: &Block,
        stripe_len: Option<u64>,
    ) -> std::result::Result<BlockSums, Failure> {
        let stream = self.tcp.connect(address).map_err(Failure::Io)?;
        transfer::ask(stream, &block.name, block.len_bytes, stripe_len)
    }

    /// The bytes of a range of the described file. The caller must check whether they are of the
    /// described state.
    fn open(&self, range: ByteRange) -> Result<Vec<u8>> {
        const WHAT: &str = "send the file's bytes";
        let operation = format!("OPEN&offset={}&length={}", range.start(), range.len_bytes());
        // An error message may be longer than the requested bytes.
        let body_len_max = range.len_bytes().max(BODY_LEN_MAX);
        let mut answer = self.ask_name_node(&operation, body_len_max)?;
        if answer.status == 307 {
            let location = answer.header("location").unwrap_or_default();
            if location.starts_with("https://") {
                return Err(SourceError::NotHere(
                    "the file's bytes are available only over TLS, which this program does not support for HDFS",
                ));
            }
            let is_url = location.starts_with("http://")
                && location.len() <= 16 << 10
                && location.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_url {
                return Err(SourceError::Malformed(
                    "a redirection to something other than an address",
                ));
            }
            answer = self.get(
                location.to_owned(),
                body_len_max,
                "reach the DataNode that has the file's bytes",
            )?;
        }
        match answer.status {
            200 if answer.body.len() as u64 == range.len_bytes() => Ok(answer.body),
            200 => Err(SourceError::io("read the file")(io::ErrorKind::UnexpectedEof.into())),
            _ => Err(refusal(WHAT, &answer)),
        }
    }

    /// Whether the blocks of these bytes are still the described ones, and the file is not open for
    /// writing.
    fn is_still(&self, state: &State, range: ByteRange) -> Result<bool> {
        let described = state.blocks_of(range.start(), range.end());
        let (Some(first), Some(last)) = (described.first(), described.last()) else {
            return Ok(false);
        };
        let Some(page) = self.page(first.start, last.end() - first.start)? else {
            return Ok(false);
        };
        if page.len_bytes != state.len_bytes() {
            return Ok(false);
        }
        // The page may have more blocks than were requested.
        Ok(unless_open(page.into_blocks(first.start))?.is_some_and(|now| {
            now.len() >= described.len() && described.iter().zip(&now).all(|(block, now)| block.is_same(now))
        }))
    }
}

/// The DataNodes' answer about a block.
enum BlockAnswer {
    /// The CRCs of its stripes, little-endian, and the number of bytes that each of the combined
    /// CRCs covers.
    Sums {
        kind: Kind,
        sums: Vec<u8>,
        bytes_per_crc: u64,
    },
    /// CRCs of the given number of bytes each, which cannot be combined to the requested stripes.
    PerCrc(u64),
    /// The DataNode keeps no CRCs.
    Nothing,
}

/// The stripes for which CRCs are requested. They are counted from the beginning of each of HDFS's
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stripes {
    len_bytes: u64,
    /// Whether all of them begin at multiples of their length in the file.
    are_even: bool,
}

impl Stripes {
    /// The longest even ones up to [`STRIPE_LEN`], or else the longest ones. They consist of whole
    /// CRCs.
    fn of(blocks: &[Block], bytes_per_crc: u64) -> Self {
        let common = blocks
            .iter()
            .fold(0, |common, block| greatest_divisor(common, block.start));
        let doublings = (STRIPE_LEN / bytes_per_crc).checked_ilog2().unwrap_or(0);
        let mut lens = (0..=doublings).rev().map(|doublings| bytes_per_crc << doublings);
        let longest = bytes_per_crc << doublings;
        match lens.find(|len_bytes| common.is_multiple_of(*len_bytes)) {
            Some(len_bytes) => Self {
                len_bytes,
                are_even: true,
            },
            None => Self {
                len_bytes: longest,
                are_even: false,
            },
        }
    }
}

/// The greatest common divisor; all numbers divide 0.
fn greatest_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Returns `None` for a file that is being written.
fn unless_open<T>(parsed: std::result::Result<T, Refusal>) -> Result<Option<T>> {
    match parsed {
        Ok(parsed) => Ok(Some(parsed)),
        Err(Refusal::IsOpen) => Ok(None),
        Err(Refusal::NotHere(why)) => Err(SourceError::NotHere(why)),
        Err(Refusal::Malformed(what)) => Err(SourceError::Malformed(what)),
    }
}

/// The error that a WebHDFS answer stands for if it does not answer the request.
fn refusal(what: &'static str, answer: &Answer) -> SourceError {
    let status = answer.status;
    let exception = web::exception(&answer.body);
    match (status, exception.as_deref()) {
        (401, _) | (403, Some("SecurityException" | "InvalidToken")) => SourceError::Denied(
            "the cluster requires Kerberos or a token, which this program does not support; read the file with HDFS's \
             own tools",
        ),
        (403, Some("AccessControlException")) => {
            SourceError::Denied("this user may not read the file; name another one: hdfs://USER@HOST:PORT/PATH")
        }
        (403, Some("StandbyException")) => {
            SourceError::Denied("this NameNode is a standby, which answers no requests; use the active one")
        }
        (404, Some("FileNotFoundException")) => SourceError::Missing("no such file in HDFS"),
        (404 | 400 | 405, None) => SourceError::NotHere(
            "the server does not support WebHDFS; use the NameNode's HTTP port, usually 9870, not its RPC port",
        ),
        (status, exception) => SourceError::Server {
            what,
            status,
            code: exception.unwrap_or_default().to_owned(),
        },
    }
}

/// The error if the last DataNode that was asked has no answer.
fn failed(address: SocketAddr, block: &Block, failure: Failure) -> SourceError {
    let (why, source) = match failure {
        Failure::Io(error) => ("it does not answer".to_owned(), Some(error)),
        Failure::Closed => (
            "it closed the connection without an answer: it lost the block or its checksums, or requires SASL or \
             encryption, which this program does not support"
                .to_owned(),
            None,
        ),
        Failure::WantsToken => (
            "it requires a block token, which this program does not have".to_owned(),
            None,
        ),
        Failure::Refused(status) => (format!("it refused with status {status} of its protocol"), None),
        Failure::Malformed(what) => (what.to_owned(), None),
    };
    SourceError::Elsewhere {
        server: format!("the DataNode {address}"),
        what: block.name.to_string(),
        why,
        source,
    }
}

/// A single pass over a file's blocks.
struct Passage<'s, 'a> {
    source: &'s HdfsSource<'a>,
    state: Arc<State>,
    digest: [u8; 32],
    layout: Layout,
    stripes: Stripes,
    /// The index of the next block.
    next: usize,
    /// The checksums of the first block, which determine the layout.
    first: Option<Vec<u8>>,
    /// The ends and checksums of the current block.
    ends: Vec<u64>,
    sums: Vec<u8>,
}

impl Extraction for Passage<'_, '_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.state.len_bytes()
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let Some(block) = self.state.blocks.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let range = ByteRange::new(block.start, block.end());
        let range = range.ok_or(SourceError::Malformed("an empty block"))?;
        let stripe_len = self.stripes.len_bytes;
        let reported = match self.first.take() {
            Some(sums) => Some(sums),
            None => match self.source.sums_of(&self.state, block, stripe_len)? {
                BlockAnswer::Sums { kind, sums, .. } => (kind == self.layout.kind).then_some(sums),
                BlockAnswer::PerCrc(_) | BlockAnswer::Nothing => None,
            },
        };
        self.sums = match reported {
            Some(sums) => sums,
            // Another writer wrote this block, with another kind of checksum.
            None => {
                let why = Unknown::NotSummed;
                return Ok(Some(Run::Unknown { range, why }));
            }
        };
        let sums = &self.sums[..];
        if self.stripes.are_even {
            return Ok(Some(Run::Sums { range, sums }));
        }
        let inner = (1..range.len_bytes().div_ceil(stripe_len)).map(|stripe| range.start() + stripe * stripe_len);
        self.ends = inner.chain([range.end()]).collect();
        let ends = &self.ends[..];
        Ok(Some(Run::Chunks { range, ends, sums }))
    }

    fn finish(self) -> Result<Stamp> {
        match self.source.state()? {
            Some(now) if now.digest() == self.digest => {}
            _ => return Err(SourceError::ChangedMeanwhile),
        }
        let stamp = Stamp::elsewhere(self.state.len_bytes(), self.digest);
        *self.source.described.lock() = Some(self.state);
        Ok(stamp)
    }
}

impl Source for HdfsSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || self.begin())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let described = self.described.lock().clone();
        let state = match described {
            Some(state) => state,
            None => {
                let state = self.state()?.ok_or(SourceError::ChangedMeanwhile)?;
                self.described.lock().insert(Arc::new(state)).clone()
            }
        };
        let end = state.len_bytes().min(offset.saturating_add(buffer.len() as u64));
        let Some(range) = ByteRange::new(offset, end) else {
            return Ok(0);
        };
        let read = self.open(range);
        // Even if reading failed, because a removed file cannot be read.
        match self.is_still(&state, range) {
            Ok(true) => {}
            Ok(false) | Err(SourceError::Missing(_)) => return Err(SourceError::ChangedMeanwhile),
            Err(error) => return Err(read.err().unwrap_or(error)),
        }
        let bytes = read?;
        match buffer.get_mut(..bytes.len()) {
            Some(taken) => {
                taken.copy_from_slice(&bytes);
                Ok(taken.len())
            }
            None => Err(SourceError::io("read the file")(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        match self.state() {
            Ok(now) => Ok(now.is_some_and(|now| now.digest() == stamp.witness)),
            Err(SourceError::Missing(_) | SourceError::NotHere(_) | SourceError::ChangedMeanwhile) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
