//! Tables of text, and numbers in a form that people read.

use crate::output::Style;

/// A table whose columns are as wide as their contents.
pub struct Grid {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// Starts a table with column titles, each after `<` or `>` for left or right alignment.
    pub fn new(titles: &[&str]) -> Self {
        Self {
            right: titles.iter().map(|title| title.starts_with('>')).collect(),
            rows: vec![titles.iter().map(|title| title[1..].to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// The lines of the table; the first line has the titles.
    pub fn render(&self, style: Style) -> Vec<String> {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(String::len).max()
        };
        let widths: Vec<usize> =
            (0..self.right.len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.right).map(|((cell, &width), &right)| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut lines: Vec<String> = self.rows.iter().map(line).collect();
        lines[0] = style.bold(&lines[0]);
        lines
    }
}

/// A number of things: `1 node`, `2 nodes`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number of bytes with three significant digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(40, "TiB"), (30, "GiB"), (20, "MiB")];
    for (shift, unit) in UNITS {
        if bytes >= 1 << shift {
            return format!("{} {unit}", three_digits(bytes as f64 / (1u64 << shift) as f64));
        }
    }
    format!("{} KiB", bytes.div_ceil(1024))
}

/// A time given in microseconds.
pub fn microseconds(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.1} us"),
        _ if us < 1e6 => format!("{} ms", four_digits(us / 1e3)),
        _ => format!("{} s", four_digits(us / 1e6)),
    }
}

/// The median of sorted values; of an even number, the mean of the two in the middle.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Splits `text` into lines that fit a terminal.
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

fn three_digits(number: f64) -> String {
    let decimals = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.decimals$}")
}

fn four_digits(number: f64) -> String {
    let decimals = if number < 9.9995 { 3 } else { 1 };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_keep_to_their_side() {
        let mut grid = Grid::new(&[">n", "<name"]);
        grid.row(["10".to_owned(), "a".to_owned()]);
        grid.row(["7".to_owned(), "long".to_owned()]);
        assert_eq!(grid.render(Style::PLAIN), [" n  name", "10  a", " 7  long"]);
    }

    #[test]
    fn sizes_and_times_have_a_fitting_unit() {
        let sizes = [0, 4096, 1 << 20, 130 << 20, 8 << 30, (8 << 30) - 4096, 24 << 40];
        let shown = ["0 KiB", "4 KiB", "1.00 MiB", "130 MiB", "8.00 GiB", "8.00 GiB", "24.0 TiB"];
        assert_eq!(sizes.map(size), shown);
        assert_eq!(
            [0.25, 999.0, 1250.0, 45_678.0, 2e6].map(microseconds),
            ["0.2 us", "999.0 us", "1.250 ms", "45.7 ms", "2.000 s"]
        );
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "a few words and a_rather_long_one ".repeat(20);
        let lines = wrapped(text.trim_end());
        assert!(lines.len() > 5 && lines.iter().all(|line| line.len() <= 110));
        assert_eq!(lines.join(" "), text.trim_end());
    }
}
