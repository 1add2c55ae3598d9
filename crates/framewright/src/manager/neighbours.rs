//! Runs of pages that no single block holds: neighbouring blocks are taken together.
//!
//! For sizes that are asked for without more alignment than they need: a machine of 512 MiB
//! without its first MiB has no block of 512 MiB, but a run of 511, and one of more than 1 GiB is
//! never one block.

use super::request::{AllocateError, ORDINARY, Request};
use super::state::Manager;
use crate::block::MigrateType;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FreeRun, Segment, Zone, ZoneId};
use core::iter;
use core::panic::Location;

/// How often a run is looked for of which others took something.
const MOST_LOOKS: u32 = 8;

impl<P: Platform> Manager<P> {
    /// A run of `pages` frames that begins at a multiple of `align`, of what is free; of the
    /// nearest zone that has one and may give so much.
    pub(super) fn allocate_neighbours(
        &self,
        pages: u64,
        align: Order,
        place: &'static Location<'static>,
    ) -> Result<Option<PfnRange>, AllocateError> {
        let search = self.search(&Request::pages(1))?;
        let Some(&mark) = ORDINARY.last() else { return Ok(None) };
        let mut asked = None;
        for part in self.zonelist(&search) {
            let left = part.free_pages().checked_sub(pages);
            let mut run = None;
            if left.is_some_and(|left| left >= self.keeps(mark, part, &search)) {
                run = self.take_neighbours(part.id(), Some(part), pages, align);
            }
            if run.is_none() && part.parts() != 1 && asked.replace(part.id()) != Some(part.id()) {
                // What is withheld counts as left. Read first: it may come up meanwhile.
                let parts = || self.numbered_parts(part.id()).map(|(_, part)| part);
                let withheld: u64 = parts().map(Zone::withheld_pages).sum();
                let left = parts().map(Zone::free_pages).sum::<u64>().checked_sub(pages);
                let keeps = self.keeps_of_all(mark, part, &search);
                if left.is_some_and(|left| withheld + left >= keeps) {
                    run = self.take_neighbours(part.id(), None, pages, align);
                }
            }
            if let Some(run) = run {
                self.note_node(part, &search, pages);
                return self.hand_out(run, false, place).map(Some);
            }
        }
        Ok(None)
    }

    /// The segments of a zone, of all its parts, ascending.
    fn segments_of(&self, id: ZoneId) -> impl Iterator<Item = (&'static Zone, &'static Segment)> {
        let mut last = None;
        iter::from_fn(move || {
            loop {
                let start = match last {
                    None if self.segment_of(BlockNumber(0)).is_some() => BlockNumber(0),
                    None => self.next_segment(BlockNumber(0))?,
                    Some(last) => self.next_segment(last)?,
                };
                last = Some(start);
                let segment = self.segment_of(start)?;
                let zone = self.zones().get(usize::from(segment.zone))?;
                if zone.id() == id {
                    return Some((zone, segment));
                }
            }
        })
    }

    /// A run of a zone, or of one part alone.
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
            let mut segments = self
                .segments_of(id)
                .filter(|(zone, _)| alone.is_none_or(|alone| core::ptr::eq(*zone, alone)));
            let found = segments
                .find_map(|(zone, segment)| zone.follow_free(self.platform, segment, &mut run))?;
            match self.take_all(found) {
                Ok(()) => {
                    // What is left of blocks that were taken apart may have another type now, which
                    // somebody waits for.
                    self.pressure.epoch.note_free();
                    return Some(found);
                }
                // Somebody was faster.
                Err(missing) => from = Pfn(missing.0 + 1),
            }
        }
        None
    }

    /// Takes all frames of a run, or none: then one that was not free.
    fn take_all(&self, run: PfnRange) -> Result<(), Pfn> {
        let mut next = run.start;
        while next < run.end {
            let segment = self.segment_of(BlockNumber::containing(next));
            let zone = segment.and_then(|segment| self.zones().get(usize::from(segment.zone)));
            // Of one segment: windows may meet within a GiB.
            let end = segment.map_or(run.end, |segment| run.end.min(segment.end().start()));
            let order = piece(PfnRange { start: next, end });
            let taken = zone.ok_or(next).and_then(|zone| self.take_piece(zone, next, order));
            if let Err(missing) = taken {
                if next > run.start {
                    // Just taken, so that this cannot fail.
                    let _ = self.free_bare(PfnRange { start: run.start, end: next });
                }
                return Err(missing);
            }
            next = next.add(order.pages());
        }
        Ok(())
    }

    /// Takes an aligned piece, whole or in halves: blocks of two types are never one.
    fn take_piece(&self, zone: &Zone, start: Pfn, order: Order) -> Result<(), Pfn> {
        if zone.allocate_at(self.platform, start, order, MigrateType::Movable).is_some() {
            return Ok(());
        }
        let half = order.get().checked_sub(1).and_then(Order::new).ok_or(start)?;
        let second = start.add(half.pages());
        self.take_piece(zone, start, half)?;
        self.take_piece(zone, second, half).inspect_err(|_| {
            // As above.
            let _ = self.free_bare(PfnRange { start, end: second });
        })
    }
}

/// The largest aligned piece at the beginning of a run that is not empty.
fn piece(run: PfnRange) -> Order {
    let level = run.start.0.trailing_zeros().min(run.pages().max(1).ilog2());
    u8::try_from(level).ok().and_then(Order::new).unwrap_or(Order::MAX)
}
