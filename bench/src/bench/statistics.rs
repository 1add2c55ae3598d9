//! The median of ratios, and how certain it is.

use crate::bench::common::median;
use crate::bench::random::Random;
use crate::rows::Interval;

/// The number of samples that are drawn from the measured values.
const DRAWS: usize = 4000;

/// The median of values with its interval by the bootstrap: from the values, as many are drawn with
/// replacement, again and again; 95 of 100 of the medians of these samples lie in the interval.
pub fn bootstrap(values: &[f64]) -> Interval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut random = Random::new(1);
    let mut middles = Vec::with_capacity(DRAWS);
    let mut drawn = Vec::with_capacity(values.len());
    if !values.is_empty() {
        for _ in 0..DRAWS {
            drawn.clear();
            drawn.extend((0..values.len()).map(|_| values[random.below(values.len())]));
            drawn.sort_by(f64::total_cmp);
            middles.extend(median(&drawn));
        }
    }
    middles.sort_by(f64::total_cmp);
    let outside = middles.len() / 40;
    Interval {
        middle: median(&sorted),
        low: middles.get(outside).copied(),
        high: middles.iter().rev().nth(outside).copied(),
    }
}

/// The standard deviation of a sample.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_middle_and_shrink_with_the_number_of_values() {
        let spread = |count: u32| {
            (0..count).map(|value| f64::from(value * 7919 % count) / f64::from(count)).collect()
        };
        let of = |values: Vec<f64>| {
            let Interval { middle, low, high } = bootstrap(&values);
            let (middle, low, high) =
                (middle.expect("values"), low.expect("values"), high.expect("values"));
            assert!(low <= middle && middle <= high, "{low} {middle} {high}");
            high - low
        };
        // The median of n values that are spread evenly from 0 to 1 has a deviation of 1 / (2
        // sqrt(n)).
        let (few, many) = (of(spread(16)), of(spread(400)));
        assert!((0.3..0.6).contains(&few) && (0.07..0.13).contains(&many), "{few} {many}");
        assert_eq!(of(vec![3.0; 5]), 0.0);
        assert_eq!(bootstrap(&[]), Interval { middle: None, low: None, high: None });
    }

    #[test]
    fn deviations_are_of_samples() {
        assert_eq!(deviation(&[1.0, 3.0]), Some(2f64.sqrt()));
        assert_eq!(deviation(&[1.0]), None);
    }
}
