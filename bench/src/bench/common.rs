//! What all benchmarks share: the middle of measurements and their spread, and text for people.

pub use framewright_cli::grid::{median, wrapped};
use serde_json::{Value, json};

/// The middle of measurements, and how far they lie around it. All is absent where nothing was
/// measured.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Spread {
    /// The median.
    pub middle: Option<f64>,
    /// The least.
    pub least: Option<f64>,
    /// The most.
    pub most: Option<f64>,
    /// A quarter of them is below.
    pub low: Option<f64>,
    /// A quarter of them is above.
    pub high: Option<f64>,
}

impl Spread {
    /// Of these values, in any order.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
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

    /// Puts it into a row as `name`, `name_min` and `name_max`.
    pub fn put(self, row: &mut Value, name: &str) {
        for (end, value) in [("", self.middle), ("_min", self.least), ("_max", self.most)] {
            row[format!("{name}{end}")] = json!(value);
        }
    }

    /// Puts its quarters into a row as `name_low` and `name_high`.
    pub fn put_quarters(self, row: &mut Value, name: &str) {
        for (end, value) in [("_low", self.low), ("_high", self.high)] {
            row[format!("{name}{end}")] = json!(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_lie_on_both_sides_of_the_middle() {
        let spread = Spread::of([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 7.0]);
        let expected = (Some(4.0), Some(1.0), Some(9.0), Some(2.0), Some(7.0));
        assert_eq!((spread.middle, spread.least, spread.most, spread.low, spread.high), expected);
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn a_spread_is_three_fields() {
        let mut row = json!({});
        Spread::of([3.0, 1.0, 9.0]).put(&mut row, "fill_ms");
        Spread::of([]).put(&mut row, "none_ms");
        let expected = json!({
            "fill_ms": 3.0, "fill_ms_min": 1.0, "fill_ms_max": 9.0, "none_ms": null,
            "none_ms_min": null, "none_ms_max": null,
        });
        assert_eq!(row.to_string(), expected.to_string());
    }
}
