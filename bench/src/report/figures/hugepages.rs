//! Pools of huge pages: filled and emptied, with and without giving back their map.

use super::super::svg::{Bars, Mark, Picture, Shape, Unit};
use super::{Group, NARROW, Section, counted, mark, text, texts, wholes};
use crate::targets::Rows;
use serde_json::Value;

/// Numbers of pages that are shown of each size, the largest.
const SHOWN: usize = 3;
const SERIES: [(&str, &str, &str); 3] = [
    ("off", "none", "reclaim off"),
    ("on", "lazy", "reclaim on, lazy"),
    ("on", "eager", "reclaim on, eager"),
];

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("hugepages");
    let mut plots = Vec::new();
    let (platforms, policies) = (texts(&rows, "on"), texts(&rows, "policy"));
    for on in &platforms {
        for policy in &policies {
            let rows = rows.is("on", on.as_str()).is("policy", policy.as_str());
            let rows = rows.filter(|row| text(row, "tables") != "first touch");
            for threads in wholes(&rows, "threads") {
                plots.extend(plot(&rows.is("threads", threads), (on, policy, threads)));
            }
        }
    }
    Section {
        id: "huge-pages",
        title: "Huge-page pools",
        lead: "Time to fill a pool at run time and to empty it again. With reclaim, pages give up \
            their part of the memory map; lazily they get a new one \
               only when they are split, eagerly when they leave the pool. The numbers at the \
               right are without reclaim."
            .into(),
        benches: &["hugepages"],
        groups: vec![Group::new(SERIES.map(|(_, _, name)| name.to_owned()).to_vec(), plots)],
    }
}

fn plot(rows: &Rows<'_>, (on, policy, threads): (&str, &str, u64)) -> Option<Picture> {
    let mut lines: Vec<(String, Vec<Option<Mark>>)> = Vec::new();
    for size_kb in wholes(rows, "size_kb") {
        let rows = rows.is("size_kb", size_kb);
        let mut pages = wholes(&rows, "pages");
        pages.drain(..pages.len().saturating_sub(SHOWN));
        for pages in pages {
            let rows = rows.is("pages", pages);
            for (field, word) in [("fill_ms", "fill"), ("empty_ms", "empty")] {
                let of = |(reclaim, restore, _): (&str, &str, &str)| {
                    let is = |row: &Value| {
                        text(row, "reclaim") == reclaim
                            && (reclaim == "off" || text(row, "restore") == restore)
                    };
                    rows.filter(is).iter().next().and_then(|row| mark(row, field, 1e-3))
                };
                lines.push((
                    format!("{pages} \u{d7} {}, {word}", size(size_kb)),
                    SERIES.map(of).to_vec(),
                ));
            }
        }
    }
    lines.retain(|(_, marks)| marks.iter().any(Option::is_some));
    let place = if on == "qemu" { "Guest" } else { "Process" };
    let plot = Bars {
        title: format!("{place}, {policy}, {}", counted(threads, "thread")),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: SERIES.map(|(_, _, name)| name.to_owned()).to_vec(),
        rows: lines,
        limits: Vec::new(),
        first_sign: 0,
        width: NARROW,
    };
    (!plot.rows.is_empty()).then(|| plot.draw())
}

fn size(kb: u64) -> String {
    if kb >= 1 << 20 { format!("{} GiB", kb >> 20) } else { format!("{} MiB", kb >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_of_reclaim_meet_in_one_line() {
        let row = |reclaim: &str, restore: &str, ms: f64| {
            json!({ "bench": "hugepages", "on": "qemu", "policy": "eager", "size_kb": 2048,
                "pages": 64, "threads": 2,
                    "reclaim": reclaim, "restore": restore, "fill_ms": ms, "empty_ms": ms })
        };
        let rows = [row("off", "none", 1.0), row("on", "lazy", 2.0), row("on", "eager", 3.0)];
        let section = section(&Rows::new(&rows));
        let plot = &section.groups[0].plots;
        assert_eq!(plot.len(), 1);
        assert!(
            plot[0].inline().contains("64 \u{d7} 2 MiB, fill, reclaim on, eager: 3.00 ms"),
            "{}",
            plot[0].inline()
        );
    }
}
