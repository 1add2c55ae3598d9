//! Moves mapped runs.

use super::{GuestMapping, TLB, Taken, flush};
use crate::platform::PLATFORM;
use framewright::manager::Begun;
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, Pfn, PfnRange};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_arch::paging::{FlushRequest, FlushTlb, MAX_RANGES};

impl GuestMapping<'_> {
    /// Returns the run of a move that has begun.
    fn in_motion(&self, token: MoveToken, run: PfnRange) -> Option<Taken> {
        let (entries, first) = self.entries().zip(u32::try_from(token.0).ok())?;
        let found = entries.get(first);
        let order = found.order().filter(|_| !found.is_present() && found.run() == Some(run))?;
        Some(Taken { entries, first, run, order, pinned: found.is_pinned() })
    }
}

// SAFETY: a run that `occupant` calls movable was allocated as one run for one place in the
// mapping, whose entry still says so. `begin` takes the run: its entries are not present, and
// nobody else moves or frees it. `settle` makes all CPUs forget them (invariants 12 and 47).
// `relocate` maps the new frames; no table has the old ones by then, and only this has copied them
// through the direct map.
unsafe impl Mover for GuestMapping<'_> {
    fn serves(&self, manager: *const ()) -> bool {
        core::ptr::from_ref(self.manager).cast() == manager
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        let owner = self.entries().and_then(|entries| Some((entries, entries.owned_by(pfn)?)));
        let Some((entries, first)) = owner else { return Occupant::Unknown };
        let found = entries.get(first);
        match found.run() {
            Some(run) if run.contains(pfn) && found.is_pinned() => Occupant::Pinned,
            Some(run) if run.contains(pfn) => Occupant::Movable(run),
            _ => Occupant::Free,
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let entries = self.entries().ok_or(NotNow::Gone)?;
        let first = entries.owned_by(run.start).ok_or(NotNow::Gone)?;
        let found = entries.get(first);
        if found.run() != Some(run) {
            return Err(NotNow::Gone);
        }
        if found.is_pinned() {
            return Err(NotNow::Pinned);
        }
        let taken = Taken::take(entries, first, found).ok_or(NotNow::Busy)?;
        Ok(MoveToken(taken.first.into()))
    }

    fn settle(&self, begun: &[Begun]) {
        let Some(entries) = self.entries() else { return };
        let mut pages = [entries.addresses(0, 0); MAX_RANGES];
        if begun.len() > MAX_RANGES {
            // So many single flushes on each CPU would take longer than they save.
            return TLB.flush_pages(FlushRequest::Everything);
        }
        for (pages, begun) in pages.iter_mut().zip(begun) {
            let first = u32::try_from(begun.token.0).unwrap_or(0);
            *pages = entries.addresses(first, begun.run.pages());
        }
        flush(&pages[..begun.len()]);
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let taken = self.in_motion(token, run).ok_or(MoveFailed)?;
        let bytes = usize::try_from(run.pages() * PAGE_SIZE).unwrap_or(0);
        let is_reachable =
            to.end.address() <= PLATFORM.direct_limit() && to.end <= taken.entries.end();
        if to.pages() != run.pages() || !is_reachable {
            taken.give_back(run);
            return Err(MoveFailed);
        }
        // SAFETY: both runs are whole, below the direct limit, and do not overlap. Nobody has
        // accessed the old run since `begin`, and the new one belongs to the caller (invariants 1,
        // 15 and 47).
        unsafe {
            let from = PLATFORM.direct(run.start.address());
            PLATFORM.direct(to.start.address()).copy_from_nonoverlapping(from, bytes);
        }
        // Clear the owner before users know the new place: from then on the run can move again, and
        // the old frames may be given to somebody else.
        taken.entries.set_owner(run, None);
        taken.give_back(to);
        Ok(())
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        if let Some(taken) = self.in_motion(token, run) {
            taken.give_back(run);
        }
    }
}
