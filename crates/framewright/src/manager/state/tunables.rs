//! What the command line set: some of it can be changed while the machine runs, the rest can be
//! asked for.

use crate::manager::Manager;
use crate::parameters::{MOST_MIN_FREE_KBYTES, Pages, Parameters};
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::units::NodeId;
use crate::zone::{
    COMPACTION_PROACTIVENESS, EXTFRAG_THRESHOLD, LOWMEM_RESERVE_RATIO, Zone, ZoneId, ZoneKind,
    default_min_free_kbytes, lowmem_reserve, watermarks,
};
use core::fmt;

/// What `watermark_scale_factor` can be.
pub(crate) const SCALE_FACTORS: core::ops::RangeInclusive<u64> = 1..=3000;
/// What `extfrag_threshold` can be at most.
pub(crate) const MOST_EXTFRAG_THRESHOLD: u64 = 1000;
/// What `compaction_proactiveness` can be at most.
pub(crate) const MOST_PROACTIVENESS: u64 = 100;

/// What stays as it was at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `pages=`.
    pub pages: Pages,
    /// False with `numa=off`.
    pub numa: bool,
    /// `mem=`.
    pub memory_limit: Option<u64>,
    /// `page_alloc.shuffle=`.
    pub shuffle: bool,
}

impl Settings {
    pub(crate) const fn of(parameters: &Parameters) -> Self {
        let &Parameters { pages, numa, memory_limit, shuffle, .. } = parameters;
        Self { pages, numa, memory_limit, shuffle }
    }
}

/// What can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tunables {
    pub(crate) min_free_kbytes: u64,
    /// What somebody asked for, on the command line or later.
    pub(crate) wanted_min_free_kbytes: Option<u64>,
    pub(crate) watermark_scale_factor: u64,
    pub(crate) lowmem_reserve_ratio: [u64; ZoneKind::COUNT],
    pub(crate) extfrag_threshold: u64,
    pub(crate) compaction_proactiveness: u64,
}

impl Tunables {
    pub(crate) fn of(parameters: &Parameters, zones: &[Zone]) -> Self {
        let default = || default_min_free_kbytes(zones.iter().map(Zone::final_managed_pages).sum());
        Self {
            min_free_kbytes: parameters.min_free_kbytes.unwrap_or_else(default),
            wanted_min_free_kbytes: parameters.min_free_kbytes,
            watermark_scale_factor: parameters.watermark_scale_factor,
            lowmem_reserve_ratio: LOWMEM_RESERVE_RATIO,
            extfrag_threshold: EXTFRAG_THRESHOLD,
            compaction_proactiveness: COMPACTION_PROACTIVENESS,
        }
    }

    /// There is more memory, or less: as much is kept free as of what cannot be said to be movable
    /// follows, unless somebody wants more (Linux: `mm/page_alloc.c`, `calculate_min_free_kbytes`).
    pub(crate) fn follow(&mut self, fixed_pages: u64) {
        let computed = default_min_free_kbytes(fixed_pages);
        self.min_free_kbytes = match self.wanted_min_free_kbytes {
            Some(wanted) if wanted > computed => wanted,
            _ => computed,
        };
    }

    /// Gives each zone its marks and reserves, and all of its parts the same.
    pub(crate) fn apply(&self, zones: &[Zone]) {
        let total_pages = zones.iter().map(Zone::final_managed_pages).sum();
        let mut last: Option<(NodeId, [u64; ZoneKind::COUNT])> = None;
        for part in zones {
            let ZoneId { node, kind } = part.id();
            // Parts of a node are neighbours, but for windows.
            let of_kinds = match last {
                Some((of, pages)) if of == node => pages,
                _ => pages_of_kinds(zones, node),
            };
            last = Some((node, of_kinds));
            let marks = watermarks(
                of_kinds[kind as usize],
                total_pages,
                self.min_free_kbytes,
                self.watermark_scale_factor,
            );
            let ratio = self.lowmem_reserve_ratio[kind as usize];
            part.set_watermarks(marks, lowmem_reserve(kind, of_kinds, ratio));
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Lets marks and reserves [follow](Tunables::follow) from what of all memory cannot be said to
    /// be movable. Takes each zone's lock for a look.
    #[inline(never)]
    pub(in crate::manager) fn follow_fixed_memory(&self) -> SpinGuard<'_, Tunables, P> {
        let fixed = |zone: &Zone| {
            zone.final_managed_pages().saturating_sub(zone.most_graded_pages(self.platform))
        };
        let fixed_pages = self.zones().iter().map(fixed).sum();
        let mut tunables = self.tunables.lock(self.platform);
        tunables.follow(fixed_pages);
        tunables.apply(self.zones());
        tunables
    }
}

/// What each zone of a node manages.
fn pages_of_kinds(zones: &[Zone], node: NodeId) -> [u64; ZoneKind::COUNT] {
    let mut pages = [0; ZoneKind::COUNT];
    for zone in zones.iter().filter(|zone| zone.id().node == node) {
        pages[zone.id().kind as usize] += zone.final_managed_pages();
    }
    pages
}

/// Why a parameter was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// More than `min_free_kbytes` can be.
    TooMuch {
        /// As given.
        kbytes: u64,
    },
    /// `watermark_scale_factor` is 1 to 3000.
    BadScaleFactor {
        /// As given.
        factor: u64,
    },
    /// `extfrag_threshold` is 0 to 1000.
    BadExtfragThreshold {
        /// As given.
        threshold: u64,
    },
    /// `compaction_proactiveness` is 0 to 100.
    BadProactiveness {
        /// As given.
        proactiveness: u64,
    },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMuch { kbytes } => {
                write!(f, "min_free_kbytes cannot be {kbytes}: at most {MOST_MIN_FREE_KBYTES}")
            }
            Self::BadScaleFactor { factor } => {
                let (least, most) = SCALE_FACTORS.into_inner();
                write!(f, "watermark_scale_factor cannot be {factor}: {least} to {most}")
            }
            Self::BadExtfragThreshold { threshold } => {
                write!(f, "extfrag_threshold cannot be {threshold}: 0 to {MOST_EXTFRAG_THRESHOLD}")
            }
            Self::BadProactiveness { proactiveness } => write!(
                f,
                "compaction_proactiveness cannot be {proactiveness}: 0 to {MOST_PROACTIVENESS}"
            ),
        }
    }
}

impl core::error::Error for SettingsError {}
