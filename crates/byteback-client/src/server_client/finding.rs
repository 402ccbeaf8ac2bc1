//! Calls by which a client finds out what the server has of a content or a tree of its own:
//! signatures, searches, digests. Their answers are streams of formats that mark their own end.
//! Errors are named by their [kinds](crate::ServerErrorKind).

use super::progress::AnswerBody;
use super::{Ask, Body, ServerClient, persist};
use crate::Result;
use crate::error::ServerError;
use byteback_api::directory_digests::{DirectoryDigests, LIST_LEN_MAX};
use byteback_api::routes::Route;
use byteback_api::{
    FolderName, MEDIA_CHUNK_ANSWER, MEDIA_CHUNKS, MEDIA_DELTA, MEDIA_DIRECTORY_DIGESTS, MEDIA_EXCERPT,
    MEDIA_EXCERPT_ANSWER, MEDIA_GROUP_ANSWER, MEDIA_GROUPS, MEDIA_MATCHES, MEDIA_SIGNATURE,
};
use byteback_delta::ReadError;
use byteback_delta::chunks::{ChunkList, ChunkStreamError, MatchAnswer};
use byteback_delta::excerpt::{Excerpt, ExcerptAnswer, ExcerptBytes, ExcerptError};
use byteback_delta::groups::{GroupAnswer, GroupList, GroupsError};
use byteback_delta::matches::{MatchList, MatchesError};
use byteback_delta::signature::{Signature, SignatureError, SignatureRequest};
use byteback_model::{FileId, Seq};
use std::io::{self, BufReader, Read};
use std::time::Duration;
use ureq::http;

/// Longest wait for digests of directories.
const DIGESTS_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a stream was not accepted.
pub(super) enum Broken {
    /// The stream did not come whole, and may on another try.
    Connection(io::Error),
    /// The stream breaks a rule, and would again.
    Content(String),
}

impl Broken {
    pub(super) fn cut_short() -> Self {
        Self::Connection(io::ErrorKind::UnexpectedEof.into())
    }
}

impl ServerClient {
    /// The signature of a file's contents at a moment, as `request` wants it, with at most
    /// `blocks_max` blocks. Its own parameters say what the server chose.
    ///
    /// # Errors
    /// `NotFound` if the file did not exist then, or the server is older than
    /// this call; `Protocol` for an answer that is no signature, or one of too
    /// many blocks. A server that is older than the choice of kinds refuses every request but the
    /// default one as invalid.
    pub fn signature(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        request: &SignatureRequest,
        blocks_max: u64,
    ) -> Result<Signature, ServerError> {
        let mut parameters = vec![("at", at.to_string())];
        parameters.extend(request.block_len_bytes.map(|len| ("block", len.to_string())));
        parameters.extend(request.weak_names().map(|names| ("weak", names)));
        parameters.extend(request.strong_names().map(|names| ("strong", names)));
        parameters.extend(request.strong_len_bytes.map(|len| ("strong_len", len.to_string())));
        if let Some(part) = request.part {
            parameters.extend([("from", part.start().to_string()), ("to", part.end().to_string())]);
        }
        let ask = self.ask(Route::Signature, &[folder.as_str(), &node.to_string()], &parameters);
        self.stream_of(&ask, MEDIA_SIGNATURE, |stream| {
            Signature::read(stream, blocks_max).map_err(|error| match error {
                SignatureError::Io(error) => Broken::Connection(error),
                // The head announced the length.
                SignatureError::Truncated { .. } => Broken::cut_short(),
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// The signature of an excerpt of a file's contents at a moment, in blocks of this length.
    ///
    /// # Errors
    /// `NotFound` if the file did not exist then, or the server is older than
    /// this call; `Protocol` for an answer that is not about this excerpt.
    pub fn excerpt(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        excerpt: &Excerpt,
        block_len_bytes: u32,
    ) -> Result<ExcerptAnswer, ServerError> {
        let parameters = [("at", at.to_string()), ("block", block_len_bytes.to_string())];
        let mut ask = self.ask(Route::Excerpt, &[folder.as_str(), &node.to_string()], &parameters);
        let bytes = excerpt.encode();
        ask.body = Body::Bytes {
            media: MEDIA_EXCERPT,
            bytes: &bytes,
        };
        let blocks_max = excerpt.len_bytes().div_ceil(block_len_bytes.max(1).into());
        self.stream_of(&ask, MEDIA_EXCERPT_ANSWER, |stream| {
            ExcerptAnswer::read(stream, excerpt, blocks_max).map_err(|error| match error {
                ExcerptError::Io(error) | ExcerptError::Signature(SignatureError::Io(error)) => {
                    Broken::Connection(error)
                }
                // The head announced the length.
                ExcerptError::Truncated | ExcerptError::Signature(SignatureError::Truncated { .. }) => {
                    Broken::cut_short()
                }
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// The bytes of an excerpt of a file's contents at a moment.
    ///
    /// # Errors
    /// `NotFound` if the file did not exist then, or the server is older than
    /// this call; `Protocol` for an answer that is not about this excerpt.
    pub fn excerpt_bytes(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        excerpt: &Excerpt,
    ) -> Result<ExcerptBytes, ServerError> {
        let parameters = [("at", at.to_string())];
        let mut ask = self.ask(Route::ExcerptBytes, &[folder.as_str(), &node.to_string()], &parameters);
        let bytes = excerpt.encode();
        ask.body = Body::Bytes {
            media: MEDIA_EXCERPT,
            bytes: &bytes,
        };
        self.stream_of(&ask, MEDIA_DELTA, |stream| {
            ExcerptBytes::read(stream, excerpt).map_err(|error| match error {
                ExcerptError::Io(error) | ExcerptError::Bytes(ReadError::Read { source: error, .. }) => {
                    Broken::Connection(error)
                }
                // A delta has an end of its own.
                ExcerptError::Bytes(ReadError::CutOff { .. }) => Broken::cut_short(),
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// Lets the server compare the sums of a new content's groups with those of a file's contents
    /// at a moment: it answers which are equal, and the signature of the rest, of at most
    /// `blocks_max` blocks. The server first reads contents that it never summed.
    ///
    /// # Errors
    /// `NotFound` if the file did not exist then, or the server is older than
    /// this call; `Protocol` for an answer that does not belong to this list.
    pub fn groups(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        list: &GroupList,
        blocks_max: u64,
    ) -> Result<GroupAnswer, ServerError> {
        let parameters = [("at", at.to_string())];
        let mut ask = self.ask(Route::Groups, &[folder.as_str(), &node.to_string()], &parameters);
        ask.timeout = self.options.commit_timeout;
        let mut bytes = Vec::new();
        list.write(&mut bytes).map_err(|error| {
            ServerError::protocol(&ask.name(), format!("cannot encode the group checksums: {error}"))
        })?;
        ask.body = Body::Bytes {
            media: MEDIA_GROUPS,
            bytes: &bytes,
        };
        self.stream_of(&ask, MEDIA_GROUP_ANSWER, |stream| {
            GroupAnswer::read(stream, list.kind(), list.content_len_bytes(), blocks_max).map_err(|error| match error {
                GroupsError::Io(error) | GroupsError::Signature(SignatureError::Io(error)) => Broken::Connection(error),
                // The head announced the length.
                GroupsError::Truncated | GroupsError::Signature(SignatureError::Truncated { .. }) => {
                    Broken::cut_short()
                }
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// Lets the server look for the blocks of a new content in a file's contents at a moment.
    /// `signature` is the stream of the new content's signature: `new_len_bytes` of content in
    /// blocks of `block_len_bytes`. The server reads through its contents before it answers.
    ///
    /// # Errors
    /// `NotFound` if the file did not exist then, or the server is older than
    /// this call; `Protocol` for an answer that is no list of matches of this
    /// content.
    pub fn matches(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        signature: &[u8],
        new_len_bytes: u64,
        block_len_bytes: u32,
    ) -> Result<MatchList, ServerError> {
        let parameters = [("at", at.to_string())];
        let mut ask = self.ask(Route::Matches, &[folder.as_str(), &node.to_string()], &parameters);
        ask.timeout = self.options.commit_timeout;
        ask.body = Body::Bytes {
            media: MEDIA_SIGNATURE,
            bytes: signature,
        };
        self.stream_of(&ask, MEDIA_MATCHES, |stream| {
            MatchList::read(stream, new_len_bytes, block_len_bytes).map_err(|error| match error {
                MatchesError::Io(error) => Broken::Connection(error),
                MatchesError::Truncated { .. } => Broken::cut_short(),
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// Lets the server look for the chunks of a new content in a file's contents at a moment; with
    /// `has_unproven`, long runs come without strong checksums, for callers that prove the content
    /// as a whole. The server reads through its contents before it answers.
    ///
    /// # Errors
    /// As [`Self::matches`].
    pub fn chunks(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        list: &ChunkList,
        has_unproven: bool,
    ) -> Result<MatchAnswer, ServerError> {
        let mut parameters = vec![("at", at.to_string())];
        if has_unproven {
            parameters.push(("unproven", "1".to_owned()));
        }
        let mut ask = self.ask(Route::Chunks, &[folder.as_str(), &node.to_string()], &parameters);
        ask.timeout = self.options.commit_timeout;
        let mut bytes = Vec::new();
        list.write_to(&mut bytes).map_err(|error| {
            ServerError::protocol(&ask.name(), format!("cannot encode the list of chunks: {error}"))
        })?;
        ask.body = Body::Bytes {
            media: MEDIA_CHUNKS,
            bytes: &bytes,
        };
        self.stream_of(&ask, MEDIA_CHUNK_ANSWER, |stream| {
            MatchAnswer::read(stream, list).map_err(|error| match error {
                ChunkStreamError::Io { source, .. } => Broken::Connection(source),
                ChunkStreamError::Truncated { .. } => Broken::cut_short(),
                error => Broken::Content(error.to_string()),
            })
        })
    }

    /// The digests of the directories from a node on at a moment; none if there are more than
    /// `names_max` names. As this only spares a listing, it is not tried again, and waited for no
    /// longer than [`DIGESTS_TIMEOUT`].
    ///
    /// # Errors
    /// As every call; `NotFound` if there is no such node, or the server is
    /// older than this call.
    pub fn directory_digests(
        &self,
        folder: &FolderName,
        node: FileId,
        at: Seq,
        names_max: u64,
    ) -> Result<DirectoryDigests, ServerError> {
        let parameters = [("at", at.to_string()), ("names_max", names_max.to_string())];
        let mut ask = self.ask(
            Route::DirectoryDigests,
            &[folder.as_str(), &node.to_string()],
            &parameters,
        );
        ask.timeout = self.options.commit_timeout.min(DIGESTS_TIMEOUT);
        self.stream_once(&ask, MEDIA_DIRECTORY_DIGESTS, |stream| {
            let mut bytes = Vec::new();
            let read = stream.take(LIST_LEN_MAX).read_to_end(&mut bytes);
            read.map_err(Broken::Connection)?;
            DirectoryDigests::decode(&bytes).map_err(|error| Broken::Content(error.to_string()))
        })
    }

    /// Sends a request, and reads the stream that answers it; a broken stream is asked for again.
    pub(super) fn stream_of<T>(
        &self,
        ask: &Ask<'_>,
        media: &str,
        read: impl Fn(&mut BufReader<AnswerBody>) -> Result<T, Broken>,
    ) -> Result<T, ServerError> {
        persist(self.pauses(), &|_| true, || self.stream_once(ask, media, &read))
    }

    /// Sends a request once, and reads the stream that answers it.
    fn stream_once<T>(
        &self,
        ask: &Ask<'_>,
        media: &str,
        read: impl Fn(&mut BufReader<AnswerBody>) -> Result<T, Broken>,
    ) -> Result<T, ServerError> {
        let response = self.send_once(ask)?;
        let reported = response.headers().get(http::header::CONTENT_TYPE);
        if reported.is_none_or(|reported| reported.as_bytes() != media.as_bytes()) {
            return Err(ServerError::protocol(
                &ask.name(),
                format!("the answer is not of type {media}"),
            ));
        }
        let mut stream = BufReader::with_capacity(1 << 16, AnswerBody::of(response));
        let answer = read(&mut stream).map_err(|broken| match broken {
            Broken::Connection(error) => ServerError::of_transport(&ask.name(), error.into()),
            Broken::Content(what) => ServerError::protocol(&ask.name(), what),
        })?;
        // Formats that mark their own end are not read beyond it, but a connection is used again
        // only once the answer's end was seen. If it does not end here, nothing is lost.
        let _ = stream.read(&mut [0]);
        Ok(answer)
    }
}
