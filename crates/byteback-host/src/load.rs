//! How busy the machine is: what work of a processor costs here and now.
//!
//! A measurement without a simulated twin: whoever decides by it takes the number as a parameter.

use std::thread::available_parallelism;

/// Which part of a processor one more thread gets, as far as the kernel's load average of the last
/// minute tells: 1 where a processor is idle, a half where each has one thread at work, and so on.
/// `None` if the kernel does not tell.
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
