//! Signals, turned into a form that a command can act upon.
//!
//! Long work ends at its next safe point after the first SIGINT, SIGTERM or SIGHUP, and at once
//! after the second. Services end in good order. The signals are handled on a thread of their own;
//! nothing runs inside a signal handler.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;

/// Process-wide, as signals are: code that was set up before the watch began must see it too.
static STOP_ASKED: AtomicBool = AtomicBool::new(false);

/// Proof that stop signals are watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP from now on. The second signal ends the process at
    /// once; the next run makes up for any work that is lost by that.
    pub(crate) fn watch() -> Result<Self> {
        on_stop_signals(|| {
            if STOP_ASKED.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(Exit::Interrupted.code()));
            }
        })?;
        Ok(Self(()))
    }
}

/// Whether a signal that an [`Interrupt`] watches for has arrived.
pub(crate) fn stop_is_asked() -> bool {
    STOP_ASKED.load(Ordering::SeqCst)
}

/// Calls `act` at each SIGINT, SIGTERM or SIGHUP. An ignored signal stays ignored: `nohup` and
/// shells that put a command into the background want that.
pub(crate) fn on_stop_signals(mut act: impl FnMut() + Send + 'static) -> Result<()> {
    let failed = |error: io::Error| CommandError::new(format!("cannot watch for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    let ignored = ignored_signals();
    // The handlers are in place before this returns: a signal right after it is not missed.
    let mut installed = {
        let _inside = runtime.enter();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let wanted = kinds
            .into_iter()
            .filter(|kind| ignored & (1 << (kind.as_raw_value() - 1)) == 0);
        wanted.map(signal).collect::<io::Result<Vec<_>>>().map_err(failed)?
    };
    let watch = move || {
        runtime.block_on(async {
            loop {
                let any = installed
                    .iter_mut()
                    .map(|signal| Box::pin(signal.recv()))
                    .collect::<Vec<_>>();
                if any.is_empty() {
                    return;
                }
                first_of(any).await;
                act();
            }
        });
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map_err(failed)?;
    Ok(())
}

/// Waits until one of several futures is ready.
async fn first_of<T>(mut waiting: Vec<std::pin::Pin<Box<impl Future<Output = T>>>>) -> T {
    std::future::poll_fn(|context| {
        for future in &mut waiting {
            if let std::task::Poll::Ready(done) = future.as_mut().poll(context) {
                return std::task::Poll::Ready(done);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// The signals that this process ignores, as a mask with the lowest bit for signal 1; 0 if the
/// system does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
