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
use crate::zone::{FreeRun, Zone};
use core::iter;
use core::panic::Location;

/// How often a run is looked for of which others took something.
const MOST_LOOKS: u32 = 8;

impl<P: Platform> Manager<P> {
    /// A run of `pages` frames that begins at a multiple of `align`, of what is free; of the
    /// nearest zone that has one and may give so much. Of one of its parts, if one has it.
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
            let keeps_pages = self.keeps(mark, part, &search);
            let mut run = self.take_neighbours(iter::once(part), keeps_pages, pages, align);
            if run.is_none() && part.parts() != 1 && asked.replace(part.id()) != Some(part.id()) {
                let parts = self.numbered_parts(part.id()).map(|(_, part)| part);
                let keeps_pages = self.keeps_of_all(mark, part, &search);
                run = self.take_neighbours(parts, keeps_pages, pages, align);
            }
            if let Some(run) = run {
                self.note_node(part, &search, pages);
                return self.hand_out(run, false, place).map(Some);
            }
        }
        Ok(None)
    }

    /// A run of some parts of a zone, which ascend, unless they are to keep more.
    fn take_neighbours(
        &self,
        parts: impl Iterator<Item = &'static Zone> + Clone,
        keeps_pages: u64,
        pages: u64,
        align: Order,
    ) -> Option<PfnRange> {
        let free: u64 = parts.clone().map(Zone::free_pages).sum();
        if free.checked_sub(pages)? < keeps_pages {
            return None;
        }
        let mut from = Pfn(0);
        for _ in 0..MOST_LOOKS {
            let mut run = FreeRun::new(pages, align, from);
            let found = parts.clone().find_map(|part| part.follow_free(self.platform, &mut run))?;
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
            // At most a GiB, of which no two parts have some (invariant 45).
            let order = piece(PfnRange { start: next, end: run.end });
            let place = self.block_of(next).ok_or(next);
            if let Err(missing) = place.and_then(|(zone, _)| self.take_piece(zone, next, order)) {
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
