//! Contiguous memory of any length: where the least has to be moved, by the counts of blocks.
//!
//! Linux takes the first candidate that is not hopeless (`alloc_contig_pages` in
//! `mm/page_alloc.c`). Here a window slides over the table, 16 bytes a block and without the lock,
//! and the cheapest place is taken of those that a bounded search sees: the first 4 GiB of blocks,
//! and further only while none was found at all. Counts are a guess;
//! what decides is whether the range can be vacated.

use super::range::RangeError;
use super::vacate::{Budget, VacateError};
use crate::manager::facets::Moving;
use crate::manager::request::{AllocateError, Request, Search};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{Segment, Zone, ZoneKind};
use core::fmt;

/// Blocks that one search looks at once it has found a place: 4 GiB, at 13 ns a block.
const BLOCKS_LOOKED_AT: u32 = 1 << 11;
/// Places that are tried before the request fails.
const ATTEMPTS: usize = 8;

/// What is wanted: so many frames in one run, of any length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContiguousRequest {
    /// Frames.
    pub pages: u64,
    /// Alignment of the first; runs of more than a block begin at a block in any case.
    pub align: Order,
    /// Where; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest zone that will do.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
}

impl ContiguousRequest {
    /// So many frames, near the caller, at any address.
    #[must_use]
    pub const fn new(pages: u64) -> Self {
        Self {
            pages,
            align: Order::PAGE,
            node: NodeChoice::Any,
            zone: ZoneKind::Normal,
            max_address: u64::MAX,
        }
    }
}

/// Why there is no such run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContiguousError {
    /// Wrong arguments.
    Request(AllocateError),
    /// No zone that will do has room for it between what cannot be moved.
    NoPlace {
        /// What was wanted.
        pages: u64,
    },
    /// Several places were tried; this was in the way at the last one.
    InTheWay(RangeError),
}

impl fmt::Display for ContiguousError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::NoPlace { pages } => {
                write!(f, "no zone has {pages} pages in one run between what cannot be moved")
            }
            Self::InTheWay(error) => write!(f, "no run could be made free: {error}"),
        }
    }
}

impl core::error::Error for ContiguousError {}

/// A place, and how many frames somebody has in its blocks.
#[derive(Clone, Copy)]
struct Candidate {
    range: PfnRange,
    to_move: u64,
}

/// What of blocks has to be moved, one after the other: heads are looked up once, and what they
/// cost is kept until the window has passed them.
struct Costs<'a> {
    zone: &'a Zone,
    segment: &'a Segment,
    avoid: &'a Avoid,
    end: u32,
    each: Option<u64>,
    kept: [u16; KEPT as usize],
}

/// Blocks whose costs are kept: windows of up to 1 GiB.
const KEPT: u32 = 512;

impl<'a> Costs<'a> {
    const fn new(zone: &'a Zone, segment: &'a Segment, avoid: &'a Avoid) -> Self {
        Self { zone, segment, avoid, end: 0, each: None, kept: [0; KEPT as usize] }
    }

    /// Of the next block.
    #[inline]
    fn of(&mut self, index: u32) -> Option<u64> {
        if index >= self.end {
            (self.end, self.each) = self.zone.to_move(index);
        }
        if self.avoid.count != 0 && self.avoid.has(self.segment.block_of(index)) {
            return None;
        }
        let each = self.each?;
        if let (Some(kept), Ok(each)) =
            (self.kept.get_mut((index % KEPT) as usize), u16::try_from(each))
        {
            *kept = each;
        }
        Some(each)
    }

    /// Of a block at the beginning of a window of so many.
    #[inline]
    fn of_first(&self, index: u32, blocks: u32) -> u64 {
        if blocks <= KEPT {
            return self.kept.get((index % KEPT) as usize).map_or(0, |&each| u64::from(each));
        }
        self.zone.to_move(index).1.unwrap_or(0)
    }
}

/// Blocks that turned out to hold what cannot be moved.
struct Avoid {
    blocks: [BlockNumber; ATTEMPTS],
    count: usize,
}

impl Avoid {
    const NONE: Self = Self { blocks: [BlockNumber(0); ATTEMPTS], count: 0 };

    fn has(&self, block: BlockNumber) -> bool {
        self.count != 0 && self.blocks[..self.count].contains(&block)
    }

    /// What was in the way when `range` was to be taken.
    fn add(&mut self, range: PfnRange, error: &RangeError) {
        let pfn = match error {
            RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => {
                Some(obstacles.first.run.start)
            }
            _ => None,
        };
        if let Some(place) = self.blocks.get_mut(self.count) {
            *place = BlockNumber::containing(pfn.unwrap_or(range.start).max(range.start));
            self.count += 1;
        }
    }
}

impl<P: Platform> Moving<'_, P> {
    /// Where such a run could be had with the least to move. Nobody keeps it: others may take it,
    /// and what the counts say may be wrong by then.
    ///
    /// # Errors
    /// [`ContiguousError`].
    pub fn find_contiguous(self, request: &ContiguousRequest) -> Result<PfnRange, ContiguousError> {
        let search = self.search_of(request)?;
        let found = self.cheapest(request, &search, &Avoid::NONE);
        found.map(|found| found.range).ok_or(ContiguousError::NoPlace { pages: request.pages })
    }

    /// Allocates a run of any length, over 1 GiB, too: out of what is free where there is one, else
    /// where the least has to be moved. Memory that cannot be moved is passed by.
    ///
    /// # Errors
    /// [`ContiguousError`].
    #[track_caller]
    pub fn allocate_contiguous(
        self,
        request: &ContiguousRequest,
        budget: Budget,
    ) -> Result<PfnRange, ContiguousError> {
        let search = self.search_of(request)?;
        if request.pages <= Order::MAX.pages() {
            let free = Request {
                align: request.align,
                node: request.node,
                zone: request.zone,
                max_address: request.max_address,
                fail_fast: true,
                ..Request::pages(request.pages)
            };
            if let Ok(taken) = self.manager.allocate(&free) {
                return Ok(taken);
            }
        }
        let mut last = ContiguousError::NoPlace { pages: request.pages };
        let mut avoid = Avoid::NONE;
        for _ in 0..ATTEMPTS {
            let Some(Candidate { range, .. }) = self.cheapest(request, &search, &avoid) else {
                break;
            };
            match self.allocate_range(range, budget) {
                Ok(taken) => return Ok(taken),
                Err(error) => {
                    // What is in the way there will be so again.
                    avoid.add(range, &error);
                    last = ContiguousError::InTheWay(error);
                }
            }
        }
        Err(last)
    }

    fn search_of(self, request: &ContiguousRequest) -> Result<Search, ContiguousError> {
        let &ContiguousRequest { pages, node, zone, max_address, .. } = request;
        if pages == 0 || pages > Pfn::containing(u64::MAX).0 {
            return Err(ContiguousError::Request(AllocateError::BadSize { pages }));
        }
        let like = Request { node, zone, max_address, ..Request::pages(1) };
        self.manager.search(&like).map_err(ContiguousError::Request)
    }

    /// The cheapest place in the first zone that has one.
    fn cheapest(
        self,
        request: &ContiguousRequest,
        search: &Search,
        avoid: &Avoid,
    ) -> Option<Candidate> {
        self.manager.zonelist(search).find_map(|zone| {
            // What is free is told by the heads then.
            zone.give_up_spare(self.manager.platform);
            // What is moved must find room outside of the place.
            let fits = |found: &Candidate| {
                let inside = found.range.pages().saturating_sub(found.to_move);
                found.to_move <= zone.free_pages().saturating_sub(inside)
            };
            cheapest_in(zone, request, avoid).filter(fits)
        })
    }
}

fn cheapest_in(zone: &Zone, request: &ContiguousRequest, avoid: &Avoid) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    let mut left = BLOCKS_LOOKED_AT;
    for segment in zone.segments() {
        let found = cheapest_of(segment, request, Costs::new(zone, segment, avoid), &mut left);
        if found.is_some_and(|found| best.is_none_or(|best| found.to_move < best.to_move)) {
            best = found;
        }
        if best.is_some_and(|best| best.to_move == 0 || left == 0) {
            break;
        }
    }
    best
}

/// The cheapest window of one run of blocks.
fn cheapest_of(
    segment: &Segment,
    request: &ContiguousRequest,
    mut costs: Costs<'_>,
    left: &mut u32,
) -> Option<Candidate> {
    let blocks = u32::try_from(request.pages.div_ceil(PAGES_PER_BLOCK)).ok()?;
    let step = u32::try_from(request.align.pages().max(PAGES_PER_BLOCK) / PAGES_PER_BLOCK).ok()?;
    let indices = segment.indices();
    let max = Pfn::containing(request.max_address);
    // A power of two, so that nothing is divided.
    let aligned = |index: u32| {
        let block = segment.block_of(index).0;
        let up = step.wrapping_sub(block) & (step - 1);
        index.checked_add(up)
    };
    let mut best: Option<Candidate> = None;
    let mut start = aligned(indices.start)?;
    // The window is `start..next`, which costs `cost`.
    let (mut next, mut cost) = (start, 0_u64);
    while start.checked_add(blocks).is_some_and(|end| end <= indices.end) {
        if next < start {
            (next, cost) = (start, 0);
        }
        let range_start = segment.block_of(start).start();
        let end = range_start.add(request.pages);
        if end > max {
            break;
        }
        while next < start + blocks {
            *left = left.saturating_sub(1);
            let Some(each) = costs.of(next) else { break };
            cost += each;
            next += 1;
        }
        if next < start + blocks {
            // Nothing that holds this block will do.
            let Some(after) = aligned(next + 1) else { break };
            (start, next, cost) = (after, after, 0);
        } else {
            if best.is_none_or(|best| cost < best.to_move) {
                best =
                    Some(Candidate { range: PfnRange { start: range_start, end }, to_move: cost });
            }
            if cost == 0 {
                break;
            }
            let Some(after) = aligned(start + 1) else { break };
            for index in start..after.min(next) {
                cost = cost.saturating_sub(costs.of_first(index, blocks));
            }
            start = after;
        }
        if *left == 0 && best.is_some() {
            break;
        }
    }
    best
}
