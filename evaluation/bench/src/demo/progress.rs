//! The demo's progress for people: a bar or spinner on a terminal, and a line for each finished
//! step everywhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::SuiteError;

const TICK: Duration = Duration::from_millis(100);
/// The column of the durations.
const COLUMNS: usize = 66;
const SPINNER: &str = "  {msg} {spinner} {elapsed}";
/// Fits into 80 columns with the longest title.
const BAR: &str = "  {msg} {bar:10} {percent:>3} %";

/// Shows one step after the other.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
}

/// A step in progress.
pub(crate) struct Step(ProgressBar);

impl Step {
    /// Adds `bytes` to the progress.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Sets the progress to `done_bytes` of `total_bytes`.
    pub(crate) fn reach(&self, done_bytes: u64, total_bytes: u64) {
        if total_bytes > 0 && self.0.length() != Some(total_bytes) {
            self.0.set_length(total_bytes);
            self.0.set_style(style(BAR));
        }
        self.0.set_position(done_bytes);
    }
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            // Finished steps go to standard output and the bar to standard error: it is of use only
            // where both are visible.
            is_terminal: io::stderr().is_terminal() && io::stdout().is_terminal(),
        }
    }

    /// Does `work` under a title. With `total_bytes`, or where the work reports its progress, a bar
    /// is shown.
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
        bar.set_style(style(if total_bytes.is_some() { BAR } else { SPINNER }));
        bar.set_message(title.to_owned());
        if self.is_terminal {
            bar.enable_steady_tick(TICK);
        }
        let started = Instant::now();
        let result = work(&Step(bar.clone()));
        bar.finish_and_clear();
        if result.is_ok() {
            self.say(&finished(title, started.elapsed()));
        }
        result
    }

    /// Begins a group of steps.
    pub(crate) fn section(&self, title: &str) {
        self.say(&format!("\n{title}"));
    }

    /// Prints a line of its own.
    pub(crate) fn say(&self, line: &str) {
        // A closed output needs no message.
        let _ = writeln!(io::stdout(), "{line}");
    }
}

fn style(template: &str) -> ProgressStyle {
    // Both templates are ours and correct; the other arm is never taken.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=>-")
}

/// The line of a finished step.
fn finished(title: &str, duration: Duration) -> String {
    let dots = ".".repeat(COLUMNS.saturating_sub(title.chars().count()).max(2));
    format!("  {title} {dots} {:5.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests;
