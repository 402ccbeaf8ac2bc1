//! Searches in stored contents: a client sends checksums of its content, and learns which of it is
//! here.
//!
//! Three calls, `matches` (blocks, found at any offset of the stored content), `chunks`
//! (content-defined) and `groups` (sums of MiBs, compared in place). All take three steps:
//! 1. The list arrives, with the limits of `byteback_store::search`, and takes one of a few places
//!    (`ServerConfig::searches_max`). Up to [`WAITED_FOR_LEN_MAX`] bytes of it are awaited first:
//!    lists that arrive slowly keep no place from one that is here. A longer list is read while it
//!    arrives, and such lists get only half of the places. Bodies have a minimum speed in both
//!    directions.
//! 2. The stored content is read through and hashed, taking turns with signatures
//!    (`ServerConfig::signatures_max`). This ends early when the client goes away.
//! 3. The answer is streamed. It states its own length and has its own checksums. The answer of
//!    `groups` may still have to be made from the stored content, so it keeps its turn until it is
//!    written.
//!
//! Nothing is kept, and nothing is changed.

use crate::body::{BodyLimits, IncomingBytes, Pace, incoming, outgoing_paced, pump_from, take_start};
use crate::call::{Call, Shared, blocking, list_permit, long_search_permit, search_permit, signature_permit};
use crate::headers::insert_header;
use crate::problem::{Answer, of_store, parameter, refuse};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use byteback_api::problem::{Code, Problem};
use byteback_api::{
    MEDIA_CHUNK_ANSWER, MEDIA_CHUNKS, MEDIA_GROUP_ANSWER, MEDIA_GROUPS, MEDIA_MATCHES, MEDIA_SIGNATURE,
};
use byteback_model::Seq;
use byteback_store::groups::{self as stored_groups, SoughtGroups};
use byteback_store::search::{STREAM_LEN_MAX, SoughtBlocks, SoughtChunks};
use byteback_store::{Store, StoreError};
use std::io::{self, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::OwnedSemaphorePermit;

/// Slowest average rate at which a list may arrive and an answer may be taken, in bytes per second;
/// slower lists are refused, slower answers are broken off.
pub(crate) const BYTES_PER_S_MIN: u32 = 4096;

/// Bytes of a list that are awaited before it takes a place: a list for a content of some hundred
/// megabytes.
const WAITED_FOR_LEN_MAX: usize = 512 * 1024;

/// Most lists that may arrive at once; each has at most [`WAITED_FOR_LEN_MAX`] in memory.
pub(crate) const LISTS_MAX: usize = 256;

pub(crate) async fn groups(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let (sought, place) = take_list(
        &mut call,
        MEDIA_GROUPS,
        stored_groups::STREAM_LEN_MAX,
        SoughtGroups::read,
    )
    .await?;
    let turn = signature_permit(&call.shared).await?;
    let find =
        move |store: &Store, is_wanted: &dyn Fn() -> bool| store.find_groups(&folder, file, at, &sought, is_wanted);
    let found = while_waited_for(&call.shared, find).await?;
    let len = found.stream_len_bytes();
    let (mut out, body) = outgoing_paced(Some(len), pace(&call.shared));
    let shared = Arc::clone(&call.shared);
    tokio::task::spawn_blocking(move || {
        match found.write(&mut out) {
            Ok(Ok(())) => {}
            // An error of the destination means that the client went away or is too slow.
            Ok(Err(_)) => out.fail(),
            Err(error) => {
                shared.config.report(&format!("groups of {file}: {error}"));
                out.fail();
            }
        }
        drop((turn, place));
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_GROUP_ANSWER));
    insert_header(headers, header::CONTENT_LENGTH, &len.to_string());
    Ok(response)
}

pub(crate) async fn matches(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let (sought, place) = take_list(&mut call, MEDIA_SIGNATURE, STREAM_LEN_MAX, SoughtBlocks::read).await?;
    let found = searched(&call.shared, move |store, is_wanted| {
        store.find_blocks(&folder, file, at, &sought, is_wanted)
    })
    .await?;
    count(&call.shared, found.searched_bytes);
    Ok(answer(&call.shared, MEDIA_MATCHES, place, move |out| found.write(out)))
}

pub(crate) async fn chunks(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let (at, unproven) = (call.query::<Seq>("at")?, call.query::<u8>("unproven")?);
    call.finish_query()?;
    let has_unproven = match unproven {
        None | Some(0) => false,
        Some(1) => true,
        Some(_) => return Err(parameter("'unproven' must be 0 or 1")),
    };
    let (sought, place) = take_list(&mut call, MEDIA_CHUNKS, STREAM_LEN_MAX, SoughtChunks::read).await?;
    let found = searched(&call.shared, move |store, is_wanted| {
        store.find_chunks(&folder, file, at, sought, has_unproven, is_wanted)
    })
    .await?;
    count(&call.shared, found.searched_bytes);
    Ok(answer(&call.shared, MEDIA_CHUNK_ANSWER, place, move |out| {
        found.write(out)
    }))
}

/// The places of a search, kept as long as its list is in memory.
struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_long: Option<OwnedSemaphorePermit>,
}

/// Reads a search list from the body; returns it with its place at work.
async fn take_list<T: Send + 'static>(
    call: &mut Call,
    media: &str,
    len_max: u64,
    read: impl FnOnce(BufReader<IncomingBytes>) -> Result<T, StoreError> + Send + 'static,
) -> Result<(T, Place), Box<Problem>> {
    let reported = call.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if reported.is_some_and(|reported| reported != media.as_bytes()) {
        return Err(parameter(format!("the Content-Type of this list must be {media}")));
    }
    let limits = BodyLimits {
        len_max,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: Some(BYTES_PER_S_MIN),
    };
    let arriving = list_permit(&call.shared).await?;
    let mut body = std::mem::take(&mut call.body);
    let start = take_start(&mut body, WAITED_FOR_LEN_MAX, limits).await?;
    let place = Place {
        _of_long: match start.is_whole {
            true => None,
            false => Some(long_search_permit(&call.shared).await?),
        },
        _of_all: search_permit(&call.shared).await?,
    };
    drop(arriving);
    let (sender, bytes) = incoming();
    let worker = tokio::task::spawn_blocking(move || read(BufReader::new(bytes)).map_err(|error| of_store(&error)));
    let pumped = pump_from(start, body, sender, limits).await;
    let taken = worker
        .await
        .unwrap_or_else(|_| Err(refuse(Code::Internal, "the call panicked")));
    // If the body as such is refused, the result of reading the list does not matter.
    pumped.and(taken).map(|sought| (sought, place))
}

/// Sets its flag when the client no longer waits: the call is dropped with its connection.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a search on a blocking thread, one of a few at once.
async fn searched<T: Send + 'static>(
    shared: &Shared,
    search: impl FnOnce(&Store, &dyn Fn() -> bool) -> Result<Option<T>, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let turn = signature_permit(shared).await?;
    while_waited_for(shared, move |store, is_wanted| {
        let found = search(store, is_wanted);
        drop(turn);
        found
    })
    .await
}

/// Runs a search on a blocking thread; its `is_wanted` turns false when the client no longer waits.
pub(crate) async fn while_waited_for<T: Send + 'static>(
    shared: &Shared,
    search: impl FnOnce(&Store, &dyn Fn() -> bool) -> Result<Option<T>, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let store = shared.store.clone();
    let is_gone = Arc::new(AtomicBool::new(false));
    let _waiting = Waiting(Arc::clone(&is_gone));
    let found = blocking(move || search(&store, &|| !is_gone.load(Ordering::Relaxed)));
    // The client is gone and will not read this.
    found
        .await?
        .ok_or_else(|| refuse(Code::Unavailable, "the search was abandoned"))
}

fn pace(shared: &Shared) -> Pace {
    Pace {
        idle_timeout: shared.config.idle_timeout,
        bytes_per_s_min: BYTES_PER_S_MIN,
    }
}

fn count(shared: &Shared, searched_bytes: u64) {
    let counter = &shared.metrics.searched_bytes;
    counter.fetch_add(searched_bytes, Ordering::Relaxed);
}

/// Streams a search's result.
fn answer(
    shared: &Shared,
    media: &'static str,
    place: Place,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Response<Body> {
    let (mut out, body) = outgoing_paced(None, pace(shared));
    tokio::task::spawn_blocking(move || {
        // An error of the destination means that the client went away or is too slow.
        if write(&mut out).is_err() {
            out.fail();
        }
        drop(place);
    });
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
