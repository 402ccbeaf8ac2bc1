//! A log beside a folder: writes are noted as they happen, a cut ends the epoch, and a consumer is
//! told which bytes of which files changed since its mark, without a walk of the folder. A process
//! that lasts also says when tracking begins and ends, and makes checkpoints (`Log::checkpoint`).
//!
//! `cargo run -p byteback-oplog --example changes_since_mark`

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::clock::RealClock;
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::RealRandomness;
use byteback_host::tree::{Inode, Stat, stat_fd};
use byteback_oplog::{ChangesCursor, ChangesPage, ContentChange, Fence, Log, PageLimits, TreeView};

/// The folder as the first scan sees it.
struct Folder(Inode);

impl TreeView for Folder {
    type Dir = Inode;

    fn root(&self) -> io::Result<(Inode, Stat)> {
        Ok((self.0.try_clone()?, self.0.stat()?))
    }

    fn enter(&self, dir: &Inode, name: &OsStr) -> io::Result<Inode> {
        dir.open_dir_at(name)
    }

    fn entries(&self, dir: &Inode) -> io::Result<Vec<(OsString, Stat)>> {
        dir.read_dir(0)?
            .map(|entry| entry.and_then(|entry| dir.stat_at(&entry.name).map(|stat| (entry.name, stat))))
            .collect()
    }
}

/// A write through the gate: the intent is durable first, then the bytes change, then that is
/// logged. No cut can come in between.
fn write(log: &Log, file: &File, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let range = ByteRange::from_offset_len(offset, bytes.len() as u64).expect("some bytes");
    let look = || stat_fd(file).ok().map(|stat| Fence::of(&stat));
    let begun = log.begin_content(&stat_fd(file)?.identity(), Some(range), look)?;
    let (operation, node) = begun.expect("the scan saw the file");
    file.write_all_at(bytes, offset)?;
    if !operation.is_logged() {
        operation.wrote(node, range);
    }
    Ok(())
}

/// Saves what changed since the mark of `consumer`, then moves the mark.
fn save(log: &Log, consumer: &str) -> Result<ChangesPage, Box<dyn Error>> {
    let cut = log.cut(consumer, || ())?;
    let limits = PageLimits {
        items: NonZeroUsize::MAX,
        ranges: NonZeroUsize::MAX,
    };
    let changes = cut.changes(log.consumer(consumer)?.mark)?;
    let page = changes.page(&ChangesCursor::default(), limits)?;
    for change in &page.nodes {
        let path: OsString = cut.locate(change.node)?.unwrap_or_default().join(OsStr::new("/"));
        println!("  {:?} {path:?}: {:?}", change.kind, change.content);
    }
    log.advance(consumer, Some(cut.epoch()), b"")?;
    Ok(page)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (tracked, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::write(tracked.path().join("mail.db"), vec![0; 1 << 20])?;
    fs::write(tracked.path().join("notes"), "nothing happens here")?;

    let dir: Arc<dyn DurableDir> = Arc::new(RealDir::open(state.path())?);
    let log = Log::open(&dir, Arc::new(RealClock), &RealRandomness)?;
    log.scan(&Folder(File::open(tracked.path())?.into()), &mut |_| {})?;
    println!("the first save, without a mark:");
    assert_eq!(
        save(&log, "backup")?.nodes.len(),
        3,
        "the folder and its files, all of them new"
    );

    let mail = File::options().write(true).open(tracked.path().join("mail.db"))?;
    write(&log, &mail, 8_192, b"a message")?;
    write(&log, &mail, 8_201, b", and another one")?;
    println!("the second one:");
    let page = save(&log, "backup")?;
    let wrote = [ByteRange::from_offset_len(8_192, 26).expect("26 bytes")];
    assert_eq!(page.nodes.len(), 1, "only the file that was written");
    assert_eq!(
        page.nodes[0].content,
        ContentChange::Ranges(wrote.into_iter().collect())
    );

    println!("the third one, after no change:");
    assert!(save(&log, "backup")?.nodes.is_empty());
    Ok(())
}
