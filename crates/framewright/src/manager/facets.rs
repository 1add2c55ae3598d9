//! What a manager can be asked, by subject.
//!
//! [`Manager`] itself brings up, allocates, frees and says what there is. Everything else hangs off
//! it in small values that are copied freely: `manager.references().try_get(pfn)`,
//! `manager.vmemmap().bytes()`. Each borrows the manager and has no state.

use crate::manager::state::Manager;
use crate::platform::Platform;

macro_rules! facets {
    ($($(#[$doc:meta])* $accessor:ident -> $name:ident;)+) => {
        $(
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
        )+

        impl<P: Platform> Manager<P> {
            $(
                $(#[$doc])*
                #[must_use]
                #[inline]
                pub const fn $accessor(&self) -> $name<'_, P> {
                    $name { manager: self }
                }
            )+
        }
    };
}

facets! {
    /// Reference counts of allocated pages, runs and blocks.
    references -> References;
    /// The vmemmap: page descriptors, how they come into being, and giving them back.
    vmemmap -> Vmemmap;
    /// Huge-page pools of all sizes; [`Manager::pool`] is one of them.
    hugetlb -> Hugetlb;
    /// What `/proc/sys/vm` sets: watermarks and reserves.
    sysctl -> Sysctl;
    /// Taking blocks out of circulation.
    isolation -> Isolation;
    /// What happens when memory is short.
    pressure -> Pressure;
    /// Frames in the caches of CPUs; [`Manager::drain`] empties them.
    caches -> Caches;
    /// Whose memory requests got.
    numa -> Numa;
    /// What debug aids found.
    debug -> Debugging;
}
