//! The load of the machine: the price of processor time here and now.
//!
//! A measurement without a simulated twin: callers that decide by it take the number as a
//! parameter.

use std::thread::available_parallelism;

/// The share of a processor that one more thread would get, estimated from the kernel's load
/// average of the last minute: 1 if a processor is idle, a half if each runs one thread, and so on.
/// `None` if the kernel does not report it.
#[must_use]
pub fn thread_share() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let processors = available_parallelism().ok()?.get();
    share(load_of(&text)?, processors)
}

/// The first number of `/proc/loadavg`: threads that run or wait to run, on average over a minute.
fn load_of(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn share(load: f64, processors: usize) -> Option<f64> {
    if !load.is_finite() || load < 0.0 {
        return None;
    }
    Some((processors as f64 / (load + 1.0)).min(1.0))
}

#[cfg(test)]
mod tests;
