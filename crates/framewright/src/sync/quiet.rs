//! Whether anything was freed since caches were last drained, at the price of one load of a shared word in each operation.
//!
//! A drain marks its beginning before its barrier on all CPUs ([`Platform::cpu_barrier`](crate::Platform::cpu_barrier)); whoever then frees memory or
//! fills a cache finds the mark and takes it away. An operation whose look at the mark came before its CPU's barrier is one that the drain sees: its
//! memory is in a zone already, or its CPU is still inside its cache, for which the drain waits. So while the mark stands after the drain has
//! ended, caches are empty, and what a search did not find is not there (invariant 18).
//!
//! The same word says whether anything else has to be done besides an operation's work, so that all of it together is one branch.

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::barrier::order_store_before_load;

/// A drain has begun and nothing was freed since.
const QUIET: u32 = 1;
/// Something looks at every operation.
const WATCHED: u32 = 2;

/// See the module documentation.
pub struct Quiet {
    attention: AtomicU32,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Quiet {
    /// Nothing was drained yet. With `watched`, [`wants_attention`](Self::wants_attention) is true for ever.
    #[must_use]
    pub fn new(watched: bool) -> Self {
        let attention = if watched { WATCHED } else { 0 };
        Self { attention: AtomicU32::new(attention), begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// Whether an operation has anything to care for besides its work.
    #[inline]
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        // Relaxed: the drain's barrier on all CPUs orders it after the memory's release, see the module documentation. Who
        // asks `number` instead acquires there.
        self.attention.load(Ordering::Relaxed) != 0
    }

    /// Memory becomes free: called after it came into a zone, or anywhere inside the section of the cache that it comes into.
    #[inline]
    pub fn stir(&self) {
        // The mark is looked at once the memory is in its zone.
        order_store_before_load();
        if self.wants_attention() {
            self.end();
        }
    }

    #[cold]
    fn end(&self) {
        // Relaxed: who finds no mark concludes nothing, and as a read-modify-write it hands on what `begin_drain` released.
        self.attention.fetch_and(!QUIET, Ordering::Relaxed);
    }

    /// A drain begins: before the barrier, and one drain at a time.
    pub fn begin_drain(&self) {
        // Relaxed: published by the next line; drainers follow one another by the lock of the caller.
        self.begun.fetch_add(1, Ordering::Relaxed);
        // Release pairs with the Acquire in `number`: who finds the mark finds that this drain has begun, and does not take
        // the mark for that of an earlier one, whose end he knows.
        self.attention.fetch_or(QUIET, Ordering::Release);
    }

    /// The drain is over.
    pub fn end_drain(&self) {
        // Release pairs with the Acquire in `number`: who finds quiet finds the drained memory in the zones. Relaxed: only
        // this drainer changes `begun` meanwhile.
        self.ended.store(self.begun.load(Ordering::Relaxed), Ordering::Release);
    }

    /// The number of the quiet: there is one when a drain has ended, no other has begun, and nothing was freed since it began.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        // Acquire pairs with the Release in `begin_drain`: the mark is looked at first, then which drain it is of.
        if self.attention.load(Ordering::Acquire) & QUIET == 0 {
            return None;
        }
        // Acquire pairs with the Release in `end_drain`.
        let ended = self.ended.load(Ordering::Acquire);
        // Relaxed: no older than the mark, by the first Acquire; a newer one only ends the quiet.
        (self.begun.load(Ordering::Relaxed) == ended).then_some(ended)
    }
}
