//! A monitor that remembers what it was told.

use byteback_backup::{Event, Monitor};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Hears of events and may stop the operation.
type Listener<'a> = Box<dyn Fn(&Event<'_>, &AtomicBool) + Send + Sync + 'a>;

/// Remembers warnings and failures, calls `on` for each event, and stops the operation when told
/// so.
pub struct RecordingMonitor<'a> {
    pub warnings: Mutex<Vec<String>>,
    pub failures: Mutex<Vec<(String, String)>>,
    pub is_cancelled: AtomicBool,
    on: Listener<'a>,
}

impl<'a> RecordingMonitor<'a> {
    pub fn new(on: impl Fn(&Event<'_>, &AtomicBool) + Send + Sync + 'a) -> Self {
        Self {
            warnings: Mutex::default(),
            failures: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            on: Box::new(on),
        }
    }

    pub fn warned(&self, of: &str) -> bool {
        self.warnings.lock().unwrap().iter().any(|warning| warning.contains(of))
    }
}

impl Monitor for RecordingMonitor<'_> {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Warning(warning) => self.warnings.lock().unwrap().push(warning.to_owned()),
            Event::FileFailed { path, reason } => {
                let failure = (path.to_string(), reason.to_owned());
                self.failures.lock().unwrap().push(failure);
            }
            _ => {}
        }
        (self.on)(&event, &self.is_cancelled);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }
}
