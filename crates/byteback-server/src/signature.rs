//! The signature of a stored content: a short request that may read and hash all of it (except for
//! kept sums, `byteback_store::sums`).
//!
//! Hence few are made at once (`ServerConfig::signatures_max`), and one whose client goes away, or
//! takes it too slowly, ends at its next chunk. Memory is a few MiB of decoded frames and a group
//! of checksums, whatever the length; the signature of an excerpt also has the list of its ranges.
//! The stream's length is known before it is made and is in the head, so that no client takes a
//! part for the whole; the stream also has its own checksums.

use crate::body::{BodyLimits, Pace, collect, outgoing_paced};
use crate::call::{Call, Shared, blocking, signature_permit};
use crate::headers::insert_header;
use crate::problem::{Answer, parameter, refuse};
use crate::search::BYTES_PER_S_MIN;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use byteback_api::{Code, MEDIA_EXCERPT, MEDIA_EXCERPT_ANSWER, MEDIA_SIGNATURE, Problem};
use byteback_model::{FileId, Seq};
use byteback_store::ByteRange;
use byteback_store::signature::{
    BLOCK_LEN_MAX, ENCODED_LEN_MAX, Excerpt, ExcerptAnswer, STRONG_LEN_MAX, STRONG_LEN_MIN, SignatureReader,
    SignatureRequest,
};
use std::io::Write;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// The smallest block that a client may ask for: a signature is then at most a tenth of the
/// content.
const BLOCK_LEN_MIN: u32 = 256;

/// The same of an excerpt, whose length is bounded.
const FINE_BLOCK_LEN_MIN: u32 = 32;

pub(crate) async fn signature(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let request = request(&mut call)?;
    call.finish_query()?;
    let permit = signature_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let reader = blocking(move || store.signature(&folder, file, at, &request)).await?;
    Ok(answer(
        &call.shared,
        file,
        (MEDIA_SIGNATURE, Vec::new()),
        reader,
        permit,
    ))
}

pub(crate) async fn excerpt(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let block_len = call.query::<u32>("block")?.unwrap_or(0);
    call.finish_query()?;
    let block_lens = FINE_BLOCK_LEN_MIN..=BLOCK_LEN_MAX;
    if !block_lens.contains(&block_len) {
        let (least, most) = block_lens.into_inner();
        return Err(parameter(format!("'block' must be from {least} to {most}")));
    }
    let sought = wanted_excerpt(&mut call).await?;
    let permit = signature_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let (base_len, reader) = blocking(move || store.excerpt(&folder, file, at, &sought, block_len)).await?;
    let mut head = Vec::new();
    ExcerptAnswer::write_head(base_len, &mut head)
        .map_err(|error| refuse(Code::Internal, format!("cannot encode an answer: {error}")))?;
    Ok(answer(&call.shared, file, (MEDIA_EXCERPT_ANSWER, head), reader, permit))
}

/// The excerpt in the body of a call.
pub(crate) async fn wanted_excerpt(call: &mut Call) -> Result<Excerpt, Box<Problem>> {
    let reported = call.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if reported.is_some_and(|reported| reported != MEDIA_EXCERPT.as_bytes()) {
        return Err(parameter(format!("the Content-Type must be {MEDIA_EXCERPT}")));
    }
    let limits = BodyLimits {
        len_max: ENCODED_LEN_MAX,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: Some(BYTES_PER_S_MIN),
    };
    let bytes = collect(std::mem::take(&mut call.body), limits).await?;
    Excerpt::decode(&bytes).map_err(|error| refuse(Code::InvalidBody, error.to_string()))
}

/// Streams a signature behind a head.
fn answer(
    shared: &Arc<Shared>,
    file: FileId,
    (media, head): (&'static str, Vec<u8>),
    reader: SignatureReader,
    permit: OwnedSemaphorePermit,
) -> Response<Body> {
    let len = reader.stream_len_bytes().saturating_add(head.len() as u64);
    let pace = Pace {
        idle_timeout: shared.config.idle_timeout,
        bytes_per_s_min: BYTES_PER_S_MIN,
    };
    let (mut out, body) = outgoing_paced(Some(len), pace);
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || {
        let written = match out.write_all(&head) {
            Ok(()) => reader.write(&mut out),
            Err(error) => Ok(Err(error)),
        };
        match written {
            Ok(Ok(())) => {}
            // An error of the destination means that the client went away or is too slow.
            Ok(Err(_)) => out.fail(),
            Err(error) => {
                shared.config.report(&format!("signature of {file}: {error}"));
                out.fail();
            }
        }
        drop(permit);
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    insert_header(headers, header::CONTENT_LENGTH, &len.to_string());
    response
}

/// The part of the contents between two offsets; `None` for all of them.
fn part(from: Option<u64>, to: Option<u64>) -> Result<Option<ByteRange>, Box<Problem>> {
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let part = ByteRange::new(from.unwrap_or(0), to.unwrap_or(u64::MAX));
    part.map(Some)
        .ok_or_else(|| parameter("'from' must be below 'to'".to_owned()))
}

/// The signature that the query asks for.
fn request(call: &mut Call) -> Result<SignatureRequest, Box<Problem>> {
    let mut request = SignatureRequest {
        block_len_bytes: call.query("block")?,
        strong_len_bytes: call.query("strong_len")?,
        part: part(call.query("from")?, call.query("to")?)?,
        ..SignatureRequest::default()
    };
    let block_lens = BLOCK_LEN_MIN..=BLOCK_LEN_MAX;
    if request.block_len_bytes.is_some_and(|len| !block_lens.contains(&len)) {
        let (least, most) = block_lens.into_inner();
        return Err(parameter(format!("'block' must be from {least} to {most}")));
    }
    let strong_lens = STRONG_LEN_MIN..=STRONG_LEN_MAX;
    if request.strong_len_bytes.is_some_and(|len| !strong_lens.contains(&len)) {
        let (least, most) = strong_lens.into_inner();
        return Err(parameter(format!("'strong_len' must be from {least} to {most}")));
    }
    if let Some(names) = call.query::<String>("weak")? {
        request.prefer_weak(&names).map_err(|e| parameter(e.to_string()))?;
    }
    if let Some(names) = call.query::<String>("strong")? {
        request.prefer_strong(&names).map_err(|e| parameter(e.to_string()))?;
    }
    Ok(request)
}
