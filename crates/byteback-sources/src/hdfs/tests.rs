//! A cluster in memory, whose files, NameNode and DataNodes are changed and spoiled in every
//! conceivable way: the answers about a file are true of its bytes, or an error, or the damage is
//! found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read, Write};

use byteback_host::random::SplitMix64;

use super::transfer::{parse, put_bytes, question};
use super::*;
use crate::tcp::Stream;
use byteback_checksums::source::{Kind, VerifyError, verify};

#[derive(Clone)]
struct Stored {
    id: u64,
    generation: u64,
    bytes: Vec<u8>,
    /// The function in HDFS's numbering: none, CRC-32, CRC-32C.
    crc_type: u8,
    bytes_per_crc: usize,
}

#[derive(Clone, Default)]
struct File {
    blocks: Vec<Stored>,
    is_open: bool,
    version: u64,
    block_len: usize,
    /// Bytes of the last block beyond the file's end: the file is in a snapshot, and was appended
    /// to since.
    hidden_len: usize,
}

fn crc(crc_type: u8, bytes: &[u8]) -> u32 {
    match crc_type {
        1 => crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32,
        _ => crc32c::crc32c(bytes),
    }
}

impl File {
    fn content(&self) -> Vec<u8> {
        let mut content: Vec<u8> = self.blocks.iter().flat_map(|block| block.bytes.clone()).collect();
        content.truncate(content.len() - self.hidden_len);
        content
    }

    fn of(lens: &[usize]) -> Self {
        let mut file = Self {
            block_len: lens.iter().copied().max().unwrap_or(4096),
            ..Self::default()
        };
        for (number, len) in lens.iter().enumerate() {
            file.push(vec![(number % 250) as u8 + 1; *len], 2, 512);
        }
        file
    }

    fn push(&mut self, bytes: Vec<u8>, crc_type: u8, bytes_per_crc: usize) {
        let id = 1000 + self.blocks.len() as u64;
        self.blocks.push(Stored {
            id,
            generation: 7 + id,
            bytes,
            crc_type,
            bytes_per_crc,
        });
    }

    fn drawn(random: &mut SplitMix64) -> Self {
        let mut file = Self::default();
        let bytes_per_crc = [512, 512, 1000, 8192][random.below(4) as usize];
        let whole = bytes_per_crc * (1 + random.below(24) as usize);
        file.block_len = whole;
        let are_uneven = random.below(4) == 0;
        let count = random.below(6);
        for index in 0..count {
            let is_short = are_uneven || index + 1 == count;
            let len = match is_short {
                true => 1 + random.below(whole as u64) as usize,
                false => whole,
            };
            let (crc_type, bytes_per_crc) = match random.below(12) {
                0 => (1, bytes_per_crc),
                1 => (2, 4096 * 3),
                2 if index > 0 => (0, bytes_per_crc),
                _ => (2, bytes_per_crc),
            };
            let bytes = (0..len).map(|_| random.next_u64() as u8).collect();
            file.push(bytes, crc_type, bytes_per_crc);
        }
        if let Some(last) = file.blocks.last()
            && random.below(4) == 0
        {
            file.hidden_len = random.below(last.bytes.len() as u64) as usize;
        }
        file
    }

    /// Appends as HDFS does: the last block gets a new generation.
    fn append(&mut self, bytes: &[u8]) {
        self.version += 1;
        match self.blocks.last_mut() {
            Some(last) => {
                last.bytes.extend(bytes);
                last.generation += 100;
            }
            None => self.push(bytes.to_vec(), 2, 512),
        }
    }

    fn status(&self) -> String {
        format!(
            "{{\"FileStatus\":{{\"accessTime\":1,\"blockSize\":{},\"fileId\":16388,\"length\":{},\"modificationTime\":{},\"type\":\"FILE\"}}}}",
            self.block_len,
            self.content().len(),
            1_795_456_784_075 + self.version
        )
    }

    /// The blocks that contain a part of these bytes.
    fn page(&self, offset: usize, len: usize, replicas: &[SocketAddr]) -> String {
        let locations: Vec<_> = replicas
            .iter()
            .map(|address| {
                format!(
                    "{{\"hostName\":\"x\",\"ipAddr\":\"{}\",\"xferPort\":{}}}",
                    address.ip(),
                    address.port()
                )
            })
            .collect();
        let (mut start, mut blocks) = (0, Vec::new());
        for block in &self.blocks {
            if start < offset.saturating_add(len) && start + block.bytes.len() > offset {
                blocks.push(format!(
                    "{{\"block\":{{\"blockId\":{},\"blockPoolId\":\"BP-1\",\"generationStamp\":{},\"numBytes\":{}}},\"isCorrupt\":false,\"locations\":[{}],\"startOffset\":{start}}}",
                    block.id,
                    block.generation,
                    block.bytes.len(),
                    locations.join(","),
                ));
            }
            start += block.bytes.len();
        }
        format!(
            "{{\"LocatedBlocks\":{{\"fileLength\":{},\"isLastBlockComplete\":{},\"isUnderConstruction\":{},\"lastLocatedBlock\":null,\"locatedBlocks\":[{}]}}}}",
            start - self.hidden_len,
            // A NameNode says so of an empty file that is closed, too.
            !self.is_open && !self.blocks.is_empty(),
            self.is_open,
            blocks.join(",")
        )
    }
}

/// The behaviour of a DataNode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Fine,
    Gone,
    Mute,
    Closes,
    /// Answers with an MD5 only.
    ClosesToStripes,
    /// Closes the connection with the request unread.
    Resets,
    WantsToken,
    Refuses,
    /// The right number of checksums, all wrong.
    Lies,
    OneTooFew,
    /// Knows no composite CRCs.
    Old,
    CutShort,
    LongAsTheSky,
}

type Spoil = Box<dyn Fn(&Cluster, &str, &mut Answer)>;
type SpoilAnswer = Box<dyn Fn(&mut Vec<u8>)>;

struct Cluster {
    file: RefCell<File>,
    nodes: Vec<Node>,
    asked: Cell<u64>,
    connected: RefCell<Vec<SocketAddr>>,
    spoil: RefCell<Spoil>,
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8 + 1], 9866))
}

impl Cluster {
    fn of(file: File) -> Self {
        Self::with(file, &[Node::Fine])
    }

    fn with(file: File, nodes: &[Node]) -> Self {
        Self {
            file: RefCell::new(file),
            nodes: nodes.to_vec(),
            asked: Cell::new(0),
            connected: RefCell::default(),
            spoil: RefCell::new(Box::new(|_, _, _| {})),
        }
    }

    fn source(&self) -> HdfsSource<'_> {
        HdfsSource::new(self, self, Place::new("hdfs://me@127.0.0.1:9870/a b/f").unwrap())
    }

    fn count(&self, what: &str, answer: &mut Answer) {
        self.asked.set(self.asked.get() + 1);
        self.spoil.borrow()(self, what, answer);
    }
}

impl Http for Cluster {
    fn ask(&self, request: &Request) -> io::Result<Answer> {
        let file = self.file.borrow().clone();
        let mut answer = Answer {
            status: 200,
            ..Answer::default()
        };
        assert_eq!(request.method, Method::Get);
        let query = |name: &str| {
            let (_, query) = request.url.split_once('?').unwrap();
            let found = query.split('&').find_map(|part| part.strip_prefix(&format!("{name}=")));
            found.unwrap_or_default().to_owned()
        };
        let number = |name: &str| query(name).parse::<usize>().unwrap();
        let what = query("op");
        assert_eq!(query("user.name"), "me");
        let content = file.content();
        let is_name_node = request.url.starts_with("http://127.0.0.1:9870/webhdfs/v1/a%20b/f?");
        match &what[..] {
            "GETFILESTATUS" => answer.body = file.status().into_bytes(),
            "GET_BLOCK_LOCATIONS" => {
                let replicas: Vec<_> = (0..self.nodes.len()).map(address).collect();
                answer.body = file.page(number("offset"), number("length"), &replicas).into_bytes();
            }
            "OPEN" if number("offset") >= content.len() => {
                answer.status = 403;
                answer.body =
                    b"{\"RemoteException\":{\"exception\":\"IOException\",\"message\":\"Offset out of the range\"}}"
                        .to_vec();
            }
            "OPEN" if is_name_node => {
                answer.status = 307;
                let location = format!("http://10.0.0.1:9864/f?{}", request.url.split_once('?').unwrap().1);
                answer.headers.push(("Location".to_owned(), location));
            }
            "OPEN" => {
                let end = content.len().min(number("offset") + number("length"));
                answer.body = content[number("offset")..end].to_vec();
            }
            what => panic!("{what}"),
        }
        self.count(&what, &mut answer);
        assert!(answer.body.len() as u64 <= request.body_len_max);
        Ok(answer)
    }
}

/// A conversation with a DataNode: the request is written, and the answer is made when it is read.
struct Conversation {
    node: Node,
    file: File,
    question: Vec<u8>,
    answer: Option<io::Cursor<Vec<u8>>>,
}

/// The fields of a protobuf message, parsed naively.
fn fields(mut message: &[u8]) -> BTreeMap<u64, (u64, Vec<u8>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let len = message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (bytes, rest) = message.split_at(len);
        *message = rest;
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = BTreeMap::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let number = varint(&mut message);
        let value = match tag & 7 {
            0 => (number, Vec::new()),
            2 => {
                let (bytes, rest) = message.split_at(number as usize);
                message = rest;
                (0, bytes.to_vec())
            }
            other => panic!("{other}"),
        };
        fields.insert(tag >> 3, value);
    }
    fields
}

fn number(field: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![(field << 3) as u8];
    let mut rest = number;
    loop {
        let more = rest >> 7 > 0;
        bytes.push(rest as u8 & 0x7f | u8::from(more) << 7);
        rest >>= 7;
        if !more {
            return bytes;
        }
    }
}

fn message(field: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, field, value);
    bytes
}

/// The bytes with their length before them.
fn delimited(message: &[u8]) -> Vec<u8> {
    [&number(0, message.len() as u64)[1..], message].concat()
}

impl Conversation {
    /// The answer of the DataNode, in HDFS's format.
    fn reported(&self) -> Vec<u8> {
        assert_eq!(self.question[..3], [0, 28, 0x55]);
        let behind = self.question[3..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 4;
        let operation = fields(&self.question[behind..]);
        let block = fields(&fields(&operation[&1].1)[&1].1);
        let options = fields(&operation[&2].1);
        // The DataNode does not serve this pool, which only a spoiled list of blocks can name.
        if block[&1].1 != b"BP-1" {
            return Vec::new();
        }
        match self.node {
            Node::Closes => return Vec::new(),
            Node::WantsToken => return delimited(&number(1, 5)),
            Node::Refuses => return delimited(&number(1, 1)),
            Node::LongAsTheSky => return vec![0xff, 0xff, 0xff, 0xff, 0x0f, 8, 0],
            _ => {}
        }
        let stored = self
            .file
            .blocks
            .iter()
            .find(|stored| stored.id == block[&2].0 && stored.generation == block[&3].0);
        // Without the block the DataNode gives no answer.
        let Some(stored) = stored else { return Vec::new() };
        if self.node == Node::ClosesToStripes && options[&1].0 == 2 {
            return Vec::new();
        }
        let is_composite = options[&1].0 == 2 && self.node != Node::Old;
        let len = stored.bytes.len().min(block[&4].0 as usize);
        let stripe_len = match options[&2].0 as usize {
            0 => len,
            stripe_len => stripe_len.min(len),
        };
        if is_composite && (stored.crc_type == 0 || (len > stripe_len && stripe_len % stored.bytes_per_crc != 0)) {
            return Vec::new();
        }
        let mut sums: Vec<u8> = match is_composite {
            true => {
                let stripes = stored.bytes[..len].chunks(stripe_len);
                stripes
                    .flat_map(|stripe| crc(stored.crc_type, stripe).to_be_bytes())
                    .collect()
            }
            false => vec![9; 16],
        };
        match self.node {
            Node::Lies => sums.iter_mut().for_each(|byte| *byte ^= 0x55),
            Node::OneTooFew => sums.truncate(sums.len() - 4),
            _ => {}
        }
        let count = match stored.crc_type {
            0 => 0,
            _ => stored.bytes.len().div_ceil(stored.bytes_per_crc),
        };
        let mut reported = [
            number(1, stored.bytes_per_crc as u64),
            number(2, count as u64),
            message(3, &sums),
            number(4, stored.crc_type.into()),
        ]
        .concat();
        if self.node != Node::Old {
            reported.extend(message(
                5,
                &[number(1, options[&1].0), number(2, options[&2].0)].concat(),
            ));
        }
        let mut answer = delimited(&[number(1, 0), message(3, &reported)].concat());
        if self.node == Node::CutShort {
            answer.truncate(answer.len() / 2);
        }
        answer
    }
}

impl Write for Conversation {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(self.answer.is_none());
        // One byte at a time, as a network may.
        self.question.extend(&bytes[..1]);
        Ok(1)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut answer = self.reported();
        if let Some(spoil) = SPOIL_ANSWER.take() {
            spoil(&mut answer);
            SPOIL_ANSWER.set(Some(spoil));
        }
        self.answer = Some(io::Cursor::new(answer));
        Ok(())
    }
}

impl Read for Conversation {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.node == Node::Mute {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.node == Node::Resets {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let len = buffer.len().min(7);
        self.answer.as_mut().unwrap().read(&mut buffer[..len])
    }
}

thread_local! {
    /// The damage done to the answers of DataNodes; a conversation owns its data.
    static SPOIL_ANSWER: Cell<Option<SpoilAnswer>> = const { Cell::new(None) };
}

impl Connect for Cluster {
    fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        self.connected.borrow_mut().push(to);
        let file = self.file.borrow().clone();
        self.count("connect", &mut Answer::default());
        // No node has a spoiled address.
        let node = (0..self.nodes.len()).find(|number| address(*number) == to);
        let node = node.map_or(Node::Gone, |number| self.nodes[number]);
        match node {
            Node::Gone => Err(io::ErrorKind::ConnectionRefused.into()),
            node => Ok(Box::new(Conversation {
                node,
                file,
                question: Vec::new(),
                answer: None,
            })),
        }
    }
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = if std::env::var("BYTEBACK_SEED").is_ok() {
        1
    } else {
        count
    };
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

/// Files with any blocks, summed with any function.
#[test]
fn hdfs_checksums_are_true_of_any_file() {
    let (mut even, mut uneven, mut unknown) = (0, 0, 0);
    for seed in seeds(600) {
        let file = File::drawn(&mut SplitMix64::new(seed));
        let content = file.content();
        let cluster = Cluster::of(file.clone());
        let source = cluster.source();
        let reported = match source.collect() {
            Ok(reported) => reported,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(reported.stamp().len_bytes, content.len() as u64);
        let block_len = reported.layout().block_len as usize;
        let verified = verify(&source, &reported).unwrap();
        let (mut end, mut expected) = (0, 0);
        for (run, block) in reported.runs().zip(&file.blocks) {
            assert_eq!(run.range().start(), end, "a gap");
            end += block.bytes.len() as u64;
            end = end.min(content.len() as u64);
            assert_eq!(run.range().end(), end);
            let len = run.range().len_bytes() as usize;
            match run {
                Run::Sums { range, .. } => {
                    even += 1;
                    assert!(range.start().is_multiple_of(block_len as u64));
                    expected += len.div_ceil(block_len);
                }
                Run::Chunks { ends, .. } => {
                    uneven += 1;
                    expected += len.div_ceil(block_len);
                    assert_eq!(ends.last(), Some(&end));
                }
                Run::Unknown { .. } => {
                    unknown += 1;
                    let fits = block.bytes_per_crc == file.blocks[0].bytes_per_crc;
                    assert!(
                        !fits || block.crc_type != file.blocks[0].crc_type,
                        "left out for nothing"
                    );
                }
                Run::Zeros { .. } => panic!(),
            }
        }
        assert_eq!(end, content.len() as u64);
        assert_eq!(verified.blocks, expected as u64);
        // The longest stripes of whole checksums, up to 4096 bytes, at whose multiples all blocks
        // begin: as good as those of other sources, where the blocks permit.
        if let Some(first) = file.blocks.first() {
            let is_less_than_one = file.blocks.len() == 1 && content.len() <= 4096;
            let bytes_per_crc = if is_less_than_one { 512 } else { first.bytes_per_crc };
            let mut lens = vec![bytes_per_crc];
            while lens[0] * 2 <= 4096 {
                lens.insert(0, lens[0] * 2);
            }
            let is_even = |len: &&usize| {
                reported
                    .runs()
                    .all(|run| run.range().start().is_multiple_of(**len as u64))
            };
            assert_eq!(block_len, *lens.iter().find(is_even).unwrap_or(&lens[0]));
        }
        let mut bytes = vec![0; content.len() + 5];
        assert_eq!(source.read_at(0, &mut bytes).unwrap(), content.len());
        assert!(bytes[..content.len()] == content);
        let middle = content.len() / 2;
        let mut bytes = vec![0; content.len() / 3];
        assert_eq!(source.read_at(middle as u64, &mut bytes).unwrap(), bytes.len());
        assert!(bytes[..] == content[middle..middle + bytes.len()]);
        assert_eq!(source.read_at(content.len() as u64, &mut [0; 9]).unwrap(), 0);
    }
    assert!(
        std::env::var("BYTEBACK_SEED").is_ok() || (even > 200 && uneven > 50 && unknown > 20),
        "{even} {uneven} {unknown}"
    );
}

/// Answers of both kinds of servers with altered bytes, numbers and lengths: an error, or
/// verification finds that they are not true of the bytes.
#[test]
fn answers_that_are_spoiled_are_not_believed() {
    let (mut taken, mut differing) = (0, 0);
    for seed in seeds(3000) {
        let mut random = SplitMix64::new(seed);
        let cluster = Cluster::with(File::drawn(&mut random), &[Node::Fine, Node::Fine]);
        let (which, place, kind) = (random.below(5), random.next_u64(), random.below(5));
        let at = move |len: usize| (place % len.max(1) as u64) as usize;
        let of_nodes = random.below(2) == 0;
        let spoil = move |body: &mut Vec<u8>| match kind {
            0 | 1 if !body.is_empty() => {
                let at = at(body.len());
                body[at] = b"0123456789\"{,"[(place >> 32) as usize % 13];
            }
            2 if !body.is_empty() => {
                let at = at(body.len());
                body[at] ^= 1 << (place >> 40 & 7);
            }
            3 => body.truncate(at(body.len())),
            _ => {
                let rest = body.split_off(at(body.len()));
                body.extend(rest.iter().take(20));
                body.extend(&rest);
            }
        };
        if of_nodes {
            SPOIL_ANSWER.set(Some(Box::new(spoil)));
        } else {
            *cluster.spoil.borrow_mut() = Box::new(move |cluster, _, answer| {
                if cluster.asked.get() != which + 1 {
                    return;
                }
                match kind {
                    0 => answer.status = [404, 500, 401, 204, 307][at(5)],
                    _ => spoil(&mut answer.body),
                }
            });
        }
        let source = cluster.source();
        let reported = source.collect();
        // All is well again afterwards.
        *cluster.spoil.borrow_mut() = Box::new(|_, _, _| {});
        SPOIL_ANSWER.set(None);
        if let Ok(reported) = reported {
            taken += 1;
            let content = cluster.file.borrow().content();
            assert_eq!(reported.stamp().len_bytes, content.len() as u64);
            assert_eq!(
                reported.runs().map(|run| run.range().len_bytes()).sum::<u64>(),
                content.len() as u64
            );
            match verify(&source, &reported) {
                Ok(_) | Err(VerifyError::Source(SourceError::ChangedMeanwhile)) => {}
                // Checksums of DataNodes are taken as they come; the description of blocks is
                // checked.
                Err(VerifyError::Differs { .. }) => {
                    assert!(of_nodes, "a checksum of something else");
                    differing += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(
        std::env::var("BYTEBACK_SEED").is_ok() || (taken > 300 && differing > 20),
        "{taken} {differing}"
    );
}

/// At every request of a description the file is appended to, cut, or replaced by another one of
/// the same length: the result is of one of the two.
#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let changes: [fn(&mut File); 4] = [
        |file| file.append(&[9; 777]),
        // Open, and not a byte there yet.
        |file| {
            file.is_open = true;
            file.blocks.last_mut().unwrap().generation += 1;
        },
        |file| {
            file.version += 1;
            let last = file.blocks.last_mut().unwrap();
            last.bytes.truncate(3);
            last.generation += 1;
        },
        |file| {
            let lens: Vec<_> = file.blocks.iter().map(|block| block.bytes.len()).collect();
            *file = File::of(&lens);
            for block in &mut file.blocks {
                block.id += 500;
                block.bytes.reverse();
                block.bytes[0] = 77;
            }
        },
    ];
    for change in changes {
        let mut noticed = 0;
        for changed_at in 1..=8 {
            let cluster = Cluster::of(File::of(&[4096, 4096, 1000]));
            *cluster.spoil.borrow_mut() = Box::new(move |cluster, _, _| {
                if cluster.asked.get() == changed_at {
                    change(&mut cluster.file.borrow_mut());
                }
            });
            let source = cluster.source();
            let reported = match source.collect() {
                Ok(reported) => reported,
                Err(SourceError::NotHere(why)) => {
                    assert!(why.contains("being written"));
                    noticed += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            match verify(&source, &reported) {
                Ok(verified) => assert_eq!(verified.blocks, 3),
                Err(VerifyError::Source(SourceError::ChangedMeanwhile)) if changed_at > 6 => noticed += 1,
                Err(error) => panic!("{error}"),
            }
            // The result is of the present file or of the previous one, never of both.
            let is_now = reported.stamp().witness == source.state().unwrap().map_or([0; 32], |state| state.digest());
            assert_eq!(source.is_unchanged(reported.stamp()).unwrap(), is_now);
        }
        // Two requests at the beginning, three blocks, two at the end, and the eighth reads; a
        // change at the last one of a description is noticed later.
        assert!(noticed >= 1, "{noticed}");
    }
    // The file changes at every attempt, which the error says.
    let cluster = Cluster::of(File::of(&[4096, 10]));
    *cluster.spoil.borrow_mut() = Box::new(|cluster, _, _| cluster.file.borrow_mut().append(b"x"));
    assert!(matches!(cluster.source().collect(), Err(SourceError::Busy)));
}

/// Changes after the description: the checksums are void, and the successor's bytes are never
/// returned as the file's.
#[test]
fn bytes_of_another_state_are_not_given_out() {
    let cluster = Cluster::of(File::of(&[4096, 4096, 1000]));
    let source = cluster.source();
    let reported = source.collect().unwrap();
    assert!(source.is_unchanged(reported.stamp()).unwrap());
    cluster.file.borrow_mut().append(b"more");
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    for offset in [0, 8192] {
        let read = source.read_at(offset, &mut [0; 10]);
        assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
    }
    // The same length again, and another block; and while it is read.
    let cluster = Cluster::of(File::of(&[4096, 4096, 1000]));
    let source = cluster.source();
    let reported = source.collect().unwrap();
    let asked = cluster.asked.get();
    *cluster.spoil.borrow_mut() = Box::new(move |cluster, _, _| {
        if cluster.asked.get() == asked + 1 {
            let mut file = cluster.file.borrow_mut();
            file.blocks[1].id += 9;
            file.blocks[1].bytes = vec![99; 4096];
        }
    });
    let read = source.read_at(5000, &mut [0; 10]);
    assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    // Cut to less than what is asked for.
    let cluster = Cluster::of(File::of(&[4096]));
    let source = cluster.source();
    source.collect().unwrap();
    let mut file = File::of(&[100]);
    file.version = 1;
    *cluster.file.borrow_mut() = file;
    let read = source.read_at(2000, &mut [0; 10]);
    assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
}

/// The answers at the time of reading differ from before, or are incomplete: nothing proves that
/// the bytes are the described ones.
#[test]
fn bytes_count_only_if_all_their_blocks_are_told_again() {
    let read = |offset: u64, wanted: usize, spoil: fn(&str, &mut Answer)| {
        let cluster = Cluster::of(File::of(&[4096, 4096, 1000]));
        let source = cluster.source();
        source.collect().unwrap();
        *cluster.spoil.borrow_mut() = Box::new(move |_, what, answer| spoil(what, answer));
        source.read_at(offset, &mut vec![0; wanted])
    };
    assert_eq!(read(0, 9192, |_, _| {}).unwrap(), 9192);
    type Spoilt = fn(&str, &mut Answer);
    let spoilt: [(&str, Spoilt); 4] = [
        ("no block", |_, answer| {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            if let Some((before, _)) = text.split_once("\"locatedBlocks\":[") {
                answer.body = format!("{before}\"locatedBlocks\":[]}}}}").into_bytes();
            }
        }),
        ("only the first block", |_, answer| {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            if let Some((before, _)) = text.split_once(",{\"block\":") {
                answer.body = format!("{before}]}}}}").into_bytes();
            }
        }),
        ("a shorter block", |what, answer| {
            if what == "GET_BLOCK_LOCATIONS" {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                answer.body = text.replace("\"numBytes\":1000", "\"numBytes\":999").into_bytes();
            }
        }),
        ("no file", |_, answer| {
            answer.status = 404;
            answer.body = b"{\"RemoteException\":{\"exception\":\"FileNotFoundException\"}}".to_vec();
        }),
    ];
    for (what, spoil) in spoilt {
        let read = read(0, 9192, spoil);
        assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{what}: {read:?}");
    }
    // More bytes than were requested, where there is room for them.
    let read = read(9000, 500, |what, answer| {
        if what == "OPEN" && answer.status == 200 {
            answer.body.push(0);
        }
    });
    assert!(matches!(read, Err(SourceError::Io { .. })), "{read:?}");
}

#[test]
fn a_file_that_is_being_written_has_no_checksums() {
    for lens in [&[4096, 1000][..], &[]] {
        let cluster = Cluster::of(File::of(lens));
        cluster.file.borrow_mut().is_open = true;
        let said = cluster.source().collect();
        assert!(matches!(said, Err(SourceError::NotHere(why)) if why.contains("being written")));
        assert!(cluster.connected.borrow().is_empty());
        cluster.file.borrow_mut().is_open = false;
        let reported = cluster.source().collect().unwrap();
        assert_eq!(verify(&cluster.source(), &reported).unwrap().blocks, lens.len() as u64);
    }
}

/// A DataNode that is of no use, in each way, costs a request to the next one, and gives no answer.
#[test]
fn hdfs_asks_another_data_node_if_one_fails() {
    let bad = [
        Node::Gone,
        Node::Mute,
        Node::Closes,
        Node::ClosesToStripes,
        Node::Resets,
        Node::WantsToken,
        Node::Refuses,
        Node::OneTooFew,
        Node::Old,
        Node::CutShort,
        Node::LongAsTheSky,
    ];
    for node in bad {
        let cluster = Cluster::with(File::of(&[4096, 4096, 1000]), &[node, Node::Fine]);
        let source = cluster.source();
        let reported = source.collect().unwrap();
        assert_eq!(verify(&source, &reported).unwrap().blocks, 3, "{node:?}");
        // A node that does not answer at all is tried once.
        let of_first = cluster
            .connected
            .borrow()
            .iter()
            .filter(|to| **to == address(0))
            .count();
        let expected = match node {
            Node::Gone | Node::Mute | Node::CutShort => 1,
            _ => 3,
        };
        assert_eq!(of_first, expected, "{node:?}");
        // No other node is there: the error names this one and the reason.
        let cluster = Cluster::with(File::of(&[4096, 4096, 1000]), &[node]);
        let Err(error) = cluster.source().collect() else {
            panic!("{node:?} was believed");
        };
        let SourceError::Elsewhere { server, what, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(
            (&server[..], &what[..]),
            ("the DataNode 10.0.0.1:9866", "blk_1000_1007")
        );
    }
    let cluster = Cluster::with(File::of(&[4096]), &[]);
    assert!(matches!(cluster.source().collect(), Err(SourceError::Missing(_))));
    // The number of attempts is limited, because each costs a wait.
    let cluster = Cluster::with(File::of(&[4096]), &[Node::Gone; 40]);
    assert!(cluster.source().collect().is_err());
    assert_eq!(cluster.connected.borrow().len(), 16);
    // If blocks changed their state while no DataNode answered, the DataNodes are not at fault.
    let cluster = Cluster::with(File::of(&[4096]), &[Node::Gone]);
    *cluster.spoil.borrow_mut() = Box::new(|cluster, what, _| {
        if what == "connect" {
            cluster.file.borrow_mut().append(b"x");
        }
    });
    assert!(matches!(cluster.source().collect(), Err(SourceError::Busy)));
}

/// Wrong checksums of the right form are found by verification; until then they are CRCs, which
/// prove nothing.
#[test]
fn a_data_node_that_lies_is_found_out() {
    let cluster = Cluster::with(File::of(&[8192]), &[Node::Lies]);
    let source = cluster.source();
    let reported = source.collect().unwrap();
    assert!(!reported.layout().kind.is_strong());
    let said = verify(&source, &reported);
    assert!(
        matches!(
            said,
            Err(VerifyError::Differs {
                offset: 0,
                len_bytes: 4096
            })
        ),
        "{said:?}"
    );
}

/// Clusters with unusual CRCs: of more bytes, of the other kind, or none.
#[test]
fn hdfs_checksums_of_a_cluster_are_found() {
    let reported = |crc_type, bytes_per_crc, lens: &[usize]| {
        let mut file = File::of(&[]);
        lens.iter()
            .for_each(|len| file.push(vec![1; *len], crc_type, bytes_per_crc));
        let cluster = Cluster::of(file);
        let source = cluster.source();
        source.collect().map(|reported| {
            let blocks = verify(&source, &reported).unwrap().blocks;
            (reported.layout().kind, reported.layout().block_len, blocks)
        })
    };
    assert_eq!(reported(2, 512, &[8192, 5000]).unwrap(), (Kind::Crc32c, 4096, 4));
    assert_eq!(reported(1, 512, &[8192, 5000]).unwrap(), (Kind::Crc32, 4096, 4));
    assert_eq!(
        reported(2, 65_536, &[131_072, 70_000]).unwrap(),
        (Kind::Crc32c, 65_536, 4)
    );
    assert_eq!(reported(2, 1000, &[8000, 8000, 1]).unwrap(), (Kind::Crc32c, 4000, 5));
    // Blocks that are no multiples of 4096.
    assert_eq!(reported(2, 512, &[3072, 3072, 3072]).unwrap(), (Kind::Crc32c, 1024, 9));
    // A first block that is shorter than a stripe, before others.
    assert_eq!(reported(2, 1000, &[700, 9000]).unwrap(), (Kind::Crc32c, 4000, 4));
    // A single block that is shorter than a stripe does not reveal the length of its CRCs.
    assert_eq!(reported(2, 65_536, &[3000]).unwrap(), (Kind::Crc32c, 4096, 1));
    assert!(matches!(reported(0, 512, &[8192]), Err(SourceError::NotHere(_))));
}

#[test]
fn hdfs_refuses_foreign_paths_in_words() {
    let refused = |status: u16, body: &str| {
        let cluster = Cluster::of(File::of(&[10]));
        let body = body.as_bytes().to_vec();
        *cluster.spoil.borrow_mut() = Box::new(move |_, _, answer| {
            answer.status = status;
            answer.body.clone_from(&body);
        });
        cluster.source().collect().unwrap_err().to_string()
    };
    let status = |rest: &str| {
        format!("{{\"FileStatus\":{{\"fileId\":1,\"length\":10,\"modificationTime\":3,\"type\":\"FILE\"{rest}}}}}")
    };
    let exception = |name: &str| format!("{{\"RemoteException\":{{\"exception\":\"{name}\",\"message\":\"m\"}}}}");
    for (code, body, words) in [
        (200, status(",\"encBit\":true"), "encryption zone"),
        (200, status(",\"ecBit\":true"), "erasure-coded"),
        (200, status("").replace("FILE\"", "DIRECTORY\""), "a folder"),
        (200, status("").replace("FILE\"", "SYMLINK\""), "a symbolic link"),
        (
            200,
            status("").replace("FILE\"", "PIPE\""),
            "neither a file nor a folder",
        ),
        (200, status("").replace("10", "-1"), "does not describe a file"),
        (
            200,
            status("").replace("10", "1152921504606846977"),
            "a file that is too long",
        ),
        (200, String::new(), "does not describe a file"),
        (401, "<html>".to_owned(), "Kerberos"),
        (403, exception("SecurityException"), "Kerberos"),
        (403, exception("AccessControlException"), "hdfs://USER@HOST"),
        (403, exception("StandbyException"), "standby"),
        (404, exception("FileNotFoundException"), "no such file"),
        (
            404,
            "It looks like you are making an HTTP request to a Hadoop IPC port.".to_owned(),
            "9870",
        ),
        (500, exception("RetriableException"), "status 500 RetriableException"),
        (500, exception("\\u001b[31m"), "status 500 "),
    ] {
        let said = refused(code, &body);
        assert!(said.contains(words), "'{said}' for {body}");
        assert!(said.chars().all(|letter| !letter.is_control()), "{said:?}");
    }
    // Bytes that are elsewhere.
    for (location, words) in [
        ("https://10.0.0.1:9865/f", "TLS"),
        ("file:///etc/passwd", "something other than an address"),
        ("http://10.0.0.1:9864/f\r\nx: y", "something other than an address"),
        (
            &format!("http://10.0.0.1:9864/{}", "f".repeat(16 << 10)),
            "something other than an address",
        ),
        ("", "something other than an address"),
    ] {
        let location = location.to_owned();
        let cluster = Cluster::of(File::of(&[10]));
        *cluster.spoil.borrow_mut() = Box::new(move |_, what, answer| {
            if what == "OPEN" {
                answer.headers = vec![("location".to_owned(), location.clone())];
            }
        });
        let said = cluster.source().read_at(0, &mut [0; 3]).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
}

/// Each field that distinguishes two states of a file.
#[test]
fn all_that_is_told_of_a_state_is_in_its_digest() {
    let file = File::of(&[4096, 1000]);
    let (status, page) = (file.status(), file.page(0, 5096, &[address(0)]));
    let digest = |from: &str, to: &str| {
        let mut state = web::State::new(web::FileStatus::parse(status.replace(from, to).as_bytes()).unwrap());
        let page = web::Page::parse(page.replace(from, to).as_bytes()).unwrap();
        assert_eq!(state.push(page), Ok(true));
        state.digest()
    };
    let changes = [
        ("", ""),
        ("\"fileId\":16388", "\"fileId\":16389"),
        (
            "\"modificationTime\":1795456784075",
            "\"modificationTime\":1795456784076",
        ),
        ("\"blockId\":1000", "\"blockId\":2000"),
        ("\"blockPoolId\":\"BP-1\"", "\"blockPoolId\":\"BP-2\""),
        ("\"generationStamp\":1007", "\"generationStamp\":1008"),
        ("5096", "5095"),
    ];
    let digests: std::collections::BTreeSet<_> = changes.iter().map(|(from, to)| digest(from, to)).collect();
    assert_eq!(digests.len(), changes.len());
    // Not where it lies.
    assert_eq!(digest("10.0.0.1", "10.0.0.2"), digest("", ""));
}

#[test]
fn lists_of_blocks_that_make_no_sense_are_refused() {
    let refused = |from: &str, to: &str| {
        let cluster = Cluster::of(File::of(&[4096, 4096, 1000]));
        let (from, to) = (from.to_owned(), to.to_owned());
        *cluster.spoil.borrow_mut() = Box::new(move |_, what, answer| {
            if what == "GET_BLOCK_LOCATIONS" {
                let text = String::from_utf8(answer.body.clone()).unwrap();
                assert!(text.contains(&from), "{text}");
                answer.body = text.replace(&from, &to).into_bytes();
            }
        });
        let said = cluster.source().collect();
        // No request was sent.
        assert!(cluster.connected.borrow().is_empty());
        said.unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("\"startOffset\":4096", "\"startOffset\":4095", "not contiguous"),
        ("\"startOffset\":4096", "\"startOffset\":8192", "not contiguous"),
        ("\"numBytes\":1000", "\"numBytes\":0", "not contiguous"),
        (
            "\"numBytes\":1000",
            "\"numBytes\":18446744073709551615",
            "not contiguous",
        ),
        ("\"numBytes\":1000", "\"numBytes\":-1", "lists no blocks"),
        ("\"numBytes\":1000", "\"numBytes\":999", "longer than its blocks"),
        ("\"blockId\":1001", "\"blockId\":-9223372036854775792", "erasure-coded"),
        ("\"blockPoolId\":\"BP-1\"", "\"blockPoolId\":\"\"", "without a pool"),
        (
            "\"isUnderConstruction\":false",
            "\"isUnderConstruction\":true",
            "being written",
        ),
        (
            "\"isLastBlockComplete\":true",
            "\"isLastBlockComplete\":false",
            "being written",
        ),
        ("\"isLastBlockComplete\":true,", "", "lists no blocks"),
        ("\"fileLength\":9192", "\"fileLength\":9193", "keeps changing"),
        ("\"fileLength\":9192", "\"fileLength\":8192", "keeps changing"),
        ("\"ipAddr\":\"10.0.0.1\"", "\"ipAddr\":\"somewhere\"", "no DataNode has"),
        ("\"xferPort\":9866", "\"xferPort\":0", "no DataNode has"),
    ] {
        let said = refused(from, to);
        assert!(said.contains(words), "'{said}' for {to}");
    }
}

#[test]
fn long_files_are_listed_in_pages() {
    // 512 blocks a page.
    let cluster = Cluster::of(File::of(&[512; 1200]));
    let source = cluster.source();
    let reported = source.collect().unwrap();
    assert_eq!((reported.layout().block_len, reported.runs().count()), (512, 1200));
    // Status and three pages, before and after; 1200 blocks.
    assert_eq!(cluster.asked.get(), 2 * 4 + 1200);
    assert_eq!(verify(&source, &reported).unwrap().blocks, 1200);
}

#[test]
fn the_question_is_as_it_is_written() {
    let block = transfer::BlockName {
        pool: "BP-1".to_owned(),
        id: 1_073_741_829,
        generation: 1005,
    };
    let asked = question(&block, 1 << 20, Some(4096));
    let expected: &[u8] = &[
        0x00, 0x1c, 0x55, // version 28, OP_BLOCK_CHECKSUM
        0x1e, // 30 bytes
        0x0a, 0x15, 0x0a, 0x13, // header, block
        0x0a, 0x04, b'B', b'P', b'-', b'1', // pool
        0x10, 0x85, 0x80, 0x80, 0x80, 0x04, // id
        0x18, 0xed, 0x07, // generation
        0x20, 0x80, 0x80, 0x40, // length
        0x12, 0x05, 0x08, 0x02, 0x10, 0x80, 0x20, // composite, of 4096
    ];
    assert_eq!(asked, expected);
    // Without stripes: an MD5.
    assert!(question(&block, 1 << 20, None).ends_with(&[0x12, 0x04, 0x08, 0x01, 0x10, 0x00]));
}

#[test]
fn answers_of_data_nodes_that_are_none_are_refused() {
    let whole = |inner: &[u8]| [number(1, 0), message(3, inner)].concat();
    let inner = [number(1, 512), number(2, 8), message(3, &[1, 2, 3, 4]), number(4, 2)].concat();
    let options = message(5, &[number(1, 2), number(2, 4096)].concat());
    let fine = whole(&[inner.clone(), options.clone()].concat());
    let reported = parse(&fine).unwrap();
    assert_eq!(
        (reported.bytes_per_crc, reported.crc_count, reported.kind),
        (512, 8, Some(Kind::Crc32c))
    );
    assert_eq!(
        reported.clone().into_crcs(4096, 4096).unwrap(),
        (Kind::Crc32c, vec![4, 3, 2, 1], 512)
    );
    // Of another length than the block's; of other stripes.
    for (len_bytes, stripe_len) in [(4097, 4096), (8192, 4096), (4096, 512), (4096, 8192)] {
        assert!(
            reported.clone().into_crcs(len_bytes, stripe_len).is_err(),
            "{len_bytes} {stripe_len}"
        );
    }
    let bad = [
        Vec::new(),
        number(1, 0),
        number(2, 0),
        // Cut in the middle of a number, and of a length.
        vec![0x08],
        vec![0x08, 0x80],
        [number(1, 0), vec![0x1a, 5, 0]].concat(),
        // A number of more than 64 bits; a group.
        [vec![0x08], vec![0xff; 9], vec![0x7f]].concat(),
        [number(1, 0), vec![0x1b]].concat(),
        whole(&inner[..inner.len() - 2]),
        whole(&[inner[..inner.len() - 2].to_vec(), number(4, 3)].concat()),
        whole(&inner[2..]),
    ];
    for (number, answer) in bad.iter().enumerate() {
        assert!(parse(answer).is_err(), "{number}");
    }
    assert!(matches!(parse(&number(1, 5)), Err(Failure::WantsToken)));
    assert!(matches!(parse(&number(1, 3)), Err(Failure::Refused(3))));
    // Though checksums stand behind it.
    let refused = [number(1, 1), fine[2..].to_vec()].concat();
    assert!(matches!(parse(&refused), Err(Failure::Refused(1))));
    // A number of more than 64 bits, in an unused field.
    let too_long = [vec![0x48], vec![0xff; 9], vec![0x7f], fine.clone()].concat();
    assert!(matches!(parse(&too_long), Err(Failure::Malformed(_))));
    // Fields added by later versions are skipped.
    let added = [
        vec![0x31, 0, 0, 0, 0, 0, 0, 0, 0, 0x3d, 1, 2, 3, 4],
        message(9, b"x"),
        fine,
    ]
    .concat();
    assert!(parse(&added).is_ok());
    for crc_count in [0, 7] {
        let reported = BlockSums {
            crc_count,
            ..reported.clone()
        };
        assert!(
            reported.into_crcs(4096, 4096).is_err(),
            "{crc_count} CRCs of 512 make no 4096"
        );
    }
    for bytes_per_crc in [0, 1 << 32] {
        let reported = BlockSums {
            bytes_per_crc,
            ..reported.clone()
        };
        assert!(reported.into_crcs(4096, 4096).is_err(), "{bytes_per_crc}");
    }
    // A stripe that begins in the middle of what a CRC is of has none that could be made of those.
    let reported = BlockSums {
        bytes_per_crc: 3000,
        sums: vec![0; 8],
        ..reported
    };
    assert!(reported.clone().into_crcs(8192, 4096).is_err());
    let reported = BlockSums {
        bytes_per_crc: 2048,
        ..reported
    };
    assert!(reported.into_crcs(8192, 4096).is_ok());
}

#[test]
fn places_are_taken_apart() {
    let place = |url: &str| Place::new(url).map(|place| (place.web, place.path, place.user));
    for (url, web, path, user) in [
        ("hdfs://h/f", "http://h:9870/webhdfs/v1", "/f", None),
        ("webhdfs://h:1/a b/\u{e9}", "http://h:1/webhdfs/v1", "/a b/\u{e9}", None),
        (
            "hdfs://me@h.example:50070/a",
            "http://h.example:50070/webhdfs/v1",
            "/a",
            Some("me"),
        ),
        ("hdfs://[::1]/f", "http://[::1]:9870/webhdfs/v1", "/f", None),
        ("hdfs://[::1]:7/f", "http://[::1]:7/webhdfs/v1", "/f", None),
    ] {
        let expected = (web.to_owned(), path.to_owned(), user.map(str::to_owned));
        assert_eq!(place(url), Ok(expected), "{url}");
    }
    for bad in [
        "http://a/b",
        "hdfs://",
        "hdfs://a",
        "hdfs://a/",
        "hdfs:///a",
        "hdfs://a/../b",
        "hdfs://a/b//c",
        "hdfs://a/b/",
        "hdfs://@a/b",
        "hdfs://x&y@a/b",
        "hdfs://a?b/c",
        "swebhdfs://a/b",
    ] {
        assert!(Place::new(bad).is_err(), "{bad}");
    }
}
