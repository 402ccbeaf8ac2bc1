//! Which part of a group is sent: see the module above.

use byteback_model::{NameChange, NodeId, NodeKind, Place};
use std::collections::{BTreeSet, HashMap};

use byteback_control::{LandingTree, LiveGroup, LiveSource};

use super::{Engine, of_durable};
use crate::identities::{IdentityChange, Withheld};
use crate::ignored::joined;
use crate::receive::is_source_name;
use byteback_backup::BackupError;

/// Result of sifting a group.
pub(in crate::engine) enum Sifted {
    /// The group is sent as it is.
    Whole,
    /// This part of it is sent.
    Part(Box<LiveGroup>),
    /// Nothing of it is sent.
    Nothing,
    /// The group is to be folded.
    Fold,
}

/// The answer for the moment of a group is not known.
struct Unclear;

type Clear<T> = Result<Result<T, Unclear>, BackupError>;

impl Engine {
    /// Decides which part of a group is sent.
    pub(in crate::engine) fn sift(&mut self, group: &LiveGroup) -> Result<Sifted, BackupError> {
        let says_something = |name: &NameChange<NodeId>| is_source_name(&name.name) && !self.is_withheld(name.parent);
        let changes = |node| self.ignoring.sources.contains(&node);
        let is_about_rules =
            group.names.iter().any(says_something) || group.contents.iter().any(|content| changes(content.node));
        if is_about_rules {
            return Ok(Sifted::Fold);
        }
        if !self.may_ignore() {
            return Ok(Sifted::Whole);
        }
        let Ok(sifted) = self.sift_by_rules(group)? else {
            return Ok(Sifted::Fold);
        };
        let is_less = sifted.names.len() < group.names.len()
            || sifted.nodes.len() < group.nodes.len()
            || sifted.contents.len() < group.contents.len()
            || sifted.directory_times.len() < group.directory_times.len();
        Ok(
            match (
                is_less,
                // Times are reported with names.
                sifted.names.is_empty() && sifted.nodes.is_empty() && sifted.contents.is_empty(),
            ) {
                (false, _) => Sifted::Whole,
                (true, true) => Sifted::Nothing,
                (true, false) => Sifted::Part(Box::new(sifted)),
            },
        )
    }

    fn sift_by_rules(&mut self, group: &LiveGroup) -> Clear<LiveGroup> {
        let new: HashMap<NodeId, NodeKind> = {
            let new = group.nodes.iter().filter(|node| node.is_new);
            new.map(|node| (node.node, node.kind)).collect()
        };
        // Nodes made under ignored names, directories before what is in them.
        let mut hidden: BTreeSet<NodeId> = BTreeSet::new();
        loop {
            let before = hidden.len();
            for (node, kind) in &new {
                let names = group.names.iter().filter(|name| name.child == Some(*node));
                let (mut count, mut ignored) = (0, 0);
                for name in names {
                    let Ok(is_ignored) = self.is_ignored_then(group, name, *kind, &hidden)? else {
                        return Ok(Err(Unclear));
                    };
                    count += 1;
                    ignored += usize::from(is_ignored);
                }
                if count > 0 && count == ignored {
                    hidden.insert(*node);
                }
            }
            if hidden.len() == before {
                break;
            }
        }
        let mut sifted = LiveGroup {
            names: Vec::new(),
            nodes: Vec::new(),
            contents: Vec::new(),
            directory_times: Vec::new(),
            ..group.clone()
        };
        for name in &group.names {
            match self.is_name_sent(group, name, &new, &hidden)? {
                Ok(true) => sifted.names.push(name.clone()),
                Ok(false) => {}
                Err(Unclear) => return Ok(Err(Unclear)),
            }
        }
        let is_out = |node: NodeId| hidden.contains(&node) || self.is_withheld(node);
        for node in group.nodes.iter().filter(|node| !is_out(node.node)) {
            if !node.is_new {
                // The node may have lost the name that was not ignored.
                let found = self.parts.landing.look(node.node)?;
                let ignored = &self.ignoring.ignored;
                if let Some(found) = found
                    && ignored.hides(&*self.parts.landing, &found.names, found.kind)?
                {
                    return Ok(Err(Unclear));
                }
            }
            sifted.nodes.push(node.clone());
        }
        for content in group.contents.iter().filter(|content| !is_out(content.node)) {
            if let LiveSource::Delta { base, .. } = content.source
                && is_out(base)
            {
                return Ok(Err(Unclear));
            }
            sifted.contents.push(content.clone());
        }
        // Times of directories whose names are not reported do not make a batch.
        let is_reported = |node: NodeId| sifted.names.iter().any(|name| name.parent == node);
        let times = group.directory_times.iter().filter(|(node, _)| is_reported(*node));
        sifted.directory_times = times.copied().collect();
        let changes = hidden.into_iter().filter_map(|node| {
            let file = self.identities.file_of(node)?;
            Some(Withheld::Ignored.bound(node, file))
        });
        let changes: Vec<IdentityChange> = changes.collect();
        self.identities.change(&changes).map_err(of_durable)?;
        self.ignoring.withheld = self.ignoring.withheld.saturating_add(changes.len() as u64);
        Ok(Ok(sifted))
    }

    /// Whether a name is reported to the server.
    fn is_name_sent(
        &self,
        group: &LiveGroup,
        name: &NameChange<NodeId>,
        new: &HashMap<NodeId, NodeKind>,
        hidden: &BTreeSet<NodeId>,
    ) -> Clear<bool> {
        let Some(child) = name.child else {
            if hidden.contains(&name.parent) {
                return Ok(Ok(false));
            }
            match self.identities.withheld(name.parent) {
                Some(Withheld::Ignored) => return Ok(Ok(false)),
                // The name may have been the last that the directory is held for.
                Some(Withheld::Holding) => return Ok(Err(Unclear)),
                None => {}
            }
            let mut is_ignored = true;
            for kind in [NodeKind::File, NodeKind::Directory] {
                match self.is_ignored_then(group, name, kind, hidden)? {
                    Ok(ignored) => is_ignored &= ignored,
                    Err(Unclear) => return Ok(Err(Unclear)),
                }
            }
            return Ok(Ok(!is_ignored));
        };
        if hidden.contains(&child) {
            return Ok(Ok(false));
        }
        let kind = match new.get(&child) {
            Some(kind) => *kind,
            None => match self.parts.landing.look(child)? {
                // Its entries may be ignored from now on, or no more.
                Some(found) if found.kind == NodeKind::Directory => return Ok(Err(Unclear)),
                Some(found) => found.kind,
                None => return Ok(Err(Unclear)),
            },
        };
        let Ok(is_ignored) = self.is_ignored_then(group, name, kind, hidden)? else {
            return Ok(Err(Unclear));
        };
        Ok(
            match (is_ignored, self.is_withheld(child) || new.contains_key(&child)) {
                (true, true) => Ok(false),
                (false, _) if !self.is_withheld(child) => Ok(true),
                // The node crosses from one side to the other.
                _ => Err(Unclear),
            },
        )
    }

    /// Whether a name was ignored when the group was the newest.
    fn is_ignored_then(
        &self,
        group: &LiveGroup,
        name: &NameChange<NodeId>,
        kind: NodeKind,
        hidden: &BTreeSet<NodeId>,
    ) -> Clear<bool> {
        let withheld = self.identities.withheld(name.parent);
        if hidden.contains(&name.parent) || withheld == Some(Withheld::Ignored) {
            return Ok(Ok(true));
        }
        let place = Place {
            parent: name.parent,
            name: name.name.clone(),
        };
        if self.ignoring.ignored.taken.contains(&place) {
            return Ok(Err(Unclear));
        }
        let Some(directory) = self.path_then(group, name.parent)? else {
            return Ok(Err(Unclear));
        };
        let is_ignored = self
            .ignoring
            .ignored
            .has(&place, &directory, kind == NodeKind::Directory);
        Ok(match withheld {
            // The directory is no longer held only for the ignored nodes in it.
            Some(_) if !is_ignored => Err(Unclear),
            _ => Ok(is_ignored),
        })
    }

    /// Path of a directory when the group was the newest; `None` if that is not sure.
    fn path_then(&self, group: &LiveGroup, directory: NodeId) -> Result<Option<Vec<u8>>, BackupError> {
        let landing: &dyn LandingTree = &*self.parts.landing;
        let (mut names, mut current) = (Vec::new(), directory);
        while current != NodeId::ROOT {
            let Some(place) = landing.look(current)?.and_then(|found| found.names.into_iter().next()) else {
                return Ok(None);
            };
            let is_of_group = |name: &NameChange<NodeId>| {
                name.parent == place.parent && name.name == place.name && name.child == Some(current)
            };
            if landing.is_name_queued(&place) && !group.names.iter().any(is_of_group) {
                return Ok(None);
            }
            names.push(place.name);
            current = place.parent;
        }
        let names = names.iter().rev();
        Ok(Some(
            names.fold(Vec::new(), |path, name| joined(&path, name.as_bytes())),
        ))
    }
}
