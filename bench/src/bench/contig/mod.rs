//! `framewright-bench contig`: memory that moves, beside a plain copy of the same pages.

mod objects;

use super::alloc::crew;
use super::common::failed;
use super::section::{Column, Section, Table, shown, table};
use super::subject::Ours;
use crate::progress;
use crate::rows::{Contig, Rows, Spread};
use framewright::manager::{Budget, ContiguousRequest, VacateError};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_cli::error::Error;
use framewright_cli::grid::microseconds;
use objects::Objects;
use std::time::Instant;

/// What is timed, in words that go with the numbers.
const TIMED: &str = "\
time of the call, on one thread. Memory is filled with movable pages that are all written to; each \
repetition is a machine of its own and another seed. compact: a fifth is freed by chance and all \
blocks are compacted; over ideal is what was moved over what the emptiest blocks held, as many as \
became whole. vacate: the range is all in use, a quarter of the pages behind it; a page in its \
middle is pinned in the second row, and the time is that till it is named. over copy is over a \
plain copy of the same pages from and to the same places, right after it. get: allocations in one \
run before anything is compacted. find: on a machine of 1 TiB, where every other block has every \
second page in use; 64 calls a repetition. No page descriptors";

const PERCENT_USED: usize = 80;
const MIB: u64 = 1 << 20;
/// Calls of a search in a repetition.
const CALLS: u32 = 64;

/// How much of everything.
struct Scale {
    gib: u64,
    repetitions: u64,
    vacated_mib: u64,
    long_mib: u64,
    searched_gib: u64,
}

const FULL: Scale =
    Scale { gib: 4, repetitions: 3, vacated_mib: 512, long_mib: 512, searched_gib: 1024 };
const QUICK: Scale =
    Scale { gib: 2, repetitions: 2, vacated_mib: 256, long_mib: 256, searched_gib: 64 };

/// Measures all of it.
///
/// # Errors
/// A machine that this process cannot stand in for, or memory that did not move as it must.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let names = [
        "compact".to_owned(),
        format!("vacate {} MiB", scale.vacated_mib),
        "vacate, a page pinned".to_owned(),
        "get 64 MiB".to_owned(),
        format!("get {} MiB", scale.long_mib),
    ];
    let mut runs: Vec<Vec<Run>> = names.iter().map(|_| Vec::new()).collect();
    for seed in 1..=scale.repetitions {
        progress::step(&format_args!("contig: {} GiB, {seed}", scale.gib))?;
        // One machine for all of it: its memory is this process's until that ends.
        let of_seed = Ours::with(scale.gib << 30, 1, |ours| {
            crew::alone(ours, || {
                let mut of_seed = compaction(ours, seed)?;
                of_seed.extend(vacating(ours, &scale, seed)?);
                of_seed.extend(getting(ours, &scale, seed)?);
                Ok(of_seed)
            })?
        })?;
        runs.iter_mut().zip(of_seed).for_each(|(runs, run)| runs.push(run));
    }
    let rows = names.iter().zip(&runs);
    let mut rows: Vec<Contig> = rows.map(|(name, runs)| row(name, scale.gib, runs)).collect();
    progress::step(&"contig: find")?;
    let found = Ours::with(scale.searched_gib << 30, 1, |ours| {
        crew::alone(ours, || searching(ours, scale.repetitions))?
    })?;
    rows.push(row("find 64 MiB", scale.searched_gib, &found));
    let repetitions = usize::try_from(scale.repetitions).unwrap_or(0);
    Ok(Section::of(repetitions, TIMED, &rows))
}

/// One call of one kind.
#[derive(Default)]
struct Run {
    call_us: f64,
    moved_pages: Option<u64>,
    copy_us: Option<f64>,
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
        copy_ratio: spread(&|run| Some(run.call_us / run.copy_us?)),
        ideal_ratio: spread(&|run| Some(moved(run)? / run.ideal_pages? as f64)),
        whole_before_percent: spread(&|run| Some(run.whole_percent?[0])),
        whole_after_percent: spread(&|run| Some(run.whole_percent?[1])),
    }
}

/// The result, and microseconds.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let result = work();
    (result, begun.elapsed().as_secs_f64() * 1e6)
}

/// Blocks that are free as a whole, and the share of free memory that is in them.
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

fn compaction(ours: &Ours<'_>, seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours)?;
    objects.thin_out(PERCENT_USED, seed)?;
    let (whole_before, percent_before) = whole(ours)?;
    let (used, places) = (objects.used(), objects.places());
    let moving = ours.manager().moving().by(&objects);
    let (done, call_us) = timed(|| moving.compact(None, u64::MAX, Budget::UNLIMITED));
    let done = done.map_err(failed)?;
    let (whole_after, percent_after) = whole(ours)?;
    objects.check()?;
    let moves = objects.moves_since(&places);
    let ((), copy_us) = timed(|| objects.copy_again(&moves));
    objects.free(|_| true)?;
    Ok(vec![Run {
        call_us,
        moved_pages: Some(done.moved.moved_pages),
        copy_us: Some(copy_us),
        ideal_pages: Some(ideal(used, whole_after.saturating_sub(whole_before))),
        whole_percent: Some([percent_before, percent_after]),
    }])
}

/// What the emptiest blocks hold that hold anything.
fn ideal(mut used: Vec<u64>, blocks: u64) -> u64 {
    used.retain(|&used| used != 0);
    used.sort_unstable();
    used.into_iter().take(usize::try_from(blocks).unwrap_or(usize::MAX)).sum()
}

/// The range begins at five eighths of memory, behind a PC's hole, and what is behind it has room.
fn vacating(ours: &Ours<'_>, scale: &Scale, seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours)?;
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
    let (moved, call_us) = timed(|| moving.vacate(range, Budget::UNLIMITED));
    let moved = moved.map_err(|error| failed(format!("{error:?}")))?;
    objects.check()?;
    let moves = objects.moves_since(&places);
    let ((), copy_us) = timed(|| objects.copy_again(&moves));
    let vacated = Run {
        call_us,
        moved_pages: Some(moved.moved_pages),
        copy_us: Some(copy_us),
        ..Run::default()
    };
    ours.manager().isolation().unisolate(range).map_err(failed)?;
    let before = u32::try_from(range.start.start().0).map_err(failed)?;
    let next = BlockRange { start: BlockNumber(start.0 - blocks), end: range.start };
    let middle = u32::try_from(middle).map_err(failed)? - blocks * 512;
    debug_assert!(middle < before);
    objects.pin(Some(middle));
    let (refused, call_us) = timed(|| moving.vacate(next, Budget::UNLIMITED));
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
    Ok(vec![vacated, pinned])
}

fn getting(ours: &Ours<'_>, scale: &Scale, seed: u64) -> Result<Vec<Run>, Error> {
    let objects = Objects::fill(ours)?;
    objects.thin_out(PERCENT_USED, seed)?;
    let moving = ours.manager().moving().by(&objects);
    let mut runs = Vec::new();
    for mib in [64, scale.long_mib] {
        let (before, places) = (ours.manager().moving().events(), objects.places());
        let request = ContiguousRequest::new((mib * MIB) >> 12);
        let (got, call_us) = timed(|| moving.allocate_contiguous(&request, Budget::UNLIMITED));
        // It stays in use until the machine is gone.
        got.map_err(failed)?;
        objects.check()?;
        let moved = ours.manager().moving().events().moved_pages - before.moved_pages;
        let moves = objects.moves_since(&places);
        let ((), copy_us) = timed(|| objects.copy_again(&moves));
        let copy_us = Some(copy_us).filter(|_| moved != 0);
        runs.push(Run { call_us, moved_pages: Some(moved), copy_us, ..Run::default() });
    }
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

const COLUMNS: [Column<Contig>; 8] = [
    (">managed", |row| format!("{} GiB", row.managed_gib)),
    ("<call", |row| row.what.clone()),
    (">time", |row| shown(row.call_us.middle, microseconds)),
    (">moved pages", |row| shown(row.moved_pages.middle, |pages| format!("{pages:.0}"))),
    (">over copy", |row| ratio(row.copy_ratio)),
    (">over ideal", |row| ratio(row.ideal_ratio)),
    (">whole before", |row| percent(row.whole_before_percent)),
    (">after", |row| percent(row.whole_after_percent)),
];

/// Rows for people.
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
}
