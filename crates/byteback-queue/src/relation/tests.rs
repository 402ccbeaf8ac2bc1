//! Random names against a naive model that keeps the whole history and searches it for each
//! decision.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const OPTIONS: RelationOptions = RelationOptions {
    timeout_ns: 2000,
    entries_max: 1000,
    kept_files_max: 1000,
    kept_bytes_max: 1 << 40,
    free_bytes_min: 0,
};

/// The expected knowledge of the table, found by searching everything that ever happened.
#[derive(Default)]
struct Model {
    now_ns: u64,
    nodes: u64,
    names: BTreeMap<Place<NodeId>, NodeId>,
    /// Each gain (`None`) and loss of a name by a file, in order.
    history: Vec<(u64, Place<NodeId>, Option<NodeId>)>,
    bases: BTreeMap<NodeId, NodeId>,
    kept: BTreeSet<NodeId>,
    unreadable: BTreeSet<NodeId>,
    directories: BTreeSet<NodeId>,
    unsent: BTreeSet<NodeId>,
}

impl Model {
    fn moved(&self, node: NodeId) -> Moved {
        let kind = match self.directories.contains(&node) {
            true => NodeKind::Directory,
            false => NodeKind::File,
        };
        Moved { node, kind }
    }

    /// The file whose name `place` was last, if it stands for nothing since, and not for too long.
    fn entry(&self, place: &Place<NodeId>) -> Option<NodeId> {
        let (at_ns, _, lost) = self.history.iter().rev().find(|(_, changed, _)| changed == place)?;
        lost.filter(|node| at_ns + OPTIONS.timeout_ns > self.now_ns && !self.unreadable.contains(node))
    }

    fn relate(&mut self, new: NodeId, base: Option<NodeId>) {
        let Some(base) = base.filter(|base| *base != new && self.bases.get(base) != Some(&new)) else {
            return;
        };
        if !self.directories.contains(&new) && !self.unreadable.contains(&base) {
            self.bases.insert(new, base);
        }
    }

    /// The same of an entry's base, which does not take the place of another if it has no name.
    fn relate_entry(&mut self, new: NodeId, base: Option<NodeId>) {
        let is_named = |base: &NodeId| self.names.values().any(|named| named == base);
        let base = base.filter(|base| is_named(base) || !self.bases.contains_key(&new));
        self.relate(new, base);
    }

    fn lose(&mut self, place: &Place<NodeId>, is_kept: bool) -> Victim {
        let node = self.names.remove(place).unwrap();
        let is_last = !self.names.values().any(|&named| named == node);
        let kind = self.moved(node).kind;
        let is_kept = is_last && is_kept && kind == NodeKind::File;
        if is_kept {
            self.kept.insert(node);
        } else if is_last {
            self.unreadable.insert(node);
            self.bases.retain(|_, base| *base != node);
        }
        Victim {
            node,
            kind,
            is_last,
            is_kept,
            len_bytes: 10,
        }
    }

    fn remember(&mut self, place: &Place<NodeId>, node: NodeId) {
        let is_file = !self.directories.contains(&node);
        self.history.push((self.now_ns, place.clone(), is_file.then_some(node)));
    }

    /// The files that must still be kept aside.
    fn needed(&self, places: &[Place<NodeId>]) -> BTreeSet<NodeId> {
        let entries = places.iter().filter_map(|place| self.entry(place));
        let needed = entries.chain(self.bases.values().copied()).collect::<BTreeSet<_>>();
        self.kept.intersection(&needed).copied().collect()
    }
}

fn life(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let places = (0..6_u8)
        .map(|name| Place::new(NodeId(1), &[b'a' + name]))
        .collect::<Vec<_>>();
    let mut model = Model::default();
    let mut table = RelationTable::new(OPTIONS);
    let mut relations = 0;
    for _ in 0..400 {
        model.now_ns += [0, 1, 300, 1999, 2000][random.random_range(0..5)];
        let now_ns = model.now_ns;
        let at = places[random.random_range(0..places.len())].clone();
        let to = places[random.random_range(0..places.len())].clone();
        let (here, there) = (model.names.get(&at).copied(), model.names.get(&to).copied());
        let is_kept = random.random_bool(0.8);
        let before = model.bases.clone();
        let operation = match (random.random_range(0..6), here, there) {
            (0 | 1, None, _) => {
                model.nodes += 1;
                let node = NodeId(model.nodes);
                if random.random_bool(0.1) {
                    model.directories.insert(node);
                }
                model.unsent.insert(node);
                let base = model.entry(&at);
                model.relate_entry(node, base);
                model.history.push((now_ns, at.clone(), None));
                model.names.insert(at.clone(), node);
                NameOperation::Created {
                    node: model.moved(node),
                    at,
                }
            }
            (2, Some(node), None) if !model.directories.contains(&node) => {
                if model.unsent.contains(&node) {
                    let base = model.entry(&to);
                    model.relate_entry(node, base);
                }
                model.history.push((now_ns, to.clone(), None));
                model.names.insert(to.clone(), node);
                NameOperation::Linked {
                    node: model.moved(node),
                    at: to,
                }
            }
            (3, Some(node), _) => {
                let victim = model.lose(&at, is_kept);
                model.remember(&at, node);
                NameOperation::Unlinked { at, victim }
            }
            (4, Some(node), over) if at != to && Some(node) != over => {
                let entry = model.entry(&to);
                let replaced = over.map(|_| model.lose(&to, is_kept));
                let base = replaced.filter(|victim| victim.kind == NodeKind::File);
                if model.unsent.contains(&node) {
                    match base {
                        Some(victim) => model.relate(node, Some(victim.node)),
                        None => model.relate_entry(node, entry),
                    }
                }
                model.names.remove(&at);
                model.names.insert(to.clone(), node);
                model.history.push((now_ns, to.clone(), None));
                model.remember(&at, node);
                NameOperation::Renamed {
                    node: model.moved(node),
                    from: at,
                    to,
                    replaced,
                }
            }
            (5, Some(one), Some(other)) if one != other => {
                let (new, base) = match model.unsent.contains(&one) {
                    true => (one, other),
                    false => (other, one),
                };
                if model.unsent.contains(&new) && !model.directories.contains(&base) {
                    model.relate(new, Some(base));
                }
                model.names.insert(at.clone(), other);
                model.names.insert(to.clone(), one);
                NameOperation::Exchanged {
                    one_node: model.moved(one),
                    one: at,
                    other_node: model.moved(other),
                    other: to,
                }
            }
            _ => {
                // Something was sent, or a comparison ended.
                let node = NodeId(random.random_range(0..=model.nodes));
                model.unsent.remove(&node);
                model.bases.remove(&node);
                table.expire(now_ns);
                table.finish(node);
                continue;
            }
        };
        let unsent = model.unsent.clone();
        let decisions = table.observe(&operation, now_ns, |node| unsent.contains(&node));
        table
            .check(now_ns)
            .unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        let reported = decisions.iter().filter_map(|decision| match decision {
            Decision::Relate { new, base, .. } => Some((*new, *base)),
            _ => None,
        });
        let changed = model.bases.iter().filter(|(new, base)| before.get(new) != Some(base));
        assert_eq!(
            reported.collect::<BTreeMap<_, _>>(),
            changed.map(|(new, base)| (*new, *base)).collect::<BTreeMap<_, _>>(),
            "seed {seed}: {operation:?}"
        );
        assert_eq!(table.bases, model.bases, "seed {seed}: {operation:?}");
        for decision in &decisions {
            if let Decision::Drop(node) = decision {
                assert!(!model.needed(&places).contains(node), "seed {seed}: {node} is needed");
            }
        }
        assert_eq!(
            table.kept().collect::<BTreeSet<_>>(),
            model.needed(&places),
            "seed {seed}: {operation:?}"
        );
        relations += before.len().abs_diff(model.bases.len());
    }
    relations
}

#[test]
fn random_names_are_related_as_a_search_of_their_history_says() {
    let relations = crate::tests::seeds().map(life).sum::<usize>();
    assert!(relations > 100, "{relations} relations: nothing was tested");
}

#[test]
fn past_its_bound_the_table_forgets_the_eldest() {
    let mut table = RelationTable::new(RelationOptions {
        entries_max: 2,
        ..OPTIONS
    });
    for (index, name) in [b"a", b"b", b"c"].iter().enumerate() {
        let victim = Victim {
            node: NodeId(index as u64),
            kind: NodeKind::File,
            is_last: true,
            is_kept: true,
            len_bytes: 1,
        };
        let at = Place::new(NodeId(9), *name);
        table.observe(&NameOperation::Unlinked { at, victim }, index as u64, |_| false);
    }
    assert_eq!(table.kept().collect::<Vec<_>>(), [NodeId(1), NodeId(2)]);
    assert_eq!(table.deadline_ns(), Some(2001));
}

#[test]
fn relation_table_keeps_only_files_within_its_limits() {
    let table = RelationTable::new(RelationOptions {
        kept_bytes_max: 100,
        free_bytes_min: 50,
        ..OPTIONS
    });
    assert!(table.is_worth_keeping(NodeKind::File, 100, 50));
    assert!(!table.is_worth_keeping(NodeKind::Directory, 0, 50));
    assert!(!table.is_worth_keeping(NodeKind::File, 101, 50));
    assert!(!table.is_worth_keeping(NodeKind::File, 100, 49));
    let table = RelationTable::new(RelationOptions {
        kept_files_max: 0,
        ..OPTIONS
    });
    assert!(!table.is_worth_keeping(NodeKind::File, 1, u64::MAX));
}
