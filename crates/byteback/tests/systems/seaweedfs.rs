//! Files at a real SeaweedFS: chunks with the CRCs of their needles, told, verified, and synced with btrfs, whose CRCs are combined to theirs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::http::{Answer, Http, Request};
use byteback_checksums::seaweedfs::{Place, SeaweedFsSource};
use byteback_checksums::source::{Run, Source, SourceError, VerifyError, verify};
use byteback_delta::find::{Aligned, CrcSums, Verdict};
use byteback_host::clock::RealClock;

use crate::btrfs::noise;
use crate::disk::Disk;
use crate::network::Network;
use crate::plain::PlainFile;
use crate::program::checksums;
use crate::sky;

/// The filer's chunks.
const CHUNK: usize = 4 << 20;

/// A server as long as it lives.
struct SeaweedFs {
    dir: tempfile::TempDir,
    filer: String,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/systems/seaweedfs")
}

impl SeaweedFs {
    fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("byteback-seaweedfs-")
            .tempdir_in("/var/tmp");
        let dir = dir.unwrap();
        let output = Command::new(script())
            .arg("start")
            .arg(dir.path())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "tests/systems/seaweedfs start failed");
        let filer = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self { dir, filer }
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let output = Command::new("curl")
            .args(["-sS", "--fail-with-body"])
            .args(arguments)
            .arg(format!("http://{}{path}", self.filer))
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

    fn put(&self, path: &str, content: &[u8]) {
        let file = self.dir.path().join("upload");
        std::fs::write(&file, content).unwrap();
        let form = format!("file=@{};type=application/octet-stream", file.display());
        self.curl(&["-F", &form], path);
    }

    fn url(&self, path: &str) -> String {
        format!("seaweedfs://{}{path}", self.filer)
    }

    fn source<'a>(&self, http: &'a dyn Http, path: &str) -> SeaweedFsSource<'a> {
        SeaweedFsSource::new(http, Place::new(&self.url(path)).unwrap())
    }
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        let stopped = Command::new(script()).arg("stop").arg(self.dir.path()).status();
        assert!(stopped.is_ok_and(|status| status.success()) || std::thread::panicking());
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
    // What is appended is a chunk of its own.
    let file = server.dir.path().join("more");
    std::fs::write(&file, noise(2, 1000)).unwrap();
    server.curl(&["-F", &format!("file=@{}", file.display())], "/a/file?op=append");
    let said = checksums(server.url("/a/file"), &[]).fine();
    assert_eq!(
        (&said["verified"]["blocks"], &said["are_lengths_varied"]),
        (&4.into(), &true.into())
    );
    assert_eq!(said["len_bytes"], content.len() + 1000);
    // Nothing, one byte, a name that has to be escaped, and what SeaweedFS compresses.
    server.put("/a/empty", b"");
    assert_eq!(checksums(server.url("/a/empty"), &[]).fine()["len_bytes"], 0);
    server.put("/a/a%20b%25%C3%A9", b"x");
    assert_eq!(
        checksums(server.url("/a/a b%\u{e9}"), &[]).fine()["verified"]["bytes"],
        1
    );
    let text = server.dir.path().join("text");
    std::fs::write(&text, "a line of text\n".repeat(400_000)).unwrap();
    server.curl(
        &["-F", &format!("file=@{};type=text/plain", text.display())],
        "/a/text.txt",
    );
    let said = checksums(server.url("/a/text.txt"), &[]).fine();
    assert_eq!(
        (&said["unknown"]["compressed"], &said["summed_bytes"]),
        (&6_000_000.into(), &0.into())
    );
    // What is no file, and who is no filer.
    checksums(server.url("/a/missing"), &[]).fails_with("no such file");
    checksums(server.url("/a"), &[]).fails_with("a folder");
    checksums("seaweedfs://127.0.0.1:1/a", &[]).fails_with("cannot reach the filer");
    checksums("seaweedfs://127.0.0.1", &[]).fails_with("seaweedfs://HOST:PORT/PATH");
}

/// Section 3.3: btrfs has CRC-32C of 4 KiB, SeaweedFS of 4 MiB: those of btrfs are combined, and the chunks that differ are known without a byte of either.
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
    let sums = |told| CrcSums(sky::crcs(told).unwrap());
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
    // CRCs prove nothing: a sync reads what they call likely, and is right. In both directions.
    let synced = sky::fixed(&remote, &local, CHUNK as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * CHUNK as u64);
    server.put("/new", &new);
    std::fs::write(server.dir.path().join("old"), &old).unwrap();
    let base = PlainFile::open(&server.dir.path().join("old"));
    let synced = sky::fixed(&base, &server.source(&network, "/new"), CHUNK as u32, &new);
    assert_eq!(synced.stats.copied_bytes, 2 * CHUNK as u64);
}

/// The network, on which a file is replaced as soon as it was described.
struct Replacing<'a> {
    network: Network,
    server: &'a SeaweedFs,
    wanted: AtomicBool,
}

impl Http for Replacing<'_> {
    fn ask(&self, request: &Request) -> std::io::Result<Answer> {
        let answer = self.network.ask(request);
        if self.wanted.swap(false, Ordering::SeqCst) {
            self.server.put("/changing", &noise(99, 3 * CHUNK));
        }
        answer
    }
}

#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_files_that_are_replaced_meanwhile_are_noticed() {
    let server = SeaweedFs::start();
    let content = noise(1, 3 * CHUNK);
    server.put("/changing", &content);
    let replacing = Replacing {
        network: Network::new(None),
        server: &server,
        wanted: AtomicBool::new(true),
    };
    let source = server.source(&replacing, "/changing");
    let told = source.collect().unwrap();
    assert_eq!(verify(&source, &told).unwrap().blocks, 3);
    let mut first = vec![0; 100];
    source.read_at(0, &mut first).unwrap();
    assert_eq!(first, noise(99, 100));
    // Behind it: what was told is void, and the successor's bytes are not given out as its own. The same bytes once more are another state, too.
    for content in [content, noise(99, 3 * CHUNK)] {
        server.put("/changing", &content);
        assert!(!source.is_unchanged(told.stamp()).unwrap());
        let read = source.read_at(0, &mut first);
        assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{read:?}");
        let said = verify(&source, &told);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
            "{said:?}"
        );
    }
    server.curl(&["-X", "DELETE"], "/changing");
    assert!(!source.is_unchanged(told.stamp()).unwrap());
    assert!(matches!(source.collect(), Err(SourceError::Missing(_))));
}

/// A needle that rots on the volume server's disk is never given out as what it was: SeaweedFS or --verify notices.
#[test]
#[ignore = "fetches SeaweedFS first: make test-systems"]
fn seaweedfs_needles_that_rot_are_noticed() {
    let server = SeaweedFs::start();
    let content = noise(1, 1 << 20);
    server.put("/rotten", &content);
    let network = Network::new(None);
    let source = server.source(&network, "/rotten");
    let told = source.collect().unwrap();
    assert_eq!(told.runs().filter(|run| matches!(run, Run::Sums { .. })).count(), 1);
    let mut changed = 0;
    for entry in std::fs::read_dir(server.dir.path().join("data")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "dat") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes
            .windows(32)
            .position(|window| window == &content[500_000..500_032])
        {
            use std::os::unix::fs::FileExt;
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    // The filer may have it in its memory still; then it is what it was.
    let mut bytes = vec![0; content.len()];
    if source.read_at(0, &mut bytes).is_ok_and(|len| len == content.len()) {
        match verify(&source, &told) {
            Ok(_) => assert!(bytes == content),
            Err(error) => assert!(
                matches!(error, VerifyError::Differs { .. } | VerifyError::Source(_)),
                "{error}"
            ),
        }
    }
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
