//! Ignored files, for the engine: which rules are in force, which nodes are withheld by them, and
//! which parts of a group or a fold are thus not sent.
//!
//! **Withheld nodes** are durable ([`Withheld`]): each node that is ignored by all its names, as of
//! the last hand-out. It was made under such a name, or moved there, or a rule came; in any case it
//! has an identity that the server has never heard. So if it stops being ignored it is reported as
//! new, and no change of others finds it. It stays withheld until a fold was reviewed, wherever it
//! is meanwhile.
//!
//! **Server files under a name that is ignored here**, in a directory that is not, are noted as
//! left out ([`LeftOut`]), always: the server is never told that such a name is not here.
//!
//! **A group** is sifted before it is sent ([`Engine::sift`]): parts that are only about withheld
//! nodes and ignored names are left out. Where anything *changes* whether it is ignored (a file
//! with rules, a directory that moves, a node that crosses from one side to the other), or where
//! that cannot be decided for the moment of the group, the group is folded.
//!
//! **A fold** is reviewed with its cut ([`Engine::review`]), by the rules in force: nodes that are
//! ignored from now on are withheld. A node that is not ignored any more becomes unsent, like nodes
//! that were here when the folder first met another one, and is reported with the next cut. If the
//! files state new rules, these already count for what the server does not know: it is not sent if
//! either says so.
//!
//! **Rules come into force** when the fold that was cut with them is at the server
//! ([`Engine::turn`]): then the server has all that is here and is not ignored, as of the cut, so
//! that nothing is on its way. Each directory that the rules concern is listed there, and compared:
//! its files that are ignored now are left out; left-out files that are not ignored any more are
//! let in; nodes that are here alone are reported; and nodes on both sides are brought together
//! like at a first contact. The order of the durable steps: left-out names, withheld nodes, names
//! to be let in, the rules. After a crash the steps are done again, as the noted rules are then not
//! those in the files.
//!
//! A change of a rule thus removes nothing anywhere: files here stay here, and files there stay
//! there.
//!
//! Costs: a walk of the names of the tree for each fold, but only if anything is, or may be,
//! ignored; and a request for each directory when rules change.

mod sifting;
mod stage;
mod turn;
mod walked;

use byteback_model::{ByteString, FileId, NameChange, NodeId, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use byteback_control::{CutId, CutRequest, DirEntry, ErrorKind, LandingTree, Outcome, ServiceError};

use super::{Engine, EngineError};
use crate::identities::{IdentityChange, Withheld};
use crate::ignore_rules::IgnoreRules;
use crate::ignored::{Ignored, Sources, joined};
use crate::receive::ReceiveError;
use crate::receive::left_out::LeftOut;
use byteback_backup::BackupError;
use byteback_host::durable::VersionedJsonError;
use byteback_model::Origin;
pub(super) use sifting::Sifted;
pub(super) use stage::LocalTree;
use stage::{Changed, CutFor, Files, Review, Stage, Step};
use turn::ignored_name;
use walked::{CutReport, Hidden, Named, StatedRules};

/// Number of nodes in one request or record.
const NODES_AT_ONCE: usize = 512;

/// Rules that are not in force yet.
#[derive(Debug)]
struct Coming {
    said: Sources,
    rules: IgnoreRules,
}

/// Rules and ignored names of one engine: see the module.
#[derive(Debug)]
pub(super) struct Ignoring {
    pub(super) ignored: Ignored,
    /// Files with rules and tags of caches in directories that are not ignored, and files that may
    /// become one.
    pub(super) sources: HashSet<NodeId>,
    /// The rules in force.
    said: Sources,
    /// The rules in the files at the cut of the last fold, if they differ.
    coming: Option<Coming>,
    stage: Stage,
    /// Names that are not reported with the fold that was reviewed last.
    hidden: HashSet<Place<NodeId>>,
    /// Names at which the server has a directory that is elsewhere here by now: reported as
    /// removed.
    gone: BTreeSet<Place<NodeId>>,
    /// Names of files that have several, some of which may have been ignored: to be reported again
    /// with the fold that was reviewed last.
    reported_again: Vec<NameChange<NodeId>>,
    /// Number of withheld nodes, for people.
    pub(super) withheld: u64,
}

impl Ignoring {
    /// Rules that are not read yet.
    pub(super) fn of(here: LocalTree) -> Self {
        Self {
            ignored: Ignored::default(),
            sources: HashSet::new(),
            said: Sources::default(),
            coming: None,
            stage: Stage::Unread(here),
            hidden: HashSet::new(),
            gone: BTreeSet::new(),
            reported_again: Vec::new(),
            withheld: 0,
        }
    }

    /// Whether any node is withheld.
    pub(super) const fn has_withheld(&self) -> bool {
        self.withheld > 0
    }

    fn tell(&mut self, step: Step) {
        self.stage = self.stage.next(step);
    }

    /// Has the rules read again: landed files may have changed them, and the log's mark may have
    /// passed over those.
    pub(super) fn have_rules_read(&mut self) {
        self.tell(Step::Landed);
    }

    /// Has names reported again when the nodes here and at the server are brought together: of a
    /// file that becomes one with the server's, the server has not heard all names.
    pub(super) fn have_names_told(&mut self) {
        self.tell(Step::Joined);
    }

    /// Notes that these names are reported.
    pub(super) fn names_are_told(&mut self) {
        self.reported_again.clear();
        self.tell(Step::Sent);
    }
}

/// How a fold reports a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedAs {
    /// As it is.
    Itself,
    /// As a name that is not there any more.
    Gone,
    /// Not at all.
    Nothing,
}

impl Engine {
    /// Whether anything is, or may be, ignored.
    pub(super) fn may_ignore(&self) -> bool {
        let ignoring = &self.ignoring;
        !ignoring.sources.is_empty()
            || !ignoring.ignored.is_nothing()
            || ignoring.has_withheld()
            || ignoring.said != Sources::default()
    }

    /// Reads the rules in force when the engine starts. If the files differ by now, their rules
    /// come into force with the next fold.
    pub(super) fn load_rules(&mut self) -> Result<(), EngineError> {
        let Stage::Unread(here) = self.ignoring.stage else {
            return Ok(());
        };
        let landing = &*self.parts.landing;
        let page = |directory, after: Option<&ByteString>| page_now(landing, directory, after);
        let found = StatedRules::by(&page, &*self.parts.tree)?;
        let noted = match here {
            // Nothing was sent by any rules.
            LocalTree::New => None,
            LocalTree::Known => Some(Sources::read(&*self.parts.dir).map_err(of_file)?.unwrap_or_default()),
        };
        let is_other = noted.as_ref().is_some_and(|noted| *noted != found.said);
        let said = match noted {
            Some(noted) => noted,
            None => {
                found.said.note(&self.parts.dir).map_err(of_file)?;
                found.said
            }
        };
        self.ignoring.ignored.rules = said.rules();
        self.ignoring.said = said;
        self.ignoring.sources = found.files;
        self.ignoring.tell(Step::Loaded(match is_other {
            true => Files::Due,
            false => Files::Read,
        }));
        self.withheld_changed();
        self.left_out_changed();
        self.tell_ignored();
        if is_other || self.may_ignore() {
            // Nodes that changed while no engine ran may be on the other side by now.
            self.parts.live.fold();
        }
        Ok(())
    }

    /// Names at which the server has something that is ignored.
    fn taken(&self) -> BTreeSet<Place<NodeId>> {
        let ignored = |left_out: &&LeftOut| left_out.is_ignored && !left_out.is_due;
        let left_out = self.arrivals.left_out.noted().iter().filter(ignored);
        let taken = left_out.filter_map(|left_out| {
            let parent = self.identities.node_of(left_out.parent)?;
            let name = left_out.name.clone();
            Some(Place { parent, name })
        });
        taken.collect()
    }

    /// Updates everything that follows from the list of left-out names.
    pub(super) fn left_out_changed(&mut self) {
        self.ignoring.ignored.taken = self.taken();
        self.tell_left_out();
    }

    fn withheld_changed(&mut self) {
        self.ignoring.withheld = self.identities.all_withheld().count() as u64;
    }

    /// Publishes the rules, and those that are unusable.
    fn tell_ignored(&self) {
        let said = &self.ignoring.said;
        let files: Vec<Vec<u8>> = said.texts.keys().cloned().collect();
        let caches: Vec<Vec<u8>> = said.caches.iter().cloned().collect();
        let unusable = self.ignoring.ignored.rules.unusable().cloned().collect();
        self.shared.ignored((files, caches), unusable, self.ignoring.withheld);
    }

    /// Whether a name that was left out as ignored can be let in.
    pub(super) fn is_ignoring_over(&self) -> bool {
        let mut noted = self.arrivals.left_out.noted().iter();
        noted.any(|left_out| left_out.is_due)
    }

    /// Draws a file ID that no one has seen.
    fn fresh(&self) -> Result<FileId, BackupError> {
        let halves = (self.parts.randomness.next_u64(), self.parts.randomness.next_u64());
        let (Ok(high), Ok(low)) = halves else {
            return Err(ServiceError::new(ErrorKind::Refused, "the system provides no random numbers").into());
        };
        Ok(FileId((u128::from(high) << 64) | u128::from(low)))
    }

    pub(super) fn is_withheld(&self, node: NodeId) -> bool {
        self.identities.withheld(node).is_some()
    }

    /// Whether the server has not heard of a node, as far as that is known.
    fn is_unheard(&self, node: NodeId, new: &HashSet<NodeId>) -> bool {
        if self.is_withheld(node) {
            return true;
        }
        match self.identities.origin_of(node) {
            Some(origin) => origin.seq == 0 || Some(origin.file) != self.identities.file_of(node),
            None => !self.identities.is_bound(node) && new.contains(&node),
        }
    }

    /// Reviews a cut: see the module. `fold` gives names beside those that the log reports; `None`:
    /// nothing is to be sent from this cut. Returns whether something must be reported or let in
    /// before the fold can be sent.
    pub(super) fn review(&mut self, cut: CutId, fold: Option<&[NameChange<NodeId>]>) -> Result<bool, BackupError> {
        let tree = Arc::clone(&self.parts.tree);
        let reported = match fold {
            Some(also) => CutReport::at(&*tree, cut, &self.ignoring.sources, also)?,
            None => CutReport::default(),
        };
        self.ignoring.coming = None;
        self.ignoring.hidden.clear();
        self.ignoring.gone.clear();
        let cut_for = match fold {
            Some(_) => CutFor::Fold,
            None => CutFor::Landing,
        };
        let review = self.ignoring.stage.review(
            cut_for,
            &Changed {
                has_sources: reported.has_sources,
                has_moved: reported.has_moved,
                may_ignore: self.may_ignore(),
            },
        );
        if review == Review::Nothing {
            return Ok(false);
        }
        let page = |directory, after: Option<&ByteString>| tree.entries(cut, directory, after);
        // Until all that follows is durable.
        self.ignoring.tell(Step::ReviewBegins);
        if review == Review::WalkAndRead {
            let found = StatedRules::by(&page, &*tree)?;
            self.ignoring.sources = found.files;
            let (said, rules) = (found.said, found.rules);
            self.ignoring.coming = (said != self.ignoring.said).then_some(Coming { said, rules });
        }
        self.admit_moved_nodes(cut)?;
        let is_withheld = |node| self.is_withheld(node);
        let coming = self.ignoring.coming.as_ref().map(|coming| &coming.rules);
        let hides = |named: &Named<'_>| {
            let comes = |rules: &IgnoreRules| {
                rules.is_ignored(named.path, named.is_directory) && self.is_unheard(named.node, &reported.new)
            };
            self.ignoring
                .ignored
                .has_path(named.place, named.path, named.is_directory)
                || coming.is_some_and(comes)
        };
        let found = Hidden::look(&page, &hides, &is_withheld)?;
        let hiding = self.hiding(cut, &found)?;
        self.decide(cut, &found, &hiding, &reported)?;
        self.ignoring.tell(Step::Decided(review));
        if self.ignoring.stage.has_names_to_tell() {
            // A name of a file that has others, too, may have been ignored until now.
            self.ignoring.reported_again = self.linked_names(cut, &found)?;
        }
        let is_shown = self.withhold(&hiding, &found)?;
        self.ignoring.tell(Step::Reviewed(review));
        self.tell_ignored();
        Ok(is_shown || self.is_ignoring_over())
    }

    /// Before anything lands, withholds all nodes that are ignored by the rules in force: otherwise
    /// others' changes of them would be left out, and nothing would record that the nodes here lack
    /// them.
    pub(super) fn review_before_landing(&mut self) -> Result<(), EngineError> {
        if self.ignoring.stage.is_reviewed() || !self.may_ignore() {
            return Ok(());
        }
        let cut = self.parts.tree.cut(&CutRequest {
            anonymous: true,
            ..CutRequest::of("")
        })?;
        let reviewed = self.review(cut.cut, None);
        self.parts.tree.finish(cut.cut, &Outcome::Abandoned)?;
        if reviewed? {
            self.parts.live.fold();
        }
        Ok(())
    }

    /// Nodes that are ignored by all their names from now on.
    fn hiding(&self, cut: CutId, found: &Hidden) -> Result<BTreeSet<NodeId>, BackupError> {
        let mut new: Vec<(NodeId, usize)> = found.nodes.iter().map(|(node, names)| (*node, *names)).collect();
        new.retain(|(node, _)| !self.is_withheld(*node));
        new.sort_unstable();
        let mut hiding = BTreeSet::new();
        for some in new.chunks(NODES_AT_ONCE) {
            let nodes: Vec<NodeId> = some.iter().map(|(node, _)| *node).collect();
            let reported = self.parts.tree.names(cut, &nodes)?;
            let hidden = some
                .iter()
                .zip(reported)
                .filter(|((_, hidden), reported)| reported.names.len() <= *hidden);
            hiding.extend(hidden.map(|((node, _), _)| *node));
        }
        Ok(hiding)
    }

    /// Decides how ignored names at a cut are reported, by what the server has there: its files are
    /// left out, except directories that are elsewhere here by now, as each has only one name.
    fn decide(
        &mut self,
        cut: CutId,
        found: &Hidden,
        hiding: &BTreeSet<NodeId>,
        reported: &CutReport,
    ) -> Result<(), BackupError> {
        let mut hidden: HashSet<Place<NodeId>> = HashSet::new();
        let mut asked: BTreeMap<NodeId, BTreeMap<ByteString, Option<NodeId>>> = BTreeMap::new();
        for top in &found.tops {
            let place = Place {
                parent: top.parent,
                name: top.name.clone(),
            };
            let is_new = top.child.is_some_and(|child| hiding.contains(&child));
            if is_new || reported.names.contains_key(&place) {
                asked.entry(top.parent).or_default().insert(top.name.clone(), top.child);
            }
            hidden.insert(place);
        }
        let mut paths: HashMap<NodeId, Option<ByteString>> = HashMap::new();
        for place in reported
            .names
            .iter()
            .filter(|(_, child)| child.is_none())
            .map(|(place, _)| place)
        {
            let path = match paths.get(&place.parent) {
                Some(path) => path.clone(),
                None => {
                    let path = self.parts.tree.path(cut, place.parent)?;
                    paths.insert(place.parent, path.clone());
                    path
                }
            };
            let Some(path) = path else { continue };
            if self.is_any_ignored(place, path.as_bytes()) {
                asked.entry(place.parent).or_default().insert(place.name.clone(), None);
                hidden.insert(place.clone());
            }
        }
        let listed = self.listed(asked.keys().copied().filter(|parent| !hiding.contains(parent)))?;
        let mut left_out = self.arrivals.left_out.noted().to_vec();
        for (parent, names) in asked {
            let Some(there) = listed.get(&parent) else { continue };
            let directory = self.file_id(parent);
            for (name, child) in names {
                let Some((id, is_directory)) = there.get(&name).copied() else {
                    continue;
                };
                let mut noted = self.arrivals.left_out.noted().iter();
                if noted.any(|noted| noted.parent == directory && noted.name == name && noted.is_ignored) {
                    continue;
                }
                if is_directory && self.is_elsewhere(cut, id, child, hiding)? {
                    self.ignoring.gone.insert(Place { parent, name });
                } else {
                    left_out.retain(|noted| noted.parent != directory || noted.name != name);
                    left_out.push(ignored_name(directory, name, (id, is_directory)));
                }
            }
        }
        self.ignoring.hidden = hidden;
        self.arrivals.left_out.note(left_out).map_err(of_durable)?;
        self.left_out_changed();
        Ok(())
    }

    /// Whether a name that is not there is ignored, as a file or a directory.
    fn is_any_ignored(&self, place: &Place<NodeId>, directory: &[u8]) -> bool {
        let path = joined(directory, place.name.as_bytes());
        let comes = |is_directory| {
            let coming = self.ignoring.coming.as_ref();
            coming.is_some_and(|coming| coming.rules.is_ignored(&path, is_directory))
        };
        let in_force = |is_directory| self.ignoring.ignored.has_path(place, &path, is_directory);
        [true, false]
            .into_iter()
            .any(|is_directory| in_force(is_directory) || comes(is_directory))
    }

    /// Whether a directory of the server is seen here under another name than one that stands for
    /// `child` here.
    fn is_elsewhere(
        &self,
        cut: CutId,
        id: FileId,
        child: Option<NodeId>,
        hiding: &BTreeSet<NodeId>,
    ) -> Result<bool, BackupError> {
        let Some(node) = self.identities.node_of(id).filter(|node| Some(*node) != child) else {
            return Ok(false);
        };
        if self.is_withheld(node) || hiding.contains(&node) {
            return Ok(false);
        }
        let reported = self.parts.tree.names(cut, &[node])?;
        Ok(reported.iter().any(|reported| !reported.names.is_empty()))
    }

    /// Names of files that have several, and are not withheld.
    fn linked_names(&self, cut: CutId, found: &Hidden) -> Result<Vec<NameChange<NodeId>>, BackupError> {
        let mut names = Vec::new();
        let linked = found.linked.iter().copied();
        let linked: Vec<NodeId> = linked.filter(|node| !self.is_withheld(*node)).collect();
        for some in linked.chunks(NODES_AT_ONCE) {
            for (node, reported) in some.iter().zip(self.parts.tree.names(cut, some)?) {
                names.extend(reported.names.into_iter().map(|(parent, name)| NameChange {
                    parent,
                    name,
                    child: Some(*node),
                }));
            }
        }
        Ok(names)
    }

    /// How the reviewed fold reports a name.
    pub(super) fn reported_as(&self, change: &NameChange<NodeId>) -> ReportedAs {
        if !self.may_ignore() {
            return ReportedAs::Itself;
        }
        if self.is_withheld(change.parent) {
            return ReportedAs::Nothing;
        }
        let place = change.place();
        let ignoring = &self.ignoring;
        let is_withheld = || change.child.is_some_and(|child| self.is_withheld(child));
        match () {
            () if ignoring.gone.contains(&place) => ReportedAs::Gone,
            () if ignoring.hidden.contains(&place) || ignoring.ignored.taken.contains(&place) => ReportedAs::Nothing,
            () if is_withheld() => ReportedAs::Nothing,
            () => ReportedAs::Itself,
        }
    }

    /// Names that the reviewed fold reports again.
    pub(super) fn reported_again(&self) -> &[NameChange<NodeId>] {
        &self.ignoring.reported_again
    }

    /// Notes durably which nodes are withheld from now on, and which are not any more. Returns
    /// whether any node has to be reported.
    fn withhold(&mut self, hiding: &BTreeSet<NodeId>, found: &Hidden) -> Result<bool, BackupError> {
        let changes = self.withheld_by(hiding, found)?;
        for some in changes.chunks(NODES_AT_ONCE.saturating_mul(16)) {
            let nodes = some.iter().filter_map(|change| match change {
                IdentityChange::Bound { node, .. } => Some(*node),
                _ => None,
            });
            self.parts.landing.keep_numbers(&nodes.collect::<Vec<_>>())?;
            self.identities.change(some).map_err(of_durable)?;
        }
        self.withheld_changed();
        Ok(changes.iter().any(is_shown_by))
    }

    fn withheld_by(&self, hiding: &BTreeSet<NodeId>, found: &Hidden) -> Result<Vec<IdentityChange>, BackupError> {
        let mut changes = Vec::new();
        for node in hiding {
            changes.push(Withheld::Ignored.bound(*node, self.fresh()?));
        }
        // Directories held only for ignored nodes in them: one that holds anything else is shown,
        // and so are all above it.
        let mut shown: HashSet<NodeId> = found.shown_in.clone();
        for (node, parent) in &found.seen {
            if self.identities.withheld(*node) == Some(Withheld::Ignored) {
                shown.insert(*parent);
            }
        }
        let mut above: Vec<NodeId> = shown.iter().copied().collect();
        while let Some(node) = above.pop() {
            if let Some(parent) = found.seen.get(&node).filter(|parent| shown.insert(**parent)) {
                above.push(*parent);
            }
        }
        let mut holding = found.holding.clone();
        let mut above: Vec<NodeId> = holding.iter().copied().collect();
        while let Some(node) = above.pop() {
            let parent = found.seen.get(&node).filter(|_| !shown.contains(&node));
            if let Some(parent) = parent.filter(|parent| holding.insert(**parent)) {
                above.push(*parent);
            }
        }
        let mut seen: Vec<NodeId> = found.seen.keys().copied().collect();
        seen.sort_unstable();
        for node in seen {
            let is_held = self.identities.withheld(node) == Some(Withheld::Holding)
                && !shown.contains(&node)
                && holding.contains(&node);
            if is_held {
                continue;
            }
            let Some(file) = self.identities.file_of(node) else {
                continue;
            };
            let origin = Some(Origin { file, seq: 0 });
            changes.push(IdentityChange::Bound { node, file, origin });
        }
        // Nodes that are nowhere are gone.
        let is_there = |node: &NodeId| found.nodes.contains_key(node) || found.seen.contains_key(node);
        let gone = self.identities.all_withheld().filter(|node| !is_there(node));
        changes.extend(gone.map(IdentityChange::Forgotten));
        Ok(changes)
    }
}

/// Whether a node is not withheld any more.
fn is_shown_by(change: &IdentityChange) -> bool {
    match change {
        IdentityChange::Bound { origin, .. } => origin.is_some_and(|origin| origin.seq == 0),
        _ => false,
    }
}

fn page_now(
    landing: &dyn LandingTree,
    directory: NodeId,
    after: Option<&ByteString>,
) -> Result<Vec<DirEntry>, ServiceError> {
    // The directory may have been removed since its name was seen.
    match landing.entries(directory, after) {
        Err(_) if landing.look(directory)?.is_none() => Ok(Vec::new()),
        page => page,
    }
}

/// Error of a record that must be durable before anything is sent.
fn of_durable(error: impl Into<ReceiveError>) -> BackupError {
    match error.into() {
        ReceiveError::Sync(error) => error,
        error => ServiceError::new(ErrorKind::Log, error.to_string()).into(),
    }
}

fn of_durable_file(error: VersionedJsonError) -> BackupError {
    ServiceError::new(ErrorKind::Log, told_of_file(error)).into()
}

fn of_file(error: VersionedJsonError) -> EngineError {
    ServiceError::new(ErrorKind::Log, told_of_file(error)).into()
}

fn told_of_file(error: VersionedJsonError) -> String {
    match error {
        VersionedJsonError::Io(what, source) => {
            format!("cannot {what} the list of ignore rules: {source}")
        }
        VersionedJsonError::Damaged(why) => format!(
            "the list of ignore rules cannot be used ({why}). Stop it ('byteback umount DIR') and compare the folder \
             with the server, which removes nothing: byteback sync --start-over DIR"
        ),
    }
}
