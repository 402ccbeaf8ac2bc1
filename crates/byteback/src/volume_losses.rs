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
        "when it was mounted last, what programs wrote and did not sync was lost from {}: {}: {}",
        timestamp::local(lost.at_ns),
        lost.volume,
        lost.reason
    ));
}

/// The failure that an unmount ends with. The volume is unmounted all the same.
pub(crate) fn unmounted(folder: &StateFolder, reason: &str) -> CommandError {
    let directory = folder.directory().display();
    CommandError::new(format!(
        "{directory} is unmounted, but writes were lost: {reason}"
    ))
    .next(format!(
        "What was synced before is safe. Make room where the volume lies, or mend its device; then: byteback mount {directory}"
    ))
}
