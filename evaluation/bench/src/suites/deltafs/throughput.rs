//! Sequential throughput of a mounted volume, beside that of a mounted directory: both through
//! FUSE, by the same daemon.
//!
//! The directory is on ext4 on a loop device, and so is the file with the volume: the comparison is
//! between a tree with and without a volume, on the same file system. With the loop devices' images
//! in memory (`TMPDIR`) it measures the cost of the two, and not a disk. The images and the volume
//! have all their blocks allocated, like a card: otherwise a volume, which never writes to the same
//! place twice, would be charged with allocating them. The file is written, written and synced,
//! read after the kernel has dropped its cache of the mounted file (the directory's own file is
//! then still in the page cache, as the volume's image is in memory), read once more from the
//! kernel's cache, overwritten with other bytes, and with the same ones. Images are created anew
//! for each turn; turns alternate.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::on_directory::{FileSystem, Mounted};
use super::tell;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::random::Random;
use crate::rig::byteback::Byteback;
use crate::rig::interrupt;
use crate::rig::scratch::{self, Scratch};
use crate::{Options, SuiteError};

const IMAGE_LEN_BYTES: u64 = 1 << 30;
/// The length of the volume, which leaves room for ext4's own data.
const VOLUME_LEN_BYTES: u64 = 896 << 20;
const FILE_LEN_BYTES: u64 = 256 << 20;
/// The length of a call, as in `dd bs=1M`.
const CALL_LEN_BYTES: usize = 1 << 20;
const PAGE_LEN_BYTES: usize = 4096;
const GOAL: f64 = 0.8;

/// The measured steps, in order.
const STEPS: [&str; 6] = [
    "written",
    "written and synced",
    "read",
    "read again, from the kernel's cache",
    "written over with other bytes",
    "written over with the same bytes",
];

/// The indexes of the steps with a goal.
const GOALS: [usize; 3] = [0, 2, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    Volume,
    Directory,
}

/// Measures volume and directory.
///
/// # Errors
/// If anything fails, or a read returns other bytes than were written.
pub(super) fn run(options: Options) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 2 * IMAGE_LEN_BYTES)?;
    let byteback = Byteback::locate(scratch.path().to_owned())?;
    let mut all = [(); 2].map(|()| STEPS.map(|_| Samples::default()));
    for round in 0..=options.runs {
        for turn in 0..2 {
            interrupt::check()?;
            let (below, index) = [(Below::Volume, 0), (Below::Directory, 1)][(turn + round) % 2];
            tell(&format!("throughput: {below:?}, round {round}"));
            let speeds = one(&byteback, &scratch, below)?;
            if round > 0 {
                (all[index].iter_mut().zip(speeds)).for_each(|(samples, speed)| samples.push(speed));
            }
        }
    }
    scratch.remove()?;
    let [volume, directory] = all;
    let columns = ["volume", "directory", "volume / directory"];
    let mut panel = Panel::new("Sequential throughput through FUSE", "what", "MB/s", &columns);
    let mut goals = Vec::new();
    for (index, step) in STEPS.into_iter().enumerate() {
        let (volume, directory) = (&volume[index], &directory[index]);
        let ratio = volume.over(directory);
        let cells: Vec<Option<Cell>> = [volume, directory, &ratio].map(|samples| Some(samples.into())).to_vec();
        panel.push(step, cells);
        if GOALS.contains(&index) {
            let name = format!("throughput through the mount, of that of a mounted directory: {step}");
            goals.push(GoalRow::new(name, "", Limit::AtLeast(GOAL), &ratio));
        }
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "throughput",
            title: "Sequential throughput".to_owned(),
            about: format!(
                "{} MiB in calls of {} KiB through the mount; the directory, and the file with the volume, on ext4.",
                FILE_LEN_BYTES >> 20,
                CALL_LEN_BYTES >> 10
            ),
            panels: vec![panel],
        }],
        goals,
    })
}

/// Runs one turn. Returns MB/s of each step.
fn one(byteback: &Byteback, scratch: &Scratch, below: Below) -> Result<[f64; STEPS.len()], SuiteError> {
    let work = scratch.folder("turn")?;
    let point = work.join("point");
    fs::create_dir(&point)?;
    let system = Mounted::make(scratch, FileSystem::Ext4, IMAGE_LEN_BYTES)?;
    fill(system.device(), IMAGE_LEN_BYTES)?;
    let mount = match below {
        Below::Directory => {
            let folder = system.point().join("folder");
            fs::create_dir(&folder)?;
            byteback.mount(&folder, Some(&point))?
        }
        Below::Volume => {
            let image = system.point().join("volume");
            byteback.create_volume(&image, VOLUME_LEN_BYTES)?;
            fill(&image, VOLUME_LEN_BYTES)?;
            byteback.mount_volume(&image, &point)?
        }
    };
    let speeds = measure(&mount.point().join("file"));
    mount.unmount()?;
    drop(system);
    scratch::remove(&work)?;
    speeds
}

/// Allocates all blocks of an image by rewriting its content.
fn fill(image: &Path, len_bytes: u64) -> Result<(), SuiteError> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let mut piece = vec![0; CALL_LEN_BYTES];
    for at in (0..len_bytes).step_by(CALL_LEN_BYTES) {
        file.read_exact_at(&mut piece, at)?;
        file.write_all_at(&piece, at)?;
    }
    Ok(file.sync_all()?)
}

fn measure(path: &Path) -> Result<[f64; STEPS.len()], SuiteError> {
    let mut contents = [1, 2].map(Content::new);
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(path)?;
    let rate = |started: Instant| FILE_LEN_BYTES as f64 / 1e6 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    contents[0].write(&file)?;
    let written = rate(started);
    file.sync_all()?;
    let synced = rate(started);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut read = [0.0; 2];
    for speed in &mut read {
        let started = Instant::now();
        read_all(&file)?;
        *speed = rate(started);
    }
    let mut over = [0.0; 2];
    for speed in &mut over {
        let started = Instant::now();
        contents[1].write(&file)?;
        *speed = rate(started);
        file.sync_all()?;
    }
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    contents[1].check(&file)?;
    Ok([written, synced, read[0], read[1], over[0], over[1]])
}

/// Random content: the same for each call, except that each page begins with its number.
struct Content {
    call: Vec<u8>,
}

impl Content {
    fn new(seed: u64) -> Self {
        let mut call = vec![0; CALL_LEN_BYTES];
        Random::new(seed).fill(&mut call);
        Self { call }
    }

    fn at(&mut self, offset: u64) -> &[u8] {
        for (page, bytes) in (offset / PAGE_LEN_BYTES as u64..).zip(self.call.chunks_mut(PAGE_LEN_BYTES)) {
            let number = page.to_le_bytes();
            bytes[..number.len()].copy_from_slice(&number);
        }
        &self.call
    }

    fn write(&mut self, file: &File) -> Result<(), SuiteError> {
        for offset in (0..FILE_LEN_BYTES).step_by(CALL_LEN_BYTES) {
            file.write_all_at(self.at(offset), offset)?;
        }
        Ok(())
    }

    fn check(&mut self, file: &File) -> Result<(), SuiteError> {
        let mut buffer = vec![0; CALL_LEN_BYTES];
        for offset in (0..FILE_LEN_BYTES).step_by(CALL_LEN_BYTES) {
            file.read_exact_at(&mut buffer, offset)?;
            if buffer != self.at(offset) {
                return Err(format!("the data read at {offset} is not the data written").into());
            }
        }
        Ok(())
    }
}

fn read_all(file: &File) -> Result<(), SuiteError> {
    let mut buffer = vec![0; CALL_LEN_BYTES];
    for offset in (0..FILE_LEN_BYTES).step_by(CALL_LEN_BYTES) {
        file.read_exact_at(&mut buffer, offset)?;
    }
    Ok(())
}
