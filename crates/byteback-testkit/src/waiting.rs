//! Waiting for something that happens elsewhere, with an end.

use std::time::{Duration, Instant};

/// Longer than anything in a test takes on a busy machine; anything slower hangs.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until `look` returns a value.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "after {PATIENCE:?}, it is still not so that {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the changes so far are too old for the file system's clock to confuse with the next
/// ones.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(60));
}
