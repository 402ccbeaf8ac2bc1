//! Objects with additional checksums, at a real server (MinIO): sent at once and in parts,
//! described, verified, and synced with files.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;

use base64::Engine;
use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::source::{Kind, Layout, Source, SourceError, Tail, VerifyError, verify};
use byteback_delta::find::{Aligned, CrcSums, Verdict};
use byteback_host::clock::RealClock;
use byteback_sources::http::{Answer, Http, Method, Request};
use byteback_sources::s3::{Credentials, Place, S3Source};

use crate::btrfs::noise;
use crate::disk::Disk;
use crate::meddling::Meddling;
use crate::network::Network;
use crate::program::{against, checksums};
use crate::server::{Server, curl};
use crate::sky;

/// S3's smallest part.
const PART: usize = 5 << 20;

/// A server, which runs as long as this lives.
struct Minio(Server);

impl Minio {
    fn start() -> Self {
        let server = Self(Server::start("minio"));
        server.curl(&["-X", "PUT"], "bucket");
        server
    }

    fn endpoint(&self) -> &str {
        self.0.said()
    }

    /// Sends a signed request; returns the body of the answer.
    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let signed = [
            "--aws-sigv4",
            "aws:amz:us-east-1:s3",
            "--user",
            "akak:sksksksk",
            "-H",
            "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        ];
        curl(&[&signed, arguments].concat(), &format!("{}/{path}", self.endpoint()))
    }

    /// Sends an object at once.
    fn put(&self, key: &str, content: &[u8], headers: &[&str]) {
        let file = self.0.upload(content);
        let data = format!("@{}", file.display());
        let mut arguments = vec!["-X", "PUT", "--data-binary", &data];
        headers.iter().for_each(|header| arguments.extend(["-H", header]));
        self.curl(&arguments, &format!("bucket/{key}"));
    }

    /// Sends an object in parts of these lengths.
    fn put_parts(&self, key: &str, content: &[u8], kind: Kind, lens: &[usize]) {
        let (algorithm, header, tag) = names(kind);
        let algorithm = format!("x-amz-checksum-algorithm: {algorithm}");
        let kind_header = match kind {
            // This checksum is always of the whole object.
            Kind::Crc64Nvme => "x-amz-checksum-type: FULL_OBJECT",
            _ => "x-amz-checksum-type: COMPOSITE",
        };
        let said = self.curl(
            &["-X", "POST", "-H", &algorithm, "-H", kind_header],
            &format!("bucket/{key}?uploads="),
        );
        let upload = between(&said, "<UploadId>", "</UploadId>").to_owned();
        let mut list = String::new();
        let mut rest = content;
        for (number, len) in (1..).zip(lens) {
            let (part, later) = rest.split_at(*len);
            rest = later;
            let file = self.0.upload(part);
            let (data, sum) = (format!("@{}", file.display()), sum(kind, part));
            let reported = format!("{header}: {sum}");
            let headers = self.curl(
                &["-D", "-", "-X", "PUT", "-H", &reported, "--data-binary", &data],
                &format!("bucket/{key}?partNumber={number}&uploadId={upload}"),
            );
            let etag = headers
                .lines()
                .find_map(|line| line.strip_prefix("ETag: "))
                .unwrap()
                .trim();
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag><{tag}>{sum}</{tag}></Part>"
            ));
        }
        assert!(rest.is_empty());
        let list = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
        self.curl(
            &["-X", "POST", "--data-binary", &list],
            &format!("bucket/{key}?uploadId={upload}"),
        );
    }

    fn source<'a>(&self, http: &'a dyn Http, key: &str) -> S3Source<'a> {
        let place = Place::new(&format!("s3://bucket/{key}"), Some(self.endpoint()), "us-east-1").unwrap();
        let credentials = Credentials {
            access_key: "akak".to_owned(),
            secret_key: "sksksksk".to_owned(),
            session_token: None,
        };
        S3Source::new(http, &RealClock, place, Some(credentials))
    }

    fn checksums(&self, key: &str) -> crate::program::CommandOutput {
        let variables = [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", "akak"),
            ("AWS_SECRET_ACCESS_KEY", "sksksksk"),
        ];
        checksums(format!("s3://bucket/{key}"), &variables)
    }
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> &'a str {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before} in {text}"));
    rest.split_once(behind).unwrap().0
}

fn names(kind: Kind) -> (&'static str, &'static str, &'static str) {
    match kind {
        Kind::Sha256 => ("SHA256", "x-amz-checksum-sha256", "ChecksumSHA256"),
        Kind::Crc32c => ("CRC32C", "x-amz-checksum-crc32c", "ChecksumCRC32C"),
        Kind::Crc32 => ("CRC32", "x-amz-checksum-crc32", "ChecksumCRC32"),
        Kind::Sha1 => ("SHA1", "x-amz-checksum-sha1", "ChecksumSHA1"),
        _ => ("CRC64NVME", "x-amz-checksum-crc64nvme", "ChecksumCRC64NVME"),
    }
}

/// A checksum in S3's notation.
fn sum(kind: Kind, bytes: &[u8]) -> String {
    let layout = Layout {
        kind,
        salt: Vec::new(),
        block_len: u32::MAX,
        tail: Tail::AsIs,
    };
    let mut sum = Vec::new();
    layout.append_sum(bytes, &mut sum);
    if !matches!(kind, Kind::Sha256 | Kind::Sha1) {
        sum.reverse();
    }
    base64::engine::general_purpose::STANDARD.encode(sum)
}

#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_objects_are_described_as_they_are() {
    let server = Minio::start();
    let content = noise(1, 2 * PART + 123_456);
    // In parts, with each function.
    for (kind, name) in [
        (Kind::Sha256, "sha256"),
        (Kind::Crc32c, "crc32c"),
        (Kind::Crc32, "crc32"),
        (Kind::Sha1, "sha1"),
        (Kind::Crc64Nvme, "crc64nvme"),
    ] {
        server.put_parts(name, &content, kind, &[PART, PART, 123_456]);
        let said = server.checksums(name).fine();
        assert_eq!(
            (said["source"].as_str(), said["kind"].as_str()),
            (Some("s3"), Some(name))
        );
        assert_eq!(
            (&said["block_len_bytes"], &said["verified"]["blocks"]),
            (&PART.into(), &3.into()),
            "{name}"
        );
        assert_eq!(said["summed_bytes"], content.len());
        // At once.
        server.put(
            "whole",
            &content[..100_000],
            &[&format!("{}: {}", names(kind).1, sum(kind, &content[..100_000]))],
        );
        let said = server.checksums("whole").fine();
        assert_eq!(
            (
                said["kind"].as_str(),
                &said["block_len_bytes"],
                &said["verified"]["blocks"]
            ),
            (Some(name), &100_000.into(), &1.into())
        );
    }
    // A name that has to be escaped; parts of different lengths; no checksum; no object; no key.
    server.put_parts("a%20b/%C3%A9%2B", &content, Kind::Sha256, &[PART, PART, 123_456]);
    assert_eq!(server.checksums("a b/\u{e9}+").fine()["verified"]["blocks"], 3);
    server.put_parts("uneven", &content, Kind::Sha256, &[PART, PART + 1, 123_455]);
    server.checksums("uneven").fails_with("different lengths");
    server.checksums("missing").fails_with("no such object");
    let variables = [("AWS_ENDPOINT_URL", server.endpoint())];
    checksums("s3://bucket/sha256", &variables).fails_with("set AWS_ACCESS_KEY_ID");
    let wrong = [
        variables[0],
        ("AWS_ACCESS_KEY_ID", "akak"),
        ("AWS_SECRET_ACCESS_KEY", "wrong"),
    ];
    checksums("s3://bucket/sha256", &wrong).fails_with("the server denied access");
    checksums("s3://bucket", &variables).fails_with("s3://BUCKET/KEY");
    let nobody = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    checksums("s3://bucket/sha256", &nobody).fails_with("cannot reach the server");
}

/// A file on btrfs is synced from an object: parts whose checksums agree are not fetched.
#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_syncs_fetch_the_parts_that_differ() {
    let server = Minio::start();
    let old = noise(1, 4 * PART + 54_321);
    let mut new = old.clone();
    new[2 * PART + 1000..2 * PART + 1500].copy_from_slice(&noise(2, 500));
    new.truncate(4 * PART + 50_000);
    let lens = [PART, PART, PART, PART, 50_000];
    server.put_parts("new", &new, Kind::Sha256, &lens);
    let network = Network::new(None);
    let object = server.source(&network, "new");
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::fs::write(file.path(), &old).unwrap();
    let base = crate::plain::PlainFile::open(file.path());
    let synced = sky::fixed(&base, &object, PART as u32, &new);
    // The changed part and the last one, which differs, and no byte more.
    assert_eq!(synced.new_read_bytes, (PART + 50_000) as u64);
    // Within the fetched bytes, the window finds nothing: blocks are as long as parts.
    assert_eq!(synced.stats.copied_bytes, 3 * PART as u64);
}

/// Section 3.3: btrfs has CRC-32C of 4 KiB, the object CRC-32C of parts of 5 MiB, the last of which
/// is not full. Those of btrfs are combined, and the differing parts are known without a byte of
/// either.
#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_and_btrfs_agree_on_blocks_of_both() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let server = Minio::start();
    let lens = [PART, PART, PART, PART, 54_321];
    let old = noise(1, lens.iter().sum());
    let mut new = old.clone();
    new[PART + 17] ^= 1;
    new[3 * PART..3 * PART + 9000].copy_from_slice(&noise(3, 9000));
    for (name, content) in [("old", &old), ("new", &new)] {
        server.put_parts(name, content, Kind::Crc32c, &lens);
        std::fs::write(disk.path().join(name), content).unwrap();
    }
    let network = Network::new(None);
    let (old_object, new_object) = (server.source(&network, "old"), server.source(&network, "new"));
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.path().join(name)).unwrap());
    let old_local = BtrfsSource::new(&old_file, &RealClock).unwrap();
    let new_local = BtrfsSource::new(&new_file, &RealClock).unwrap();
    let sums = |source: &dyn Source| CrcSums(sky::crcs(&source.collect().unwrap()).unwrap());
    let ways: [(&dyn Source, &dyn Source); 2] = [(&old_object, &new_local), (&old_local, &new_object)];
    for (base, source) in ways {
        let aligned = Aligned::new(sums(base), sums(source)).unwrap();
        let mut read_bytes = 0;
        for (range, verdict) in aligned {
            let is_equal =
                old[range.start() as usize..range.end() as usize] == new[range.start() as usize..range.end() as usize];
            match verdict {
                Verdict::Candidate => assert!(is_equal, "{range:?}"),
                _ => read_bytes += range.len_bytes(),
            }
        }
        // Only the two parts, and at most the end, are not likely to be equal.
        assert!(
            (2 * PART as u64..=2 * PART as u64 + 54_321).contains(&read_bytes),
            "{read_bytes}"
        );
        // CRCs prove nothing: a sync reads the likely parts as well, and is right.
        let synced = sky::fixed(base, source, PART as u32, &new);
        assert!(synced.stats.copied_bytes >= 2 * PART as u64, "{:?}", synced.stats);
        assert!(synced.stats.literal_bytes >= 2 * PART as u64, "{:?}", synced.stats);
    }
    // The command says the same. btrfs's CRC of a partial sector may cover more than the file, so
    // the last part is unknown.
    let variables = [
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_ACCESS_KEY_ID", "akak"),
        ("AWS_SECRET_ACCESS_KEY", "sksksksk"),
    ];
    for (base, new_one) in [
        (
            OsString::from("s3://bucket/old"),
            disk.path().join("new").into_os_string(),
        ),
        (
            disk.path().join("old").into_os_string(),
            OsString::from("s3://bucket/new"),
        ),
    ] {
        let said = against(base, new_one, &variables).all_fine();
        let summary = said.last().unwrap();
        assert_eq!(
            (
                &summary["differing_bytes"],
                &summary["likely_bytes"],
                &summary["unknown_bytes"]
            ),
            (&(2 * PART).into(), &(2 * PART).into(), &54_321.into()),
            "{summary}"
        );
    }
}

#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_objects_that_are_replaced_meanwhile_are_noticed() {
    let server = Minio::start();
    let (content, successor) = (noise(1, 3 * PART), noise(99, 3 * PART));
    let mut first = vec![0; 100];
    // Before each request of a description: headers, parts, headers again. The description begins
    // anew, and is of the successor.
    for replaced_at in 0..3 {
        server.put_parts("changing", &content, Kind::Sha256, &[PART, PART, PART]);
        let replace = |number| {
            if number == replaced_at {
                server.put_parts("changing", &successor, Kind::Sha256, &[PART, PART, PART]);
            }
        };
        let meddling = Meddling::before(&replace);
        let source = server.source(&meddling, "changing");
        let reported = source.collect().unwrap();
        let asked = [3, 2 + 3, 3 + 3][replaced_at];
        assert_eq!(meddling.asked(), asked, "{replaced_at}");
        assert_eq!(verify(&source, &reported).unwrap().blocks, 3);
        source.read_at(0, &mut first).unwrap();
        assert_eq!(first, noise(99, 100));
    }
    let network = Network::new(None);
    let source = server.source(&network, "changing");
    let reported = source.collect().unwrap();
    // After the description: it is void, and the successor's bytes are not returned as the
    // described ones.
    server.put_parts("changing", &content, Kind::Sha256, &[PART, PART, PART]);
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    let read = source.read_at(0, &mut first);
    assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
    assert!(matches!(
        verify(&source, &reported),
        Err(VerifyError::Source(SourceError::ChangedMeanwhile))
    ));
}

/// Replaces a part of an answer's text.
fn replace(answer: &mut Answer, from: &str, to: &str) {
    let text = String::from_utf8(std::mem::take(&mut answer.body)).unwrap();
    assert!(text.contains(from), "no {from} in {text}");
    answer.body = text.replacen(from, to, 1).into_bytes();
}

/// Answers of a real server, some of them falsified: a false description is rejected or found out,
/// and makes no wrong delta.
#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_answers_that_lie_make_no_wrong_delta() {
    let server = Minio::start();
    let old = noise(1, 3 * PART);
    let mut new = old.clone();
    new[PART + 5..PART + 900].copy_from_slice(&noise(7, 895));
    let network = Network::new(None);
    for kind in [Kind::Crc32c, Kind::Crc64Nvme] {
        server.put_parts("old", &old, kind, &[PART; 3]);
        server.put_parts("new", &new, kind, &[PART; 3]);
        // The server's consistent answers about the old object are given for the new one: as if
        // nothing had changed.
        let said = RefCell::new(Vec::<Answer>::new());
        let note = |_: &Request, answer: &mut Answer| said.borrow_mut().push(answer.clone());
        let noting = Meddling::answers(&note);
        let base_checksums = server.source(&noting, "old").collect().unwrap();
        let said = said.into_inner();
        let etag = RefCell::new(String::new());
        let lie = |request: &Request, answer: &mut Answer| {
            let is_range = request.headers.iter().any(|header| header.0 == "range");
            match request.method {
                Method::Head => {
                    *etag.borrow_mut() = answer.header("etag").unwrap().to_owned();
                    let others = said[0]
                        .headers
                        .iter()
                        .filter(|header| header.0.starts_with("x-amz-checksum"));
                    answer.headers.retain(|header| !header.0.starts_with("x-amz-checksum"));
                    answer.headers.extend(others.cloned());
                }
                Method::Get if !is_range => {
                    let its = said[0].header("etag").unwrap().trim_matches('"').to_owned();
                    answer.body.clone_from(&said[1].body);
                    replace(answer, &its, etag.borrow().trim_matches('"'));
                }
                Method::Get => {}
            }
        };
        let lying = Meddling::answers(&lie);
        let source = server.source(&lying, "new");
        let reported = source.collect().unwrap();
        assert!(reported.runs().eq(base_checksums.runs()), "it did not lie");
        let said = verify(&source, &reported);
        assert!(
            matches!(said, Err(VerifyError::Differs { offset, .. }) if offset == PART as u64),
            "{said:?}"
        );
        // Each of these compares the delta's result with the content.
        let base = server.source(&network, "old");
        sky::fixed(&base, &source, PART as u32, &new);
        sky::fixed(&source, &base, PART as u32, &old);
    }
    // Checksums that prove, in lists that are another upload's, lack a part, are cut short, or have
    // another checksum: nothing is described.
    server.put_parts("old", &old, Kind::Sha256, &[PART; 3]);
    server.put_parts("new", &new, Kind::Sha256, &[PART; 3]);
    let others = RefCell::new(Vec::new());
    let note = |_: &Request, answer: &mut Answer| others.borrow_mut().push(answer.clone());
    server.source(&Meddling::answers(&note), "old").collect().unwrap();
    let others = others.into_inner();
    let its = others[0].header("etag").unwrap().trim_matches('"').to_owned();
    type Spoil<'a> = &'a dyn Fn(&mut Answer);
    let as_if_new = |answer: &mut Answer| {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let own = between(&text, "<ETag>", "</ETag>").to_owned();
        answer.body.clone_from(&others[1].body);
        replace(answer, &its, own.trim_matches('"'));
    };
    let lose = |answer: &mut Answer| {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let part = between(&text, "<Part>", "</Part>");
        replace(answer, &format!("<Part>{part}</Part>"), "");
    };
    let ways: [(&str, Spoil<'_>); 5] = [
        ("of another object", &|answer| answer.body.clone_from(&others[1].body)),
        ("of another object that has the ETag", &as_if_new),
        ("one part too few", &lose),
        ("cut short", &|answer| answer.body.truncate(answer.body.len() / 2)),
        ("another checksum", &|answer| {
            replace(
                answer,
                &sum(Kind::Sha256, &new[PART..2 * PART]),
                &sum(Kind::Sha256, &old[PART..2 * PART]),
            );
        }),
    ];
    for (what, spoil) in ways {
        let spoil = |request: &Request, answer: &mut Answer| {
            if request.url.ends_with("attributes=") {
                spoil(answer);
            }
        };
        let spoiling = Meddling::answers(&spoil);
        let said = server.source(&spoiling, "new").collect();
        match what {
            "of another object" => assert!(matches!(said, Err(SourceError::Busy)), "{what}: {said:?}"),
            _ => assert!(matches!(said, Err(SourceError::Malformed(_))), "{what}: {said:?}"),
        }
    }
}

/// Objects that every user may read; a user without a key may not request the parts' checksums.
#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_objects_that_everybody_may_read() {
    let server = Minio::start();
    let content = noise(1, PART + 1000);
    server.put_parts("open/parts", &content, Kind::Sha256, &[PART, 1000]);
    let header = format!("{}: {}", names(Kind::Sha256).1, sum(Kind::Sha256, &content));
    server.put("open/whole", &content, &[&header]);
    server.put("closed", &content, &[&header]);
    let policy = "{\"Version\":\"2012-10-17\",\"Statement\":[{\"Effect\":\"Allow\",\"Principal\":{\"AWS\":[\"*\"]},\
                  \"Action\":[\"s3:GetObject\"],\"Resource\":[\"arn:aws:s3:::bucket/open/*\"]}]}";
    server.curl(&["-X", "PUT", "--data-binary", policy], "bucket?policy=");
    let nobody = [("AWS_ENDPOINT_URL", server.endpoint())];
    let said = checksums("s3://bucket/open/whole", &nobody).fine();
    assert_eq!(
        (&said["summed_bytes"], &said["verified"]["blocks"]),
        (&content.len().into(), &1.into())
    );
    checksums("s3://bucket/open/parts", &nobody).fails_with("does not report the checksums of the object's parts");
    checksums("s3://bucket/closed", &nobody).fails_with("set AWS_ACCESS_KEY_ID");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_minio() {
    let server = Minio::start();
    let old = noise(1, 20 * PART);
    let mut new = old.clone();
    for part in [3, 11] {
        new[part * PART..][..256].copy_from_slice(&noise(9, 256));
    }
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::fs::write(file.path(), &old).unwrap();
    let base = crate::plain::PlainFile::open(file.path());
    let network = Network::new(None);
    for (kind, name) in [
        (Kind::Sha256, "SHA-256"),
        (Kind::Crc64Nvme, "CRC-64/NVME"),
        (Kind::Crc32c, "CRC-32C"),
    ] {
        server.put_parts("new", &new, kind, &[PART; 20]);
        let object = server.source(&network, "new");
        crate::costs::print_row(&format!("S3 (MinIO), {name}"), &base, &object, PART as u32, &new);
    }
}
