//! Memory that has to be accepted before use, as in a confidential guest. Until then the process
//! has no access to it, so touching it too early stops the process with the address.
//!
//! Orders of memory: Relaxed: settings of a test, which order nothing.

use super::HostedPlatform;
use framewright::firmware::{MemoryKind, MemoryMap};
use framewright::units::{PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::{AcceptError, AcceptMemory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Stands in for the CPU's module that accepts memory.
#[derive(Debug)]
pub(super) struct Acceptance {
    /// The ranges that firmware left unaccepted.
    unaccepted: Vec<PhysRange>,
    delay_ns: AtomicU64,
    /// The frame that cannot be accepted, plus one; 0 if there is none.
    failing: AtomicU64,
}

impl HostedPlatform {
    /// Makes this platform accept the memory that `map` calls unaccepted
    /// ([`Platform::accept_memory`]). Until then there is no access to it.
    ///
    /// # Errors
    /// [`HostedError::CannotOpen`] if the system refuses to close the memory.
    ///
    /// [`Platform::accept_memory`]: framewright::Platform::accept_memory
    /// [`HostedError::CannotOpen`]: super::HostedError::CannotOpen
    pub fn with_acceptance(mut self, map: MemoryMap<'_>) -> Result<Self, super::HostedError> {
        let ranges = map.ranges().iter();
        let unaccepted: Vec<PhysRange> = ranges
            .filter(|entry| entry.kind == MemoryKind::Unaccepted)
            .map(|entry| entry.range)
            .collect();
        self.acceptance = Some(Acceptance {
            unaccepted,
            delay_ns: AtomicU64::new(0),
            failing: AtomicU64::new(0),
        });
        // SAFETY: only the caller has the platform.
        unsafe { self.forget_accepted() }?;
        Ok(self)
    }

    /// Makes all memory that firmware left unaccepted so again, as before a boot.
    ///
    /// # Safety
    /// No manager uses the memory.
    ///
    /// # Errors
    /// [`HostedError::CannotOpen`](super::HostedError::CannotOpen).
    pub unsafe fn forget_accepted(&self) -> Result<(), super::HostedError> {
        let ranges = self.acceptance.iter().flat_map(|acceptance| &acceptance.unaccepted);
        for &range in ranges {
            let offset = self.offset_of(range)?;
            self.mapping
                .close(offset, range.size())
                .map_err(|error| super::HostedError::CannotOpen { range, error })?;
        }
        Ok(())
    }

    /// Sets how long accepting 2 MiB takes. The thread sleeps meanwhile.
    pub fn set_accept_delay(&self, of_a_block: Duration) {
        if let Some(acceptance) = &self.acceptance {
            let ns = u64::try_from(of_a_block.as_nanos()).unwrap_or(u64::MAX);
            acceptance.delay_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Makes accepting this frame fail, as if the host had taken it away; `None`: none fails.
    pub fn set_accept_failure(&self, pfn: Option<Pfn>) {
        if let Some(acceptance) = &self.acceptance {
            let word = pfn.map_or(0, |pfn| pfn.0.saturating_add(1));
            acceptance.failing.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the platform as the acceptor of its memory, if acceptance was set up.
    pub(super) fn acceptor(&self) -> Option<&dyn AcceptMemory> {
        self.acceptance.as_ref().map(|_| self as &dyn AcceptMemory)
    }
}

// SAFETY: accepted memory is readable and writable, and is closed only when no manager uses it.
unsafe impl AcceptMemory for HostedPlatform {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        let nothing = Err(AcceptError { accepted_pages: 0 });
        let Some(acceptance) = &self.acceptance else { return nothing };
        let failing = acceptance.failing.load(Ordering::Relaxed).checked_sub(1).map(Pfn);
        let failing = failing.filter(|pfn| range.start <= *pfn && *pfn < range.end);
        let good = PfnRange { end: failing.unwrap_or(range.end), ..range };
        let delay_ns = acceptance.delay_ns.load(Ordering::Relaxed);
        if delay_ns != 0 {
            let ns = delay_ns.saturating_mul(good.pages()) / PAGES_PER_BLOCK;
            std::thread::sleep(Duration::from_nanos(ns));
        }
        if !good.is_empty() {
            let bytes = PhysRange::new(good.start.0 * PAGE_SIZE, good.end.0 * PAGE_SIZE);
            let opened = self.offset_of(bytes).map(|at| self.mapping.open(at, bytes.size()));
            if !matches!(opened, Ok(Ok(()))) {
                return nothing;
            }
        }
        if good.end == range.end {
            Ok(())
        } else {
            Err(AcceptError { accepted_pages: good.pages() })
        }
    }
}
