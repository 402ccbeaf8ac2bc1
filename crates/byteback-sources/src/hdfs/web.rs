//! Parsers for WebHDFS answers about a file: JSON in, the blocks of one state of the file out.
//! Nothing is trusted: every number is checked, and impossible input is an error.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::transfer::BlockName;

/// Limit of a plausible file length, in bytes.
const FILE_LEN_MAX: u64 = 1 << 60;

/// Limit of a block, in bytes: 32 MiB of checksums of 4 KiB.
const BLOCK_LEN_MAX: u64 = 32 << 30;

/// The shortest block length that any cluster allows, in bytes: that of one checksum. The default
/// minimum is 1 MiB, but it can be changed.
const BLOCK_LEN_MIN: u64 = 512;

/// Limit of the number of blocks of a file; a NameNode's default limit is 10,000.
const BLOCK_COUNT_MAX: usize = 1 << 20;

/// The reason why a file has no checksums here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The path leads to another kind of file.
    NotHere(&'static str),
    /// The file is being written.
    IsOpen,
    /// The answer is impossible.
    Malformed(&'static str),
}

#[derive(Deserialize)]
struct StatusAnswer {
    #[serde(rename = "FileStatus")]
    status: FileStatus,
}

/// A file as the NameNode reports it, without its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct FileStatus {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "length")]
    pub(crate) len_bytes: u64,
    #[serde(rename = "fileId")]
    file_id: u64,
    #[serde(rename = "modificationTime")]
    mtime_ms: u64,
    /// The length of the file's new blocks.
    #[serde(rename = "blockSize", default)]
    block_len: u64,
    #[serde(rename = "encBit", default)]
    is_encrypted: bool,
    #[serde(rename = "ecBit", default)]
    is_erasure_coded: bool,
}

impl FileStatus {
    /// Parses the answer to `GETFILESTATUS`.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let answer: StatusAnswer = serde_json::from_slice(body)
            .map_err(|_| Refusal::Malformed("a NameNode's answer that does not describe a file"))?;
        let status = answer.status;
        match &status.kind[..] {
            "FILE" => {}
            "DIRECTORY" => return Err(Refusal::NotHere("a folder")),
            "SYMLINK" => return Err(Refusal::NotHere("a symbolic link")),
            _ => return Err(Refusal::Malformed("something that is neither a file nor a folder")),
        }
        if status.is_encrypted {
            return Err(Refusal::NotHere(
                "the file is in an encryption zone: its checksums are those of encrypted bytes",
            ));
        }
        if status.is_erasure_coded {
            return Err(Refusal::NotHere(
                "the file is erasure-coded: this program supports checksums of replicated blocks only",
            ));
        }
        if status.len_bytes > FILE_LEN_MAX {
            return Err(Refusal::Malformed("a file that is too long"));
        }
        Ok(status)
    }

    /// The number of bytes whose blocks are requested at once, so that an answer stays small.
    pub(crate) fn page_len(&self) -> u64 {
        self.block_len.clamp(BLOCK_LEN_MIN, BLOCK_LEN_MAX) * 512
    }
}

#[derive(Deserialize)]
struct BlocksAnswer {
    #[serde(rename = "LocatedBlocks")]
    blocks: Page,
}

/// A contiguous part of a file's blocks.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    #[serde(rename = "fileLength")]
    pub(crate) len_bytes: u64,
    #[serde(rename = "isUnderConstruction")]
    is_open: bool,
    #[serde(rename = "isLastBlockComplete")]
    is_complete: bool,
    #[serde(rename = "locatedBlocks")]
    blocks: Vec<LocatedBlock>,
}

#[derive(Debug, Deserialize)]
struct LocatedBlock {
    block: ExtendedBlock,
    #[serde(rename = "startOffset")]
    start: u64,
    locations: Vec<Location>,
}

#[derive(Debug, Deserialize)]
struct ExtendedBlock {
    #[serde(rename = "blockPoolId")]
    pool: String,
    /// Negative numbers belong to erasure-coded files.
    #[serde(rename = "blockId")]
    id: i64,
    #[serde(rename = "generationStamp")]
    generation: u64,
    #[serde(rename = "numBytes")]
    len_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Location {
    #[serde(rename = "ipAddr", default)]
    ip: String,
    #[serde(rename = "xferPort", default)]
    transfer_port: u16,
}

/// A block of a file.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) name: BlockName,
    /// The block's first byte in the file.
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
    /// The addresses of the DataNodes that have it.
    pub(crate) replicas: Vec<SocketAddr>,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len_bytes
    }

    /// Whether it is the same state of the same block at the same place, regardless of replicas.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.start == other.start && self.len_bytes == other.len_bytes
    }
}

impl Page {
    /// Parses the answer to `GET_BLOCK_LOCATIONS`.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let answer: BlocksAnswer =
            serde_json::from_slice(body).map_err(|_| Refusal::Malformed("a NameNode's answer that lists no blocks"))?;
        let page = answer.blocks;
        // The checksums of a block that is being written are momentary. A file without blocks has
        // no complete last one.
        let has_last = page.len_bytes > 0 || !page.blocks.is_empty();
        match page.is_open || (has_last && !page.is_complete) {
            true => Err(Refusal::IsOpen),
            false => Ok(page),
        }
    }

    /// The blocks from `start` on, at which one of them must begin; earlier ones are dropped.
    pub(crate) fn into_blocks(self, start: u64) -> Result<Vec<Block>, Refusal> {
        let mut end = start;
        let mut blocks = Vec::new();
        for block in self.blocks.into_iter().skip_while(|block| block.start < start) {
            let whole_len = block.block.len_bytes;
            // A file in a snapshot ends in the middle of its last block if the file itself was
            // appended to since.
            let len_bytes = whole_len.min(self.len_bytes.saturating_sub(block.start));
            let id = u64::try_from(block.block.id).map_err(|_| Refusal::NotHere("the file is erasure-coded"))?;
            if block.start != end || len_bytes == 0 || whole_len > BLOCK_LEN_MAX {
                return Err(Refusal::Malformed("blocks that are not contiguous"));
            }
            let pool = block.block.pool;
            if pool.is_empty() || pool.len() > 200 {
                return Err(Refusal::Malformed("a block without a pool"));
            }
            let replicas = block.locations.iter().filter_map(|location| {
                let ip: IpAddr = location.ip.parse().ok()?;
                (location.transfer_port > 0).then(|| SocketAddr::new(ip, location.transfer_port))
            });
            // No block has more; each unreachable one costs a wait.
            let replicas = replicas.take(16).collect();
            let generation = block.block.generation;
            let name = BlockName { pool, id, generation };
            let block = Block {
                name,
                start: end,
                len_bytes,
                replicas,
            };
            end = block.end();
            blocks.push(block);
        }
        Ok(blocks)
    }
}

/// One state of a file. No other state has the same blocks, because a change of a block makes a new
/// generation of it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    status: FileStatus,
    pub(crate) blocks: Vec<Block>,
}

impl State {
    /// A state without blocks yet.
    pub(crate) fn new(status: FileStatus) -> Self {
        let blocks = Vec::new();
        Self { status, blocks }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.status.len_bytes
    }

    /// The end of the known blocks.
    pub(crate) fn end(&self) -> u64 {
        self.blocks.last().map_or(0, Block::end)
    }

    /// Adds the blocks of a page that was requested from [`Self::end`] on. Returns false if the
    /// page is of another state.
    pub(crate) fn push(&mut self, page: Page) -> Result<bool, Refusal> {
        if page.len_bytes != self.len_bytes() {
            return Ok(false);
        }
        let blocks = page.into_blocks(self.end())?;
        if self.blocks.len() + blocks.len() > BLOCK_COUNT_MAX {
            return Err(Refusal::NotHere("the file has more blocks than this program supports"));
        }
        if blocks.is_empty() && self.end() < self.len_bytes() {
            return Err(Refusal::Malformed("a file that is longer than its blocks"));
        }
        self.blocks.extend(blocks);
        Ok(true)
    }

    /// A digest of everything that distinguishes this state of the file from another one, without
    /// the places of replicas.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut digest = blake3::Hasher::new();
        let mut number = |number: u64| {
            digest.update(&number.to_le_bytes());
        };
        number(self.status.file_id);
        number(self.status.len_bytes);
        number(self.status.mtime_ms);
        for block in &self.blocks {
            for each in [block.start, block.len_bytes, block.name.id, block.name.generation] {
                number(each);
            }
            number(block.name.pool.len() as u64);
            block.name.pool.bytes().for_each(|byte| number(u64::from(byte)));
        }
        *digest.finalize().as_bytes()
    }

    /// The blocks that contain these bytes.
    pub(crate) fn blocks_of(&self, start: u64, end: u64) -> &[Block] {
        let first = self.blocks.partition_point(|block| block.end() <= start);
        let behind = self.blocks.partition_point(|block| block.start < end);
        self.blocks.get(first..behind).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct ExceptionAnswer {
    #[serde(rename = "RemoteException")]
    exception: RemoteException,
}

#[derive(Deserialize)]
struct RemoteException {
    exception: String,
}

/// The name of the exception in an answer; `None` if it is not one of WebHDFS.
pub(crate) fn exception(body: &[u8]) -> Option<String> {
    let answer: ExceptionAnswer = serde_json::from_slice(body).ok()?;
    let name = answer.exception.exception;
    let is_name = name.len() <= 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then_some(name)
}
