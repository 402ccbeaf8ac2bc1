//! The memory that a log takes while programs work (Fig. 14b).
//!
//! Two figures: the largest memory of the daemon's log at the moments of sampling, and the memory
//! that it would take if nothing were ever written to its database, which the paper measures as its
//! worst case: the extents of every file that changed since the mark set before the work.

use byteback_control::{ChangesCursor, Client, ContentChange, CutInfo, CutRequest, Outcome, TreeService};

use super::test_bed::Ready;
use crate::SuiteError;

const CONSUMER: &str = "bench";

/// Periodic samples of a daemon's log.
pub(crate) struct LogMemory {
    client: Client,
    peak_bytes: u64,
}

/// The results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The largest heap of extents at any sample, bytes.
    pub(crate) peak_bytes: u64,
    /// The heap of all extents since the mark, bytes.
    pub(crate) retained_bytes: u64,
    /// The number of these extents.
    pub(crate) extents: u64,
    /// Length of the database's file, most of which is preallocated or free.
    pub(crate) database_bytes: u64,
}

impl LogMemory {
    /// Sets a mark, so that changes logged from now on are a layer of their own.
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

    /// Takes a sample.
    pub(crate) fn look(&mut self) -> Result<(), SuiteError> {
        self.peak_bytes = self.peak_bytes.max(self.client.status()?.usage.extent_bytes);
        Ok(())
    }

    /// Takes a last sample and returns the results.
    pub(crate) fn end(mut self) -> Result<Seen, SuiteError> {
        self.look()?;
        let cut = take_cut(&self.client, true)?;
        let (mut retained_bytes, mut extents) = (0, 0);
        let mut cursor = Some(ChangesCursor::default());
        while let Some(at) = cursor {
            let page = self.client.changes(cut.cut, &at)?;
            for change in page.nodes {
                let ContentChange::Ranges(set) = change.content else {
                    continue;
                };
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
