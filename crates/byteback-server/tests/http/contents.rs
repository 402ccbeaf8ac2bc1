//! The contents of many small files as a stream.

use super::bundle::{commit_all, files, holey};
use super::*;
use byteback_api::contents_request::{ContentsRequest, REQUEST_LEN_MAX};
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::{CONTENT_LEN_MAX, CONTENTS_MAX, ContentsReader};
use std::io::Read;

const MEDIA: [(&str, &str); 1] = [("content-type", "application/vnd.byteback.contents-request")];

const TARGET: &str = "/v1/folders/f/contents";

fn ask_for(world: &World, at: u64, ids: &[FileId]) -> Answer {
    let body = ContentsRequest {
        at,
        files: ids.to_vec(),
    }
    .encode();
    request(
        world.server.address(),
        "POST",
        TARGET,
        Some(&world.token),
        &body,
        &MEDIA,
    )
}

fn contents_of(world: &World, ids: &[FileId]) -> Vec<Option<ShortContent>> {
    let answer = ask_for(world, 1, ids).expect(200);
    assert_eq!(answer.header("content-type"), "application/vnd.byteback.contents");
    assert!(answer.complete);
    let mut reader = ContentsReader::new(&answer.body[..], ids.len() as u32).unwrap();
    let contents = ids.iter().map(|id| reader.next_of(id.to_bytes()).unwrap()).collect();
    assert!(reader.into_inner().is_empty());
    contents
}

#[test]
fn contents_come_as_a_stream_in_the_order_asked() {
    let world = World::new();
    let mut files = files();
    files.push((FileId(200), noise(200, CONTENT_LEN_MAX as usize)));
    files.push((FileId(201), noise(201, CONTENT_LEN_MAX as usize + 1)));
    files.push((FileId(202), Vec::new()));
    commit_all(&world, &files);
    // Longer than all windows of the server together; some twice, some that have no contents.
    let mut ids: Vec<FileId> = (10..=31).rev().chain(100..170).chain(200..203).map(FileId).collect();
    ids.extend([FileId(40), FileId(12), ROOT, FileId(999), FileId(12)]);
    for (id, content) in ids.iter().zip(contents_of(&world, &ids)) {
        let file = files.iter().find(|(file, _)| file == id);
        match (id.0, file) {
            (1 | 201 | 999, _) => assert!(content.is_none(), "{id}"),
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
    assert!(contents_of(&world, &[]).is_empty());
}

#[test]
fn contents_requests_with_wrong_bytes_are_refused() {
    let world = World::new();
    commit_all(&world, &files());
    let send = |body: &[u8]| request(world.server.address(), "POST", TARGET, Some(&world.token), body, &MEDIA);
    let many = |count: u32| ContentsRequest {
        at: 1,
        files: vec![FileId(10); count as usize],
    };
    send(&many(CONTENTS_MAX + 1).encode()).problem(413, "body_too_large");
    send(&vec![0; REQUEST_LEN_MAX as usize + 1]).problem(413, "body_too_large");
    let mut lying = many(3).encode();
    lying[18] = 200;
    send(&lying).problem(400, "invalid_body");
    lying[18..22].copy_from_slice(&u32::MAX.to_le_bytes());
    send(&lying).problem(400, "invalid_body");
    send(b"{\"at\":1,\"files\":[]}").problem(400, "invalid_body");
    send(b"").problem(400, "invalid_body");
    let json = [("content-type", "application/json")];
    let body = many(1).encode();
    let answer = request(world.server.address(), "POST", TARGET, Some(&world.token), &body, &json);
    answer.problem(400, "invalid_parameter");
    ask_for(&world, 9, &[FileId(10)]).problem(400, "invalid_parameter");
    ask_for(&world, 0, &[FileId(10)]).problem(400, "invalid_parameter");
    request(world.server.address(), "POST", TARGET, None, &body, &MEDIA).problem(401, "unauthorized");
    ask_for(&world, 1, &vec![FileId(12); CONTENTS_MAX as usize]).expect(200);
}

#[test]
fn damaged_contents_are_left_out_of_a_stream() {
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
    let contents = contents_of(&world, &[FileId(11), FileId(10)]);
    assert!(contents[0].is_none());
    assert!(contents[1].as_ref().unwrap().to_bytes() == files[0].1);
    assert!(world.store.knows_damage().unwrap(), "a backup heals what is noted");
}

#[test]
fn contents_stream_ends_when_its_client_goes_away() {
    let world = World::with(|config| config.streams_max = 1);
    let files: Vec<(FileId, Vec<u8>)> = (0..64)
        .map(|number| (FileId(300 + number), noise(number as u64, CONTENT_LEN_MAX as usize)))
        .collect();
    commit_all(&world, &files);
    let ids: Vec<FileId> = files.iter().map(|(id, _)| *id).collect();
    for _ in 0..3 {
        let body = ContentsRequest {
            at: 1,
            files: ids.clone(),
        }
        .encode();
        let mut stream = connect(world.server.address());
        let head = head("POST", TARGET, Some(&world.token), body.len(), &MEDIA);
        stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        stream.read_exact(&mut [0; 5000]).unwrap();
    }
    // The only place for streams is free again.
    let contents = contents_of(&world, &ids[..3]);
    assert!(contents.iter().all(Option::is_some));
}
