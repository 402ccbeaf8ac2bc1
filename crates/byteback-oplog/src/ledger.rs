//! The coverage ledger: since when the tree has been tracked without a gap, and every gap with its
//! cause.

use serde::{Deserialize, Serialize};

use crate::codec::{Malformed, Reader, put_bytes, put_signed, put_varint, seal};
use crate::error::{LogError, Result};
use crate::marks::DropReason;

const VERSION: u8 = 1;
/// The code of the first event with two texts; those below have two numbers.
const FIRST_WITH_TEXTS: u8 = 5;

/// Something that began or broke coverage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LedgerEvent {
    /// The log was created: nothing before is known.
    Created,
    /// From here on every change passes the gate.
    TrackingBegan,
    /// Tracking ended in good order.
    TrackingEnded,
    /// The daemon or the machine stopped while tracking: files that were open for change are
    /// reported whole.
    Interrupted {
        /// The number of those files.
        open_files: u64,
    },
    /// The tree differed from the record: changes were made that never passed the gate.
    UntrackedChanges {
        /// Files whose content must be taken as changed.
        files: u64,
        /// Names added, removed or given to another file.
        names: u64,
    },
    /// A consumer was dropped: what it had not saved is kept for it no longer.
    ConsumerDropped {
        /// The consumer's name.
        consumer: String,
        /// Why it was dropped.
        reason: DropReason,
    },
    /// The previous log was damaged or taken away: all its knowledge is lost, and this log began
    /// anew.
    LogLost {
        /// The damage that was found.
        reason: String,
        /// The name of the file that holds the old log, in the state folder; empty if nothing was
        /// left.
        set_aside: String,
    },
}

/// An entry of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// When the event was noticed, nanoseconds since 1970.
    pub at_ns: i64,
    /// The event.
    #[serde(flatten)]
    pub event: LedgerEvent,
}

impl LedgerEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let numbers = |code, first, second| {
            let mut out = vec![VERSION, code];
            put_signed(&mut out, self.at_ns);
            put_varint(&mut out, first);
            put_varint(&mut out, second);
            seal(out)
        };
        let texts = |code, first: &str, second: &str| {
            let mut out = vec![VERSION, code];
            put_signed(&mut out, self.at_ns);
            put_bytes(&mut out, first.as_bytes());
            put_bytes(&mut out, second.as_bytes());
            seal(out)
        };
        match &self.event {
            LedgerEvent::Created => numbers(0, 0, 0),
            LedgerEvent::TrackingBegan => numbers(1, 0, 0),
            LedgerEvent::TrackingEnded => numbers(2, 0, 0),
            LedgerEvent::Interrupted { open_files } => numbers(3, *open_files, 0),
            LedgerEvent::UntrackedChanges { files, names } => numbers(4, *files, *names),
            LedgerEvent::ConsumerDropped { consumer, reason } => match reason {
                DropReason::Ordered => texts(5, consumer, "ordered"),
                DropReason::Expired => texts(5, consumer, "expired"),
            },
            LedgerEvent::LogLost { reason, set_aside } => texts(6, reason, set_aside),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decode_inner(bytes).map_err(|Malformed| LogError::Damaged {
            what: "coverage ledger",
        })
    }

    fn decode_inner(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.byte()? != VERSION {
            return Err(Malformed);
        }
        let code = reader.byte()?;
        let at_ns = reader.signed()?;
        let event = match code < FIRST_WITH_TEXTS {
            true => numbers(code, reader.varint()?, reader.varint()?)?,
            false => texts(code, text(reader.bytes()?)?, text(reader.bytes()?)?)?,
        };
        reader.end()?;
        Ok(Self { at_ns, event })
    }
}

fn numbers(code: u8, first: u64, second: u64) -> Result<LedgerEvent, Malformed> {
    Ok(match code {
        0 => LedgerEvent::Created,
        1 => LedgerEvent::TrackingBegan,
        2 => LedgerEvent::TrackingEnded,
        3 => LedgerEvent::Interrupted { open_files: first },
        4 => LedgerEvent::UntrackedChanges {
            files: first,
            names: second,
        },
        _ => return Err(Malformed),
    })
}

fn texts(code: u8, first: String, second: String) -> Result<LedgerEvent, Malformed> {
    Ok(match (code, second.as_str()) {
        (5, "ordered") => LedgerEvent::ConsumerDropped {
            consumer: first,
            reason: DropReason::Ordered,
        },
        (5, "expired") => LedgerEvent::ConsumerDropped {
            consumer: first,
            reason: DropReason::Expired,
        },
        (6, _) => LedgerEvent::LogLost {
            reason: first,
            set_aside: second,
        },
        _ => return Err(Malformed),
    })
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed)
}
