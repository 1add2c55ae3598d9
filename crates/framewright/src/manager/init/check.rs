//! Checks those promises of a platform that can be checked at bring-up.

use crate::manager::init::error::BringUpError;
use crate::memblock::Memblock;
use crate::platform::{Platform, pinned};
use crate::units::{PAGE_SIZE, Pfn};
use core::fmt;

/// How a platform breaks the contract of [`Platform`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlatformFault {
    /// [`Platform::cpus`] is 0.
    NoCpu,
    /// [`Platform::pin`] returned a number that is not below [`Platform::cpus`].
    CpuNumber {
        /// The number.
        cpu: u32,
        /// The number of possible CPUs.
        cpus: u32,
    },
    /// [`Platform::direct`] maps a page to an address that is not a multiple of the page size.
    MisalignedDirectMap {
        /// The page's physical address.
        address: u64,
        /// The distance of that address from the multiple of the page size below it.
        offset: u64,
    },
}

impl fmt::Display for PlatformFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCpu => f.write_str("Platform::cpus is 0"),
            Self::CpuNumber { cpu, cpus } => {
                write!(f, "Platform::pin returned CPU {cpu}, but Platform::cpus is {cpus}")
            }
            Self::MisalignedDirectMap { address, offset } => write!(
                f,
                "Platform::direct maps the page at {address:#x} to {offset} bytes past a \
                 multiple of {PAGE_SIZE}"
            ),
        }
    }
}

/// Checks a platform before anything is built on it.
///
/// With several CPUs this calls [`Platform::cpu_barrier`], so that a platform without a working one
/// is found at bring-up and not when memory becomes short.
pub(super) fn check<P: Platform>(
    platform: &P,
    early: &Memblock<'_, P>,
) -> Result<(), BringUpError> {
    let cpus = platform.cpus();
    if cpus == 0 {
        return Err(BringUpError::Platform(PlatformFault::NoCpu));
    }
    let cpu = pinned(platform, |cpu| cpu);
    if cpu >= cpus {
        return Err(BringUpError::Platform(PlatformFault::CpuNumber { cpu, cpus }));
    }
    if let Some((address, offset)) = misaligned(platform, early) {
        return Err(BringUpError::Platform(PlatformFault::MisalignedDirectMap { address, offset }));
    }
    if cpus > 1 && platform.can_wait() {
        platform.cpu_barrier();
    }
    Ok(())
}

/// Returns the first free page, and its offset in bytes, if the direct map misaligns it.
fn misaligned<P: Platform>(platform: &P, early: &Memblock<'_, P>) -> Option<(u64, u64)> {
    let limit = platform.direct_limit();
    let address = early.first_free().map(Pfn::address).filter(|&address| address < limit)?;
    let offset = platform.direct(address).addr().get() as u64 % PAGE_SIZE;
    (offset != 0).then_some((address, offset))
}
