//! Tracks whether anything was freed since caches were last drained, at the cost of one load of a
//! shared word in each operation.
//!
//! A drain sets a mark before its barrier on all CPUs
//! ([`Platform::cpu_barrier`](crate::Platform::cpu_barrier)). A CPU that frees memory or fills a
//! cache afterwards finds the mark and clears it. If an operation looked at the mark before its
//! CPU's barrier, the drain sees its effect: its memory is in a zone already, or its CPU is still
//! inside its cache, and the drain waits for it. So while the mark stands after the drain has
//! ended, caches are empty, and memory that a search did not find is not there (invariant 18).
//!
//! An owner's answer ([`Ownership`](super::Ownership)) separates what it did in its cache before
//! the drain from what it does after, but says nothing of tasks that run on none of the platform's
//! CPUs. Such tasks free into zones, so a drain without a barrier takes and releases the lock of
//! each zone instead: the drain sees a free whose critical section came before, and a free whose
//! section comes after sees the mark.
//!
//! The word also says whether an operation has anything else to do besides its own work, so that
//! all these checks together cost one branch.

use super::atomics::atomic::{AtomicU64, Ordering};
use super::barrier::order_store_before_load;

/// A drain has begun and nothing was freed since.
const DRAINED: u64 = 1;
/// A debugging aid watches every operation.
const WATCHED: u64 = 2;
/// The bits above these two count the drains that have begun.
const BEGUN: u64 = 4;

/// See the module documentation.
///
/// Several drains may run at a time. The mark and the number of the drain that set it share one
/// word, so that the mark of one drain cannot be mistaken for another's.
pub struct DrainEpoch {
    attention: AtomicU64,
    /// The number of the latest drain that has ended.
    ended: AtomicU64,
}

impl DrainEpoch {
    /// Makes an epoch in which nothing was drained yet. With `watched`,
    /// [`wants_attention`](Self::wants_attention) is true for ever.
    #[must_use]
    pub fn new(watched: bool) -> Self {
        let attention = if watched { WATCHED } else { 0 };
        Self { attention: AtomicU64::new(attention), ended: AtomicU64::new(0) }
    }

    /// Whether an operation has anything to do besides its own work.
    #[inline]
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        // Relaxed: the drain's barrier on all CPUs orders this load after the release of the
        // memory, see the module documentation. A caller of `number` acquires what it needs there.
        cfg!(any(feature = "smp", feature = "debug"))
            && self.attention.load(Ordering::Relaxed) & (DRAINED | WATCHED) != 0
    }

    /// Notes that memory becomes free. Called after the memory went into a zone, or anywhere inside
    /// the section of the cache that it goes into.
    #[inline]
    pub fn note_free(&self) {
        self.note_free_with(order_store_before_load);
    }

    /// [`note_free`](Self::note_free) without the fence that stands for a barrier in models: this
    /// is what processors execute.
    #[cfg(loom)]
    pub fn note_free_without_fence(&self) {
        self.note_free_with(|| {});
    }

    #[inline(always)]
    fn note_free_with(&self, order_store_before_load: impl FnOnce()) {
        if !cfg!(feature = "smp") {
            return;
        }
        // The look at the mark must come after the memory is in its zone.
        order_store_before_load();
        if self.wants_attention() {
            self.end();
        }
    }

    /// Ends the epoch: memory was freed, or something else changed, under no zone's lock, because
    /// of which requests had failed.
    #[cold]
    pub fn end(&self) {
        // Release pairs with the Acquire in `begin_drain`: a drain whose mark this does not clear
        // sees the change.
        self.attention.fetch_and(!DRAINED, Ordering::Release);
    }

    /// Begins a drain, before owners are asked. Returns the drain's number, for
    /// [`end_drain`](Self::end_drain).
    pub fn begin_drain(&self) -> u64 {
        let marked = |old: u64| (old | DRAINED) + BEGUN;
        let mut old = self.attention.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `end`. What makes the mark visible to those who free is
        // the barrier on all CPUs or, without one, what owners acquire when they answer, and zone
        // locks.
        while let Err(now) = self.attention.compare_exchange_weak(
            old,
            marked(old),
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            old = now;
        }
        marked(old) / BEGUN
    }

    /// Ends drain `number`.
    pub fn end_drain(&self, number: u64) {
        // Release pairs with the Acquire in `number`: a CPU that finds the mark also finds the
        // drained memory in the zones. A maximum, because a drain that began later may have ended
        // before.
        self.ended.fetch_max(number, Ordering::Release);
    }

    /// The number of the current epoch. There is one when a drain has ended, no other drain has
    /// begun, and nothing was freed since that drain began.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        if !cfg!(feature = "smp") {
            return None;
        }
        // Acquire pairs with the Release in `end_drain`. This load comes first, so that the word
        // loaded next is from after the end of that drain.
        let ended = self.ended.load(Ordering::Acquire);
        // Relaxed: nothing is read on the strength of this word, and a thread that knows of a free
        // or of a later drain cannot load an older word.
        let attention = self.attention.load(Ordering::Relaxed);
        (attention & DRAINED != 0 && attention / BEGUN == ended).then_some(ended)
    }
}
