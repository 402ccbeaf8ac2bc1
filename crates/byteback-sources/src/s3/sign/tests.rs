use super::*;

#[test]
fn times_are_those_of_the_calendar() {
    for (unix_s, text) in [
        (0, "19700101T000000Z"),
        (951_782_399, "20000228T235959Z"),
        (951_782_400, "20000229T000000Z"),
        (1_369_353_600, "20130524T000000Z"),
        (4_107_542_399, "21000228T235959Z"),
        (4_107_542_400, "21000301T000000Z"),
        (-1, "19691231T235959Z"),
    ] {
        assert_eq!(time_text(unix_s), text);
    }
}

#[test]
fn paths_and_queries_are_escaped_as_signatures_want_it() {
    assert_eq!(escaped("a/b c+\u{e9}~", true), "a/b%20c%2B%C3%A9~");
    assert_eq!(escaped("a/b", false), "a%2Fb");
    assert_eq!(
        query_text(&[("versionId", "a=b".to_owned()), ("attributes", String::new())]),
        "attributes=&versionId=a%3Db"
    );
}

/// The example of the service's documentation: "GET Object".
#[test]
fn the_signature_is_that_of_the_documented_example() {
    let credentials = Credentials {
        access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        session_token: None,
    };
    let unsigned = Unsigned {
        method: "GET",
        host: "examplebucket.s3.amazonaws.com",
        path: "/test.txt",
        query: &[],
        headers: &[("range", "bytes=0-9".to_owned())],
    };
    let headers = sign(&unsigned, &credentials, "us-east-1", 1_369_353_600);
    let (_, authorization) = headers.last().unwrap();
    assert!(
        authorization.ends_with("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        "{authorization}"
    );
}
