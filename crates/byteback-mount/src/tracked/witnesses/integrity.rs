//! The sums as a witness: a change of attributes or names moves a file's times, which are how the
//! sums tell whether a file was changed past the gate.
//!
//! Content is not witnessed here, see [`crate::tracked::witness`].

use byteback_model::NodeKind;
use byteback_oplog::RemainingLinks;

use crate::integrity::Integrity;
use crate::tracked::TrackedResult;
use crate::tracked::change::{Change, Outcome, Part};
use crate::tracked::observer::{LostName, NamesChanged};
use crate::tracked::witness::Witness;

impl Integrity {
    fn lost(&self, lost: &LostName) {
        match lost.remains() {
            RemainingLinks::Linked => self.sums().touched(lost.node.node.0),
            RemainingLinks::Gone => self.sums().removed(lost.node.node.0),
        }
    }
}

impl Witness for Integrity {
    fn prepare(&self, change: &Change<'_>) -> TrackedResult<()> {
        match change {
            Change::Attributes {
                node,
                is_file: true,
                fd,
            } => self.before_attributes(*node, fd),
            Change::Names(names) => {
                for renamed in names.nodes().filter(|renamed| renamed.kind == NodeKind::File) {
                    match renamed.part {
                        Part::Gains(fd) => self.before_attributes(renamed.node, fd),
                        Part::Loses(_, _, state) if state.is_last_link() => {}
                        Part::Moves(_, state) | Part::Loses(_, _, state) => {
                            self.before_names(renamed.node, state.object.identity, &state.fence);
                        }
                    }
                }
            }
            Change::Attributes { .. } | Change::Content(_) | Change::ContentOfUnknown { .. } => {}
        }
        Ok(())
    }

    fn after(&self, change: &Change<'_>, outcome: &Outcome<'_>) {
        if let Change::Attributes {
            node, is_file: true, ..
        } = change
        {
            self.sums().touched(node.0);
        }
        match outcome.names() {
            None | Some(NamesChanged::Created { .. }) => {}
            Some(NamesChanged::Linked { node, .. }) => self.sums().touched(node.node.0),
            Some(NamesChanged::Unlinked { lost, .. }) => self.lost(&lost),
            Some(NamesChanged::Renamed { node, replaced, .. }) => {
                self.sums().touched(node.node.0);
                if let Some(lost) = &replaced {
                    self.lost(lost);
                }
            }
            Some(NamesChanged::Exchanged {
                one_node, other_node, ..
            }) => {
                self.sums().touched(one_node.node.0);
                self.sums().touched(other_node.node.0);
            }
        }
    }
}
