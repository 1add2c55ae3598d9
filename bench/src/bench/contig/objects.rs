//! Runs of one to eight pages with owners, as cheap as possible: two flat tables, so that only the
//! manager and the copy are measured.
//!
//! Orders of memory: Relaxed, as one thread makes, moves and checks all objects of a machine.

use super::timed;
use crate::bench::common::failed;
use crate::bench::random::Random;
use crate::bench::subject::Ours;
use framewright::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{Manager, MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform};
use framewright_cli::error::Error;
use framewright_hosted::HostedPlatform;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// No object or no place.
const NONE: u32 = u32::MAX;
/// The bits of a place that hold the order; the first frame is in the bits above.
const ORDER_BITS: u32 = 2;
const MOST_PLACES: u64 = 1 << (32 - ORDER_BITS);

/// Runs of a manager, each an object that writes its number into the first word of each page.
pub struct Objects<'m> {
    manager: &'m Manager<HostedPlatform>,
    /// The object in each frame.
    owners: Vec<AtomicU32>,
    /// The place of each object.
    places: Vec<AtomicU32>,
    pinned: AtomicU32,
}

/// A page copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copy {
    from: u32,
    to: u32,
}

/// The place of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    fn new(start: u32, pages: u64) -> Self {
        Self(start << ORDER_BITS | pages.trailing_zeros())
    }

    /// The frames at the place; none if there is no object.
    fn frames(self) -> Range<u32> {
        let start = self.0 >> ORDER_BITS;
        let pages = if self.0 == NONE { 0 } else { 1 << (self.0 & 3) };
        start..start + pages
    }
}

impl<'m> Objects<'m> {
    /// Fills all memory with movable runs of random orders from `orders`, at most 3, and writes to
    /// each page.
    ///
    /// # Errors
    /// Fails if there is more memory than the tables can number.
    pub fn fill(ours: &Ours<'m>, orders: &[u8], seed: u64) -> Result<Self, Error> {
        let manager = ours.manager();
        let end = manager.zones().iter().map(|zone| zone.span().end.0).max().unwrap_or(0);
        if end >= MOST_PLACES {
            return Err(failed("too much memory for tables of half words"));
        }
        let owners = (0..end).map(|_| AtomicU32::new(NONE)).collect();
        let pinned = AtomicU32::new(NONE);
        let mut objects = Self { manager, owners, places: Vec::new(), pinned };
        let mut random = Random::new(seed);
        let orders: Vec<Order> = orders.iter().copied().filter_map(Order::new).collect();
        let pick = |random: &mut Random| orders[random.below(orders.len())];
        let get = |order| manager.allocate_order(order, MigrateType::Movable);
        loop {
            let order = pick(&mut random);
            let Ok(pfn) = get(order) else { break };
            let start = u32::try_from(pfn.0).map_err(failed)?;
            let object = u32::try_from(objects.places.len()).map_err(failed)?;
            objects.places.push(AtomicU32::new(NONE));
            objects.put(object, Place::new(start, order.pages()));
        }
        objects.stamp();
        Ok(objects)
    }

    /// Records the place of an object.
    fn put(&self, object: u32, place: Place) {
        for frame in place.frames() {
            self.owners[frame as usize].store(object, Ordering::Relaxed);
        }
        self.places[object as usize].store(place.0, Ordering::Relaxed);
    }

    /// Writes each object's number into its pages.
    fn stamp(&self) {
        for (object, place) in (0_u32..).zip(self.places()) {
            for frame in place.frames() {
                // SAFETY: the page belongs to this object alone, and begins at a multiple of its
                // size.
                unsafe { self.page(frame).cast::<u32>().write_volatile(object) };
            }
        }
    }

    fn page(&self, frame: u32) -> *mut u8 {
        self.manager.platform().direct(u64::from(frame) * PAGE_SIZE).as_ptr()
    }

    /// The place of each object; an object that was freed has no frames.
    pub fn places(&self) -> Vec<Place> {
        self.places.iter().map(|place| Place(place.load(Ordering::Relaxed))).collect()
    }

    /// Frees the objects that `is_chosen` selects by their first frame.
    ///
    /// # Errors
    /// Fails if the manager refuses a page.
    pub fn free(&self, mut is_chosen: impl FnMut(u32) -> bool) -> Result<(), Error> {
        for (object, place) in self.places().into_iter().enumerate() {
            let frames = place.frames();
            if frames.is_empty() || !is_chosen(frames.start) {
                continue;
            }
            self.places[object].store(NONE, Ordering::Relaxed);
            for frame in frames.clone() {
                self.owners[frame as usize].store(NONE, Ordering::Relaxed);
            }
            let order = Order::for_pages(frames.len() as u64).unwrap_or(Order::PAGE);
            // SAFETY: the run belonged to this object, which no longer exists (invariant 42).
            unsafe { self.manager.free_order(Pfn(u64::from(frames.start)), order) }
                .map_err(failed)?;
        }
        self.manager.drain().map_err(failed)?;
        Ok(())
    }

    /// Frees random pages until about this percentage is left.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    pub fn thin_out(&self, percent: usize, seed: u64) -> Result<(), Error> {
        let mut random = Random::new(seed);
        self.free(|_| random.below(100) >= percent)
    }

    /// Pins the page at this place, and unpins the one before.
    pub fn pin(&self, place: Option<u32>) {
        self.pinned.store(place.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// The number of frames in use in each block.
    pub fn used(&self) -> Vec<u64> {
        let block = usize::try_from(PAGES_PER_BLOCK).unwrap_or(usize::MAX);
        let in_use = |owner: &&AtomicU32| owner.load(Ordering::Relaxed) != NONE;
        let blocks = self.owners.chunks(block);
        blocks.map(|owners| owners.iter().filter(in_use).count() as u64).collect()
    }

    /// The pages that were moved since objects were at these places, by their old frames, which
    /// nobody has used since.
    pub fn moved_since(&self, before: &[Place]) -> Vec<Copy> {
        let now = self.places();
        let moved = before.iter().zip(&now).filter(|(from, to)| from != to);
        let pages = moved.flat_map(|(from, to)| from.frames().zip(to.frames()));
        let mut copies: Vec<_> = pages.map(|(from, to)| Copy { from, to }).collect();
        copies.sort_unstable();
        copies
    }

    /// Pairs each page in use of the chosen blocks with one of the other blocks. If there are more
    /// of the latter, they are spread evenly.
    pub fn apart(&self, is_chosen: impl Fn(usize) -> bool) -> Vec<Copy> {
        let in_use = |frame: &u32| self.owners[*frame as usize].load(Ordering::Relaxed) != NONE;
        let all = (0..u32::try_from(self.owners.len()).unwrap_or(0)).filter(in_use);
        let (from, to): (Vec<u32>, Vec<u32>) = all.partition(|&frame| {
            is_chosen(frame as usize / usize::try_from(PAGES_PER_BLOCK).unwrap_or(1))
        });
        let step = (to.len() / from.len().max(1)).max(1);
        from.into_iter()
            .zip(to.into_iter().step_by(step))
            .map(|(from, to)| Copy { from, to })
            .collect()
    }

    /// Copies pages plainly, twice, and returns the CPU time of the second copy, in microseconds.
    pub fn copy_us(&self, copies: &[Copy]) -> f64 {
        let copy = || copies.iter().for_each(|&Copy { from, to }| self.copy(from, to, 1));
        copy();
        timed(copy).1
    }

    /// Copies pages of [`apart`](Self::apart) in this way, and restores the objects' numbers
    /// afterwards.
    pub fn copy_apart_us(&self, copies: &[Copy]) -> f64 {
        let us = self.copy_us(copies);
        self.stamp();
        us
    }

    fn copy(&self, from: u32, to: u32, pages: u64) {
        let bytes = usize::try_from(pages * PAGE_SIZE).unwrap_or(0);
        // SAFETY: the pages are different and mapped as long as the manager exists; nobody else
        // works on this machine.
        unsafe { self.page(from).copy_to_nonoverlapping(self.page(to), bytes) };
    }

    /// Checks that each object has its own pages.
    ///
    /// # Errors
    /// The first object that has not.
    pub fn check(&self) -> Result<(), Error> {
        for (object, place) in (0_u32..).zip(self.places()) {
            for frame in place.frames() {
                // SAFETY: the page belongs to this object alone, and begins at a multiple of its
                // size.
                let found = unsafe { self.page(frame).cast::<u32>().read_volatile() };
                if found != object {
                    return Err(failed(format!("object {object} found the page of {found}")));
                }
            }
        }
        Ok(())
    }
}

fn frame_of(pfn: Pfn) -> u32 {
    u32::try_from(pfn.0).unwrap_or(NONE)
}

// SAFETY: what it calls movable is the page of an object, which was allocated for that object
// alone; after a move the tables lead to the new place, and nothing else names the old one
// (invariant 42).
unsafe impl Mover for Objects<'_> {
    fn serves(&self, manager: *const ()) -> bool {
        core::ptr::from_ref(self.manager).cast() == manager
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        let frame = frame_of(pfn);
        let owner = self.owners.get(frame as usize).map(|owner| owner.load(Ordering::Relaxed));
        match owner {
            None => Occupant::Unknown,
            Some(NONE) => Occupant::Free,
            Some(_) if frame == self.pinned.load(Ordering::Relaxed) => Occupant::Pinned,
            Some(object) => {
                let frames = Place(self.places[object as usize].load(Ordering::Relaxed)).frames();
                let [start, end] = [frames.start, frames.end].map(|frame| Pfn(u64::from(frame)));
                Occupant::Movable(PfnRange { start, end })
            }
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let owner = self.owners.get(frame_of(run.start) as usize).ok_or(NotNow::Gone)?;
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
        let object = u32::try_from(token.0).map_err(|_| MoveFailed)?;
        let from = Place::new(frame_of(run.start), run.pages());
        let to = Place::new(frame_of(to.start), run.pages());
        self.copy(from.frames().start, to.frames().start, run.pages());
        for frame in from.frames() {
            self.owners[frame as usize].store(NONE, Ordering::Relaxed);
        }
        self.put(object, to);
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}
