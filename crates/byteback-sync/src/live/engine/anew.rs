//! How sync of a folder starts over: all that is here is compared with all that the server has,
//! what is the same becomes one, and of what differs both versions are kept.
//!
//! It does so when somebody asks for it ([`ask_to_start_over`]), and by itself when this machine
//! has joined as another device, and when the server knows that this device was further than is
//! remembered here: an older state was put back, mostly with the folder itself (a restored image of
//! the machine). What this device sent after that state was taken is not here, so it counts as
//! others' changes would; taken as its own it would be undone by what is here.
//!
//! This is a *first contact* ([`super::receiving`]) with two differences. What this device sent is
//! fetched, too ([`Standing::takes_own`]). And nodes get other names at the server
//! ([`Standing::names`]), as the log was perhaps put back with the rest and gives numbers of nodes
//! once more that stand for other files there.
//!
//! **Order of the durable steps**: the new standing; what was remembered of identities is removed;
//! the request, if there was one, is removed. A crash in between leaves a map of another name than
//! the standing's, which is removed at the next opening. The standing takes own changes in until
//! the landing of the first contact has ended.

use std::io;
use std::sync::Arc;

use byteback_control::SYNC_CONSUMER;
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_model::{NodeId, Seq};
use byteback_oplog::TreeId;

use super::ground::Ground;
use super::ignoring::Ignoring;
use super::{Engine, EngineError, EngineParts};
use crate::backup::file_id;
use crate::live::identities::{Identities, IdentityError};
use crate::live::receive::ReceiveError;
use crate::live::standing::{Counterpart, Standing, StandingError};
use crate::live::upload::{group_of, is_of_group};

/// Somebody wants that sync starts over.
const REQUEST_NAME: &str = "start-over";

/// From the next opening on, sync of the folder that remembers in `dir` starts over.
///
/// # Errors
/// That cannot be noted.
pub fn ask_to_start_over(dir: &dyn DurableDir) -> Result<(), StandingError> {
    let write = || {
        dir.open(REQUEST_NAME, OpenMode::CreateIfMissing)?.sync_data()?;
        dir.sync()
    };
    write().map_err(|source| StandingError::Io {
        what: "note that sync starts over beside",
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

/// What is noted of the log's tree, once nothing waits to start over; and whether something is
/// noted of another one.
pub(super) fn noted(parts: &EngineParts, tree: TreeId) -> Result<(Option<Standing>, bool), EngineError> {
    let dir = &parts.dir;
    if !is_asked(&**dir)? {
        let noted = Standing::read_of(&**dir, &counterpart(parts))?;
        let had_other_log = noted.as_ref().is_some_and(|noted| noted.tree != tree);
        return Ok((noted.filter(|_| !had_other_log), had_other_log));
    }
    let standing = begin(parts, tree)?;
    forget_request(&**dir)?;
    Ok((Some(standing), false))
}

/// Notes that all begins anew.
fn begin(parts: &EngineParts, tree: TreeId) -> Result<Standing, EngineError> {
    // What the log and the queue know of what the server has is of no interest any more.
    parts.tree.drop_consumer(SYNC_CONSUMER)?;
    parts.live.give_up("sync starts over");
    let drawn = parts.randomness.next_u64().map_err(|source| StandingError::Io {
        what: "draw a number for",
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

/// The map of identities. What a crash left of another one while all began anew is removed.
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
    /// The server refused the token. If this machine has joined again meanwhile, it shows the new
    /// one; as another device it does not know what of the server's is here. Answers whether there
    /// is one.
    pub(super) fn renew(&mut self) -> Result<bool, EngineError> {
        let Some((token, device)) = self.parts.renew.as_ref().and_then(|renew| renew()) else {
            return Ok(false);
        };
        self.parts.server.show_token(&token);
        self.shared.token_is_new();
        self.has_met = false;
        if device == self.parts.device {
            return Ok(true);
        }
        self.parts.device = device;
        self.options.device = device;
        self.shared.set_device(device);
        // What the other device sent is others'.
        self.ground = Ground::default();
        self.has_to_start_over = self.noted.is_some();
        if self.has_to_start_over {
            self.start_over()?;
        }
        Ok(true)
    }

    /// See the module.
    pub(super) fn start_over(&mut self) -> Result<(), EngineError> {
        self.drop_cut();
        let log = self.parts.tree.status()?.tree;
        let standing = begin(&self.parts, log)?;
        self.names = standing.names;
        self.identities = Identities::open(Arc::clone(&self.parts.dir), self.names)?;
        self.noted = Some(standing);
        self.takes_own = true;
        self.landing = None;
        self.landed.clear();
        self.attempted = None;
        self.left_out.note(Vec::new()).map_err(ReceiveError::from)?;
        self.is_new_here = true;
        // Rules are in force from now on as the files here say them.
        self.ignoring = Ignoring::default();
        self.ground = Ground {
            cursor: 0,
            ..self.ground
        };
        self.has_met = false;
        self.has_to_start_over = false;
        Ok(())
    }

    /// Whether the server has batches that were sent from here after all that is remembered here:
    /// of groups that were never handed out, or by other names.
    pub(super) fn was_further(&mut self, sent: &[u64]) -> Result<bool, EngineError> {
        // Where sync starts over they count as others' anyway; and before it began there is nothing
        // to compare with.
        let is_begun = self.noted.is_some() && !self.takes_own;
        let newest = sent.iter().filter_map(|counter| group_of(self.names, *counter)).max();
        let is_unknown = match newest {
            Some(group) => self.parts.live.known_up_to(group)?,
            None => false,
        };
        let has_other_names = sent
            .iter()
            .any(|counter| is_of_group(*counter) && group_of(self.names, *counter).is_none());
        Ok(is_begun && (is_unknown || has_other_names))
    }

    /// Whether the first contact is to be made once more, as nothing was brought together since
    /// sync started over.
    pub(super) fn is_contact_due(&self) -> bool {
        self.takes_own && !self.identities.is_bound(NodeId::ROOT)
    }

    /// Whether the server still has what it acknowledged.
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
