//! Progress of long work: a bar on a terminal, `status` lines with `--json`, otherwise nothing.
//!
//! The engine reports increments from several threads; here they are summed up and shown at most a
//! given number of times per second. Errors of single files are reported at once, above the bar.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use byteback_backup::{Change, Event, Monitor, Phase};
use byteback_model::ByteString;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::output::Output;
use crate::settings::Settings;
use crate::signals::{self, Interrupt};

/// The progress of one command; see the module.
pub(crate) struct Progress {
    output: Output,
    /// Name of the work, for messages: `backup`, `restore`, ...
    during: &'static str,
    interrupt: Option<Interrupt>,
    /// Whether each changed path is printed.
    prints_changes: bool,
    bar: ProgressBar,
    status_every: Option<std::time::Duration>,
    state: Mutex<State>,
    files_done: AtomicU64,
    bytes_read: AtomicU64,
    bytes_sent: AtomicU64,
}

struct State {
    began: Instant,
    reported: Option<Instant>,
    phase: Option<Phase>,
    files: u64,
    bytes: u64,
    measure: Measure,
}

impl State {
    fn knows_files_alone(&self) -> bool {
        self.bytes == 0 && self.files > 0
    }
}

#[derive(Serialize)]
struct Status {
    phase: Option<&'static str>,
    seconds_elapsed: u64,
    percent_done: f64,
    files_done: u64,
    total_files: u64,
    bytes_done: u64,
    total_bytes: u64,
    bytes_sent: u64,
}

#[derive(Serialize)]
struct ChangedItem<'a> {
    path: &'a ByteString,
    action: Change,
}

#[derive(Serialize)]
struct FileDone<'a> {
    action: &'a str,
    item: &'a ByteString,
}

impl Progress {
    /// Progress of the work called `during`; `interrupt` ends it early.
    pub(crate) fn new(settings: &Settings, during: &'static str, interrupt: Option<Interrupt>) -> Self {
        let output = settings.output;
        let bar = match settings.progress_every.filter(|_| output.shows_progress()) {
            Some(every) => {
                // indicatif counts whole redraws per second, one at least.
                let fps = (1.0 / every.as_secs_f64()).round().clamp(1.0, 60.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "clamped to 1 to 60"
                )]
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(fps as u8));
                bar.enable_steady_tick(every.max(std::time::Duration::from_millis(100)));
                bar
            }
            None => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self {
            output,
            during,
            interrupt,
            prints_changes: false,
            bar,
            status_every: settings.progress_every.filter(|_| output.json),
            state: Mutex::new(State {
                began: now,
                reported: None,
                phase: None,
                files: 0,
                bytes: 0,
                measure: Measure::Nothing,
            }),
            files_done: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
        }
    }

    /// Prints each changed path with `-v`, or always if `in_any_case`. Paths are then not printed
    /// again when their files are done.
    pub(crate) fn telling_changes(mut self, in_any_case: bool) -> Self {
        self.prints_changes = in_any_case || self.output.verbosity > 0;
        self
    }

    fn changed(&self, path: &ByteString, change: Change) {
        let letter = match change {
            Change::New => '+',
            Change::Content => 'M',
            Change::Attributes => 'a',
            Change::Removed => '-',
            Change::Moved => '>',
            Change::Copied => '=',
        };
        self.above_bar(|| {
            let _ = match self.output.json {
                true => self.output.object("item", &ChangedItem { path, action: change }),
                false => self.output.say(format!("{letter} {path}")),
            };
        });
    }

    /// Shows how many nodes of the folder were compared with the log's record.
    pub(crate) fn compared(&self, nodes: u64) {
        if nodes == 1 || nodes.is_multiple_of(256) {
            let count = crate::wording::counted(nodes, "entry", "entries");
            self.bar
                .set_message(format!("comparing the folder with its record: {count}"));
        }
    }

    /// Removes the bar, so that the result can be printed.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn above_bar(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    fn show(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        let (bytes_done, files_done) = (
            self.bytes_read.load(Ordering::Relaxed),
            self.files_done.load(Ordering::Relaxed),
        );
        if state.measure != Measure::Nothing {
            // Unforeseen work, such as a file that is read twice, does not raise the total.
            let (done, whole) = match state.measure {
                Measure::Files => (files_done, state.files),
                Measure::Bytes | Measure::Nothing => (bytes_done, state.bytes),
            };
            if whole > 0 {
                self.bar.set_length(whole);
            }
            self.bar.set_position(if whole > 0 { done.min(whole) } else { done });
        }
        let Some(every) = self.status_every else { return };
        let now = Instant::now();
        if state
            .reported
            .is_some_and(|reported| now.duration_since(reported) < every)
        {
            return;
        }
        state.reported = Some(now);
        let status = Status {
            phase: state.phase.map(name),
            seconds_elapsed: now.duration_since(state.began).as_secs(),
            percent_done: match state.measure {
                Measure::Files => portion(files_done, state.files),
                Measure::Nothing if state.knows_files_alone() => portion(files_done, state.files),
                Measure::Bytes | Measure::Nothing => portion(bytes_done, state.bytes),
            },
            files_done,
            total_files: state.files,
            bytes_done,
            total_bytes: state.bytes,
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
        };
        drop(state);
        // A reader that went away does not end the work; the code that prints the result will
        // notice.
        let _ = self.output.object("status", &status);
    }

    /// Sets the form of the bar: with an end only once the total is known.
    fn shape(&self, state: &State) {
        let template = match state.measure {
            Measure::Nothing => "{spinner} {msg}",
            Measure::Bytes if state.bytes > 0 => {
                "{spinner} {msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
            }
            Measure::Files if state.files > 0 => "{spinner} {msg} [{bar:30}] {pos} of {len} files, {eta} left",
            Measure::Bytes => "{spinner} {msg} {binary_bytes}, {binary_bytes_per_sec}",
            Measure::Files => "{spinner} {msg} {pos} files",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// Whether contents are being sent, or all of them were.
    pub(crate) fn is_transferring(&self) -> bool {
        let phase = self.state.lock().ok().and_then(|state| state.phase);
        matches!(phase, Some(Phase::Transferring | Phase::Committing | Phase::Finishing))
    }

    fn begin(&self, phase: Phase) {
        let Ok(mut state) = self.state.lock() else { return };
        let before = state.phase.replace(phase);
        // The next work of the same command, or another attempt. A backup knows the total before it
        // sends.
        let resets_counters = match phase {
            Phase::Comparing | Phase::Cutting => true,
            Phase::Transferring => before != Some(Phase::Cutting),
            _ => false,
        };
        if resets_counters {
            (state.files, state.bytes) = (0, 0);
            self.files_done.store(0, Ordering::Relaxed);
            self.bytes_read.store(0, Ordering::Relaxed);
        }
        state.measure = match measure(phase) {
            // There were too many files to ask for their sizes.
            Measure::Bytes if state.knows_files_alone() && phase == Phase::Transferring => Measure::Files,
            measure => measure,
        };
        self.shape(&state);
        drop(state);
        self.bar.set_message(words(phase));
    }
}

/// The unit in which a phase is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Nothing,
    Files,
    Bytes,
}

fn measure(phase: Phase) -> Measure {
    match phase {
        Phase::Transferring | Phase::Restoring | Phase::Comparing => Measure::Bytes,
        Phase::Verifying => Measure::Files,
        Phase::Preparing | Phase::Cutting | Phase::Committing | Phase::Finishing => Measure::Nothing,
    }
}

/// The part done, from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a rough portion for people")]
fn portion(done: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        (done as f64 / whole as f64).min(1.0)
    }
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "preparing",
        Phase::Cutting => "cutting",
        Phase::Transferring => "transferring",
        Phase::Committing => "committing",
        Phase::Restoring => "restoring",
        Phase::Finishing => "finishing",
        Phase::Verifying => "verifying",
        Phase::Comparing => "comparing",
    }
}

fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "preparing",
        Phase::Cutting => "capturing one moment of the folder",
        Phase::Transferring => "sending changes",
        Phase::Committing => "waiting for the server to save it",
        Phase::Restoring => "restoring",
        Phase::Finishing => "setting owners, permissions and times",
        Phase::Verifying => "reading every stored byte",
        Phase::Comparing => "comparing with the folder",
    }
}

impl Monitor for Progress {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Phase(phase) => self.begin(phase),
            Event::Totals { files, bytes } => {
                if let Ok(mut state) = self.state.lock() {
                    (state.files, state.bytes) = (files, bytes);
                    self.shape(&state);
                }
            }
            Event::BytesRead(bytes) | Event::BytesSkipped(bytes) => {
                self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
            }
            Event::BytesSent(bytes) => {
                self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
            }
            Event::FileDone { path } => {
                self.files_done.fetch_add(1, Ordering::Relaxed);
                if let Some(path) = path.filter(|_| self.output.verbosity > 0 && !self.prints_changes) {
                    self.above_bar(|| {
                        let _ = if self.output.json {
                            self.output.object(
                                "verbose_status",
                                &FileDone {
                                    action: self.during,
                                    item: path,
                                },
                            )
                        } else {
                            self.output.say(path)
                        };
                    });
                }
            }
            Event::Changed { path, change } => {
                if self.prints_changes {
                    self.changed(path, change);
                }
            }
            Event::FileFailed { path, reason } => {
                self.above_bar(|| self.output.item_error(self.during, Some(path), reason));
            }
            // Events of continuous sync, whose status reports them.
            Event::ChangesToCome(_) | Event::Comparing { .. } => {}
            Event::Warning(text) => self.above_bar(|| self.output.warn(text)),
        }
        self.show();
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.is_some() && signals::stop_is_asked()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
