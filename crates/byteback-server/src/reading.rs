//! Calls that answer with streams: contents, deltas over nothing, verifications.
//!
//! A stream that fails after its first byte is broken off, never ended: contents have their length
//! in the head, a delta has a trailer, and a verification has a last line, so that no client takes
//! a part for the whole.

use crate::body::{BodyLimits, CHUNK_LEN, OutgoingBytes, Pace, collect, outgoing, outgoing_paced};
use crate::call::{Call, Shared, blocking, json, signature_permit, stream_permit};
use crate::convert;
use crate::headers::insert_header;
use crate::problem::{Answer, parameter, refuse, respond};
use crate::search::BYTES_PER_S_MIN;
use crate::signature::wanted_excerpt;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use byteback_api::contents_request::{ContentsRequest, REQUEST_LEN_MAX};
use byteback_api::messages::{
    ALIKE_MAX, AlikeFiles, BUNDLE_LEN_MAX, BUNDLED_LEN_MAX, BUNDLED_MAX, DIGESTED_LEN_MAX, DIGESTED_TOTAL_MAX,
    DIGESTS_MAX, Digests, VerifyEvent, WantedAlike, WantedContents, WantedDigests,
};
use byteback_api::problem::Code;
use byteback_api::{MEDIA_BUNDLE, MEDIA_CONTENTS, MEDIA_CONTENTS_REQUEST, MEDIA_DELTA, MEDIA_JSON_LINES};
use byteback_model::{FileId, Seq};
use byteback_store::alike::SoughtContent;
use byteback_store::content::ContentReader;
use byteback_store::{Store, StoreError};
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Files between two lines of progress.
const FILES_PER_LINE: u64 = 64;

pub(crate) async fn content(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let wants_delta = call
        .headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|accepted| accepted.split(',').any(|media| media.trim() == MEDIA_DELTA));
    let store = call.shared.store.clone();
    let (size, at) = {
        let (store, folder) = (store.clone(), folder.clone());
        blocking(move || store.content_size(&folder, file, at)).await?
    };
    let Ok(range) = requested_range(&call.headers, size) else {
        let mut response = respond(&refuse(
            Code::RangeNotSatisfiable,
            format!("the contents have {size} bytes"),
        ));
        insert_header(
            response.headers_mut(),
            header::CONTENT_RANGE,
            &format!("bytes */{size}"),
        );
        return Ok(response);
    };
    let permit = stream_permit(&call.shared).await?;
    let wanted = range.map(|range| (range, byteback_store_range(range)));
    let reader = {
        let bytes = wanted.as_ref().and_then(|(_, bytes)| *bytes);
        blocking(move || store.content(&folder, file, Some(at), bytes)).await?
    };
    let len = range.map_or(size, |(start, end)| end - start);
    let send = if wants_delta { send_delta } else { send_bytes };
    let out = outgoing((!wants_delta).then_some(len));
    let mut response = Response::new(sent(&call.shared, (file, reader), (out, send), permit));
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let headers = response.headers_mut();
    let media = if wants_delta {
        MEDIA_DELTA
    } else {
        "application/octet-stream"
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if !wants_delta {
        insert_header(headers, header::CONTENT_LENGTH, &len.to_string());
    }
    if let Some((start, end)) = range {
        insert_header(
            headers,
            header::CONTENT_RANGE,
            &format!("bytes {start}-{}/{size}", end.saturating_sub(1)),
        );
    }
    Ok(response)
}

pub(crate) async fn excerpt_bytes(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let excerpt = wanted_excerpt(&mut call).await?;
    // Each range may cost reading a whole frame, as in an excerpt's signature.
    let permit = signature_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let reader = blocking(move || store.excerpt_bytes(&folder, file, at, &excerpt)).await?;
    let pace = Pace {
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: BYTES_PER_S_MIN,
    };
    let body = sent(
        &call.shared,
        (file, reader),
        (outgoing_paced(None, pace), send_delta),
        permit,
    );
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_DELTA));
    Ok(response)
}

type Send = fn(ContentReader, &mut OutgoingBytes) -> Result<(), StoreError>;

/// The body of an answer that has contents of a file, sent in this way.
fn sent(
    shared: &Arc<Shared>,
    (file, reader): (FileId, ContentReader),
    ((mut out, body), send): ((OutgoingBytes, Body), Send),
    permit: OwnedSemaphorePermit,
) -> Body {
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = send(reader, &mut out) {
            shared.config.report(&format!("contents of {file}: {error}"));
            // Damage that is not noted is found by the next verification.
            let _ = shared.store.note_damage(&error);
            out.fail();
        }
        drop(permit);
    });
    body
}

fn byteback_store_range((start, end): (u64, u64)) -> Option<byteback_store::ByteRange> {
    byteback_store::ByteRange::new(start, end)
}

/// The range \[start, end) that a `Range` header asks for; `Ok(None)` for none, or for one that RFC
/// 9110 lets a server ignore (another unit, several ranges, malformed). `Err` when none of its
/// bytes exist.
fn requested_range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Ok(None);
    };
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit lies beyond every file.
        true => Some(text.parse::<u64>().unwrap_or(u64::MAX)),
        false => None,
    };
    let (start, end) = match (first.is_empty(), last.is_empty()) {
        (true, true) => return Ok(None),
        (true, false) => match number(last) {
            Some(suffix) => (size.saturating_sub(suffix), if suffix == 0 { 0 } else { size }),
            None => return Ok(None),
        },
        (false, true) => match number(first) {
            Some(start) => (start, size),
            None => return Ok(None),
        },
        (false, false) => match (number(first), number(last)) {
            (Some(start), Some(last)) if start <= last => (start, last.saturating_add(1).min(size)),
            _ => return Ok(None),
        },
    };
    if start >= end { Err(()) } else { Ok(Some((start, end))) }
}

/// Sends the contents. A client that goes away is no error of the server.
fn send_bytes(mut reader: ContentReader, out: &mut OutgoingBytes) -> Result<(), StoreError> {
    let mut chunk = Vec::new();
    loop {
        reader.next_chunk(&mut chunk, CHUNK_LEN)?;
        if chunk.is_empty() {
            let _ = out.send();
            return Ok(());
        }
        if out.write_all(&chunk).is_err() {
            return Ok(());
        }
    }
}

fn send_delta(reader: ContentReader, out: &mut OutgoingBytes) -> Result<(), StoreError> {
    if reader.write_delta(&mut *out)?.is_ok() {
        let _ = out.send();
    }
    Ok(())
}

/// Most files of one length in an answer.
const ALIKE_FILES_MAX: usize = 4;

pub(crate) async fn alike(mut call: Call) -> Answer {
    call.finish_query()?;
    let folder = call.folder()?;
    let wanted: WantedAlike = call.take_json().await?;
    if wanted.contents.len() > ALIKE_MAX {
        return Err(parameter(format!(
            "at most {ALIKE_MAX} contents can be looked for at once"
        )));
    }
    let sought = wanted.contents.iter().map(|content| {
        let is_hex = content.head.len() == 16 && content.head.bytes().all(|byte| byte.is_ascii_hexdigit());
        let head = u64::from_str_radix(&content.head, 16)
            .ok()
            .filter(|_| is_hex)
            .ok_or_else(|| parameter("'head' has to be 8 bytes in hexadecimal"))?;
        Ok(SoughtContent {
            len_bytes: content.len_bytes,
            head: head.to_be_bytes(),
        })
    });
    let sought = sought.collect::<Result<Vec<_>, Box<_>>>()?;
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let files = blocking(move || store.alike(&folder, wanted.at, &sought, ALIKE_FILES_MAX)).await?;
    drop(permit);
    json(&AlikeFiles { files })
}

pub(crate) async fn digests(mut call: Call) -> Answer {
    call.finish_query()?;
    let folder = call.folder()?;
    let wanted: WantedDigests = call.take_json().await?;
    if wanted.files.len() > DIGESTS_MAX {
        return Err(parameter(format!(
            "at most {DIGESTS_MAX} files can be digested at once"
        )));
    }
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let bounds = (DIGESTED_LEN_MAX, DIGESTED_TOTAL_MAX);
    let digests = blocking(move || store.digests(&folder, wanted.at, &wanted.files, bounds)).await?;
    drop(permit);
    json(&Digests {
        digests: digests.into_iter().map(|digest| digest.map(convert::hex)).collect(),
    })
}

pub(crate) async fn bundle(mut call: Call) -> Answer {
    call.finish_query()?;
    let folder = call.folder()?;
    let wanted: WantedContents = call.take_json().await?;
    if wanted.files.len() > BUNDLED_MAX {
        return Err(parameter(format!("at most {BUNDLED_MAX} files can be bundled")));
    }
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let bundle =
        blocking(move || store.bundle(&folder, wanted.at, &wanted.files, BUNDLED_LEN_MAX, BUNDLE_LEN_MAX)).await?;
    drop(permit);
    let mut response = Response::new(Body::from(bundle));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_BUNDLE));
    Ok(response)
}

pub(crate) async fn contents(mut call: Call) -> Answer {
    call.finish_query()?;
    let folder = call.folder()?;
    let reported = call.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if reported.is_some_and(|reported| reported != MEDIA_CONTENTS_REQUEST.as_bytes()) {
        return Err(parameter(format!("the Content-Type must be {MEDIA_CONTENTS_REQUEST}")));
    }
    let limits = BodyLimits {
        len_max: REQUEST_LEN_MAX,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: None,
    };
    let bytes = collect(std::mem::take(&mut call.body), limits).await?;
    let wanted = ContentsRequest::decode(&bytes).map_err(|e| refuse(Code::InvalidBody, e.to_string()))?;
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let reader = blocking(move || store.many_contents(&folder, wanted.at, wanted.files)).await?;
    let (mut out, body) = outgoing(None);
    let shared = Arc::clone(&call.shared);
    tokio::task::spawn_blocking(move || {
        // An error of the destination means that the client went away.
        if let Err(error) = reader.write(&mut out) {
            shared.config.report(&format!("contents of many files: {error}"));
            out.fail();
        }
        drop(permit);
    });
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_CONTENTS));
    Ok(response)
}

pub(crate) async fn verify(mut call: Call) -> Answer {
    let folder = call.folder()?;
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    // Errors in the request are reported by its status; the stream comes after.
    let seq = {
        let (store, folder) = (store.clone(), folder.clone());
        blocking(move || store.folder(&folder)).await?.seq
    };
    if seq == 0 || at.is_some_and(|at| at == 0 || at > seq) {
        return Err(parameter(format!("'at' must be from 1 to {seq}")));
    }
    let permit = stream_permit(&call.shared).await?;
    let (mut out, body) = outgoing(None);
    tokio::task::spawn_blocking(move || {
        verify_into(&store, &folder, at, &mut out);
        drop(permit);
    });
    Ok(json_lines(body))
}

fn json_lines(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_JSON_LINES));
    response
}

fn verify_into(store: &Store, folder: &str, at: Option<Seq>, out: &mut OutgoingBytes) {
    let mut reported_files = 0;
    let result = store.verify(folder, at, |event| {
        let event = convert::verify_event(event);
        // A line per file would be more than anyone reads; damage is always reported at once.
        if let VerifyEvent::Progress { files, .. } = &event {
            if *files > 0 && *files < reported_files + FILES_PER_LINE {
                return ControlFlow::Continue(());
            }
            reported_files = *files;
        }
        match line(out, &event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    let last = match result {
        Ok(totals) => VerifyEvent::Summary {
            files: totals.files,
            frames: totals.frames,
            bytes: totals.bytes,
            damaged_files: totals.damaged_files,
            wrong_sums: totals.wrong_sums,
        },
        Err(error) => VerifyEvent::Failed {
            detail: error.to_string(),
        },
    };
    // A failure to send the last line has no one left to report it to.
    let _ = line(out, &last);
}

fn line(out: &mut OutgoingBytes, event: &VerifyEvent) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(event).map_err(io::Error::other)?;
    bytes.push(b'\n');
    out.write_all(&bytes)?;
    out.send()
}

#[cfg(test)]
mod tests;
