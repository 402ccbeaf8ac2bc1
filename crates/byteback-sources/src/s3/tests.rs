//! A server in memory, stricter than real ones, whose answers are spoiled in every conceivable way:
//! the result for an object is true of its bytes, or an error.

use std::cell::{Cell, RefCell};

use base64::Engine;
use byteback_host::clock::SimClock;
use byteback_host::random::SplitMix64;

use super::*;
use byteback_checksums::source::{Kind, VerifyError, verify};

struct Object {
    content: Vec<u8>,
    kind: Kind,
    /// Lengths of parts; an object that was sent at once has none.
    parts: Vec<usize>,
    is_composite: bool,
    version: u64,
}

type Spoil<'a> = Box<dyn Fn(&Server, &Request, &mut Answer) + 'a>;

/// A server with one object, and a hook that spoils the answers about it.
struct Server {
    object: RefCell<Object>,
    asked: Cell<u64>,
    spoil: RefCell<Spoil<'static>>,
}

fn name(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Sha256 => ("x-amz-checksum-sha256", "ChecksumSHA256"),
        Kind::Crc64Nvme => ("x-amz-checksum-crc64nvme", "ChecksumCRC64NVME"),
        Kind::Crc32c => ("x-amz-checksum-crc32c", "ChecksumCRC32C"),
        _ => ("x-amz-checksum-sha1", "ChecksumSHA1"),
    }
}

fn raw_sum(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let layout = Layout {
        kind,
        salt: Vec::new(),
        block_len: u32::MAX,
        tail: Tail::AsIs,
    };
    let mut sum = Vec::new();
    layout.append_sum(bytes, &mut sum);
    in_their_order(kind, &sum)
}

fn text(sum: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(sum)
}

impl Object {
    fn made(random: &mut SplitMix64) -> Self {
        let part_len = 1 + random.below(3000) as usize;
        let mut parts = vec![part_len; random.below(7) as usize];
        if let Some(last) = parts.last_mut() {
            *last = 1 + random.below(part_len as u64) as usize;
        }
        let len = match parts.iter().sum::<usize>() {
            0 => 1 + random.below(5000) as usize,
            len => len,
        };
        Self {
            content: (0..len).map(|_| random.next_u64() as u8).collect(),
            kind: [Kind::Sha256, Kind::Crc64Nvme, Kind::Crc32c][random.below(3) as usize],
            is_composite: !parts.is_empty() && random.below(2) == 0,
            parts,
            version: 0,
        }
    }

    fn part_sums(&self) -> Vec<Vec<u8>> {
        let mut rest = &self.content[..];
        let each = self.parts.iter().map(|len| {
            let (part, later) = rest.split_at(*len);
            rest = later;
            raw_sum(self.kind, part)
        });
        each.collect()
    }

    fn etag(&self) -> String {
        match self.parts.len() {
            0 => format!("\"v{}\"", self.version),
            parts => format!("\"v{}-{parts}\"", self.version),
        }
    }

    fn head(&self) -> Answer {
        let sum = match self.is_composite {
            true => raw_sum(self.kind, &self.part_sums().concat()),
            false => raw_sum(self.kind, &self.content),
        };
        let headers = [
            ("content-length", self.content.len().to_string()),
            ("etag", self.etag()),
            (name(self.kind).0, text(&sum)),
            (
                "x-amz-checksum-type",
                ["FULL_OBJECT", "COMPOSITE"][usize::from(self.is_composite)].to_owned(),
            ),
        ];
        Answer {
            status: 200,
            headers: headers
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            body: Vec::new(),
        }
    }

    fn bytes(&self, first: usize, last: usize) -> Answer {
        let range = format!("bytes {first}-{last}/{}", self.content.len());
        Answer {
            status: 206,
            headers: vec![("content-range".to_owned(), range), ("etag".to_owned(), self.etag())],
            body: self.content[first..=last].to_vec(),
        }
    }

    /// Pages of two parts.
    fn attributes(&self, after: usize) -> Answer {
        let sums = self.part_sums();
        let parts: String = (after..self.parts.len().min(after + 2))
            .map(|index| {
                let tag = name(self.kind).1;
                format!(
                    "<Part><PartNumber>{}</PartNumber><Size>{}</Size><{tag}>{}</{tag}></Part>",
                    index + 1,
                    self.parts[index],
                    text(&sums[index])
                )
            })
            .collect();
        let body = format!(
            "<GetObjectAttributesResponse><ETag>{}</ETag><ObjectSize>{}</ObjectSize><ObjectParts><PartsCount>{}</PartsCount>\
             <IsTruncated>{}</IsTruncated><NextPartNumberMarker>{}</NextPartNumberMarker>{parts}</ObjectParts></GetObjectAttributesResponse>",
            self.etag().trim_matches('"'),
            self.content.len(),
            self.parts.len(),
            after + 2 < self.parts.len(),
            after + 2,
        );
        Answer {
            status: 200,
            headers: Vec::new(),
            body: body.into_bytes(),
        }
    }
}

impl Http for Server {
    fn ask(&self, request: &Request) -> std::io::Result<Answer> {
        self.asked.set(self.asked.get() + 1);
        let object = self.object.borrow();
        let header = |name: &str| {
            request
                .headers
                .iter()
                .find(|header| header.0 == name)
                .map(|header| &header.1[..])
        };
        assert!(header("authorization").is_some() && header("x-amz-date") == Some("19700101T000000Z"));
        let mut answer = match (request.method, header("range")) {
            (Method::Head, _) => object.head(),
            (Method::Get, None) => {
                assert!(request.url.ends_with("?attributes="), "{}", request.url);
                object.attributes(header("x-amz-part-number-marker").map_or(0, |after| after.parse().unwrap()))
            }
            (Method::Get, Some(_)) if header("if-match") != Some(&object.etag()) => Answer {
                status: 412,
                headers: Vec::new(),
                body: b"<Error><Code>PreconditionFailed</Code></Error>".repeat(10),
            },
            (Method::Get, Some(range)) => {
                let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
                object.bytes(first, last)
            }
        };
        drop(object);
        (self.spoil.borrow())(self, request, &mut answer);
        assert!(answer.body.len() as u64 <= request.body_len_max);
        Ok(answer)
    }
}

impl Server {
    fn new(object: Object) -> Self {
        Self {
            object: RefCell::new(object),
            asked: Cell::new(0),
            spoil: RefCell::new(Box::new(|_, _, _| {})),
        }
    }
}

fn source<'a>(server: &'a Server, clock: &'a SimClock) -> S3Source<'a> {
    let place = Place::new("s3://bucket/a key", Some("http://127.0.0.1:1/"), "us-east-1").unwrap();
    let credentials = Credentials {
        access_key: "key".to_owned(),
        secret_key: "secret".to_owned(),
        session_token: None,
    };
    S3Source::new(server, clock, place, Some(credentials))
}

#[test]
fn s3_checksums_of_random_objects_are_true() {
    let clock = SimClock::new(0);
    for seed in 1..200 {
        let mut random = SplitMix64::new(seed);
        let server = Server::new(Object::made(&mut random));
        let source = source(&server, &clock);
        let reported = source.collect().unwrap();
        let (len, parts) = (
            server.object.borrow().content.len() as u64,
            server.object.borrow().parts.clone(),
        );
        assert_eq!(
            server.asked.get(),
            2 + parts.len().div_ceil(2) as u64,
            "seed {seed}: one request for each page of parts"
        );
        // A whole object's SHA-256 does not prove its parts': they are not trusted.
        let is_whole = parts.is_empty() || {
            let object = server.object.borrow();
            object.kind == Kind::Sha256 && !object.is_composite
        };
        let (block_len, blocks) = match is_whole {
            true => (len, 1),
            false => (parts[0] as u64, parts.len() as u64),
        };
        assert_eq!(u64::from(reported.layout().block_len), block_len, "seed {seed}");
        let verified = verify(&source, &reported).unwrap();
        assert_eq!((verified.blocks, verified.bytes), (blocks, len), "seed {seed}");
    }
}

/// Any byte of the lists of parts may be altered: the result is the truth, or nothing.
#[test]
fn s3_part_lists_that_are_spoiled_never_pass_for_the_objects() {
    let clock = SimClock::new(0);
    let (mut refused, mut true_ones) = (0, 0);
    for seed in 1..3000 {
        let mut random = SplitMix64::new(seed);
        let object = Object::made(&mut random);
        if object.parts.len() < 2 {
            continue;
        }
        let server = Server::new(object);
        let truth = source(&server, &clock).collect().unwrap();
        let spoiler = RefCell::new(SplitMix64::new(seed + 1));
        *server.spoil.borrow_mut() = Box::new(move |_, request, answer| {
            let mut random = spoiler.borrow_mut();
            if request.method == Method::Head || answer.body.is_empty() {
                return;
            }
            let len = answer.body.len() as u64;
            match random.below(7) {
                0 => answer.body.truncate(random.below(len) as usize),
                // One letter becomes another one of the text.
                1 | 2 => answer.body[random.below(len) as usize] = answer.body[random.below(len) as usize],
                // A part is omitted, or listed twice.
                3 => {
                    let body = String::from_utf8(answer.body.clone()).unwrap();
                    if let (Some(from), Some(to)) = (body.find("<Part>"), body.find("</Part>")) {
                        answer.body.drain(from..to + 7);
                    }
                }
                4 => {
                    let body = String::from_utf8(answer.body.clone()).unwrap();
                    if let (Some(from), Some(to)) = (body.find("<Part>"), body.find("</Part>")) {
                        let again = answer.body[from..to + 7].to_vec();
                        answer.body.splice(from..from, again);
                    }
                }
                _ => {}
            }
        });
        match source(&server, &clock).collect() {
            // The whole object's checksum remains if the parts are listed without any.
            Ok(reported) if reported.layout() != truth.layout() => {
                *server.spoil.borrow_mut() = Box::new(|_, _, _| {});
                let source = source(&server, &clock);
                let found = verify(&source, &reported);
                assert!(
                    found.is_ok(),
                    "seed {seed}: {found:?} {:?} {:?}",
                    reported.layout(),
                    server.object.borrow().parts
                );
                true_ones += 1;
            }
            Ok(reported) => {
                assert!(reported.runs().eq(truth.runs()), "seed {seed}");
                true_ones += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 500 && true_ones > 50, "{refused} {true_ones}");
}

/// An object that is replaced between any two requests is described as at one moment, or not at
/// all. Its successor's bytes are never returned as its own.
#[test]
fn an_object_that_is_replaced_meanwhile_is_noticed() {
    let clock = SimClock::new(0);
    for seed in 1..60 {
        for at in 1..6 {
            let server = Server::new(Object::made(&mut SplitMix64::new(seed)));
            let replaced = Cell::new(false);
            *server.spoil.borrow_mut() = Box::new(move |server, _, _| {
                if server.asked.get() == at && !replaced.replace(true) {
                    // The same length: nothing but the bytes and the ETag differs.
                    let mut object = server.object.borrow_mut();
                    object.content.reverse();
                    object.version += 1;
                }
            });
            let source = source(&server, &clock);
            let reported = source.collect().unwrap();
            let is_new = server.asked.get() > at;
            if is_new {
                // A request came after the replacement: the result is of the successor.
                assert!(source.is_unchanged(reported.stamp()).unwrap(), "seed {seed} at {at}");
            }
            match verify(&source, &reported) {
                // Replaced before the whole description was read.
                Ok(_) if is_new => {}
                // Or after the last request.
                Ok(_) => assert!(server.asked.get() <= at, "seed {seed} at {at}"),
                Err(VerifyError::Source(SourceError::ChangedMeanwhile)) => {}
                Err(error) => panic!("seed {seed} at {at}: {error:?}"),
            }
        }
    }
}

/// Some servers ignore `If-Match`, or a proxy drops it: their answer is recognized as another
/// object's.
#[test]
fn s3_bytes_of_another_object_are_noticed_without_the_server() {
    let clock = SimClock::new(0);
    let mut object = Object::made(&mut SplitMix64::new(1));
    object.content = vec![7; 4000];
    let server = Server::new(object);
    let source = source(&server, &clock);
    source.collect().unwrap();
    assert_eq!(source.read_at(0, &mut [0; 10]).unwrap(), 10);
    {
        let mut object = server.object.borrow_mut();
        object.content.fill(8);
        object.version += 1;
    }
    *server.spoil.borrow_mut() = Box::new(|server, request, answer| {
        if request.headers.iter().any(|header| header.0 == "range") {
            assert_eq!(answer.status, 412);
            *answer = server.object.borrow().bytes(0, 9);
        }
    });
    let read = source.read_at(0, &mut [0; 10]);
    assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
    *server.spoil.borrow_mut() = Box::new(|server, _, answer| {
        *answer = server.object.borrow().bytes(0, 9);
        answer.headers.pop();
    });
    let read = source.read_at(0, &mut [0; 10]);
    assert!(matches!(read, Err(SourceError::Malformed(_))), "{read:?}");
}

/// Each field that distinguishes two objects.
#[test]
fn all_that_is_told_of_an_object_is_in_its_stamp() {
    let clock = SimClock::new(0);
    let server = Server::new(Object::made(&mut SplitMix64::new(1)));
    let source = source(&server, &clock);
    let head = Head {
        len_bytes: 9,
        etag: "\"a\"".to_owned(),
        version: None,
        last_modified: "Monday".to_owned(),
        sum: Some((Kind::Crc32c, Whole::Bytes(vec![1, 2, 3, 4]))),
    };
    let changes: [fn(&mut Head); 8] = [
        |_| {},
        |head| head.len_bytes = 8,
        |head| head.etag = "\"b\"".to_owned(),
        |head| head.version = Some("1".to_owned()),
        |head| head.last_modified = "Tuesday".to_owned(),
        |head| head.sum = Some((Kind::Crc32c, Whole::Bytes(vec![1, 2, 3, 5]))),
        |head| head.sum = Some((Kind::Crc32, Whole::Bytes(vec![1, 2, 3, 4]))),
        |head| head.sum = None,
    ];
    let stamps: std::collections::BTreeSet<_> = changes
        .iter()
        .map(|change| {
            let mut head = head.clone();
            change(&mut head);
            source.stamp(&head).witness
        })
        .collect();
    assert_eq!(stamps.len(), changes.len());
}

/// A user without permission to list parts still gets the checksum of the whole object, if there is
/// one.
#[test]
fn a_server_that_lists_no_parts_tells_of_the_whole_object() {
    let clock = SimClock::new(0);
    for status in [400, 403, 405, 501] {
        for is_composite in [false, true] {
            let server = Server::new(Object {
                parts: vec![2000, 2000],
                content: vec![7; 4000],
                kind: Kind::Crc32c,
                is_composite,
                version: 0,
            });
            *server.spoil.borrow_mut() = Box::new(move |_, request, answer| {
                if request.url.contains("attributes") {
                    answer.status = status;
                }
            });
            let source = source(&server, &clock);
            match source.collect() {
                Ok(reported) if !is_composite => assert_eq!(verify(&source, &reported).unwrap().blocks, 1),
                Err(SourceError::NotHere(_)) if is_composite => {}
                other => panic!("{status} {is_composite}: {other:?}"),
            }
        }
    }
}

/// Each page lacks a part, and another page follows it.
#[test]
fn pages_of_parts_come_to_an_end() {
    let clock = SimClock::new(0);
    let mut object = Object::made(&mut SplitMix64::new(1));
    object.parts = vec![object.content.len()];
    for parts in [0, 1] {
        let server = Server::new(Object {
            content: object.content.clone(),
            parts: object.parts.clone(),
            ..object
        });
        *server.spoil.borrow_mut() = Box::new(move |server, request, answer| {
            let asked = server.asked.get();
            assert!(asked < 20_000, "there is no end");
            if request.method == Method::Get {
                let part = "<Part><PartNumber>1</PartNumber><Size>1</Size></Part>".repeat(parts);
                answer.body = format!(
                    "<GetObjectAttributesResponse><ObjectParts><IsTruncated>true</IsTruncated>\
                     <NextPartNumberMarker>{asked}</NextPartNumberMarker>{part}</ObjectParts></GetObjectAttributesResponse>"
                )
                .into_bytes();
            }
        });
        let reported = source(&server, &clock).collect();
        assert!(matches!(reported, Err(SourceError::Malformed(_))), "{reported:?}");
        assert!(parts > 0 || server.asked.get() < 10, "{}", server.asked.get());
    }
}

#[test]
fn other_bytes_than_were_asked_for_are_refused() {
    let clock = SimClock::new(0);
    type Change = fn(&mut Answer);
    let spoiled: [(&str, Change); 5] = [
        ("cut short", |answer| answer.body.truncate(answer.body.len() - 1)),
        ("too many", |answer| answer.body.push(0)),
        ("from elsewhere", |answer| {
            answer.headers[0].1 = "bytes 1-10/4000".to_owned()
        }),
        ("all", |answer| answer.status = 200),
        ("an error", |answer| answer.status = 503),
    ];
    for (what, change) in spoiled {
        let mut object = Object::made(&mut SplitMix64::new(1));
        object.content = vec![7; 4000];
        object.parts.clear();
        object.is_composite = false;
        let server = Server::new(object);
        *server.spoil.borrow_mut() = Box::new(move |_, request, answer| {
            if request.headers.iter().any(|header| header.0 == "range") {
                change(answer);
            }
        });
        let source = source(&server, &clock);
        source.collect().unwrap();
        assert!(source.read_at(0, &mut [0; 10]).is_err(), "{what}");
    }
}

#[test]
fn s3_reports_a_refusal_of_the_server() {
    let clock = SimClock::new(0);
    let said = |status: u16, is_known: bool| {
        let server = Server::new(Object::made(&mut SplitMix64::new(2)));
        *server.spoil.borrow_mut() = Box::new(move |_, _, answer| answer.status = status);
        let mut source = source(&server, &clock);
        // The server in memory requires a signature; a request without one is refused before.
        if !is_known {
            source.credentials = None;
            let answer = Answer {
                status,
                ..Answer::default()
            };
            return source.refusal("tell", &answer).to_string();
        }
        source.collect().unwrap_err().to_string()
    };
    assert!(said(403, true).contains("may read the object"));
    assert!(said(403, false).contains("set AWS_ACCESS_KEY_ID"));
    assert!(said(404, true).contains("no such object"));
    assert!(said(500, true).contains("status 500"));
}

#[test]
fn addresses_that_are_none_are_refused() {
    let of = |url: &str, endpoint| Place::new(url, endpoint, "eu-central-1");
    let place = of("s3://b/k/\u{e9} 1", None).unwrap();
    assert_eq!(
        (place.host(), &place.path()[..]),
        ("s3.eu-central-1.amazonaws.com", "/b/k/%C3%A9%201")
    );
    for url in [
        "s3://b",
        "s3://b/",
        "s3:///k",
        "http://b/k",
        "s3://b/../k",
        "s3://b/k/.",
        "s3://b c/k",
    ] {
        assert!(of(url, None).is_err(), "{url}");
    }
    for endpoint in [
        "",
        "127.0.0.1",
        "ftp://host",
        "http://",
        "http://host/path",
        "http://user@host",
    ] {
        assert!(of("s3://b/k", Some(endpoint)).is_err(), "{endpoint}");
    }
}
