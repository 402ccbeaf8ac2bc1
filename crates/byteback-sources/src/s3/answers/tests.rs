use super::*;

fn answer(headers: &[(&str, &str)]) -> Answer {
    Answer {
        status: 200,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        body: Vec::new(),
    }
}

/// Two parts as MinIO listed them once, and the object's checksum made of theirs.
fn seed() -> (Head, Parts) {
    let seed = String::from_utf8(crate::fuzzing::s3_seeds().swap_remove(0)).unwrap();
    let (headers, body) = seed.split_once("\n\n").unwrap();
    let headers: Vec<_> = headers.lines().filter_map(|line| line.split_once(": ")).collect();
    let head = Head::parse(&answer(&headers)).unwrap();
    (head, Parts::parse(body.as_bytes(), Kind::Sha256).unwrap())
}

#[test]
fn headers_say_which_checksum_there_is() {
    let (head, _) = seed();
    assert_eq!((head.len_bytes, head.parts()), (5_342_880, Some(2)));
    assert!(matches!(head.sum, Some((Kind::Sha256, Whole::Parts(_)))));
    let whole = [
        ("Content-Length", "9"),
        ("ETag", "\"a\""),
        ("X-Amz-Checksum-Crc32c", "4waSgw=="),
    ];
    let head = Head::parse(&answer(&whole)).unwrap();
    assert_eq!(
        head.sum,
        Some((Kind::Crc32c, Whole::Bytes(vec![0xe3, 0x06, 0x92, 0x83])))
    );
    assert_eq!(
        in_their_order(Kind::Crc32c, &[0xe3, 0x06, 0x92, 0x83]),
        0xe306_9283_u32.to_le_bytes()
    );
    assert_eq!(head.parts(), None);
    let none = Head::parse(&answer(&[("content-length", "9"), ("etag", "\"a\"")])).unwrap();
    assert_eq!(none.sum, None);
    for hostile in [
        &[("etag", "\"a\"")][..],
        &[("content-length", "-1"), ("etag", "\"a\"")],
        &[("content-length", "+9"), ("etag", "\"a\"")],
        &[("content-length", "99999999999999999999"), ("etag", "\"a\"")],
        &[("content-length", "9")],
        &[
            ("content-length", "9"),
            ("etag", "\"a\""),
            ("x-amz-checksum-sha256", "4waSgw=="),
        ],
        &[
            ("content-length", "9"),
            ("etag", "\"a\""),
            ("x-amz-checksum-crc32c", "no base64"),
        ],
    ] {
        assert!(Head::parse(&answer(hostile)).is_err(), "{hostile:?}");
    }
}

#[test]
fn parts_that_do_not_make_the_object_do_not_fit() {
    let (head, page) = seed();
    let fitting = fit(&head, page.count, &page.parts).unwrap();
    assert_eq!((fitting.part_len_bytes, fitting.sums.len()), (5_242_880, 2));
    let refused = |what: &str, change: &dyn Fn(&mut Head, &mut Parts)| {
        let (mut head, mut page) = (head.clone(), page.clone());
        change(&mut head, &mut page);
        assert!(fit(&head, page.count, &page.parts).is_err(), "{what}");
    };
    refused("cut short", &|_, page| drop(page.parts.pop()));
    refused("cut short, and so announced", &|head, page| {
        page.parts.pop();
        page.count = Some(1);
        head.len_bytes = 5_242_880;
        head.etag = "\"a-1\"".to_owned();
    });
    refused("swapped", &|_, page| page.parts.swap(0, 1));
    refused("twice", &|_, page| page.parts[1].number = 1);
    refused("another length", &|head, _| head.len_bytes += 1);
    refused("an empty part", &|head, page| {
        head.len_bytes = 5_242_880;
        page.parts[1].len_bytes = 0;
    });
    refused("lengths that overflow", &|_, page| page.parts[1].len_bytes = u64::MAX);
    refused("another upload's checksum", &|_, page| {
        page.parts[0].sum.as_mut().unwrap()[5] ^= 1
    });
    refused("another object's checksum", &|head, _| {
        head.sum = Some((Kind::Sha256, Whole::Parts(vec![0; 32])));
    });
    refused("a part without a checksum", &|_, page| page.parts[1].sum = None);
    refused("no part", &|_, page| page.parts.clear());
    // A last part that is longer than the others.
    refused("uneven", &|_, page| {
        page.parts[0].len_bytes = 100_000;
        page.parts[1].len_bytes = 5_242_880;
    });
}

/// The CRC of an object follows from those of its parts.
#[test]
fn whole_checksums_of_objects_in_parts_are_compared() {
    for (kind, of) in [
        (Kind::Crc32c, crc_fast::crc32_iscsi as fn(&[u8]) -> u32),
        (Kind::Crc32, crc_fast::crc32_iso_hdlc),
    ] {
        let part = |number, bytes: &[u8]| Part {
            number,
            len_bytes: bytes.len() as u64,
            sum: Some(of(bytes).to_be_bytes().to_vec()),
        };
        let parts = [part(1, b"one1"), part(2, b"two2"), part(5, b"3")];
        let mut head = Head {
            len_bytes: 9,
            etag: "\"a-3\"".to_owned(),
            version: None,
            last_modified: String::new(),
            sum: Some((kind, Whole::Bytes(of(b"one1two23").to_be_bytes().to_vec()))),
        };
        assert!(fit(&head, Some(3), &parts).is_ok());
        head.sum = Some((kind, Whole::Bytes(of(b"one1two24").to_be_bytes().to_vec())));
        assert!(matches!(fit(&head, Some(3), &parts), Err(Unfit::Malformed(_))));
    }
}

#[test]
fn s3_refuses_malformed_part_lists() {
    for body in [
        &b"\xff"[..],
        b"",
        b"<html/>",
        b"<GetObjectAttributesResponse>",
        b"<GetObjectAttributesResponse><ObjectSize>-1</ObjectSize></GetObjectAttributesResponse>",
        b"<GetObjectAttributesResponse><ObjectParts><Part><Size>1</Size></Part></ObjectParts></GetObjectAttributesResponse>",
        b"<GetObjectAttributesResponse><ObjectParts><IsTruncated>true</IsTruncated></ObjectParts></GetObjectAttributesResponse>",
        // Entities that expand without end in other parsers.
        b"<!DOCTYPE a [<!ENTITY b \"bbbbbbbbbbbb\"><!ENTITY c \"&b;&b;&b;&b;\">]><GetObjectAttributesResponse>&c;</GetObjectAttributesResponse>",
    ] {
        assert!(Parts::parse(body, Kind::Crc32c).is_err(), "{}", String::from_utf8_lossy(body));
    }
    assert_eq!(error_code(b"<Error><Code>AccessDenied</Code></Error>"), "AccessDenied");
    assert_eq!(error_code(b"<Error><Code>\x1b[31m</Code></Error>"), "");
}

/// Parsing XML costs the square of the number of an element's attributes, and the cube of the
/// nesting depth of namespaces: 36 s for an answer of 100 KB.
#[test]
fn answers_that_cost_more_than_their_length_are_refused() {
    let around = |inner: &str| format!("<GetObjectAttributesResponse>{inner}</GetObjectAttributesResponse>");
    let attributes: String = (0..2000).map(|number| format!(" a{number}='{number}'")).collect();
    let spaces: String = (0..500)
        .map(|number| format!("<a xmlns:n{number}='{number}'>"))
        .collect();
    let hostile = [
        around(&format!("<a{attributes}/>")),
        // After a character that ends a tag outside of an attribute.
        around(&format!("<a b='>'{attributes}/>")),
        around(&format!("{spaces}{}", "</a>".repeat(500))),
    ];
    for text in hostile {
        assert!(Parts::parse(text.as_bytes(), Kind::Crc32c).is_err());
    }
    let spaces = "<Error xmlns='a' xmlns:b='c'><Code>Slow</Code></Error>";
    assert_eq!(error_code(spaces.as_bytes()), "Slow");
    assert_eq!(
        error_code(format!("<Error{attributes}><Code>Slow</Code></Error>").as_bytes()),
        ""
    );
    assert!(Parts::parse(around("<ObjectSize>7</ObjectSize>").as_bytes(), Kind::Crc32c).is_ok());
}
