//! The cost of checks: the processor time of programs that ran, and the slowest of them.

use std::time::Duration;

/// Ticks per second in `/proc`: a constant of Linux's interface to programs, whatever the kernel's
/// own rate is.
const TICKS: u64 = 100;

/// The user time of all child programs that have ended, including their own children. Zero if the
/// system does not say.
pub fn user_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    children_of(&text).unwrap_or_default()
}

/// The field `cutime` of a `stat` file, the 16th. The second field, the program's name, is in
/// parentheses and may have spaces.
fn children_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(13)?.parse().ok()?;
    Some(Duration::from_millis(ticks * (1000 / TICKS)))
}

/// A test program and how long it ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The program's name, or the package whose documentation was tested.
    pub name: String,
    /// The elapsed time.
    pub took: Duration,
}

/// The programs that cargo ran, from what it printed before and after each.
pub fn programs(output: &str) -> Vec<Program> {
    let mut name = None;
    let mut found = Vec::new();
    for line in output.lines() {
        let line = line.trim_start();
        if let Some(running) = line.strip_prefix("Running ") {
            name = program_name(running);
        } else if let Some(package) = line.strip_prefix("Doc-tests ") {
            name = Some(format!("documentation of {package}"));
        } else if line.starts_with("test result: ")
            && let Some((_, seconds)) = line.rsplit_once("finished in ")
            && let Ok(seconds) = seconds.trim_end_matches('s').parse()
            && let (Some(name), Ok(took)) = (&name, Duration::try_from_secs_f64(seconds))
        {
            found.push(Program { name: name.clone(), took });
        }
    }
    found
}

/// Parses `unittests src/lib.rs (target/debug/deps/name-0123456789abcdef)`.
fn program_name(running: &str) -> Option<String> {
    let (source, path) = running.strip_suffix(')')?.rsplit_once(" (")?;
    let file = path.rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    Some(format!("{name} ({})", source.split_whitespace().last()?))
}

/// The `count` slowest things, slowest first.
pub fn longest<T>(mut all: Vec<(T, Duration)>, count: usize) -> Vec<(T, Duration)> {
    all.sort_by_key(|&(_, took)| std::cmp::Reverse(took));
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_children_stand_behind_a_name_with_brackets() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 1234 80 20 0";
        assert_eq!(children_of(stat), Some(Duration::from_millis(12_340)));
        assert_eq!(children_of("nothing"), None);
        assert_eq!(children_of("1 (x) S 1 2"), None);
    }

    #[test]
    fn programs_have_names_and_times() {
        let output = "     Running unittests src/lib.rs (target/debug/deps/core-0123)\n\
                      test result: ok. 2 passed; 0 failed; finished in 1.50s\n\
                      \x20    Running tests/manager/main.rs (target/debug/deps/manager-89ab)\n\
                      test result: FAILED. 1 passed; 1 failed; finished in 0.25s\n\
                      \x20  Doc-tests core\n\
                      test result: ok. 1 passed; finished in 2.00s\nno result\n";
        let found: Vec<_> = programs(output)
            .into_iter()
            .map(|program| (program.name, program.took.as_millis()))
            .collect();
        let expected = [
            ("core (src/lib.rs)".to_owned(), 1500),
            ("manager (tests/manager/main.rs)".to_owned(), 250),
            ("documentation of core".to_owned(), 2000),
        ];
        assert_eq!(found, expected);
        assert!(programs("test result: ok. 1 passed; finished in 1.00s").is_empty());
    }

    #[test]
    fn the_longest_come_first() {
        let all = [("a", 1), ("b", 3), ("c", 2)].map(|(name, s)| (name, Duration::from_secs(s)));
        let names: Vec<_> = longest(all.to_vec(), 2).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "c"]);
    }
}
