//! What is known of a window while its memory is gone, and its tables with it.
//!
//! A host may leave memory accepted that it takes away, and die of one who accepts it twice. So one
//! bit for each block is kept outside of the window, 64 bytes for each GiB: written when the last
//! of the memory goes, read when some of it comes. The heads, which lie outside too, only say then
//! that nothing is there (invariant 49).
//!
//! Orders of memory: Relaxed: bits are read and written by who changes what memory there is, one at
//! a time.

use super::Zone;
use super::hotplug::Presence;
use super::initialise::ZoneTables;
use crate::block::BlockState;
use crate::block::table::GROUP;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::Order;
use core::ops::Range;

/// A bit for each block of a window, set where it is accepted; none where nobody asks.
pub(crate) struct Remembered(&'static [AtomicU64]);

impl Remembered {
    pub(super) const NOTHING: Self = Self(&[]);

    /// Over words that are zero.
    pub(crate) const fn new(words: &'static [AtomicU64]) -> Self {
        Self(words)
    }

    /// Words for so many blocks.
    pub(crate) const fn words_for(blocks: usize) -> usize {
        blocks.div_ceil(64)
    }

    fn is_accepted(&self, index: u32) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 != 0)
    }

    fn set(&self, range: Range<u32>, is_accepted: bool) {
        for index in range {
            let Some(word) = self.0.get((index / 64) as usize) else { return };
            let (before, bit) = (word.load(Ordering::Relaxed), 1 << (index % 64));
            word.store(if is_accepted { before | bit } else { before & !bit }, Ordering::Relaxed);
        }
    }
}

impl Zone {
    /// Whether its tables lie in its own memory, and go with it.
    pub(crate) const fn has_own_tables(&self) -> bool {
        self.has_own_tables
    }

    /// Whether its tables are gone with its memory, or never were there.
    pub(crate) fn is_gone(&self) -> bool {
        self.has_own_tables && self.present_pages() == 0
    }

    /// Whether the first block at `range`, whose window is gone, is accepted nevertheless, and
    /// where the blocks end of which the same holds.
    pub(crate) fn is_accepted_while_gone(&self, range: &Range<u32>) -> (bool, u32) {
        if self.remembered.0.is_empty() {
            return (false, range.end);
        }
        let first = self.remembered.is_accepted(range.start);
        let mut others = range.start + 1..range.end;
        let end = others.find(|&index| self.remembered.is_accepted(index) != first);
        (first, end.unwrap_or(range.end))
    }

    /// Blocks of a window that is gone were accepted.
    pub(crate) fn note_accepted_while_gone(&self, range: Range<u32>) {
        self.remembered.set(range, true);
    }

    /// Nothing is left of a window: nobody reads its tables from now on (invariant 49).
    pub(super) fn leave_tables<P: Platform>(&self, platform: &P) {
        let is_remembered = !self.remembered.0.is_empty();
        for group in self.groups().filter(|_| is_remembered) {
            let locked = self.read(platform);
            for found in locked.buddy.table.heads(group.clone()) {
                let end = found.end().min(group.end);
                let is_accepted = found.state.has(BlockState::ACCEPTED);
                self.remembered.set(found.index..end, is_accepted);
            }
        }
        for group in self.groups() {
            self.lock(platform).make_offline(group);
        }
        self.lock(platform).buddy.reported.forget();
    }

    /// The tables of a window that is gone are there, over memory of any content.
    pub(crate) fn renew<P: Platform>(&self, platform: &P, tables: ZoneTables) {
        let ZoneTables { table, free_index, deferred, reported } = tables;
        let mut locked = self.lock(platform);
        locked.free_index.attach(free_index, table.len() as usize);
        locked.buddy.attach(self.segments, &table, deferred, reported);
        drop(locked);
        for group in self.groups() {
            let locked = self.lock(platform);
            let mut rest = group;
            while !rest.is_empty() {
                let (is_accepted, end) = self.is_accepted_while_gone(&rest);
                let word = Presence::Absent.word(Order::BLOCK, is_accepted);
                locked.set_offline(rest.start..end, word);
                rest.start = end;
            }
        }
    }

    /// The indices of its GiBs: a window that has its tables in itself is of whole ones.
    fn groups(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let all = self.segments.first().map_or(0..0, |segment| segment.indices());
        all.step_by(GROUP as usize).map(|start| start..start + GROUP)
    }
}
