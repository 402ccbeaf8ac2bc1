//! xdelta3: what a delta of two contents that both are at hand can be, if one takes the time.
//!
//! As rdiff it has no network of its own; the delta is what would travel. The old content is the
//! server's copy, which the client would have to keep as well; that it must is not counted.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::{program, run};
use crate::SuiteError;

/// The source window: longer than any file that is measured.
const WINDOW_BYTES: u32 = 256 << 20;

/// The old file on the server, and a folder for what travels.
#[derive(Debug)]
pub(crate) struct Xdelta {
    copy: PathBuf,
    work: PathBuf,
}

/// What an update cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Update {
    pub(crate) client_cpu_s: f64,
    pub(crate) server_cpu_s: f64,
    pub(crate) delta_bytes: u64,
}

/// Whether the program is there.
pub(crate) fn is_installed() -> bool {
    run(program("xdelta3").arg("-V")).is_ok()
}

impl Xdelta {
    /// Updates go into the file `copy`.
    pub(crate) fn new(copy: &Path, work: &Path) -> Self {
        Self {
            copy: copy.to_owned(),
            work: work.to_owned(),
        }
    }

    /// Makes the copy equal to `source`.
    pub(crate) fn update(&self, source: &Path) -> Result<Update, SuiteError> {
        let [delta, new] = ["xdelta.delta", "xdelta.new"].map(|name| self.work.join(name));
        let command = |way: &str| {
            let mut command = program("xdelta3");
            command
                .args([way, "-f", "-B", &WINDOW_BYTES.to_string(), "-s"])
                .arg(&self.copy);
            command
        };
        let encoded = run(command("-e").arg(source).arg(&delta))?;
        let decoded = run(command("-d").arg(&delta).arg(&new))?;
        fs::rename(&new, &self.copy)?;
        Ok(Update {
            client_cpu_s: encoded.cost.cpu_s,
            server_cpu_s: decoded.cost.cpu_s,
            delta_bytes: fs::metadata(&delta)?.len(),
        })
    }
}
