//! Reserved frames that are handed over to the zone.
//!
//! They are made allocated frames, which the caller that releases them then frees like any others.
//! So merging, descriptors and the free index work as in every free.
//!
//! Orders of memory: Relaxed: counters are written under the zone lock.

use super::Zone;
use super::locked::LockedZone;
use crate::block::split::divide_whole;
use crate::block::table::blocks_of;
use crate::block::{BlockState, DescriptorForm, MigrateType, State};
use crate::page::{frames_of, in_block};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{PAGES_PER_BLOCK, PfnRange};

/// Why frames of a block cannot be released, with the offset of the first such frame in the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreleasable {
    NotMemory(usize),
    Managed(usize),
    Unaccepted,
}

/// The number of frames of a block.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const FRAMES: usize = PAGES_PER_BLOCK as usize;

/// How many blocks a part covers.
fn blocks_in(part: PfnRange) -> u32 {
    u32::try_from(part.pages().div_ceil(PAGES_PER_BLOCK)).unwrap_or(1)
}

impl Zone {
    /// Checks that a part, which is frames of the block at `index` or whole blocks from it on, is
    /// reserved memory. Returns whether the release makes its block one more that is managed only
    /// in part.
    pub(crate) fn check_release<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        part: PfnRange,
    ) -> Result<bool, Unreleasable> {
        let locked = self.read_coalesced(platform);
        let is_whole = part.pages() >= PAGES_PER_BLOCK;
        let mut wants = false;
        let (mut next, end) = (index, index + blocks_in(part));
        while next < end {
            let block = next;
            next += 1;
            let offset = |of: usize| of + (block - index) as usize * FRAMES;
            let range = if is_whole { 0..FRAMES } else { in_block(part) };
            let (head, state) = locked
                .buddy
                .table
                .head_of(block)
                .ok_or(Unreleasable::NotMemory(offset(range.start)))?;
            match state.state() {
                // Memory that could not be accepted.
                Some(State::Reserved) if state.has(BlockState::POISONED) => {
                    return Err(Unreleasable::Unaccepted);
                }
                Some(State::Reserved) => {
                    wants |= !is_whole;
                    // The rest of the head is reserved, too.
                    next = head + blocks_of(state.order());
                }
                Some(State::Split) if state.managed_pages() < PAGES_PER_BLOCK => {
                    if state.present_pages() < PAGES_PER_BLOCK {
                        let present = frames_of(locked.present, block);
                        let absent = present.map_or(Some(range.start), |present| {
                            present.first_taken(range.start, range.end)
                        });
                        if let Some(absent) = absent {
                            return Err(Unreleasable::NotMemory(offset(absent)));
                        }
                    }
                    let managed = locked.partials.managed_frames(block);
                    let first = managed
                        .map_or((state.managed_pages() != 0).then_some(range.start), |managed| {
                            managed.first_free(range.start, range.end)
                        });
                    if let Some(first) = first {
                        return Err(Unreleasable::Managed(offset(first)));
                    }
                    wants |= !is_whole && managed.is_none();
                }
                Some(State::Unaccepted | State::Accepting) => return Err(Unreleasable::Unaccepted),
                Some(State::Offline) => {
                    return Err(Unreleasable::NotMemory(offset(range.start)));
                }
                _ => return Err(Unreleasable::Managed(offset(range.start))),
            }
        }
        Ok(wants)
    }

    /// How many more blocks can be noted as managed only in part.
    pub(crate) fn partials_left<P: Platform>(&self, platform: &P) -> usize {
        self.read(platform).partials.room()
    }

    /// Makes frames allocated ones that [`check_release`](Self::check_release) found to be
    /// reserved.
    pub(crate) fn adopt<P: Platform>(&self, platform: &P, index: u32, part: PfnRange) {
        let mut locked = self.lock_coalesced(platform);
        if part.pages() < PAGES_PER_BLOCK {
            locked.adopt_frames(index, part);
        } else {
            let end = index + blocks_in(part);
            let mut next = index;
            while next < end {
                next = locked.adopt_blocks(next, end);
            }
        }
        self.managed_pages.fetch_add(part.pages(), Ordering::Relaxed);
        self.reserved_pages.fetch_sub(part.pages(), Ordering::Relaxed);
    }
}

impl LockedZone {
    /// Makes the reserved block at `index` an allocated one, or as much of it as lies before `end`.
    /// Returns the index of the next block.
    fn adopt_blocks(&mut self, index: u32, end: u32) -> u32 {
        let table = &self.buddy.table;
        let Some((_, state)) = table.head_of(index) else { return index + 1 };
        if state.is(State::Split) {
            let block = segment_frames(self, index);
            self.adopt_frames(index, block);
            return index + 1;
        }
        let order = divide_whole(table, index, end);
        let Some(order) = order else { return index + 1 };
        let entry = table.cold_entry(index);
        entry.set_links(0, 0);
        let whole = BlockState::head(State::Whole, order, MigrateType::Movable);
        table.set_state_and_lots(entry, index, whole);
        index + blocks_of(order)
    }

    /// Makes reserved frames of one block allocated ones.
    fn adopt_frames(&mut self, index: u32, part: PfnRange) {
        let table = &self.buddy.table;
        let Some((_, state)) = table.head_of(index) else { return };
        if state.is(State::Reserved) {
            if divide_whole(table, index, index + 1).is_none() {
                return;
            }
            table.cold_free_map(index).clear();
            let entry = table.cold_entry(index);
            entry.set_links(0, 0);
            let split = BlockState::split(MigrateType::Movable);
            table.set_state_and_lots(entry, index, split.with_pages(0, 0, PAGES_PER_BLOCK));
        }
        let state = table.state(index);
        let managed = state.managed_pages() + part.pages();
        let (free, present) = (state.free_pages(), state.present_pages());
        let mut new = state.with_pages(free, managed, present);
        if state.managed_pages() == 0 {
            new = match self.form(index) {
                DescriptorForm::None => new,
                DescriptorForm::Array => new.with_array(),
                DescriptorForm::Inside => new.with(BlockState::UNDESCRIBED),
            };
        }
        table.set_state(index, new);
        if managed == PAGES_PER_BLOCK {
            self.partials.remove(index);
        } else {
            let noted = self.partials.add(index, part);
            debug_assert!(noted, "places were counted");
        }
    }
}

/// All frames of a block.
fn segment_frames(locked: &LockedZone, index: u32) -> PfnRange {
    let start = locked.frame(index, 0).unwrap_or(crate::units::Pfn(0));
    PfnRange { start, end: start.add(PAGES_PER_BLOCK) }
}
