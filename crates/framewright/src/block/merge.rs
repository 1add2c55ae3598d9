//! Freeing blocks: they are merged with their free buddies and put into the lists.
//!
//! Buddies are computed on indices. Nothing merges across the end of a segment and, while blocks
//! are shuffled, nothing merges beyond 4 MiB.

use super::buddy::Buddy;
use super::list::Position;
use super::migrate_type::MigrateType;
use super::shuffle::SHUFFLE_ORDER;
use super::state::{BlockState, State};
use super::table::blocks_of;
use crate::units::Order;

/// The number of blocks of the shuffled order in a block of the largest order.
const MOST_PIECES: usize = 1 << (Order::MAX.get() - SHUFFLE_ORDER.get());

fn higher(order: Order) -> Option<Order> {
    Order::new(order.get() + 1)
}

impl Buddy {
    /// Frees a block that is in no list, and merges it. If it is larger than 2 MiB, none of its
    /// parts may be in a lot.
    pub(crate) fn free(
        &mut self,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
        position: Position,
    ) {
        let (mut index, mut order) = (index, order);
        if order == Order::BLOCK {
            // Larger blocks are in no lot, nor are their parts.
            self.table.clear_lots(index);
        }
        if cfg!(feature = "debug") && order > self.largest {
            return self.free_in_pieces(index, order, migrate_type, position);
        }
        let segment = self.segment_of(index);
        while let Some(next) = higher(order).filter(|&next| next <= self.largest) {
            let size = blocks_of(order);
            let buddy = index ^ size;
            if buddy < segment.start || buddy + size > segment.end {
                break;
            }
            let entry = self.table.entry(buddy);
            let state = entry.state().without(BlockState::REPORTED);
            if state != BlockState::head(State::Free, order, migrate_type) {
                // Nearly always the buddy is in use; otherwise it is smaller, or of another type.
                let other = state.migrate_type();
                let mergeable = other.is_mergeable() && migrate_type.is_mergeable();
                if !mergeable || state != BlockState::head(State::Free, order, other) {
                    break;
                }
                self.retype(other, migrate_type, size);
            }
            self.remove_entry(entry, buddy);
            if buddy < index {
                self.table.clear_entry(index);
                index = buddy;
            }
            order = next;
        }
        let tail = position == Position::Tail
            || order == self.largest && order != Order::MAX && self.random.coin();
        self.insert(index, order, migrate_type, Position::tail_if(tail));
    }

    /// Frees a movable block at bring-up. It joins the tail, so that lists begin in ascending
    /// order.
    #[cold]
    pub(crate) fn free_at_bring_up(&mut self, index: u32, order: Order) {
        self.free(index, order, MigrateType::Movable, Position::Tail);
    }

    /// [`free`](Self::free) for a block larger than the largest order that merges while blocks are
    /// shuffled. Its pieces come in a random order, all orders being equally likely, as with whole
    /// lists at boot.
    #[cold]
    fn free_in_pieces(
        &mut self,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
        position: Position,
    ) {
        if order == Order::MAX {
            self.table.make_ready(index, true);
        }
        self.table.clear_entry(index);
        let largest = self.largest;
        let mut places = [0_u8; MOST_PIECES];
        let pieces = 1 << (order.get() - largest.get());
        for (place, number) in (0..pieces).zip(0_u8..=u8::MAX) {
            let other = self.random.below(u32::from(number) + 1) as usize;
            places[place] = places[other];
            places[other] = number;
        }
        for &place in places.iter().take(pieces) {
            let tail = position == Position::Tail || self.random.coin();
            let piece = index + u32::from(place) * blocks_of(largest);
            self.insert(piece, largest, migrate_type, Position::tail_if(tail));
        }
    }

    /// Frees adjacent allocated blocks of order 9 and one type, which together form an aligned
    /// block of `order`.
    pub(crate) fn free_divided(&mut self, index: u32, order: Order, migrate_type: MigrateType) {
        // The first, too, as it may be in a lot.
        self.table.clear_entries_and_lots(index..index + blocks_of(order));
        self.free(index, order, migrate_type, Position::Head);
    }
}
