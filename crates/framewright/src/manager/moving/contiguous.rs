//! Contiguous memory of any length, at the place where the counters of blocks say that the least
//! has to be moved.
//!
//! Linux takes the first candidate that is not hopeless (`alloc_contig_pages` in
//! `mm/page_alloc.c`). Here a bounded search (`window`) finds the cheapest place. The counters are
//! only a guess, so owners are asked before anything is moved; a place is good only if it can
//! really be vacated. The next search avoids the obstacles that were found, and when a zone has no
//! place left, the next zone follows.

use super::outcome::{Budget, Obstacle, Obstacles, Vacated};
use super::range::RangeError;
use super::runs::{Mission, Purpose};
use super::vacate::VacateError;
use super::window::{Avoided, Candidate, Costly, cheapest_in};
use crate::block::MigrateType;
use crate::manager::alloc::usable_type;
use crate::manager::facets::Moving;
use crate::manager::request::{AllocateError, Request, Search};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{IsolateError, Zone, ZoneKind};
use core::fmt;
use core::panic::Location;

/// How many places of a zone are tried.
const ATTEMPTS: usize = 8;
/// How many blocks of a zone can be avoided.
const MOST_AVOIDED: usize = 128;

/// A request for a run of any number of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContiguousRequest {
    /// How many frames.
    pub pages: u64,
    /// The alignment of the first frame; runs longer than a block begin at a block in any case.
    pub align: Order,
    /// Where the run may be; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest suitable zone.
    pub zone: ZoneKind,
    /// One past the highest suitable address.
    pub max_address: u64,
    /// What the memory will be used for, as in [`Request`]. Blocks of a grade, which include those
    /// of reserve areas, are only for [`MigrateType::Movable`], that is, for callers that can move
    /// the run.
    pub migrate_type: MigrateType,
}

impl ContiguousRequest {
    /// Returns a request for `pages` frames that stay in place, near the calling CPU, at any
    /// address.
    #[must_use]
    pub const fn new(pages: u64) -> Self {
        Self {
            pages,
            align: Order::PAGE,
            node: NodeChoice::Any,
            zone: ZoneKind::Normal,
            max_address: u64::MAX,
            migrate_type: MigrateType::Unmovable,
        }
    }
}

/// Why there is no such run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContiguousError {
    /// Wrong arguments.
    Request(AllocateError),
    /// No suitable zone has room for the run between the memory that cannot be moved.
    NoPlace {
        /// How many pages were requested.
        pages: u64,
    },
    /// Several places were tried; this is why the last one failed.
    InTheWay(RangeError),
}

impl fmt::Display for ContiguousError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::NoPlace { pages } => {
                write!(f, "no zone has a run of {pages} pages that can all be moved")
            }
            Self::InTheWay(error) => write!(f, "no run could be made free: {error}"),
        }
    }
}

impl core::error::Error for ContiguousError {}

/// Blocks that turned out to hold memory that cannot be moved.
struct Avoid {
    blocks: [BlockNumber; MOST_AVOIDED],
    count: usize,
}

impl Avoid {
    const NONE: Self = Self { blocks: [BlockNumber(0); MOST_AVOIDED], count: 0 };

    fn has(&self, block: BlockNumber) -> bool {
        self.blocks[..self.count].contains(&block)
    }

    /// Adds the blocks of `range` in which a part of `run` lies.
    fn add(&mut self, range: PfnRange, run: PfnRange) {
        let BlockRange { start, end } = BlockRange::around(run.intersection(range));
        for block in (start.0..end.0).map(BlockNumber) {
            if !self.has(block)
                && let Some(place) = self.blocks.get_mut(self.count)
            {
                *place = block;
                self.count += 1;
            }
        }
    }
}

/// Returns the frame that was in the way when `range` was to be taken.
fn in_the_way(range: PfnRange, error: &RangeError) -> PfnRange {
    let pfn = match error {
        RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => obstacles.first.run.start,
        RangeError::Vacate(VacateError::Isolate(IsolateError::Indivisible(pfn))) => *pfn,
        _ => range.start,
    };
    PfnRange::of_order(pfn.max(range.start), Order::PAGE)
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Returns where such a run could be had with the least to move. The run is not reserved:
    /// others may allocate it, and the counters may have changed by the time it is requested.
    ///
    /// # Errors
    /// [`ContiguousError`].
    pub fn find_contiguous(self, request: &ContiguousRequest) -> Result<PfnRange, ContiguousError> {
        self.find_without(request, None)
    }

    /// Does [`find_contiguous`](Self::find_contiguous) without the blocks that are `avoided`.
    pub(super) fn find_without(
        self,
        request: &ContiguousRequest,
        avoided: Avoided<'_>,
    ) -> Result<PfnRange, ContiguousError> {
        let search = self.search_of(request)?;
        let mut zones = self.zones_for(&search);
        let found = zones.find_map(|parts| self.cheapest(parts, request, avoided));
        found.map(|found| found.range).ok_or(ContiguousError::NoPlace { pages: request.pages })
    }

    /// Allocates a run of any length, also over 1 GiB: from free memory if it has such a run, else
    /// at the place where the least has to be moved. Memory that cannot be moved is avoided.
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
                migrate_type: request.migrate_type,
                fail_fast: true,
                ..Request::pages(request.pages)
            };
            if let Ok(taken) = self.manager.allocate_any(&free, Location::caller()) {
                return Ok(taken);
            }
        }
        self.vacate_cheapest(&search, request, budget)
    }

    /// Does [`allocate_contiguous`](Self::allocate_contiguous) at the place where the least has to
    /// be moved, on the nodes that `search` allows.
    #[track_caller]
    pub(super) fn vacate_cheapest(
        self,
        search: &Search<'_>,
        request: &ContiguousRequest,
        budget: Budget,
    ) -> Result<PfnRange, ContiguousError> {
        let mut last = ContiguousError::NoPlace { pages: request.pages };
        // One budget for all places together.
        let mut left = budget;
        let (mut is_first, mut repeated) = (true, None);
        for parts in self.zones_for(search) {
            let mut avoid = Avoid::NONE;
            let mut tried = 0;
            while tried < ATTEMPTS {
                let avoided = |block| avoid.has(block);
                let avoided: Avoided<'_> = if avoid.count == 0 { None } else { Some(&avoided) };
                let found = self.cheapest(parts, request, avoided);
                let Some(found) = found else { break };
                if !core::mem::take(&mut is_first) && !left.allows(self.manager.platform, 0) {
                    return Err(last);
                }
                let before = avoid.count;
                if let Some(obstacles) = self.look(found.range, &mut left, &mut avoid) {
                    let moved = Vacated::default();
                    let error = VacateError::Obstacles { moved, obstacles };
                    last = ContiguousError::InTheWay(RangeError::Vacate(error));
                    if avoid.count == before {
                        // The list of avoided blocks is full.
                        break;
                    }
                    continue;
                }
                tried += 1;
                match self.take_range(found.range, &mut left) {
                    Ok(taken) => return Ok(taken),
                    Err(error @ RangeError::Vacate(VacateError::OutOfTime { .. })) => {
                        return Err(ContiguousError::InTheWay(error));
                    }
                    Err(error) => {
                        let is_being_freed =
                            matches!(error, RangeError::Vacate(VacateError::InUse { .. }));
                        let platform = self.manager.platform;
                        if is_being_freed
                            && platform.can_wait()
                            && repeated.replace(found.range) != Some(found.range)
                        {
                            // The thread that frees it may need this CPU for that (invariant 43).
                            platform.yield_now();
                        } else {
                            // The obstacle would be in the way again.
                            avoid.add(found.range, in_the_way(found.range, &error));
                        }
                        last = ContiguousError::InTheWay(error);
                    }
                }
            }
        }
        Err(last)
    }

    /// Asks owners about a place and avoids from now on what cannot be moved. Asking costs little
    /// compared with moving most of a place in vain.
    fn look(self, range: PfnRange, left: &mut Budget, avoid: &mut Avoid) -> Option<Obstacles> {
        let mut name = |obstacle: Obstacle| avoid.add(range, obstacle.run);
        let mut mission = Mission::new(self, Purpose::LookBeforeIsolation, *left, &mut name);
        // If the place is no longer valid, taking it will fail and tell.
        let _ = mission.vacate(range);
        *left = mission.left();
        mission.end().1
    }

    fn search_of(self, request: &ContiguousRequest) -> Result<Search<'static>, ContiguousError> {
        let &ContiguousRequest { pages, node, zone, max_address, migrate_type, .. } = request;
        if pages == 0 || pages > Pfn::containing(u64::MAX).0 {
            return Err(ContiguousError::Request(AllocateError::BadSize { pages }));
        }
        usable_type(migrate_type).map_err(ContiguousError::Request)?;
        let like = Request { node, zone, max_address, migrate_type, ..Request::pages(1) };
        self.manager.search(&like).map_err(ContiguousError::Request)
    }

    /// Returns the parts of each suitable zone, in the order in which zones are asked.
    fn zones_for<'a>(self, search: &Search<'a>) -> impl Iterator<Item = &'static [Zone]> + 'a
    where
        'm: 'a,
    {
        let mut last = None;
        let ids = self.manager.zonelist(search).map(|zone| zone.id());
        let ids = ids.filter(move |&id| last.replace(id) != Some(id));
        ids.flat_map(|id| self.manager.parts(id).runs())
    }

    /// Returns the cheapest place in a zone.
    fn cheapest(
        self,
        parts: &'static [Zone],
        request: &ContiguousRequest,
        avoided: Avoided<'_>,
    ) -> Option<Candidate> {
        // Without spare blocks, the heads tell exactly what is free.
        parts.iter().for_each(|part| self.manager.give_up_spare(part));
        if request.pages > Order::MAX.pages() {
            // No free list has runs this long, so first look for a wholly free place, however far
            // it is.
            let free =
                cheapest_in(self.manager.platform, parts, request, &Costly { avoided, most: 0 });
            if free.is_some() {
                return free;
            }
        }
        // The moved contents must find room outside the place, in any zone of the node.
        let node = parts.first()?.id().node;
        let has = |zone: &Zone| zone.withheld_pages() + zone.free_pages();
        let own = self.manager.zones().iter().filter(|zone| zone.id().node == node);
        let free: u64 = own.map(has).sum();
        let any = Costly { avoided, most: u64::MAX };
        cheapest_in(self.manager.platform, parts, request, &any).filter(|found| {
            let inside = found.range.pages().saturating_sub(found.to_move);
            found.to_move <= free.saturating_sub(inside)
        })
    }
}
