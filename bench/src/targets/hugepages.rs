//! Pools of huge pages.

use super::rows::{number, text, whole};
use super::{Measure, Rows, Sample, Target, at_least, at_most};
use serde_json::Value;

const AREA: &str = "Huge-page pools";
const PLACE: &[&str] = &["on", "policy", "size_kb", "pages", "restore", "threads"];
/// The largest number of pages that is a handful.
const HANDFUL: u64 = 64;

const fn saved(
    id: &'static str,
    what: &'static str,
    wanted: f64,
    against: &'static str,
    measure: Measure,
) -> Target {
    at_least(AREA, id, what, (wanted, "KiB"), (against, BENCH_QEMU), measure)
}

const BENCH: &str = "hugepages";
const BENCH_QEMU: &str = "hugepages --on qemu";

pub(super) const TARGETS: &[Target] = &[
    at_most(
        AREA,
        "reclaim-guest",
        "Guest, 2 MiB pool with map reclaim: time over that without, fill and empty",
        (1.2, "x"),
        ("reclaim off", BENCH_QEMU),
        // What comes back eagerly writes all descriptors again.
        |rows| {
            let rows = rows.bench("hugepages").is("on", "qemu").is("size_kb", 2048);
            rows.is("reclaim", "on").is("restore", "lazy").samples("reclaim_ratio", 1.0, PLACE)
        },
    ),
    at_most(
        AREA,
        "reclaim-hosted",
        "Process, 2 MiB pool with map reclaim: time to fill over one madvise of the same ranges",
        (1.2, "x"),
        ("one madvise", BENCH),
        |rows| rows.bench("hugepages").is("on", "hosted").samples("madvise_ratio", 1.0, PLACE),
    ),
    at_most(
        AREA,
        "reclaim-flushes",
        "Flushes of a whole fill with map reclaim, which is one batch of evictions or more",
        (2.0, "flushes"),
        ("an absolute limit: two a batch", BENCH_QEMU),
        |rows| {
            let rows =
                rows.bench("hugepages").is("on", "qemu").is("reclaim", "on").is("restore", "lazy");
            rows.samples("flushes", 1.0, PLACE)
        },
    ),
    at_most(
        AREA,
        "no-map-no-flush",
        "Flushes for blocks without an array map",
        (0.0, "flushes"),
        ("an absolute limit", BENCH),
        |rows| rows.bench("hugepages").is("policy", "on-demand").samples("flushes", 1.0, PLACE),
    ),
    at_most(
        AREA,
        "pool-500000",
        "500 000 pages of 2 MiB, 1 TiB, on demand, one thread: time to fill",
        (100.0, "ms"),
        ("an absolute limit", BENCH),
        |rows| {
            let rows =
                rows.bench("hugepages").is("size_kb", 2048).is("pages", 500_000).is("threads", 1);
            rows.is("policy", "on-demand").samples("fill_ms", 1.0, &["tables"])
        },
    ),
    at_most(
        AREA,
        "pool-handful",
        "1 to 64 pages with helpers at hand: time over one thread's, fill and empty",
        (1.05, "x"),
        ("one thread", BENCH),
        |rows| {
            let few = |row: &Value| whole(row, "pages").is_some_and(|pages| pages <= HANDFUL);
            let rows =
                rows.bench("hugepages").is("tables", "backed").is("reclaim", "off").filter(few);
            rows.samples("serial_ratio", 1.0, PLACE)
        },
    ),
    saved(
        "saved-2m",
        "Map memory that a page of 2 MiB in a pool gives back",
        32.0,
        "Linux: 28 KiB",
        |rows| per_page(rows, 2048),
    ),
    saved(
        "saved-1g",
        "Map memory that a page of 1 GiB in a pool gives back",
        16384.0,
        "all of it: 16 MiB",
        |rows| per_page(rows, 1 << 20),
    ),
];

/// KiB for each page.
fn per_page(rows: &Rows<'_>, size_kb: u64) -> Vec<Sample> {
    let one = |row: &Value| {
        let pages = number(row, "pages").filter(|&pages| pages > 0.0)?;
        let place =
            format!("{}, {pages} page{}", text(row, "on"), if pages == 1.0 { "" } else { "s" });
        Some(Sample { value: number(row, "saved_bytes")? / pages / 1024.0, place })
    };
    rows.bench("hugepages")
        .is("reclaim", "on")
        .is("size_kb", size_kb)
        .iter()
        .filter_map(one)
        .collect()
}
