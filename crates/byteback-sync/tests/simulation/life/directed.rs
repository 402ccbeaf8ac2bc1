//! Lives that are led to transitions of the engine which random lives do not reach, or seldom.
//! Each returns those that the second machine's engines went through; [`DIRECTED`] lists all lives.

use super::named::{BEGUN, SEEDS};
use super::{Faults, Life, LifeOptions, SECOND_NS};
use byteback_sync::engine::Transition;
use std::collections::BTreeSet;

type Passed = BTreeSet<Transition>;

/// A life for a seed.
pub(crate) type DirectedLife = fn(u64) -> Passed;

/// All lives, with their names.
pub(crate) const DIRECTED: [(&str, DirectedLife); 24] = [
    ("landing_sends_the_group_that_is_on_its_way", landing_sends),
    ("landing_has_nothing_to_send", landing_has_nothing),
    ("landing_waits_for_an_answer", landing_waits),
    ("landing_asks_about_a_group", landing_asks),
    ("landing_ends_with_its_tree", landing_ends),
    ("landing_decides_about_a_refused_group", landing_decides),
    ("landing_folds_a_refused_group", landing_folds),
    ("group_that_is_not_noted_as_sent", group_is_unclear),
    ("landing_whose_end_is_not_noted", landing_twice),
    ("contact_as_another_device", contact_of_another),
    ("landing_as_another_device", landing_of_another),
    ("contact_ends_with_its_tree", contact_ends),
    ("tokens_in_every_phase", tokens),
    ("token_for_a_group_on_its_way", token_ahead),
    ("unmet_as_another_device", unmet_of_another),
    ("starting_over_waits_for_room", starting_over),
    ("group_is_asked_about_by_the_next_engine", asked_later),
    ("group_is_decided_about_by_the_next_engine", decided_later),
    ("left_out_name_is_let_in_by_the_next_engine", let_in_later),
    ("group_is_asked_about_at_once", asked_at_once),
    ("landing_is_stopped", landing_stops),
    ("tree_ends_before_others_turn", ahead_ends),
    ("tree_ends_at_rest", level_ends),
    ("folder_is_begun_while_a_group_is_on_its_way", begun_by_others),
];

const OWN: (&str, &str) = ("own", "of the other");
const LATER: (&str, &str) = ("later", "after all that");

/// Lives that came to rest in the middle of a first contact.
///
/// A landing begins only when nothing is on its way. A group on its way all the same takes two
/// failed syncs and a restart of the engine:
///
/// 1. The binding of the root is the last step of the contact. Its record is written, and the sync
///    fails: the engine takes it back, and makes the contact again.
/// 2. The number of the group that the next cut makes cannot be noted. The group waits to be sent.
/// 3. The engine ends. The next one finds the landing in its standing, the root's record in the
///    file, and the group.
impl Life {
    /// Two machines, the second of which has this file, came to rest so, and goes on.
    fn interrupted(seed: u64, own: Option<(&str, &str)>) -> Self {
        let options = LifeOptions {
            machines: 2,
            ..LifeOptions::default()
        };
        let mut life = Self::new(seed, options);
        life.put(0, BEGUN.0, BEGUN.1);
        life.begin(0);
        life.machines[1].start();
        if let Some((name, content)) = own {
            life.put(1, name, content);
        }
        life.machines[1].begin_sync();
        // Before it, the nodes here are noted as not sent.
        let bound = if own.is_some() { 2 } else { 1 };
        life.machines[1].fullness.fail_sync("identities", bound);
        life.until("the root is bound", |life| life.machines[1].fullness.has_failed());
        life.machines[1].state_fullness.fail_sync("journal", 1);
        life.until("the number is noted", |life| {
            life.machines[1].state_fullness.has_failed()
        });
        life.machines[1].end_sync();
        assert!(!life.is_passed(("landing", "contacted")), "seed {seed}");
        assert!(!life.is_passed(("landing", "group out")), "seed {seed}");
        life.machines[1].network.set(Faults::default(), SECOND_NS);
        life.machines[1].begin_sync();
        life
    }

    /// The same, with a group on its way that gets no answer.
    fn without_answer(seed: u64) -> Self {
        let mut life = Self::interrupted(seed, Some(OWN));
        life.until_poll();
        life.machines[1].network.cut(true);
        life.machines[1].release();
        life.until_passed(("landing", "idle"));
        life
    }

    /// Two machines, the second of which has a file and is about to make its first contact.
    fn before_contact(seed: u64) -> Self {
        let mut life = Self::of_two(seed);
        life.put(0, BEGUN.0, BEGUN.1);
        life.begin(0);
        life.put(1, OWN.0, OWN.1);
        life.machines[1].network.set(Faults::default(), SECOND_NS);
        life.machines[1].begin_sync();
        life.until_poll();
        life
    }
}

impl Life {
    /// Whether the second machine's engines went through this.
    fn is_passed(&self, (phase, event): Transition) -> bool {
        self.machines[1].transitions().contains(&(phase, event))
    }

    fn until_passed(&mut self, transition: Transition) {
        self.until(&format!("{transition:?}"), |life| life.is_passed(transition));
    }

    /// Runs until the second machine's engine is about to ask the tree what is to be sent.
    fn until_poll(&mut self) {
        assert!((0..100).any(|_| self.machines[1].hold_at_poll()), "it does not poll");
    }

    /// Has the second machine show another token, and waits until its engine does in this phase.
    fn renews_in(&mut self, phase: &'static str) {
        self.until_passed((phase, "failed"));
        self.machines[1].take_token();
        self.until_passed((phase, "token renewed"));
    }

    /// Parts of what the machines have may be what the server has, as sync starts over on one.
    fn keeps_nothing_apart(&mut self) {
        for machine in &mut self.machines {
            machine.witness.keeps_own = false;
        }
    }

    /// Checks that these events came in this phase, and that nothing is lost in the end.
    fn ends_after(mut self, phase: &'static str, events: &[&'static str]) -> Passed {
        self.settle().unwrap_or_else(|wrong| panic!("{wrong}"));
        for event in events {
            assert!(self.is_passed((phase, event)), "not '{event}' in phase '{phase}'");
        }
        self.check().unwrap_or_else(|wrong| panic!("{wrong}"));
        self.end();
        self.machines[1].transitions()
    }

    /// Checks that all machines have exactly these files in the end.
    fn ends_holding(mut self, files: &[(&str, &str)]) -> Passed {
        self.comes_to_hold(files, "in the end");
        self.end();
        self.machines[1].transitions()
    }
}

fn landing_sends(seed: u64) -> Passed {
    let life = Life::interrupted(seed, Some(OWN));
    life.ends_after("landing", &["looked", "group out", "applied"])
}

fn landing_has_nothing(seed: u64) -> Passed {
    let life = Life::interrupted(seed, None);
    life.ends_after("landing", &["looked", "group out", "empty"])
}

fn landing_waits(seed: u64) -> Passed {
    let life = Life::without_answer(seed);
    life.ends_after("landing", &["unanswered", "idle", "applied"])
}

fn landing_asks(seed: u64) -> Passed {
    let life = Life::without_answer(seed);
    life.machines[1].give_up();
    life.ends_after("landing", &["ask due"])
}

fn landing_ends(seed: u64) -> Passed {
    let mut life = Life::without_answer(seed);
    life.machines[1].end_tree();
    life.ends_after("landing", &["tree ended"])
}

/// The same name as the other's, and another content.
const OTHERS_NAME: (&str, &str) = (BEGUN.0, OWN.1);

fn landing_decides(seed: u64) -> Passed {
    let life = Life::interrupted(seed, Some(OTHERS_NAME));
    life.ends_after("landing", &["refused", "decide due", "decided"])
}

fn landing_folds(seed: u64) -> Passed {
    let mut life = Life::interrupted(seed, Some(OTHERS_NAME));
    life.until_poll();
    life.machines[1].release();
    life.world.run_until(life.world.now_ns() + 1_000_000);
    // The group was refused, and the server was met again.
    life.until_poll();
    life.machines[1].give_up();
    life.world.run_until(life.world.now_ns() + 5 * SECOND_NS);
    life.machines[1].release();
    life.ends_after("landing", &["refused", "cut due"])
}

fn group_is_unclear(seed: u64) -> Passed {
    let life = Life::interrupted(seed, Some(OWN));
    // The landing notes first. Then the own file cannot be noted as sent, once the server has it.
    life.machines[1].fullness.fail_sync("identities", 2);
    life.ends_after("ahead", &["unclear"])
}

fn landing_twice(seed: u64) -> Passed {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    // The first one notes the moment of the landing.
    life.machines[1].fullness.fail_sync("standing", 2);
    life.put(0, LATER.0, LATER.1);
    life.until_passed(("level", "landed unnoted"));
    life.ends_holding(&[BEGUN, LATER])
}

fn contact_of_another(seed: u64) -> Passed {
    let mut life = Life::before_contact(seed);
    life.keeps_nothing_apart();
    life.join_again(1);
    life.machines[1].release();
    life.until_passed(("contact", "failed"));
    life.machines[1].take_token();
    life.until_passed(("contact", "device changed"));
    life.ends_holding(&[BEGUN, OWN])
}

fn landing_of_another(seed: u64) -> Passed {
    let mut life = Life::before_contact(seed);
    life.keeps_nothing_apart();
    life.machines[1].release();
    life.until_passed(("landing", "head noted"));
    life.join_again(1);
    life.until_passed(("landing", "failed"));
    life.machines[1].take_token();
    life.until_passed(("landing", "device changed"));
    life.ends_holding(&[BEGUN, OWN])
}

fn contact_ends(seed: u64) -> Passed {
    let mut life = Life::before_contact(seed);
    life.machines[1].end_tree();
    assert!(life.is_passed(("contact", "tree ended")));
    life.ends_holding(&[BEGUN, OWN])
}

fn tokens(seed: u64) -> Passed {
    let mut life = Life::before_contact(seed);
    life.machines[1].renew_token();
    life.machines[1].release();
    life.renews_in("contact");
    life.until_passed(("landing", "head noted"));
    life.machines[1].renew_token();
    life.renews_in("landing");
    life.settle().unwrap();
    // The token file has one that is out of date again: it is refused while the server is met.
    life.machines[1].renew_token();
    life.put(0, LATER.0, LATER.1);
    life.until_passed(("level", "failed"));
    life.machines[1].take_token();
    life.machines[1].renew_token();
    life.renews_in("unmet");
    assert!(life.is_passed(("level", "token renewed")));
    life.ends_holding(&[BEGUN, OWN, LATER])
}

fn token_ahead(seed: u64) -> Passed {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.machines[1].renew_token();
    life.put(1, OWN.0, OWN.1);
    life.until_passed(("ahead", "unanswered"));
    life.machines[1].take_token();
    life.until_passed(("ahead", "token renewed"));
    life.ends_holding(&[BEGUN, OWN])
}

fn unmet_of_another(seed: u64) -> Passed {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.keeps_nothing_apart();
    life.machines[1].renew_token();
    life.put(0, LATER.0, LATER.1);
    life.until_passed(("level", "failed"));
    life.machines[1].take_token();
    life.machines[1].renew_token();
    life.until_passed(("unmet", "failed"));
    life.join_again(1);
    life.machines[1].take_token();
    life.until_passed(("unmet", "device changed"));
    life.ends_holding(&[BEGUN, LATER])
}

fn starting_over(seed: u64) -> Passed {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.keeps_nothing_apart();
    life.machines[1].fullness.set_solid();
    life.join_again(1);
    life.machines[1].take_token();
    life.put(0, LATER.0, LATER.1);
    life.until_passed(("level", "device changed"));
    life.until_passed(("starting over", "heard"));
    life.machines[1].renew_token();
    life.renews_in("starting over");
    life.join_again(1);
    life.machines[1].take_token();
    life.until_passed(("starting over", "device changed"));
    life.machines[1].end_sync();
    assert!(life.is_passed(("starting over", "stopped")));
    life.ends_holding(&[BEGUN, LATER])
}

/// Two machines that have met, the second of which has a group on its way that gets no answer.
fn on_its_way(seed: u64, (name, content): (&str, &str)) -> Life {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.machines[1].network.cut(true);
    life.put(1, name, content);
    life.until_passed(("ahead", "unanswered"));
    life
}

fn asked_later(seed: u64) -> Passed {
    let mut life = on_its_way(seed, OWN);
    life.machines[1].end_sync();
    life.machines[1].give_up();
    life.machines[1].network.cut(false);
    life.machines[1].begin_sync();
    life.until_passed(("level", "ask due"));
    life.ends_holding(&[BEGUN, OWN])
}

fn asked_at_once(seed: u64) -> Passed {
    let life = on_its_way(seed, OWN);
    life.machines[1].give_up();
    life.ends_after("ahead", &["ask due"])
}

fn ahead_ends(seed: u64) -> Passed {
    let mut life = on_its_way(seed, OWN);
    life.machines[1].end_tree();
    life.ends_after("ahead", &["tree ended"])
}

fn level_ends(seed: u64) -> Passed {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.machines[1].end_tree();
    life.ends_after("level", &["tree ended"])
}

fn landing_stops(seed: u64) -> Passed {
    let mut life = Life::without_answer(seed);
    life.machines[1].end_sync();
    life.ends_after("landing", &["stopped"])
}

/// The same, of a file that the first machine changed before; the engine ended when it was refused.
fn refused(seed: u64) -> Life {
    let mut life = on_its_way(seed, (BEGUN.0, OWN.1));
    life.put(0, BEGUN.0, LATER.1);
    life.rest(0);
    life.machines[1].network.cut(false);
    life.machines[1].network.set(Faults::default(), SECOND_NS);
    life.until_passed(("ahead", "refused"));
    life.machines[1].end_sync();
    life
}

fn decided_later(seed: u64) -> Passed {
    let mut life = refused(seed);
    life.machines[1].begin_sync();
    life.ends_after("level", &["decide due", "decided"])
}

const RULES: (&str, &str) = (".bytebackignore", "others\n");
const OTHERS: (&str, &str) = ("others", "that the second one ignores");

/// Two machines that have met, the second of which left out a name by a rule that is gone now.
fn without_rule(seed: u64) -> Life {
    let mut life = Life::after_handshake(seed);
    life.begin(1);
    life.machines[1].network.cut(true);
    life.put(1, RULES.0, RULES.1);
    life.put(0, OTHERS.0, OTHERS.1);
    life.rest(0);
    life.settle().unwrap();
    life.machines[1].network.set(Faults::default(), SECOND_NS);
    life.remove(1, RULES.0);
    life
}

fn let_in_later(seed: u64) -> Passed {
    let mut life = without_rule(seed);
    // The engine asks up to which moment it is to let others' changes in.
    life.until_passed(("ahead", "left out due"));
    life.server.crash();
    life.until_passed(("ahead", "failed"));
    life.machines[1].end_sync();
    life.server.start();
    life.machines[1].begin_sync();
    life.ends_after("level", &["left out due"])
}

fn begun_by_others(seed: u64) -> Passed {
    let mut life = Life::of_two(seed);
    life.machines[1].network.lose(Some("POST"));
    life.put(1, OWN.0, OWN.1);
    life.machines[1].begin_sync();
    life.until_passed(("ahead", "unanswered"));
    life.put(0, BEGUN.0, BEGUN.1);
    life.begin(0);
    life.until_passed(("ahead", "begun by others"));
    life.machines[1].network.lose(None);
    life.ends_after("ahead", &["begun by others"])
}

#[test]
fn directed_lives_reach_their_transitions_and_lose_nothing() {
    for (name, life) in DIRECTED {
        for seed in SEEDS {
            eprintln!("directed life '{name}', seed {seed}");
            life(seed);
        }
    }
}
