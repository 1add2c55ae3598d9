//! A memory barrier on every CPU: the `membarrier` system call.
//!
//! Memory ordering: the SeqCst fence orders the calling thread; the system executes a barrier on
//! every other thread.

use std::io;

// Command numbers of linux/membarrier.h; libc does not name them for every target.
const GLOBAL: libc::c_int = 1 << 0;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The command that works on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// Interrupts the CPUs that run this process; takes microseconds.
    Expedited,
    /// Waits until every CPU of the system has scheduled; takes milliseconds.
    Global,
    /// There is only one CPU, which is ordered with itself.
    Unneeded,
}

impl Barrier {
    /// Finds the fastest command that works and registers the process for it.
    pub fn find(cpus: u32) -> io::Result<Self> {
        if membarrier(REGISTER_PRIVATE_EXPEDITED)
            .and_then(|()| membarrier(PRIVATE_EXPEDITED))
            .is_ok()
        {
            return Ok(Self::Expedited);
        }
        match membarrier(GLOBAL) {
            Ok(()) => Ok(Self::Global),
            Err(_) if cpus == 1 => Ok(Self::Unneeded),
            Err(error) => Err(error),
        }
    }

    /// Returns once every thread of the process has executed a full barrier since the call.
    ///
    /// # Panics
    /// If a command that worked at creation fails.
    pub fn run(self) {
        let result = match self {
            Self::Expedited => membarrier(PRIVATE_EXPEDITED),
            Self::Global => membarrier(GLOBAL),
            Self::Unneeded => Ok(()),
        };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if let Err(error) = result {
            // The command worked at creation. Going on without a barrier would corrupt memory
            // silently.
            panic!("membarrier stopped working: {error}");
        }
    }
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes three integers and touches no memory of the process.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
