//! The settings of the command line: some can be changed while the machine runs, the others only
//! read.

use crate::manager::facets::Sysctl;
use crate::manager::state::tunables::{
    MOST_EXTFRAG_THRESHOLD, MOST_PROACTIVENESS, SCALE_FACTORS, SettingsError, Tunables,
};
use crate::parameters::MOST_MIN_FREE_KBYTES;
use crate::platform::Platform;
use crate::zone::RESERVE_CLASSES;

impl<P: Platform> Sysctl<'_, P> {
    fn change(self, change: impl FnOnce(&mut Tunables)) {
        let mut tunables = self.manager.tunables.lock(self.manager.platform);
        change(&mut tunables);
        tunables.apply(self.manager.zones());
        drop(tunables);
        // Requests that failed by the old settings may succeed by the new ones.
        self.manager.pressure.epoch.end();
    }

    /// The memory that is kept free in all zones together, in KiB (Linux: `mm/page_alloc.c`,
    /// `__setup_per_zone_wmarks`).
    #[must_use]
    pub fn min_free_kbytes(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).min_free_kbytes
    }

    /// Sets the kept memory, and with it the watermarks of every zone. If it exceeds the memory of
    /// the machine, all ordinary requests fail, as in Linux.
    ///
    /// # Errors
    /// [`SettingsError::TooMuch`]; nothing was changed.
    pub fn set_min_free_kbytes(self, kbytes: u64) -> Result<(), SettingsError> {
        if kbytes > MOST_MIN_FREE_KBYTES {
            return Err(SettingsError::TooMuch { kbytes });
        }
        self.change(|tunables| {
            tunables.min_free_kbytes = kbytes;
            tunables.wanted_min_free_kbytes = Some(kbytes);
        });
        Ok(())
    }

    /// The distance between watermarks in 1/10000 of a zone (Linux: `mm/page_alloc.c`,
    /// `__setup_per_zone_wmarks`).
    #[must_use]
    pub fn watermark_scale_factor(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).watermark_scale_factor
    }

    /// Sets the scale factor, and with it the watermarks of every zone.
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

    /// By kind of zone: the zone reserves one page for every so many pages in the zones above it,
    /// from requests that could use those zones; 0 reserves none. The last is Linux's number for
    /// its zone Movable, which has no effect.
    #[must_use]
    pub fn lowmem_reserve_ratio(self) -> [u64; RESERVE_CLASSES] {
        self.manager.tunables.lock(self.manager.platform).lowmem_reserve_ratio
    }

    /// Sets the ratios, and with them the reserves of every zone.
    pub fn set_lowmem_reserve_ratio(self, ratio: [u64; RESERVE_CLASSES]) {
        self.change(|tunables| tunables.lowmem_reserve_ratio = ratio);
    }

    /// The fragmentation index up to which a request is taken to fail for lack of memory, not
    /// because of fragmentation, so that compaction does not help (Linux: `mm/compaction.c`,
    /// `compaction_suitable`); see [`suitability`](crate::zone::suitability).
    #[must_use]
    pub fn extfrag_threshold(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).extfrag_threshold
    }

    /// Sets the threshold.
    ///
    /// # Errors
    /// [`SettingsError::BadExtfragThreshold`]; nothing was changed.
    pub fn set_extfrag_threshold(self, threshold: u64) -> Result<(), SettingsError> {
        if threshold > MOST_EXTFRAG_THRESHOLD {
            return Err(SettingsError::BadExtfragThreshold { threshold });
        }
        self.change(|tunables| tunables.extfrag_threshold = threshold);
        Ok(())
    }

    /// How eagerly free memory is compacted before any request needs it, 0 for not at all (Linux:
    /// `mm/compaction.c`, `sysctl_compaction_proactiveness`); see
    /// [`ProactiveMarks`](crate::zone::ProactiveMarks).
    #[must_use]
    pub fn compaction_proactiveness(self) -> u64 {
        self.manager.tunables.lock(self.manager.platform).compaction_proactiveness
    }

    /// Sets the proactiveness.
    ///
    /// # Errors
    /// [`SettingsError::BadProactiveness`]; nothing was changed.
    pub fn set_compaction_proactiveness(self, proactiveness: u64) -> Result<(), SettingsError> {
        if proactiveness > MOST_PROACTIVENESS {
            return Err(SettingsError::BadProactiveness { proactiveness });
        }
        self.manager.tunables.lock(self.manager.platform).compaction_proactiveness = proactiveness;
        Ok(())
    }
}
