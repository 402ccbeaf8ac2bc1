//! Many entries, long files: that they work, and on demand what they take (`cargo test -p
//! byteback-volume --lib scale -- --ignored --nocapture`).

use super::*;
use crate::tree::nodes::CLEAN_NODES_MAX;
use byteback_host::block::{Access, CountedDevice, RealBlockDevice};
use std::time::Instant;

fn new(mode: u32) -> NewFile {
    NewFile {
        mode,
        ..NewFile::default()
    }
}

fn name(number: u32) -> Vec<u8> {
    format!("entry number {number}").into_bytes()
}

/// Makes `entries` entries, finds and lists them all, removes every second one, and finds the
/// others.
fn a_directory_of(entries: u32, device: Arc<dyn BlockDevice>) {
    create(&device, &CreateOptions::new(VolumeId([3; 16]), 1)).unwrap();
    let volume = Volume::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
    let took = |what: &str, started: Instant| {
        let ns = started.elapsed().as_nanos() / u128::from(entries);
        println!("{entries} entries, {what}: {ns} ns each");
    };
    let started = Instant::now();
    let inos: Vec<u32> = (0..entries)
        .map(|at| volume.make(1, &name(at), &new(0o100_644)).unwrap().ino)
        .collect();
    took("made", started);
    // However many were made since anything else was read.
    assert!(volume.look().tree.nodes.clean_count() <= CLEAN_NODES_MAX + 1);
    let started = Instant::now();
    for at in 0..entries {
        // Not in the order in which they were made.
        let at = (u64::from(at) * 7_919 % u64::from(entries)) as u32;
        assert_eq!(volume.look_up(1, &name(at)).unwrap().ino, inos[at as usize]);
    }
    took("found", started);
    let started = Instant::now();
    let (mut from, mut listed) = (0, 0);
    loop {
        let some = volume.list(1, from, 500).unwrap();
        let Some(last) = some.last() else { break };
        (from, listed) = (last.next, listed + some.len());
    }
    assert_eq!(listed, entries as usize);
    took("listed", started);
    let started = Instant::now();
    for at in (0..entries).step_by(2) {
        volume.unlink(1, &name(at)).unwrap();
    }
    took("removed (half of them)", started);
    volume.close().unwrap();
    let report = crate::check::check(&*device, crate::check::CheckOptions::default()).unwrap();
    assert!(
        report.is_sound(),
        "{:#?}",
        report.problems.iter().take(10).collect::<Vec<_>>()
    );
    assert_eq!(report.files, u64::from(entries / 2) + 1);
    let again = Volume::open(device, &OpenOptions::default()).unwrap();
    for at in 0..entries.min(2_000) {
        assert_eq!(again.look_up(1, &name(at)).is_ok(), at % 2 == 1);
    }
}

#[test]
fn a_directory_of_20_000_entries_works() {
    a_directory_of(20_000, Arc::new(SimBlockDevice::new(60_000)));
}

#[test]
#[ignore = "takes minutes and 6 GB of disk"]
fn a_directory_of_a_million_entries_works() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let device = RealBlockDevice::create(dir.path().join("volume"), (6 << 30) / 4096).unwrap();
    a_directory_of(1_000_000, Arc::new(device));
}

#[test]
#[ignore = "measures: 2.5 GB of memory"]
fn a_gibibyte_is_written_and_read() {
    const LEN: u64 = 1 << 30;
    const STEP: usize = 1 << 20;
    // In memory, so that what is measured is what the volume does, and not the disk of this
    // machine.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let rate = |what: &str, started: Instant| {
        println!("{what}: {:.0} MB/s", LEN as f64 / 1e6 / started.elapsed().as_secs_f64());
    };
    let data: Vec<u8> = SplitMix64::new(1).bytes(STEP);
    let plain = RealBlockDevice::create(dir.path().join("plain"), LEN / 4096).unwrap();
    let started = Instant::now();
    for at in 0..LEN / STEP as u64 {
        plain.write_blocks(at * (STEP / 4096) as u64, &data).unwrap();
    }
    plain.flush().unwrap();
    rate("device, written", started);
    drop(plain);
    std::fs::remove_file(dir.path().join("plain")).unwrap();
    let path = dir.path().join("volume");
    let real = RealBlockDevice::create(&path, LEN * 5 / 4 / 4096).unwrap();
    let counted = Arc::new(CountedDevice::new(real));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as Arc<dyn BlockDevice>;
    create(&device, &CreateOptions::new(VolumeId([3; 16]), 1)).unwrap();
    let volume = Volume::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
    let before = counted.counters();
    let ino = volume.make(1, b"file", &new(0o100_644)).unwrap().ino;
    let started = Instant::now();
    for at in 0..LEN / STEP as u64 {
        assert_eq!(volume.write(ino, at * STEP as u64, &data).unwrap(), STEP);
    }
    volume.sync().unwrap();
    rate("volume, written", started);
    let after = counted.counters();
    let written = after.written_bytes - before.written_bytes;
    println!(
        "{:.4} bytes for each, in {} writes",
        written as f64 / LEN as f64,
        after.writes - before.writes
    );
    let mut buffer = vec![0; STEP];
    let started = Instant::now();
    for at in 0..LEN / STEP as u64 {
        assert_eq!(volume.read(ino, at * STEP as u64, &mut buffer).unwrap(), STEP);
    }
    rate("volume, read", started);
    assert!(buffer == data);
    volume.close().unwrap();
    drop(device);
    drop(counted);
    let device = RealBlockDevice::open(&path, Access::Read).unwrap();
    let started = Instant::now();
    for at in 0..LEN / STEP as u64 {
        device.read_blocks(at * (STEP / 4096) as u64, &mut buffer).unwrap();
    }
    rate("device, read", started);
}
