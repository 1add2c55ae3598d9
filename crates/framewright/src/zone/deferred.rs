//! Memory of a zone that is withheld until its part of the vmemmap is initialised, and how it comes
//! up (`deferred_init_memmap` in Linux's `mm/mm_init.c`).
//!
//! Withheld blocks are heads in the state *deferred*, as large as they come. Whoever has claimed
//! sections divides the heads that reach over their borders, under the lock; initialises what is
//! then wholly theirs, outside of all locks; and frees it, under the lock again. What is not
//! withheld (reserved blocks, blocks with holes, memory that is not accepted) is stepped over. What
//! is accepted gets its descriptors then, whatever its section is (`unaccepted`).
//!
//! Orders of memory: Release, in what is no longer withheld: it was published as free before, for
//! those who read both without the lock ([`Zone::deferred_pages`] is Acquire). The memory itself is
//! published under the zone lock.

use super::unaccepted::{MOST_HEADS, is_listed};
use super::{Segment, Zone};
use crate::block::list::Position;
use crate::block::split::divide_whole;
use crate::block::table::blocks_of;
use crate::block::{BlockState, MigrateType, State};
use crate::platform::{Platform, pinned};
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap::{DeferredInit, SECTION_PAGES, SectionState, Sections};
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber};
use core::ops::Range;

impl Zone {
    /// The sections that were withheld at bring-up.
    pub(crate) const fn sections(&self) -> &Sections {
        &self.sections
    }

    /// Whether anything is withheld: until it is described, or until it is accepted.
    pub(crate) fn has_withheld(&self) -> bool {
        self.sections.are_left() || self.unaccepted_pages() != 0
    }

    /// Whether a run of `order` that ends at or below `max` is withheld and comes up for a request
    /// of a type. As it is now: what is withheld in pieces may merge as it comes up.
    #[cold]
    pub(crate) fn withholds<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> bool {
        let order = order.max(Order::BLOCK);
        let is_it = |head, state: BlockState| {
            (state.is(State::Deferred) || is_listed(state))
                && (migrate_type == MigrateType::Movable || !state.is_graded())
                && state.order() >= order
                && self.start_of(head).add(order.pages()) <= max
        };
        self.segments.iter().any(|segment| {
            let mut heads = self.table.heads(segment.indices());
            loop {
                let _locked = self.read(platform);
                for _ in 0..MOST_HEADS {
                    match heads.next() {
                        Some(found) if is_it(found.head, found.state) => return true,
                        Some(_) => {}
                        None => return false,
                    }
                }
            }
        })
    }

    /// What is with a section: frame numbers from `number` times 32768 on. *Done* for one that was
    /// never withheld.
    #[must_use]
    pub fn section_state(&self, number: u32) -> SectionState {
        self.sections.state(number)
    }

    /// Brings up those of `sections` that nobody claimed yet, one at a time, so that whoever has
    /// nothing else to do finds some left. Returns how many pages that gave. Any context.
    pub(crate) fn bring_up_sections<P: Platform>(
        &self,
        platform: &P,
        sections: impl Iterator<Item = u32>,
    ) -> u64 {
        sections
            .filter_map(|section| {
                self.bring_up_one(platform, || self.sections.claim(section).then_some(section))
            })
            .sum()
    }

    /// Brings up the lowest deferred sections that begin below `max` until that gave `pages` in
    /// whole sections; returns how many it gave: none when nothing is left. Any context.
    pub(crate) fn grow<P: Platform>(&self, platform: &P, pages: u64, max: Pfn) -> u64 {
        let end = u32::try_from(max.0.div_ceil(SECTION_PAGES)).unwrap_or(u32::MAX);
        let mut given = 0;
        while given < pages
            && let Some(more) = self.bring_up_one(platform, || self.sections.claim_next(end))
        {
            given += more;
        }
        given
    }

    /// Brings up the section that `claim` claims, if it does; how many pages that gave.
    ///
    /// Pinned from before it is claimed until it is done, so that no task loses its CPU with a
    /// section in its hands: whoever waits for one waits for a CPU that is at work, not for a task
    /// (invariant 43). Linux has interrupts off meanwhile (`deferred_grow_zone` in `mm/mm_init.c`).
    fn bring_up_one<P: Platform>(
        &self,
        platform: &P,
        claim: impl FnOnce() -> Option<u32>,
    ) -> Option<u64> {
        pinned(platform, |_| claim().map(|section| self.bring_up_claimed(platform, section)))
    }

    /// The caller has claimed the section. Nothing here is inlined: at a boot all of it runs for
    /// the first time, and less code is faster then.
    #[inline(never)]
    fn bring_up_claimed<P: Platform>(&self, platform: &P, section: u32) -> u64 {
        let mut pages = 0;
        for segment in self.segments {
            let start = segment.start.0.max(section * BLOCKS_PER_CALL);
            let end = segment.end().0.min((section + 1) * BLOCKS_PER_CALL);
            if start < end {
                let index = segment.index_of(BlockNumber(start));
                pages += self.bring_up_blocks(platform, segment, index..index + (end - start));
            }
        }
        self.sections.finish(section);
        pages
    }

    /// At most a section, so that the lock is held for no more than that many heads.
    fn bring_up_blocks<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        blocks: Range<u32>,
    ) -> u64 {
        // A bit for each block that is withheld: what others free beside them may merge meanwhile.
        let mut withheld = 0_u64;
        {
            let _locked = self.read(platform);
            self.for_each_withheld(&blocks, &mut |index, _| {
                let order = divide_whole(&self.table, index, blocks.end)?;
                let ones = u64::MAX >> (u64::BITS - blocks_of(order));
                withheld |= ones << (index - blocks.start);
                Some(order)
            });
        }
        if let Some(array) = self.descriptors.as_ref().and_then(|descriptors| descriptors.array()) {
            while withheld != 0 {
                let first = withheld.trailing_zeros();
                let count = (withheld >> first).trailing_ones();
                let index = blocks.start + first;
                array.describe(index..index + count, segment.block_of(index).start());
                withheld &= !((u64::MAX >> (u64::BITS - count)) << first);
            }
        }
        let mut pages = 0;
        let mut locked = self.lock(platform);
        self.for_each_withheld(&blocks, &mut |index, order| {
            debug_assert!(
                self.table.state(index)
                    == BlockState::head(State::Deferred, order, MigrateType::Movable)
            );
            // To the tail, as everything from bring-up.
            locked.buddy.free(index, order, MigrateType::Movable, Position::Tail);
            pages += order.pages();
            Some(order)
        });
        // Whoever adds what is withheld and what is free, in this order, misses nothing.
        locked.publish();
        self.changing.deferred_pages.fetch_sub(pages, Ordering::Release);
        pages
    }

    /// Gives withheld heads that cover `blocks` to `with`, ascending, each with the first block of
    /// `blocks` in it that is not done; `with` says which order it has done from there on.
    #[inline(never)]
    fn for_each_withheld(
        &self,
        blocks: &Range<u32>,
        with: &mut dyn FnMut(u32, Order) -> Option<Order>,
    ) {
        let mut index = blocks.start;
        while index < blocks.end {
            index = match self.table.cold_head_of(index) {
                Some((_, state)) if state.is(State::Deferred) => {
                    index + with(index, state.order()).map_or(1, blocks_of)
                }
                Some((head, state)) => head + blocks_of(state.order()),
                None => index + 1,
            };
        }
    }

    pub(crate) const fn deferred_init(&self) -> &DeferredInit {
        &self.deferred_init
    }

    /// Withholds these sections; before anything is initialised.
    pub(crate) fn defer(&mut self, sections: Sections) {
        self.sections = sections;
    }

    /// After everything was initialised.
    pub(crate) fn note_withheld(&mut self) {
        self.deferred_init.pages = self.deferred_pages();
    }
}

const _: () = assert!(SECTION_PAGES == BLOCKS_PER_CALL as u64 * PAGES_PER_BLOCK);
