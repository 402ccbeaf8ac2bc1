//! Lets another process see that this one is dying, even if it cannot finish.
//!
//! A process that is killed is gone when its last thread is, and only then are the descriptors
//! closed that its threads share. A thread that waits for the kernel to write pages of our own
//! mount back is not woken up by any signal, and the threads that would answer are gone: the
//! process stays for ever, with the connection, as a zombie. The kernel does not report that as it
//! reports an end: a descriptor of the process or of its first thread (`PIDFD_THREAD`) becomes
//! readable when the last thread is gone, and a thread with a table of descriptors of its own
//! closes that only after the memory of the process is given back, which may wait for the same
//! pages if they are mapped.
//!
//! The lifeline is a thread that waits for nothing but the order to end, hence dies at once when
//! the process is killed. It owns a robust futex: the first thing that the kernel does for a thread
//! that ends, before it gives back anything, is to mark the futexes that it owns, and to wake up
//! their waiters (`set_robust_list(2)`). The futex lies in a page that is shared with the watcher.
//! So it is marked when, and only when, the process dies or gives the order: no other thread and no
//! child can keep it, or mark it.
//!
//! One case is left: a process that dumps core first waits for each of its threads, and keeps this
//! one until then.

use std::convert::Infallible;
use std::ffi::c_long;
use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};

/// The thread only waits.
const STACK_BYTES: usize = 64 << 10;

/// A link of the ring that the kernel walks when the thread ends: `struct robust_list`.
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Entry,
    /// Of each futex, from its entry.
    futex_offset: c_long,
    pending: *const Entry,
}

/// The shared page. The watcher looks at the futex only; the addresses mean something to the daemon
/// alone.
#[repr(C)]
struct Page {
    head: Head,
    entry: Entry,
    /// The owner's thread id, or `FUTEX_OWNER_DIED`; and always `FUTEX_WAITERS`, without which the
    /// kernel wakes up nobody.
    futex: AtomicU32,
}

/// The address of the page, in both processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight(NonNull<Page>);

// SAFETY: one thread writes the page, before any other thread or process is told of it; then
// nothing of it but the futex is used, which is atomic.
unsafe impl Send for Sight {}
// SAFETY: as above.
unsafe impl Sync for Sight {}

/// See the module. Dropping it ends the thread in good order, which is told like a death.
#[derive(Debug)]
pub(super) struct Lifeline {
    order_to_end: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
    sight: Sight,
}

impl Lifeline {
    /// # Errors
    /// The kernel refuses a page, a thread or robust futexes.
    pub(super) fn start() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<Page>(), access, flags) }?;
        // The kernel's work for a dying process should not depend on reading a page back. If
        // locking is refused, it hardly ever does. SAFETY: the new mapping.
        let _ = unsafe { mlock(page, size_of::<Page>()) };
        let page = NonNull::new(page.cast()).ok_or_else(|| io::Error::other("a page was mapped at address zero"))?;
        let (order_to_end, end) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        // From here on, dropping it gives the page back.
        let mut lifeline = Self {
            order_to_end: Some(order_to_end),
            thread: None,
            sight: Sight(page),
        };
        let sight = lifeline.sight;
        let thread = std::thread::Builder::new()
            .name("byteback-life".into())
            .stack_size(STACK_BYTES)
            .spawn(move || live(sight, &tell, &end))?;
        lifeline.thread = Some(thread);
        told.recv()
            .map_err(|_| io::Error::other("the lifeline thread ended"))??;
        Ok(lifeline)
    }

    /// The other process's view of the lifeline. It has the page from when it is forked, even if
    /// the lifeline is dropped here.
    pub(super) fn sight(&self) -> Sight {
        self.sight
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        drop(self.order_to_end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // SAFETY: mapped by `start`. Nobody here uses it any more: a thread that is joined has let
        // go of its futexes.
        let _ = unsafe { munmap(self.sight.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

fn live(sight: Sight, tell: &Sender<io::Result<()>>, end: &Receiver<Infallible>) {
    let owned = own(sight);
    let is_owned = owned.is_ok();
    if tell.send(owned).is_ok() && is_owned {
        // The order is that the other end is dropped.
        let _ = end.recv();
    }
}

/// Makes this thread the owner of the futex, until it ends. Nothing else on it may use robust
/// futexes.
fn own(sight: Sight) -> io::Result<()> {
    let page = sight.0.as_ptr();
    let thread_id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let offset = offset_of!(Page, futex) - offset_of!(Page, entry);
    // SAFETY: the page is ours alone so far, and large and aligned enough. The kernel gets
    // addresses in it, which stay valid until this thread has ended, see `Lifeline::drop`.
    let answer = unsafe {
        let (list, entry) = (&raw const (*page).head.list, &raw const (*page).entry);
        page.write(Page {
            head: Head {
                list: Entry { next: entry },
                futex_offset: c_long::try_from(offset).map_err(io::Error::other)?,
                pending: std::ptr::null(),
            },
            entry: Entry { next: list },
            futex: AtomicU32::new(thread_id | libc::FUTEX_WAITERS),
        });
        libc::syscall(libc::SYS_set_robust_list, &raw const (*page).head, size_of::<Head>())
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Sight {
    /// Waits until the owner is dead or has ended in good order. System calls only.
    ///
    /// # Safety
    /// The page must be mapped in this process.
    pub(super) unsafe fn wait(self) {
        // SAFETY: mapped and filled in before the lifeline was there to be looked at.
        let futex = unsafe { &(*self.0.as_ptr()).futex };
        loop {
            let seen = futex.load(Ordering::Acquire);
            if seen & libc::FUTEX_OWNER_DIED != 0 {
                return;
            }
            let forever = std::ptr::null::<libc::timespec>();
            // Not `FUTEX_PRIVATE_FLAG`: the owner is in another process. Signals and changes in
            // between mean another look. SAFETY: the futex is readable, as above.
            unsafe { libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAIT, seen, forever) };
        }
    }
}

#[cfg(test)]
mod tests;
