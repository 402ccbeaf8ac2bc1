//! The history of the names: for each place in the tree, the node it stood for before each change.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use byteback_model::NodeId;

use crate::error::NotKept;

/// How a name changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameHow {
    /// A new file, directory or link.
    Created,
    /// The name was removed.
    Removed,
    /// The node was moved away, to another name.
    MovedAway,
    /// A node was moved here from another name, onto nothing or in place of the node that was here.
    MovedHere,
    /// The name was exchanged with another.
    Exchanged,
}

impl NameHow {
    const ALL: [Self; 5] = [
        Self::Created,
        Self::Removed,
        Self::MovedAway,
        Self::MovedHere,
        Self::Exchanged,
    ];

    pub(crate) fn code(self) -> u8 {
        let place = Self::ALL.iter().position(|other| *other == self).unwrap_or_default();
        u8::try_from(place).unwrap_or_default() + 1
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// A change of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEvent {
    /// When, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The kind of change.
    pub how: NameHow,
    /// The node that had the name before; `None` if there was none.
    pub before: Option<NodeId>,
    /// The node that has had the name since; `None` if there is none.
    pub after: Option<NodeId>,
}

#[derive(Debug, Default)]
struct OneName {
    events: Vec<NameEvent>,
    barrier: Option<(i64, NotKept)>,
}

#[derive(Debug, Default)]
pub(crate) struct NameHistory {
    names: HashMap<(NodeId, OsString), OneName>,
}

impl NameHistory {
    pub(crate) fn add(&mut self, parent: NodeId, name: &OsStr, event: NameEvent) {
        self.names
            .entry((parent, name.to_owned()))
            .or_default()
            .events
            .push(event);
    }

    pub(crate) fn forget(&mut self, parent: NodeId, name: &OsStr, now_ns: i64, why: NotKept) {
        let one = self.names.entry((parent, name.to_owned())).or_default();
        one.events.clear();
        one.barrier = Some((now_ns, why));
    }

    pub(crate) fn events(&self, parent: NodeId, name: &OsStr) -> &[NameEvent] {
        self.names
            .get(&(parent, name.to_owned()))
            .map_or(&[], |one| &one.events)
    }

    pub(crate) fn barrier(&self, parent: NodeId, name: &OsStr) -> Option<(i64, NotKept)> {
        self.names.get(&(parent, name.to_owned()))?.barrier
    }

    /// Drops the changes up to `horizon_ns`, which cannot be asked for any more.
    pub(crate) fn drop_up_to(&mut self, horizon_ns: i64) {
        self.names.retain(|_, one| {
            one.events.retain(|event| event.at_ns > horizon_ns);
            one.barrier = one.barrier.filter(|(at_ns, _)| *at_ns > horizon_ns);
            !one.events.is_empty() || one.barrier.is_some()
        });
    }

    pub(crate) fn clear(&mut self) {
        self.names.clear();
    }
}
