//! Who has saved what: named consumers and their marks (SolFS section 3.2.2, backup-driven versioning).
//!
//! A *mark* is the first epoch that a consumer has not saved: `changes(since mark)` is what it needs next. A cut that is
//! being saved is *pending*: it holds the layers like a mark, and becomes the mark when the consumer says that its
//! backup was acknowledged. A consumer that dies in between finds its pending cut here, with the number of the batch it
//! had sent, and can ask its server whether that batch arrived.

use crate::codec::{Malformed, Reader, put_bytes, put_signed, put_varint, seal};
use crate::error::{LogError, Result};
use crate::ids::Epoch;

const VERSION: u8 = 1;

/// A cut whose backup was not acknowledged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCut {
    /// What becomes the mark when the backup is acknowledged.
    pub epoch: Epoch,
    /// The consumer's number for the batch that carries this backup; 0 before it has one.
    pub batch: u64,
}

/// What is known of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerState {
    /// The first epoch that it has not saved; `None` before its first backup.
    pub mark: Option<Epoch>,
    /// A backup that was begun and neither acknowledged nor given up.
    pub pending: Option<PendingCut>,
    /// When the mark last moved, nanoseconds since 1970.
    pub saved_at_ns: i64,
    /// The consumer's own memory of its last backup, for instance where on which server it lies.
    pub note: Vec<u8>,
}

impl ConsumerState {
    /// The epochs that separate layers for this consumer.
    pub(crate) fn borders(&self) -> impl Iterator<Item = Epoch> + use<> {
        [self.mark, self.pending.map(|pending| pending.epoch)]
            .into_iter()
            .flatten()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.mark.map_or(0, |epoch| epoch.0));
        put_varint(&mut out, self.pending.map_or(0, |pending| pending.epoch.0));
        put_varint(&mut out, self.pending.map_or(0, |pending| pending.batch));
        put_signed(&mut out, self.saved_at_ns);
        put_bytes(&mut out, &self.note);
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
        let epoch = |number| (number != 0).then_some(Epoch(number));
        let mark = epoch(reader.varint()?);
        let pending = epoch(reader.varint()?);
        let batch = reader.varint()?;
        let saved_at_ns = reader.signed()?;
        let note = reader.bytes()?.to_vec();
        reader.end()?;
        Ok(Self {
            mark,
            pending: pending.map(|epoch| PendingCut { epoch, batch }),
            saved_at_ns,
            note,
        })
    }
}
