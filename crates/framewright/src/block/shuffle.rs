//! The shuffle (SPEC 4): free blocks of 4 MiB are handed out in an order that nobody can guess.
//!
//! While it is on nothing merges beyond that order, larger pieces are gathered from neighbours (`gather`), and a coin decides which end of its list a block joins when
//! it is freed. The pass puts a whole list into a random order, each equally likely as far as the generator goes: Fisher and Yates' algorithm over the
//! positions at which such blocks can begin, with another throw for those at which none does. It needs no memory but the links of the blocks themselves.

use super::lists::{FreeLists, NONE};
use super::state::{BlockState, MigrateType, State};
use super::table::{BlockTable, blocks_of};
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
        // The upper half of a product is even over the numbers, but for a remainder that is thrown again.
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

/// Puts one list of blocks of [`SHUFFLE_ORDER`] into a random order. `segments` are those of the zone, ascending.
pub(crate) fn shuffle_list(
    lists: &mut FreeLists,
    table: &BlockTable,
    segments: impl Iterator<Item = Range<u32>> + Clone,
    (migrate_type, reported): (MigrateType, bool),
) {
    if lists.blocks(migrate_type, SHUFFLE_ORDER, reported) < 2 {
        return;
    }
    let head = BlockState::head(State::Free, SHUFFLE_ORDER, migrate_type);
    let head = if reported { head.with(BlockState::REPORTED) } else { head };
    // Positions are aligned as blocks are: buddies are computed on indices.
    let Some(first) = segments.clone().next().map(|segment| segment.start.next_multiple_of(STEP)) else { return };
    let places =
        segments.flat_map(|segment| (segment.start.next_multiple_of(STEP)..segment.end).step_by(STEP as usize));
    let mut places = places.filter(|&index| table.is_ready(index) && table.state(index) == head);
    // Which block stands at a place is written where that place's block keeps its predecessor; successors are left alone meanwhile.
    for index in places.clone() {
        table.set_previous(index, index);
        let range = (index - first) / STEP + 1;
        let other = loop {
            let other = first + lists.chance.below(range) * STEP;
            if table.is_ready(other) && table.state(other) == head {
                break other;
            }
        };
        let (mine, theirs) = (table.links(index).0, table.links(other).0);
        table.set_previous(index, theirs);
        table.set_previous(other, mine);
    }
    let Some(start) = places.next().map(|index| table.links(index).0) else { return };
    let mut last = start;
    for index in places {
        let next = table.links(index).0;
        table.set_next(last, next);
        last = next;
    }
    table.set_next(last, NONE);
    let (mut previous, mut index) = (NONE, start);
    while index != NONE {
        table.set_previous(index, previous);
        (previous, index) = (index, table.links(index).1);
    }
    lists.replace_ends(migrate_type, SHUFFLE_ORDER, reported, (start, last));
}

/// Takes the free blocks that make an aligned piece of `order`, above [`SHUFFLE_ORDER`], from `index` on, if all of it is free and may be had for `migrate_type`.
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
    lists.end_marks(index, order, lists.unreported_pages() != 0);
    table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::lists::Position;
    use crate::block::{BlockEntry, FreeMap};
    use crate::sync::table_atomic::AtomicU64;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn table(blocks: usize) -> BlockTable {
        let groups = blocks.div_ceil(512);
        let entry = || BlockEntry::new();
        let heads: Vec<BlockEntry> = (0..groups).map(|_| entry()).collect();
        let entries: Vec<BlockEntry> = (0..blocks).map(|_| entry()).collect();
        let maps: Vec<FreeMap> = (0..blocks).map(|_| FreeMap::new()).collect();
        let ready: Vec<AtomicU64> = (0..groups.div_ceil(64)).map(|_| AtomicU64::new(u64::MAX)).collect();
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
            shuffle_list(&mut lists, &table, [2..8, 10..40].into_iter(), (MigrateType::Movable, false));
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
        for _ in 0..3 {
            shuffle_list(&mut lists, &table, core::iter::once(0..2048), (MigrateType::Movable, false));
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
