//! The changes of a cut with their attributes, in order, looked up ahead of what is being sent; and
//! the contents of short files that are sent as a whole, many in one call ([`ShortContents`]).
//!
//! Looking up small files takes about as long as sending them. In a cut of more changes than one
//! call asks about, a thread does the former while another does the latter. It is at most two calls
//! ahead; memory follows that. Smaller cuts need no thread, so that what runs in virtual time stays
//! in one order.
//!
//! A tree that is not held still is looked at before it is read, and a file that changes in between
//! has to wait for the next backup. So nothing is looked up ahead of long contents
//! ([`AHEAD_OF_BYTES_MAX`]).

mod contents;

use super::super::changes::{ATTRIBUTES_PER_CALL, for_each_page};
use crate::error::{BackupError, Result};
use byteback_control::{CutInfo, ErrorKind, NodeChange, ServiceError, TreeService};
use byteback_model::{Attributes, NameChange, NodeId};
pub(super) use contents::ShortContents;
use std::sync::mpsc::{channel, sync_channel};

/// Most bytes of files that are being sent while further ones are looked up.
const AHEAD_OF_BYTES_MAX: u64 = 64 << 20;

/// A part of a cut's changes.
pub(super) enum Next {
    /// Changed nodes, the attributes of each, and contents of some.
    Nodes(Vec<NodeChange>, Vec<Result<Attributes, ServiceError>>, ShortContents),
    Names(Vec<NameChange<NodeId>>),
}

impl Next {
    /// Bytes of its files.
    fn len_bytes(&self) -> u64 {
        let Self::Nodes(_, attributes, _) = self else { return 0 };
        let files = attributes.iter().flatten();
        files.fold(0, |bytes: u64, file| bytes.saturating_add(file.size))
    }
}

/// Goes through a cut in order.
pub(super) fn for_each_next(
    tree: &dyn TreeService,
    cut: &CutInfo,
    mut act: impl FnMut(Next) -> Result<()>,
) -> Result<()> {
    if cut.nodes <= ATTRIBUTES_PER_CALL as u64 {
        return look_up(tree, cut, &mut act);
    }
    std::thread::scope(|scope| {
        let (ahead, coming) = sync_channel(1);
        let (did, done) = channel();
        scope.spawn(move || {
            let mut given = 0_u64;
            let mut send = |next: Next| {
                let is_long = next.len_bytes() > AHEAD_OF_BYTES_MAX;
                // Only an end of the other thread closes a channel.
                ahead.send(Ok(next)).map_err(|_| BackupError::Cancelled)?;
                given += 1;
                while is_long && given > 0 {
                    done.recv().map_err(|_| BackupError::Cancelled)?;
                    given -= 1;
                }
                given -= done.try_iter().count() as u64;
                Ok(())
            };
            if let Err(error) = look_up(tree, cut, &mut send) {
                let _ = ahead.send(Err(error));
            }
        });
        coming.into_iter().try_for_each(|next: Result<Next>| {
            act(next?)?;
            // Without the other thread nothing comes any more.
            let _ = did.send(());
            Ok(())
        })
    })
}

fn look_up(tree: &dyn TreeService, cut: &CutInfo, act: &mut dyn FnMut(Next) -> Result<()>) -> Result<()> {
    for_each_page(tree, cut, |page| {
        for some in page.nodes.chunks(ATTRIBUTES_PER_CALL) {
            let nodes: Vec<NodeId> = some.iter().map(|change| change.node).collect();
            let attributes = tree.attributes(cut.cut, &nodes)?;
            if attributes.len() != nodes.len() {
                let message = "the folder's daemon answered for the wrong number of files; restart it";
                return Err(ServiceError::new(ErrorKind::Protocol, message).into());
            }
            let contents = ShortContents::read(tree, cut.cut, some, &attributes);
            act(Next::Nodes(some.to_vec(), attributes, contents))?;
        }
        act(Next::Names(page.names))
    })
}
