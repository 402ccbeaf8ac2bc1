//! Changes since continuous sync's mark, as the log knows them: read when the queue has been folded
//! to "everything since then", or to find out whether the server has heard of a node.

use byteback_model::{ByteString, NodeId, Place};
use std::collections::{HashMap, HashSet};

use byteback_control::{
    ChangesCursor, ContentChange, CutInfo, CutRequest, ErrorKind, Outcome, Result, SYNC_CONSUMER, ServiceError,
    TreeService,
};

/// How a node changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) is_new: bool,
    pub(crate) is_content_changed: bool,
}

/// Nodes and names that changed: see the module.
#[derive(Debug, Default)]
pub(crate) struct LogChanges {
    nodes: HashMap<NodeId, Changed>,
    names: HashSet<(NodeId, ByteString)>,
}

impl LogChanges {
    /// Reads the changes from the log.
    pub(crate) fn ask(tree: &dyn TreeService) -> Result<Self> {
        let cut = tree.cut(&CutRequest {
            look_only: true,
            ..CutRequest::of(SYNC_CONSUMER)
        })?;
        let read = Self::read(tree, &cut);
        let ended = tree.finish(cut.cut, &Outcome::Abandoned);
        let changes = read?;
        ended?;
        Ok(changes)
    }

    fn read(tree: &dyn TreeService, cut: &CutInfo) -> Result<Self> {
        let mut changes = Self::default();
        let mut cursor = ChangesCursor::default();
        loop {
            let page = tree.changes(cut.cut, &cursor)?;
            for node in page.nodes {
                let changed = Changed {
                    is_new: node.is_new,
                    is_content_changed: node.content != ContentChange::Unchanged,
                };
                changes.nodes.insert(node.node, changed);
            }
            let names = page.names.into_iter().map(|name| (name.parent, name.name));
            changes.names.extend(names);
            match page.next {
                None => return Ok(changes),
                Some(next) if next == cursor => {
                    let message = "the folder's list of changes does not end; restart its daemon";
                    return Err(ServiceError::new(ErrorKind::Protocol, message));
                }
                Some(next) => cursor = next,
            }
        }
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<Changed> {
        self.nodes.get(&node).copied()
    }

    pub(crate) fn has_name(&self, place: &Place<NodeId>) -> bool {
        self.names.contains(&(place.parent, place.name.clone()))
    }
}
