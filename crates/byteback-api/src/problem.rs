//! Errors as `application/problem+json` (RFC 9457), each with a stable code and the next step.
//!
//! A client decides by [`Code`], never by the text. New codes may be added at any time: readers map
//! unknown ones to [`Code::Unknown`] and go by the HTTP status.

use byteback_model::{ByteString, FileId, Seq};
use serde::{Deserialize, Serialize};

/// Media type of a [`Problem`].
pub const MEDIA_PROBLEM: &str = "application/problem+json";

/// The kind of a failure; stable across versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 401: no token, or one the server does not know.
    Unauthorized,
    /// 401: the token belongs to a revoked device.
    DeviceRevoked,
    /// 403: the device has no grant for the request.
    Forbidden,
    /// 403: this server did not issue the one-time join token.
    JoinTokenInvalid,
    /// 403: the one-time join token was used by another device.
    JoinTokenUsed,
    /// 403: the one-time join token has expired.
    JoinTokenExpired,
    /// 403: the one-time join token was withdrawn.
    JoinTokenWithdrawn,
    /// 404: no such route.
    RouteNotFound,
    /// 405: the route exists, but not with this method.
    MethodNotAllowed,
    /// 404: no such device.
    DeviceNotFound,
    /// 404: no such unused invitation.
    InvitationNotFound,
    /// 404: no folder of this name.
    FolderNotFound,
    /// 404: no such snapshot in this folder.
    SnapshotNotFound,
    /// 404: no such node, path or version at this sequence number.
    NodeNotFound,
    /// 400: a parameter of the URL or a header is malformed.
    InvalidParameter,
    /// 400: a body is malformed: cut short, wrong checksum, wrong order, not JSON.
    InvalidBody,
    /// 422: a batch is well-formed but contradicts itself or the folder.
    InvalidBatch,
    /// 409: another batch has changed the same nodes or names since the batch's `base_seq`.
    Conflict,
    /// 409: the batch that this one follows is not its device's newest in the folder.
    OutOfOrder,
    /// 422: the contents that the batch produces for a file do not match its proof.
    ContentMismatch,
    /// 409: the parts named by the commit are not all staged; stage them again.
    PartsMissing,
    /// 413: a body is larger than the server's limit.
    BodyTooLarge,
    /// 413: a batch exceeds a limit on parts or records.
    BatchTooLarge,
    /// 416: the requested range lies outside the contents.
    RangeNotSatisfiable,
    /// 426: the server speaks TLS, and the request came without.
    TlsRequired,
    /// 408: the request's body arrived too slowly.
    RequestTimeout,
    /// 503: the server is stopping or is handling too many requests.
    Unavailable,
    /// 507: the server's disk is full. Nothing was lost; the next try continues.
    StorageFull,
    /// 500: stored bytes are damaged (the detail names segment and offset).
    StorageDamaged,
    /// 500: any other failure inside the server.
    Internal,
    /// This reader does not know the code.
    #[serde(other)]
    Unknown,
}

impl Code {
    /// Every code that a server sends.
    pub const ALL: [Code; 30] = [
        Code::Unauthorized,
        Code::DeviceRevoked,
        Code::Forbidden,
        Code::JoinTokenInvalid,
        Code::JoinTokenUsed,
        Code::JoinTokenExpired,
        Code::JoinTokenWithdrawn,
        Code::RouteNotFound,
        Code::MethodNotAllowed,
        Code::DeviceNotFound,
        Code::InvitationNotFound,
        Code::FolderNotFound,
        Code::SnapshotNotFound,
        Code::NodeNotFound,
        Code::InvalidParameter,
        Code::InvalidBody,
        Code::InvalidBatch,
        Code::Conflict,
        Code::OutOfOrder,
        Code::ContentMismatch,
        Code::PartsMissing,
        Code::BodyTooLarge,
        Code::BatchTooLarge,
        Code::RangeNotSatisfiable,
        Code::TlsRequired,
        Code::RequestTimeout,
        Code::Unavailable,
        Code::StorageFull,
        Code::StorageDamaged,
        Code::Internal,
    ];

    /// HTTP status, stable name, title and next step.
    fn facts(self) -> (u16, &'static str, &'static str, &'static str) {
        match self {
            Code::Unauthorized => (
                401,
                "unauthorized",
                "The request carries no valid token",
                "Send 'Authorization: Bearer TOKEN'; get a token with a code (byteback invite, byteback join).",
            ),
            Code::DeviceRevoked => (
                401,
                "device_revoked",
                "The device was revoked",
                "If this was a mistake, join again with a new code (byteback invite).",
            ),
            Code::Forbidden => (
                403,
                "forbidden",
                "The device has no access to this",
                "Ask for a code for the folder (byteback invite FOLDER) and join with it.",
            ),
            Code::JoinTokenInvalid => (
                403,
                "join_token_invalid",
                "The code is not from this server",
                "Ask for a new code (byteback invite) from this server.",
            ),
            Code::JoinTokenUsed => (
                403,
                "join_token_used",
                "The code was already used",
                "Each code works once; ask for a new one (byteback invite). If you did not use it, see who did (byteback devices).",
            ),
            Code::JoinTokenExpired => (
                403,
                "join_token_expired",
                "The code has expired",
                "Ask for a new one (byteback invite).",
            ),
            Code::JoinTokenWithdrawn => (
                403,
                "join_token_withdrawn",
                "The code was withdrawn",
                "Ask for a new one (byteback invite).",
            ),
            Code::RouteNotFound => (
                404,
                "route_not_found",
                "No such address on this server",
                "Compare the address with /openapi.json.",
            ),
            Code::MethodNotAllowed => (
                405,
                "method_not_allowed",
                "This address does not support this method",
                "Compare the method with /openapi.json.",
            ),
            Code::DeviceNotFound => (
                404,
                "device_not_found",
                "No such device",
                "List them with GET /v1/devices.",
            ),
            Code::InvitationNotFound => (
                404,
                "invitation_not_found",
                "No such unused invitation",
                "List them with GET /v1/devices. If it was used, revoke the device.",
            ),
            Code::FolderNotFound => (
                404,
                "folder_not_found",
                "No folder with this name",
                "Create it with PUT, or list the folders with GET /v1/folders.",
            ),
            Code::SnapshotNotFound => (
                404,
                "snapshot_not_found",
                "No such snapshot in this folder",
                "List the snapshots of the folder.",
            ),
            Code::NodeNotFound => (
                404,
                "node_not_found",
                "Nothing exists there at this sequence number",
                "Check the path or id and the 'at' parameter.",
            ),
            Code::InvalidParameter => (
                400,
                "invalid_parameter",
                "A parameter or header is malformed",
                "Correct it as described in the detail.",
            ),
            Code::InvalidBody => (
                400,
                "invalid_body",
                "The body is malformed",
                "Send it again; if it fails again, the sender and the server disagree on the format.",
            ),
            Code::InvalidBatch => (
                422,
                "invalid_batch",
                "The batch contradicts itself or the folder",
                "Nothing was applied. Rebuild the batch from the folder's current state.",
            ),
            Code::Conflict => (
                409,
                "conflict",
                "Another device changed the same files first",
                "Nothing was applied. Fetch the changes since base_seq, then send a new batch on top.",
            ),
            Code::OutOfOrder => (
                409,
                "out_of_order",
                "The batch does not follow the newest batch of its device",
                "Nothing was applied. Ask for the state of the batch that it follows, then send from there on, in order.",
            ),
            Code::ContentMismatch => (
                422,
                "content_mismatch",
                "The resulting contents would differ from the sender's",
                "Nothing was applied. Send these files without copies.",
            ),
            Code::PartsMissing => (
                409,
                "parts_missing",
                "Not all parts of the batch are staged",
                "Send the missing parts again, then commit.",
            ),
            Code::BodyTooLarge => (
                413,
                "body_too_large",
                "The body is larger than this server accepts",
                "Split the batch into parts, or search for longer blocks or chunks.",
            ),
            Code::BatchTooLarge => (
                413,
                "batch_too_large",
                "The batch exceeds a limit of this server",
                "Split it into several batches.",
            ),
            Code::RangeNotSatisfiable => (
                416,
                "range_not_satisfiable",
                "The range lies outside the contents",
                "Request a range within the size given in Content-Range.",
            ),
            Code::TlsRequired => (
                426,
                "tls_required",
                "This server speaks TLS",
                "Use https:// instead of http://.",
            ),
            Code::RequestTimeout => (
                408,
                "request_timeout",
                "The body arrived too slowly",
                "Send the request again.",
            ),
            Code::Unavailable => (
                503,
                "unavailable",
                "The server is stopping or overloaded",
                "Try again later.",
            ),
            Code::StorageFull => (
                507,
                "storage_full",
                "The server's disk is full",
                "Free space on the server; nothing was lost, and the next attempt continues.",
            ),
            Code::StorageDamaged => (
                500,
                "storage_damaged",
                "Stored bytes are damaged",
                "Run a verification to list the damaged files; restore the others.",
            ),
            Code::Internal => (
                500,
                "internal",
                "The server failed",
                "Check the server's log, then try again.",
            ),
            Code::Unknown => (500, "unknown", "An unknown problem", "See the HTTP status."),
        }
    }

    /// The HTTP status that goes with the code.
    #[must_use]
    pub fn status(self) -> u16 {
        self.facts().0
    }

    /// The stable name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().1
    }
}

/// A place where a batch collides with another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictItem {
    /// The node whose current version is newer than the batch's base.
    pub id: FileId,
    /// Its path now, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<ByteString>,
    /// The sequence number at which it was changed.
    pub seq: Seq,
}

/// An error answer. `type` is `urn:byteback:problem:` and the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable URI of the kind of problem.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// Short text, the same for every occurrence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The code by which a program decides.
    pub code: Code,
    /// The details of this occurrence.
    pub detail: String,
    /// The next step for the user.
    pub next: String,
    /// For [`Code::Conflict`]: the first few conflicts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<ConflictItem>,
    /// For [`Code::PartsMissing`]: the first few missing numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_parts: Vec<u32>,
}

impl Problem {
    /// A problem with this code; `detail` describes this occurrence.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (status, name, title, next) = code.facts();
        Self {
            type_uri: format!("urn:byteback:problem:{name}"),
            title: title.to_owned(),
            status,
            code,
            detail: detail.into(),
            next: next.to_owned(),
            conflicts: Vec::new(),
            missing_parts: Vec::new(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_codes_have_stable_json_names_and_tolerate_unknowns() {
        for code in Code::ALL {
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.name()));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), code);
        }
        assert_eq!(
            serde_json::from_str::<Code>("\"from_the_future\"").unwrap(),
            Code::Unknown
        );
    }
}
