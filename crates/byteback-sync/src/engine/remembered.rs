//! The record of the engine's directory, and the names of nodes at the server that follow from it.

use byteback_host::clock::Clock;
use byteback_model::{FileId, NodeId, Seq};
use byteback_oplog::TreeId;

use super::{Engine, EngineError, anew};
use crate::standing::Standing;
use byteback_backup::file_id;

/// The standing is noted after this number of batches, and at the end.
const NOTED_EVERY: u64 = 64;

/// The standing as last noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing was ever noted of this directory.
    Nothing,
    /// A standing of another log of this directory.
    OfOtherLog,
    /// The standing of this log.
    OfThisLog(Standing),
}

impl Noted {
    /// The standing, if it is of this log.
    pub(super) const fn standing(&self) -> Option<&Standing> {
        match self {
            Self::OfThisLog(standing) => Some(standing),
            Self::Nothing | Self::OfOtherLog => None,
        }
    }
}

/// The directory's record: see the module.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) noted: Noted,
    /// See [`Standing::names`].
    pub(super) names: TreeId,
    /// See [`Standing::takes_own`].
    pub(super) takes_own: bool,
    /// Batches since the standing was noted.
    unnoted: u64,
}

impl Remembered {
    /// Record by what was noted of the log's tree.
    pub(super) fn of(noted: Noted, tree: TreeId) -> Self {
        let standing = noted.standing();
        let names = standing.map_or(tree, |standing| standing.names);
        let takes_own = standing.is_some_and(|standing| standing.takes_own);
        Self {
            noted,
            names,
            takes_own,
            unnoted: 0,
        }
    }

    /// The landing that was begun.
    pub(super) fn landing(&self) -> Option<Seq> {
        self.noted.standing().and_then(|standing| standing.landing)
    }

    /// Whether nothing of this directory was brought together with the server yet.
    pub(super) fn is_new_locally(&self) -> bool {
        let is_begun = |standing: &Standing| !standing.takes_own || standing.landing.is_some();
        !self.noted.standing().is_some_and(is_begun)
    }

    /// Starts over with a standing that is noted.
    pub(super) fn start_over(&mut self, standing: Standing) {
        self.takes_own = true;
        self.noted = Noted::OfThisLog(standing);
    }

    /// Counts a batch that is not in the noted standing.
    pub(super) const fn count(&mut self) {
        self.unnoted = self.unnoted.saturating_add(1);
    }
}

impl Engine {
    pub(super) fn clock(&self) -> &dyn Clock {
        self.parts.server.clock()
    }

    /// Root's file ID at the server.
    pub(super) fn root(&self) -> FileId {
        self.file_id(NodeId::ROOT)
    }

    /// A node's file ID at the server. A node that is gone keeps the ID that it was born with.
    pub(super) fn file_id(&self, node: NodeId) -> FileId {
        let own = file_id(self.remembered.names, node);
        self.identities.file_of(node).unwrap_or(own)
    }

    /// Notes durably how the folder stands, if that has changed.
    pub(super) fn note(&mut self) -> Result<(), EngineError> {
        let tree = match self.remembered.noted.standing() {
            Some(noted) => noted.tree,
            None => self.parts.tree.status()?.tree,
        };
        let standing = Standing {
            counterpart: anew::counterpart(&self.parts),
            tree,
            names: self.remembered.names,
            root: self.root(),
            cursor: self.ground.cursor,
            newest: self.ground.newest,
            landing: self.phase.landing(),
            takes_own: self.remembered.takes_own,
        };
        self.shared.stands(self.ground.cursor);
        if self.remembered.noted.standing() != Some(&standing) {
            standing.write(&self.parts.dir)?;
            self.remembered.noted = Noted::OfThisLog(standing);
        }
        self.remembered.unnoted = 0;
        Ok(())
    }

    pub(super) fn note_if_due(&mut self) -> Result<(), EngineError> {
        match self.remembered.unnoted >= NOTED_EVERY {
            true => self.note(),
            false => Ok(()),
        }
    }
}
