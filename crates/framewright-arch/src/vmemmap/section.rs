//! The four operations on one section's 2 MiB of the vmemmap.

use super::counts::{add, subtract_one};
use super::shared::Shared;
use crate::paging::frame_stack::FrameStack;
use crate::paging::table::{ENTRIES, Table};
use crate::x86_64::entry::Entry;
use core::ops::Range;
use framewright::Platform;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameSource, OutOfFrames, Unflushed, VMEMMAP_PAGES_PER_BLOCK,
};

const BLOCKS: usize = BLOCKS_PER_CALL as usize;
const PAGES_PER_BLOCK: usize = ENTRIES / BLOCKS;
const _: () = assert!(PAGES_PER_BLOCK as u64 == VMEMMAP_PAGES_PER_BLOCK);
/// The level of a directory.
const DIRECTORY_LEVEL: u32 = 2;

/// How a section is mapped.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// No block of it is present.
    Absent,
    /// All of it is present, in the 512 frames that begin here.
    Large(Pfn),
    /// Mapped by a table of its own.
    Own(OwnTable<'a>),
}

/// A section's own table and the frame that contains it.
#[derive(Clone, Copy)]
struct OwnTable<'a> {
    frame: Pfn,
    entries: Table<'a>,
}

/// A section and the directory entry that maps it.
pub(super) struct Section<'a, P: Platform> {
    shared: &'a Shared<P>,
    first_block: u32,
    directory: Table<'a>,
    index: usize,
}

pub(super) fn is_whole(blocks: &Range<usize>) -> bool {
    *blocks == (0..BLOCKS)
}

fn entries_of(block: usize) -> Range<usize> {
    block * PAGES_PER_BLOCK..(block + 1) * PAGES_PER_BLOCK
}

fn one(frame: Pfn) -> PfnRange {
    PfnRange::new(frame.0, frame.0 + 1)
}

fn section_run(start: Pfn) -> PfnRange {
    PfnRange::new(start.0, start.0 + ENTRIES as u64)
}

impl<'a, P: Platform> Section<'a, P> {
    /// Section `number`, mapped by entry `index` of `directory`.
    pub(super) fn new(
        shared: &'a Shared<P>,
        number: u32,
        directory: Table<'a>,
        index: usize,
    ) -> Self {
        Self { shared, first_block: number * BLOCKS_PER_CALL, directory, index }
    }

    fn form(&self) -> Form<'a> {
        let entry = self.directory.get(self.index);
        let frame = Pfn::containing(entry.address());
        if entry.is_page(DIRECTORY_LEVEL) {
            Form::Large(frame)
        } else if frame == self.shared.absent {
            Form::Absent
        } else {
            Form::Own(self.own(frame))
        }
    }

    fn own(&self, frame: Pfn) -> OwnTable<'a> {
        OwnTable { frame, entries: self.shared.table(frame) }
    }

    /// Maps the section in this form from now on, with one store.
    fn set_form(&self, form: Form<'a>) {
        let entry = match form {
            Form::Absent => self.shared.absent_entry(),
            Form::Large(start) => self.shared.large_entry(start),
            Form::Own(own) => Entry::table(own.frame.address()),
        };
        let (before, counters) = (self.form(), &self.shared.counters);
        self.directory.set(self.index, entry);
        match before {
            Form::Absent => {}
            Form::Large(_) => subtract_one(&counters.large),
            Form::Own(_) => subtract_one(&counters.tables),
        }
        match form {
            Form::Absent => {}
            Form::Large(_) => add(&counters.large, 1),
            Form::Own(_) => add(&counters.tables, 1),
        }
    }

    /// The global numbers of some of its blocks.
    fn numbers(&self, blocks: &Range<usize>) -> BlockRange {
        let number =
            |block: usize| self.first_block + u32::try_from(block).unwrap_or(BLOCKS_PER_CALL);
        BlockRange::new(number(blocks.start), number(blocks.end))
    }

    fn all(&self) -> BlockRange {
        self.numbers(&(0..BLOCKS))
    }

    fn is_present(&self, own: OwnTable<'_>, block: usize) -> bool {
        Pfn::containing(own.entries.get(block * PAGES_PER_BLOCK).address()) != self.shared.zero
    }

    pub(super) fn populate(
        &self,
        blocks: &Range<usize>,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let own = match self.form() {
            Form::Large(_) => return Ok(()),
            Form::Absent => None,
            Form::Own(own) => Some(own),
        };
        let wanted = blocks
            .clone()
            .filter(|&block| own.is_none_or(|own| !self.is_present(own, block)))
            .count();
        if wanted == 0 {
            return Ok(());
        }
        if wanted == BLOCKS
            && (own.is_none() || unflushed.room() > 0)
            && let Some(start) = frames.take(Order::BLOCK)
        {
            self.set_form(Form::Large(start));
            unflushed.mark_changed(self.all());
            // There is room, as was checked above.
            let _fits = own.is_none_or(|own| unflushed.push_table_from(self.all(), own.frame));
        } else {
            self.populate_small(blocks, own, wanted, frames)?;
            unflushed.mark_changed(self.numbers(blocks));
        }
        add(&self.shared.counters.populated_pages, wanted as u64 * VMEMMAP_PAGES_PER_BLOCK);
        Ok(())
    }

    /// Maps those of `blocks` that are absent (there are `wanted`) by entries of a table: the
    /// section's own, or a new one if it has none.
    fn populate_small(
        &self,
        blocks: &Range<usize>,
        own: Option<OwnTable<'a>>,
        wanted: usize,
        frames: &mut dyn FrameSource,
    ) -> Result<(), OutOfFrames> {
        let mut taken = FrameStack::new(self.shared.platform, frames);
        // The frame that is taken last is popped first: the table, then the blocks' frames, from
        // the last block to the first.
        let all =
            (0..wanted).all(|_| taken.take_block()) && (own.is_some() || taken.take(Order::PAGE));
        let new =
            if all && own.is_none() { taken.pop().map(|(frame, _)| self.own(frame)) } else { None };
        let Some(table) = own.or(new).filter(|_| all) else {
            taken.put_back();
            return Err(OutOfFrames);
        };
        if let Some(new) = new {
            new.entries.fill(|_| self.shared.zero_entry());
        }
        for block in blocks.clone().rev().filter(|&block| !self.is_present(table, block)) {
            let first = block * PAGES_PER_BLOCK;
            taken.pop_block(|page, frame| {
                table.entries.set(first + page, self.shared.page_entry(frame))
            });
        }
        if let Some(new) = new {
            self.set_form(Form::Own(new));
        }
        Ok(())
    }

    pub(super) fn prepare(
        &self,
        blocks: &Range<usize>,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let Form::Large(start) = self.form() else { return Ok(()) };
        if is_whole(blocks) {
            return Ok(());
        }
        let own = self.own(frames.take(Order::PAGE).ok_or(OutOfFrames)?);
        own.entries.fill(|index| self.shared.page_entry(start.add(index as u64)));
        self.set_form(Form::Own(own));
        unflushed.mark_changed(self.all());
        add(&self.shared.counters.splits, 1);
        Ok(())
    }

    /// Evicts `blocks` and returns how many of them could not be evicted.
    pub(super) fn evict(&self, blocks: &Range<usize>, unflushed: &mut Unflushed) -> u32 {
        match self.form() {
            Form::Absent => 0,
            Form::Large(start) => {
                if !is_whole(blocks) || unflushed.room() == 0 {
                    return u32::try_from(blocks.len()).unwrap_or(BLOCKS_PER_CALL);
                }
                self.set_form(Form::Absent);
                let _fits = unflushed.push_from(self.all(), section_run(start));
                self.count_evicted(BLOCKS, true);
                0
            }
            Form::Own(own) => self.evict_from(own, blocks, unflushed),
        }
    }

    fn evict_from(
        &self,
        own: OwnTable<'a>,
        blocks: &Range<usize>,
        unflushed: &mut Unflushed,
    ) -> u32 {
        let is_needed =
            (0..BLOCKS).any(|block| !blocks.contains(&block) && self.is_present(own, block));
        if !is_needed && self.runs(own, 0..ENTRIES) < unflushed.room() {
            self.evict_whole(own, blocks, unflushed);
            return 0;
        }
        let mut left = 0;
        for block in blocks.clone().filter(|&block| self.is_present(own, block)) {
            if self.runs(own, entries_of(block)) > unflushed.room() {
                left += 1;
                continue;
            }
            for index in entries_of(block) {
                let frame = Pfn::containing(own.entries.get(index).address());
                own.entries.set(index, self.shared.zero_entry());
                let _fits = unflushed.push_from(self.numbers(&(block..block + 1)), one(frame));
            }
            self.count_evicted(1, false);
        }
        left
    }

    /// Makes the section absent with one store. The table and the frames that it names go into
    /// `unflushed`, which has room. Blocks that were absent stay absent, so only the pages of
    /// present blocks and the cached walk steps through the table are stale.
    fn evict_whole(&self, own: OwnTable<'a>, asked: &Range<usize>, unflushed: &mut Unflushed) {
        self.set_form(Form::Absent);
        let mut count = 0;
        for block in asked.clone().filter(|&block| self.is_present(own, block)) {
            for index in entries_of(block) {
                let frame = Pfn::containing(own.entries.get(index).address());
                let _fits = unflushed.push_from(self.numbers(&(block..block + 1)), one(frame));
            }
            count += 1;
        }
        let _fits =
            unflushed.push_table_from(self.numbers(&(asked.start..asked.start + 1)), own.frame);
        self.count_evicted(count, true);
    }

    /// How many runs the present frames among these entries form.
    fn runs(&self, own: OwnTable<'_>, entries: Range<usize>) -> usize {
        let mut follows = None;
        let frames = entries.map(|index| Pfn::containing(own.entries.get(index).address()));
        let present = frames.filter(|&frame| frame != self.shared.zero);
        present.filter(|&frame| follows.replace(frame.add(1)) != Some(frame)).count()
    }

    fn count_evicted(&self, blocks: usize, in_one_store: bool) {
        add(&self.shared.counters.evicted_pages, blocks as u64 * VMEMMAP_PAGES_PER_BLOCK);
        add(&self.shared.counters.evicted_sections, u64::from(in_one_store && blocks > 0));
    }

    pub(super) fn merge(
        &self,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        let own = match self.form() {
            Form::Absent => return Ok(false),
            Form::Large(_) => return Ok(true),
            Form::Own(own) => own,
        };
        let runs = self.runs(own, 0..ENTRIES);
        let start = Pfn::containing(own.entries.get(0).address());
        let in_place = runs == 1 && start.is_aligned(Order::BLOCK);
        // There must be room for the table, and for the frames if they are copied to other ones.
        let room = if in_place { 1 } else { runs + 1 };
        if !(0..BLOCKS).all(|block| self.is_present(own, block)) || unflushed.room() < room {
            return Ok(false);
        }
        if in_place {
            self.set_form(Form::Large(start));
        } else {
            let start = frames.take(Order::BLOCK).ok_or(OutOfFrames)?;
            for (offset, index) in (0..).zip(0..ENTRIES) {
                let from = Pfn::containing(own.entries.get(index).address());
                self.shared.copy(from, start.add(offset));
            }
            self.set_form(Form::Large(start));
            for index in 0..ENTRIES {
                let frame = Pfn::containing(own.entries.get(index).address());
                let _fits = unflushed.push_from(self.all(), one(frame));
            }
        }
        let _fits = unflushed.push_table_from(self.all(), own.frame);
        add(&self.shared.counters.merges, 1);
        Ok(true)
    }
}
