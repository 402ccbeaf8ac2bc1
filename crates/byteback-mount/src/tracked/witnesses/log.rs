//! The log as a witness: the operation that has begun before all else of a change and ends after
//! it.
//!
//! Bytes and attributes are logged before they change, so that a failure that changed a part of
//! them is covered, too; names when they have changed. A new node is logged by the gate, which
//! needs its number for the other witnesses.

use byteback_oplog::{Fence, Operation};

use crate::tracked::change::{Change, Outcome, Part};
use crate::tracked::observer::NamesChanged;
use crate::tracked::witness::Witness;
use crate::tracked::{TrackedResult, looks_like};

impl Witness for Operation<'_> {
    fn prepare(&self, change: &Change<'_>) -> TrackedResult<()> {
        let names = match change {
            Change::Content(_) | Change::ContentOfUnknown { .. } => return Ok(()),
            Change::Attributes { node, fd, .. } => return Ok(self.compare(*node, || looks_like(fd))?),
            Change::Names(names) => names,
        };
        for renamed in names.nodes() {
            let look = || -> Option<Fence> {
                match renamed.part {
                    Part::Gains(fd) => looks_like(fd),
                    Part::Moves(_, state) | Part::Loses(_, _, state) => Some(state.fence),
                }
            };
            match renamed.part {
                // Nothing is hidden: the node is gone afterwards.
                Part::Loses(_, _, state) if state.is_last_link() => {}
                _ => self.compare(renamed.node, look)?,
            }
        }
        Ok(())
    }

    fn before(&self, change: &Change<'_>) {
        match change {
            Change::Content(content) if content.ranges.is_empty() => self.attributes_changed(content.node),
            Change::Content(content) => {
                for range in &*content.ranges {
                    if !(self.is_logged() && content.has_announced(*range)) {
                        self.wrote(content.node, *range);
                    }
                }
            }
            Change::Attributes { node, .. } => self.attributes_changed(*node),
            Change::ContentOfUnknown { .. } | Change::Names(_) => {}
        }
    }

    fn after(&self, _change: &Change<'_>, outcome: &Outcome<'_>) {
        match outcome.names() {
            None | Some(NamesChanged::Created { .. }) => {}
            Some(NamesChanged::Linked { at, node }) => self.linked(at.parent, at.name, node.node),
            Some(NamesChanged::Unlinked { at, lost }) => {
                self.unlinked(at.parent, at.name, lost.node.node, lost.remains());
            }
            Some(NamesChanged::Renamed {
                from,
                to,
                node,
                replaced,
            }) => {
                let replaced = replaced.map(|lost| (lost.node.node, lost.remains()));
                self.renamed((from.parent, from.name), (to.parent, to.name), node.node, replaced);
            }
            Some(NamesChanged::Exchanged {
                one,
                one_node,
                other,
                other_node,
            }) => self.exchanged(
                (one.parent, one.name, one_node.node),
                (other.parent, other.name, other_node.node),
            ),
        }
    }
}
