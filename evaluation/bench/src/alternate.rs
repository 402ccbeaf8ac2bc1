//! Runs us and the peers in turn, so that other activity on the machine affects all alike.
//!
//! In each round every contender runs once. The order rotates from round to round, so that no
//! contender always profits from what another left in the caches. One warm-up round is discarded.

use std::collections::BTreeMap;

use crate::SuiteError;

/// The results of one run: values by the name of their metric.
pub(crate) type Measures = BTreeMap<&'static str, f64>;

/// A contender: its name, and a function that performs one run.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    pub(crate) run: Box<dyn FnMut() -> Result<Measures, SuiteError> + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: &'static str, run: impl FnMut() -> Result<Measures, SuiteError> + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// The values of one metric of one contender in all runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// The middle value, or the mean of the two middle ones; NaN without any.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Divides these values by those of `other`, round by round: a disturbance of a round affects
    /// both.
    pub(crate) fn over(&self, other: &Self) -> Self {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }

    /// Applies `change` to each value.
    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        self.0.iter().map(|&value| change(value)).collect()
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Samples by contender and metric.
pub(crate) type Results = BTreeMap<&'static str, BTreeMap<&'static str, Samples>>;

/// Runs all contenders `runs` times in turn.
///
/// # Errors
/// The first error of a run.
pub(crate) fn alternate(runs: usize, contenders: &mut [Contender<'_>]) -> Result<Results, SuiteError> {
    alternate_after(runs, |_| Ok(()), contenders)
}

/// Like [`alternate`], with preparation before each round (0 is the discarded one), such as the
/// change that all contenders then have to find.
///
/// # Errors
/// The first error of `before` or a run.
pub(crate) fn alternate_after(
    runs: usize,
    mut before: impl FnMut(usize) -> Result<(), SuiteError>,
    contenders: &mut [Contender<'_>],
) -> Result<Results, SuiteError> {
    let mut results = Results::new();
    for round in 0..=runs {
        before(round)?;
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            let contender = &mut contenders[index];
            let measures = (contender.run)()?;
            if round == 0 {
                continue;
            }
            for (metric, value) in measures {
                results
                    .entry(contender.name)
                    .or_default()
                    .entry(metric)
                    .or_default()
                    .0
                    .push(value);
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests;
