//! The memory that a log takes while programs work (Fig. 14b).
//!
//! Two figures: the most that the daemon's log held at the moments when somebody looked, and what
//! it would hold if nothing were ever written to its database, as the paper measures its worst
//! case: the extents of every file that was changed since the mark that was made before the work.

use byteback_control::{ChangesCursor, Client, ContentChange, CutInfo, CutRequest, Outcome, TreeService};
use byteback_extents::{ByteRange, ExtentSet};

use super::stand::Ready;
use crate::SuiteError;

const CONSUMER: &str = "bench";

/// A look at a daemon's log from time to time.
pub(crate) struct LogMemory {
    client: Client,
    peak_bytes: u64,
}

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The most extents' heap at any look, bytes.
    pub(crate) peak_bytes: u64,
    /// The heap of all extents since the mark, bytes.
    pub(crate) retained_bytes: u64,
    /// The number of these extents.
    pub(crate) extents: u64,
    /// Length of the database's file, of which most is preallocated or free.
    pub(crate) database_bytes: u64,
}

impl LogMemory {
    /// Makes a mark, so that what is logged from now on is a layer of its own.
    pub(crate) fn begin(ready: &Ready) -> Result<Self, SuiteError> {
        let client = Client::connect(&ready.socket()?)?;
        let cut = take_cut(&client, false)?;
        client.finish(
            cut.cut,
            &Outcome::Saved {
                note: Vec::new(),
                unsaved: Vec::new(),
            },
        )?;
        Ok(Self { client, peak_bytes: 0 })
    }

    /// Looks.
    pub(crate) fn look(&mut self) -> Result<(), SuiteError> {
        self.peak_bytes = self.peak_bytes.max(self.client.status()?.usage.extent_bytes);
        Ok(())
    }

    /// What was seen in all.
    pub(crate) fn end(mut self) -> Result<Seen, SuiteError> {
        self.look()?;
        let cut = take_cut(&self.client, true)?;
        let (mut retained_bytes, mut extents) = (0, 0);
        let mut cursor = Some(ChangesCursor::default());
        while let Some(at) = cursor {
            let page = self.client.changes(cut.cut, &at)?;
            for change in page.nodes {
                let ContentChange::Ranges(ranges) = change.content else {
                    continue;
                };
                let ranges = ranges
                    .into_iter()
                    .filter_map(|(offset, len)| ByteRange::from_offset_len(offset, len));
                let set: ExtentSet = ranges.collect();
                retained_bytes += set.heap_bytes() as u64;
                extents += set.len() as u64;
            }
            cursor = page.next;
        }
        self.client.finish(cut.cut, &Outcome::Abandoned)?;
        let usage = self.client.status()?.usage;
        Ok(Seen {
            peak_bytes: self.peak_bytes,
            retained_bytes,
            extents,
            database_bytes: usage.database_bytes,
        })
    }
}

fn take_cut(client: &Client, look_only: bool) -> Result<CutInfo, SuiteError> {
    let request = CutRequest {
        look_only,
        ..CutRequest::of(CONSUMER)
    };
    Ok(client.cut(&request)?)
}
