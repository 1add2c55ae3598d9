//! A platform out of safe code: [`Cpu`] says where the caller runs and who may interrupt it,
//! [`LinearMap`] where memory is seen, and making one is the only promise.

use super::{IrqState, PinnedCpu, Platform};
use crate::units::NodeId;
use core::num::NonZeroU64;
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// What is to be undone: only the manager's calls make one, each for what `pin` or `irq_save`
/// returned, so that safe code can undo nothing that somebody counts on.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "undo it"]
pub struct Undo<T>(T);

impl<T> Undo<T> {
    /// What was returned.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// What [`Platform`] asks of CPUs and tasks, in safe code: each method does what the method of that
/// name has to do there. The defaults are those of one CPU on which no interrupt handler calls the
/// manager, or of a kernel that calls it under a lock of its own with interrupts off.
///
/// Whether what is promised there is kept says who makes a [`LinearMap`] of it.
pub trait Cpu: Sync + 'static {
    /// [`Platform::pin`].
    #[inline]
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }

    /// [`Platform::unpin`].
    #[inline]
    fn unpin(&self, _cpu: Undo<PinnedCpu>) {}

    /// [`Platform::irq_save`].
    #[inline]
    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }

    /// [`Platform::irq_restore`].
    #[inline]
    fn irq_restore(&self, _state: Undo<IrqState>) {}

    /// [`Platform::cpus`].
    #[inline]
    fn cpus(&self) -> u32 {
        1
    }

    /// [`Platform::cpu_node`].
    #[inline]
    fn cpu_node(&self, _cpu: u32) -> NodeId {
        NodeId::ZERO
    }

    /// [`Platform::cpu_barrier`].
    ///
    /// # Panics
    /// The default, when there are several CPUs: without a barrier two of them could get one page.
    fn cpu_barrier(&self) {
        let cpus = self.cpus();
        assert!(cpus == 1, "Cpu::cpu_barrier is not implemented, but {cpus} CPUs need it");
    }

    /// [`Platform::can_wait`].
    #[inline]
    fn can_wait(&self) -> bool {
        false
    }

    /// [`Platform::relax`].
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// [`Platform::yield_now`].
    fn yield_now(&self) {
        self.relax();
    }

    /// [`Platform::current_task`].
    fn current_task(&self) -> Option<NonZeroU64> {
        None
    }

    /// [`Platform::wake_reclaim`].
    fn wake_reclaim(&self, _node: NodeId) {}

    /// [`Platform::now_ns`].
    fn now_ns(&self) -> Option<u64> {
        None
    }

    /// [`Platform::entropy`].
    fn entropy(&self) -> Option<u64> {
        None
    }
}

/// One caller at a time: all of [`Cpu`]'s defaults.
#[derive(Clone, Copy, Default, Debug)]
pub struct OneAtATime;

impl Cpu for OneAtATime {}

/// A kernel that sees all memory at one offset: a [`Platform`] for whose making one expression is
/// unsafe. What [`Cpu`] does not have is by default: there is no vmemmap array, and no memory to
/// accept.
///
/// ```
/// use framewright::platform::{LinearMap, OneAtATime};
///
/// // SAFETY: boot code maps all memory from here on; the kernel calls the manager under a lock
/// // that keeps interrupts off.
/// static MAP: LinearMap<OneAtATime> =
///     unsafe { LinearMap::new(0xffff_8000_0000_0000, OneAtATime) };
/// ```
#[derive(Debug)]
pub struct LinearMap<C> {
    base: usize,
    limit: u64,
    cpu: C,
}

impl<C: Cpu> LinearMap<C> {
    /// Physical address `pa` is seen at `base + pa`.
    ///
    /// # Safety
    /// All that an implementer of [`Platform`] promises:
    /// * every frame that is declared usable is unused RAM while the manager owns it, and readable
    ///   and writable at `base + pa`, which is not null, does not wrap around, and stays so; `base`
    ///   is a multiple of the page size;
    /// * `cpu` keeps what is promised there of `pin`, `irq_save`, `cpus` and `cpu_barrier`: by
    ///   default there is one CPU, and no handler of it, or the manager is called by one at a time.
    pub const unsafe fn new(base: usize, cpu: C) -> Self {
        Self { base, limit: u64::MAX, cpu }
    }

    /// One whose map ends before `limit`: see [`Platform::direct_limit`].
    #[must_use]
    pub const fn ending_at(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// What it says of CPUs.
    pub const fn cpu(&self) -> &C {
        &self.cpu
    }
}

// SAFETY: who made it promised all of this; `Undo` is made of what the caller of an unsafe method
// undoes, and of nothing else.
unsafe impl<C: Cpu> Platform for LinearMap<C> {
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        #[expect(clippy::cast_possible_truncation, reason = "an address that is mapped")]
        let place = with_exposed_provenance_mut(self.base.wrapping_add(pa as usize));
        // Null is what nobody may ask for: no frame that is managed.
        NonNull::new(place).unwrap_or(NonNull::dangling())
    }

    #[inline]
    fn pin(&self) -> PinnedCpu {
        self.cpu.pin()
    }

    #[inline]
    unsafe fn unpin(&self, cpu: PinnedCpu) {
        self.cpu.unpin(Undo(cpu));
    }

    #[inline]
    fn irq_save(&self) -> IrqState {
        self.cpu.irq_save()
    }

    #[inline]
    unsafe fn irq_restore(&self, state: IrqState) {
        self.cpu.irq_restore(Undo(state));
    }

    fn direct_limit(&self) -> u64 {
        self.limit
    }

    fn cpus(&self) -> u32 {
        self.cpu.cpus()
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.cpu.cpu_node(cpu)
    }

    fn cpu_barrier(&self) {
        self.cpu.cpu_barrier();
    }

    fn can_wait(&self) -> bool {
        self.cpu.can_wait()
    }

    fn relax(&self) {
        self.cpu.relax();
    }

    fn yield_now(&self) {
        self.cpu.yield_now();
    }

    fn current_task(&self) -> Option<NonZeroU64> {
        self.cpu.current_task()
    }

    fn wake_reclaim(&self, node: NodeId) {
        self.cpu.wake_reclaim(node);
    }

    fn now_ns(&self) -> Option<u64> {
        self.cpu.now_ns()
    }

    fn entropy(&self) -> Option<u64> {
        self.cpu.entropy()
    }
}
