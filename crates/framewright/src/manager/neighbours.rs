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
use crate::zone::Zone;
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
        for zone in self.zonelist(&search) {
            let left = zone.free_pages().checked_sub(pages);
            if left.is_none_or(|left| left < self.keeps(mark, zone, &search)) {
                continue;
            }
            let mut from = Pfn(0);
            for _ in 0..MOST_LOOKS {
                let found = zone.free_neighbours(self.platform, pages, align, from);
                let Some(run) = found else { break };
                match self.take_all(zone, run) {
                    Ok(()) => {
                        self.note_node(zone, &search, pages);
                        // What is left of blocks that were taken apart may have another type now,
                        // which somebody waits for.
                        self.pressure.epoch.note_free();
                        return self.hand_out(run, false, place).map(Some);
                    }
                    // Somebody was faster.
                    Err(missing) => from = Pfn(missing.0 + 1),
                }
            }
        }
        Ok(None)
    }

    /// Takes all frames of a run, or none: then one that was not free.
    fn take_all(&self, zone: &Zone, run: PfnRange) -> Result<(), Pfn> {
        let mut next = run.start;
        while next < run.end {
            let order = piece(PfnRange { start: next, end: run.end });
            if let Err(missing) = self.take_piece(zone, next, order) {
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
