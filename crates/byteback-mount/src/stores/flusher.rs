//! The thread that syncs files through our own mount.
//!
//! It waits for requests that our other threads answer, and the kernel lets nothing wake it up
//! meanwhile. If the daemon is killed then, the others end, and with them, normally, our descriptor
//! of `/dev/fuse`: the kernel aborts the connection and every request with it. But threads share
//! one table of descriptors, which goes with the last of them. A thread that waits for an answer
//! would thus keep open the very descriptor that has to be closed for it to get one. The mount, its
//! users, the dying daemon and the watcher, which waits for the end of a pipe, would hang for ever.
//!
//! Therefore this thread has a table of its own. It is empty but for the standard streams: no
//! descriptor of the rest of the process may be used here, or be dropped here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use crate::inodes::InodeNumber;

/// A file to be synced: its node, and the names that lead to it.
pub(super) type ToSync = (InodeNumber, Vec<std::ffi::OsString>);

struct Order {
    files: Vec<ToSync>,
    /// Whether the files are only looked at.
    is_look: bool,
    done: Sender<Vec<io::Result<()>>>,
}

/// See the module. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Flusher {
    thread_id: u32,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the thread, for a mount that need not serve yet; `open_root` opens its root as an
    /// `O_PATH` descriptor.
    pub(crate) fn start(open_root: impl Fn() -> io::Result<OwnedFd> + Send + 'static) -> io::Result<Self> {
        let (orders, ordered) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("byteback-flush".into())
            .spawn(move || {
                let ready = forget_descriptors();
                let is_ready = ready.is_ok();
                // The number is positive.
                let thread_id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                if tell.send(ready.map(|()| thread_id)).is_ok() && is_ready {
                    serve(&open_root, &ordered);
                }
            })?;
        let thread_id = told
            .recv()
            .map_err(|_| io::Error::other("the flushing thread ended"))??;
        Ok(Self {
            thread_id,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// The thread, as the kernel names it to us when it opens a file.
    pub(super) fn thread_id(&self) -> u32 {
        self.thread_id
    }

    /// Syncs each of the files; the answers are in their order.
    pub(super) fn sync(&self, files: Vec<ToSync>) -> io::Result<Vec<io::Result<()>>> {
        self.order(files, false)
    }

    /// Looks at a file until the kernel knows its length.
    pub(super) fn look(&self, node: InodeNumber, path: Vec<std::ffi::OsString>) -> io::Result<()> {
        self.order(vec![(node, path)], true)?.into_iter().collect()
    }

    fn order(&self, files: Vec<ToSync>, is_look: bool) -> io::Result<Vec<io::Result<()>>> {
        let gone = || io::Error::other("the flushing thread ended");
        let (done, answers) = mpsc::channel();
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(Order { files, is_look, done }).map_err(|_| gone())?;
        answers.recv().map_err(|_| gone())
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(open_root: &impl Fn() -> io::Result<OwnedFd>, orders: &Receiver<Order>) {
    while let Ok(Order { files, is_look, done }) = orders.recv() {
        let root = open_root();
        let sync = |(node, path): &ToSync| match &root {
            Ok(root) if is_look => super::learn_len_through_mount(root, path, *node),
            Ok(root) => super::sync_through_mount(root, path, *node),
            Err(_) => Err(super::stale()),
        };
        let answers = files.iter().map(sync).collect();
        // It keeps the mount busy, and the receiver of the answer may unmount.
        drop::<io::Result<OwnedFd>>(root);
        // If the receiver is gone, so is the mount.
        let _ = done.send(answers);
    }
}

/// Gives this thread a descriptor table of its own, and closes everything in it but the standard
/// streams.
fn forget_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: a system call without pointers. The descriptors that it closes stay open in the table
    // of the other threads, and this thread has received no descriptor from them.
    let closed = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    if closed == 0 {
        return Ok(());
    }
    // Before Linux 5.9.
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }?;
    let listed = std::fs::read_dir("/proc/thread-self/fd")?;
    let numbers: Vec<libc::c_int> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number >= FIRST.cast_signed())
        .collect();
    for number in numbers {
        // SAFETY: as above; the descriptor of the list itself is closed already, which is an error
        // without consequence.
        unsafe { libc::close(number) };
    }
    Ok(())
}
