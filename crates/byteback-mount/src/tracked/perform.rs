//! Changes of names, from what is announced before to what has become of them, for programs and for
//! changes that land from elsewhere. Without a passage no account is kept.

use byteback_extents::ByteRange;
use byteback_host::tree::{Inode, Stat};
use byteback_model::{NodeId, NodeKind};
use rustix::fs::{AtFlags, RenameFlags};

use super::change::{Appeared, Change, Names, Outcome, Part, Renamed};
use super::observer::{KnownNode, NamedAt, NamesChanged};
use super::passage::Passage;
use super::{Object, Place, TrackedResult, Victim, backing};

/// Makes something new at `place` by `make`. Answers its node, if the log knows the directory.
pub(super) fn make<'a, T>(
    passage: Option<&Passage<'a>>,
    place: Place<'a>,
    make: impl FnOnce() -> TrackedResult<T>,
    stat_of: impl FnOnce(&T) -> &Stat,
) -> TrackedResult<(T, Option<NodeId>)> {
    let Some(passage) = passage else {
        return Ok((make()?, None));
    };
    let parent = passage.node(&place.identity)?;
    let change = Change::Names(Names {
        directories: [known(parent, place), None],
        ..Names::default()
    });
    let made = passage.perform(&change, make)?;
    let created = passage.created(parent, place.name, stat_of(&made));
    passage.after(&change, &named(created));
    Ok((made, created.map(|(node, _)| node)))
}

/// Gives the inode that `fd` names one more name.
pub(super) fn link<'a>(
    passage: Option<&Passage<'a>>,
    object: Object,
    fd: &'a Inode,
    place: Place<'a>,
) -> TrackedResult<Stat> {
    let link = || {
        place
            .dir
            .link_at(place.name, fd)
            .and_then(|()| place.dir.stat_at(place.name))
            .map_err(backing("link"))
    };
    let Some(passage) = passage else { return link() };
    let parent = passage.node(&place.identity)?;
    let node = passage.node(&object.identity)?;
    let renamed = |node| Renamed {
        node,
        kind: object.kind,
        part: Part::Gains(fd),
    };
    let change = Change::Names(Names {
        directories: [known(parent, place), None],
        nodes: [node.map(renamed), None],
    });
    let stat = passage.perform(&change, link)?;
    let all = ByteRange::new(0, stat.size).filter(|_| stat.kind == NodeKind::File);
    let outcome = match (parent, node) {
        (Some(parent), Some(node)) => Outcome::Named(NamesChanged::Linked {
            at: NamedAt {
                parent,
                name: place.name,
            },
            node: KnownNode {
                node,
                kind: object.kind,
            },
        }),
        (None, Some(_)) => Outcome::Done,
        // It had no name in the tree: for the log it is new.
        (parent, None) => {
            let created = passage.created(parent, place.name, &stat);
            match all {
                Some(all) => Outcome::Appeared(Appeared {
                    identity: object.identity,
                    fd,
                    all,
                    named: created,
                }),
                None => named(created),
            }
        }
    };
    passage.after(&change, &outcome);
    Ok(stat)
}

/// Removes a name; `flags` as of `unlinkat`.
pub(super) fn remove<'a>(
    passage: Option<&Passage<'a>>,
    place: Place<'a>,
    victim: Victim,
    flags: AtFlags,
    operation: &'static str,
) -> TrackedResult<()> {
    let remove = || place.dir.unlink_at(place.name, flags).map_err(backing(operation));
    let Some(passage) = passage else { return remove() };
    let parent = passage.node(&place.identity)?;
    let node = passage.node(&victim.object.identity)?;
    let change = Change::Names(Names {
        directories: [known(parent, place), None],
        nodes: [node.map(|node| loses(node, &place, parent, &victim)), None],
    });
    passage.perform(&change, remove)?;
    passage.after(&change, &unlinked(passage, parent, place, node, &victim));
    Ok(())
}

/// Moves a name.
pub(super) fn rename<'a>(
    passage: Option<&Passage<'a>>,
    from: Place<'a>,
    to: Place<'a>,
    flags: RenameFlags,
    moved: Victim,
    replaced: Option<Victim>,
) -> TrackedResult<()> {
    let rename = || {
        from.dir
            .rename_at(from.name, to.dir, to.name, flags)
            .map_err(backing("rename"))
    };
    let Some(passage) = passage else { return rename() };
    let (from_dir, to_dir) = (passage.node(&from.identity)?, passage.node(&to.identity)?);
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    let node = passage.node(&moved.object.identity)?;
    let over = match &replaced {
        Some(over) => passage.node(&over.object.identity)?,
        None => None,
    };
    let is_same = replaced.is_some_and(|over| over.object.identity == moved.object.identity);
    let other = over.zip(replaced.as_ref()).and_then(|(over, state)| match exchange {
        true => Some(moves(over, &to, state)),
        false if is_same => None,
        false => Some(loses(over, &to, to_dir, state)),
    });
    let change = Change::Names(Names {
        directories: [known(from_dir, from), known(to_dir, to)],
        nodes: [node.map(|node| moves(node, &from, &moved)), other],
    });
    passage.perform(&change, rename)?;
    if !exchange && is_same {
        // Two names of one inode: POSIX lets both stay.
        passage.after(&change, &Outcome::Done);
        return Ok(());
    }
    let (Some(from_parent), Some(to_parent), Some(node)) = (from_dir, to_dir, node) else {
        // One end is unknown to the log: what left the known part is gone, what came into it is
        // new.
        passage.after(&change, &Outcome::CrossedBorder);
        if let (Some(_), Some(_)) = (from_dir, node) {
            passage.after(&change, &unlinked(passage, from_dir, from, node, &moved));
        }
        if let (Some(_), Ok(stat)) = (to_dir, to.dir.stat_at(to.name)) {
            passage.after(&change, &named(passage.created(to_dir, to.name, &stat)));
        }
        whiteout(passage, &change, (from, from_dir), flags);
        return Ok(());
    };
    let at = |parent, name| NamedAt { parent, name };
    let (from_at, to_at) = (at(from_parent, from.name), at(to_parent, to.name));
    let moved_node = known_node(node, &moved);
    let changed = match over.zip(replaced.as_ref()) {
        Some((over, state)) if exchange => NamesChanged::Exchanged {
            one: from_at,
            one_node: moved_node,
            other: to_at,
            other_node: known_node(over, state),
        },
        over => NamesChanged::Renamed {
            from: from_at,
            to: to_at,
            node: moved_node,
            replaced: over.map(|(over, state)| passage.lost(over, state, (to_parent, to.name))),
        },
    };
    passage.after(&change, &Outcome::Named(changed));
    whiteout(passage, &change, (from, from_dir), flags);
    Ok(())
}

/// Tells of the node that a rename left in place of the old name, if it was asked to.
fn whiteout<'a>(
    passage: &Passage<'a>,
    change: &Change<'_>,
    (from, parent): (Place<'a>, Option<NodeId>),
    flags: RenameFlags,
) {
    if flags.contains(RenameFlags::WHITEOUT)
        && let Ok(stat) = from.dir.stat_at(from.name)
    {
        passage.after(change, &named(passage.created(parent, from.name, &stat)));
    }
}

fn known<'a>(node: Option<NodeId>, place: Place<'a>) -> Option<(NodeId, &'a Inode)> {
    node.map(|node| (node, place.dir))
}

fn known_node(node: NodeId, state: &Victim) -> KnownNode {
    KnownNode {
        node,
        kind: state.object.kind,
    }
}

fn moves<'a>(node: NodeId, place: &'a Place<'a>, state: &'a Victim) -> Renamed<'a> {
    Renamed {
        node,
        kind: state.object.kind,
        part: Part::Moves(place, state),
    }
}

fn loses<'a>(node: NodeId, place: &'a Place<'a>, parent: Option<NodeId>, state: &'a Victim) -> Renamed<'a> {
    Renamed {
        node,
        kind: state.object.kind,
        part: Part::Loses(place, parent, state),
    }
}

fn named<'a>(created: Option<(NodeId, NamesChanged<'a>)>) -> Outcome<'a> {
    created.map_or(Outcome::Done, |(_, names)| Outcome::Named(names))
}

fn unlinked<'a>(
    passage: &Passage<'a>,
    parent: Option<NodeId>,
    place: Place<'a>,
    node: Option<NodeId>,
    victim: &Victim,
) -> Outcome<'a> {
    let Some((parent, node)) = parent.zip(node) else {
        return Outcome::Done;
    };
    let name = place.name;
    Outcome::Named(NamesChanged::Unlinked {
        at: NamedAt { parent, name },
        lost: passage.lost(node, victim, (parent, name)),
    })
}
