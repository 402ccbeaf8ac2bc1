//! The state of a folder in sentences.

use byteback_control::{DamagedFile, SyncReceiving, SyncStatus};
use byteback_daemon::StateFolder;
use byteback_mount::mount_table;

use super::health::{self, Silence};
use super::{Known, Logged, State, UnknownFiles, last_backup};
use crate::commands::consumers::saved_in_words;
use crate::consumer_notes;
use crate::coverage::{Coverage, Gap};
use crate::ending;
use crate::error::Result;
use crate::held_back;
use crate::last_backup::LastBackup;
use crate::settings::Settings;
use crate::throttling;
use crate::timestamp;
use crate::tracked_folder;
use crate::wording::{age, counted, grouped, listed, nodes, size};

/// Ranges shown per damaged file without `-v`.
const RANGES_SHOWN: usize = 5;

/// Left-out names that are shown.
const LEFT_OUT_SHOWN_MAX: usize = 5;

/// Gaps that are shown without `-v`.
const GAPS_SHOWN: usize = 5;

pub(super) fn print(known: &Known, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let directory = known.folder.directory();
    output.line(directory.display())?;
    match &known.state {
        _ if health::is_gone(directory) => {
            output.line("  the folder is gone; what was saved of it remains")?;
            output.line(format!(
                "  to restore it: byteback restore; to discard its log: rm -r {}",
                known.folder.path().display()
            ))?;
        }
        State::New => output.line("  not mounted, nothing tracked yet")?,
        State::InVolume(volume) => {
            output.line(format!("  not mounted; it is in the volume {}", volume.display()))?;
            output.line(format!("  to mount it: byteback mount {}", directory.display()))?;
        }
        State::Ending(pid) => output.line(format!("  unmounted; process {pid} is writing its log"))?,
        State::Busy => output.line("  in use by another command (a backup, or a mount that is starting)")?,
        State::Unreadable(why) => output.line(format!("  its log cannot be read: {why}"))?,
        State::Logged(logged) => print_tracking(logged, known, settings)?,
    }
    if let Some(reason) = &known.lost_writes {
        output.line(format!("  WRITES WERE LOST: {reason}"))?;
        output.line(
            "    what was synced before is safe; free space where the volume is, unmount it, and mount it again",
        )?;
    }
    let is_mounted = matches!(&known.state, State::Logged(logged) if logged.status.mounted_at.is_some());
    if !is_mounted && let Some(bare) = known.folder.protected_directory() {
        output.line(format!(
            "  {} is protected, so that nothing is written there while the volume is not mounted; to allow writes: \
             byteback umount {}",
            bare.display(),
            directory.display()
        ))?;
    }
    if let Some(held) = &known.held_back {
        output.line(format!(
            "  SYNC IS HELD BACK since {}: {}",
            timestamp::local(held.since_ns),
            held.doubt
        ))?;
        for line in held_back::next_steps(&known.folder, held).lines() {
            output.line(format!("    {line}"))?;
        }
    }
    if let State::Logged(logged) = &known.state
        && let Some(sync) = &logged.status.sync
    {
        print_sync(sync, &known.folder, settings)?;
    }
    print_backup(known, settings)?;
    match &known.state {
        State::Logged(logged) => print_cost(logged, known, settings),
        _ => Ok(()),
    }
}

/// Prints the state of continuous sync.
fn print_sync(sync: &SyncStatus, folder: &StateFolder, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let now_ns = timestamp::now_ns();
    let state = match (sync.has_ended, sync.paused_since_ns, health::silence(sync, now_ns)) {
        (true, ..) => "NOTHING IS SENT ANY MORE".to_owned(),
        (false, Some(since_ns), _) => format!("PAUSED for {}", age(since_ns, now_ns)),
        (false, None, Silence::No) => "connected".to_owned(),
        (false, None, Silence::Since(since_ns)) => {
            format!("no answer from the server for {}", age(since_ns, now_ns))
        }
        (false, None, Silence::NotConnected) => match sync.heard_at_ns {
            // A server that freezes breaks no connection, so its absence shows later.
            Some(at_ns) => format!(
                "waiting for the server, which has not answered for {}",
                age(at_ns.min(sync.since_ns), now_ns)
            ),
            None => format!("waiting for the server for {}", age(sync.since_ns, now_ns)),
        },
    };
    output.line(format!("  synced with {}/{}: {state}", sync.server, sync.folder))?;
    if sync.paused_since_ns.is_some() {
        let directory = folder.directory().display();
        output.line(format!("    changes are kept; to resume: byteback resume {directory}"))?;
    }
    if !sync.limits.is_empty() {
        let now = match sync.paused_since_ns {
            None => format!(" ({})", throttling::current_rate_text(sync.bytes_per_second_max)),
            Some(_) => String::new(),
        };
        // The process that serves the folder may be another version and write limits differently.
        let limits = match throttling::limits(&sync.limits) {
            Ok(limits) => throttling::in_words(&limits),
            Err(_) => sync.limits.join(", "),
        };
        output.line(format!("    limited to {limits}{now}"))?;
    }
    // While the server is not asked, its silence is no news.
    let error = sync.error.as_ref();
    if let Some(error) = error.filter(|_| sync.paused_since_ns.is_none() || sync.needs_attention) {
        let whose = if sync.needs_attention { "needs attention: " } else { "" };
        output.line(format!("    {whose}{error}"))?;
    }
    let waits = match (sync.is_folded, sync.waiting_nodes, sync.groups_in_flight) {
        // Before the first answer it is not known what the server lacks.
        (false, 0, 0) if sync.heard_at_ns.is_none() => "the server has not answered yet".to_owned(),
        (false, 0, 0) if sync.held_nodes > 0 => format!(
            "everything is sent except changes to {}, which wait for changes from other machines",
            counted(sync.held_nodes, "file", "files")
        ),
        (false, 0, 0) => "everything is sent".to_owned(),
        (true, _, _) => "there are many changes; they are sent as one moment of the whole folder".to_owned(),
        (false, 0, _) => "the last changes are on their way".to_owned(),
        (false, changes, _) => format!(
            "{} with {} to be sent",
            counted(changes, "change", "changes"),
            size(sync.waiting_bytes)
        ),
    };
    let last = match sync.sent_at_ns {
        Some(at_ns) => format!("; last sent {} ago", age(at_ns, now_ns)),
        None => String::new(),
    };
    output.line(format!("    {waits}{last}, {} since the start", size(sync.sent_bytes)))?;
    if sync.unsaved_files > 0 {
        let files = counted(sync.unsaved_files, "file", "files");
        output.line(format!("    {files} could not be read; reading is tried again"))?;
    }
    if let Some(receiving) = &sync.receiving {
        output.line(format!("    {}", receiving_in_words(receiving)))?;
    }
    if let Some(at_ns) = sync.received_at_ns {
        output.line(format!("    last change received {} ago", age(at_ns, now_ns)))?;
    }
    if sync.left_out_names > 0 {
        let changes = counted(sync.left_out_names, "change", "changes");
        output.line(format!(
            "    {changes} from other machines cannot be applied here and are left out"
        ))?;
        for left_out in sync.left_out.iter().take(LEFT_OUT_SHOWN_MAX) {
            let why = match (&left_out.blocked, left_out.collides) {
                (Some(why), _) => blocked_in_words(why),
                (None, true) => {
                    "the file system cannot tell it from a name that exists here: rename one of them".to_owned()
                }
                (None, false) => "the file system refuses it".to_owned(),
            };
            output.line(format!("      {}: {why}", left_out.path))?;
        }
    }
    print_ignored(sync, settings)?;
    if !sync.conflicts.is_empty() {
        let conflicts = counted(sync.conflicts.len() as u64, "conflict", "conflicts");
        output.line(format!("    {conflicts} with other machines: byteback conflicts"))?;
    }
    Ok(())
}

/// Why a change of another machine cannot be made, and what helps.
fn blocked_in_words(why: &str) -> String {
    let hint = match why {
        "Operation not permitted" => " (lsattr shows whether it is immutable or append-only)",
        "Text file busy" => " (it is being executed)",
        _ => "",
    };
    format!("{why}{hint}; tried again every minute")
}

/// How far the changes of other machines have come in.
fn receiving_in_words(receiving: &SyncReceiving) -> String {
    match (receiving.compared, receiving.changes_to_come) {
        (Some((done, total)), _) => format!(
            "comparing local files with the server: {} of {} files",
            grouped(done),
            grouped(total)
        ),
        (None, Some(changes)) => format!("{} from other machines to come", counted(changes, "change", "changes")),
        (None, None) => "changes from other machines to come".to_owned(),
    }
}

/// Prints which parts of the folder are ignored, and by which rules.
fn print_ignored(sync: &SyncStatus, settings: &Settings) -> Result<()> {
    let output = settings.output;
    if sync.ignore_files > 0 || sync.ignored_here > 0 || sync.ignored_names > 0 {
        let here = counted(sync.ignored_here, "file or directory", "files and directories");
        output.line(format!(
            "    {here} here are ignored: neither sent nor changed by others"
        ))?;
    }
    if sync.ignored_names > 0 {
        let names = counted(sync.ignored_names, "name", "names");
        output.line(format!(
            "    {names} at the server are ignored, and stay there as they are"
        ))?;
    }
    for path in sync.ignored_by.iter().take(LEFT_OUT_SHOWN_MAX) {
        output.line(format!("      by {path}"))?;
    }
    let shown = sync.ignored_by.len().min(LEFT_OUT_SHOWN_MAX) as u64;
    if sync.ignore_files > shown {
        output.line(format!("      and {} more", sync.ignore_files.saturating_sub(shown)))?;
    }
    for rule in sync.unusable_rules.iter().take(LEFT_OUT_SHOWN_MAX) {
        output.line(format!(
            "    line {} of {} has no effect: {}",
            rule.line, rule.path, rule.why
        ))?;
    }
    Ok(())
}

fn print_backup(known: &Known, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let Some(binding) = &known.binding else {
        return output.line(format!(
            "  not backed up to a server; bind it with: byteback init {} -r URL",
            known.folder.directory().display()
        ));
    };
    let (last, is_synced) = match &known.state {
        State::Logged(logged) => (last_backup(known, &logged.status), is_or_was_synced(logged)),
        _ => (None, false),
    };
    if let State::Logged(logged) = &known.state
        && health::is_left_behind(known, &logged.status)
    {
        output.line(format!(
            "  not kept in sync with {} now; to continue: byteback sync {}",
            binding.repository,
            known.folder.directory().display()
        ))?;
    }
    if is_synced && last.is_none() {
        // Sync keeps the folder safe; the lack of a backup means nothing.
        return Ok(());
    }
    output.line(format!("  backed up to {}", binding.repository))?;
    match last.and_then(|last| Some((last.saved_at_ns()?, last.snapshot_id()))) {
        Some((saved_at_ns, snapshot)) => {
            let (ago, at) = (age(saved_at_ns, timestamp::now_ns()), timestamp::local(saved_at_ns));
            let snapshot = snapshot.map_or_else(String::new, |id| format!(", snapshot {id}"));
            output.line(format!("  last backup {ago} ago ({at}){snapshot}"))?;
        }
        None if matches!(known.state, State::Logged(_) | State::New) => output.line("  never backed up yet")?,
        None => {}
    }
    if last.is_some_and(LastBackup::has_pending) {
        output.line("  a later backup did not finish; the next one asks the server for its outcome")?;
    }
    Ok(())
}

/// Whether the folder is kept in sync, or was when it was last mounted for sync.
fn is_or_was_synced(logged: &Logged) -> bool {
    logged.status.sync.is_some() || health::left_sync(&logged.status).is_some()
}

fn print_tracking(logged: &Logged, known: &Known, settings: &Settings) -> Result<()> {
    let status = &logged.status;
    let output = settings.output;
    let coverage = Coverage::of(&status.ledger);
    match (&status.mounted_at, coverage.tracked_since_ns) {
        (Some(at), Some(since)) => {
            let elsewhere = at.as_bytes() != known.folder.directory().as_os_str().as_encoded_bytes();
            let place = if elsewhere { format!(" at {at}") } else { String::new() };
            let mode = status.mode.as_deref().unwrap_or("exact");
            match &status.detached {
                None => output.line(format!("  mounted{place}, mode {mode}, process {}", status.pid))?,
                Some(detached) if detached.has_ended => {
                    output.line(format!("  unmounted{place}; process {} is writing its log", status.pid))?;
                }
                Some(detached) => {
                    output.line(format!(
                        "  UNMOUNTED{place}: changes that programs make there now are not tracked. Still, {}",
                        ending::held_words(&detached.held_by)
                    ))?;
                    output.line(format!(
                        "    process {} tracks changes made through that, and ends when nothing holds it any more",
                        status.pid
                    ))?;
                }
            }
            if status.detached.is_none() {
                let (ago, at) = (age(since, timestamp::now_ns()), timestamp::local(since));
                output.line(format!("  tracked since {at} ({ago}) without a gap"))?;
            }
        }
        _ => {
            let dead = mount_table::at(known.folder.directory()).is_some();
            output.line(if dead {
                "  NOT TRACKED: its daemon has died"
            } else {
                "  not mounted: changes are not tracked"
            })?;
        }
    }
    let nodes = nodes(status.nodes);
    if output.verbosity > 0 {
        let open = counted(status.open_nodes, "open write intent", "open write intents");
        output.line(format!("  {nodes}, {open}, epoch {}", status.epoch))?;
    } else {
        output.line(format!("  {nodes}"))?;
    }
    print_damaged(&status.damaged, settings)?;
    print_unknown(logged.unknown, settings)?;
    let hidden = if output.verbosity > 0 {
        0
    } else {
        coverage.gaps.len().saturating_sub(GAPS_SHOWN)
    };
    if !coverage.gaps.is_empty() {
        output.line("  gaps:")?;
    }
    if hidden > 0 {
        output.line(format!(
            "    {}; -v shows all",
            counted(hidden as u64, "older gap", "older gaps")
        ))?;
    }
    for gap in coverage.gaps.iter().skip(hidden) {
        output.line(format!("    {}", Gap::words(gap)))?;
    }
    Ok(())
}

/// Prints the damaged files.
fn print_damaged(damaged: &[DamagedFile], settings: &Settings) -> Result<()> {
    let output = settings.output;
    for file in damaged {
        let path = file
            .path
            .as_ref()
            .map_or_else(|| "a file without a name".to_owned(), ToString::to_string);
        let found = timestamp::local(file.found_at_ns);
        let what = match file.after_crash {
            true => "was left by a crash in a state that it never had, and is held back",
            false => "has bytes that changed although no program wrote them; these are not sent",
        };
        output.line(format!("  DAMAGED: {path} {what} (found {found})"))?;
        let shown = if output.verbosity > 0 { usize::MAX } else { RANGES_SHOWN };
        let ranges = file.ranges.iter().take(shown);
        let mut ranges: Vec<String> = ranges
            .map(|(offset, len)| format!("{offset} to {}", offset.saturating_add(*len)))
            .collect();
        if file.ranges.len() > ranges.len() {
            ranges.push(format!("{} more; -v shows all", file.ranges.len() - ranges.len()));
        }
        output.line(format!("    bytes {}", listed(&ranges)))?;
    }
    if !damaged.is_empty() {
        output.line("    to get a good version, or to accept a file as it is: byteback repair")?;
    }
    Ok(())
}

/// Prints the files that will be read whole because their changes were not seen.
fn print_unknown(unknown: UnknownFiles, settings: &Settings) -> Result<()> {
    if unknown.total() == 0 {
        return Ok(());
    }
    let reasons: Vec<String> = [
        (unknown.untracked, "changed while the folder was not mounted"),
        (unknown.interrupted, "being changed when tracking last ended"),
        (unknown.unsaved, "not saved last time"),
        (unknown.log_lost, "whose log was lost"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, why)| format!("{} {why}", grouped(count)))
    .collect();
    settings.output.line(format!(
        "  {} to be read whole: {}",
        counted(unknown.total(), "file is", "files are"),
        listed(&reasons)
    ))
}

/// Prints the cost of tracking, and the consumers for which something is kept.
fn print_cost(logged: &Logged, known: &Known, settings: &Settings) -> Result<()> {
    let (output, now_ns) = (settings.output, timestamp::now_ns());
    let usage = &logged.status.usage;
    let log_bytes = usage.database_bytes.saturating_add(usage.intents_bytes);
    let pending = match usage.pending_extents {
        0 => String::new(),
        ranges => format!(
            ", and {} of {} in memory",
            counted(ranges, "range", "ranges"),
            counted(usage.pending_nodes, "file", "files")
        ),
    };
    let memory = match logged.resident_bytes {
        Some(bytes) => format!("; memory of the daemon {}", size(bytes)),
        None => String::new(),
    };
    output.line(format!("  log {} on disk{pending}{memory}", size(log_bytes)))?;
    for cut in &logged.cuts {
        let state = match &cut.lost {
            Some(why) => format!("lost: {why}"),
            None => format!("{} kept for it", size(cut.kept_bytes)),
        };
        let since = age(cut.opened_at_ns, now_ns);
        output.line(format!("  cut {}, open for {since}, {state}", cut.name))?;
    }
    let own = known.binding.as_ref().map(tracked_folder::consumer);
    for consumer in &logged.status.consumers {
        if own.as_ref() != Some(&consumer.name) {
            let state = match (consumer.dropped, consumer.saved_at_ns) {
                (None, 0) => "nothing saved yet".to_owned(),
                (None, _) => format!("saved {}", saved_in_words(consumer, now_ns)),
                (Some(_), _) => saved_in_words(consumer, now_ns),
            };
            output.line(format!("  consumer {}: {state}", consumer.name))?;
        }
    }
    consumer_notes::warn(&logged.status.consumers, &known.folder, output);
    Ok(())
}
