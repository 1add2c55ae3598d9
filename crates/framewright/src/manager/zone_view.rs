//! Zones as a whole: sums over the counters of their parts, and operations that take the locks of
//! the parts. Reached through the manager, so that a zone is always used with its own platform.

use crate::block::BLOCK_ORDERS;
use crate::manager::state::{Manager, ZoneSlots};
use crate::platform::Platform;
use crate::units::PfnRange;
use crate::vmemmap_space::BlockNumber;
use crate::zone::{
    BlockRun, Counts, Fault, FreeAreas, Grade, GradedMemory, RESERVE_CLASSES, Segment, Shuffled,
    Watermarks, Zone, ZoneEvents, ZoneFlow, ZoneId, ZoneParts,
};

/// A zone of a node as a whole, however many parts it has, with the platform through which its
/// memory is accessed. Counts are in pages, may be read at any time, and are exact when nobody
/// allocates.
///
/// A zone alone does not know its platform, and with another platform its tables would lead to
/// other memory:
///
/// ```compile_fail,E0624
/// fn count<P: framewright::Platform>(manager: &framewright::Manager<P>, other: &P) {
///     let _ = manager.zones()[0].free_blocks(other);
/// }
/// ```
/// ```
/// fn count<P: framewright::Platform>(manager: &framewright::Manager<P>) {
///     for zone in manager.views() {
///         let _ = zone.free_blocks();
///     }
/// }
/// ```
pub struct ZoneView<'a, P: Platform> {
    /// At least one part; all are of one zone.
    parts: ZoneParts<'a>,
    platform: &'static P,
}

/// See [`Manager::views`]. Written by hand because it is used in many places.
struct Views<P: Platform> {
    zones: &'static [Zone],
    windows: &'static [Zone],
    slots: &'static [ZoneSlots],
    next: usize,
    platform: &'static P,
}

impl<P: Platform> Clone for Views<P> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<P: Platform> Iterator for Views<P> {
    type Item = ZoneView<'static, P>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (slots, id) = (self.slots.get(self.next)?, ZoneId::at(self.next)?);
            self.next += 1;
            let parts = ZoneParts::new(id, slots.of(self.zones), self.windows);
            if !parts.is_empty() {
                return Some(ZoneView { parts, platform: self.platform });
            }
        }
    }
}

impl<P: Platform> Manager<P> {
    /// All zones that have or once had memory or a place for it, each as a whole: nodes ascending,
    /// and kinds ascending within each node.
    #[inline(never)]
    pub fn views(&self) -> impl Iterator<Item = ZoneView<'static, P>> + Clone + use<P> {
        let (zones, platform) = (self.zones(), self.platform);
        let windows = zones.get(self.hotplug.first_window..).unwrap_or(&[]);
        Views { zones, windows, slots: self.slots, next: 0, platform }
    }

    /// A zone as a whole; `None` if there never was a place for memory in it.
    #[must_use]
    #[inline(never)]
    pub fn view(&self, id: ZoneId) -> Option<ZoneView<'static, P>> {
        let parts = Some(self.parts(id)).filter(|parts| !parts.is_empty())?;
        Some(ZoneView { parts, platform: self.platform })
    }
}

impl<P: Platform> Clone for ZoneView<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for ZoneView<'_, P> {}

impl<'a, P: Platform> ZoneView<'a, P> {
    #[inline(never)]
    fn sum(&self, of: fn(&Zone) -> u64) -> u64 {
        self.parts.sum(&of)
    }

    /// The parts of the zone, at least one: those of bring-up by ascending address, then hotplugged
    /// ones.
    #[must_use]
    pub const fn parts(&self) -> ZoneParts<'a> {
        self.parts
    }

    /// The node and the kind of the zone.
    #[must_use]
    pub const fn id(&self) -> ZoneId {
        self.parts.id()
    }

    /// [`Zone::span`] of all parts.
    #[must_use]
    #[inline(never)]
    pub fn span(&self) -> PfnRange {
        let mut all = PfnRange::new(0, 0);
        // A hotplug window that is empty at this moment is a place without memory.
        for span in self.parts.spans(self.platform).filter(|span| !span.is_empty()) {
            let start = if all.is_empty() { span.start } else { all.start.min(span.start) };
            all = PfnRange { start, end: all.end.max(span.end) };
        }
        all
    }

    /// [`Zone::present_pages`] of all parts.
    #[must_use]
    pub fn present_pages(&self) -> u64 {
        self.sum(Zone::present_pages)
    }

    /// [`Zone::stray_pages`] of all parts.
    #[must_use]
    pub fn stray_pages(&self) -> u64 {
        self.sum(Zone::stray_pages)
    }

    /// [`Zone::managed_pages`] of all parts.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        self.sum(Zone::managed_pages)
    }

    /// [`Zone::unaccepted_pages`] of all parts.
    #[must_use]
    pub fn unaccepted_pages(&self) -> u64 {
        self.sum(Zone::unaccepted_pages)
    }

    /// [`Zone::withheld_pages`] of all parts.
    pub(crate) fn withheld_pages(&self) -> u64 {
        self.sum(Zone::withheld_pages)
    }

    /// [`Zone::deferred_pages`] of all parts.
    #[must_use]
    pub fn deferred_pages(&self) -> u64 {
        self.sum(Zone::deferred_pages)
    }

    /// [`Zone::reserved_pages`] of all parts.
    #[must_use]
    pub fn reserved_pages(&self) -> u64 {
        self.sum(Zone::reserved_pages)
    }

    /// [`Zone::descriptor_pages`] of all parts.
    #[must_use]
    pub fn descriptor_pages(&self) -> u64 {
        self.sum(Zone::descriptor_pages)
    }

    /// [`Zone::isolated_pages`] of all parts.
    #[must_use]
    pub fn isolated_pages(&self) -> u64 {
        self.sum(Zone::isolated_pages)
    }

    /// [`Zone::reporting_pages`] of all parts.
    #[must_use]
    pub fn reporting_pages(&self) -> u64 {
        self.sum(Zone::reporting_pages)
    }

    /// [`Zone::reported_pages`] of all parts.
    #[must_use]
    pub fn reported_pages(&self) -> u64 {
        self.sum(Zone::reported_pages)
    }

    /// [`Zone::unreported_pages`] of all parts.
    #[must_use]
    pub fn unreported_pages(&self) -> u64 {
        self.sum(Zone::unreported_pages)
    }

    /// [`Zone::free_pages`] of all parts.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.sum(Zone::free_pages)
    }

    /// [`Zone::free_pages_of`] of all parts.
    #[must_use]
    pub fn free_pages_of(&self, grade: Grade) -> u64 {
        self.parts.sum(&|part| part.free_pages_of(grade))
    }

    /// [`Zone::graded_pages`] of all parts.
    #[must_use]
    pub fn graded_free_pages(&self) -> u64 {
        self.sum(Zone::graded_pages)
    }

    /// Frames of all blocks that have a grade.
    pub(crate) fn most_graded_pages(&self) -> u64 {
        self.parts.sum(&|part| part.most_graded_pages(self.platform))
    }

    /// Frames of whole free blocks that have this grade.
    #[must_use]
    pub fn free_block_pages_of(&self, grade: Grade) -> u64 {
        self.parts.sum(&|part| part.free_block_pages_of(self.platform, grade))
    }

    /// Counts the blocks of a grade, without those that can have none: tables, other memory that
    /// the manager keeps, and memory reserved for boot. Examines all heads of the zone; exact when
    /// nobody changes grades meanwhile.
    #[must_use]
    #[inline(never)]
    pub fn graded_memory(&self, grade: Grade) -> GradedMemory {
        let mut memory = GradedMemory::default();
        self.parts.for_each(&mut |part| memory += part.graded_memory(self.platform, grade));
        memory
    }

    /// The numbers of free pages at which the zone changes its behaviour, for requests that may not
    /// have memory with a grade.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        self.parts.first().map_or(Watermarks::default(), Zone::watermarks)
    }

    /// What the zone's memory with a grade adds to its watermarks for movable requests.
    #[must_use]
    pub fn movable_watermarks(&self) -> Watermarks {
        self.parts.first().map_or(Watermarks::default(), Zone::movable_watermarks)
    }

    /// Pages kept from each class of requests.
    #[must_use]
    pub fn lowmem_reserve(&self) -> [u64; RESERVE_CLASSES] {
        self.parts.first().map_or([0; RESERVE_CLASSES], Zone::lowmem_reserve)
    }

    /// The runs of blocks of each part in turn, ascending in a part.
    pub fn segments(&self) -> impl Iterator<Item = &'static Segment> + Clone + use<'a, P> {
        self.parts.iter().flat_map(Zone::segments)
    }

    /// The size of the zone's tables in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.sum(|part| part.table_memory().size())
    }

    /// Counts what the zone did since bring-up.
    #[must_use]
    #[inline(never)]
    pub fn events(&self) -> ZoneEvents {
        let mut events = ZoneEvents::default();
        self.parts.for_each(&mut |part| events += part.events(self.platform));
        events
    }

    /// Free blocks by order, order 9 first, over all migrate types.
    #[must_use]
    pub fn free_blocks(&self) -> [u32; BLOCK_ORDERS] {
        let mut blocks = [0; BLOCK_ORDERS];
        self.parts.for_each(&mut |part| {
            let more = part.free_blocks(self.platform);
            blocks.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        });
        blocks
    }

    /// Frames in whole free blocks that are not isolated. Unlike [`free_areas`](Self::free_areas)
    /// this reads one counter, and does not count a split block all of whose pages are free.
    #[must_use]
    pub fn free_block_pages(&self) -> u64 {
        self.parts.sum(&|part| part.free_block_pages(self.platform))
    }

    /// Free memory by order and migrate type. A lock is held for only a few blocks at a time, so
    /// that only the caller waits long; exact when nobody allocates meanwhile.
    #[must_use]
    #[inline(never)]
    pub fn free_areas(&self) -> FreeAreas {
        let mut areas = FreeAreas::EMPTY;
        self.parts.for_each(&mut |part| areas += part.free_areas(self.platform));
        areas
    }

    /// Calls `visit` for all blocks of the zone's segments in ascending order, as runs without a
    /// gap or an overlap inside a segment; neighbouring runs may have equal states. A lock is held
    /// for at most 128 heads at a time and never while `visit` runs, so `visit` may be slow.
    ///
    /// Others may allocate and free meanwhile. The states of blocks that were read under one hold
    /// of the lock were all true at one moment. Time passes between holds, so that memory which
    /// moves from one end of the zone to the other may be seen twice or not at all. When nobody
    /// allocates or frees, the result is exact. Frames in the caches of CPUs count as used, as in
    /// all tables.
    #[inline(never)]
    pub fn for_each_block_run(&self, visit: &mut dyn FnMut(BlockRun)) {
        let mut from = BlockNumber(0);
        loop {
            // Windows are in the order in which they came, and may lie between other segments.
            let mut next = None::<(&Zone, &Segment)>;
            self.parts.for_each(&mut |part| {
                for segment in part.segments() {
                    if segment.start >= from
                        && next.is_none_or(|(_, next)| segment.start < next.start)
                    {
                        next = Some((part, segment));
                    }
                }
            });
            let Some((part, segment)) = next else { return };
            part.for_each_block_run(self.platform, segment, visit);
            from.0 = segment.start.0 + 1;
        }
    }

    /// Pages that the zone handed out and got back. Exact for the zone; traffic between callers and
    /// the caches of their CPUs is not counted.
    #[must_use]
    #[inline(never)]
    pub fn flow(&self) -> ZoneFlow {
        let mut flow = ZoneFlow::default();
        self.parts.for_each(&mut |part| flow += part.flow(self.platform));
        flow
    }

    /// Shuffles the free blocks of each part once more, where the shuffle is on
    /// (`page_alloc.shuffle=1`); bring-up has done so once. Each block changes places with a
    /// randomly chosen one, 16 under each hold of a part's lock. Returns false, and changes
    /// nothing, where the shuffle is off.
    pub fn shuffle(&self) -> bool {
        let shuffled = |part: &&Zone| part.shuffle(self.platform);
        self.parts.iter().filter(shuffled).count() == self.parts.len()
    }

    /// Measures how shuffled the free blocks are.
    #[must_use]
    #[inline(never)]
    pub fn shuffled(&self) -> Shuffled {
        let mut all = Shuffled::default();
        self.parts.for_each(&mut |part| {
            let Shuffled { pairs, neighbours } = part.shuffled(self.platform);
            all.pairs += pairs;
            all.neighbours += neighbours;
        });
        all
    }

    /// Walks all entries and lists with the lock held, part by part, recounts, and compares. This
    /// is a debugging aid: interrupts are off while a part is walked.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn verify(&self) -> Result<Counts, Fault> {
        let mut counts = Counts::default();
        for part in self.parts.iter() {
            counts += part.verify(self.platform)?;
        }
        Ok(counts)
    }
}
