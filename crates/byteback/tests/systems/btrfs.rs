//! btrfs, in an image file: the output of the command, and syncs with the checksums that it keeps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use byteback_checksums::btrfs::BtrfsSource;
use byteback_host::clock::RealClock;
use byteback_host::random::SplitMix64;

use crate::disk::{Disk, run, text};
use crate::program::{against, as_nobody, checksums};
use crate::sky;

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// An old content and a new one: some blocks overwritten, some bytes inserted, and the end cut off.
pub(crate) fn versions(len: usize) -> (Vec<u8>, Vec<u8>) {
    let old = noise(1, len);
    let mut new = old.clone();
    for (index, at) in [10_000, len / 3, len / 2].into_iter().enumerate() {
        new[at..at + 300].copy_from_slice(&noise(20 + index as u64, 300));
    }
    let at = len * 3 / 4;
    new.splice(at..at, noise(30, 777));
    new.truncate(len - 5000);
    (old, new)
}

#[test]
fn what_btrfs_keeps_is_told_and_true() {
    let Some(disk) = Disk::new("sha256", 256, "") else {
        return;
    };
    let path = disk.path().join("file");
    std::fs::write(&path, noise(1, 3_000_001)).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(5_000_000).unwrap();
    let said = checksums(&path, &[]).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("btrfs"), Some("sha256"))
    );
    assert_eq!(
        (said["block_len_bytes"].as_u64(), said["is_strong"].as_bool()),
        (Some(4096), Some(true))
    );
    let summed = 3_000_001_u64.next_multiple_of(4096);
    assert_eq!(said["summed_bytes"], summed);
    assert_eq!(said["zero_bytes"], 5_000_000 - summed);
    assert_eq!(said["verified"]["blocks"], summed / 4096);
    assert_eq!(said["checksum_bytes"], summed / 4096 * 32);
    // The output in words.
    let output = Command::new(env!("CARGO_BIN_EXE_byteback"))
        .arg("checksums")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  source       btrfs\n",
        "  checksums    sha256 of blocks of 4.0 KiB",
        " are zeros\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    // A file without checksums.
    File::create(disk.path().join("nocow")).unwrap();
    run("chattr", &["+C", text(&disk.path().join("nocow"))]);
    std::fs::write(disk.path().join("nocow"), noise(2, 100_000)).unwrap();
    let said = checksums(disk.path().join("nocow"), &[]).fine();
    assert_eq!(
        (&said["summed_bytes"], &said["unknown"]["not_summed"]),
        (&0.into(), &98_304.into())
    );
    // A user who may read the file, but not search the file system; and arguments that are no
    // files.
    as_nobody(&[path.as_os_str()]).fails_with("reports a file system's checksums only to root");
    checksums(disk.path(), &[]).fails_with("not a regular file");
    checksums(disk.path().join("missing"), &[]).fails_with("No such file");
    let elsewhere = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    checksums(elsewhere.path(), &[]).fails_with("is not on btrfs");
}

/// Both ends on btrfs; with checksums that prove, nothing that is equal in place is read.
#[test]
fn a_sync_between_two_btrfs_with_sha256_reads_what_changed() {
    let Some(disk) = Disk::new("sha256", 256, "") else {
        return;
    };
    let (old, _) = versions(8 << 20);
    let mut new = old.clone();
    new[3_000_000..3_000_300].copy_from_slice(&noise(9, 300));
    std::fs::write(disk.path().join("old"), &old).unwrap();
    std::fs::write(disk.path().join("new"), &new).unwrap();
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.path().join(name)).unwrap());
    let base = BtrfsSource::new(&old_file, &RealClock).unwrap();
    let source = BtrfsSource::new(&new_file, &RealClock).unwrap();
    let synced = sky::fixed(&base, &source, 4096, &new);
    assert_eq!((synced.stats.read_bytes, synced.new_read_bytes), (4096, 4096));
    // btrfs has no CRCs in addition: the base's end reads its file, once.
    assert_eq!(synced.base_read_bytes, old.len() as u64);
    assert!(synced.delta_len < 5000, "{}", synced.delta_len);
}

/// Insertions, cuts and overwritten places, with content-defined chunks whose CRCs follow from
/// those of btrfs's sectors.
#[test]
fn a_sync_by_chunks_between_two_btrfs_with_crc32c() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let (old, new) = versions(8 << 20);
    std::fs::write(disk.path().join("old"), &old).unwrap();
    std::fs::write(disk.path().join("new"), &new).unwrap();
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.path().join(name)).unwrap());
    let base = BtrfsSource::new(&old_file, &RealClock).unwrap();
    let source = BtrfsSource::new(&new_file, &RealClock).unwrap();
    let synced = sky::chunked(&base, &source, &new);
    assert!(synced.stats.literal_bytes < 8 * 12_288, "{:?}", synced.stats);
    assert!(synced.delta_len < 8 * 12_288 + 2000);
    let synced = sky::fixed(&base, &source, 4096, &new);
    assert!(synced.stats.literal_bytes < 8 * 4096, "{:?}", synced.stats);
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_btrfs() {
    for kind in ["crc32c", "xxhash", "sha256", "blake2"] {
        let Some(disk) = Disk::new(kind, 1024, "") else {
            return;
        };
        let old = noise(1, 100 << 20);
        let mut new = old.clone();
        for at in 0..10 {
            new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
        }
        std::fs::write(disk.path().join("old"), &old).unwrap();
        std::fs::write(disk.path().join("new"), &new).unwrap();
        let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.path().join(name)).unwrap());
        let base = BtrfsSource::new(&old_file, &RealClock).unwrap();
        let source = BtrfsSource::new(&new_file, &RealClock).unwrap();
        crate::costs::print_row(&format!("btrfs, {kind}"), &base, &source, 4096, &new);
    }
}

/// Checksums of a file count no more once it is overwritten.
#[test]
fn checksums_of_before_a_change_are_not_taken() {
    use byteback_checksums::source::{Source, SourceError, VerifyError, verify};
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let path = disk.path().join("file");
    std::fs::write(&path, noise(1, 1 << 20)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let source = BtrfsSource::new(&file, &RealClock).unwrap();
    let reported = source.collect().unwrap();
    assert_eq!(verify(&source, &reported).unwrap().blocks, 256);
    file.write_all_at(b"!", 500_000).unwrap();
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    let said = verify(&source, &reported);
    assert!(
        matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
        "{said:?}"
    );
}

/// The differences between two copies by their file systems' checksums alone, and copies that
/// cannot be compared.
#[test]
fn copies_are_compared_by_their_checksums_alone() {
    let (Some(here), Some(there)) = (Disk::new("crc32c", 256, ""), Disk::new("crc32c", 256, "")) else {
        return;
    };
    let old = noise(1, 1_000_001);
    let mut new = old.clone();
    new[500_000] ^= 1;
    new.extend(noise(2, 10_000));
    let (new_path, old_path) = (here.path().join("new"), there.path().join("old"));
    std::fs::write(&new_path, &new).unwrap();
    std::fs::write(&old_path, &old).unwrap();
    let mut said = against(&old_path, &new_path, &[]).all_fine();
    let summary = said.pop().unwrap();
    let ranges: Vec<_> = said
        .iter()
        .map(|range| (range["start"].as_u64().unwrap(), range["likeness"].as_str().unwrap()))
        .collect();
    // The old file's last sector is not full, so it is unknown whether the new one agrees so far.
    let (changed, last) = (500_000 / 4096 * 4096, 1_000_001 / 4096 * 4096);
    assert_eq!(
        ranges,
        [
            (0, "likely_equal"),
            (changed, "differs"),
            (changed + 4096, "likely_equal"),
            (last, "unknown"),
            (last + 4096, "differs")
        ]
    );
    assert_eq!(summary["likely_bytes"], last - 4096);
    assert_eq!(
        (&summary["len_bytes"], &summary["against_len_bytes"]),
        (&1_010_001.into(), &1_000_001.into())
    );
    // The output in words.
    let output = Command::new(env!("CARGO_BIN_EXE_byteback"))
        .args(["checksums", text(&new_path), "--against", text(&old_path)])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  checksums    crc32c of btrfs and btrfs\n",
        "  likely equal 972.0 KiB in 2 ranges; only reading proves it\n",
        "; no content was read\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let Some(other) = Disk::new("sha256", 256, "") else {
        return;
    };
    let strong = other.path().join("strong");
    std::fs::write(&strong, &new).unwrap();
    against(&strong, &new_path, &[]).fails_with("one has sha256, the other crc32c");
    against(&strong, here.path().join("none"), &[]).fails_with("none");
}
