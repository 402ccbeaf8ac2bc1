//! An axis of values: from zero with round ticks, or logarithmic over whole decades.

/// The approximate number of parts that a linear axis is divided into.
const PARTS: f64 = 5.0;

/// The axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Axis {
    /// From 0 to `end` by `step`.
    Linear { end: f64, step: f64 },
    /// From ten to the power of `first` to ten to the power of `last`.
    Decades { first: i32, last: i32 },
}

impl Axis {
    /// An axis with room for all values.
    pub(super) fn over(values: &[f64], logarithmic: bool) -> Self {
        let largest = values.iter().copied().fold(0.0, f64::max);
        let least = values
            .iter()
            .copied()
            .filter(|value| *value > 0.0)
            .fold(f64::INFINITY, f64::min);
        if logarithmic && least.is_finite() {
            let first = least.log10().floor() as i32;
            let last = largest.log10().ceil() as i32;
            return Self::Decades {
                first,
                last: last.max(first + 1),
            };
        }
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let rough = largest / PARTS;
        let unit = 10_f64.powi(rough.log10().floor() as i32);
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|round| round * unit)
            .find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * unit);
        Self::Linear {
            end: (largest * 1.04 / step).ceil() * step,
            step,
        }
    }

    /// The value at which bars begin.
    pub(super) fn floor(self) -> f64 {
        match self {
            Self::Linear { .. } => 0.0,
            Self::Decades { first, .. } => 10_f64.powi(first),
        }
    }

    /// The position of a value: 0 at the bottom, 1 at the top.
    pub(super) fn place(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear { end, .. } => value / end,
            Self::Decades { first, last } => (value.log10() - f64::from(first)) / f64::from(last - first),
        };
        // Values without a logarithm are at the bottom.
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    pub(super) fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { end, step } => {
                let count = (end / step).round() as u32;
                (0..=count).map(|tick| f64::from(tick) * step).collect()
            }
            Self::Decades { first, last } => (first..=last).map(|power| 10_f64.powi(power)).collect(),
        }
    }
}

/// The label of a tick: as short as exactness permits.
pub(super) fn label(tick: f64) -> String {
    let rounded = (tick * 1e6).round() / 1e6;
    let text = format!("{rounded}");
    let (whole, rest) = text
        .split_once('.')
        .map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match rest {
        Some(rest) => format!("{grouped}.{rest}"),
        None => grouped,
    }
}
