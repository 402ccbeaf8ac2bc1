//! Messages about consumers that went silent, before and after they are dropped: no consumer is
//! dropped silently.

use byteback_control::ConsumerStatus;
use byteback_daemon::StateFolder;
use byteback_oplog::DropReason;

use crate::output::Output;
use crate::timestamp;
use crate::wording::age;

/// A sentence on what the user should know about a consumer and can do; `None` if all is well.
pub(crate) fn note(consumer: &ConsumerStatus, now_ns: i64) -> Option<String> {
    let name = &consumer.name;
    if let Some(expires_at_ns) = consumer.expires_at_ns {
        let silent = age(consumer.heard_at_ns, now_ns);
        let date = timestamp::local(expires_at_ns.max(now_ns));
        return Some(format!(
            "the consumer '{name}' has not been seen for {silent}; after {date} it is dropped, and everything counts \
             as changed if it returns"
        ));
    }
    let dropped = consumer
        .dropped
        .filter(|dropped| dropped.reason == DropReason::Expired)?;
    Some(format!(
        "the consumer '{name}' was dropped on {} because it had not been seen for too long; everything counts as \
         changed if it returns",
        timestamp::local(dropped.at_ns)
    ))
}

/// Warns about each consumer of a folder that needs it.
pub(crate) fn warn(consumers: &[ConsumerStatus], folder: &StateFolder, output: Output) {
    let now_ns = timestamp::now_ns();
    for consumer in consumers {
        if let Some(note) = note(consumer, now_ns) {
            let (name, directory) = (&consumer.name, folder.directory().display());
            output.warn(&format!(
                "{note}. If it is no longer needed: byteback consumers drop '{name}' {directory}"
            ));
        }
    }
}
