//! What the parts of a zone have in common: the watermarks, which belong to the zone as a whole,
//! the order in which parts are asked, and ranges of frames that lie in several parts.
//!
//! ```text
//!   directory ──> part ──> lock, tables, lists, counters           a refill, a drain
//!                  part ──> ..
//!   ZoneId ──> slots ──> all of a zone's parts                     marks, views
//! ```
//!
//! A part that has more free pages than all of its zone must keep proves by itself that the zone
//! keeps enough. If it has fewer, the free pages of the other parts are added, beginning with the
//! next part, until they suffice. So watermarks are as exact as in a zone without parts, and as
//! long as one part has that much, no CPU reads counters that the CPUs of other parts write.

use crate::block::{MigrateType, segment};
use crate::manager::request::{Allowed, Mark, Search};
use crate::manager::state::fallback::{Fallback, Walk};
use crate::manager::state::{Manager, ZoneSlots};
use crate::platform::Platform;
use crate::units::{Order, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange, VMEMMAP_PAGES_PER_BLOCK};
use crate::zone::{Fault, FaultKind, FreeError, Segment, Zone, ZoneId, ZoneKind, ZoneParts};
use core::iter;

/// An upper limit of what any refill takes.
const MOST_REFILL_PAGES: u64 = 1 << 16;

/// The piece of a range that lies in one part of a zone.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) zone: &'static Zone,
    pub(crate) segment: &'static Segment,
    pub(crate) range: PfnRange,
}

/// See [`Manager::zonelist`]. Written by hand because it is used in many places: nested iterator
/// adapters compile to several times as much code.
#[derive(Clone)]
pub(super) struct Zonelist<'a, P: Platform> {
    manager: &'a Manager<P>,
    allowed: Allowed<'a>,
    highest: ZoneKind,
    /// Which part of a zone comes first.
    turn: usize,
    nodes: Walk,
    /// The zone whose parts come now.
    parts: Option<ZoneParts<'static>>,
    /// The place of the next part among them.
    next_part: usize,
}

impl<P: Platform> Zonelist<'_, P> {
    /// The zone that follows the one whose parts have come.
    fn next_zone(&mut self) -> Option<ZoneId> {
        if let Some(id) = self.parts.map(ZoneParts::id)
            && let Some(kind) = id.kind.below()
        {
            return Some(ZoneId { kind, ..id });
        }
        loop {
            let node = self.nodes.next()?;
            if self.allowed.contains(node) {
                return Some(ZoneId { node, kind: self.highest });
            }
        }
    }
}

impl<P: Platform> Iterator for Zonelist<'_, P> {
    type Item = &'static Zone;

    fn next(&mut self) -> Option<&'static Zone> {
        loop {
            if let Some(parts) = self.parts
                && let Some(part) = parts.turn(self.turn, &mut self.next_part)
            {
                return Some(part);
            }
            let id = self.next_zone()?;
            (self.parts, self.next_part) = (Some(self.manager.parts(id)), 0);
        }
    }
}

impl<P: Platform> Manager<P> {
    /// The other parts of a part's zone, beginning with the next one.
    fn others(&self, part: &Zone) -> impl Iterator<Item = &'static Zone> + use<P> {
        let number = part.part();
        let parts = self.parts(part.id()).in_turn(number.into());
        parts.filter(move |other| other.part() != number)
    }

    /// What is still `missing` after the other parts have given all that they have: free pages, and
    /// withheld pages, which come up when they are wanted.
    fn missing_beside(&self, part: &Zone, missing: u64) -> u64 {
        let mut missing = missing;
        for other in self.others(part) {
            if missing == 0 {
                break;
            }
            // Read first: it may come up meanwhile.
            let withheld = other.withheld_pages();
            missing = missing.saturating_sub(withheld + other.free_pages());
        }
        missing
    }

    /// Frames of a part's zone, free or withheld, that a request of this migrate type may not have.
    pub(super) fn out_of_reach(&self, part: &Zone, migrate_type: MigrateType) -> u64 {
        if migrate_type == MigrateType::Movable {
            return 0;
        }
        if part.parts() == 1 {
            return part.out_of_reach(migrate_type);
        }
        self.parts(part.id()).sum(&|part| part.out_of_reach(migrate_type))
    }

    /// Merges the spare of a part of a zone. Requests that failed for lack of the frames of its
    /// descriptors may succeed now.
    pub(super) fn give_up_spare(&self, part: &Zone) {
        if part.give_up_spare(self.platform) {
            self.pressure.epoch.note_free();
        }
    }

    /// Whether the zone of a part has more than `pages` free pages.
    pub(super) fn is_above(&self, part: &Zone, pages: u64) -> bool {
        let missing = pages.saturating_add(1).saturating_sub(part.free_pages());
        missing == 0 || part.parts() != 1 && self.missing_beside(part, missing) == 0
    }

    /// Pages that a request must leave free in the whole zone: the mark, the lowmem reserve, and
    /// memory that is not for this request.
    #[cfg_attr(feature = "pools", inline(never))]
    pub(super) fn keeps_of_all(&self, mark: Mark, part: &Zone, search: &Search) -> u64 {
        let &Search { highest, migrate_type, .. } = search;
        let keeps = mark.keeps_of_all(part, highest, migrate_type);
        if migrate_type != MigrateType::Movable {
            return keeps + self.out_of_reach(part, migrate_type);
        }
        if !part.has_graded_limits() {
            return keeps;
        }
        keeps.saturating_sub(self.unkept_reserve(part, highest))
    }

    /// How much of the reserve against a movable request is not kept. It is kept in memory that
    /// every request may have, above the min mark; memory with a grade is for movable requests down
    /// to the mark, as if it were a zone of its own.
    #[inline(never)]
    fn unkept_reserve(&self, part: &Zone, highest: ZoneKind) -> u64 {
        let reserve = part.watermark_for(0, highest, MigrateType::Movable);
        let free = self.parts(part.id()).sum(&Zone::ungraded_free_pages);
        let above = free.saturating_sub(part.min_pages(MigrateType::Unmovable));
        reserve.saturating_sub(above)
    }

    /// Pages that a request must leave free in a part. Withheld pages count as left free, as they
    /// come up when they are wanted.
    pub(super) fn keeps(&self, mark: Mark, part: &Zone, search: &Search) -> u64 {
        let all = self.keeps_of_all(mark, part, search);
        let all = all.saturating_sub(part.withheld_pages());
        if part.parts() == 1 { all } else { self.missing_beside(part, all) }
    }

    /// [`keeps`](Self::keeps) for a refill; may return more where that makes no difference to a
    /// refill.
    #[inline]
    pub(super) fn keeps_of_refill(&self, mark: Mark, part: &Zone, search: &Search) -> u64 {
        let all = self.keeps_of_all(mark, part, search);
        if part.parts() != 1 && part.free_pages() >= all.saturating_add(MOST_REFILL_PAGES) {
            return all;
        }
        self.keeps(mark, part, search)
    }

    /// Whether a run of `order` may be taken out of a part.
    pub(super) fn allows(&self, mark: Mark, part: &Zone, search: &Search, order: Order) -> bool {
        // The spare, an all-free block that is kept split, gives back the frames of its descriptors
        // when a whole block is missing.
        let of_spare = if order < Order::BLOCK {
            0
        } else {
            part.descriptor_pages().min(VMEMMAP_PAGES_PER_BLOCK)
        };
        // Withheld memory comes up when it is wanted. Read first: it may come up meanwhile.
        let withheld = part.withheld_pages();
        let left = (withheld + part.free_pages() + of_spare).checked_sub(order.pages());
        let Some(left) = left else { return false };
        let missing = self.keeps_of_all(mark, part, search).saturating_sub(left);
        missing == 0 || part.parts() != 1 && self.missing_beside(part, missing) == 0
    }

    /// The parts of zones in the order in which they are asked: on the first node from the highest
    /// zone down, then on the other nodes by tier and distance; within each zone the calling CPU's
    /// part first.
    #[inline(never)]
    pub(super) fn zonelist<'a>(&'a self, search: &Search<'a>) -> Zonelist<'a, P> {
        let &Search { first, allowed, highest, .. } = search;
        Zonelist {
            manager: self,
            allowed,
            highest,
            turn: if self.is_divided { self.home_part() } else { 0 },
            nodes: self
                .nodes
                .get(first.index())
                .map_or(Fallback::NONE, |node| node.fallback)
                .walk(),
            parts: None,
            next_part: 0,
        }
    }

    /// Which part of a zone the calling CPU asks first.
    #[inline(never)]
    fn home_part(&self) -> usize {
        let zone = self.near_zone();
        zone.map_or(0, |zone| usize::from(zone.part()))
    }

    /// Splits a range, which is not empty and lies in one zone, by the parts of that zone. Covers
    /// all of it, ascending.
    pub(super) fn pieces(
        &self,
        range: PfnRange,
    ) -> Result<impl Iterator<Item = Piece> + Clone + '_, FreeError> {
        let mut of: Option<ZoneId> = None;
        let mut rest = range;
        while !rest.is_empty() {
            let piece = self.first_piece(rest)?;
            if of.is_some_and(|of| of != piece.zone.id()) {
                return Err(FreeError::SpansZones(range));
            }
            of = Some(piece.zone.id());
            rest.start = piece.range.end;
        }
        let mut rest = range;
        Ok(iter::from_fn(move || {
            let piece = Some(rest).filter(|rest| !rest.is_empty())?;
            let piece = self.first_piece(piece).ok()?;
            rest.start = piece.range.end;
            Some(piece)
        }))
    }

    /// The first piece of a range that is not empty.
    fn first_piece(&self, range: PfnRange) -> Result<Piece, FreeError> {
        let first = PfnRange { start: range.start, end: range.start.add(1) };
        let (zone, segment) = self.zone_of_range(first)?;
        let end = range.end.min(segment.end().start());
        Ok(Piece { zone, segment, range: PfnRange { start: range.start, end } })
    }

    /// The segment that holds a block.
    #[inline]
    pub(super) fn segment_of(&self, block: BlockNumber) -> Option<&'static Segment> {
        segment::find(self.directory, block).or_else(|| self.window_segment(block))
    }

    /// The hotplug window that holds a block. There are few windows.
    #[inline(never)]
    pub(super) fn window_segment(&self, block: BlockNumber) -> Option<&'static Segment> {
        if !cfg!(feature = "hotplug") {
            return None;
        }
        let windows = self.hotplug.segments.as_slice();
        windows.iter().find(|window| window.start <= block && block < window.end())
    }

    /// Those of the blocks for which the manager has table entries, segment by segment, ascending,
    /// each with its part of a zone. The other blocks are left out.
    pub(super) fn segments_in(
        &self,
        blocks: BlockRange,
    ) -> impl Iterator<Item = (&'static Zone, &'static Segment, BlockRange)> + use<'_, P> {
        let mut rest = blocks;
        iter::from_fn(move || self.first_of(&mut rest))
    }

    /// The first item of [`segments_in`](Self::segments_in). Cuts `blocks` to what follows it.
    #[inline(never)]
    fn first_of(
        &self,
        blocks: &mut BlockRange,
    ) -> Option<(&'static Zone, &'static Segment, BlockRange)> {
        while blocks.start < blocks.end {
            let Some(segment) = self.segment_of(blocks.start) else {
                blocks.start = self.next_segment(blocks.start).unwrap_or(blocks.end);
                continue;
            };
            let found = BlockRange { start: blocks.start, end: segment.end().min(blocks.end) };
            blocks.start = found.end;
            // While a window is being set up, its segment exists before its zone.
            if let Some(zone) = self.zones().get(usize::from(segment.zone)) {
                return Some((zone, segment, found));
            }
        }
        None
    }

    /// Where the first segment after a block begins.
    pub(super) fn next_segment(&self, block: BlockNumber) -> Option<BlockNumber> {
        let after = self.directory.partition_point(|segment| segment.start <= block);
        let boot = self.directory.get(after).map(|segment| segment.start);
        let windows = self.hotplug.segments.as_slice().iter().map(|window| window.start);
        windows.filter(|&start| start > block).chain(boot).min()
    }

    /// The index among all parts of the part at `place` within its zone.
    pub(super) fn number_of_part(&self, id: ZoneId, place: usize) -> usize {
        let slots = self.slots.get(id.index()).map_or(ZoneSlots::NONE, |slots| *slots);
        match place.checked_sub(slots.parts.into()) {
            None => usize::from(slots.first) + place,
            Some(window) => self.hotplug.first_window + window,
        }
    }

    /// Calls `check` for all pieces of a range, up to the first error.
    pub(super) fn check_all(
        &self,
        range: PfnRange,
        check: impl Fn(&Piece) -> Result<(), FreeError>,
    ) -> Result<(), FreeError> {
        match self.zone_of_range(range) {
            Ok((zone, segment)) => check(&Piece { zone, segment, range }),
            Err(FreeError::SpansZones(_)) => {
                self.pieces(range)?.try_for_each(|piece| check(&piece))
            }
            Err(error) => Err(error),
        }
    }

    /// Frees a range that lies in several parts of one zone. All pieces are checked before any is
    /// freed.
    #[cold]
    #[inline(never)]
    pub(super) fn free_in_pieces(&self, range: PfnRange) -> Result<(), FreeError> {
        let pieces = self.pieces(range)?;
        for piece in pieces.clone() {
            piece.zone.check_allocated(self.platform, piece.segment, piece.range)?;
        }
        for piece in pieces {
            // Fails only where others free the piece at the same time.
            let freed = piece.zone.free(self.platform, piece.segment, piece.range);
            self.pressure.epoch.note_free();
            freed?;
        }
        Ok(())
    }

    /// Verifies that no two parts of a zone share a GiB, and that parts ascend (invariant 45).
    pub(super) fn verify_borders(&self) -> Result<(), Fault> {
        const GIB: u32 = 1 << (Order::MAX.get() - Order::BLOCK.get());
        let boot = self.zones().split_at(self.hotplug.first_window).0;
        for (index, part) in boot.iter().enumerate() {
            let fault = |block: BlockNumber| Fault {
                zone: part.id(),
                pfn: Some(block.start()),
                kind: FaultKind::OutsidePart,
            };
            let mut from = BlockNumber(0);
            if let Some(before) = index.checked_sub(1).and_then(|before| boot.get(before))
                && before.id() == part.id()
                && let Some(last) = before.segments().last()
            {
                from = BlockNumber(last.end().0.next_multiple_of(GIB));
            }
            for segment in part.segments() {
                let found = self.segment_of(segment.start);
                if segment.start < from || found != Some(segment) {
                    return Err(fault(segment.start));
                }
            }
        }
        Ok(())
    }
}
