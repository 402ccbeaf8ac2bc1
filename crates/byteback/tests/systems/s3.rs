//! Objects with additional checksums, at a real server (MinIO): sent at once and in parts, described, verified, and synced with files.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::http::{Answer, Http, Request};
use byteback_checksums::s3::{Credentials, Place, S3Source};
use byteback_checksums::source::{Kind, Layout, Source, SourceError, Tail, VerifyError, verify};
use byteback_delta::find::{Aligned, CrcSums, Verdict};
use byteback_host::clock::RealClock;

use crate::btrfs::noise;
use crate::disk::Disk;
use crate::network::Network;
use crate::program::checksums;
use crate::sky;

/// S3's smallest part.
const PART: usize = 5 << 20;

const REASON: &str = "tests/systems/minio";

/// A server as long as it lives.
struct Minio {
    dir: tempfile::TempDir,
    endpoint: String,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/systems/minio")
}

impl Minio {
    fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("byteback-minio-")
            .tempdir_in("/var/tmp")
            .unwrap();
        // Free now, and for the moment that it takes.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let status = Command::new(script())
            .arg("start")
            .arg(dir.path())
            .arg(port.to_string())
            .status();
        assert!(status.unwrap().success(), "{REASON} start failed");
        let endpoint = format!("http://127.0.0.1:{port}");
        let server = Self { dir, endpoint };
        server.curl(&["-X", "PUT"], "bucket");
        server
    }

    /// A signed request; answers the body.
    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--fail-with-body",
                "--aws-sigv4",
                "aws:amz:us-east-1:s3",
                "--user",
                "akak:sksksksk",
            ])
            .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .args(arguments)
            .arg(format!("{}/{path}", self.endpoint))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?} {path}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// Sends an object at once.
    fn put(&self, key: &str, content: &[u8], headers: &[&str]) {
        let file = self.dir.path().join("upload");
        std::fs::write(&file, content).unwrap();
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
            // Its checksum is always of the whole object.
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
            let file = self.dir.path().join("part");
            std::fs::write(&file, part).unwrap();
            let (data, sum) = (format!("@{}", file.display()), sum(kind, part));
            let told = format!("{header}: {sum}");
            let headers = self.curl(
                &["-D", "-", "-X", "PUT", "-H", &told, "--data-binary", &data],
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
        let place = Place::new(&format!("s3://bucket/{key}"), Some(&self.endpoint), "us-east-1").unwrap();
        let credentials = Credentials {
            access_key: "akak".to_owned(),
            secret_key: "sksksksk".to_owned(),
            session_token: None,
        };
        S3Source::new(http, &RealClock, place, Some(credentials))
    }

    fn checksums(&self, key: &str) -> crate::program::Said {
        let variables = [
            ("AWS_ENDPOINT_URL", &self.endpoint[..]),
            ("AWS_ACCESS_KEY_ID", "akak"),
            ("AWS_SECRET_ACCESS_KEY", "sksksksk"),
        ];
        checksums(format!("s3://bucket/{key}"), &variables)
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        let stopped = Command::new(script()).arg("stop").arg(self.dir.path()).status();
        assert!(stopped.is_ok_and(|status| status.success()) || std::thread::panicking());
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

/// As S3 writes it.
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

/// The network, on which an object is replaced as soon as it was described.
struct Replacing<'a> {
    network: Network,
    server: &'a Minio,
    wanted: AtomicBool,
}

impl Http for Replacing<'_> {
    fn ask(&self, request: &Request) -> std::io::Result<Answer> {
        let answer = self.network.ask(request);
        if self.wanted.swap(false, Ordering::SeqCst) {
            let content = noise(99, 3 * PART);
            self.server
                .put_parts("changing", &content, Kind::Sha256, &[PART, PART, PART]);
        }
        answer
    }
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
    let variables = [("AWS_ENDPOINT_URL", &server.endpoint[..])];
    checksums("s3://bucket/sha256", &variables).fails_with("set AWS_ACCESS_KEY_ID");
    let wrong = [
        variables[0],
        ("AWS_ACCESS_KEY_ID", "akak"),
        ("AWS_SECRET_ACCESS_KEY", "wrong"),
    ];
    checksums("s3://bucket/sha256", &wrong).fails_with("the server refuses");
    checksums("s3://bucket", &variables).fails_with("s3://BUCKET/KEY");
    let nobody = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    checksums("s3://bucket/sha256", &nobody).fails_with("cannot reach the server");
}

/// A file on btrfs becomes what an object is: parts whose checksums agree are not fetched.
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
    // The changed part and the last one, which is another, and no byte more.
    assert_eq!(synced.new_read_bytes, (PART + 50_000) as u64);
    // Within what was fetched, the window finds nothing: blocks are as long as parts.
    assert_eq!(synced.stats.copied_bytes, 3 * PART as u64);
}

/// Section 3.3: btrfs has CRC-32C of 4 KiB with zeros behind the last one, the object CRC-32C of parts of 5 MiB: those of btrfs are combined, and the
/// parts that differ are known without a byte of either.
#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_and_btrfs_agree_on_blocks_of_both() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let server = Minio::start();
    let old = noise(1, 4 * PART);
    let mut new = old.clone();
    new[PART + 17] ^= 1;
    new[3 * PART..3 * PART + 9000].copy_from_slice(&noise(3, 9000));
    server.put_parts("old", &old, Kind::Crc32c, &[PART; 4]);
    std::fs::write(disk.path().join("new"), &new).unwrap();
    let file = File::open(disk.path().join("new")).unwrap();
    let local = BtrfsSource::new(&file, &RealClock).unwrap();
    let network = Network::new(None);
    let (there, here) = (
        server.source(&network, "old").collect().unwrap(),
        local.collect().unwrap(),
    );
    let sums = |told| CrcSums(sky::crcs(told).unwrap());
    let aligned = Aligned::new(sums(&there), sums(&here)).unwrap();
    let number = |offset: u64| offset as usize / PART;
    let verdicts: Vec<_> = aligned
        .map(|(range, verdict)| (number(range.start()), number(range.len_bytes()), verdict))
        .collect();
    let expected = [
        (0, 1, Verdict::Candidate),
        (1, 1, Verdict::Read),
        (2, 1, Verdict::Candidate),
        (3, 1, Verdict::Read),
    ];
    assert_eq!(verdicts, expected);
    // CRCs prove nothing: a sync reads what they call likely, and is right.
    let synced = sky::fixed(&server.source(&network, "old"), &local, PART as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * PART as u64);
}

#[test]
#[ignore = "MinIO is compiled first, which takes minutes: make test-systems"]
fn minio_objects_that_are_replaced_meanwhile_are_noticed() {
    let server = Minio::start();
    let content = noise(1, 3 * PART);
    server.put_parts("changing", &content, Kind::Sha256, &[PART, PART, PART]);
    let replacing = Replacing {
        network: Network::new(None),
        server: &server,
        wanted: AtomicBool::new(true),
    };
    // Between two requests of one description: it begins anew, and describes the successor.
    let source = server.source(&replacing, "changing");
    let told = source.collect().unwrap();
    assert_eq!(verify(&source, &told).unwrap().blocks, 3);
    let mut first = vec![0; 100];
    source.read_at(0, &mut first).unwrap();
    assert_eq!(first, noise(99, 100));
    // Behind it: what was told is void, and the successor's bytes are not given out as its own.
    server.put_parts("changing", &content, Kind::Sha256, &[PART, PART, PART]);
    assert!(!source.is_unchanged(told.stamp()).unwrap());
    let read = source.read_at(0, &mut first);
    assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
    assert!(matches!(
        verify(&source, &told),
        Err(VerifyError::Source(SourceError::ChangedMeanwhile))
    ));
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
