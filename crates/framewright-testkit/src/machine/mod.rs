//! A NUMA machine in this process that checks how it is used.
//!
//! ```
//! use framewright::Platform;
//! use framewright::units::PhysRange;
//! use framewright_testkit::FakeMachine;
//!
//! let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 << 20)).cpus(2).build();
//! assert_eq!(machine.cpus(), 2);
//! let frame = machine.direct(0x10_0000);
//! // SAFETY: nobody else uses the machine's memory.
//! assert_eq!(unsafe { frame.read() }, machine.pattern());
//! ```

mod array;
mod builder;
mod cpu;
mod memory;

pub use array::{ArrayCounts, FakeArray};
pub use builder::Builder;
pub use memory::PATTERNS;

use cpu::CpuSet;
use framewright::firmware::{MemoryMap, Topology};
use framewright::units::{NodeId, Pfn, PhysRange};
use framewright::vmemmap_space::VmemmapSpace;
use framewright::{IrqState, PinnedCpu, Platform};
use memory::Memory;
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
}

#[derive(Default)]
struct Counters {
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
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The clock of a [`FakeMachine`]: time passes when the test says so.
struct Clock {
    now_ns: AtomicU64,
    step_ns: u64,
}

/// See the module documentation.
///
/// It lives for ever, because a manager holds its platform for ever; what it costs is given back by
/// [`retire`](Self::retire), and else when the process ends.
///
/// A thread becomes a CPU when it first calls the machine: the lowest one that is free, until the
/// thread ends. A test that cares says which with [`run_on`](Self::run_on).
pub struct FakeMachine {
    memory: Arc<Memory>,
    pattern: u8,
    map: MemoryMap<'static>,
    topology: &'static Topology<'static>,
    cpu_nodes: Vec<NodeId>,
    cpus: Arc<CpuSet>,
    direct_limit: AtomicU64,
    clock: Option<Clock>,
    counters: Counters,
    vmemmap_space: OnceLock<&'static dyn VmemmapSpace>,
    knows_tasks: bool,
    entropy: Option<u64>,
}

impl FakeMachine {
    /// A machine with nothing in it, to be described.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Its finished memory map.
    #[must_use]
    pub fn map(&self) -> MemoryMap<'static> {
        self.map
    }

    /// Its nodes.
    #[must_use]
    pub fn topology(&self) -> &'static Topology<'static> {
        self.topology
    }

    /// The node of CPU `cpu`.
    ///
    /// # Panics
    /// When there is no such CPU.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> NodeId {
        self.cpu_nodes[cpu as usize]
    }

    /// Which CPU the calling thread is.
    #[must_use]
    pub fn current_cpu(&self) -> u32 {
        self.cpus.current()
    }

    /// Runs `body` with the calling thread on CPU `cpu`, then moves it back to where it was.
    ///
    /// # Panics
    /// When another thread is that CPU, or when the thread may not move: it is pinned or its
    /// interrupts are off.
    pub fn run_on<R>(&self, cpu: u32, body: impl FnOnce() -> R) -> R {
        self.cpus.run_on(cpu, body)
    }

    /// Runs `handler` as an interrupt handler on the calling thread's CPU: interrupts are off and
    /// waiting is not allowed.
    ///
    /// # Panics
    /// When interrupts are off already: the machine would not have delivered it.
    pub fn interrupt<R>(&self, handler: impl FnOnce() -> R) -> R {
        self.cpus.interrupt(handler)
    }

    /// Fails when any CPU is pinned or has interrupts off. For the end of a test.
    ///
    /// # Panics
    /// As said.
    pub fn assert_quiet(&self) {
        self.cpus.assert_quiet();
    }

    /// Raises the end of the direct map.
    ///
    /// # Panics
    /// When it would be lowered, which no machine does.
    pub fn raise_direct_limit(&self, limit: u64) {
        let old = self.direct_limit.swap(limit, Ordering::Relaxed);
        assert!(
            old <= limit,
            "the direct map's end may not be lowered from {old:#x} to {limit:#x}"
        );
    }

    /// Lets time pass.
    ///
    /// # Panics
    /// When the machine has no clock.
    pub fn advance_ns(&self, ns: u64) {
        let clock = self.clock.as_ref().expect("this machine was built without a clock");
        clock.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How often it was called so far.
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
        }
    }

    /// Sets what [`Platform::vmemmap_space`] answers.
    ///
    /// # Panics
    /// When it was set before.
    pub fn set_map_space(&self, space: &'static dyn VmemmapSpace) {
        assert!(self.vmemmap_space.set(space).is_ok(), "the map space was set before");
    }

    /// Whether `address` is in memory that the allocator may hand out, without counting as a use of
    /// the direct map.
    #[must_use]
    pub fn is_usable(&self, address: u64) -> bool {
        self.memory.find(address).is_some()
    }

    /// The 64 bits at physical address `address`, read at once. Not for memory that another thread
    /// writes in the ordinary way.
    ///
    /// # Panics
    /// When the address is not usable memory or not a multiple of 8.
    #[must_use]
    pub fn load(&self, address: u64) -> u64 {
        self.memory.word(address).load(Ordering::Relaxed)
    }

    /// Writes 64 bits at physical address `address`, as a device would.
    ///
    /// # Safety
    /// The frame is the caller's: nobody holds a reference into it.
    ///
    /// # Panics
    /// When the address is not usable memory or not a multiple of 8.
    pub unsafe fn store(&self, address: u64, value: u64) {
        self.memory.word(address).store(value, Ordering::Relaxed);
    }

    /// What every byte of its memory was at the start.
    #[must_use]
    pub fn pattern(&self) -> u8 {
        self.pattern
    }

    /// Whether `frame` still has the content with which the machine started.
    #[must_use]
    pub fn is_poisoned(&self, frame: Pfn) -> bool {
        let poison = u64::from_ne_bytes([self.pattern; 8]);
        (0..framewright::units::PAGE_SIZE / 8)
            .all(|word| self.load(frame.address() + 8 * word) == poison)
    }

    /// Fills a frame with what memory holds at the start.
    ///
    /// # Safety
    /// The frame is the caller's: nobody holds a reference into it.
    ///
    /// # Panics
    /// When it is not usable memory.
    pub unsafe fn poison(&self, frame: Pfn) {
        let start = self.memory.direct(frame.address());
        // SAFETY: ranges of memory consist of whole frames, and the frame is the caller's.
        unsafe { start.write_bytes(self.pattern, 4096) };
    }

    /// Gives the machine's memory back to the host. Whoever touches it afterwards faults; `direct`
    /// panics.
    ///
    /// # Safety
    /// Nobody uses the machine's memory any more, which includes every manager that runs on it.
    pub unsafe fn retire(&self) {
        self.memory.retire();
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
// range for as long as the machine was not retired, linear within each range of the map (invariants
// 1, 15), and `direct` checks the address. A CPU belongs to one thread at a time, from first use to
// the thread's end. No interrupt handler exists but those that `interrupt` runs, which checks.
// `cpu_barrier` is the host's own.
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
        // A thread that is no real CPU may have been taken off it by the host while it holds the
        // lock.
        std::thread::yield_now();
    }

    fn yield_now(&self) {
        count(&self.counters.yield_now);
        self.cpus.assert_may_yield();
        std::thread::yield_now();
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        self.vmemmap_space.get().copied()
    }
}

/// The ranges that `direct` reaches, ascending.
fn usable_ranges(map: MemoryMap<'_>) -> impl Iterator<Item = PhysRange> + '_ {
    map.ranges().iter().filter(|entry| entry.kind.is_usable()).map(|entry| entry.range)
}
