//! The part of a lifeline that can be tested without dying.

use std::time::Duration;

use super::*;

/// A place for whoever waits in this process.
fn waits(sight: Sight) -> (JoinHandle<()>, Receiver<()>) {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: the test keeps the page until this has ended.
        unsafe { sight.wait() };
        tell.send(()).unwrap();
    });
    (thread, told)
}

#[test]
fn nothing_but_its_end_is_told() {
    let (mut first, second) = (Lifeline::start().unwrap(), Lifeline::start().unwrap());
    let (thread, told) = waits(first.sight());
    // Another one's end.
    drop(second);
    // Looks that find nothing new.
    for _ in 0..20 {
        // SAFETY: the page is mapped; there is one who may wait for it.
        let futex = unsafe { &(*first.sight().0.as_ptr()).futex };
        // SAFETY: a system call with the address of a futex.
        unsafe { libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAKE, 1) };
        assert_eq!(
            told.recv_timeout(Duration::from_millis(5)),
            Err(mpsc::RecvTimeoutError::Timeout)
        );
    }
    drop(first.order_to_end.take());
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(()));
    thread.join().unwrap();
    // A later waiter returns at once.
    let (thread, told) = waits(first.sight());
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(()));
    thread.join().unwrap();
}
