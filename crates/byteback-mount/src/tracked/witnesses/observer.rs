//! The observer as a witness. Changes that land do not concern it: it has let them in.

use std::sync::Arc;

use byteback_model::NodeKind;
use byteback_oplog::Log;

use crate::tracked::Origin;
use crate::tracked::account::Account;
use crate::tracked::change::{Change, Names, Outcome, Part};
use crate::tracked::observer::{NamesChanged, Observer, Removal};
use crate::tracked::passage::lost_name;
use crate::tracked::witness::Witness;

/// The observer, and the log that tells which names a node has.
pub(in crate::tracked) struct Watcher {
    observer: Arc<dyn Observer>,
    log: Arc<Log>,
}

impl Watcher {
    pub(in crate::tracked) fn of(account: &Account) -> Option<Self> {
        Some(Self {
            observer: account.observer.clone()?,
            log: Arc::clone(&account.log),
        })
    }

    /// The removals that the observer hears of: of names in directories that the log knows.
    fn removals<'a>(&self, names: &Names<'a>) -> impl Iterator<Item = Removal<'a>> {
        names.nodes().filter_map(|renamed| {
            let Part::Loses(place, Some(parent), state) = renamed.part else {
                return None;
            };
            let lost = lost_name(&self.log, renamed.node, state, (parent, place.name));
            Some(Removal {
                lost,
                identity: state.object.identity,
                has_other_names: renamed.kind == NodeKind::File && lost.is_last && state.nlink > 1,
                dir: place.dir,
                name: place.name,
            })
        })
    }

    fn names_changed(&self, outcome: &Outcome<'_>) {
        let tell = |names: &NamesChanged<'_>| self.observer.names_changed(names);
        match outcome {
            Outcome::Failed | Outcome::Done => {}
            Outcome::Named(names) => tell(names),
            Outcome::CrossedBorder => self.observer.lost_track(),
            Outcome::Appeared(appeared) => {
                let (fd, all) = (appeared.fd, [appeared.all]);
                // Knowledge of the inode under another number does not change with it.
                self.observer.before_content_of_unknown(&appeared.identity, fd, &all);
                if let Some((node, names)) = &appeared.named {
                    tell(names);
                    self.observer.before_content(*node, fd, &all, Some(appeared.all.end()));
                    self.observer.after_content(*node, fd);
                }
            }
        }
    }
}

impl Witness for Watcher {
    fn hears_of(&self, origin: Origin) -> bool {
        origin != Origin::Remote
    }

    fn before(&self, change: &Change<'_>) {
        let observer = &self.observer;
        match change {
            Change::Content(content) => {
                let (node, fd, ranges) = (content.node, content.fd, &*content.ranges);
                match ranges.is_empty() {
                    _ if !content.is_named => observer.before_content_of_unknown(&content.identity, fd, ranges),
                    true => observer.times_changed(node),
                    false => observer.before_content(node, fd, ranges, content.len_after_bytes),
                }
            }
            Change::ContentOfUnknown { identity, fd, ranges } => {
                observer.before_content_of_unknown(identity, fd, ranges);
            }
            Change::Attributes { node, fd, .. } => observer.before_attributes(*node, fd),
            Change::Names(names) => {
                for removal in self.removals(names) {
                    observer.before_removal(&removal);
                }
            }
        }
    }

    fn after(&self, change: &Change<'_>, outcome: &Outcome<'_>) {
        match change {
            Change::Content(content) if content.is_named && !content.ranges.is_empty() => {
                self.observer.after_content(content.node, content.fd);
            }
            Change::Content(_) | Change::ContentOfUnknown { .. } => {}
            Change::Attributes { node, .. } => self.observer.after_attributes(*node),
            Change::Names(names) => match outcome {
                Outcome::Failed if names.loses_known() => self.observer.removal_failed(),
                outcome => self.names_changed(outcome),
            },
        }
    }
}
