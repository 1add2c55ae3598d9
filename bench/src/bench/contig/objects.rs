//! Pages with owners, as cheap as can be: two flat tables, so that what is measured is the manager
//! and the copy.
//!
//! Orders of memory: Relaxed, for one thread makes, moves and looks at all objects of a machine.

use crate::bench::common::failed;
use crate::bench::random::Random;
use crate::bench::subject::Ours;
use framewright::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{Manager, MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform};
use framewright_cli::error::Error;
use framewright_hosted::HostedPlatform;
use std::sync::atomic::{AtomicU32, Ordering};

/// No object, no place.
const NONE: u32 = u32::MAX;

/// Single pages of a manager, each an object with its number in its first word.
pub struct Objects<'m> {
    manager: &'m Manager<HostedPlatform>,
    owners: Vec<AtomicU32>,
    places: Vec<AtomicU32>,
    pinned: AtomicU32,
}

/// Where an object was and where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    from: u32,
    to: u32,
}

impl<'m> Objects<'m> {
    /// Fills all memory with movable pages, and writes to each.
    ///
    /// # Errors
    /// More memory than half a word can number.
    pub fn fill(ours: &Ours<'m>) -> Result<Self, Error> {
        let manager = ours.manager();
        let end = manager.zones().iter().map(|zone| zone.span().end.0).max().unwrap_or(0);
        let count = u32::try_from(end).ok().filter(|&end| end != NONE);
        let count = count.ok_or_else(|| failed("too much memory for tables of half words"))?;
        let table = || (0..count).map(|_| AtomicU32::new(NONE)).collect::<Vec<_>>();
        let (owners, mut places) = (table(), Vec::new());
        while let Ok(pfn) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
            let place = u32::try_from(pfn.0).map_err(failed)?;
            let object = u32::try_from(places.len()).map_err(failed)?;
            owners[place as usize].store(object, Ordering::Relaxed);
            places.push(AtomicU32::new(place));
        }
        let objects = Self { manager, owners, places, pinned: AtomicU32::new(NONE) };
        for (object, place) in (0_u32..).zip(objects.places()) {
            // SAFETY: the page is this object's alone, and begins at a multiple of its size.
            unsafe { objects.page(place).cast::<u32>().write_volatile(object) };
        }
        Ok(objects)
    }

    fn page(&self, place: u32) -> *mut u8 {
        self.manager.platform().direct(u64::from(place) * PAGE_SIZE).as_ptr()
    }

    /// The place of each object; of one that was freed there is none.
    pub fn places(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.load(Ordering::Relaxed)).collect()
    }

    /// Frees the pages that are chosen.
    ///
    /// # Errors
    /// A page that the manager does not take back.
    pub fn free(&self, mut is_chosen: impl FnMut(u32) -> bool) -> Result<(), Error> {
        for (object, place) in self.places().into_iter().enumerate() {
            if place == NONE || !is_chosen(place) {
                continue;
            }
            self.places[object].store(NONE, Ordering::Relaxed);
            self.owners[place as usize].store(NONE, Ordering::Relaxed);
            // SAFETY: it was this object's, which is no more (invariant 42).
            unsafe { self.manager.free_order(Pfn(u64::from(place)), Order::PAGE) }
                .map_err(failed)?;
        }
        self.manager.drain().map_err(failed)?;
        Ok(())
    }

    /// Frees pages by chance until so many of a hundred are left.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn thin_out(&self, percent: usize, seed: u64) -> Result<(), Error> {
        let mut random = Random::new(seed);
        self.free(|_| random.below(100) >= percent)
    }

    /// From now on the page at this place stays where it is.
    pub fn pin(&self, place: Option<u32>) {
        self.pinned.store(place.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Frames in use of each block.
    pub fn used(&self) -> Vec<u64> {
        let block = usize::try_from(PAGES_PER_BLOCK).unwrap_or(usize::MAX);
        let in_use = |owner: &&AtomicU32| owner.load(Ordering::Relaxed) != NONE;
        let blocks = self.owners.chunks(block);
        blocks.map(|owners| owners.iter().filter(in_use).count() as u64).collect()
    }

    /// What was moved since objects were at these places, by the old place.
    pub fn moves_since(&self, before: &[u32]) -> Vec<Move> {
        let now = self.places();
        let moved = before.iter().zip(&now).filter(|(from, to)| from != to);
        let mut moves: Vec<_> = moved.map(|(&from, &to)| Move { from, to }).collect();
        moves.sort_unstable();
        moves
    }

    /// Copies the same pages once more: from where they were, which nobody has used since, to where
    /// they are.
    pub fn copy_again(&self, moves: &[Move]) {
        for &Move { from, to } in moves {
            self.copy(from, to);
        }
    }

    fn copy(&self, from: u32, to: u32) {
        let bytes = usize::try_from(PAGE_SIZE).unwrap_or(0);
        // SAFETY: two different pages, both mapped as long as the manager is there; nobody else is
        // at work on this machine.
        unsafe { self.page(from).copy_to_nonoverlapping(self.page(to), bytes) };
    }

    /// Whether each object has its own page.
    ///
    /// # Errors
    /// One that has not.
    pub fn check(&self) -> Result<(), Error> {
        for (object, place) in (0_u32..).zip(self.places()) {
            if place == NONE {
                continue;
            }
            // SAFETY: as where it was written.
            let found = unsafe { self.page(place).cast::<u32>().read_volatile() };
            if found != object {
                return Err(failed(format!("object {object} found the page of {found}")));
            }
        }
        Ok(())
    }
}

fn place_of(pfn: Pfn) -> u32 {
    u32::try_from(pfn.0).unwrap_or(NONE)
}

// SAFETY: what it calls movable is the page of an object, which was allocated for it alone; after a
// move the tables lead to the new place, and nothing else names the old one (invariant 42).
unsafe impl Mover for Objects<'_> {
    fn serves(&self, manager: *const ()) -> bool {
        core::ptr::from_ref(self.manager).cast() == manager
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        let place = place_of(pfn);
        let owner = self.owners.get(place as usize).map(|owner| owner.load(Ordering::Relaxed));
        match owner {
            None => Occupant::Unknown,
            Some(NONE) => Occupant::Free,
            Some(_) if place == self.pinned.load(Ordering::Relaxed) => Occupant::Pinned,
            Some(_) => Occupant::Movable(PfnRange { start: pfn, end: Pfn(pfn.0 + 1) }),
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let owner = self.owners.get(place_of(run.start) as usize).ok_or(NotNow::Gone)?;
        match owner.load(Ordering::Relaxed) {
            NONE => Err(NotNow::Gone),
            object => Ok(MoveToken(u64::from(object))),
        }
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let (from, to) = (place_of(run.start), place_of(to.start));
        let object = u32::try_from(token.0).map_err(|_| MoveFailed)?;
        let Some(place) = self.places.get(object as usize) else { return Err(MoveFailed) };
        self.copy(from, to);
        self.owners[from as usize].store(NONE, Ordering::Relaxed);
        self.owners[to as usize].store(object, Ordering::Relaxed);
        place.store(to, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}
