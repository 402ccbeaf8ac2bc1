//! Files of every kind, each at rest: the result is true of their bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use byteback_checksums::btrfs::{begin, is_unchanged};
use byteback_checksums::source::{Extraction, FileChecksums, Kind, Result, Run, SourceError, Unknown};
use byteback_host::clock::RealClock;

use crate::disk::{Disk, run, text};

/// Bytes that do not repeat.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn collect(file: &File) -> Result<FileChecksums> {
    FileChecksums::collect(5, || begin(file, &RealClock))
}

/// The number of bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteCounts {
    pub(crate) sums: u64,
    pub(crate) zeros: u64,
    pub(crate) inline: u64,
    pub(crate) compressed: u64,
    pub(crate) not_summed: u64,
    /// Bytes of last blocks that are not full.
    pub(crate) tail: u64,
}

/// Checks that the whole result is true of `content`, and covers it without gaps.
pub(crate) fn check(reported: &FileChecksums, content: &[u8]) -> ByteCounts {
    let layout = reported.layout();
    let (block_len, sum_len) = (layout.block_len as usize, layout.kind.len_bytes());
    let (mut at, mut seen) = (0, ByteCounts::default());
    assert_eq!(reported.stamp().len_bytes, content.len() as u64);
    for run in reported.runs() {
        let range = run.range();
        assert_eq!(range.start(), at, "a gap");
        assert_eq!(range.start() % block_len as u64, 0);
        assert!(range.end() == content.len() as u64 || range.end() % block_len as u64 == 0);
        at = range.end();
        let bytes = &content[range.start() as usize..range.end() as usize];
        match run {
            Run::Sums { sums, .. } => {
                assert_eq!(sums.len(), bytes.len().div_ceil(block_len) * sum_len);
                for (index, (block, sum)) in bytes.chunks(block_len).zip(sums.chunks(sum_len)).enumerate() {
                    let mut expected = Vec::new();
                    layout.append_sum(block, &mut expected);
                    let offset = range.start() as usize + index * block_len;
                    assert_eq!(sum, expected, "a wrong checksum at {offset} of {}", content.len());
                }
                seen.sums += range.len_bytes();
            }
            Run::Chunks { .. } => panic!("btrfs has blocks of one length"),
            Run::Zeros { .. } => {
                assert!(bytes.iter().all(|byte| *byte == 0), "no zeros in {range}");
                seen.zeros += range.len_bytes();
            }
            Run::Unknown { why, .. } => match why {
                Unknown::Inline => seen.inline += range.len_bytes(),
                Unknown::Compressed => seen.compressed += range.len_bytes(),
                Unknown::NotSummed => seen.not_summed += range.len_bytes(),
                Unknown::Tail => {
                    assert!(range.len_bytes() < block_len as u64 && at == content.len() as u64);
                    seen.tail += range.len_bytes();
                }
                Unknown::Encoded | Unknown::OtherFunction => panic!("nothing here is like that"),
            },
        }
    }
    assert_eq!(at, content.len() as u64, "not all is told");
    seen
}

fn check_path(path: &Path) -> ByteCounts {
    let file = File::open(path).unwrap();
    let reported = collect(&file).unwrap();
    let seen = check(&reported, &std::fs::read(path).unwrap());
    assert!(is_unchanged(&file, reported.stamp(), &RealClock).unwrap());
    seen
}

/// A file of every kind on a file system with these checksums.
fn every_kind(checksum: &str, kind: Kind) {
    let Some(disk) = Disk::new(checksum, 512, "") else {
        return;
    };
    let dir = disk.path();
    let at = |name: &str| dir.join(name);
    let tail = 5_000_007_usize;
    std::fs::write(at("plain"), noise(1, tail)).unwrap();
    assert_eq!(collect(&File::open(at("plain")).unwrap()).unwrap().layout().kind, kind);
    let all = ByteCounts {
        sums: tail as u64 / 4096 * 4096,
        tail: tail as u64 % 4096,
        ..ByteCounts::default()
    };
    assert_eq!(check_path(&at("plain")), all);
    std::fs::write(at("empty"), b"").unwrap();
    assert_eq!(check_path(&at("empty")), ByteCounts::default());
    std::fs::write(at("inline"), b"a few bytes").unwrap();
    assert_eq!(check_path(&at("inline")).inline, 11);

    // Shared as a whole, and split by a write into the middle; parts of an extent that begin within
    // it.
    run("cp", &["--reflink=always", text(&at("plain")), text(&at("clone"))]);
    assert_eq!(check_path(&at("clone")), all);
    let clone = File::options().write(true).open(at("clone")).unwrap();
    clone.write_all_at(&noise(2, 10_000), 2_000_001).unwrap();
    assert_eq!(check_path(&at("clone")), all);
    assert_eq!(check_path(&at("plain")), all);
    let parts = File::create(at("parts")).unwrap();
    let plain = File::open(at("plain")).unwrap();
    for (from, to) in [(40, 0), (40, 2), (41, 1), (3, 7), (3, 300)] {
        clone_range(&plain, from * 4096, &parts, to * 4096, 4096).unwrap();
    }
    let seen = check_path(&at("parts"));
    assert_eq!((seen.sums, seen.zeros), (5 * 4096, 301 * 4096 - 5 * 4096));

    // Holes, space without content, some of it beyond the end, some of it written to.
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(&noise(3, 100_000), 10_000_000).unwrap();
    sparse.set_len(20_000_001).unwrap();
    run("fallocate", &["-o", "1M", "-l", "1M", text(&at("sparse"))]);
    run("fallocate", &["-n", "-o", "20M", "-l", "1M", text(&at("sparse"))]);
    sparse.write_all_at(&noise(4, 9000), (1 << 20) + 5000).unwrap();
    run(
        "fallocate",
        &["-p", "-o", "10010000", "-l", "50000", text(&at("sparse"))],
    );
    let seen = check_path(&at("sparse"));
    assert!(
        seen.sums > 50_000 && seen.sums < 130_000 && seen.sums + seen.zeros + seen.tail == 20_000_001,
        "{seen:?}"
    );

    // Not summed.
    File::create(at("nocow")).unwrap();
    run("chattr", &["+C", text(&at("nocow"))]);
    std::fs::write(at("nocow"), noise(5, 300_000)).unwrap();
    let seen = check_path(&at("nocow"));
    assert_eq!((seen.not_summed, seen.tail), (300_000 / 4096 * 4096, 300_000 % 4096));

    // Bytes that were cut off in the middle of a sector stay on the disk, and in its checksum,
    // until they are overwritten.
    std::fs::write(at("cut"), noise(9, 100_000)).unwrap();
    let cut = File::options().write(true).open(at("cut")).unwrap();
    cut.sync_all().unwrap();
    cut.set_len(50_001).unwrap();
    let seen = check_path(&at("cut"));
    assert_eq!((seen.sums, seen.tail), (49_152, 849));
    cut.set_len(90_000).unwrap();
    let seen = check_path(&at("cut"));
    assert_eq!((seen.sums, seen.zeros), (53_248, 90_000 - 53_248));

    // Compressed, and both in one file.
    File::create(at("packed")).unwrap();
    run(
        "btrfs",
        &["property", "set", text(&at("packed")), "compression", "zstd"],
    );
    let mut content = vec![7; 1_000_000];
    content.extend(noise(6, 1_000_000));
    std::fs::write(at("packed"), &content).unwrap();
    let seen = check_path(&at("packed"));
    assert!(seen.compressed >= 900_000 && seen.sums >= 500_000, "{seen:?}");

    // In another subvolume, in a snapshot of it while the original goes on, and after a mount with
    // nothing in memory.
    run("btrfs", &["subvolume", "create", text(&at("volume"))]);
    std::fs::write(at("volume/one"), noise(7, 700_000)).unwrap();
    run(
        "btrfs",
        &["subvolume", "snapshot", "-r", text(&at("volume")), text(&at("frozen"))],
    );
    let one = File::options().write(true).open(at("volume/one")).unwrap();
    one.write_all_at(&noise(8, 50_000), 300_000).unwrap();
    assert_eq!(check_path(&at("volume/one")).sums, 700_000 / 4096 * 4096);
    assert_eq!(check_path(&at("frozen/one")).sums, 700_000 / 4096 * 4096);
    assert_eq!(std::fs::read(at("frozen/one")).unwrap(), noise(7, 700_000));
    drop((clone, parts, plain, sparse, cut, one));
    disk.unmount();
    disk.mount("ro");
    assert_eq!(check_path(&at("plain")), all);
    assert_eq!(check_path(&at("frozen/one")).sums, 700_000 / 4096 * 4096);
    assert_eq!(check_path(&at("parts")).sums, 5 * 4096);
}

pub(crate) fn clone_range(from: &File, from_at: u64, to: &File, to_at: u64, len: u64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let argument = [from.as_raw_fd() as u64, from_at, len, to_at];
    // SAFETY: the four words of struct file_clone_range.
    match unsafe { libc::ioctl(to.as_raw_fd(), 0x4020_940d, argument.as_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn files_of_every_kind_with_crc32c() {
    every_kind("crc32c", Kind::Crc32c);
}

#[test]
fn files_of_every_kind_with_xxh64() {
    every_kind("xxhash", Kind::Xxh64);
}

#[test]
fn files_of_every_kind_with_sha256() {
    every_kind("sha256", Kind::Sha256);
}

#[test]
fn files_of_every_kind_with_blake2b() {
    every_kind("blake2", Kind::Blake2b256);
}

/// Other file systems, and directories.
#[test]
fn btrfs_source_distinguishes_file_systems_and_directories() {
    let elsewhere = tempfile::tempfile_in("/dev/shm").unwrap();
    assert!(matches!(begin(&elsewhere, &RealClock), Err(SourceError::NotHere(_))));
    let Some(disk) = Disk::new("crc32c", 128, "") else {
        return;
    };
    let directory = File::open(disk.path()).unwrap();
    assert!(matches!(begin(&directory, &RealClock), Err(SourceError::NotHere(_))));
    // Users other than root get an error that says so. Capabilities belong to a thread.
    std::fs::write(disk.path().join("file"), noise(1, 9000)).unwrap();
    let file = File::open(disk.path().join("file")).unwrap();
    let without = std::thread::spawn(move || {
        let none = rustix::thread::CapabilitySet::empty();
        let none = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        matches!(begin(&file, &RealClock), Err(SourceError::NeedsRoot))
    });
    assert!(without.join().unwrap());
}

/// A file in tens of thousands of pieces costs few searches.
#[test]
fn a_file_in_pieces_takes_few_searches() {
    let Some(disk) = Disk::new("crc32c", 1024, "") else {
        return;
    };
    let path = disk.path().join("pieces");
    let blocks = 50_000_u64;
    std::fs::write(&path, noise(1, blocks as usize * 4096)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    // Every other sector rewritten, in an order that is not the file's.
    for index in 0..blocks / 2 {
        let block = index * 7919 % (blocks / 2) * 2;
        file.write_all_at(&noise(block + 2, 4096), block * 4096).unwrap();
        if index % 1000 == 0 {
            file.sync_data().unwrap();
        }
    }
    file.sync_all().unwrap();
    let content = std::fs::read(&path).unwrap();
    let mut effort = None;
    let reported = FileChecksums::collect(3, || {
        let mut extraction = begin(&file, &RealClock)?;
        while extraction.next_run()?.is_some() {}
        effort = Some(extraction.effort());
        extraction.finish()?;
        begin(&file, &RealClock)
    })
    .unwrap();
    assert_eq!(check(&reported, &content).sums, blocks * 4096);
    let effort = effort.unwrap();
    println!("{effort:?}");
    // 85 bytes per extent and 4 per checksum, a MiB at once; some searches more for the ends.
    let extents = blocks;
    assert!(effort.list_searches <= extents * 85 / (1 << 20) + 4, "{effort:?}");
    assert!(effort.sum_searches <= 16, "{effort:?}");
}
