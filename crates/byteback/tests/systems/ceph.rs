//! Objects in the store of a real OSD of Ceph: written while it runs, described while it is
//! stopped, and synced with btrfs, whose CRCs are the same function of the same blocks.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::source::{FileChecksums, Kind, Source, SourceError, VerifyError, verify};
use byteback_delta::find::{Aligned, CrcSums, Verdict};
use byteback_host::clock::RealClock;
use byteback_host::random::SplitMix64;
use byteback_sources::Programs;
use byteback_sources::ceph::{CephSource, Place};

use crate::btrfs::{noise, versions};
use crate::disk::Disk;
use crate::program::{against, as_nobody, checksums};
use crate::server::{Server, script};
use crate::sky;
use crate::tools::{Interrupted, installed};

/// Bytes that one of BlueStore's CRCs covers.
const CHUNK: usize = 4096;

/// A monitor and an OSD, which run as long as this lives.
struct Ceph {
    server: Server,
    programs: Programs,
}

impl Ceph {
    fn start() -> Self {
        Self {
            server: Server::start("ceph"),
            programs: installed(),
        }
    }

    /// The placement group of all objects.
    fn pg(&self) -> &str {
        self.server.said()
    }

    fn dir(&self) -> &Path {
        self.server.dir()
    }

    fn run(&self, what: &str, arguments: &[&str]) -> String {
        let output = self.server.command(what, arguments).output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what} {arguments:?}: {complaints}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn up(&self) {
        self.run("up", &[]);
    }

    fn down(&self) {
        self.run("down", &[]);
    }

    fn rados(&self, arguments: &[&str]) {
        self.run("rados", arguments);
    }

    fn set(&self, option: &str, value: &str) {
        self.run("ceph", &["osd", "pool", "set", "byteback", option, value]);
    }

    fn put_at(&self, name: &str, content: &[u8], offset: usize) {
        let file = self.server.upload(content);
        self.rados(&["put", name, file.to_str().unwrap(), "--offset", &offset.to_string()]);
    }

    fn put(&self, name: &str, content: &[u8]) {
        let file = self.server.upload(content);
        self.rados(&["put", name, file.to_str().unwrap()]);
    }

    fn url(&self, name: &str) -> String {
        let osd = self.dir().join("osd");
        format!("ceph://{}?pg={}&object={name}", osd.display(), self.pg())
    }

    fn source(&self, name: &str) -> CephSource<'_> {
        let place = Place::new(&self.url(name)).unwrap();
        CephSource::new(place, &self.programs, tempfile::tempfile_in("/var/tmp").unwrap())
    }

    /// Offset of an object's first byte on the OSD's device.
    fn address(&self, name: &str) -> u64 {
        let tool = |arguments: &[&str]| {
            let output = Command::new("ceph-objectstore-tool")
                .args(["--no-mon-config", "--data-path"])
                .arg(self.dir().join("osd"))
                .args(arguments)
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let list = tool(&["--op", "list", "--pgid", self.pg()]);
        let wanted = format!("\"oid\":\"{name}\"");
        let spec = list.lines().find(|line| line.contains(&wanted)).unwrap();
        let reported: serde_json::Value = serde_json::from_str(&tool(&[spec, "dump"])).unwrap();
        let first = &reported["onode"]["extents"][0]["blob"]["extents"][0]["offset"];
        first.as_u64().unwrap()
    }
}

/// All bytes of a source.
fn bytes_of(source: &dyn Source) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 24];
    let len = source.read_at(0, &mut bytes).unwrap();
    assert!(len < bytes.len());
    bytes.truncate(len);
    bytes
}

/// The checksums of an object, all compared with its bytes, which must be `expected`; and the
/// number of blocks compared.
#[track_caller]
fn compared(source: &dyn Source, expected: &[u8]) -> (FileChecksums, u64) {
    let reported = source.collect().unwrap();
    let verified = verify(source, &reported).unwrap();
    assert_eq!(reported.stamp().len_bytes, expected.len() as u64);
    assert_eq!(
        verified.bytes + verified.zero_bytes + reported.unknown_bytes(),
        expected.len() as u64
    );
    assert!(bytes_of(source) == expected, "other bytes");
    (reported, verified.blocks)
}

/// Writes as an object store does: bytes never written before are zeros.
fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    content.resize(content.len().max(offset + bytes.len()), 0);
    content[offset..][..bytes.len()].copy_from_slice(bytes);
}

#[test]
#[ignore = "installs Ceph first: make test-systems"]
fn ceph_objects_are_told_and_true() {
    let cluster = Ceph::start();
    // Overwritten within, extended beyond a hole, and then truncated.
    let mut content = noise(1, 6_000_001);
    cluster.put("file", &content);
    for (offset, len) in [
        (1_000_003, 5000),
        (3_000_000, 100),
        (4 << 20, 65_536),
        (9_000_001, 70_000),
    ] {
        let bytes = noise(offset as u64, len);
        cluster.put_at("file", &bytes, offset);
        write(&mut content, offset, &bytes);
    }
    cluster.rados(&["truncate", "file", "9050000"]);
    content.truncate(9_050_000);
    // As long as chunks, and nearly; empty; a hole; a namespace; names that have to be escaped or
    // look like options.
    let lens = [1, CHUNK - 1, CHUNK, CHUNK + 1, 65_536];
    for len in lens {
        cluster.put(&format!("of{len}"), &noise(len as u64, len));
    }
    cluster.rados(&["create", "empty"]);
    cluster.rados(&["create", "hole"]);
    cluster.rados(&["truncate", "hole", "5000000"]);
    cluster.put("a b%&=/\u{e9}\"", &noise(8, 8192));
    let upload = cluster.server.upload(&noise(10, 8192));
    cluster.rados(&["put", "of1", upload.to_str().unwrap(), "-N", "space"]);
    // A request while the OSD runs is refused with advice.
    checksums(cluster.url("file"), &[]).fails_with("the OSD's store is in use");
    // Shared with a clone, parts of which were written to since.
    let before = noise(20, 300_000);
    let mut after = before.clone();
    cluster.put("cloned", &before);
    cluster.rados(&["mksnap", "then"]);
    cluster.put_at("cloned", &noise(21, 5000), 100_001);
    write(&mut after, 100_001, &noise(21, 5000));
    // Other functions, none, compressed, and CRCs of more than 4 KiB.
    for function in ["crc32c_16", "crc32c_8", "xxhash32", "xxhash64", "none", "crc32c"] {
        cluster.set("csum_type", function);
        cluster.put(&format!("with_{function}"), &noise(30, 100_000));
    }
    cluster.set("compression_algorithm", "snappy");
    cluster.set("compression_mode", "force");
    let text = b"written again and again".repeat(20_000);
    cluster.put("compressed", &text);
    cluster.set("compression_mode", "none");
    let mut hinted = noise(31, 700_000);
    cluster.run("hint", &["hinted", "65536"]);
    cluster.put("hinted", &hinted);
    cluster.put_at("hinted", &noise(32, 100), 70_000);
    write(&mut hinted, 70_000, &noise(32, 100));
    cluster.down();

    let said = checksums(cluster.url("file"), &[]).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("ceph"), Some("crc32c"))
    );
    assert_eq!(
        (&said["block_len_bytes"], &said["len_bytes"]),
        (&CHUNK.into(), &content.len().into())
    );
    let summed = said["summed_bytes"].as_u64().unwrap();
    assert!(summed > 5_900_000, "{said}");
    assert_eq!(said["verified"]["bytes"], summed);
    assert!(said["zero_bytes"].as_u64().unwrap() > 2_900_000, "{said}");
    assert_eq!(said["unknown"]["tail"], 9_050_000 % CHUNK);
    compared(&cluster.source("file"), &content);
    for len in lens {
        let (reported, blocks) = compared(&cluster.source(&format!("of{len}")), &noise(len as u64, len));
        assert_eq!(
            (reported.layout().kind, blocks),
            (Kind::Crc32c, (len / CHUNK) as u64),
            "{len}"
        );
    }
    compared(&cluster.source("empty"), b"");
    let (reported, _) = compared(&cluster.source("hole"), &vec![0; 5_000_000]);
    assert_eq!(reported.runs().count(), 1);
    assert_eq!(compared(&cluster.source("a b%25%26=/\u{e9}\""), &noise(8, 8192)).1, 2);
    assert_eq!(compared(&cluster.source("of1&namespace=space"), &noise(10, 8192)).1, 2);
    let (_, blocks) = compared(&cluster.source("cloned&snap=1"), &before);
    assert_eq!(blocks, 300_000 / 4096);
    let (reported, blocks) = compared(&cluster.source("cloned"), &after);
    assert!(
        blocks >= 300_000 / 4096 - 3 && reported.unknown_bytes() < 4 * 4096,
        "{blocks}"
    );
    for function in ["crc32c_16", "crc32c_8", "xxhash32", "xxhash64", "none", "crc32c"] {
        let said = checksums(cluster.url(&format!("with_{function}")), &[]).fine();
        let why = match function {
            "crc32c" => "tail",
            "none" => "not_summed",
            _ => "other_function",
        };
        let unknown = said["unknown"][why].as_u64().unwrap();
        assert_eq!(
            unknown,
            if why == "tail" { 100_000 % 4096 } else { 100_000 },
            "{function}: {said}"
        );
    }
    let said = checksums(cluster.url("compressed"), &[]).fine();
    assert!(said["unknown"]["compressed"].as_u64().unwrap() > 400_000, "{said}");
    assert!(bytes_of(&cluster.source("compressed")) == text);
    let (reported, blocks) = compared(&cluster.source("hinted"), &hinted);
    assert_eq!((reported.layout().block_len, blocks), (65_536, 700_000 / 65_536 - 1));
    // Missing objects, and folders that are no OSD's.
    checksums(cluster.url("missing"), &[]).fails_with("no such object in this placement group");
    checksums(cluster.url("file&snap=7"), &[]).fails_with("no such object in this placement group");
    let elsewhere = cluster.url("file").replace(cluster.pg(), "77.3");
    checksums(elsewhere, &[]).fails_with("no such object in this placement group");
    for folder in ["nothing", "mon"] {
        let url = cluster.url("file").replace("/osd?", &format!("/{folder}?"));
        checksums(url, &[]).fails_with("that folder has no OSD store");
    }
    checksums("ceph:///osd?pg=1.0s0&object=a", &[]).fails_with("erasure-coded");
    // The store is its owner's; a user who may not even look into the folder above it gets the same
    // answer.
    for mode in [0o755, 0o700] {
        std::fs::set_permissions(cluster.dir(), PermissionsExt::from_mode(mode)).unwrap();
        as_nobody(&[OsStr::new(&cluster.url("file"))]).fails_with("only ceph and root may open the OSD's store");
    }
    checksums(cluster.url("file"), &[("PATH", "/nowhere")]).fails_with("ceph-objectstore-tool is not installed");
}

/// Random writes to a few objects, in whatever ways BlueStore stores them, and the resulting
/// checksums; the OSD stops or dies in between.
#[test]
#[ignore = "installs Ceph first: make test-systems"]
fn ceph_random_objects_are_told_as_they_are() {
    let seed = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("BYTEBACK_SEED={seed}");
    let mut random = SplitMix64::new(seed);
    let cluster = Ceph::start();
    let mut objects: Vec<Vec<u8>> = vec![Vec::new(); 3];
    for number in 0..objects.len() {
        match number {
            // One object with CRCs of different lengths.
            0 => cluster.run("hint", &["object0", "65536"]),
            _ => cluster.run("rados", &["create", &format!("object{number}")]),
        };
    }
    let (mut summed_bytes, mut snapshots) = (0, 0);
    for round in 0..4 {
        for _ in 0..25 {
            let number = random.below(objects.len() as u64) as usize;
            let (name, content) = (format!("object{number}"), &mut objects[number]);
            match random.below(12) {
                0 => {
                    let len = random.below(400_000) as usize;
                    cluster.rados(&["truncate", &name, &len.to_string()]);
                    content.resize(len, 0);
                }
                1 => {
                    snapshots += 1;
                    cluster.rados(&["mksnap", &format!("s{snapshots}")]);
                }
                2 => cluster.set("compression_mode", ["none", "force"][random.below(2) as usize]),
                drawn => {
                    let grain = [1, CHUNK, 65_536][random.below(3) as usize];
                    let offset = random.below(400_000) as usize / grain * grain;
                    let len = match drawn {
                        3..=5 => 1 + random.below(300) as usize,
                        6..=8 => 1 + random.below(20_000) as usize,
                        _ => (1 + random.below(200_000) as usize).next_multiple_of(grain),
                    };
                    let bytes = match random.below(5) {
                        0 => vec![7; len],
                        _ => noise(random.next_u64(), len),
                    };
                    cluster.put_at(&name, &bytes, offset);
                    write(content, offset, &bytes);
                }
            }
        }
        cluster.run("down", &[["TERM", "KILL"][round % 2]]);
        for (number, content) in objects.iter().enumerate() {
            let (reported, blocks) = compared(&cluster.source(&format!("object{number}")), content);
            summed_bytes += blocks * u64::from(reported.layout().block_len);
        }
        // The objects in snapshots, whose content was not recorded, are verified as well.
        for snap in 1..=snapshots {
            let source = cluster.source(&format!("object1&snap={snap}"));
            match source.collect() {
                Ok(reported) => drop(verify(&source, &reported).unwrap()),
                Err(error) => assert!(matches!(error, SourceError::Missing(_)), "{error}"),
            }
        }
        if round < 3 {
            cluster.up();
            if round == 0 {
                cluster.set("compression_algorithm", "snappy");
            }
        }
    }
    assert!(summed_bytes > 1_000_000, "{summed_bytes}");
}

/// The OSD is started, written to, and stopped again; and a device rots.
#[test]
#[ignore = "installs Ceph first: make test-systems"]
fn ceph_objects_that_change_are_noticed() {
    let cluster = Ceph::start();
    let content = noise(1, 1_000_000);
    for name in ["same", "unread", "other", "gone", "kept", "rotten"] {
        cluster.put(name, &content);
    }
    cluster.down();
    let sources = ["same", "unread", "other", "gone", "kept"].map(|name| cluster.source(name));
    let reported = sources.each_ref().map(|source| source.collect().unwrap());
    for (source, reported) in sources
        .iter()
        .zip(&reported)
        .filter(|(source, _)| !std::ptr::eq(*source, &sources[1]))
    {
        assert_eq!(verify(source, reported).unwrap().blocks, 1_000_000 / 4096);
    }
    cluster.up();
    // While the OSD runs, it is unknown whether the object changed.
    let said = sources[0].is_unchanged(reported[0].stamp());
    assert!(matches!(said, Err(SourceError::Denied(_))), "{said:?}");
    // The same bytes; others, of the same length; none at all.
    cluster.put_at("same", &content[70_000..80_000], 70_000);
    cluster.put_at("unread", b"!", 500_000);
    cluster.put_at("other", b"!", 500_000);
    cluster.rados(&["rm", "gone"]);
    cluster.down();
    for number in 0..4 {
        assert!(
            !sources[number].is_unchanged(reported[number].stamp()).unwrap(),
            "{number}"
        );
        let said = verify(&sources[number], &reported[number]);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
            "{said:?}"
        );
    }
    // New bytes are not returned as the described ones.
    let said = sources[1].read_at(0, &mut [0; 10]);
    assert!(matches!(said, Err(SourceError::ChangedMeanwhile)), "{said:?}");
    let mut changed = content.clone();
    changed[500_000] = b'!';
    for number in [1, 2] {
        let (anew, _) = compared(&sources[number], &changed);
        assert_ne!(anew.stamp(), reported[number].stamp());
    }
    assert!(matches!(sources[3].collect(), Err(SourceError::Missing(_))));
    assert!(sources[4].is_unchanged(reported[4].stamp()).unwrap());
    compared(&sources[4], &content);
    // A byte on the device: the checksum kept is that of the written data, and BlueStore returns
    // nothing else.
    let address = cluster.address("rotten") + 5000;
    let device = File::options()
        .read(true)
        .write(true)
        .open(cluster.dir().join("osd/block"))
        .unwrap();
    let mut byte = [0];
    device.read_exact_at(&mut byte, address).unwrap();
    assert_eq!(byte[0], content[5000]);
    device.write_all_at(&[!byte[0]], address).unwrap();
    let source = cluster.source("rotten");
    let reported = source.collect().unwrap();
    assert_eq!(reported.unknown_bytes(), 1_000_000 % 4096);
    let said = verify(&source, &reported);
    assert!(matches!(said, Err(VerifyError::Source(_))), "{said:?}");
}

/// The OSD is started, written to and stopped between any two calls for a description and its
/// bytes.
#[test]
#[ignore = "installs Ceph first: make test-systems"]
fn ceph_object_changed_between_questions_is_told_as_one_moment() {
    let cluster = Ceph::start();
    let (old, new) = (noise(1, 300_000), noise(2, 300_000));
    let upload = cluster.dir().join("upload").display().to_string();
    // The list, the object, its bytes, the object again.
    for call in 0..4 {
        cluster.put("changing", &old);
        cluster.down();
        std::fs::write(&upload, &new).unwrap();
        let script = |what: &str| format!("'{}' {what} '{}'", script("ceph").display(), cluster.dir().display());
        let write = format!(
            "unset CEPH_CONF; {} && {} put changing '{upload}' && {}",
            script("up"),
            script("rados"),
            script("down")
        );
        let tool = Interrupted::new("ceph-objectstore-tool", call, &write);
        let programs = tool.programs();
        let place = Place::new(&cluster.url("changing")).unwrap();
        let source = CephSource::new(place, &programs, tempfile::tempfile_in("/var/tmp").unwrap());
        let reported = source.collect().unwrap();
        assert_eq!(tool.calls(), 2);
        let read = source.read_at(0, &mut [0; 100]);
        match call {
            // The object was already rewritten when it was described.
            0 => assert_eq!(verify(&source, &reported).unwrap().blocks, 300_000 / 4096),
            // The bytes may be the old or the new ones: not those described, or it is unknown.
            1 | 2 => assert!(matches!(read, Err(SourceError::ChangedMeanwhile)), "{call}: {read:?}"),
            // The bytes were fetched before.
            _ => assert_eq!(read.unwrap(), 100),
        }
        assert_eq!(source.is_unchanged(reported.stamp()).unwrap(), call == 0, "{call}");
        if call > 0 {
            let said = verify(&source, &reported);
            assert!(
                matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
                "{call}: {said:?}"
            );
        }
        compared(&cluster.source("changing"), &new);
        cluster.up();
    }
}

/// Section 3.3: the differing blocks are known without a byte of either; and syncs between the two,
/// and within the OSD.
#[test]
#[ignore = "installs Ceph first: make test-systems"]
fn ceph_and_btrfs_agree_on_blocks_of_both() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let cluster = Ceph::start();
    let (old, new) = versions(8 << 20);
    let mut changed = old.clone();
    changed[5 * CHUNK + 17] ^= 1;
    changed[1_000_000..1_009_000].copy_from_slice(&noise(3, 9000));
    for (name, content) in [("old", &old), ("new", &new), ("changed", &changed)] {
        cluster.put(name, content);
        std::fs::write(disk.path().join(name), content).unwrap();
    }
    cluster.down();
    let [old_file, new_file, changed_file] =
        ["old", "new", "changed"].map(|name| File::open(disk.path().join(name)).unwrap());
    let local = BtrfsSource::new(&changed_file, &RealClock).unwrap();
    let remote = cluster.source("old");
    let (there, here) = (remote.collect().unwrap(), local.collect().unwrap());
    let sums = |reported| CrcSums(sky::crcs(reported).unwrap());
    for (range, verdict) in Aligned::new(sums(&there), sums(&here)).unwrap() {
        let range = range.start() as usize..range.end() as usize;
        let expected = match old[range.clone()] == changed[range.clone()] {
            true => Verdict::Candidate,
            false => Verdict::Read,
        };
        assert_eq!(verdict, expected, "{range:?}");
    }
    let mut said = against(disk.path().join("changed"), cluster.url("old"), &[]).all_fine();
    let summary = said.pop().unwrap();
    assert_eq!(summary["differing_bytes"], 4 * CHUNK);
    assert_eq!(summary["likely_bytes"], old.len() - 4 * CHUNK);
    // CRCs prove nothing: a sync reads the likely blocks as well, and is right.
    let base = cluster.source("old");
    let source = cluster.source("new");
    let synced = sky::fixed(&base, &source, CHUNK as u32, &new);
    assert!(synced.stats.literal_bytes < 8 * CHUNK as u64, "{:?}", synced.stats);
    let synced = sky::chunked(&base, &source, &new);
    assert!(synced.stats.literal_bytes < 8 * 12_288, "{:?}", synced.stats);
    let local = BtrfsSource::new(&new_file, &RealClock).unwrap();
    let synced = sky::fixed(&base, &local, CHUNK as u32, &new);
    assert!(synced.stats.literal_bytes < 8 * CHUNK as u64, "{:?}", synced.stats);
    let local = BtrfsSource::new(&old_file, &RealClock).unwrap();
    let synced = sky::chunked(&local, &source, &new);
    assert!(synced.stats.literal_bytes < 8 * 12_288, "{:?}", synced.stats);
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_ceph() {
    let cluster = Ceph::start();
    let old = noise(1, 100 << 20);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
    }
    cluster.put("old", &old);
    cluster.put("new", &new);
    cluster.down();
    let (base, source) = (cluster.source("old"), cluster.source("new"));
    base.read_at(0, &mut [0]).unwrap();
    source.collect().unwrap();
    // The bytes are fetched once, which is part of neither column.
    let started = Instant::now();
    source.read_at(0, &mut [0]).unwrap();
    println!("fetching: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    crate::costs::print_row("Ceph, CRC-32C", &base, &source, CHUNK as u32, &new);
}
