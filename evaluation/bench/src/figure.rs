//! The findings of a suite in the form in which they are shown: figures made of panels, and goals.
//!
//! A *panel* is a table: its rows are the varied values (a size, an application), its columns are
//! the contenders or variants. A cell is a median with the smallest and the largest value; the
//! paper's value may stand beside it. Tables are written in Markdown, so that the output is what
//! `docs/benchmarks.md` shows.

use std::fmt;
use std::io::{self, Write};

use crate::alternate::Samples;
use crate::report::number;

#[cfg(test)]
mod tests;

/// A figure of the paper, or a table of ours.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// A short name, as in a file name.
    pub(crate) id: &'static str,
    pub(crate) title: String,
    /// The method of measurement, and remarks.
    pub(crate) about: String,
    pub(crate) panels: Vec<Panel>,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// The quantity that the rows vary.
    pub(crate) varied: &'static str,
    pub(crate) unit: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) chart: Chart,
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chart {
    /// Not at all.
    None,
    /// Groups of bars.
    Bars { logarithmic: bool },
    /// Bars on top of each other, one stack for each row.
    Stacks,
    /// Lines over rows that are numbers.
    Lines { logarithmic: bool },
}

/// A row of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) label: String,
    /// The cells, in the order of the columns.
    pub(crate) cells: Vec<Option<Cell>>,
}

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
}

impl From<&Samples> for Cell {
    fn from(samples: &Samples) -> Self {
        Self {
            median: samples.median(),
            min: samples.min(),
            max: samples.max(),
            runs: samples.len(),
        }
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self {
            median: value,
            min: value,
            max: value,
            runs: 1,
        }
    }
}

impl Cell {
    fn text(&self) -> String {
        if self.runs < 2 || self.min == self.max {
            return number(self.median);
        }
        format!("{} ({} to {})", number(self.median), number(self.min), number(self.max))
    }
}

impl Panel {
    pub(crate) fn new(
        title: impl Into<String>,
        varied: &'static str,
        unit: impl Into<String>,
        columns: &[&str],
    ) -> Self {
        Self {
            title: title.into(),
            varied,
            unit: unit.into(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
            chart: Chart::None,
        }
    }

    pub(crate) fn drawn_as(mut self, chart: Chart) -> Self {
        self.chart = chart;
        self
    }

    pub(crate) fn push(&mut self, label: impl Into<String>, cells: Vec<Option<Cell>>) {
        self.rows.push(Row {
            label: label.into(),
            cells,
        });
    }

    pub(crate) fn write_markdown(&self, out: &mut impl Write) -> io::Result<()> {
        if !self.title.is_empty() {
            write!(out, "**{}**", self.title)?;
            if !self.unit.is_empty() {
                write!(out, " ({})", self.unit)?;
            }
            writeln!(out, "\n")?;
        }
        writeln!(out, "| {} | {} |", self.varied, self.columns.join(" | "))?;
        writeln!(out, "|---|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            let cells: Vec<String> = row
                .cells
                .iter()
                .map(|cell| cell.map(|cell| cell.text()).unwrap_or_default())
                .collect();
            writeln!(out, "| {} | {} |", row.label, cells.join(" | "))?;
        }
        writeln!(out)
    }
}

impl Figure {
    pub(crate) fn write_markdown(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "### {}\n\n{}\n", self.title, self.about)?;
        self.panels.iter().try_for_each(|panel| panel.write_markdown(out))
    }
}

/// The threshold of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, ">= {}", number(*limit)),
            Self::AtMost(limit) => write!(f, "<= {}", number(*limit)),
        }
    }
}

/// A goal and its measured value.
#[derive(Clone, Debug)]
pub(crate) struct GoalRow {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) limit: Limit,
    pub(crate) measured: Cell,
}

impl GoalRow {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, limit: Limit, measured: impl Into<Cell>) -> Self {
        Self {
            name: name.into(),
            unit,
            limit,
            measured: measured.into(),
        }
    }

    /// Whether the median meets the goal.
    pub(crate) fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtLeast(limit) => self.measured.median >= limit,
            Limit::AtMost(limit) => self.measured.median <= limit,
        }
    }
}

/// Writes the goals as a table.
pub(crate) fn write_goals(out: &mut impl Write, goals: &[GoalRow]) -> io::Result<()> {
    if goals.is_empty() {
        return Ok(());
    }
    writeln!(out, "| goal | measured | | |\n|---|---|---|---|")?;
    for goal in goals {
        let (word, limit) = match goal.limit {
            Limit::AtLeast(limit) => ("at least", limit),
            Limit::AtMost(limit) => ("at most", limit),
        };
        let unit = if goal.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", goal.unit)
        };
        let met = if goal.is_met() { "met" } else { "**missed**" };
        writeln!(
            out,
            "| {} | {}{unit} | {word} {limit}{unit} | {met} |",
            goal.name,
            goal.measured.text()
        )?;
    }
    writeln!(out)
}
