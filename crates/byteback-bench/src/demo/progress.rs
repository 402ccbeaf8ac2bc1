//! What a person sees while the demo works: a bar or spinner on a terminal, and a line for each finished step everywhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::SuiteError;

const TICK: Duration = Duration::from_millis(100);
/// Where the durations stand.
const COLUMNS: usize = 76;

/// Tells one step after the other.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
}

/// A step that is being done.
pub(crate) struct Step(ProgressBar);

impl Step {
    /// So many more bytes are done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Does `work` under a title. With `total_bytes` its end can be foreseen.
    pub(crate) fn step<T>(
        &self,
        title: &str,
        total_bytes: Option<u64>,
        work: impl FnOnce(&Step) -> Result<T, SuiteError>,
    ) -> Result<T, SuiteError> {
        let target = if self.is_terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total_bytes, target);
        let template = match total_bytes {
            Some(_) => "  {msg} {wide_bar} {percent:>3} %",
            None => "  {msg} {spinner} {elapsed}",
        };
        bar.set_style(ProgressStyle::with_template(template)?);
        bar.set_message(title.to_owned());
        if self.is_terminal {
            bar.enable_steady_tick(TICK);
        }
        let started = Instant::now();
        let result = work(&Step(bar.clone()));
        bar.finish_and_clear();
        if result.is_ok() {
            let dots = ".".repeat(COLUMNS.saturating_sub(title.chars().count()));
            // Somebody who closed the output is not waiting for it.
            let _ = writeln!(
                io::stdout(),
                "  {title} {dots} {:5.1} s",
                started.elapsed().as_secs_f64()
            );
        }
        result
    }

    /// A line of its own.
    pub(crate) fn say(&self, line: &str) {
        let _ = writeln!(io::stdout(), "{line}");
    }
}
