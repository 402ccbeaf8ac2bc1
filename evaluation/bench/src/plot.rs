//! Panels as pictures: SVG written by hand, because they consist only of rectangles, lines and
//! words.
//!
//! A picture has a title, a legend, a value axis with a few round ticks, and one of three kinds of
//! marks: groups of bars, stacks of bars, or lines. A thin stroke spans the smallest and the
//! largest value. The colours are those of Okabe and Ito, which people with any kind of colour
//! vision can distinguish; the paper's own numbers are grey.

mod axis;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use self::axis::Axis;
use crate::SuiteError;
use crate::figure::{Cell, Chart, Figure, Panel};
use crate::report::number;

#[cfg(test)]
mod tests;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 20.0;
/// The space below the marks: a line of labels and the name of the varied quantity.
const BOTTOM: f64 = 62.0;
/// The height that a letter adds to a slanted label.
const SLANTED_LETTER_HEIGHT: f64 = 1.9;
const COLOURS: [&str; 13] = [
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A5C00", "#332288", "#882255", "#44AA99",
    "#999933", "#AA4499", "#222222",
];
const PAPER_COLOUR: &str = "#8c8c8c";
const INK: &str = "#222";
const GRID: &str = "#e4e4e4";
/// The approximate width of a letter of the small text.
const LETTER_WIDTH: f64 = 6.6;
/// The beginning of the title of the column with the paper's numbers.
pub(crate) const PAPER: &str = "paper";

/// The picture of a panel; `None` if it has no chart or no rows.
pub(crate) fn svg(panel: &Panel) -> Option<String> {
    if panel.chart == Chart::None || panel.rows.is_empty() {
        return None;
    }
    let mut plot = Plot::new(panel);
    // Writing to a string does not fail.
    plot.draw().ok()?;
    Some(plot.out)
}

/// Writes every panel that has a chart into a file `SUITE-FIGURE.svg`; a letter distinguishes the
/// panels of one figure.
///
/// # Errors
/// If the folder or a file cannot be written.
pub(crate) fn write_all(folder: &Path, suite: &str, figures: &[Figure]) -> Result<(), SuiteError> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    // Figures with the same name, for example for files of several sizes, continue the letters.
    let mut letters: BTreeMap<&str, u8> = BTreeMap::new();
    for figure in figures {
        for panel in &figure.panels {
            let letter = letters.entry(figure.id).or_insert(b'a');
            if let Some(picture) = svg(panel) {
                let path = folder.join(format!("{suite}-{}{}.svg", figure.id, char::from(*letter)));
                fs::write(&path, picture).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            }
            *letter = letter.saturating_add(1);
        }
    }
    Ok(())
}

struct Plot<'a> {
    panel: &'a Panel,
    axis: Axis,
    top: f64,
    bottom: f64,
    /// The labels are wider than their places.
    is_slanted: bool,
    out: String,
}

impl<'a> Plot<'a> {
    fn new(panel: &'a Panel) -> Self {
        let cells = panel.rows.iter().map(|row| row.cells.iter().flatten());
        let (logarithmic, values): (bool, Vec<f64>) = match panel.chart {
            Chart::Stacks => (false, cells.map(|row| row.map(|cell| cell.median).sum()).collect()),
            Chart::Bars { logarithmic } | Chart::Lines { logarithmic } => {
                let values = cells.flatten().flat_map(|cell| [cell.median, cell.min, cell.max]);
                (logarithmic, values.filter(|value| value.is_finite()).collect())
            }
            Chart::None => (false, Vec::new()),
        };
        let longest = panel
            .rows
            .iter()
            .map(|row| row.label.chars().count())
            .max()
            .unwrap_or(0) as f64;
        let is_slanted = longest * LETTER_WIDTH > (WIDTH - RIGHT - LEFT) / panel.rows.len().max(1) as f64;
        let slant = if is_slanted {
            longest * SLANTED_LETTER_HEIGHT
        } else {
            0.0
        };
        Self {
            panel,
            bottom: HEIGHT - BOTTOM - slant,
            is_slanted,
            axis: Axis::over(&values, logarithmic),
            top: 48.0 + 22.0 * legend_lines(&panel.columns) as f64,
            out: String::new(),
        }
    }

    fn draw(&mut self) -> fmt::Result {
        write!(
            self.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"white\"/>\n\
             <text x=\"16\" y=\"27\" font-size=\"15\" font-weight=\"600\">{}</text>\n",
            escaped(&self.panel.title)
        )?;
        self.legend()?;
        self.value_axis()?;
        match self.panel.chart {
            Chart::Bars { .. } => self.bars()?,
            Chart::Stacks => self.stacks()?,
            Chart::Lines { .. } => self.lines()?,
            Chart::None => {}
        }
        self.out.push_str("</svg>\n");
        Ok(())
    }

    fn colour(&self, column: usize) -> &'static str {
        let is_paper = self
            .panel
            .columns
            .get(column)
            .is_some_and(|name| name.starts_with(PAPER));
        if is_paper {
            PAPER_COLOUR
        } else {
            COLOURS[column % COLOURS.len()]
        }
    }

    fn legend(&mut self) -> fmt::Result {
        let (mut x, mut y) = (16.0, 40.0);
        for (column, name) in self.panel.columns.iter().enumerate() {
            let width = legend_width(name);
            if x + width > WIDTH - RIGHT {
                (x, y) = (16.0, y + 22.0);
            }
            let colour = self.colour(column);
            writeln!(
                self.out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                x + 18.0,
                y + 10.5,
                escaped(name)
            )?;
            x += width;
        }
        Ok(())
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.axis.place(value) * (self.bottom - self.top)
    }

    fn value_axis(&mut self) -> fmt::Result {
        let right = WIDTH - RIGHT;
        for tick in self.axis.ticks() {
            let y = self.y(tick);
            writeln!(
                self.out,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"{GRID}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                axis::label(tick)
            )?;
        }
        let middle = (self.top + self.bottom) / 2.0;
        writeln!(
            self.out,
            "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.panel.unit)
        )?;
        writeln!(
            self.out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 12.0,
            escaped(self.panel.varied)
        )
    }

    /// The centre of each row's place on the other axis, and the width of a place.
    fn places(&self) -> (Vec<f64>, f64) {
        let count = self.panel.rows.len() as f64;
        let width = (WIDTH - RIGHT - LEFT) / count;
        (
            (0..self.panel.rows.len())
                .map(|row| LEFT + (row as f64 + 0.5) * width)
                .collect(),
            width,
        )
    }

    fn row_labels(&mut self, places: &[f64]) -> fmt::Result {
        let y = self.bottom + 17.0;
        for (row, x) in self.panel.rows.iter().zip(places) {
            let label = escaped(&row.label);
            if self.is_slanted {
                writeln!(
                    self.out,
                    "<text transform=\"translate({x:.1} {y:.1}) rotate(-18)\" text-anchor=\"end\" font-size=\"10.5\">{label}</text>"
                )?;
            } else {
                writeln!(
                    self.out,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
                )?;
            }
        }
        Ok(())
    }

    fn bar(&mut self, x: f64, width: f64, from: f64, to: f64, colour: &str, told: &str) -> fmt::Result {
        let (top, bottom) = (self.y(to), self.y(from));
        writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}</title></rect>",
            (bottom - top).max(0.5),
            escaped(told)
        )
    }

    fn spread(&mut self, x: f64, cell: &Cell) -> fmt::Result {
        if cell.runs < 2 {
            return Ok(());
        }
        let (top, bottom) = (self.y(cell.max), self.y(cell.min));
        writeln!(
            self.out,
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.55\"/>"
        )
    }

    fn bars(&mut self) -> fmt::Result {
        let panel = self.panel;
        let (places, width) = self.places();
        self.row_labels(&places)?;
        let bar_width = (width * 0.8 / panel.columns.len() as f64).min(46.0);
        for (row, middle) in panel.rows.iter().zip(&places) {
            let left = middle - bar_width * panel.columns.len() as f64 / 2.0;
            for (column, cell) in row.cells.iter().enumerate() {
                let Some(cell) = cell else { continue };
                let x = left + column as f64 * bar_width;
                let told = format!(
                    "{}, {}: {} {}",
                    row.label,
                    panel.columns[column],
                    number(cell.median),
                    panel.unit
                );
                self.bar(
                    x,
                    bar_width * 0.92,
                    self.axis.floor(),
                    cell.median,
                    self.colour(column),
                    &told,
                )?;
                self.spread(x + bar_width * 0.46, cell)?;
            }
        }
        Ok(())
    }

    fn stacks(&mut self) -> fmt::Result {
        let panel = self.panel;
        let (places, width) = self.places();
        self.row_labels(&places)?;
        let bar_width = (width * 0.6).min(64.0);
        for (row, middle) in panel.rows.iter().zip(&places) {
            let mut height = 0.0;
            for (column, cell) in row.cells.iter().enumerate() {
                let Some(cell) = cell else { continue };
                let told = format!(
                    "{}, {}: {} {}",
                    row.label,
                    panel.columns[column],
                    number(cell.median),
                    panel.unit
                );
                let x = middle - bar_width / 2.0;
                self.bar(x, bar_width, height, height + cell.median, self.colour(column), &told)?;
                height += cell.median;
            }
            writeln!(
                self.out,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{}</text>",
                self.y(height) - 5.0,
                number(height)
            )?;
        }
        Ok(())
    }

    fn lines(&mut self) -> fmt::Result {
        let panel = self.panel;
        let (places, _) = self.places();
        self.row_labels(&places)?;
        for column in 0..panel.columns.len() {
            let colour = self.colour(column);
            let points: Vec<(f64, Cell)> = panel
                .rows
                .iter()
                .zip(&places)
                .filter_map(|(row, &x)| Some((x, (*row.cells.get(column)?)?)))
                .collect();
            let path: Vec<String> = points
                .iter()
                .map(|(x, cell)| format!("{x:.1},{:.1}", self.y(cell.median)))
                .collect();
            let dashes = if colour == PAPER_COLOUR {
                " stroke-dasharray=\"5 4\""
            } else {
                ""
            };
            writeln!(
                self.out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
                path.join(" ")
            )?;
            for (x, cell) in points {
                self.spread(x, &cell)?;
                writeln!(
                    self.out,
                    "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {} {}</title></circle>",
                    self.y(cell.median),
                    escaped(&panel.columns[column]),
                    number(cell.median),
                    escaped(&panel.unit)
                )?;
            }
        }
        Ok(())
    }
}

fn legend_width(name: &str) -> f64 {
    name.chars().count() as f64 * LETTER_WIDTH + 40.0
}

fn legend_lines(names: &[String]) -> usize {
    let (mut lines, mut x) = (1, 16.0);
    for name in names {
        let width = legend_width(name);
        if x + width > WIDTH - RIGHT {
            lines += 1;
            x = 16.0;
        }
        x += width;
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
