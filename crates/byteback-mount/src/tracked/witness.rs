//! The witnesses of each change, and their order.
//!
//! | witness | prepares | before | after |
//! |---|---|---|---|
//! | the log's operation | compares what the node looks like with the log | bytes, attributes | names |
//! | the sums | load what is known of the file | | that times moved, or the file is gone |
//! | the pictures | | save what they need of the old state | |
//! | the before-images | | keep the old bytes, for the next backup | |
//! | the undo | | keeps the old bytes | the name that a node had |
//! | the observer | | puts old bytes aside | that it is over |
//!
//! **Order.** Each step asks all witnesses in this order. The log comes first: its operation, whose
//! intent is durable, covers all that the others do, and gives new nodes their numbers. The
//! observer comes last: its answer to a removal holds a file until it hears the outcome, so nothing
//! may fail in between but the change itself. The witnesses between save the old state each for
//! itself.
//!
//! **Failures.** Only preparing may fail, and then nothing has happened. It may read a disk; where
//! that is possible [`Order`] is not held yet.
//!
//! **A further witness** is one line in [`witnesses_of`].
//!
//! Not here, since it is neither before nor after: the sums follow content in one locked step
//! *around* each part of it ([`super::passage::Underway::perform`]), and [`Observer`] answers where
//! and in which form a program's bytes are written while something lands
//! ([`Observer::is_landing`], [`Observer::merge_page`], [`Observer::append_at`],
//! [`Observer::may_stray`], [`Observer::wants_trimmed`], [`Observer::len_before`]).
//!
//! [`Order`]: super::observer::Order
//! [`Observer`]: super::observer::Observer
//! [`Observer::is_landing`]: super::observer::Observer::is_landing
//! [`Observer::merge_page`]: super::observer::Observer::merge_page
//! [`Observer::append_at`]: super::observer::Observer::append_at
//! [`Observer::may_stray`]: super::observer::Observer::may_stray
//! [`Observer::wants_trimmed`]: super::observer::Observer::wants_trimmed
//! [`Observer::len_before`]: super::observer::Observer::len_before

use std::sync::Arc;

use super::account::Account;
use super::change::{Change, Outcome};
use super::witnesses::Watcher;
use super::{Origin, TrackedResult};

/// A part of the program that has to know of each change.
pub(crate) trait Witness {
    /// Whether changes from there concern this witness.
    fn hears_of(&self, _origin: Origin) -> bool {
        true
    }

    /// Learns what it needs of the state before a change of attributes or names. Not called for
    /// content, of which the log is asked first of all.
    ///
    /// # Errors
    /// If the change must not be performed.
    fn prepare(&self, _change: &Change<'_>) -> TrackedResult<()> {
        Ok(())
    }

    /// The change is about to be performed.
    fn before(&self, _change: &Change<'_>) {}

    /// The change is over: called at least once after [`Witness::before`], and for each changed
    /// name by itself.
    fn after(&self, _change: &Change<'_>, _outcome: &Outcome<'_>) {}
}

/// A witness of all changes of a tree.
pub(crate) type Lasting = Arc<dyn Witness + Send + Sync>;

/// All witnesses but the log's operation, in their order.
pub(super) fn witnesses_of(account: &Account) -> Vec<Lasting> {
    let witnesses: [Option<Lasting>; _] = [
        account.integrity.clone().map(|sums| sums as Lasting),
        Some(account.pictures.clone()),
        account.before_images.clone().map(|images| images as Lasting),
        account.undo.clone().map(|undo| undo as Lasting),
        Watcher::of(account).map(|watcher| Arc::new(watcher) as Lasting),
    ];
    witnesses.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
