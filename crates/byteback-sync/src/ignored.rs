//! Ignored names of the tree here: the rules in force, durable (docs/formats/identities.md), and
//! the names that follow from them.
//!
//! The rules **in force** are those that decided last what is sent and what lands. The files in the
//! tree may state others by now: the engine brings these into force at a moment when all earlier
//! changes are sent.
//!
//! Names on their way ([`is_name_on_its_way`]) are never ignored. A name at which the server has
//! something that is left out because it is ignored is *taken*: a node here under it, even if no
//! rule names it (a rule may be about directories alone), is not sent, as it would replace that.

use byteback_model::{ByteString, NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use byteback_control::{LandingTree, Result};
use byteback_host::durable::DurableDir;
use serde::{Deserialize, Serialize};

use super::ignore_rules::IgnoreRules;
use super::incoming::plan::is_name_on_its_way;
use byteback_host::durable::{VersionedJson, VersionedJsonError};

const FILE: VersionedJson = VersionedJson {
    name: "ignore-rules.json",
    version: 1,
    len_max_bytes: 256 * 1024 * 1024,
};

/// Deepest path that is followed.
const DEPTH_MAX: usize = 4096;

/// Files of a tree that state what is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Rules, by their directories' paths.
    pub(super) texts: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Paths of caches.
    pub(super) caches: BTreeSet<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Body {
    /// Each with its directory's path.
    rules: Vec<(ByteString, ByteString)>,
    caches: Vec<ByteString>,
}

impl Sources {
    /// The noted rules; `None` if none were ever noted.
    pub(super) fn read(dir: &dyn DurableDir) -> std::result::Result<Option<Self>, VersionedJsonError> {
        let body = FILE.read::<Body>(dir)?;
        Ok(body.map(|body| Self {
            texts: { body.rules.into_iter() }
                .map(|(directory, text)| (directory.into_bytes(), text.into_bytes()))
                .collect(),
            caches: body.caches.into_iter().map(ByteString::into_bytes).collect(),
        }))
    }

    /// Notes the rules durably.
    pub(super) fn note(&self, dir: &Arc<dyn DurableDir>) -> std::result::Result<(), VersionedJsonError> {
        let reported = |bytes: &Vec<u8>| ByteString(bytes.clone());
        let body = Body {
            rules: { self.texts.iter() }
                .map(|(directory, text)| (reported(directory), reported(text)))
                .collect(),
            caches: self.caches.iter().map(reported).collect(),
        };
        FILE.write(&**dir, &body)
    }

    /// The rules that these files state.
    pub(super) fn rules(&self) -> IgnoreRules {
        let mut rules = IgnoreRules::default();
        for (directory, text) in &self.texts {
            rules.set_file(directory, Some(text));
        }
        for directory in &self.caches {
            rules.set_cache(directory, true);
        }
        rules
    }

    /// Whether the rules for names in a directory may differ from those of `other`.
    pub(super) fn may_differ_in(&self, other: &Self, directory: &[u8]) -> bool {
        let is_above = |above: &[u8]| {
            let rest = directory.strip_prefix(above);
            above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let said = self.texts.keys().chain(other.texts.keys());
        let mut changed = said.filter(|at| self.texts.get(*at) != other.texts.get(*at));
        let mut caches = self.caches.symmetric_difference(&other.caches);
        let directory_of = |path: &[u8]| {
            let slash = path.iter().rposition(|byte| *byte == b'/');
            path.get(..slash.unwrap_or(0)).unwrap_or_default().to_vec()
        };
        // A cache concerns its name in its parent directory, and everything inside, which is hidden
        // with it.
        changed.any(|at| is_above(at)) || caches.any(|cache| directory_of(cache) == directory || is_above(cache))
    }
}

/// Rules and taken names of a tree: see the module.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    pub(super) rules: IgnoreRules,
    /// Names at which the server has something that was ignored when this was found out.
    pub(super) taken: BTreeSet<Place<NodeId>>,
}

/// Whether a name in the root is one of a node on its way.
pub(super) fn is_on_its_way(place: &Place<NodeId>) -> bool {
    place.parent == NodeId::ROOT && is_name_on_its_way(place.name.as_bytes())
}

/// A path and one more name.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.is_empty() {
        true => name.to_vec(),
        false => [directory, b"/", name].concat(),
    }
}

/// The path of a directory as it is now, from the root; `None` if it is nowhere.
pub(super) fn path_of(landing: &dyn LandingTree, directory: NodeId) -> Result<Option<Vec<u8>>> {
    let (mut names, mut current) = (Vec::new(), directory);
    while current != NodeId::ROOT {
        let Some(place) = landing.look(current)?.and_then(|found| found.names.into_iter().next()) else {
            return Ok(None);
        };
        if names.len() > DEPTH_MAX {
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

impl Ignored {
    /// Whether nothing is ignored.
    pub(super) fn is_nothing(&self) -> bool {
        self.rules.is_empty() && self.taken.is_empty()
    }

    /// Whether a name is ignored, in a directory with this path.
    pub(super) fn has(&self, place: &Place<NodeId>, directory: &[u8], is_directory: bool) -> bool {
        self.has_path(place, &joined(directory, place.name.as_bytes()), is_directory)
    }

    /// As [`has`](Self::has), of a name with this path.
    pub(super) fn has_path(&self, place: &Place<NodeId>, path: &[u8], is_directory: bool) -> bool {
        !is_on_its_way(place) && (self.rules.is_ignored(path, is_directory) || self.taken.contains(place))
    }

    /// As [`has`](Self::has), of a name in the tree as it is now. A directory that is nowhere
    /// ignores nothing.
    pub(super) fn has_now(&self, landing: &dyn LandingTree, place: &Place<NodeId>, is_directory: bool) -> Result<bool> {
        if self.is_nothing() {
            return Ok(false);
        }
        let directory = path_of(landing, place.parent)?;
        Ok(directory.is_some_and(|directory| self.has(place, &directory, is_directory)))
    }

    /// Whether a node that is there is ignored by all its names.
    pub(super) fn hides(&self, landing: &dyn LandingTree, names: &[Place<NodeId>], kind: NodeKind) -> Result<bool> {
        if self.is_nothing() || names.is_empty() {
            return Ok(false);
        }
        for name in names {
            if !self.has_now(landing, name, kind == NodeKind::Directory)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
