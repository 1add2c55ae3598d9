//! `framewright-bench fragment`: how much free memory is left in whole 2 MiB blocks after long
//! random use.

use super::alloc::crew;
use super::page_set::PageSet;
use super::random::Random;
use super::section::{Column, Section, Table, shown, table};
use super::subject::{self, Buddy, Depot, Free, Ours, Subject};
use crate::bench::common::failed;
use crate::progress;
use crate::rows::{Fragment, Rows, Spread};
use framewright::units::{Order, PAGES_PER_BLOCK};
use framewright_cli::error::Error;

/// Describes what is done and counted, for readers of the numbers.
const DONE: &str = "\
one thread fills the memory page by page, frees half of the pages at random, then frees a random \
page and allocates one, twice as often as there are pages, then frees at random until a tenth \
stays allocated. Each repetition is another history, the same in every run of this program. A \
block is whole when none of its 512 pages is allocated, judged by the pages that were handed out, \
in the same way for all; own count is what the allocator itself counts as free in blocks of 2 MiB \
and more, with its per-CPU caches emptied";

/// The seed of each repetition.
const SEEDS: [u64; 3] = [1, 2, 3];
const MANAGED_GIB: u64 = 8;
const QUICK_GIB: u64 = 1;

/// Measures all allocators.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or an allocator did not do its task.
pub fn section(quick: bool) -> Result<Section, Error> {
    let managed_gib = if quick { QUICK_GIB } else { MANAGED_GIB };
    let bytes = managed_gib << 30;
    let rows = vec![
        row(managed_gib, |seed| Ours::with(bytes, 1, |ours| worn(ours, seed)))?,
        row(managed_gib, |seed| worn(&Buddy::new(bytes), seed))?,
        row(managed_gib, |seed| worn(&Depot::new(bytes)?, seed))?,
    ];
    let done = format!("nothing: {DONE}. {}", subject::CONDITIONS);
    Ok(Section::of(SEEDS.len(), done, &rows))
}

/// The state of an allocator's memory after one history, and the allocator's name.
fn worn<S: Subject>(subject: &S, seed: u64) -> Result<(&'static str, Outcome), Error> {
    progress::step(&format_args!("fragment: {}", S::NAME))?;
    let outcome = crew::alone(subject, || wear(subject, seed))?;
    let refused = || failed(format!("{} refused a page while half of them were free", S::NAME));
    Ok((S::NAME, outcome.ok_or_else(refused)?))
}

fn row(
    managed_gib: u64,
    run: impl Fn(u64) -> Result<(&'static str, Outcome), Error>,
) -> Result<Fragment, Error> {
    let runs = SEEDS.into_iter().map(run).collect::<Result<Vec<_>, _>>()?;
    let spread = |get: &dyn Fn(&Outcome) -> Option<f64>| {
        Spread::of(runs.iter().filter_map(|(_, outcome)| get(outcome)))
    };
    Ok(Fragment {
        allocator: runs.first().map_or("", |(name, _)| name).into(),
        managed_gib,
        allocated_percent: spread(&|run| Some(percent(run.allocated, run.used))),
        free_in_whole_blocks_percent: spread(&|run| {
            Some(percent(run.whole_pages, run.used - run.allocated))
        }),
        own_count_percent: spread(&|run| run.own.map(|own| percent(own.whole_pages, own.pages))),
    })
}

/// What is left of the memory.
struct Outcome {
    /// The pages that were allocated at the beginning.
    used: u64,
    /// The pages that are still allocated.
    allocated: u64,
    /// The free pages that are in whole blocks.
    whole_pages: u64,
    /// What became free since the memory was full, as the allocator counts it.
    own: Option<Free>,
}

/// Uses all memory for a while. Returns `None` if the allocator refuses a page that it must have.
fn wear<S: Subject>(subject: &S, seed: u64) -> Option<Outcome> {
    let mut random = Random::new(seed);
    let mut used = PageSet::default();
    while let Some(pfn) = subject.get(Order::PAGE) {
        assert!(used.insert(pfn), "frame {pfn} was allocated twice");
    }
    subject.drain();
    let free_when_full = subject.free();
    let mut held: Vec<u64> = used.pages().collect();
    random.shuffle(&mut held);
    let keep = held.len() / 2;
    held.drain(keep..).for_each(|pfn| subject.put(pfn, Order::PAGE));
    for _ in 0..used.len() * 2 {
        let place = random.below(held.len());
        subject.put(held[place], Order::PAGE);
        held[place] = subject.get(Order::PAGE)?;
    }
    random.shuffle(&mut held);
    let keep = usize::try_from(used.len() / 10).unwrap_or(0);
    held.drain(keep..).for_each(|pfn| subject.put(pfn, Order::PAGE));
    subject.drain();
    let mut allocated = PageSet::default();
    for &pfn in &held {
        assert!(allocated.insert(pfn), "frame {pfn} was allocated twice");
    }
    let whole = used.without(&allocated).whole_blocks().count() as u64;
    let own = subject.free().zip(free_when_full).map(|(now, full)| Free {
        pages: now.pages - full.pages,
        whole_pages: now.whole_pages.saturating_sub(full.whole_pages),
    });
    held.iter().for_each(|&pfn| subject.put(pfn, Order::PAGE));
    subject.drain();
    Some(Outcome {
        used: used.len(),
        allocated: allocated.len(),
        whole_pages: whole * PAGES_PER_BLOCK,
        own,
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}

fn of_hundred(spread: Spread) -> String {
    shown(spread.middle, |percent| format!("{percent:.2} %"))
}

const COLUMNS: [Column<Fragment>; 5] = [
    ("<allocator", |row| row.allocator.clone()),
    (">managed", |row| format!("{} GiB", row.managed_gib)),
    (">allocated", |row| of_hundred(row.allocated_percent)),
    (">free in whole blocks", |row| of_hundred(row.free_in_whole_blocks_percent)),
    (">own count", |row| of_hundred(row.own_count_percent)),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.fragment).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_stays_and_the_rest_is_counted() {
        let outcome = wear(&Buddy::new(64 << 20), 1).expect("it has the pages");
        assert_eq!((outcome.used, outcome.allocated), (16384, 1638));
        assert!(outcome.whole_pages <= 16384 - 1638 && outcome.own.is_none());
    }
}
