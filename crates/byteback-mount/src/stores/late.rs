//! Answers that wait until the kernel has let go of some pages.
//!
//! Before the kernel drops a page it waits for the programs that are reading it or writing it back,
//! and these wait for one of our serving threads. A serving thread that asked for pages to be
//! dropped could therefore wait for itself. Requests that need it are answered here, by threads
//! that serve nothing.
//!
//! **Direct writes.** With `FUSE_ASYNC_DIO` several direct writes are under way at once, and the
//! kernel drops the pages of their ranges when they are submitted, not when they are finished. A
//! page that a buffered reader fetched in between would stay, old, for as long as the kernel keeps
//! it. So the pages of the range are dropped once more before a direct write is answered: a reader
//! from before the change holds the lock of the page until its read is answered, which is waited
//! for, and a reader from after the change gets the new bytes. As long as nobody has used the node
//! through the page cache ([`Tree::may_have_pages`](crate::tree::Tree::may_have_pages)) this is not
//! needed, and not done.
//!
//! Such a reader may wait in the kernel, with the page locked, until the number of requests under
//! way is below the kernel's limit, and the direct writes count against it. If all of them were
//! held here, nobody would go on. So no more than [`LateAnswers::HELD_MAX`] are held, and the
//! others are answered at once and their pages dropped soon after.
//!
//! **Looking for holes.** See [`super::holes`]. The kernel holds the inode's lock while it waits
//! for the answer, so the file cannot be synced through the mount then; dropping pages needs no
//! such lock.
//!
//! If the daemon is killed while a thread waits here, the watcher aborts the connection (see
//! [`crate::session`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use byteback_extents::ByteRange;

use super::Stores;
use super::holes::{self, Wanted};
use crate::handles::OpenFile;
use crate::inodes::InodeNumber;

type Job = Box<dyn FnOnce() + Send>;

/// See the module. Dropping it ends the threads.
#[derive(Debug)]
pub(crate) struct LateAnswers {
    stores: Arc<Stores>,
    direct_writes: Sender<Job>,
    /// Direct writes of which the answer waits.
    held: Arc<AtomicUsize>,
    /// A thread of its own, because dropping dirty pages takes longer.
    seeks: Sender<Job>,
    /// A thread of its own: a look at a file waits for flushes, which wait for direct writes and
    /// seeks to be answered.
    strays: Sender<Job>,
}

fn start_thread(name: &str) -> io::Result<Sender<Job>> {
    let (jobs, to_do) = mpsc::channel::<Job>();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || to_do.into_iter().for_each(|job| job()))?;
    Ok(jobs)
}

impl LateAnswers {
    /// How many direct writes wait here at most: fewer than the kernel lets be under way.
    pub(crate) const HELD_MAX: usize = 48;

    pub(crate) fn start(stores: Arc<Stores>) -> io::Result<Self> {
        Ok(Self {
            stores,
            direct_writes: start_thread("byteback-direct")?,
            held: Arc::default(),
            seeks: start_thread("byteback-seek")?,
            strays: start_thread("byteback-stray")?,
        })
    }

    /// Calls `answer` once the kernel holds no bytes of `range` that are older than this call,
    /// unless too many wait for the same.
    pub(crate) fn after_direct_write(
        &self,
        node: InodeNumber,
        range: ByteRange,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let stores = Arc::clone(&self.stores);
        let forget = move || stores.forget_pages(node, Some(range));
        let job: Job = if self.held.fetch_add(1, Ordering::Relaxed) < Self::HELD_MAX {
            let held = Arc::clone(&self.held);
            Box::new(move || {
                forget();
                held.fetch_sub(1, Ordering::Relaxed);
                answer();
            })
        } else {
            self.held.fetch_sub(1, Ordering::Relaxed);
            answer();
            Box::new(forget)
        };
        // A job that is not taken is dropped, and with it the reply, which then says EIO.
        let _ = self.direct_writes.send(job);
    }

    /// An append went elsewhere than where the kernel holds its bytes: the kernel forgets what it
    /// holds of the file, and where that ends. Called after the append was answered: the page of a
    /// buffered write stays locked until then.
    pub(crate) fn after_stray_append(&self, node: InodeNumber) {
        let stores = Arc::clone(&self.stores);
        // A mount that is ending takes no job, and its kernel pages go with it.
        let _ = self.strays.send(Box::new(move || {
            stores.forget_pages(node, None);
            stores.look_at(node);
        }));
    }

    /// Finds data or a hole in a file of which the kernel may hold stores.
    pub(crate) fn seek(
        &self,
        node: InodeNumber,
        file: Arc<OpenFile>,
        wanted: Wanted,
        from: u64,
        answer: impl FnOnce(io::Result<u64>) + Send + 'static,
    ) {
        let stores = Arc::clone(&self.stores);
        let _ = self.seeks.send(Box::new(move || {
            let hand_on = |range| stores.forget_pages(node, Some(range));
            answer(holes::find(&**file, wanted, from, hand_on));
        }));
    }
}
