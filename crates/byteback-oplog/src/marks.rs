//! The marks of named consumers: how far each has saved the tree (SolFS section 3.2.2,
//! backup-driven versioning).
//!
//! A *mark* is the first epoch that a consumer has not saved: `changes(since mark)` is what it
//! needs next. A cut that is being saved is *pending*: it holds the layers like a mark, and becomes
//! the mark when the consumer says that its backup was acknowledged. A consumer that dies in
//! between finds its pending cut here, with the number of the batch it had sent, and can ask its
//! server whether that batch arrived.
//!
//! A *mark of a file* is a mark that holds for one node alone: programs that back up file by file
//! have one for each (the paper's version per file and app). A consumer may have either kind or
//! both.
//!
//! A consumer that is *dropped* leaves its state behind as a tombstone, so that it can be told why
//! it gets everything if it returns.

use crate::codec::{Malformed, Reader, put_bytes, put_signed, put_varint, seal};
use crate::error::{LogError, Result};
use crate::ids::Epoch;

const VERSION: u8 = 1;
const FILE_MARK_VERSION: u8 = 1;

/// A cut whose backup was not acknowledged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCut {
    /// The epoch that becomes the mark when the backup is acknowledged.
    pub epoch: Epoch,
    /// The consumer's number for the batch that carries this backup; 0 before it has one.
    pub batch: u64,
}

/// Why a consumer is no consumer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// A user gave the order.
    Ordered,
    /// The consumer was silent for too long.
    Expired,
}

/// The time and reason of a consumer's drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Dropped {
    /// When, nanoseconds since 1970.
    pub at_ns: i64,
    /// Why.
    pub reason: DropReason,
}

/// The state of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerState {
    /// The first epoch that it has not saved; `None` before its first backup.
    pub mark: Option<Epoch>,
    /// A backup that was begun and neither acknowledged nor given up.
    pub pending: Option<PendingCut>,
    /// When a mark of it, of the tree or of a file, last moved, nanoseconds since 1970; 0: never.
    pub saved_at_ns: i64,
    /// The consumer's own memory of its last backup, for instance where on which server it lies.
    pub note: Vec<u8>,
    /// When it last did anything, nanoseconds since 1970: from then on its silence counts.
    pub heard_at_ns: i64,
    /// How many files it has marks of.
    pub file_marks: u64,
    /// Set if the consumer was dropped and has not saved anything since.
    pub dropped: Option<Dropped>,
}

impl ConsumerState {
    /// The epochs that separate the layers of all nodes for this consumer.
    pub(crate) fn borders(&self) -> impl Iterator<Item = Epoch> + use<> {
        [self.mark, self.pending.map(|pending| pending.epoch)]
            .into_iter()
            .flatten()
    }

    /// Whether it holds nothing and only tells that it was dropped.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.dropped.is_some() && self.mark.is_none() && self.pending.is_none() && self.file_marks == 0
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.mark.map_or(0, |epoch| epoch.0));
        put_varint(&mut out, self.pending.map_or(0, |pending| pending.epoch.0));
        put_varint(&mut out, self.pending.map_or(0, |pending| pending.batch));
        put_signed(&mut out, self.saved_at_ns);
        put_bytes(&mut out, &self.note);
        put_signed(&mut out, self.heard_at_ns);
        put_varint(&mut out, self.file_marks);
        out.push(match self.dropped.map(|dropped| dropped.reason) {
            None => 0,
            Some(DropReason::Ordered) => 1,
            Some(DropReason::Expired) => 2,
        });
        put_signed(&mut out, self.dropped.map_or(0, |dropped| dropped.at_ns));
        seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decode_inner(bytes).map_err(|Malformed| LogError::Damaged { what: "mark" })
    }

    fn decode_inner(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.byte()? != VERSION {
            return Err(Malformed);
        }
        let mark = epoch(reader.varint()?);
        let pending = epoch(reader.varint()?);
        let batch = reader.varint()?;
        let saved_at_ns = reader.signed()?;
        let note = reader.bytes()?.to_vec();
        let heard_at_ns = reader.signed()?;
        let file_marks = reader.varint()?;
        let reason = match reader.byte()? {
            0 => None,
            1 => Some(DropReason::Ordered),
            2 => Some(DropReason::Expired),
            _ => return Err(Malformed),
        };
        let at_ns = reader.signed()?;
        reader.end()?;
        Ok(Self {
            mark,
            pending: pending.map(|epoch| PendingCut { epoch, batch }),
            saved_at_ns,
            note,
            heard_at_ns,
            file_marks,
            dropped: reason.map(|reason| Dropped { at_ns, reason }),
        })
    }
}

/// The mark that one consumer has of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMark(pub(crate) Epoch);

impl FileMark {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FILE_MARK_VERSION];
        put_varint(&mut out, self.0.0);
        seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let decode = || {
            let mut reader = Reader::sealed(bytes)?;
            if reader.byte()? != FILE_MARK_VERSION {
                return Err(Malformed);
            }
            let mark = epoch(reader.varint()?).ok_or(Malformed)?;
            reader.end()?;
            Ok(Self(mark))
        };
        decode().map_err(|Malformed| LogError::Damaged { what: "mark of a file" })
    }
}

/// 0 stands for none.
fn epoch(number: u64) -> Option<Epoch> {
    (number != 0).then_some(Epoch(number))
}
