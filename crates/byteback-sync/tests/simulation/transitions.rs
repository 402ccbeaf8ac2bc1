//! The engine's transitions, as lives go through them: only such as its table declares possible.

use byteback_sync::engine::{Transition, possible_transitions};
use std::collections::BTreeMap;

/// Checks the transitions that lives went through. `passed` holds the number of lives of each.
///
/// # Panics
/// A transition is declared impossible.
pub(crate) fn check(passed: &BTreeMap<Transition, u64>) {
    let possible = possible_transitions();
    let impossible: Vec<&Transition> = passed.keys().filter(|passed| !possible.contains(*passed)).collect();
    assert!(impossible.is_empty(), "declared impossible: {impossible:?}");
}
