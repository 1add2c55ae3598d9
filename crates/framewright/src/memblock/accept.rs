//! Memory that a guest has to accept, before there is a manager: what is handed out is accepted, in
//! units of 2 MiB, and nothing else.
//!
//! Which memory is unaccepted is a mark of its region: accepting a unit takes it off. As long as
//! accepted memory has a place, searches find that.

use super::Memblock;
use super::error::MemblockError;
use super::region::{Region, RegionFlags};
use super::search::FreeRuns;
use crate::platform::Platform;
use crate::units::{PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};

const UNIT: u64 = PAGES_PER_BLOCK * PAGE_SIZE;
/// Regions that the memory set has more when a part of one loses its mark.
const MORE_MEMORY: usize = 2;
/// Regions that the reserved set has more when a unit could not be accepted, and the frame before
/// it is kept.
const MORE_RESERVED: usize = 2;

/// What was accepted for the memblock allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EarlyAccepted {
    /// Times that the platform was asked.
    pub calls: u64,
    /// Pages that it accepted.
    pub accepted_pages: u64,
    /// Times that it could not accept something: the unit of the frame that failed is reserved.
    pub failures: u64,
    /// The frame that failed last.
    pub last_failed: Option<Pfn>,
}

impl<P: Platform> Memblock<'_, P> {
    /// What was accepted by now.
    #[must_use]
    pub const fn accepted(&self) -> EarlyAccepted {
        self.accepted
    }

    /// Whether memory will do that is not accepted, search after search.
    pub(super) fn unaccepted(&self) -> &'static [bool] {
        if self.platform.accept_memory().is_some() { &[false, true] } else { &[false] }
    }

    /// Accepts all units that `range` touches, and the next one where that begins at its end and
    /// pages may be read past their end. False when one could not be accepted: it is reserved now,
    /// and another place has to be found.
    ///
    /// # Errors
    /// [`MemblockError::NoRoomToGrow`], [`MemblockError::MisalignedDirectMap`].
    pub(super) fn secure(&mut self, range: PhysRange) -> Result<bool, MemblockError> {
        let Some(device) = self.platform.accept_memory() else { return Ok(true) };
        let start = range.start / UNIT * UNIT;
        let end = range.end.next_multiple_of(UNIT).min(PHYSICAL_ADDRESS_END);
        while let Some(part) = self.first_unaccepted(PhysRange::new(start, end)) {
            if !self.accept_part(part, RegionFlags::NONE, range)? {
                return Ok(false);
            }
        }
        if !device.reads_past_pages() || end != range.end {
            return Ok(true);
        }
        let behind = PhysRange::new(end, end.saturating_add(UNIT).min(PHYSICAL_ADDRESS_END));
        match self.first_unaccepted(behind).filter(|part| part.start == end) {
            Some(part) if !self.is_ahead(part) => {
                self.accept_part(part, RegionFlags::UNACCEPTED.union(RegionFlags::AHEAD), range)
            }
            _ => Ok(true),
        }
    }

    /// Accepts pieces of unaccepted memory that do not fill their unit, as far as they are not
    /// reserved, so that the rest is whole units. What has no room stays as it is.
    pub(crate) fn accept_edges(&mut self) {
        let mut from = 0;
        while let Some(edge) = self.next_edge(from) {
            from = edge.end;
            if self.accept_part(edge, RegionFlags::NONE, edge).is_err() {
                return;
            }
        }
    }

    /// The first such piece at or after an address.
    fn next_edge(&self, from: u64) -> Option<PhysRange> {
        self.platform.accept_memory()?;
        let window = PhysRange::new(from, PHYSICAL_ADDRESS_END);
        let runs = FreeRuns::new(self.memory.regions(), self.reserved.regions(), window);
        runs.filter(|run| run.flags.contains(RegionFlags::UNACCEPTED)).find_map(|run| {
            let frames = run.range.whole_frames().to_phys();
            let head = frames.start.next_multiple_of(UNIT).min(frames.end);
            let tail = (frames.end / UNIT * UNIT).max(head);
            let edges = [PhysRange::new(frames.start, head), PhysRange::new(tail, frames.end)];
            edges.into_iter().find(|edge| !edge.is_empty())
        })
    }

    /// The first part of `range` that is unaccepted memory of one region.
    fn first_unaccepted(&self, range: PhysRange) -> Option<PhysRange> {
        let is_unaccepted = |region: &Region| region.flags.contains(RegionFlags::UNACCEPTED);
        Some(self.memory.first_in(range, &is_unaccepted)?.range.intersection(range))
    }

    /// Whether a part of one region is accepted already.
    fn is_ahead(&self, part: PhysRange) -> bool {
        self.region_at(part.start).is_some_and(|region| region.flags.contains(RegionFlags::AHEAD))
    }

    /// The first region that ends behind an address.
    fn region_at(&self, address: u64) -> Option<&Region> {
        let regions = self.memory.regions();
        regions.get(regions.partition_point(|region| region.range.end <= address))
    }

    /// Accepts a part of an unaccepted region, unless that was done, and gives it `marks` instead
    /// of those that say so; false when not all of it could be. `wanted` is what somebody is about
    /// to reserve, where no larger array may go.
    fn accept_part(
        &mut self,
        part: PhysRange,
        marks: RegionFlags,
        wanted: PhysRange,
    ) -> Result<bool, MemblockError> {
        let Some(device) = self.platform.accept_memory() else { return Ok(false) };
        // All room first, so that nothing is accepted that is not noted.
        self.make_room(MORE_MEMORY, MORE_RESERVED, &[part, wanted])?;
        if self.is_ahead(part) {
            self.mark(part, marks);
            return Ok(true);
        }
        let frames = PfnRange::new(part.start / PAGE_SIZE, part.end / PAGE_SIZE);
        let accepted_pages = match device.accept(frames) {
            Ok(()) => frames.pages(),
            Err(error) => error.accepted_pages.min(frames.pages().saturating_sub(1)),
        };
        self.accepted.calls += 1;
        self.accepted.accepted_pages += accepted_pages;
        let failed = part.start + accepted_pages * PAGE_SIZE;
        if failed == part.end {
            self.mark(part, marks);
            return Ok(true);
        }
        self.accepted.failures += 1;
        self.accepted.last_failed = Some(Pfn(failed / PAGE_SIZE));
        let unit = failed / UNIT * UNIT;
        let lost = PhysRange::new(unit, unit + UNIT).intersection(part);
        // Nobody gets it, nor a page that may be read past its end into it.
        let guard = if device.reads_past_pages() { PAGE_SIZE } else { 0 };
        let region = |start| {
            let range = PhysRange::new(start, lost.end);
            Region { range, node: None, flags: RegionFlags::NONE }
        };
        let mut kept = region(lost.start.saturating_sub(guard));
        // Of the page before it others may have parts, with more gaps between them than there is
        // room for. What was accepted is noted all the same, and that page left as it is.
        let extra = self.reserved.extra_to_cover(&kept);
        if extra > MORE_RESERVED
            && self.make_room(MORE_MEMORY, extra, &[part, wanted, kept.range]).is_err()
        {
            kept = region(lost.start);
        }
        self.mark(PhysRange::new(part.start, lost.end), RegionFlags::NONE);
        self.reserved.cover(&kept);
        Ok(false)
    }

    /// Changes the marks of a part of one region that say what is accepted.
    fn mark(&mut self, part: PhysRange, marks: RegionFlags) {
        let Some(region) = self.region_at(part.start).filter(|_| !part.is_empty()) else { return };
        let old = RegionFlags::UNACCEPTED.union(RegionFlags::AHEAD);
        let flags = region.flags.without(old).union(marks);
        let region = Region { range: part, flags, ..*region };
        self.memory.uncover(part);
        self.memory.cover(&region);
    }
}
