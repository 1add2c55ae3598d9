//! How helpers get work: one [`WorkerSlot`] for each helper, owned by the platform, and
//! [`JobSlots`], the slots that a job has reserved.
//!
//! # Protocol
//!
//! The whole state of a slot is one word: either null, or a tag together with the address of a
//! job's entry on its caller's stack.
//!
//! ```text
//!           caller: reserve          caller: offer            helper: serve
//!    idle ------------------> RESERVED ------------> OFFERED ----------------> RUNNING
//!     ^ ^                        |                      |                      |  |
//!     | +-- caller: withdraw ----+----------------------+                      |  | chunk failed
//!     +------------------ helper: ended without error -------------------------+  v or panicked
//!     +------------------ caller: has read how it ended ----------- FAILED, PANICKED
//! ```
//!
//! A caller returns only when no slot names its entry. It withdraws an offer with a
//! compare-and-swap: if that succeeds, the helper never sees the job; if it fails, the helper is
//! running, and the caller waits for it. No generation number is needed: while the entry is alive
//! no other job's entry has its address, and only its own caller puts that address into a slot.
//!
//! # Memory ordering
//!
//! | store | load | carries |
//! |---|---|---|
//! | `offer_reserved`, Release | `serve_with`, Acquire | the entry and all that the caller wrote |
//! | `serve_with`, AcqRel | `is_idle`, Acquire | what the helper did before it took the work |
//! | end of `serve_with`, Release | `has_ended`, Acquire | what the chunks wrote and what failed |
//! | end of `serve_with`, Release | `reserve`, Acquire | that the last helper is out (1) |
//!
//! (1) To the next job and, through that job, to the caller of the previous job if that caller
//!     looks at the slot only later.
//!
//! The two SeqCst fences are partners: a caller offers work and then checks which helpers sleep; a
//! helper announces that it sleeps and then checks for an offer. Relaxed loads only choose which
//! exchange to try, or follow an Acquire of the same word in `has_ended`.

use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::const_fn;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;

const RESERVED: usize = 1;
const OFFERED: usize = 2;
const RUNNING: usize = 3;
const FAILED: usize = 4;
const PANICKED: usize = 5;
const TAGS: usize = 7;

/// The node of a slot if the helper may run anywhere.
const ANY_NODE: u32 = u32::MAX;

/// How a helper's part of a job ended.
pub(crate) enum Ended {
    /// There was nothing left to do, or another job needs the helper more.
    Done,
    /// This chunk returned an error.
    Failed(Range<u64>),
}

/// What a helper does for a job.
pub(crate) trait Work {
    /// Runs on a helper's thread, at most once for each offer.
    fn help(&self) -> Ended;
}

/// A job on its caller's stack, type-erased. The alignment leaves the low address bits free for the
/// tags.
#[repr(align(8))]
struct Entry {
    work: *const (),
    help: unsafe fn(*const ()) -> Ended,
}

/// # Safety
/// `work` points to a `W` that lives until this returns.
unsafe fn help<W: Work>(work: *const ()) -> Ended {
    // SAFETY: the caller promises it.
    let work = unsafe { &*work.cast::<W>() };
    work.help()
}

fn tag(word: *mut Entry) -> usize {
    word.addr() & TAGS
}

fn entry(word: *mut Entry) -> *mut Entry {
    word.map_addr(|address| address & !TAGS)
}

fn tagged(entry: *mut Entry, tag: usize) -> *mut Entry {
    entry.map_addr(|address| address | tag)
}

/// The place where one helper finds work. The platform has one slot for each helper, in memory that
/// outlives every job: a static array or a pool.
///
/// A helper's loop looks like this:
///
/// ```
/// # use framewright_jobs::WorkerSlot;
/// # fn sleep_until_woken() {}
/// fn helper_turn(slot: &WorkerSlot) {
///     while slot.serve() {}
///     // Say that this helper sleeps; then, because work may have come in between:
///     if !slot.has_work() {
///         sleep_until_woken();
///     }
/// }
/// # helper_turn(&WorkerSlot::new());
/// ```
///
/// A slot fills a cache line, so that helpers do not disturb each other.
#[repr(align(64))]
pub struct WorkerSlot {
    word: AtomicPtr<Entry>,
    node: AtomicU32,
    /// The chunk that failed, while the tag is `FAILED`.
    failed_start: AtomicU64,
    failed_end: AtomicU64,
}

impl Default for WorkerSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkerSlot {
    const_fn! {
        /// Creates a slot without work.
        #[must_use]
        pub fn new() -> Self {
            Self {
                word: AtomicPtr::new(ptr::null_mut()),
                node: AtomicU32::new(ANY_NODE),
                failed_start: AtomicU64::new(0),
                failed_end: AtomicU64::new(0),
            }
        }
    }

    /// Whether work waits in this slot. A helper that is about to sleep calls this after it has
    /// announced that it sleeps. There is a full fence here, and another between an offer and
    /// `Helpers::wake`, so either the helper sees the offer or the waker sees that the helper
    /// sleeps.
    #[must_use]
    pub fn has_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_offered()
    }

    pub(crate) fn is_offered(&self) -> bool {
        tag(self.word.load(Ordering::Relaxed)) == OFFERED
    }

    /// Whether no job holds this slot at this moment: no work is offered, and none runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        self.word.load(Ordering::Acquire).is_null()
    }

    /// The node on which the waiting work should run, if that matters. For the platform, to be
    /// called in or after `Helpers::wake`.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        let node = self.node.load(Ordering::Relaxed);
        (node != ANY_NODE).then_some(node)
    }

    /// Does the waiting work, if any; returns whether there was some. Called by the helper. A panic
    /// in the work propagates from here after the job has been told.
    pub fn serve(&self) -> bool {
        self.serve_with(|work| work())
    }

    /// Like [`serve`](Self::serve), but runs the work inside `around`, which calls its argument.
    /// Where panics unwind, `around` catches them and keeps them for `Helpers::resume_panic`. The
    /// job learns that the helper has ended when `around` has returned. If `around` does not call
    /// its argument, the helper does nothing.
    pub fn serve_with(&self, around: impl FnOnce(&mut dyn FnMut())) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        if tag(seen) != OFFERED {
            return false;
        }
        // AcqRel: Acquire pairs with the Release in `offer_reserved`, and Release pairs with the
        // Acquire in `is_idle`.
        let taken = self.word.compare_exchange(
            seen,
            tagged(entry(seen), RUNNING),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        // Use the word returned by the exchange, not `seen`: `seen` may have the same address but
        // be a pointer to the entry of an earlier job, which is gone.
        let Ok(word) = taken else { return false };
        let entry = entry(word);
        let mut finish = Finish { slot: self, entry, state: Progress::NotCalled };
        around(&mut || {
            if !matches!(finish.state, Progress::NotCalled) {
                return;
            }
            finish.state = Progress::Inside;
            // SAFETY: the slot says RUNNING for this entry until `finish` is dropped, and the job's
            // caller does not return before that (invariant 25).
            let entry = unsafe { &*entry };
            // SAFETY: the `Entry` was made from a living `W` together with `help::<W>`, and that
            // `W` lives just as long (invariant 25).
            let ended = unsafe { (entry.help)(entry.work) };
            finish.state = Progress::Returned(ended);
        });
        true
    }
}

enum Progress {
    NotCalled,
    Inside,
    Returned(Ended),
}

/// Marks, when dropped, that the helper has left the job. The helper does not touch the job after
/// that.
struct Finish<'a> {
    slot: &'a WorkerSlot,
    entry: *mut Entry,
    state: Progress,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let last = match &self.state {
            Progress::NotCalled | Progress::Returned(Ended::Done) => ptr::null_mut(),
            Progress::Inside => tagged(self.entry, PANICKED),
            Progress::Returned(Ended::Failed(range)) => {
                self.slot.failed_start.store(range.start, Ordering::Relaxed);
                self.slot.failed_end.store(range.end, Ordering::Relaxed);
                tagged(self.entry, FAILED)
            }
        };
        // Release pairs with the Acquire in `has_ended` and in `reserve`.
        self.slot.word.store(last, Ordering::Release);
    }
}

/// A set of up to 256 slots.
#[derive(Clone, Copy, Default)]
struct SlotSet([u64; 4]);

impl SlotSet {
    fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        core::iter::from_fn(move || rest.take())
    }

    /// Removes and returns the lowest slot of the set.
    #[inline(never)]
    fn take(&mut self) -> Option<usize> {
        let (index, word) = self.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= word.wrapping_sub(1);
        Some(index * 64 + bit)
    }
}

/// How a caller waits for a helper: called with the helper's number and a function that says
/// whether it has ended.
pub(crate) type Wait<'a> = &'a (dyn Fn(usize, &dyn Fn() -> bool) + 'a);

/// The slots that a job has or had. Once this is dropped, none of them names the job.
pub(crate) struct JobSlots<'a> {
    slots: &'a [WorkerSlot],
    entry: *mut Entry,
    held: SlotSet,
    wait: Wait<'a>,
    /// Keeps this value on its thread.
    not_send: PhantomData<*const ()>,
}

/// Calls `body` with the means to let helpers call `work.help()`. When this returns or unwinds, all
/// those calls have ended.
pub(crate) fn with_job_slots<W: Work + Sync, R>(
    slots: &[WorkerSlot],
    work: &W,
    wait: Wait<'_>,
    body: impl FnOnce(&mut JobSlots<'_>) -> R,
) -> R {
    let mut entry = Entry { work: ptr::from_ref(work).cast(), help: help::<W> };
    let mut job_slots = JobSlots {
        slots,
        entry: &raw mut entry,
        held: SlotSet::default(),
        wait,
        not_send: PhantomData,
    };
    body(&mut job_slots)
}

impl JobSlots<'_> {
    /// Reserves slot `helper` if it is idle. The helper is not told yet.
    pub(crate) fn reserve(&mut self, helper: usize) -> bool {
        let Some(slot) = self.slots.get(helper) else { return false };
        if !slot.word.load(Ordering::Relaxed).is_null() {
            return false;
        }
        // Acquire pairs with the Release at the end of `serve_with`.
        let ours = tagged(self.entry, RESERVED);
        let reserved = slot
            .word
            .compare_exchange(ptr::null_mut(), ours, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if reserved {
            self.held.insert(helper);
        }
        reserved
    }

    /// Sets the node on which the helper of a reserved slot should run.
    pub(crate) fn set_node(&self, helper: usize, node: Option<u32>) {
        if let Some(slot) = self.slots.get(helper) {
            slot.node.store(node.unwrap_or(ANY_NODE), Ordering::Relaxed);
        }
    }

    /// Offers the work in every reserved slot, then calls `wake` with these slots. A full fence
    /// separates the two, the partner of the fence in [`WorkerSlot::has_work`].
    pub(crate) fn offer_reserved(&mut self, wake: impl FnOnce(&mut dyn Iterator<Item = usize>)) {
        let mut offered = SlotSet::default();
        for (helper, slot) in self.held() {
            if slot.word.load(Ordering::Relaxed) == tagged(self.entry, RESERVED) {
                // Release pairs with the Acquire in `serve_with`.
                slot.word.store(tagged(self.entry, OFFERED), Ordering::Release);
                offered.insert(helper);
            }
        }
        fence(Ordering::SeqCst);
        wake(&mut offered.iter());
    }

    /// Withdraws the offers that no helper took, and waits for the other helpers one by one.
    #[inline]
    pub(crate) fn join(&self) {
        if !self.held.is_empty() {
            self.join_held();
        }
    }

    #[inline(never)]
    fn join_held(&self) {
        for (_, slot) in self.held() {
            for unstarted in [RESERVED, OFFERED] {
                // If this succeeds, the helper never saw this job. Release, because a `reserve`
                // that loads this null must see what the slot's previous helper did.
                let ours = tagged(self.entry, unstarted);
                let _ = slot.word.compare_exchange(
                    ours,
                    ptr::null_mut(),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
            }
        }
        for (helper, slot) in self.held() {
            let ended = || self.has_ended(slot);
            while !ended() {
                (self.wait)(helper, &ended);
            }
        }
    }

    /// Whether no helper works for this job in `slot`. To be called after all offers were
    /// withdrawn.
    fn has_ended(&self, slot: &WorkerSlot) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        slot.word.load(Ordering::Acquire) != tagged(self.entry, RUNNING)
    }

    /// The first failed chunk of any helper that begins at or after `position`. To be called after
    /// [`join`](Self::join).
    pub(crate) fn next_failed(&self, position: u64) -> Option<Range<u64>> {
        let failed = self.ended_as(FAILED).map(|(_, slot)| {
            slot.failed_start.load(Ordering::Relaxed)..slot.failed_end.load(Ordering::Relaxed)
        });
        failed.filter(|range| range.start >= position).min_by_key(|range| range.start)
    }

    /// A helper that panicked, if any. To be called after [`join`](Self::join).
    #[inline]
    pub(crate) fn panicked(&self) -> Option<usize> {
        if self.held.is_empty() {
            return None;
        }
        self.ended_as(PANICKED).next().map(|(helper, _)| helper)
    }

    fn ended_as(&self, end: usize) -> impl Iterator<Item = (usize, &WorkerSlot)> {
        let wanted = tagged(self.entry, end);
        self.held().filter(move |(_, slot)| slot.word.load(Ordering::Relaxed) == wanted)
    }

    fn held(&self) -> impl Iterator<Item = (usize, &WorkerSlot)> {
        self.held.iter().filter_map(|helper| self.slots.get(helper).map(|slot| (helper, slot)))
    }

    /// Releases the slots that still record how their helper ended.
    fn release(&self) {
        for (_, slot) in self.held() {
            let word = slot.word.load(Ordering::Relaxed);
            // Another job may hold the slot by now.
            if entry(word) == self.entry {
                // The helper's result has been read. Release pairs with the Acquire in `reserve`.
                slot.word.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

impl Drop for JobSlots<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.held.is_empty() {
            self.join_held();
            self.release();
        }
    }
}
