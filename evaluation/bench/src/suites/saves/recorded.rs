//! Recorded programs: every trace of a folder, replayed at full speed, with a save at each mark.
//!
//! Operations behind the last mark belong to the last save. A replay must end in the recorded tree.

use std::fs;
use std::path::Path;

use super::work::{Case, Saves, Work};
use crate::SuiteError;
use crate::traces::operation::Operation;
use crate::traces::{self, Pace, Replayer, Trace, Unmasked};

/// The largest `data.zst` of a trace of a quick run.
const DATA_BYTES_QUICK: u64 = 600_000;

/// The traces in a folder.
///
/// # Errors
/// If the folder cannot be read or holds none.
pub(super) fn all(folder: &Path, quick: bool) -> Result<Vec<Case>, SuiteError> {
    let mut cases = Vec::new();
    for path in traces::find(folder)? {
        if quick && fs::metadata(path.join("data.zst"))?.len() > DATA_BYTES_QUICK {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        cases.push(Case {
            name: format!("trace {name}"),
            at_most_kb: None,
            load: Box::new(move || Ok(Box::new(Trace::load(&path)?))),
        });
    }
    Ok(cases)
}

impl Work for Trace {
    fn saves(&self) -> usize {
        let is_mark = |operation: &Operation| matches!(operation, Operation::Mark);
        let marks = self.operations.iter().filter(|timed| is_mark(&timed.operation));
        marks.count().max(1)
    }

    fn prepare(&self, folder: &Path) -> Result<(), SuiteError> {
        self.unpack_initial(folder)
    }

    fn open<'a>(&'a self, folder: &'a Path) -> Result<Box<dyn Saves + 'a>, SuiteError> {
        let mut replayer = Replayer::begin(self, folder, false)?;
        let unmasked = Unmasked::begin();
        let saves = Work::saves(self);
        Ok(Box::new(move |index: usize| {
            let _ = &unmasked;
            replayer.go_to_next_mark(Pace::FullSpeed)?;
            match index + 1 == saves {
                true => replayer.go_to_next_mark(Pace::FullSpeed),
                false => Ok(()),
            }
        }))
    }

    fn check(&self, folder: &Path) -> Result<(), SuiteError> {
        match &self.final_hash {
            Some(hash) if *hash != traces::tree_hash(folder)? => {
                Err("the replay ended in another tree than the recorded one".into())
            }
            _ => Ok(()),
        }
    }
}
