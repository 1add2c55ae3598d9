//! What a manager can be asked, by subject.
//!
//! [`Manager`] itself brings up, allocates, frees and says what there is. Everything else hangs off
//! it in small values that are copied freely: `manager.references().try_get(pfn)`,
//! `manager.vmemmap().bytes()`. Each borrows the manager and has no state.

use crate::manager::state::Manager;
use crate::manager::state::moving::Mover;
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

                /// For parts that are on.
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
        /// The vmemmap: page descriptors, how they come into being, and giving them back.
        vmemmap -> Vmemmap;
        /// What `/proc/sys/vm` sets: watermarks and reserves.
        sysctl -> Sysctl;
        /// What happens when memory is short.
        pressure -> Pressure;
        /// Frames in the caches of CPUs; [`Manager::drain`] empties them.
        caches -> Caches;
        /// CPUs that come and go.
        cpus -> Cpus;
        /// Whose memory requests got.
        numa -> Numa;
    }
    feature = "vmemmap" {
        /// Reference counts of allocated pages, runs and blocks.
        references -> References;
    }
    feature = "pools" {
        /// Huge-page pools of all sizes; [`Manager::pool`] is one of them.
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
        /// What debug aids found.
        debug -> Debugging;
    }
}

/// Moving what is in memory: vacating, ranges at a given place, compaction.
pub struct Moving<'m, P: Platform> {
    pub(crate) manager: &'m Manager<P>,
    /// Who moves contents, where it is not the one that is registered.
    pub(crate) by: Option<&'m dyn Mover>,
    /// Whether other nodes' memory will do where the own has none.
    pub(crate) leaves_node: bool,
}

impl<P: Platform> Clone for Moving<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Moving<'_, P> {}

impl<P: Platform> Manager<P> {
    /// Moving what is in memory: vacating, ranges at a given place, compaction.
    #[cfg(feature = "moving")]
    #[must_use]
    pub const fn moving(&self) -> Moving<'_, P> {
        Moving { manager: self, by: None, leaves_node: false }
    }

    /// For parts that are on.
    #[cfg(not(feature = "moving"))]
    pub(crate) const fn moving(&self) -> Moving<'_, P> {
        Moving { manager: self, by: None, leaves_node: false }
    }
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Lets `mover` move contents in the calls on what this returns, and not the mover that is
    /// registered. One that serves another manager moves nothing.
    #[must_use]
    pub const fn by(self, mover: &'m dyn Mover) -> Self {
        Self { by: Some(mover), ..self }
    }
}
