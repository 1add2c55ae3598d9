//! The settings from the command line: some can be changed at run time, the rest can only be read.

use crate::manager::Manager;
use crate::parameters::{MOST_MIN_FREE_KBYTES, Pages, Parameters};
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::units::NodeId;
use crate::zone::{
    COMPACTION_PROACTIVENESS, EXTFRAG_THRESHOLD, LOWMEM_RESERVE_RATIO, MOVABLE_CLASS,
    RESERVE_CLASSES, Zone, ZoneId, ZoneKind, default_min_free_kbytes, lowmem_reserve,
    movable_watermarks, watermarks,
};
use core::fmt;

/// The valid values of `watermark_scale_factor`.
pub(crate) const SCALE_FACTORS: core::ops::RangeInclusive<u64> = 1..=3000;
/// The largest valid `extfrag_threshold`.
pub(crate) const MOST_EXTFRAG_THRESHOLD: u64 = 1000;
/// The largest valid `compaction_proactiveness`.
pub(crate) const MOST_PROACTIVENESS: u64 = 100;

/// The settings that stay as they were at boot.
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

/// The settings that can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tunables {
    pub(crate) min_free_kbytes: u64,
    /// The `min_free_kbytes` that was set on the command line or later.
    pub(crate) wanted_min_free_kbytes: Option<u64>,
    pub(crate) watermark_scale_factor: u64,
    pub(crate) lowmem_reserve_ratio: [u64; RESERVE_CLASSES],
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

    /// Adapts `min_free_kbytes` to the amount of memory that is not known to be movable, unless a
    /// larger value was set (Linux: `mm/page_alloc.c`, `calculate_min_free_kbytes`, which compares
    /// with what it has computed before it limits that, so that it replaces values of more than
    /// 256 MiB where memory is very large).
    pub(crate) fn follow(&mut self, fixed_pages: u64) {
        let computed = default_min_free_kbytes(fixed_pages);
        self.min_free_kbytes = match self.wanted_min_free_kbytes {
            Some(wanted) if wanted > computed => wanted,
            _ => computed,
        };
    }

    /// Sets the watermarks and reserves of each zone; all parts of a zone get the same.
    pub(crate) fn apply(&self, zones: &[Zone]) {
        let total_pages = zones.iter().map(|zone| zone.pages_for_limits().ungraded).sum();
        let (mut last, mut pages) = (None, NodePages::NONE);
        for part in zones {
            let ZoneId { node, kind } = part.id();
            // The parts of a node are neighbours, except for windows.
            if last != Some(node) {
                (last, pages) = (Some(node), NodePages::of(zones, node));
            }
            let (total_kbytes, factor) = (self.min_free_kbytes, self.watermark_scale_factor);
            let kind_pages = pages.managed[kind as usize];
            let marks = watermarks(kind_pages, total_pages, total_kbytes, factor);
            let graded_pages = pages.graded[kind as usize];
            let more = movable_watermarks(graded_pages, total_pages, total_kbytes, factor);
            // A zone keeps nothing back if there is no memory for all requests in it.
            let ratio = if kind_pages == 0 { 0 } else { self.lowmem_reserve_ratio[kind as usize] };
            let reserve = lowmem_reserve(kind, pages.managed, ratio);
            part.set_watermarks(kind_pages + graded_pages, marks, more, reserve);
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Sets watermarks and reserves anew after grades have changed. Takes each zone's lock briefly.
    #[inline(never)]
    pub(in crate::manager) fn follow_grades(&self) {
        self.zones().iter().for_each(|zone| zone.note_grades(self.platform));
        self.tunables.lock(self.platform).apply(self.zones());
        // Requests that failed above the old limits may succeed above the new ones.
        self.pressure.epoch.end();
    }

    /// Lets watermarks and reserves [follow](Tunables::follow) from the amount of memory that is
    /// not known to be movable. Takes each zone's lock briefly.
    #[inline(never)]
    pub(in crate::manager) fn follow_fixed_memory(&self) -> SpinGuard<'_, Tunables, P> {
        self.zones().iter().for_each(|zone| zone.note_grades(self.platform));
        let fixed_pages = self.zones().iter().map(|zone| zone.pages_for_limits().ungraded).sum();
        let mut tunables = self.tunables.lock(self.platform);
        tunables.follow(fixed_pages);
        tunables.apply(self.zones());
        tunables
    }
}

/// How many pages the zones of a node manage.
struct NodePages {
    /// By kind of zone, without memory that only movable requests may have; then what these take
    /// first.
    managed: [u64; RESERVE_CLASSES],
    /// By kind of zone, what only movable requests may have.
    graded: [u64; ZoneKind::COUNT],
}

impl NodePages {
    const NONE: Self = Self { managed: [0; RESERVE_CLASSES], graded: [0; ZoneKind::COUNT] };

    fn of(zones: &[Zone], node: NodeId) -> Self {
        let mut all = Self::NONE;
        for zone in zones.iter().filter(|zone| zone.id().node == node) {
            let (pages, kind) = (zone.pages_for_limits(), zone.id().kind as usize);
            all.managed[kind] += pages.ungraded;
            all.managed[MOVABLE_CLASS] += pages.movable_only;
            all.graded[kind] += pages.graded;
        }
        all
    }
}

/// Why a setting was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// The value is larger than `min_free_kbytes` can be.
    TooMuch {
        /// The value that was given.
        kbytes: u64,
    },
    /// `watermark_scale_factor` is 1 to 3000.
    BadScaleFactor {
        /// The value that was given.
        factor: u64,
    },
    /// `extfrag_threshold` is 0 to 1000.
    BadExtfragThreshold {
        /// The value that was given.
        threshold: u64,
    },
    /// `compaction_proactiveness` is 0 to 100.
    BadProactiveness {
        /// The value that was given.
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
