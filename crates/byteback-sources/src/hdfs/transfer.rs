//! The only request to a DataNode: the checksums of a block (`OP_BLOCK_CHECKSUM` of the
//! DataTransferProtocol, version 28).
//!
//! Messages are protobuf with a handful of fields, so both directions are written by hand. Answers
//! are not trusted: lengths are bounded before anything is reserved, and an answer that does not
//! fit the block is an error.

use std::io::{self, Read};

use crate::tcp::Stream;
use byteback_checksums::source::Kind;

/// Version of the protocol (2 bytes), and the operation.
const HEADER: [u8; 3] = [0, 28, 0x55];

/// Limit of the bytes around the checksums in an answer, including an error message.
const ANSWER_REST_LEN_MAX: u64 = 64 << 10;

/// Functions of the stored CRCs that can be requested: values of `BlockChecksumTypeProto`.
const MD5_OF_CRCS: u64 = 1;
const COMPOSITE_CRC: u64 = 2;

/// HDFS's name of one state of one block. Changing the block makes a new generation of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockName {
    pub(crate) pool: String,
    pub(crate) id: u64,
    pub(crate) generation: u64,
}

impl std::fmt::Display for BlockName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "blk_{}_{}", self.id, self.generation)
    }
}

/// A DataNode's checksums of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockSums {
    /// The number of bytes that each CRC of the DataNode covers.
    pub(crate) bytes_per_crc: u64,
    /// The number of CRCs that it keeps for this block.
    pub(crate) crc_count: u64,
    /// Their function; `None` if HDFS is configured to keep none.
    pub(crate) kind: Option<Kind>,
    /// The length of the stripes that the checksums are of, in bytes; `None` for an MD5 of all
    /// CRCs.
    pub(crate) stripe_len: Option<u64>,
    /// The checksums as received: CRCs are big-endian.
    pub(crate) sums: Vec<u8>,
}

/// The reason why a DataNode gave no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection failed.
    Io(io::Error),
    /// The DataNode closed the connection without an answer, which is how it reports a bad request.
    Closed,
    /// The DataNode requires a token from the NameNode.
    WantsToken,
    /// The DataNode refused, with this status.
    Refused(u64),
    /// The answer makes no sense.
    Malformed(&'static str),
}

/// Requests the CRC of each stripe of `stripe_len` bytes of a block of `len_bytes`, or without a
/// stripe an MD5 of all CRCs, whose only use is the data around it.
pub(crate) fn ask(
    mut stream: impl Stream,
    block: &BlockName,
    len_bytes: u64,
    stripe_len: Option<u64>,
) -> Result<BlockSums, Failure> {
    stream
        .write_all(&question(block, len_bytes, stripe_len))
        .and_then(|()| stream.flush())
        .map_err(Failure::Io)?;
    let sums_len_max = stripe_len.map_or(0, |stripe_len| sums_len(len_bytes, stripe_len));
    let answer = read_answer(&mut stream, sums_len_max.saturating_add(ANSWER_REST_LEN_MAX))?;
    parse(&answer)
}

/// The length of the CRCs of a block's stripes, in bytes.
pub(crate) fn sums_len(len_bytes: u64, stripe_len: u64) -> u64 {
    len_bytes.div_ceil(stripe_len.max(1)).saturating_mul(4)
}

fn read_answer(stream: &mut impl Read, len_max: u64) -> Result<Vec<u8>, Failure> {
    let mut len = 0_u64;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && shift == 0 => return Err(Failure::Closed),
            // A peer that closes with our request unread resets the connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && shift == 0 => return Err(Failure::Closed),
            Err(error) => return Err(Failure::Io(error)),
        }
        len |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            if len > len_max {
                return Err(Failure::Malformed("an answer that is too long"));
            }
            let mut answer = Vec::new();
            stream.take(len).read_to_end(&mut answer).map_err(Failure::Io)?;
            return match answer.len() as u64 == len {
                true => Ok(answer),
                false => Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())),
            };
        }
    }
    Err(Failure::Malformed("an answer without a length"))
}

/// Encodes the request: header, length, and `OpBlockChecksumProto`.
pub(crate) fn question(block: &BlockName, len_bytes: u64, stripe_len: Option<u64>) -> Vec<u8> {
    let mut name = Vec::new();
    put_bytes(&mut name, 1, block.pool.as_bytes());
    put_number(&mut name, 2, block.id);
    put_number(&mut name, 3, block.generation);
    put_number(&mut name, 4, len_bytes);
    let mut base = Vec::new();
    put_bytes(&mut base, 1, &name);
    let mut options = Vec::new();
    put_number(&mut options, 1, stripe_len.map_or(MD5_OF_CRCS, |_| COMPOSITE_CRC));
    put_number(&mut options, 2, stripe_len.unwrap_or_default());
    let mut operation = Vec::new();
    put_bytes(&mut operation, 1, &base);
    put_bytes(&mut operation, 2, &options);
    let mut question = HEADER.to_vec();
    put_varint(&mut question, operation.len() as u64);
    question.extend(operation);
    question
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_number(bytes: &mut Vec<u8>, field: u64, number: u64) {
    put_varint(bytes, field << 3);
    put_varint(bytes, number);
}

pub(crate) fn put_bytes(bytes: &mut Vec<u8>, field: u64, value: &[u8]) {
    put_varint(bytes, field << 3 | 2);
    put_varint(bytes, value.len() as u64);
    bytes.extend(value);
}

/// An iterator over the fields of a message.
struct Fields<'a>(&'a [u8]);

#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A field of a fixed length, as none of the requested fields has.
    Other,
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Other)?,
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Field::Other)?,
            // Groups, which are obsolete.
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self
            .field()
            .ok_or(Failure::Malformed("an answer that is not a message"));
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Parses `BlockOpResponseProto`.
pub(crate) fn parse(answer: &[u8]) -> Result<BlockSums, Failure> {
    let (mut status, mut reported) = (None, None);
    for field in Fields(answer) {
        match field? {
            (1, Field::Number(number)) => status = Some(number),
            (3, Field::Bytes(bytes)) => reported = Some(bytes),
            _ => {}
        }
    }
    match status {
        Some(0) => {}
        Some(5) => return Err(Failure::WantsToken),
        Some(status) => return Err(Failure::Refused(status)),
        None => return Err(Failure::Malformed("an answer without a status")),
    }
    reported.map_or(Err(Failure::Malformed("an answer without checksums")), parse_sums)
}

/// Parses `OpBlockChecksumResponseProto`.
fn parse_sums(bytes: &[u8]) -> Result<BlockSums, Failure> {
    let (mut bytes_per_crc, mut crc_count, mut sums, mut kind, mut options) = (None, None, None, None, None);
    for field in Fields(bytes) {
        match field? {
            (1, Field::Number(number)) => bytes_per_crc = Some(number),
            (2, Field::Number(number)) => crc_count = Some(number),
            (3, Field::Bytes(bytes)) => sums = Some(bytes),
            (4, Field::Number(number)) => kind = Some(number),
            (5, Field::Bytes(bytes)) => options = Some(bytes),
            _ => {}
        }
    }
    let (mut wanted, mut stripe_len) = (MD5_OF_CRCS, 0);
    for field in Fields(options.unwrap_or_default()) {
        match field? {
            (1, Field::Number(number)) => wanted = number,
            (2, Field::Number(number)) => stripe_len = number,
            _ => {}
        }
    }
    let missing = Failure::Malformed("an answer without a required field");
    let (Some(bytes_per_crc), Some(crc_count), Some(sums)) = (bytes_per_crc, crc_count, sums) else {
        return Err(missing);
    };
    Ok(BlockSums {
        bytes_per_crc,
        crc_count,
        kind: match kind {
            Some(0) => None,
            Some(1) => Some(Kind::Crc32),
            Some(2) => Some(Kind::Crc32c),
            Some(_) => return Err(Failure::Malformed("checksums of an unknown kind")),
            None => return Err(missing),
        },
        stripe_len: (wanted == COMPOSITE_CRC).then_some(stripe_len),
        sums: sums.to_vec(),
    })
}

impl BlockSums {
    /// Converts them to little-endian CRCs of the stripes of a block of `len_bytes`, if they are
    /// that. Also returns their kind, and the number of bytes that each of the combined CRCs
    /// covers.
    pub(crate) fn into_crcs(mut self, len_bytes: u64, stripe_len: u64) -> Result<(Kind, Vec<u8>, u64), Failure> {
        let kind = self
            .kind
            .ok_or(Failure::Malformed("checksums of a block that has none"))?;
        match self.stripe_len {
            Some(reported) if reported == stripe_len => {}
            Some(_) => return Err(Failure::Malformed("checksums of other stripes than requested")),
            None => {
                return Err(Failure::Malformed(
                    "it reports one MD5 and no CRCs, as Hadoop before 3.1.1 does",
                ));
            }
        }
        if self.bytes_per_crc == 0 || self.bytes_per_crc > u64::from(u32::MAX) {
            return Err(Failure::Malformed("checksums of an impossible number of bytes"));
        }
        if self.crc_count < len_bytes.div_ceil(self.bytes_per_crc) {
            return Err(Failure::Malformed("fewer checksums than the block needs"));
        }
        // A block that is shorter than a stripe has one CRC in any case.
        if len_bytes > stripe_len && !stripe_len.is_multiple_of(self.bytes_per_crc) {
            return Err(Failure::Malformed("stripes that begin inside the bytes of a checksum"));
        }
        if self.sums.len() as u64 != sums_len(len_bytes, stripe_len) {
            return Err(Failure::Malformed("a list of checksums that does not fit the block"));
        }
        self.sums.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        Ok((kind, self.sums, self.bytes_per_crc))
    }
}
