//! Why a request found no memory. This is computed only when somebody asks, so that
//! [`AllocateError::OutOfMemory`] names only the order.

use crate::block::MigrateType;
use crate::manager::request::{AllocateError, Request};
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::units::{Order, Pfn};
use crate::zone::{FreeAreas, Zone, ZoneKind};
use core::fmt;

/// Why a request for memory is not served, as things are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortfall {
    /// The request would be served: others have freed memory since.
    None,
    /// No zone that the request allows has memory.
    NoZone {
        /// The highest kind of zone that the request allows.
        highest: ZoneKind,
    },
    /// All memory of the zones that the request allows lies above its highest address.
    Address {
        /// One past the highest address that the request allows.
        max_address: u64,
    },
    /// Enough is free, in large enough runs, but is kept: a zone would fall below its watermark.
    Watermark {
        /// Free pages below the highest address, in the zones that have such a run.
        free_pages: u64,
        /// Pages that must stay free there: watermarks, memory kept from requests that could go
        /// elsewhere, and graded memory that is kept for other requests.
        kept_pages: u64,
    },
    /// A zone has enough free memory, but not in one run that the request may have.
    Fragmented {
        /// Free pages where the request looks.
        free_pages: u64,
        /// The largest free run there of a type that the request may have, if there is any.
        largest: Option<Order>,
    },
    /// No zone has as many free pages as are wanted.
    Exhausted {
        /// Free pages where the request looks.
        free_pages: u64,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there is memory for it now"),
            Self::NoZone { highest } => {
                write!(f, "no allowed node has a zone up to {highest}")
            }
            Self::Address { max_address } => {
                write!(f, "no allowed zone has memory below {max_address:#x}")
            }
            Self::Watermark { free_pages, kept_pages } => {
                write!(f, "{free_pages} pages are free, but watermarks keep {kept_pages}")
            }
            Self::Fragmented { free_pages, largest: Some(largest) } => {
                write!(
                    f,
                    "{free_pages} pages are free, but in runs of at most {largest:?} where the \
                     request may have them"
                )
            }
            Self::Fragmented { free_pages, largest: None } => {
                write!(f, "{free_pages} pages are free, but none that the request may use")
            }
            Self::Exhausted { free_pages } => write!(f, "{free_pages} pages are free"),
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Explains why a request is not served, or would not be, as things are now: for messages.
    /// Examines all free memory of the zones that the request allows, which takes a while on a
    /// large machine. Ignores what the caches of CPUs keep, because a request empties them before
    /// it fails.
    ///
    /// # Errors
    /// [`AllocateError`] when the request itself is wrong.
    pub fn shortfall(&self, request: &Request) -> Result<Shortfall, AllocateError> {
        let order = request.order()?;
        let search = self.search(request)?;
        let zones = || self.zonelist(&search).filter(|zone| zone.final_managed_pages() != 0);
        let max_address = search.max_address();
        let below = Pfn::containing(max_address);
        let fits = |zone: &&'static Zone| zone.span().start < below;
        // An address limit may have left lower zones only.
        let is_lowered = search.highest() < request.zone;
        if !is_lowered && zones().next().is_none() {
            return Ok(Shortfall::NoZone { highest: request.zone });
        }
        if !zones().any(|zone| fits(&zone)) {
            return Ok(Shortfall::Address { max_address });
        }
        let mark = request.reserves.mark();
        let (mut all_pages, mut enough, mut largest) = (0, false, None);
        // Of the zones with a large enough run: the pages that are free, and that are kept.
        let mut kept_back = (0, 0);
        for zone in self.zonelist(&search).filter(|zone| zone.part() == 0) {
            let (mut zone_pages, mut zone_largest) = (0, None);
            let parts = self.parts(zone.id()).iter().filter(|part| part.final_managed_pages() != 0);
            for part in parts.filter(fits) {
                if order >= Order::BLOCK {
                    self.give_up_spare(part);
                }
                let is_allowed = self.allows(mark, part, &search, order);
                let areas = part.free_areas_below(self.platform, below);
                let of = request.migrate_type;
                let mut run = largest_run(&areas, of);
                if part.gathers(order) && part.can_gather(self.platform, order, of, below) {
                    run = run.max(Some(order));
                }
                if is_allowed
                    && (run >= Some(order)
                        || part.has_withheld() && part.withholds(self.platform, order, of, below))
                {
                    return Ok(Shortfall::None);
                }
                // Memory above the highest address does not count. For a whole zone the counter
                // suffices.
                let is_whole = part.span().end <= below;
                zone_pages += if is_whole { part.free_pages() } else { free_pages(&areas) };
                zone_largest = zone_largest.max(run);
            }
            all_pages += zone_pages;
            enough |= zone_pages >= order.pages();
            largest = largest.max(zone_largest);
            if zone_largest >= Some(order) {
                let withheld: u64 = self.parts(zone.id()).iter().map(Zone::withheld_pages).sum();
                let kept_pages = self.keeps_of_all(mark, zone, &search).saturating_sub(withheld);
                kept_back = (kept_back.0 + zone_pages, kept_back.1 + kept_pages);
            }
        }
        Ok(match kept_back {
            // None of these zones hands such a run out, so a mark must be the reason.
            (free_pages, kept_pages) if largest >= Some(order) => {
                Shortfall::Watermark { free_pages, kept_pages }
            }
            _ if enough => Shortfall::Fragmented { free_pages: all_pages, largest },
            _ => Shortfall::Exhausted { free_pages: all_pages },
        })
    }
}

/// The largest free run that requests of a migrate type may have.
fn largest_run(areas: &FreeAreas, migrate_type: MigrateType) -> Option<Order> {
    let types = core::iter::once(&migrate_type).chain(migrate_type.fallbacks());
    let order = types
        .filter_map(|&of| areas.runs[of as usize].iter().rposition(|&runs| runs != 0))
        .max()?;
    Order::new(u8::try_from(order).ok()?)
}

/// The pages that are free and not isolated.
fn free_pages(areas: &FreeAreas) -> u64 {
    let types = MigrateType::ALL.into_iter().filter(|&of| of != MigrateType::Isolate);
    let runs = types.flat_map(|of| (0..).zip(areas.runs[of as usize]));
    runs.map(|(order, runs): (u32, u64)| runs << order).sum()
}
