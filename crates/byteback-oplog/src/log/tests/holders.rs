//! The part of a [`World`] that is about those who hold something and are no backup of the whole
//! tree: cuts without a consumer, marks of single files, consumers that are dropped; and about the
//! compaction that runs between all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Picture, World, check_everything, check_file_since, check_since};
use crate::{ContentChange, Cut, Epoch, LogError, WholeReason};
use byteback_model::NodeId;

/// Programs that save file by file; one of them is a consumer of the tree as well.
const FILE_CONSUMERS: [&str; 2] = ["ann", "dot"];

#[derive(Default)]
pub(super) struct Holders {
    cuts: Vec<(Cut, Picture)>,
    /// The possible marks of a file: more than one after a failure whose outcome is unknown.
    marks: BTreeMap<(&'static str, NodeId), BTreeSet<Option<Epoch>>>,
    /// The states that a holder may have saved.
    pictures: BTreeMap<Epoch, Picture>,
}

impl World {
    pub(super) fn step_of_holders(&mut self) -> Result<(), LogError> {
        let log = self.log();
        match self.random.below(8) {
            0 | 1 if self.holders.cuts.len() < 4 => {
                self.note("a cut is held".to_owned());
                let cut = log.cut_held(|| ())?;
                let picture = self.picture();
                self.holders.pictures.insert(cut.epoch(), picture.clone());
                self.holders.cuts.push((cut, picture));
            }
            2 => {
                let count = self.holders.cuts.len() as u64;
                if count > 0 {
                    let index = self.random.below(count) as usize;
                    let (cut, picture) = self.holders.cuts.swap_remove(index);
                    self.note(format!("the cut at {} is let go", cut.epoch()));
                    // It still tells what was true then.
                    let check = || {
                        check_everything(&cut, &picture)?;
                        for (since, saved) in self.holders.pictures.range(..=cut.epoch()) {
                            check_since(&cut, *since, saved, &picture)?;
                        }
                        Ok(())
                    };
                    if let Err(error) = check() {
                        assert!(is_of_older_database(&error), "{error:?}");
                    }
                }
            }
            3 | 4 => {
                let count = self.holders.cuts.len() as u64;
                if count > 0 {
                    let index = self.random.below(count) as usize;
                    let consumer = FILE_CONSUMERS[self.random.below(2) as usize];
                    let (epoch, nodes) = {
                        let (cut, picture) = &self.holders.cuts[index];
                        (cut.epoch(), picture.nodes.keys().copied().collect::<Vec<_>>())
                    };
                    let node = nodes[self.random.below(nodes.len() as u64) as usize];
                    self.note(format!("{consumer} marks {node} at {epoch}"));
                    let may_be = self.holders.marks.entry((consumer, node)).or_insert([None].into());
                    may_be.insert(Some(epoch));
                    if log.set_file_mark(consumer, node, epoch)? {
                        self.holders.marks.insert((consumer, node), [Some(epoch)].into());
                    }
                }
            }
            5 if self.random.below(4) == 0 => {
                let consumer = ["ann", "bob", "cyd", "dot"][self.random.below(4) as usize];
                self.note(format!("{consumer} is dropped"));
                self.forget_consumer(consumer, false);
                for ((_, _), may_be) in self
                    .holders
                    .marks
                    .iter_mut()
                    .filter(|((other, _), _)| *other == consumer)
                {
                    may_be.insert(None);
                }
                let was_dropped = log.consumer(consumer)?.is_tombstone();
                if log.drop_consumer(consumer)? && !was_dropped {
                    assert!(log.consumer(consumer)?.is_tombstone());
                }
                self.forget_consumer(consumer, true);
                self.holders.marks.retain(|(other, _), _| *other != consumer);
            }
            _ => {
                let budget = 1 + self.random.below(12) as usize;
                self.note(format!("up to {budget} layers are compacted"));
                log.compact(budget)?;
            }
        }
        Ok(())
    }

    /// Drops the state that lived only in the process.
    pub(super) fn drop_volatile_state(&mut self) {
        self.holders.cuts.clear();
    }

    pub(super) fn check_holders(&mut self, look: &Cut, now: &Picture) -> Result<(), LogError> {
        let log = self.log();
        for (cut, picture) in &self.holders.cuts {
            if let Err(error) = check_everything(cut, picture) {
                assert!(is_of_older_database(&error), "{error:?}");
            }
            assert!(
                !look.changes(Some(cut.epoch()))?.is_everything(),
                "the cut at {} is held, and forgotten",
                cut.epoch()
            );
        }
        for (since, saved) in &self.holders.pictures {
            check_since(look, *since, saved, now)?;
        }
        // A node that is gone has no marks.
        self.holders.marks.retain(|(_, node), _| now.nodes.contains_key(node));
        for ((consumer, node), may_be) in &mut self.holders.marks {
            let mark = log.file_mark(consumer, *node)?;
            if self.may_forget {
                may_be.insert(mark);
            }
            assert!(
                may_be.contains(&mark),
                "{consumer} marked {node} at {mark:?}, not one of {may_be:?}"
            );
            *may_be = [mark].into();
            let Some(mark) = mark else { continue };
            let change = look.change_of(*node, Some(mark))?.expect("it exists");
            assert!(
                self.may_forget || !matches!(change.content, ContentChange::Whole(WholeReason::NoMark)),
                "the mark of {consumer} at {mark} of {node} is forgotten"
            );
            check_file_since(look, mark, *node, &self.holders.pictures[&mark], now)?;
        }
        for consumer in FILE_CONSUMERS {
            let marks = self
                .holders
                .marks
                .iter()
                .filter(|((other, _), may_be)| *other == consumer && !may_be.contains(&None));
            // The log may know of nodes that are on no path any more, so that it may count more.
            assert!(log.consumer(consumer)?.file_marks >= marks.count() as u64 || self.may_forget);
        }
        let needed: BTreeSet<Epoch> = self
            .holders
            .marks
            .values()
            .flatten()
            .flatten()
            .copied()
            .chain(self.holders.cuts.iter().map(|(cut, _)| cut.epoch()))
            .collect();
        while self.holders.pictures.len() > 12 {
            let oldest = self
                .holders
                .pictures
                .keys()
                .find(|epoch| !needed.contains(epoch))
                .copied();
            let Some(oldest) = oldest else { break };
            self.holders.pictures.remove(&oldest);
        }
        Ok(())
    }
}

/// A cut reads a snapshot, which ends when a disk error made the log reopen its database. The hold
/// itself remains.
fn is_of_older_database(error: &LogError) -> bool {
    matches!(error, LogError::Database(_))
}
