//! Answers that wait until the kernel has let go of some pages.
//!
//! Before the kernel drops a page it waits for whoever is reading it or writing it back, and they wait for one of our
//! serving threads. A serving thread that asked for pages to be dropped could therefore wait for itself. The search for
//! holes (see [`super::holes`]) needs it, and is answered here, by a thread that serves nothing. The kernel holds the
//! inode's lock while it waits for the answer, so the file cannot be synced through the mount then; dropping pages
//! needs no such lock.
//!
//! Requests that are answered here must not count against the kernel's limit of background requests, as read-ahead and
//! write-back do: the requests that are waited for may be held up by that limit.
//!
//! If the daemon is killed while the thread waits, the watcher aborts the connection (see [`crate::session`]).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use super::Stores;
use super::holes::{self, Wanted};
use crate::handles::OpenFile;
use crate::inodes::NodeId;

type Job = Box<dyn FnOnce() + Send>;

/// See the module. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct LateAnswers {
    stores: Arc<Stores>,
    seeks: Sender<Job>,
}

impl LateAnswers {
    pub(crate) fn start(stores: Arc<Stores>) -> io::Result<Self> {
        let (seeks, to_do) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("byteback-seek".into())
            .spawn(move || to_do.into_iter().for_each(|job| job()))?;
        Ok(Self { stores, seeks })
    }

    /// Finds data or a hole in a file of which the kernel may hold stores.
    pub(crate) fn seek(
        &self,
        node: NodeId,
        file: Arc<OpenFile>,
        wanted: Wanted,
        from: u64,
        answer: impl FnOnce(io::Result<u64>) + Send + 'static,
    ) {
        let stores = Arc::clone(&self.stores);
        // A job that is not taken is dropped, and with it the reply, which then says EIO.
        let _ = self.seeks.send(Box::new(move || {
            let hand_on = |range| stores.forget_pages(node, Some(range));
            answer(holes::find(&**file, wanted, from, hand_on));
        }));
    }
}
