//! Messages about writes that a volume lost because its device refused them.

use byteback_control::TreeStatus;
use byteback_daemon::{LostWrites, StateFolder};

use crate::error::CommandError;
use crate::output::Output;
use crate::timestamp;

/// Why writes of programs are lost: from the daemon, or from the note of its end.
pub(crate) fn reason(folder: &StateFolder, status: Option<&TreeStatus>) -> Option<String> {
    match status.filter(|status| status.mounted_at.is_some()) {
        Some(status) => status.volume_failure.clone(),
        None => folder.lost_writes().map(|lost| lost.reason),
    }
}

/// Reports, once the volume is mounted again, the losses of its last mount.
pub(crate) fn warn(lost: Option<&LostWrites>, output: Output) {
    let Some(lost) = lost else { return };
    output.warn(&format!(
        "during the last mount, unsynced writes were lost from {} on: {}: {}",
        timestamp::local(lost.at_ns),
        lost.volume,
        lost.reason
    ));
}

/// The failure that an unmount ends with. The volume is unmounted all the same.
pub(crate) fn unmounted(folder: &StateFolder, reason: &str) -> CommandError {
    let directory = folder.directory().display();
    CommandError::new(format!("{directory} is unmounted, but writes were lost: {reason}")).next(format!(
        "Data synced before is safe. Free space where the volume is, or repair its device; then: \
         byteback mount {directory}"
    ))
}
