//! What the command line set: some of it can be changed while the machine runs, the rest can be
//! asked for.

use crate::parameters::{Pages, Parameters};
use crate::units::MAX_NODES;
use crate::zone::{
    COMPACTION_PROACTIVENESS, EXTFRAG_THRESHOLD, LOWMEM_RESERVE_RATIO, Zone, ZoneKind,
    default_min_free_kbytes, lowmem_reserve, watermarks,
};
use core::fmt;

/// The most that `min_free_kbytes` can be: what Linux's integer holds.
pub(crate) const MOST_MIN_FREE_KBYTES: u64 = i32::MAX as u64;
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
    pub(crate) watermark_scale_factor: u64,
    pub(crate) lowmem_reserve_ratio: [u64; ZoneKind::COUNT],
    pub(crate) extfrag_threshold: u64,
    pub(crate) compaction_proactiveness: u64,
    /// What each node can move in a second; 0 where it is not known.
    pub(crate) bandwidths: [u64; MAX_NODES],
}

impl Tunables {
    pub(crate) fn of(parameters: &Parameters, zones: &[Zone]) -> Self {
        let default = || default_min_free_kbytes(zones.iter().map(Zone::final_managed_pages).sum());
        Self {
            min_free_kbytes: parameters.min_free_kbytes.unwrap_or_else(default),
            watermark_scale_factor: parameters.watermark_scale_factor,
            lowmem_reserve_ratio: LOWMEM_RESERVE_RATIO,
            extfrag_threshold: EXTFRAG_THRESHOLD,
            compaction_proactiveness: COMPACTION_PROACTIVENESS,
            bandwidths: [0; MAX_NODES],
        }
    }

    /// Gives each zone its marks and reserves, and all of its parts the same.
    pub(crate) fn apply(&self, zones: &[Zone]) {
        let managed = |zones: &[Zone]| zones.iter().map(Zone::final_managed_pages).sum::<u64>();
        let total_pages = managed(zones);
        for zones in zones.chunk_by(|zone, next| zone.id().node == next.id().node) {
            let of_zones = || zones.chunk_by(|part, next| part.id() == next.id());
            let of_kind = |kind| of_zones().find(|parts| parts[0].id().kind == kind);
            let of_kinds = ZoneKind::ALL.map(|kind| of_kind(kind).map_or(0, managed));
            for parts in of_zones() {
                let kind = parts[0].id().kind;
                let marks = watermarks(
                    managed(parts),
                    total_pages,
                    self.min_free_kbytes,
                    self.watermark_scale_factor,
                );
                let ratio = self.lowmem_reserve_ratio[kind as usize];
                let reserve = lowmem_reserve(kind, of_kinds, ratio);
                parts.iter().for_each(|part| part.set_watermarks(marks, reserve));
            }
        }
    }
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
