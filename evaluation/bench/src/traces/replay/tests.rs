use std::fs;

use super::*;

/// Writes a trace as its recorder does.
fn trace(folder: &Path, operations: &str, payload: &[u8], final_hash: &str) -> Trace {
    let packed = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    fs::write(folder.join("ops.jsonl.zst"), packed(operations.as_bytes())).unwrap();
    fs::write(folder.join("data.zst"), packed(payload)).unwrap();
    let description = format!(
        r#"{{"format":1,"name":"t","init_len":0,"payload_len":{},"final_hash":"{final_hash}","marks":[]}}"#,
        payload.len()
    );
    fs::write(folder.join("trace.json"), description).unwrap();
    Trace::load(folder).unwrap()
}

#[test]
fn a_replay_ends_in_the_recorded_tree() {
    let folder = tempfile::tempdir().unwrap();
    let operations = r#"{"t":1,"op":"proc","pid":1,"comm":"vim"}
{"t":2,"op":"mkdir","path":"notes","mode":493}
{"t":3,"op":"create","path":"notes/new","h":1,"mode":416,"excl":1}
{"t":4,"op":"write","h":1,"path":"notes/new","off":3,"len":5,"d":0}
{"t":5,"op":"rename","src":"notes/new","dst":"notes/old","flags":0,"over":0}
{"t":6,"op":"write","h":1,"path":"notes/old","off":0,"len":3,"d":5}
{"t":7,"op":"close","h":1,"path":"notes/old","bytes":8}
{"t":8,"op":"link","src":"notes/old","dst":"same"}
{"t":9,"op":"symlink","path":"arrow","target":"notes/old"}
{"t":10,"op":"truncate","path":"same","size":7,"old":8}
{"t":11,"op":"open","path":null,"h":2}
{"t":12,"op":"write","h":2,"path":null,"off":0,"len":2,"d":8}
{"t":13,"op":"mark","name":"end"}
"#;
    let trace = trace(folder.path(), operations, b"defghabcxx", "");
    let target = folder.path().join("target");
    fs::create_dir(&target).unwrap();
    let pace = Pace::Recorded {
        gap_max: Duration::from_millis(1),
    };
    let replayed = replay(&trace, &target, pace, true, &Unmasked::begin()).unwrap();
    assert_eq!(fs::read(target.join("same")).unwrap(), b"abcdefg");
    assert_eq!(fs::read(target.join("notes/old")).unwrap(), b"abcdefg");
    assert_eq!(fs::read_link(target.join("arrow")).unwrap(), Path::new("notes/old"));
    assert_eq!(replayed.skipped, 2, "opening and writing what has no name");
}

#[test]
fn an_operation_that_fails_ends_the_replay_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let operations = "{\"t\":1,\"op\":\"unlink\",\"path\":\"missing\",\"size\":0,\"nlink\":1}\n";
    let trace = trace(folder.path(), operations, b"", "");
    let error = replay(&trace, folder.path(), Pace::FullSpeed, false, &Unmasked::begin())
        .unwrap_err()
        .to_string();
    assert!(error.contains("operation 1") && error.contains("missing"), "{error}");
}
