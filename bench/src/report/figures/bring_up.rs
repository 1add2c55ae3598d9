//! Bring-up of machines of all sizes.

use super::super::svg::{Bars, Limit, Mark, Shape, Unit};
use super::{Group, NARROW, Section, mark, number, texts};
use crate::targets::Rows;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("bring-up");
    let (machines, tables) = (texts(&rows, "machine"), texts(&rows, "tables"));
    let line = |machine: &String, pick: &dyn Fn(&Rows<'_>) -> Vec<Option<Mark>>| {
        (machine.replace('/', ", "), pick(&rows.is("machine", machine.as_str())))
    };
    // Linux's number is one of a machine of this size.
    let judged = machines.iter().position(|machine| machine.starts_with("768G/"));
    let times = Bars {
        title: "All memory available, 1 thread, on demand".into(),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: tables.clone(),
        rows: machines
            .iter()
            .map(|machine| {
                line(machine, &|rows| {
                    let of = |table: &String| {
                        rows.is("tables", table.as_str())
                            .iter()
                            .next()
                            .and_then(|row| mark(row, "bring_up_us", 1e-6))
                    };
                    tables.iter().map(of).collect()
                })
            })
            .collect(),
        limits: judged
            .map(|row| Limit { value: 1785.7e-3, meaning: "Linux 2020".into(), rows: row..row + 1 })
            .into_iter()
            .collect(),
        first_sign: 0,
        width: NARROW,
    };
    let metadata = Bars {
        title: "Metadata of an idle machine, share of memory".into(),
        unit: Unit::Percent,
        shape: Shape::Dots,
        is_log: true,
        series: vec!["share".into()],
        rows: machines
            .iter()
            .map(|machine| {
                line(machine, &|rows| {
                    let share = rows.iter().find_map(|row| number(row, "metadata_ratio"));
                    vec![share.map(|share| Mark { value: share * 100.0, spread: None })]
                })
            })
            .collect(),
        limits: vec![Limit::all(0.01, "limit"), Limit::all(1.56, "Linux")],
        first_sign: tables.len(),
        width: NARROW,
    };
    let has = !machines.is_empty();
    Section {
        id: "bring-up",
        title: "Bring-up",
        lead: "From the firmware's map to all memory available, and what the description of an \
            idle machine takes."
            .into(),
        benches: &["bring-up"],
        groups: vec![Group::new(
            tables,
            if has { vec![times.draw(), metadata.draw()] } else { Vec::new() },
        )],
    }
}
