//! Where a helper is given work: one [`WorkerSlot`] for each helper, owned by the platform, and
//! [`JobSlots`], the slots that a job has reserved.
//!
//! # Protocol
//!
//! The whole state of a slot is one word: null, or the address of a job's entry on its caller's
//! stack and a tag.
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
//! A caller leaves only when no slot names its entry. It withdraws an offer with a
//! compare-and-swap: if that succeeds, the helper never sees the job; if it fails, the helper is
//! running, and the caller waits for it. No generation number is needed: the entry is alive, so no
//! other job has its address, and only its own caller puts that into a slot.
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
//! (1) To the next job, and through it to the caller of the last job, if that looks only later.
//!
//! The two SeqCst fences are partners: a caller offers and then looks which helpers sleep; a helper
//! says that it sleeps and then looks for an offer. Relaxed loads only choose which exchange is
//! tried, or follow an Acquire of the same word in `has_ended`.

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

/// The node of a slot when it does not matter where the helper runs.
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
    /// Called on a helper's thread, at most once for each offer.
    fn help(&self) -> Ended;
}

/// A job on its caller's stack, type-erased. The alignment leaves room for the tags.
#[repr(align(8))]
struct Entry {
    work: *const (),
    help: unsafe fn(*const ()) -> Ended,
}

/// # Safety
/// `work` is a `W` that lives until this returns.
unsafe fn help<W: Work>(work: *const ()) -> Ended {
    // SAFETY: the caller says so.
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

/// Where one helper finds work. The platform has one slot for each helper, in memory that outlives
/// every job: a static array, or a pool.
///
/// A helper's loop is
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
        /// A slot without work.
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

    /// Whether work waits here. A helper that is about to sleep asks this after it has made known
    /// that it sleeps. There is a full fence here, and one between an offer and `Helpers::wake`, so
    /// either the helper sees the offer or the waker sees that it sleeps.
    #[must_use]
    pub fn has_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_offered()
    }

    pub(crate) fn is_offered(&self) -> bool {
        tag(self.word.load(Ordering::Relaxed)) == OFFERED
    }

    /// Whether no job has this slot at this moment: no work is offered, and none runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        self.word.load(Ordering::Acquire).is_null()
    }

    /// The node on which the work that waits here should run, if that matters. For the platform, in
    /// or after `Helpers::wake`.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        let node = self.node.load(Ordering::Relaxed);
        (node != ANY_NODE).then_some(node)
    }

    /// Does the work that waits here, if any; returns whether there was some. Called by the helper.
    /// A panic in the work goes on here, after the job was told.
    pub fn serve(&self) -> bool {
        self.serve_with(|work| work())
    }

    /// [`serve`](Self::serve) inside `around`, which calls its argument. Where panics unwind, it
    /// catches them and keeps them for `Helpers::resume_panic`. The job learns that the helper has
    /// ended when `around` has returned. If `around` does not call its argument, the helper does
    /// nothing.
    pub fn serve_with(&self, around: impl FnOnce(&mut dyn FnMut())) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        if tag(seen) != OFFERED {
            return false;
        }
        // AcqRel: with the Release in `offer`, and with the Acquire in `is_idle`.
        let taken = self.word.compare_exchange(
            seen,
            tagged(entry(seen), RUNNING),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        // The word that was exchanged: what was seen before may have the address of this job's
        // entry and still point to that of an earlier job, which is gone.
        let Ok(word) = taken else { return false };
        let entry = entry(word);
        let mut finish = Finish { slot: self, entry, state: Progress::NotCalled };
        around(&mut || {
            if !matches!(finish.state, Progress::NotCalled) {
                return;
            }
            finish.state = Progress::Inside;
            // SAFETY: the slot says RUNNING for this entry until `finish` is dropped, and its
            // caller stays until then (invariant 25).
            let entry = unsafe { &*entry };
            // SAFETY: `Entry` was made of a living `W` together with `help::<W>`, and lives as
            // above (invariant 25).
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

/// Says, when dropped, that the helper is out of the job. The job is not touched after that.
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

    /// The first, which leaves the set.
    #[inline(never)]
    fn take(&mut self) -> Option<usize> {
        let (index, word) = self.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= word.wrapping_sub(1);
        Some(index * 64 + bit)
    }
}

/// How a caller waits for a helper: given its number, and a function that says whether it ended.
pub(crate) type Wait<'a> = &'a (dyn Fn(usize, &dyn Fn() -> bool) + 'a);

/// The slots that a job has or had. When this is dropped, none of them names the job.
pub(crate) struct JobSlots<'a> {
    slots: &'a [WorkerSlot],
    entry: *mut Entry,
    held: SlotSet,
    wait: Wait<'a>,
    /// This stays on its thread.
    not_send: PhantomData<*const ()>,
}

/// Calls `body` with the means to have helpers call `work.help()`. When this returns or unwinds,
/// all of them have ended.
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
    /// Reserves slot `helper` if it is idle. Its helper is not told yet.
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

    /// Says where the helper of a reserved slot should run.
    pub(crate) fn set_node(&self, helper: usize, node: Option<u32>) {
        if let Some(slot) = self.slots.get(helper) {
            slot.node.store(node.unwrap_or(ANY_NODE), Ordering::Relaxed);
        }
    }

    /// Offers the work in every slot that is reserved, then calls `wake` with these slots. Between
    /// the two is a full fence, the partner of the fence in [`WorkerSlot::has_work`].
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
                // The helper saw nothing of this job. Release, because a `reserve` that loads this
                // null must see what the slot's last helper did.
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

    /// Whether no helper works for this job in `slot`. After all offers were withdrawn.
    fn has_ended(&self, slot: &WorkerSlot) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        slot.word.load(Ordering::Acquire) != tagged(self.entry, RUNNING)
    }

    /// The first failed chunk of a helper that begins at or after `position`. To be called after
    /// [`join`](Self::join).
    pub(crate) fn next_failed(&self, position: u64) -> Option<Range<u64>> {
        let failed = self.ended_as(FAILED).map(|(_, slot)| {
            slot.failed_start.load(Ordering::Relaxed)..slot.failed_end.load(Ordering::Relaxed)
        });
        failed.filter(|range| range.start >= position).min_by_key(|range| range.start)
    }

    /// A helper that panicked. To be called after [`join`](Self::join).
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

    /// Releases the slots that say how their helper ended.
    fn release(&self) {
        for (_, slot) in self.held() {
            let word = slot.word.load(Ordering::Relaxed);
            // Another job may have the slot by now.
            if entry(word) == self.entry {
                // What the helper left was read. Release pairs with the Acquire in `reserve`.
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
