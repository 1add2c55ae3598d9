//! Pools of huge pages: filled and emptied, with and without giving back their map.

use super::super::svg::{Picture, Unit};
use super::{Group, Line, Section, counted, dots, drawn, mark, marked, names, texts, wholes};
use crate::rows::{Hugepages, Rows, Spread};
use crate::targets::page_size;

/// The most numbers of pages that are shown for each size; the largest ones are.
const SHOWN: usize = 3;
/// HVO, and, if it matters, how the map comes back.
const SERIES: [(&str, Option<&str>); 3] =
    [("off", None), ("on", Some("lazy")), ("on", Some("eager"))];
const NAMES: [&str; 3] = ["HVO off", "HVO on, lazy", "HVO on, eager"];

type Action = (fn(&Hugepages) -> Spread, &'static str);

/// The operations on a pool.
const ACTIONS: [Action; 2] = [(|row| row.fill_ms, "fill"), (|row| row.empty_ms, "empty")];

pub fn section(rows: &Rows) -> Section {
    let rows = &rows.hugepages;
    let mut plots = Vec::new();
    let policies = texts(rows.iter().map(|row| &row.policy));
    for on in texts(rows.iter().map(|row| &row.on)) {
        for policy in &policies {
            let is = |row: &&Hugepages| {
                row.on == on && row.policy == *policy && row.tables != "first touch"
            };
            let rows: Vec<&Hugepages> = rows.iter().filter(is).collect();
            for threads in wholes(rows.iter().map(|row| row.threads)) {
                let rows: Vec<_> =
                    rows.iter().copied().filter(|row| row.threads == threads).collect();
                plots.extend(plot(&rows, (&on, policy, threads)));
            }
        }
    }
    Section {
        id: "huge-pages",
        title: "Huge-page pools",
        lead: "Time to fill a pool at run time and to empty it again. With HVO, pages give up \
            their part of the memory map; lazily they get a new one \
               only when they are split, eagerly when they leave the pool. The numbers at the \
               right are without it."
            .into(),
        benches: &["hugepages"],
        groups: vec![Group::new(names(&NAMES), plots)],
    }
}

fn plot(rows: &[&Hugepages], (on, policy, threads): (&str, &str, u64)) -> Option<Picture> {
    let mut lines: Vec<Line> = Vec::new();
    for size_kb in wholes(rows.iter().map(|row| row.size_kb)) {
        let of_size = || rows.iter().filter(|row| row.size_kb == size_kb);
        let mut pages = wholes(of_size().map(|row| row.pages));
        pages.drain(..pages.len().saturating_sub(SHOWN));
        for pages in pages {
            for (action, word) in ACTIONS {
                let of = |(reclaim, restore): (&str, Option<&str>)| {
                    let is = |row: &&&Hugepages| {
                        row.pages == pages
                            && row.reclaim == reclaim
                            && restore.is_none_or(|restore| row.restore == restore)
                    };
                    of_size().find(is).and_then(|row| mark(action(row), 1e-3))
                };
                let name = format!("{pages} \u{d7} {}, {word}", page_size(size_kb));
                lines.push((name, SERIES.map(of).to_vec()));
            }
        }
    }
    let place = if on == "qemu" { "Guest" } else { "Process" };
    let title = format!("{place}, {policy}, {}", counted(threads, "thread"));
    drawn(&dots(title, Unit::Time, &names(&NAMES), marked(lines)))
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
        let section = section(&Rows::of(&rows));
        let plot = &section.groups[0].plots;
        assert_eq!(plot.len(), 1);
        assert!(
            plot[0].inline().contains("64 \u{d7} 2 MiB, fill, HVO on, eager: 3.00 ms"),
            "{}",
            plot[0].inline()
        );
    }
}
