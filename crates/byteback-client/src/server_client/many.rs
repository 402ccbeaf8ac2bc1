//! Calls about many short files at once: a request for each would take longer than all the rest.

use super::calls::{REST_LEN_MAX, json_body, of_hex, to_json};
use super::finding::Broken;
use super::progress::AnswerBody;
use super::{Body, GoOn, ServerClient, persist};
use crate::error::ServerError;
use byteback_api::messages::{
    AlikeFiles, BUNDLED_LEN_MAX, BUNDLED_MAX, Digests, SoughtContent, WantedAlike, WantedContents, WantedDigests,
};
use byteback_api::routes::Route;
use byteback_api::{ContentsRequest, FolderName, MEDIA_BUNDLE, MEDIA_CONTENTS, MEDIA_CONTENTS_REQUEST};
use byteback_delta::ReadError;
use byteback_delta::bundle::{self, BundleError, ShortContent};
use byteback_delta::contents::{ContentsError, ContentsReader};
use byteback_model::{FileId, Seq};
use std::io::{self, BufReader, Read};
use std::sync::atomic::Ordering;
use ureq::http;

/// Bytes of an answer that are read at once.
const BUFFER_LEN: usize = 1 << 16;

/// The contents of many files, as they arrive.
pub struct ContentsStream {
    count: u32,
    state: Arriving,
}

/// The answer before and after its head came.
enum Arriving {
    Begun(Option<BufReader<AnswerBody>>),
    Read(ContentsReader<BufReader<AnswerBody>>),
}

impl std::fmt::Debug for ContentsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentsStream")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl ContentsStream {
    /// The next content, which is that of `file`: files come in the order of the request. `None` if
    /// the server left it out; it is then asked for by itself.
    ///
    /// # Errors
    /// [`ContentsError::Io`] when the connection breaks or is too slow; the others when the answer
    /// is not what was asked for. Nothing more can be read then.
    pub fn next_of(&mut self, file: FileId) -> Result<Option<ShortContent>, ContentsError> {
        if let Arriving::Begun(answer) = &mut self.state {
            let answer = answer.take().ok_or_else(ended)?;
            self.state = Arriving::Read(ContentsReader::new(answer, self.count)?);
        }
        match &mut self.state {
            Arriving::Read(reader) => reader.next_of(file.to_bytes()),
            Arriving::Begun(_) => Err(ended()),
        }
    }

    /// Reads the rest behind the contents, so that their connection can serve another request.
    pub fn finish(self) {
        if let Arriving::Read(reader) = self.state {
            // A failure here does not matter: the contents are whole.
            let _ = io::copy(&mut reader.into_inner().take(REST_LEN_MAX), &mut io::sink());
        }
    }
}

/// The error of a stream whose head could not be read before.
fn ended() -> ContentsError {
    ContentsError::Io(io::ErrorKind::UnexpectedEof.into())
}

// Everything that may be asked for fits into a bundle.
const _: () = assert!(BUNDLED_MAX <= bundle::CONTENTS_MAX && BUNDLED_LEN_MAX <= bundle::CONTENT_LEN_MAX);

impl ServerClient {
    /// Some files with the length and the beginning of each of these contents at a moment, of at
    /// most `ALIKE_MAX` contents.
    ///
    /// # Errors
    /// As every call. A server that is older than this call does not know it.
    pub fn alike(
        &self,
        folder: &FolderName,
        at: Seq,
        contents: Vec<SoughtContent>,
    ) -> Result<Vec<Vec<FileId>>, ServerError> {
        let count = contents.len();
        let bytes = to_json(&WantedAlike { at, contents })?;
        let mut ask = self.ask(Route::Alike, &[folder.as_str()], &[]);
        ask.body = json_body(&bytes);
        let files = self.json::<AlikeFiles>(&ask)?.files;
        if files.len() != count {
            let message = format!("{count} contents were asked about, {} answered", files.len());
            return Err(ServerError::protocol(&ask.name(), message));
        }
        Ok(files)
    }

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
        self.stream_of(&ask, MEDIA_BUNDLE, |stream| {
            let contents = bundle::read(stream, files.len()).map_err(|error| match error {
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

    /// The contents of many small files at a moment, of at most
    /// [`byteback_delta::contents::CONTENTS_MAX`]; `None` if the server is older than this call,
    /// which is asked only once. `go_on` is called with each transient failure, and returns whether
    /// to try again. A connection that breaks shows as an error of the stream.
    ///
    /// # Errors
    /// As every call.
    pub fn contents(
        &self,
        folder: &FolderName,
        at: Seq,
        files: &[FileId],
        go_on: GoOn<'_>,
    ) -> Result<Option<ContentsStream>, ServerError> {
        if self.lacks_contents() {
            return Ok(None);
        }
        let request = ContentsRequest {
            at,
            files: files.to_vec(),
        };
        let bytes = request.encode();
        let mut ask = self.ask(Route::Contents, &[folder.as_str()], &[]);
        ask.body = Body::Bytes {
            media: MEDIA_CONTENTS_REQUEST,
            bytes: &bytes,
        };
        let response = match persist(self.pauses(), go_on, || self.send_once(&ask)) {
            Err(error) if error.is_unknown_call() => {
                self.lacks_contents.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            response => response?,
        };
        let reported = response.headers().get(http::header::CONTENT_TYPE);
        if reported.is_none_or(|reported| reported.as_bytes() != MEDIA_CONTENTS.as_bytes()) {
            let message = format!("the answer is not of type {MEDIA_CONTENTS}");
            return Err(ServerError::protocol(&ask.name(), message));
        }
        let answer = BufReader::with_capacity(BUFFER_LEN, AnswerBody::of(response));
        Ok(Some(ContentsStream {
            count: u32::try_from(files.len()).unwrap_or(u32::MAX),
            state: Arriving::Begun(Some(answer)),
        }))
    }

    /// Whether the server is known to be older than [`Self::contents`].
    pub fn lacks_contents(&self) -> bool {
        self.lacks_contents.load(Ordering::Relaxed)
    }
}
