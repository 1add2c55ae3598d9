//! The shuffle (`page_alloc.shuffle`, as `mm/shuffle.c` in Linux): free blocks of 4 MiB are handed
//! out in an order that cannot be predicted.
//!
//! While it is on, nothing merges beyond that order, larger pieces are gathered from neighbours
//! (`gather`), and a coin decides which end of its list a freed block joins. The pass at boot puts
//! each list into a random order, all orders being equally likely as far as the generator goes: it
//! shuffles the numbers of the list's blocks by Fisher and Yates' algorithm, in memory of the
//! zone's tables that means nothing at the moment, and then writes the links anew. Later passes
//! exchange one block after the other, so that the lock can be released in between.
//!
//! Orders of memory: Relaxed everywhere. Words are written under the zone lock, or by whoever has
//! the memory alone, and the lock's Acquire and Release order these writes. Whatever is read
//! without the lock is a hint.

use super::buddy::Buddy;
use super::heads::HeadIn;
use super::list::{ListId, NONE};
use super::migrate_type::MigrateType;
use super::state::{BlockState, State};
use super::table::blocks_of;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order};

/// The order of the blocks that are shuffled, which is Linux's largest.
pub(crate) const SHUFFLE_ORDER: Order = match Order::new(BLOCK_ORDER + 1) {
    Some(order) => order,
    None => Order::BLOCK,
};
const STEP: u32 = blocks_of(SHUFFLE_ORDER);

/// Numbers of blocks, two per word, in memory that is not needed meanwhile.
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

/// How many blocks ahead of the one being linked to prefetch entries.
const AHEAD: usize = 16;
/// How many tries to find a partner (`SHUFFLE_RETRY` in Linux's `mm/shuffle.c`).
const TRIES: u32 = 10;

/// Why a piece could not be gathered.
pub(crate) struct InTheWay {
    /// The number of heads that were looked at.
    pub(crate) heads: u32,
    /// No piece that begins before this index can be gathered.
    pub(crate) after: u32,
}

impl Buddy {
    /// Puts a list of blocks of [`SHUFFLE_ORDER`] into a random order. `scratch` should have half a
    /// word per block. With less, the blocks are shuffled in parts by ascending address; with none,
    /// nothing changes.
    pub(crate) fn shuffle_list(&mut self, list: ListId, scratch: &[AtomicU64]) {
        let (scratch, table) = (Scratch(scratch), self.table);
        if scratch.len() == 0 || self.blocks(list) < 2 {
            return;
        }
        // Indices are aligned as blocks are, because buddies are computed on them. The search goes
        // in table order: following the list would be a cache miss per block.
        let mut index = 0;
        let (mut first, mut previous) = (NONE, NONE);
        loop {
            let mut found = 0;
            while found < scratch.len() && index < table.len() {
                if table.is_ready(index) && table.state(index) == list.head() {
                    scratch.set(found, index);
                    found += 1;
                }
                index += STEP;
            }
            if found == 0 {
                break;
            }
            for last in 1..found {
                let range = u32::try_from(last + 1).unwrap_or(u32::MAX);
                let other = self.random.below(range) as usize;
                let (mine, theirs) = (scratch.get(last), scratch.get(other));
                scratch.set(last, theirs);
                scratch.set(other, mine);
            }
            match previous {
                NONE => first = scratch.get(0),
                previous => table.set_next(previous, scratch.get(0)),
            }
            for place in 0..found {
                if place + AHEAD < found {
                    table.prefetch(scratch.get(place + AHEAD), SHUFFLE_ORDER);
                }
                let next = if place + 1 < found { scratch.get(place + 1) } else { NONE };
                let index = scratch.get(place);
                table.cold_entry(index).set_links(previous, next);
                previous = index;
            }
        }
        self.replace_ends(list, first, previous);
    }

    /// Exchanges a block of [`SHUFFLE_ORDER`], if it is free, with a random other block of its
    /// list, as Linux shuffles (`__shuffle_zone` in `mm/shuffle.c`). Not all orders are equally
    /// likely then, but a step is short.
    pub(crate) fn shuffle_one(&mut self, index: u32) {
        let table = self.table;
        if !table.is_ready(index) {
            return;
        }
        let state = table.state(index);
        let plain = state.without(BlockState::REPORTED);
        if plain != BlockState::head(State::Free, SHUFFLE_ORDER, state.migrate_type()) {
            return;
        }
        for _ in 0..TRIES {
            let other = self.random.below(table.len().div_ceil(STEP)) * STEP;
            if other != index && table.is_ready(other) && table.state(other) == state {
                return self.swap(index, other, state);
            }
        }
    }

    /// Exchanges two blocks of one list.
    fn swap(&mut self, one: u32, other: u32, state: BlockState) {
        let table = self.table;
        let list = ListId {
            migrate_type: state.migrate_type(),
            order: SHUFFLE_ORDER,
            reported: state.has(BlockState::REPORTED),
        };
        let (mut first, mut last) = (self.first(list), self.last(list));
        // The other block's links. Where they name this block, as they do if the two are
        // neighbours, they name the other instead.
        let new_links = |mine: u32, theirs: u32| {
            let (previous, next) = table.links(theirs);
            let named = |link: u32| if link == mine { theirs } else { link };
            (named(previous), named(next))
        };
        let links = [(one, new_links(one, other)), (other, new_links(other, one))];
        for (index, (previous, next)) in links {
            table.cold_entry(index).set_links(previous, next);
            match previous {
                NONE => first = index,
                previous => table.set_next(previous, index),
            }
            match next {
                NONE => last = index,
                next => table.set_previous(next, index),
            }
        }
        self.replace_ends(list, first, last);
    }

    /// Returns why the aligned piece of `order`, above [`SHUFFLE_ORDER`], at `index` cannot be
    /// [gathered](Self::gather), if something is in the way: all of the piece must be free and
    /// available to `migrate_type`.
    pub(crate) fn can_gather(
        &self,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<(), InTheWay> {
        let end = index + blocks_of(order);
        let is_wanted = |found: &HeadIn| {
            let own = found.state.migrate_type();
            found.head == found.index
                && found.state.is(State::Free)
                && (own == migrate_type
                    || !own.is_grade() && migrate_type.fallbacks().contains(&own))
        };
        let (mut next, mut heads) = (index, 0);
        for found in self.table.heads(index..end) {
            heads += 1;
            if found.index != next {
                return Err(InTheWay { heads, after: found.index });
            }
            next = found.end();
            if !is_wanted(&found) {
                return Err(InTheWay { heads, after: next });
            }
        }
        if next == end { Ok(()) } else { Err(InTheWay { heads, after: end }) }
    }

    /// Takes the free blocks that make up a piece, if they [can be
    /// gathered](Self::can_gather).
    pub(crate) fn gather(
        &mut self,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<(), InTheWay> {
        self.can_gather(index, order, migrate_type)?;
        let end = index + blocks_of(order);
        for found in self.table.heads(index..end) {
            self.remove(found.head);
            self.retype(found.state.migrate_type(), migrate_type, found.end() - found.head);
        }
        let early = self.unreported_pages() != 0;
        self.end_reported(index, order, early);
        self.table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::free_heads::FreeHeads;
    use crate::block::list::Position;
    use crate::block::lots::LotTable;
    use crate::block::random::Random;
    use crate::block::table::BlockTable;
    use crate::block::{BlockEntry, FreeMap, Segment};
    use core::mem::MaybeUninit;
    use core::ops::Range;
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
        let words: Vec<AtomicU64> = (0..groups).map(|_| AtomicU64::new(0)).collect();
        let free_heads = FreeHeads::new(words.leak());
        BlockTable::new(
            heads.leak(),
            entries.leak(),
            maps.leak(),
            ready.leak(),
            free_heads,
            LotTable::EMPTY,
        )
    }

    const MOVABLE: ListId =
        ListId { migrate_type: MigrateType::Movable, order: SHUFFLE_ORDER, reported: false };

    /// Blocks of segments with these indices, none free.
    fn buddy(blocks: usize, segments: &[Range<u32>]) -> Buddy {
        let segments: Vec<Segment> = segments
            .iter()
            .map(|range| Segment {
                index: range.start,
                blocks: range.end - range.start,
                ..Segment::EMPTY
            })
            .collect();
        let mut place = MaybeUninit::uninit();
        Buddy::write(&mut place);
        // SAFETY: it was just written.
        let mut buddy = unsafe { place.assume_init() };
        (buddy.table, buddy.segments) = (table(blocks), segments.leak());
        buddy
    }

    fn order_of(buddy: &Buddy) -> Vec<u32> {
        let (mut order, mut previous) = (Vec::new(), NONE);
        let mut index = buddy.first(MOVABLE);
        while index != NONE {
            assert_eq!(buddy.table.links(index).0, previous);
            order.push(index);
            (previous, index) = (index, buddy.table.links(index).1);
        }
        order
    }

    #[test]
    fn all_orders_of_four_blocks_are_equally_likely() {
        // With holes between them, and a place where another type begins.
        let mut buddy = buddy(40, &[2..8, 10..40]);
        let blocks = [4, 10, 12, 30];
        buddy.random = Random::new(42);
        for index in blocks {
            buddy.insert(index, SHUFFLE_ORDER, MigrateType::Movable, Position::Tail);
        }
        buddy.insert(6, SHUFFLE_ORDER, MigrateType::Unmovable, Position::Tail);
        let mut seen: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for _ in 0..24_000 {
            let scratch = [const { AtomicU64::new(u64::MAX) }; 2];
            buddy.shuffle_list(MOVABLE, &scratch);
            *seen.entry(order_of(&buddy)).or_default() += 1;
        }
        assert_eq!(seen.len(), 24);
        assert!(seen.values().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_list_keeps_its_blocks() {
        let mut buddy = buddy(2048, core::slice::from_ref(&(0..2048)));
        buddy.random = Random::new(7);
        let blocks: Vec<u32> = (0..2048).step_by(2).filter(|index| index % 14 != 0).collect();
        for &index in &blocks {
            buddy.insert(index, SHUFFLE_ORDER, MigrateType::Movable, Position::Tail);
        }
        assert_eq!(order_of(&buddy), blocks);
        let mut orders = Vec::new();
        let scratch: Vec<AtomicU64> = (0..1024).map(AtomicU64::new).collect();
        buddy.shuffle_list(MOVABLE, &[]);
        assert_eq!(order_of(&buddy), blocks, "no room");
        for room in [blocks.len() / 2 - 1, 100, 1024, 1024] {
            buddy.shuffle_list(MOVABLE, &scratch[..room]);
            let mut order = order_of(&buddy);
            let neighbours = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 2).count();
            assert!(neighbours < 16, "{neighbours} of {} are where they were", blocks.len());
            orders.push(order.clone());
            order.sort_unstable();
            assert_eq!(order, blocks);
        }
        assert_ne!(orders[0], orders[1]);
        // The list's ends have no links beyond them.
        while let Some(list) = buddy.smallest(MigrateType::Movable, SHUFFLE_ORDER) {
            assert!(!list.reported);
            let index = buddy.next(list);
            buddy.remove(index);
        }
        assert_eq!(buddy.free_pages(), 0);
    }
}
