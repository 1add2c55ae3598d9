//! Runs of pages that no single block holds: neighbouring blocks are allocated together.
//!
//! This serves sizes that do not need to be aligned to the next larger power of two. A machine of
//! 512 MiB without its first MiB has no block of 512 MiB, but it has a run of 511 MiB. And a run of
//! more than 1 GiB is never one block.

use super::accept::Growing;
use super::parts::Piece;
use super::reclaim::Lacking;
use super::request::{AllocateError, Mark, ORDINARY, Request, Search};
use super::state::Manager;
use crate::block::MigrateType;
use crate::debug::Place;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{FreeRun, Zone, ZoneId};

/// How often a run is searched for anew because others took a part of the one found.
const MOST_LOOKS: u32 = 8;

impl<P: Platform> Manager<P> {
    /// Allocates a run of more than a block: an aligned block or, if none is free, neighbouring
    /// blocks. Only where there are no such either is memory freed for the request.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_long(
        &self,
        request: &Request,
        place: Place,
    ) -> Result<PfnRange, AllocateError> {
        let &Request { pages, align, .. } = request;
        let search = self.search(request)?;
        // Only a longer run than any block has no order.
        let block = request.order().ok();
        let order = block.unwrap_or(Order::MAX);
        let mut found = None;
        let mut attempt = |marks: &[Mark]| {
            let whole = block.and_then(|order| self.find(&search, order, marks));
            found = match whole {
                Some((taken, _)) => Some(self.cut(taken, pages)),
                None => self.find_neighbours(&search, pages, align, marks),
            };
            if found.is_some() { Ok(()) } else { Err(pages) }
        };
        if attempt(ORDINARY).is_err() {
            let has_room =
                |part: &Zone| self.parts(part.id()).sum(&Zone::final_managed_pages) >= pages;
            if block.is_none() && !self.zonelist(&search).any(has_room) {
                return Err(AllocateError::BadSize { pages });
            }
            // That there is no longer run says nothing about the largest blocks.
            let known_to_fail = block.is_none() || self.is_known_to_fail(&search, order);
            let lacking = Lacking { request, search: &search, order, known_to_fail };
            self.direct_reclaim(&lacking, &mut attempt);
        }
        self.hand_out(found.ok_or(AllocateError::OutOfMemory { order })?, false, place)
    }

    fn find_neighbours(
        &self,
        search: &Search,
        pages: u64,
        align: Order,
        marks: &[Mark],
    ) -> Option<PfnRange> {
        let &mark = marks.last()?;
        for _ in 0..2 {
            let mut asked = None;
            for part in self.zonelist(search) {
                let parts = self.parts(part.id());
                let mut is_next = asked.replace(part.id()) != Some(part.id());
                loop {
                    // Withheld memory counts as left. Read first: it may come up meanwhile.
                    let withheld = parts.sum(&Zone::withheld_pages);
                    let free = parts.sum(&Zone::free_pages);
                    let left = (withheld + free).checked_sub(pages);
                    if left < Some(self.keeps_of_all(mark, part, search)) {
                        break;
                    }
                    let mut run = None;
                    if part.free_pages() >= pages {
                        run = self.take_neighbours(part.id(), Some(part), pages, align);
                    }
                    if run.is_none() && part.parts() != 1 && is_next && free >= pages {
                        run = self.take_neighbours(part.id(), None, pages, align);
                    }
                    if let Some(run) = run {
                        self.note_node(part, search, pages);
                        return Some(run);
                    }
                    let (max, migrate_type) = (Pfn(u64::MAX), search.migrate_type);
                    let more = Growing { pages, least: Order::BLOCK, max, migrate_type };
                    is_next = self.grow(part, &more);
                    if !is_next {
                        break;
                    }
                }
            }
            // One more round, unless a request for one block has emptied the caches already.
            if self.pressure.epoch.number().is_some() {
                break;
            }
            self.drain_for_more();
        }
        None
    }

    /// Takes a run out of a zone, or out of the part `alone`.
    #[inline(never)]
    fn take_neighbours(
        &self,
        id: ZoneId,
        alone: Option<&Zone>,
        pages: u64,
        align: Order,
    ) -> Option<PfnRange> {
        let mut from = Pfn(0);
        for _ in 0..MOST_LOOKS {
            let mut run = FreeRun::new(pages, align, from);
            let all = BlockRange { start: BlockNumber(0), end: BlockNumber(u32::MAX) };
            let found = self.segments_in(all).find_map(|(zone, segment, _)| {
                let is_asked = alone.map_or(zone.id() == id, |alone| core::ptr::eq(zone, alone));
                if is_asked { zone.follow_free(self.platform, segment, &mut run) } else { None }
            })?;
            match self.take_all(found) {
                Ok(()) => {
                    // The rest of blocks that were split for this may have another migrate type
                    // now, and others may wait for memory of that type.
                    self.pressure.epoch.note_free();
                    return Some(found);
                }
                // Others took a part of the run first.
                Err(missing) => from = Pfn(missing.0 + 1),
            }
        }
        None
    }

    /// Takes all frames of a run or none. The error is a frame that was not free.
    fn take_all(&self, run: PfnRange) -> Result<(), Pfn> {
        // By segment, as an aligned piece may lie in two: hotplug windows may meet within a GiB.
        for Piece { zone, range, .. } in self.pieces(run).map_err(|_| run.start)? {
            let mut rest = range;
            while !rest.is_empty() {
                let order = piece(rest);
                if let Err(missing) = self.take_piece(zone, rest.start, order) {
                    if rest.start > run.start {
                        // The frames were just taken, so this cannot fail.
                        let _ = self.free_bare(PfnRange { start: run.start, end: rest.start });
                    }
                    return Err(missing);
                }
                rest.start = rest.start.add(order.pages());
            }
        }
        Ok(())
    }

    /// Takes an aligned piece, whole or in halves: blocks of different migrate types never form one
    /// block.
    fn take_piece(&self, zone: &Zone, start: Pfn, order: Order) -> Result<(), Pfn> {
        if zone.allocate_at(self.platform, start, order, MigrateType::Movable).is_some() {
            return Ok(());
        }
        let half = order.get().checked_sub(1).and_then(Order::new).ok_or(start)?;
        let second = start.add(half.pages());
        self.take_piece(zone, start, half)?;
        self.take_piece(zone, second, half).inspect_err(|_| {
            // The first half was just taken, so this cannot fail.
            let _ = self.free_bare(PfnRange { start, end: second });
        })
    }
}

/// The order of the largest aligned piece at the beginning of a run that is not empty.
fn piece(run: PfnRange) -> Order {
    let level = run.start.0.trailing_zeros().min(run.pages().max(1).ilog2());
    u8::try_from(level).ok().and_then(Order::new).unwrap_or(Order::MAX)
}
