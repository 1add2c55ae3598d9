//! `framewright-bench contig`: moving memory, beside a plain copy of those pages.

pub mod grades;
mod objects;

use super::alloc::crew;
use super::common::failed;
use super::host::thread_cpu_seconds;
use super::section::{Column, Section, Table, shown, table};
use super::subject::Ours;
use crate::progress;
use crate::rows::{Contig, Rows, Spread};
use framewright::Platform;
use framewright::manager::{Budget, ContiguousRequest, VacateError};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_cli::error::Error;
use framewright_cli::grid::microseconds;
use objects::{Copy, Objects};

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
CPU time of the call, on one thread. Memory is filled with movable pages that are all written to; \
each repetition has another seed. compact: a fifth is freed at random and all blocks are \
compacted, of single pages, and then of runs of orders 0 to 3; over ideal: what was moved over \
what the emptiest blocks held, as many as became whole. vacate: all of the range is in use, and \
a quarter of the pages behind it; then a page in the middle of another range is pinned, and named \
is the time until the call names it. over copy: over a plain copy, warmed up once, the faster of \
two: one before the call, of as many pages between places as far apart (those to be emptied, and \
the others), and one after it, of the same pages from and to the same places. get: allocations in \
one run before anything is compacted. find: on a machine of 1 TiB, where every other block has \
every second page in use; 64 calls a repetition. grades: an allocation or a free, pairs and sets \
of 512 MiB, over the same without grades, in turn. No page descriptors";

/// The rows that targets look for.
pub const COMPACT: &str = "compact";
pub const VACATE: &str = "vacate ";
pub const NAMED: &str = "vacate, till it is named";
pub const FIND: &str = "find 64 MiB";

const PERCENT_USED: usize = 80;
const MIB: u64 = 1 << 20;
/// The number of calls of a search in a repetition.
const CALLS: u32 = 64;

/// How much is measured.
struct Scale {
    gib: u64,
    repetitions: u64,
    /// The turns, and the operations of each, with and without grades.
    turns: usize,
    operations: usize,
    vacated_mib: u64,
    long_mib: u64,
    searched_gib: u64,
}

const FULL: Scale = Scale {
    gib: 8,
    repetitions: 5,
    turns: 15,
    operations: 1 << 18,
    vacated_mib: 1024,
    long_mib: 512,
    searched_gib: 1024,
};
const QUICK: Scale = Scale {
    gib: 2,
    repetitions: 2,
    turns: 3,
    operations: 1 << 14,
    vacated_mib: 256,
    long_mib: 256,
    searched_gib: 64,
};
/// The orders of the moved runs.
const PAGES: [u8; 1] = [0];
const MIXED: [u8; 4] = [0, 1, 2, 3];
/// The time limit for vacating a range with a pinned page, so that the wait ends.
const DEADLINE_NS: u64 = 10_000_000_000;

/// Measures everything.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or memory did not move as it should.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let names = [
        COMPACT.to_owned(),
        "compact, orders 0 to 3".to_owned(),
        format!("{VACATE}{} MiB", scale.vacated_mib),
        "vacate, a page pinned".to_owned(),
        NAMED.to_owned(),
        "get 64 MiB".to_owned(),
        format!("get {} MiB", scale.long_mib),
    ];
    let mut runs: Vec<Vec<Run>> = names.iter().map(|_| Vec::new()).collect();
    // One machine for everything: its memory is this process's until the process ends.
    Ours::with(scale.gib << 30, 1, |ours| {
        crew::alone(ours, || {
            for seed in 1..=scale.repetitions {
                progress::step(&format_args!("contig: {} GiB, {seed}", scale.gib))?;
                let mut of_seed = compaction(ours, &PAGES, seed)?;
                of_seed.extend(compaction(ours, &MIXED, seed)?);
                of_seed.extend(vacating(ours, &scale, seed)?);
                of_seed.extend(getting(ours, &scale, seed)?);
                runs.iter_mut().zip(of_seed).for_each(|(runs, run)| runs.push(run));
            }
            Ok(())
        })?
    })?;
    let rows = names.iter().zip(&runs);
    let mut rows: Vec<Contig> = rows.map(|(name, runs)| row(name, scale.gib, runs)).collect();
    progress::step(&"contig: find")?;
    let found = Ours::with(scale.searched_gib << 30, 1, |ours| {
        crew::alone(ours, || searching(ours, scale.repetitions))?
    })?;
    rows.push(row(FIND, scale.searched_gib, &found));
    rows.extend(grades::measure(scale.turns, scale.operations)?);
    let repetitions = usize::try_from(scale.repetitions).unwrap_or(0);
    Ok(Section::of(repetitions, TIMED, &rows))
}

/// One call of one kind.
#[derive(Default)]
struct Run {
    call_us: f64,
    moved_pages: Option<u64>,
    /// The times of plain copies of as many pages: before the call, and after it.
    copies_us: Option<[f64; 2]>,
    ideal_pages: Option<u64>,
    whole_percent: Option<[f64; 2]>,
}

fn row(what: &str, managed_gib: u64, runs: &[Run]) -> Contig {
    let spread = |of: &dyn Fn(&Run) -> Option<f64>| Spread::of(runs.iter().filter_map(of));
    let moved = |run: &Run| run.moved_pages.map(|pages| pages as f64);
    Contig {
        what: what.into(),
        managed_gib,
        runs: (runs.len() as u64).into(),
        call_us: spread(&|run| Some(run.call_us)),
        moved_pages: spread(&moved),
        copy_ratio: spread(&|run| Some(run.call_us / run.copies_us?.into_iter().reduce(f64::min)?)),
        copy_before_ratio: spread(&|run| Some(run.call_us / run.copies_us?[0])),
        copy_after_ratio: spread(&|run| Some(run.call_us / run.copies_us?[1])),
        ideal_ratio: spread(&|run| Some(moved(run)? / run.ideal_pages? as f64)),
        whole_before_percent: spread(&|run| Some(run.whole_percent?[0])),
        whole_after_percent: spread(&|run| Some(run.whole_percent?[1])),
        ..Contig::default()
    }
}

/// The result, and the microseconds of CPU time of this thread.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begun = thread_cpu_seconds();
    let result = work();
    (result, (thread_cpu_seconds() - begun) * 1e6)
}

/// The times for copying as many pages, before and after they were moved.
fn copies_us(
    objects: &Objects<'_>,
    before_us: f64,
    apart: &[Copy],
    moved: &[Copy],
) -> Option<[f64; 2]> {
    let after_us = objects.copy_us(moved);
    let before_us = before_us / apart.len().max(1) as f64 * moved.len() as f64;
    (!apart.is_empty() && !moved.is_empty()).then_some([before_us, after_us])
}

/// The number of free blocks, and the share of free memory that is in them.
fn whole(ours: &Ours<'_>) -> Result<(u64, f64), Error> {
    ours.manager().drain().map_err(failed)?;
    let (mut blocks, mut pages) = (0, 0);
    for zone in ours.manager().views() {
        let free = zone.free_blocks();
        blocks += (0..).zip(free).map(|(slot, count)| u64::from(count) << slot).sum::<u64>();
        pages += zone.free_areas().pages();
    }
    Ok((blocks, (blocks * PAGES_PER_BLOCK) as f64 / pages.max(1) as f64 * 100.0))
}

fn compaction(ours: &Ours<'_>, orders: &[u8], seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours, orders, seed)?;
    objects.thin_out(PERCENT_USED, seed)?;
    let (whole_before, percent_before) = whole(ours)?;
    let (used, places) = (objects.used(), objects.places());
    let emptiest = emptiest(&used);
    let apart = objects.apart(|block| emptiest[block]);
    let before_us = objects.copy_apart_us(&apart);
    let moving = ours.manager().moving().by(&objects);
    let (done, call_us) = timed(|| moving.compact(None, u64::MAX, Budget::UNLIMITED));
    let done = done.map_err(failed)?;
    let (whole_after, percent_after) = whole(ours)?;
    objects.check()?;
    let copies_us = copies_us(&objects, before_us, &apart, &objects.moved_since(&places));
    objects.free(|_| true)?;
    Ok(vec![Run {
        call_us,
        moved_pages: Some(done.moved.moved_pages),
        copies_us,
        ideal_pages: Some(ideal(used, whole_after.saturating_sub(whole_before))),
        whole_percent: Some([percent_before, percent_after]),
    }])
}

/// The fifth of the blocks in use that has the fewest frames in use.
fn emptiest(used: &[u64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..used.len()).filter(|&block| used[block] != 0).collect();
    order.sort_by_key(|&block| used[block]);
    let mut chosen = vec![false; used.len()];
    let wanted = order.len() * (100 - PERCENT_USED) / 100;
    order.into_iter().take(wanted).for_each(|block| chosen[block] = true);
    chosen
}

/// The number of pages in the emptiest blocks that are not free.
fn ideal(mut used: Vec<u64>, blocks: u64) -> u64 {
    used.retain(|&used| used != 0);
    used.sort_unstable();
    used.into_iter().take(usize::try_from(blocks).unwrap_or(usize::MAX)).sum()
}

/// The range begins at five eighths of memory, behind a PC's hole, with free memory behind it.
fn vacating(ours: &Ours<'_>, scale: &Scale, seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours, &PAGES, seed)?;
    let block_pages = |mib: u64| (mib * MIB) >> 12;
    let start = BlockNumber::containing(Pfn(block_pages(scale.gib * 640)));
    let blocks = u32::try_from(block_pages(scale.vacated_mib) / PAGES_PER_BLOCK).map_err(failed)?;
    let range = BlockRange { start, end: BlockNumber(start.0 + blocks) };
    let behind = u32::try_from(range.end.start().0).map_err(failed)?;
    let middle = range.start.start().0 + u64::from(blocks) * PAGES_PER_BLOCK / 2 + 7;
    let mut random = super::random::Random::new(seed);
    objects.free(|place| place >= behind && random.below(4) != 0)?;
    let moving = ours.manager().moving().by(&objects);
    let places = objects.places();
    let inside = start.0 as usize..range.end.0 as usize;
    let apart = objects.apart(|block| inside.contains(&block));
    let before_us = objects.copy_apart_us(&apart);
    let (moved, call_us) = timed(|| moving.vacate(range, Budget::UNLIMITED));
    let moved = moved.map_err(|error| failed(format!("{error:?}")))?;
    objects.check()?;
    let copies_us = copies_us(&objects, before_us, &apart, &objects.moved_since(&places));
    let moved_pages = Some(moved.moved_pages);
    let vacated = Run { call_us, moved_pages, copies_us, ..Run::default() };
    ours.manager().isolation().unisolate(range).map_err(failed)?;
    let before = u32::try_from(range.start.start().0).map_err(failed)?;
    let next = BlockRange { start: BlockNumber(start.0 - blocks), end: range.start };
    let middle = u32::try_from(middle).map_err(failed)? - blocks * 512;
    debug_assert!(middle < before);
    objects.pin(Some(middle));
    let deadline = ours.manager().platform().now_ns().map(|now| now + DEADLINE_NS);
    let budget = deadline.map_or(Budget::UNLIMITED, Budget::until);
    let (begun, mut named_us) = (thread_cpu_seconds(), None);
    let (refused, call_us) = timed(|| {
        moving.vacate_naming(next, budget, &mut |_| {
            named_us.get_or_insert((thread_cpu_seconds() - begun) * 1e6);
        })
    });
    let Err(VacateError::Obstacles { obstacles, moved }) = refused else {
        return Err(failed(format!("a pinned page was not in the way: {refused:?}")));
    };
    if obstacles.first.run.start != Pfn(u64::from(middle)) {
        return Err(failed(format!("{obstacles:?} was named, and {middle} is pinned")));
    }
    objects.check()?;
    objects.pin(None);
    objects.free(|_| true)?;
    let pinned = Run { call_us, moved_pages: Some(moved.moved_pages), ..Run::default() };
    let named_us = named_us.ok_or_else(|| failed("a pinned page was not named"))?;
    Ok(vec![vacated, pinned, Run { call_us: named_us, ..Run::default() }])
}

fn getting(ours: &Ours<'_>, scale: &Scale, seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours, &PAGES, seed)?;
    objects.thin_out(PERCENT_USED, seed)?;
    let moving = ours.manager().moving().by(&objects);
    let (mut runs, mut taken) = (Vec::new(), Vec::new());
    for mib in [64, scale.long_mib] {
        let before = ours.manager().moving().events();
        let request = ContiguousRequest::new((mib * MIB) >> 12);
        let (got, call_us) = timed(|| moving.allocate_contiguous(&request, Budget::UNLIMITED));
        taken.push(got.map_err(failed)?);
        objects.check()?;
        let moved = ours.manager().moving().events().moved_pages - before.moved_pages;
        runs.push(Run { call_us, moved_pages: Some(moved), ..Run::default() });
    }
    for run in taken {
        // SAFETY: allocated here, and nobody looks at it (invariant 42).
        unsafe { ours.manager().free(run) }.map_err(failed)?;
    }
    objects.free(|_| true)?;
    Ok(runs)
}

fn searching(ours: &Ours<'_>, repetitions: u64) -> Result<Vec<Run>, Error> {
    let manager = ours.manager();
    let mut blocks = Vec::new();
    while let Ok(start) = manager.allocate_order(Order::BLOCK, MigrateType::Movable) {
        blocks.push(start);
    }
    for start in blocks {
        let is_even = BlockNumber::containing(start).0.is_multiple_of(2);
        let (step, order) =
            if is_even { (2, Order::PAGE) } else { (PAGES_PER_BLOCK, Order::BLOCK) };
        for page in (0..PAGES_PER_BLOCK).step_by(usize::try_from(step).unwrap_or(1)) {
            // SAFETY: the block was allocated here, and nobody looks at it (invariant 42).
            unsafe { manager.free_order(Pfn(start.0 + page), order) }.map_err(failed)?;
        }
    }
    manager.drain().map_err(failed)?;
    let request = ContiguousRequest::new((64 * MIB) >> 12);
    let mut runs = Vec::new();
    for _ in 0..repetitions {
        let (found, us) = timed(|| {
            (0..CALLS).try_for_each(|_| manager.moving().find_contiguous(&request).map(drop))
        });
        found.map_err(failed)?;
        runs.push(Run { call_us: us / f64::from(CALLS), ..Run::default() });
    }
    Ok(runs)
}

fn ratio(spread: Spread) -> String {
    shown(spread.middle, |ratio| format!("{ratio:.2}x"))
}

fn percent(spread: Spread) -> String {
    shown(spread.middle, |percent| format!("{percent:.2} %"))
}

fn time(us: f64) -> String {
    if us < 1.0 { format!("{:.1} ns", us * 1e3) } else { microseconds(us) }
}

const COLUMNS: [Column<Contig>; 11] = [
    (">managed", |row| format!("{} GiB", row.managed_gib)),
    ("<call", |row| row.what.clone()),
    (">time", |row| shown(row.call_us.middle, time)),
    (">moved pages", |row| shown(row.moved_pages.middle, |pages| format!("{pages:.0}"))),
    (">over copy", |row| ratio(row.copy_ratio)),
    (">copied before", |row| ratio(row.copy_before_ratio)),
    (">copied after", |row| ratio(row.copy_after_ratio)),
    (">over ideal", |row| ratio(row.ideal_ratio)),
    (">whole before", |row| percent(row.whole_before_percent)),
    (">whole after", |row| percent(row.whole_after_percent)),
    (">over no grades", |row| ratio(row.plain_ratio)),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.contig).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_takes_the_emptiest_blocks_that_hold_something() {
        assert_eq!(ideal(vec![5, 0, 512, 3, 9], 2), 8);
        assert_eq!(ideal(vec![5, 0], 7), 5);
    }

    #[test]
    fn a_fifth_of_the_blocks_is_to_be_emptied() {
        assert_eq!(emptiest(&[5, 0, 3, 4, 9, 8]), [false, false, true, false, false, false]);
    }

    #[test]
    fn runs_of_any_order_keep_their_contents() {
        let moved = Ours::with(256 << 20, 1, |ours| {
            crew::alone(ours, || {
                let runs = compaction(ours, &MIXED, 1)?;
                let objects = Objects::fill(ours, &MIXED, 2)?;
                objects.check()?;
                // A page with the content of another is found.
                let copies = objects.apart(|block| block % 2 == 0);
                objects.copy_us(&copies);
                assert!(!copies.is_empty() && objects.check().is_err());
                objects.copy_apart_us(&copies);
                objects.check()?;
                objects.free(|_| true)?;
                Ok(runs[0].moved_pages)
            })?
        });
        assert!(moved.expect("a small machine") > Some(1000));
    }
}
