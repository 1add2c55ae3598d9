//! Reserve areas: ranges that devices can have as one piece at any time, lent to movable requests
//! meanwhile (Linux: `mm/cma.c`).
//!
//! An area is a name, a bitmap, and blocks of the grade *removable*. Who asks for a run of it gets
//! the lowest place that can be vacated: what was lent there is moved, what does not move is passed
//! by.
//!
//! Orders of memory: Relaxed: a sum that stands alone.

use super::range::RangeError;
use super::vacate::{Budget, VacateError};
use super::{ContiguousRequest, GradeError};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::request::{AllocateError, Request};
use crate::manager::state::Manager;
use crate::manager::state::areas::{Area, AreaCounts, AreaName, MOST_AREAS};
use crate::manager::state::pressure::count;
use crate::memblock::NodeChoice;
use crate::parameters::{AreaParameters, CmaArea};
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGE_SHIFT, PAGE_SIZE, PAGES_PER_BLOCK, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{FreeError, Grade};
use core::fmt;

/// Why an area does not do what it was asked for. Nothing has changed, but for what was moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaError {
    /// There is no area of this number.
    NoArea(usize),
    /// There are as many areas as there can be.
    TooMany,
    /// There is one of this name.
    Exists(AreaName),
    /// There is no memory for its bitmap.
    Memory(AllocateError),
    /// Its blocks cannot be set aside.
    Grade(GradeError),
    /// No run of so many pages could be vacated.
    NoRun {
        /// What was wanted.
        pages: u64,
    },
    /// Memory cannot be moved from here, or not in time.
    Moving(RangeError),
    /// Not all of it was handed out by the area.
    NotOut(PfnRange),
    /// The frames were not accepted back.
    Free(FreeError),
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea(number) => write!(f, "there is no area {number}"),
            Self::TooMany => write!(f, "there are {MOST_AREAS} areas, and no more are possible"),
            Self::Exists(name) => write!(f, "there is an area {} already", name.as_str()),
            Self::Memory(error) => error.fmt(f),
            Self::Grade(error) => error.fmt(f),
            Self::NoRun { pages } => write!(f, "no run of {pages} pages could be vacated"),
            Self::Moving(error) => error.fmt(f),
            Self::NotOut(range) => write!(f, "not all of {range:?} was handed out by the area"),
            Self::Free(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AreaError {}

impl<P: Platform> Moving<'_, P> {
    /// Sets blocks aside as an area; returns its number. They are free, or what is in them can be
    /// moved; who gets them from now on, too. An area is for ever.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn create_area(self, name: AreaName, range: BlockRange) -> Result<usize, AreaError> {
        let manager = self.manager;
        if self.area_named(name.as_str()).is_some() {
            return Err(AreaError::Exists(name));
        }
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let request = Request {
            migrate_type: MigrateType::Unmovable,
            zeroed: true,
            ..Request::pages((pages.pages() / 8).div_ceil(PAGE_SIZE).max(1))
        };
        let bits = manager.frames(&request).map_err(AreaError::Memory)?;
        self.set_grade(range, Grade::Removable).map_err(AreaError::Grade)?;
        for (number, place) in manager.moving.areas.iter().enumerate() {
            let mut place = place.lock(manager.platform);
            if place.is_none() {
                *place = Some(Area::new(name, pages, bits.into_words()));
                drop(place);
                count(&manager.moving.area_pages, pages.pages());
                return Ok(number);
            }
        }
        // It was set by this call.
        let _ = self.set_grade(range, Grade::Any);
        Err(AreaError::TooMany)
    }

    /// The number of an area.
    #[must_use]
    pub fn area_named(self, name: &str) -> Option<usize> {
        (0..MOST_AREAS)
            .find(|&number| self.area(number).is_some_and(|(own, _, _)| own.as_str() == name))
    }

    /// Name, frames and counts of an area.
    #[must_use]
    pub fn area(self, number: usize) -> Option<(AreaName, PfnRange, AreaCounts)> {
        let place = self.manager.moving.areas.get(number)?;
        let place = place.lock(self.manager.platform);
        place.as_ref().map(|area| (area.name, area.pages, area.counts))
    }

    /// Frames of all areas (Linux: `CmaTotal`).
    #[must_use]
    pub fn area_pages(self) -> u64 {
        self.manager.moving.area_pages.load(crate::sync::table_atomic::Ordering::Relaxed)
    }

    /// Calls `with` for an area, under its lock.
    fn with_area<R>(
        self,
        number: usize,
        with: impl FnOnce(&mut Area) -> R,
    ) -> Result<R, AreaError> {
        let place = self.manager.moving.areas.get(number).ok_or(AreaError::NoArea(number))?;
        let mut place = place.lock(self.manager.platform);
        place.as_mut().map(with).ok_or(AreaError::NoArea(number))
    }

    /// Allocates a run out of an area: the lowest that can be vacated (Linux: `cma_alloc`).
    ///
    /// # Errors
    /// [`AreaError`].
    #[track_caller]
    pub fn allocate_in_area(
        self,
        number: usize,
        pages: u64,
        align: Order,
        budget: Budget,
    ) -> Result<PfnRange, AreaError> {
        if pages == 0 {
            return Err(AreaError::Memory(AllocateError::BadSize { pages }));
        }
        let mut from = crate::units::Pfn(0);
        loop {
            let run = self.with_area(number, |area| {
                let run = area.find(from, pages, align);
                match run {
                    Some(run) => area.mark(run, true),
                    None => area.counts.fail_pages += pages,
                }
                run
            })?;
            let Some(run) = run else { return Err(AreaError::NoRun { pages }) };
            let error = match self.allocate_range(run, budget) {
                Ok(run) => {
                    self.with_area(number, |area| area.counts.success_pages += pages)?;
                    return Ok(run);
                }
                Err(error) => error,
            };
            let in_the_way = matches!(
                error,
                RangeError::Damaged(_)
                    | RangeError::Vacate(VacateError::Obstacles { .. } | VacateError::InUse { .. })
            );
            self.with_area(number, |area| {
                area.mark(run, false);
                area.counts.fail_pages += if in_the_way { 0 } else { pages };
            })?;
            if !in_the_way {
                return Err(AreaError::Moving(error));
            }
            from = run.start.add(align.pages());
        }
    }

    /// Gives frames back that an area handed out, all or a part of a run (Linux: `cma_release`).
    ///
    /// # Errors
    /// [`AreaError`].
    ///
    /// # Safety
    /// See [*Owning memory*](super::super#owning-memory): the caller owns all frames of `range`,
    /// and nobody uses them any more.
    pub unsafe fn release_to_area(self, number: usize, range: PfnRange) -> Result<(), AreaError> {
        if !self.with_area(number, |area| area.is_out(range))? {
            return Err(AreaError::NotOut(range));
        }
        self.manager
            .free_uncached(range, core::panic::Location::caller())
            .map_err(AreaError::Free)?;
        self.with_area(number, |area| {
            area.mark(range, false);
            area.counts.released_pages += range.pages();
        })
    }
}

impl<P: Platform> Manager<P> {
    /// Sets aside what the command line asks for; returns the bytes that could not be.
    pub(in crate::manager) fn make_areas(&self, wanted: &AreaParameters) -> u64 {
        let mut failed_bytes = 0;
        if let Some(area) = wanted.cma.filter(|area| area.bytes != 0)
            && !self.make_area("reserved", area, NodeChoice::Any)
        {
            failed_bytes += area.bytes;
        }
        for node in self.nodes.iter().map(|node| node.id) {
            let on_node = wanted.numa_cma.on_node(node).unwrap_or(0);
            for (name, bytes) in [("pernuma", wanted.cma_pernuma_bytes), ("numa", on_node)] {
                if bytes != 0 && !self.make_numbered(name, bytes, node) {
                    failed_bytes += bytes;
                }
            }
        }
        failed_bytes
    }

    fn make_numbered(&self, name: &str, bytes: u64, node: NodeId) -> bool {
        AreaName::numbered(name, node.index()).is_some_and(|name| {
            let area = CmaArea { bytes, within: None };
            self.make_area(name.as_str(), area, NodeChoice::Exact(node))
        })
    }

    /// One area, as high as one free run lies that has it, or where it is to be.
    fn make_area(&self, name: &str, area: CmaArea, node: NodeChoice) -> bool {
        let Some(name) = AreaName::new(name) else { return false };
        let Some(pages) = area
            .bytes
            .div_ceil(PAGE_SIZE)
            .checked_next_multiple_of(PAGES_PER_BLOCK)
            .filter(|&pages| pages <= u64::MAX >> PAGE_SHIFT)
        else {
            return false;
        };
        let Ok(blocks) = u32::try_from(pages / PAGES_PER_BLOCK) else { return false };
        let moving = self.moving();
        let at = |start: BlockNumber| {
            start.0.checked_add(blocks).is_some_and(|end| {
                let range = BlockRange { start, end: BlockNumber(end) };
                moving.create_area(name, range).is_ok()
            })
        };
        let Some(within) = area.within else {
            let request = ContiguousRequest { node, ..ContiguousRequest::new(pages) };
            return moving
                .find_contiguous(&request)
                .is_ok_and(|found| at(BlockNumber::containing(found.start)));
        };
        let block_bytes = PAGES_PER_BLOCK * PAGE_SIZE;
        let first = within.start.div_ceil(block_bytes);
        let last = (within.end / block_bytes).saturating_sub(u64::from(blocks));
        (first..=last)
            .filter_map(|block| u32::try_from(block).ok())
            .any(|block| at(BlockNumber(block)))
    }
}
