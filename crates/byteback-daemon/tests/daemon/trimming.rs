//! Trimming: reports cover every byte that differs, and nothing that was written again with equal
//! bytes, as long as the old bytes were in memory.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use byteback_control::{ChangesCursor, ContentChange, CutRequest, Outcome, TreeService};
use byteback_host::random::SplitMix64;
use byteback_model::NodeKind;
use byteback_mount::CacheMode;

use crate::fixture::Fixture;
use crate::operations::seed;
use crate::other_mount::Disk;

/// Equal bytes between changed ones that may be reported.
const GAP_BYTES: usize = 16;

/// The reported part of the only file since the last call, as flags per byte of `len`; `None` if no
/// content is reported.
fn reported(fixture: &Fixture, len: usize) -> Option<Vec<bool>> {
    let client = fixture.client();
    let request = CutRequest::of("trimming");
    let cut = client.cut(&request).unwrap();
    let page = client.changes(cut.cut, &ChangesCursor::default()).unwrap();
    let file = page.nodes.iter().find(|change| change.kind == NodeKind::File);
    let flags = file.and_then(|change| match &change.content {
        ContentChange::Unchanged => None,
        ContentChange::Whole(_) => Some(vec![true; len]),
        ContentChange::Ranges(ranges) => {
            let mut flags = vec![false; len];
            for range in ranges {
                let (start, end) = (
                    usize::try_from(range.start()).unwrap(),
                    usize::try_from(range.end()).unwrap(),
                );
                flags[start.min(len)..end.min(len)].fill(true);
            }
            Some(flags)
        }
    });
    let outcome = Outcome::Saved {
        note: Vec::new(),
        unsaved: Vec::new(),
    };
    client.finish(cut.cut, &outcome).unwrap();
    flags
}

/// Bytes that are not in memory are not compared, and a machine that has other work gives pages up:
/// not these, as long as this process lives.
fn hold_in_memory(file: &File, len: usize) {
    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap};
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody looks at.
    unsafe {
        let map = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        mlock(map, len).unwrap();
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Stores into a shared mapping.
fn store(file: &File, len: usize, at: usize, byte: u8) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    // SAFETY: a new mapping of its own of a file that is `len` long, stored into within that, clean
    // when it is unmapped (see `operations`).
    unsafe {
        let map = mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
        .unwrap();
        map.cast::<u8>().add(at).write_volatile(byte);
        msync(map, len, MsyncFlags::SYNC).unwrap();
        munmap(map, len).unwrap();
    }
}

/// The file as a model: its bytes, its bytes when it was last reported, and the bytes that were
/// given another value since.
struct Model {
    now: Vec<u8>,
    reported: Vec<u8>,
    changed: Vec<bool>,
}

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if self.now.len() < at + bytes.len() {
            self.resize(at + bytes.len());
        }
        for (index, byte) in bytes.iter().enumerate() {
            if self.now[at + index] != *byte {
                self.now[at + index] = *byte;
                self.changed[at + index] = true;
            }
        }
    }

    fn resize(&mut self, len: usize) {
        self.changed.resize(self.changed.len().max(len), true);
        self.changed[len.min(self.now.len())..].fill(true);
        self.now.resize(len, 0);
    }
}

/// Random modifications of one file, most of which change little or nothing. `tight`: this file
/// system drops no pages from memory by itself, so that no byte may be reported that is as it was.
fn random_modifications(parent: &Path, mode: CacheMode, seed: u64, count: usize, tight: bool) {
    let mut random = SplitMix64::new(seed);
    let mut fixture = Fixture::inside(parent, mode);
    let start = random.bytes(400 << 10);
    let path = fixture.tree().join("file");
    fs::write(&path, &start).unwrap();
    // Below the mount that is to come: bytes that are read through it are in memory afterwards.
    let below = open(&path);
    fixture.mount();
    let mut model = Model {
        changed: vec![false; start.len()],
        reported: start.clone(),
        now: start,
    };
    let _ = reported(&fixture, model.now.len());
    let mut kept = open(&path);
    // Writes through a file that is kept open may be reported although they are equal: comparing is
    // given up for a while when it is in vain.
    let mut is_exact = true;
    let mut history = Vec::new();
    let (mut written_bytes, mut reported_bytes) = (0, 0);
    for step in 0..count {
        let len = model.now.len();
        let at = random.below(len as u64) as usize;
        let count_max = [40, 5000, 120_000][random.below(3) as usize];
        let count = (1 + random.below(count_max) as usize).min(len - at);
        let once = random.below(4) > 0;
        is_exact &= once;
        let fresh = open(&path);
        let file = if once { &fresh } else { &kept };
        let what = random.below(20);
        // Holes that are made drop pages from memory.
        below.read_at(&mut vec![0; len], 0).unwrap();
        history.push(format!("{step}: {what} at {at} for {count}, opened for it: {once}"));
        match what {
            0..=6 => {
                // Again what is there.
                let bytes = model.now[at..at + count].to_vec();
                file.write_all_at(&bytes, at as u64).unwrap();
                written_bytes += count;
            }
            7..=11 => {
                let mut bytes = model.now[at..at + count].to_vec();
                for _ in 0..=random.below(3) {
                    let index = random.below(count as u64) as usize;
                    bytes[index] = bytes[index].wrapping_add(1);
                }
                file.write_all_at(&bytes, at as u64).unwrap();
                model.write(at, &bytes);
                written_bytes += count;
            }
            12..=13 => {
                let bytes = random.bytes(count);
                file.write_all_at(&bytes, at as u64).unwrap();
                model.write(at, &bytes);
                written_bytes += count;
            }
            14 => {
                let bytes = random.bytes(3000);
                file.write_all_at(&bytes, (len + 100) as u64).unwrap();
                model.write(len + 100, &bytes);
            }
            15 => {
                let to = len - random.below(len as u64 / 8) as usize;
                file.set_len(to as u64).unwrap();
                model.resize(to);
            }
            16 => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, at as u64, count as u64).unwrap();
                model.now[at..at + count].fill(0);
                model.changed[at..at + count].fill(true);
            }
            17..=18 => {
                let byte = if random.coin() {
                    model.now[at]
                } else {
                    random.next_u64() as u8
                };
                store(file, len, at, byte);
                model.write(at, &[byte]);
            }
            _ => kept = open(&path),
        }
        if random.below(6) == 0 {
            let context = || {
                format!(
                    "seed {seed}, {mode:?}, below {parent:?}; the last:\n{}",
                    history[history.len().saturating_sub(12)..].join("\n")
                )
            };
            assert!(fs::read(&path).unwrap() == model.now, "{}", context());
            let now = model.now.len();
            let flags = reported(&fixture, now).unwrap_or_else(|| vec![false; now]);
            reported_bytes += flags.iter().filter(|flag| **flag).count();
            let differs = |index: usize| model.now[index] != model.reported.get(index).copied().unwrap_or(0);
            let missing = (0..now).find(|index| differs(*index) && !flags[*index]);
            assert_eq!(missing, None, "a byte that differs is not reported; {}", context());
            // In mode `fast` the kernel may join pages to writes of which only the edges are
            // compared.
            if is_exact && tight && mode == CacheMode::Exact {
                // Each reported byte is changed, or lies in a short gap between such.
                let mut last_changed = None;
                let mut next_changed = vec![usize::MAX; now];
                for index in (0..now).rev() {
                    last_changed = if model.changed[index] {
                        Some(index)
                    } else {
                        last_changed
                    };
                    next_changed[index] = last_changed.unwrap_or(usize::MAX);
                }
                let mut before = None;
                for index in 0..now {
                    before = if model.changed[index] { Some(index) } else { before };
                    let is_near =
                        before.is_some_and(|before| next_changed[index].saturating_sub(before) <= GAP_BYTES + 1);
                    assert!(
                        !flags[index] || is_near,
                        "{index} was reported and is as it was; {}",
                        context()
                    );
                }
            }
            model.reported = model.now.clone();
            model.changed = vec![false; now];
            is_exact = true;
        }
    }
    assert!(reported_bytes < written_bytes, "nothing was trimmed");
    println!("{parent:?}, {mode:?}: {written_bytes} bytes written, {reported_bytes} reported");
    drop((kept, below));
    fixture.umount();
}

#[test]
fn trimming_reports_only_differences_on_this_disk() {
    let seed = seed();
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        random_modifications(Path::new("/var/tmp"), mode, seed, 400, true);
    }
}

#[test]
fn trimming_reports_only_differences_on_other_file_systems() {
    let seed = seed();
    for kind in ["ext4", "xfs", "btrfs", "tmpfs"] {
        let Some(disk) = Disk::new(kind) else { continue };
        for mode in [CacheMode::Exact, CacheMode::Fast] {
            println!("{kind}");
            random_modifications(&disk.path(), mode, seed, 150, false);
        }
    }
}

/// A program that writes its whole file again, in long writes, with the same bytes or nearly.
#[test]
fn trimming_reports_only_times_of_a_file_rewritten_as_it_was() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let mut fixture = Fixture::new(mode);
        let mut content = byteback_host::random::noise(3, 5_000_003);
        let path = fixture.tree().join("file");
        fs::write(&path, &content).unwrap();
        hold_in_memory(&open(&path), content.len());
        fixture.mount();
        let _ = reported(&fixture, content.len());
        assert!(fs::read(&path).unwrap() == content);
        let before = fs::metadata(&path).unwrap();
        for piece in [100, 4096, 65_536, 1 << 20] {
            let file = open(&path);
            for (index, bytes) in content.chunks(piece).enumerate().take(2000) {
                file.write_all_at(bytes, (index * piece) as u64).unwrap();
            }
            drop(file);
            assert_eq!(
                reported(&fixture, content.len()),
                None,
                "{mode:?}, in pieces of {piece}"
            );
        }
        assert_ne!(before.mtime_nsec(), fs::metadata(&path).unwrap().mtime_nsec());
        content[3_333_333] ^= 1;
        open(&path).write_all_at(&content, 0).unwrap();
        let flags = reported(&fixture, content.len()).unwrap();
        let found: Vec<usize> = (0..content.len()).filter(|index| flags[*index]).collect();
        assert_eq!(found, [3_333_333], "{mode:?}");
        fixture.umount();
    }
}

/// Bytes that are not in memory are not read for a comparison: they are reported.
#[test]
fn trimming_reports_uncached_pages_without_reading_them() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let content = byteback_host::random::noise(4, 4 << 20);
    let path = fixture.tree().join("file");
    fs::write(&path, &content).unwrap();
    // Below the mount that is to come, where the pages are.
    let below = open(&path);
    below.sync_all().unwrap();
    fixture.mount();
    let _ = reported(&fixture, content.len());
    rustix::fs::fadvise(&below, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&content[1 << 20..][..8192], 1 << 20).unwrap();
    let flags = reported(&fixture, content.len()).unwrap();
    assert_eq!(flags.iter().filter(|flag| **flag).count(), 8192);
    drop((file, below));
    fixture.umount();
}

/// Many writers of the same ranges and truncations at once: the last one is anybody's guess, but
/// every difference is reported.
#[test]
fn overlapping_writers_hide_nothing_from_each_other() {
    const LEN: usize = 64 << 10;
    // So that no thread unmaps what another has made dirty, see `store`.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let mut fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("file");
    let mut saved = vec![0; LEN];
    fs::write(&path, &saved).unwrap();
    fixture.mount();
    let _ = reported(&fixture, LEN);
    let seed = seed();
    for round in 0..40_u64 {
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let path = &path;
                scope.spawn(move || {
                    let mut random = SplitMix64::new(seed ^ (round * 4 + writer));
                    let file = open(path);
                    for _ in 0..40 {
                        let at = random.below(LEN as u64 - 4096);
                        // Few values: writers meet what others have just written.
                        let byte = random.below(2) as u8;
                        let len = 1 + random.below(4096) as usize;
                        match random.below(12) {
                            0 => file.set_len(at + 1).and_then(|()| file.set_len(LEN as u64)).unwrap(),
                            1 => {
                                let _one = ONE_AT_A_TIME.lock();
                                store(&file, 4096, 0, byte);
                            }
                            _ => file.write_all_at(&vec![byte; len], at).unwrap(),
                        }
                    }
                    file.set_len(LEN as u64).unwrap();
                });
            }
        });
        let now = fs::read(&path).unwrap();
        let flags = reported(&fixture, LEN).unwrap_or_else(|| vec![false; LEN]);
        let missing = (0..LEN).find(|index| now[*index] != saved[*index] && !flags[*index]);
        assert_eq!(missing, None, "seed {seed}, round {round}");
        saved = now;
    }
    fixture.umount();
}
