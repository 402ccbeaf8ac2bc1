//! The engine's transitions, as lives go through them: only such as its table declares possible,
//! and all of these but for a few that no life comes to.

use byteback_sync::engine::{Transition, possible_transitions};
use std::collections::{BTreeMap, BTreeSet};

/// Number of lives that went through each transition.
pub(crate) type Passed = BTreeMap<Transition, u64>;

/// Phases and their events that no life comes to, or too few to be relied upon.
/// `phase_walk_reaches_every_transition` walks them.
const UNLIVED: [(&str, &[&str]); 5] = [
    // The tree has to end just while the content of a group is read.
    ("ahead", &["unsendable"]),
    // The queue of a tree that never met the server is folded, and all of it.
    ("contact", &["folded in part", "group out"]),
    // The queue is folded when sync starts over, unless the power goes between a refusal and that.
    ("contact", &["decide due", "decided"]),
    // The root is bound before a landing, and the one group that can be on its way has nothing new.
    ("landing", &["begun by others", "deferred", "unclear", "unsendable"]),
    // The disk has to be full when a fold of nothing is noted, or for two records in a row.
    ("unmet", &["empty", "unclear"]),
];

/// Checks the transitions that lives went through.
///
/// # Panics
/// One is declared impossible.
pub(crate) fn check_possible(passed: &Passed) {
    let possible = possible_transitions();
    let impossible: Vec<&Transition> = passed.keys().filter(|passed| !possible.contains(*passed)).collect();
    assert!(impossible.is_empty(), "declared impossible: {impossible:?}");
}

/// Checks that lives went through all transitions that are possible.
///
/// # Panics
/// One is missing, or one that cannot be is said to be without lives.
pub(crate) fn check_complete(passed: &Passed) {
    let unlived: BTreeSet<Transition> = UNLIVED
        .iter()
        .flat_map(|(phase, events)| events.iter().map(|event| (*phase, *event)))
        .collect();
    let possible = possible_transitions();
    assert!(
        unlived.is_subset(&possible),
        "not all of these are possible: {unlived:?}"
    );
    let is_missing = |pair: &&Transition| !passed.contains_key(*pair) && !unlived.contains(*pair);
    let missing: Vec<&Transition> = possible.iter().filter(is_missing).collect();
    assert!(
        missing.is_empty(),
        "no life went through {missing:?}; lives of all others: {passed:?}"
    );
}
