//! How others' changes come in: the moment up to which they are brought here is made durable, the
//! tree is brought there ([`Receive`]), and then the cursor.
//!
//! **First contact**, with a folder that another machine has begun: the server knows no node
//! from here, and the root there has another identity. The steps, in this order:
//!
//! 1. All nodes here are noted as not sent.
//! 2. The standing notes that the folder is to be brought to the head.
//! 3. The log's mark is set to this moment.
//! 4. The root is bound to the server's.
//!
//! A crash before the last step begins all over. Then others' changes are let in, which are all
//! there is: equal content on both sides becomes one, different content is a conflict, and the
//! nodes that remain noted as not sent are sent.

use byteback_model::{ByteString, FileId, NodeId, NodeKind, Place, Seq};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use byteback_api::FolderName;
use byteback_control::{CutId, LiveScope, LiveStatus, LiveTree, Outcome, ServiceError};
use byteback_host::durable::DurableDir;
use byteback_queue::GroupId;

use super::phase::{Asked, Event, Outlook};
use super::shared::Shared;
use super::{Engine, EngineError};
use crate::identities::IdentityChange;
use crate::patches::Patches;
use crate::receive::conflicts::{Conflict, Conflicts};
use crate::receive::left_out::{BlockedChange, LeftOutNames};
use crate::receive::{Receive, ReceiveError, Received};
use crate::standing::StandingError;
use byteback_backup::file_id;
use byteback_client::ServerErrorKind;
use byteback_client::{ServerClient, ServerNews};
use byteback_model::Origin;

/// Subdirectory in which deltas wait for the files that they change.
const PATCHES_NAME: &str = "patches";

/// Reason for giving up an order that was made before the folder's first contact.
const CONTACT: &str = "another machine began the folder at the server";

/// Identities noted with one sync.
const NOTED_AT_ONCE: usize = 10_000;

/// After a failure that listening cannot pass over, the listener checks this often whether the
/// engine still runs.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Others' changes on their way into the tree, durable except for `landed`.
pub(super) struct Arrivals {
    pub(super) patches: Patches,
    pub(super) conflicts: Conflicts,
    /// Files whose contents of the moment of the landing were written.
    pub(super) landed: BTreeSet<FileId>,
    /// Names of the server that this tree does not hold.
    pub(super) left_out: LeftOutNames,
}

impl Arrivals {
    /// Opens the records in the engine's directory. A directory that is new to the server has no
    /// left-out names.
    pub(super) fn open(dir: &Arc<dyn DurableDir>, is_new_locally: bool) -> Result<Self, EngineError> {
        let patches = dir.subdir(PATCHES_NAME).map_err(|source| StandingError::Io {
            what: "create the patches folder beside",
            source,
        })?;
        let mut left_out = LeftOutNames::open(Arc::clone(dir)).map_err(ReceiveError::from)?;
        if is_new_locally {
            left_out.note(Vec::new()).map_err(ReceiveError::from)?;
        }
        Ok(Self {
            patches: Patches::new(patches),
            conflicts: Conflicts::open(Arc::clone(dir)).map_err(ReceiveError::from)?,
            landed: BTreeSet::new(),
            left_out,
        })
    }
}

impl Engine {
    /// Looks at others' changes and at requests for repairs.
    pub(super) fn look(&self) -> Event {
        let is_unbound = !self.identities.is_bound(NodeId::ROOT) && self.ground.newest.is_none();
        if is_unbound && self.ground.has_news() {
            return Event::BegunByOthers;
        }
        let asked = match self.shared.has_repairs() {
            true => Asked::Repair,
            false => Asked::Nothing,
        };
        Event::Looked(self.outlook(&self.parts.live.status()), asked)
    }

    /// Others' side of the folder, by what is on its way from here.
    pub(super) fn outlook(&self, live: &LiveStatus) -> Outlook {
        match () {
            () if live.groups_in_flight > 0 => Outlook::Busy,
            () if self.ground.has_news() => Outlook::News,
            () => Outlook::Quiet,
        }
    }

    /// Whether a left-out name can be let in now.
    pub(super) fn is_left_out_over(&self) -> Result<bool, EngineError> {
        Ok(self.is_ignoring_over() || self.is_collision_over()? || self.is_blocked_due())
    }

    /// Whether a colliding name has become free of all but nodes of exactly this name.
    fn is_collision_over(&self) -> Result<bool, EngineError> {
        for left_out in self
            .arrivals
            .left_out
            .noted()
            .iter()
            .filter(|left_out| left_out.collides)
        {
            let Some(parent) = self.identities.node_of(left_out.parent) else {
                continue;
            };
            let name = left_out.name.clone();
            if !self.parts.landing.is_taken_by_another(&Place { parent, name })? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the server has a left-out name in a directory, given by its node here.
    pub(super) fn is_left_out(&self, parent: NodeId, name: &ByteString) -> bool {
        let noted = self.arrivals.left_out.noted();
        !noted.is_empty() && {
            let parent = self.file_id(parent);
            noted
                .iter()
                .any(|left_out| left_out.parent == parent && left_out.name == *name)
        }
    }

    /// Publishes the left-out names.
    pub(super) fn tell_left_out(&self) {
        let noted = self.arrivals.left_out.noted().iter();
        let ignored = noted.clone().filter(|left_out| left_out.is_ignored).count();
        let is_blocked = |place: (FileId, &ByteString)| {
            let mut blocked = self.arrivals.left_out.blocked().iter();
            blocked.any(|change| match change {
                BlockedChange::Name { parent, name, .. } => (*parent, name) == place,
                BlockedChange::Content { .. } => false,
            })
        };
        let reported = noted.filter(|left_out| !left_out.is_ignored && !is_blocked((left_out.parent, &left_out.name)));
        let left_out = reported.filter_map(|left_out| {
            let parent = self.identities.node_of(left_out.parent)?;
            let name = left_out.name.clone();
            Some((Place { parent, name }, left_out.collides, None))
        });
        let blocked = self
            .arrivals
            .left_out
            .blocked()
            .iter()
            .filter_map(|change| match change {
                BlockedChange::Name { parent, name, why, .. } => {
                    let parent = self.identities.node_of(*parent)?;
                    let name = name.clone();
                    Some((Place { parent, name }, false, Some(why.clone())))
                }
                BlockedChange::Content { node, why, .. } => {
                    let node = self.identities.node_of(*node)?;
                    let found = self.parts.landing.look(node).ok()??;
                    Some((found.names.into_iter().next()?, false, Some(why.clone())))
                }
            });
        self.shared.left_out(left_out.chain(blocked).collect(), ignored as u64);
    }

    /// Notes what must be noted before others' changes come into the tree.
    pub(super) fn prepare_landing(&mut self) -> Result<(), EngineError> {
        self.shared.receives();
        self.review_before_landing()
    }

    /// Asks the server up to which moment others' changes are to be let in.
    pub(super) fn ask_head(&mut self) -> Result<Seq, EngineError> {
        let info = self.parts.server.folder(&self.parts.folder)?;
        self.check_known(info.seq)?;
        self.arrivals.landed.clear();
        Ok(info.seq)
    }

    /// Brings others' changes into the tree.
    pub(super) fn land(&mut self, head: Seq) -> Result<Received, EngineError> {
        let mut receive = Receive {
            landing: &*self.parts.landing,
            live: &*self.parts.live,
            tree: &*self.parts.tree,
            tree_id: self.remembered.names,
            server: &self.parts.server,
            folder: &self.parts.folder,
            identities: &mut self.identities,
            patches: &self.arrivals.patches,
            conflicts: &mut self.arrivals.conflicts,
            monitor: &*self.shared,
            randomness: &*self.parts.randomness,
            host: String::from_utf8_lossy(self.parts.host.as_bytes()).into_owned(),
            now: (self.parts.server.clock().now_ns(), self.parts.east_of_utc_s),
            landed: &mut self.arrivals.landed,
            left_out: self.arrivals.left_out.noted(),
            blocked: self.arrivals.left_out.blocked(),
            ignored: &self.ignoring.ignored,
            has_withheld: self.ignoring.has_withheld(),
            sources: &self.ignoring.sources,
            takes_own: self.remembered.takes_own,
            seen: self.ground.seen(),
        };
        Ok(receive.run(self.ground.cursor, head)?)
    }

    /// Notes that all others' changes up to `head` are here, or undoes that they were let in.
    pub(super) fn note_landed(&mut self, head: Seq, received: Received) -> Result<(), EngineError> {
        let before = (self.ground, self.remembered.takes_own);
        let noted = self.note_received(received, head);
        if noted.is_err() {
            // The standing on disk still says "not landed": after a restart the same head would
            // land again, over batches sent on this ground.
            (self.ground, self.remembered.takes_own) = before;
            self.follow(Event::LandedUnnoted(head))?;
        }
        noted
    }

    fn note_received(&mut self, received: Received, head: Seq) -> Result<(), EngineError> {
        self.ground.received(head);
        self.remembered.takes_own = false;
        self.arrivals.landed.clear();
        let landing = &self.parts.landing;
        let is_open = |conflict: &Conflict| !matches!(conflict.place_in(&**landing), Ok(None));
        let conflicts = &mut self.arrivals.conflicts;
        conflicts.retain(is_open).map_err(ReceiveError::from)?;
        self.shared.conflicts(conflicts.noted());
        if received.may_ignore_other {
            self.ignoring.have_rules_read();
        }
        if received.has_unsent || received.may_ignore_other {
            self.parts.live.fold();
        }
        // Before the cursor: left-out names are reported only once.
        let noted = self.arrivals.left_out.note_all(received.left_out, received.blocked);
        noted.map_err(ReceiveError::from)?;
        self.has_tried_blocked()?;
        self.left_out_changed();
        self.note()?;
        self.shared.received(self.clock().now_ns());
        self.worked();
        Ok(())
    }

    /// Has everything here folded, so that a cut comes for the first contact.
    pub(super) fn fold_for_contact(&self) {
        self.parts.live.give_up(CONTACT);
    }

    /// Begins the first contact, up to the moment that is to land: see the module.
    pub(super) fn begin_contact(&mut self) -> Result<Option<Event>, EngineError> {
        let group = self.parts.live.cut_fold(&[])?;
        let Some(fold) = &group.fold else { return Ok(None) };
        let cut = fold.cut.cut;
        self.fold.open(cut);
        if !matches!(fold.scope, LiveScope::Everything { .. }) {
            self.drop_cut();
            return Ok(Some(Event::FoldedInPart));
        }
        let head = self.note_unsent(cut);
        let head = self.or_contact_again(head)?;
        Ok(Some(Event::ContactHead(head, group.id)))
    }

    /// Ends the first contact, once the moment that is to land is known.
    pub(super) fn end_contact(&mut self, root: FileId, group: GroupId) -> Result<(), EngineError> {
        let contacted = self.bind_at_mark(root, group);
        self.or_contact_again(contacted)
    }

    /// Result of a step of the first contact. After a failure it is repeated from another cut, and
    /// the group of this one will get no answer.
    fn or_contact_again<T>(&mut self, step: Result<T, EngineError>) -> Result<T, EngineError> {
        if step.is_err() {
            self.drop_cut();
            self.fold_for_contact();
        }
        step
    }

    fn note_unsent(&mut self, cut: CutId) -> Result<Seq, EngineError> {
        self.note_all(cut)?;
        self.ignoring.have_names_told();
        let head = self.parts.server.folder(&self.parts.folder)?.seq;
        self.ground.cursor = 0;
        self.ground.others = self.ground.others.max(head);
        self.arrivals.landed.clear();
        Ok(head)
    }

    fn bind_at_mark(&mut self, root: FileId, group: GroupId) -> Result<(), EngineError> {
        self.note()?;
        self.end_cut(&Outcome::Saved {
            note: Vec::new(),
            unsaved: Vec::new(),
        })?;
        self.parts.live.applied(group)?;
        self.bind_root(root)
    }

    /// Notes all nodes but the root as not sent. Ignored nodes among them are found before they
    /// would be sent.
    fn note_all(&mut self, cut: CutId) -> Result<(), EngineError> {
        let mut changes = Vec::new();
        let mut directories = vec![NodeId::ROOT];
        while let Some(directory) = directories.pop() {
            for (node, kind) in entries(self, cut, directory)? {
                if kind == NodeKind::Directory {
                    directories.push(node);
                }
                if self.identities.is_bound(node) {
                    continue;
                }
                let file = file_id(self.remembered.names, node);
                let origin = Some(Origin { file, seq: 0 });
                changes.push(IdentityChange::Bound { node, file, origin });
            }
            if changes.len() >= NOTED_AT_ONCE {
                self.identities.change(&std::mem::take(&mut changes))?;
            }
        }
        self.identities.change(&changes)?;
        Ok(())
    }

    fn bind_root(&mut self, root: FileId) -> Result<(), EngineError> {
        let (node, origin) = (NodeId::ROOT, None);
        let bound = IdentityChange::Bound {
            node,
            file: root,
            origin,
        };
        Ok(self.identities.change(&[bound])?)
    }

    /// Starts a thread that listens and wakes the engine when others sent something. It ends some
    /// time after the engine, and keeps nothing of the tree.
    pub(super) fn listen(&self) {
        let listener = self.listener();
        let listening = std::thread::Builder::new().name("listen".to_owned());
        if listening.spawn(move || listener.run()).is_err() {
            self.shared.cannot_listen();
        }
    }

    /// A listener to the server, for a thread of the caller's: see
    /// [`EngineParts::is_listening`](super::EngineParts::is_listening).
    #[must_use]
    pub fn listener(&self) -> Listener {
        Listener {
            server: Arc::clone(&self.parts.server),
            folder: self.parts.folder.clone(),
            shared: Arc::clone(&self.shared),
            live: Arc::downgrade(&self.parts.live),
            after: self.ground.head(),
        }
    }
}

/// Listens to the server, and wakes the engine when others sent something.
pub struct Listener {
    server: Arc<ServerClient>,
    folder: FolderName,
    shared: Arc<Shared>,
    live: Weak<dyn LiveTree>,
    after: Seq,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens until some time after the engine has ended.
    pub fn run(mut self) {
        while !self.shared.is_over() {
            let mut listening = self.server.listen(&self.folder, self.after);
            loop {
                let heard = listening.hear();
                if self.shared.is_over() {
                    return;
                }
                let now_ns = self.server.clock().now_ns();
                match heard {
                    Ok(ServerNews::Batch(batch)) => {
                        self.shared.heard(now_ns);
                        self.after = batch.seq;
                        if batch.device != self.shared.device() {
                            self.shared.announce(batch.seq);
                            let Some(live) = self.live.upgrade() else { return };
                            live.wake();
                        }
                    }
                    Ok(ServerNews::Nothing) => self.shared.heard(now_ns),
                    Ok(ServerNews::Away(why)) => self.shared.cannot_hear(&EngineError::Away(why), now_ns),
                    Ok(ServerNews::Cancelled) => return,
                    Err(error) => {
                        if error.kind == ServerErrorKind::WrongToken
                            && let Some(live) = self.live.upgrade()
                        {
                            // The engine may have a newer token.
                            self.shared.token_refused();
                            live.wake();
                        }
                        self.shared.cannot_hear(&error.into(), now_ns);
                        break;
                    }
                }
            }
            self.server.clock().sleep(LISTEN_AGAIN_AFTER);
        }
    }
}

/// Entries of a directory at a cut.
fn entries(engine: &Engine, cut: CutId, directory: NodeId) -> Result<Vec<(NodeId, NodeKind)>, ServiceError> {
    let mut entries = Vec::new();
    let mut after = None;
    loop {
        let page = engine.parts.tree.entries(cut, directory, after.as_ref())?;
        let Some(last) = page.last() else { return Ok(entries) };
        after = Some(last.name.clone());
        entries.extend(page.into_iter().map(|entry| (entry.node, entry.kind)));
    }
}
