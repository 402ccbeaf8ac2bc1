//! Files at a real SeaweedFS: chunks with the CRCs of their needles, listed, verified, and synced
//! with btrfs, whose CRCs are combined to match.

use std::fs::File;
use std::os::unix::fs::FileExt;

use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::source::{Run, Source, SourceError, VerifyError, verify};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{Aligned, CrcSums, Verdict};
use byteback_host::clock::RealClock;
use byteback_sources::http::{Answer, Http, Method, Request};
use byteback_sources::seaweedfs::{Place, SeaweedFsSource};

use crate::btrfs::noise;
use crate::disk::Disk;
use crate::meddling::Meddling;
use crate::network::Network;
use crate::plain::PlainFile;
use crate::program::{against, checksums};
use crate::server::{Server, curl};
use crate::sky;

/// Chunk size of the filer, in bytes.
const CHUNK: usize = 4 << 20;

/// A server, which runs as long as this lives.
struct SeaweedFs(Server);

impl SeaweedFs {
    fn start() -> Self {
        Self(Server::start("seaweedfs"))
    }

    /// Host and port of the filer.
    fn filer(&self) -> &str {
        self.0.said()
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        curl(arguments, &format!("http://{}{path}", self.filer()))
    }

    fn put(&self, path: &str, content: &[u8]) {
        let file = self.0.upload(content);
        let form = format!("file=@{};type=application/octet-stream", file.display());
        self.curl(&["-F", &form], path);
    }

    fn url(&self, path: &str) -> String {
        format!("seaweedfs://{}{path}", self.filer())
    }

    fn source<'a>(&self, http: &'a dyn Http, path: &str) -> SeaweedFsSource<'a> {
        SeaweedFsSource::new(http, Place::new(&self.url(path)).unwrap())
    }
}

#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_files_are_described_as_they_are() {
    let server = SeaweedFs::start();
    let content = noise(1, 2 * CHUNK + 123_457);
    server.put("/a/file", &content);
    let said = checksums(server.url("/a/file"), &[]).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("seaweedfs"), Some("crc32c"))
    );
    assert_eq!(
        (&said["block_len_bytes"], &said["are_lengths_varied"]),
        (&CHUNK.into(), &false.into())
    );
    assert_eq!(
        (&said["summed_bytes"], &said["verified"]["blocks"]),
        (&content.len().into(), &3.into())
    );
    // Appended bytes are a chunk of their own.
    let file = server.0.upload(&noise(2, 1000));
    server.curl(&["-F", &format!("file=@{}", file.display())], "/a/file?op=append");
    let said = checksums(server.url("/a/file"), &[]).fine();
    assert_eq!(
        (&said["verified"]["blocks"], &said["are_lengths_varied"]),
        (&4.into(), &true.into())
    );
    assert_eq!(said["len_bytes"], content.len() + 1000);
    // Empty, one byte, a name that has to be escaped, and a file that SeaweedFS compresses.
    server.put("/a/empty", b"");
    assert_eq!(checksums(server.url("/a/empty"), &[]).fine()["len_bytes"], 0);
    server.put("/a/a%20b%25%C3%A9", b"x");
    assert_eq!(
        checksums(server.url("/a/a b%\u{e9}"), &[]).fine()["verified"]["bytes"],
        1
    );
    let text = server.0.upload("a line of text\n".repeat(400_000).as_bytes());
    server.curl(
        &["-F", &format!("file=@{};type=text/plain", text.display())],
        "/a/text.txt",
    );
    let said = checksums(server.url("/a/text.txt"), &[]).fine();
    assert_eq!(
        (&said["unknown"]["compressed"], &said["summed_bytes"]),
        (&6_000_000.into(), &0.into())
    );
    // Paths that are no files, and servers that are no filer.
    checksums(server.url("/a/missing"), &[]).fails_with("no such file");
    checksums(server.url("/a"), &[]).fails_with("a folder");
    checksums("seaweedfs://127.0.0.1:1/a", &[]).fails_with("cannot reach the filer");
    checksums("seaweedfs://127.0.0.1", &[]).fails_with("seaweedfs://HOST:PORT/PATH");
}

/// Section 3.3: btrfs has CRC-32C of 4 KiB, SeaweedFS of 4 MiB. Those of btrfs are combined, and
/// the differing chunks are known without a byte of either.
#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_and_btrfs_agree_on_blocks_of_both() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let server = SeaweedFs::start();
    let old = noise(1, 4 * CHUNK);
    let mut new = old.clone();
    new[CHUNK + 17] ^= 1;
    new[3 * CHUNK..3 * CHUNK + 9000].copy_from_slice(&noise(3, 9000));
    server.put("/old", &old);
    std::fs::write(disk.path().join("new"), &new).unwrap();
    let file = File::open(disk.path().join("new")).unwrap();
    let local = BtrfsSource::new(&file, &RealClock).unwrap();
    let network = Network::new(None);
    let remote = server.source(&network, "/old");
    let (there, here) = (remote.collect().unwrap(), local.collect().unwrap());
    let sums = |reported| CrcSums(sky::crcs(reported).unwrap());
    let aligned = Aligned::new(sums(&there), sums(&here)).unwrap();
    let verdicts: Vec<_> = aligned
        .map(|(range, verdict)| {
            (
                range.start() as usize / CHUNK,
                range.len_bytes() as usize / CHUNK,
                verdict,
            )
        })
        .collect();
    let expected = [
        (0, 1, Verdict::Candidate),
        (1, 1, Verdict::Read),
        (2, 1, Verdict::Candidate),
        (3, 1, Verdict::Read),
    ];
    assert_eq!(verdicts, expected);
    // CRCs prove nothing: a sync reads the likely chunks as well, and is right. In both directions.
    let synced = sky::fixed(&remote, &local, CHUNK as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * CHUNK as u64);
    server.put("/new", &new);
    std::fs::write(server.0.dir().join("old"), &old).unwrap();
    let base = PlainFile::open(&server.0.dir().join("old"));
    let synced = sky::fixed(&base, &server.source(&network, "/new"), CHUNK as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * CHUNK as u64);
    let said = against(server.url("/old"), disk.path().join("new"), &[]).all_fine();
    let summary = said.last().unwrap();
    assert_eq!(
        (
            &summary["differing_bytes"],
            &summary["likely_bytes"],
            &summary["unknown_bytes"]
        ),
        (&(2 * CHUNK).into(), &(2 * CHUNK).into(), &0.into())
    );
}

#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_files_that_are_replaced_meanwhile_are_noticed() {
    let server = SeaweedFs::start();
    let content = noise(1, 3 * CHUNK);
    let mut first = vec![0; 100];
    // Before each request of a description: the entry, three needles, the entry again. It then
    // describes the successor.
    for replaced_at in 0..5 {
        server.put("/changing", &content);
        let replace = |number| {
            if number == replaced_at {
                server.put("/changing", &noise(99, 3 * CHUNK));
            }
        };
        let meddling = Meddling::before(&replace);
        let source = server.source(&meddling, "/changing");
        let reported = source.collect().unwrap();
        assert_eq!(meddling.asked(), if replaced_at == 0 { 5 } else { 10 }, "{replaced_at}");
        assert_eq!(verify(&source, &reported).unwrap().blocks, 3);
        source.read_at(0, &mut first).unwrap();
        assert_eq!(first, noise(99, 100));
    }
    let network = Network::new(None);
    let source = server.source(&network, "/changing");
    let reported = source.collect().unwrap();
    // After the description: it is void, and the successor's bytes are not returned as the
    // described ones. The same bytes written again are another state, too.
    for content in [content, noise(99, 3 * CHUNK)] {
        server.put("/changing", &content);
        assert!(!source.is_unchanged(reported.stamp()).unwrap());
        let read = source.read_at(0, &mut first);
        assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
        let said = verify(&source, &reported);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
            "{said:?}"
        );
    }
    server.curl(&["-X", "DELETE"], "/changing");
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    assert!(matches!(source.collect(), Err(SourceError::Missing(_))));
}

/// A needle that rots on the volume server's disk is never returned as the original.
#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_needles_that_rot_are_noticed() {
    let mut server = SeaweedFs::start();
    let content = noise(1, 1 << 20);
    server.put("/rotten", &content);
    server.put("/sound", &noise(2, 1 << 20));
    let network = Network::new(None);
    let reported = server.source(&network, "/rotten").collect().unwrap();
    assert_eq!(reported.runs().filter(|run| matches!(run, Run::Sums { .. })).count(), 1);
    // The server is stopped meanwhile, as it may have the needle in memory.
    server.0.restart(|dir| {
        let mut changed = 0;
        for entry in std::fs::read_dir(dir.join("data")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "dat") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let wanted = &content[500_000..500_032];
            if let Some(at) = bytes.windows(32).position(|window| window == wanted) {
                let file = File::options().write(true).open(&path).unwrap();
                file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
                changed += 1;
            }
        }
        assert_eq!(changed, 1);
    });
    let source = server.source(&network, "/rotten");
    let said = verify(&source, &reported);
    assert!(
        matches!(
            said,
            Err(VerifyError::Differs { .. } | VerifyError::Source(SourceError::Server { .. } | SourceError::Io { .. }))
        ),
        "{said:?}"
    );
    if let Ok(anew) = source.collect() {
        assert!(
            anew.runs().eq(reported.runs()),
            "other checksums than those of what was written"
        );
    }
    checksums(server.url("/sound"), &[]).fine();
}

/// Answers of a real filer, some of them falsified: a false description is rejected or found out,
/// and makes no wrong delta.
#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_answers_that_lie_make_no_wrong_delta() {
    let server = SeaweedFs::start();
    let old = noise(1, 3 * CHUNK + 1000);
    let mut new = old.clone();
    new[CHUNK + 5..CHUNK + 900].copy_from_slice(&noise(7, 895));
    server.put("/old", &old);
    server.put("/new", &new);
    let network = Network::new(None);
    let base = server.source(&network, "/old");
    let base_checksums = base.collect().unwrap();
    // The old content's needle is named in place of the new one's: as if nothing had changed.
    let entry: serde_json::Value = serde_json::from_str(&server.curl(&[], "/new?metadata=true")).unwrap();
    let needle = entry["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|chunk| chunk["offset"] == CHUNK)
        .unwrap()["file_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let crc = format!("\"{:08x}\"", CrcKind::Crc32c.of(&old[CHUNK..2 * CHUNK]));
    let lie = |request: &Request, answer: &mut Answer| {
        let is_wanted = request.method == Method::Head && request.url.ends_with(&needle);
        let mut headers = answer.headers.iter_mut();
        if let Some(etag) = headers.find(|header| is_wanted && header.0.eq_ignore_ascii_case("etag")) {
            assert_ne!(etag.1, crc);
            etag.1.clone_from(&crc);
        }
    };
    let meddling = Meddling::answers(&lie);
    let source = server.source(&meddling, "/new");
    let reported = source.collect().unwrap();
    assert!(reported.runs().eq(base_checksums.runs()), "it did not lie");
    let said = verify(&source, &reported);
    assert!(
        matches!(said, Err(VerifyError::Differs { offset, .. }) if offset == CHUNK as u64),
        "{said:?}"
    );
    // Each of these compares the delta's result with the content.
    let synced = sky::fixed(&base, &source, CHUNK as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * CHUNK as u64 + 1000);
    sky::fixed(&source, &base, CHUNK as u32, &old);
    // Entries that are cut short, lack a chunk, or are of another file.
    let is_entry = |request: &Request| request.url.ends_with("?metadata=true");
    let cut = |request: &Request, answer: &mut Answer| {
        if is_entry(request) {
            answer.body.truncate(answer.body.len() / 2);
        }
    };
    let meddling = Meddling::answers(&cut);
    let said = server.source(&meddling, "/new").collect();
    assert!(matches!(said, Err(SourceError::Malformed(_))), "{said:?}");
    let lose = |request: &Request, answer: &mut Answer| {
        if is_entry(request) {
            let mut entry: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            entry["chunks"]
                .as_array_mut()
                .unwrap()
                .retain(|chunk| chunk["offset"] != CHUNK);
            answer.body = entry.to_string().into_bytes();
        }
    };
    let meddling = Meddling::answers(&lose);
    let source = server.source(&meddling, "/new");
    let said = verify(&source, &source.collect().unwrap());
    assert!(
        matches!(said, Err(VerifyError::NotZero { offset }) if offset == CHUNK as u64),
        "{said:?}"
    );
    sky::fixed(&base, &source, CHUNK as u32, &new);
    server.put("/longer", &noise(8, 5 * CHUNK));
    let others = server.curl(&[], "/longer?metadata=true");
    let swap = |request: &Request, answer: &mut Answer| {
        if is_entry(request) {
            answer.body = others.clone().into_bytes();
        }
    };
    let meddling = Meddling::answers(&swap);
    let source = server.source(&meddling, "/new");
    let said = verify(&source, &source.collect().unwrap());
    assert!(
        matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
        "{said:?}"
    );
}

/// A filer that answers only requests with a token.
#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_that_wants_a_token_says_so() {
    let server = SeaweedFs(Server::start_with(
        "seaweedfs",
        &[("WEED_JWT_FILER_SIGNING_READ_KEY", "secret")],
    ));
    server.put("/file", &noise(1, 1000));
    let said = checksums(server.url("/file"), &[]);
    for part in [
        "the filer requires a token",
        "use a filer without that key",
        "'weed mount'",
    ] {
        assert!(said.errors.contains(part), "not '{part}': {}", said.errors);
    }
    said.fails_with("jwt.filer_signing.read");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_seaweedfs() {
    let server = SeaweedFs::start();
    let old = noise(1, 25 * CHUNK);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
    }
    server.put("/new", &new);
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::fs::write(file.path(), &old).unwrap();
    let base = PlainFile::open(file.path());
    let network = Network::new(None);
    let source = server.source(&network, "/new");
    crate::costs::print_row("SeaweedFS, CRC-32C", &base, &source, CHUNK as u32, &new);
}
