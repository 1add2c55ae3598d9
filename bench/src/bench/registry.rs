//! All benchmarks by name, for those who read what others wrote.

use super::section::Tables;
use super::{alloc, bring_up, fragment, hugepages, init, jobs, reporting, scaling, traffic};
use crate::model;

/// How the rows of each benchmark become tables.
const ALL: [(&str, Tables); 10] = [
    ("alloc", alloc::tables),
    ("bring-up", |rows| vec![bring_up::table(rows).into()]),
    ("fragment", |rows| vec![fragment::table(rows).into()]),
    ("hugepages", |rows| vec![hugepages::table(rows).into()]),
    ("init", |rows| vec![init::table(rows).into()]),
    ("jobs", |rows| vec![jobs::table(rows).into()]),
    ("model", model::tables),
    ("reporting", reporting::tables),
    ("scaling", scaling::tables),
    ("traffic", |rows| vec![traffic::table(rows).into()]),
];

/// How the rows of a benchmark become tables; those of one that nobody knows become none.
pub fn tables(bench: &str) -> Tables {
    ALL.iter().find(|(name, _)| *name == bench).map_or(|_| Vec::new(), |(_, tables)| *tables)
}
