//! What the manager needs from this machine: its CPUs, their interrupts, and all memory at one
//! offset.
//!
//! Orders of memory: the end of the direct map is raised with Release and read with Acquire, so
//! that a CPU that sees the higher end sees the tables. The clock and the kind of wait are Relaxed,
//! because they are settled on one CPU before others run.

use crate::smp;
use crate::storage::Settled;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use framewright::memblock::Memblock;
use framewright::platform::{AcceptMemory, IrqState, PinnedCpu, Platform};
use framewright::units::NodeId;
use framewright::vmemmap_space::VmemmapSpace;
use framewright_arch::x86_64::features::{has_hypervisor, hypervisor_is};
use framewright_arch::x86_64::{entropy, interrupts, registers};

/// The memblock allocator of this guest.
pub type EarlyMemory<'a> = Memblock<'a, GuestPlatform>;

/// Where physical address 0 is mapped: the lowest address of the upper half. It is not 0, so that
/// using a physical address as a pointer faults.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
/// The tables of `boot.s` map physical memory below this address.
pub const BOOT_MAP_LIMIT: u64 = 4 << 30;

/// In an emulator, how many turns of a busy wait there are for each `pause` instruction.
const PLAIN_TURNS: u32 = 4096;

const NANOSECONDS: u64 = 1_000_000_000;

/// The platform of this guest.
pub struct GuestPlatform {
    direct_limit: AtomicU64,
    /// The time-stamp counter when the guest began.
    time_zero: AtomicU64,
    /// Nanoseconds per count, in units of 2^-32; 0 until the rate is known.
    nanoseconds_per_count: AtomicU64,
    /// Whether busy waits mostly omit the `pause` instruction, which helps the sibling of a real
    /// CPU.
    waits_plainly: AtomicBool,
}

/// The only instance of the platform.
pub static PLATFORM: GuestPlatform = GuestPlatform {
    direct_limit: AtomicU64::new(BOOT_MAP_LIMIT),
    time_zero: AtomicU64::new(0),
    nanoseconds_per_count: AtomicU64::new(0),
    waits_plainly: AtomicBool::new(false),
};

/// The barrier on all CPUs. Only CPU 0 runs until it is set.
static BARRIER: Settled<fn()> = Settled::new();
/// The vmemmap, if there is one.
static VMEMMAP_SPACE: Settled<&'static dyn VmemmapSpace> = Settled::new();

/// The device that accepts memory, if there is one.
static ACCEPT_DEVICE: Settled<&'static dyn AcceptMemory> = Settled::new();

/// Sets the device that accepts memory. To be called once, before there is an allocator.
pub fn set_accept_device(device: &'static dyn AcceptMemory) {
    ACCEPT_DEVICE.settle(device);
}

/// Sets the barrier on all CPUs. To be called once, before another CPU is started.
pub fn set_barrier(barrier: fn()) {
    BARRIER.settle(barrier);
}

/// Sets the vmemmap. To be called once, before the manager is brought up.
pub fn set_vmemmap_space(space: &'static dyn VmemmapSpace) {
    VMEMMAP_SPACE.settle(space);
}

impl GuestPlatform {
    /// Starts the clock.
    pub fn start_time(&self) {
        self.time_zero.store(registers::time_stamp(), Ordering::Relaxed);
    }

    /// Chooses how to wait. At every `pause`, QEMU's emulator leaves translated code and takes a
    /// lock that all its CPUs share and that interrupts need, too. CPUs that wait with `pause`
    /// would delay the event that they wait for by milliseconds.
    pub fn choose_wait(&self) {
        self.waits_plainly.store(hypervisor_is(*b"TCGTCGTCGTCG"), Ordering::Relaxed);
    }

    /// Sets the rate of the time-stamp counter.
    pub fn set_clock_rate(&self, hz: u64) {
        let per_count = (NANOSECONDS << 32).checked_div(hz).unwrap_or(0);
        self.nanoseconds_per_count.store(per_count, Ordering::Relaxed);
    }

    /// Records that the direct map has grown and now maps everything below `limit`.
    pub fn raise_direct_limit(&self, limit: u64) {
        self.direct_limit.fetch_max(limit, Ordering::Release);
    }
}

// SAFETY: the tables of `boot.s`, and later those of `direct_map`, map all present memory below
// `direct_limit` at one offset (invariants 1 and 15), except for memory that is not accepted yet
// (`accept`). The intake reserves what this program occupies. Nothing migrates between CPUs here,
// each CPU has a number of its own, and with interrupts off no handler that calls the manager runs
// (the handlers that run anyway report a failure and end the guest). The barrier waits for a
// barrier on each CPU that runs; a CPU that is still starting or parked accesses nothing of the
// manager's until it runs (`smp::park`).
unsafe impl Platform for GuestPlatform {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let address = usize::try_from(DIRECT_MAP | pa).expect("addresses have 64 bits");
        NonNull::new(core::ptr::with_exposed_provenance_mut(address))
            .expect("the direct map is not at zero")
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(smp::index())
    }

    fn cpus(&self) -> u32 {
        smp::count()
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        smp::cpu(cpu).map_or(NodeId::ZERO, smp::Cpu::node)
    }

    /// Returns how many CPUs of the node run, at least 1.
    fn init_threads(&self, node: NodeId) -> u32 {
        let on_node =
            smp::online().iter().filter_map(smp::cpu).filter(|cpu| cpu.node() == node).count();
        u32::try_from(on_node).unwrap_or(1).max(1)
    }

    /// Interrupts are off in handlers and while a lock is held.
    fn can_wait(&self) -> bool {
        interrupts::are_enabled()
    }

    /// Each CPU is one task: only interrupts preempt it, and handlers do not wait.
    fn current_task(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(u64::from(smp::index()) + 1)
    }

    fn cpu_barrier(&self) {
        match BARRIER.get() {
            Some(barrier) => barrier(),
            // SeqCst, with no partner: no other CPU runs yet.
            None => fence(Ordering::SeqCst),
        }
    }

    fn irq_save(&self) -> IrqState {
        IrqState(registers::disable_interrupts())
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: the caller upholds it.
        unsafe { registers::restore_interrupts(state.0) };
    }

    fn direct_limit(&self) -> u64 {
        self.direct_limit.load(Ordering::Acquire)
    }

    fn is_guest(&self) -> bool {
        has_hypervisor()
    }

    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        ACCEPT_DEVICE.get().copied()
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        VMEMMAP_SPACE.get().copied()
    }

    fn relax(&self) {
        if !self.waits_plainly.load(Ordering::Relaxed) || smp::this().counts_to(PLAIN_TURNS) {
            core::hint::spin_loop();
        }
    }

    /// Uses the CPU's random number generator, if it has one.
    fn entropy(&self) -> Option<u64> {
        entropy::random()
    }

    fn now_ns(&self) -> Option<u64> {
        let per_count = self.nanoseconds_per_count.load(Ordering::Relaxed);
        if per_count == 0 {
            return None;
        }
        let counts = registers::time_stamp().saturating_sub(self.time_zero.load(Ordering::Relaxed));
        u64::try_from((u128::from(counts) * u128::from(per_count)) >> 32).ok()
    }
}
