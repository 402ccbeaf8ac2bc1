//! Brings others' changes into the tree here: from the cursor to a head, which is one moment of the
//! server's folder (DeltaCFS sections III-C and III-D).
//!
//! [`fetch`](crate::incoming::fetch) lists others' changes, merged over all their batches;
//! [`plan`](crate::incoming::plan) says which steps lead there from the state here; `walk` does
//! them while programs use the tree. If a program overtakes a step the plan is made anew for the
//! same head, until nothing is left. Only when all is durable does the caller move the cursor.
//!
//! **A landing that was begun is ended.** The head is durable before this is called for the first
//! time, and nothing is sent before the cursor has reached it: whatever moment a crash chooses, the
//! next start goes on with the same head.
//!
//! **Changes that wait to be sent** are left alone as long as nothing that lands concerns them.
//! Otherwise all waiting changes are folded: they will be sent in their state at that time, on top
//! of the head. From that moment the queue does not report what programs do, so all nodes of the
//! plan are watched from before they are looked at; a change that is noticed overtakes the plan.
//!
//! **A conflict** (the server has another version than the one that was changed here; the first
//! write wins) leaves two files: the server's under the name, ours under a conflict name, with an
//! identity of its own that stands on the content that it grew from. See [`conflicts`].
//!
//! **A name that this tree cannot hold** is left out, with all that is below it, and remembered
//! ([`left_out`]); its absence is not a removal. Nothing is overwritten: a file system that does
//! not tell it from another one (it folds cases, or spellings of a letter) is detected by comparing
//! the node that answers to the name with the one in the log. It is let in when that is over.
//!
//! **Blocked changes** (the file is immutable, append-only, being executed) leave the old state,
//! are noted with the state they stand on, and are tried again with each further landing, and once
//! in a while; everything else goes on. A node that was changed here, too, and cannot be moved out
//! of the way either, keeps its identity, and the engine sends nothing of it.
//!
//! **Ignored nodes** here are neither seen nor touched, and ignored names of the server are left
//! out in the same way, until they are not ignored any more. A node here under such a name counted
//! as new all the while, so that both are brought together like nodes that two machines made apart.
//!
//! Out of scope: deciding when; sending.

mod comparing;
pub mod conflicts;
mod here;
pub mod left_out;
pub(super) mod log_changes;
mod walk;

use byteback_model::{Attributes, ByteString, FileId, NodeId, NodeKind, Place, Seq};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use byteback_api::FolderName;
use byteback_control::{Landed, LandingTree, LiveTree, ServiceError, TreeService, WatchedNode};
use byteback_host::random::Randomness;
use byteback_oplog::TreeId;

use crate::identities::{Identities, IdentityChange, IdentityError};
use crate::ignore_rules::{CACHE_TAG_NAME, RULES_NAME};
use crate::ignored::{Ignored, joined, path_of};
use crate::incoming::fetch::Incoming;
use crate::incoming::plan::{
    Blocked, ConflictLabel, Given, Identity, NameChange, Need, NodeChange, Others, Outcome, Plan, PlanError, Step,
    is_name_on_its_way, plan,
};
use crate::patches::{PatchError, Patches};
use byteback_backup::BackupError;
use byteback_backup::{Event, Monitor, check_cancelled};
use byteback_client::ServerClient;
use byteback_client::ServerErrorKind;
use byteback_model::Origin;
use conflicts::{Conflicts, ConflictsError};
use here::{Memory, Seen};
use left_out::{BlockedChange, LeftOut, LeftOutError};
use walk::{BlockedAt, Walk, Walked, mend};

/// A plan is overtaken this often before all that waits is folded.
const OVERTAKEN_MAX: u32 = 3;

/// Reason why a name stays that itself could go.
const INSIDE: &str = "something in it cannot be changed, or it cannot get its new name";

/// Most requests for more knowledge by one plan.
const ASKED_MAX: u32 = 1000;

/// Others' changes cannot be brought here.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The server failed, or the landing was cancelled.
    #[error(transparent)]
    Sync(#[from] BackupError),
    /// The tree here failed.
    #[error("cannot apply the changes of other machines here: {0}")]
    Tree(#[from] ServiceError),
    /// The map of identities failed.
    #[error(transparent)]
    Identities(#[from] IdentityError),
    /// The store of contents on their way failed.
    #[error(transparent)]
    Patches(#[from] PatchError),
    /// The list of conflicts failed.
    #[error(transparent)]
    Conflicts(#[from] ConflictsError),
    /// The list of left-out names failed.
    #[error(transparent)]
    LeftOut(#[from] LeftOutError),
    /// The server's answer is not a tree, or has no end.
    #[error("{0}")]
    Hostile(String),
}

/// Result of a landing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Whether something here must be sent that the queue was not told of.
    pub has_unsent: bool,
    /// Names that this tree does not hold, in place of those that were left out before.
    pub left_out: Vec<LeftOut>,
    /// Whether the ignored nodes here may differ from now on.
    pub may_ignore_other: bool,
    /// Blocked changes, in place of those before.
    pub blocked: Vec<BlockedChange>,
}

/// State of a landing: see the module.
pub(super) struct Receive<'e> {
    pub(super) landing: &'e dyn LandingTree,
    pub(super) live: &'e dyn LiveTree,
    pub(super) tree: &'e dyn TreeService,
    pub(super) tree_id: TreeId,
    pub(super) server: &'e ServerClient,
    pub(super) folder: &'e FolderName,
    pub(super) identities: &'e mut Identities,
    pub(super) patches: &'e Patches,
    pub(super) conflicts: &'e mut Conflicts,
    pub(super) monitor: &'e dyn Monitor,
    pub(super) randomness: &'e dyn Randomness,
    /// This machine, for the names of conflicts.
    pub(super) host: String,
    /// Wall-clock time in ns since 1970, and seconds by which local time is east of UTC.
    pub(super) now: (i64, i64),
    /// Files whose contents of this head were written already.
    pub(super) landed: &'e mut BTreeSet<FileId>,
    /// Names that were left out so far.
    pub(super) left_out: &'e [LeftOut],
    /// Changes that were blocked so far: they are tried again.
    pub(super) blocked: &'e [BlockedChange],
    /// Rules and names that are ignored here.
    pub(super) ignored: &'e Ignored,
    /// Whether any node here is withheld.
    pub(super) has_withheld: bool,
    /// Files that state ignore rules.
    pub(super) sources: &'e HashSet<NodeId>,
    /// Whether this device's own batches come, too.
    pub(super) takes_own: bool,
    /// The newest batch of this device, or of others, that was heard of.
    pub(super) seen: Seq,
}

/// Names that the file system refuses.
#[derive(Default)]
struct Refused {
    all: BTreeSet<Place<FileId>>,
    /// Names that collide with another one here.
    colliding: BTreeSet<Place<FileId>>,
    /// Names that were refused once though nothing is in their way any more.
    once: BTreeSet<Place<FileId>>,
    /// Names that were left out before, and are not changed.
    kept: Vec<LeftOut>,
}

impl Receive<'_> {
    /// Brings the tree from `cursor` to `head`.
    ///
    /// # Errors
    /// It may be called again for the same head, whatever was done.
    pub(super) fn run(&mut self, cursor: Seq, head: Seq) -> Result<Received, ReceiveError> {
        if let Some(committed) = self.patches.pending()? {
            mend(self.landing, committed, self.live.status().is_folded)?;
        }
        let incoming = Incoming {
            server: self.server,
            folder: self.folder,
            cursor,
            head,
            takes_own: self.takes_own,
            monitor: self.monitor,
        };
        let mut others = incoming.others()?;
        self.take_later_times(&mut others)?;
        self.monitor.event(Event::ChangesToCome(others.count()));
        let times = self.times_before(&others)?;
        let label = ConflictLabel::new(&self.host, self.now.0.div_euclid(1_000_000_000), self.now.1);
        self.try_blocked_again(&mut others)?;
        let mut blocked = Blocked::default();
        let mut reasons: BTreeMap<FileId, String> = BTreeMap::new();
        let mut place_reasons: BTreeMap<Place<FileId>, String> = BTreeMap::new();
        let mut refused = self.left_out_before(&incoming, &mut others)?;
        let landing = self.landing;
        let mut watches: HashMap<NodeId, Box<dyn WatchedNode + '_>> = HashMap::new();
        let mut memory = Memory::default();
        let mut overtaken = 0;
        // Programs mostly close files in a moment: an open file counts once a step was overtaken.
        let mut counts_use = false;
        let mut reappeared = BTreeSet::new();
        let mut may_ignore_other = self.has_rules(&others);
        loop {
            check_cancelled(self.monitor)?;
            let is_folded = self.live.status().is_folded;
            if is_folded && watches.is_empty() {
                let about = self.concerned(&others);
                memory = Memory::default();
                watch(landing, about, &mut watches)?;
            }
            let plan = self.plan(
                &incoming,
                &mut others,
                (&refused.all, &blocked, &label),
                (&memory, counts_use),
            );
            let ended = memory.end_cut(self.tree);
            let plan = plan?;
            ended?;
            let about = self.subjects(&plan, (cursor, &others), (&memory, counts_use));
            if is_folded {
                let watched = watches.len();
                watch(landing, about.nodes.iter().chain(&about.parents).copied(), &mut watches)?;
                if watches.len() > watched {
                    // Nodes that were looked at before they were watched are looked at again.
                    memory = Memory::default();
                    continue;
                }
            } else if overtaken > OVERTAKEN_MAX || about.is_queued(landing) {
                self.live.fold();
                overtaken = 0;
                memory = Memory::default();
                continue;
            }
            reappeared.extend(plan.steps.iter().filter_map(|step| match step {
                Step::Make { id, .. } => Some(*id),
                // A directory that was removed here and made anew by a program.
                Step::Identity {
                    becomes,
                    kind: Identity::Theirs,
                    ..
                } => Some(*becomes),
                _ => None,
            }));
            let mut walk = Walk {
                landing,
                identities: &mut *self.identities,
                patches: self.patches,
                conflicts: &mut *self.conflicts,
                incoming,
                others: &others,
                landed: &mut *self.landed,
                watches: is_folded.then_some(&watches),
                sets: set_numbers(&landing.together()),
                now_ns: self.now.0,
                unbound: HashMap::new(),
                gone: Vec::new(),
                returned: BTreeSet::new(),
                has_undurable: false,
            };
            let walked = match walk.find_immovable(&plan, &blocked)? {
                Some((at, why)) => Walked::Blocked(at, why),
                None => walk.run(&plan)?,
            };
            match walked {
                Walked::All => {
                    for (directory, mtime_ns) in times {
                        landing.advance_time(directory, mtime_ns)?;
                    }
                    landing.sync()?;
                    may_ignore_other |= self.has_moved(&plan)?;
                    self.note_returned(&reappeared, &others)?;
                    return Ok(Received {
                        has_unsent: self.identities.has_unsent(),
                        left_out: refused.left_out(&plan),
                        may_ignore_other,
                        blocked: blocked_changes(&plan, &reasons, &place_reasons),
                    });
                }
                Walked::Overtaken => {
                    may_ignore_other |= self.has_moved(&plan)?;
                    overtaken += 1;
                    counts_use = true;
                }
                Walked::Refused(place) => self.refused(place, &mut refused)?,
                Walked::Blocked(at, why) => {
                    may_ignore_other |= self.has_moved(&plan)?;
                    // The path is shown beside it: keep the system's text, without path and number.
                    let message = why.message.rsplit(": ").next().unwrap_or_default();
                    let message = message.split(" (os error").next().unwrap_or_default().to_owned();
                    let is_news = match at {
                        BlockedAt::Place(place) => {
                            place_reasons.insert(place.clone(), message);
                            blocked.places.insert(place)
                        }
                        BlockedAt::Content(file) => {
                            reasons.insert(file, message);
                            blocked.contents.insert(file)
                        }
                    };
                    if !is_news {
                        return Err(why.into());
                    }
                }
            }
            watches.clear();
            memory = Memory::default();
        }
    }

    /// Treats blocked changes as if others had just made them.
    fn try_blocked_again(&self, others: &mut Others) -> Result<(), ReceiveError> {
        for change in self.blocked {
            match change {
                BlockedChange::Name {
                    parent,
                    name,
                    before,
                    after,
                    ..
                } => {
                    let (parent, name) = (*parent, name.clone());
                    let reported = NameChange {
                        before: *before,
                        after: *after,
                    };
                    // Here it is what it was, even if the server's name has changed since.
                    others.names.entry(Place { parent, name }).or_insert(reported).before = *before;
                }
                BlockedChange::Content { node, since, .. } => {
                    let (Some(before), Some(after)) = (self.there(*node, *since)?, self.there(*node, others.head)?)
                    else {
                        continue;
                    };
                    let (since, before) = (*since, Some(before));
                    let change = NodeChange {
                        since,
                        before,
                        after,
                        is_content_changed: true,
                    };
                    others.nodes.insert(*node, change);
                }
            }
        }
        Ok(())
    }

    /// A landing that was interrupted goes on for the head with which it began, even where this
    /// device has sent batches since. These would have been refused if they concerned others'
    /// changes up to that head, except directories of which they moved only the time. That time
    /// counts: otherwise it would be set back here, and never sent again.
    fn take_later_times(&self, others: &mut Others) -> Result<(), ReceiveError> {
        if self.seen <= others.head {
            return Ok(());
        }
        for (id, change) in &mut others.nodes {
            let Some(before) = &change.before else { continue };
            let moved = Attributes {
                mtime_ns: change.after.mtime_ns,
                ..before.clone()
            };
            let is_moved = before.mtime_ns != change.after.mtime_ns;
            if !is_moved || change.after.kind != byteback_model::NodeKind::Directory {
                continue;
            }
            if let Some(there) = self.there(*id, self.seen)? {
                match moved == change.after {
                    true => change.after = there,
                    false => change.after.mtime_ns = there.mtime_ns,
                }
            }
        }
        Ok(())
    }

    /// Times of the directories in which others changed names, and that are not new here.
    fn times_before(&self, others: &Others) -> Result<Vec<(NodeId, i128)>, ReceiveError> {
        let parents: BTreeSet<FileId> = others.names.keys().map(|place| place.parent).collect();
        let is_new = |id: &FileId| others.nodes.get(id).is_some_and(|change| change.before.is_none());
        let known = parents.into_iter().filter(|id| !is_new(id));
        let mut times = Vec::new();
        for directory in known.filter_map(|id| self.identities.node_of(id)) {
            if let Some(found) = self.landing.look(directory)? {
                times.push((directory, found.attributes.mtime_ns));
            }
        }
        Ok(times)
    }

    /// A node's attributes at the server at a moment, if it was there.
    fn there(&self, node: FileId, at: Seq) -> Result<Option<Attributes>, ReceiveError> {
        match self.server.node(self.folder, node, at) {
            Ok(there) => Ok(Some(there.attributes)),
            Err(error) if error.kind == ServerErrorKind::NotFound => Ok(None),
            Err(error) => Err(BackupError::from(error).into()),
        }
    }

    /// Names that were left out before still are, unless others changed them, or nothing is in
    /// their way any more: then they count as new.
    fn left_out_before(&self, incoming: &Incoming<'_>, others: &mut Others) -> Result<Refused, ReceiveError> {
        let mut refused = Refused::default();
        for left_out in self.left_out {
            let place = left_out.place();
            // It comes with its directory, or is gone.
            let Some(parent) = self.identities.node_of(left_out.parent) else {
                continue;
            };
            let is_blocked = |change: &BlockedChange| match change {
                BlockedChange::Name { parent, name, .. } => (*parent, name) == (left_out.parent, &left_out.name),
                BlockedChange::Content { .. } => false,
            };
            if self.blocked.iter().any(is_blocked) {
                // The blocked change is tried again.
                continue;
            }
            let heard = others.names.get(&place);
            if heard.is_some_and(|change| change.after != Some(left_out.node)) {
                continue;
            }
            if left_out.is_ignored {
                if left_out.is_due {
                    let (before, after) = (None, Some(left_out.node));
                    others.names.insert(place, NameChange { before, after });
                    if left_out.is_directory {
                        self.let_in(incoming, others, (parent, left_out))?;
                    }
                } else if heard.is_none() {
                    refused.kept.push(left_out.clone());
                }
                continue;
            }
            let name = left_out.name.clone();
            if left_out.collides && !self.landing.is_taken_by_another(&Place { parent, name })? {
                let (before, after) = (None, Some(left_out.node));
                others.names.entry(place).or_insert(NameChange { before, after });
                continue;
            }
            if heard.is_none() {
                refused.kept.push(left_out.clone());
            }
            if left_out.collides {
                refused.colliding.insert(place.clone());
            }
            refused.all.insert(place);
        }
        Ok(refused)
    }

    /// Treats the contents of a directory that was left out as ignored as new: some of its nodes
    /// may be here, under other identities, and those that become one with the server's are known
    /// from then on, whatever becomes of the rest.
    fn let_in(
        &self,
        incoming: &Incoming<'_>,
        others: &mut Others,
        (parent, left_out): (NodeId, &LeftOut),
    ) -> Result<(), ReceiveError> {
        let Some(above) = path_of(self.landing, parent)? else {
            return Ok(());
        };
        let mut seen = BTreeSet::new();
        let mut directories = vec![(left_out.node, joined(&above, left_out.name.as_bytes()))];
        while let Some((directory, path)) = directories.pop() {
            if !seen.insert(directory) {
                continue;
            }
            let need = Need {
                id: directory,
                entries: true,
            };
            incoming.ask(others, &[need])?;
            let news = others.reported.get(&directory).and_then(Option::as_ref);
            let entries = news.and_then(|news| news.entries.clone()).unwrap_or_default();
            for (name, child, attributes) in entries {
                let is_directory = attributes.kind == byteback_model::NodeKind::Directory;
                let path = joined(&path, &name);
                let place = Place {
                    parent: directory,
                    name: ByteString(name),
                };
                let (before, after) = (None, Some(child));
                others.names.entry(place).or_insert(NameChange { before, after });
                if is_directory && !self.ignored.rules.is_ignored(&path, true) {
                    directories.push((child, path));
                }
            }
        }
        Ok(())
    }

    /// The file system refused a name. If the colliding name is gone, it is tried once more.
    fn refused(&self, place: Place<FileId>, refused: &mut Refused) -> Result<(), ReceiveError> {
        let parent = self.identities.node_of(place.parent);
        let name = place.name.clone();
        let is_taken = match parent {
            Some(parent) => self.landing.is_taken_by_another(&Place { parent, name })?,
            None => false,
        };
        if is_taken {
            refused.colliding.insert(place.clone());
            refused.all.insert(place);
        } else if !refused.once.insert(place.clone()) {
            refused.all.insert(place);
        }
        Ok(())
    }

    fn seen<'s>(&'s self, (cursor, others): (Seq, &'s Others), (memory, counts_use): (&'s Memory, bool)) -> Seen<'s> {
        Seen {
            landing: self.landing,
            tree: self.tree,
            tree_id: self.tree_id,
            server: self.server,
            folder: self.folder,
            monitor: self.monitor,
            identities: self.identities,
            conflicts: self.conflicts,
            others,
            cursor,
            memory,
            ignored: self.ignored,
            has_withheld: self.has_withheld,
            counts_use,
        }
    }

    /// Whether others changed files that state ignore rules.
    fn has_rules(&self, others: &Others) -> bool {
        let mut names = others.names.keys();
        let mut nodes = others.nodes.keys().filter_map(|id| self.identities.node_of(*id));
        names.any(|place| is_source_name(&place.name)) || nodes.any(|node| self.sources.contains(&node))
    }

    /// Whether a step may have moved a node to where other rules count, or left only ignored names
    /// of it.
    fn has_moved(&self, plan: &Plan) -> Result<bool, ReceiveError> {
        if self.ignored.is_nothing() {
            return Ok(false);
        }
        // A file with rules goes with its directory, though no step names it.
        let is_source = |step: &Step| match step {
            Step::Remove { place, .. } => is_source_name(&place.name),
            Step::Rename { from, to, .. } => is_source_name(&from.name) || is_source_name(&to.name),
            _ => false,
        };
        if plan.steps.iter().any(is_source) {
            return Ok(true);
        }
        let root = self.identities.file_of(NodeId::ROOT);
        for step in &plan.steps {
            let (id, is_move) = match step {
                Step::Rename { id, from, replaces, .. } => {
                    let is_on_its_way = Some(from.parent) == root && is_name_on_its_way(from.name.as_bytes());
                    (replaces.unwrap_or(*id), !is_on_its_way)
                }
                Step::Remove { id, .. } => (*id, false),
                _ => continue,
            };
            let Some(node) = self.identities.node_of(id) else {
                continue;
            };
            let Some(found) = self.landing.look(node)? else {
                continue;
            };
            if !found.names.is_empty() && (found.kind != NodeKind::Directory || is_move) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn plan(
        &self,
        incoming: &Incoming<'_>,
        others: &mut Others,
        (refused, blocked, label): (&BTreeSet<Place<FileId>>, &Blocked, &ConflictLabel),
        (memory, counts_use): (&Memory, bool),
    ) -> Result<Plan, ReceiveError> {
        for _ in 0..ASKED_MAX {
            let given = Given {
                landed: self.landed,
                refused,
                blocked,
                label,
            };
            let mut is_random = true;
            let mut fresh = || {
                let halves = (self.randomness.next_u64(), self.randomness.next_u64());
                is_random &= halves.0.is_ok() && halves.1.is_ok();
                let (high, low) = (halves.0.unwrap_or(0), halves.1.unwrap_or(0));
                FileId((u128::from(high) << 64) | u128::from(low))
            };
            let planned = plan(
                others,
                &self.seen((incoming.cursor, others), (memory, counts_use)),
                &given,
                &mut fresh,
            );
            if !is_random {
                return Err(ReceiveError::Hostile("no random numbers available".to_owned()));
            }
            match planned {
                Ok(plan) => return Ok(plan),
                Err(PlanError::Needs(needs)) => incoming.ask(others, &needs)?,
                Err(PlanError::Tree(error)) => {
                    return Err(match memory.take_failure() {
                        Some(failure) => failure.into(),
                        None => error.into(),
                    });
                }
                Err(PlanError::Hostile(why)) => {
                    return Err(ReceiveError::Hostile(format!(
                        "the server's answer cannot be trusted: {why}; none of it was used"
                    )));
                }
            }
        }
        Err(ReceiveError::Hostile("the server's answers do not end".to_owned()))
    }

    /// Notes directories that came back for what others put into them: they were made here, or
    /// became the server's, but others did not make them. The log knows unsent removals and moves
    /// out of them by the directory's former number; so each is reported with all entries until the
    /// server has it.
    fn note_returned(&mut self, made: &BTreeSet<FileId>, others: &Others) -> Result<(), ReceiveError> {
        let mut changes = Vec::new();
        for file in made {
            let is_new = others.nodes.get(file).is_some_and(|change| change.before.is_none());
            let Some(node) = self.identities.node_of(*file).filter(|_| !is_new) else {
                continue;
            };
            let found = self.landing.look(node)?;
            if found.is_some_and(|found| found.kind == NodeKind::Directory) {
                let (file, seq) = (*file, others.head);
                let origin = Some(Origin { file, seq });
                changes.push(IdentityChange::Bound { node, file, origin });
            }
        }
        Ok(self.identities.change(&changes)?)
    }

    /// The nodes here that others changed or renamed, and the directories of those names.
    fn concerned(&self, others: &Others) -> Vec<NodeId> {
        let nodes = others.nodes.keys().copied();
        let names = others.names.iter();
        let names = names.flat_map(|(place, change)| [Some(place.parent), change.before, change.after]);
        let concerned: BTreeSet<FileId> = nodes.chain(names.flatten()).collect();
        let here = concerned.into_iter().filter_map(|id| self.identities.node_of(id));
        here.collect()
    }

    /// Nodes and names of the tree here that the steps of a plan concern.
    fn subjects(&self, plan: &Plan, (cursor, others): (Seq, &Others), memory: (&Memory, bool)) -> Subjects {
        let seen = self.seen((cursor, others), memory);
        let mut subjects = Subjects::default();
        // Identities come first: a node that gets another one is meant by both.
        let mut was = HashMap::new();
        let node_of = |id: &FileId, was: &HashMap<FileId, FileId>| seen.node_of(*was.get(id).unwrap_or(id));
        for step in &plan.steps {
            let (ids, places): (Vec<FileId>, Vec<&Place<FileId>>) = match step {
                Step::Identity {
                    was: before, becomes, ..
                } => {
                    was.insert(*becomes, *before);
                    (vec![*before], vec![])
                }
                Step::Make { place, .. } => (vec![], vec![place]),
                Step::Content { id, .. } | Step::Attributes { id, .. } => (vec![*id], vec![]),
                Step::Link { id, place } | Step::Remove { id, place } => (vec![*id], vec![place]),
                // A displacement is a change of this machine.
                Step::Rename { is_local: true, .. } => continue,
                Step::Rename {
                    id, from, to, replaces, ..
                } => ([*id].into_iter().chain(*replaces).collect(), vec![from, to]),
            };
            subjects.nodes.extend(ids.iter().filter_map(|id| node_of(id, &was)));
            for place in places {
                let Some(parent) = node_of(&place.parent, &was) else {
                    continue;
                };
                let name = place.name.clone();
                if parent != NodeId::ROOT || !is_name_on_its_way(name.as_bytes()) {
                    subjects.parents.insert(parent);
                    subjects.places.insert(Place { parent, name });
                }
            }
        }
        subjects
    }
}

impl Refused {
    /// Names that a plan leaves out, and those that stay left out.
    fn left_out(self, plan: &Plan) -> Vec<LeftOut> {
        let kept = self.kept.into_iter().map(|kept| (kept.place(), kept));
        let mut left_out: BTreeMap<Place<FileId>, LeftOut> = kept.collect();
        for outcome in &plan.outcomes {
            if let Outcome::LeftOut {
                place, node, ignored, ..
            } = outcome
            {
                let reported = LeftOut {
                    parent: place.parent,
                    name: place.name.clone(),
                    node: *node,
                    collides: self.colliding.contains(place),
                    is_ignored: ignored.is_some(),
                    is_directory: ignored.unwrap_or(false),
                    is_due: false,
                };
                left_out.insert(place.clone(), reported);
            }
        }
        left_out.into_values().collect()
    }
}

/// Changes that a plan has passed over, as they are blocked.
fn blocked_changes(
    plan: &Plan,
    reasons: &BTreeMap<FileId, String>,
    place_reasons: &BTreeMap<Place<FileId>, String>,
) -> Vec<BlockedChange> {
    let mut changes = Vec::new();
    for outcome in &plan.outcomes {
        match outcome {
            Outcome::BlockedName { place, before, after } => changes.push(BlockedChange::Name {
                parent: place.parent,
                name: place.name.clone(),
                before: *before,
                after: *after,
                why: place_reasons.get(place).cloned().unwrap_or_else(|| INSIDE.to_owned()),
            }),
            Outcome::BlockedContent { node, since } => changes.push(BlockedChange::Content {
                node: *node,
                since: *since,
                why: reasons.get(node).cloned().unwrap_or_default(),
            }),
            _ => {}
        }
    }
    changes
}

/// Nodes and names that the steps of a plan concern; only those that are here.
#[derive(Default)]
struct Subjects {
    nodes: BTreeSet<NodeId>,
    places: BTreeSet<Place<NodeId>>,
    parents: BTreeSet<NodeId>,
}

impl Subjects {
    /// Whether any of them waits to be sent.
    fn is_queued(&self, landing: &dyn LandingTree) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| landing.is_node_queued(*node)) || self.places.iter().any(|place| landing.is_name_queued(place))
    }
}

/// Numbers the sets of nodes that were changed together, directly or by way of others: the smallest
/// number of their nodes.
fn set_numbers(sets: &[Vec<NodeId>]) -> HashMap<NodeId, u64> {
    let mut numbers: HashMap<NodeId, u64> = HashMap::new();
    loop {
        let mut is_news = false;
        for set in sets {
            let known = set.iter().map(|node| numbers.get(node).copied().unwrap_or(node.0));
            let Some(smallest) = known.min() else { continue };
            for node in set {
                is_news |= numbers.insert(*node, smallest) != Some(smallest);
            }
        }
        if !is_news {
            return numbers;
        }
    }
}

/// Whether a file of this name states ignore rules.
pub(super) fn is_source_name(name: &ByteString) -> bool {
    [RULES_NAME, CACHE_TAG_NAME].contains(&name.as_bytes())
}

fn watch<'t>(
    landing: &'t dyn LandingTree,
    nodes: impl IntoIterator<Item = NodeId>,
    watches: &mut HashMap<NodeId, Box<dyn WatchedNode + 't>>,
) -> Result<(), ReceiveError> {
    for node in nodes {
        if watches.contains_key(&node) || landing.look(node)?.is_none() {
            continue;
        }
        if let Landed::Done(watch) = landing.watch(node)? {
            watches.insert(node, watch);
        }
    }
    Ok(())
}
