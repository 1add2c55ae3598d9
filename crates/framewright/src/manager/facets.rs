//! The operations of a manager, by subject.
//!
//! [`Manager`] itself brings memory up, allocates it, frees it, counts it and checks it. Everything
//! else is reached through facets, small values that are copied freely:
//! `manager.references().try_get(pfn)`, `manager.vmemmap().bytes()`. Each facet borrows the manager
//! and has no state of its own.

use crate::manager::state::Manager;
use crate::manager::state::moving::Mover;
use crate::memblock::NodeChoice;
use crate::platform::Platform;

macro_rules! facets {
    ($($when:meta { $($(#[$doc:meta])* $accessor:ident -> $name:ident;)+ })+) => {
        $($(
            $(#[$doc])*
            pub struct $name<'m, P: Platform> {
                pub(crate) manager: &'m Manager<P>,
            }

            impl<P: Platform> Clone for $name<'_, P> {
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<P: Platform> Copy for $name<'_, P> {}
        )+)+

        impl<P: Platform> Manager<P> {
            $($(
                $(#[$doc])*
                #[cfg($when)]
                #[must_use]
                #[inline]
                pub const fn $accessor(&self) -> $name<'_, P> {
                    $name { manager: self }
                }

                /// Internal while its feature is off, for code of other features.
                #[cfg(not($when))]
                pub(crate) const fn $accessor(&self) -> $name<'_, P> {
                    $name { manager: self }
                }
            )+)+
        }
    };
}

facets! {
    all() {
        /// The vmemmap: page descriptors, how they are brought up, and how they are given back.
        vmemmap -> Vmemmap;
        /// What `/proc/sys/vm` sets: watermarks and reserves.
        sysctl -> Sysctl;
        /// What happens when memory is short.
        pressure -> Pressure;
        /// Frames in the caches of CPUs; [`Manager::drain`] empties these caches.
        caches -> Caches;
        /// CPUs that go online and offline.
        cpus -> Cpus;
        /// NUMA policies, weights and tiers, and the counters of `numastat`.
        numa -> Numa;
    }
    feature = "vmemmap" {
        /// Reference counts of allocated pages, runs and blocks.
        references -> References;
    }
    feature = "pools" {
        /// All huge-page pools, of every size; [`Manager::pool`] leads to one of them.
        hugetlb -> Hugetlb;
    }
    feature = "moving" {
        /// Taking blocks out of circulation.
        isolation -> Isolation;
    }
    feature = "accept" {
        /// Memory that a guest has to accept.
        acceptance -> Acceptance;
    }
    feature = "debug" {
        /// What the debug aids found.
        debug -> Debugging;
    }
}

/// Moving the contents of memory: vacating, ranges at a given place, compaction.
pub struct Moving<'m, P: Platform> {
    pub(crate) manager: &'m Manager<P>,
    /// The mover to use in place of the registered one.
    pub(crate) by: Option<&'m dyn Mover>,
    /// Where contents move; within their own node if this is absent.
    pub(crate) to: Option<NodeChoice>,
}

impl<P: Platform> Clone for Moving<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Moving<'_, P> {}

impl<P: Platform> Manager<P> {
    /// Moving the contents of memory: vacating, ranges at a given place, compaction.
    #[cfg(feature = "moving")]
    #[must_use]
    pub const fn moving(&self) -> Moving<'_, P> {
        Moving { manager: self, by: None, to: None }
    }

    /// Internal while its feature is off, for code of other features.
    #[cfg(not(feature = "moving"))]
    pub(crate) const fn moving(&self) -> Moving<'_, P> {
        Moving { manager: self, by: None, to: None }
    }
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Uses `mover`, not the registered mover, in calls on the returned value. A mover that serves
    /// another manager moves nothing.
    #[must_use]
    pub const fn by(self, mover: &'m dyn Mover) -> Self {
        Self { by: Some(mover), ..self }
    }
}
