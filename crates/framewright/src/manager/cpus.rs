//! CPU hotplug: the cache of a CPU that goes away is emptied by the CPUs that stay, and the shares
//! of their caches follow the number of CPUs that are online.
//!
//! ```text
//!   there ──offline──> away: its cache is empty and has no room ──online──> there
//! ```
//!
//! The cache of a CPU that goes offline is emptied as by a drain, and may hold nothing afterwards.
//! So no call can go wrong: a CPU that calls the manager while it counts as offline finds no room
//! in its cache and bypasses it. And nobody waits for an offline CPU: it is not in the middle of
//! anything, and the platform's barrier leaves out CPUs that do not run
//! ([`Platform::cpu_barrier`]).
//!
//! Orders of memory: Relaxed: the set of online CPUs is changed by one call at a time, which
//! `changing_cpus` orders (Acquire, Release), and is a hint to everybody else.

use crate::manager::facets::Cpus;
use crate::manager::pcp_drain::join;
use crate::manager::state::Manager;
use crate::page::CpuCache;
use crate::platform::{Platform, pinned};
use crate::sync::table_atomic::{AtomicBool, Ordering};
use crate::units::NodeId;
use crate::zone::FreeError;
use core::fmt;

/// Why a CPU could not go online or offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuError {
    /// There is no such CPU.
    Unknown {
        /// The CPU that was named.
        cpu: u32,
        /// Numbers of CPUs are below this.
        cpus: u32,
    },
    /// The calling CPU cannot take itself offline.
    Calling(u32),
    /// The CPU is offline already.
    Offline(u32),
    /// The CPU is online already.
    Online(u32),
    /// The CPU is the last one that is online.
    Last(u32),
    /// The caller may not wait for other CPUs here ([`Platform::can_wait`]).
    CannotWait,
    /// A frame in a cache was not allocated. All other frames have gone back, and the CPU has gone
    /// online or offline.
    Cached(FreeError),
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { cpu, cpus } => {
                write!(f, "there is no CPU {cpu}; the last one is {}", cpus.saturating_sub(1))
            }
            Self::Calling(cpu) => write!(f, "CPU {cpu} cannot take itself offline"),
            Self::Offline(cpu) => write!(f, "CPU {cpu} is offline already"),
            Self::Online(cpu) => write!(f, "CPU {cpu} is online already"),
            Self::Last(cpu) => write!(f, "CPU {cpu} is the last online CPU"),
            Self::CannotWait => f.write_str("this context cannot wait for other CPUs"),
            Self::Cached(error) => write!(f, "the CPU's cache held a bad frame: {error}"),
        }
    }
}

impl core::error::Error for CpuError {}

/// Held by the one call that may change which CPUs are online, until it is dropped.
pub(super) struct Changing<'m>(&'m AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `changing`: calls follow one another.
        self.0.store(false, Ordering::Release);
    }
}

/// Keeps out other calls that change which CPUs are online or what their caches keep. Only where
/// waiting is allowed.
fn changing<'m, P: Platform>(platform: &P, flag: &'m AtomicBool) -> Changing<'m> {
    // Acquire pairs with the Release when `Changing` is dropped.
    while flag.swap(true, Ordering::Acquire) {
        // The task that holds the flag waits for CPUs, and may have lost its own CPU.
        platform.yield_now();
    }
    Changing(flag)
}

impl<P: Platform> Manager<P> {
    /// Keeps all CPUs online or offline, as they are, while the result lives. `None` where waiting
    /// is not allowed.
    pub(super) fn keep_cpus(&self) -> Option<Changing<'_>> {
        self.platform.can_wait().then(|| changing(self.platform, &self.changing_cpus))
    }
}

impl<'m, P: Platform> Cpus<'m, P> {
    /// Takes CPU `cpu` offline (Linux: `page_alloc_cpu_dead` in `mm/page_alloc.c`): from now on its
    /// cache keeps nothing, and what was in it goes back to its zones. The caches of the other CPUs
    /// on its node may keep more, and start empty. Returns how many pages went back from all of
    /// these caches.
    ///
    /// The CPU may have stopped already, or stop later: whatever it still asks of the manager
    /// bypasses its cache. It must not stop inside a call, as this function would wait for the end
    /// of that call. [`Platform::cpu_barrier`] may leave the CPU out only after it has stopped.
    ///
    /// # Errors
    /// [`CpuError`]; without the feature `smp`, where CPUs have no caches and all stay online,
    /// always [`CpuError::Unknown`]. With any error but [`CpuError::Cached`] nothing has changed.
    pub fn offline(self, cpu: u32) -> Result<u64, CpuError> {
        let (cache, _changing) = self.begin(cpu)?;
        if cache.is_offline() {
            return Err(CpuError::Offline(cpu));
        }
        if self.count() == 1 {
            return Err(CpuError::Last(cpu));
        }
        if pinned(self.manager.platform, |own| own == cpu) {
            return Err(CpuError::Calling(cpu));
        }
        cache.set_offline(true);
        self.resize(cache).map_err(CpuError::Cached)
    }

    /// Brings CPU `cpu` online: its cache may keep memory again. The caches of the other CPUs on
    /// its node may keep less from now on, and start empty. Returns how many pages went back. The
    /// CPU itself may call this.
    ///
    /// # Errors
    /// [`CpuError`]; with any error but [`CpuError::Cached`] nothing has changed.
    pub fn online(self, cpu: u32) -> Result<u64, CpuError> {
        let (cache, _changing) = self.begin(cpu)?;
        if !cache.is_offline() {
            return Err(CpuError::Online(cpu));
        }
        cache.set_offline(false);
        self.resize(cache).map_err(CpuError::Cached)
    }

    /// Whether CPU `cpu` is online. All CPUs are at first, also those that never ran.
    #[must_use]
    pub fn is_online(self, cpu: u32) -> bool {
        if !cfg!(feature = "smp") {
            return cpu < self.manager.platform.cpus();
        }
        self.manager.caches.get(cpu as usize).is_some_and(|cache| !cache.is_offline())
    }

    /// How many CPUs are online: at least one.
    #[must_use]
    pub fn count(self) -> u32 {
        if !cfg!(feature = "smp") {
            return self.manager.platform.cpus();
        }
        self.online_on(&|_| true)
    }

    /// The CPUs that are online, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> + use<'m, P> {
        (0..self.manager.platform.cpus()).filter(move |&cpu| self.is_online(cpu))
    }

    /// Makes the checks that going online and offline share, and keeps other calls out meanwhile.
    fn begin(self, cpu: u32) -> Result<(&'static CpuCache, Changing<'m>), CpuError> {
        let Manager { platform, caches, changing_cpus, .. } = self.manager;
        let unknown = CpuError::Unknown { cpu, cpus: platform.cpus() };
        let cache = caches.get(cpu as usize).ok_or(unknown)?;
        if !platform.can_wait() {
            return Err(CpuError::CannotWait);
        }
        Ok((cache, changing(*platform, changing_cpus)))
    }

    fn node_of(self, cache: &CpuCache) -> Option<NodeId> {
        self.manager.zones().get(cache.zone()).map(|zone| zone.id().node)
    }

    fn online_on(self, wanted: &dyn Fn(&CpuCache) -> bool) -> u32 {
        let there = self.manager.caches.iter().filter(|cache| !cache.is_offline() && wanted(cache));
        u32::try_from(there.count()).unwrap_or(u32::MAX)
    }

    /// Gives each CPU whose cache keeps frames of one node's zones its share of these, after one of
    /// them went online or offline. Each cache is emptied for that. Returns how many pages went
    /// back.
    fn resize(self, of: &CpuCache) -> Result<u64, FreeError> {
        let platform = self.manager.platform;
        let node = self.node_of(of);
        let sharers = self.online_on(&|cache| self.node_of(cache) == node).max(1);
        let mut returned = Ok(0);
        self.manager.with_all_caches(&mut |cache| {
            if self.node_of(cache) != node {
                return;
            }
            // In small steps, as in a drain.
            let mut goes_on = true;
            while goes_on {
                goes_on = cache.ownership.alone(platform, || {
                    returned = join(returned, self.manager.drain_some(cache));
                    let is_empty = cache.is_empty();
                    if is_empty {
                        cache.resize(sharers);
                    }
                    !is_empty
                });
            }
        });
        returned
    }
}
