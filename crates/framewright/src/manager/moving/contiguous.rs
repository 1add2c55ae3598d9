//! Contiguous memory of any length: where the least has to be moved, by the counts of blocks.
//!
//! Linux takes the first candidate that is not hopeless (`alloc_contig_pages` in
//! `mm/page_alloc.c`). Here the cheapest place is tried of those that a bounded search sees
//! (`window`). Counts are a guess, so owners are asked before anything is moved; what decides is
//! whether the range can be vacated. What is in the way is passed by in the next search, and where
//! a zone has no place left the next zone follows.

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

/// Places of a zone that are tried.
const ATTEMPTS: usize = 8;
/// Blocks of a zone that are passed by.
const MOST_AVOIDED: usize = 128;

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
    /// What the memory will be used for, as in [`Request`]. Blocks of a grade, those of reserve
    /// areas among them, are for [`MigrateType::Movable`] alone: for whoever can move the run.
    pub migrate_type: MigrateType,
}

impl ContiguousRequest {
    /// So many frames, near the caller, at any address, which stay where they are.
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
                write!(f, "no zone has a run of {pages} pages that can all be moved")
            }
            Self::InTheWay(error) => write!(f, "no run could be made free: {error}"),
        }
    }
}

impl core::error::Error for ContiguousError {}

/// Blocks that turned out to hold what cannot be moved.
struct Avoid {
    blocks: [BlockNumber; MOST_AVOIDED],
    count: usize,
}

impl Avoid {
    const NONE: Self = Self { blocks: [BlockNumber(0); MOST_AVOIDED], count: 0 };

    fn has(&self, block: BlockNumber) -> bool {
        self.blocks[..self.count].contains(&block)
    }

    /// Blocks of `range` that a part of `run` lies in.
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

/// What was in the way when a range was to be taken.
fn in_the_way(range: PfnRange, error: &RangeError) -> PfnRange {
    let pfn = match error {
        RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => obstacles.first.run.start,
        RangeError::Vacate(VacateError::Isolate(IsolateError::Indivisible(pfn))) => *pfn,
        _ => range.start,
    };
    PfnRange::of_order(pfn.max(range.start), Order::PAGE)
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Where such a run could be had with the least to move. It is not reserved: others may take
    /// it, and the counts may have changed by the time it is asked for.
    ///
    /// # Errors
    /// [`ContiguousError`].
    pub fn find_contiguous(self, request: &ContiguousRequest) -> Result<PfnRange, ContiguousError> {
        self.find_without(request, None)
    }

    /// [`find_contiguous`](Self::find_contiguous) without blocks that are `avoided`.
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
                migrate_type: request.migrate_type,
                fail_fast: true,
                ..Request::pages(request.pages)
            };
            if let Ok(taken) = self.manager.allocate(&free) {
                return Ok(taken);
            }
        }
        self.vacate_cheapest(&search, request, budget)
    }

    /// [`allocate_contiguous`](Self::allocate_contiguous) where the least has to be moved, on nodes
    /// that `search` allows.
    #[track_caller]
    pub(super) fn vacate_cheapest(
        self,
        search: &Search<'_>,
        request: &ContiguousRequest,
        budget: Budget,
    ) -> Result<PfnRange, ContiguousError> {
        let mut last = ContiguousError::NoPlace { pages: request.pages };
        // Of all places together.
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
                if let Some(obstacles) = self.look(found.range, left, &mut avoid) {
                    let moved = Vacated::default();
                    let error = VacateError::Obstacles { moved, obstacles };
                    last = ContiguousError::InTheWay(RangeError::Vacate(error));
                    if avoid.count == before {
                        // There is no room for more.
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
                            // Who frees it may need this CPU for that (invariant 43).
                            platform.yield_now();
                        } else {
                            // What is in the way there will be so again.
                            avoid.add(found.range, in_the_way(found.range, &error));
                        }
                        last = ContiguousError::InTheWay(error);
                    }
                }
            }
        }
        Err(last)
    }

    /// What owners say of a place: what cannot be moved is avoided from now on. Asking costs little
    /// beside moving most of a place in vain.
    fn look(self, range: PfnRange, budget: Budget, avoid: &mut Avoid) -> Option<Obstacles> {
        let mut name = |obstacle: Obstacle| avoid.add(range, obstacle.run);
        let mut mission = Mission::new(self, Purpose::LookBeforeIsolation, budget, &mut name);
        // A place that is none any more is found out when it is taken.
        let _ = mission.vacate(range);
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

    /// The parts of each zone that will do, in the order in which they are asked.
    fn zones_for<'a>(self, search: &Search<'a>) -> impl Iterator<Item = &'static [Zone]> + 'a
    where
        'm: 'a,
    {
        let mut last = None;
        let ids = self.manager.zonelist(search).map(|zone| zone.id());
        let ids = ids.filter(move |&id| last.replace(id) != Some(id));
        ids.flat_map(|id| self.manager.parts(id).runs())
    }

    /// The cheapest place in a zone.
    fn cheapest(
        self,
        parts: &'static [Zone],
        request: &ContiguousRequest,
        avoided: Avoided<'_>,
    ) -> Option<Candidate> {
        // What is free is told by the heads then.
        parts.iter().for_each(|part| part.give_up_spare(self.manager.platform));
        if request.pages > Order::MAX.pages() {
            // No list has runs so long: what is free is looked for first, however far it is.
            let free =
                cheapest_in(self.manager.platform, parts, request, &Costly { avoided, most: 0 });
            if free.is_some() {
                return free;
            }
        }
        // What is moved must find room outside of the place, in any zone of the node.
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
