//! Recounts a zone from its table.

use super::locked::LockedZone;
use super::unaccepted::is_listed;
use super::{Zone, ZoneId, segment};
use crate::block::free_heads::FreeHeads;
use crate::block::free_index::ORDERS;
use crate::block::heads::HeadIn;
use crate::block::list::{ListId, NONE};
use crate::block::table::{GROUP, blocks_of};
use crate::block::{BlockState, FreeMap, MigrateType, State};
use crate::page::DescriptorFrames;
use crate::platform::Platform;
use crate::sync::add_fields::add_fields;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use core::fmt;
use core::ops::AddAssign;

/// Numbers of frames by their state in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames that are memory.
    pub present_pages: u64,
    /// Given to the allocator.
    pub managed_pages: u64,
    /// Present, but not given to the allocator.
    pub reserved_pages: u64,
    /// Free.
    pub free_pages: u64,
    /// Allocated.
    pub allocated_pages: u64,
    /// Managed frames that hold descriptors or wait to do so ([`Zone::descriptor_pages`]), neither
    /// free nor allocated.
    pub descriptor_pages: u64,
    /// Unallocated frames of isolated blocks, neither free nor allocated.
    pub isolated_pages: u64,
    /// Frames that the hypervisor has, neither free nor allocated.
    pub reporting_pages: u64,
    /// Present, and to be given to the allocator once their part of the memory map is initialised.
    pub deferred_pages: u64,
    /// Present, and to be given to the allocator once they are accepted.
    pub unaccepted_pages: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        add_fields!(
            self += other,
            present_pages,
            managed_pages,
            reserved_pages,
            free_pages,
            allocated_pages,
            descriptor_pages,
            isolated_pages,
            reporting_pages,
            deferred_pages,
            unaccepted_pages
        );
    }
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// An entry has meaningless bits, or has a head that is not allowed at its place.
    BadHead,
    /// An entry inside a block is not zero (invariant 6).
    BadInner,
    /// A list is broken or names a block that is not free in it (invariant 7), or the count of free
    /// heads of a GiB is wrong.
    BadLink,
    /// A split block's free map and its counts differ.
    BadFreeMap,
    /// A split block is not in the set that its state names, or in one for too small an order, or
    /// the sets have other members.
    BadFreeIndex,
    /// What tells the caches of CPUs where freed frames of a block go does not match the block's
    /// state (invariant 53).
    BadLot,
    /// Descriptors lie in a frame that is free or not managed, or a block waits for descriptors
    /// although it has room for them.
    BadMap,
    /// The descriptor of a free page is not zero: its last owner left something there, or somebody
    /// still writes to it.
    BadPage {
        /// The page.
        pfn: Pfn,
    },
    /// A block that is in use is noted as reported or zero, or the bitmaps disagree with a head, a
    /// list or a count.
    BadReported,
    /// A block lies outside the part of the zone that has it (invariant 45).
    OutsidePart,
    /// Two free buddies of one type were not merged.
    Unmerged,
    /// A counter differs from the sum over the table (invariant 9).
    BadCount {
        /// Which counter.
        counter: &'static str,
        /// The zone's counter.
        says_pages: u64,
        /// The sum over the table.
        counted_pages: u64,
    },
}

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The zone.
    pub zone: ZoneId,
    /// The first frame of the block, if the fault is in one.
    pub pfn: Option<Pfn>,
    /// What is wrong.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.zone)?;
        if let Some(pfn) = self.pfn {
            write!(f, "block at pfn {pfn}: ")?;
        }
        f.write_str(match self.kind {
            FaultKind::BadCount { counter, says_pages, counted_pages } => {
                return write!(
                    f,
                    "{counter} is {says_pages} pages, the tables add up to {counted_pages}"
                );
            }
            FaultKind::BadPage { pfn } => {
                return write!(f, "pfn {pfn} is free and its descriptor is not zero");
            }
            FaultKind::BadHead => "its head is not one that can be there",
            FaultKind::BadInner => "an entry inside it is not zero",
            FaultKind::BadLink => "a list is broken",
            FaultKind::BadFreeMap => "the free map and its counts differ",
            FaultKind::BadFreeIndex => "the free index is wrong about it",
            FaultKind::BadLot => "caches would put its frames in a wrong place",
            FaultKind::BadMap => "its descriptors are not where they should be",
            FaultKind::BadReported => "what is reported or zero is noted wrongly",
            FaultKind::OutsidePart => "it lies outside its part of the zone",
            FaultKind::Unmerged => "it was not merged with its buddy",
        })
    }
}

impl core::error::Error for Fault {}

/// Blocks by migrate type.
#[derive(Default)]
struct TypedBlocks {
    all: [u32; MigrateType::COUNT],
    isolated: [u32; MigrateType::COUNT],
}

impl TypedBlocks {
    fn add(&mut self, head: Option<BlockState>, blocks: u32) {
        let Some(state) = head.filter(|state| !state.is(State::Offline)) else { return };
        self.all[state.migrate_type() as usize] += blocks;
        if state.is_isolated() {
            self.isolated[state.migrate_type() as usize] += blocks;
        }
    }

    /// Compares the counts with the zone's counters of all blocks and of isolated ones.
    fn compare(&self, says: &Self) -> Result<(), FaultKind> {
        let counters = [
            ("blocks of a type", says.all, self.all),
            ("isolated blocks", says.isolated, self.isolated),
        ];
        for (counter, says, counted) in counters {
            for (says, counted) in says.into_iter().zip(counted) {
                if says != counted {
                    let pages = |blocks| u64::from(blocks) * PAGES_PER_BLOCK;
                    let (says_pages, counted_pages) = (pages(says), pages(counted));
                    return Err(FaultKind::BadCount { counter, says_pages, counted_pages });
                }
            }
        }
        Ok(())
    }
}

impl Zone {
    /// Walks all entries and lists with the lock held, recounts, and compares. A debugging aid:
    /// interrupts stay off for some 10 ns a block and 100 ns a split one.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub(crate) fn verify<P: Platform>(&self, platform: &P) -> Result<Counts, Fault> {
        self.verify_deferred_merges(&self.read(platform))?;
        let locked = self.read_coalesced(platform);
        let mut counts = Counts {
            present_pages: self.stray_pages,
            reserved_pages: self.stray_pages,
            ..Counts::default()
        };
        let mut listed_blocks = 0;
        let mut roomy_blocks = 0;
        let (mut reported_blocks, mut zero_blocks) = (0, 0);
        let mut kept_pages = 0;
        let mut blocks_of = TypedBlocks::default();
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end {
                let fault = |kind| Fault {
                    zone: self.id,
                    pfn: Some(segment.block_of(index).start()),
                    kind,
                };
                let (blocks, pages) =
                    self.verify_head(&locked, index, segment.indices().end).map_err(fault)?;
                if self.table.is_ready(index) || index.is_multiple_of(GROUP) {
                    let state = self.table.state(index);
                    if state.is(State::Split) {
                        self.verify_descriptors(&locked, index, state).map_err(fault)?;
                        let largest = self
                            .table
                            .cold_free_map(index)
                            .largest_order()
                            .filter(|_| !state.is_unavailable());
                        let is_listed =
                            |order| locked.free_index.contains(state.migrate_type(), order, index);
                        if state.free_order() < largest
                            || state.free_order().is_some() != largest.is_some()
                            || !state.free_order().is_none_or(is_listed)
                        {
                            return Err(fault(FaultKind::BadFreeIndex));
                        }
                        roomy_blocks += u64::from(largest.is_some());
                    }
                    if state.is(State::Whole) && state.has(BlockState::KEPT) {
                        kept_pages += state.order().pages();
                    }
                    let marked = self.verify_reported(&locked, index, state).map_err(fault)?;
                    (reported_blocks, zero_blocks) =
                        (reported_blocks + marked.0, zero_blocks + marked.1);
                    if state.is(State::Free) {
                        listed_blocks += 1;
                        let buddy = index ^ blocks;
                        let inside = segment.indices().contains(&buddy);
                        let same = |other: BlockState| {
                            other.without(BlockState::REPORTED)
                                == state.without(BlockState::REPORTED)
                        };
                        if state.order() < locked.buddy.largest
                            && inside
                            && same(self.table.state(buddy))
                        {
                            return Err(fault(FaultKind::Unmerged));
                        }
                    }
                }
                counts += pages;
                blocks_of.add(self.table.head_of(index).map(|(_, state)| state), blocks);
                index += blocks;
            }
        }
        if locked.buddy.reported.totals() != (reported_blocks, zero_blocks) {
            return Err(Fault { zone: self.id, pfn: None, kind: FaultKind::BadReported });
        }
        self.verify_free_heads()?;
        let says =
            TypedBlocks { all: locked.buddy.blocks_of_type(), isolated: locked.isolated_blocks };
        blocks_of.compare(&says).map_err(|kind| Fault { zone: self.id, pfn: None, kind })?;
        self.verify_lists(&locked, listed_blocks)?;
        self.verify_free_index(&locked, roomy_blocks)?;
        self.verify_counts(&locked, counts)?;
        if locked.kept_pages != kept_pages {
            let kind = FaultKind::BadCount {
                counter: "kept",
                says_pages: locked.kept_pages,
                counted_pages: kept_pages,
            };
            return Err(Fault { zone: self.id, pfn: None, kind });
        }
        Ok(counts)
    }

    /// Checks the head at `index`. Returns how many blocks it covers, and their counts.
    fn verify_head(
        &self,
        locked: &LockedZone,
        index: u32,
        end: u32,
    ) -> Result<(u32, Counts), FaultKind> {
        let ready = self.table.is_ready(index);
        if !ready && !index.is_multiple_of(GROUP) {
            return Err(FaultKind::BadHead);
        }
        let state = self.table.state(index);
        let Some(kind) = state.state() else { return Err(FaultKind::BadHead) };
        if !self.table.has_lots_of(index, state) {
            return Err(FaultKind::BadLot);
        }
        if kind == State::Inner {
            // A hole.
            let inner = state == BlockState::INNER;
            return if inner { Ok((1, Counts::default())) } else { Err(FaultKind::BadInner) };
        }
        let blocks = blocks_of(state.order().max(Order::BLOCK));
        let aligned =
            index.is_multiple_of(blocks) && state.order() >= Order::BLOCK && index + blocks <= end;
        if !aligned || !ready && state.order() != Order::MAX {
            return Err(FaultKind::BadHead);
        }
        if ready {
            for inner in index + 1..index + blocks {
                if self.table.state(inner) != BlockState::INNER {
                    return Err(FaultKind::BadInner);
                }
                if !self.table.has_lots_of(inner, BlockState::INNER) {
                    return Err(FaultKind::BadLot);
                }
            }
        }
        let pages = u64::from(blocks) * PAGES_PER_BLOCK;
        let mut counts = Counts { present_pages: pages, ..Counts::default() };
        match kind {
            State::Free => (counts.managed_pages, counts.free_pages) = (pages, pages),
            State::Isolated => (counts.managed_pages, counts.isolated_pages) = (pages, pages),
            State::Reporting => (counts.managed_pages, counts.reporting_pages) = (pages, pages),
            State::Whole | State::Pool => {
                (counts.managed_pages, counts.allocated_pages) = (pages, pages)
            }
            State::Split => {
                let map = self.table.cold_free_map(index);
                let (free, managed, present) =
                    (state.free_pages(), state.managed_pages(), state.present_pages());
                let descriptor_pages = state.descriptor_pages();
                let reporting_pages = locked.in_flight.pages_of(index);
                if (reporting_pages != 0) != state.has(BlockState::REPORTING) {
                    return Err(FaultKind::BadReported);
                }
                let idle = free + descriptor_pages + reporting_pages;
                if map.count() != free
                    || idle > managed
                    || managed > present
                    || present > PAGES_PER_BLOCK
                {
                    return Err(FaultKind::BadFreeMap);
                }
                let isolated = state.has(BlockState::ISOLATED);
                let waits = !isolated && state.has(BlockState::UNDESCRIBED);
                counts = Counts {
                    present_pages: present,
                    managed_pages: managed,
                    reserved_pages: present - managed,
                    free_pages: if isolated || waits { 0 } else { free },
                    isolated_pages: if isolated { free } else { 0 },
                    allocated_pages: managed - idle,
                    descriptor_pages: if waits { free } else { descriptor_pages },
                    reporting_pages,
                    deferred_pages: 0,
                    unaccepted_pages: 0,
                };
            }
            _ if is_listed(state) => counts.unaccepted_pages = pages,
            State::Reserved | State::Unaccepted | State::Accepting => counts.reserved_pages = pages,
            State::Offline => counts = Counts::default(),
            State::Deferred => counts.deferred_pages = pages,
            State::Inner => {}
        }
        Ok((blocks, counts))
    }

    /// Checks where a split block's descriptors are, and that those of free pages are zero.
    fn verify_descriptors(
        &self,
        locked: &LockedZone,
        index: u32,
        state: BlockState,
    ) -> Result<(), FaultKind> {
        let Some(descriptors) = &locked.descriptors else { return Ok(()) };
        let free = self.table.cold_free_map(index);
        let Some(map) = descriptors.locked(&locked.buddy, index) else {
            let too_many =
                state.has(BlockState::UNDESCRIBED) && state.free_pages() > VMEMMAP_PAGES_PER_BLOCK;
            return if too_many { Err(FaultKind::BadMap) } else { Ok(()) };
        };
        let frames = map.frames();
        let mut seen = [false; FreeMap::<8>::PAGES];
        for frame in frames.iter().flat_map(DescriptorFrames::iter) {
            let managed = locked.partials.first_unmanaged(index, frame, frame + 1).is_none();
            if free.is_free(frame) || !managed || core::mem::replace(&mut seen[frame], true) {
                return Err(FaultKind::BadMap);
            }
        }
        let dirty = |&frame: &usize| {
            free.is_free(frame)
                && map.cold_page(frame).is_none_or(|page| !descriptors.is_clear(page))
        };
        match (0..seen.len()).find(dirty) {
            Some(frame) => {
                Err(FaultKind::BadPage { pfn: locked.frame(index, frame).unwrap_or_default() })
            }
            None => Ok(()),
        }
    }

    /// Checks the report bits of the head at `index`. Returns how many of its blocks are reported
    /// and how many are zero.
    fn verify_reported(
        &self,
        locked: &LockedZone,
        index: u32,
        state: BlockState,
    ) -> Result<(u64, u64), FaultKind> {
        let order = state.order().max(Order::BLOCK);
        let (reported, zero) = locked.buddy.reported.counts(index, order);
        let fits = match state.state() {
            Some(State::Free) => {
                let all = locked.buddy.reported.is_reported(index, order);
                zero <= reported && all == state.has(BlockState::REPORTED)
            }
            Some(State::Split) => reported == 0,
            _ => (reported, zero) == (0, 0),
        };
        if fits { Ok((reported, zero)) } else { Err(FaultKind::BadReported) }
    }

    fn verify_lists(&self, locked: &LockedZone, listed_blocks: u64) -> Result<(), Fault> {
        let fault = |kind| Fault { zone: self.id, pfn: None, kind };
        let mut seen = 0;
        let orders = (BLOCK_ORDER..=MAX_ORDER).filter_map(Order::new);
        for list in orders.flat_map(ListId::of_order) {
            let (mut previous, mut index) = (NONE, locked.buddy.first(list));
            let mut blocks = 0;
            while index != NONE {
                if index >= self.table.len()
                    || self.table.state(index) != list.head()
                    || self.table.links(index).0 != previous
                    || blocks > locked.buddy.blocks(list)
                {
                    return Err(fault(FaultKind::BadLink));
                }
                blocks += 1;
                (previous, index) = (index, self.table.links(index).1);
            }
            if blocks != locked.buddy.blocks(list) {
                return Err(fault(FaultKind::BadLink));
            }
            seen += u64::from(blocks);
        }
        // So every free head is in a list: the table has as many as the lists, and each listed one
        // is a head.
        if seen == listed_blocks { Ok(()) } else { Err(fault(FaultKind::BadLink)) }
    }

    /// Checks the counts of free heads by GiB against the table.
    fn verify_free_heads(&self) -> Result<(), Fault> {
        let groups = (0..self.table.len()).step_by(GROUP as usize);
        for group in groups.filter(|&group| self.table.is_ready(group)) {
            let last = (group + GROUP).min(self.table.len());
            let heads = self.table.heads(group..last).filter(|found| found.state.is(State::Free));
            let word = heads.fold(0_u64, |word, found| word + FreeHeads::one(found.state.order()));
            if self.table.free_heads().word(group / GROUP) != word {
                let pfn = self.segments.iter().find(|segment| segment.indices().contains(&group));
                let pfn = pfn.map(|segment| segment.block_of(group).start());
                return Err(Fault { zone: self.id, pfn, kind: FaultKind::BadLink });
            }
        }
        Ok(())
    }

    /// Checks that the sets have as many members as there are blocks with free runs, each of which
    /// was found in its set.
    fn verify_free_index(&self, locked: &LockedZone, roomy_blocks: u64) -> Result<(), Fault> {
        let fault = Fault { zone: self.id, pfn: None, kind: FaultKind::BadFreeIndex };
        let mut members = 0;
        for migrate_type in MigrateType::ALL {
            for order in 0..u8::try_from(ORDERS).unwrap_or(0) {
                if locked.free_index.first(migrate_type, order).is_some() {
                    members += locked.free_index.count(migrate_type, order);
                }
            }
        }
        if members == roomy_blocks { Ok(()) } else { Err(fault) }
    }

    /// Checks the deferred merges, before they are done: as many bits are set as are counted, and
    /// the entry of each says so.
    fn verify_deferred_merges(&self, locked: &LockedZone) -> Result<(), Fault> {
        let (says_pages, counted_pages) = locked.buddy.deferred_pages();
        if says_pages != counted_pages {
            let kind =
                FaultKind::BadCount { counter: "deferred merges", says_pages, counted_pages };
            return Err(Fault { zone: self.id, pfn: None, kind });
        }
        locked.buddy.wrongly_deferred().map_or(Ok(()), |index| {
            let pfn = segment::frame(self.segments, index, 0);
            Err(Fault { zone: self.id, pfn, kind: FaultKind::BadHead })
        })
    }

    fn verify_counts(&self, locked: &LockedZone, counts: Counts) -> Result<(), Fault> {
        let counted_graded = self.count_graded();
        let [unaccepted_pages, unaccepted_graded_pages] =
            self.verify_unaccepted(locked).map_err(|index| Fault {
                zone: self.id,
                pfn: segment::frame(self.segments, index, 0),
                kind: FaultKind::BadLink,
            })?;
        let pairs = [
            ("present", self.present_pages(), counts.present_pages),
            ("managed", self.managed_pages(), counts.managed_pages),
            ("reserved", self.reserved_pages(), counts.reserved_pages),
            ("deferred", self.deferred_pages(), counts.deferred_pages),
            ("unaccepted", self.unaccepted_pages(), counts.unaccepted_pages),
            ("unaccepted (list)", unaccepted_pages, counts.unaccepted_pages),
            ("unaccepted (grades)", self.unaccepted_graded_pages(), unaccepted_graded_pages),
            ("present", self.present_pages(), self.final_managed_pages() + self.reserved_pages()),
            ("free (lists)", locked.free_pages(), counts.free_pages),
            ("free", self.free_pages(), counts.free_pages),
            ("free (grades)", self.graded_pages(), counted_graded),
            ("free (grades, lists)", locked.graded_pages().into_iter().sum(), counted_graded),
            ("descriptors", self.descriptor_pages(), counts.descriptor_pages),
            ("isolated", self.isolated_pages(), counts.isolated_pages),
            ("reporting", self.reporting_pages(), counts.reporting_pages),
            ("reported", self.reported_pages(), locked.buddy.reported.reported_pages()),
        ];
        for (counter, says_pages, counted_pages) in pairs {
            if says_pages != counted_pages {
                let kind = FaultKind::BadCount { counter, says_pages, counted_pages };
                return Err(Fault { zone: self.id, pfn: None, kind });
            }
        }
        Ok(())
    }

    /// Counts the free frames of blocks with a grade from the tables.
    fn count_graded(&self) -> u64 {
        let free = |found: HeadIn| match found.state.state() {
            Some(State::Free) => found.state.order().pages(),
            Some(State::Split) if !found.state.is_unavailable() => found.state.free_pages(),
            _ => 0,
        };
        let heads = self.segments.iter().flat_map(|segment| self.table.heads(segment.indices()));
        heads.filter(|found| found.state.is_graded()).map(free).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NodeId;
    use crate::zone::ZoneKind;
    use std::string::ToString;

    #[test]
    fn what_is_broken_is_told_in_words() {
        let zone = ZoneId { node: NodeId::ZERO, kind: ZoneKind::Normal };
        for kind in [
            FaultKind::BadHead,
            FaultKind::BadInner,
            FaultKind::BadLink,
            FaultKind::BadFreeMap,
            FaultKind::BadFreeIndex,
            FaultKind::BadLot,
            FaultKind::BadMap,
            FaultKind::BadReported,
            FaultKind::OutsidePart,
            FaultKind::Unmerged,
        ] {
            let text = Fault { zone, pfn: Some(Pfn(512)), kind }.to_string();
            let (_, said) = text.rsplit_once(": ").expect("a place");
            assert!(said.contains(' ') && text.contains("block at pfn 0x200: "), "{text}");
        }
    }
}
