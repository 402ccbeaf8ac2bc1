//! Changes of names, from what the gate notes before to what it logs after, for programs and for
//! changes that land from elsewhere. Without `names` no account is kept.

use byteback_host::tree::{Inode, Stat};
use byteback_model::{NodeId, NodeKind};
use rustix::fs::{AtFlags, RenameFlags};

use super::account::NameChange;
use super::{Object, Place, TrackedResult, Victim, backing, looks_like};

/// Makes something new at `place` by `make`. Answers its node, if the log knows the directory.
pub(super) fn make<T>(
    names: Option<&NameChange<'_>>,
    place: Place<'_>,
    make: impl FnOnce() -> TrackedResult<T>,
    stat_of: impl FnOnce(&T) -> &Stat,
) -> TrackedResult<(T, Option<NodeId>)> {
    let Some(names) = names else {
        return Ok((make()?, None));
    };
    let parent = names.directory(place)?;
    let made = make()?;
    let node = names.created(parent, place.name, stat_of(&made));
    Ok((made, node))
}

/// Gives the inode that `fd` names one more name.
pub(super) fn link(
    names: Option<&NameChange<'_>>,
    object: Object,
    fd: &Inode,
    place: Place<'_>,
) -> TrackedResult<Stat> {
    let link = || {
        place
            .dir
            .link_at(place.name, fd)
            .and_then(|()| place.dir.stat_at(place.name))
            .map_err(backing("link"))
    };
    let Some(names) = names else { return link() };
    let parent = names.directory(place)?;
    let node = names.node(&object.identity)?;
    if let Some(node) = node {
        names.operation.compare(node, || looks_like(fd))?;
        let integrity = names.account.integrity.as_ref();
        if let Some(integrity) = integrity.filter(|_| object.kind == NodeKind::File) {
            integrity.before_attributes(node, fd);
        }
        names.account.pictures.before_attributes(node, fd);
    }
    let stat = link()?;
    match (parent, node) {
        (Some(parent), Some(node)) => names.linked(parent, place.name, node, object.kind),
        // It had no name in the tree: for the log it is new.
        (parent, None) => names.appeared(parent, place.name, object, fd, &stat),
        (None, _) => {}
    }
    Ok(stat)
}

/// Removes a name; `flags` as of `unlinkat`.
pub(super) fn remove(
    names: Option<&NameChange<'_>>,
    place: Place<'_>,
    victim: Victim,
    flags: AtFlags,
    operation: &'static str,
) -> TrackedResult<()> {
    let remove = || place.dir.unlink_at(place.name, flags).map_err(backing(operation));
    let Some(names) = names else { return remove() };
    let parent = names.directory(place)?;
    let node = names.victim(place, parent, victim)?;
    names.perform(remove)?;
    if let (Some(parent), Some(node)) = (parent, node) {
        names.unlinked(parent, place.name, node, victim);
    }
    Ok(())
}

/// Moves a name.
pub(super) fn rename(
    names: Option<&NameChange<'_>>,
    from: Place<'_>,
    to: Place<'_>,
    flags: RenameFlags,
    moved: Victim,
    replaced: Option<Victim>,
) -> TrackedResult<()> {
    let rename = || {
        from.dir
            .rename_at(from.name, to.dir, to.name, flags)
            .map_err(backing("rename"))
    };
    let Some(names) = names else { return rename() };
    let (from_dir, to_dir) = (names.directory(from)?, names.directory(to)?);
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    let node = names.moved(from, moved)?;
    let over = match replaced {
        Some(over) if exchange => names.moved(to, over)?,
        Some(over) if over.object.identity != moved.object.identity => names.victim(to, to_dir, over)?,
        Some(over) => names.node(&over.object.identity)?,
        None => None,
    };
    names.perform(rename)?;
    if !exchange && replaced.is_some_and(|over| over.object.identity == moved.object.identity) {
        // Two names of one inode: POSIX lets both stay.
        return Ok(());
    }
    names.renamed((from, from_dir, node, moved), (to, to_dir, over, replaced), exchange);
    if flags.contains(RenameFlags::WHITEOUT)
        && let Ok(stat) = from.dir.stat_at(from.name)
    {
        names.created(from_dir, from.name, &stat);
    }
    Ok(())
}
