//! Memory that moves.

use super::Sample;
use super::sample::samples;
use crate::rows::{Contig, Rows};

const COPY: &str = "a plain copy of the same pages";

targets! { TARGETS:
    Moving, "contig", "compact-whole", "Compaction, 80 % in use: free memory in whole blocks",
        >= 95.0 "%", "all of it", |rows| of(rows, "compact", |row| row.whole_after_percent.middle);
    Moving, "contig", "compact-moved", "Compaction: pages moved",
        <= 1.3 "x", "the emptiest blocks, as many",
        |rows| of(rows, "compact", |row| row.ideal_ratio.middle);
    Moving, "contig", "compact-copy", "Compaction: time",
        <= 1.5 "x", COPY, |rows| of(rows, "compact", |row| row.copy_ratio.middle);
    Moving, "contig", "vacate-copy", "Vacating memory in use: time",
        <= 1.2 "x", COPY, |rows| of(rows, "vacate ", |row| row.copy_ratio.middle);
    Moving, "contig", "find-contiguous", "Finding a place for 64 MiB in 1 TiB",
        <= 50.0 "\u{b5}s", "an absolute limit",
        |rows| of(rows, "find", |row| row.call_us.middle.filter(|_| row.managed_gib == 1024));
}

fn of(rows: &Rows, what: &str, value: fn(&Contig) -> Option<f64>) -> Vec<Sample> {
    let rows = rows.contig.iter().filter(|row| row.what.starts_with(what));
    samples(rows, value, |row| row.what.clone())
}
