//! Searches in stored contents: a client sends checksums of what it has, and learns what of that is
//! here.
//!
//! Three calls, `matches` (blocks, found at any offset of the stored content), `chunks`
//! (content-defined) and `groups` (sums of MiBs, compared in place). All go three steps:
//! 1. The list arrives, with the limits of `byteback_store::search`, and takes one of a few places
//!    (`ServerConfig::searches_max`). Up to [`WAITED_FOR_LEN_MAX`] it is waited for first, as it
//!    is: however slowly lists come, they keep no place from one that is here. A longer one is read
//!    while it arrives, and such lists get half of the places only. Bodies have a lowest speed both
//!    ways.
//! 2. The stored content is read through and hashed, which takes turns with signatures
//!    (`ServerConfig::signatures_max`). It ends early when the client goes away.
//! 3. The answer is streamed. It says itself how long it is and has checksums of its own. That of
//!    `groups` may have to be made from the stored content still, so that it keeps its turn until
//!    it is written.
//!
//! Nothing is kept, and nothing is changed.

use crate::body::{BodyLimits, IncomingBytes, Pace, incoming, outgoing_paced, pump_from, take_start};
use crate::dispatch::{
    Answer, Call, Shared, blocking, list_permit, long_search_permit, search_permit, signature_permit,
};
use crate::problem::{of_store, parameter, refuse};
use crate::reading::insert;
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

/// A list that arrives more slowly than this on average is refused, an answer that is taken more
/// slowly is broken off, in bytes per second.
pub(crate) const BYTES_PER_S_MIN: u32 = 4096;

/// A list is waited for up to so many bytes: that of a content of some hundred megabytes.
const WAITED_FOR_LEN_MAX: usize = 512 * 1024;

/// How many lists may arrive at once: so often [`WAITED_FOR_LEN_MAX`] is what they have in memory
/// at most.
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
            // An error of the destination means that the client went away, or is too slow.
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
    insert(headers, header::CONTENT_LENGTH, &len.to_string());
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
        Some(_) => return Err(parameter("'unproven' is 0 or 1")),
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

/// Reads what is looked for from the body; answers the place that it has at work, too.
async fn take_list<T: Send + 'static>(
    call: &mut Call,
    media: &str,
    len_max: u64,
    read: impl FnOnce(BufReader<IncomingBytes>) -> Result<T, StoreError> + Send + 'static,
) -> Result<(T, Place), Box<Problem>> {
    let told = call.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if told.is_some_and(|told| told != media.as_bytes()) {
        return Err(parameter(format!("the Content-Type of this list is {media}")));
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
    // A body that is refused as such is no list, whatever came of it.
    pumped.and(taken).map(|sought| (sought, place))
}

/// Set when nobody waits for an answer any more: the call is dropped with its connection.
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

/// Runs a search on a blocking thread; it is told when nobody waits for it any more.
async fn while_waited_for<T: Send + 'static>(
    shared: &Shared,
    search: impl FnOnce(&Store, &dyn Fn() -> bool) -> Result<Option<T>, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let store = shared.store.clone();
    let is_gone = Arc::new(AtomicBool::new(false));
    let _waiting = Waiting(Arc::clone(&is_gone));
    let found = blocking(move || search(&store, &|| !is_gone.load(Ordering::Relaxed)));
    // Nobody will read this.
    found
        .await?
        .ok_or_else(|| refuse(Code::Unavailable, "the search was given up"))
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

/// Streams what was found.
fn answer(
    shared: &Shared,
    media: &'static str,
    place: Place,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Response<Body> {
    let (mut out, body) = outgoing_paced(None, pace(shared));
    tokio::task::spawn_blocking(move || {
        // An error of the destination means that the client went away, or is too slow.
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
