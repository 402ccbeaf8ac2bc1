//! The engine's decisions, as a pure state machine: [`next`] is the table of what follows when the
//! server or the tree says something.
//!
//! The engine performs an [`Action`], and reports an [`Event`]; the event leads to another phase
//! and to the next action, until an action has no answer: then the round is over. A [`Phase`] holds
//! what is known only in it.
//!
//! Words: others' changes are *level* with this tree if nothing was sent since they were let in;
//! the engine is *ahead* once something was, so that it is others' turn.
//!
//! Invariants: a landing that was begun is never forgotten, whatever the phase, until it was noted
//! as ended or sync starts over. Nothing lands before the landing's head is durable, nor while a
//! group is on its way. Nothing is sent before the folder's first contact was made.
//!
//! Out of scope: doing anything; time; which fold is in flight (`Fold` in the parent's `folding`),
//! as a fold that the server refused outlives the meeting that follows.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use byteback_backup::BackupError;
use byteback_control::LiveGroup;
use byteback_model::{BatchApplied, FileId, Seq};
use byteback_queue::GroupId;

use super::ground::Ground;
use crate::receive::Received;

/// Whether the engine has met its server since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// Not yet: which batches are ours cannot be told, and a lasting failure ends the engine.
    Never,
    /// At least once: the engine waits after any failure.
    Before,
}

/// Others' changes, as far as they are on their way into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    /// Nothing was sent since they were let in.
    Level,
    /// Something was sent since then.
    Ahead,
    /// All up to this moment are being let in; durable.
    Landing(Seq),
}

impl Inbound {
    /// The state after something was sent. A landing that waits comes first all the same.
    const fn ahead(self) -> Self {
        match self {
            Self::Level | Self::Ahead => Self::Ahead,
            Self::Landing(head) => Self::Landing(head),
        }
    }

    /// The state after sync started over: landings from before mean nothing.
    const fn forgotten(self) -> Self {
        match self {
            Self::Level => Self::Level,
            Self::Ahead | Self::Landing(_) => Self::Ahead,
        }
    }

    const fn phase(self) -> Phase {
        match self {
            Self::Level => Phase::Level,
            Self::Ahead => Phase::Ahead,
            Self::Landing(head) => Phase::Landing { head },
        }
    }
}

/// State of the engine between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The folder's state at the server is not known: it is met before anything else.
    Unmet {
        /// Whether it ever was.
        met: Met,
        /// Others' changes.
        inbound: Inbound,
    },
    /// The server knows that this device was further, or this machine became another device: sync
    /// starts over before anything else.
    StartingOver {
        /// Whether the server was ever met.
        met: Met,
        /// Others' changes; a landing counts until the new standing is durable.
        inbound: Inbound,
    },
    /// Another machine began the folder, and its root is not bound to the root here.
    Contact {
        /// Root of the folder there.
        root: FileId,
        /// Others' changes. A landing here is of a contact that was interrupted.
        inbound: Inbound,
    },
    /// Others' changes up to `head` are on their way into the tree.
    Landing {
        /// The moment; durable.
        head: Seq,
    },
    /// Something was sent since others' changes were let in: theirs come first.
    Ahead,
    /// Nothing was sent since others' changes were let in: ours come first.
    Level,
}

impl Phase {
    /// Phase of an engine that has not met its server, with the landing that its standing notes.
    pub(super) const fn of_standing(landing: Option<Seq>) -> Self {
        let inbound = match landing {
            Some(head) => Inbound::Landing(head),
            None => Inbound::Level,
        };
        let met = Met::Never;
        Self::Unmet { met, inbound }
    }

    /// Whether the server must be met before anything else.
    pub(super) const fn is_unmet(&self) -> bool {
        matches!(self, Self::Unmet { .. } | Self::StartingOver { .. })
    }

    /// Whether the server was met since the engine began.
    pub(super) const fn has_met(&self) -> bool {
        matches!(self.met(), Met::Before)
    }

    /// The moment up to which others' changes are on their way into the tree.
    pub(super) const fn landing(&self) -> Option<Seq> {
        match self.inbound() {
            Inbound::Landing(head) => Some(head),
            Inbound::Level | Inbound::Ahead => None,
        }
    }

    /// The name by which [`TRANSITIONS`] lists it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Unmet { .. } => "unmet",
            Self::StartingOver { .. } => "starting over",
            Self::Contact { .. } => "contact",
            Self::Landing { .. } => "landing",
            Self::Ahead => "ahead",
            Self::Level => "level",
        }
    }

    const fn met(&self) -> Met {
        match self {
            Self::Unmet { met, .. } | Self::StartingOver { met, .. } => *met,
            Self::Contact { .. } | Self::Landing { .. } | Self::Ahead | Self::Level => Met::Before,
        }
    }

    const fn inbound(&self) -> Inbound {
        match self {
            Self::Unmet { inbound, .. } | Self::StartingOver { inbound, .. } | Self::Contact { inbound, .. } => {
                *inbound
            }
            Self::Landing { head } => Inbound::Landing(*head),
            Self::Ahead => Inbound::Ahead,
            Self::Level => Inbound::Level,
        }
    }

    /// The phase in which the server is met again.
    const fn unmet(self) -> Self {
        match self {
            Self::StartingOver { .. } => self,
            _ => {
                let (met, inbound) = (self.met(), self.inbound());
                Self::Unmet { met, inbound }
            }
        }
    }

    const fn starting_over(self) -> Self {
        let (met, inbound) = (self.met(), self.inbound());
        Self::StartingOver { met, inbound }
    }

    /// The phase after something was sent.
    const fn ahead(self) -> Self {
        match self {
            Self::Unmet { met, inbound } => Self::Unmet {
                met,
                inbound: inbound.ahead(),
            },
            Self::StartingOver { .. } => self,
            Self::Contact { root, inbound } => Self::Contact {
                root,
                inbound: inbound.ahead(),
            },
            Self::Landing { .. } | Self::Ahead | Self::Level => self.inbound().ahead().phase(),
        }
    }
}

/// Answer of the server about the folder, when it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerNews {
    /// Root of the folder there.
    pub(super) root: Option<FileId>,
    /// The ground as it is by what was heard.
    pub(super) ground: Ground,
    /// The server has batches that were sent from here after the remembered state.
    pub(super) was_further: bool,
}

/// Others' side of the folder, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// A group is on its way: the server decides which came first.
    Busy,
    /// Nothing is on its way, and others did something that is not here.
    News,
    /// Nothing is on its way in either direction.
    Quiet,
}

/// A caller's request for a repair that needs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A repair waits.
    Repair,
    /// None waits.
    Nothing,
}

/// Whether changes wait in a fold, for which a cut will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// A cut will come.
    Folded,
    /// No cut comes by itself.
    Unfolded,
}

/// Whether a failure may pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A failure that may pass by itself.
    Passing,
    /// A failure that stays until a person acts.
    Lasting,
}

impl Failure {
    /// The kind of a failure.
    pub(super) const fn of(is_passing: bool) -> Self {
        match is_passing {
            true => Self::Passing,
            false => Self::Lasting,
        }
    }
}

/// Message of the server, the tree, or the machine.
#[derive(Debug)]
pub(super) enum Event {
    /// The caller or the tree wants the engine to end.
    Stopped,
    /// An action failed.
    Failed(Failure),
    /// This machine has another token for the same device.
    TokenRenewed,
    /// This machine has joined again, as another device.
    DeviceChanged,
    /// A round begins.
    Turn,
    /// The server told all about the folder since the cursor.
    ServerNews(ServerNews),
    /// Sync started over; with the server's answer, if that was the reason.
    StartedOver(Option<ServerNews>),
    /// The folder is the one for this directory. Another machine's root of it, if it is to be
    /// brought together with the root here.
    Met(Option<FileId>),
    /// Something that the server has could not be noted or finished here.
    Unclear,
    /// Others began the folder, and nothing of it is bound here.
    BegunByOthers,
    /// State of both directions.
    Looked(Outlook, Asked),
    /// A left-out name or a blocked change can be let in.
    LeftOutDue,
    /// No left-out name can be let in.
    LeftOutWaits(Asked),
    /// All is noted that must be before something lands.
    Prepared,
    /// Others' changes up to this moment are to be let in.
    HeadKnown(Seq),
    /// The moment of a landing is durable.
    HeadNoted,
    /// Others' changes are in the tree.
    Landed(Box<Received>),
    /// The end of this landing could not be noted.
    LandedUnnoted(Seq),
    /// Nothing is to be sent, for so long at most.
    Idle(Option<Duration>, Outlook, Waiting),
    /// A group is to be sent.
    GroupOut(Arc<LiveGroup>),
    /// Waiting changes are to be taken from a cut.
    CutDue,
    /// The server is to be asked about a group.
    AskDue(GroupId),
    /// The server refused a group, and it is to be decided what becomes of that.
    DecideDue(GroupId),
    /// The fate of a refused group was decided.
    Decided,
    /// The mount is gone.
    TreeEnded,
    /// The cut for the first contact is not of everything.
    FoldedInPart,
    /// All nodes here are noted as not sent, and the first contact is made at this moment.
    ContactHead(Seq, GroupId),
    /// The root is bound to the server's.
    Contacted,
    /// Something else comes first: the group is to be folded.
    Deferred(GroupId),
    /// The server applied a group.
    Applied(GroupId, BatchApplied),
    /// Nothing of a group is to be sent.
    Empty(GroupId),
    /// The server refused a group.
    Refused(GroupId, BackupError),
    /// A group may or may not have arrived.
    Unanswered(BackupError, Failure),
    /// A group cannot be sent as it is.
    Unsendable(String),
}

impl Event {
    /// The name by which [`TRANSITIONS`] lists it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Failed(_) => "failed",
            Self::TokenRenewed => "token renewed",
            Self::DeviceChanged => "device changed",
            Self::Turn => "turn",
            Self::ServerNews(_) => "heard",
            Self::StartedOver(_) => "started over",
            Self::Met(_) => "met",
            Self::Unclear => "unclear",
            Self::BegunByOthers => "begun by others",
            Self::Looked(..) => "looked",
            Self::LeftOutDue => "left out due",
            Self::LeftOutWaits(_) => "left out waits",
            Self::Prepared => "prepared",
            Self::HeadKnown(_) => "head known",
            Self::HeadNoted => "head noted",
            Self::Landed(_) => "landed",
            Self::LandedUnnoted(_) => "landed unnoted",
            Self::Idle(..) => "idle",
            Self::GroupOut(_) => "group out",
            Self::CutDue => "cut due",
            Self::AskDue(_) => "ask due",
            Self::DecideDue(_) => "decide due",
            Self::Decided => "decided",
            Self::TreeEnded => "tree ended",
            Self::FoldedInPart => "folded in part",
            Self::ContactHead(..) => "contact head",
            Self::Contacted => "contacted",
            Self::Deferred(_) => "deferred",
            Self::Applied(..) => "applied",
            Self::Empty(_) => "empty",
            Self::Refused(..) => "refused",
            Self::Unanswered(..) => "unanswered",
            Self::Unsendable(_) => "unsendable",
        }
    }
}

/// Step of the engine. The documentation says which events answer it; any may fail instead.
#[derive(Debug)]
pub(super) enum Action {
    /// The round is over.
    Nothing,
    /// An event came that cannot come in this phase: the round is over, and the server is met
    /// again, which is right in any phase.
    Unexpected,
    /// Keep unsent changes for the next start, and end.
    Leave,
    /// Wait after a failure.
    Rest(Failure),
    /// Ask the server about the folder: [`Event::ServerNews`].
    Meet,
    /// Start sync of the folder over: [`Event::StartedOver`].
    StartOver(Option<ServerNews>),
    /// Check that the folder is the one for this directory: [`Event::Met`].
    Recognize(ServerNews),
    /// Look at both directions: [`Event::BegunByOthers`] or [`Event::Looked`].
    Look,
    /// Look whether left-out names can be let in: [`Event::LeftOutDue`] or
    /// [`Event::LeftOutWaits`].
    LookAtLeftOut(Asked),
    /// Note what must be noted before something lands: [`Event::Prepared`].
    PrepareLanding,
    /// Ask the server up to which moment others' changes are to be let in: [`Event::HeadKnown`].
    AskHead,
    /// Make that moment durable, if it is not: [`Event::HeadNoted`].
    NoteHead,
    /// Let others' changes in: [`Event::Landed`].
    Land(Seq),
    /// Note that they are: nothing, or [`Event::LandedUnnoted`] and the failure.
    NoteLanded(Seq, Box<Received>),
    /// Do the next repair.
    Repair,
    /// Ask the tree what is to be sent: [`Event::Idle`], [`Event::GroupOut`], [`Event::CutDue`],
    /// [`Event::AskDue`], [`Event::DecideDue`] or [`Event::TreeEnded`].
    Poll,
    /// Wait for changes, for so long at most.
    Wait(Option<Duration>),
    /// Send a group: [`Event::Unclear`], any number of times; then [`Event::Deferred`],
    /// [`Event::Applied`], [`Event::Empty`], [`Event::Refused`], [`Event::Unanswered`] or
    /// [`Event::Unsendable`].
    Send(Arc<LiveGroup>),
    /// Cut the log, and take the fold from the cut: [`Event::GroupOut`].
    Cut,
    /// Ask the server what became of a group.
    Ask(GroupId),
    /// Have a refused group folded: [`Event::Decided`].
    Decide(GroupId),
    /// Have everything folded, for the first contact.
    FoldForContact,
    /// Cut the log, and note all nodes as not sent: [`Event::FoldedInPart`] or
    /// [`Event::ContactHead`].
    BeginContact,
    /// Make the contact's landing durable, set the log's mark, and bind the root:
    /// [`Event::Contacted`].
    EndContact(FileId, GroupId),
    /// Tell the tree that a group was not sent.
    Defer(GroupId),
    /// Tell the tree that a group is at the server; with the server's answer, unless nothing was
    /// sent.
    Confirm(GroupId, Option<BatchApplied>),
    /// Tell the tree that a group was refused.
    Refuse(GroupId, BackupError),
    /// Have the groups in flight sent again, after a pause.
    Await(BackupError, Failure),
    /// Give up the order of changes, for this reason.
    GiveUp(String),
}

/// The phase and the action that follow an event: the engine's table.
pub(super) fn next(phase: Phase, event: Event) -> (Phase, Action) {
    use {Action as A, Event as E, Phase as P};
    match (phase, event) {
        // The end, failures and tokens: in every phase.
        (phase, E::Stopped) => (phase, A::Leave),
        (phase, E::Failed(Failure::Lasting)) if !phase.has_met() => (phase, A::Leave),
        (phase, E::Failed(failure)) => (phase, A::Rest(failure)),
        (phase, E::TokenRenewed) => (phase.unmet(), A::Nothing),
        (phase, E::DeviceChanged) => (phase.starting_over(), A::StartOver(None)),

        // 1. Meet the server.
        (P::Unmet { .. } | P::StartingOver { .. }, E::Turn) => (phase, A::Meet),
        (P::Unmet { .. }, E::ServerNews(heard)) if !heard.was_further => (phase, A::Recognize(heard)),
        (P::Unmet { .. } | P::StartingOver { .. }, E::ServerNews(heard)) => {
            (phase.starting_over(), A::StartOver(Some(heard)))
        }
        (P::StartingOver { met, inbound }, E::StartedOver(heard)) => {
            let inbound = inbound.forgotten();
            let action = heard.map_or(A::Nothing, A::Recognize);
            (P::Unmet { met, inbound }, action)
        }
        (P::Unmet { inbound, .. }, E::Met(Some(root))) => (P::Contact { root, inbound }, A::Look),
        (P::Unmet { inbound, .. }, E::Met(None)) => (inbound.phase(), A::Look),

        // A round begins with a look at others' changes. They count from the first contact on.
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::Turn) => (phase, A::Look),
        (P::Contact { .. }, E::BegunByOthers | E::Looked(..)) => (phase, A::Poll),
        (P::Landing { .. } | P::Ahead | P::Level, E::BegunByOthers) => (phase.unmet(), A::Nothing),
        (P::Landing { .. } | P::Ahead | P::Level, E::Looked(Outlook::Busy, _)) => (phase, A::Poll),

        // 2. Receive: a landing that was begun, others' changes in their turn, or left-out names.
        (P::Landing { .. }, E::Looked(Outlook::News | Outlook::Quiet, _)) => (phase, A::PrepareLanding),
        (P::Ahead, E::Looked(Outlook::News, _)) => (phase, A::PrepareLanding),
        (P::Level, E::Looked(Outlook::News, Asked::Repair)) => (phase, A::PrepareLanding),
        (P::Level, E::Looked(Outlook::News, Asked::Nothing)) => (phase, A::LookAtLeftOut(Asked::Nothing)),
        (P::Ahead | P::Level, E::Looked(Outlook::Quiet, asked)) => (phase, A::LookAtLeftOut(asked)),
        (P::Ahead | P::Level, E::LeftOutDue) => (phase, A::PrepareLanding),
        (P::Ahead | P::Level, E::Prepared) => (phase, A::AskHead),
        (P::Ahead | P::Level, E::HeadKnown(head)) => (P::Landing { head }, A::NoteHead),
        (P::Landing { .. }, E::Prepared) => (phase, A::NoteHead),
        (P::Landing { head }, E::HeadNoted) => (phase, A::Land(head)),
        (P::Landing { head }, E::Landed(received)) => (P::Level, A::NoteLanded(head, received)),
        (P::Level, E::LandedUnnoted(head)) => (P::Landing { head }, A::Nothing),

        // 4. Repair, when nothing is on its way; else look for changes of ours.
        (P::Ahead | P::Level, E::LeftOutWaits(Asked::Repair)) => (phase, A::Repair),
        (P::Ahead | P::Level, E::LeftOutWaits(Asked::Nothing)) => (phase, A::Poll),

        // 3. Send. Before the first contact, everything is folded, and the cut makes the contact.
        (P::Contact { .. }, E::GroupOut(_) | E::FoldedInPart) => (phase, A::FoldForContact),
        (P::Contact { .. }, E::CutDue) => (phase, A::BeginContact),
        (P::Contact { root, .. }, E::ContactHead(head, group)) => {
            let inbound = Inbound::Landing(head);
            (P::Contact { root, inbound }, A::EndContact(root, group))
        }
        (P::Contact { inbound, .. }, E::Contacted) => (inbound.phase(), A::Nothing),
        (P::Landing { .. } | P::Ahead | P::Level, E::GroupOut(group)) => (phase.ahead(), A::Send(group)),
        (P::Landing { .. } | P::Ahead | P::Level, E::CutDue) => (phase, A::Cut),
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::AskDue(group)) => (phase, A::Ask(group)),
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::DecideDue(group)) => (phase, A::Decide(group)),
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::Decided) => (phase.ahead(), A::Nothing),
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::TreeEnded) => (phase, A::Leave),

        // The outcome of a group. After a refusal the engine first hears of the server's state.
        (P::Landing { .. } | P::Ahead, E::Deferred(group)) => (phase, A::Defer(group)),
        (P::Landing { .. } | P::Ahead, E::Refused(group, why)) => (phase.unmet(), A::Refuse(group, why)),
        (P::Landing { .. } | P::Ahead, E::Unanswered(why, failure)) => (phase, A::Await(why, failure)),
        (P::Landing { .. } | P::Ahead, E::Unsendable(why)) => (phase, A::GiveUp(why)),
        (P::Landing { .. } | P::Ahead | P::Unmet { .. }, E::Unclear) => (phase.unmet(), A::Nothing),
        (P::Landing { .. } | P::Ahead | P::Unmet { .. }, E::Applied(group, applied)) => {
            (phase, A::Confirm(group, Some(applied)))
        }
        (P::Landing { .. } | P::Ahead | P::Unmet { .. }, E::Empty(group)) => (phase, A::Confirm(group, None)),

        // 5. Wait, unless others' changes can be let in, or no cut comes for the first contact.
        (P::Contact { .. }, E::Idle(_, Outlook::News | Outlook::Quiet, Waiting::Unfolded)) => {
            (phase, A::FoldForContact)
        }
        (P::Landing { .. }, E::Idle(_, Outlook::News | Outlook::Quiet, _)) => (phase, A::PrepareLanding),
        (P::Ahead | P::Level, E::Idle(_, Outlook::News, _)) => (phase, A::PrepareLanding),
        (P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level, E::Idle(wait, ..)) => (phase, A::Wait(wait)),

        // Pairs that `TRANSITIONS` does not list.
        (P::Unmet { .. }, E::StartedOver(_))
        | (P::StartingOver { .. }, E::Met(_) | E::Unclear | E::Applied(..) | E::Empty(_))
        | (
            P::Contact { .. } | P::Landing { .. } | P::Ahead | P::Level,
            E::ServerNews(_) | E::StartedOver(_) | E::Met(_),
        )
        | (P::Contact { .. } | P::Level, E::Unclear | E::Applied(..) | E::Empty(_))
        | (
            P::Unmet { .. } | P::StartingOver { .. } | P::Contact { .. } | P::Level,
            E::Deferred(_) | E::Refused(..) | E::Unanswered(..) | E::Unsendable(_),
        )
        | (
            P::Unmet { .. } | P::StartingOver { .. },
            E::BegunByOthers
            | E::Looked(..)
            | E::Idle(..)
            | E::GroupOut(_)
            | E::CutDue
            | E::AskDue(_)
            | E::DecideDue(_)
            | E::Decided
            | E::TreeEnded,
        )
        | (
            P::Unmet { .. } | P::StartingOver { .. } | P::Contact { .. } | P::Landing { .. },
            E::LeftOutDue | E::LeftOutWaits(_) | E::HeadKnown(_),
        )
        | (P::Unmet { .. } | P::StartingOver { .. } | P::Contact { .. }, E::Prepared)
        | (
            P::Unmet { .. } | P::StartingOver { .. } | P::Contact { .. } | P::Ahead | P::Level,
            E::HeadNoted | E::Landed(_),
        )
        | (
            P::Unmet { .. } | P::StartingOver { .. } | P::Contact { .. } | P::Landing { .. } | P::Ahead,
            E::LandedUnnoted(_),
        )
        | (
            P::Unmet { .. } | P::StartingOver { .. } | P::Landing { .. } | P::Ahead | P::Level,
            E::FoldedInPart | E::ContactHead(..) | E::Contacted,
        ) => (phase.unmet(), A::Unexpected),
    }
}

const ALL: &[&str] = &["unmet", "starting over", "contact", "landing", "ahead", "level"];
const NOT_MET: &[&str] = &["unmet", "starting over"];
const HAS_MET: &[&str] = &["contact", "landing", "ahead", "level"];
const OURS: &[&str] = &["ahead", "level"];
const SENDING: &[&str] = &["landing", "ahead"];
const SENT: &[&str] = &["unmet", "landing", "ahead"];

/// Each event's name, and the names of the phases in which it can come. All other pairs are
/// impossible: [`next`] answers [`Action::Unexpected`].
const TRANSITIONS: [(&str, &[&str]); 34] = [
    ("stopped", ALL),
    ("failed", ALL),
    ("token renewed", ALL),
    ("device changed", ALL),
    ("turn", ALL),
    ("heard", NOT_MET),
    ("started over", &["starting over"]),
    ("met", &["unmet"]),
    ("unclear", SENT),
    ("begun by others", HAS_MET),
    ("looked", HAS_MET),
    ("left out due", OURS),
    ("left out waits", OURS),
    ("prepared", &["landing", "ahead", "level"]),
    ("head known", OURS),
    ("head noted", &["landing"]),
    ("landed", &["landing"]),
    ("landed unnoted", &["level"]),
    ("idle", HAS_MET),
    ("group out", HAS_MET),
    ("cut due", HAS_MET),
    ("ask due", HAS_MET),
    ("decide due", HAS_MET),
    ("decided", HAS_MET),
    ("tree ended", HAS_MET),
    ("folded in part", &["contact"]),
    ("contact head", &["contact"]),
    ("contacted", &["contact"]),
    ("deferred", SENDING),
    ("applied", SENT),
    ("empty", SENT),
    ("refused", SENDING),
    ("unanswered", SENDING),
    ("unsendable", SENDING),
];

/// Names of a phase of the engine and of an event that came in it.
pub type Transition = (&'static str, &'static str);

/// All pairs of a phase and an event that can come in it, for tests that look for those that
/// never came.
#[must_use]
pub fn possible_transitions() -> BTreeSet<Transition> {
    let phases = TRANSITIONS.iter();
    let pairs = phases.flat_map(|(event, phases)| phases.iter().map(|phase| (*phase, *event)));
    pairs.collect()
}
