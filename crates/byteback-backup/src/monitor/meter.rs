//! Progress of an operation as a share of the total that it announced.
//!
//! Each node counts with the bytes foreseen for it, whatever becomes of it: holes, bytes that the
//! other side has already and failed ones are done when the node is, and bytes read twice count
//! once. So the work done never exceeds the total, and reaches it in the end.

use std::sync::{Mutex, MutexGuard, PoisonError};

use byteback_model::ByteString;

use super::{Event, Monitor};

/// Reports progress to a monitor; see the module. Before a total is announced, all events are
/// passed on as they are.
pub(crate) struct Meter<'a> {
    monitor: &'a dyn Monitor,
    left: Mutex<Left>,
}

/// The rest of the work.
#[derive(Default)]
struct Left {
    /// Files and other nodes; `None`: unknown.
    nodes: Option<u64>,
    /// Bytes of all nodes; `None`: unknown.
    bytes: Option<u64>,
    /// Bytes of the node being worked on.
    node_bytes: u64,
}

impl Left {
    /// Counts bytes as done; returns how many of them were foreseen.
    fn take(&mut self, bytes: u64) -> u64 {
        let Some(left) = &mut self.bytes else { return bytes };
        let counted = bytes.min(self.node_bytes).min(*left);
        *left -= counted;
        self.node_bytes -= counted;
        counted
    }

    /// Whether one more node counts.
    fn take_node(&mut self) -> bool {
        match &mut self.nodes {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

impl<'a> Meter<'a> {
    pub(crate) fn new(monitor: &'a dyn Monitor) -> Self {
        Self {
            monitor,
            left: Mutex::default(),
        }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the total. Where the bytes are not known, nodes alone are the measure.
    pub(crate) fn foresee(&self, nodes: u64, bytes: Option<u64>) {
        *self.left() = Left {
            nodes: Some(nodes),
            bytes,
            node_bytes: 0,
        };
        self.monitor.event(Event::Totals {
            files: nodes,
            bytes: bytes.unwrap_or_default(),
        });
    }

    /// Begins a node for which `bytes` were foreseen.
    pub(crate) fn begin_node(&self, bytes: u64) {
        self.left().node_bytes = bytes;
    }

    /// Ends the node, one way or another.
    pub(crate) fn end_node(&self, path: Option<&ByteString>) {
        let (rest, counts) = {
            let mut left = self.left();
            let rest = left.bytes.map_or(0, |_| left.node_bytes);
            (left.take(rest), left.take_node())
        };
        self.skip(rest);
        if counts {
            self.monitor.event(Event::FileDone { path });
        }
    }

    /// Ends the work, including foreseen nodes and bytes that did not come.
    pub(crate) fn end(&self) {
        let left = std::mem::take(&mut *self.left());
        self.skip(left.bytes.unwrap_or_default());
        for _ in 0..left.nodes.unwrap_or_default() {
            self.monitor.event(Event::FileDone { path: None });
        }
    }

    fn skip(&self, bytes: u64) {
        if bytes > 0 {
            self.monitor.event(Event::BytesSkipped(bytes));
        }
    }
}

impl Monitor for Meter<'_> {
    fn event(&self, event: Event<'_>) {
        let counted = match event {
            Event::BytesRead(bytes) => Event::BytesRead(self.left().take(bytes)),
            Event::BytesSkipped(bytes) => Event::BytesSkipped(self.left().take(bytes)),
            event => event,
        };
        self.monitor.event(counted);
    }

    fn is_cancelled(&self) -> bool {
        self.monitor.is_cancelled()
    }
}

#[cfg(test)]
mod tests;
