//! The signature of a stored content: a short request that reads and hashes all of it.
//!
//! Hence few are made at once (`ServerConfig::signatures_max`), and one whose client goes away ends at its next chunk. Memory is a
//! few decoded frames and a group of checksums, whatever the length. The stream's length is known before it is made and stands in
//! the head, so that no client takes a part for the whole; the stream has checksums of its own, too.

use crate::body::outgoing;
use crate::dispatch::{Answer, Call, blocking, signature_permit};
use crate::problem::parameter;
use crate::reading::insert;
use axum::http::{HeaderValue, Response, header};
use byteback_api::{MEDIA_SIGNATURE, Seq};
use std::io;
use std::sync::Arc;

/// The smallest block that is asked for: a signature is then at most a tenth of the content.
const BLOCK_LEN_MIN: u32 = 256;

pub(crate) async fn signature(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let (at, block) = (call.query::<Seq>("at")?, call.query::<u32>("block")?);
    call.finish_query()?;
    let block_max = byteback_store::signature::BLOCK_LEN_MAX;
    if block.is_some_and(|block| !(BLOCK_LEN_MIN..=block_max).contains(&block)) {
        return Err(parameter(format!("'block' goes from {BLOCK_LEN_MIN} to {block_max}")));
    }
    let permit = signature_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let reader = blocking(move || store.signature(&folder, file, at, block)).await?;
    let len = reader.stream_len_bytes();
    let (mut out, body) = outgoing(Some(len));
    let shared = Arc::clone(&call.shared);
    tokio::task::spawn_blocking(move || {
        match reader.write(&mut out) {
            // What the destination says is that the client went away.
            Ok(Ok(()) | Err(_)) => {}
            Err(error) => {
                shared.config.report(&format!("signature of {file}: {error}"));
                out.fail(io::Error::other(error));
            }
        }
        drop(permit);
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_SIGNATURE));
    insert(headers, header::CONTENT_LENGTH, &len.to_string());
    Ok(response)
}
