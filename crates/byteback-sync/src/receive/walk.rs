//! Does the steps of a plan in the tree.
//!
//! **Order of the durable steps.** A new node is bound to its identity before anything but the
//! node's own content follows; contents of new files are durable before these get their names, so
//! that no name shows half a file after a crash. Contents of files that are here already go through
//! [`Patches`]: aside, durable; into the files; durable; forgotten.
//!
//! Each change of the identities costs a sync, so they are made together: consecutive identity
//! steps, new nodes, and removed nodes. A removal may be noted late, as the node cannot be found
//! after a crash.

use byteback_model::{FileId, NodeId, Place};
use std::collections::{BTreeSet, HashMap};
use std::io::BufReader;

use byteback_control::{
    ErrorKind, Expected, Landed, LandingTree, ServiceError, WatchedFile, WatchedNode, overtaken_in,
};
use byteback_delta::bundle::ShortContent;
use byteback_delta::{Base, DeltaReader, apply_in_place};

use super::ReceiveError;
use super::conflicts::{Conflict, Conflicts};
use crate::identities::{Identities, IdentityChange, Withheld};
use crate::incoming::fetch::Incoming;
use crate::incoming::plan::{
    Blocked, ContentFrom, Identity, Others, Outcome, Plan, Step, is_name_on_its_way, name_on_its_way,
};
use crate::patches::{Committed, Patches};
use byteback_backup::{Event, check_cancelled, with_causes};
use byteback_model::Origin;

type Result<T> = std::result::Result<T, ReceiveError>;

/// Files whose contents land as one set; each is open meanwhile.
const SET_FILES_MAX: usize = 128;

/// Nodes that are made before their identities are made durable.
const UNBOUND_MAX: usize = 4096;

/// How far a plan was done.
#[derive(Debug)]
pub(super) enum Walked {
    /// All of it.
    All,
    /// A program overtook a step.
    Overtaken,
    /// This name cannot be here.
    Refused(Place<FileId>),
    /// This is blocked, for this reason.
    Blocked(BlockedAt, ServiceError),
}

/// The object of a blocked change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockedAt {
    /// A name.
    Place(Place<FileId>),
    /// The content of a file.
    Content(FileId),
}

/// State of one walk: see the module.
pub(super) struct Walk<'a, 'w> {
    pub(super) landing: &'a dyn LandingTree,
    pub(super) identities: &'a mut Identities,
    pub(super) patches: &'a Patches,
    pub(super) conflicts: &'a mut Conflicts,
    pub(super) incoming: Incoming<'a>,
    pub(super) others: &'a Others,
    /// Files whose contents of the head are written.
    pub(super) landed: &'a mut BTreeSet<FileId>,
    /// Set if the waiting changes are folded: these watches must have noticed nothing.
    pub(super) watches: Option<&'w HashMap<NodeId, Box<dyn WatchedNode + 'w>>>,
    /// Numbers of the sets of files that were changed together, in one atomic operation.
    pub(super) sets: HashMap<NodeId, u64>,
    pub(super) now_ns: i64,
    /// Nodes that were made and are not bound durably.
    pub(super) unbound: HashMap<FileId, NodeId>,
    /// Nodes that lost their last name and are not forgotten durably.
    pub(super) gone: Vec<NodeId>,
    /// Directories that were made here but not by others: they came back.
    pub(super) returned: BTreeSet<FileId>,
    /// Whether contents were written that no name shows yet.
    pub(super) has_undurable: bool,
}

/// Reason why a step was not done.
enum Stop {
    Overtaken,
    Refused(Place<FileId>),
    Blocked(BlockedAt, ServiceError),
    Failed(ReceiveError),
}

impl<E: Into<ReceiveError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Result of a step at a name: an impossible one is left out, a failed one fails.
fn at_name<T>(landed: byteback_control::Result<Landed<T>>, place: &Place<FileId>) -> std::result::Result<T, Stop> {
    match landed {
        Err(error) if error.kind == ErrorKind::Impossible => Err(Stop::Refused(place.clone())),
        landed => at_blockable(landed, place),
    }
}

/// Result of a step at a name that others changed: a blocked one is passed over.
fn at_blockable<T>(landed: byteback_control::Result<Landed<T>>, place: &Place<FileId>) -> std::result::Result<T, Stop> {
    match landed {
        // A name on its way is not one of theirs.
        Err(error) if error.kind == ErrorKind::Blocked && !is_name_on_its_way(place.name.as_bytes()) => {
            Err(Stop::Blocked(BlockedAt::Place(place.clone()), error))
        }
        landed => done(landed),
    }
}

fn done<T>(landed: byteback_control::Result<Landed<T>>) -> std::result::Result<T, Stop> {
    match landed {
        Ok(Landed::Done(done)) => Ok(done),
        Ok(Landed::Overtaken(_)) => Err(Stop::Overtaken),
        Err(error) => Err(ReceiveError::Tree(error).into()),
    }
}

/// A file into which a content lands.
struct Opened<'w> {
    id: FileId,
    node: NodeId,
    file: Box<dyn WatchedFile + 'w>,
}

impl<'a, 'w> Walk<'a, 'w> {
    pub(super) fn run(&mut self, plan: &Plan) -> Result<Walked> {
        let walked = self.steps(plan);
        let bound = self.forget().and_then(|()| self.bind());
        match walked {
            Ok(()) => bound.map(|()| Walked::All),
            Err(Stop::Overtaken) => bound.map(|()| Walked::Overtaken),
            Err(Stop::Refused(place)) => bound.map(|()| Walked::Refused(place)),
            Err(Stop::Blocked(at, why)) => bound.map(|()| Walked::Blocked(at, why)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// The first file that a plan moves out of the way and that cannot be moved. It must be found
    /// before the plan begins: once it has another identity, which comes first, it would stay under
    /// the server's name as a file that the server has never had.
    pub(super) fn find_immovable(&self, plan: &Plan, blocked: &Blocked) -> Result<Option<(BlockedAt, ServiceError)>> {
        let mut was = HashMap::new();
        for step in &plan.steps {
            match step {
                Step::Identity {
                    was: before,
                    becomes,
                    kind,
                } => {
                    was.insert(*becomes, (*before, *kind));
                }
                Step::Rename {
                    id,
                    from,
                    is_local: true,
                    ..
                } if !is_name_on_its_way(from.name.as_bytes()) => {
                    let inner = |id: &FileId| was.get(id).map_or(*id, |(before, _)| *before);
                    let of_node = |id: &FileId| self.identities.node_of(inner(id));
                    let (Some(node), Some(parent)) = (of_node(id), of_node(&from.parent)) else {
                        continue;
                    };
                    let name = from.name.clone();
                    match self.landing.check_removable(node, &Place { parent, name }) {
                        Err(error) if error.kind == ErrorKind::Blocked => {
                            // Others have changed its content, or else the node its name stands
                            // for.
                            let is_changed = |file: &FileId| {
                                let change = self.others.nodes.get(file);
                                change.is_some_and(|change| change.is_content_changed && change.before.is_some())
                            };
                            let at = match was.get(id) {
                                Some((before, Identity::New(_)))
                                    if is_changed(before) && !blocked.contents.contains(before) =>
                                {
                                    BlockedAt::Content(*before)
                                }
                                _ => BlockedAt::Place(from.clone()),
                            };
                            return Ok(Some((at, error)));
                        }
                        checked => checked.map(drop)?,
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn steps(&mut self, plan: &Plan) -> std::result::Result<(), Stop> {
        let mut steps = plan.steps.as_slice();
        while let Some((step, rest)) = steps.split_first() {
            check_cancelled(self.incoming.monitor)?;
            self.incoming.monitor.event(Event::ChangesToCome(steps.len() as u64));
            match step {
                Step::Make { .. } | Step::Attributes { .. } => {}
                Step::Identity { .. } => {
                    let is_identity = |step: &&Step| matches!(step, Step::Identity { .. });
                    let count = steps.iter().take_while(is_identity).take(UNBOUND_MAX).count();
                    let (identities, behind) = steps.split_at(count);
                    self.settle()?;
                    self.identities(identities)?;
                    steps = behind;
                    continue;
                }
                Step::Content { .. } => {
                    let is_content = |step: &&Step| matches!(step, Step::Content { .. });
                    let count = steps.iter().take_while(is_content).take(SET_FILES_MAX).count();
                    let (contents, behind) = steps.split_at(count);
                    self.bind()?;
                    self.contents(contents)?;
                    steps = behind;
                    continue;
                }
                _ => self.settle()?,
            }
            if self.unbound.len() >= UNBOUND_MAX {
                self.bind()?;
            }
            self.step(step, plan)?;
            steps = rest;
        }
        Ok(())
    }

    /// Binds new nodes, and makes the contents written into them durable.
    fn settle(&mut self) -> Result<()> {
        self.bind()?;
        if self.has_undurable {
            self.landing.sync()?;
            self.has_undurable = false;
        }
        Ok(())
    }

    /// Binds new nodes.
    fn bind(&mut self) -> Result<()> {
        if self.unbound.is_empty() {
            return Ok(());
        }
        // A name that comes back must not be another node's by then.
        self.forget()?;
        // A number that a crash takes back must not be bound: the node would be here a second time,
        // under a number that nothing knows.
        let made: Vec<NodeId> = self.unbound.values().copied().collect();
        self.landing.keep_numbers(&made)?;
        let mut changes = Vec::new();
        for (file, node) in self.unbound.drain() {
            let holder = self.identities.node_of(file).filter(|holder| *holder != node);
            changes.extend(holder.map(IdentityChange::Forgotten));
            // Even if the landing is interrupted, it is known from here on that the node came back,
            // see `note_returned`.
            let seq = self.others.head;
            let origin = self.returned.contains(&file).then_some(Origin { file, seq });
            changes.push(IdentityChange::Bound { node, file, origin });
        }
        self.identities.change(&changes)?;
        Ok(())
    }

    /// Whether others made a node since the cursor.
    fn is_new_there(&self, id: FileId) -> bool {
        let change = self.others.nodes.get(&id);
        change.is_some_and(|change| change.before.is_none())
    }

    fn node_of(&self, id: FileId) -> std::result::Result<NodeId, Stop> {
        let made = self.unbound.get(&id).copied();
        // A node that is not here any more was removed by a program meanwhile.
        made.or_else(|| self.identities.node_of(id)).ok_or(Stop::Overtaken)
    }

    fn place_of(&self, place: &Place<FileId>) -> std::result::Result<Place<NodeId>, Stop> {
        Ok(Place {
            parent: self.node_of(place.parent)?,
            name: place.name.clone(),
        })
    }

    /// Does a step on these nodes and names. Where none of them waits, the queue is the better
    /// watch: it ignores what else happens in a directory.
    fn expecting<T>(
        &self,
        (nodes, loses): (&[NodeId], Option<NodeId>),
        places: &[&Place<NodeId>],
        step: impl FnOnce(&'a dyn LandingTree, Expected<'_>) -> T,
    ) -> T {
        let is_queued = || {
            loses.is_some()
                || nodes.iter().any(|node| self.landing.is_node_queued(*node))
                || places.iter().any(|place| self.landing.is_name_queued(place))
        };
        let Some(watches) = self.watches.filter(|_| is_queued()) else {
            return step(self.landing, Expected::Unqueued);
        };
        let is_on_its_way =
            |place: &Place<NodeId>| place.parent == NodeId::ROOT && is_name_on_its_way(place.name.as_bytes());
        let places = places.iter().filter(|place| !is_on_its_way(place));
        let about = nodes
            .iter()
            .copied()
            .chain(loses)
            .chain(places.map(|place| place.parent));
        let watches: Vec<&dyn WatchedNode> = about
            .filter_map(|node| watches.get(&node))
            .map(|watch| &**watch as &dyn WatchedNode)
            .collect();
        step(self.landing, Expected::Folded(&watches))
    }

    fn step(&mut self, step: &Step, plan: &Plan) -> std::result::Result<(), Stop> {
        match step {
            Step::Identity { .. } => self.identities(std::slice::from_ref(step)),
            Step::Make { id, place, attributes } => {
                let at = self.place_of(place)?;
                let made = self.expecting((&[], None), &[&at], |landing, expected| {
                    landing.make(&at, attributes, expected)
                });
                let (node, _missed) = at_name(made, place)?;
                self.landed.remove(id);
                if attributes.kind == byteback_model::NodeKind::Directory && !self.is_new_there(*id) {
                    self.returned.insert(*id);
                }
                self.unbound.insert(*id, node);
                self.has_undurable = true;
                Ok(())
            }
            Step::Content { .. } => Ok(()),
            Step::Attributes { id, attributes } => {
                let node = self.node_of(*id)?;
                let set = self.expecting((&[node], None), &[], |landing, expected| {
                    landing.set_attributes(node, attributes, expected)
                });
                // Attributes that cannot be set here (an owner, without the right to give it) are
                // left as they are.
                done(set).map(|_missed| ())
            }
            Step::Link { id, place } => {
                let (node, at) = (self.node_of(*id)?, self.place_of(place)?);
                let linked = self.expecting((&[node], None), &[&at], |landing, expected| {
                    landing.link(node, &at, expected)
                });
                at_name(linked, place)
            }
            Step::Rename {
                id,
                from,
                to,
                is_local: true,
                leaves_old,
                ..
            } => {
                let (node, old, new) = (self.node_of(*id)?, self.place_of(from)?, self.place_of(to)?);
                self.note_conflict(plan, to, node)?;
                match self.landing.displace(node, &old, &new, *leaves_old) {
                    // The file stays under its name, and the server's is left out.
                    Err(error) if error.kind == ErrorKind::Blocked => {
                        Err(Stop::Blocked(BlockedAt::Place(from.clone()), error))
                    }
                    displaced => at_name(displaced, to),
                }
            }
            Step::Rename {
                id, from, to, replaces, ..
            } => {
                let (node, old, new) = (self.node_of(*id)?, self.place_of(from)?, self.place_of(to)?);
                let replaced = replaces.map(|replaced| self.node_of(replaced)).transpose()?;
                let renamed = self.expecting((&[node], replaced), &[&old, &new], |landing, expected| {
                    landing.rename(node, &old, &new, replaced, expected)
                });
                // Parking failed: the old name is what is blocked, not the name on its way.
                let is_parked = is_name_on_its_way(to.name.as_bytes());
                match at_name(renamed, if is_parked { from } else { to }) {
                    // It may be in its own way, if only its spelling changes.
                    Err(Stop::Refused(_)) if from.parent == to.parent && replaced.is_none() => {
                        self.respell(*id, (node, &old, &new), to)?;
                    }
                    renamed => renamed?,
                }
                self.forget_if_gone(replaced)
            }
            Step::Remove { id, place } => {
                let (node, at) = (self.node_of(*id)?, self.place_of(place)?);
                let removed = self.expecting((&[node], Some(node)), &[&at], |landing, expected| {
                    landing.remove(&at, node, expected)
                });
                at_blockable(removed, place)?;
                self.forget_if_gone(Some(node))
            }
        }
    }

    /// Gives a node a name that the file system does not tell from the one that it has, by way of
    /// another one.
    fn respell(
        &self,
        id: FileId,
        (node, old, new): (NodeId, &Place<NodeId>, &Place<NodeId>),
        to: &Place<FileId>,
    ) -> std::result::Result<(), Stop> {
        let aside = Place {
            parent: NodeId::ROOT,
            name: name_on_its_way(id, false).into(),
        };
        let rename = |from: &Place<NodeId>, to: &Place<NodeId>| {
            self.expecting((&[node], None), &[from, to], |landing, expected| {
                landing.rename(node, from, to, None, expected)
            })
        };
        done(rename(old, &aside))?;
        let respelled = at_name(rename(&aside, new), to);
        if respelled.is_err() {
            // Another node is in its way. If this fails, too, it is found under its name on the
            // way.
            done(rename(&aside, old))?;
        }
        respelled
    }

    fn forget_if_gone(&mut self, node: Option<NodeId>) -> std::result::Result<(), Stop> {
        let Some(node) = node.filter(|node| self.identities.is_bound(*node)) else {
            return Ok(());
        };
        if self.landing.look(node)?.is_none_or(|found| found.names.is_empty()) {
            self.gone.push(node);
        }
        if self.gone.len() >= UNBOUND_MAX {
            self.forget()?;
        }
        Ok(())
    }

    /// Forgets nodes that are gone.
    fn forget(&mut self) -> Result<()> {
        let gone = std::mem::take(&mut self.gone).into_iter();
        let gone: Vec<_> = gone.map(IdentityChange::Forgotten).collect();
        Ok(self.identities.change(&gone)?)
    }

    /// Gives nodes their new identities, one after the other, with one sync.
    fn identities(&mut self, steps: &[Step]) -> std::result::Result<(), Stop> {
        self.forget()?;
        let mut changes = Vec::new();
        // Holders of identities after the changes so far.
        let mut holders: HashMap<FileId, Option<NodeId>> = HashMap::new();
        let mut theirs = Vec::new();
        for step in steps {
            let Step::Identity { was, becomes, kind } = step else {
                continue;
            };
            let node = match holders.get(was) {
                Some(holder) => holder.ok_or(Stop::Overtaken)?,
                None => self.node_of(*was)?,
            };
            let origin = self.origin_of((node, *was), *becomes, *kind)?;
            let holder = match holders.get(becomes) {
                Some(holder) => *holder,
                None => self.identities.node_of(*becomes),
            };
            let other = holder.filter(|holder| *holder != node);
            changes.extend(other.map(IdentityChange::Forgotten));
            let file = *becomes;
            changes.push(match kind {
                Identity::Withheld => Withheld::Holding.bound(node, file),
                _ => IdentityChange::Bound { node, file, origin },
            });
            holders.insert(*was, None);
            holders.insert(file, Some(node));
            if *kind == Identity::Theirs {
                theirs.push(file);
            }
        }
        self.identities.change(&changes)?;
        // These files have the content of the head.
        self.landed.extend(theirs);
        Ok(())
    }

    /// The origin of a node that gets another identity.
    fn origin_of(
        &self,
        (node, was): (NodeId, FileId),
        becomes: FileId,
        kind: Identity,
    ) -> std::result::Result<Option<Origin>, Stop> {
        Ok(match kind {
            Identity::Theirs if self.is_new_there(becomes) => None,
            Identity::Theirs => {
                let found = self.landing.look(node)?;
                let is_directory = found.is_some_and(|found| found.kind == byteback_model::NodeKind::Directory);
                let seq = self.others.head;
                is_directory.then_some(Origin { file: becomes, seq })
            }
            Identity::New(seq) => Some(Origin { file: was, seq }),
            Identity::Withheld => None,
        })
    }

    /// Notes the node of a conflict name before there is one.
    fn note_conflict(&mut self, plan: &Plan, copy: &Place<FileId>, node: NodeId) -> Result<()> {
        let of = plan.outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Conflict { place, copy: name, .. } if name == copy => Some(place),
            _ => None,
        });
        let Some(of) = of else { return Ok(()) };
        self.conflicts.add(Conflict {
            node: node.0,
            name: of.name.clone(),
            copy: copy.name.clone(),
            at_ns: self.now_ns,
            set: self.sets.get(&node).copied(),
        })?;
        Ok(())
    }

    /// Lands the contents of consecutive steps.
    fn contents(&mut self, steps: &[Step]) -> std::result::Result<(), Stop> {
        let mut over: Vec<(Opened<'a>, ContentFrom)> = Vec::new();
        let new = steps.iter().filter_map(|step| match step {
            Step::Content {
                id,
                from: ContentFrom::Nothing,
            } => Some(*id),
            _ => None,
        });
        let mut short = self.incoming.short_contents(self.others, new)?;
        for step in steps {
            let Step::Content { id, from } = step else { continue };
            let node = self.node_of(*id)?;
            let file = self.expecting((&[node], None), &[], |landing, expected| {
                landing.watch_file(node, expected)
            });
            let file = match file {
                Err(error) if error.kind == ErrorKind::Blocked => {
                    return Err(Stop::Blocked(BlockedAt::Content(*id), error));
                }
                file => done(file)?,
            };
            let mut opened = Opened { id: *id, node, file };
            match from {
                // The file has no name of its own yet: after a crash it is written anew.
                ContentFrom::Nothing => match short.remove(id) {
                    Some(content) => self.write_short(&mut opened, &content)?,
                    None => self.write(&mut opened)?,
                },
                from => over.push((opened, *from)),
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        let mut gathering = self.patches.begin(self.others.head)?;
        for (opened, from) in &over {
            let base_len_bytes = Base::len_bytes(&opened.file).map_err(|error| unreadable(opened.node, &error))?;
            let mut delta = self.incoming.content(self.others, opened.id, *from, base_len_bytes)?;
            if let Err(error) = gathering.add(opened.node.0, &opened.file, &mut delta) {
                return Err(match delta.take_failure() {
                    Some(failure) => failure.into(),
                    None => error.into(),
                });
            }
        }
        let committed = gathering.commit()?;
        let mut overtaken = false;
        for (patch, (mut opened, _)) in committed.patches().iter().zip(over) {
            let applied = committed.apply(patch, &mut opened.file);
            // Programs see the bytes that the file has gained from here on.
            drop(opened.file);
            match applied {
                Ok(()) => {
                    self.landed.insert(opened.id);
                }
                // Nothing of it was changed.
                Err(error) if overtaken_in(&error).is_some() => overtaken = true,
                Err(error) => return Err(error.into()),
            }
        }
        self.landing.sync()?;
        committed.finish()?;
        match overtaken {
            true => Err(Stop::Overtaken),
            false => Ok(()),
        }
    }

    fn write(&mut self, opened: &mut Opened<'_>) -> std::result::Result<(), Stop> {
        let base_len_bytes = Base::len_bytes(&opened.file).map_err(|error| unreadable(opened.node, &error))?;
        let from = ContentFrom::Nothing;
        let delta = self.incoming.content(self.others, opened.id, from, base_len_bytes)?;
        let mut input = BufReader::new(delta);
        let written = DeltaReader::new(&mut input).map_err(byteback_delta::ApplyError::from);
        let written = written.and_then(|mut delta| apply_in_place(&mut delta, &mut opened.file));
        let failure = input.get_mut().take_failure();
        match (written, failure) {
            (_, Some(failure)) => Err(failure.into()),
            (written, None) => self.has_written(opened, written.map(|_| ())),
        }
    }

    fn write_short(&mut self, opened: &mut Opened<'_>, content: &ShortContent) -> std::result::Result<(), Stop> {
        let written = content.write_into(&mut opened.file);
        self.has_written(opened, written)
    }

    fn has_written<E: std::error::Error + 'static>(
        &mut self,
        opened: &Opened<'_>,
        written: std::result::Result<(), E>,
    ) -> std::result::Result<(), Stop> {
        match written {
            Ok(()) => {
                self.landed.insert(opened.id);
                self.has_undurable = true;
                Ok(())
            }
            Err(error) if overtaken_in(&error).is_some() => Err(Stop::Overtaken),
            Err(error) => {
                let message = format!("cannot write node {}: {}", opened.node, with_causes(&error));
                Err(ServiceError::new(ErrorKind::Node, message).into())
            }
        }
    }
}

fn unreadable(node: NodeId, error: &std::io::Error) -> ServiceError {
    ServiceError::new(ErrorKind::Node, format!("cannot read node {node}: {error}"))
}

/// Applies once more the patches that a crash interrupted. Files that another writer changed
/// meanwhile are left as they are: the plan makes a conflict of them.
pub(super) fn mend(landing: &dyn LandingTree, committed: Committed, is_folded: bool) -> Result<()> {
    for patch in committed.patches() {
        let node = NodeId(patch.node);
        let expected = match is_folded {
            true => Expected::Folded(&[]),
            false => Expected::Unqueued,
        };
        if landing.look(node)?.is_none() {
            continue;
        }
        // A program's changes since the start take precedence.
        let mut file = match landing.watch_file(node, expected) {
            Ok(Landed::Done(file)) => file,
            Ok(Landed::Overtaken(_)) => continue,
            // The file cannot be changed any more: its content is compared with the server's.
            Err(error) if error.kind == ErrorKind::Blocked => continue,
            Err(error) => return Err(error.into()),
        };
        if let crate::patches::Found::Impossible(_) = committed.check(patch, &file)? {
            continue;
        }
        match committed.apply(patch, &mut file) {
            Err(error) if overtaken_in(&error).is_none() => return Err(error.into()),
            _ => {}
        }
    }
    landing.sync()?;
    committed.finish()?;
    Ok(())
}
