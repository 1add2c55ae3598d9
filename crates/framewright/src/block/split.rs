//! Taking free blocks: the smallest one that is large enough, halved to the order wanted.
//!
//! Among equal blocks the lowest address comes out first, so repeated small requests ascend:
//! unneeded halves go to the front of their lists. Memory that was reported to the hypervisor is
//! taken last. When a type has nothing left, blocks of its fallback types are *claimed*, at least
//! 16 MiB at a time (`__rmqueue_claim` in Linux's `mm/page_alloc.c`).

use super::bit_sets::Neighbours;
use super::buddy::Buddy;
use super::list::{ListId, Position};
use super::migrate_type::MigrateType;
use super::reported::ReportedBits;
use super::state::{BlockState, State};
use super::table::{BlockTable, blocks_of};
use crate::units::{BLOCK_ORDER, Order};
use core::ops::RangeInclusive;

/// When one type takes memory from another, blocks of at least this order (16 MiB) stay together,
/// so that unmovable contents are not sprinkled over every GiB. Larger foreign blocks give up only
/// one piece of this order.
const CLAIM_ORDER: u8 = 12;

/// How much to split at once when one block is wanted: 8 blocks, or 2 on the tiny machines of the
/// model checkers.
const SPLIT_AHEAD: Order =
    match Order::new(BLOCK_ORDER + if cfg!(any(loom, shuttle)) { 1 } else { 3 }) {
        Some(order) => order,
        None => Order::BLOCK,
    };

pub(crate) const fn lower(order: Order) -> Order {
    match Order::new(order.get() - 1) {
        Some(lower) => lower,
        None => Order::BLOCK,
    }
}

/// A piece of a free block.
#[derive(Clone, Copy)]
struct Piece {
    /// The free block.
    head: u32,
    /// The index at which the piece begins.
    index: u32,
    order: Order,
    /// Whether the whole free block was reported.
    reported: bool,
}

/// A block that left the zone but stays free, as pages of a pool.
pub(crate) struct Moved {
    /// Its index.
    pub(crate) index: u32,
    /// Its order.
    pub(crate) order: Order,
    /// Which of its blocks were reported, if any was.
    pub(crate) reported: Option<ReportedBits>,
}

impl Buddy {
    /// Takes a free block of `order`: of `migrate_type` or, if there is none, of one of its
    /// fallback types.
    pub(crate) fn take(&mut self, order: Order, migrate_type: MigrateType) -> Option<u32> {
        if order == Order::BLOCK && migrate_type == MigrateType::Movable {
            if self.deferred.is_empty() {
                self.split_ahead();
            }
            if let Some(index) = self.take_deferred() {
                return Some(index);
            }
        } else if order == Order::BLOCK
            && let Some(grade) = migrate_type.grade_index()
            && let Some(taken) = self.take_graded(1, grade)
        {
            return Some(taken.first());
        }
        self.take_listed(order, migrate_type)
    }

    /// Splits a piece off a larger block when there is no smaller one, and defers its merge, so
    /// that only the first of several requests for one block searches the lists. It does nothing
    /// while reports are tracked, because reported memory should stay free.
    fn split_ahead(&mut self) {
        let movable = MigrateType::Movable;
        if !self.reported.is_tracked()
            && self.decides_to_defer()
            && self.smallest(movable, Order::BLOCK).is_some_and(|list| list.order >= SPLIT_AHEAD)
            && let Some((index, _)) = self.take_of(SPLIT_AHEAD..=SPLIT_AHEAD, movable, movable)
        {
            divide_into_blocks(&self.table, index, SPLIT_AHEAD);
            self.deferred.insert(Neighbours::new(index, blocks_of(SPLIT_AHEAD)));
        }
    }

    /// Takes up to `most` blocks of order 9 and one type, all from one group of 64: blocks whose
    /// merge is deferred, or else the smallest free block or a piece of it. Without `may_split`
    /// nothing larger than the blocks asked for is divided. Of reported memory it takes one block,
    /// and without `may_split` none, because no caller is waiting for more.
    pub(crate) fn take_some(
        &mut self,
        most: u32,
        migrate_type: MigrateType,
        may_split: bool,
    ) -> Option<Neighbours> {
        if migrate_type == MigrateType::Movable
            && let Some(taken) = self.deferred.take(most)
        {
            self.end_reported(taken.first(), Order::BLOCK, false);
            return Some(taken);
        }
        if let Some(grade) = migrate_type.grade_index()
            && let Some(taken) = self.take_graded(most, grade)
        {
            return Some(taken);
        }
        let level = u8::try_from(most.min(64).checked_ilog2()?).ok()?;
        let smallest = self.smallest(migrate_type, Order::BLOCK)?;
        let largest = if smallest.reported {
            Order::BLOCK
        } else {
            Order::new(BLOCK_ORDER + level).unwrap_or(smallest.order)
        };
        let order = smallest.order.min(largest);
        if (order < smallest.order || smallest.reported) && !may_split {
            return None;
        }
        let mut piece = self.choose(migrate_type, order..=order)?;
        if self.reported.is_tracked()
            && !piece.reported
            && self.reported.counts(piece.index, order).0 != 0
        {
            // Only part of it was reported; the unreported part comes first.
            piece = self.choose(migrate_type, Order::BLOCK..=Order::BLOCK)?;
        }
        let index = self.take_piece(piece, migrate_type);
        if piece.order > Order::BLOCK {
            divide_into_blocks(&self.table, index, piece.order);
        }
        Some(Neighbours::new(index, blocks_of(piece.order)))
    }

    /// Takes the lowest block whose merge is deferred.
    fn take_deferred(&mut self) -> Option<u32> {
        let index = self.deferred.take(1)?.first();
        self.end_reported(index, Order::BLOCK, false);
        Some(index)
    }

    fn take_listed(&mut self, order: Order, migrate_type: MigrateType) -> Option<u32> {
        if let Some((index, _)) = self.take_of(order..=order, migrate_type, migrate_type) {
            return Some(index);
        }
        for &foreign in migrate_type.fallbacks() {
            let to = foreign.taken_for(migrate_type);
            if order == Order::BLOCK
                && let Some(grade) = foreign.grade_index()
                && let Some(taken) = self.take_graded(1, grade)
            {
                return Some(taken.first());
            }
            if let Some((index, _)) = self.take_of(order..=order, foreign, to) {
                self.events.fallback_claims += u64::from(!foreign.is_grade());
                return Some(index);
            }
        }
        if order == Order::BLOCK && migrate_type.fallbacks().contains(&MigrateType::Movable) {
            // Takes only one block: if nothing but deferred merges is left, no free block is as
            // large as what is usually claimed.
            let index = self.take_deferred()?;
            self.table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
            self.retype(MigrateType::Movable, migrate_type, 1);
            self.events.fallback_claims += 1;
            return Some(index);
        }
        None
    }

    /// Takes a free block of type `from`, of one of `orders`, for `migrate_type`: the smallest that
    /// exists, or a piece of it. Returns it with its order.
    fn take_of(
        &mut self,
        orders: RangeInclusive<Order>,
        from: MigrateType,
        migrate_type: MigrateType,
    ) -> Option<(u32, Order)> {
        let piece = self.choose(from, orders)?;
        Some((self.take_piece(piece, migrate_type), piece.order))
    }

    /// Takes the piece that [`choose`](Self::choose) returned.
    fn take_piece(&mut self, piece: Piece, migrate_type: MigrateType) -> u32 {
        let index = self.cut(piece.head, piece.index, piece.order, migrate_type);
        self.end_reported(index, piece.order, !piece.reported);
        index
    }

    /// Takes a block of type `from`, of one of `orders`, out of the zone. It stays free but becomes
    /// movable, and its report bits go with it.
    pub(crate) fn move_out(
        &mut self,
        orders: RangeInclusive<Order>,
        from: MigrateType,
    ) -> Option<Moved> {
        let Piece { head, index, order, .. } = self.choose(from, orders)?;
        let index = self.cut(head, index, order, MigrateType::Movable);
        Some(Moved { index, order, reported: self.move_reported(index, order) })
    }

    /// Chooses the piece of one type to take next: from the smallest head of at least the first of
    /// `orders`, as much as the last of them allows.
    fn choose(
        &mut self,
        migrate_type: MigrateType,
        orders: RangeInclusive<Order>,
    ) -> Option<Piece> {
        let list = self.smallest(migrate_type, *orders.start())?;
        let ListId { order: found, reported, .. } = list;
        let order = found.min(*orders.end());
        let head = self.next(list);
        let index = if reported { head } else { self.reported.choose(head, found, order) };
        Some(Piece { head, index, order, reported })
    }

    /// Takes the piece of `order` that begins at `index` out of the free block headed at `head`.
    pub(crate) fn take_from(
        &mut self,
        head: u32,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
    ) -> u32 {
        let index = self.cut(head, index, order, migrate_type);
        self.end_reported(index, order, false);
        index
    }

    /// [`take_from`](Self::take_from) for isolation: the report bits are dropped, but the piece
    /// does not count as reused.
    pub(crate) fn isolate_from(
        &mut self,
        head: u32,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
    ) {
        self.cut(head, index, order, migrate_type);
        let _ = self.move_reported(index, order);
    }

    fn cut(&mut self, head: u32, index: u32, order: Order, wanted: MigrateType) -> u32 {
        let state = self.table.state(head);
        let migrate_type = state.migrate_type().taken_for(wanted);
        let claimed = Order::new(CLAIM_ORDER).map_or(order, |claim| claim.max(order));
        let mut have = state.order();
        let mut start = head;
        self.remove(head);
        if state.migrate_type() != migrate_type {
            let mergeable = state.migrate_type().is_mergeable();
            let changed = if mergeable { have.min(claimed) } else { order };
            self.retype(state.migrate_type(), migrate_type, blocks_of(changed));
        }
        while have > order {
            if have == Order::MAX {
                // The group is about to be used in pieces. Its first entry was just made inner.
                self.table.make_ready(start, true);
            }
            have = lower(have);
            let half = blocks_of(have);
            let rest = if index - start >= half {
                start += half;
                start - half
            } else {
                start + half
            };
            // Of a foreign block larger than the claim, the part beyond the claim keeps its type.
            let rest_type = if have >= claimed { state.migrate_type() } else { migrate_type };
            let rest_type =
                if state.migrate_type().is_mergeable() { rest_type } else { state.migrate_type() };
            self.insert(rest, have, rest_type, Position::Head);
        }
        self.table.set_state(start, BlockState::head(State::Whole, order, migrate_type));
        self.table.set_previous(start, 0);
        self.table.set_next(start, 0);
        start
    }
}

/// Divides an allocated block into allocated blocks of order 9.
fn divide_into_blocks(table: &BlockTable, index: u32, order: Order) {
    if order == Order::MAX {
        table.make_ready(index, true);
    }
    let word = BlockState::head(State::Whole, Order::BLOCK, table.state(index).migrate_type());
    table.set_states(index..index + blocks_of(order), word);
}

/// Halves blocks until a head begins at `index` and no head that begins in `index..end` reaches
/// beyond `end`. Returns that head's order. The blocks may be allocated, isolated, with the
/// hypervisor, deferred, offline or reserved, or unaccepted and on their way out. The halves keep
/// the state, the bits and the owner word of the whole. `index` must lie in such a block.
pub(crate) fn divide_whole(table: &BlockTable, index: u32, end: u32) -> Option<Order> {
    loop {
        let (head, state) = table.cold_head_of(index)?;
        let order = state.order();
        let divides = [
            State::Whole,
            State::Isolated,
            State::Reporting,
            State::Deferred,
            State::Offline,
            State::Reserved,
        ];
        let is_going = state.is(State::Unaccepted) && state.has(BlockState::GOING);
        if !is_going && !divides.into_iter().any(|divided| state.is(divided)) {
            return None;
        }
        if head == index && blocks_of(order) <= end - index {
            return Some(order);
        }
        if order == Order::BLOCK {
            return None;
        }
        if order == Order::MAX {
            table.make_ready(head, true);
        }
        let half = lower(order);
        let word = state.with_order(half);
        let (first, second) = (table.cold_entry(head), table.cold_entry(head + blocks_of(half)));
        let (count, owner) = first.links();
        if half == Order::BLOCK {
            table.set_state_and_lots(first, head, word);
            table.set_state_and_lots(second, head + 1, word);
        } else {
            first.set_state_in_no_lot(word);
            second.set_state_in_no_lot(word);
        }
        second.set_links(count, owner);
    }
}
