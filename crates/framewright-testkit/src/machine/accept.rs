//! [`FakeAccept`]: memory that has to be accepted before its first access.

use super::cpu::CpuSet;
use super::memory::Memory;
use framewright::firmware::{MemoryKind, MemoryMap};
use framewright::units::{PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::{AcceptError, AcceptMemory};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The memory of a [`FakeMachine`](super::FakeMachine) that firmware left unaccepted, and spare
/// memory that is added ([`Builder::spare`](super::Builder::spare)). Until it is accepted, it is
/// mapped without access rights, so that accesses fault. Everything that would kill a guest panics:
/// accepting a frame twice, or one that was accepted from the start.
pub struct FakeAccept {
    memory: Arc<Memory>,
    cpus: Arc<CpuSet>,
    unaccepted: Vec<PhysRange>,
    forgets: AtomicBool,
    reads_past_pages: AtomicBool,
    expects_pins: AtomicBool,
    delay_ns: AtomicU64,
    meeting: OnceLock<(Barrier, AtomicUsize)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// One bit for each frame.
    asked: Vec<u64>,
    accepted: Vec<u64>,
    accepted_pages: u64,
    failing: BTreeSet<Pfn>,
    held: BTreeSet<Pfn>,
    calls: Vec<PfnRange>,
    /// Ranges that were accepted from the start and that the host has had since.
    forgotten: Vec<PhysRange>,
}

fn place(pfn: Pfn) -> (usize, u64) {
    (usize::try_from(pfn.0 / 64).expect("frames of a test"), 1 << (pfn.0 % 64))
}

fn has(bits: &[u64], pfn: Pfn) -> bool {
    let (word, bit) = place(pfn);
    bits.get(word).is_some_and(|word| word & bit != 0)
}

/// The words that contain a run of frames, each with the bits of these frames.
fn words(run: PfnRange) -> impl Iterator<Item = (usize, u64)> {
    let mut start = run.start.0;
    std::iter::from_fn(move || {
        let end = run.end.0.min((start / 64 + 1) * 64);
        let count = u32::try_from(end.checked_sub(start).filter(|&count| count != 0)?).ok()?;
        let word = usize::try_from(start / 64).ok()?;
        let bits = (u64::MAX >> (64 - count)) << (start % 64);
        start = end;
        Some((word, bits))
    })
}

/// Sets the bits of a run. Returns whether none of them was set.
fn set(bits: &mut Vec<u64>, run: PfnRange) -> bool {
    let last = usize::try_from(run.end.0 / 64).expect("frames of a test");
    if bits.len() <= last {
        bits.resize(last + 1, 0);
    }
    let mut new = true;
    for (word, mask) in words(run) {
        new &= bits[word] & mask == 0;
        bits[word] |= mask;
    }
    new
}

fn clear(bits: &mut [u64], run: PfnRange) {
    for (word, mask) in words(run) {
        if let Some(word) = bits.get_mut(word) {
            *word &= !mask;
        }
    }
}

impl FakeAccept {
    pub(super) fn new(
        memory: &Arc<Memory>,
        cpus: &Arc<CpuSet>,
        map: MemoryMap<'_>,
        spare: &[PhysRange],
    ) -> Self {
        let ranges = map.ranges().iter();
        let unaccepted: Vec<PhysRange> = ranges
            .filter(|entry| entry.kind == MemoryKind::Unaccepted)
            .map(|entry| entry.range)
            .chain(spare.iter().copied())
            .collect();
        unaccepted.iter().for_each(|&range| memory.close(range));
        Self {
            memory: Arc::clone(memory),
            cpus: Arc::clone(cpus),
            unaccepted,
            forgets: AtomicBool::new(false),
            reads_past_pages: AtomicBool::new(true),
            expects_pins: AtomicBool::new(false),
            delay_ns: AtomicU64::new(0),
            meeting: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether pages may be read past their end; at first they may.
    pub fn set_reads_past_pages(&self, reads: bool) {
        self.reads_past_pages.store(reads, Ordering::Relaxed);
    }

    /// Sets whether memory loses its acceptance while the host has it; at first it does not.
    pub fn set_forgets(&self, forgets: bool) {
        self.forgets.store(forgets, Ordering::Relaxed);
    }

    /// Called when the host gets memory that loses its acceptance.
    ///
    /// # Panics
    /// If memory may not lose its acceptance.
    pub fn forget(&self, range: PhysRange) {
        assert!(self.forgets(), "{range:?} stays accepted");
        self.forget_asked(range);
        let run = PfnRange::new(range.start / PAGE_SIZE, range.end / PAGE_SIZE);
        let mut state = self.state();
        clear(&mut state.accepted, run);
        state.forgotten.push(range);
        drop(state);
        self.memory.close(range);
    }

    /// Forgets requests for memory that went away after it could not be accepted, or that could not
    /// be added.
    pub fn forget_asked(&self, range: PhysRange) {
        let run = PfnRange::new(range.start / PAGE_SIZE, range.end / PAGE_SIZE);
        clear(&mut self.state().asked, run);
    }

    /// From now on, which must be after bring-up, calls panic unless the caller is pinned.
    pub fn expect_pins(&self) {
        self.expects_pins.store(true, Ordering::Relaxed);
    }

    /// Sets how long accepting takes for each 2 MiB. The caller sleeps meanwhile.
    pub fn set_delay(&self, of_a_block: Duration) {
        let ns = u64::try_from(of_a_block.as_nanos()).unwrap_or(u64::MAX);
        self.delay_ns.store(ns, Ordering::Relaxed);
    }

    /// Lets the next `callers` calls return only once all of them have come, from as many CPUs.
    ///
    /// # Panics
    /// If it was called before.
    pub fn meet(&self, callers: usize) {
        let meeting = (Barrier::new(callers), AtomicUsize::new(callers));
        assert!(self.meeting.set(meeting).is_ok(), "one meeting");
    }

    /// Makes calls that accept this frame wait until [`let_go`](Self::let_go).
    pub fn hold_at(&self, pfn: Pfn) {
        self.state().held.insert(pfn);
    }

    /// Ends [`hold_at`](Self::hold_at) for all frames.
    pub fn let_go(&self) {
        self.state().held.clear();
    }

    /// Makes accepting this frame fail.
    pub fn fail_at(&self, pfn: Pfn) {
        self.state().failing.insert(pfn);
    }

    /// Ends [`fail_at`](Self::fail_at) for all frames.
    pub fn fail_no_more(&self) {
        self.state().failing.clear();
    }

    /// Whether a frame may be accessed.
    #[must_use]
    pub fn is_accepted(&self, pfn: Pfn) -> bool {
        let state = self.state();
        let is_in = |range: &PhysRange| range.start <= pfn.address() && pfn.address() < range.end;
        let was_unaccepted = self.unaccepted.iter().chain(&state.forgotten).any(is_in);
        !was_unaccepted || has(&state.accepted, pfn)
    }

    /// The number of frames that were accepted.
    #[must_use]
    pub fn accepted_pages(&self) -> u64 {
        self.state().accepted_pages
    }

    /// The ranges that were to be accepted, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<PfnRange> {
        self.state().calls.clone()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }
}

// SAFETY: accepted memory becomes readable and writable, and is closed again only when the host has
// it.
unsafe impl AcceptMemory for FakeAccept {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        assert!(!range.is_empty(), "nothing is to be accepted");
        assert!(self.cpus.irq_depth() <= 1, "{range:?} is accepted with a lock held");
        let is_pinned = self.cpus.pin_depth() != 0 || !self.expects_pins.load(Ordering::Relaxed);
        assert!(is_pinned, "{range:?} is accepted by one who can lose the CPU");
        let mut state = self.state();
        state.calls.push(range);
        let all = PhysRange::new(range.start.address(), range.end.address());
        let inside = |part: &PhysRange| part.intersection(all) == all;
        let mut known = self.unaccepted.iter().chain(&state.forgotten);
        assert!(known.any(inside), "{range:?} needs no accepting");
        let end = state.failing.range(range.start..range.end).next().copied().unwrap_or(range.end);
        // The frame that fails was asked for, too.
        let asked = PfnRange { end: Pfn(range.end.0.min(end.0 + 1)), ..range };
        assert!(set(&mut state.asked, asked), "{range:?} is accepted a second time");
        // Frames behind one that failed were not tried, and may be asked for again.
        drop(state);
        while self.state().held.range(range.start..range.end).next().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let good = PfnRange { end, ..range };
        if let Some((barrier, left)) = self.meeting.get() {
            let less = |left: usize| left.checked_sub(1);
            if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                barrier.wait();
            }
        }
        let delay = self.delay_ns.load(Ordering::Relaxed);
        if delay != 0 {
            let ns = delay.saturating_mul(good.pages()) / PAGES_PER_BLOCK;
            std::thread::sleep(Duration::from_nanos(ns));
        }
        let bytes = PhysRange::new(good.start.0 * PAGE_SIZE, good.end.0 * PAGE_SIZE);
        self.memory.reopen(bytes);
        let mut state = self.state();
        set(&mut state.accepted, good);
        state.accepted_pages += good.pages();
        if end == range.end { Ok(()) } else { Err(AcceptError { accepted_pages: good.pages() }) }
    }

    fn forgets(&self) -> bool {
        self.forgets.load(Ordering::Relaxed)
    }

    fn reads_past_pages(&self) -> bool {
        self.reads_past_pages.load(Ordering::Relaxed)
    }
}
