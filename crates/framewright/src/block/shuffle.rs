//! The shuffle (SPEC 4): free blocks of 4 MiB are handed out in an order that nobody can guess.
//!
//! While it is on nothing merges beyond that order, larger pieces are gathered from neighbours
//! (`gather`), and a coin decides which end of its list a block joins when it is freed. The pass
//! puts a whole list into a random order, each equally likely as far as the generator goes: Fisher
//! and Yates' algorithm over the numbers of its blocks, in memory of the zone's tables that means
//! nothing at the moment, and then the links are written anew.
//!
//! Orders of memory: Relaxed everywhere: words are written under the zone lock, or by who has the
//! memory alone, and the lock's Acquire and Release order them. Who looks without it takes what he
//! finds for a hint.

use super::lists::{FreeLists, NONE};
use super::state::{BlockState, MigrateType, State};
use super::table::{BlockTable, blocks_of};
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order};
use core::ops::Range;

/// The order that is shuffled: Linux's largest.
pub(crate) const SHUFFLE_ORDER: Order = match Order::new(BLOCK_ORDER + 1) {
    Some(order) => order,
    None => Order::BLOCK,
};
const STEP: u32 = blocks_of(SHUFFLE_ORDER);

/// A generator of random numbers, and coins.
pub(crate) struct Chance {
    state: u64,
    coins: u64,
    left: u32,
}

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed, coins: 0, left: 0 }
    }

    /// 64 random bits (`SplitMix64`: a counter, well mixed).
    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A coin; a word of bits lasts for 64 of them.
    pub(crate) const fn coin(&mut self) -> bool {
        if self.left == 0 {
            (self.coins, self.left) = (self.next(), 64);
        }
        self.left -= 1;
        let coin = self.coins & 1 != 0;
        self.coins >>= 1;
        coin
    }

    /// A number below `limit`, which is not 0; all are equally likely.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        // The upper half of a product is even over the numbers, but for a remainder that is thrown
        // again.
        let threshold = limit.wrapping_neg() % limit;
        loop {
            let product = (self.next() >> 32) * u64::from(limit);
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            let low = product as u32;
            if low >= threshold {
                return u32::try_from(product >> 32).unwrap_or(0);
            }
        }
    }
}

/// Numbers of blocks, two in a word of memory that nobody needs meanwhile.
#[derive(Clone, Copy)]
struct Scratch<'a>(&'a [AtomicU64]);

impl Scratch<'_> {
    const fn len(self) -> usize {
        self.0.len() * 2
    }

    fn get(self, place: usize) -> u32 {
        let word = self.0[place / 2].load(Ordering::Relaxed) >> (place % 2 * 32);
        u32::try_from(word & u64::from(u32::MAX)).unwrap_or(NONE)
    }

    fn set(self, place: usize, index: u32) {
        let (word, shift) = (&self.0[place / 2], place % 2 * 32);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(index) << shift, Ordering::Relaxed);
    }
}

/// How many blocks ahead of the one that is linked memory is asked for.
const AHEAD: usize = 16;

/// Puts one list of blocks of [`SHUFFLE_ORDER`] into a random order. `segments` are those of the
/// zone. Without enough `scratch`, a half word for each, nothing happens and it says false.
pub(crate) fn shuffle_list(
    lists: &mut FreeLists,
    table: &BlockTable,
    segments: impl Iterator<Item = Range<u32>>,
    scratch: &[AtomicU64],
    (migrate_type, reported): (MigrateType, bool),
) -> bool {
    let scratch = Scratch(scratch);
    let blocks = lists.blocks(migrate_type, SHUFFLE_ORDER, reported) as usize;
    if blocks < 2 {
        return true;
    }
    if blocks > scratch.len() {
        return false;
    }
    let head = BlockState::head(State::Free, SHUFFLE_ORDER, migrate_type);
    let head = if reported { head.with(BlockState::REPORTED) } else { head };
    // Positions are aligned as blocks are: buddies are computed on indices. In the order of the
    // table, as the list's own would be a miss each.
    let places = segments.flat_map(|segment| {
        (segment.start.next_multiple_of(STEP)..segment.end).step_by(STEP as usize)
    });
    let mut found = 0;
    for index in places {
        if found < blocks && table.is_ready(index) && table.state(index) == head {
            scratch.set(found, index);
            found += 1;
        }
    }
    for last in 1..found {
        let range = u32::try_from(last + 1).unwrap_or(u32::MAX);
        let other = lists.chance.below(range) as usize;
        let (mine, theirs) = (scratch.get(last), scratch.get(other));
        scratch.set(last, theirs);
        scratch.set(other, mine);
    }
    let mut previous = NONE;
    for place in 0..found {
        if place + AHEAD < found {
            table.prefetch(scratch.get(place + AHEAD), SHUFFLE_ORDER);
        }
        let next = if place + 1 < found { scratch.get(place + 1) } else { NONE };
        let index = scratch.get(place);
        table.entry(index).set_links(previous, next);
        previous = index;
    }
    lists.replace_ends(migrate_type, SHUFFLE_ORDER, reported, (scratch.get(0), previous));
    true
}

/// Takes the free blocks that make an aligned piece of `order`, above [`SHUFFLE_ORDER`], from
/// `index` on, if all of it is free and may be had for `migrate_type`.
pub(crate) fn gather(
    lists: &mut FreeLists,
    table: &BlockTable,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
) -> bool {
    let end = index + blocks_of(order);
    let mut place = index;
    while place < end {
        let Some((head, state)) = table.head_of(place) else { return false };
        let own = state.migrate_type();
        let fits = own == migrate_type || migrate_type.fallbacks().contains(&own);
        if head != place || !state.is(State::Free) || !fits {
            return false;
        }
        place += blocks_of(state.order());
    }
    if place != end {
        return false;
    }
    place = index;
    while place < end {
        let size = blocks_of(table.state(place).order());
        lists.remove(table, place);
        place += size;
    }
    lists.end_reported(index, order, lists.unreported_pages() != 0);
    table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::lists::Position;
    use crate::block::{BlockEntry, FreeMap};
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn table(blocks: usize) -> BlockTable {
        let groups = blocks.div_ceil(512);
        let entry = || BlockEntry::new();
        let heads: Vec<BlockEntry> = (0..groups).map(|_| entry()).collect();
        let entries: Vec<BlockEntry> = (0..blocks).map(|_| entry()).collect();
        let maps: Vec<FreeMap> = (0..blocks).map(|_| FreeMap::new()).collect();
        let ready: Vec<AtomicU64> =
            (0..groups.div_ceil(64)).map(|_| AtomicU64::new(u64::MAX)).collect();
        BlockTable::new(heads.leak(), entries.leak(), maps.leak(), ready.leak())
    }

    fn order_of(lists: &FreeLists, table: &BlockTable) -> Vec<u32> {
        let (mut order, mut previous) = (Vec::new(), NONE);
        let mut index = lists.first(MigrateType::Movable, SHUFFLE_ORDER, false);
        while index != NONE {
            assert_eq!(table.links(index).0, previous);
            order.push(index);
            (previous, index) = (index, table.links(index).1);
        }
        order
    }

    #[test]
    fn all_orders_of_four_blocks_are_equally_likely() {
        // With holes between them, and a place where another type begins.
        let table = table(40);
        let blocks = [4, 10, 12, 30];
        let mut lists = FreeLists::EMPTY;
        lists.chance = Chance::new(42);
        for index in blocks {
            lists.insert(&table, index, SHUFFLE_ORDER, MigrateType::Movable, Position::Tail);
        }
        lists.insert(&table, 6, SHUFFLE_ORDER, MigrateType::Unmovable, Position::Tail);
        let mut seen: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for _ in 0..24_000 {
            let scratch = [const { AtomicU64::new(u64::MAX) }; 2];
            assert!(shuffle_list(
                &mut lists,
                &table,
                [2..8, 10..40].into_iter(),
                &scratch,
                (MigrateType::Movable, false)
            ));
            *seen.entry(order_of(&lists, &table)).or_default() += 1;
        }
        assert_eq!(seen.len(), 24);
        assert!(seen.values().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_list_keeps_its_blocks() {
        let table = table(2048);
        let mut lists = FreeLists::EMPTY;
        lists.chance = Chance::new(7);
        let blocks: Vec<u32> = (0..2048).step_by(2).filter(|index| index % 14 != 0).collect();
        for &index in &blocks {
            lists.insert(&table, index, SHUFFLE_ORDER, MigrateType::Movable, Position::Tail);
        }
        assert_eq!(order_of(&lists, &table), blocks);
        let mut orders = Vec::new();
        let scratch: Vec<AtomicU64> = (0..1024).map(AtomicU64::new).collect();
        let little = &scratch[..blocks.len() / 2 - 1];
        assert!(!shuffle_list(
            &mut lists,
            &table,
            core::iter::once(0..2048),
            little,
            (MigrateType::Movable, false)
        ));
        assert_eq!(order_of(&lists, &table), blocks, "too little room");
        for _ in 0..3 {
            assert!(shuffle_list(
                &mut lists,
                &table,
                core::iter::once(0..2048),
                &scratch,
                (MigrateType::Movable, false)
            ));
            let mut order = order_of(&lists, &table);
            let neighbours = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 2).count();
            assert!(neighbours < 16, "{neighbours} of {} are where they were", blocks.len());
            orders.push(order.clone());
            order.sort_unstable();
            assert_eq!(order, blocks);
        }
        assert_ne!(orders[0], orders[1]);
        // The ends are ends.
        while let Some((found, false)) = lists.smallest(MigrateType::Movable, SHUFFLE_ORDER) {
            let index = lists.next(MigrateType::Movable, found, false);
            lists.remove(&table, index);
        }
        assert_eq!(lists.free_pages(), 0);
    }

    #[test]
    fn numbers_and_coins_are_even() {
        let mut chance = Chance::new(1);
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[chance.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        let heads = (0..64_000).filter(|_| chance.coin()).count();
        assert!((31_300..32_700).contains(&heads), "{heads}");
        assert!((0..100).all(|_| chance.below(1) == 0));
    }
}
