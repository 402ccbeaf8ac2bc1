//! Queries of URLs, and what stands in them.
#![no_main]

use byteback_api::query::{Query, encode};
use byteback_api::{Digest, FolderName};
use byteback_delta::signature::{Signature, SignatureRequest, SignatureWriter};
use byteback_model::FileId;

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    // Whatever bytes a value has, they arrive.
    let text = format!("path={}&at=1", encode(data));
    let mut query = Query::parse(Some(&text)).expect("two parameters");
    assert_eq!(query.take_bytes("path").as_deref(), Some(data));
    assert_eq!(query.take::<u64>("at"), Ok(Some(1)));
    assert_eq!(query.finish(), Ok(()));
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(mut query) = Query::parse(Some(text)) {
        for name in ["path", "at", "block", "cursor"] {
            let _ = query.take::<u64>(name);
        }
        let _ = query.finish();
    }
    if let Ok(id) = text.parse::<FileId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(name) = text.parse::<FolderName>() {
        assert_eq!(name.to_string(), text);
    }
    let mut request = SignatureRequest::default();
    if request.prefer_weak(text).is_ok() {
        // What is known of a list is asked for again in the same order.
        let mut again = SignatureRequest::default();
        let names = request.weak_names().expect("one is known");
        assert!(again.prefer_weak(&names).is_ok() && again == request);
    }
    if request.prefer_strong(text).is_ok() {
        let params = request.params(data.len() as u64, 1);
        let mut writer =
            SignatureWriter::new(Vec::new(), params, data.len() as u64).expect("what is chosen is possible");
        writer.push(data).expect("memory");
        assert!(Signature::read(&writer.finish().expect("all came")[..], 1 << 20).is_ok());
    }
    if let Some(digest) = Digest::parse(text) {
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "path=a%2Fb&at=7",
        "block=%34",
        "at=1&at=2",
        "mail",
        "rolling,crc32c",
        "tree-blake3,no,sha256",
        "00000000000000000000000000000007",
        "=&&=",
    ]
    .map(|seed| seed.as_bytes().to_vec())
    .into()
}
