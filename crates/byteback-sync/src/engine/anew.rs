//! How sync of a folder starts over: all nodes here are compared with all that the server has;
//! equal ones become one, and of different ones both versions are kept.
//!
//! Sync starts over on request ([`request_start_over`]); by itself when this machine has joined as
//! another device; and when the server knows that this device was further than is remembered here:
//! an older state was put back, mostly with the folder itself (a restored image of the machine).
//! Changes that this device sent after that state are not here, so they count as others' changes
//! would; taken as its own, they would be undone by what is here.
//!
//! This is a *first contact* ([`super::receiving`]) with two differences. Changes that this device
//! sent are fetched, too ([`Standing::takes_own`]). And nodes get other IDs at the server
//! ([`Standing::names`]), as the log was perhaps put back with the rest and then reuses node
//! numbers that stand for other files there.
//!
//! **Order of the durable steps**: the new standing; the remembered identities are removed; the
//! request, if there was one, is removed. A crash in between leaves a map of another tree number
//! than the standing's, which is removed at the next opening. The standing takes own changes in
//! until the landing of the first contact has ended.

use std::io;
use std::sync::Arc;

use byteback_control::SYNC_CONSUMER;
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_model::{NodeId, Seq};
use byteback_oplog::TreeId;

use super::ground::Ground;
use super::ignoring::{Ignoring, LocalTree};
use super::phase::Event;
use super::remembered::Noted;
use super::{Engine, EngineError, EngineParts};
use crate::identities::{Identities, IdentityError};
use crate::receive::ReceiveError;
use crate::standing::{Counterpart, Standing, StandingError};
use crate::upload::{group_of, is_of_group};
use byteback_backup::file_id;

/// File that requests to start over.
const REQUEST_NAME: &str = "start-over";

/// Requests that sync of the folder that remembers in `dir` starts over at the next opening.
///
/// # Errors
/// The request cannot be noted.
pub fn request_start_over(dir: &dyn DurableDir) -> Result<(), StandingError> {
    let write = || {
        dir.open(REQUEST_NAME, OpenMode::CreateIfMissing)?.sync_data()?;
        dir.sync()
    };
    write().map_err(|source| StandingError::Io {
        what: "create the start-over request beside",
        source,
    })
}

fn is_asked(dir: &dyn DurableDir) -> Result<bool, StandingError> {
    let names = dir
        .list()
        .map_err(|source| StandingError::Io { what: "read", source })?;
    Ok(names.iter().any(|name| name == REQUEST_NAME))
}

fn forget_request(dir: &dyn DurableDir) -> Result<(), StandingError> {
    let removed = dir.remove(REQUEST_NAME).and_then(|()| dir.sync());
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StandingError::Io { what: "change", source }),
        _ => Ok(()),
    }
}

pub(super) fn counterpart(parts: &EngineParts) -> Counterpart {
    Counterpart {
        server: parts.server.base_url().to_owned(),
        folder: parts.folder.clone(),
        device: parts.device,
    }
}

/// The noted standing of the log's tree, once nothing waits to start over.
pub(super) fn noted(parts: &EngineParts, tree: TreeId) -> Result<Noted, EngineError> {
    let dir = &parts.dir;
    if !is_asked(&**dir)? {
        return Ok(match Standing::read_of(&**dir, &counterpart(parts))? {
            None => Noted::Nothing,
            Some(noted) if noted.tree != tree => Noted::OfOtherLog,
            Some(noted) => Noted::OfThisLog(noted),
        });
    }
    let standing = begin(parts, tree)?;
    forget_request(&**dir)?;
    Ok(Noted::OfThisLog(standing))
}

/// Notes that sync begins anew.
fn begin(parts: &EngineParts, tree: TreeId) -> Result<Standing, EngineError> {
    // The log's and the queue's knowledge of the server's state does not count any more.
    parts.tree.drop_consumer(SYNC_CONSUMER)?;
    parts.live.give_up("sync starts over");
    let drawn = parts.randomness.next_u64().map_err(|source| StandingError::Io {
        what: "draw a random number for",
        source,
    })?;
    let names = TreeId(drawn);
    let standing = Standing {
        counterpart: counterpart(parts),
        tree,
        names,
        root: file_id(names, NodeId::ROOT),
        cursor: 0,
        newest: None,
        landing: None,
        takes_own: true,
    };
    standing.write(&parts.dir)?;
    Identities::remove(&*parts.dir)?;
    Ok(standing)
}

/// The map of identities. A crash in the middle of starting over may leave an old map, which is
/// removed.
pub(super) fn identities(
    parts: &EngineParts,
    noted: Option<&Standing>,
    names: TreeId,
) -> Result<Identities, EngineError> {
    match Identities::open(Arc::clone(&parts.dir), names) {
        Err(IdentityError::OtherTree { .. }) if noted.is_some_and(|noted| noted.takes_own && noted.cursor == 0) => {
            Identities::remove(&*parts.dir)?;
            Ok(Identities::open(Arc::clone(&parts.dir), names)?)
        }
        opened => Ok(opened?),
    }
}

impl Engine {
    /// Renews a refused token. If this machine has joined again meanwhile, it shows the new token;
    /// as another device it does not know which of the server's changes are here. Returns whether
    /// there is one.
    pub(super) fn renew(&mut self) -> Result<bool, EngineError> {
        let Some((token, device)) = self.parts.renew.as_ref().and_then(|renew| renew()) else {
            return Ok(false);
        };
        self.parts.server.show_token(&token);
        self.shared.token_is_new();
        if device == self.parts.device {
            self.follow(Event::TokenRenewed)?;
            return Ok(true);
        }
        self.parts.device = device;
        self.options.device = device;
        self.shared.set_device(device);
        // Batches of the former device count as others'.
        self.ground = Ground::default();
        self.follow(match self.remembered.noted {
            Noted::OfThisLog(_) => Event::DeviceChanged,
            Noted::Nothing | Noted::OfOtherLog => Event::TokenRenewed,
        })?;
        Ok(true)
    }

    /// Starts over: see the module.
    pub(super) fn start_over(&mut self) -> Result<(), EngineError> {
        self.drop_cut();
        let log = self.parts.tree.status()?.tree;
        let standing = begin(&self.parts, log)?;
        self.remembered.names = standing.names;
        self.identities = Identities::open(Arc::clone(&self.parts.dir), self.remembered.names)?;
        self.remembered.start_over(standing);
        self.arrivals.landed.clear();
        self.sending.start_over();
        self.arrivals.left_out.note(Vec::new()).map_err(ReceiveError::from)?;
        // From now on the rules apply as the files here state them.
        self.ignoring = Ignoring::of(LocalTree::New);
        self.ground = Ground {
            cursor: 0,
            ..self.ground
        };
        Ok(())
    }

    /// Whether the server has batches that were sent from here after the remembered state: of
    /// groups that were never handed out, or with other file IDs.
    pub(super) fn was_further(&mut self, sent: &[u64]) -> Result<bool, EngineError> {
        // Where sync starts over they count as others' anyway; and before it began there is nothing
        // to compare with.
        let is_begun = self.remembered.noted.standing().is_some() && !self.remembered.takes_own;
        let newest = sent
            .iter()
            .filter_map(|counter| group_of(self.remembered.names, *counter))
            .max();
        let is_unknown = match newest {
            Some(group) => self.parts.live.known_up_to(group)?,
            None => false,
        };
        let has_other_names = sent
            .iter()
            .any(|counter| is_of_group(*counter) && group_of(self.remembered.names, *counter).is_none());
        Ok(is_begun && (is_unknown || has_other_names))
    }

    /// Whether the first contact is to be repeated, as nothing was brought together since sync
    /// started over.
    pub(super) fn is_contact_due(&self) -> bool {
        self.remembered.takes_own && !self.identities.is_bound(NodeId::ROOT)
    }

    /// Checks that the server still has what it acknowledged.
    pub(super) fn check_known(&self, head: Seq) -> Result<(), EngineError> {
        let lost = EngineError::Lost {
            folder: self.parts.folder.to_string(),
            head,
            known: self.ground.head(),
        };
        if head < self.ground.head() {
            return Err(lost);
        }
        let Some(own) = self.ground.newest else { return Ok(()) };
        let status = self.parts.server.batch_status(&self.parts.folder, own.counter)?;
        match status.applied {
            Some(applied) if applied.seq == own.seq => Ok(()),
            _ => Err(lost),
        }
    }
}
