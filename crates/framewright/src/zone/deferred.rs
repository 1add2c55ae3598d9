//! Memory of a zone that is withheld until its part of the memory map is initialised (SPEC 2), and how it comes up.
//!
//! Withheld blocks are heads in the state *deferred*, as large as they come. Who has claimed sections divides the heads that reach over their borders, under the lock;
//! initialises what is then wholly his, outside of all locks; and frees it, under the lock again. What is not withheld (reserved blocks, blocks with
//! holes) is stepped over: while a section is busy no head in it moves, because only what is withheld there could merge.

use super::{Zone, segment};
use crate::block::lists::{FreeLists, Position};
use crate::block::table::blocks_of;
use crate::block::{BlockState, MigrateType, State, buddy};
use crate::map_space::{BLOCKS_PER_CALL, BlockNumber};
use crate::memory_map::{DeferredInit, SECTION_PAGES, SectionState, Sections};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};
use core::ops::Range;

/// Heads that one hold of the lock looks at.
const SLICE: usize = 64;

impl Zone {
    /// The sections that were withheld at bring-up.
    pub(crate) const fn sections(&self) -> &Sections {
        &self.sections
    }

    /// What is with a section: frame numbers from `number` times 32768 on. *Done* for one that was never withheld.
    #[must_use]
    pub fn section_state(&self, number: u32) -> SectionState {
        self.sections.state(number)
    }

    /// Brings up those of `sections` that nobody claimed yet. Returns how many pages that gave. Any context.
    pub(crate) fn bring_up_sections<P: Platform>(&self, platform: &P, sections: Range<u32>) -> u64 {
        let (mut pages, mut section) = (0, sections.start);
        while section < sections.end {
            let first = section;
            while section < sections.end && self.sections.claim(section) {
                section += 1;
            }
            if first < section {
                pages += self.bring_up_claimed(platform, first..section);
            } else {
                section += 1;
            }
        }
        pages
    }

    /// Brings up the lowest deferred sections that begin below `max` until that gave `pages` in whole sections; returns how many it gave: none when nothing is
    /// left. Any context.
    pub(crate) fn grow<P: Platform>(&self, platform: &P, pages: u64, max: Pfn) -> u64 {
        let end = u32::try_from(max.0.div_ceil(SECTION_PAGES)).unwrap_or(u32::MAX);
        let mut given = 0;
        while given < pages
            && let Some(section) = self.sections.claim_next(end)
        {
            given += self.bring_up_claimed(platform, section..section + 1);
        }
        given
    }

    /// The caller has claimed all of `sections`.
    fn bring_up_claimed<P: Platform>(&self, platform: &P, sections: Range<u32>) -> u64 {
        let mut pages = 0;
        for segment in self.segments {
            let start = segment.start.0.max(sections.start * BLOCKS_PER_CALL);
            let end = segment.end().0.min(sections.end * BLOCKS_PER_CALL);
            if start < end {
                let index = |block| segment.index_of(BlockNumber(block));
                pages += self.bring_up_blocks(platform, &segment.indices(), index(start)..index(start) + (end - start));
            }
        }
        sections.for_each(|section| self.sections.finish(section));
        pages
    }

    fn bring_up_blocks<P: Platform>(&self, platform: &P, segment: &Range<u32>, blocks: Range<u32>) -> u64 {
        let mut index = blocks.start;
        while index < blocks.end {
            let _lists = self.changing.lists.lock(platform);
            for _ in 0..SLICE {
                if index < blocks.end {
                    index =
                        self.step(index, |index| buddy::divide_whole(&self.table, index, blocks.end).map(blocks_of));
                }
            }
        }
        if let Some(array) = self.descriptors.as_ref().and_then(|descriptors| descriptors.array()) {
            let mut index = blocks.start;
            while index < blocks.end {
                index = self.step(index, |index| {
                    let covered = blocks_of(self.table.state(index).order());
                    let start = segment::find_index(self.segments, index)?.block_of(index).start();
                    array.describe(index..index + covered, start);
                    Some(covered)
                });
            }
        }
        let (mut index, mut pages) = (blocks.start, 0);
        while index < blocks.end {
            let mut lists = self.changing.lists.lock(platform);
            let before = pages;
            for _ in 0..SLICE {
                if index < blocks.end {
                    index = self.step(index, |index| {
                        let order = self.table.state(index).order();
                        self.free_withheld(&mut lists, segment, index, order);
                        pages += order.pages();
                        Some(blocks_of(order))
                    });
                }
            }
            self.changing.deferred_pages.fetch_sub(pages - before, Ordering::Relaxed);
            self.publish(&lists);
        }
        pages
    }

    fn free_withheld(&self, lists: &mut FreeLists, segment: &Range<u32>, index: u32, order: Order) {
        debug_assert!(self.table.state(index) == BlockState::head(State::Deferred, order, MigrateType::Movable));
        // To the tail, as everything from bring-up (SPEC 2.3).
        buddy::free(lists, &self.table, segment, index, order, MigrateType::Movable, Position::Tail);
    }

    /// Where what begins next after the head over `index` is. A withheld head is given to `with`, which says how many blocks it has done from `index` on.
    fn step(&self, index: u32, with: impl FnOnce(u32) -> Option<u32>) -> u32 {
        match self.table.head_of(index) {
            Some((_, state)) if state.is(State::Deferred) => index + with(index).unwrap_or(1),
            Some((head, state)) => head + blocks_of(state.order()),
            None => index + 1,
        }
    }

    pub(crate) const fn deferred_init(&self) -> &DeferredInit {
        &self.deferred_init
    }

    /// Withholds these sections; before anything is painted.
    pub(crate) fn defer(&mut self, sections: Sections) {
        self.sections = sections;
    }

    /// After everything was painted.
    pub(crate) fn note_withheld(&mut self) {
        self.deferred_init.pages = self.deferred_pages();
    }
}

const _: () = assert!(SECTION_PAGES == BLOCKS_PER_CALL as u64 * PAGES_PER_BLOCK);
