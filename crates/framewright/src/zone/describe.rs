//! Page descriptors and reference counts of a zone: prepared at bring-up, found without the lock.
//!
//! Orders of memory: Relaxed: counts and owner words are set to zero before the state word says
//! that they exist (Release in `set_state`), or are accessed under the zone lock.

use super::Zone;
use super::locked::LockedZone;
use crate::block::heads::HeadIn;
use crate::block::table::blocks_of;
use crate::block::{BlockState, DescriptorForm, FreeMap, State, segment};
use crate::page::{BlockPages, DESCRIPTOR_FRAMES, DescriptorFrames, Descriptors, Page};
use crate::platform::Platform;
use crate::sync::references;
use crate::sync::table_atomic::{AtomicU32, Ordering};
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap::BootPages;
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use core::ops::Range;

/// Where the references to a frame are counted. Valid as long as the reader is inside.
pub(crate) enum Counted<'a> {
    /// The frame lies in a split block.
    Page {
        /// The block's descriptors.
        map: BlockPages<'a>,
        /// The block's free frames, at some moment.
        free: &'a FreeMap,
    },
    /// A block that is allocated whole and has a reference count.
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
    /// Called at bring-up once all is initialised. Sets how descriptors are found, and describes
    /// the memory that is not withheld. Where descriptors lie inside blocks, the frames of a block
    /// that has too few of them to hold its own descriptors and one page more become reserved.
    pub(crate) fn attach_descriptors(&mut self, descriptors: Descriptors, without: &BootPages) {
        self.descriptors = Some(descriptors);
        if let Some(array) = descriptors.array() {
            for segment in self.segments {
                for HeadIn { head, state, .. } in self.table.heads(segment.indices()) {
                    let start = segment.block_of(head).start();
                    // Blocks that are allocated already belong to the array, which describes itself
                    // as well, or are pages without a map.
                    let whole =
                        state.is(State::Free) || state.is(State::Whole) && !without.contains(start);
                    if whole || state.is(State::Split) && state.managed_pages() != 0 {
                        array.describe(head..head + blocks_of(state.order()), start);
                    }
                }
            }
        }
        let locked = self.changing.locked.get_mut();
        locked.descriptors = Some(descriptors);
        for number in 0..locked.partials.len() {
            let Some(index) = locked.partials.index(number) else { break };
            let state = self.table.state(index);
            match descriptors.form(index) {
                DescriptorForm::None => continue,
                DescriptorForm::Array => {
                    self.table.set_state(index, state.with_array());
                    continue;
                }
                DescriptorForm::Inside => {}
            }
            let free = state.free_pages();
            if free > VMEMMAP_PAGES_PER_BLOCK {
                locked.describe_if_possible(index);
                let largest = self.table.cold_free_map(index).largest_order();
                locked.set_free_order(index, largest);
            } else {
                locked.set_free_order(index, None);
                locked.split_pages -= free;
                self.table.cold_free_map(index).clear();
                locked.partials.give_up(number);
                let state = self.table.state(index);
                self.table.set_state(index, state.with_pages(0, 0, state.present_pages()));
                *self.managed_pages.get_mut() -= free;
                *self.reserved_pages.get_mut() += free;
            }
        }
        self.find_pfn_range();
        self.finish_initialising();
    }

    /// [`attach_descriptors`](Self::attach_descriptors) for a zone without descriptors.
    pub(crate) fn attach_no_descriptors(&mut self) {
        self.find_pfn_range();
        self.finish_initialising();
    }

    /// Passes the reference counts that cover the frames of the block at `index` to `look`, with
    /// interrupts off and without the lock. `look` must be short, take no lock and call no foreign
    /// code. Returns nothing if no count covers the block.
    #[inline]
    pub(crate) fn look<R>(&self, index: u32, look: impl FnOnce(Counted<'_>) -> R) -> Option<R> {
        let descriptors = self.descriptors.as_ref()?;
        let (head, _) = self.table.head_unlocked(index)?;
        let reading = descriptors.enter(head);
        // Read the state again: what it was before the reader entered does not count.
        let state = self.table.state_as_reader(head);
        if state.is(State::Whole)
            && state.has(BlockState::COUNTED)
            && index - head < blocks_of(state.order())
        {
            let (count, owner) = (self.table.count(head), self.table.owner(head));
            let run = segment::run(self.segments, head, 0, state.order())?;
            return Some(look(Counted::Block { run, count, owner }));
        }
        if head != index {
            return None;
        }
        let map = descriptors.read(&reading, &self.table, index)?;
        Some(look(Counted::Page { map, free: self.table.free_map(index) }))
    }

    /// Gives the block of `order` that is allocated whole and has its head at `index` a count of
    /// one. The error is the number of references that it has already. Returns nothing if there is
    /// no such block.
    pub(crate) fn start_block_count<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        order: Order,
    ) -> Option<Result<(), u32>> {
        let locked = self.read(platform);
        let (head, state) = self.table.head_of(index)?;
        let is_one = head == index
            && state.is(State::Whole)
            && state.order() == order
            && !state.is_nobodys();
        if !is_one || locked.buddy.is_deferred(index) {
            return None;
        }
        let (count, owner) = (self.table.count(index), self.table.owner(index));
        if !state.has(BlockState::COUNTED) {
            // No reader looks at these words yet.
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
    pub(crate) fn descriptor_frames<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        block: Pfn,
    ) -> Option<[Pfn; DESCRIPTOR_FRAMES]> {
        let locked = self.read(platform);
        let (head, _) = self.table.head_of(index)?;
        if head != index {
            return None;
        }
        let frames = locked.descriptor_frames_of(index)?;
        let mut pfns = [block; DESCRIPTOR_FRAMES];
        for (pfn, frame) in pfns.iter_mut().zip(frames.iter()) {
            *pfn = block.add(frame as u64);
        }
        pfns.sort_unstable();
        Some(pfns)
    }
}

impl LockedZone {
    /// Where the block at `index` has its descriptors when it is split.
    pub(super) fn form(&self, index: u32) -> DescriptorForm {
        if !cfg!(feature = "vmemmap") {
            return DescriptorForm::None;
        }
        self.descriptors
            .as_ref()
            .map_or(DescriptorForm::None, |descriptors| descriptors.form(index))
    }

    /// Puts the descriptors of a split block into `frames`, which are all free, so that the block
    /// has the inside form.
    pub(super) fn describe(&mut self, index: u32, frames: DescriptorFrames) {
        if !cfg!(feature = "vmemmap") {
            return;
        }
        let Some(descriptors) = &self.descriptors else { return };
        let table = &self.buddy.table;
        frames.take_from(table.cold_free_map(index));
        let before = table.state(index);
        let free = before.free_pages() - VMEMMAP_PAGES_PER_BLOCK;
        let described =
            descriptors.write(&mut self.buddy, index, frames, before.with_free_pages(free));
        // The state word is stored once all descriptors are zero.
        self.buddy.table.set_state(index, described);
        *self.free_counter(before) -= before.free_pages();
        *self.free_counter(described) += free;
        self.descriptor_pages += VMEMMAP_PAGES_PER_BLOCK;
    }

    /// [`describe`](Self::describe) for an undescribed block, if it has more free frames than its
    /// descriptors take.
    pub(super) fn describe_if_possible(&mut self, index: u32) {
        if !cfg!(feature = "vmemmap") {
            return;
        }
        if self.buddy.table.state(index).free_pages() > VMEMMAP_PAGES_PER_BLOCK
            && let Some(frames) = DescriptorFrames::choose(self.buddy.table.cold_free_map(index))
        {
            self.describe(index, frames);
        }
    }

    /// Removes the descriptors of a split block whose other frames are all free. The frames that
    /// held them belong to the block again.
    pub(super) fn take_descriptors(&mut self, index: u32) {
        if !cfg!(feature = "vmemmap") {
            return;
        }
        let state = self.buddy.table.state(index);
        if let (DescriptorForm::Inside, Some(descriptors)) =
            (state.descriptor_form(), &self.descriptors)
        {
            let frames = self.descriptor_frames_of(index);
            self.buddy.table.set_state(index, state.without_descriptors());
            descriptors.wait(index);
            if let Some(frames) = frames {
                descriptors.wipe(index, frames);
            }
            self.descriptor_pages -= VMEMMAP_PAGES_PER_BLOCK;
        }
    }

    /// Ends the reference count of a block that is allocated whole, before its links are used for
    /// anything else.
    pub(super) fn end_count(&mut self, head: u32) {
        if !cfg!(feature = "vmemmap") {
            return;
        }
        let state = self.buddy.table.state(head);
        if state.is(State::Whole)
            && state.has(BlockState::COUNTED)
            && let Some(descriptors) = &self.descriptors
        {
            self.buddy.table.set_state(head, state.without(BlockState::COUNTED));
            descriptors.wait(head);
        }
    }

    /// The first frame of `range` that holds descriptors.
    #[inline]
    pub(super) fn in_descriptors(
        &self,
        index: u32,
        state: BlockState,
        range: &Range<usize>,
    ) -> Option<usize> {
        if !cfg!(feature = "vmemmap") {
            return None;
        }
        if state.descriptor_form() != DescriptorForm::Inside {
            return None;
        }
        if state.has(BlockState::SCATTERED) {
            return self.descriptor_frames_of(index)?.first_in(range);
        }
        let first = state.descriptors_first();
        (first < range.end && range.start < first + DESCRIPTOR_FRAMES)
            .then_some(first.max(range.start))
    }

    /// Whether any of the runs of `order` that begin at the set bits of `runs`, counted from
    /// `start`, holds descriptors.
    pub(super) fn any_in_descriptors(
        &self,
        index: u32,
        start: usize,
        runs: u64,
        order: Order,
    ) -> bool {
        if !cfg!(feature = "vmemmap") {
            return false;
        }
        let Some(frames) = self.descriptor_frames_of(index) else { return false };
        let pages = (0..order.get()).fold(runs, |pages, step| pages | pages << (1 << step));
        frames
            .iter()
            .any(|frame| frame >= start && frame < start + 64 && pages >> (frame - start) & 1 != 0)
    }

    /// Which frames of a split block hold its descriptors, where they are inside.
    pub(super) fn descriptor_frames_of(&self, index: u32) -> Option<DescriptorFrames> {
        if !cfg!(feature = "vmemmap") {
            return None;
        }
        self.descriptors.as_ref()?.locked(&self.buddy, index)?.frames()
    }
}
