//! Memory that a guest has to accept, before there is a manager: only memory that is handed out is
//! accepted, in units of 2 MiB.
//!
//! A mark of its region says that memory is unaccepted; accepting a unit clears the mark. Searches
//! find accepted memory as long as some fits.

use super::Memblock;
use super::error::MemblockError;
use super::region::{Region, RegionFlags};
use super::search::FreeRuns;
use crate::platform::Platform;
use crate::units::{PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};

const UNIT: u64 = PAGES_PER_BLOCK * PAGE_SIZE;
/// The regions that the memory set gains when a part of one loses its mark.
const MORE_MEMORY: usize = 2;
/// The regions that the reserved set gains when a unit could not be accepted and the frame before
/// it is kept.
const MORE_RESERVED: usize = 2;

/// How much was accepted for the memblock allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EarlyAccepted {
    /// How often the platform was asked.
    pub calls: u64,
    /// Pages that it accepted.
    pub accepted_pages: u64,
    /// How often it could not accept something; the unit of the frame that failed is then reserved.
    pub failures: u64,
    /// The frame that failed last.
    pub last_failed: Option<Pfn>,
}

impl<P: Platform> Memblock<'_, P> {
    /// Returns how much was accepted so far.
    #[must_use]
    pub const fn accepted(&self) -> EarlyAccepted {
        self.accepted
    }

    /// Returns, for each successive search, whether unaccepted memory will do.
    pub(super) fn unaccepted(&self) -> &'static [bool] {
        if self.platform.accept_memory().is_some() { &[false, true] } else { &[false] }
    }

    /// Accepts all units that `range` touches. It also accepts the next unit if that begins where
    /// `range` ends and pages may be read past their end. Returns false if a unit could not be
    /// accepted: it is reserved now, and the caller has to find another place.
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

    /// Accepts pieces of unaccepted memory that do not fill their unit, unless they are reserved,
    /// so that the rest is whole units. Stops, and leaves the other pieces as they are, if there is
    /// no room to note one.
    pub(crate) fn accept_edges(&mut self) {
        let mut from = 0;
        while let Some(edge) = self.next_edge(from) {
            from = edge.end;
            if self.accept_part(edge, RegionFlags::NONE, edge).is_err() {
                return;
            }
        }
    }

    /// Returns the first such piece at or after an address.
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

    /// Returns the first part of `range` that is unaccepted memory of one region.
    fn first_unaccepted(&self, range: PhysRange) -> Option<PhysRange> {
        let is_unaccepted = |region: &Region| region.flags.contains(RegionFlags::UNACCEPTED);
        Some(self.memory.first_in(range, &is_unaccepted)?.range.intersection(range))
    }

    /// Returns whether a part of one region was accepted ahead already.
    fn is_ahead(&self, part: PhysRange) -> bool {
        self.region_at(part.start).is_some_and(|region| region.flags.contains(RegionFlags::AHEAD))
    }

    /// Returns the first region that ends behind an address.
    fn region_at(&self, address: u64) -> Option<&Region> {
        let regions = self.memory.regions();
        regions.get(regions.partition_point(|region| region.range.end <= address))
    }

    /// Accepts a part of an unaccepted region, unless it was accepted ahead, and replaces its marks
    /// about acceptance with `marks`. Returns false if not all of it could be accepted. `wanted` is
    /// the range that the caller is about to reserve, where no larger array may go.
    fn accept_part(
        &mut self,
        part: PhysRange,
        marks: RegionFlags,
        wanted: PhysRange,
    ) -> Result<bool, MemblockError> {
        let Some(device) = self.platform.accept_memory() else { return Ok(false) };
        // The room comes first, so that nothing is accepted that cannot be noted.
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
        // Nobody gets the unit, nor a page before it that may be read past its end.
        let guard = if device.reads_past_pages() { PAGE_SIZE } else { 0 };
        let region = |start| {
            let range = PhysRange::new(start, lost.end);
            Region { range, node: None, flags: RegionFlags::NONE }
        };
        let mut kept = region(lost.start.saturating_sub(guard));
        // The page before the unit may be reserved in so many parts that there is no room for the
        // gaps between them. Then that page is left as it is, but what was accepted is still noted.
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

    /// Changes the marks about acceptance for a part of one region.
    fn mark(&mut self, part: PhysRange, marks: RegionFlags) {
        let Some(region) = self.region_at(part.start).filter(|_| !part.is_empty()) else { return };
        let old = RegionFlags::UNACCEPTED.union(RegionFlags::AHEAD);
        let flags = region.flags.without(old).union(marks);
        let region = Region { range: part, flags, ..*region };
        self.memory.uncover(part);
        self.memory.cover(&region);
    }
}
