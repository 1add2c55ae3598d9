//! Targets of moving memory.

use super::Sample;
use super::sample::samples;
use crate::bench::contig::grades::NAME as GRADES;
use crate::bench::contig::{COMPACT, FIND, NAMED, VACATE};
use crate::rows::{Contig, Rows};

const COPY: &str = "a plain copy of as many pages";

targets! { TARGETS:
    Moving, "contig", "compact-whole", "Compaction, 80 % in use: free memory in whole blocks",
        >= 95.0 "%", "all of it", |rows| compaction(rows, |row| row.whole_after_percent.middle);
    Moving, "contig", "compact-moved", "Compaction: pages moved",
        <= 1.3 "x", "the emptiest blocks, as many",
        |rows| compaction(rows, |row| row.ideal_ratio.middle);
    Moving, "contig", "compact-copy", "Compaction: time",
        <= 1.5 "x", COPY, |rows| compaction(rows, |row| row.copy_ratio.middle);
    Moving, "contig", "vacate-copy", "Vacating memory in use: time",
        <= 1.2 "x", COPY,
        |rows| of(rows, |what| what.starts_with(VACATE), |row| row.copy_ratio.middle);
    Moving, "contig", "vacate-named", "A pinned page in the middle: time till it is named",
        <= 0.2 "x", "vacating as much",
        |rows| {
            let vacating = rows.contig.iter().find(|row| row.what.starts_with(VACATE));
            let whole_us = vacating.and_then(|row| row.call_us.middle);
            of(rows, |what| what == NAMED, |row| Some(row.call_us.middle? / whole_us?))
        };
    Moving, "contig", "find-contiguous", "Finding a place for 64 MiB in 1 TiB",
        <= 50.0 "\u{b5}s", "an absolute limit",
        |rows| {
            let us = |row: &Contig| row.call_us.middle.filter(|_| row.managed_gib == 1024);
            of(rows, |what| what == FIND, us)
        };
    Moving, "contig", "grades-cost", "Allocating beside memory with a grade: time",
        <= 1.03 "x", "without grades, alternately",
        |rows| of(rows, |what| what.starts_with(GRADES), |row| row.plain_ratio.middle);
}

fn compaction(rows: &Rows, value: fn(&Contig) -> Option<f64>) -> Vec<Sample> {
    of(rows, |what| what == COMPACT, value)
}

fn of(rows: &Rows, is: fn(&str) -> bool, value: impl Fn(&Contig) -> Option<f64>) -> Vec<Sample> {
    let rows = rows.contig.iter().filter(|row| is(&row.what));
    samples(rows, value, |row| row.what.clone())
}
