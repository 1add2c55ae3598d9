//! The buddy system over a block table: split, merge, take, take at a place, free a part.
//!
//! All of it runs under the zone lock. Buddies are computed on indices; the caller gives the
//! segment's ends, beyond which nothing merges.

use super::bit_sets::neighbours;
use super::lists::{FreeLists, Position};
use super::reported::ReportedBits;
use super::state::{BlockState, MigrateType, State};
use super::table::{BlockTable, blocks_of};
use crate::units::{BLOCK_ORDER, Order};
use core::ops::Range;

/// Blocks of at least this order (16 MiB) stay together when one type takes memory from another, so
/// that what cannot be moved is not sprinkled over every GiB; larger foreign blocks give up one
/// such piece only.
const CLAIM_ORDER: u8 = 12;

/// What gets loose at once when one block is wanted: 8 blocks; 2 on the tiny machines of the model
/// checkers.
const SPLIT_AHEAD: Order =
    match Order::new(BLOCK_ORDER + if cfg!(any(loom, shuttle)) { 1 } else { 3 }) {
        Some(order) => order,
        None => Order::BLOCK,
    };

fn lower(order: Order) -> Order {
    Order::new(order.get() - 1).unwrap_or(Order::BLOCK)
}

fn higher(order: Order) -> Option<Order> {
    Order::new(order.get() + 1)
}

/// Takes a free block of `order`, of `migrate_type` or, where there is none, of a type that it may
/// take from.
#[inline]
pub(crate) fn take(
    lists: &mut FreeLists,
    table: &BlockTable,
    order: Order,
    migrate_type: MigrateType,
) -> Option<u32> {
    if order == Order::BLOCK && migrate_type == MigrateType::Movable {
        if lists.deferred.is_empty() {
            tear(lists, table);
        }
        if let Some(index) = take_deferred(lists) {
            return Some(index);
        }
    }
    take_listed(lists, table, order, migrate_type)
}

/// Makes a piece of a larger block loose, when there is nothing smaller: of several requests for
/// one block only the first looks into the lists. Not while the hypervisor is told of free blocks,
/// as what it was told of should stay free.
fn tear(lists: &mut FreeLists, table: &BlockTable) {
    if !lists.reported.is_tracked()
        && lists.defers_merges()
        && lists
            .smallest(MigrateType::Movable, Order::BLOCK)
            .is_some_and(|(smallest, _)| smallest >= SPLIT_AHEAD)
        && let Some((index, _)) = take_up_to(
            lists,
            table,
            (SPLIT_AHEAD, SPLIT_AHEAD),
            MigrateType::Movable,
            MigrateType::Movable,
        )
    {
        divide_into_blocks(table, index, SPLIT_AHEAD);
        lists.deferred.insert(neighbours(index, blocks_of(SPLIT_AHEAD)));
    }
}

/// Takes up to `most` blocks of order 9 and one type, neighbours within 64: those that are loose,
/// else the smallest free block or a piece of it. The blocks that come back are the bits of 64 from
/// the first value on. Unless it `may_split`, nothing larger than that is divided; of reported
/// memory one block is taken, and none then: nobody waits for more.
#[inline]
pub(crate) fn take_some(
    lists: &mut FreeLists,
    table: &BlockTable,
    most: u32,
    migrate_type: MigrateType,
    may_split: bool,
) -> Option<(u32, u64)> {
    if migrate_type == MigrateType::Movable
        && let Some((base, bits)) = lists.deferred.take(most)
    {
        lists.end_reported(base + bits.trailing_zeros(), Order::BLOCK, false);
        return Some((base, bits));
    }
    let level = u8::try_from(most.min(64).checked_ilog2()?).ok()?;
    let (smallest, reported) = lists.smallest(migrate_type, Order::BLOCK)?;
    let largest =
        if reported { Order::BLOCK } else { Order::new(BLOCK_ORDER + level).unwrap_or(smallest) };
    let order = smallest.min(largest);
    if (order < smallest || reported) && !may_split {
        return None;
    }
    let mut place = choose(lists, migrate_type, order, order)?;
    if lists.reported.is_tracked()
        && !place.reported
        && lists.reported.counts(place.index, order).0 != 0
    {
        // Not all of it was reported, nor nothing: what was not comes first.
        place = choose(lists, migrate_type, Order::BLOCK, Order::BLOCK)?;
    }
    let index = take_place(lists, table, place, migrate_type);
    if place.order > Order::BLOCK {
        divide_into_blocks(table, index, place.order);
    }
    Some(neighbours(index, blocks_of(place.order)))
}

/// Takes the lowest block that is loose.
fn take_deferred(lists: &mut FreeLists) -> Option<u32> {
    let (base, bits) = lists.deferred.take(1)?;
    let index = base + bits.trailing_zeros();
    lists.end_reported(index, Order::BLOCK, false);
    Some(index)
}

fn take_listed(
    lists: &mut FreeLists,
    table: &BlockTable,
    order: Order,
    migrate_type: MigrateType,
) -> Option<u32> {
    if let Some((index, _)) = take_up_to(lists, table, (order, order), migrate_type, migrate_type) {
        return Some(index);
    }
    for &foreign in migrate_type.fallbacks() {
        if let Some((index, _)) = take_up_to(lists, table, (order, order), foreign, migrate_type) {
            lists.events.fallback_claims += 1;
            return Some(index);
        }
    }
    if order == Order::BLOCK && migrate_type.fallbacks().contains(&MigrateType::Movable) {
        // Alone: where only loose blocks are left, nothing as large as what is usually claimed with
        // it is free.
        let index = take_deferred(lists)?;
        table.set_state(index, BlockState::head(State::Whole, order, migrate_type));
        lists.events.fallback_claims += 1;
        return Some(index);
    }
    None
}

/// Takes a free block of type `from` for `migrate_type`, of between `order` and `most`: the
/// smallest that there is, or a piece of it. Returns it with its order.
pub(crate) fn take_up_to(
    lists: &mut FreeLists,
    table: &BlockTable,
    (order, most): (Order, Order),
    from: MigrateType,
    migrate_type: MigrateType,
) -> Option<(u32, Order)> {
    let place = choose(lists, from, order, most)?;
    Some((take_place(lists, table, place, migrate_type), place.order))
}

/// Takes a piece that was chosen.
#[inline]
fn take_place(
    lists: &mut FreeLists,
    table: &BlockTable,
    place: Place,
    migrate_type: MigrateType,
) -> u32 {
    let index = cut(lists, table, place.head, place.index, place.order, migrate_type);
    lists.end_reported(index, place.order, !place.reported);
    index
}

/// The same for who keeps the block as free memory of another kind: which of it was reported goes
/// with it.
pub(crate) fn move_up_to(
    lists: &mut FreeLists,
    table: &BlockTable,
    (order, most): (Order, Order),
    from: MigrateType,
    migrate_type: MigrateType,
) -> Option<(u32, Order, Option<ReportedBits>)> {
    let Place { head, index, order, .. } = choose(lists, from, order, most)?;
    let index = cut(lists, table, head, index, order, migrate_type);
    Some((index, order, lists.move_reported(index, order)))
}

/// A piece of a free block.
#[derive(Clone, Copy)]
struct Place {
    head: u32,
    index: u32,
    order: Order,
    /// Whether all of the head was reported.
    reported: bool,
}

/// The piece that is taken next, of blocks of one type: the smallest head of `order` or more, or
/// `most` of it.
fn choose(
    lists: &mut FreeLists,
    migrate_type: MigrateType,
    order: Order,
    most: Order,
) -> Option<Place> {
    let (found, reported) = lists.smallest(migrate_type, order)?;
    let order = found.min(most);
    let head = lists.next(migrate_type, found, reported);
    let index = if reported { head } else { lists.reported.choose(head, found, order) };
    Some(Place { head, index, order, reported })
}

/// Takes the piece of `order` that begins at `index` out of the free block headed at `head`. Halves
/// that are not needed go to the front of their lists, so that repeated small requests come out in
/// ascending order (SPEC 3.3).
pub(crate) fn take_from(
    lists: &mut FreeLists,
    table: &BlockTable,
    head: u32,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
) -> u32 {
    let index = cut(lists, table, head, index, order, migrate_type);
    lists.end_reported(index, order, false);
    index
}

fn cut(
    lists: &mut FreeLists,
    table: &BlockTable,
    head: u32,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
) -> u32 {
    let state = table.state(head);
    let claimed = Order::new(CLAIM_ORDER).map_or(order, |claim| claim.max(order));
    let mut have = state.order();
    let mut start = head;
    lists.remove(table, head);
    while have > order {
        if have == Order::MAX {
            // The group is about to be used in pieces. Its first entry was just made inner.
            table.make_ready(start, true);
        }
        have = lower(have);
        let half = blocks_of(have);
        let rest = if index - start >= half {
            start += half;
            start - half
        } else {
            start + half
        };
        // A foreign block larger than the claim keeps its type where we do not reach.
        let rest_type = if have >= claimed { state.migrate_type() } else { migrate_type };
        let rest_type =
            if state.migrate_type().is_mergeable() { rest_type } else { state.migrate_type() };
        lists.insert(table, rest, have, rest_type, Position::Head);
    }
    table.set_state(start, BlockState::head(State::Whole, order, migrate_type));
    table.set_previous(start, 0);
    table.set_next(start, 0);
    start
}

/// Gives a block back and merges it with its free buddies inside `segment`. Returns the order it
/// ended with.
pub(crate) fn free(
    lists: &mut FreeLists,
    table: &BlockTable,
    segment: &Range<u32>,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
    position: Position,
) -> Order {
    let (mut index, mut order) = (index, order);
    if order > lists.largest {
        return free_in_pieces(lists, table, index, order, migrate_type, position);
    }
    while let Some(next) = higher(order).filter(|&next| next <= lists.largest) {
        let size = blocks_of(order);
        let buddy = index ^ size;
        if buddy < segment.start || buddy + size > segment.end {
            break;
        }
        let entry = table.entry(buddy);
        let state = entry.state().without(BlockState::REPORTED);
        if state != BlockState::head(State::Free, order, migrate_type) {
            // Nearly always it is in use; else it is smaller, or of another type.
            let other = state.migrate_type();
            let mergeable = other.is_mergeable() && migrate_type.is_mergeable();
            if !mergeable || state != BlockState::head(State::Free, order, other) {
                break;
            }
        }
        lists.remove_entry(table, entry);
        if buddy < index {
            table.set_inner(index);
            index = buddy;
        }
        order = next;
    }
    let tail = position == Position::Tail
        || order == lists.largest && order != Order::MAX && lists.chance.coin();
    lists.insert(
        table,
        index,
        order,
        migrate_type,
        if tail { Position::Tail } else { Position::Head },
    );
    order
}

/// Frees a block at bring-up. To the tail, so that lists begin in ascending order (SPEC 2.3).
#[cold]
pub(crate) fn free_at_bring_up(
    lists: &mut FreeLists,
    table: &BlockTable,
    segment: &Range<u32>,
    index: u32,
    order: Order,
) {
    free(lists, table, segment, index, order, MigrateType::Movable, Position::Tail);
}

/// The same while blocks are shuffled, for one that is larger than what merges.
#[cold]
fn free_in_pieces(
    lists: &mut FreeLists,
    table: &BlockTable,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
    position: Position,
) -> Order {
    if order == Order::MAX {
        table.make_ready(index, true);
    }
    table.set_inner(index);
    let largest = lists.largest;
    for piece in (index..index + blocks_of(order)).step_by(blocks_of(largest) as usize) {
        let tail = position == Position::Tail || lists.chance.coin();
        lists.insert(
            table,
            piece,
            largest,
            migrate_type,
            if tail { Position::Tail } else { Position::Head },
        );
    }
    largest
}

/// Makes an allocated block into allocated blocks of order 9.
pub(crate) fn divide_into_blocks(table: &BlockTable, index: u32, order: Order) {
    if order == Order::MAX {
        table.make_ready(index, true);
    }
    let word = BlockState::head(State::Whole, Order::BLOCK, table.state(index).migrate_type());
    table.set_states(index..index + blocks_of(order), word);
}

/// Frees neighbouring allocated blocks of order 9 and one type, `order` all together and aligned to
/// it.
pub(crate) fn free_divided(
    lists: &mut FreeLists,
    table: &BlockTable,
    segment: &Range<u32>,
    index: u32,
    order: Order,
    migrate_type: MigrateType,
) {
    table.set_all_inner(index + 1..index + blocks_of(order));
    free(lists, table, segment, index, order, migrate_type, Position::Head);
}

/// Halves allocated, isolated or deferred blocks, or such as are with the hypervisor, until a head
/// begins at `index` and none that begins in `index..end` reaches over `end`; returns the head's
/// order. The halves stay what the whole was, with the same bits and owner word. `index` must lie
/// in such a block.
pub(crate) fn divide_whole(table: &BlockTable, index: u32, end: u32) -> Option<Order> {
    loop {
        let (head, state) = table.cold_head_of(index)?;
        let order = state.order();
        let divides = [State::Whole, State::Isolated, State::Reporting, State::Deferred];
        if !divides.into_iter().any(|divided| state.is(divided)) {
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
        first.set_state(word);
        second.set_state(word);
        second.set_links(count, owner);
    }
}
