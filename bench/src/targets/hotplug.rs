//! Targets of memory that is added and removed.

use super::Sample;
use super::sample::samples;
use crate::bench::hotplug::ADD_TEBIBYTE;
use crate::rows::{Hotplug, Rows};

targets! { TARGETS:
    Moving, "hotplug", "add-tebibyte", "Adding 1 TiB: time",
        <= 1000.0 "\u{b5}s", "an absolute limit",
        |rows| tebibyte(rows, |row| row.call_us.middle);
    Moving, "hotplug", "add-tebibyte-taken", "Adding 1 TiB: taken of what was there",
        <= 1024.0 "KiB", "16 GiB in Linux",
        |rows| tebibyte(rows, |row| row.taken_kib.middle);
}

fn tebibyte(rows: &Rows, value: fn(&Hotplug) -> Option<f64>) -> Vec<Sample> {
    let rows = rows.hotplug.iter().filter(|row| row.what == ADD_TEBIBYTE);
    samples(rows, value, |row| row.what.clone())
}
