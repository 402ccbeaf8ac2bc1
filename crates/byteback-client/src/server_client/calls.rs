//! The calls of the API, one method each.

use super::progress::AnswerBody;
use super::{Body, GoOn, ServerClient, persist};
use crate::Result;
use crate::error::{ServerError, ServerErrorKind};
use byteback_api::batch::{MAGIC, packed};
use byteback_api::messages::{
    BatchEvent, BatchStatus, ChangesPage, CreateSnapshot, DiffPage, FolderInfo, FolderList, Health, Moment, PartStaged,
    SnapshotPage, TreePage, TreeTotals, VerifyEvent, VersionsPage,
};
use byteback_api::problem::Code;
use byteback_api::routes::Route;
use byteback_api::{FolderName, HEADER_PARTS, HEADER_PARTS_DIGEST, MEDIA_BATCH, MEDIA_DELTA, query};
use byteback_model::{BatchApplied, FileId, NodeInfo, Seq, Snapshot, SnapshotLabel};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::Ordering;
use ureq::http;

/// Longer pieces of a batch are packed by themselves, through a longer window than a line has.
const LINE_PIECE_LEN_MAX: usize = 16 * 1024;

/// A directory of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePlace<'a> {
    /// The directory of this identity.
    Node(FileId),
    /// The directory at this path below the root; empty for the root itself.
    Path(&'a [u8]),
}

impl ServerClient {
    /// Whether the server is alive, and its version.
    ///
    /// # Errors
    /// If it is not.
    pub fn health(&self) -> Result<Health, ServerError> {
        self.json(&self.ask(Route::Health, &[], &[]))
    }

    /// All folders that the device may see.
    ///
    /// # Errors
    /// As every call: see [`ServerErrorKind`].
    pub fn folders(&self) -> Result<FolderList, ServerError> {
        self.json(&self.ask(Route::Folders, &[], &[]))
    }

    /// Creates a folder, or describes it if it exists.
    ///
    /// # Errors
    /// As every call.
    pub fn create_folder(&self, folder: &FolderName) -> Result<FolderInfo, ServerError> {
        self.json(&self.ask(Route::FolderCreate, &[folder.as_str()], &[]))
    }

    /// Describes a folder.
    ///
    /// # Errors
    /// [`ServerErrorKind::NotFound`] if there is none of this name.
    pub fn folder(&self, folder: &FolderName) -> Result<FolderInfo, ServerError> {
        self.json(&self.ask(Route::Folder, &[folder.as_str()], &[]))
    }

    /// Stages a part of a batch, replacing an earlier one of this number. `go_on` is called with
    /// each transient failure, and returns whether to try again.
    ///
    /// # Errors
    /// As every call.
    pub fn put_part(
        &self,
        folder: &FolderName,
        counter: u64,
        part: u32,
        bytes: &[u8],
        go_on: GoOn<'_>,
    ) -> Result<PartStaged, ServerError> {
        debug_assert!(bytes.starts_with(&MAGIC), "a part is a piece of a batch stream");
        let mut ask = self.ask(
            Route::PartPut,
            &[folder.as_str(), &counter.to_string(), &part.to_string()],
            &[],
        );
        ask.body = Body::Bytes {
            media: MEDIA_BATCH,
            bytes,
        };
        persist(self.transfer_pauses(), go_on, || {
            let started_ns = self.clock().monotonic_ns();
            let staged = self
                .send_for_json(&ask)
                .map_err(|error| self.refusal_of(folder, error))?;
            let ns = self.clock().monotonic_ns().saturating_sub(started_ns);
            self.link.sent(u64::try_from(bytes.len()).unwrap_or(u64::MAX), ns);
            Ok(staged)
        })
    }

    /// A part in fewer bytes; `None` if it would not become shorter, or the server has refused such
    /// parts before.
    #[must_use]
    pub fn packed_part(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self.refuses_packed_parts.load(Ordering::Relaxed) {
            true => None,
            false => packed(bytes),
        }
    }

    /// Packs no part any more if this error about a packed one says that the server does not read
    /// those; returns whether it does.
    pub fn stop_packing_if_refused(&self, error: &ServerError) -> bool {
        let is_refused = error
            .problem
            .as_ref()
            .is_some_and(|problem| problem.code == Code::InvalidBody);
        self.refuses_packed_parts.fetch_or(is_refused, Ordering::Relaxed);
        is_refused
    }

    /// Why the server broke a connection off while it was sent a long body. A server that refuses
    /// does not wait for the rest, and its answer may be lost with the connection; asked shortly,
    /// it says so again.
    fn refusal_of(&self, folder: &FolderName, error: ServerError) -> ServerError {
        if error.kind != ServerErrorKind::Unreachable || !error.is_broken_off() {
            return error;
        }
        match self.send_once(&self.ask(Route::Folder, &[folder.as_str()], &[])) {
            Err(refused) if matches!(refused.kind, ServerErrorKind::WrongToken | ServerErrorKind::Forbidden) => refused,
            _ => error,
        }
    }

    /// Commits a batch with this number of staged pieces, and this digest of their digests; `bytes`
    /// is the last piece.
    ///
    /// When the connection fails, the server is asked whether it applied the batch before it is
    /// sent again; `go_on` is called with each such failure, and returns whether to try again.
    ///
    /// # Errors
    /// As every call. [`ServerErrorKind::Unreachable`], [`ServerErrorKind::Busy`],
    /// [`ServerErrorKind::Internal`], [`ServerErrorKind::Protocol`] and [`ServerErrorKind::Tls`]
    /// leave it unknown whether the batch was applied; all other kinds say that it was not. See
    /// [`ServerClient::commit_outcome_is_known`].
    pub fn commit(
        &self,
        folder: &FolderName,
        counter: u64,
        parts: (u32, Option<&str>),
        bytes: &[u8],
        go_on: GoOn<'_>,
    ) -> Result<BatchApplied, ServerError> {
        // On a line, a short piece is packed with the pieces before it.
        let goes_on_line = bytes.len() <= LINE_PIECE_LEN_MAX && self.has_line();
        if !goes_on_line
            && !self.refuses_packed.load(Ordering::Relaxed)
            && let Some(packed) = packed(bytes)
        {
            match self.commit_piece(folder, counter, parts, &packed, go_on) {
                // A server from before packed pieces says so here; any other refuses the same once
                // more.
                Err(error)
                    if error
                        .problem
                        .as_ref()
                        .is_some_and(|problem| problem.code == Code::InvalidBody) => {}
                done => return done,
            }
            let done = self.commit_piece(folder, counter, parts, bytes, go_on);
            self.refuses_packed.fetch_or(done.is_ok(), Ordering::Relaxed);
            return done;
        }
        self.commit_piece(folder, counter, parts, bytes, go_on)
    }

    fn commit_piece(
        &self,
        folder: &FolderName,
        counter: u64,
        parts: (u32, Option<&str>),
        bytes: &[u8],
        go_on: GoOn<'_>,
    ) -> Result<BatchApplied, ServerError> {
        let mut ask = self.ask(Route::BatchCommit, &[folder.as_str(), &counter.to_string()], &[]);
        // The route implies the media type; beside a small change each header more would count.
        ask.body = Body::BatchPiece(bytes);
        let (parts, digest) = parts;
        if parts > 0 {
            ask.headers.push((HEADER_PARTS, parts.to_string()));
            ask.headers
                .extend(digest.map(|digest| (HEADER_PARTS_DIGEST, digest.to_owned())));
        }
        ask.timeout = self.options.commit_timeout;
        let mut pauses = self.transfer_pauses();
        loop {
            let error = match self.send_for_json::<BatchApplied>(&ask) {
                Ok(applied) => return Ok(applied),
                Err(error) if Self::commit_outcome_is_known(error.kind) => return Err(error),
                Err(error) => error,
            };
            if !go_on(&error) || !pauses.rest() {
                return Err(error);
            }
            match self.batch_status(folder, counter) {
                Ok(BatchStatus {
                    applied: Some(applied), ..
                }) => return Ok(applied),
                // Sending it again would not help.
                Ok(_) if !error.kind.is_transient() => return Err(error),
                // Not applied, or still at it; sent twice, it is applied once.
                Ok(_) => {}
                // Gone: the next attempt shows whether for good.
                Err(asking) if asking.kind.is_transient() => {}
                Err(_) => return Err(error),
            }
        }
    }

    /// Whether a failed commit of this kind was certainly not applied.
    #[must_use]
    pub fn commit_outcome_is_known(kind: ServerErrorKind) -> bool {
        !matches!(
            kind,
            ServerErrorKind::Unreachable
                | ServerErrorKind::Busy
                | ServerErrorKind::Internal
                | ServerErrorKind::Protocol
                // A record that does not decrypt may be the answer.
                | ServerErrorKind::Tls
        )
    }

    /// The status of this device's batch.
    ///
    /// # Errors
    /// As every call.
    pub fn batch_status(&self, folder: &FolderName, counter: u64) -> Result<BatchStatus, ServerError> {
        self.json(&self.ask(Route::BatchStatus, &[folder.as_str(), &counter.to_string()], &[]))
    }

    /// Like [`Self::batch_status`], with the digests of the staged parts.
    ///
    /// # Errors
    /// As every call.
    pub fn staged_parts(&self, folder: &FolderName, counter: u64) -> Result<BatchStatus, ServerError> {
        let parameters = [("digests", "1".to_owned())];
        self.json(&self.ask(
            Route::BatchStatus,
            &[folder.as_str(), &counter.to_string()],
            &parameters,
        ))
    }

    /// Gives up this device's batch, unless it is applied, and its staged parts.
    ///
    /// # Errors
    /// As every call; the staged parts then expire.
    pub fn abandon(&self, folder: &FolderName, counter: u64) -> Result<BatchStatus, ServerError> {
        self.json(&self.ask(Route::BatchAbandon, &[folder.as_str(), &counter.to_string()], &[]))
    }

    /// A page of snapshots, oldest first.
    ///
    /// # Errors
    /// As every call.
    pub fn snapshot_page(&self, folder: &FolderName, cursor: Option<&str>) -> Result<SnapshotPage, ServerError> {
        let mut parameters = Vec::new();
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Snapshots, &[folder.as_str()], &parameters))
    }

    /// Names a sequence number.
    ///
    /// # Errors
    /// As every call. When an answer gets lost and the request is repeated, there may be two names
    /// for the same.
    pub fn create_snapshot(
        &self,
        folder: &FolderName,
        seq: Option<Seq>,
        label: &SnapshotLabel,
    ) -> Result<Snapshot, ServerError> {
        let bytes = to_json(&CreateSnapshot {
            seq,
            label: label.clone(),
        })?;
        let mut ask = self.ask(Route::SnapshotCreate, &[folder.as_str()], &[]);
        ask.body = json_body(&bytes);
        self.json(&ask)
    }

    /// A directory at a moment, a page of it.
    ///
    /// # Errors
    /// [`ServerErrorKind::NotFound`] if there is nothing at this place.
    pub fn tree_page(
        &self,
        folder: &FolderName,
        at: Seq,
        place: TreePlace<'_>,
        cursor: Option<&str>,
    ) -> Result<TreePage, ServerError> {
        self.tree_page_of(folder, at, place, cursor, None)
    }

    /// The node at a place of a tree, with at most one of its entries.
    ///
    /// # Errors
    /// As [`Self::tree_page`].
    pub fn tree_node(&self, folder: &FolderName, at: Seq, place: TreePlace<'_>) -> Result<TreePage, ServerError> {
        self.tree_page_of(folder, at, place, None, Some(1))
    }

    fn tree_page_of(
        &self,
        folder: &FolderName,
        at: Seq,
        place: TreePlace<'_>,
        cursor: Option<&str>,
        limit: Option<u32>,
    ) -> Result<TreePage, ServerError> {
        let mut parameters = vec![("at", at.to_string())];
        parameters.extend(limit.map(|limit| ("limit", limit.to_string())));
        match place {
            TreePlace::Node(id) => parameters.push(("parent", id.to_string())),
            TreePlace::Path([]) => {}
            TreePlace::Path(path) => parameters.push(("path", query::encode(path))),
        }
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Tree, &[folder.as_str()], &parameters))
    }

    /// A node at a moment.
    ///
    /// # Errors
    /// [`ServerErrorKind::NotFound`] if it did not exist then.
    pub fn node(&self, folder: &FolderName, node: FileId, at: Seq) -> Result<NodeInfo, ServerError> {
        let parameters = [("at", at.to_string())];
        self.json(&self.ask(Route::Node, &[folder.as_str(), &node.to_string()], &parameters))
    }

    /// Like [`Self::node`], with its names.
    ///
    /// # Errors
    /// As [`Self::node`]. A server that is older than this parameter refuses it as invalid.
    pub fn node_with_places(&self, folder: &FolderName, node: FileId, at: Seq) -> Result<NodeInfo, ServerError> {
        let parameters = [("at", at.to_string()), ("places", "1".to_owned())];
        self.json(&self.ask(Route::Node, &[folder.as_str(), &node.to_string()], &parameters))
    }

    /// The contents of a file at a moment as a delta over nothing, in which holes are zeros; only
    /// from offset `from` on, if that is not 0. `go_on` as in [`Self::put_part`]. A connection that
    /// breaks shows as an error of the reader.
    ///
    /// # Errors
    /// [`ServerErrorKind::NotFound`] if the file did not exist then; [`ServerErrorKind::Damaged`].
    pub fn content(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        from: u64,
        go_on: GoOn<'_>,
    ) -> Result<ContentReader, ServerError> {
        self.content_range(folder, node, at, from, None, go_on)
    }

    /// Like [`Self::content`], only the bytes from `from` to before `to`, if given; the range is
    /// not empty.
    ///
    /// # Errors
    /// As [`Self::content`].
    pub fn content_range(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        from: u64,
        to: Option<u64>,
        go_on: GoOn<'_>,
    ) -> Result<ContentReader, ServerError> {
        let range = match to {
            None => (from > 0).then(|| format!("bytes={from}-")),
            Some(to) => Some(format!("bytes={from}-{}", to.saturating_sub(1))),
        };
        let parameters = [("at", at.to_string())];
        let mut ask = self.ask(Route::Content, &[folder.as_str(), &node.to_string()], &parameters);
        ask.headers.push(("accept", MEDIA_DELTA.to_owned()));
        let is_part = range.is_some();
        ask.headers.extend(range.map(|range| ("range", range)));
        let response = persist(self.transfer_pauses(), go_on, || self.send_once(&ask))?;
        if is_part && response.status() != http::StatusCode::PARTIAL_CONTENT {
            return Err(ServerError::protocol(
                &ask.name(),
                "the rest of the contents was requested, but the answer is not partial content",
            ));
        }
        let media = response.headers().get(http::header::CONTENT_TYPE);
        if media.is_none_or(|media| media.as_bytes() != MEDIA_DELTA.as_bytes()) {
            return Err(ServerError::protocol(
                &ask.name(),
                "the contents came with the wrong media type",
            ));
        }
        Ok(ContentReader(BufReader::with_capacity(
            1 << 18,
            AnswerBody::of(response),
        )))
    }

    /// The ranges of a file that were written between two moments, a page of them.
    ///
    /// # Errors
    /// As every call.
    pub fn changes_page(
        &self,
        folder: &FolderName,
        node: FileId,
        from: Seq,
        to: Seq,
        cursor: Option<&str>,
    ) -> Result<ChangesPage, ServerError> {
        let mut parameters = vec![("from", from.to_string()), ("to", to.to_string())];
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Changes, &[folder.as_str(), &node.to_string()], &parameters))
    }

    /// The differences between two moments, a page of them.
    ///
    /// # Errors
    /// As every call.
    pub fn diff_page(
        &self,
        folder: &FolderName,
        from: Seq,
        to: Seq,
        cursor: Option<&str>,
    ) -> Result<DiffPage, ServerError> {
        let mut parameters = vec![("from", from.to_string()), ("to", to.to_string())];
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Diff, &[folder.as_str()], &parameters))
    }

    /// Like [`Self::diff_page`], only changes by other devices: each name and node is compared with
    /// its state after this device's own newest change of it, if there is one after `from`.
    ///
    /// # Errors
    /// As every call. A server that is older than this parameter refuses it as invalid.
    pub fn others_page(
        &self,
        folder: &FolderName,
        from: Seq,
        to: Seq,
        cursor: Option<&str>,
    ) -> Result<DiffPage, ServerError> {
        let mut parameters = vec![
            ("from", from.to_string()),
            ("to", to.to_string()),
            ("others", "1".to_owned()),
        ];
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Diff, &[folder.as_str()], &parameters))
    }

    /// Counts the nodes and bytes below a node at a moment.
    ///
    /// # Errors
    /// As every call; [`ServerErrorKind::NotFound`] if there is no such node.
    pub fn totals(&self, folder: &FolderName, node: FileId, at: Seq) -> Result<TreeTotals, ServerError> {
        let mut ask = self.ask(
            Route::Totals,
            &[folder.as_str(), &node.to_string()],
            &[("at", at.to_string())],
        );
        ask.timeout = self.options.commit_timeout;
        self.json(&ask)
    }

    /// The nodes that stood at a path, newest first, a page of them.
    ///
    /// # Errors
    /// As every call.
    pub fn versions_page(
        &self,
        folder: &FolderName,
        path: &[u8],
        cursor: Option<&str>,
    ) -> Result<VersionsPage, ServerError> {
        let mut parameters = vec![("path", query::encode(path))];
        push_cursor(&mut parameters, cursor);
        self.json(&self.ask(Route::Versions, &[folder.as_str()], &parameters))
    }

    /// The newest batch that was made at `time_ns` (since the Unix epoch) or earlier; `None` if
    /// there is none.
    ///
    /// # Errors
    /// As every call.
    pub fn moment(&self, folder: &FolderName, time_ns: i64) -> Result<Option<BatchEvent>, ServerError> {
        let parameters = [("time_ns", time_ns.to_string())];
        let moment: Moment = self.json(&self.ask(Route::Moment, &[folder.as_str()], &parameters))?;
        Ok(moment.batch)
    }

    /// Lets the server re-read everything that a moment needs.
    ///
    /// # Errors
    /// As every call.
    pub fn verify_stream(&self, folder: &FolderName, at: Seq) -> Result<VerifyStream, ServerError> {
        let parameters = [("at", at.to_string())];
        let mut ask = self.ask(Route::Verify, &[folder.as_str()], &parameters);
        ask.timeout = self.options.commit_timeout;
        let response = self.send(&ask)?;
        Ok(VerifyStream {
            request: ask.name(),
            lines: BufReader::new(Box::new(response.into_body().into_reader())),
        })
    }
}

/// The delta stream of a file's contents.
pub struct ContentReader(BufReader<AnswerBody>);

/// Longest line of a verification, in bytes: paths can be longer than the system's calls take.
const LINE_LEN_MAX: u64 = 1024 * 1024;

/// Most bytes that are read behind the end of the content, for the sake of the connection.
pub(super) const REST_LEN_MAX: u64 = 64 << 10;

impl ContentReader {
    /// Reads the rest behind the end of the content: a connection whose answer was not read to its
    /// end serves no other request, and a new one costs more than a small file.
    pub fn finish(self) {
        // A failure here does not matter: the content is whole.
        let _ = io::copy(&mut self.0.take(REST_LEN_MAX), &mut io::sink());
    }
}

impl std::fmt::Debug for ContentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentReader").finish_non_exhaustive()
    }
}

impl Read for ContentReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

/// The events of a verification, as they come.
pub struct VerifyStream {
    request: String,
    lines: BufReader<Box<dyn Read + Send>>,
}

impl std::fmt::Debug for VerifyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyStream").finish_non_exhaustive()
    }
}

impl VerifyStream {
    /// The next event, `None` at the end of the stream.
    ///
    /// # Errors
    /// [`ServerErrorKind::Unreachable`] when the connection breaks, [`ServerErrorKind::Protocol`]
    /// for a line that is no event.
    pub fn next_event(&mut self) -> Result<Option<VerifyEvent>, ServerError> {
        let mut line = Vec::new();
        let read = (&mut self.lines)
            .take(LINE_LEN_MAX)
            .read_until(b'\n', &mut line)
            .map_err(|error| ServerError::of_transport(&self.request, error.into()))?;
        if read == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            ServerError::protocol(&self.request, format!("cannot decode a line of the answer: {error}"))
        })
    }
}

/// Parses a digest in hexadecimal.
pub fn of_hex(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

pub(super) fn json_body(bytes: &[u8]) -> Body<'_> {
    Body::Bytes {
        media: "application/json",
        bytes,
    }
}

pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, ServerError> {
    serde_json::to_vec(value)
        .map_err(|error| ServerError::protocol("a request", format!("cannot encode it as JSON: {error}")))
}

pub(super) fn push_cursor(parameters: &mut Vec<(&str, String)>, cursor: Option<&str>) {
    if let Some(cursor) = cursor {
        parameters.push(("cursor", query::encode(cursor.as_bytes())));
    }
}
