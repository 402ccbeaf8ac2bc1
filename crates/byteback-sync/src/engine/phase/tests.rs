use byteback_host::random::SplitMix64;
use byteback_queue::Position;

use super::*;

const ROOT: FileId = FileId(7);

fn group() -> Arc<LiveGroup> {
    Arc::new(LiveGroup {
        id: GroupId(1),
        up_to: Position(1),
        is_conflict: false,
        names: Vec::new(),
        nodes: Vec::new(),
        contents: Vec::new(),
        directory_times: Vec::new(),
        fold: None,
    })
}

fn applied() -> BatchApplied {
    BatchApplied {
        seq: 9,
        snapshot_id: None,
        repeated: false,
        stored_bytes: 0,
    }
}

fn heard(was_further: bool) -> ServerNews {
    ServerNews {
        root: Some(ROOT),
        ground: Ground::default(),
        was_further,
    }
}

fn looks() -> Vec<Event> {
    let outlooks = [Outlook::Busy, Outlook::News, Outlook::Quiet];
    let asked = outlooks.map(|outlook| [Asked::Repair, Asked::Nothing].map(|asked| Event::Looked(outlook, asked)));
    asked.into_iter().flatten().chain([Event::BegunByOthers]).collect()
}

fn works() -> Vec<Event> {
    let mut works = vec![
        Event::GroupOut(group()),
        Event::CutDue,
        Event::AskDue(GroupId(1)),
        Event::DecideDue(GroupId(1)),
        Event::TreeEnded,
    ];
    for outlook in [Outlook::Busy, Outlook::News, Outlook::Quiet] {
        works.extend([Waiting::Folded, Waiting::Unfolded].map(|waiting| Event::Idle(None, outlook, waiting)));
    }
    works
}

fn outcomes() -> Vec<Event> {
    vec![
        Event::Applied(GroupId(1), applied()),
        Event::Empty(GroupId(1)),
        Event::Deferred(GroupId(1)),
        Event::Refused(GroupId(1), BackupError::Cancelled),
        Event::Unanswered(BackupError::Cancelled, Failure::Passing),
        Event::Unsendable("why".to_owned()),
    ]
}

/// The events that may answer an action; none if the round is over then.
fn answers(action: &Action) -> Vec<Event> {
    match action {
        Action::Meet => vec![Event::ServerNews(heard(false)), Event::ServerNews(heard(true))],
        Action::StartOver(heard) => vec![Event::StartedOver(*heard)],
        Action::Recognize(_) => vec![Event::Met(None), Event::Met(Some(ROOT))],
        Action::Look => looks(),
        Action::LookAtLeftOut(asked) => vec![Event::LeftOutDue, Event::LeftOutWaits(*asked)],
        Action::PrepareLanding => vec![Event::Prepared],
        Action::AskHead => vec![Event::HeadKnown(5)],
        Action::NoteHead => vec![Event::HeadNoted],
        Action::Land(_) => vec![Event::Landed(Box::default())],
        Action::Poll => works(),
        Action::Send(_) => outcomes(),
        Action::Cut => vec![Event::GroupOut(group())],
        Action::Decide(_) => vec![Event::Decided],
        Action::BeginContact => vec![Event::FoldedInPart, Event::ContactHead(6, GroupId(1))],
        Action::EndContact(..) => vec![Event::Contacted],
        Action::Nothing
        | Action::Unexpected
        | Action::Leave
        | Action::Rest(_)
        | Action::NoteLanded(..)
        | Action::Repair
        | Action::Wait(_)
        | Action::Ask(_)
        | Action::FoldForContact
        | Action::Defer(_)
        | Action::Confirm(..)
        | Action::Refuse(..)
        | Action::Await(..)
        | Action::GiveUp(_) => Vec::new(),
    }
}

/// All events, with all that their documentation tells apart.
fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Stopped,
        Event::Failed(Failure::Passing),
        Event::Failed(Failure::Lasting),
        Event::TokenRenewed,
        Event::DeviceChanged,
        Event::Turn,
        Event::ServerNews(heard(false)),
        Event::ServerNews(heard(true)),
        Event::StartedOver(None),
        Event::StartedOver(Some(heard(true))),
        Event::Met(None),
        Event::Met(Some(ROOT)),
        Event::Unclear,
        Event::LeftOutDue,
        Event::LeftOutWaits(Asked::Repair),
        Event::LeftOutWaits(Asked::Nothing),
        Event::Prepared,
        Event::HeadKnown(5),
        Event::HeadNoted,
        Event::Landed(Box::default()),
        Event::LandedUnnoted(5),
        Event::Decided,
        Event::FoldedInPart,
        Event::ContactHead(6, GroupId(1)),
        Event::Contacted,
    ];
    events.extend(looks());
    events.extend(works());
    events.extend(outcomes());
    events
}

fn phases() -> Vec<Phase> {
    let inbounds = [Inbound::Level, Inbound::Ahead, Inbound::Landing(4)];
    let mut phases = Vec::from(inbounds.map(Inbound::phase));
    for inbound in inbounds {
        phases.push(Phase::Contact { root: ROOT, inbound });
        for met in [Met::Never, Met::Before] {
            phases.push(Phase::Unmet { met, inbound });
            phases.push(Phase::StartingOver { met, inbound });
        }
    }
    phases
}

#[test]
fn phase_table_lists_what_next_expects() {
    let possible = possible_transitions();
    let names: BTreeSet<&str> = events().iter().map(Event::name).collect();
    let listed: BTreeSet<&str> = TRANSITIONS.iter().map(|(event, _)| *event).collect();
    assert_eq!(names, listed);
    for phase in phases() {
        for event in events() {
            let reported = format!("{phase:?} {event:?}");
            let pair = (phase.name(), event.name());
            let (after, action) = next(phase, event);
            let is_unexpected = matches!(action, Action::Unexpected);
            assert_eq!(is_unexpected, !possible.contains(&pair), "{reported}");
            assert!(!is_unexpected || after.is_unmet(), "{reported}");
        }
    }
}

/// A walk through the engine's life, with answers and failures drawn at random.
struct Walk {
    phase: Phase,
    random: SplitMix64,
    passed: BTreeSet<Transition>,
    /// The landing that the standing on the disk names.
    durable: Option<Seq>,
}

impl Walk {
    fn draw(&mut self, mut events: Vec<Event>) -> Event {
        let drawn = self.random.below(events.len() as u64) as usize;
        events.swap_remove(drawn)
    }

    fn is_rare(&mut self) -> bool {
        self.random.below(12) == 0
    }

    /// Reports an event, and checks what must hold in every phase.
    fn tell(&mut self, event: Event) -> Action {
        let reported = format!("{:?} {event:?}", self.phase);
        let before = self.phase;
        self.passed.insert((before.name(), event.name()));
        let ends_landing = matches!(event, Event::Landed(_) | Event::StartedOver(_) | Event::ContactHead(..));
        let is_busy = matches!(
            event,
            Event::Looked(Outlook::Busy, _) | Event::Idle(_, Outlook::Busy, _)
        );
        match &event {
            Event::HeadNoted | Event::Contacted => self.durable = before.landing(),
            Event::LandedUnnoted(head) => self.durable = Some(*head),
            Event::Landed(_) | Event::StartedOver(_) | Event::ContactHead(..) => self.durable = None,
            _ => {}
        }
        let may_end = match event {
            Event::Stopped | Event::TreeEnded => true,
            Event::Failed(Failure::Lasting) => !before.has_met(),
            _ => false,
        };
        let (phase, action) = next(before, event);
        self.phase = phase;
        assert!(!matches!(action, Action::Unexpected), "{reported}");
        assert_eq!(matches!(action, Action::Leave), may_end, "{reported}");
        assert!(
            phase.has_met() || !before.has_met(),
            "{reported}: it forgets that it met"
        );
        if let Some(head) = before.landing() {
            assert!(
                ends_landing || phase.landing() == Some(head),
                "{reported}: it forgets a landing"
            );
        }
        let is_met = !phase.is_unmet() && !matches!(phase, Phase::Contact { .. });
        match action {
            Action::Send(_) | Action::Cut | Action::Repair => assert!(is_met, "{reported}"),
            Action::PrepareLanding | Action::AskHead | Action::Land(_) => assert!(is_met && !is_busy, "{reported}"),
            _ => {}
        }
        if let Action::Land(head) = action {
            assert_eq!(phase.landing(), Some(head), "{reported}");
            assert_eq!(self.durable, Some(head), "{reported}: a crash would forget the landing");
        }
        action
    }

    /// Lets the engine rest after a failure. The machine may get another token meanwhile.
    fn fail(&mut self) {
        let failure = Failure::of(self.random.coin());
        let action = self.tell(Event::Failed(failure));
        if matches!(action, Action::Rest(_)) && self.is_rare() {
            self.renew();
        }
    }

    fn renew(&mut self) {
        let event = self.draw(vec![Event::TokenRenewed, Event::DeviceChanged]);
        self.follow(event);
    }

    fn round(&mut self) {
        if self.is_rare() {
            self.renew();
        }
        match self.is_rare() {
            true => drop(self.tell(Event::Stopped)),
            false => self.follow(Event::Turn),
        }
    }

    fn follow(&mut self, event: Event) {
        let mut event = event;
        loop {
            let action = self.tell(event);
            let is_step = !matches!(action, Action::Nothing | Action::Leave);
            if is_step && self.is_rare() {
                return self.fail();
            }
            let mut answers = answers(&action);
            match action {
                Action::NoteLanded(head, _) if self.is_rare() => {
                    self.tell(Event::LandedUnnoted(head));
                    return self.fail();
                }
                Action::Send(_) => {
                    // The server applied a fold, and that could not be noted.
                    while self.is_rare() {
                        self.tell(Event::Unclear);
                        answers.retain(|answer| matches!(answer, Event::Applied(..) | Event::Empty(_)));
                    }
                }
                _ => {}
            }
            if answers.is_empty() {
                return;
            }
            event = self.draw(answers);
        }
    }
}

#[test]
fn phase_walk_reaches_every_transition() {
    let mut passed = BTreeSet::new();
    for seed in 0..40 {
        let landing = (seed % 2 == 0).then_some(3);
        let mut walk = Walk {
            phase: Phase::of_standing(landing),
            random: SplitMix64::new(seed),
            passed: BTreeSet::new(),
            durable: landing,
        };
        for _ in 0..500 {
            walk.round();
        }
        passed.extend(walk.passed);
    }
    let possible = possible_transitions();
    let missing: Vec<&Transition> = possible.difference(&passed).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
    assert_eq!(passed, possible);
}

fn after(phase: Phase, event: Event) -> (Phase, String) {
    let (phase, action) = next(phase, event);
    (phase, format!("{action:?}"))
}

#[test]
fn phase_meets_again_after_a_refusal() {
    let refused = Event::Refused(GroupId(1), BackupError::Cancelled);
    let (phase, action) = next(Phase::Ahead, refused);
    assert!(matches!(action, Action::Refuse(GroupId(1), _)));
    let (met, inbound) = (Met::Before, Inbound::Ahead);
    assert_eq!(phase, Phase::Unmet { met, inbound });
    assert_eq!(after(phase, Event::Turn), (phase, "Meet".to_owned()));
    let (phase, _) = next(phase, Event::Met(None));
    assert_eq!(phase, Phase::Ahead);
    let news = Event::Looked(Outlook::News, Asked::Nothing);
    assert_eq!(after(phase, news), (Phase::Ahead, "PrepareLanding".to_owned()));
}

#[test]
fn phase_lets_neither_direction_wait_for_the_other() {
    let news = || Event::Looked(Outlook::News, Asked::Nothing);
    // Nothing was sent since others' changes came: ours first, theirs once none of ours wait.
    assert_eq!(after(Phase::Level, news()).1, "LookAtLeftOut(Nothing)");
    let idle = Event::Idle(None, Outlook::News, Waiting::Unfolded);
    assert_eq!(after(Phase::Level, idle).1, "PrepareLanding");
    let (phase, _) = next(Phase::Level, Event::GroupOut(group()));
    assert_eq!(phase, Phase::Ahead);
    assert_eq!(after(phase, news()).1, "PrepareLanding");
    // A repair stands on all that the server has.
    let asked = Event::Looked(Outlook::News, Asked::Repair);
    assert_eq!(after(Phase::Level, asked).1, "PrepareLanding");
    let quiet = Event::Looked(Outlook::Quiet, Asked::Repair);
    assert_eq!(after(Phase::Level, quiet).1, "LookAtLeftOut(Repair)");
    assert_eq!(after(Phase::Level, Event::LeftOutWaits(Asked::Repair)).1, "Repair");
}

#[test]
fn phase_ends_at_a_lasting_failure_only_before_it_met() {
    let fresh = Phase::of_standing(None);
    let lasting = || Event::Failed(Failure::Lasting);
    assert_eq!(after(fresh, lasting()).1, "Leave");
    assert_eq!(after(fresh, Event::Failed(Failure::Passing)).1, "Rest(Passing)");
    let (phase, _) = next(fresh, Event::Met(None));
    let (phase, _) = next(phase, Event::TokenRenewed);
    assert!(phase.is_unmet());
    assert_eq!(after(phase, lasting()).1, "Rest(Lasting)");
}

#[test]
fn phase_keeps_an_interrupted_landing_through_meetings() {
    let landing = Phase::Landing { head: 4 };
    let (phase, _) = next(landing, Event::TokenRenewed);
    assert_eq!(phase.landing(), Some(4));
    let (contact, _) = next(phase, Event::Met(Some(ROOT)));
    assert_eq!(contact.landing(), Some(4));
    let (contact, action) = next(contact, Event::ContactHead(6, GroupId(1)));
    assert!(matches!(action, Action::EndContact(ROOT, GroupId(1))));
    assert_eq!(after(contact, Event::Contacted).0, Phase::Landing { head: 6 });
    let (phase, _) = next(phase, Event::DeviceChanged);
    assert_eq!(phase.landing(), Some(4), "until the new standing is durable");
    assert_eq!(next(phase, Event::StartedOver(None)).0.landing(), None);
}
