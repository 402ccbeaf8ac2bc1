//! The results as Markdown: one line for each work, as `docs/benchmarks.md` shows them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::MetricOf;
use super::contenders::{COMMANDS, PEERS};
use crate::report::{Goal, number};
use crate::suites::deltacfs::keepers::Spent;

#[cfg(test)]
mod tests;

/// A work and what it cost each contender.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) work: String,
    pub(super) saves: usize,
    /// The files with other bytes than before, summed over all saves.
    pub(super) files: u64,
    /// The goal of the bytes up.
    pub(super) goal: Goal,
    pub(super) spent: BTreeMap<&'static str, Spent>,
}

/// Writes all works as a table of one metric. A value of ours that misses its goal is bold.
pub(super) fn write_markdown(
    out: &mut impl Write,
    contenders: &[&'static str],
    rows: &[Row],
    metric: &MetricOf,
) -> io::Result<()> {
    let (about, _) = metric;
    writeln!(out, "**{}** ({})\n", about.name, about.unit)?;
    let goal = if has_goal(metric) { " goal |" } else { "" };
    writeln!(out, "| work | saves, files | {} |{goal}", contenders.join(" | "))?;
    let columns = 2 + contenders.len() + usize::from(has_goal(metric));
    writeln!(out, "|{}", "---|".repeat(columns))?;
    for row in rows {
        write_row(out, contenders, row, metric)?;
    }
    writeln!(out)
}

/// Writes the line of one work.
pub(super) fn write_row(
    out: &mut impl Write,
    contenders: &[&'static str],
    row: &Row,
    metric: &MetricOf,
) -> io::Result<()> {
    let (_, value) = metric;
    let limit = limit(row, metric);
    write!(out, "| {} | {}, {} |", row.work, row.saves, row.files)?;
    for name in contenders {
        let value = row.spent.get(name).map(value);
        let is_missed = has_goal(metric)
            && COMMANDS.contains(name)
            && value.is_some_and(|value| limit.is_none_or(|limit| value > limit));
        let text = value.map(number).unwrap_or_default();
        match is_missed {
            true => write!(out, " **{text}** |")?,
            false => write!(out, " {text} |")?,
        }
    }
    if has_goal(metric) {
        write!(out, " {} |", limit.map(number).unwrap_or_default())?;
    }
    writeln!(out)
}

fn has_goal((metric, _): &MetricOf) -> bool {
    metric.name == super::UP
}

fn limit(row: &Row, metric: &MetricOf) -> Option<f64> {
    let (_, value) = metric;
    let peers = PEERS
        .iter()
        .filter_map(|peer| Some((*peer, value(row.spent.get(peer)?))));
    row.goal.limit(&peers.collect())
}
