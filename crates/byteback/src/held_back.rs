//! Messages about a directory that is perhaps not the folder that was tracked
//! (`byteback_daemon::presence`), and about what the user can do.

use byteback_daemon::{Doubt, HeldBack, StateFolder};

use crate::error::CommandError;
use crate::output::Output;

/// The failure of a sync that is held back.
pub(crate) fn explained(folder: &StateFolder, held: &HeldBack) -> CommandError {
    let directory = folder.directory().display();
    CommandError::new(format!(
        "cannot sync {directory}: {}. Files missing from it would be removed on the server and on all other machines",
        held.doubt
    ))
    .next(next_steps(folder, held))
}

/// The choices of the user.
pub(crate) fn next_steps(folder: &StateFolder, held: &HeldBack) -> String {
    let directory = folder.directory().display();
    let back = match (held.is_recorded, held.doubt) {
        // The record follows what was there: it no longer knows the files.
        (true, _) => String::new(),
        (false, Doubt::OtherDirectory { .. }) => {
            format!("If its disk is not mounted, mount it, then: byteback sync {directory}\n")
        }
        (false, Doubt::FilesGone { .. }) => {
            format!("If a part of it is missing by mistake, put it back, then: byteback sync {directory}\n")
        }
    };
    format!(
        "Nothing was sent.\n{back}If it was restored, moved or mounted again, compare it with the server (this removes \
         nothing): byteback sync --start-over {directory}\nIf the files were removed on purpose: byteback sync --accept-removals {directory}"
    )
}

/// Warns that the saved directory is perhaps not the one that was meant.
pub(crate) fn warn(folder: &StateFolder, doubt: Doubt, output: Output) {
    let directory = folder.directory().display();
    output.warn(&format!(
        "{directory} may not be the folder that was saved before: {doubt}. Earlier snapshots are not affected"
    ));
}
