//! The memory map's policy: which part of the map is made at bring-up, and how the rest follows, in
//! jobs or when requests need memory.
//!
//! Orders of memory: Relaxed everywhere: counters, and the mark that others may help. The lock of a
//! zone and `Sections` publish the zone's new memory.

use crate::manager::facets::Vmemmap;
use crate::manager::job;
use crate::manager::state::vmemmap::DeferredNode;
use crate::parameters::{AcceptPolicy, Policy};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, PAGE_SIZE, Pfn, PfnRange};
use crate::vmemmap::SectionState;
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, VMEMMAP_PAGES_PER_BLOCK};
use crate::zone::Zone;
use core::iter;
use core::ops::Range;
use framewright_jobs::{Helpers, Job, Part, Placement};

/// The most zones that are initialised in parallel; more zones take turns.
const MAX_ZONES: usize = framewright_jobs::MAX_PARTS;

impl<'m, P: Platform> Vmemmap<'m, P> {
    /// Returns when page descriptors are made. This may differ from `memmap_init=`: without an
    /// array, all descriptors are made on demand.
    #[must_use]
    pub const fn policy(self) -> Policy {
        self.manager.vmemmap.policy
    }

    /// Returns the bytes of the array and of its page tables after bring-up; they are included in
    /// [`metadata_bytes`](crate::Manager::metadata_bytes). If the array is made of the machine's
    /// own frames, [`totals`](crate::Manager::totals) counts these as allocated.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.manager.vmemmap.bytes
    }

    /// Returns how many blocks went from the memblock allocator to pools at bring-up without their
    /// map ever being made (Linux: `mm/hugetlb_vmemmap.c`, `hugetlb_vmemmap_init_early`). They are
    /// included in [`reclaimed_blocks`](Self::reclaimed_blocks), and their eight pages each in
    /// [`saved_pages`](Self::saved_pages).
    #[must_use]
    pub const fn unbuilt_blocks(self) -> u64 {
        self.manager.vmemmap.without_vmemmap
    }

    /// Returns how many pages are free because the map of huge pages was given back or never made,
    /// less the pages that page tables took for that; negative if only the latter are left.
    #[must_use]
    pub fn saved_pages(self) -> i64 {
        self.manager.vmemmap.saved_pages.load(Ordering::Relaxed).cast_signed()
    }

    /// Returns how many pages the vmemmap and its page tables have now: what bring-up made, less
    /// what map reclaim gave back and did not restore. 0 without an array.
    #[must_use]
    pub fn pages(self) -> u64 {
        // Pages that were never made are included in the saved ones, but not in `bytes`.
        let unbuilt_pages = self.unbuilt_blocks() * VMEMMAP_PAGES_PER_BLOCK;
        (self.bytes() / PAGE_SIZE + unbuilt_pages).saturating_add_signed(-self.saved_pages())
    }

    /// Returns how many blocks have given back their map and not got it restored. A block that was
    /// added after bring-up and gets its map for the first time counts as restored, as long as this
    /// is not 0. Blocks that were reserved at bring-up and released since have no descriptors in
    /// the array, and do not count when a pool gives their part of it back.
    #[must_use]
    pub fn reclaimed_blocks(self) -> u64 {
        self.manager.vmemmap.reclaimed_blocks.load(Ordering::Relaxed)
    }

    /// Initialises all withheld memory and makes it available (Linux: `mm/mm_init.c`,
    /// `deferred_init_memmap`): one thread for each node, and for each node a job over sections on
    /// at most as many threads as `memmap_init_threads=` and [`Platform::init_threads`] allow.
    /// Unless `memmap_init_threads=` was given, a thread whose node is done helps other nodes,
    /// because all memory is available only when the slowest node is done. Requests go on meanwhile
    /// and initialise the memory that they lack. With `accept_memory=eager`, all memory is accepted
    /// afterwards ([`accept_all`](super::super::Acceptance::accept_all)).
    ///
    /// Returns when nothing is withheld any more, so it may wait for other CPUs: call it where
    /// [`Platform::can_wait`] allows that, and when `helpers` can come. Later calls find nothing to
    /// do.
    pub fn initialise_deferred<H: Helpers + ?Sized>(self, helpers: &H) {
        let mut left = self.zones().filter(|zone| are_left(zone));
        while self.initialise_zones(&mut left, helpers) {}
        for zone in self.zones() {
            // Whatever the jobs did, nothing may stay withheld.
            self.bring_up(zone, sections(zone));
            self.wait_for_sections(zone);
        }
        self.manager.pressure.epoch.note_free();
        if self.manager.accept.policy == AcceptPolicy::Eager {
            self.manager.acceptance().accept_all(helpers);
        }
        self.note_all_memory();
    }

    /// Initialises the next zones, as many as a job has parts; returns whether there were any.
    fn initialise_zones<H: Helpers + ?Sized>(
        self,
        left: &mut dyn Iterator<Item = &'static [Zone]>,
        helpers: &H,
    ) -> bool {
        let mut parts = [const { Part { node: 0, range: 0..0 } }; MAX_ZONES];
        let mut zones: [&[Zone]; MAX_ZONES] = [&[]; MAX_ZONES];
        let mut count = 0;
        for (zone, unit) in left.zip(0_u64..).take(MAX_ZONES) {
            parts[count] = Part { node: number(zone[0].id().node), range: unit..unit + 1 };
            zones[count] = zone;
            count += 1;
        }
        let zone_at = |unit: u64| zones.get(usize::try_from(unit).ok()?).copied();
        let all = Job::of_parts(&parts[..count])
            .min_chunk(1)
            .max_threads(u32::try_from(count).unwrap_or(1).max(1));
        job::run(&all, &helpers, &|units| {
            for zone in units.filter_map(zone_at) {
                self.initialise_zone(zone, &helpers);
                for part in zone {
                    part.shuffle_at_boot(self.manager.platform);
                }
                if self.manager.vmemmap.threads.is_none() {
                    self.help_other_zones(zone);
                }
            }
        });
        count != 0
    }

    /// Returns the parts of each zone.
    fn zones(self) -> impl Iterator<Item = &'static [Zone]> + use<P> {
        // Windows have their descriptors inside blocks.
        let mut rest = self.manager.zones().split_at(self.manager.hotplug.first_window).0;
        core::iter::from_fn(move || first_zone(&mut rest))
    }

    fn initialise_zone(self, zone: &[Zone], helpers: &dyn Helpers) {
        let started = self.manager.platform.now_ns();
        let node = zone[0].id().node;
        let most = self.manager.platform.init_threads(node).max(1);
        let threads = self.manager.vmemmap.threads.unwrap_or(most).clamp(1, most);
        let init = zone[0].deferred_init();
        // From here on other threads may help.
        init.threads.store(1, Ordering::Relaxed);
        let sections = sections(zone);
        let mut worked = 1;
        if threads == 1 {
            self.bring_up(zone, sections);
        } else {
            let job = Job::new(u64::from(sections.start)..u64::from(sections.end))
                .min_chunk(1)
                .max_threads(threads)
                .placement(Placement::Node(number(node)));
            worked = job::run(&job, helpers, &|chunk| {
                let bound = |section| u32::try_from(section).unwrap_or(u32::MAX);
                self.bring_up(zone, bound(chunk.start)..bound(chunk.end));
            });
        }
        // Helpers may still be at their last sections.
        self.wait_for_sections(zone);
        init.threads.fetch_add(worked - 1, Ordering::Relaxed);
        if let (Some(started), Some(now)) = (started, self.manager.platform.now_ns()) {
            init.elapsed_ns.store(now.saturating_sub(started).max(1), Ordering::Relaxed);
        }
    }

    /// Initialises those of `sections` that nobody has claimed yet; returns how many pages that
    /// gave. Notes each section as free memory, as a request may have failed for lack of it.
    fn bring_up(self, zone: &[Zone], sections: impl Iterator<Item = u32>) -> u64 {
        let one = |section| {
            // No section lies in two parts.
            let part = zone.iter().find(|part| part.sections().range().contains(&section));
            let bring_up =
                |part: &Zone| part.bring_up_sections(self.manager.platform, iter::once(section));
            let pages = part.map_or(0, bring_up);
            self.manager.pressure.epoch.note_free();
            pages
        };
        sections.map(one).sum()
    }

    /// Helps with zones that others are working on: takes sections from their ends as long as there
    /// are any.
    fn help_other_zones(self, own: &[Zone]) {
        for zone in self.zones() {
            let init = zone[0].deferred_init();
            // A zone that nobody works on waits for its own CPUs, or for a thread that then does
            // all of it.
            if zone[0].id() != own[0].id()
                && init.threads.load(Ordering::Relaxed) != 0
                && self.bring_up(zone, sections(zone).rev()) != 0
            {
                init.threads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until nothing of the zone is withheld. A thread that has claimed a section is pinned,
    /// so the wait ends.
    fn wait_for_sections(self, zone: &[Zone]) {
        while are_left(zone) {
            self.manager.platform.relax();
        }
    }

    fn note_all_memory(self) {
        if self.manager.zones().iter().any(|zone| zone.sections().are_left()) {
            return;
        }
        if let (Some(started), Some(now)) =
            (self.manager.vmemmap.started_ns, self.manager.platform.now_ns())
        {
            let elapsed = now.saturating_sub(started) + 1;
            let _ = self.manager.vmemmap.all_memory_ns.compare_exchange(
                0,
                elapsed,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Returns when nothing was withheld any more, in nanoseconds since bring-up began.
    pub(crate) fn all_memory_ns(self) -> Option<u64> {
        self.manager.vmemmap.all_memory_ns.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Returns how the withheld memory of each node became available.
    pub fn deferred_nodes(self) -> impl Iterator<Item = DeferredNode> + use<'m, P> {
        self.zones().filter_map(|zone| {
            // Time and threads count for the whole zone and are kept in its first part.
            let init = zone[0].deferred_init();
            let elapsed_ns = init.elapsed_ns.load(Ordering::Relaxed);
            let grown = |part: &Zone| part.deferred_init().grown_pages.load(Ordering::Relaxed);
            let pages = zone.iter().map(|part| part.deferred_init().pages).sum();
            (pages != 0).then(|| DeferredNode {
                node: zone[0].id().node,
                pages,
                grown_pages: zone.iter().map(grown).sum(),
                elapsed_ns: (elapsed_ns != 0).then_some(elapsed_ns),
                threads: init.threads.load(Ordering::Relaxed),
            })
        })
    }

    /// Initialises withheld memory of a zone for a request for `pages` below `max` (Linux:
    /// `mm/mm_init.c`, `deferred_grow_zone`). Returns whether looking for memory again makes sense.
    /// For any context: if waiting is not allowed, sections that others are working on do not
    /// count. A caller inside a cache uses [`grow_inside`](Self::grow_inside).
    #[cold]
    #[inline(never)]
    pub(crate) fn grow(self, zone: &Zone, pages: u64, max: Pfn) -> bool {
        if !cfg!(feature = "vmemmap") {
            return false;
        }
        let before = zone.sections().left();
        if before == 0 {
            return false;
        }
        // If this gave nothing, others have the rest, or it lies above `max`.
        self.grow_alone(zone, pages, max) || self.wait_for_others(zone, before)
    }

    /// Does [`grow`](Self::grow) for a caller inside a cache: it waits for nobody, because a drain
    /// may be waiting for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn grow_inside(self, zone: &Zone, pages: u64) -> Growth {
        if !cfg!(feature = "vmemmap") {
            return Growth::NothingLeft;
        }
        if !zone.sections().are_left() {
            return Growth::NothingLeft;
        }
        if self.grow_alone(zone, pages, Pfn(u64::MAX)) {
            Growth::Grown
        } else if self.manager.platform.can_wait() {
            Growth::Busy
        } else {
            Growth::NothingLeft
        }
    }

    fn grow_alone(self, zone: &Zone, pages: u64, max: Pfn) -> bool {
        let given = zone.grow(self.manager.platform, pages, max);
        if given != 0 {
            self.note_growth(zone, given);
        }
        given != 0
    }

    /// Waits until one of the sections that CPUs are working on is done; `before` sections were
    /// left when the caller last looked. Returns whether one is done. A CPU that has claimed a
    /// section is pinned, so the wait ends.
    fn wait_for_others(self, zone: &Zone, before: u32) -> bool {
        let sections = zone.sections();
        if self.manager.platform.can_wait() {
            while sections.left() == before && sections.is_busy() {
                self.manager.platform.relax();
            }
        }
        sections.left() != before
    }

    /// Initialises the withheld memory among `frames`; if waiting is allowed, also waits for the
    /// part that others are working on.
    #[cold]
    pub(crate) fn grow_at(self, zone: &Zone, frames: PfnRange) {
        if !cfg!(feature = "vmemmap") {
            return;
        }
        let given = zone.bring_up_sections(self.manager.platform, sections_of(frames));
        if given != 0 {
            self.note_growth(zone, given);
        }
        while self.manager.platform.can_wait() && is_withheld(zone, frames) {
            self.manager.platform.relax();
        }
    }

    fn note_growth(self, zone: &Zone, pages: u64) {
        zone.deferred_init().grown_pages.fetch_add(pages, Ordering::Relaxed);
        self.manager.pressure.epoch.note_free();
        self.note_all_memory();
    }
}

/// The result of growing a zone for a CPU's cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The zone has more memory now.
    Grown,
    /// Others are working on the rest; a caller outside caches can wait for it.
    Busy,
    /// There is no more memory, or none that may be waited for.
    NothingLeft,
}

/// Returns whether memory among `frames` is withheld.
pub(crate) fn is_withheld(zone: &Zone, frames: PfnRange) -> bool {
    if !cfg!(feature = "vmemmap") {
        return false;
    }
    zone.sections().are_left()
        && sections_of(frames).any(|section| zone.section_state(section) != SectionState::Done)
}

/// Returns the sections of a range that is not empty.
fn sections_of(frames: PfnRange) -> impl Iterator<Item = u32> {
    let last = BlockNumber::containing(Pfn(frames.end.0.saturating_sub(1)));
    BlockNumber::containing(frames.start).0 / BLOCKS_PER_CALL..last.0 / BLOCKS_PER_CALL + 1
}

/// Takes the parts of the first zone off `rest`.
#[inline(never)]
fn first_zone(rest: &mut &'static [Zone]) -> Option<&'static [Zone]> {
    let id = rest.first()?.id();
    let parts = rest.iter().take_while(|part| part.id() == id).count();
    let (zone, behind) = rest.split_at_checked(parts)?;
    *rest = behind;
    Some(zone)
}

/// Returns whether any part of a zone has sections that are not done.
fn are_left(zone: &[Zone]) -> bool {
    zone.iter().any(|part| part.sections().are_left())
}

/// Returns the range from the first to the last section of a zone that was withheld.
fn sections(zone: &[Zone]) -> Range<u32> {
    let ranges = zone.iter().map(|part| part.sections().range()).filter(|range| !range.is_empty());
    let all = ranges.reduce(|all, range| all.start.min(range.start)..all.end.max(range.end));
    all.unwrap_or(0..0)
}

/// Returns a node's number in jobs.
fn number(node: NodeId) -> u32 {
    u32::try_from(node.index()).unwrap_or(0)
}
