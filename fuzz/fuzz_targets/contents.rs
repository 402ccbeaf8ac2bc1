//! A stream of contents, and the request for it, as any peer may send them.
#![no_main]

use byteback_api::contents_request::ContentsRequest;
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::{CONTENT_LEN_MAX, CONTENTS_MAX, ContentsReader, ContentsWriter, RUNS_MAX};

byteback_fuzz::target!(check, seeds);

fn id(number: u32) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

fn check(data: &[u8]) {
    if let Ok(request) = ContentsRequest::decode(data) {
        assert!(request.encode() == data, "a request has one form");
    }
    let count = data
        .get(10..14)
        .map_or(0, |count| u32::from_le_bytes([count[0], count[1], count[2], count[3]]));
    let count = count.min(CONTENTS_MAX);
    let Ok(mut reader) = ContentsReader::new(data, count) else {
        return;
    };
    let mut contents = Vec::new();
    for number in 0..count {
        let Ok(content) = reader.next_of(id(number)) else {
            return;
        };
        if let Some(content) = &content {
            let mut end = 0;
            for (offset, bytes) in content.data() {
                assert!(end <= offset && !bytes.is_empty());
                end = offset + bytes.len() as u64;
            }
            assert!(end <= content.len_bytes() && content.len_bytes() <= CONTENT_LEN_MAX);
            assert!(content.data().count() <= RUNS_MAX);
        }
        contents.push(content);
    }
    let again = written(&contents);
    let mut reader = ContentsReader::new(&again[..], count).expect("ours");
    for (number, content) in (0..).zip(&contents) {
        assert!(
            reader.next_of(id(number)).expect("ours") == *content,
            "another content comes back"
        );
    }
}

fn written(contents: &[Option<ShortContent>]) -> Vec<u8> {
    let mut writer = ContentsWriter::new(Vec::new(), contents.len() as u32).expect("memory");
    for (number, content) in (0..).zip(contents) {
        writer.push(id(number), content.as_ref()).expect("memory");
    }
    writer.finish().expect("memory")
}

fn seeds() -> Vec<Vec<u8>> {
    let mut holey = ShortContent::zeros(9000);
    holey.push(100, &[1; 300]);
    holey.push(5000, b"data");
    let mut full = ShortContent::zeros(40);
    full.push(0, &[7; 40]);
    let contents = [Some(full), None, Some(holey), Some(ShortContent::zeros(0))];
    let request = ContentsRequest {
        at: 7,
        files: vec![byteback_model::FileId(1), byteback_model::FileId(2)],
    };
    vec![
        written(&contents),
        written(&contents[..1]),
        written(&[]),
        request.encode(),
    ]
}
