//! What is known of a window while its memory is gone, and its tables with it.
//!
//! A host may leave memory accepted when it takes it away, and then accepting it a second time may
//! be fatal. So one bit for each block is kept outside of the window, 64 bytes for each GiB. The
//! bits are written when the last of the window's memory goes and read when some of it comes. The
//! head of each GiB, which lies outside too, only says meanwhile that nothing is there (invariant
//! 49).
//!
//! Orders of memory: Relaxed: only the CPU that adds or removes memory reads and writes the bits,
//! and there is one at a time.

use super::Zone;
use super::hotplug::Presence;
use super::initialise::ZoneTables;
use crate::block::BlockState;
use crate::block::table::GROUP;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::Order;
use core::ops::Range;

/// One bit for each block of a window, set while the block is accepted. Empty if the platform
/// accepts no memory.
pub(crate) struct Remembered(&'static [AtomicU64]);

impl Remembered {
    pub(super) const NOTHING: Self = Self(&[]);

    /// Uses `words`, which are zero.
    pub(crate) const fn new(words: &'static [AtomicU64]) -> Self {
        Self(words)
    }

    /// The number of words for `blocks` blocks.
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
    /// Whether the zone's tables lie in its own memory and go with it.
    pub(crate) const fn has_own_tables(&self) -> bool {
        self.has_own_tables
    }

    /// Whether the zone's tables are gone with its memory, or have not existed yet.
    pub(crate) fn is_gone(&self) -> bool {
        self.has_own_tables && self.present_pages() == 0
    }

    /// Whether the first block at `range`, whose window is gone, is still accepted, and where the
    /// run of blocks ends of which the same holds.
    pub(crate) fn is_accepted_while_gone(&self, range: &Range<u32>) -> (bool, u32) {
        if self.remembered.0.is_empty() {
            return (false, range.end);
        }
        let first = self.remembered.is_accepted(range.start);
        let mut others = range.start + 1..range.end;
        let end = others.find(|&index| self.remembered.is_accepted(index) != first);
        (first, end.unwrap_or(range.end))
    }

    /// Notes that blocks of a window that is gone were accepted.
    pub(crate) fn note_accepted_while_gone(&self, range: Range<u32>) {
        self.remembered.set(range, true);
    }

    /// Called when no memory of a window is left. Its tables must not be read from now on
    /// (invariant 49).
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

    /// Attaches the tables of a window that was gone, over memory of any content.
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

    /// The indices of each GiB of the zone. A window that has its tables in itself consists of
    /// whole GiBs.
    fn groups(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let all = self.segments.first().map_or(0..0, |segment| segment.indices());
        all.step_by(GROUP as usize).map(|start| start..start + GROUP)
    }
}
