//! `framewright-bench hugepages`: how long filling and emptying pools of huge pages takes, in this
//! process or on a virtual machine.

mod qemu;

use super::common::{failed, synthetic};
use super::section::{Column, Section, Table, shown, table};
use crate::progress;
use crate::rows::{Hugepages, Measured, Rows, Spread};
use framewright::Manager;
use framewright::hugetlb::PoolSize;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::State;
use framewright_cli::args::Where;
use framewright_cli::error::Error;
use framewright_cli::grid::{microseconds, size};
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::{HostedHelpers, HostedPlatform};
use framewright_jobs::NoHelpers;
use std::time::Instant;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
fill: writing nr_hugepages of an empty pool, until all pages are in it; empty: writing 0, until \
all memory is free again and in whole blocks of 1 GiB; the memory itself is not touched. Each row \
is the median of its runs, fill and empty in turn. backed: all tables were used before; first \
touch: the first time in this process, where the system supplies the tables' memory page by page \
during the run. threads: the caller alone, or with as many helpers as the job considers \
worthwhile. HVO: pages in the pool give up their part of the vmemmap, which goes back to the \
system; restore lazy: a page that is freed has its descriptors inside when it is split, eager: it \
gets its part of the array back while the pool is emptied. serial, and serial, empty: by all \
threads against by the caller alone, in turn; up to 64 pages, a fill and an empty are the mean of \
64 there and in their own columns. madvise: giving back the same parts of the array, backed again, \
by one call for each run of neighbours, in turn with the fills";

const HOSTED: &str = "hosted";

/// The most pages that count as a handful, and how many fills of so few pages are timed together.
const FEW_PAGES: u64 = 64;
const FEW_REPEATED: u32 = 64;

const REPETITIONS: usize = 15;
const QUICK_REPETITIONS: usize = 3;
const MEMORY_BYTES: u64 = 1 << 40;
const QUICK_MEMORY_BYTES: u64 = 64 << 30;

/// The numbers of pages by size.
const PAGES: [(PoolSize, &[u64]); 2] = [
    (PoolSize::TwoMib, &[1, 8, 64, 1000, 10_000, 100_000, 500_000]),
    (PoolSize::OneGib, &[1, 8, 64, 500]),
];

/// The numbers of pages by size if pages have a part of the vmemmap, on a machine of
/// [`MAP_MEMORY_BYTES`].
const MAP_PAGES: [(PoolSize, &[u64]); 2] =
    [(PoolSize::TwoMib, &[64, 1000, 10_000]), (PoolSize::OneGib, &[1, 8, 24])];
const MAP_MEMORY_BYTES: u64 = 32 << 30;
const QUICK_MAP_MEMORY_BYTES: u64 = 4 << 30;

/// The part of the array that describes 2 MiB.
const VMEMMAP_BYTES_OF_A_BLOCK: u64 = 32 << 10;

/// What happens to the pages' part of the vmemmap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reclaim {
    /// They keep it, or have none.
    Off,
    /// They give it up; once they are free, their descriptors are restored only when they are
    /// split.
    Lazy,
    /// They give it up, and get it back before they are freed.
    Eager,
}

impl Reclaim {
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Off => ("off", "none"),
            Self::Lazy => ("on", "lazy"),
            Self::Eager => ("on", "eager"),
        }
    }
}

/// The subject of a row.
#[derive(Clone, Copy)]
struct Case {
    size: PoolSize,
    pages: u64,
    threads: u32,
    tables: &'static str,
    reclaim: Reclaim,
}

/// The times of a row in milliseconds, in the order of the runs, and what HVO did in one run.
#[derive(Default)]
struct Times {
    fill: Vec<f64>,
    empty: Vec<f64>,
    /// Ratios of a fill by all threads to one by a single thread; and of an empty.
    serial_ratio: Vec<f64>,
    empty_serial_ratio: Vec<f64>,
    /// The system call that HVO needs, timed alone.
    madvise: Vec<f64>,
    madvise_ratio: Vec<f64>,
    /// Ratios of a fill with HVO to one without; and of an empty.
    reclaim_ratio: Vec<f64>,
    empty_reclaim_ratio: Vec<f64>,
    flushes: u64,
    /// Interrupts sent to other CPUs, if they are counted.
    ipis: Option<u64>,
    saved_bytes: u64,
}

/// Measures all sizes and numbers of pages.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or a pool did not get its pages.
pub fn section(on: Where, quick: bool) -> Result<Section, Error> {
    match on {
        Where::Hosted => hosted(quick),
        Where::Qemu => {
            let (rows, repetitions, timed) = qemu::rows(quick)?;
            Ok(Section::of(repetitions, timed, &rows))
        }
    }
}

fn hosted(quick: bool) -> Result<Section, Error> {
    let pick = |less, all| if quick { less } else { all };
    let repetitions = if quick { QUICK_REPETITIONS } else { REPETITIONS };
    let memory_bytes = pick(QUICK_MEMORY_BYTES, MEMORY_BYTES);
    let map_memory_bytes = pick(QUICK_MAP_MEMORY_BYTES, MAP_MEMORY_BYTES);
    let cpus = std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
    let mut rows = Vec::new();
    {
        let machine = synthetic(memory_bytes, 1, cpus)?;
        let pass =
            Session::open(&machine, "memmap_init=on-demand pages=none")?.bring_up(&mut Silent)?;
        let mut case = Case {
            size: PoolSize::TwoMib,
            pages: 1,
            threads: 1,
            tables: "first touch",
            reclaim: Reclaim::Off,
        };
        // The first row must not pay for the first use of anything.
        case.pages = pages_of(&PAGES, case.size, memory_bytes).last().unwrap_or(1);
        rows.push(row(
            HOSTED,
            pass.manager().vmemmap().policy().name(),
            case,
            &times(pass.manager(), case, 1)?,
        ));
        rows.extend(rows_of(
            pass.manager(),
            &PAGES,
            memory_bytes,
            &[Reclaim::Off],
            cpus,
            repetitions,
        )?);
        pass.verify()?;
    }
    let machine = synthetic(map_memory_bytes, 1, cpus)?;
    let session = Session::open(&machine, "memmap_init=eager")?;
    if session.has_page_array() {
        let pass = session.bring_up(&mut Silent)?;
        let all = [Reclaim::Off, Reclaim::Lazy, Reclaim::Eager];
        rows.extend(rows_of(
            pass.manager(),
            &MAP_PAGES,
            map_memory_bytes,
            &all,
            cpus,
            repetitions,
        )?);
        pass.verify()?;
    }
    let timed = format!(
        "{TIMED}. {} GiB managed where no page has a part of a map (on-demand), {} GiB where all \
         have (eager)",
        memory_bytes >> 30,
        map_memory_bytes >> 30
    );
    Ok(Section::of(repetitions, timed, &rows))
}

fn rows_of(
    manager: &Manager<HostedPlatform>,
    listed: &[(PoolSize, &[u64])],
    memory_bytes: u64,
    reclaims: &[Reclaim],
    cpus: u32,
    repetitions: usize,
) -> Result<Vec<Hugepages>, Error> {
    let mut rows = Vec::new();
    for size in PoolSize::ALL {
        for pages in pages_of(listed, size, memory_bytes) {
            progress::step(&format_args!("hugepages: {pages} pages of {size}"))?;
            for &reclaim in reclaims {
                for threads in if cpus == 1 { vec![1] } else { vec![1, cpus] } {
                    let case = Case { size, pages, threads, tables: "backed", reclaim };
                    rows.push(row(
                        HOSTED,
                        manager.vmemmap().policy().name(),
                        case,
                        &times(manager, case, repetitions)?,
                    ));
                }
            }
        }
    }
    Ok(rows)
}

/// Those numbers of pages that leave some memory.
fn pages_of<'a>(
    listed: &[(PoolSize, &'a [u64])],
    size: PoolSize,
    memory_bytes: u64,
) -> impl Iterator<Item = u64> + use<'a> {
    let most = memory_bytes / (size.kbytes() * 1024) * 96 / 100;
    let pages = listed.iter().find(|(of, _)| *of == size).map_or(&[][..], |(_, pages)| pages);
    pages.iter().copied().filter(move |&pages| pages <= most)
}

/// Fills and empties a pool several times.
fn times(
    manager: &Manager<HostedPlatform>,
    case: Case,
    repetitions: usize,
) -> Result<Times, Error> {
    let Case { size, pages, threads, reclaim, .. } = case;
    let resize = |target: u64, threads: u32| {
        let started = Instant::now();
        let resized = resize(manager, (size, pages), target, threads);
        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
        resized.map(|()| elapsed_ms)
    };
    // A handful of pages takes as long as a few readings of the clock. With HVO, only the first
    // fill has something to give up.
    let together = if pages <= FEW_PAGES && reclaim == Reclaim::Off { FEW_REPEATED } else { 1 };
    // In a process, the array's memory is the system's, so count how much of it went back.
    let reclaimed = || manager.vmemmap().reclaimed_blocks();
    let saved = |blocks: u64| reclaimed().saturating_sub(blocks) * VMEMMAP_BYTES_OF_A_BLOCK;
    let fill_and_empty = |threads: u32| {
        let (mut fill, mut empty) = (0.0, 0.0);
        let mut saved_bytes = 0;
        for _ in 0..together {
            let blocks = reclaimed();
            fill += resize(pages, threads)?;
            saved_bytes = saved(blocks).max(saved_bytes);
            empty += resize(0, threads)?;
        }
        Ok::<_, Error>((fill / f64::from(together), empty / f64::from(together), saved_bytes))
    };
    let mut times = Times::default();
    for _ in 0..repetitions {
        if reclaim == Reclaim::Off {
            let flushes = manager.hugetlb().flushes();
            let (fill, empty, saved_bytes) = fill_and_empty(threads)?;
            // Neither is expected, so keep the most that was seen in one fill and one empty.
            let flushes = (manager.hugetlb().flushes() - flushes).div_ceil(together.into());
            times.flushes = flushes.max(times.flushes);
            times.saved_bytes = saved_bytes.max(times.saved_bytes);
            if threads > 1 {
                let (serial_fill, serial_empty, _) = fill_and_empty(1)?;
                times.serial_ratio.push(fill / serial_fill);
                times.empty_serial_ratio.push(empty / serial_empty);
            }
            times.fill.push(fill);
            times.empty.push(empty);
            continue;
        }
        manager.hugetlb().set_optimize_vmemmap(true);
        manager.hugetlb().set_eager_restore(reclaim == Reclaim::Eager);
        let (flushes, blocks) = (manager.hugetlb().flushes(), reclaimed());
        let fill = resize(pages, threads)?;
        times.saved_bytes = saved(blocks);
        let parts = blocks_in_pools(manager);
        times.empty.push(resize(0, threads)?);
        times.flushes = manager.hugetlb().flushes() - flushes;
        if reclaim == Reclaim::Lazy {
            // Not timed: these pages get their map back for the next run.
            manager.hugetlb().set_eager_restore(true);
            resize(pages, threads)?;
            resize(0, threads)?;
        }
        let madvise = madvise(manager.platform(), &parts)?;
        times.madvise_ratio.push(fill / madvise);
        times.madvise.push(madvise);
        times.fill.push(fill);
    }
    manager.hugetlb().set_optimize_vmemmap(false);
    manager.hugetlb().set_eager_restore(false);
    Ok(times)
}

/// Resizes a pool to this many pages, by one thread or with helpers.
///
/// # Errors
/// Fails if the pool did not get its pages.
pub fn resize(
    manager: &Manager<HostedPlatform>,
    (size, pages): (PoolSize, u64),
    target: u64,
    threads: u32,
) -> Result<(), Error> {
    let pool = manager.pool(size);
    let resized = if threads == 1 {
        pool.resize(target, &NoHelpers)
    } else {
        pool.resize(target, HostedHelpers::shared())
    };
    let why = match resized {
        Ok(resized) if resized.reached == target => return Ok(()),
        Ok(resized) => resized.to_string(),
        Err(error) => error.to_string(),
    };
    Err(failed(format!("the {size} pool of {pages} pages: {why}")))
}

/// The blocks in pools, with neighbours joined.
fn blocks_in_pools(manager: &Manager<HostedPlatform>) -> Vec<BlockRange> {
    let mut runs: Vec<BlockRange> = Vec::new();
    let end = manager
        .nodes()
        .iter()
        .map(|node| BlockNumber::containing(node.span.end).0)
        .max()
        .unwrap_or(0);
    for block in 0..end {
        if manager.block_state(BlockNumber(block)).is_some_and(|state| state.is(State::Pool)) {
            match runs.last_mut() {
                Some(last) if last.end.0 == block => last.end.0 += 1,
                _ => runs.push(BlockRange::new(block, block + 1)),
            }
        }
    }
    runs
}

/// How many milliseconds the system needs to take back the memory behind these parts of the array.
/// They are backed again afterwards.
fn madvise(platform: &HostedPlatform, parts: &[BlockRange]) -> Result<f64, Error> {
    let started = Instant::now();
    // SAFETY: the blocks are free and whole, and nobody else works on this machine; afterwards they
    // hold what they held before, zeros.
    let done = unsafe { platform.discard_vmemmap_parts(parts) };
    let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
    done.map_err(|error| failed(format!("the system does not take memory back: {error}")))?;
    // SAFETY: the blocks are free and whole, and nobody else works on this machine.
    unsafe { platform.prefault_vmemmap_parts(parts, 0) };
    Ok(elapsed_ms)
}

fn row(on: &str, policy: &str, case: Case, times: &Times) -> Hugepages {
    let (reclaim, restore) = case.reclaim.names();
    let spread = |values: &[f64]| Spread::of(values.iter().copied());
    Hugepages {
        on: on.into(),
        policy: policy.into(),
        tables: case.tables.into(),
        size_kb: case.size.kbytes(),
        pages: case.pages,
        reclaim: reclaim.into(),
        restore: restore.into(),
        threads: case.threads.into(),
        fill_ms: spread(&times.fill),
        empty_ms: spread(&times.empty),
        serial_ratio: spread(&times.serial_ratio),
        empty_serial_ratio: spread(&times.empty_serial_ratio),
        madvise_ms: spread(&times.madvise),
        madvise_ratio: spread(&times.madvise_ratio),
        reclaim_ratio: spread(&times.reclaim_ratio),
        empty_reclaim_ratio: spread(&times.empty_reclaim_ratio),
        flushes: times.flushes.into(),
        // In a process, the system sends them and does not count them for us.
        ipis: Measured(times.ipis),
        saved_bytes: times.saved_bytes.into(),
    }
}

fn time(ms: Spread) -> String {
    shown(ms.middle, |ms| microseconds(ms * 1e3))
}

fn each(ms: Spread, row: &Hugepages) -> String {
    shown(ms.middle, |ms| format!("{:.1} ns", ms * 1e6 / row.pages as f64))
}

fn ratio(ratio: Spread) -> String {
    shown(ratio.middle, |ratio| format!("{ratio:.2}"))
}

fn count(count: &Measured<u64>) -> String {
    shown(count.get(), |count| count.to_string())
}

const COLUMNS: [Column<Hugepages>; 18] = [
    (">page size", |row| format!("{} kB", row.size_kb)),
    (">pages", |row| row.pages.to_string()),
    (">threads", |row| row.threads.to_string()),
    ("<tables", |row| row.tables.clone()),
    ("<HVO", |row| row.reclaim.clone()),
    ("<restore", |row| row.restore.clone()),
    (">fill", |row| time(row.fill_ms)),
    (">empty", |row| time(row.empty_ms)),
    (">fill a page", |row| each(row.fill_ms, row)),
    (">empty a page", |row| each(row.empty_ms, row)),
    (">flushes", |row| count(&row.flushes)),
    (">ipis", |row| count(&row.ipis)),
    (">saved", |row| shown(row.saved_bytes.get(), size)),
    (">serial", |row| ratio(row.serial_ratio)),
    (">serial, empty", |row| ratio(row.empty_serial_ratio)),
    (">madvise", |row| ratio(row.madvise_ratio)),
    (">off", |row| ratio(row.reclaim_ratio)),
    (">off, empty", |row| ratio(row.empty_reclaim_ratio)),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.hugepages).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_counted_where_none_are_expected() -> Result<(), Error> {
        let machine = synthetic(1 << 30, 1, 2)?;
        let session = Session::open(&machine, "memmap_init=eager")?;
        // Some hosts cannot back an array.
        if !session.has_page_array() {
            return Ok(());
        }
        let pass = session.bring_up(&mut Silent)?;
        let case = Case {
            size: PoolSize::TwoMib,
            pages: 100,
            threads: 1,
            tables: "backed",
            reclaim: Reclaim::Off,
        };
        let quiet = times(pass.manager(), case, 1)?;
        assert_eq!((quiet.flushes, quiet.saved_bytes), (0, 0));
        // This manager gives up memory although that is not part of the case.
        pass.manager().hugetlb().set_optimize_vmemmap(true);
        let loud = times(pass.manager(), case, 1)?;
        assert!(loud.flushes > 0 && loud.saved_bytes > 0, "{} {}", loud.flushes, loud.saved_bytes);
        Ok(pass.verify()?)
    }
}
