//! Counts, and the expected ones in `adopters/counts.toml`.

use crate::step::Failure;
use crate::workspace;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// How many percent a count may exceed the expected one.
const TOLERANCE_PERCENT: u64 = 3;
/// Rows that may be larger than expected, but not smaller.
const MORE_IS_BETTER: [&str; 3] = ["run", "run-after", "tests"];
const HEAD: &str = "\
# What Framewright takes in kernels of others: instructions, text in bytes, pages of the
# largest run, tests that pass. Written by `cargo xtask adopters --bless`, and checked by
# `cargo xtask adopters`.
";

/// Named numbers, in the order in which they came.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Counts(Vec<(String, u64)>);

impl Counts {
    /// Parses a benchmark's output: `bench NAME N`, `lost N`, `run N`, `run-after N`, and `end`.
    ///
    /// # Errors
    /// That the benchmark did not run to its end, or what failed in it.
    pub fn of(output: &str) -> Result<Self, String> {
        let mut counts = Self::default();
        let mut has_ended = false;
        for line in output.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["bench", name, number] | [name @ ("lost" | "run" | "run-after"), number] => {
                    let number =
                        number.parse().map_err(|_| format!("this is no number: {line}"))?;
                    counts.add(name, number);
                }
                ["failed", ..] => return Err(line.to_owned()),
                ["end"] => has_ended = true,
                _ => {}
            }
        }
        if has_ended { Ok(counts) } else { Err("the benchmark did not end".to_owned()) }
    }

    /// Adds a number.
    pub fn add(&mut self, name: &str, number: u64) {
        self.0.push((name.to_owned(), number));
    }

    /// All numbers.
    pub fn rows(&self) -> Vec<(&str, u64)> {
        self.0.iter().map(|(name, number)| (name.as_str(), *number)).collect()
    }

    /// The number with this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, number)| number)
    }
}

/// The expected counts, by table.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Kept(Vec<(String, Counts)>);

impl Kept {
    /// Reads the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has a line that is neither a table nor a count.
    pub fn read() -> Result<Self, Failure> {
        let path = path();
        let shown = workspace::shown(&path);
        let text = fs::read_to_string(&path)
            .map_err(|error| Failure::new(format!("{shown}: {error}\n")))?;
        Self::parse(&text).map_err(|line| Failure::new(format!("{shown}:{line}: no count\n")))
    }

    fn parse(text: &str) -> Result<Self, usize> {
        let mut kept = Self::default();
        for (number, line) in (1_usize..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
            } else if let Some(table) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                kept.0.push((table.to_owned(), Counts::default()));
            } else {
                let (name, count) = line.split_once('=').ok_or(number)?;
                let count = count.trim().parse().map_err(|_| number)?;
                kept.0.last_mut().ok_or(number)?.1.add(name.trim(), count);
            }
        }
        Ok(kept)
    }

    /// A line for each count that is worse than expected, is missing, or was not expected.
    pub fn worse(&self, found: &[(&str, &Counts)]) -> String {
        let mut text = String::new();
        for (table, counts) in found {
            let kept = self.0.iter().find(|(known, _)| known == table).map(|(_, kept)| kept);
            for (name, now) in counts.rows() {
                let Some(kept) = kept.and_then(|kept| kept.get(name)) else {
                    let _ = writeln!(text, "{table} {name}: {now}, and none is kept");
                    continue;
                };
                let more_is_better = MORE_IS_BETTER.contains(&name);
                let most = kept + kept * TOLERANCE_PERCENT / 100;
                if more_is_better && now < kept || !more_is_better && now > most {
                    let _ = writeln!(text, "{table} {name}: {now}, and {kept} is kept");
                }
            }
            for (name, kept) in kept.map(Counts::rows).unwrap_or_default() {
                if counts.get(name).is_none() {
                    let _ = writeln!(text, "{table} {name}: missing, and {kept} is kept");
                }
            }
        }
        if !text.is_empty() {
            text.push_str("where this is meant: cargo xtask adopters --bless\n");
        }
        text
    }
}

/// Replaces all expected counts with these.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(found: &[(&str, &Counts)]) -> Result<(), Failure> {
    fs::write(path(), written(found))?;
    Ok(())
}

fn written(found: &[(&str, &Counts)]) -> String {
    let mut text = HEAD.to_owned();
    for (table, counts) in found {
        let _ = writeln!(text, "\n[{table}]");
        for (name, count) in counts.rows() {
            let _ = writeln!(text, "{name} = {count}");
        }
    }
    text
}

fn path() -> PathBuf {
    workspace::root().join("adopters/counts.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rows: &[(&str, u64)]) -> Counts {
        Counts(rows.iter().map(|&(name, count)| (name.to_owned(), count)).collect())
    }

    #[test]
    fn a_benchmark_has_to_end_and_to_fail_nowhere() {
        let output = "noise 1 2\nbench pair 371\nlost 0\nend\n";
        assert_eq!(Counts::of(output), Ok(counts(&[("pair", 371), ("lost", 0)])));
        assert!(Counts::of("bench pair 371\n").is_err());
        assert!(Counts::of("failed pair after 3\nend\n").is_err());
        assert!(Counts::of("bench pair many\nend\n").is_err());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let counts = counts(&[("pair", 371), ("run", 512)]);
        let kept = Kept(vec![("ostd-4G".to_owned(), counts)]);
        let text = written(&[("ostd-4G", &kept.0[0].1)]);
        assert_eq!(Kept::parse(&text), Ok(kept));
        assert_eq!(Kept::parse("[a]\nb c\n"), Err(2));
        assert_eq!(Kept::parse("b = 1\n"), Err(1));
    }

    #[test]
    fn three_hundredths_more_are_let_pass_and_not_more() {
        let kept =
            Kept(vec![("a".to_owned(), counts(&[("pair", 200), ("lost", 0), ("run", 512)]))]);
        let worse = |rows: &[(&str, u64)]| kept.worse(&[("a", &counts(rows))]);
        assert_eq!(worse(&[("pair", 206), ("lost", 0), ("run", 512)]), "");
        assert_eq!(worse(&[("pair", 1), ("lost", 0), ("run", 600)]), "");
        assert!(worse(&[("pair", 207), ("lost", 0), ("run", 512)]).starts_with("a pair: 207,"));
        assert!(worse(&[("pair", 200), ("lost", 1), ("run", 512)]).starts_with("a lost: 1,"));
        assert!(worse(&[("pair", 200), ("lost", 0), ("run", 511)]).starts_with("a run: 511,"));
        assert!(worse(&[("pair", 200), ("lost", 0)]).starts_with("a run: missing"));
        let with_more = [("pair", 200), ("lost", 0), ("run", 512), ("new", 1)];
        assert!(worse(&with_more).starts_with("a new: 1, and none"));
    }
}
