//! Makes memory available because a request needs it: first memory that only lacks its descriptors,
//! which costs least, then memory that has to be accepted.

use super::{Attempt, Behind};
use crate::block::{ACCEPTS, MigrateType};
use crate::manager::state::Manager;
use crate::manager::vmemmap::deferred::{Growth, is_withheld};
use crate::platform::{AcceptMemory, Platform};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{AcceptWanted, Zone, pages_to_accept};
use core::ops::Range;

/// How many blocks of a range are examined under one hold of the lock: 1 GiB.
const BLOCKS_AT_ONCE: u32 = 512;
/// The most pages that a request accepts beyond what it needs: 16 MiB.
const MOST_MORE_PAGES: u64 = 16 << 8;

/// What a request lacks in a zone.
#[derive(Clone, Copy)]
pub(in crate::manager) struct Growing {
    /// How many pages.
    pub(in crate::manager) pages: u64,
    /// The smallest order of the runs.
    pub(in crate::manager) least: Order,
    /// One past the last frame that will do.
    pub(in crate::manager) max: Pfn,
    /// What the pages are for.
    pub(in crate::manager) migrate_type: MigrateType,
}

impl Growing {
    fn wanted(&self) -> AcceptWanted {
        let order = order_within(self.pages).max(self.least).max(Order::BLOCK);
        AcceptWanted { order, max: self.max, migrate_type: self.migrate_type, ahead: true }
    }
}

/// Returns the largest order of no more than `pages` pages, at least a block.
pub(super) fn order_within(pages: u64) -> Order {
    let level = u8::try_from(pages.max(1).ilog2()).unwrap_or(u8::MAX);
    Order::new(level.max(BLOCK_ORDER)).unwrap_or(Order::MAX)
}

impl<P: Platform> Manager<P> {
    /// Makes memory of a zone available for a request. Returns whether looking for memory again
    /// makes sense. For any context: if waiting is not allowed, memory that others are working on
    /// does not count. A caller inside a cache uses [`grow_inside`](Self::grow_inside).
    #[cold]
    #[inline(never)]
    pub(in crate::manager) fn grow(&self, zone: &Zone, growing: &Growing) -> bool {
        if self.vmemmap().grow(zone, growing.pages, growing.max) {
            return true;
        }
        let Some(device) = self.platform.accept_memory() else { return false };
        let may_wait = self.platform.can_wait();
        // Memory that others had claimed may already be free when this sees that none is left to
        // claim.
        let mut looked_again = false;
        loop {
            let before = zone.unaccepted_pages();
            if before == 0 {
                return false;
            }
            match self.accept_for(device, zone, growing) {
                Attempt::Pages(0) | Attempt::Waits if may_wait => self.let_others_accept(),
                Attempt::Pages(0) | Attempt::Waits => return false,
                Attempt::Pages(pages) => {
                    self.accept_more(device, zone, growing, pages);
                    return true;
                }
                Attempt::Nothing if zone.unaccepted_pages() != before => return true,
                Attempt::Nothing if !may_wait => return false,
                Attempt::Nothing if zone.is_accepting() => self.platform.relax(),
                Attempt::Nothing if looked_again => return false,
                Attempt::Nothing => looked_again = true,
            }
        }
    }

    /// Makes one turn of waiting for the block behind a run, which may be another zone's.
    fn let_others_accept(&self) {
        if self.zones().iter().any(Zone::is_accepting) {
            self.platform.relax();
        }
    }

    fn accept_for(&self, device: &dyn AcceptMemory, zone: &Zone, growing: &Growing) -> Attempt {
        let wanted = growing.wanted();
        self.accept_one(device, zone, Behind::Accepted, || {
            zone.claim_lowest(self.platform, &wanted)
        })
    }

    /// After a small request, accepts memory up to the zone's watermark for this as Linux would, so
    /// that requests which cannot wait find some. Accepts no more than earlier small requests got,
    /// so that the first requests pay only for what they need. Requests that cannot wait accept
    /// nothing more.
    fn accept_more(&self, device: &dyn AcceptMemory, zone: &Zone, growing: &Growing, pages: u64) {
        let is_small = growing.pages.max(growing.least.pages()) <= Order::BLOCK.pages();
        let before = self.accept.note_demand(pages, is_small);
        if !is_small || !self.platform.can_wait() {
            return;
        }
        let migrate_type = growing.migrate_type;
        let mark = zone.share_of(zone.promo_pages(migrate_type));
        let unaccepted = zone.unaccepted_pages();
        let is_movable = migrate_type == MigrateType::Movable;
        let unusable = if is_movable { 0 } else { zone.graded_pages() };
        let usable = zone.free_pages().saturating_sub(unusable);
        let lacking = pages_to_accept(mark, usable + unaccepted, unaccepted);
        let mut most = lacking.min(before).min(MOST_MORE_PAGES);
        while most >= Order::BLOCK.pages() {
            let wanted = AcceptWanted {
                order: order_within(most),
                max: growing.max,
                migrate_type,
                ahead: true,
            };
            let claim = || zone.claim_highest(self.platform, &wanted);
            match self.accept_one(device, zone, Behind::Accepted, claim) {
                Attempt::Pages(more) if more != 0 => {
                    self.accept.note_demand(more, true);
                    most = most.saturating_sub(more);
                }
                _ => return,
            }
        }
    }

    /// Does [`grow`](Self::grow) for a caller inside a cache: it waits for nobody, because a drain
    /// may be waiting for it.
    #[cold]
    #[inline(never)]
    pub(in crate::manager) fn grow_inside(
        &self,
        zone: &Zone,
        order: Order,
        migrate_type: MigrateType,
    ) -> Growth {
        let described = self.vmemmap().grow_inside(zone, order.pages());
        if described != Growth::NothingLeft || zone.unaccepted_pages() == 0 {
            return described;
        }
        let Some(device) = self.platform.accept_memory() else { return Growth::NothingLeft };
        let growing =
            Growing { pages: order.pages(), least: order, max: Pfn(u64::MAX), migrate_type };
        match self.accept_for(device, zone, &growing) {
            Attempt::Pages(pages) if pages != 0 => {
                self.accept_more(device, zone, &growing, pages);
                Growth::Grown
            }
            _ if self.platform.can_wait() && zone.unaccepted_pages() != 0 => Growth::Busy,
            _ => Growth::NothingLeft,
        }
    }

    /// Makes the withheld memory among `frames`, which lie in one part of a zone, available, and
    /// accepts what may be read behind it. If waiting is allowed, also waits for the part that
    /// others are working on.
    #[cold]
    pub(in crate::manager) fn grow_at(&self, zone: &Zone, frames: PfnRange) {
        self.vmemmap().grow_at(zone, frames);
        let Some(device) = self.platform.accept_memory() else { return };
        let may_wait = self.platform.can_wait();
        // From the end, so that something beyond the range is accepted only behind the last slice.
        let mut slices = self.slices(frames);
        while let Some(slice) = slices.next_back() {
            while zone.has_unaccepted_in(self.platform, &slice) {
                let claim = || zone.claim_in(self.platform, &slice);
                match self.accept_one(device, zone, Behind::Accepted, claim) {
                    Attempt::Pages(pages) if pages != 0 => {}
                    Attempt::Pages(_) | Attempt::Waits if may_wait => self.let_others_accept(),
                    Attempt::Nothing if may_wait => self.platform.relax(),
                    _ => return,
                }
            }
        }
    }

    /// Returns whether memory among `frames`, which lie in one part of a zone, is withheld.
    pub(in crate::manager) fn is_withheld(&self, zone: &Zone, frames: PfnRange) -> bool {
        is_withheld(zone, frames) || self.has_unaccepted(zone, frames)
    }

    /// Returns whether memory among `frames`, which lie in one part of a zone, is not accepted.
    pub(in crate::manager) fn has_unaccepted(&self, zone: &Zone, frames: PfnRange) -> bool {
        if !ACCEPTS {
            return false;
        }
        zone.unaccepted_pages() != 0
            && self.slices(frames).any(|slice| zone.has_unaccepted_in(self.platform, &slice))
    }

    /// Returns the indices of a range that is not empty and lies in one segment, in slices.
    fn slices(&self, frames: PfnRange) -> impl DoubleEndedIterator<Item = Range<u32>> + use<P> {
        let first = BlockNumber::containing(frames.start);
        let last = BlockNumber::containing(Pfn(frames.end.0.saturating_sub(1)));
        let segment = self.segment_of(first);
        let (start, end) = segment.map_or((0, 0), |segment| {
            (segment.index_of(first), (segment.index_of(last) + 1).min(segment.indices().end))
        });
        let at_once = BLOCKS_AT_ONCE;
        (start / at_once..end.div_ceil(at_once))
            .map(move |slice| start.max(slice * at_once)..end.min((slice + 1) * at_once))
    }
}
