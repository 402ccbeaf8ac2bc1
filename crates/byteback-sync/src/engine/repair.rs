//! Repair, on request, of files with bytes that no program wrote (DeltaCFS, section III-E).
//!
//! **The server's version.** The version that a file here stands on is at the server at the newest
//! moment up to which all is known here; so a repair runs only when nothing of others waits to be
//! let in, and nothing is on its way. The damaged blocks are fetched, and each that is proven to be
//! what was written is put in its place: no program notices, and unsent changes stay. Where it
//! proves nothing, the file stays as it is: what was written may be nowhere but in it, and a person
//! decides.
//!
//! **The local bytes.** They count as written by a program: a change like any other.

use byteback_control::{
    ErrorKind, Landed, RepairReport, RepairRequest, RepairWish, Repaired, ServerVersion, ServiceError,
};
use byteback_extents::ByteRange;
use byteback_model::{FileId, NodeId, NodeInfo, NodeKind, Seq};

use super::failure::reported;
use super::{Engine, EngineError};
use crate::incoming::fetch::Incoming;
use crate::receive::ReceiveError;
use byteback_backup::BackupError;
use byteback_client::ServerErrorKind;

/// Bytes fetched at a time. A multiple of a block.
const PIECE_LEN_BYTES: u64 = 1 << 20;

fn refused(what: impl Into<String>) -> EngineError {
    ServiceError::new(ErrorKind::Refused, what).into()
}

/// A step that a program overtook is not done.
fn made<T>(landed: Landed<T>) -> Result<T, EngineError> {
    match landed {
        Landed::Done(done) => Ok(done),
        Landed::Overtaken(why) => Err(refused(format!("{why}; nothing is lost: try again"))),
    }
}

/// An error, for the caller across the socket.
fn answered(error: &EngineError) -> ServiceError {
    match error {
        EngineError::Sync(BackupError::Tree(error)) | EngineError::Receive(ReceiveError::Tree(error)) => error.clone(),
        error => ServiceError::new(ErrorKind::Refused, reported(error)),
    }
}

impl Engine {
    /// Does the requested repairs that need no server.
    pub(super) fn accept_asked(&mut self) {
        while let Some(asked) = self.shared.next_repair(|request| request.wish == RepairWish::KeepMine) {
            let accepted = self.accept(asked.request.node);
            asked.answer(accepted.map_err(|error| answered(&error)));
        }
    }

    /// Tells all callers that wait for the server that it cannot be asked.
    pub(super) fn refuse_repairs(&self, error: &EngineError) {
        while let Some(asked) = self.shared.next_repair(|request| request.wish != RepairWish::KeepMine) {
            asked.answer(Err(answered(error)));
        }
    }

    /// Does the next requested repair.
    ///
    /// # Errors
    /// If the server is away. The caller gets every error.
    pub(super) fn repair_asked(&mut self) -> Result<(), EngineError> {
        let Some(asked) = self.shared.next_repair(|_| true) else {
            return Ok(());
        };
        let done = self.repair(&asked.request);
        let passing = done.as_ref().err().is_some_and(EngineError::is_passing);
        match done {
            Err(error) if passing => {
                asked.answer(Err(answered(&error)));
                Err(error)
            }
            done => {
                asked.answer(done.map_err(|error| answered(&error)));
                Ok(())
            }
        }
    }

    /// Accepts the local bytes as valid.
    fn accept(&mut self, node: NodeId) -> Result<RepairReport, EngineError> {
        let was_damaged = self.parts.landing.damage_of(node)?.is_some();
        let accepted = match was_damaged {
            true => Repaired::Accepted(made(self.parts.landing.accept(node)?)?),
            false => Repaired::WasSound,
        };
        self.parts.landing.sync()?;
        self.is_sound_again(node);
        Ok(RepairReport {
            server: None,
            repaired: accepted,
        })
    }

    fn repair(&mut self, request: &RepairRequest) -> Result<RepairReport, EngineError> {
        let node = request.node;
        if request.wish == RepairWish::KeepMine {
            return self.accept(node);
        }
        let origin = self.identities.origin_of(node).filter(|origin| origin.seq > 0);
        let (file, at) = match origin {
            Some(origin) => (origin.file, origin.seq),
            None => (self.file_id(node), self.ground.seen()),
        };
        let there = self.version_there(file, at)?;
        let server = there.as_ref().map(|there| ServerVersion {
            seq: at,
            len_bytes: there.attributes.size,
            mtime_ns: there.attributes.mtime_ns,
        });
        let report = |repaired| RepairReport { server, repaired };
        if request.wish == RepairWish::Look {
            return Ok(report(Repaired::Looked));
        }
        if self.parts.landing.damage_of(node)?.is_none() {
            return Ok(report(Repaired::WasSound));
        }
        let Some(there) = there else {
            return Err(refused(
                "the server has no version of it; keep yours with --keep mine, or remove the file",
            ));
        };
        let healed = self.heal(node, (file, at), &there)?;
        if self.parts.landing.damage_of(node)?.is_none() {
            self.parts.landing.sync()?;
            self.is_sound_again(node);
            return Ok(report(Repaired::Healed(healed)));
        }
        let why = "nothing proves that the server's version is what was written here, which may exist nowhere else";
        Err(refused(format!(
            "{why}; keep yours with --keep mine, or move it aside and get the server's with byteback restore"
        )))
    }

    /// Has an unreadable node tried again at once, now that it is sound.
    fn is_sound_again(&mut self, node: NodeId) {
        let now_ns = self.clock().monotonic_ns();
        self.unsaved.is_sound_again(node, now_ns);
    }

    fn version_there(&self, file: FileId, at: Seq) -> Result<Option<NodeInfo>, EngineError> {
        match self.parts.server.node(&self.parts.folder, file, at) {
            Ok(there) => Ok(Some(there).filter(|there| there.attributes.kind == NodeKind::File)),
            Err(error) if error.kind == ServerErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn at_server(&self, at: Seq) -> Incoming<'_> {
        Incoming {
            server: &self.parts.server,
            folder: &self.parts.folder,
            cursor: at,
            head: at,
            takes_own: false,
            monitor: &*self.shared,
        }
    }

    /// Repairs the blocks that the server's version proves. Returns how many bytes these are.
    fn heal(&self, node: NodeId, (file, at): (FileId, Seq), there: &NodeInfo) -> Result<u64, EngineError> {
        let damage = self.parts.landing.damage_of(node)?;
        let ranges = damage.map(|damage| damage.ranges).unwrap_or_default();
        let mut healed: u64 = 0;
        for (offset, len_bytes) in ranges {
            let (mut at_byte, end) = (offset, offset.saturating_add(len_bytes));
            while at_byte < end {
                let piece_end = end.min(at_byte.saturating_add(PIECE_LEN_BYTES));
                let len = usize::try_from(piece_end.saturating_sub(at_byte)).unwrap_or(0);
                let fetched = ByteRange::new(at_byte, piece_end.min(there.attributes.size));
                let mut good = match fetched {
                    Some(range) => self.at_server(at).bytes(file, range, there.attributes.size)?,
                    None => Vec::new(),
                };
                good.resize(len, 0);
                healed = healed.saturating_add(made(self.parts.landing.heal(node, at_byte, &good)?)?);
                at_byte = piece_end;
            }
        }
        Ok(healed)
    }
}
