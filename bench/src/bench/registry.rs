//! All benchmarks by name, for those who read what others wrote.

use super::section::Tables;
use super::{alloc, bring_up, fragment, hugepages, init, jobs, reporting, scaling, traffic};
use crate::model;

/// How the rows of each benchmark become tables.
const ALL: [(&str, Tables); 10] = [
    ("alloc", alloc::tables),
    ("bring-up", bring_up::tables),
    ("fragment", fragment::tables),
    ("hugepages", hugepages::tables),
    ("init", init::tables),
    ("jobs", jobs::tables),
    ("model", model::tables),
    ("reporting", reporting::tables),
    ("scaling", scaling::tables),
    ("traffic", traffic::tables),
];

/// How the rows of a benchmark become tables; those of one that nobody knows become none.
pub fn tables(bench: &str) -> Tables {
    ALL.iter().find(|(name, _)| *name == bench).map_or(|_| Vec::new(), |(_, tables)| *tables)
}
