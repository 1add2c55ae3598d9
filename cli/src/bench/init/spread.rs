//! How measurements are spread.

use crate::bench::common::median;

/// The middle of measurements and how far they lie around it; nothing where nothing was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub middle: Option<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// A quarter of them is below.
    pub low: Option<f64>,
    /// A quarter of them is above.
    pub high: Option<f64>,
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let quarter = sorted.len() / 4;
        Self {
            middle: median(&sorted),
            least: sorted.first().copied(),
            most: sorted.last().copied(),
            low: sorted.get(quarter).copied(),
            high: sorted.iter().rev().nth(quarter).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_lie_on_both_sides_of_the_middle() {
        let spread = Spread::of([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 7.0].into_iter());
        let expected = (Some(4.0), Some(1.0), Some(9.0), Some(2.0), Some(7.0));
        assert_eq!((spread.middle, spread.least, spread.most, spread.low, spread.high), expected);
        assert_eq!(Spread::of(std::iter::empty()).middle, None);
    }
}
