//! `framewright bench hugepages`: how long filling and emptying pools of huge pages takes.

use super::common::{median, wrapped};
use crate::args::BenchOptions;
use crate::error::Error;
use crate::grid::{Grid, microseconds};
use crate::hosted::{Session, Silent};
use crate::output::Output;
use framewright::Manager;
use framewright::parameters::Policy;
use framewright::pools::PoolSize;
use framewright_hosted::{HostedHelpers, HostedPlatform, Machine};
use framewright_jobs::{Helpers, NoHelpers};
use serde_json::{Value, json};
use std::time::Instant;

/// What is timed, in words that go with the numbers.
const TIMED: &str = "\
fill: writing nr_hugepages of an empty pool, until all pages are in it; empty: writing 0, until all memory is free again and in \
whole blocks of 1 GiB; the memory itself is not touched. Each row is the median of its runs, fill and empty in turn. backed: all tables were used before; \
first touch: the first time in this process, where the system supplies the tables' memory page by page during the run. \
threads: the caller alone, or with as many helpers as the job finds worth it. reclaim off: pages have no part of a memory map to give up, and so nothing is flushed";

const REPETITIONS: usize = 15;
const QUICK_REPETITIONS: usize = 3;
const MEMORY_BYTES: u64 = 1 << 40;
const QUICK_MEMORY_BYTES: u64 = 64 << 30;

/// Numbers of pages by size.
const PAGES: [(PoolSize, &[u64]); 2] =
    [(PoolSize::TwoMib, &[1, 8, 64, 1000, 10_000, 100_000, 500_000]), (PoolSize::OneGib, &[1, 8, 64, 500])];

/// Times of one row, milliseconds.
#[derive(Default)]
struct Times {
    fill: Vec<f64>,
    empty: Vec<f64>,
}

/// Measures all sizes and numbers of pages.
///
/// # Errors
/// A machine that this process cannot stand in for, or a pool that did not get its pages.
pub fn run(options: &BenchOptions) -> Result<(), Error> {
    let (repetitions, memory_bytes) =
        if options.quick { (QUICK_REPETITIONS, QUICK_MEMORY_BYTES) } else { (REPETITIONS, MEMORY_BYTES) };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
    let machine = Machine::synthetic(memory_bytes, 1, cpus).map_err(|error| Error::Failed(error.to_string()))?;
    let pass = Session::open(&machine, "")?.bring_up(&mut Silent)?;
    let manager = pass.manager();
    let mut rows = Vec::new();
    // What is used for the first time is used by the first row.
    let most = pages_of(PoolSize::TwoMib, memory_bytes).last().unwrap_or(1);
    rows.push(row(PoolSize::TwoMib, most, 1, "first touch", &times(manager, PoolSize::TwoMib, most, &NoHelpers, 1)?));
    for size in PoolSize::ALL {
        for pages in pages_of(size, memory_bytes) {
            let alone = times(manager, size, pages, &NoHelpers, repetitions)?;
            rows.push(row(size, pages, 1, "backed", &alone));
            if cpus > 1 {
                let together = times(manager, size, pages, HostedHelpers::shared(), repetitions)?;
                rows.push(row(size, pages, cpus, "backed", &together));
            }
        }
    }
    pass.verify()?;
    let mut output = Output::new();
    let timed = format!("{TIMED}. {} GiB managed", memory_bytes >> 30);
    if options.json {
        let object = json!({ "bench": "hugepages", "repetitions": repetitions, "timed": timed, "rows": rows });
        return output.line(&object.to_string());
    }
    let style = output.style();
    table(&rows).render(style).iter().try_for_each(|line| output.line(line))?;
    output.line("")?;
    let heading = format!("{repetitions} runs a row; {timed}.");
    wrapped(&heading).iter().try_for_each(|line| output.line(&style.dim(line)))
}

/// Those numbers of pages that leave some memory.
fn pages_of(size: PoolSize, memory_bytes: u64) -> impl Iterator<Item = u64> {
    let most = memory_bytes / (size.kbytes() * 1024) * 98 / 100;
    let listed = PAGES.into_iter().find(|(of, _)| *of == size).map_or(&[][..], |(_, pages)| pages);
    listed.iter().copied().filter(move |&pages| pages <= most)
}

/// Fills and empties a pool some times.
fn times<H: Helpers + ?Sized>(
    manager: &Manager<HostedPlatform>,
    size: PoolSize,
    pages: u64,
    helpers: &H,
    repetitions: usize,
) -> Result<Times, Error> {
    let pool = manager.pool(size);
    let failed = |what: &dyn std::fmt::Display| Error::Failed(format!("the {size} pool of {pages} pages: {what}"));
    let mut times = Times::default();
    for _ in 0..repetitions {
        for (target, into) in [(pages, &mut times.fill), (0, &mut times.empty)] {
            let started = Instant::now();
            let resized = pool.resize(target, helpers).map_err(|error| failed(&error))?;
            into.push(started.elapsed().as_secs_f64() * 1e3);
            if resized.reached != target {
                return Err(failed(&resized));
            }
        }
    }
    times.fill.sort_by(f64::total_cmp);
    times.empty.sort_by(f64::total_cmp);
    Ok(times)
}

fn row(size: PoolSize, pages: u64, threads: u32, tables: &str, times: &Times) -> Value {
    json!({
        "bench": "hugepages",
        "on": "hosted",
        "policy": Policy::OnDemand.name(),
        "tables": tables,
        "size_kb": size.kbytes(),
        "pages": pages,
        "reclaim": "off",
        "restore": "none",
        "threads": threads,
        "fill_ms": median(&times.fill),
        "empty_ms": median(&times.empty),
        "flushes": 0,
        "ipis": 0,
        "saved_bytes": 0,
    })
}

fn table(rows: &[Value]) -> Grid {
    let mut grid = Grid::new(&[
        ">page size",
        ">pages",
        ">threads",
        "<tables",
        "<reclaim",
        ">fill",
        ">empty",
        ">fill a page",
        ">empty a page",
    ]);
    for row in rows {
        let text = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
        let pages = row["pages"].as_f64().unwrap_or(1.0);
        let time = |name: &str| row[name].as_f64().map_or("-".to_owned(), |ms| microseconds(ms * 1e3));
        let each = |name: &str| row[name].as_f64().map_or("-".to_owned(), |ms| format!("{:.1} ns", ms * 1e6 / pages));
        grid.row([
            format!("{} kB", row["size_kb"]),
            row["pages"].to_string(),
            row["threads"].to_string(),
            text("tables"),
            text("reclaim"),
            time("fill_ms"),
            time("empty_ms"),
            each("fill_ms"),
            each("empty_ms"),
        ]);
    }
    grid
}
