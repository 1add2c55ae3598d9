//! A manager for kernels that add memory range by range and never say which range is the last.
//!
//! ```text
//!   add, add, ...      the first request, or bring_up         from then on
//!   collected    ────> allocated: the gaps, which are   ────> add: freed, released, hot-added
//!                      in use; up: the manager
//! ```
//!
//! [`LazyManager`] is to [`Manager`] what `LazyLock` is to a value: it is made for a static, and
//! the first caller that needs the manager brings it up. `ranges` holds the ranges that have been
//! added, `late` adds memory after bring-up.

mod error;
#[cfg(feature = "hotplug")]
mod late;
mod ranges;

pub use error::{AddError, NotUp};

use crate::firmware::{MemoryAffinity, Topology};
use crate::manager::{AllocateError, BringUp, BringUpError, Manager, pages_of};
use crate::memblock::{Memblock, MemblockStorage, Region};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::sync::{Claim, Made};
use crate::units::{NodeId, Order, PAGE_SIZE, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};
use crate::zone::{FreeError, ZoneKind};
use core::alloc::Layout;
use core::fmt;
use ranges::Ranges;

/// A gap between two ranges that is at most this large is taken for memory in use, unless
/// [`LazyManager::with_largest_gap`] sets another limit.
pub const LARGEST_GAP_BYTES: u64 = 512 << 20;

/// How much memory there is. Exact while nobody allocates or frees.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Pages that are allocated or can be: of ranges that were added and of gaps.
    pub total_pages: u64,
    /// Free pages, including those in caches of CPUs.
    pub free_pages: u64,
}

/// A manager that the first request brings up; see the [module documentation](self). It knows one
/// node. `RANGES` is the most ranges that it can remember, before and after bring-up; ranges that
/// touch count as one.
///
/// ```
/// use framewright::units::PhysRange;
/// use framewright::{LazyManager, platform::{LinearMap, OneAtATime}};
/// use std::alloc::Layout;
/// # const RAM_BYTES: usize = 32 << 20;
/// # #[repr(align(0x200000))]
/// # struct Ram(std::cell::UnsafeCell<[u8; RAM_BYTES]>);
/// # // SAFETY: only the manager touches it.
/// # unsafe impl Sync for Ram {}
/// # static RAM: Ram = Ram(std::cell::UnsafeCell::new([0; RAM_BYTES]));
/// # let base = RAM.0.get().expose_provenance();
///
/// // SAFETY: memory is seen from `base` on; one thread calls the manager.
/// let map = unsafe { LinearMap::new(base, OneAtATime) };
/// # let map = Box::leak(Box::new(map));
/// let frames: LazyManager<_> = LazyManager::new(map);
///
/// // SAFETY: nobody else uses this memory, and what lies between is memory in use.
/// unsafe { frames.add(PhysRange::new(0x10_0000, 0x80_0000)) }?;
/// // SAFETY: as above.
/// unsafe { frames.add(PhysRange::new(0xa0_0000, 32 << 20)) }?;
///
/// let three_pages = frames.allocate_layout(Layout::from_size_align(3 << 12, 4096)?)?;
/// // SAFETY: allocated just now.
/// unsafe { frames.free_bytes(three_pages.start, 3 << 12) }?;
/// // A page of what lies between, of which its user is done.
/// // SAFETY: nobody uses it any more.
/// unsafe { frames.free_pages(framewright::units::Pfn(0x800), 1) }?;
/// assert_eq!(frames.lost_pages(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Without the feature `large-maps` bring-up takes at most some 120 ranges with gaps between them,
/// because that is how many regions the memblock allocator has room for.
pub struct LazyManager<P: Platform, const RANGES: usize = 128> {
    made: Made<Collected<RANGES>, Manager<P>>,
    platform: &'static P,
    largest_gap_pages: u64,
    lost_pages: AtomicU64,
}

/// Why `start_with` did nothing.
#[cfg(feature = "frame-alloc")]
pub(crate) enum StartError {
    /// The manager is up already.
    IsUp,
    /// The range with this number cannot be added.
    Add(usize),
    /// There is no manager.
    NotUp(NotUp),
}

/// The data from which bring-up makes the manager.
struct Collected<const RANGES: usize> {
    ranges: Ranges<RANGES>,
    /// Why the last bring-up with default parameters failed. Cleared when memory is added.
    failed: Option<NotUp>,
}

/// A static, so that there is one copy.
static USUAL: Parameters = Parameters::usual();

/// Up to this many ranges, bring-up makes do with [`FEW_REGIONS`] of the memblock allocator's
/// regions, which take 40 bytes each.
const FEW_RANGES: usize = 8;
const FEW_REGIONS: usize = 16;

impl<P: Platform, const RANGES: usize> LazyManager<P, RANGES> {
    const NOTHING: Collected<RANGES> = Collected { ranges: Ranges::EMPTY, failed: None };

    /// Makes a lazy manager without memory.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(platform: &'static P) -> Self {
        Self {
            made: Made::new(Self::NOTHING),
            platform,
            largest_gap_pages: LARGEST_GAP_BYTES / PAGE_SIZE,
            lost_pages: AtomicU64::new(0),
        }
    }

    /// Makes a lazy manager without memory.
    #[cfg(loom)]
    #[must_use]
    pub fn new(platform: &'static P) -> Self {
        Self {
            made: Made::new(Self::NOTHING),
            platform,
            largest_gap_pages: LARGEST_GAP_BYTES / PAGE_SIZE,
            lost_pages: AtomicU64::new(0),
        }
    }

    /// Sets the largest gap that counts as memory in use: a gap between two ranges of at most so
    /// many bytes. Larger gaps are no memory. Gaps in use are allocated from bring-up on, so that
    /// their users can free them like any allocation (without the feature `hotplug` they stay
    /// reserved).
    #[must_use]
    pub const fn with_largest_gap(mut self, bytes: u64) -> Self {
        self.largest_gap_pages = bytes / PAGE_SIZE;
        self
    }

    /// Adds the whole frames of a range, in any order and at any time. Returns how many of them the
    /// manager has now; bring-up, or adding them, takes some for tables. Before bring-up the range
    /// is only recorded. Afterwards pages of a gap are freed or released; elsewhere memory is
    /// added by whole blocks of 2 MiB ([`Hotplug::add`](crate::manager::Hotplug::add)), and the
    /// pages left over at their edges are lost.
    ///
    /// # Errors
    /// [`AddError`]: nothing was added, and all pages of the range are lost.
    ///
    /// # Safety
    /// The range meets what [`Memblock::with_reserved`] requires of usable memory: nobody uses it,
    /// nobody else gives it away, and the platform maps it linearly. The platform is also linear
    /// over gaps (as [`with_largest_gap`](Self::with_largest_gap) defines them), which only their
    /// users touch, until they free or add them.
    pub unsafe fn add(&self, range: PhysRange) -> Result<u64, AddError> {
        let frames = range.whole_frames();
        if frames.is_empty() {
            return Ok(0);
        }
        let added = if range.end <= PHYSICAL_ADDRESS_END {
            // SAFETY: passed on to the caller.
            unsafe { self.add_frames(frames) }
        } else {
            Err(AddError::TooHigh(frames))
        };
        let lost = frames.pages() - *added.as_ref().unwrap_or(&0);
        if lost != 0 {
            self.lose(lost);
        }
        added
    }

    /// [`add`](Self::add) without counting lost pages.
    ///
    /// # Safety
    /// As there.
    unsafe fn add_frames(&self, frames: PfnRange) -> Result<u64, AddError> {
        let mut claim = self.claim().ok_or(AddError::Busy)?;
        let Some(_manager) = self.get() else {
            let collected = claim.collected();
            collected.failed = None;
            collected.ranges.add(frames)?;
            return Ok(frames.pages());
        };
        #[cfg(feature = "hotplug")]
        // SAFETY: passed on to the caller.
        return unsafe { late::add(_manager, &mut claim.collected().ranges, frames) };
        #[cfg(not(feature = "hotplug"))]
        Err(AddError::Late(frames))
    }

    /// Returns the manager once it is up.
    #[inline(always)]
    pub fn get(&self) -> Option<&Manager<P>> {
        self.made.get()
    }

    /// Returns the manager, after bringing it up if necessary.
    ///
    /// # Errors
    /// [`NotUp`]. Until memory is added, further calls return the same error at little cost.
    pub fn bring_up(&self) -> Result<&Manager<P>, NotUp> {
        self.bring_up_as(&USUAL, true)
    }

    /// [`bring_up`](Self::bring_up) with the parameters of a command line, which count only if this
    /// is the call that brings the manager up.
    ///
    /// # Errors
    /// As there, but each call tries again, because other parameters may need less memory.
    pub fn bring_up_with(&self, parameters: &Parameters) -> Result<&Manager<P>, NotUp> {
        self.bring_up_as(parameters, false)
    }

    #[cold]
    #[inline(never)]
    fn bring_up_as(&self, parameters: &Parameters, usual: bool) -> Result<&Manager<P>, NotUp> {
        if let Some(manager) = self.get() {
            return Ok(manager);
        }
        let mut claim = self.claim().ok_or(NotUp::ComingUp)?;
        if let Some(manager) = self.get() {
            return Ok(manager);
        }
        if usual && let Some(error) = claim.collected().failed {
            return Err(error);
        }
        let made = self.make(&mut claim, parameters);
        match &made {
            // A platform's fault may concern this CPU only, so it is not remembered: another CPU
            // may bring the manager up.
            Ok(_) | Err(NotUp::BringUp(BringUpError::Platform(_))) => {}
            Err(error) if usual => claim.collected().failed = Some(*error),
            Err(_) => {}
        }
        made
    }

    /// Adds ranges and brings the manager up, or leaves everything as it was.
    ///
    /// # Safety
    /// As for [`add`](Self::add), for each of the ranges.
    #[cfg(feature = "frame-alloc")]
    pub(crate) unsafe fn start_with(
        &self,
        new: impl Iterator<Item = PhysRange>,
    ) -> Result<(), StartError> {
        // This is checked with or without a claim, as a notifier gets none.
        let claim = self.claim();
        if self.get().is_some() {
            return Err(StartError::IsUp);
        }
        let mut claim = claim.ok_or(StartError::NotUp(NotUp::ComingUp))?;
        let before = claim.collected().ranges;
        let started = self.try_start(&mut claim, new);
        if started.is_err() {
            claim.collected().ranges = before;
        }
        started
    }

    #[cfg(feature = "frame-alloc")]
    fn try_start(
        &self,
        claim: &mut Claim<'_, Collected<RANGES>, Manager<P>>,
        new: impl Iterator<Item = PhysRange>,
    ) -> Result<(), StartError> {
        for (index, range) in new.enumerate() {
            let added = claim.collected().ranges.add(range.whole_frames());
            added.map_err(|_| StartError::Add(index))?;
        }
        self.make(claim, &USUAL).map(drop).map_err(StartError::NotUp)
    }

    fn make<'a>(
        &self,
        claim: &mut Claim<'a, Collected<RANGES>, Manager<P>>,
        parameters: &Parameters,
    ) -> Result<&'a Manager<P>, NotUp> {
        let ranges = claim.collected().ranges.all();
        if ranges.is_empty() {
            return Err(NotUp::NoMemory);
        }
        if ranges.len() <= FEW_RANGES {
            let (mut memory, mut reserved) =
                ([Region::EMPTY; FEW_REGIONS], [Region::EMPTY; FEW_REGIONS]);
            let made = self.make_over(claim, parameters, &mut memory, &mut reserved);
            if made.is_ok() {
                return made;
            }
        }
        self.make_of_many(claim, parameters)
    }

    /// Makes the manager with room for as many regions as there can be, which takes most of a small
    /// stack.
    #[cold]
    #[inline(never)]
    fn make_of_many<'a>(
        &self,
        claim: &mut Claim<'a, Collected<RANGES>, Manager<P>>,
        parameters: &Parameters,
    ) -> Result<&'a Manager<P>, NotUp> {
        let mut storage = MemblockStorage::new();
        let (memory, reserved) = storage.regions();
        self.make_over(claim, parameters, memory, reserved)
    }

    #[inline(never)]
    fn make_over<'a>(
        &self,
        claim: &mut Claim<'a, Collected<RANGES>, Manager<P>>,
        parameters: &Parameters,
        memory: &mut [Region],
        reserved: &mut [Region],
    ) -> Result<&'a Manager<P>, NotUp> {
        let mut claims = [MemoryAffinity::EMPTY; 1];
        let topology = Topology::new(&mut claims);
        let mut early = Memblock::over(self.platform, memory, reserved, &topology);
        let mut known = Pfn(u64::MAX);
        for range in claim.collected().ranges.all() {
            let mut frames = *range;
            let gap = PfnRange { start: known.min(range.start), end: range.start };
            if !gap.is_empty() && gap.pages() <= self.largest_gap_pages {
                // The gap is reserved before it becomes known, so that no array of the allocator's
                // own is placed in it.
                early.reserve_in_use(gap)?;
                frames.start = gap.start;
            }
            known = range.end;
            // SAFETY: the caller that added the range promised this (`add`). There is one claim at
            // a time, and everything that came of an earlier, failed one is gone. The gap before
            // the range is reserved, so that nobody is given any of it.
            unsafe { early.add_memory(frames.to_phys(), NodeId::ZERO, false) }?;
        }
        let input = BringUp { parameters, started_ns: None };
        let largest_gap_pages = self.largest_gap_pages;
        let made = claim.make(
            |place| Manager::bring_up_at(place, &mut early, &input),
            |manager, collected| {
                collected.ranges.gaps(largest_gap_pages).for_each(|gap| adopt(manager, gap));
            },
        )?;
        Ok(made)
    }

    /// Claims the right to add memory and to make the manager. Returns nothing if another caller
    /// has it and cannot be waited for.
    fn claim(&self) -> Option<Claim<'_, Collected<RANGES>, Manager<P>>> {
        loop {
            let claim = self.made.claim();
            if claim.is_some() || !self.platform.can_wait() || self.is_called_by_notifier() {
                return claim;
            }
            self.platform.yield_now();
        }
    }

    /// Returns whether the caller would wait for itself, because it is a notifier of memory that it
    /// is adding.
    fn is_called_by_notifier(&self) -> bool {
        #[cfg(feature = "hotplug")]
        return self.get().is_some_and(|manager| manager.hotplug().is_done_by_caller());
        #[cfg(not(feature = "hotplug"))]
        false
    }

    /// Returns how many pages were lost: those passed to [`add`](Self::add) or to a free that could
    /// not be taken. It includes pages of frees whose error is [about others](FreeError::concerns),
    /// because telling them apart would cost each free some instructions.
    pub fn lost_pages(&self) -> u64 {
        // Relaxed: the count is only reported.
        self.lost_pages.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn lose(&self, pages: u64) {
        // A refused call may name any number.
        let more = |lost: u64| Some(lost.saturating_add(pages));
        let _ = self.lost_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Returns how much memory there is; none before bring-up.
    pub fn usage(&self) -> Usage {
        self.get().map_or_else(Usage::default, |manager| {
            let totals = manager.totals();
            let kept = totals.descriptor_pages + totals.isolated_pages;
            Usage {
                // Read one after the other while memory may come and go.
                total_pages: totals.managed_pages.saturating_sub(kept),
                free_pages: totals.free_pages + manager.caches().pages(),
            }
        })
    }
}

impl<P: Platform, const RANGES: usize> LazyManager<P, RANGES> {
    /// [`Manager::allocate_layout`].
    ///
    /// # Errors
    /// As there, and [`AllocateError::NoManager`], for which [`bring_up`](Self::bring_up) tells the
    /// cause.
    #[inline(always)]
    #[track_caller]
    pub fn allocate_layout(&self, layout: Layout) -> Result<PfnRange, AllocateError> {
        match self.get() {
            Some(manager) => manager.allocate_layout(layout),
            None => self.allocate_layout_first(layout),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn allocate_layout_first(&self, layout: Layout) -> Result<PfnRange, AllocateError> {
        self.bring_up().map_err(|_| AllocateError::NoManager)?.allocate_other_layout(layout)
    }

    /// [`Manager::allocate_pages`].
    ///
    /// # Errors
    /// As there, and [`AllocateError::NoManager`], for which [`bring_up`](Self::bring_up) tells the
    /// cause.
    #[inline(always)]
    #[track_caller]
    pub fn allocate_pages(&self, pages: u64, align: Order) -> Result<PfnRange, AllocateError> {
        match self.get() {
            Some(manager) => manager.allocate_pages(pages, align),
            None => self.allocate_pages_first(pages, align),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn allocate_pages_first(&self, pages: u64, align: Order) -> Result<PfnRange, AllocateError> {
        self.bring_up().map_err(|_| AllocateError::NoManager)?.allocate_aligned(pages, align)
    }

    /// [`Manager::free_bytes`].
    ///
    /// # Errors
    /// As there; before bring-up nothing is managed. The pages are then lost.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn free_bytes(&self, start: Pfn, size_bytes: u64) -> Result<(), FreeError> {
        if size_bytes.wrapping_sub(1) < PAGE_SIZE {
            // SAFETY: passed on to the caller (invariant 42).
            return unsafe { self.free_page(start) };
        }
        // SAFETY: as above, passed on to the caller.
        unsafe { self.free_run(start, pages_of(size_bytes)) }
    }

    /// [`Manager::free_pages`].
    ///
    /// # Errors
    /// As there; before bring-up nothing is managed. The pages are then lost.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn free_pages(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        if pages == 1 {
            // SAFETY: passed on to the caller (invariant 42).
            return unsafe { self.free_page(start) };
        }
        // SAFETY: as above, passed on to the caller.
        unsafe { self.free_run(start, pages) }
    }

    /// [`free_pages`](Self::free_pages) of one page, which keeps nothing for the error path across
    /// the call.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[track_caller]
    unsafe fn free_page(&self, start: Pfn) -> Result<(), FreeError> {
        let Some(manager) = self.get() else { return self.free_early(start) };
        // SAFETY: passed on to the caller (invariant 42).
        let freed = unsafe { manager.free_pages(start, 1) };
        if freed.is_err() {
            self.lose(1);
        }
        freed
    }

    #[cold]
    fn free_early(&self, start: Pfn) -> Result<(), FreeError> {
        self.lose(1);
        Err(FreeError::NotManaged(start))
    }

    /// [`free_pages`](Self::free_pages) of any number of pages but one.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    #[track_caller]
    unsafe fn free_run(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        let freed = match self.get() {
            // SAFETY: passed on to the caller (invariant 42).
            Some(manager) => unsafe { manager.free_run(start, pages) },
            None => Err(FreeError::NotManaged(start)),
        };
        match freed {
            // No allocation spans zones, but memory that others used at bring-up may.
            Err(FreeError::SpansZones(range)) if cfg!(feature = "hotplug") => {
                // SAFETY: passed on to the caller (invariant 42).
                unsafe { self.free_of_zones(range) }
            }
            Err(_) => {
                self.lose(pages);
                freed
            }
            Ok(()) => Ok(()),
        }
    }

    /// [`free_run`](Self::free_run) of a range that spans zones, each part by itself.
    ///
    /// # Safety
    /// As there.
    #[cold]
    #[inline(never)]
    #[track_caller]
    unsafe fn free_of_zones(&self, range: PfnRange) -> Result<(), FreeError> {
        let (mut rest, mut freed) = (range, Ok(()));
        while !rest.is_empty() {
            let end = rest.end.min(ZoneKind::of(rest.start).frames().end);
            let part = PfnRange { end, ..rest };
            rest.start = end;
            if part == range {
                self.lose(range.pages());
                return Err(FreeError::SpansZones(range));
            }
            // SAFETY: passed on to the caller (invariant 42). One part is of one zone.
            freed = freed.and(unsafe { self.free_run(part.start, part.pages()) });
        }
        freed
    }
}

/// Adopts a gap, so that its users can free it.
#[cfg(feature = "hotplug")]
fn adopt<P: Platform>(manager: &Manager<P>, gap: PfnRange) {
    // Memory that cannot be adopted stays reserved; it is released when it is added.
    manager.hotplug().adopt_at_start(gap);
}

#[cfg(not(feature = "hotplug"))]
fn adopt<P: Platform>(_: &Manager<P>, _: PfnRange) {}

impl<P: Platform, const RANGES: usize> fmt::Debug for LazyManager<P, RANGES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyManager")
            .field("is_up", &self.get().is_some())
            .field("usage", &self.usage())
            .field("lost_pages", &self.lost_pages())
            .finish_non_exhaustive()
    }
}
