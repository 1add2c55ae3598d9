//! Memory of a zone that is withheld until its part of the vmemmap is initialised, and how it comes
//! up (`deferred_init_memmap` in Linux's `mm/mm_init.c`).
//!
//! Withheld blocks are heads in the state *deferred*, as large as possible. A CPU that has claimed
//! a section divides, under the lock, the heads that reach over its borders. It then initialises
//! the descriptors of the heads that are wholly its own, outside of all locks, and frees these
//! heads under the lock again. It steps over memory that is not withheld (reserved blocks, blocks
//! with holes) and memory that is not accepted; the latter gets its descriptors when it is
//! accepted, whatever the state of its section (`unaccepted`).
//!
//! Orders of memory: Release when the count of withheld pages shrinks: the pages were published as
//! free before that, for readers of both counts without the lock ([`Zone::deferred_pages`] is
//! Acquire). The memory itself is published by the zone lock.

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

    /// Whether any memory is withheld, because it is not described or not accepted yet.
    pub(crate) fn has_withheld(&self) -> bool {
        self.sections.are_left() || self.unaccepted_pages() != 0
    }

    /// Whether a withheld run of `order` that ends at or below `max` could come up for a request of
    /// `migrate_type`. Only withheld heads as they are now count: smaller ones might merge when
    /// they come up.
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

    /// The state of the section whose frame numbers begin at `number` times 32768. *Done* for a
    /// section that was never withheld.
    #[must_use]
    pub fn section_state(&self, number: u32) -> SectionState {
        self.sections.state(number)
    }

    /// Brings up those of `sections` that nobody has claimed yet, one at a time, so that idle CPUs
    /// find some left. Returns how many pages that gave. Any context.
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

    /// Brings up the lowest deferred sections that begin below `max` until they gave `pages`, in
    /// whole sections. Returns how many pages they gave: none if nothing is left. Any context.
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

    /// Brings up the section that `claim` claims, if it claims one. Returns how many pages that
    /// gave.
    ///
    /// The caller is pinned from before the claim until the section is done, so that no task loses
    /// its CPU while it holds a section: a CPU that waits for a section waits for a CPU that is at
    /// work, not for a task (invariant 43). Linux keeps interrupts off meanwhile
    /// (`deferred_grow_zone` in `mm/mm_init.c`).
    fn bring_up_one<P: Platform>(
        &self,
        platform: &P,
        claim: impl FnOnce() -> Option<u32>,
    ) -> Option<u64> {
        pinned(platform, |_| claim().map(|section| self.bring_up_claimed(platform, section)))
    }

    /// Brings up a section that the caller has claimed. Nothing here is inlined: during a boot all
    /// of it runs for the first time, and then less code is faster.
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

    /// Brings up withheld blocks of at most one section, which bounds the number of heads that one
    /// hold of the lock visits.
    fn bring_up_blocks<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        blocks: Range<u32>,
    ) -> u64 {
        // One bit for each withheld block. The blocks beside them may be merged meanwhile as others
        // free.
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
            // To the tail of its list, like everything at bring-up.
            locked.buddy.free(index, order, MigrateType::Movable, Position::Tail);
            pages += order.pages();
            Some(order)
        });
        // A reader that reads first the withheld and then the free pages, and adds them, misses
        // none.
        locked.publish();
        self.changing.deferred_pages.fetch_sub(pages, Ordering::Release);
        pages
    }

    /// Passes withheld heads that cover `blocks` to `with`, ascending, each with its first block in
    /// `blocks` that is not done yet. `with` returns the order that it has done from there on.
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

    /// Withholds these sections, except for those in holes, of which there may be millions. Called
    /// before anything is initialised.
    pub(crate) fn defer(&mut self, sections: Sections) {
        let mut next = sections.range().start;
        for segment in self.segments {
            (next..segment.start.0 / BLOCKS_PER_CALL).for_each(|hole| sections.skip(hole));
            next = segment.end().0.div_ceil(BLOCKS_PER_CALL).max(next);
        }
        self.sections = sections;
    }

    /// Records how much is withheld. Called after everything else is initialised.
    pub(crate) fn note_withheld(&mut self) {
        self.deferred_init.pages = self.deferred_pages();
    }
}

const _: () = assert!(SECTION_PAGES == BLOCKS_PER_CALL as u64 * PAGES_PER_BLOCK);
