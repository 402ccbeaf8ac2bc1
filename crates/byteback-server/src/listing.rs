//! Calls that answer JSON: folders, snapshots, trees, nodes, extents, changes, differences.
//!
//! Cursors are positions in text form, opaque to clients, which pass them back. Names in cursors
//! are hexadecimal.

use crate::call::{Call, blocking, json, stream_permit};
use crate::convert;
use crate::problem::{Answer, parameter};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use byteback_api::messages::{
    ChangedRange, ChangesPage, ContentExtent, CreateSnapshot, DiffPage, ExtentKind, ExtentsPage, FolderList, Moment,
    PathVersion, SnapshotPage, TreePage, TreeTotals, VersionsPage,
};
use byteback_api::problem::Problem;
use byteback_model::{FileId, Seq};
use byteback_store::numbers::NodeNumber;
use byteback_store::read::{DiffCursor, TreeTarget};
use std::fmt::Write as _;

const LIMIT_DEFAULT: u32 = 1000;
const LIMIT_MAX: u32 = 10_000;

pub(crate) fn limit(call: &mut Call) -> Result<u32, Box<Problem>> {
    match call.query::<u32>("limit")?.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(parameter(format!("parameter 'limit' must be from 1 to {LIMIT_MAX}"))),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<Problem>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().ok_or_else(bad_cursor)
}

fn bad_cursor() -> Box<Problem> {
    parameter("parameter 'cursor' was not issued by this server")
}

pub(crate) async fn folders(mut call: Call) -> Answer {
    call.finish_query()?;
    let store = call.shared.store.clone();
    let given_to = (!call.manages).then_some(call.device);
    let (folders, given) = blocking(move || {
        let given = given_to.map(|device| store.roster().folders_of(device)).transpose()?;
        Ok((store.folders()?, given))
    })
    .await?;
    let folders = folders
        .into_iter()
        .filter(|folder| given.as_ref().is_none_or(|given| given.contains(&folder.name)))
        .map(convert::folder)
        .collect::<Result<Vec<_>, _>>()?;
    json(&FolderList { folders })
}

pub(crate) async fn folder_create(mut call: Call) -> Answer {
    call.finish_query()?;
    let name = call.folder()?;
    let store = call.shared.store.clone();
    let (folder, is_new) = blocking(move || store.create_folder(&name)).await?;
    let mut response = json(&convert::folder(folder)?)?;
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

pub(crate) async fn folder(mut call: Call) -> Answer {
    call.finish_query()?;
    let name = call.folder()?;
    let store = call.shared.store.clone();
    let (folder, knows_damage) = blocking(move || Ok((store.folder(&name)?, store.knows_damage()?))).await?;
    let mut info = convert::folder(folder)?;
    info.knows_damage = knows_damage;
    json(&info)
}

pub(crate) async fn batch_status(mut call: Call) -> Answer {
    let includes_digests = flag(&mut call, "digests")?;
    call.finish_query()?;
    let (name, counter) = (call.folder()?, call.param("counter")?);
    let (store, device) = (call.shared.store.clone(), call.device);
    let status = blocking(move || store.batch_status(&name, device, counter)).await?;
    json(&convert::batch_status(status, includes_digests))
}

pub(crate) async fn snapshots(mut call: Call) -> Answer {
    let name = call.folder()?;
    let limit = limit(&mut call)?;
    let after = call.query::<u64>("cursor")?.unwrap_or(0);
    call.finish_query()?;
    let store = call.shared.store.clone();
    let mut snapshots = blocking(move || store.snapshots(&name, after, limit.saturating_add(1))).await?;
    let mut next_cursor = None;
    if snapshots.len() > usize::try_from(limit).unwrap_or(usize::MAX) {
        snapshots.pop();
        next_cursor = snapshots.last().map(|last| last.id.to_string());
    }
    json(&SnapshotPage { snapshots, next_cursor })
}

pub(crate) async fn snapshot_create(mut call: Call) -> Answer {
    call.finish_query()?;
    let name = call.folder()?;
    let request: CreateSnapshot = call.take_json().await?;
    let store = call.shared.store.clone();
    let snapshot = blocking(move || store.create_snapshot(&name, request.seq, request.label)).await?;
    let mut response = json(&snapshot)?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

pub(crate) async fn snapshot_delete(mut call: Call) -> Answer {
    call.finish_query()?;
    let (name, id) = (call.folder()?, call.param("snapshot")?);
    let store = call.shared.store.clone();
    blocking(move || store.delete_snapshot(&name, id)).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

pub(crate) async fn tree(mut call: Call) -> Answer {
    let name = call.folder()?;
    let at = call.query::<Seq>("at")?;
    let limit = limit(&mut call)?;
    let target = match (call.query::<FileId>("parent")?, call.query.take_bytes("path")) {
        (Some(_), Some(_)) => return Err(parameter("give 'parent' or 'path', not both")),
        (Some(parent), None) => TreeTarget::Node(parent),
        (None, Some(path)) => TreeTarget::Path(path),
        (None, None) => TreeTarget::Root,
    };
    let after = call
        .query::<String>("cursor")?
        .map(|cursor| unhex(&cursor))
        .transpose()?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.tree(&name, at, &target, after.as_deref(), limit)).await?;
    let next_cursor = page.entries.last().filter(|_| page.more).map(|(name, _)| hex(name));
    let entries = page.entries.into_iter().map(convert::entry).collect();
    json(&TreePage {
        at: page.at,
        node: page.node,
        entries,
        next_cursor,
    })
}

pub(crate) async fn node(mut call: Call) -> Answer {
    let (name, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let tells_places = flag(&mut call, "places")?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    let (mut node, places) = blocking(move || {
        let node = store.node(&name, file, at)?;
        let places = tells_places.then(|| store.places(&name, file, at)).transpose()?;
        Ok((node, places))
    })
    .await?;
    node.places = places.map(|places| places.into_iter().map(convert::place).collect());
    json(&node)
}

pub(crate) async fn extents(mut call: Call) -> Answer {
    let (name, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let limit = limit(&mut call)?;
    let offset = call.query::<u64>("cursor")?.unwrap_or(0);
    call.finish_query()?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.extents(&name, file, at, offset, limit)).await?;
    let extent = |extent: byteback_store::read::ContentExtent| ContentExtent {
        offset: extent.range.start(),
        len: extent.range.len_bytes(),
        kind: if extent.is_data {
            ExtentKind::Data
        } else {
            ExtentKind::Hole
        },
    };
    let extents = page.extents.into_iter().map(extent).collect();
    json(&ExtentsPage {
        size: page.size,
        extents,
        next_cursor: page.next_offset.map(|offset| offset.to_string()),
    })
}

/// Whether the query asks for an optional part of the answer.
fn flag(call: &mut Call, name: &str) -> Result<bool, Box<Problem>> {
    match call.query::<u8>(name)? {
        None | Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(_) => Err(parameter(format!("parameter '{name}' must be 0 or 1"))),
    }
}

/// The two moments of a comparison.
fn moments(call: &mut Call) -> Result<(Seq, Option<Seq>), Box<Problem>> {
    let from = call
        .query::<Seq>("from")?
        .ok_or_else(|| parameter("parameter 'from' is missing"))?;
    Ok((from, call.query::<Seq>("to")?))
}

pub(crate) async fn changes(mut call: Call) -> Answer {
    let (name, file) = (call.folder()?, call.node()?);
    let moments = moments(&mut call)?;
    let limit = limit(&mut call)?;
    let offset = call.query::<u64>("cursor")?.unwrap_or(0);
    call.finish_query()?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.changes(&name, file, moments, offset, limit)).await?;
    let ranges = page.ranges.into_iter();
    json(&ChangesPage {
        size_from: page.size_from,
        size_to: page.size_to,
        ranges: ranges
            .map(|range| ChangedRange {
                offset: range.start(),
                len: range.len_bytes(),
            })
            .collect(),
        next_cursor: page.next_offset.map(|offset| offset.to_string()),
    })
}

pub(crate) async fn versions(mut call: Call) -> Answer {
    let name = call.folder()?;
    let path = call.query.take_bytes("path").unwrap_or_default();
    let limit = limit(&mut call)?;
    let before = call.query::<Seq>("cursor")?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.versions(&name, &path, before, limit)).await?;
    let version = |version: byteback_store::versions::PathVersion| PathVersion {
        since: convert::batch(version.since),
        until: version.until.map(convert::batch),
        node: version.node,
    };
    json(&VersionsPage {
        versions: page.versions.into_iter().map(version).collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    })
}

pub(crate) async fn moment(mut call: Call) -> Answer {
    let name = call.folder()?;
    let time_ns = call
        .query::<i64>("time_ns")?
        .ok_or_else(|| parameter("parameter 'time_ns' is missing".to_owned()))?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    let batch = blocking(move || store.moment(&name, time_ns)).await?;
    json(&Moment {
        batch: batch.map(convert::batch),
    })
}

pub(crate) async fn diff(mut call: Call) -> Answer {
    let name = call.folder()?;
    let moments = moments(&mut call)?;
    let limit = limit(&mut call)?;
    let own = flag(&mut call, "others")?.then_some(call.device);
    let cursor = call
        .query::<String>("cursor")?
        .map(|cursor| parse_diff_cursor(&cursor))
        .transpose()?;
    call.finish_query()?;
    let store = call.shared.store.clone();
    let page = blocking(move || store.diff(&name, moments, own, cursor, limit)).await?;
    let next_cursor = page.next.map(|next| match next {
        DiffCursor::Name(parent, name) => format!("n{parent}.{}", hex(&name)),
        DiffCursor::Node(node) => format!("c{node}"),
    });
    let changes = page.changes.into_iter().map(convert::diff_item).collect();
    json(&DiffPage {
        from: moments.0,
        to: page.to,
        changes,
        next_cursor,
    })
}

fn parse_diff_cursor(text: &str) -> Result<DiffCursor, Box<Problem>> {
    if let Some(node) = text.strip_prefix('c') {
        let node = node.parse().map(NodeNumber).map_err(|_| bad_cursor())?;
        return Ok(DiffCursor::Node(node));
    }
    let (parent, name) = text
        .strip_prefix('n')
        .and_then(|rest| rest.split_once('.'))
        .ok_or_else(bad_cursor)?;
    Ok(DiffCursor::Name(
        parent.parse().map(NodeNumber).map_err(|_| bad_cursor())?,
        unhex(name)?,
    ))
}

pub(crate) async fn totals(mut call: Call) -> Answer {
    let (folder, node) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let permit = stream_permit(&call.shared).await?;
    let store = call.shared.store.clone();
    let totals = blocking(move || store.totals(&folder, node, at)).await?;
    drop(permit);
    json(&TreeTotals {
        names: totals.names,
        files: totals.files,
        bytes: totals.bytes,
    })
}
