//! The findings of a suite: figures, and goals with whether they are met. Written as text, as
//! charts and as JSON.

use std::io;
use std::path::Path;

use crate::figure::{self, Figure, GoalRow};
use crate::{SuiteError, measured, plot};

/// Everything that a suite, or a part of it, found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) figures: Vec<Figure>,
    pub(crate) goals: Vec<GoalRow>,
}

impl Findings {
    /// Appends the findings of another part.
    pub(crate) fn add(&mut self, mut other: Self) {
        self.figures.append(&mut other.figures);
        self.goals.append(&mut other.goals);
    }

    /// Prints the findings. Writes each chart of the suite into the folder `plots`, and everything
    /// into the file `json`, where these are given.
    ///
    /// # Errors
    /// If something cannot be written.
    pub(crate) fn tell(&self, suite: &str, plots: Option<&Path>, json: Option<&Path>) -> Result<(), SuiteError> {
        let mut stdout = io::stdout().lock();
        for figure in &self.figures {
            figure.write_markdown(&mut stdout)?;
        }
        figure::write_goals(&mut stdout, &self.goals)?;
        if let Some(folder) = plots {
            plot::write_all(folder, suite, &self.figures)?;
        }
        if let Some(path) = json {
            measured::write(path, suite, &measured::of_findings(self))?;
        }
        Ok(())
    }
}
