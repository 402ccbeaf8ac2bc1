//! Calls about damaged contents, and about repairing them.

use crate::body::{BodyLimits, collect};
use crate::call::{Call, blocking, json, stream_permit};
use crate::convert;
use crate::listing::limit;
use crate::problem::{Answer, parameter};
use byteback_api::messages::{DamagePage, Healed, KnownDamage};
use byteback_model::Seq;
use byteback_store::numbers::SegmentNumber;

/// Most bytes that a frame decodes to.
const FRAME_LEN_MAX: u64 = 256 * 1024;

pub(crate) async fn damage(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let limit = limit(&mut call)?;
    let offset = call.query::<u64>("cursor")?.unwrap_or(0);
    call.finish_query()?;
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.damage(&folder, file, at, offset, limit)).await?;
    drop(permit);
    json(&DamagePage {
        size: page.size,
        ranges: page.ranges.into_iter().map(convert::damaged_range).collect(),
        next_cursor: page.next_offset.map(|offset| offset.to_string()),
    })
}

pub(crate) async fn known_damage(mut call: Call) -> Answer {
    let folder = call.folder()?;
    let limit = limit(&mut call)?;
    call.finish_query()?;
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let frames = blocking(move || store.known_damage(&folder, limit)).await?;
    drop(permit);
    json(&KnownDamage {
        frames: frames.into_iter().map(convert::damaged_frame).collect(),
    })
}

pub(crate) async fn heal(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let frame = call.query::<String>("frame")?.unwrap_or_default();
    call.finish_query()?;
    let place = frame
        .split_once('-')
        .and_then(|(segment, offset)| Some((SegmentNumber(segment.parse().ok()?), offset.parse().ok()?)))
        .ok_or_else(|| parameter("parameter 'frame' was not issued by this server"))?;
    let limits = BodyLimits {
        len_max: FRAME_LEN_MAX,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: None,
    };
    let raw = collect(std::mem::take(&mut call.body), limits).await?;
    let store = call.shared.store.clone();
    let healed = blocking(move || store.heal(&folder, file, at, place, &raw)).await?;
    json(&Healed { healed })
}
