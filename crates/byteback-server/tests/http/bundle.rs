//! Contents and digests of many files at once.

use super::*;
use byteback_api::messages::{BUNDLED_MAX, DIGESTED_TOTAL_MAX, DIGESTS_MAX};
use byteback_delta::ContentDigest;
use byteback_delta::bundle::{self, ShortContent};

/// A file whose stored bytes lie between holes.
pub(crate) fn holey() -> (Vec<u8>, Vec<u8>) {
    let mut bytes = vec![0; 50_000];
    bytes[20_000..20_100].copy_from_slice(&noise(9, 100));
    let delta = delta(0, bytes.len(), 20_000, &bytes[20_000..20_100]);
    (bytes, delta)
}

/// The files of a batch, with their contents.
pub(crate) fn files() -> Vec<(FileId, Vec<u8>)> {
    let mut files: Vec<(FileId, Vec<u8>)> = (10..30)
        .map(|number| {
            (
                FileId(number),
                noise(number.try_into().unwrap(), 300 * (number as usize - 10)),
            )
        })
        .collect();
    files.push((FileId(30), noise(30, 64 * 1024)));
    files.push((FileId(31), noise(31, 64 * 1024 + 1)));
    // More than a bundle holds in all.
    files.extend((100..170).map(|number| (FileId(number), noise(7, 64 * 1024))));
    files
}

pub(crate) fn commit_all(world: &World, files: &[(FileId, Vec<u8>)]) {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    writer.manifest(&world.manifest(1, None)).unwrap();
    writer.node(&node(ROOT, NodeKind::Directory, 0, None)).unwrap();
    let content = ContentChange {
        deltas: 1,
        base: ContentBase::Empty,
    };
    let (holey_bytes, holey_delta) = holey();
    let mut deltas = vec![(FileId(40), holey_bytes.len(), holey_delta)];
    deltas.extend(
        files
            .iter()
            .map(|(id, bytes)| (*id, bytes.len(), delta(0, bytes.len(), 0, bytes))),
    );
    for (id, len, _) in &deltas {
        writer.node(&node(*id, NodeKind::File, *len, Some(content))).unwrap();
    }
    for (id, ..) in &deltas {
        let record = NameChange {
            parent: ROOT,
            name: id.to_string().as_str().into(),
            child: Some(*id),
        };
        writer.entry(&record).unwrap();
    }
    for (id, _, delta) in &deltas {
        writer.delta(*id, delta).unwrap();
    }
    world.commit(1, &writer.end().unwrap()).expect(200);
}

fn ask(world: &World, route: &str, ids: &[FileId]) -> Answer {
    let wanted = serde_json::json!({ "at": 1, "files": ids });
    let body = serde_json::to_vec(&wanted).unwrap();
    let json = [("content-type", "application/json")];
    let target = format!("/v1/folders/f/{route}");
    request(
        world.server.address(),
        "POST",
        &target,
        Some(&world.token),
        &body,
        &json,
    )
}

fn bundle_of(world: &World, ids: &[FileId]) -> Vec<Option<ShortContent>> {
    let answer = ask(world, "bundle", ids).expect(200);
    assert_eq!(answer.header("content-type"), "application/vnd.byteback.bundle");
    let contents = bundle::read(&answer.body[..], ids.len()).unwrap();
    assert_eq!(contents.len(), ids.len());
    contents
}

#[test]
fn short_contents_come_in_a_bundle_in_the_order_asked() {
    let world = World::new();
    let files = files();
    commit_all(&world, &files);
    let mut ids: Vec<FileId> = (10..=31).rev().map(FileId).collect();
    ids.extend([FileId(40), FileId(12), ROOT, FileId(999)]);
    let contents = bundle_of(&world, &ids);
    for (id, content) in ids.iter().zip(&contents) {
        let content = content.as_ref();
        let file = files.iter().find(|(file, _)| file == id);
        match (id.0, file) {
            (31 | 999, _) | (_, None) if id.0 != 40 => assert!(content.is_none(), "{id}"),
            (40, _) => {
                let content = content.unwrap();
                assert!(content.to_bytes() == holey().0);
                // Holes are sent as such.
                assert!(content.data().all(|(_, bytes)| bytes.len() < 30_000));
            }
            (_, Some((_, bytes))) => assert!(content.unwrap().to_bytes() == *bytes, "{id}"),
            (_, None) => unreachable!(),
        }
    }
    // Contents without room are left out; a short one behind them is still sent.
    let mut ids: Vec<FileId> = (100..170).map(FileId).collect();
    ids.push(FileId(10));
    let contents = bundle_of(&world, &ids);
    assert_eq!(contents.iter().filter(|content| content.is_some()).count(), 64 + 1);
    assert!(contents.last().unwrap().is_some());
    assert!(bundle_of(&world, &[]).is_empty());
    let many = vec![FileId(10); BUNDLED_MAX + 1];
    ask(&world, "bundle", &many).problem(400, "invalid_parameter");
    ask(&world, "bundle", &many[1..]).expect(200);
}

#[test]
fn digests_come_in_the_order_asked() {
    let world = World::new();
    let files = files();
    commit_all(&world, &files);
    let ids: Vec<FileId> = files.iter().map(|(id, _)| *id).chain([ROOT, FileId(999)]).collect();
    let reported = ask(&world, "digests", &ids).expect(200).json();
    let reported = reported["digests"].as_array().unwrap();
    assert_eq!(reported.len(), ids.len());
    for ((id, bytes), reported) in files.iter().zip(reported) {
        let mut digest = ContentDigest::new(bytes.len() as u64);
        digest.push(bytes);
        let hex: String = digest
            .finish()
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(reported.as_str(), Some(hex.as_str()), "{id}");
    }
    assert!(reported[files.len()..].iter().all(serde_json::Value::is_null));
    ask(&world, "digests", &vec![FileId(10); DIGESTS_MAX + 1]).problem(400, "invalid_parameter");
}

#[test]
fn digests_of_long_contents_end_at_their_total() {
    let world = World::new();
    let mut files = files();
    let long = usize::try_from(DIGESTED_TOTAL_MAX / 2 + 1).unwrap();
    files.push((FileId(200), vec![0; long]));
    commit_all(&world, &files);
    let ids = [200, 200, 31, 30].map(FileId);
    let reported = ask(&world, "digests", &ids).expect(200).json();
    let are_null: Vec<bool> = reported["digests"]
        .as_array()
        .unwrap()
        .iter()
        .map(serde_json::Value::is_null)
        .collect();
    assert_eq!(are_null, [false, true, false, false]);
}

#[test]
fn damaged_contents_are_left_out_of_a_bundle() {
    let world = World::new();
    let files = [(FileId(10), noise(1, 60_000)), (FileId(11), noise(2, 60_000))];
    commit_all(&world, &files);
    let segments = world.dir.path().join("segments");
    let segment = std::fs::read_dir(segments).unwrap().next().unwrap().unwrap().path();
    let mut raw = std::fs::read(&segment).unwrap();
    let at = raw
        .windows(32)
        .position(|bytes| *bytes == files[1].1[1000..1032])
        .unwrap();
    raw[at] ^= 1;
    std::fs::write(&segment, raw).unwrap();
    let contents = bundle_of(&world, &[FileId(11), FileId(10)]);
    assert!(contents[0].is_none());
    assert!(contents[1].as_ref().unwrap().to_bytes() == files[0].1);
}
