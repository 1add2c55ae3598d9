//! What all benchmarks share: the middle of measurements and their spread, and text for people.

use serde_json::{Value, json};

/// The middle of sorted values; of an even number the mean of the two in the middle.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

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

/// `text` in lines that fit a terminal.
pub fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

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
        let expected = r#"{"fill_ms":3.0,"fill_ms_min":1.0,"fill_ms_max":9.0,"none_ms":null,"none_ms_min":null,"none_ms_max":null}"#;
        assert_eq!(row.to_string(), expected);
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "a few words and a_rather_long_one ".repeat(20);
        let lines = wrapped(text.trim_end());
        assert!(lines.len() > 5 && lines.iter().all(|line| line.len() <= 110));
        assert_eq!(lines.join(" "), text.trim_end());
    }
}
