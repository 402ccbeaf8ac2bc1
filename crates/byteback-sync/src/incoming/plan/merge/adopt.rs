//! Nodes that were made here and there become one, if they are the same: directories always are,
//! files if they have the same content.

use byteback_model::{FileId, NodeKind, Place};
use std::collections::HashSet;

use super::super::{Identity, PlanError, Step, is_directory};
use super::Merge;

type Result<T> = std::result::Result<T, PlanError>;

impl Merge<'_, '_> {
    /// Merges nodes that were made here and there into one, if they are the same: directories
    /// always are.
    pub(super) fn adopt(&mut self) -> Result<()> {
        let mut names: Vec<(Place<FileId>, FileId)> = Vec::new();
        for (place, change) in &self.names {
            if let Some(there) = change.after {
                names.push((place.clone(), there));
            }
        }
        loop {
            self.compare_ahead(&names)?;
            let mut later = Vec::new();
            let mut adopted = HashSet::new();
            for (place, there) in names {
                if adopted.contains(&place.parent) {
                    // Later, together with all others in the directories of this round.
                    later.push((place, there));
                    continue;
                }
                if self.view.node(there)?.is_some()
                    || self.unfit(&place, there)?.is_some()
                    || !self.is_present(place.parent)?
                {
                    continue;
                }
                let Some(found) = self.view.entry(&place)? else {
                    // Its directory may become one that is here.
                    later.push((place, there));
                    continue;
                };
                let Some(node) = self.view.node(found)? else { continue };
                if node.is_known || self.view.unknown.contains(&found) || self.view.back.contains_key(&found) {
                    continue;
                }
                let Some(wanted) = self.attributes_there(there) else {
                    continue;
                };
                let is_same =
                    node.attributes.kind == wanted.kind && (is_directory(&wanted) || self.is_same(found, there)?);
                if is_same {
                    self.identities.push(Step::Identity {
                        was: found,
                        becomes: there,
                        kind: Identity::Theirs,
                    });
                    self.view.alias(found, there);
                    self.same.insert(there);
                    adopted.insert(there);
                }
            }
            if adopted.is_empty() {
                return Ok(());
            }
            names = later;
        }
    }

    /// Has the files compared that may be the same, as comparing many at once is cheaper than one
    /// after the other.
    fn compare_ahead(&mut self, names: &[(Place<FileId>, FileId)]) -> Result<()> {
        let mut pairs = Vec::new();
        for (place, there) in names {
            let Some(change) = self.others.nodes.get(there) else {
                continue;
            };
            let wanted = &change.after;
            if wanted.kind != NodeKind::File || self.view.node(*there)?.is_some() || !self.is_present(place.parent)? {
                continue;
            }
            let Some(found) = self.view.entry(place)? else { continue };
            let Some(node) = self.view.node(found)? else { continue };
            let may_be = !node.is_known && node.attributes.kind == wanted.kind && node.attributes.size == wanted.size;
            if may_be && let Some(inner) = self.view.inner(found) {
                pairs.push((inner, *there));
            }
        }
        Ok(self.view.here.compare_ahead(&pairs)?)
    }
}
