//! Calls that take a piece of a batch: its body is decoded on a blocking thread while it arrives.
//!
//! Literals go to segments chunk by chunk. A client that dies in the middle leaves unreferenced
//! bytes in a segment. When a body is refused as such (too long, too slow, broken off), that is the
//! answer, whatever the decoder made of the rest.

use crate::body::{BodyLimits, IncomingBytes, incoming, pump};
use crate::call::{Call, blocking, json, stream_permit};
use crate::convert;
use crate::problem::{Answer, of_batch, of_store, parameter, refuse};
use axum::body::Body;
use byteback_api::batch::{BatchReader, Record};
use byteback_api::messages::PartStaged;
use byteback_api::problem::{Code, Problem};
use byteback_api::{HEADER_PARTS, HEADER_PARTS_DIGEST, MEDIA_BATCH};
use byteback_store::Store;
use byteback_store::stage::PartWriter;
use sha2::{Digest as _, Sha256};
use std::io::{self, BufReader, Read};
use std::sync::atomic::Ordering;

pub(crate) async fn part_put(mut call: Call) -> Answer {
    call.finish_query()?;
    let (folder, counter, part) = (call.folder()?, call.param("counter")?, call.param("part")?);
    let (store, device) = (call.shared.store.clone(), call.device);
    let expires_ns = {
        let (store, folder) = (store.clone(), folder.clone());
        take_piece(&mut call, move |bytes| {
            let mut writer = store.begin_part(&folder, device, counter).map_err(|e| of_store(&e))?;
            let mut bytes = Hashed::new(bytes);
            read_piece(&mut bytes, &mut writer)?;
            writer.set_digest(bytes.digest());
            store.stage(writer, part).map_err(|e| of_store(&e))
        })
        .await
    };
    let expires_ns = give_back_if_full(expires_ns, store, folder, (device, counter)).await?;
    json(&PartStaged { part, expires_ns })
}

pub(crate) async fn batch_commit(mut call: Call) -> Answer {
    call.finish_query()?;
    let (folder, counter) = (call.folder()?, call.param::<u64>("counter")?);
    let staged_parts = match call.headers.get(HEADER_PARTS) {
        None => 0,
        Some(value) => {
            let parsed = value.to_str().ok().and_then(|text| text.parse::<u32>().ok());
            parsed.ok_or_else(|| parameter(format!("header {HEADER_PARTS} is not a number of parts")))?
        }
    };
    let parts_digest = match call.headers.get(HEADER_PARTS_DIGEST) {
        None => None,
        Some(value) => {
            let parsed = value.to_str().ok().and_then(convert::digest);
            Some(parsed.ok_or_else(|| parameter(format!("header {HEADER_PARTS_DIGEST} is not a SHA-256")))?)
        }
    };
    let (store, device) = (call.shared.store.clone(), call.device);
    let name = folder.clone();
    // The body of a batch that is already applied need not be decoded: it is read and dropped.
    let known = {
        let (store, folder) = (store.clone(), folder.clone());
        blocking(move || store.batch_status(&folder, device, counter))
            .await?
            .applied
    };
    let applied = {
        let (store, folder) = (store.clone(), folder.clone());
        take_piece(&mut call, move |bytes| {
            if let Some(applied) = known {
                return Ok(applied);
            }
            let mut writer = store.begin_part(&folder, device, counter).map_err(|e| of_store(&e))?;
            if let Some(digest) = parts_digest {
                writer.expect_parts(digest);
            }
            read_piece(bytes, &mut writer)?;
            store.commit(writer, staged_parts).map_err(|e| of_store(&e))
        })
        .await
    };
    let applied = give_back_if_full(applied, store, folder, (device, counter)).await?;
    call.shared.subscriptions.applied(&name, applied.seq);
    let metrics = &call.shared.metrics;
    if applied.repeated {
        metrics.batches_repeated.fetch_add(1, Ordering::Relaxed);
    } else {
        metrics.batches_applied.fetch_add(1, Ordering::Relaxed);
        metrics.stored_bytes.fetch_add(applied.stored_bytes, Ordering::Relaxed);
        call.shared.batch_applied.notify_one();
    }
    json(&applied)
}

/// If the disk is full, frees the space of the batch's parts before the client learns of it; they
/// would occupy it until they expire. The client sends them again once there is space.
async fn give_back_if_full<T>(
    result: Result<T, Box<Problem>>,
    store: Store,
    folder: String,
    (device, counter): (u64, u64),
) -> Result<T, Box<Problem>> {
    if result.as_ref().is_err_and(|problem| problem.code == Code::StorageFull) {
        // If that fails as well, the parts expire.
        let _ = blocking(move || store.abandon(&folder, device, counter)).await;
    }
    result
}

/// Runs `work` on a blocking thread over the request's body, while the body arrives.
async fn take_piece<T: Send + 'static>(
    call: &mut Call,
    work: impl FnOnce(IncomingBytes) -> Result<T, Box<Problem>> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let media = call
        .headers
        .get(axum::http::header::CONTENT_TYPE)
        .map(|value| value.as_bytes());
    if media.is_some_and(|media| media != MEDIA_BATCH.as_bytes()) {
        return Err(parameter(format!("the Content-Type of a piece must be {MEDIA_BATCH}")));
    }
    let permit = stream_permit(&call.shared).await?;
    let limits = BodyLimits {
        len_max: call.shared.config.part_len_max,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: None,
    };
    let body: Body = std::mem::take(&mut call.body);
    let (sender, bytes) = incoming();
    let worker = tokio::task::spawn_blocking(move || {
        let result = work(bytes);
        drop(permit);
        result
    });
    let pumped = pump(body, sender, limits).await;
    let result = worker
        .await
        .unwrap_or_else(|_| Err(refuse(Code::Internal, "the call panicked")));
    match (result, pumped) {
        // A committed batch stays committed, even if the client went away after its last byte.
        (Ok(value), _) => Ok(value),
        (Err(_), Err(problem)) | (Err(problem), Ok(())) => Err(problem),
    }
}

/// Reads bytes and hashes them by SHA-256.
struct Hashed {
    bytes: IncomingBytes,
    hash: Sha256,
}

impl Hashed {
    fn new(bytes: IncomingBytes) -> Self {
        let hash = Sha256::new();
        Self { bytes, hash }
    }

    /// Digest of everything that was read.
    fn digest(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// Abandons a batch that is not applied.
pub(crate) async fn batch_abandon(mut call: Call) -> Answer {
    call.finish_query()?;
    let (folder, counter) = (call.folder()?, call.param::<u64>("counter")?);
    let (store, device) = (call.shared.store.clone(), call.device);
    let status = blocking(move || {
        store.abandon(&folder, device, counter)?;
        store.batch_status(&folder, device, counter)
    })
    .await?;
    json(&convert::batch_status(status, false))
}

/// Feeds a piece to the store, record by record, up to its true end.
fn read_piece(bytes: impl Read, writer: &mut PartWriter) -> Result<(), Box<Problem>> {
    let store = |result: Result<(), byteback_store::StoreError>| result.map_err(|e| of_store(&e));
    let mut reader = BatchReader::new(BufReader::new(bytes));
    while let Some(record) = reader.next_record().map_err(|e| of_batch(&e))? {
        match record {
            Record::Manifest(manifest) => store(writer.manifest(*manifest))?,
            Record::Node(node) => store(writer.node(*node))?,
            Record::Entry(entry) => store(writer.entry(entry))?,
            Record::Delta { file, .. } => {
                store(writer.delta(file, reader.delta()))?;
                reader.finish_delta().map_err(|e| of_batch(&e))?;
            }
            Record::DirectoryTime(time) => store(writer.directory_time(time.id, time.mtime_ns))?,
            Record::Proof(proof) => {
                let of = proof.id;
                let proof = convert::proof_to_store(&proof).ok_or_else(|| {
                    let detail =
                        format!("the proof of file {of} has ranges out of order, too many of them, or sums too");
                    refuse(Code::InvalidBatch, detail)
                })?;
                store(writer.proof(of, proof))?;
            }
            Record::End(totals) => store(writer.end(totals))?,
        }
    }
    Ok(())
}
