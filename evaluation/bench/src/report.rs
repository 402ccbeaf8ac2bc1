//! The results of a suite, one record for each case and metric, as a table for people
//! ([`measured`](crate::measured) is the format for programs).

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::alternate::{Results, Samples};

#[cfg(test)]
mod tests;

/// The name of our own contender in a suite.
pub(crate) const OURS: &str = "byteback";

/// The results for one metric in one case. Values are medians; less is better in every metric.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) suite: &'static str,
    pub(crate) case: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) peers: BTreeMap<&'static str, f64>,
    /// The goal of `ours`; absent if the metric has none.
    pub(crate) goal: Option<String>,
    /// Whether `ours` meets it.
    pub(crate) met: Option<bool>,
    /// The number of runs behind each median.
    pub(crate) runs: usize,
    /// The smallest and the largest value, by contender.
    pub(crate) spread: BTreeMap<&'static str, Spread>,
}

/// The smallest and the largest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The goal of our median.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most a multiple of a peer's median.
    TimesPeer(f64, &'static str),
    /// At most this value.
    AtMost(f64),
    /// At most a multiple of the least median of the peers that were measured, plus a constant, and
    /// at most an absolute value, if there is one.
    TimesBest {
        factor: f64,
        peers: &'static [&'static str],
        plus: f64,
        at_most: Option<f64>,
    },
}

impl Goal {
    /// The largest median that meets the goal; `None` if no peer was measured to compare with, and
    /// then the goal is not met.
    pub(crate) fn limit(self, peers: &BTreeMap<&'static str, f64>) -> Option<f64> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::TimesPeer(factor, peer) => Some(factor * peers.get(peer)?),
            Self::TimesBest {
                factor,
                peers: names,
                plus,
                at_most,
            } => {
                let best = names
                    .iter()
                    .filter_map(|name| peers.get(name))
                    .copied()
                    .min_by(f64::total_cmp)?;
                let relative = factor * best + plus;
                Some(at_most.map_or(relative, |limit| limit.min(relative)))
            }
        }
    }

    fn text(self, limit: Option<f64>) -> String {
        match (self, limit) {
            (Self::TimesPeer(factor, peer), _) => format!("<= {factor} x {peer}"),
            (Self::TimesBest { at_most: Some(_), .. } | Self::AtMost(_), Some(limit)) => {
                format!("<= {}", number(limit))
            }
            (
                Self::TimesBest {
                    factor, peers, plus, ..
                },
                Some(limit),
            ) => format!(
                "<= {} ({factor} x the least of {} + {})",
                number(limit),
                peers.join(", "),
                number(plus)
            ),
            (Self::TimesBest { factor, peers, .. }, None) => format!("<= {factor} x the least of {}", peers.join(", ")),
            (Self::AtMost(limit), None) => format!("<= {}", number(limit)),
        }
    }
}

/// The name and the unit of a metric, and its goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) goal: Option<Goal>,
}

/// The record of one metric of a case; `None` if our contender did not measure it.
pub(crate) fn record(suite: &'static str, case: &str, metric: Metric, results: &Results) -> Option<Record> {
    let samples: BTreeMap<&'static str, &Samples> = results
        .iter()
        .filter_map(|(name, metrics)| Some((*name, metrics.get(metric.name)?)))
        .collect();
    let ours = samples.get(OURS)?;
    let peers: BTreeMap<&'static str, f64> = samples
        .iter()
        .filter(|(name, _)| **name != OURS)
        .map(|(name, samples)| (*name, samples.median()))
        .collect();
    let limit = metric.goal.and_then(|goal| goal.limit(&peers));
    let goal = metric.goal.map(|goal| goal.text(limit));
    let met = metric.goal.map(|_| limit.is_some_and(|limit| ours.median() <= limit));
    Some(Record {
        suite,
        case: case.to_owned(),
        metric: metric.name,
        unit: metric.unit,
        ours: ours.median(),
        peers,
        goal,
        met,
        runs: ours.len(),
        spread: samples
            .iter()
            .map(|(name, samples)| {
                (
                    *name,
                    Spread {
                        min: samples.min(),
                        max: samples.max(),
                    },
                )
            })
            .collect(),
    })
}

/// Writes the records as a table: medians, with the smallest and the largest value in brackets if
/// these differ.
pub(crate) fn write_table(out: &mut impl Write, records: &[Record]) -> io::Result<()> {
    let mut rows = vec![["case", "metric", "ours", "peers", "goal", "met"].map(str::to_owned)];
    for record in records {
        let value = |name: &str, median: f64| match record.spread.get(name) {
            Some(spread) if spread.min < spread.max => {
                format!("{} [{} .. {}]", number(median), number(spread.min), number(spread.max))
            }
            _ => number(median),
        };
        let peers: Vec<String> = record
            .peers
            .iter()
            .map(|(name, &median)| format!("{name} {}", value(name, median)))
            .collect();
        rows.push([
            record.case.clone(),
            format!("{} ({})", record.metric, record.unit),
            value(OURS, record.ours),
            peers.join(", "),
            record.goal.clone().unwrap_or_default(),
            record.met.map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
        ]);
    }
    let widths: Vec<usize> = (0..6)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Formats a value with three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
