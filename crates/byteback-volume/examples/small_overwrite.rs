//! A volume in memory: a page of a file is overwritten with a small change, and a sync writes a
//! delta beside the inode where other file systems write the page and its inode.
//!
//! `cargo run -p byteback-volume --example small_overwrite`

#![allow(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;

use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice, SimBlockDevice};
use byteback_volume::format::VolumeId;
use byteback_volume::{CheckOptions, CreateOptions, NewFile, OpenOptions, Result, Volume, check, create};

/// Pages of the file.
const PAGES: u64 = 64;

pub(crate) fn main() -> Result<()> {
    // 80 MB. `RealBlockDevice` is the same on a file or a device.
    let device: Arc<dyn BlockDevice> = Arc::new(SimBlockDevice::new(20_000));
    // Both numbers must be drawn at random.
    create(&device, &CreateOptions::new(VolumeId([7; 16]), 11))?;
    let volume = Volume::open(Arc::clone(&device), &OpenOptions::default())?;

    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let file = volume.make(volume.root(), b"mail.db", &new)?.ino;
    for page in 0..PAGES {
        let content: Vec<u8> = (0..BLOCK_LEN_BYTES as u64).map(|at| (at * 31 + page) as u8).collect();
        volume.write(file, page * BLOCK_LEN_BYTES as u64, &content)?;
    }
    volume.sync_file(file)?;
    let before = volume.stats();
    println!("the file of {PAGES} pages: {} blocks written", before.written.all());
    assert!(before.written.data >= PAGES);

    // One field in each of five pages.
    for page in 10..15 {
        volume.write(file, page * BLOCK_LEN_BYTES as u64 + 100, b"changed")?;
    }
    volume.sync_file(file)?;
    let after = volume.stats();
    let blocks = after.written.all() - before.written.all();
    println!(
        "five pages overwritten: {blocks} blocks written, {} deltas kept",
        after.deltas.kept
    );
    assert_eq!(after.deltas.kept, 5);
    assert_eq!(after.written.data, before.written.data, "no page was written again");
    assert!(blocks < 5);

    let mut field = [0; 7];
    volume.read(file, 12 * BLOCK_LEN_BYTES as u64 + 100, &mut field)?;
    assert_eq!(&field, b"changed");

    volume.close()?;
    let report = check(&*device, CheckOptions::default())?;
    println!(
        "checked: {} files, {} pages as deltas, {} problems",
        report.files, report.deltas, report.problem_count
    );
    assert!(report.is_sound() && report.is_closed);
    assert_eq!(report.deltas, 5);
    Ok(())
}
