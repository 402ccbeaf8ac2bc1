//! A witness of all that programs do on a machine and of the effect of sync on its files. It knows
//! what must not be lost.
//!
//! *Own directory*: each machine of several has one that programs of others leave alone. Sync never
//! changes anything in it here, so no crash, restart, clock or conflict elsewhere may show there;
//! all other machines see in it, one after the other, moments that it had here.
//!
//! *Contents by programs*: a content that a program made here is overwritten or removed by programs
//! here, or stays; if it disappears otherwise, the server must have it among its versions, or it is
//! found in a file in the end. If a program writes into a file while something lands in it, the
//! result is a mixture, which is not tracked.
//!
//! *Lines*: each line that a program wrote into a common file is in a file in the end, or in one of
//! the server's versions, unless a program of the same machine took it away.

use super::state::State;
use std::collections::BTreeSet;
use std::sync::Arc;

type Content = Arc<Vec<u8>>;

/// Shorter contents may come about twice.
const CONTENT_LEN_MIN: usize = 12;

fn contents(state: &State) -> BTreeSet<Content> {
    let contents = state.0.values().filter_map(|entry| entry.content.clone());
    contents.filter(|content| content.len() >= CONTENT_LEN_MIN).collect()
}

/// Record of one machine: see the module.
pub(crate) struct Witness {
    /// The own directory; `None`: everything is the machine's own.
    own: Option<Vec<u8>>,
    /// Whether others see the moments of the own directory, and sync leaves it alone. Not if parts
    /// of it are ignored for a while, or if sync starts over: then all that the server has counts.
    pub(crate) keeps_own: bool,
    /// States of the own directory, after each change by a program.
    pub(crate) history: Vec<State>,
    last: BTreeSet<Content>,
    /// Contents that programs made here, and that are here.
    made: BTreeSet<Content>,
    /// Contents that programs made here, and that disappeared without them.
    owed: BTreeSet<Content>,
    /// Lines that programs wrote here and that none took away here.
    pub(crate) lines: BTreeSet<Vec<u8>>,
    pub(crate) wrong: Option<String>,
}

impl Witness {
    pub(crate) fn new(own: Option<Vec<u8>>) -> Self {
        Self {
            own,
            keeps_own: true,
            history: vec![State::default()],
            last: BTreeSet::new(),
            made: BTreeSet::new(),
            owed: BTreeSet::new(),
            lines: BTreeSet::new(),
            wrong: None,
        }
    }

    /// The part of a folder, on any machine, that is this machine's own.
    pub(crate) fn own_of(&self, state: &State) -> State {
        match &self.own {
            Some(own) => state.below(own),
            None => state.clone(),
        }
    }

    /// Takes in the state before a program does something.
    pub(crate) fn before(&mut self, now: &State) {
        let own = self.own_of(now);
        if self.keeps_own
            && let Some(last) = self.history.last()
            && *last != own
        {
            let different = last.differences(&own);
            self.wrong
                .get_or_insert(format!("what only this machine uses was changed: {different:#?}"));
        }
        let here = contents(now);
        let gone: Vec<Content> = self.made.difference(&here).cloned().collect();
        for content in gone {
            self.made.remove(&content);
            self.owed.insert(content);
        }
        self.last = here;
    }

    /// Takes in the state after that. While something lands in a file, new contents may be
    /// mixtures.
    pub(crate) fn after(&mut self, now: &State, is_mixed: bool) {
        let own = self.own_of(now);
        if self.history.last() != Some(&own) {
            self.history.push(own);
        }
        let here = contents(now);
        self.made.retain(|content| here.contains(content));
        if !is_mixed {
            self.made.extend(here.difference(&self.last).cloned());
        }
        self.last = here;
    }

    /// Contents that must be found at the server.
    pub(crate) fn owed(&self) -> &BTreeSet<Content> {
        &self.owed
    }
}

/// An observer of one machine's own directory: it sees its moments one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Follower {
    at: usize,
}

impl Follower {
    /// Takes a look.
    ///
    /// # Errors
    /// The state is not a moment after the one that was seen last.
    pub(crate) fn look(&mut self, witness: &Witness, state: &State) -> Result<(), String> {
        if !witness.keeps_own {
            return Ok(());
        }
        let own = witness.own_of(state);
        let rest = witness.history.get(self.at..).unwrap_or_default();
        match rest.iter().position(|then| *then == own) {
            Some(found) => {
                self.at += found;
                Ok(())
            }
            None => {
                let nearest = rest.iter().min_by_key(|then| then.differences(&own).len());
                let different = nearest.map(|then| then.differences(&own));
                Err(format!("no moment of it after the one before; nearest: {different:#?}"))
            }
        }
    }
}

#[test]
fn witness_owes_lost_content_and_rejects_a_returning_moment() {
    let state = |files: &[(&str, &str)]| State::of_files(files);
    let mut witness = Witness::new(Some(b"m0".to_vec()));
    let (one, two) = ("the first content", "the second content");
    witness.before(&state(&[]));
    witness.after(&state(&[("a", one), ("m0/b", one)]), false);
    witness.before(&state(&[("a", one), ("m0/b", one)]));
    witness.after(&state(&[("a", two), ("m0/b", one)]), false);
    // Overwritten by others, and kept under another name.
    witness.before(&state(&[("a (conflict)", two), ("m0/b", one)]));
    assert!(witness.owed().is_empty());
    witness.after(&state(&[("a (conflict)", two), ("m0/b", two)]), false);
    witness.before(&state(&[("m0/b", two)]));
    assert!(witness.owed().is_empty() && witness.wrong.is_none());
    witness.after(&state(&[("m0/b", two), ("c", one)]), false);
    witness.before(&state(&[("m0/b", two)]));
    assert_eq!(witness.owed().len(), 1);
    let mut follower = Follower::default();
    follower.look(&witness, &state(&[("other", one)])).unwrap();
    follower.look(&witness, &state(&[("m0/b", one)])).unwrap();
    follower.look(&witness, &state(&[("m0/b", two)])).unwrap();
    assert!(follower.look(&witness, &state(&[("m0/b", one)])).is_err());
    witness.before(&state(&[]));
    assert!(witness.wrong.is_some());
}
