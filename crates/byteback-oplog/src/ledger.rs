//! The coverage ledger: since when the tree has been tracked without a gap, and every gap with its cause.

use serde::{Deserialize, Serialize};

use crate::codec::{Malformed, Reader, put_signed, put_varint, seal};
use crate::error::{LogError, Result};

const VERSION: u8 = 1;

/// Something that began or broke coverage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LedgerEvent {
    /// The log was created: nothing before is known.
    Created,
    /// From here on every change passes the gate.
    TrackingBegan,
    /// Tracking ended in good order.
    TrackingEnded,
    /// The daemon or the machine stopped while tracking: files that were open for change are reported whole.
    Interrupted {
        /// How many files that were.
        open_files: u64,
    },
    /// The tree differed from the record: changes were made that never passed the gate.
    UntrackedChanges {
        /// Files whose content must be taken as changed.
        files: u64,
        /// Names added, removed or given to another file.
        names: u64,
    },
}

/// One line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// When it was noticed, nanoseconds since 1970.
    pub at_ns: i64,
    /// What it was.
    #[serde(flatten)]
    pub event: LedgerEvent,
}

impl LedgerEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (code, first, second) = match self.event {
            LedgerEvent::Created => (0, 0, 0),
            LedgerEvent::TrackingBegan => (1, 0, 0),
            LedgerEvent::TrackingEnded => (2, 0, 0),
            LedgerEvent::Interrupted { open_files } => (3, open_files, 0),
            LedgerEvent::UntrackedChanges { files, names } => (4, files, names),
        };
        let mut out = vec![VERSION, code];
        put_signed(&mut out, self.at_ns);
        put_varint(&mut out, first);
        put_varint(&mut out, second);
        seal(out)
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
        let (first, second) = (reader.varint()?, reader.varint()?);
        reader.end()?;
        let event = match code {
            0 => LedgerEvent::Created,
            1 => LedgerEvent::TrackingBegan,
            2 => LedgerEvent::TrackingEnded,
            3 => LedgerEvent::Interrupted { open_files: first },
            4 => LedgerEvent::UntrackedChanges {
                files: first,
                names: second,
            },
            _ => return Err(Malformed),
        };
        Ok(Self { at_ns, event })
    }
}
