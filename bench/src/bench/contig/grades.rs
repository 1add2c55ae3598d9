//! What grades cost allocations: operations on a machine without grades and on one where a tenth of
//! memory has a grade, in turn.

use super::timed;
use crate::bench::common::failed;
use crate::bench::subject::{Ours, Subject};
use crate::progress;
use crate::rows::{Contig, Spread};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType};
use framewright_cli::error::Error;
use std::hint::black_box;

const GIB: u64 = 8;
/// The percentage of memory that has a grade, and how many blocks at the end of memory have none,
/// as the last ones may be the manager's own.
const GRADED_PERCENT: u64 = 10;
const UNGRADED_AT_THE_END: u32 = 16;
/// The pages that are in use at once: less than the memory with a grade.
const SET_PAGES: usize = 1 << 17;
const ORDERS: [Order; 2] = [Order::PAGE, Order::BLOCK];
/// The migrate types that are allocated, and the grade of the other memory.
const CASES: [(MigrateType, Grade, &str); 2] = [
    (MigrateType::Movable, Grade::MovableOnly, "movable beside movable-only"),
    (MigrateType::Unmovable, Grade::Removable, "unmovable beside removable"),
];
/// The beginning of the names of these rows.
pub const NAME: &str = "grades, ";

/// What to allocate, and how.
#[derive(Clone, Copy)]
struct Work {
    order: Order,
    migrate_type: MigrateType,
    /// The number of runs that are in use at once.
    set: usize,
    operations: usize,
}

/// Measures this many turns of this many operations.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or memory is refused.
pub fn measure(turns: usize, operations: usize) -> Result<Vec<Contig>, Error> {
    let mut rows = Vec::new();
    for (migrate_type, grade, name) in CASES {
        progress::step(&format_args!("contig: {name}"))?;
        Ours::with(GIB << 30, 1, |plain| {
            Ours::with(GIB << 30, 1, |graded| {
                give_grade(graded, grade)?;
                for (order, bulk) in
                    ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)])
                {
                    let set = if bulk { (SET_PAGES >> order.get()).min(operations) } else { 1 };
                    let work = Work { order, migrate_type, set, operations };
                    let [us, ratios] = by_turns([plain, graded], turns, work)?;
                    let pattern = if bulk { "bulk" } else { "pair" };
                    rows.push(Contig {
                        what: format!("{NAME}{name}, order {}, {pattern}", order.get()),
                        managed_gib: GIB,
                        runs: (turns as u64).into(),
                        call_us: Spread::of(us),
                        plain_ratio: Spread::of(ratios),
                        ..Contig::default()
                    });
                }
                Ok(())
            })
        })?;
    }
    Ok(rows)
}

/// The time of an operation on the machine with grades, and the ratio to that on the machine
/// without.
fn by_turns(machines: [&Ours<'_>; 2], turns: usize, work: Work) -> Result<[Vec<f64>; 2], Error> {
    let [mut graded, mut ratios] = [Vec::new(), Vec::new()];
    // The first turn warms up.
    for turn in 0..=turns {
        let mut us = [0.0; 2];
        for which in [turn % 2, 1 - turn % 2] {
            us[which] = operation_us(machines[which], work)?;
        }
        if turn != 0 {
            graded.push(us[1]);
            ratios.push(us[1] / us[0]);
        }
    }
    Ok([graded, ratios])
}

/// Gives blocks near the end of memory a grade.
fn give_grade(ours: &Ours<'_>, grade: Grade) -> Result<(), Error> {
    let _seat = ours.sit(0)?;
    let manager = ours.manager();
    let last =
        manager.views().map(|zone| zone.span().end).max().ok_or_else(|| failed("no zone"))?;
    let pages: u64 = manager.views().map(|zone| zone.managed_pages()).sum();
    let blocks = u32::try_from(pages * GRADED_PERCENT / 100 / PAGES_PER_BLOCK).map_err(failed)?;
    let end = BlockNumber::containing(last).0.saturating_sub(UNGRADED_AT_THE_END);
    let range =
        BlockRange { start: BlockNumber(end.saturating_sub(blocks)), end: BlockNumber(end) };
    manager.moving().set_grade(range, grade).map_err(failed)
}

/// The microseconds of an allocation or a free, with this many of each in a row.
fn operation_us(ours: &Ours<'_>, work: Work) -> Result<f64, Error> {
    let Work { order, migrate_type, set, operations } = work;
    let _seat = ours.sit(0)?;
    let passes = (operations / set).max(1);
    let mut held: Vec<Pfn> = Vec::with_capacity(set);
    let (refused, us) = timed(|| {
        let mut refused = 0;
        for _ in 0..passes {
            for _ in 0..set {
                match black_box(ours.manager().allocate_order(order, migrate_type)) {
                    Ok(start) => held.push(start),
                    Err(_) => refused += 1,
                }
            }
            held.drain(..).for_each(|start| ours.put(start.0, order));
        }
        refused
    });
    ours.drain();
    if refused != 0 {
        return Err(failed(format!("{refused} requests of {order:?} were refused")));
    }
    Ok(us / (passes * set * 2) as f64)
}
