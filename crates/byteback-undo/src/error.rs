//! Why something cannot be brought back, and what else can go wrong.

use std::io;

use thiserror::Error;

/// Why nothing is known before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotKept {
    /// The moment lies before the window.
    TooOld,
    /// The old bytes were given up for newer ones: the budget was used up.
    OverBudget,
    /// Too much was changed at once for a copy.
    TooLarge,
    /// The file lived for less than a quantum.
    ShortLived,
    /// The old bytes could not be read.
    Unreadable,
    /// The old bytes could not be written: the disk with the state folder is full or fails.
    NotWritten,
    /// The file or the name may have changed while not watched: the folder was not mounted, or
    /// the daemon or the machine stopped before the change was certain.
    Gap,
    /// The records were damaged or incomplete and had to be dropped.
    Damaged,
    /// The file came into being then.
    Born,
    /// The clock was set back: times do not tell any more what was before what.
    ClockSetBack,
}

impl NotKept {
    pub(crate) const ALL: [Self; 10] = [
        Self::TooOld,
        Self::OverBudget,
        Self::TooLarge,
        Self::ShortLived,
        Self::Unreadable,
        Self::NotWritten,
        Self::Gap,
        Self::Damaged,
        Self::Born,
        Self::ClockSetBack,
    ];

    /// The reason in words that follow "because".
    #[must_use]
    pub fn because(self) -> &'static str {
        match self {
            Self::TooOld => "it is older than the undo window",
            Self::OverBudget => "it was dropped for newer changes when the undo budget was used up",
            Self::TooLarge => "the change was too large to be kept",
            Self::ShortLived => "files that live for only a few seconds are not kept",
            Self::Unreadable => "the old bytes could not be read",
            Self::NotWritten => "the old bytes could not be written to the state folder",
            Self::Gap => "the folder was not watched all the time since then, and this may have changed meanwhile",
            Self::Damaged => "the undo journal was damaged or incomplete",
            Self::Born => "the file did not exist before",
            Self::ClockSetBack => "the clock was set back since then",
        }
    }

    pub(crate) fn code(self) -> u8 {
        let place = Self::ALL.iter().position(|other| *other == self).unwrap_or_default();
        u8::try_from(place).unwrap_or_default() + 1
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// An error of the journal, or the answer that something cannot be brought back.
#[derive(Debug, Error)]
pub enum UndoError {
    /// Nothing is known of it at that time.
    #[error("cannot restore that moment: {}", .why.because())]
    NotKept {
        /// Why.
        why: NotKept,
        /// The earliest time that can be asked for, in nanoseconds since 1970.
        since_ns: i64,
    },
    /// There was no file of this name.
    #[error("no such file at that time")]
    NoFile,
    /// The bytes that were kept are not what was written.
    #[error("the old bytes that were kept are damaged; choose another time")]
    Damaged,
    /// The journal or the file cannot be read.
    #[error("cannot {operation}: {source}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

pub(crate) fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> UndoError {
    move |source| UndoError::Io { operation, source }
}
