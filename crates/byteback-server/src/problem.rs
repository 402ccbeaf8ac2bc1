//! Turns failures into answers.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use byteback_api::batch::BatchError;
use byteback_api::problem::{Code, ConflictItem, MEDIA_PROBLEM, Problem};
use byteback_model::{ByteString, FileId};
use byteback_store::StoreError;

/// The answer to a request, or the problem to answer with.
pub(crate) type Answer = Result<Response<Body>, Box<Problem>>;

/// A problem to answer with. Boxed, because it is large and rare.
pub(crate) fn refuse(code: Code, detail: impl Into<String>) -> Box<Problem> {
    Box::new(Problem::new(code, detail))
}

/// The problem for a failure of the store.
pub(crate) fn of_store(error: &StoreError) -> Box<Problem> {
    let code = match error {
        StoreError::FolderNotFound(_) => Code::FolderNotFound,
        StoreError::SnapshotNotFound { .. } => Code::SnapshotNotFound,
        StoreError::NodeNotFound(_) => Code::NodeNotFound,
        StoreError::InvalidParameter(_) => Code::InvalidParameter,
        StoreError::InvalidDelta { .. } | StoreError::InvalidSearch(_) => Code::InvalidBody,
        StoreError::InvalidBatch(_) => Code::InvalidBatch,
        StoreError::Conflict { .. } => Code::Conflict,
        StoreError::OutOfOrder { .. } => Code::OutOfOrder,
        StoreError::ContentMismatch { .. } => Code::ContentMismatch,
        StoreError::PartsMissing { .. } => Code::PartsMissing,
        StoreError::TooLarge(_) => Code::BatchTooLarge,
        StoreError::JoinTokenUnknown => Code::JoinTokenInvalid,
        StoreError::JoinTokenUsed => Code::JoinTokenUsed,
        StoreError::JoinTokenExpired => Code::JoinTokenExpired,
        StoreError::JoinTokenWithdrawn => Code::JoinTokenWithdrawn,
        StoreError::DeviceRevoked(_) => Code::DeviceRevoked,
        StoreError::DeviceNotFound(_) => Code::DeviceNotFound,
        StoreError::InvitationNotFound(_) => Code::InvitationNotFound,
        StoreError::Full { .. } => Code::StorageFull,
        StoreError::Damaged { .. } | StoreError::CatalogDamaged(_) => Code::StorageDamaged,
        StoreError::CatalogVersion { .. }
        | StoreError::InUse(_)
        | StoreError::Catalog { .. }
        | StoreError::Segment { .. }
        | StoreError::Io { .. }
        | StoreError::SegmentAbandoned(_) => Code::Internal,
    };
    let mut problem = refuse(code, error.to_string());
    match error {
        StoreError::Conflict { conflicts } => {
            problem.conflicts = conflicts
                .iter()
                .map(|conflict| ConflictItem {
                    id: FileId(conflict.id.0),
                    path: conflict.path.clone().map(ByteString),
                    seq: conflict.seq,
                })
                .collect();
        }
        StoreError::PartsMissing { missing } => problem.missing_parts.clone_from(missing),
        _ => {}
    }
    problem
}

/// The problem for a malformed batch stream.
pub(crate) fn of_batch(error: &BatchError) -> Box<Problem> {
    refuse(Code::InvalidBody, error.to_string())
}

/// A problem with a parameter or header.
pub(crate) fn parameter(detail: impl Into<String>) -> Box<Problem> {
    refuse(Code::InvalidParameter, detail)
}

/// The answer that carries a problem.
pub(crate) fn respond(problem: &Problem) -> Response<Body> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_PROBLEM));
    if problem.status == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if problem.code == Code::TlsRequired {
        headers.insert(header::UPGRADE, HeaderValue::from_static("TLS/1.3"));
    }
    if problem.code == Code::Unavailable {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}
