//! To which lot of a CPU's cache a freed run belongs, as far as its block decides that: four bits
//! for each block of a zone.
//!
//! They follow from the block's state (invariant 53). But the entries of four blocks share a cache
//! line, and a state changes whenever frames come or go: a CPU that read the states of what it
//! freed waited for lines that others had just written. The bits change only when the answer does,
//! and those of 128 blocks share a line.
//!
//! ```text
//! state of the block                                    bits   runs of orders 0..3   4..8     9
//! split, its free frames may be handed out          1 + type          type           type     -
//! split, movable, more than a quarter free              4             BACK           type     -
//! allocated whole, order 9, or waiting to merge     5 + type            -              -    type
//! anything else, larger blocks among them               0               -              -      -
//! ```
//!
//! Types that only movable requests may use count as movable, but their frames never wait to go
//! BACK. Where there is no lot, the zone alone takes runs back.
//!
//! The bits mean something only in ready groups ([`BlockTable`](super::table::BlockTable)). They
//! are changed under the zone lock, together with the states, and read without it, by whoever owns
//! frames in the block.
//!
//! Orders of memory: Relaxed, as for states: the owner of frames was handed them after the state
//! was set.

use super::free_heads::GROUP;
use super::migrate_type::MigrateType;
use super::state::BlockState;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// The number of orders of which a CPU's cache keeps many runs in one word: 0..=3.
pub(crate) const WORD_ORDERS: u8 = 4;

/// A block is crowded while at most this many of its frames are free. The CPU that frees frames of
/// a crowded block may use them again.
const CROWDED_PAGES: u64 = PAGES_PER_BLOCK / 4;

/// The number of migrate types that are cached: the mergeable ones, which come first.
const TYPES: u8 = 3;

/// Which of a cache's stacks of an order a run is in: the one for requests of a migrate type, or
/// the one for frames that are to go back to the zone. It is a number because every free computes
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lot(u8);

impl Lot {
    /// The number of lots: one for each type, and one for what goes back.
    pub(crate) const COUNT: usize = TYPES as usize + 1;
    /// For runs that are to go back to the zone.
    pub(crate) const BACK: Self = Self(TYPES);
    /// For runs to be handed out to movable requests.
    pub(crate) const MOVABLE: Self = Self(MigrateType::Movable as u8);

    /// Returns the lot for requests of this type, if the type is cached at all.
    #[inline]
    pub(crate) const fn of_type(migrate_type: MigrateType) -> Option<Self> {
        let number = migrate_type as u8;
        if number < TYPES { Some(Self(number)) } else { None }
    }

    /// Returns all lots.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=TYPES).map(Self)
    }

    /// Its place among the lots of an order.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of bits for a block.
const BITS: u32 = 4;
/// The number of blocks whose bits are in a word.
const IN_WORD: u32 = u64::BITS / BITS;
/// The bits of a block in the lowest place of a word.
const MASK: u64 = (1 << BITS) - 1;
/// The number of words of a group.
const WORDS_OF_GROUP: usize = (GROUP / IN_WORD) as usize;

/// The bits of a movable split block of which much is free.
const ROOMY: u8 = TYPES + 1;
/// The bits of a block that is allocated whole, less its type.
const WHOLE_BASE: u8 = TYPES + 2;

/// The values that the bits of a block may have are below this number.
const KINDS: usize = 8;
const _: () = assert!(WHOLE_BASE as usize + TYPES as usize <= KINDS, "all values have room");

/// The lot of a run plus one, or zero for none, by its order and the bits of its block. A table, as
/// nothing can predict the order or the block.
static LOTS: [[u8; KINDS]; BLOCK_ORDER as usize + 1] = {
    let mut lots = [[0; KINDS]; BLOCK_ORDER as usize + 1];
    let mut order = 0;
    while order < lots.len() {
        let base = if order < BLOCK_ORDER as usize { 1 } else { WHOLE_BASE as usize };
        let mut number = 0;
        while number < TYPES {
            lots[order][base + number as usize] = number + 1;
            number += 1;
        }
        if order < BLOCK_ORDER as usize {
            let is_kept_by_word = order < WORD_ORDERS as usize;
            let roomy = if is_kept_by_word { Lot::BACK } else { Lot::MOVABLE };
            lots[order][ROOMY as usize] = roomy.0 + 1;
        }
        order += 1;
    }
    lots
};

/// Returns the number of words for a table of this many entries.
pub(crate) const fn words_for(entries: usize) -> usize {
    if cfg!(feature = "smp") { entries.div_ceil(IN_WORD as usize) } else { 0 }
}

/// The lots of a zone's blocks. See the module documentation. This is a handle: copies refer to the
/// same words. Without caches of CPUs there are no words.
#[derive(Clone, Copy)]
pub(crate) struct LotTable {
    #[cfg(feature = "smp")]
    words: &'static [AtomicU64],
}

impl LotTable {
    pub(crate) const EMPTY: Self = Self::new(&[]);

    /// Uses `words`, which may have any content; there are [`words_for`] the table's entries.
    #[cfg_attr(not(feature = "smp"), expect(unused_variables, reason = "there are none"))]
    pub(crate) const fn new(words: &'static [AtomicU64]) -> Self {
        Self {
            #[cfg(feature = "smp")]
            words,
        }
    }

    #[cfg_attr(not(feature = "smp"), expect(clippy::unused_self, reason = "there are none"))]
    const fn words(&self) -> &'static [AtomicU64] {
        #[cfg(feature = "smp")]
        return self.words;
        #[cfg(not(feature = "smp"))]
        return &[];
    }

    /// Returns the bits for a block with this state.
    #[inline]
    const fn bits(state: BlockState) -> u8 {
        let type_number = state.type_number();
        // Blocks that only movable requests may use count as movable.
        let lot = if type_number < TYPES { type_number } else { Lot::MOVABLE.0 };
        if state.is_available_split() {
            let is_roomy = state.is_of(MigrateType::Movable) && state.free_pages() > CROWDED_PAGES;
            if is_roomy { ROOMY } else { 1 + lot }
        } else if state.is_somebodys_block() {
            WHOLE_BASE + lot
        } else {
            0
        }
    }

    /// Returns the lot of a run of `order`, at most 9, in the block at `index`, whose group is
    /// ready. `None` if only the zone can take it back.
    #[inline(always)]
    pub(super) fn get(&self, index: u32, order: Order) -> Option<Lot> {
        let word = self.words().get((index / IN_WORD) as usize)?.load(Ordering::Relaxed);
        let bits = word >> (index % IN_WORD * BITS);
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
        let kind = bits as usize % KINDS;
        LOTS.get(usize::from(order.get()))?[kind].checked_sub(1).map(Lot)
    }

    /// Returns which of the lowest bits of `word` are wrong for a block with this state.
    #[inline]
    const fn wrong_bits(word: u64, state: BlockState) -> u64 {
        (word ^ Self::bits(state) as u64) & MASK
    }

    /// Makes the bits of the block at `index` those of `state`.
    #[inline]
    pub(super) fn set(&self, index: u32, state: BlockState) {
        let Some(word) = self.words().get((index / IN_WORD) as usize) else { return };
        let shift = index % IN_WORD * BITS;
        let old = word.load(Ordering::Relaxed);
        let wrong = Self::wrong_bits(old >> shift, state);
        // Written only if they change, so that other CPUs keep their copies of the line.
        if wrong != 0 {
            word.store(old ^ wrong << shift, Ordering::Relaxed);
        }
    }

    /// Returns whether the bits of the block at `index`, whose group is ready, are those of
    /// `state`.
    pub(super) fn matches(&self, index: u32, state: BlockState) -> bool {
        self.words().get((index / IN_WORD) as usize).is_none_or(|word| {
            let word = word.load(Ordering::Relaxed) >> (index % IN_WORD * BITS);
            Self::wrong_bits(word, state) == 0
        })
    }

    /// Returns whether runs of a block with this state are in no lot.
    pub(super) const fn is_in_none(state: BlockState) -> bool {
        Self::bits(state) == 0
    }

    /// Returns whether two states of a block may have different bits. May say so of two that do
    /// not, which is cheaper than comparing the bits.
    #[inline]
    pub(super) const fn may_differ(one: BlockState, other: BlockState) -> bool {
        cfg!(feature = "smp") && (one.differs_in_kind(other) || Self::differ_in_room(one, other))
    }

    /// [`may_differ`](Self::may_differ) for two states of a split block that differ only in what is
    /// free.
    #[inline]
    pub(super) const fn differ_in_room(one: BlockState, other: BlockState) -> bool {
        cfg!(feature = "smp")
            && (one.free_pages() > CROWDED_PAGES) != (other.free_pages() > CROWDED_PAGES)
    }

    /// [`set`](Self::set) for all blocks of `range`, which have one state.
    #[inline(never)]
    pub(super) fn set_all(&self, range: Range<u32>, state: BlockState) {
        if !cfg!(feature = "smp") {
            return;
        }
        let bits = u64::from(Self::bits(state)) * (u64::MAX / MASK);
        let mut index = range.start;
        while index < range.end
            && let Some(word) = self.words().get((index / IN_WORD) as usize)
        {
            let first = index % IN_WORD;
            let count = (IN_WORD - first).min(range.end - index);
            let mask = u64::MAX >> (u64::BITS - count * BITS) << (first * BITS);
            let old = word.load(Ordering::Relaxed);
            word.store(old ^ (old ^ bits) & mask, Ordering::Relaxed);
            index += count;
        }
    }

    /// Takes all blocks of the group that begins at `index` out of all lots, whatever the words
    /// hold.
    #[inline]
    pub(super) fn clear_group(&self, index: u32) {
        let clear = |word: &AtomicU64| word.store(0, Ordering::Relaxed);
        let words = self.words().get((index / IN_WORD) as usize..).unwrap_or(&[]);
        match words.first_chunk::<WORDS_OF_GROUP>() {
            Some(all) => all.iter().for_each(clear),
            None => words.iter().for_each(clear),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::block::State;
    use std::vec::Vec;

    fn words(count: usize, content: u64) -> &'static [AtomicU64] {
        (0..count).map(|_| AtomicU64::new(content)).collect::<Vec<_>>().leak()
    }

    /// The lot, spelled out.
    fn expected(state: BlockState, order: Order) -> Option<Lot> {
        let may_be = if order < Order::BLOCK {
            state.is_available_split()
        } else {
            state.is_somebodys_block()
        };
        let movable = state.migrate_type() == MigrateType::Movable;
        match (may_be, Lot::of_type(state.migrate_type())) {
            (false, _) => None,
            _ if order.get() < 4 && movable && state.free_pages() > 128 => Some(Lot::BACK),
            (true, lot) => Some(lot.unwrap_or(Lot::MOVABLE)),
        }
    }

    /// A state of each kind.
    fn states() -> Vec<BlockState> {
        let kinds = [
            State::Inner,
            State::Free,
            State::Whole,
            State::Split,
            State::Reserved,
            State::Offline,
            State::Unaccepted,
            State::Pool,
            State::Isolated,
            State::Deferred,
            State::Reporting,
            State::Accepting,
        ];
        let mut states = Vec::new();
        for kind in kinds {
            for migrate_type in MigrateType::ALL {
                for order in [Order::BLOCK, Order::MAX] {
                    let head = BlockState::head(kind, order, migrate_type);
                    let marks =
                        [0, BlockState::ISOLATED, BlockState::KEPT, BlockState::UNDESCRIBED];
                    states.extend(marks.map(|mark| head.with(mark)));
                    states.extend([0, 1, 128, 129, 512].map(|free| head.with_free_pages(free)));
                }
            }
        }
        states
    }

    #[test]
    fn lots_are_those_of_the_state_and_of_no_other_block() {
        for content in [0, u64::MAX] {
            let lots = LotTable::new(words(3, content));
            // The neighbours of the block in the middle of a word, and those of a word's ends.
            for at in [0, 15, 16, 23, 47] {
                for state in states() {
                    lots.set(at, state);
                    for order in (0..=9).filter_map(Order::new) {
                        let got = lots.get(at, order);
                        assert_eq!(got, expected(state, order), "{state:?} {order:?}");
                    }
                    assert!(lots.matches(at, state));
                }
                lots.set(at, BlockState::INNER);
                let word = lots.words()[(at / IN_WORD) as usize].load(Ordering::Relaxed);
                assert_eq!(word, content & !(MASK << (at % IN_WORD * BITS)));
                lots.words()[(at / IN_WORD) as usize].store(content, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn states_with_different_bits_differ() {
        for one in states() {
            for other in states() {
                let same = LotTable::bits(one) == LotTable::bits(other);
                assert!(same || LotTable::may_differ(one, other), "{one:?} {other:?}");
                if !one.differs_in_kind(other) {
                    assert!(same || LotTable::differ_in_room(one, other), "{one:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_range_is_set_as_its_blocks_are() {
        let whole = BlockState::head(State::Whole, Order::BLOCK, MigrateType::Reclaimable);
        for start in 0..34 {
            for end in start..=48 {
                let (ranges, blocks) = (LotTable::new(words(3, 0xa5 << 20)), words(3, 0xa5 << 20));
                ranges.set_all(start..end, whole);
                (start..end).for_each(|index| LotTable::new(blocks).set(index, whole));
                let of = |words: &[AtomicU64]| -> Vec<u64> {
                    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
                };
                assert_eq!(of(ranges.words()), of(blocks), "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_group_is_cleared_and_no_other() {
        let lots = LotTable::new(words(WORDS_OF_GROUP * 2 + 3, u64::MAX));
        let zeros = || lots.words().iter().filter(|word| word.load(Ordering::Relaxed) == 0).count();
        lots.clear_group(2 * GROUP);
        assert_eq!(zeros(), 3, "the last group is short");
        lots.clear_group(0);
        assert_eq!(zeros(), 3 + WORDS_OF_GROUP);
        assert_eq!(lots.words()[WORDS_OF_GROUP].load(Ordering::Relaxed), u64::MAX);
    }
}
