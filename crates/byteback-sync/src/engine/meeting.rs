//! Meeting the server: the engine hears of all batches since its cursor, and checks that the folder
//! is the one for this directory.

use byteback_model::FileId;
use std::sync::Arc;

use super::phase::ServerNews;
use super::remembered::Noted;
use super::{Engine, EngineError};
use byteback_backup::BackupError;
use byteback_client::ServerNews as Message;

impl Engine {
    /// Finds out what the server has.
    pub(super) fn meet(&mut self) -> Result<ServerNews, EngineError> {
        let folder = self.parts.folder.clone();
        let info = self.parts.server.folder(&folder)?;
        self.check_known(info.seq)?;
        let mut ground = self.ground;
        let server = Arc::clone(&self.parts.server);
        let mut listening = server.listen(&folder, ground.cursor);
        let mut sent = Vec::new();
        while listening.after() < info.seq {
            match listening.hear()? {
                Message::Batch(batch) => {
                    ground.heard(&batch, self.parts.device);
                    sent.extend((batch.device == self.parts.device).then_some(batch.counter));
                }
                Message::Nothing => {}
                Message::Away(why) => return Err(EngineError::Away(why)),
                Message::Cancelled => return Err(BackupError::Cancelled.into()),
            }
        }
        let was_further = self.was_further(&sent)?;
        let root = info.root;
        Ok(ServerNews {
            root,
            ground,
            was_further,
        })
    }

    /// Checks that the folder is the one for this directory. Returns another machine's root of it,
    /// if it is to be brought together with the root here.
    pub(super) fn recognize(&mut self, heard: ServerNews) -> Result<Option<FileId>, EngineError> {
        let ServerNews { root, ground, .. } = heard;
        let folder = || self.parts.folder.to_string();
        let other_root = root.filter(|root| *root != self.root());
        let contact = match (other_root, ground.newest) {
            (root, _) if self.is_contact_due() => root,
            (None, _) | (_, None) => other_root,
            (Some(_), Some(_)) => match self.remembered.noted {
                Noted::OfThisLog(_) => return Err(EngineError::Exchanged { folder: folder() }),
                Noted::Nothing => return Err(EngineError::SameDevice { folder: folder() }),
                // All batches there are of this directory, whose log was made anew: everything is
                // sent.
                Noted::OfOtherLog if ground.others == 0 => None,
                // Others sent batches, too: it is not known which of them are here.
                Noted::OfOtherLog => {
                    self.remembered.takes_own = true;
                    other_root
                }
            },
        };
        self.ground = ground;
        // There are no own changes to take in.
        self.remembered.takes_own &= contact.is_some() || self.phase.landing().is_some();
        self.note()?;
        self.load_rules()?;
        for group in self.parts.live.unanswered_before() {
            // The group's outcome is known now: it is among the batches that were heard of, or will
            // never count.
            self.parts.live.settled(group);
        }
        if self.identities.has_unsent() {
            self.parts.live.fold();
        }
        self.shared.conflicts(self.arrivals.conflicts.noted());
        self.worked();
        Ok(contact)
    }
}
