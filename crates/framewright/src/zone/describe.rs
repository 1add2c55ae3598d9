//! Page descriptors and reference counts of a zone: made ready at bring-up, found without the lock.
//!
//! Orders of memory: Relaxed: counts and owner words are made zero before the state word says that
//! there are any (Release in `set_state`), or looked at under the zone lock.

use super::Zone;
use crate::block::table::blocks_of;
use crate::block::{BlockState, FreeMap, MapForm, State};
use crate::page::{Descriptors, MAP_FRAMES, Map, Page, Tier};
use crate::platform::Platform;
use crate::sync::references;
use crate::sync::table_atomic::{AtomicU32, Ordering};
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap::BootPages;
use crate::vmemmap_space::MAP_PAGES_PER_BLOCK;

/// What counts references to a frame, as long as the one who looks is inside.
pub(crate) enum Counted<'a> {
    /// The frame lies in a split block.
    Page {
        /// The block's descriptors.
        map: Map<'a>,
        /// The block's free frames, at some moment.
        free: &'a FreeMap,
    },
    /// A block that is allocated whole and counted.
    Block {
        /// Its frames.
        run: PfnRange,
        /// Its reference count.
        count: &'a AtomicU32,
        /// Its owner word.
        owner: &'a AtomicU32,
    },
}

impl Zone {
    /// At bring-up, when all is painted: how descriptors are found, and those of memory that is not
    /// withheld. Where they lie inside blocks, frames of blocks too small to hold their own
    /// descriptors and one page more become reserved.
    pub(crate) fn attach_descriptors(&mut self, descriptors: Descriptors, without: &BootPages) {
        self.descriptors = Some(descriptors);
        if let Some(array) = descriptors.array() {
            self.for_each_head(|index, start, state| {
                // What is allocated already is the array, which describes itself as well, or a page
                // without a map.
                let whole =
                    state.is(State::Free) || state.is(State::Whole) && !without.contains(start);
                let managed = whole || state.is(State::Split) && state.managed_pages() != 0;
                if managed {
                    array.describe(index..index + blocks_of(state.order()), start);
                }
            });
        }
        for partial in self.partials {
            let index = partial.index();
            let state = self.table.state(index);
            match descriptors.form(index) {
                MapForm::None => continue,
                MapForm::Array => {
                    self.table.set_state(index, state.with_array());
                    continue;
                }
                MapForm::Inside => {}
            }
            let (free, lists) = (state.free_pages(), self.changing.lists.get_mut());
            let mut tier = Tier {
                lists,
                table: &self.table,
                partials: self.partials,
                descriptors: Some(&descriptors),
            };
            if free > MAP_PAGES_PER_BLOCK {
                tier.describe_if_possible(index);
                let largest = self.table.free_map(index).largest_order();
                tier.set_free_order(index, largest);
            } else {
                tier.set_free_order(index, None);
                tier.lists.split_pages -= free;
                self.table.free_map(index).clear();
                self.table.set_state(
                    index,
                    self.table.state(index).with_pages(0, 0, state.present_pages()),
                );
                self.managed_pages -= free;
                self.reserved_pages += free;
            }
        }
        self.find_pfn_range();
        self.finish_initialising();
    }

    /// Calls `visit` with index, first frame and state of every head, ascending, at bring-up.
    fn for_each_head(&self, mut visit: impl FnMut(u32, Pfn, BlockState)) {
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end {
                index += match self.table.cold_head_of(index) {
                    Some((head, state)) => {
                        visit(head, segment.block_of(head).start(), state);
                        blocks_of(state.order())
                    }
                    None => 1,
                };
            }
        }
    }

    /// Looks at what counts the frames of the block at `index`, with interrupts off and without the
    /// lock. `look` is short, takes no lock and calls nobody. Nothing when nothing counts it.
    #[inline]
    pub(crate) fn look<R>(&self, index: u32, look: impl FnOnce(Counted<'_>) -> R) -> Option<R> {
        let descriptors = self.descriptors.as_ref()?;
        let (head, _) = self.table.head_of(index)?;
        let reading = descriptors.enter(head);
        // What the state was before does not count.
        let state = self.table.state_as_reader(head);
        if state.is(State::Whole)
            && state.has(BlockState::COUNTED)
            && index - head < blocks_of(state.order())
        {
            let (count, owner) = (self.table.count(head), self.table.owner(head));
            let run = self.run(head, 0, state.order())?;
            return Some(look(Counted::Block { run, count, owner }));
        }
        if head != index {
            return None;
        }
        let map = descriptors.read(&reading, &self.table, index)?;
        Some(look(Counted::Page { map, free: self.table.free_map(index) }))
    }

    /// Gives the block of `order` that is allocated whole, with its head at `index`, a count of
    /// one. The error says how many references it has already; nothing when there is no such block.
    pub(crate) fn start_block_count<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        order: Order,
    ) -> Option<Result<(), u32>> {
        let lists = self.changing.lists.lock(platform);
        let (head, state) = self.table.head_of(index)?;
        let is_one = head == index
            && state.is(State::Whole)
            && state.order() == order
            && !state.is_nobodys();
        if !is_one || lists.deferred.contains(index) {
            return None;
        }
        let (count, owner) = (self.table.count(index), self.table.owner(index));
        if !state.has(BlockState::COUNTED) {
            // Nobody looks at them yet.
            count.store(0, Ordering::Relaxed);
            self.table.set_state(index, state.with(BlockState::COUNTED));
        }
        if count.load(Ordering::Relaxed) == 0 {
            owner.store(0, Ordering::Relaxed);
        }
        Some(references::unfreeze(count, 1))
    }

    /// The descriptor of a frame.
    ///
    /// # Safety
    /// The frame stays allocated while the descriptor is used.
    pub(crate) unsafe fn page(&self, index: u32, offset: usize) -> Option<&'static Page> {
        let descriptors = self.descriptors.as_ref()?;
        if !self.table.is_ready(index) {
            return None;
        }
        // SAFETY: passed on to the caller.
        unsafe { descriptors.held(&self.table, index) }?.page(offset)
    }

    /// The frames of a block that hold its descriptors, ascending.
    pub(crate) fn map_frames<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        block: Pfn,
    ) -> Option<[Pfn; MAP_FRAMES]> {
        let lists = self.changing.lists.lock(platform);
        let (head, _) = self.table.head_of(index)?;
        let frames = self
            .descriptors
            .as_ref()?
            .locked(&lists, &self.table, head)
            .filter(|_| head == index)?
            .frames()?;
        let mut pfns = [block; MAP_FRAMES];
        for (pfn, frame) in pfns.iter_mut().zip(frames.iter()) {
            *pfn = block.add(frame as u64);
        }
        pfns.sort_unstable();
        Some(pfns)
    }
}
