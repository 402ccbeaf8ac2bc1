//! The measurements of a suite, for programs: one JSON format for all suites.
//!
//! `{"version": 1, "suite": NAME, "figures": [...]}`. Each figure is one value of one contender.
//! Its fields `goal` and `met` are null if it has no goal, and a value that could not be measured
//! is null. `docs/benchmarks.md` describes the fields.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::SuiteError;
use crate::figure::Cell;
use crate::findings::Findings;
use crate::report::{OURS, Record};

#[cfg(test)]
mod tests;

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// A measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// The case: a figure or a table, and the varied value in it.
    pub(crate) case: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    /// The contender or variant that was measured.
    pub(crate) contender: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
    /// The goal of the median.
    pub(crate) goal: Option<String>,
    /// Whether the median meets it.
    pub(crate) met: Option<bool>,
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    suite: &'a str,
    figures: &'a [Measured],
}

/// The values of records: those of the peers without a goal, and ours with it.
pub(crate) fn of_records(records: &[Record]) -> Vec<Measured> {
    let mut all = Vec::new();
    for record in records {
        let ours = std::iter::once((OURS, record.ours));
        for (contender, median) in ours.chain(record.peers.iter().map(|(name, median)| (*name, *median))) {
            let spread = record.spread.get(contender);
            let is_ours = contender == OURS;
            all.push(Measured {
                case: record.case.clone(),
                metric: record.metric.to_owned(),
                unit: record.unit.to_owned(),
                contender: contender.to_owned(),
                median,
                min: spread.map_or(median, |spread| spread.min),
                max: spread.map_or(median, |spread| spread.max),
                runs: record.runs,
                goal: record.goal.clone().filter(|_| is_ours),
                met: record.met.filter(|_| is_ours),
            });
        }
    }
    all
}

/// The values of figures, followed by the goals.
pub(crate) fn of_findings(findings: &Findings) -> Vec<Measured> {
    let of_cell = |cell: &Cell, case: String, metric: &str, unit: &str, contender: &str| Measured {
        case,
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        contender: contender.to_owned(),
        median: cell.median,
        min: cell.min,
        max: cell.max,
        runs: cell.runs,
        goal: None,
        met: None,
    };
    let mut all = Vec::new();
    for figure in &findings.figures {
        for panel in &figure.panels {
            for row in &panel.rows {
                for (column, cell) in panel.columns.iter().zip(&row.cells) {
                    if let Some(cell) = cell {
                        let case = format!("{}: {} {}", figure.id, panel.varied, row.label);
                        all.push(of_cell(cell, case, &panel.title, &panel.unit, column));
                    }
                }
            }
        }
    }
    for goal in &findings.goals {
        let mut measured = of_cell(&goal.measured, "goals".to_owned(), &goal.name, goal.unit, OURS);
        measured.goal = Some(goal.limit.to_string());
        measured.met = Some(goal.is_met());
        all.push(measured);
    }
    all
}

/// Writes the values into a file.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, suite: &str, figures: &[Measured]) -> Result<(), SuiteError> {
    let version = VERSION;
    let mut json = serde_json::to_vec_pretty(&Document {
        version,
        suite,
        figures,
    })?;
    json.push(b'\n');
    fs::write(path, json).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}
