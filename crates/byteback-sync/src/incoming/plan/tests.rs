//! The planner against a model: a tree at the server and one here, changed at random on both sides,
//! and every step done by an executor that refuses what no file system would do. `check` states
//! what must hold.

mod conflict_names;
mod model;

use byteback_model::{FileId, Place};
use std::collections::{BTreeMap, BTreeSet};

use byteback_host::random::SplitMix64;

use super::{ConflictLabel, Given, Outcome, Plan, PlanError, Step, plan};
use model::{Local, Op, ROOT, Tree, diff, random_op, tell};

fn seed(default: u64) -> u64 {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(default);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}

/// Kind of a life.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// Number of changes here that are not sent.
    local: u64,
    /// Number of changes there.
    remote: u64,
    /// Whether each was done on both sides.
    same: bool,
    /// Whether plans are given up in the middle.
    interrupted: bool,
    /// Whether programs go on meanwhile.
    goes_on: bool,
    /// Whether names that begin with 'd' are refused.
    refused: bool,
    /// Whether changes here are made in atomic operations.
    together: bool,
    /// Whether programs have files open for writing.
    in_use: bool,
}

struct Run {
    random: SplitMix64,
    base: Tree,
    server: Tree,
    here: Local,
    others: super::Others,
    landed: BTreeSet<byteback_model::FileId>,
    refused: BTreeSet<super::Place<FileId>>,
    blocked: super::Blocked,
    outcomes: Vec<Outcome>,
}

impl Run {
    fn new(seed: u64, life: Life) -> Self {
        let mut random = SplitMix64::new(seed);
        // This tree never held names that it cannot hold.
        let here_names: &[u8] = if life.refused { b"abce" } else { b"abcde" };
        let mut base = Tree::new();
        let mut next = 1000;
        for _ in 0..5 + random.below(25) {
            let op = random_op(&base, &mut random, here_names);
            base.apply(&op, &mut next, false);
        }
        base.forget_nameless();
        let mut server = base.clone();
        let mut here = Local::new(base.clone());
        let (mut next_there, mut next_here) = (1 << 32, 1 << 40);
        if life.same {
            for _ in 0..life.local.max(life.remote) {
                let op = random_op(&here.tree, &mut random, here_names);
                here.apply(&op, &mut next_here);
                server.apply(&op, &mut next_there, false);
            }
        } else {
            for _ in 0..life.remote {
                let op = random_op(&server, &mut random, b"abcde");
                let leaves_inside = random.below(3) == 0;
                server.apply(&op, &mut next_there, leaves_inside);
            }
            for _ in 0..life.local {
                if life.together && random.below(3) == 0 {
                    let goes_together = random.below(3) > 0;
                    here.operate(goes_together);
                }
                let op = random_op(&here.tree, &mut random, here_names);
                here.apply(&op, &mut next_here);
                if random.below(10) == 0 {
                    // The same change is done there, if possible.
                    server.apply(&op, &mut next_there, false);
                }
            }
        }
        here.next = next_here;
        if life.in_use {
            here.open_some(&mut random);
        }
        let others = diff(&base, &server);
        Self {
            random,
            base,
            server,
            here,
            others,
            landed: BTreeSet::new(),
            refused: BTreeSet::new(),
            blocked: super::Blocked::default(),
            outcomes: Vec::new(),
        }
    }

    fn plan(&mut self) -> Plan {
        let label = ConflictLabel::new("host", 1_795_000_000, 0);
        let mut asked = 0;
        loop {
            let given = Given {
                landed: &self.landed,
                refused: &self.refused,
                blocked: &self.blocked,
                label: &label,
            };
            let view = model::Seen {
                local: &self.here,
                server: &self.server,
            };
            let mut fresh = self.here.next;
            let answer = plan(&self.others, &view, &given, &mut || {
                fresh += 1;
                byteback_model::FileId(fresh)
            });
            self.here.next = fresh;
            match answer {
                Ok(plan) => return plan,
                Err(PlanError::Needs(needs)) => {
                    asked += 1;
                    assert!(asked < 100, "it asks for ever: {needs:?}");
                    assert!(!needs.is_empty());
                    for need in needs {
                        let reported = tell(&self.server, need);
                        self.others.reported.insert(need.id, reported);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Does the steps, all or some; returns whether all.
    fn execute(&mut self, plan: &Plan, life: Life) -> bool {
        let stop_at = match life.interrupted && self.random.below(4) > 0 {
            true => self.random.below(plan.steps.len() as u64 + 1) as usize,
            false => usize::MAX,
        };
        for (index, step) in plan.steps.iter().enumerate() {
            if index >= stop_at {
                if let Step::Make { .. } = step
                    && self.random.below(2) == 0
                {
                    // It was made, and its identity was not noted.
                    self.here.execute(step, &self.base, &self.server, true);
                }
                if self.random.below(3) == 0 {
                    // A crash: it is not known which contents were written.
                    self.landed.clear();
                }
                return false;
            }
            let target = match step {
                Step::Make { place, .. } | Step::Link { place, .. } => Some(place),
                Step::Rename {
                    to, is_local: false, ..
                } => Some(to),
                _ => None,
            };
            if let Some(target) = target.filter(|target| life.refused && target.name.as_bytes().starts_with(b"d")) {
                self.refused.insert(target.clone());
                return false;
            }
            self.here.execute(step, &self.base, &self.server, false);
            match step {
                Step::Content { id, .. } => self.landed.insert(*id),
                Step::Make { id, .. } => self.landed.remove(id),
                _ => false,
            };
        }
        true
    }

    fn live(&mut self, mut life: Life) {
        let unsent_before = self.here.unsent_contents();
        let mut removed_meanwhile = false;
        let mut attempts = 0;
        loop {
            let plan = self.plan();
            self.outcomes.extend(plan.outcomes.iter().cloned());
            if self.execute(&plan, life) {
                self.check(&plan, life, removed_meanwhile);
                break;
            }
            if life.goes_on {
                for _ in 0..self.random.below(3) {
                    let op = random_op(&self.here.tree, &mut self.random, b"abcde");
                    let mut next = self.here.next;
                    self.here.apply(&op, &mut next);
                    self.here.next = next;
                    removed_meanwhile = true;
                }
            }
            attempts += 1;
            if attempts > 40 {
                // Enough interruptions.
                (life.interrupted, life.goes_on) = (false, false);
                assert!(attempts < 1000, "it does not end");
            }
        }
        if !removed_meanwhile {
            let after = self.here.tree.contents();
            for content in unsent_before {
                assert!(after.contains(&content), "what was written here is lost: {content}");
            }
        }
        let again = self.plan();
        assert_eq!(again.steps, [], "the second time there is nothing to do");
        assert!(
            !self
                .here
                .tree
                .entries
                .keys()
                .any(|place| { place.parent == ROOT && super::is_name_on_its_way(place.name.as_bytes()) })
        );
    }

    fn check(&self, plan: &Plan, life: Life, went_on: bool) {
        let here = self.here.tree.paths();
        let there = self.server.paths();
        if life.local == 0 && !life.refused && !went_on {
            assert_same(&here, &there, "without changes here, the tree is the server's");
            assert_eq!(self.outcomes, []);
        }
        if life.same && !went_on {
            let names = |paths: &model::Paths| paths.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&here), names(&there), "who does the same is in no conflict");
            assert_eq!(self.outcomes, []);
        }
        if !went_on {
            self.check_together();
        }
        if !life.refused {
            // Sending the unsent changes makes the server's tree this one.
            let mut sent = self.server.clone();
            let stays = plan.outcomes.iter().filter_map(|outcome| match outcome {
                Outcome::Stays { place, .. } => Some(place),
                _ => None,
            });
            self.here.send(stays, &mut sent);
            assert_same(
                &here,
                &sent.paths(),
                "what is here and was not sent is all that differs",
            );
        }
        if went_on {
            return;
        }
        let reachable = self.server.reachable();
        for (place, change) in &self.others.names {
            let mut path = self.server.path_of(place.parent).unwrap_or_default();
            path.extend([b"/", place.name.as_bytes()].concat());
            let is_refused = life.refused && path.split(|byte| *byte == b'/').any(|name| name.starts_with(b"d"));
            if let Some(after) = change.after.filter(|after| reachable.contains(after) && !is_refused) {
                assert_eq!(
                    self.here.tree.entries.get(place),
                    Some(&after),
                    "{place:?} is the server's"
                );
            }
        }
        for (id, change) in &self.others.nodes {
            let is_old = change.before.is_some() && change.is_content_changed;
            if is_old && reachable.contains(id) && !life.refused {
                let held = self.here.tree.nodes.get(id).map(|node| node.content);
                assert_eq!(
                    held,
                    Some(self.server.nodes[id].content),
                    "{id} holds what others wrote"
                );
            }
        }
    }
}

type Places<'a> = Vec<&'a Place<FileId>>;

impl Run {
    /// In each directory, all files of an operation that were changed here have the names that they
    /// had here, or all have conflict names.
    fn check_together(&self) {
        for set in &self.here.sets {
            let mut parents: BTreeMap<FileId, (Places<'_>, Places<'_>)> = BTreeMap::new();
            let unsent: BTreeSet<_> = self.here.unsent_of_set(set).collect();
            for (place, id) in &self.here.tree.entries {
                if !unsent.contains(id) || self.is_as_there(*id) {
                    continue;
                }
                let (own, copies) = parents.entry(place.parent).or_default();
                match model::is_conflict_name(place.name.as_bytes()) {
                    true => copies.push(place),
                    false => own.push(place),
                }
            }
            for (own, copies) in parents.values() {
                assert!(
                    own.is_empty() || copies.is_empty(),
                    "of one operation {copies:?} are copies, and {own:?} are not"
                );
            }
        }
    }

    /// Whether a file has the same content at the server.
    fn is_as_there(&self, id: byteback_model::FileId) -> bool {
        let content = |tree: &Tree| tree.nodes.get(&id).map(|node| node.content);
        content(&self.server) == content(&self.here.tree)
    }
}

fn assert_same(here: &model::Paths, there: &model::Paths, what: &str) {
    let differ = |one: &model::Paths, other: &model::Paths| {
        let lines = one.iter().filter(|(path, node)| other.get(*path) != Some(node));
        let lines = lines.map(|(path, (id, node))| format!("{} = {} {node:?}", String::from_utf8_lossy(path), id.0));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(differ(here, there), differ(there, here), "{what}");
}

fn lives(name: &str, default: u64, count: u64, life: impl Fn(&mut SplitMix64) -> Life) {
    let first = seed(default);
    // A seed that is repeated is repeated alone.
    let count = if first == default { count } else { 1 };
    for seed in first..first + count {
        let life = life(&mut SplitMix64::new(seed ^ 0x5eed));
        let outcome = std::panic::catch_unwind(|| Run::new(seed, life).live(life));
        assert!(outcome.is_ok(), "{name}: BYTEBACK_SEED={seed}, {life:?}");
    }
}

#[test]
fn without_changes_here_the_tree_becomes_the_server_s() {
    lives("alone", 1, 1000, |random| Life {
        remote: 1 + random.below(20),
        interrupted: random.below(2) == 0,
        ..Life::default()
    });
}

#[test]
fn what_was_changed_here_and_there_loses_nothing_and_converges() {
    lives("both", 1_000_000, 2000, |random| Life {
        remote: 1 + random.below(12),
        local: 1 + random.below(12),
        ..Life::default()
    });
}

#[test]
fn all_files_of_an_atomic_operation_share_its_outcome() {
    lives("together", 6_000_000, 4000, |random| Life {
        remote: 1 + random.below(12),
        local: 1 + random.below(16),
        together: true,
        ..Life::default()
    });
}

#[test]
fn incoming_plan_keeps_atomic_operations_whole_if_interrupted() {
    lives("together, interrupted", 7_000_000, 3000, |random| Life {
        remote: 1 + random.below(12),
        local: 1 + random.below(16),
        interrupted: true,
        together: true,
        refused: random.below(4) == 0,
        goes_on: random.below(4) == 0,
        ..Life::default()
    });
}

#[test]
fn incoming_plan_given_up_midway_is_remade_and_ends_the_same() {
    lives("interrupted", 2_000_000, 2000, |random| Life {
        remote: 1 + random.below(12),
        local: random.below(8),
        interrupted: true,
        ..Life::default()
    });
}

#[test]
fn programs_may_go_on_while_it_is_landed() {
    lives("goes on", 3_000_000, 1500, |random| Life {
        remote: 1 + random.below(12),
        local: random.below(8),
        interrupted: true,
        goes_on: true,
        ..Life::default()
    });
}

#[test]
fn the_same_done_here_and_there_is_no_conflict() {
    lives("same", 4_000_000, 1000, |random| Life {
        remote: 1 + random.below(6),
        same: true,
        ..Life::default()
    });
}

#[test]
fn incoming_plan_leaves_out_impossible_names_without_blocking() {
    lives("refused", 5_000_000, 1000, |random| Life {
        remote: 1 + random.below(12),
        local: random.below(6),
        refused: true,
        ..Life::default()
    });
}

#[test]
fn what_programs_have_open_for_writing_keeps_a_name() {
    lives("in use", 8_000_000, 2000, |random| Life {
        remote: 1 + random.below(12),
        local: 1 + random.below(8),
        interrupted: random.below(2) == 0,
        in_use: true,
        ..Life::default()
    });
}

#[test]
fn a_directory_of_thousands_shifts_swaps_and_moves() {
    let mut base = Tree::new();
    let mut next = 1000;
    for at in 0..2000 {
        let path = format!("d/{at:05}").into_bytes();
        if at == 0 {
            base.apply(
                &Op::Create(b"d".to_vec(), byteback_model::NodeKind::Directory, 1),
                &mut next,
                false,
            );
        }
        base.apply(
            &Op::Create(path, byteback_model::NodeKind::File, at + 10),
            &mut next,
            false,
        );
    }
    let mut server = base.clone();
    for at in (0..1500).rev() {
        let name = |at: u64| format!("d/{at:05}").into_bytes();
        server.apply(&Op::Rename(name(at), name(at + 1)), &mut next, false);
    }
    for at in (1550..1950).step_by(2) {
        let name = |at: u64| format!("d/{at:05}").into_bytes();
        server.apply(&Op::Swap(name(at), name(at + 1)), &mut next, false);
    }
    server.apply(&Op::Rename(b"d".to_vec(), b"e".to_vec()), &mut next, false);
    let life = Life {
        remote: 1,
        ..Life::default()
    };
    let mut here = Local::new(base.clone());
    here.next = 1 << 40;
    let others = diff(&base, &server);
    let mut run = Run {
        random: SplitMix64::new(1),
        base,
        server,
        here,
        others,
        landed: BTreeSet::new(),
        refused: BTreeSet::new(),
        blocked: super::Blocked::default(),
        outcomes: Vec::new(),
    };
    run.live(life);
}
