//! Bring-up of machines of all sizes.

use super::super::svg::{Bars, Limit, Mark, Unit};
use super::{Group, Line, Section, dots, mark, point, texts};
use crate::rows::{BringUp, Rows};

pub fn section(rows: &Rows) -> Section {
    let rows = &rows.bring_up;
    let machines = texts(rows.iter().map(|row| &row.machine));
    let tables = texts(rows.iter().map(|row| &row.tables));
    let lines = |marks: &dyn Fn(&[&BringUp]) -> Vec<Option<Mark>>| -> Vec<Line> {
        let of = |machine: &String| {
            let rows: Vec<_> = rows.iter().filter(|row| row.machine == *machine).collect();
            (machine.replace('/', ", "), marks(&rows))
        };
        machines.iter().map(of).collect()
    };
    let times = lines(&|rows| {
        let of = |table: &String| {
            let row = rows.iter().find(|row| row.tables == *table)?;
            mark(row.bring_up_us, 1e-6)
        };
        tables.iter().map(of).collect()
    });
    let shares = lines(&|rows| {
        let share = rows.iter().find_map(|row| row.metadata_ratio.get());
        vec![share.and_then(|share| point(share * 100.0))]
    });
    // Linux's number is for a machine of this size.
    let judged = machines.iter().position(|machine| machine.starts_with("768G/"));
    let linux = |row| Limit { value: 1785.7e-3, meaning: "Linux 2020".into(), rows: row..row + 1 };
    let times = Bars {
        limits: judged.map(linux).into_iter().collect(),
        ..dots("All memory available, 1 thread, on demand", Unit::Time, &tables, times)
    };
    let metadata = Bars {
        limits: vec![Limit::all(0.01, "limit"), Limit::all(1.56, "Linux")],
        first_sign: tables.len(),
        ..dots(
            "Metadata of an idle machine, share of memory",
            Unit::Percent,
            &["share".into()],
            shares,
        )
    };
    let has = !machines.is_empty();
    Section {
        id: "bring-up",
        title: "Bring-up",
        lead:
            "From the firmware's map to all memory available, and how much the tables of an idle \
               machine take."
                .into(),
        benches: &["bring-up"],
        groups: vec![Group::new(
            tables,
            if has { vec![times.draw(), metadata.draw()] } else { Vec::new() },
        )],
    }
}
