//! 1 GiB pages from reserve areas (`hugetlb_cma=`; Linux: `mm/hugetlb_cma.c`). An area is lent to
//! movable requests until a pool wants its memory, so that 1 GiB pages can be had even after weeks.
//!
//! A node's area is the one on it that is called `hugetlb` and the node's number. Its pages keep
//! the grade of their blocks, are not demoted, and go back to the area when they leave the pool.

use crate::block::{Chain, PageList};
use crate::hugetlb::Taken;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::moving::{AreaName, Budget, HUGETLB};
use crate::platform::Platform;
use crate::units::{NodeId, PfnRange};
use crate::zone::Zone;
use core::panic::Location;

/// Gives pages back if a mover or the reclaim hook panics and the panic unwinds.
pub(super) struct GiveBack<'t, 'm, P: Platform> {
    pub(super) pool: Pool<'m, P>,
    pub(super) taken: &'t mut Taken,
}

impl<P: Platform> Drop for GiveBack<'_, '_, P> {
    fn drop(&mut self) {
        self.pool.give_back(self.taken);
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Returns whether pages come only from areas.
    pub(super) const fn is_area_only(&self) -> bool {
        self.size.is_gigantic() && self.manager.moving.hugetlb_cma_only
    }

    /// Returns the area of a node, if pages of this size come from one.
    fn area(&self, node: NodeId) -> Option<usize> {
        if !self.size.is_gigantic() || self.manager.moving().area_pages() == 0 {
            return None;
        }
        let name = AreaName::numbered(HUGETLB, node.index())?;
        let number = self.manager.moving().area_named(name.as_str())?;
        // Any caller may create an area of this name, anywhere.
        let (_, pages, _) = self.manager.moving().area(number)?;
        let zone = self.manager.numa().zone_of(pages.start);
        (zone.map(|zone| zone.node) == Some(node)).then_some(number)
    }

    /// Takes pages of a node's area until `taken` has `most`, moving the contents that were lent a
    /// place there.
    #[inline(never)]
    pub(super) fn take_from_area(&self, taken: &mut Taken, node: NodeId, most: u64) {
        let unwinding = GiveBack { pool: *self, taken };
        self.take_of_area(unwinding.taken, node, most);
        core::mem::forget(unwinding);
    }

    fn take_of_area(&self, taken: &mut Taken, node: NodeId, most: u64) {
        let Some(number) = self.area(node) else { return };
        let (moving, order) = (self.manager.moving(), self.size.order());
        while taken.pages() < most {
            let left = moving.area(number).map_or(0, |(_, _, counts)| counts.available_pages);
            if left < order.pages() {
                return;
            }
            let Ok(frames) =
                moving.allocate_in_area(number, order.pages(), order, Budget::UNLIMITED)
            else {
                return;
            };
            if !self.adopt_of_area(taken, frames) {
                // The frames were just allocated, and nobody else knows of them.
                let _ = self.manager.free_uncached(frames, Location::caller());
                return moving.note_released(frames);
            }
        }
    }

    fn adopt_of_area(&self, taken: &mut Taken, frames: PfnRange) -> bool {
        let Ok((zone, segment)) = self.manager.zone_of_range(frames) else { return false };
        let slot = usize::from(segment.zone);
        let Some(list) = taken.list(slot) else { return false };
        let page = zone.adopt_graded_for_pool(self.manager.platform, frames, self.size.order());
        let Some(page) = page else { return false };
        list.append(zone.table(), PageList::unreported(page));
        taken.note(slot, Some(frames));
        true
    }

    /// Gives pages of a zone back one by one, those of an area to the area. Returns how many stay
    /// allocated for ever.
    pub(super) fn give_back_to_areas(&self, zone: &'static Zone, chain: Chain) -> u64 {
        let (mut leaked, mut rest) = (0, chain);
        while rest.pages != 0 {
            let one = rest.take(zone.table(), 1);
            let frames = zone.frames_of(one.first, self.size.order());
            let lost = self.release(zone, one);
            leaked += lost;
            if let Some(frames) = frames.filter(|_| lost == 0) {
                self.manager.moving().note_released(frames);
            }
        }
        leaked
    }
}
