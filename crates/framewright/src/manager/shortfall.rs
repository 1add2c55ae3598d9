//! Why a request found no memory, worked out when somebody asks: an [`AllocateError`] stays two bytes of news.

use super::allocate::{AllocateError, Mark};
use super::{Manager, Request};
use crate::block::MigrateType;
use crate::platform::Platform;
use crate::units::{Order, Pfn};
use crate::zone::{Zone, ZoneKind};
use core::fmt;

/// Why a request for memory is not served, as things are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortfall {
    /// It would be served: somebody has freed memory since, or a cache has some.
    None,
    /// No zone that it allows has memory.
    NoZone {
        /// The highest kind of zone that it allows.
        highest: ZoneKind,
    },
    /// All memory of the zones that it allows ends above its highest address.
    Address {
        /// One past the highest address that it allows.
        max_address: u64,
    },
    /// Enough is free, and in large enough runs, but it is kept: a zone would fall below its watermark.
    Watermark {
        /// Free in the zones that it allows.
        free_pages: u64,
        /// Must stay free there: watermarks, and what is kept from requests that could go elsewhere.
        kept_pages: u64,
    },
    /// Enough is free above the watermarks, but not in one run.
    Fragmented {
        /// Free in the zones that it allows.
        free_pages: u64,
        /// The largest free run there of a type that it may have, if there is any.
        largest: Option<Order>,
    },
    /// Less is free than is wanted.
    Exhausted {
        /// Free in the zones that it allows.
        free_pages: u64,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there is memory for it now"),
            Self::NoZone { highest } => write!(f, "there is no zone up to {highest} on the nodes that it allows"),
            Self::Address { max_address } => write!(f, "there is no memory below {max_address:#x} where it may be"),
            Self::Watermark { free_pages, kept_pages } => {
                write!(f, "{free_pages} pages are free, and watermarks keep {kept_pages}")
            }
            Self::Fragmented { free_pages, largest: Some(largest) } => {
                write!(f, "{free_pages} pages are free, but in runs of at most {largest:?} where it may have them")
            }
            Self::Fragmented { free_pages, largest: None } => {
                write!(f, "{free_pages} pages are free, but none that it may have")
            }
            Self::Exhausted { free_pages } => write!(f, "{free_pages} pages are free"),
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Why a request is not served, or would not be, as things are now: for messages. Looks at all free memory of the
    /// zones that the request allows, so that it takes a while on a large machine.
    ///
    /// # Errors
    /// [`AllocateError`] when the request is wrong in itself.
    pub fn shortfall(&self, request: &Request) -> Result<Shortfall, AllocateError> {
        let order = request.order()?;
        let search = self.search(request)?;
        let zones = || self.zonelist(&search).filter(|zone| zone.managed_pages() != 0);
        let below = Pfn::containing(request.max_address);
        let fits = |zone: &&'static Zone| zone.span().start < below;
        if zones().next().is_none() {
            return Ok(Shortfall::NoZone { highest: request.zone });
        }
        if !zones().any(|zone| fits(&zone)) {
            return Ok(Shortfall::Address { max_address: request.max_address });
        }
        let mark = if request.reserves { Mark::Nothing } else { Mark::Min };
        let (mut free_pages, mut kept_pages, mut enough, mut above) = (0, 0, false, false);
        let mut largest = None;
        for zone in zones().filter(fits) {
            let (free, keeps) = (zone.free_pages(), mark.keeps(zone, request.zone));
            let run = self.largest_run(zone, request.migrate_type);
            let is_above = free >= keeps.saturating_add(order.pages());
            if is_above && run >= Some(order) && zone.span().end <= below {
                return Ok(Shortfall::None);
            }
            free_pages += free;
            kept_pages += keeps;
            enough |= free >= order.pages();
            above |= is_above;
            // What is kept back is no answer to how large a run there is to have.
            largest = largest.max(run);
        }
        Ok(if !enough {
            Shortfall::Exhausted { free_pages }
        } else if above || largest < Some(order) {
            Shortfall::Fragmented { free_pages, largest }
        } else {
            Shortfall::Watermark { free_pages, kept_pages }
        })
    }

    /// The largest free run of a zone that requests of a type may have.
    fn largest_run(&self, zone: &Zone, migrate_type: MigrateType) -> Option<Order> {
        let areas = zone.free_areas(self.platform);
        let types = core::iter::once(&migrate_type).chain(migrate_type.fallbacks());
        let order = types.filter_map(|&of| areas.runs[of as usize].iter().rposition(|&runs| runs != 0)).max()?;
        Order::new(u8::try_from(order).ok()?)
    }
}
