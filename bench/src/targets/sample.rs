//! Measurements of targets: a number from a row, with words that say which row it is.

use framewright_cli::grid::counted;
use std::collections::HashMap;
use std::hash::Hash;

/// A measurement and where it is from.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The value in the unit of its target.
    pub value: f64,
    /// What tells the measurement from the others, in words.
    pub place: String,
}

/// A number of each row that has it.
pub fn samples<'a, R: 'a>(
    rows: impl IntoIterator<Item = &'a R>,
    value: impl Fn(&R) -> Option<f64>,
    place: impl Fn(&R) -> String,
) -> Vec<Sample> {
    let one = |row: &R| Some(Sample { value: value(row)?, place: place(row) });
    rows.into_iter().filter_map(one).collect()
}

/// The number of each row over that of the row of `others` with an equal `key`; if there are
/// several, the last one counts. All numbers are times. A time of which nothing is left after the
/// harness's own time is subtracted is no measurement on either side: the quotient is then NaN, and
/// a target with a NaN is not met.
pub fn over<'a, R: 'a, K: Eq + Hash>(
    rows: impl IntoIterator<Item = &'a R>,
    others: impl IntoIterator<Item = &'a R>,
    key: impl Fn(&'a R) -> K,
    value: impl Fn(&R) -> Option<f64>,
    place: impl Fn(&R) -> String,
) -> Vec<Sample> {
    over_where(rows, others, key, value, |_, _| true, place)
}

/// Works like [`over`]; if two rows did different amounts of work, so that their times are not
/// comparable, the quotient is NaN, too.
pub fn over_where<'a, R: 'a, K: Eq + Hash>(
    rows: impl IntoIterator<Item = &'a R>,
    others: impl IntoIterator<Item = &'a R>,
    key: impl Fn(&'a R) -> K,
    value: impl Fn(&R) -> Option<f64>,
    compare: impl Fn(&R, &R) -> bool,
    place: impl Fn(&R) -> String,
) -> Vec<Sample> {
    let others: HashMap<K, &R> = others.into_iter().map(|row| (key(row), row)).collect();
    let one = |row: &'a R| {
        let other = others.get(&key(row))?;
        let (ours, theirs) = (value(row)?, value(other)?);
        let is_measured = ours > 0.0 && theirs > 0.0 && compare(row, other);
        let quotient = if is_measured { ours / theirs } else { f64::NAN };
        Some(Sample { value: quotient, place: place(row) })
    };
    rows.into_iter().filter_map(one).collect()
}

/// Joins words with commas and leaves out empty ones.
pub fn words(words: &[&str]) -> String {
    words.iter().copied().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// `1 thread`, `2 threads`.
pub fn threads(threads: u64) -> String {
    counted(threads, "thread")
}

/// The size of a pool's pages in words.
pub fn page_size(kb: u64) -> String {
    if kb >= 1 << 20 { format!("{} GiB", kb >> 20) } else { format!("{} MiB", kb >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_measured_and_compared() {
        let rows = [("ours", 1, Some(3.0)), ("ours", 2, None), ("serial", 1, Some(2.0))];
        let of = |engine| rows.iter().filter(move |row| row.0 == engine);
        let place = |row: &(&str, u64, _)| words(&[row.0, "", &threads(row.1)]);
        let expected = [Sample { value: 3e3, place: "ours, 1 thread".into() }];
        assert_eq!(samples(of("ours"), |row| Some(row.2? * 1e3), place), expected);
        let over = over(of("ours"), of("serial"), |row| row.1, |row| row.2, place);
        assert_eq!(over, [Sample { value: 1.5, place: "ours, 1 thread".into() }]);
        let nothing = [("serial", 1, Some(0.0))];
        let over = super::over(of("ours"), &nothing, |row| row.1, |row| row.2, place);
        assert!(over[0].value.is_nan(), "it is not left out");
        let over = super::over(&nothing, of("ours"), |row| row.1, |row| row.2, place);
        assert!(over[0].value.is_nan(), "nor is it the best of all");
        let compare = |_: &_, other: &(_, _, Option<f64>)| other.2 > Some(2.5);
        let [less, more] = [of("serial"), of("ours")].map(|others| {
            over_where(of("ours"), others, |row| row.1, |row| row.2, compare, place)[0].value
        });
        assert!(less.is_nan() && more == 1.0, "{less} {more}");
    }
}
