//! The limits, first on the page: each with its measurement and whether it is kept.

use crate::targets::{Outcome, Verdict, shown};
use framewright_cli::page::Part;
use framewright_cli::page::html::{Escaped, put};
use framewright_cli::page::svg::Short;

/// The section of the page.
pub fn part(outcomes: &[Outcome]) -> Part {
    let count =
        |verdict: Verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let (met, short, open) =
        (count(Verdict::Met), count(Verdict::Short), count(Verdict::NotMeasured));
    let mut out = String::new();
    put!(
        out,
        "<p class=\"score\"><b class=\"met\">{met}</b> met <b class=\"short\">{short}</b> missed \
         <b class=\"open\">{open}</b> not measured</p>"
    );
    out.push_str(&strip(met, short, open));
    out.push_str(
        "<p class=\"lead\">What the manager must reach, and the worst of the measurements that \
         count for it. The bar shows the distance from the limit, which is in the middle: right of \
         it the limit is met. Each half is a factor of ten.</p><div class=\"scroll\"><table \
         class=\"limits\"><thead><tr><th scope=\"col\">What</th><th scope=\"col\" class=\"n\">Must \
         be</th><th scope=\"col\" class=\"n\">Is</th><th scope=\"col\" class=\"bar\"><span \
         class=\"sr\">Distance from the limit</span></th><th scope=\"col\">Outcome</th><th \
         scope=\"col\">Compared with</th></tr></thead>",
    );
    for outcomes in outcomes.chunk_by(|one, next| one.target.area == next.target.area) {
        let name = outcomes.first().map_or("", |outcome| outcome.target.area.name());
        put!(
            out,
            "<tbody><tr class=\"area\"><th colspan=\"6\" scope=\"rowgroup\">{}</th></tr>",
            Escaped(name)
        );
        outcomes.iter().for_each(|outcome| row(&mut out, outcome));
        out.push_str("</tbody>");
    }
    out.push_str("</table></div>");
    Part { id: "limits", title: "Limits", body: out }
}

fn row(out: &mut String, outcome: &Outcome) {
    let target = outcome.target;
    let (class, sign) = match outcome.verdict {
        Verdict::Met => ("met", "\u{2713}"),
        Verdict::Short => ("short", "\u{2717}"),
        Verdict::NotMeasured => ("open", ""),
    };
    put!(
        out,
        "<tr class=\"{class}\" id=\"limit-{}\"><td>{}",
        Escaped(target.id),
        Escaped(target.what)
    );
    let place = outcome.worst.as_ref().map(|worst| worst.place.as_str()).unwrap_or_default();
    match (outcome.samples, outcome.verdict) {
        (0, _) => put!(
            out,
            "<small>not in these files: <code>framewright-bench {}</code></small>",
            Escaped(target.command)
        ),
        (1, _) if place.is_empty() => {}
        (1, _) => put!(out, "<small>{}</small>", Escaped(place)),
        (samples, Verdict::Short) => {
            put!(
                out,
                "<small>{} of {samples} meet it; worst: {}</small>",
                outcome.kept,
                Escaped(place)
            );
        }
        (samples, _) => put!(out, "<small>worst of {samples}: {}</small>", Escaped(place)),
    }
    let is = outcome
        .worst
        .as_ref()
        .map_or_else(|| "\u{2013}".to_owned(), |worst| shown(worst.value, target.unit));
    put!(
        out,
        "</td><td class=\"n\">{} {}</td><td class=\"n is\">{is}</td><td class=\"bar\">{}</td><td \
         class=\"verdict\"><span aria-hidden=\"true\">{sign}</span> {}</td><td>{}</td></tr>",
        target.comparison.sign(),
        shown(outcome.wanted, target.unit),
        bar(outcome),
        outcome.verdict.word(),
        Escaped(outcome.against)
    );
}

/// The width of the bar, and its height.
const WIDTH: f64 = 132.0;
const HEIGHT: f64 = 16.0;

/// Draws how far the measurement is from the limit, on a logarithmic scale.
fn bar(outcome: &Outcome) -> String {
    let middle = WIDTH / 2.0;
    let mut body = format!("<path class=\"gr\" d=\"M0 8H{WIDTH}\"/>");
    if let Some(margin) = outcome.margin() {
        let far = (margin.log10() * middle).clamp(2.0 - middle, middle - 2.0);
        let (from, to) = (middle.min(middle + far), middle.max(middle + far));
        let class = if outcome.verdict == Verdict::Met { "good" } else { "bad" };
        put!(
            body,
            "<rect class=\"{class}\" x=\"{}\" y=\"4\" width=\"{}\" height=\"8\"/>",
            Short(from),
            Short((to - from).max(1.5))
        );
    }
    put!(body, "<path class=\"mid\" d=\"M{middle} 1V15\"/>");
    format!(
        "<svg class=\"bullet\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-hidden=\"true\">{body}</svg>"
    )
}

/// Draws all limits as one strip.
fn strip(met: usize, short: usize, open: usize) -> String {
    let all = (met + short + open).max(1) as f64;
    let mut body = String::new();
    let mut x = 0.0;
    for (count, class) in [(met, "good"), (short, "bad"), (open, "none")] {
        let width = count as f64 / all * 1000.0;
        put!(
            body,
            "<rect class=\"{class}\" x=\"{}\" y=\"0\" width=\"{}\" height=\"10\"/>",
            Short(x),
            Short((width - 3.0).max(0.0))
        );
        x += width;
    }
    format!(
        "<svg class=\"strip\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" \
         aria-hidden=\"true\">{body}</svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{evaluate, targets as all};
    use crate::rows::Rows;
    use serde_json::json;

    #[test]
    fn every_limit_has_a_row_and_what_is_short_says_so() {
        let rows = [
            json!({ "bench": "jobs", "case": "two-empty", "engine": "framewright", "units": 2,
                "unit_ns": 0, "seconds": 2e-6 }),
            json!({ "bench": "jobs", "case": "two-empty", "engine": "rayon", "units": 2,
                "unit_ns": 0, "seconds": 1e-6 }),
        ];
        let text = part(&evaluate(&Rows::of(&rows))).body;
        assert_eq!(text.matches("id=\"limit-").count(), all().len());
        assert!(
            text.contains("<tr class=\"short\" id=\"limit-jobs-empty\">")
                && text.contains("\u{2717}</span> missed")
        );
        assert!(text.contains("not in these files: <code>framewright-bench alloc</code>"));
    }
}
