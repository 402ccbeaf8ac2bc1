//! The C library as its users have it: installed, found by pkg-config, and its example run on a
//! file that is being written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use byteback_host::random::SplitMix64;
use byteback_testkit::seed::fresh_seed;
use byteback_testkit::tools::printed;

use crate::StopAtEnd;
use crate::rig::{Mode, Rig};

const RECORD_BYTES: u64 = 512;
const RECORDS: u64 = 4096;

/// Installs the library below `beside` and builds the example with the flags from pkg-config.
fn build_example(beside: &Path) -> (PathBuf, PathBuf) {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libbyteback");
    let prefix = beside.join("usr");
    let settings = [
        format!("PREFIX={}", prefix.display()),
        format!("BUILD={}", beside.join("build").display()),
    ];
    printed(
        Command::new("make")
            .arg("-C")
            .arg(&library)
            .arg("check")
            .args(&settings),
    );
    printed(
        Command::new("make")
            .arg("-C")
            .arg(&library)
            .arg("install")
            .args(&settings),
    );
    let flags = printed(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "libbyteback"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    let program = beside.join("changed-ranges");
    printed(
        Command::new("cc")
            .args(["-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(library.join("examples/changed-ranges.c"))
            .args(flags.split_whitespace()),
    );
    (program, prefix.join("lib"))
}

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(usize::try_from(RECORD_BYTES / 8).unwrap())
}

/// Writes numbered records at random places until it is told to stop. Each place is noted before
/// its record is written.
fn write_records(file: &File, seed: u64, places: &Mutex<Vec<u64>>, done: &AtomicU64, stop: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let place = random.below(RECORDS);
        places.lock().unwrap().push(place);
        file.write_all_at(&record(number), place * RECORD_BYTES).unwrap();
        done.store(number, Ordering::Release);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

/// The file after the first `count` records.
fn state_after(count: u64, places: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(RECORDS * RECORD_BYTES).unwrap()];
    for (number, place) in (1..=count).zip(places) {
        let at = usize::try_from(place * RECORD_BYTES).unwrap();
        bytes[at..at + usize::try_from(RECORD_BYTES).unwrap()].copy_from_slice(&record(number));
    }
    bytes
}

#[test]
fn library_example_keeps_a_copy_in_step_with_a_file_in_use() {
    let beside = tempfile::Builder::new()
        .prefix("byteback-library-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let (program, library) = build_example(beside.path());
    let mut rig = Rig::new(Mode::Exact);
    let path = rig.tree().join("records");
    fs::write(&path, state_after(0, &[])).unwrap();
    rig.mount();
    let copy = beside.path().join("copy");
    let example = || {
        printed(
            Command::new(&program)
                .arg(&path)
                .arg(&copy)
                .env("LD_LIBRARY_PATH", &library),
        )
    };
    let file = File::options().write(true).open(&path).unwrap();
    let (places, done, stop) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
    let seed = fresh_seed();
    std::thread::scope(|scope| {
        scope.spawn(|| write_records(&file, seed, &places, &done, &stop));
        let _stop = StopAtEnd(&stop);
        for round in 0..8 {
            let before = done.load(Ordering::Acquire);
            let said = example();
            let places = places.lock().unwrap().clone();
            let bytes = fs::read(&copy).unwrap();
            let newest = bytes
                .chunks_exact(usize::try_from(RECORD_BYTES).unwrap())
                .map(|record| u64::from_le_bytes(record[..8].try_into().unwrap()))
                .max()
                .unwrap();
            // The newest visible record is the last one of the copied state, since no later record
            // can have overwritten it.
            assert!(
                newest >= before,
                "seed {seed}, round {round}: {newest} is newer than {before}"
            );
            assert!(
                bytes == state_after(newest, &places),
                "seed {seed}, round {round}: no state of the file"
            );
            let is_whole = said.contains("the whole file");
            assert_eq!(is_whole, round == 0, "round {round}:\n{said}");
            let copied: u64 = said
                .lines()
                .filter_map(|line| line.split_once(" + ")?.1.parse::<u64>().ok())
                .sum();
            assert!(
                is_whole || copied <= (done.load(Ordering::Acquire) + 1) * RECORD_BYTES,
                "round {round}: {copied} bytes"
            );
            while done.load(Ordering::Acquire) < newest + 20 {
                std::thread::yield_now();
            }
        }
    });
    // A lost copy is made again, and nothing is copied of an unchanged file.
    fs::remove_file(&copy).unwrap();
    assert!(example().contains("the whole file"));
    assert_eq!(example(), "");
    // Nor does a version of one file count for another that is moved to its name.
    let other = rig.tree().join("other");
    fs::write(&other, state_after(1, &[3])).unwrap();
    printed(
        Command::new(&program)
            .arg(&other)
            .arg(beside.path().join("copy of other"))
            .env("LD_LIBRARY_PATH", &library),
    );
    file.write_all_at(&record(7), 0).unwrap();
    example();
    fs::rename(&other, &path).unwrap();
    example();
    assert!(
        fs::read(&copy).unwrap() == state_after(1, &[3]),
        "the copy is of the file that was replaced"
    );
    drop(file);
    rig.umount();
}
