//! Walks over the heads in a range of a block table.

use super::state::BlockState;
use super::table::{BlockTable, blocks_of};
use crate::units::Order;
use core::ops::Range;

impl BlockTable {
    /// Returns the heads that have a part in `range`, ascending.
    pub(crate) const fn heads(&self, range: Range<u32>) -> Heads {
        Heads { table: *self, rest: range }
    }
}

/// A head with a part in a range of indices.
#[derive(Clone, Copy)]
pub(crate) struct HeadIn {
    /// The index at which its part of the range begins.
    pub(crate) index: u32,
    /// The head's own index, which may lie before the range.
    pub(crate) head: u32,
    /// The head's state word when the iterator reached it.
    pub(crate) state: BlockState,
}

impl HeadIn {
    /// Returns the index after the head's last block.
    pub(crate) fn end(self) -> u32 {
        (self.head + blocks_of(self.state.order().max(Order::BLOCK))).max(self.index + 1)
    }
}

/// Iterator over the heads in a range. Changes to a head that was already returned do not affect
/// where the next one is looked for.
pub(crate) struct Heads {
    table: BlockTable,
    rest: Range<u32>,
}

impl Iterator for Heads {
    type Item = HeadIn;

    fn next(&mut self) -> Option<HeadIn> {
        while self.rest.start < self.rest.end {
            let index = self.rest.start;
            if let Some((head, state)) = self.table.cold_head_of(index) {
                let found = HeadIn { index, head, state };
                self.rest.start = found.end();
                return Some(found);
            }
            self.rest.start += 1;
        }
        None
    }
}
