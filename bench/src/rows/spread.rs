//! The median of measurements, their spread, and how certain the median is.

use super::field::{Bad, Field, Object, number};
use framewright_cli::grid::median;
use serde_json::json;

/// The median of measurements and their spread. All is absent if nothing was measured. In a row the
/// fields are `name`, `name_min` and `name_max`.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Spread {
    /// The median.
    pub middle: Option<f64>,
    /// The least value.
    pub least: Option<f64>,
    /// The greatest value.
    pub most: Option<f64>,
    /// The lower quartile. Not in rows.
    pub low: Option<f64>,
    /// The upper quartile. Not in rows.
    pub high: Option<f64>,
}

impl Spread {
    /// The spread of these values, which may be in any order.
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

    /// The median and the quartiles.
    pub fn quarters(self) -> Interval {
        Interval { middle: self.middle, low: self.low, high: self.high }
    }

    /// Reads a spread whose values may, or may not, be negative.
    ///
    /// # Errors
    /// Fails if a field is no number or wrongly negative, or if the least value exceeds the
    /// greatest.
    pub fn read_any(object: &Object, name: &str, is_signed: bool) -> Result<Self, Bad> {
        let end = |end: &str| number(object, &format!("{name}{end}"), is_signed);
        let (middle, least, most) = (end("")?, end("_min")?, end("_max")?);
        match (least, most) {
            (Some(least), Some(most)) if least > most => {
                Err((format!("{name}_min"), format!("is {least}, above the largest, {most}")))
            }
            _ => Ok(Self { middle, least, most, low: None, high: None }),
        }
    }
}

impl Field for Spread {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        Self::read_any(object, name, false)
    }

    fn write(&self, object: &mut Object, name: &str) {
        for (end, value) in [("", self.middle), ("_min", self.least), ("_max", self.most)] {
            object.insert(format!("{name}{end}"), json!(value));
        }
    }
}

/// A median and an interval around it: in a row `name`, `name_low` and `name_high`.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Interval {
    pub middle: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

impl Field for Interval {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        let end = |end: &str| number(object, &format!("{name}{end}"), false);
        Ok(Self { middle: end("")?, low: end("_low")?, high: end("_high")? })
    }

    fn write(&self, object: &mut Object, name: &str) {
        for (end, value) in [("", self.middle), ("_low", self.low), ("_high", self.high)] {
            object.insert(format!("{name}{end}"), json!(value));
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
        let mut row = Object::new();
        Spread::of([3.0, 1.0, 9.0]).write(&mut row, "fill_ms");
        Spread::of([]).write(&mut row, "none_ms");
        let expected = json!({
            "fill_ms": 3.0, "fill_ms_min": 1.0, "fill_ms_max": 9.0, "none_ms": null,
            "none_ms_min": null, "none_ms_max": null,
        });
        assert_eq!(json!(row).to_string(), expected.to_string());
    }
}
