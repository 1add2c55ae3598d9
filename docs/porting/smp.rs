//! More CPUs: what `Platform` has to do once several run (step 7 of `docs/porting.md`).

use core::num::NonZeroU64;
use core::ptr::NonNull;
use framewright::units::NodeId;
use framewright::{IrqState, PinnedCpu, Platform};

/// What your kernel has already.
pub trait Machine: Sync + 'static {
    /// How many CPUs the machine can have.
    const MOST_CPUS: u32;
    /// Where physical memory is mapped.
    fn direct(&self, pa: u64) -> NonNull<u8>;
    /// What the flags were before.
    fn disable_interrupts(&self) -> usize;
    /// Puts such flags back.
    fn restore_interrupts(&self, flags: usize);
    /// Whether handlers can run on this CPU.
    fn interrupts_are_on(&self) -> bool;
    /// Whether this CPU holds any lock.
    fn holds_a_spin_lock(&self) -> bool;
    /// Whether the task may lose this CPU: every `disable_preemption` was undone.
    fn preemption_is_on(&self) -> bool;
    /// Nests.
    fn disable_preemption(&self);
    /// Undoes the last call of `disable_preemption`.
    fn enable_preemption(&self);
    /// The number of this CPU.
    fn cpu(&self) -> u32;
    /// The node that a CPU is on.
    fn node_of(&self, cpu: u32) -> usize;
    /// A number that one task has and keeps, not 0.
    fn task(&self) -> u64;
    /// Every running CPU has executed a full barrier when this returns.
    fn barrier_on_all_cpus(&self);
    /// Lets tasks of lower priority run, too.
    fn sleep_a_tick(&self);
}

/// The platform of such a kernel.
#[derive(Debug)]
pub struct Kernel<M>(pub M);

// SAFETY: as in step 2; `pin` keeps the task on its CPU; the barrier is one on every running CPU.
unsafe impl<M: Machine> Platform for Kernel<M> {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        self.0.direct(pa)
    }
    fn irq_save(&self) -> IrqState {
        IrqState(self.0.disable_interrupts())
    }
    unsafe fn irq_restore(&self, state: IrqState) {
        self.0.restore_interrupts(state.0);
    }
    fn pin(&self) -> PinnedCpu {
        self.0.disable_preemption();
        PinnedCpu::new(self.0.cpu())
    }
    unsafe fn unpin(&self, _: PinnedCpu) {
        self.0.enable_preemption();
    }
    fn cpus(&self) -> u32 {
        M::MOST_CPUS
    }
    fn cpu_node(&self, cpu: u32) -> NodeId {
        NodeId::new(self.0.node_of(cpu)).unwrap_or(NodeId::ZERO)
    }
    fn cpu_barrier(&self) {
        self.0.barrier_on_all_cpus();
    }
    fn can_wait(&self) -> bool {
        self.0.interrupts_are_on() && !self.0.holds_a_spin_lock() && self.0.preemption_is_on()
    }
    fn yield_now(&self) {
        self.0.sleep_a_tick();
    }
    fn current_task(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.task())
    }
}
