//! Targets of pools of huge pages.

use super::Sample;
use super::sample::{page_size, samples, threads, words};
use crate::rows::{Hugepages, Rows, Spread};
use framewright_cli::grid::counted;

/// The largest number of pages that is a handful.
const HANDFUL: u64 = 64;

const BENCH: &str = "hugepages";
const BENCH_QEMU: &str = "hugepages --on qemu";

targets! { TARGETS:
    Pools, BENCH_QEMU, "reclaim-guest",
        "Guest, 2 MiB pool with HVO: time over that without, fill and empty",
        <= 1.2 "x", "HVO off",
        |rows| {
            let is = |row: &Hugepages| row.size_kb == 2048 && is_lazy_guest(row);
            both(rows, is, [|row| row.reclaim_ratio, |row| row.empty_reclaim_ratio])
        };
    Pools, BENCH, "reclaim-hosted",
        "Process, 2 MiB pool with HVO: time to fill over one madvise of the same ranges",
        <= 1.2 "x", "one madvise",
        |rows| of(rows, |row| row.on == "hosted", |row| row.madvise_ratio.middle);
    Pools, BENCH_QEMU, "reclaim-flushes",
        "Flushes of a whole fill with HVO, which is one batch of evictions or more",
        <= 2.0 "flushes", "an absolute limit: two a batch", |rows| of(rows, is_lazy_guest, flushes);
    Pools, BENCH, "no-map-no-flush", "Flushes for blocks without an array map",
        <= 0.0 "flushes", "an absolute limit",
        |rows| of(rows, |row| row.policy == "on-demand", flushes);
    Pools, BENCH, "pool-500000",
        "500 000 pages of 2 MiB, 1 TiB, on demand, one thread: time to fill",
        <= 100.0 "ms", "an absolute limit",
        |rows| {
            let is = |row: &&Hugepages| {
                (row.size_kb, row.pages, row.threads) == (2048, 500_000, 1)
                    && row.policy == "on-demand"
            };
            let rows = rows.hugepages.iter().filter(is);
            samples(rows, |row| row.fill_ms.middle, |row| row.tables.clone())
        };
    Pools, BENCH, "pool-handful",
        "1 to 64 pages with helpers at hand: time over one thread's, fill and empty",
        <= 1.05 "x", "one thread",
        |rows| {
            let is = |row: &Hugepages| {
                row.tables == "backed" && row.reclaim == "off" && row.pages <= HANDFUL
            };
            both(rows, is, [|row| row.serial_ratio, |row| row.empty_serial_ratio])
        };
    Pools, BENCH_QEMU, "saved-2m", "Map memory that a page of 2 MiB in a pool gives back",
        >= 32.0 "KiB", "Linux: 28 KiB", |rows| per_page(rows, 2048);
    Pools, BENCH_QEMU, "saved-1g", "Map memory that a page of 1 GiB in a pool gives back",
        >= 16384.0 "KiB", "all of it: 16 MiB", |rows| per_page(rows, 1 << 20);
}

/// Whether the row is from the guest with HVO and lazy restore; an eager one rewrites all
/// descriptors.
fn is_lazy_guest(row: &Hugepages) -> bool {
    row.on == "qemu" && row.reclaim == "on" && row.restore == "lazy"
}

fn flushes(row: &Hugepages) -> Option<f64> {
    row.flushes.get().map(|flushes| flushes as f64)
}

fn of(
    rows: &Rows,
    is: impl Fn(&Hugepages) -> bool,
    value: impl Fn(&Hugepages) -> Option<f64>,
) -> Vec<Sample> {
    samples(rows.hugepages.iter().filter(|row| is(row)), value, place)
}

/// Samples of a fill and of an empty.
fn both(
    rows: &Rows,
    is: impl Fn(&Hugepages) -> bool,
    values: [fn(&Hugepages) -> Spread; 2],
) -> Vec<Sample> {
    let of = |(value, what): (fn(&Hugepages) -> Spread, &'static str)| {
        let rows = rows.hugepages.iter().filter(|row| is(row));
        samples(rows, |row| value(row).middle, |row| words(&[what, &place(row)]))
    };
    values.into_iter().zip(["fill", "empty"]).flat_map(of).collect()
}

fn place(row: &Hugepages) -> String {
    let (size, pages) = (page_size(row.size_kb), counted(row.pages, "page"));
    words(&[&row.on, &row.policy, &size, &pages, &row.restore, &threads(row.threads)])
}

/// The saved KiB for each page.
fn per_page(rows: &Rows, size_kb: u64) -> Vec<Sample> {
    let is = |row: &&Hugepages| row.reclaim == "on" && row.size_kb == size_kb && row.pages > 0;
    let each = |row: &Hugepages| Some(row.saved_bytes.get()? as f64 / row.pages as f64 / 1024.0);
    let place = |row: &Hugepages| words(&[&row.on, &counted(row.pages, "page")]);
    samples(rows.hugepages.iter().filter(is), each, place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pools_are_judged_by_filling_and_by_emptying() {
        let row = |on: &str, reclaim: &str, restore: &str| {
            json!({ "bench": "hugepages", "on": on, "tables": "backed", "size_kb": 2048,
                "pages": 8, "threads": 2, "reclaim": reclaim, "restore": restore,
                "serial_ratio": 1.0, "empty_serial_ratio": 1.5,
                "reclaim_ratio": 1.1, "empty_reclaim_ratio": 3.0 })
        };
        let rows = Rows::of(&[row("hosted", "off", "none"), row("qemu", "on", "lazy")]);
        let found = |id: &str| -> Vec<(f64, bool)> {
            let target = TARGETS.iter().find(|target| target.id == id).expect("there is one");
            let samples = (target.measure)(&rows);
            samples.iter().map(|one| (one.value, one.place.starts_with("empty"))).collect()
        };
        assert_eq!(found("pool-handful"), [(1.0, false), (1.5, true)]);
        assert_eq!(found("reclaim-guest"), [(1.1, false), (3.0, true)]);
    }
}
