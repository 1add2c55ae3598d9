//! Holds any number of allocations without memory for a list: the list lies in the allocations
//! themselves.
//!
//! Orders of memory: Relaxed: a pile belongs to one CPU. Its words are atomic only so that a page
//! that wrongly has two owners shows up ([`word`]).

mod shown;

use crate::link;
use crate::random::mix;
use crate::stamp::{clear, word};
use crate::window::WindowError;
use core::fmt;
use core::sync::atomic::Ordering;
use framewright::hugetlb::{PoolError, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager, Platform, Request};

/// The index of the word in every page that holds its stamp.
const STAMP: u64 = 511;

/// Why an operation on a [`Pile`] failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PileError {
    /// There is no memory for another run.
    Memory(AllocateError),
    /// The pool has no page, or refused to take one back.
    Pool(PoolError),
    /// The manager refused to take a run back.
    Free(FreeError),
    /// A frame does not hold what was written there, so it has another owner, too. The runs behind
    /// it are lost.
    Damaged(Pfn),
    /// A run could not be mapped in the window.
    Window(WindowError),
    /// This many frames of page tables were still in use when the window mapped nothing any more.
    Tables(u64),
}

impl fmt::Display for PileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
            Self::Free(error) => error.fmt(f),
            Self::Damaged(pfn) => write!(
                f,
                "pfn {pfn} does not hold what was written there: it has another owner, too"
            ),
            Self::Window(error) => error.fmt(f),
            Self::Tables(frames) => {
                write!(f, "the page tables of an empty window still have {frames} frames")
            }
        }
    }
}

impl core::error::Error for PileError {}

/// Where runs come from.
enum Spring<'a, P: Platform> {
    Zones(&'a Manager<P>, Request),
    /// The manager, through the CPU's cache.
    Near(&'a Manager<P>, Order),
    /// A pool, from pages that were reserved for this pile's owner.
    Pool(&'a Manager<P>, PoolSize, NodeChoice),
}

/// A stack of allocations of one size, with a stamp in each page. Dropping it frees the runs that
/// it holds.
pub struct Pile<'a, P: Platform> {
    spring: Spring<'a, P>,
    /// The run on top; its first word names the next run, plus one.
    top: Option<Pfn>,
    runs: u64,
    /// Whether runs are filled with zeros first.
    clears: bool,
}

impl<'a, P: Platform> Pile<'a, P> {
    /// Returns an empty pile of runs that are allocated as `request` says.
    #[must_use]
    pub fn new(manager: &'a Manager<P>, request: Request) -> Self {
        // Only memory in the direct map can be stamped.
        let request = Request {
            max_address: request.max_address.min(manager.platform().direct_limit()),
            ..request
        };
        Self { spring: Spring::Zones(manager, request), top: None, runs: 0, clears: false }
    }

    /// Returns an empty pile of runs of an order that come from near the caller, through
    /// [`Manager::allocate_order`].
    #[must_use]
    pub const fn near(manager: &'a Manager<P>, order: Order) -> Self {
        Self { spring: Spring::Near(manager, order), top: None, runs: 0, clears: false }
    }

    /// Returns an empty pile of pages of a pool. It takes only pages that were
    /// [reserved](framewright::manager::Pool::reserve) for it.
    #[must_use]
    pub const fn of_pool(manager: &'a Manager<P>, size: PoolSize, choice: NodeChoice) -> Self {
        Self { spring: Spring::Pool(manager, size, choice), top: None, runs: 0, clears: false }
    }

    /// Makes each run be filled with zeros before it is stamped, as a kernel does for a program.
    #[must_use]
    pub const fn clearing(mut self) -> Self {
        self.clears = true;
        self
    }

    /// Returns how many runs it holds.
    #[must_use]
    pub const fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns how many pages each run has.
    #[must_use]
    pub fn pages_of_run(&self) -> u64 {
        match &self.spring {
            Spring::Zones(_, request) => request.pages,
            Spring::Near(_, order) => order.pages(),
            Spring::Pool(_, size, _) => size.frames(),
        }
    }

    fn platform(&self) -> &'a P {
        match self.spring {
            Spring::Zones(manager, _) | Spring::Near(manager, _) | Spring::Pool(manager, ..) => {
                manager.platform()
            }
        }
    }

    /// Allocates a run and writes a stamp into each of its pages.
    ///
    /// # Errors
    /// [`PileError::Memory`], [`PileError::Pool`].
    pub fn add(&mut self) -> Result<(), PileError> {
        let start = match &self.spring {
            Spring::Zones(manager, request) => {
                manager.allocate(request).map_err(PileError::Memory)?.start
            }
            Spring::Near(manager, order) => {
                let start = manager
                    .allocate_order(*order, MigrateType::Movable)
                    .map_err(PileError::Memory)?;
                if start.add(order.pages()).address() > manager.platform().direct_limit() {
                    // SAFETY: allocated just now, and no other code knows of it (invariant 42).
                    unsafe { manager.free_order(start, *order) }.map_err(PileError::Free)?;
                    return Err(PileError::Memory(AllocateError::OutOfMemory { order: *order }));
                }
                start
            }
            Spring::Pool(manager, size, choice) => {
                let pool = manager.pool(*size);
                let page = pool.allocate(*choice, true).map_err(PileError::Pool)?;
                if page.end.address() > manager.platform().direct_limit() {
                    // SAFETY: allocated just now, and no other code knows of it (invariant 42).
                    unsafe { pool.free(page.start) }.map_err(PileError::Pool)?;
                    return Err(PileError::Pool(PoolError::NoPage(*size)));
                }
                pool.commit(page.start).map_err(PileError::Pool)?;
                page.start
            }
        };
        let platform = self.platform();
        if self.clears {
            clear(platform, start, self.pages_of_run());
        }
        for pfn in start.0..start.0 + self.pages_of_run() {
            word(platform, Pfn(pfn), STAMP).store(stamp(pfn), Ordering::Relaxed);
        }
        self.push(start);
        Ok(())
    }

    /// Checks the stamps of all pages.
    ///
    /// # Errors
    /// [`PileError::Damaged`].
    pub fn check(&self) -> Result<(), PileError> {
        self.each(|start| {
            let wrong = |&pfn: &u64| {
                word(self.platform(), Pfn(pfn), STAMP).load(Ordering::Relaxed) != stamp(pfn)
            };
            match (start.0..start.0 + self.pages_of_run()).find(wrong) {
                Some(pfn) => Err(PileError::Damaged(Pfn(pfn))),
                None => Ok(()),
            }
        })
    }

    /// Calls `with` with the first frame of each run, from the run added last to the first.
    fn each(&self, mut with: impl FnMut(Pfn) -> Result<(), PileError>) -> Result<(), PileError> {
        let mut next = self.top;
        while let Some(start) = next {
            with(start)?;
            next = self.behind(start)?;
        }
        Ok(())
    }

    /// Frees every run for which `goes` returns true.
    ///
    /// # Errors
    /// [`PileError::Free`], [`PileError::Pool`]: a run was refused and is lost;
    /// [`PileError::Damaged`].
    pub fn free_some(&mut self, mut goes: impl FnMut() -> bool) -> Result<(), PileError> {
        let mut next = self.top.take();
        let mut left = core::mem::take(&mut self.runs);
        while let Some(start) = next {
            // If the list had become a ring, this loop would not end.
            left = left.checked_sub(1).ok_or(PileError::Damaged(start))?;
            next = self.behind(start)?;
            if goes() {
                self.give_back(start)?;
            } else {
                self.push(start);
            }
        }
        Ok(())
    }

    /// Frees all runs.
    ///
    /// # Errors
    /// As for [`free_some`](Self::free_some).
    pub fn free_all(&mut self) -> Result<(), PileError> {
        self.free_some(|| true)
    }

    fn give_back(&self, start: Pfn) -> Result<(), PileError> {
        match &self.spring {
            Spring::Zones(manager, request) => {
                let range = PfnRange { start, end: start.add(request.pages) };
                // SAFETY: this is a run of this pile, which `add` allocated. It is off the list and
                // not touched again. A change of the words that name it would have broken the seal
                // (invariant 42).
                unsafe { manager.free(range) }.map_err(PileError::Free)
            }
            Spring::Near(manager, order) => {
                // SAFETY: as for `Spring::Zones` (invariant 42).
                unsafe { manager.free_order(start, *order) }.map_err(PileError::Free)
            }
            Spring::Pool(manager, size, _) => {
                // SAFETY: as for `Spring::Zones` (invariant 42).
                unsafe { manager.pool(*size).free(start) }.map_err(PileError::Pool)
            }
        }
    }

    fn push(&mut self, start: Pfn) {
        link::set(self.platform(), start, self.top);
        self.top = Some(start);
        self.runs += 1;
    }

    /// Returns the run behind `start`. A link that another owner overwrote is not followed.
    fn behind(&self, start: Pfn) -> Result<Option<Pfn>, PileError> {
        link::get(self.platform(), start).map_err(|_| PileError::Damaged(start))
    }
}

impl<P: Platform> Drop for Pile<'_, P> {
    fn drop(&mut self) {
        // A caller that wants to see errors frees all runs before.
        let _ = self.free_all();
    }
}

const fn stamp(pfn: u64) -> u64 {
    mix(pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1
}
