//! A list of free blocks of one order and migrate type, linked through their entries in the table.
//!
//! The links of a listed block are the indices of the blocks before and after it, with [`NONE`] at
//! the ends (invariant 8). Which end a block joins decides when it is handed out: the first block
//! is next.

use super::migrate_type::MigrateType;
use super::state::{BlockState, State};
use super::table::BlockEntry;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order};

/// Orders that have lists: 9..=18.
pub const BLOCK_ORDERS: usize = (MAX_ORDER - BLOCK_ORDER) as usize + 1;

/// No block: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// Returns the index of the list for `order` among a type's lists.
pub(super) fn slot(order: Order) -> usize {
    usize::from(order.get() - BLOCK_ORDER)
}

/// One of a zone's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListId {
    pub(crate) migrate_type: MigrateType,
    pub(crate) order: Order,
    /// Whether it is the list of blocks that were reported as a whole.
    pub(crate) reported: bool,
}

impl ListId {
    /// Returns all lists of blocks of one order.
    pub(crate) fn of_order(order: Order) -> impl Iterator<Item = Self> {
        MigrateType::ALL.into_iter().flat_map(move |migrate_type| {
            [false, true].map(|reported| Self { migrate_type, order, reported })
        })
    }

    /// Returns the state word of each block in the list.
    pub(crate) const fn head(self) -> BlockState {
        let head = BlockState::head(State::Free, self.order, self.migrate_type);
        if self.reported { head.with(BlockState::REPORTED) } else { head }
    }
}

/// Which end of a list a block joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// Next to be handed out.
    Head,
    /// Last to be handed out.
    Tail,
}

impl Position {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Head => Self::Tail,
            Self::Tail => Self::Head,
        }
    }

    pub(crate) const fn tail_if(tail: bool) -> Self {
        if tail { Self::Tail } else { Self::Head }
    }
}

/// The ends of a list and its number of blocks.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) blocks: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE, blocks: 0 };

    /// Links an entry at the front. `entry_of` finds the entry of another head in the list.
    pub(super) fn link_first(
        &mut self,
        entry_of: impl FnOnce(u32) -> &'static BlockEntry,
        entry: &BlockEntry,
        index: u32,
    ) {
        entry.set_links(NONE, self.first);
        match self.first {
            NONE => self.last = index,
            first => entry_of(first).set_previous(index),
        }
        self.first = index;
        self.blocks += 1;
    }

    /// [`link_first`](Self::link_first) at the other end.
    pub(super) fn link_last(
        &mut self,
        entry_of: impl FnOnce(u32) -> &'static BlockEntry,
        entry: &BlockEntry,
        index: u32,
    ) {
        entry.set_links(self.last, NONE);
        match self.last {
            NONE => self.first = index,
            last => entry_of(last).set_next(index),
        }
        self.last = index;
        self.blocks += 1;
    }
}
