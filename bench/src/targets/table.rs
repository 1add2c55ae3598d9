//! Shows targets as text.

use super::{Outcome, Verdict, shown};
use framewright_cli::grid::Grid;
use framewright_cli::output::Style;

/// The lines of a table of all outcomes, and a line that counts them.
pub fn table(outcomes: &[Outcome], style: Style) -> Vec<String> {
    let mut grid = Grid::new(&["<section", "<what", ">must be", ">is", "<", "<worst of, where"]);
    for outcome in outcomes {
        let target = outcome.target;
        let (is, place) = match &outcome.worst {
            Some(worst) => {
                (shown(worst.value, target.unit), format!("{}: {}", outcome.samples, worst.place))
            }
            None => ("-".to_owned(), format!("{} makes it", target.command)),
        };
        let must = format!(
            "{} {}",
            if target.comparison.sign() == "\u{2265}" { ">=" } else { "<=" },
            shown(outcome.wanted, target.unit)
        );
        // Columns are counted in bytes, so use only ASCII.
        let plain = |text: String| text.replace('\u{d7}', "x").replace('\u{b5}', "u");
        grid.row([
            target.area.name().into(),
            target.what.into(),
            plain(must),
            plain(is),
            outcome.verdict.word().into(),
            place,
        ]);
    }
    let count =
        |verdict: Verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let mut lines = grid.render(style);
    lines.push(String::new());
    lines.push(format!(
        "{} met, {} missed, {} not measured",
        count(Verdict::Met),
        count(Verdict::Short),
        count(Verdict::NotMeasured)
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::evaluate;
    use crate::rows::Rows;
    use serde_json::json;

    #[test]
    fn the_table_says_what_is_short() {
        let rows = [
            json!({ "bench": "bring-up", "machine": "768G/2 \
                nodes", "threads": 1, "tables": "backed", "bring_up_us": 57.0,
                    "metadata_bytes": 34_610_048, "managed_gib": 767.9 }),
            json!({ "bench": "jobs", "case": "two-empty", "engine": "framewright", "units": 2,
                "unit_ns": 0, "seconds": 2e-6 }),
            json!({ "bench": "jobs", "case": "two-empty", "engine": "rayon", "units": 2,
                "unit_ns": 0, "seconds": 1e-6 }),
        ];
        let lines = table(&evaluate(&Rows::of(&rows)), Style::PLAIN);
        let line = |word: &str| lines.iter().find(|line| line.contains(word)).expect(word).clone();
        assert!(
            line("768 GiB on demand").contains("<= 1 ms")
                && line("768 GiB on demand").contains(" met ")
        );
        assert!(
            line("two empty units").contains(" missed ") && line("two empty units").contains("2x")
        );
        assert!(line("Mixed traffic, 50 % full").contains("not measured"));
        assert!(lines.last().is_some_and(|line| line.starts_with("2 met, 1 missed, ")));
    }
}
