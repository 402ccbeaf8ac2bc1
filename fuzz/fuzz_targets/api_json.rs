//! JSON bodies of the API, as both ends read them: what is understood is written as the same again.
#![no_main]

use byteback_api::messages::{
    BatchStatus, ChangesPage, ContentExtent, CreateSnapshot, DiffPage, ExtentsPage, FolderInfo, FolderList, Health,
    JoinRequest, JoinResponse, PartStaged, SnapshotPage, TreePage, VerifyEvent,
};
use byteback_api::{Digest, FolderName, Problem};
use byteback_model::{Attributes, BatchApplied, ByteString, FileId, NodeInfo, Snapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    let Some((which, json)) = data.split_first() else {
        return;
    };
    match which % 24 {
        0 => same::<JoinRequest>(json),
        1 => same::<JoinResponse>(json),
        2 => same::<FolderInfo>(json),
        3 => same::<FolderList>(json),
        4 => same::<Snapshot>(json),
        5 => same::<CreateSnapshot>(json),
        6 => same::<SnapshotPage>(json),
        7 => same::<BatchApplied>(json),
        8 => same::<BatchStatus>(json),
        9 => same::<PartStaged>(json),
        10 => same::<NodeInfo>(json),
        11 => same::<TreePage>(json),
        12 => same::<ContentExtent>(json),
        13 => same::<ExtentsPage>(json),
        14 => same::<ChangesPage>(json),
        15 => same::<DiffPage>(json),
        16 => same::<VerifyEvent>(json),
        17 => same::<Health>(json),
        18 => same::<Problem>(json),
        19 => same::<Attributes>(json),
        20 => same::<ByteString>(json),
        21 => same::<Digest>(json),
        22 => same::<FileId>(json),
        _ => same::<FolderName>(json),
    }
}

fn same<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(json: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(json) else {
        return;
    };
    let written = serde_json::to_vec(&value).expect("a message has a form");
    assert_eq!(
        serde_json::from_slice::<T>(&written).ok(),
        Some(value),
        "another message comes back"
    );
}

fn seeds() -> Vec<Vec<u8>> {
    let id = "00000000000000000000000000000007";
    let seeds = [
        (0, r#"{"join_token":"bbj_x","name":"n"}"#.to_owned()),
        (
            4,
            r#"{"id":1,"seq":2,"time_ns":3,"host":"h","path":{"base64":"/w=="},"tags":["t"]}"#.to_owned(),
        ),
        (12, r#"{"start":0,"end":4096,"kind":"data"}"#.to_owned()),
        (15, r#"{"items":[],"next_cursor":"c"}"#.to_owned()),
        (16, r#"{"event":"progress"}"#.to_owned()),
        (
            18,
            r#"{"type":"t","title":"t","status":409,"code":"conflict","detail":"d","next":"n"}"#.to_owned(),
        ),
        (20, r#"{"base64":"AA=="}"#.to_owned()),
        (22, format!("\"{id}\"")),
        (23, "\"mail\"".to_owned()),
    ];
    seeds
        .map(|(which, json)| [vec![which], json.into_bytes()].concat())
        .into()
}
