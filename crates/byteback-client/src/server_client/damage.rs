//! Calls about contents that the server cannot read, and their repair.

use super::calls::push_cursor;
use super::{Body, ServerClient};
use crate::error::ServerError;
use byteback_api::messages::{DamagePage, DamagedFrame, Healed, KnownDamage};
use byteback_api::routes::Route;
use byteback_api::{FolderName, query};
use byteback_model::{FileId, Seq};

impl ServerClient {
    /// The ranges of a file's contents at a moment that the server cannot read, a page of them; the
    /// server reads the contents for it.
    ///
    /// # Errors
    /// As every call. A server that is older than this call does not know it.
    pub fn damage_page(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        cursor: Option<&str>,
    ) -> Result<DamagePage, ServerError> {
        let mut parameters = vec![("at", at.to_string())];
        push_cursor(&mut parameters, cursor);
        let mut ask = self.ask(Route::Damage, &[folder.as_str(), &node.to_string()], &parameters);
        ask.timeout = self.options.commit_timeout;
        self.json(&ask)
    }

    /// Damaged frames that the server knows, as the files of a folder show them now.
    ///
    /// # Errors
    /// As [`Self::damage_page`].
    pub fn known_damage(&self, folder: &FolderName) -> Result<KnownDamage, ServerError> {
        let mut ask = self.ask(Route::KnownDamage, &[folder.as_str()], &[]);
        ask.timeout = self.options.commit_timeout;
        self.json(&ask)
    }

    /// Offers the bytes of a damaged frame that a file refers to at a moment; returns whether the
    /// server can read it now.
    ///
    /// # Errors
    /// As [`Self::damage_page`].
    pub fn heal(&self, folder: &FolderName, frame: &DamagedFrame, bytes: &[u8]) -> Result<bool, ServerError> {
        let parameters = [
            ("at", frame.at.to_string()),
            ("frame", query::encode(frame.frame.as_bytes())),
        ];
        let mut ask = self.ask(Route::Heal, &[folder.as_str(), &frame.file.to_string()], &parameters);
        ask.body = Body::Bytes {
            media: "application/octet-stream",
            bytes,
        };
        Ok(self.json::<Healed>(&ask)?.healed)
    }
}
