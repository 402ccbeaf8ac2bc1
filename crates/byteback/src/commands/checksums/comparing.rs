//! Compares two copies of a file by their checksums, without reading a byte of either.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use byteback_checksums::source::{FileChecksums, Source, SourceError};
use byteback_host::clock::{Clock, RealClock};
use byteback_model::ByteString;
use byteback_sources::comparison::{Comparison, Likeness, compare_checksums};
use byteback_sources::fsverity;
use serde::Serialize;

use super::Coverage;
use super::opening::{open, path_of, refused, with_source};
use crate::error::{CommandError, Result};
use crate::output::Output;
use crate::settings::Settings;
use crate::wording::{counted, duration, size_exact};

#[derive(Serialize)]
struct RangeLine {
    start: u64,
    len_bytes: u64,
    likeness: &'static str,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    path: ByteString,
    against: ByteString,
    source: &'a str,
    against_source: &'a str,
    kind: &'a str,
    len_bytes: u64,
    against_len_bytes: u64,
    equal_bytes: u64,
    likely_bytes: u64,
    moved_bytes: u64,
    differing_bytes: u64,
    unknown_bytes: u64,
    checksum_bytes: u64,
    total_ns: u64,
}

/// The result of a comparison, and its cost.
struct ComparisonReport {
    comparison: Comparison,
    sources: (&'static str, &'static str),
    kind: &'static str,
    len_bytes: u64,
    against_len_bytes: u64,
    /// Bytes of checksums that were read.
    checksum_bytes: u64,
}

pub(super) fn run(
    what: &OsStr,
    against: &OsStr,
    store: &[PathBuf],
    lists_ranges: bool,
    settings: &Settings,
) -> Result<()> {
    let started_ns = RealClock.monotonic_ns();
    let reported = match of_trees(what, against)? {
        Some(reported) => reported,
        None => of_lists(what, against, store, settings)?,
    };
    let total_ns = RealClock.monotonic_ns() - started_ns;
    if lists_ranges {
        list(&reported.comparison, settings.output)?;
    }
    tell(what, against, &reported, total_ns, settings)
}

/// Compares the hash trees of two files sealed with the same parameters; `None` if they are not.
fn of_trees(what: &OsStr, against: &OsStr) -> Result<Option<ComparisonReport>> {
    let (Some(new), Some(base)) = (path_of(what), path_of(against)) else {
        return Ok(None);
    };
    // An error of a file is reported when it is opened for its list of checksums.
    let (Ok(new), Ok(base)) = (open(new), open(base)) else {
        return Ok(None);
    };
    let (Ok(mut new_tree), Ok(mut base_tree)) = (fsverity::tree(&new), fsverity::tree(&base)) else {
        return Ok(None);
    };
    let differing = match fsverity::compare(&mut base_tree, &mut new_tree) {
        Ok(differing) => differing,
        Err(SourceError::NotHere(_)) => return Ok(None),
        Err(error) => return Err(refused(&what.to_string_lossy(), error)),
    };
    let len_bytes = new_tree.content_len_bytes();
    Ok(Some(ComparisonReport {
        comparison: Comparison::all_but(&differing, len_bytes),
        sources: (fsverity::DESCRIPTION.name, fsverity::DESCRIPTION.name),
        kind: new_tree.layout().kind.name(),
        len_bytes,
        against_len_bytes: base_tree.content_len_bytes(),
        checksum_bytes: new_tree.read_bytes() + base_tree.read_bytes(),
    }))
}

/// Compares all checksums of both.
fn of_lists(what: &OsStr, against: &OsStr, store: &[PathBuf], settings: &Settings) -> Result<ComparisonReport> {
    let mut reported = None;
    with_source(what, store, settings, &mut |new| {
        with_source(against, store, settings, &mut |base| {
            reported = Some(of_sources((what, new), (against, base))?);
            Ok(())
        })
    })?;
    reported.ok_or_else(|| CommandError::new("nothing was compared"))
}

fn of_sources((what, new): (&OsStr, &dyn Source), (against, base): (&OsStr, &dyn Source)) -> Result<ComparisonReport> {
    let (what, against) = (what.to_string_lossy(), against.to_string_lossy());
    let new_checksums = new.collect().map_err(|error| refused(&what, error))?;
    let base_checksums = base.collect().map_err(|error| refused(&against, error))?;
    let comparison = compare_checksums(&base_checksums, &new_checksums).map_err(|error| {
        CommandError::new(format!(
            "cannot compare {what} and {against} without reading them: {error}"
        ))
        .next("'byteback checksums PATH' shows the checksums of each.")
    })?;
    for (name, source, reported) in [(&what, new, &new_checksums), (&against, base, &base_checksums)] {
        let is_unchanged = source.is_unchanged(reported.stamp());
        if !is_unchanged.map_err(|error| refused(name, error))? {
            return Err(refused(name, SourceError::ChangedMeanwhile));
        }
    }
    let checksum_bytes = |reported: &FileChecksums| Coverage::of(reported).checksum_bytes;
    Ok(ComparisonReport {
        comparison,
        sources: (new.description().name, base.description().name),
        kind: new_checksums.layout().kind.name(),
        len_bytes: new_checksums.stamp().len_bytes,
        against_len_bytes: base_checksums.stamp().len_bytes,
        checksum_bytes: checksum_bytes(&new_checksums) + checksum_bytes(&base_checksums),
    })
}

fn name_of(likeness: Likeness) -> &'static str {
    match likeness {
        Likeness::Equal => "equal",
        Likeness::Likely => "likely_equal",
        Likeness::Moved => "moved",
        Likeness::Differs => "differs",
        Likeness::Unknown => "unknown",
    }
}

fn list(comparison: &Comparison, output: Output) -> Result<()> {
    for &(range, likeness) in &comparison.ranges {
        let line = RangeLine {
            start: range.start(),
            len_bytes: range.len_bytes(),
            likeness: name_of(likeness),
        };
        match output.json {
            true => output.object("range", &line)?,
            false => output.line(format!("{}\t{}\t{}", line.start, line.len_bytes, line.likeness))?,
        }
    }
    Ok(())
}

fn tell(what: &OsStr, against: &OsStr, reported: &ComparisonReport, total_ns: u64, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let comparison = &reported.comparison;
    if output.json {
        return output.object(
            "summary",
            &SummaryLine {
                path: ByteString::from(what.as_bytes()),
                against: ByteString::from(against.as_bytes()),
                source: reported.sources.0,
                against_source: reported.sources.1,
                kind: reported.kind,
                len_bytes: reported.len_bytes,
                against_len_bytes: reported.against_len_bytes,
                equal_bytes: comparison.bytes(Likeness::Equal),
                likely_bytes: comparison.bytes(Likeness::Likely),
                moved_bytes: comparison.bytes(Likeness::Moved),
                differing_bytes: comparison.bytes(Likeness::Differs),
                unknown_bytes: comparison.bytes(Likeness::Unknown),
                checksum_bytes: reported.checksum_bytes,
                total_ns,
            },
        );
    }
    let (what, against) = (what.to_string_lossy(), against.to_string_lossy());
    let is_exact = output.verbosity > 0;
    let in_words = |bytes: u64| size_exact(bytes, is_exact);
    output.line(format!("{what}: {}", in_words(reported.len_bytes)))?;
    output.line(format!(
        "  against      {against}: {}",
        in_words(reported.against_len_bytes)
    ))?;
    output.line(format!(
        "  checksums    {} of {} and {}",
        reported.kind, reported.sources.0, reported.sources.1
    ))?;
    let ranges = |likeness| {
        let count = comparison.ranges.iter().filter(|(_, own)| *own == likeness).count();
        counted(count as u64, "range", "ranges")
    };
    let rows = [
        (Likeness::Equal, "equal        "),
        (Likeness::Likely, "likely equal "),
        (Likeness::Moved, "moved        "),
        (Likeness::Differs, "differs      "),
        (Likeness::Unknown, "unknown      "),
    ];
    for (likeness, title) in rows {
        let bytes = comparison.bytes(likeness);
        if bytes == 0 {
            continue;
        }
        let more = match likeness {
            Likeness::Likely => "; only reading proves it",
            Likeness::Moved => "; at another place in the other copy",
            Likeness::Unknown => "; only reading can tell",
            Likeness::Equal | Likeness::Differs => "",
        };
        output.line(format!("  {title}{} in {}{more}", in_words(bytes), ranges(likeness)))?;
    }
    output.line(format!(
        "  cost         {} of checksums in {}; no content was read",
        in_words(reported.checksum_bytes),
        duration(total_ns)
    ))
}
