//! [`FakeMachine`]: the machine itself, as a [`Platform`].

use super::accept::FakeAccept;
use super::cpu::{self, CpuSet};
use super::memory::Memory;
use super::vmemmap::FakeVmemmap;
use framewright::firmware::{MemoryMap, Topology};
use framewright::units::{NodeId, Pfn, PhysRange};
use framewright::vmemmap_space::VmemmapSpace;
use framewright::{AcceptMemory, IrqState, PinnedCpu, Platform};
use std::cell::RefCell;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// How often each method of [`Platform`] was called.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "each is named after its method")]
pub struct Calls {
    pub direct: u64,
    pub pin: u64,
    pub unpin: u64,
    pub irq_save: u64,
    pub irq_restore: u64,
    pub cpu_barrier: u64,
    pub now_ns: u64,
    pub relax: u64,
    pub cpu_node: u64,
    pub yield_now: u64,
    pub entropy: u64,
    pub wake_reclaim: u64,
}

/// The counters behind [`Calls`].
#[derive(Default)]
pub(super) struct Counters {
    direct: AtomicU64,
    pin: AtomicU64,
    unpin: AtomicU64,
    irq_save: AtomicU64,
    irq_restore: AtomicU64,
    cpu_barrier: AtomicU64,
    now_ns: AtomicU64,
    relax: AtomicU64,
    cpu_node: AtomicU64,
    yield_now: AtomicU64,
    entropy: AtomicU64,
    wake_reclaim: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The clock of a [`FakeMachine`], which the test advances.
pub(super) struct Clock {
    pub(super) now_ns: AtomicU64,
    pub(super) step_ns: u64,
}

/// A NUMA machine in this process; see the module documentation.
///
/// It lives for ever, because a manager refers to its platform for ever. [`retire`](Self::retire)
/// gives its memory back before the process ends.
///
/// A thread becomes the lowest free CPU when it first calls the machine, until it ends. A test can
/// choose the CPU with [`run_on`](Self::run_on).
pub struct FakeMachine {
    pub(super) memory: Arc<Memory>,
    pub(super) pattern: u8,
    pub(super) map: MemoryMap<'static>,
    pub(super) topology: &'static Topology<'static>,
    pub(super) cpu_nodes: Vec<NodeId>,
    pub(super) cpus: Arc<CpuSet>,
    pub(super) direct_limit: AtomicU64,
    pub(super) clock: Option<Clock>,
    pub(super) counters: Counters,
    pub(super) vmemmap: OnceLock<&'static FakeVmemmap>,
    pub(super) accept: OnceLock<&'static FakeAccept>,
    pub(super) knows_tasks: bool,
    pub(super) is_guest: bool,
    pub(super) entropy: Option<u64>,
}

impl FakeMachine {
    /// The machine's unaccepted memory.
    ///
    /// # Panics
    /// If the machine was built without [`Builder::accepts`](super::Builder::accepts).
    #[must_use]
    pub fn accept(&self) -> &'static FakeAccept {
        self.accept.get().expect("a machine that accepts memory")
    }

    /// The machine's finished memory map.
    #[must_use]
    pub fn map(&self) -> MemoryMap<'static> {
        self.map
    }

    /// The machine's nodes.
    #[must_use]
    pub fn topology(&self) -> &'static Topology<'static> {
        self.topology
    }

    /// The node of CPU `cpu`.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> NodeId {
        self.cpu_nodes[cpu as usize]
    }

    /// The calling thread's CPU.
    #[must_use]
    pub fn current_cpu(&self) -> u32 {
        self.cpus.current()
    }

    /// Runs `body` with the calling thread on CPU `cpu`, then moves it back.
    ///
    /// # Panics
    /// If another thread is that CPU, or this thread may not move because it is pinned or has
    /// interrupts off.
    pub fn run_on<R>(&self, cpu: u32, body: impl FnOnce() -> R) -> R {
        self.cpus.run_on(cpu, body)
    }

    /// Runs `handler` as an interrupt handler on the calling thread's CPU: interrupts are off and
    /// waiting is not allowed.
    ///
    /// # Panics
    /// If interrupts are off, as a machine would not deliver the interrupt then.
    pub fn interrupt<R>(&self, handler: impl FnOnce() -> R) -> R {
        self.cpus.interrupt(handler)
    }

    /// Whether the calling thread's CPU takes interrupts.
    pub fn takes_interrupts(&self) -> bool {
        self.cpus.irq_depth() == 0
    }

    /// Checks, at the end of a test, that no CPU is pinned or has interrupts off.
    ///
    /// # Panics
    /// If a CPU is pinned or has interrupts off.
    pub fn assert_quiet(&self) {
        self.cpus.assert_quiet();
    }

    /// Raises the end of the direct map.
    ///
    /// # Panics
    /// If `limit` is lower than before.
    pub fn raise_direct_limit(&self, limit: u64) {
        let old = self.direct_limit.swap(limit, Ordering::Relaxed);
        assert!(
            old <= limit,
            "the direct map's end may not be lowered from {old:#x} to {limit:#x}"
        );
    }

    /// Advances the clock.
    ///
    /// # Panics
    /// If the machine has no clock.
    pub fn advance_ns(&self, ns: u64) {
        let clock = self.clock.as_ref().expect("this machine was built without a clock");
        clock.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How often each method was called so far.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Calls {
            direct: load(&counters.direct),
            pin: load(&counters.pin),
            unpin: load(&counters.unpin),
            irq_save: load(&counters.irq_save),
            irq_restore: load(&counters.irq_restore),
            cpu_barrier: load(&counters.cpu_barrier),
            now_ns: load(&counters.now_ns),
            relax: load(&counters.relax),
            cpu_node: load(&counters.cpu_node),
            yield_now: load(&counters.yield_now),
            entropy: load(&counters.entropy),
            wake_reclaim: load(&counters.wake_reclaim),
        }
    }

    /// Whether `address` is in memory that the allocator may hand out. This does not count as a use
    /// of the direct map.
    #[must_use]
    pub fn is_usable(&self, address: u64) -> bool {
        self.memory.find(address).is_some()
    }

    /// Reads the 64 bits at physical address `address` atomically. It must not be used for memory
    /// that another thread writes non-atomically.
    ///
    /// # Panics
    /// If the address is not usable memory or not a multiple of 8.
    #[must_use]
    pub fn load(&self, address: u64) -> u64 {
        self.memory.word(address).load(Ordering::Relaxed)
    }

    /// Writes 64 bits at physical address `address`, as a device would.
    ///
    /// # Safety
    /// The caller owns the frame, and there is no reference into it.
    ///
    /// # Panics
    /// If the address is not usable memory or not a multiple of 8.
    pub unsafe fn store(&self, address: u64, value: u64) {
        self.memory.word(address).store(value, Ordering::Relaxed);
    }

    /// The initial value of every byte of memory.
    #[must_use]
    pub fn pattern(&self) -> u8 {
        self.pattern
    }

    /// Whether `frame` still has its initial content.
    #[must_use]
    pub fn is_poisoned(&self, frame: Pfn) -> bool {
        let poison = u64::from_ne_bytes([self.pattern; 8]);
        (0..framewright::units::PAGE_SIZE / 8)
            .all(|word| self.load(frame.address() + 8 * word) == poison)
    }

    /// Fills a frame with the initial pattern of memory.
    ///
    /// # Safety
    /// The caller owns the frame, and there is no reference into it.
    ///
    /// # Panics
    /// If the frame is not usable memory.
    pub unsafe fn poison(&self, frame: Pfn) {
        let start = self.memory.direct(frame.address());
        // SAFETY: ranges of memory consist of whole frames, and the frame belongs to the caller.
        unsafe { start.write_bytes(self.pattern, 4096) };
    }

    /// The end of the machine's memory, spare memory included.
    pub(crate) fn memory_end(&self) -> u64 {
        self.memory.end()
    }

    /// Removes memory, whole pages within one range, from the machine: from now on accesses fault.
    ///
    /// # Safety
    /// Only the caller uses the memory.
    ///
    /// # Panics
    /// If the range is not the machine's memory.
    pub unsafe fn unplug(&self, range: PhysRange) {
        self.memory.unplug(range);
    }

    /// Brings removed memory back, with `pattern` in every byte; in more than 4 GiB, only in the
    /// first and last 2 GiB.
    ///
    /// # Safety
    /// As for [`unplug`](Self::unplug).
    ///
    /// # Panics
    /// If the range is not the machine's memory.
    pub unsafe fn plug(&self, range: PhysRange, pattern: u8) {
        self.memory.plug(range, pattern);
    }

    /// Gives up the vmemmap, if the machine has one.
    ///
    /// # Safety
    /// No manager of the machine is used any more.
    pub(super) unsafe fn discard_vmemmap(&self) {
        if let Some(vmemmap) = self.vmemmap.get() {
            // SAFETY: the obligation is passed on to the caller.
            unsafe { vmemmap.discard() };
        }
    }

    /// Gives the machine's memory back to the host. Later accesses fault, and `direct` panics.
    ///
    /// # Safety
    /// The machine's memory is not used any more, by any manager that runs on it either.
    pub unsafe fn retire(&self) {
        self.memory.retire();
        // SAFETY: the obligation is passed on to the caller.
        unsafe { self.discard_vmemmap() };
    }
}

impl std::fmt::Debug for FakeMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeMachine")
            .field("map", &self.map)
            .field("topology", &self.topology)
            .field("cpus", &self.cpu_nodes.len())
            .finish_non_exhaustive()
    }
}

// SAFETY: the memory is a private mapping of this process, readable and writable in every usable
// range until the machine is retired, linear within each range of the map (invariants 1, 15), and
// `direct` checks the address. A CPU belongs to one thread at a time, from its first use to the
// thread's end. The only interrupt handlers are those that `interrupt` runs, which checks that
// interrupts are on. `cpu_barrier` is the host's.
unsafe impl Platform for FakeMachine {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        count(&self.counters.direct);
        let limit = self.direct_limit();
        assert!(pa < limit, "direct({pa:#x}) is at or above the direct map's end {limit:#x}");
        self.memory.direct(pa)
    }

    fn pin(&self) -> PinnedCpu {
        count(&self.counters.pin);
        PinnedCpu::new(self.cpus.pin())
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        count(&self.counters.unpin);
        self.cpus.unpin(cpu.index());
    }

    fn irq_save(&self) -> IrqState {
        count(&self.counters.irq_save);
        IrqState(self.cpus.irq_save())
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        count(&self.counters.irq_restore);
        self.cpus.irq_restore(state.0);
    }

    fn direct_limit(&self) -> u64 {
        self.direct_limit.load(Ordering::Relaxed)
    }

    fn cpus(&self) -> u32 {
        self.cpus.len()
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        count(&self.counters.cpu_node);
        self.cpu_nodes.get(cpu as usize).copied().unwrap_or_default()
    }

    fn init_threads(&self, node: NodeId) -> u32 {
        self.topology.cpus(node).max(1)
    }

    fn can_wait(&self) -> bool {
        self.cpus.can_wait()
    }

    fn current_task(&self) -> Option<NonZeroU64> {
        self.knows_tasks.then(cpu::task)
    }

    fn wake_reclaim(&self, _: NodeId) {
        count(&self.counters.wake_reclaim);
    }

    fn cpu_barrier(&self) {
        count(&self.counters.cpu_barrier);
        assert!(self.can_wait(), "cpu_barrier was called where waiting is not allowed");
        cpu::barrier();
    }

    fn now_ns(&self) -> Option<u64> {
        count(&self.counters.now_ns);
        let clock = self.clock.as_ref()?;
        Some(clock.now_ns.fetch_add(clock.step_ns, Ordering::Relaxed))
    }

    fn entropy(&self) -> Option<u64> {
        count(&self.counters.entropy);
        self.entropy
    }

    fn relax(&self) {
        count(&self.counters.relax);
        // The host may have stopped the thread that holds the lock.
        std::thread::yield_now();
    }

    fn yield_now(&self) {
        count(&self.counters.yield_now);
        self.cpus.assert_may_yield();
        std::thread::yield_now();
    }

    fn is_guest(&self) -> bool {
        self.is_guest
    }

    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        Some(*self.accept.get()?)
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        Some(*self.vmemmap.get()?)
    }
}

/// Retires a machine and its vmemmap when the calling thread ends. Any later use panics or faults.
pub(super) fn retire_with_thread(machine: &'static FakeMachine) {
    struct Machines(RefCell<Vec<&'static FakeMachine>>);

    impl Drop for Machines {
        fn drop(&mut self) {
            for machine in self.0.get_mut() {
                // SAFETY: a test that builds a machine is over when its thread ends; any use after
                // that faults.
                unsafe { machine.retire() };
            }
        }
    }

    thread_local! {
        static BUILT: Machines = const { Machines(RefCell::new(Vec::new())) };
    }

    BUILT.with(|built| built.0.borrow_mut().push(machine));
}
