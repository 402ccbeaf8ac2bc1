//! Calls about many short files at once: a request for each would take longer than all the rest.

use super::ServerClient;
use super::calls::{Broken, json_body, of_hex, to_json};
use crate::error::ServerError;
use byteback_api::messages::{BUNDLED_LEN_MAX, BUNDLED_MAX, Digests, WantedContents, WantedDigests};
use byteback_api::routes::Route;
use byteback_api::{FolderName, MEDIA_BUNDLE};
use byteback_delta::ReadError;
use byteback_delta::bundle::{self, BundleError, ShortContent};
use byteback_model::{FileId, Seq};

// Everything that may be asked for fits into a bundle.
const _: () = assert!(BUNDLED_MAX <= bundle::CONTENTS_MAX && BUNDLED_LEN_MAX <= bundle::CONTENT_LEN_MAX);

impl ServerClient {
    /// The digests of short contents at a moment, of at most `DIGESTS_MAX` files; `None` for those
    /// that the server does not return.
    ///
    /// # Errors
    /// As every call. A server that is older than this call does not know it.
    pub fn digests(
        &self,
        folder: &FolderName,
        at: Seq,
        files: &[FileId],
    ) -> Result<Vec<Option<[u8; 32]>>, ServerError> {
        let bytes = to_json(&WantedDigests {
            at,
            files: files.to_vec(),
        })?;
        let mut ask = self.ask(Route::Digests, &[folder.as_str()], &[]);
        ask.body = json_body(&bytes);
        ask.timeout = self.options.commit_timeout;
        let reported = self.json::<Digests>(&ask)?.digests;
        if reported.len() != files.len() {
            let message = format!("{} digests were requested, {} came", files.len(), reported.len());
            return Err(ServerError::protocol(&ask.name(), message));
        }
        Ok(reported.into_iter().map(|text| of_hex(&text?)).collect())
    }

    /// Short contents at a moment, of at most `BUNDLED_MAX` files; `None` for those that the server
    /// does not return: each of them is then asked for by itself.
    ///
    /// # Errors
    /// As every call.
    pub fn short_contents(
        &self,
        folder: &FolderName,
        at: Seq,
        files: &[FileId],
    ) -> Result<Vec<Option<ShortContent>>, ServerError> {
        let bytes = to_json(&WantedContents {
            at,
            files: files.to_vec(),
        })?;
        let mut ask = self.ask(Route::Bundle, &[folder.as_str()], &[]);
        ask.body = json_body(&bytes);
        ask.timeout = self.options.commit_timeout;
        self.stream_of(&ask, MEDIA_BUNDLE, |mut stream| {
            let contents = bundle::read(&mut stream, files.len()).map_err(|error| match error {
                BundleError::Io(error) | BundleError::Contents(ReadError::Read { source: error, .. }) => {
                    Broken::Connection(error)
                }
                BundleError::Contents(ReadError::CutOff { .. }) => Broken::cut_short(),
                error => Broken::Content(error.to_string()),
            })?;
            match contents.len() == files.len() {
                true => Ok(contents),
                false => Err(Broken::Content("it has fewer contents than were requested".to_owned())),
            }
        })
    }
}
