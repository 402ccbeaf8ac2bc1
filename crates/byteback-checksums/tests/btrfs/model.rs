//! Files made by random operations: the result is true of their bytes, without any sync in between.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use byteback_host::random::SplitMix64;
use byteback_host::tree::{FallocateFlags, fallocate, punch_hole};

use crate::disk::{Disk, run, text};
use crate::files::{ByteCounts, check, clone_range, collect, noise};
use crate::writers::{Aligned, Mapped};

const FILES: u64 = 5;
const SIZE_MAX: u64 = 3 << 20;

struct Life {
    dir: PathBuf,
    random: SplitMix64,
    snapshots: u64,
}

impl Life {
    fn name(&mut self) -> PathBuf {
        self.dir.join(format!("tree/file{}", self.random.below(FILES)))
    }

    fn open(path: &Path) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap()
    }

    fn content(&mut self, len: u64) -> Vec<u8> {
        match self.random.below(3) {
            // Compressible content, with zeros in it.
            0 => vec![[0, 1, 7][self.random.below(3) as usize]; len as usize],
            _ => noise(self.random.next_u64(), len as usize),
        }
    }

    fn range(&mut self, unit: u64) -> (u64, u64) {
        let len_max = [20, 5000, 70_000, 600_000][self.random.below(4) as usize];
        let start = self.random.below(SIZE_MAX - len_max);
        let len = 1 + self.random.below(len_max);
        (start / unit * unit, len.next_multiple_of(unit))
    }

    fn step(&mut self) {
        let path = self.name();
        let file = Self::open(&path);
        let size = file.metadata().unwrap().len();
        match self.random.below(16) {
            0..=3 => {
                let (start, len) = self.range(1);
                let start = if self.random.coin() { start.min(size) } else { start };
                file.write_all_at(&self.content(len), start).unwrap();
            }
            4 => {
                let (start, len) = self.range(4096);
                let direct = OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(&path)
                    .unwrap();
                let block = Aligned::new(self.random.next_u64());
                for at in (start..start + len.min(200_000)).step_by(4096) {
                    direct.write_all_at(&block.0, at).unwrap();
                }
            }
            5 if size > 4096 => {
                let mapped = Mapped::new(&file, size);
                for _ in 0..1 + self.random.below(20) {
                    mapped.store(self.random.below(size / 8) * 8, self.random.next_u64());
                }
            }
            6 => {
                let (start, len) = self.range(1);
                punch_hole(&file, start, len).unwrap();
            }
            7 => {
                let (start, len) = self.range(1);
                let flags = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ];
                fallocate(&file, flags[self.random.below(3) as usize], start, len).unwrap();
            }
            8 => {
                let from = File::open(self.name()).unwrap();
                let from_size = from.metadata().unwrap().len() / 4096 * 4096;
                if from_size > 0 {
                    let (start, len) = self.range(4096);
                    let from_at = self.random.below(from_size / 4096) * 4096;
                    // Refused between summed and unsummed files, and onto itself.
                    let _ = clone_range(&from, from_at, &file, start, len.min(from_size - from_at));
                }
            }
            9 => file.set_len(self.random.below(SIZE_MAX)).unwrap(),
            10 => {
                let way = ["zstd", "lzo", "zlib", "no"][self.random.below(4) as usize];
                // Files without checksums are not compressed either, so this is refused for them.
                let _ = std::process::Command::new("btrfs")
                    .args(["property", "set", text(&path), "compression", way])
                    .stderr(std::process::Stdio::null())
                    .status();
            }
            11 if self.random.below(3) == 0 => {
                drop(file);
                std::fs::remove_file(&path).unwrap();
                File::create(&path).unwrap();
                if self.random.coin() {
                    run("chattr", &["+C", text(&path)]);
                }
            }
            12 if self.random.below(3) == 0 => {
                self.snapshots += 1;
                let target = self.dir.join(format!("snapshot{}", self.snapshots));
                run(
                    "btrfs",
                    &["subvolume", "snapshot", text(&self.dir.join("tree")), text(&target)],
                );
                // Work goes on in the snapshot, sometimes.
                if self.random.coin() {
                    std::fs::rename(self.dir.join("tree"), self.dir.join(format!("old{}", self.snapshots))).unwrap();
                    std::fs::rename(target, self.dir.join("tree")).unwrap();
                }
            }
            13 => file.sync_data().unwrap(),
            14 => run("btrfs", &["filesystem", "defragment", "-f", text(&path)]),
            _ if self.random.below(4) == 0 => run("btrfs", &["filesystem", "sync", text(&self.dir)]),
            _ => {}
        }
    }

    fn check(&mut self, seed: u64, seen: &mut ByteCounts) {
        let path = self.name();
        let file = Self::open(&path);
        let reported = collect(&file).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {}", path.display());
        let one = check(&reported, &std::fs::read(&path).unwrap());
        seen.sums += one.sums;
        seen.zeros += one.zeros;
        seen.inline += one.inline;
        seen.compressed += one.compressed;
        seen.not_summed += one.not_summed;
        seen.tail += one.tail;
    }
}

/// Many short lives; the seed of one that fails is printed.
fn random_lives(checksum: &str, seed: u64) {
    let Some(disk) = Disk::new(checksum, 1024, "") else {
        return;
    };
    let first = std::env::var("BYTEBACK_SEED").map_or(seed, |seed| seed.parse().unwrap());
    let mut seen = ByteCounts::default();
    for seed in first..first + 4 {
        let dir = disk.path().join(format!("life{seed}"));
        std::fs::create_dir(&dir).unwrap();
        run("btrfs", &["subvolume", "create", text(&dir.join("tree"))]);
        let mut life = Life {
            dir,
            random: SplitMix64::new(seed),
            snapshots: 0,
        };
        for number in 0..FILES {
            let path = life.dir.join(format!("tree/file{number}"));
            File::create(&path).unwrap();
            if number == 0 {
                run("chattr", &["+C", text(&path)]);
            }
            if number == 1 {
                run("btrfs", &["property", "set", text(&path), "compression", "zstd"]);
            }
        }
        for _ in 0..60 {
            for _ in 0..life.random.below(5) {
                life.step();
            }
            life.check(seed, &mut seen);
        }
    }
    println!("{seen:?}");
    assert!(seen.sums > 10 << 20 && seen.zeros > 10 << 20 && seen.compressed > 1 << 17 && seen.not_summed > 1 << 20);
}

#[test]
fn random_files_are_told_as_they_are_crc32c() {
    random_lives("crc32c", 1);
}

#[test]
fn random_files_are_told_as_they_are_xxh64() {
    random_lives("xxhash", 11);
}

#[test]
fn random_files_are_told_as_they_are_sha256() {
    random_lives("sha256", 21);
}

#[test]
fn random_files_are_told_as_they_are_blake2b() {
    random_lives("blake2", 31);
}
