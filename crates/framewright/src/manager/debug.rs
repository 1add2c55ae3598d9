//! Where debug aids examine allocations and frees. All of this is cold: an operation comes here
//! only when `DrainEpoch` says that something wants attention.
//!
//! On allocation, frames are examined for damage, then cleared, then recorded for their owner. On
//! free, the range is validated first, because nothing may be written into memory that is not the
//! caller's; then its records are closed, then it is filled, and then it is freed as usual.
//!
//! Orders of memory: Relaxed: a serial number stands alone.

use crate::block::State;
use crate::debug::{
    Aids, Allocation, Damage, Event, Misuse, POISON, PageHistory, PageRecord, Place, fill,
    first_other,
};
use crate::frames;
use crate::manager::alloc::block_number;
use crate::manager::facets::Debugging;
use crate::manager::request::AllocateError;
use crate::manager::state::Manager;
use crate::manager::state::debug::{SegmentAids, as_index};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FreeError, Segment};
use core::ops::Range;

/// A run of pages for which debug aids keep records.
struct Aided {
    segment: &'static SegmentAids,
    run: PfnRange,
    /// Indices of the pages in the segment's records.
    pages: Range<usize>,
}

/// Returns the first piece of a range that has records, and cuts `rest` to what follows that piece.
#[inline(never)]
fn first_aided(
    directory: &[Segment],
    segments: &'static [SegmentAids],
    rest: &mut PfnRange,
) -> Option<Aided> {
    while !rest.is_empty() && !segments.is_empty() {
        let start = rest.start;
        let block = BlockNumber::containing(start);
        let mut next = directory.partition_point(|segment| segment.start <= block);
        let mut found = next.checked_sub(1).and_then(|index| directory.get(index));
        found = found.filter(|segment| block < segment.end());
        let Some(mut last) = found else {
            let after = directory.get(next).map_or(rest.end, |after| after.start.start());
            rest.start = after.min(rest.end);
            continue;
        };
        let aids = segments.get(next - 1)?;
        while let Some(after) = directory.get(next).filter(|next| next.start == last.end()) {
            (last, next) = (after, next + 1);
        }
        let run = PfnRange { start, end: last.end().start().min(rest.end) };
        rest.start = run.end;
        let first = as_index(start.0 - aids.start.start().0);
        return Some(Aided { segment: aids, run, pages: first..first + as_index(run.pages()) });
    }
    None
}

impl<P: Platform> Debugging<'_, P> {
    /// Which debug aids are on.
    #[must_use]
    pub const fn aids(self) -> Aids {
        self.manager.debug.aids
    }

    /// Who allocated a page and who freed it last, with `page_owner=on`; `None` for a page that was
    /// never allocated.
    #[must_use]
    pub fn page_history(self, pfn: Pfn) -> Option<PageHistory> {
        // Numbers that no frame has would be taken for those of others.
        block_number(pfn)?;
        let one = PfnRange { start: pfn, end: pfn.add(1) };
        let Aided { segment, pages, .. } = self.manager.aids_of(one).next()?;
        self.manager.debug.owners(segment).history(pages.start)
    }

    /// How often free memory was found to have been written to, and where last (`page_poison=1`).
    /// Each time the allocation failed with [`AllocateError::Damaged`].
    pub fn damage(self) -> Option<(u64, Damage)> {
        let (times, last) = *self.manager.debug.damage.lock(self.manager.platform);
        Some((times, last?))
    }
}

impl<P: Platform> Manager<P> {
    /// The pieces of a range that have records; the range lies in one zone without a hole. This is
    /// one piece, unless some of the range was added after bring-up: that memory has no records.
    fn aids_of(&self, range: PfnRange) -> impl Iterator<Item = Aided> + use<P> {
        let (directory, segments) = (self.directory, self.debug.segments);
        let mut rest = range;
        core::iter::from_fn(move || first_aided(directory, segments, &mut rest))
    }

    fn event(&self, place: Place) -> Event {
        self.pinned(|cpu| Event { place, cpu, now_ns: self.platform.now_ns() })
    }

    /// The part of a range that the direct map reaches, so that it can be written to.
    fn reachable(&self, range: PfnRange) -> PfnRange {
        let limit = self.platform.direct_limit() / PAGE_SIZE;
        PfnRange::new(range.start.0, range.end.0.min(limit).max(range.start.0))
    }

    /// Examines runs that were just allocated, clears them if wanted, and records their owner. On
    /// an error all of them are free again.
    #[cold]
    pub(super) fn after_allocation(
        &self,
        runs: impl Iterator<Item = PfnRange> + Clone,
        zeroed: bool,
        place: Place,
    ) -> Result<(), AllocateError> {
        if !cfg!(feature = "debug") {
            if zeroed {
                runs.for_each(|run| frames::zero(self.platform, run));
            }
            return Ok(());
        }
        if let Err(damage) = self.look_for_damage(runs.clone()) {
            // The runs were just allocated and are nobody else's, so this cannot fail.
            runs.for_each(|run| _ = self.free_bare(run));
            return Err(AllocateError::Damaged(damage));
        }
        self.hand_over(runs, zeroed, place);
        Ok(())
    }

    /// [`after_allocation`](Self::after_allocation) of isolated memory that was claimed. On an
    /// error the memory stays allocated, and is filled again.
    #[cold]
    pub(super) fn look_at_claimed(&self, claimed: PfnRange, place: Place) -> Result<(), Damage> {
        if cfg!(feature = "debug") {
            let claimed = core::iter::once(claimed);
            self.look_for_damage(claimed.clone())?;
            self.hand_over(claimed, false, place);
        }
        Ok(())
    }

    /// Examines runs that were just allocated. If any is damaged, counts that and fills all of them
    /// again.
    fn look_for_damage(&self, runs: impl Iterator<Item = PfnRange> + Clone) -> Result<(), Damage> {
        if !self.debug.aids.page_poison {
            return Ok(());
        }
        let mut damage = None;
        for run in runs.clone() {
            let found = self.find_damage(run);
            damage = damage.or(found);
        }
        let Some(damage) = damage else { return Ok(()) };
        runs.for_each(|run| self.fill_freed(run));
        let mut known = self.debug.damage.lock(self.platform);
        *known = (known.0 + 1, Some(damage));
        Err(damage)
    }

    /// Clears runs that were just allocated, where that is wanted, and records their owner.
    fn hand_over(&self, runs: impl Iterator<Item = PfnRange> + Clone, zeroed: bool, place: Place) {
        if self.debug.aids.init_on_alloc || zeroed {
            runs.clone().for_each(|run| fill(self.platform, self.reachable(run), 0));
        }
        self.write_owner(runs, place);
    }

    /// Records frames that were in use before the manager existed as allocated from now on.
    pub(super) fn note_adopted(&self, frames: PfnRange, place: Place) {
        if cfg!(feature = "debug") && self.pressure.epoch.wants_attention() {
            self.write_owner(core::iter::once(frames), place);
        }
    }

    fn write_owner(&self, runs: impl Iterator<Item = PfnRange>, place: Place) {
        if self.debug.aids.page_owner {
            let event = self.event(place);
            runs.for_each(|run| self.write_run(run, event));
        }
    }

    /// [`write_owner`](Self::write_owner) of one run, compiled once.
    #[inline(never)]
    fn write_run(&self, run: PfnRange, event: Event) {
        let serial = self.debug.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let order = Order::for_pages(run.pages()).unwrap_or(Order::MAX);
        for Aided { segment, pages, .. } in self.aids_of(run) {
            self.debug.owners(segment).allocate(pages, &Allocation { event, order, serial });
        }
    }

    /// Gives a run the owner records of the contents that are about to move there; the run was just
    /// allocated for that (Linux: `mm/page_owner.c`, `__folio_copy_owner`). This happens before the
    /// move, as afterwards the run may be freed at any time. Returns the previous owner of the run,
    /// to be passed as `owner` if nothing was moved after all.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_owner(&self, from: Option<Pfn>, to: PfnRange, mut owner: u64) -> u64 {
        let mut before = 0;
        for offset in 0..to.pages() {
            if let Some(from) = from {
                owner = self.record(from.add(offset)).map_or(0, PageRecord::owner);
            }
            if let Some(record) = self.record(to.start.add(offset)) {
                before = record.set_owner(owner);
            }
        }
        before
    }

    #[inline(never)]
    fn record(&self, pfn: Pfn) -> Option<&'static PageRecord> {
        let mut one = PfnRange { start: pfn, end: pfn.add(1) };
        let Aided { segment, pages, .. } =
            first_aided(self.directory, self.debug.segments, &mut one)?;
        segment.records.get(pages.start)
    }

    /// Forgets that pages hold poison: for pages that are allocated without an examination, written
    /// to, and freed again without being filled.
    pub(super) fn forget_content(&self, run: PfnRange) {
        if !cfg!(feature = "debug") {
            return;
        }
        if self.debug.aids.page_poison {
            for Aided { segment, pages, .. } in self.aids_of(run) {
                segment.filled.take(pages, |_| {});
            }
        }
    }

    /// Returns the first byte of a run that should be poison and is not, and clears the marks that
    /// say where poison was written.
    fn find_damage(&self, run: PfnRange) -> Option<Damage> {
        let mut damage = None;
        for Aided { segment, run, pages } in self.aids_of(run) {
            let first = pages.start;
            segment.filled.take(pages, |page| {
                if damage.is_none() {
                    let start = run.start.add((page - first) as u64);
                    let frame = PfnRange::of_order(start, Order::PAGE);
                    let other = first_other(self.platform, frame, POISON);
                    damage = other.map(|(address, found)| Damage {
                        address,
                        found,
                        history: self.debug.owners(segment).history(page),
                    });
                }
            });
        }
        damage
    }

    /// Validates a range that is about to be freed, and fills it. An error leaves everything as it
    /// was.
    #[cold]
    pub(super) fn before_free(
        &self,
        range: PfnRange,
        neighbours: bool,
        place: Place,
    ) -> Result<(), FreeError> {
        if !cfg!(feature = "debug") {
            return Ok(());
        }
        if !self.debug.aids.watch() {
            return Ok(());
        }
        self.check_all(range, |piece| {
            piece.zone.check_allocated(self.platform, piece.segment, piece.range)
        })
        .map_err(|error| self.explained(error))?;
        if self.debug.aids.page_owner {
            let event = self.event(place);
            for (number, Aided { segment, run, pages }) in self.aids_of(range).enumerate() {
                let (owners, first) = (self.debug.owners(segment), pages.start);
                let Err(misuse) = owners.free(pages, neighbours, &event) else { continue };
                for before in self.aids_of(range).take(number) {
                    self.debug.owners(before.segment).take_back(before.pages);
                }
                let pfn = |page: usize| run.start.add((page - first) as u64);
                return Err(match misuse {
                    Misuse::NotAllocated(page) => {
                        self.explained(FreeError::free_already(pfn(page)))
                    }
                    Misuse::OtherAllocation(page) => FreeError::WrongSize {
                        range,
                        allocation: owners.history(first),
                        pfn: pfn(page),
                    },
                });
            }
        }
        self.fill_freed(range);
        Ok(())
    }

    /// Fills memory that was added, whose content is undefined, like freed memory, unless it cannot
    /// be accessed yet.
    pub(super) fn fill_added(&self, range: PfnRange, is_accepted: bool) {
        if !cfg!(feature = "debug") {
            return;
        }
        if self.pressure.epoch.wants_attention() {
            // Memory that held poison when it was removed may hold anything now, and not every page
            // gets filled.
            self.forget_content(range);
            if is_accepted {
                self.fill_freed(range);
            }
        }
    }

    /// Fills memory that has just lost its owner.
    fn fill_freed(&self, range: PfnRange) {
        let aids = &self.debug.aids;
        let reachable = self.reachable(range);
        if aids.init_on_free {
            fill(self.platform, reachable, 0);
        }
        if !aids.page_poison {
            return;
        }
        let sparsely = aids.poison_sparsely && range.pages() > PAGES_PER_BLOCK;
        let step = if sparsely { PAGES_PER_BLOCK } else { 1 };
        for Aided { segment, run, pages } in self.aids_of(reachable) {
            let mut pfn = run.start.0.next_multiple_of(step);
            while pfn < run.end.0 {
                fill(self.platform, PfnRange::new(pfn, pfn + 1), POISON);
                segment.filled.set(pages.start + as_index(pfn - run.start.0));
                pfn += step;
            }
        }
    }

    /// Adds to an error what is known of the page that it names.
    pub(super) fn explained(&self, error: FreeError) -> FreeError {
        if !cfg!(feature = "debug") {
            return error;
        }
        match error {
            FreeError::NotAllocated { pfn, state, .. } if self.debug.aids.page_owner => {
                match self.debug().page_history(pfn) {
                    None if state == Some(State::Free) => FreeError::NeverAllocated(pfn),
                    history => FreeError::NotAllocated { pfn, state, history },
                }
            }
            other => other,
        }
    }
}
