//! The sender, as it will be: it takes groups, applies them to a server, and answers. With delays,
//! and with trouble on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use byteback_control::Work;
use byteback_host::random::SplitMix64;
use byteback_queue::GroupId;
use byteback_queue::queue::Resolution;

use super::lane::{Follower, ledger};
use super::server::{Sent, Server, read};
use crate::fixture::Served;

/// How often things go wrong, in a thousand steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) unanswered: u64,
    pub(crate) refused: u64,
    pub(crate) abandoned: u64,
}

pub(crate) struct Drain {
    served: Option<Served>,
    pub(crate) server: Server,
    random: SplitMix64,
    trouble: Trouble,
    in_flight: VecDeque<Sent>,
    /// Groups that were sent and may be sent again: then exactly so.
    sent: BTreeMap<GroupId, Sent>,
    applied: BTreeSet<GroupId>,
    followers: Vec<(String, Follower)>,
    /// How many lanes there will be, if not all of them work from the beginning.
    pub(crate) lanes: Option<usize>,
    pub(crate) groups: u64,
    pub(crate) folds: u64,
    pub(crate) deltas: usize,
    pub(crate) rewritten: usize,
    pub(crate) bytes: usize,
    pub(crate) given_up: u64,
    refused: u64,
    /// The last events, for the search for a fault.
    history: VecDeque<String>,
}

impl Drain {
    pub(crate) fn new(served: Served, seed: u64, trouble: Trouble) -> Self {
        Self {
            served: Some(served),
            server: Server::new(),
            random: SplitMix64::new(seed ^ 0x5eed),
            trouble,
            in_flight: VecDeque::new(),
            sent: BTreeMap::new(),
            applied: BTreeSet::new(),
            followers: Vec::new(),
            lanes: None,
            groups: 0,
            folds: 0,
            deltas: 0,
            rewritten: 0,
            bytes: 0,
            given_up: 0,
            refused: 0,
            history: VecDeque::new(),
        }
    }

    /// Lets go of the tree.
    pub(crate) fn leave(&mut self) {
        self.served = None;
    }

    fn served(&self) -> Served {
        self.served.clone().unwrap()
    }

    /// Goes on with another process, or another mount, and the same server.
    pub(crate) fn serve_again(&mut self, served: Served) {
        self.served = Some(served);
        self.in_flight.clear();
        self.sent.clear();
    }

    pub(crate) fn follow(&mut self, under: &str, seed: u64) {
        self.followers.push((under.to_owned(), Follower::new(under, seed)));
    }

    pub(crate) fn summary(&self) -> String {
        format!(
            "{} groups, {} folds, {} deltas ({} of what a file held before), {} bytes, {} given up, {} refused; {:?}",
            self.groups,
            self.folds,
            self.deltas,
            self.rewritten,
            self.bytes,
            self.given_up,
            self.refused,
            self.served().live.status()
        )
    }

    fn note(&mut self, what: String) {
        if self.history.len() == 40 {
            self.history.pop_front();
        }
        self.history.push_back(what);
    }

    fn is(&mut self, in_a_thousand: u64) -> bool {
        self.random.below(1000) < in_a_thousand
    }

    fn send(&mut self, group: &byteback_control::LiveGroup) {
        if self.random.below(3) == 0 {
            std::thread::sleep(Duration::from_millis(self.random.below(4)));
        }
        let scope = group.fold.as_ref().map(|fold| (&fold.scope, fold.cut.since));
        let (id, up_to, names, lens) = (group.id, group.up_to, &group.names, group.contents.len());
        self.note(format!(
            "take {id} up to {up_to}, {} names, {lens} contents, {scope:?}",
            names.len()
        ));
        match read(&self.served(), group) {
            Ok(sent) => {
                if let Some(before) = self.sent.insert(group.id, sent.clone()) {
                    assert_eq!(before.group, sent.group, "group {} is sent otherwise", group.id);
                    assert!(before == sent, "group {} is sent with other bytes", group.id);
                }
                self.in_flight.push_back(sent);
            }
            Err(error) => {
                println!("given up: {error}; {:?}", self.served().live.status().abandoned_because);
                self.given_up += 1;
                self.in_flight.clear();
            }
        }
    }

    fn apply(&mut self) {
        let Some(sent) = self.in_flight.front().cloned() else {
            return;
        };
        let id = sent.group.id;
        // A server answers a group that it has applied as it did the first time, and never refuses
        // it.
        if self.is(self.trouble.refused) && !self.applied.contains(&id) {
            self.refused += 1;
            self.note(format!("refuse {id}"));
            // A group that was given up in between is not to be answered any more.
            if self.served().live.refused(id).is_err() {
                println!("{id} is not in flight");
            }
            self.in_flight.clear();
            self.sent.retain(|other, _| *other < id);
            return;
        }
        if self.applied.insert(id) {
            self.groups += 1;
            self.folds += u64::from(sent.group.fold.is_some());
            self.deltas += sent.deltas();
            self.rewritten += sent.rewritten();
            self.bytes += sent.len_bytes();
            self.note(format!("apply {id}"));
            self.server.apply(&sent);
            self.check(id);
        }
        if self.is(self.trouble.unanswered) {
            self.note(format!("do not answer {id}"));
            self.served().live.unanswered(Duration::ZERO);
            self.in_flight.clear();
            return;
        }
        if let Some(fold) = &sent.group.fold {
            let (note, unsaved) = (Vec::new(), Vec::new());
            let outcome = byteback_control::Outcome::Saved { note, unsaved };
            self.served().tree.finish(fold.cut.cut, &outcome).unwrap();
        }
        self.in_flight.pop_front();
        self.sent.remove(&id);
        if let Err(error) = self.served().live.applied(id) {
            panic!("{error}");
        }
    }

    /// Checks the server at every applied group.
    fn check(&mut self, id: GroupId) {
        let lanes = self.lanes.unwrap_or(self.followers.len());
        let ledgers = self
            .followers
            .iter()
            .map(|(under, _)| ledger(&self.server, under, lanes));
        let ledgers = ledgers.collect::<Vec<_>>();
        for (lane, (noted, others)) in ledgers.iter().enumerate() {
            for (other, seen) in others.iter().enumerate() {
                let reached = ledgers.get(other).map_or(0, |(noted, _)| *noted);
                assert!(
                    reached >= *seen,
                    "group {id}: lane {lane} noted {noted} after operation {seen} of lane {other}, which is at {reached}"
                );
            }
        }
        for ((_, follower), (noted, _)) in self.followers.iter_mut().zip(&ledgers) {
            if let Err(why) = follower.check(&self.server, *noted) {
                panic!("group {id}: {why}; {:#?}", self.history);
            }
        }
    }

    /// Takes a group, if there is one, or answers. Returns whether nothing is to be done.
    pub(crate) fn step(&mut self) -> bool {
        if self.is(self.trouble.abandoned) {
            self.note("give up".to_owned());
            self.served().live.give_up("the test says so");
        }
        match self.served().live.poll().unwrap() {
            Work::Send(group) => self.send(&group),
            Work::Cut => match self.served().live.cut_fold(&[]) {
                Ok(group) => self.send(&group),
                Err(error) => println!("no cut: {error}"),
            },
            Work::Ask(id) => {
                self.in_flight.clear();
                self.note(format!("asked {id}, {}", self.applied.contains(&id)));
                match self.applied.contains(&id) {
                    true => self.served().live.applied(id).unwrap(),
                    false => self.served().live.never_arrived(id).unwrap(),
                }
            }
            Work::Decide(id) => {
                let resolution = match self.random.below(2) {
                    0 => Resolution::AsConflict,
                    _ => Resolution::Fold,
                };
                self.note(format!("{id}: {resolution:?}"));
                self.served().live.resolve(id, &resolution).unwrap();
            }
            Work::Idle(wait) => {
                // A sender that comes sooner finds the same moment of the coarse clock, and would
                // ask without end until its step is over.
                assert!(wait.is_none_or(|wait| wait >= Duration::from_millis(4)), "{wait:?}");
                if self.in_flight.is_empty() {
                    let at_most = Duration::from_millis(20);
                    self.served().live.wait(wait.unwrap_or(at_most).min(at_most));
                    return true;
                }
                self.apply();
            }
            Work::Ended => return true,
        }
        if self.in_flight.len() > 5 || self.random.below(4) == 0 {
            self.apply();
        }
        false
    }

    /// Steps until nothing waits.
    pub(crate) fn finish(&mut self) {
        self.trouble = Trouble::default();
        let began = Instant::now();
        loop {
            self.step();
            let status = self.served().live.status();
            if status.waiting_nodes == 0 && status.groups_in_flight == 0 && !status.is_folded {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it does not end: {status:?}");
        }
    }

    pub(crate) fn check_end(&mut self) {
        let lanes = self.lanes.unwrap_or(self.followers.len());
        for (under, follower) in &mut self.followers {
            let (noted, _) = ledger(&self.server, under, lanes);
            follower.check_end(&self.server, noted);
        }
    }
}
