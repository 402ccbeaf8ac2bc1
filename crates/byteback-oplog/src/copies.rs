//! The files from which programs copied others: a copy inside the tree (`copy_file_range`, as `cp`
//! uses it) says what the new file equals, so that a backup can send it as a copy.
//!
//! A guess, in memory alone and bounded: after a restart, or for more files than that, a copy costs
//! its bytes. Out of scope: which ranges were copied; the content is compared and proven where it
//! is sent.

use std::collections::VecDeque;

use byteback_host::tree::Identity;
use byteback_model::NodeId;
use foldhash::HashMap;
use parking_lot::Mutex;

use crate::error::Result;
use crate::log::Log;

/// Shorter pieces say nothing about a file.
const COPIED_LEN_MIN: usize = 16 * 1024;

/// Most files of which the source is remembered; the oldest are forgotten first.
const SOURCES_MAX: usize = if cfg!(test) { 4 } else { 1 << 16 };

/// Files and their sources; see the module.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<Sources>);

#[derive(Debug, Default)]
struct Sources {
    of: HashMap<NodeId, NodeId>,
    /// The files, in the order in which they were first copied to.
    order: VecDeque<NodeId>,
}

impl Copies {
    fn note(&self, source: NodeId, copy: NodeId) {
        let mut sources = self.0.lock();
        if sources.of.insert(copy, source).is_some() {
            return;
        }
        sources.order.push_back(copy);
        if sources.order.len() > SOURCES_MAX
            && let Some(oldest) = sources.order.pop_front()
        {
            sources.of.remove(&oldest);
        }
    }

    fn source_of(&self, copy: NodeId) -> Option<NodeId> {
        self.0.lock().of.get(&copy).copied()
    }
}

impl Log {
    /// Notes that a program copied `len_bytes` from one file to another.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn copied(&self, from: &Identity, to: &Identity, len_bytes: usize) -> Result<()> {
        if len_bytes < COPIED_LEN_MIN {
            return Ok(());
        }
        if let (Some(source), Some(copy)) = (self.node_of(from)?, self.node_of(to)?)
            && source != copy
        {
            self.copies.note(source, copy);
        }
        Ok(())
    }

    /// The file from which a program copied this one last, as far as that is remembered.
    #[must_use]
    pub fn copied_from(&self, copy: NodeId) -> Option<NodeId> {
        self.copies.source_of(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_remember_the_last_source_of_the_newest_files() {
        let copies = Copies::default();
        for copy in 1..=4 {
            copies.note(NodeId(100), NodeId(copy));
        }
        copies.note(NodeId(200), NodeId(2));
        assert_eq!(copies.source_of(NodeId(1)), Some(NodeId(100)));
        assert_eq!(copies.source_of(NodeId(2)), Some(NodeId(200)));
        copies.note(NodeId(100), NodeId(5));
        assert_eq!(copies.source_of(NodeId(1)), None);
        let known = (2..=5).filter(|copy| copies.source_of(NodeId(*copy)).is_some());
        assert_eq!(known.count(), 4);
        assert_eq!(copies.0.lock().of.len(), 4);
    }
}
