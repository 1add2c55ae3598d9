//! Threads as CPUs: which thread is which CPU, and whether interrupts and pins nest properly.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// One CPU. Only the thread that has claimed the CPU changes the depths, so Relaxed suffices;
/// claiming and leaving hand them over.
#[derive(Default)]
struct Cpu {
    claimed: AtomicBool,
    irq_depth: AtomicU32,
    pin_depth: AtomicU32,
}

/// All CPUs of a machine.
pub(super) struct CpuSet {
    cpus: Vec<Cpu>,
}

/// A thread's claim on a CPU, given up when the thread ends.
struct Attachment {
    set: Arc<CpuSet>,
    cpu: u32,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.set.cpus[self.cpu as usize].claimed.store(false, Ordering::Release);
    }
}

thread_local! {
    static ATTACHED: RefCell<Vec<Attachment>> = const { RefCell::new(Vec::new()) };
}

impl CpuSet {
    pub(super) fn new(count: usize) -> Self {
        Self { cpus: std::iter::repeat_with(Cpu::default).take(count).collect() }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.cpus.len()).expect("CPU numbers have 32 bits")
    }

    fn claim(&self, cpu: u32) -> bool {
        let wanted =
            self.cpus.get(cpu as usize).unwrap_or_else(|| panic!("the machine has no CPU {cpu}"));
        wanted.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn find(self: &Arc<Self>) -> Option<u32> {
        ATTACHED.with_borrow(|attached| {
            // The machine in use is almost always the newest.
            attached
                .iter()
                .rev()
                .find(|attachment| Arc::ptr_eq(&attachment.set, self))
                .map(|found| found.cpu)
        })
    }

    /// The calling thread's CPU; claims the lowest free CPU if the thread has none.
    pub(super) fn current(self: &Arc<Self>) -> u32 {
        self.find().unwrap_or_else(|| {
            let cpu = (0..self.len()).find(|&cpu| self.claim(cpu)).unwrap_or_else(|| {
                panic!("more threads than the machine's {} CPUs use it at once", self.len())
            });
            ATTACHED.with_borrow_mut(|attached| {
                attached.push(Attachment { set: Arc::clone(self), cpu })
            });
            cpu
        })
    }

    fn current_state(self: &Arc<Self>) -> (u32, &Cpu) {
        let cpu = self.current();
        (cpu, &self.cpus[cpu as usize])
    }

    pub(super) fn run_on<R>(self: &Arc<Self>, cpu: u32, body: impl FnOnce() -> R) -> R {
        let before = self.find();
        if before == Some(cpu) {
            return body();
        }
        if let Some(from) = before {
            self.assert_movable(from);
        }
        assert!(self.claim(cpu), "another thread is CPU {cpu}");
        ATTACHED
            .with_borrow_mut(|attached| attached.push(Attachment { set: Arc::clone(self), cpu }));
        let _back = MoveBack { set: self };
        body()
    }

    fn assert_movable(&self, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        let (irq, pins) =
            (state.irq_depth.load(Ordering::Relaxed), state.pin_depth.load(Ordering::Relaxed));
        assert!(
            irq == 0 && pins == 0,
            "CPU {cpu} is left with interrupts off {irq} times and {pins} pins"
        );
    }

    pub(super) fn interrupt<R>(self: &Arc<Self>, handler: impl FnOnce() -> R) -> R {
        let (cpu, state) = self.current_state();
        assert_eq!(
            state.irq_depth.load(Ordering::Relaxed),
            0,
            "interrupt on CPU {cpu} while interrupts are off"
        );
        let pins = state.pin_depth.load(Ordering::Relaxed);
        state.irq_depth.store(1, Ordering::Relaxed);
        let end = EndOfInterrupt(state);
        let result = handler();
        assert_eq!(
            state.irq_depth.load(Ordering::Relaxed),
            1,
            "the handler on CPU {cpu} left interrupts unbalanced"
        );
        assert_eq!(
            state.pin_depth.load(Ordering::Relaxed),
            pins,
            "the handler on CPU {cpu} left pins unbalanced"
        );
        drop(end);
        result
    }

    pub(super) fn irq_save(self: &Arc<Self>) -> usize {
        let (cpu, state) = self.current_state();
        let depth = state.irq_depth.load(Ordering::Relaxed);
        state.irq_depth.store(depth + 1, Ordering::Relaxed);
        token(cpu, depth)
    }

    pub(super) fn irq_restore(self: &Arc<Self>, restored: usize) {
        let (cpu, state) = self.current_state();
        let depth = state.irq_depth.load(Ordering::Relaxed);
        // A guard that is dropped during a panic must not turn the test's message into an abort.
        if !std::thread::panicking() {
            assert!(depth > 0, "irq_restore on CPU {cpu} without irq_save");
            assert_eq!(
                restored,
                token(cpu, depth - 1),
                "irq_restore on CPU {cpu} at depth {depth} of a state that its matching irq_save \
                 did not return"
            );
        }
        state.irq_depth.store(depth.saturating_sub(1), Ordering::Relaxed);
    }

    pub(super) fn pin(self: &Arc<Self>) -> u32 {
        let (cpu, state) = self.current_state();
        state.pin_depth.fetch_add(1, Ordering::Relaxed);
        cpu
    }

    pub(super) fn unpin(self: &Arc<Self>, pinned: u32) {
        let (cpu, state) = self.current_state();
        let depth = state.pin_depth.load(Ordering::Relaxed);
        if !std::thread::panicking() {
            assert_eq!(pinned, cpu, "unpin of CPU {pinned} on CPU {cpu}");
            assert!(depth > 0, "unpin on CPU {cpu} without pin");
        }
        state.pin_depth.store(depth.saturating_sub(1), Ordering::Relaxed);
    }

    pub(super) fn irq_depth(self: &Arc<Self>) -> u32 {
        self.current_state().1.irq_depth.load(Ordering::Relaxed)
    }

    pub(super) fn pin_depth(self: &Arc<Self>) -> u32 {
        self.current_state().1.pin_depth.load(Ordering::Relaxed)
    }

    pub(super) fn can_wait(self: &Arc<Self>) -> bool {
        self.current_state().1.irq_depth.load(Ordering::Relaxed) == 0
    }

    /// Fails if the calling thread is pinned or has interrupts off.
    pub(super) fn assert_may_yield(self: &Arc<Self>) {
        self.assert_movable(self.current());
    }

    pub(super) fn assert_quiet(&self) {
        for cpu in 0..self.len() {
            self.assert_movable(cpu);
        }
    }
}

/// The value that `irq_save` returns at `depth` on `cpu`: unique for each nesting level, so that
/// any mix-up is found. It is never 0 or 1, so that invented states are found, too.
fn token(cpu: u32, depth: u32) -> usize {
    1 << 62 | (cpu as usize) << 32 | depth as usize
}

struct MoveBack<'a> {
    set: &'a Arc<CpuSet>,
}

impl Drop for MoveBack<'_> {
    fn drop(&mut self) {
        let left = ATTACHED.with_borrow_mut(|attached| {
            let newest =
                attached.iter().rposition(|attachment| Arc::ptr_eq(&attachment.set, self.set));
            newest.map(|index| attached.remove(index))
        });
        if let Some(attachment) = left
            && !std::thread::panicking()
        {
            self.set.assert_movable(attachment.cpu);
        }
    }
}

struct EndOfInterrupt<'a>(&'a Cpu);

impl Drop for EndOfInterrupt<'_> {
    fn drop(&mut self) {
        self.0.irq_depth.store(0, Ordering::Relaxed);
    }
}

/// The calling thread as a task: a number that no other thread has had.
pub(super) fn task() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static TASK: NonZeroU64 =
            NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed));
    }
    TASK.with(|task| *task)
}

/// Executes a full memory barrier on every running thread of this process.
pub(super) fn barrier() {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    let call = |command: libc::c_int| {
        // SAFETY: membarrier takes three integers and touches no memory of the process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    };
    REGISTERED.call_once(|| {
        assert_eq!(call(REGISTER_PRIVATE_EXPEDITED), 0, "the host has no expedited membarrier")
    });
    assert_eq!(call(PRIVATE_EXPEDITED), 0, "membarrier failed");
}
