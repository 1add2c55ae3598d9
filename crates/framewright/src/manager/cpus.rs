//! CPUs that come and go: their caches are emptied by whoever is left, and what the others may keep
//! follows the number of those that are there.
//!
//! ```text
//!   there ──offline──> away: its cache is empty and has no room ──online──> there
//! ```
//!
//! The cache of a CPU that is away is emptied as by a drain, and then it may keep nothing. So
//! nothing that a CPU does can be wrong: one that calls the manager while it is said to be away
//! finds no room in its cache and goes past it. And nobody waits for one that is away: it is in the
//! middle of nothing, and the platform's barrier leaves out CPUs that do not run
//! ([`Platform::cpu_barrier`]).
//!
//! Orders of memory: Relaxed: which CPUs there are is changed by one call at a time, which
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

/// Why a CPU does not come or go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuError {
    /// There is no such CPU.
    Unknown {
        /// Which was named.
        cpu: u32,
        /// Numbers of CPUs are below this.
        cpus: u32,
    },
    /// The calling CPU does not say of itself that it is away.
    Calling(u32),
    /// It is away already.
    Offline(u32),
    /// It is there already.
    Online(u32),
    /// It is the last one that is there.
    Last(u32),
    /// Other CPUs cannot be waited for from here ([`Platform::can_wait`]).
    CannotWait,
    /// A frame in a cache was not allocated. Everything else has gone back, and the CPU has gone
    /// or come.
    Cached(FreeError),
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { cpu, cpus } => {
                write!(f, "there is no CPU {cpu}; the last one is {}", cpus.saturating_sub(1))
            }
            Self::Calling(cpu) => write!(f, "CPU {cpu} is the calling CPU"),
            Self::Offline(cpu) => write!(f, "CPU {cpu} is offline already"),
            Self::Online(cpu) => write!(f, "CPU {cpu} is online already"),
            Self::Last(cpu) => write!(f, "CPU {cpu} is the last online CPU"),
            Self::CannotWait => f.write_str("this context cannot wait for other CPUs"),
            Self::Cached(error) => write!(f, "the CPU's cache held a bad frame: {error}"),
        }
    }
}

impl core::error::Error for CpuError {}

/// The only call that changes which CPUs there are, until it is dropped.
pub(super) struct Changing<'m>(&'m AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `begin`: calls follow one another.
        self.0.store(false, Ordering::Release);
    }
}

/// Keeps others out who change which CPUs there are or what they keep. Where waiting is allowed.
fn changing<'m, P: Platform>(platform: &P, flag: &'m AtomicBool) -> Changing<'m> {
    // Acquire pairs with the Release when `Changing` is dropped.
    while flag.swap(true, Ordering::Acquire) {
        // Whoever has it waits for CPUs, and may have lost his own.
        platform.yield_now();
    }
    Changing(flag)
}

impl<P: Platform> Manager<P> {
    /// No CPU comes or goes meanwhile; nothing where one may and cannot be waited for.
    pub(super) fn keep_cpus(&self) -> Option<Changing<'_>> {
        self.platform.can_wait().then(|| changing(self.platform, &self.changing_cpus))
    }
}

impl<'m, P: Platform> Cpus<'m, P> {
    /// Says that CPU `cpu` goes away (Linux: `page_alloc_cpu_dead` in `mm/page_alloc.c`): from now
    /// on it keeps nothing, and what it kept goes back to its zones. The others on its node may
    /// keep more, and begin with nothing. Returns how many pages went back, of all of them.
    ///
    /// It is the same whether the CPU has stopped already or is going to: what it still asks of the
    /// manager is served past its cache. It must not stop inside a call, as this would wait for the
    /// end of that. Only after it has stopped may [`Platform::cpu_barrier`] leave it out.
    ///
    /// # Errors
    /// [`CpuError`]; without the feature `smp`, where CPUs keep nothing and all are there for ever,
    /// always [`CpuError::Unknown`]. With all but [`CpuError::Cached`] nothing has changed.
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

    /// Says that CPU `cpu` is back and may keep memory again. The others on its node may keep less
    /// from now on, and begin with nothing. Returns how many pages went back. May be called by the
    /// CPU itself.
    ///
    /// # Errors
    /// [`CpuError`]; with all but [`CpuError::Cached`] nothing has changed.
    pub fn online(self, cpu: u32) -> Result<u64, CpuError> {
        let (cache, _changing) = self.begin(cpu)?;
        if !cache.is_offline() {
            return Err(CpuError::Online(cpu));
        }
        cache.set_offline(false);
        self.resize(cache).map_err(CpuError::Cached)
    }

    /// Whether CPU `cpu` is there. All are at first, also those that never ran.
    #[must_use]
    pub fn is_online(self, cpu: u32) -> bool {
        if !cfg!(feature = "smp") {
            return cpu < self.manager.platform.cpus();
        }
        self.manager.caches.get(cpu as usize).is_some_and(|cache| !cache.is_offline())
    }

    /// How many are there: at least one.
    #[must_use]
    pub fn count(self) -> u32 {
        if !cfg!(feature = "smp") {
            return self.manager.platform.cpus();
        }
        self.online_on(&|_| true)
    }

    /// The CPUs that are there, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> + use<'m, P> {
        (0..self.manager.platform.cpus()).filter(move |&cpu| self.is_online(cpu))
    }

    /// Checks what is the same for coming and going, and keeps other calls out meanwhile.
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

    /// Gives all CPUs that keep frames of one node's zones their share of those, after one of them
    /// came or went: each is emptied on the way. Says how many pages went back.
    fn resize(self, of: &CpuCache) -> Result<u64, FreeError> {
        let platform = self.manager.platform;
        let node = self.node_of(of);
        let sharers = self.online_on(&|cache| self.node_of(cache) == node).max(1);
        let mut returned = Ok(0);
        self.manager.with_all_caches(&mut |cache| {
            if self.node_of(cache) != node {
                return;
            }
            // Bit by bit, as in a drain.
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
