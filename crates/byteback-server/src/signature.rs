//! The signature of a stored content: a short request that may read and hash all of it (except for
//! kept sums, `byteback_store::sums`).
//!
//! Hence few are made at once (`ServerConfig::signatures_max`), and one whose client goes away, or
//! takes it too slowly, ends at its next chunk. Memory is a few MiB of decoded frames and a group
//! of checksums, whatever the length. The stream's length is known before it is made and is in the
//! head, so that no client takes a part for the whole; the stream also has its own checksums.

use crate::body::{Pace, outgoing_paced};
use crate::call::{Call, blocking, signature_permit};
use crate::headers::insert_header;
use crate::problem::{Answer, parameter};
use crate::search::BYTES_PER_S_MIN;
use axum::http::{HeaderValue, Response, header};
use byteback_api::{MEDIA_SIGNATURE, Problem};
use byteback_model::Seq;
use byteback_store::ByteRange;
use byteback_store::signature::{BLOCK_LEN_MAX, STRONG_LEN_MAX, STRONG_LEN_MIN, SignatureRequest};
use std::sync::Arc;

/// The smallest block that a client may ask for: a signature is then at most a tenth of the
/// content.
const BLOCK_LEN_MIN: u32 = 256;

pub(crate) async fn signature(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let request = request(&mut call)?;
    call.finish_query()?;
    let permit = signature_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let reader = blocking(move || store.signature(&folder, file, at, &request)).await?;
    let len = reader.stream_len_bytes();
    let pace = Pace {
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: BYTES_PER_S_MIN,
    };
    let (mut out, body) = outgoing_paced(Some(len), pace);
    let shared = Arc::clone(&call.shared);
    tokio::task::spawn_blocking(move || {
        match reader.write(&mut out) {
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
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_SIGNATURE));
    insert_header(headers, header::CONTENT_LENGTH, &len.to_string());
    Ok(response)
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
