//! Rules come into force, and the server's files are compared with those here, in the order that
//! the parent module states.
//!
//! Out of scope: finding the nodes that are withheld here, which is the parent's.

use byteback_model::{ByteString, FileId, NodeId, NodeKind, Place, Seq};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use byteback_control::CutId;

use super::stage::{Names, Step};
use super::walked::{Hidden, Named};
use super::{Coming, Engine, of_durable, of_durable_file};
use crate::ignored::{is_on_its_way, joined};
use crate::incoming::fetch::listing;
use crate::receive::left_out::LeftOut;
use byteback_backup::BackupError;
use byteback_client::ServerErrorKind;

/// The server's files in the directories that changed rules concern.
struct Compared {
    /// Names that are ignored from now on.
    ignored: Vec<LeftOut>,
    /// Names that are not ignored any more.
    due: Vec<LeftOut>,
    /// The directories compared.
    directories: HashSet<FileId>,
}

/// The server's entries of directories: file ID, and whether it is a directory.
pub(super) type Listed = HashMap<NodeId, BTreeMap<ByteString, (FileId, bool)>>;

impl Engine {
    /// Brings the rules in the files of a cut into force, now that all that the cut reported is at
    /// the server.
    pub(in crate::engine) fn turn(&mut self, cut: CutId) -> Result<(), BackupError> {
        let Some(coming) = self.ignoring.coming.take() else {
            return Ok(());
        };
        self.ignoring.tell(Step::TurnBegins);
        let tree = Arc::clone(&self.parts.tree);
        let page = |directory, after: Option<&ByteString>| tree.entries(cut, directory, after);
        let hides =
            |named: &Named<'_>| !is_on_its_way(named.place) && coming.rules.is_ignored(named.path, named.is_directory);
        let found = Hidden::look(&page, &hides, &|node| self.is_withheld(node))?;
        let Compared {
            ignored,
            due,
            directories: compared,
        } = self.compare(cut, &coming, &found)?;

        let mut noted = self.arrivals.left_out.noted().to_vec();
        let is_of = |some: &[LeftOut], noted: &LeftOut| {
            let mut some = some.iter();
            some.any(|left_out| left_out.parent == noted.parent && left_out.name == noted.name)
        };
        // A left-out name that the server does not have any more needs nothing.
        let is_over = |noted: &LeftOut| noted.is_ignored && compared.contains(&noted.parent) && !is_of(&due, noted);
        noted.retain(|noted| !is_of(&ignored, noted) && !is_over(noted));
        noted.extend(ignored.iter().cloned());
        self.arrivals.left_out.note(noted.clone()).map_err(of_durable)?;

        let taken: BTreeSet<Place<NodeId>> = {
            let is_let_in = |noted: &LeftOut| noted.is_due || is_of(&due, noted);
            let still = noted.iter().filter(|noted| noted.is_ignored && !is_let_in(noted));
            let place = still.filter_map(|noted| {
                let parent = self.identities.node_of(noted.parent)?;
                let name = noted.name.clone();
                Some(Place { parent, name })
            });
            place.collect()
        };
        let hides = |named: &Named<'_>| hides(named) || taken.contains(named.place);
        let found = Hidden::look(&page, &hides, &|node| self.is_withheld(node))?;
        let hiding = self.hiding(cut, &found)?;
        let is_reported_again = found
            .linked
            .iter()
            .any(|node| !hiding.contains(node) && !self.is_withheld(*node));
        let is_shown = self.withhold(&hiding, &found)?;

        noted.retain(|noted| !is_of(&due, noted));
        noted.extend(due);
        self.arrivals.left_out.note(noted).map_err(of_durable)?;
        coming.said.note(&self.parts.dir).map_err(of_durable_file)?;
        self.ignoring.said = coming.said;
        self.ignoring.ignored.rules = coming.rules;
        self.ignoring.tell(Step::TurnEnds(match is_reported_again {
            true => Names::Due,
            false => Names::CutReport,
        }));
        self.left_out_changed();
        self.tell_ignored();
        if is_shown || is_reported_again || self.is_ignoring_over() {
            self.parts.live.fold();
        }
        Ok(())
    }

    /// Compares the server's files with those here, in the directories that changed rules concern.
    fn compare(&self, cut: CutId, coming: &Coming, found: &Hidden) -> Result<Compared, BackupError> {
        let said = &self.ignoring.said;
        let concerned = found.directories.iter();
        let concerned: Vec<&(NodeId, Vec<u8>)> = concerned
            .filter(|(_, path)| said.may_differ_in(&coming.said, path))
            .collect();
        let listed = self.listed(concerned.iter().map(|(directory, _)| *directory))?;
        let tops: HashSet<(NodeId, &ByteString)> = found.tops.iter().map(|top| (top.parent, &top.name)).collect();
        let (mut ignored, mut due, mut compared) = (Vec::new(), Vec::new(), HashSet::new());
        for (directory, path) in concerned {
            let Some(there) = listed.get(directory) else { continue };
            let parent = self.file_id(*directory);
            compared.insert(parent);
            let mut here: BTreeMap<ByteString, NodeId> = BTreeMap::new();
            let mut after = None;
            loop {
                let page = self.parts.tree.entries(cut, *directory, after.as_ref())?;
                let Some(last) = page.last() else { break };
                after = Some(last.name.clone());
                here.extend(page.into_iter().map(|entry| (entry.name, entry.node)));
            }
            for (name, (id, is_directory)) in there {
                let path = joined(path, name.as_bytes());
                let reported = ignored_name(parent, name.clone(), (*id, *is_directory));
                if coming.rules.is_ignored(&path, *is_directory) || tops.contains(&(*directory, name)) {
                    ignored.push(reported);
                    continue;
                }
                let mut noted = self.arrivals.left_out.noted().iter();
                let was_left_out = noted.any(|noted| noted.parent == parent && noted.name == *name && noted.is_ignored);
                let was_ignored = was_left_out || self.ignoring.ignored.rules.is_ignored(&path, *is_directory);
                let is_here = here
                    .get(name)
                    .is_some_and(|node| self.identities.node_of(*id) == Some(*node));
                if was_ignored && !is_here {
                    due.push(LeftOut {
                        is_due: true,
                        ..reported
                    });
                }
            }
        }
        Ok(Compared {
            ignored,
            due,
            directories: compared,
        })
    }

    /// Marks left-out names that are not ignored where their directory is by now, to be let in;
    /// unless the server does not have them any more.
    pub(super) fn admit_moved_nodes(&mut self, cut: CutId) -> Result<(), BackupError> {
        let mut over: BTreeMap<NodeId, BTreeSet<ByteString>> = BTreeMap::new();
        for left_out in self
            .arrivals
            .left_out
            .noted()
            .iter()
            .filter(|left_out| left_out.is_ignored && !left_out.is_due)
        {
            let Some(parent) = self.identities.node_of(left_out.parent) else {
                continue;
            };
            let Some(directory) = self.parts.tree.path(cut, parent)? else {
                continue;
            };
            let path = joined(directory.as_bytes(), left_out.name.as_bytes());
            let coming = self.ignoring.coming.as_ref();
            let is_ignored = |is_directory| {
                self.ignoring.ignored.rules.is_ignored(&path, is_directory)
                    || coming.is_some_and(|coming| coming.rules.is_ignored(&path, is_directory))
            };
            let is_here_ignored = match self.parts.tree.find(cut, &ByteString(path.clone()))? {
                Some(here) => {
                    let reported = self.parts.tree.names(cut, &[here])?;
                    let kind = reported.first().and_then(|reported| reported.kind);
                    kind.is_some_and(|kind| is_ignored(kind == NodeKind::Directory))
                }
                None => false,
            };
            if !is_ignored(left_out.is_directory) && !is_here_ignored {
                over.entry(parent).or_default().insert(left_out.name.clone());
            }
        }
        if !over.is_empty() {
            let listed = self.listed(over.keys().copied())?;
            let mut noted = self.arrivals.left_out.noted().to_vec();
            for (parent, names) in over {
                let directory = self.file_id(parent);
                let Some(there) = listed.get(&parent) else { continue };
                noted.retain(|noted| noted.parent != directory || !noted.is_ignored || !names.contains(&noted.name));
                let still = names
                    .into_iter()
                    .filter_map(|name| there.get(&name).map(|there| (name, *there)));
                noted.extend(still.map(|(name, there)| LeftOut {
                    is_due: true,
                    ..ignored_name(directory, name, there)
                }));
            }
            self.arrivals.left_out.note(noted).map_err(of_durable)?;
        }
        self.left_out_changed();
        Ok(())
    }

    /// Lists directories at the server, if it knows them.
    pub(super) fn listed(&self, directories: impl Iterator<Item = NodeId>) -> Result<Listed, BackupError> {
        let mut listed = Listed::new();
        let mut head = None;
        for directory in directories {
            let is_unsent = self
                .identities
                .origin_of(directory)
                .is_some_and(|origin| origin.seq == 0);
            if self.is_withheld(directory) || is_unsent {
                continue;
            }
            let head = match head {
                Some(head) => head,
                None => *head.insert(self.parts.server.folder(&self.parts.folder)?.seq),
            };
            listed.insert(directory, self.listed_there(self.file_id(directory), head)?);
        }
        Ok(listed)
    }

    /// Lists a directory at the server, and says which entries are directories; empty if the server
    /// does not have it.
    fn listed_there(&self, directory: FileId, head: Seq) -> Result<BTreeMap<ByteString, (FileId, bool)>, BackupError> {
        if head == 0 {
            return Ok(BTreeMap::new());
        }
        match listing(&self.parts.server, &self.parts.folder, head, directory, &*self.shared) {
            Ok(listed) => {
                let is_directory = |kind| kind == byteback_model::NodeKind::Directory;
                let listed = listed.into_iter();
                let listed = listed.map(|(name, id, there)| (ByteString(name), (id, is_directory(there.kind))));
                Ok(listed.collect())
            }
            Err(error) if error.server_kind() == Some(ServerErrorKind::NotFound) => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }
}

/// A name that the server has, and that is ignored here.
pub(super) fn ignored_name(parent: FileId, name: ByteString, (node, is_directory): (FileId, bool)) -> LeftOut {
    LeftOut {
        parent,
        name,
        node,
        collides: false,
        is_ignored: true,
        is_directory,
        is_due: false,
    }
}
