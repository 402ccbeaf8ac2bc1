//! xdelta3: how short a delta can be if both contents are at hand and time does not matter.
//!
//! Like rdiff it has no network of its own; the delta is what would travel. The old content is the
//! server's copy, of which the client would need one, too; that cost is not counted.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::{program, run};
use crate::SuiteError;

/// The source window: longer than any measured file.
const WINDOW_BYTES: u32 = 256 << 20;

/// The old file on the server, and a folder for the files that would travel.
#[derive(Debug)]
pub(crate) struct Xdelta {
    copy: PathBuf,
    work: PathBuf,
    /// The server has no old file.
    is_from_nothing: bool,
}

/// The cost of an update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Update {
    pub(crate) client_cpu_s: f64,
    pub(crate) server_cpu_s: f64,
    pub(crate) delta_bytes: u64,
}

/// Whether the program is installed.
pub(crate) fn is_installed() -> bool {
    run(program("xdelta3").arg("-V")).is_ok()
}

impl Xdelta {
    /// Updates are applied to the file `copy`.
    pub(crate) fn new(copy: &Path, work: &Path) -> Self {
        Self {
            copy: copy.to_owned(),
            work: work.to_owned(),
            is_from_nothing: false,
        }
    }

    /// The file `copy` is missing: the first update is compressed by itself.
    pub(crate) fn from_nothing(copy: &Path, work: &Path) -> Self {
        Self {
            is_from_nothing: true,
            ..Self::new(copy, work)
        }
    }

    /// Makes the copy equal to `source`.
    pub(crate) fn update(&self, source: &Path) -> Result<Update, SuiteError> {
        let [delta, new] = ["xdelta.delta", "xdelta.new"].map(|name| self.work.join(name));
        let command = |way: &str| {
            let mut command = program("xdelta3");
            // -D: compressed files would be unpacked, and packed again with other bytes.
            command.args([way, "-D", "-f", "-B", &WINDOW_BYTES.to_string()]);
            if !self.is_from_nothing {
                command.arg("-s").arg(&self.copy);
            }
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
