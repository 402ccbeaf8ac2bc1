//! The pictures as a witness: they save what they need of the old state. A picture cannot fail a
//! change.

use crate::picture::Pictures;
use crate::tracked::change::{Change, Part};
use crate::tracked::witness::Witness;

impl Witness for Pictures {
    fn before(&self, change: &Change<'_>) {
        match change {
            Change::Content(content) if content.ranges.is_empty() => self.before_attributes(content.node, content.fd),
            Change::Content(content) => {
                for range in &*content.ranges {
                    self.before_content(content.node, content.fd, *range);
                }
            }
            Change::ContentOfUnknown { identity, fd, ranges } => {
                for range in &**ranges {
                    self.before_content_of_unknown(identity, fd, *range);
                }
            }
            Change::Attributes { node, fd, .. } => self.before_attributes(*node, fd),
            Change::Names(names) => {
                for (directory, fd) in names.directories() {
                    self.before_attributes(directory, fd);
                }
                for renamed in names.nodes() {
                    let node = renamed.node;
                    match renamed.part {
                        Part::Gains(fd) => self.before_attributes(node, fd),
                        Part::Moves(place, _) => self.before_rename(node, place.dir, place.name),
                        Part::Loses(place, _, state) => {
                            self.before_unlink(node, &state.object.identity, place.dir, place.name);
                        }
                    }
                }
            }
        }
    }
}
