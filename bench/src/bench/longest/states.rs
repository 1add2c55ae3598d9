//! States of memory that are worst for searches.

use crate::bench::random::Random;
use crate::bench::watched::Watched;
use framewright::Manager;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::MigrateType;

/// The state of memory to make.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Half of the blocks have every second page free, the others are free.
    EverySecond,
    /// One page of each block is in use.
    OneLeft,
    /// Everything below the middle of memory is in use, everything above is free.
    Below,
    /// One of 64 blocks has every second page free, everything else is in use.
    Full,
    /// Every second block is free; the blocks were freed in random order.
    Scattered,
}

pub const ALL: [State; 5] =
    [State::EverySecond, State::OneLeft, State::Below, State::Full, State::Scattered];

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            Self::EverySecond => "every second page of half the blocks",
            Self::OneLeft => "one page left in each block",
            Self::Below => "lower half in use",
            Self::Full => "nearly full",
            Self::Scattered => "every second block, at random",
        }
    }

    /// Puts free memory into this state.
    pub fn make(self, manager: &Manager<Watched>) {
        let mut blocks = Vec::new();
        while let Ok(start) = manager.allocate_order(Order::BLOCK, MigrateType::Movable) {
            blocks.push(start.0);
        }
        blocks.sort_unstable();
        let middle = blocks.get(blocks.len() / 2).copied().unwrap_or(0);
        if self == Self::Scattered {
            Random::new(1).shuffle(&mut blocks);
        }
        for &start in &blocks {
            let even = (start / PAGES_PER_BLOCK).is_multiple_of(2);
            let whole = || give_back(manager, start, PAGES_PER_BLOCK);
            match self {
                Self::EverySecond if even => every_second(manager, start),
                Self::EverySecond => whole(),
                Self::OneLeft => {
                    (1..PAGES_PER_BLOCK).for_each(|page| give_back(manager, start + page, 1));
                }
                Self::Below if start >= middle => whole(),
                Self::Full if (start / PAGES_PER_BLOCK).is_multiple_of(64) => {
                    every_second(manager, start);
                }
                Self::Scattered if even => whole(),
                Self::Below | Self::Full | Self::Scattered => {}
            }
        }
        let drained = manager.drain();
        assert!(drained.is_ok(), "a CPU's cache held a frame that was not allocated: {drained:?}");
    }
}

fn every_second(manager: &Manager<Watched>, start: u64) {
    for page in (0..PAGES_PER_BLOCK).step_by(2) {
        give_back(manager, start + page, 1);
    }
}

/// Frees pages that are held.
pub fn give_back(manager: &Manager<Watched>, start: u64, pages: u64) {
    let range = PfnRange { start: Pfn(start), end: Pfn(start + pages) };
    // SAFETY: the pages are held, freed once, and not looked at afterwards (invariant 42).
    let freed = unsafe { manager.free(range) };
    assert!(freed.is_ok(), "{range:?} is held and cannot be freed: {freed:?}");
}
