//! The effect of a change: the figures of a suite before and after it, compared.
//!
//! Both sides are files that suites wrote with `--json`, best several of each, measured in turn
//! (`scripts/bench-change` does that). A figure counts as moved if the ranges of its values do not
//! overlap and the medians differ by more than [`MOVED_MIN`]. Figures of peers are compared as
//! well: they did not change, so a peer that moves tells how far the machine can be trusted.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::SuiteError;
use crate::report::number;

#[cfg(test)]
mod tests;

/// The smallest relative difference of medians that is reported.
const MOVED_MIN: f64 = 0.02;

/// Files to compare.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChangeArguments {
    /// Figures from before the change, written with --json.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    base: Vec<PathBuf>,
    /// Figures with the change.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    head: Vec<PathBuf>,
    /// Print all figures, not only those that moved.
    #[arg(long)]
    all: bool,
}

#[derive(Deserialize)]
struct Document {
    version: u32,
    suite: String,
    figures: Vec<Figure>,
}

/// A figure of a file; see [`crate::measured`].
#[derive(Deserialize)]
struct Figure {
    case: String,
    metric: String,
    unit: String,
    contender: String,
    /// `None`: it could not be measured.
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

/// The name of a figure: suite, case, metric, unit, contender.
type Key = [String; 5];

/// The values of a figure in all files of a side.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    median: f64,
    min: f64,
    max: f64,
}

/// A figure that both sides have.
#[derive(Debug, PartialEq)]
struct Compared {
    key: Key,
    base: Range,
    head: Range,
}

impl Compared {
    fn ratio(&self) -> f64 {
        match self.base.median == self.head.median {
            true => 1.0,
            false => self.head.median / self.base.median,
        }
    }

    /// Whether the difference exceeds the noise.
    fn is_moved(&self) -> bool {
        let is_apart = self.head.min > self.base.max || self.head.max < self.base.min;
        is_apart && (self.ratio() - 1.0).abs() > MOVED_MIN
    }
}

/// Compares the files and prints a table.
///
/// # Errors
/// A file cannot be read, or is of another version of the format.
pub(crate) fn run(arguments: &ChangeArguments, out: &mut impl Write) -> Result<(), SuiteError> {
    let (base, head) = (read_all(&arguments.base)?, read_all(&arguments.head)?);
    let compared = compare(&base, &head);
    let missing = base
        .keys()
        .chain(head.keys())
        .filter(|key| !(base.contains_key(*key) && head.contains_key(*key)));
    write_table(out, &compared, missing.count(), arguments.all)?;
    Ok(())
}

fn read_all(paths: &[PathBuf]) -> Result<BTreeMap<Key, Range>, SuiteError> {
    let mut values: BTreeMap<Key, Vec<Range>> = BTreeMap::new();
    for path in paths {
        for (key, range) in read(path)? {
            values.entry(key).or_default().push(range);
        }
    }
    Ok(values.into_iter().map(|(key, ranges)| (key, joined(ranges))).collect())
}

fn read(path: &Path) -> Result<Vec<(Key, Range)>, SuiteError> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let document: Document = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    if document.version != crate::measured::VERSION {
        return Err(failed(&format_args!("its format has version {}", document.version)).into());
    }
    let suite = document.suite;
    let ranges = document.figures.into_iter().filter_map(|figure| {
        let range = Range {
            median: figure.median?,
            min: figure.min?,
            max: figure.max?,
        };
        let key = [suite.clone(), figure.case, figure.metric, figure.unit, figure.contender];
        Some((key, range))
    });
    Ok(ranges.collect())
}

/// The values of several files as one: the median of the medians, and all that lies between the
/// extremes.
fn joined(mut ranges: Vec<Range>) -> Range {
    ranges.sort_by(|one, other| one.median.total_cmp(&other.median));
    let middle = ranges.len() / 2;
    let median = match ranges.len() % 2 {
        1 => ranges[middle].median,
        _ => f64::midpoint(ranges[middle - 1].median, ranges[middle].median),
    };
    let min = ranges.iter().map(|range| range.min).fold(f64::INFINITY, f64::min);
    let max = ranges.iter().map(|range| range.max).fold(f64::NEG_INFINITY, f64::max);
    Range { median, min, max }
}

fn compare(base: &BTreeMap<Key, Range>, head: &BTreeMap<Key, Range>) -> Vec<Compared> {
    let both = base.iter().filter_map(|(key, base)| {
        Some(Compared {
            key: key.clone(),
            base: *base,
            head: *head.get(key)?,
        })
    });
    both.collect()
}

fn write_table(out: &mut impl Write, compared: &[Compared], missing: usize, all: bool) -> io::Result<()> {
    let moved = compared.iter().filter(|figure| figure.is_moved()).count();
    let shown = compared.iter().filter(|figure| all || figure.is_moved());
    let mut rows: Vec<[String; 6]> = shown
        .map(|figure| {
            let [suite, case, metric, unit, contender] = &figure.key;
            let range = |range: &Range| {
                let [median, min, max] = [range.median, range.min, range.max].map(number);
                format!("{median} [{min} .. {max}]")
            };
            [
                format!("{suite}: {case}"),
                format!("{metric} ({unit})"),
                contender.clone(),
                range(&figure.base),
                range(&figure.head),
                format!("{:.3}{}", figure.ratio(), if figure.is_moved() { " *" } else { "" }),
            ]
        })
        .collect();
    if !rows.is_empty() {
        rows.insert(
            0,
            ["case", "metric", "contender", "base", "head", "head / base"].map(str::to_owned),
        );
    }
    let widths: [usize; 6] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    writeln!(
        out,
        "{} figures compared, {moved} moved out of the other side's range",
        compared.len()
    )?;
    if missing > 0 {
        writeln!(out, "{missing} figures were measured on one side only")?;
    }
    Ok(())
}
