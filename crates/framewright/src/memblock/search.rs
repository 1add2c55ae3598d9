//! Memory minus reservations, and the search for a place in it.
//!
//! Both sets are sorted, so one walk over the two side by side finds every free run. The cost of a
//! search grows with the number of regions and not with their sizes.

use super::region::{Region, RegionFlags};
use crate::units::{NodeId, Order, PAGE_SIZE, PhysRange};

/// Iterator, from either end, over the runs in `memory` that nothing in `reserved` covers, cut at
/// the ends of memory regions.
#[derive(Clone)]
pub(super) struct FreeRuns<'a> {
    memory: &'a [Region],
    reserved: &'a [Region],
    low: u64,
    high: u64,
}

impl<'a> FreeRuns<'a> {
    /// Returns the free runs inside `window`.
    pub fn new(memory: &'a [Region], reserved: &'a [Region], window: PhysRange) -> Self {
        Self {
            memory: overlapping(memory, window),
            reserved: overlapping(reserved, window),
            low: window.start,
            high: window.end,
        }
    }
}

fn overlapping(regions: &[Region], window: PhysRange) -> &[Region] {
    let mut all = regions;
    // Nearly always the window contains all of them.
    if all.first().is_some_and(|first| first.range.end <= window.start) {
        all = &all[all.partition_point(|region| region.range.end <= window.start)..];
    }
    if all.last().is_some_and(|last| last.range.start >= window.end) {
        all = &all[..all.partition_point(|region| region.range.start < window.end)];
    }
    all
}

impl Iterator for FreeRuns<'_> {
    type Item = Region;

    // One copy for all walks: they are short, and at boot most of the cost of code is that it runs
    // for the first time.
    #[inline(never)]
    fn next(&mut self) -> Option<Region> {
        loop {
            let (region, later) = self.memory.split_first()?;
            let start = region.range.start.max(self.low);
            let end = region.range.end.min(self.high);
            if start >= end {
                self.memory = later;
                continue;
            }
            while let Some((taken, rest)) = self.reserved.split_first()
                && taken.range.end <= start
            {
                self.reserved = rest;
            }
            match self.reserved.first() {
                Some(taken) if taken.range.start <= start => self.low = taken.range.end,
                taken => {
                    self.low = taken.map_or(end, |taken| taken.range.start.min(end));
                    return Some(Region { range: PhysRange::new(start, self.low), ..*region });
                }
            }
        }
    }
}

impl DoubleEndedIterator for FreeRuns<'_> {
    fn next_back(&mut self) -> Option<Region> {
        loop {
            let (region, earlier) = self.memory.split_last()?;
            let start = region.range.start.max(self.low);
            let end = region.range.end.min(self.high);
            if start >= end {
                self.memory = earlier;
                continue;
            }
            while let Some((taken, rest)) = self.reserved.split_last()
                && taken.range.start >= end
            {
                self.reserved = rest;
            }
            match self.reserved.last() {
                Some(taken) if taken.range.end >= end => self.high = taken.range.start,
                taken => {
                    self.high = taken.map_or(start, |taken| taken.range.end.max(start));
                    return Some(Region { range: PhysRange::new(self.high, end), ..*region });
                }
            }
        }
    }
}

/// Free memory inside one memory region. Only a search makes one, and it cannot be copied. Its
/// holder reserves it before the sets are searched again, or drops it, so nobody else has the
/// memory.
pub(super) struct Place {
    range: PhysRange,
    node: Option<NodeId>,
}

impl Place {
    /// Returns the bytes.
    pub const fn range(&self) -> PhysRange {
        self.range
    }

    /// Returns the node of the memory.
    pub const fn node(&self) -> Option<NodeId> {
        self.node
    }
}

/// Returns the whole naturally aligned GiBs inside a range.
pub(super) fn whole_gigabytes(range: PhysRange) -> PhysRange {
    const GIB: u64 = Order::MAX.pages() * PAGE_SIZE;
    let start = range.start.next_multiple_of(GIB);
    PhysRange::new(start, (range.end / GIB * GIB).max(start))
}

/// The size from which a block is large enough to choose another place for its sake.
const LARGE_BYTES: u64 = 64 << 20;

/// Returns the size of the largest naturally aligned block of `free` that `taken` overlaps.
fn broken_bytes(taken: PhysRange, free: PhysRange) -> u64 {
    let mut size = Order::MAX.pages() * PAGE_SIZE;
    while size > PAGE_SIZE {
        let first = (taken.start / size * size).max(free.start.next_multiple_of(size));
        if first < taken.end && first + size <= free.end {
            break;
        }
        size /= 2;
    }
    size
}

/// The conditions that a place must meet.
#[derive(Clone, Copy)]
pub(super) struct Query {
    /// The size in bytes, not 0.
    pub size: u64,
    /// The alignment in bytes, a power of two.
    pub align: u64,
    /// Where to look.
    pub window: PhysRange,
    /// The node to search, or any.
    pub node: Option<NodeId>,
    /// Whether hot-pluggable memory will do.
    pub hot_pluggable: bool,
    /// Whether unaccepted memory will do.
    pub unaccepted: bool,
    /// Whether to search mirrored memory only.
    pub mirrored: bool,
    /// Whether to find the lowest place rather than the highest.
    pub bottom_up: bool,
    /// Whether to search only memory that is in no whole free 1 GiB.
    pub edges: bool,
}

impl Query {
    /// Finds the highest place (the lowest when `bottom_up`) that overlaps no range in the lists of
    /// `avoid`.
    pub fn find(
        &self,
        memory: &[Region],
        reserved: &[Region],
        avoid: &[&[PhysRange]],
    ) -> Option<Place> {
        let mut query = *self;
        loop {
            let place = query.find_anywhere(memory, reserved)?;
            let Some(blocker) = avoid
                .iter()
                .copied()
                .flatten()
                .find(|range| !range.intersection(place.range).is_empty())
            else {
                return Some(place);
            };
            // Nothing fits between this place and the end from which the search began, so the next
            // place can only lie beyond the blocker.
            query.window = if self.bottom_up {
                PhysRange::new(blocker.end, self.window.end)
            } else {
                PhysRange::new(self.window.start, blocker.start)
            };
        }
    }

    /// Returns the bytes in the largest free run that the query allows, whatever its alignment.
    pub fn largest(&self, memory: &[Region], reserved: &[Region]) -> u64 {
        let runs = FreeRuns::new(memory, reserved, self.window).filter(|run| self.allows(run));
        runs.map(|run| run.range.size()).max().unwrap_or(0)
    }

    fn find_anywhere(&self, memory: &[Region], reserved: &[Region]) -> Option<Place> {
        let mut runs = FreeRuns::new(memory, reserved, self.window).filter(|run| self.allows(run));
        let fit = |run: &Region| {
            if cfg!(feature = "pools") && self.edges { self.fit_edges(run) } else { self.fit(run) }
        };
        let mut next = || if self.bottom_up { runs.next() } else { runs.next_back() };
        core::iter::from_fn(&mut next).find_map(|run| fit(&run))
    }

    /// Returns the best place before the first whole 1 GiB of `run` or after its last.
    fn fit_edges(&self, run: &Region) -> Option<Place> {
        let whole = whole_gigabytes(run.range);
        if whole.is_empty() {
            return self.fit(run);
        }
        let [low, high] = [
            PhysRange::new(run.range.start, whole.start),
            PhysRange::new(whole.end, run.range.end),
        ];
        let edges = if self.bottom_up { [low, high] } else { [high, low] };
        edges.into_iter().find_map(|range| self.fit(&Region { range, ..*run }))
    }

    /// Finds the highest place. If that breaks a large block, chooses the low end of the part of
    /// the same free run that lies in the window instead, provided it breaks less there.
    pub fn tightest(&self, memory: &[Region], reserved: &[Region]) -> Option<Place> {
        let everywhere = PhysRange::new(0, self.window.end);
        let runs = FreeRuns::new(memory, reserved, everywhere).filter(|run| self.allows(run));
        runs.rev().find_map(|run| {
            let inside = Region { range: run.range.intersection(self.window), ..run };
            let fit = |bottom_up| Self { bottom_up, ..*self }.fit(&inside);
            let high = fit(false)?;
            let broken = broken_bytes(high.range, run.range);
            let low = if broken >= LARGE_BYTES { fit(true) } else { None };
            low.filter(|low| broken_bytes(low.range, run.range) < broken).or(Some(high))
        })
    }

    fn allows(&self, run: &Region) -> bool {
        (!self.mirrored || run.flags.contains(RegionFlags::MIRRORED))
            && (self.unaccepted || !run.flags.contains(RegionFlags::UNACCEPTED))
            && (self.hot_pluggable || !run.flags.contains(RegionFlags::HOT_PLUGGABLE))
            && self.node.is_none_or(|node| run.node == Some(node))
    }

    /// Returns the best place inside `run`. Every step is checked because size and alignment come
    /// from the caller and may be anything.
    fn fit(&self, run: &Region) -> Option<Place> {
        let PhysRange { start, end } = run.range;
        let last = end.checked_sub(self.size)?;
        let base = if self.bottom_up {
            start.checked_next_multiple_of(self.align)?
        } else {
            last & !(self.align - 1)
        };
        let fits = start <= base && base <= last;
        fits.then(|| Place { range: PhysRange::new(base, base + self.size), node: run.node })
    }
}
