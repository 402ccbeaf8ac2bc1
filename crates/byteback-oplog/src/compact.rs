//! Dropping and merging the layers that no consumer needs apart, in the background (SolFS Fig. 8).
//!
//! The *borders* of a node are the marks and pending cuts of all consumers, the cuts that are held,
//! the current epoch, and the marks of this one file. No query ever starts between two neighbouring
//! borders, so a node's layers of that stretch become one, in its oldest epoch; layers older than
//! the oldest border go. Without any border nothing is kept. This is the paper's `ver_link` without
//! the counting: a layer is needed apart exactly if its epoch is a border.
//!
//! **Correct at any time.** An answer since a border is the sum of all layers from there on, and
//! merging moves a layer down to the next border, never across one. So it does not matter whether,
//! when or how far compaction ran. New borders appear only at the then current epoch, which no
//! layer was ever merged across. A cut reads its own snapshot and is not disturbed.
//!
//! **Bounded.** One call looks at a limited number of layers, in one transaction of its own (a
//! crash leaves it done or not begun), and remembers in memory where it stopped. While it runs,
//! checkpoints and cuts wait: a few thousand layers take some milliseconds.
//!
//! Layers of a newer epoch are laid over those of an older one in the order of epochs, since of two
//! names the newer counts.

use crate::database::{FILE_MARKS, LAYERS, Layers, MARKS, NAME_LAYERS, Snapshot, epochs_with_layers};
use crate::error::Result;
use crate::file_marks::{borders_of_all, marks_of};
use crate::ids::Epoch;
use crate::log::Log;
use byteback_model::NodeId;
use redb::ReadableTable;

/// The outcome of one step of [`Log::compact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Layers of files and of names that were merged into an older one.
    pub merged: u64,
    /// Layers that are not needed any more.
    pub dropped: u64,
    /// True if there is no more to do until a mark moves or a cut ends.
    pub is_done: bool,
}

/// Where the last step stopped; valid only while the borders stay the same.
#[derive(Debug, Default)]
pub(crate) struct CompactionState {
    borders: Vec<Epoch>,
    file_marks: u64,
    at: Position,
}

#[derive(Clone, Debug, Default)]
enum Position {
    #[default]
    Start,
    /// Layers of files from this place on.
    Files(u64, u64),
    /// Layers of names from this place on.
    Names(u64, u64, Vec<u8>),
    Done,
}

/// A layer and the epoch it moves to; `None` drops it.
struct FileMove {
    epoch: u64,
    node: NodeId,
    to: Option<Epoch>,
}

struct NameMove {
    epoch: u64,
    parent: u64,
    name: Vec<u8>,
    child: u64,
    was: u64,
    to: Option<Epoch>,
}

#[derive(Default)]
struct Plan {
    files: Vec<FileMove>,
    names: Vec<NameMove>,
    next: Position,
}

impl Log {
    /// Merges and drops layers that no consumer needs apart, looking at about `budget` of them at
    /// most. Repeat until [`Compaction::is_done`], at any pace: it does not affect what is
    /// reported.
    ///
    /// # Errors
    /// A disk that cannot be read or written, or a damaged log. Nothing is lost then.
    pub fn compact(&self, budget: usize) -> Result<Compaction> {
        self.damage.watch(self.try_compact(budget))
    }

    fn try_compact(&self, budget: usize) -> Result<Compaction> {
        let mut checkpointing = self.checkpointing.lock();
        let snapshot = self.database.snapshot()?;
        let mut borders = borders_of_all(&snapshot.transaction().open_table(MARKS)?)?;
        borders.extend(self.held.epochs());
        borders.push(self.epoch());
        borders.sort_unstable();
        borders.dedup();
        let file_marks = checkpointing.file_mark_changes;
        let state = &mut checkpointing.compaction;
        if state.borders != borders || state.file_marks != file_marks {
            *state = CompactionState {
                borders,
                file_marks,
                at: Position::Start,
            };
        }
        let plan = plan(&snapshot, state, budget.max(1))?;
        drop(snapshot);
        let mut report = Compaction {
            is_done: matches!(plan.next, Position::Done),
            ..Compaction::default()
        };
        let moves = plan.files.iter().map(|file| file.to);
        for to in moves.chain(plan.names.iter().map(|name| name.to)) {
            match to {
                Some(_) => report.merged += 1,
                None => report.dropped += 1,
            }
        }
        if report.merged + report.dropped > 0 {
            self.database.write(|txn| {
                let mut layers = Layers::open(txn, self.kept.as_deref())?;
                for FileMove { epoch, node, to } in &plan.files {
                    if let Some(to) = to
                        && let Some(layer) = layers.get(*epoch, *node)?
                    {
                        let mut sum = layers.get(to.0, *node)?.unwrap_or_default();
                        sum.overlay(&layer);
                        sum.keep_within(self.options.bounds());
                        layers.put(to.0, *node, &sum)?;
                    }
                    layers.remove(*epoch, *node)?;
                }
                layers.close(txn)?;
                let mut names = txn.open_table(NAME_LAYERS)?;
                for moved in &plan.names {
                    if let Some(to) = moved.to {
                        let key = (to.0, moved.parent, moved.name.as_slice());
                        // The older layer knows for what the name stood before both.
                        let was = names.get(key)?.map_or(moved.was, |older| older.value().1);
                        names.insert(key, (moved.child, was))?;
                    }
                    names.remove((moved.epoch, moved.parent, moved.name.as_slice()))?;
                }
                // Moved layers are durable in their new place before their old place is given up.
                self.kept.as_ref().map_or(Ok(()), |kept| kept.sync())
            })?;
            self.sweep_kept();
        }
        checkpointing.compaction.at = plan.next;
        Ok(report)
    }

    /// Merges and drops all layers that no consumer needs apart.
    ///
    /// # Errors
    /// As [`Log::compact`].
    pub fn compact_all(&self) -> Result<()> {
        while !self.compact(COMPACT_STEP)?.is_done {}
        Ok(())
    }
}

/// Layers that one step of [`Log::compact_all`] looks at.
const COMPACT_STEP: usize = 4096;

/// The newest border up to `epoch`; `borders` ascend.
fn border_up_to(borders: &[Epoch], epoch: u64) -> Option<Epoch> {
    let above = borders.partition_point(|border| border.0 <= epoch);
    above.checked_sub(1).and_then(|index| borders.get(index)).copied()
}

fn plan(snapshot: &Snapshot, state: &CompactionState, budget: usize) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut left = budget;
    let names_from = match &state.at {
        Position::Start => {
            if !plan_files(snapshot, &state.borders, (0, 0), &mut left, &mut plan)? {
                return Ok(plan);
            }
            (0, 0, Vec::new())
        }
        Position::Files(epoch, node) => {
            if !plan_files(snapshot, &state.borders, (*epoch, *node), &mut left, &mut plan)? {
                return Ok(plan);
            }
            (0, 0, Vec::new())
        }
        Position::Names(epoch, parent, name) => (*epoch, *parent, name.clone()),
        Position::Done => {
            plan.next = Position::Done;
            return Ok(plan);
        }
    };
    plan_names(snapshot, &state.borders, names_from, &mut left, &mut plan)?;
    Ok(plan)
}

/// Returns whether all were looked at; if not, sets where to continue.
fn plan_files(
    snapshot: &Snapshot,
    borders: &[Epoch],
    from: (u64, u64),
    left: &mut usize,
    plan: &mut Plan,
) -> Result<bool> {
    let txn = snapshot.transaction();
    let layers = txn.open_table(LAYERS)?;
    let file_marks = txn.open_table(FILE_MARKS)?;
    let current = borders.last().map_or(0, |border| border.0);
    for epoch in epochs_with_layers(&layers, from.0)? {
        if epoch >= current {
            break;
        }
        let border = border_up_to(borders, epoch);
        if border == Some(Epoch(epoch)) {
            // A border for every node: nothing in this epoch moves.
            continue;
        }
        let first = if epoch == from.0 { from.1 } else { 0 };
        for entry in layers.range((epoch, first)..=(epoch, u64::MAX))? {
            let node = NodeId(entry?.0.value().1);
            if *left == 0 {
                plan.next = Position::Files(epoch, node.0);
                return Ok(false);
            }
            *left -= 1;
            let own = marks_of(&file_marks, node)?;
            let to = own.into_iter().filter(|mark| mark.0 <= epoch).chain(border).max();
            if to != Some(Epoch(epoch)) {
                plan.files.push(FileMove { epoch, node, to });
            }
        }
    }
    Ok(true)
}

fn plan_names(
    snapshot: &Snapshot,
    borders: &[Epoch],
    from: (u64, u64, Vec<u8>),
    left: &mut usize,
    plan: &mut Plan,
) -> Result<()> {
    let names = snapshot.transaction().open_table(NAME_LAYERS)?;
    let current = borders.last().map_or(0, |border| border.0);
    let mut from = (from.0, from.1, from.2);
    // Seek from one epoch to the next: names in a border's epoch stay and are not looked at.
    while let Some(entry) = names.range((from.0, from.1, from.2.as_slice())..)?.next() {
        let epoch = entry?.0.value().0;
        if epoch >= current {
            break;
        }
        if epoch != from.0 {
            from = (epoch, 0, Vec::new());
        }
        let to = border_up_to(borders, epoch);
        if to != Some(Epoch(epoch)) {
            for entry in names.range((from.0, from.1, from.2.as_slice())..(epoch + 1, 0, &[][..]))? {
                let (key, row) = entry?;
                let (_, parent, name) = key.value();
                let (child, was) = row.value();
                if *left == 0 {
                    plan.next = Position::Names(epoch, parent, name.to_vec());
                    return Ok(());
                }
                *left -= 1;
                plan.names.push(NameMove {
                    epoch,
                    parent,
                    name: name.to_vec(),
                    child,
                    was,
                    to,
                });
            }
        }
        from = (epoch + 1, 0, Vec::new());
    }
    plan.next = Position::Done;
    Ok(())
}

#[cfg(test)]
mod tests;
