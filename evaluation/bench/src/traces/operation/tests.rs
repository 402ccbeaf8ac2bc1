use std::os::unix::ffi::OsStrExt;

use super::*;

fn understood(line: &str) -> Operation {
    serde_json::from_str::<Line<'_>>(line)
        .unwrap()
        .understood()
        .unwrap()
        .operation
}

#[test]
fn a_name_that_is_no_utf8_comes_back_byte_for_byte() {
    let Operation::Unlink { path } =
        understood(r#"{"t":1,"op":"unlink","path":"a\udc80\udcff\udcc3/\u00e9","size":0,"nlink":1}"#)
    else {
        panic!("not an unlink")
    };
    assert_eq!(path.as_os_str().as_bytes(), b"a\x80\xff\xc3/\xc3\xa9");
}

#[test]
fn trace_write_names_its_bytes_and_a_null_path_a_nameless_file() {
    let Operation::Write { handle, offset, data } =
        understood(r#"{"t":9,"op":"write","pid":7,"h":3,"path":null,"off":4096,"len":100,"d":12,"merged":1}"#)
    else {
        panic!("not a write")
    };
    assert_eq!((handle, offset, data), (3, 4096, Payload { start: 12, len: 100 }));
    assert!(matches!(
        understood(r#"{"t":9,"op":"truncate","path":null,"size":0,"old":5}"#),
        Operation::Truncate {
            path: None,
            handle: None,
            len_bytes: 0
        }
    ));
}

#[test]
fn an_owner_of_minus_one_stays_as_it_is() {
    let operation = understood(r#"{"t":9,"op":"chown","path":"a","uid":-1,"gid":100}"#);
    let expected = Owner {
        uid: None,
        gid: Some(100),
    };
    assert!(matches!(operation, Operation::Chown { owner, .. } if owner == expected));
}

#[test]
fn what_is_not_understood_is_refused() {
    for line in [
        r#"{"t":9,"op":"defragment","path":"a"}"#,
        r#"{"t":9,"op":"rename","src":"a"}"#,
    ] {
        assert!(
            serde_json::from_str::<Line<'_>>(line).unwrap().understood().is_err(),
            "{line}"
        );
    }
}
