//! What the command line set: some of it can be changed while the machine runs, the rest can be
//! asked for.

use super::{Manager, Sysctl};
use crate::parameters::{Pages, Parameters};
use crate::platform::Platform;
use crate::zone::{
    LOWMEM_RESERVE_RATIO, Zone, ZoneKind, default_min_free_kbytes, lowmem_reserve, watermarks,
};
use core::fmt;

/// The most that `min_free_kbytes` can be: what Linux's integer holds.
const MOST_MIN_FREE_KBYTES: u64 = i32::MAX as u64;
/// What `watermark_scale_factor` can be.
const SCALE_FACTORS: core::ops::RangeInclusive<u64> = 1..=3000;

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
    pub(super) const fn of(parameters: &Parameters) -> Self {
        let &Parameters { pages, numa, memory_limit, shuffle, .. } = parameters;
        Self { pages, numa, memory_limit, shuffle }
    }
}

/// What can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tunables {
    min_free_kbytes: u64,
    watermark_scale_factor: u64,
    lowmem_reserve_ratio: [u64; ZoneKind::COUNT],
}

impl Tunables {
    pub(super) fn of(parameters: &Parameters, zones: &[Zone]) -> Self {
        let default = || default_min_free_kbytes(zones.iter().map(Zone::final_managed_pages).sum());
        Self {
            min_free_kbytes: parameters.min_free_kbytes.unwrap_or_else(default),
            watermark_scale_factor: parameters.watermark_scale_factor,
            lowmem_reserve_ratio: LOWMEM_RESERVE_RATIO,
        }
    }

    /// Gives each zone its marks and reserves.
    pub(super) fn apply(&self, zones: &[Zone]) {
        let total_pages: u64 = zones.iter().map(Zone::final_managed_pages).sum();
        for zones in zones.chunk_by(|zone, next| zone.id().node == next.id().node) {
            let of_kind = |kind| zones.iter().find(|zone| zone.id().kind == kind);
            let managed =
                ZoneKind::ALL.map(|kind| of_kind(kind).map_or(0, Zone::final_managed_pages));
            for zone in zones {
                let (kind, pages) = (zone.id().kind, zone.final_managed_pages());
                let marks = watermarks(
                    pages,
                    total_pages,
                    self.min_free_kbytes,
                    self.watermark_scale_factor,
                );
                let ratio = self.lowmem_reserve_ratio[kind as usize];
                zone.set_watermarks(marks, lowmem_reserve(kind, managed, ratio));
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
        }
    }
}

impl core::error::Error for SettingsError {}

impl<P: Platform> Sysctl<'_, P> {
    fn change(self, change: impl FnOnce(&mut Tunables)) {
        let mut tunables = self.manager.tunables.lock(self.manager.platform);
        change(&mut tunables);
        tunables.apply(self.manager.zones);
        drop(tunables);
        // Requests that failed above the old marks may succeed above the new ones.
        self.manager.pressure.quiet.stir();
    }

    /// Memory that is kept free over all zones, in KiB (SPEC 3.5).
    #[must_use]
    pub fn min_free_kbytes(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).min_free_kbytes
    }

    /// Changes it, and with it every zone's marks. More than there is makes all ordinary requests
    /// fail, as in Linux.
    ///
    /// # Errors
    /// [`SettingsError::TooMuch`]; nothing was changed.
    pub fn set_min_free_kbytes(self, kbytes: u64) -> Result<(), SettingsError> {
        if kbytes > MOST_MIN_FREE_KBYTES {
            return Err(SettingsError::TooMuch { kbytes });
        }
        self.change(|tunables| tunables.min_free_kbytes = kbytes);
        Ok(())
    }

    /// The distance between watermarks in 1/10000 of a zone (SPEC 3.5).
    #[must_use]
    pub fn watermark_scale_factor(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).watermark_scale_factor
    }

    /// Changes it, and with it every zone's marks.
    ///
    /// # Errors
    /// [`SettingsError::BadScaleFactor`]; nothing was changed.
    pub fn set_watermark_scale_factor(self, factor: u64) -> Result<(), SettingsError> {
        if !SCALE_FACTORS.contains(&factor) {
            return Err(SettingsError::BadScaleFactor { factor });
        }
        self.change(|tunables| tunables.watermark_scale_factor = factor);
        Ok(())
    }

    /// By kind of zone, of how many pages above it it keeps one from requests that could use those;
    /// 0 for none.
    #[must_use]
    pub fn lowmem_reserve_ratio(self) -> [u64; ZoneKind::COUNT] {
        self.manager.tunables.lock(self.manager.platform).lowmem_reserve_ratio
    }

    /// Changes them, and with them every zone's reserves.
    pub fn set_lowmem_reserve_ratio(self, ratio: [u64; ZoneKind::COUNT]) {
        self.change(|tunables| tunables.lowmem_reserve_ratio = ratio);
    }
}

impl<P: Platform> Manager<P> {
    /// What the command line set for good.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }
}
