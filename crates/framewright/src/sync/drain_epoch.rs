//! Whether anything was freed since caches were last drained, at the price of one load of a shared
//! word in each operation.
//!
//! A drain marks its beginning before its barrier on all CPUs
//! ([`Platform::cpu_barrier`](crate::Platform::cpu_barrier)); whoever then frees memory or fills a
//! cache finds the mark and takes it away. An operation whose look at the mark came before its
//! CPU's barrier is one that the drain sees: its memory is in a zone already, or its CPU is still
//! inside its cache, for which the drain waits. So while the mark stands after the drain has ended,
//! caches are empty, and what a search did not find is not there (invariant 18).
//!
//! The answer of an owner ([`Ownership`](super::Ownership)) divides what is done in its cache, but
//! not what tasks do that are on no CPU of the platform's. They free into zones, so a drain without
//! a barrier takes and releases the lock of each zone instead: a free whose section came before is
//! seen, and one that comes after sees the mark.
//!
//! The word also says whether an operation has anything else to do besides its own work, so that
//! all of that together costs one branch.

use super::atomics::atomic::{AtomicU64, Ordering};
use super::barrier::order_store_before_load;

/// A drain has begun and nothing was freed since.
const DRAINED: u64 = 1;
/// Something looks at every operation.
const WATCHED: u64 = 2;
/// Above both: how many drains have begun.
const BEGUN: u64 = 4;

/// See the module documentation.
///
/// Several may drain at a time. The mark and the number of the drain that made it are one word, so
/// that nobody takes the mark of one drain for that of another.
pub struct DrainEpoch {
    attention: AtomicU64,
    /// The latest drain that has ended.
    ended: AtomicU64,
}

impl DrainEpoch {
    /// Nothing was drained yet. With `watched`, [`wants_attention`](Self::wants_attention) is true
    /// for ever.
    #[must_use]
    pub fn new(watched: bool) -> Self {
        let attention = if watched { WATCHED } else { 0 };
        Self { attention: AtomicU64::new(attention), ended: AtomicU64::new(0) }
    }

    /// Whether an operation has anything to care for besides its work.
    #[inline]
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        // Relaxed: the drain's barrier on all CPUs orders it after the memory's release, see the
        // module documentation. Who asks for the number instead acquires what he needs there.
        cfg!(any(feature = "smp", feature = "debug"))
            && self.attention.load(Ordering::Relaxed) & (DRAINED | WATCHED) != 0
    }

    /// Memory becomes free: called after it came into a zone, or anywhere inside the section of the
    /// cache that it comes into.
    #[inline]
    pub fn note_free(&self) {
        self.note_free_with(order_store_before_load);
    }

    /// [`note_free`](Self::note_free) without the fence that stands for a barrier in models: as
    /// processors see it.
    #[cfg(loom)]
    pub fn note_free_without_fence(&self) {
        self.note_free_with(|| {});
    }

    #[inline(always)]
    fn note_free_with(&self, order_store_before_load: impl FnOnce()) {
        if !cfg!(feature = "smp") {
            return;
        }
        // The mark is looked at once the memory is in its zone.
        order_store_before_load();
        if self.wants_attention() {
            self.end();
        }
    }

    /// Something else has changed for which requests failed, under no zone's lock.
    #[cold]
    pub fn end(&self) {
        // Release pairs with the Acquire in `begin_drain`: a drain whose mark this does not take
        // away sees the change.
        self.attention.fetch_and(!DRAINED, Ordering::Release);
    }

    /// A drain begins: before owners are asked. Returns its number, for
    /// [`end_drain`](Self::end_drain).
    pub fn begin_drain(&self) -> u64 {
        let marked = |old: u64| (old | DRAINED) + BEGUN;
        let mut old = self.attention.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `end`. The barrier on all CPUs makes the mark visible
        // to those who free, or else what owners acquire when they answer, and zone locks.
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

    /// The drain of that number is over.
    pub fn end_drain(&self, number: u64) {
        // Release pairs with the Acquire in `number`: whoever finds the mark finds the drained
        // memory in the zones. One that began later may have ended before.
        self.ended.fetch_max(number, Ordering::Release);
    }

    /// The number of the epoch: there is one when a drain has ended, no other has begun, and
    /// nothing was freed since it began.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        if !cfg!(feature = "smp") {
            return None;
        }
        // Acquire pairs with the Release in `end_drain`. First, so that what is found next was so
        // after that drain had ended.
        let ended = self.ended.load(Ordering::Acquire);
        // Relaxed: nothing is read because of it, and who knows of a free or of a later drain finds
        // no older word.
        let attention = self.attention.load(Ordering::Relaxed);
        (attention & DRAINED != 0 && attention / BEGUN == ended).then_some(ended)
    }
}
