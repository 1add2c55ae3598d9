//! A platform built from safe code: [`Cpu`] says where the caller runs and who may interrupt it,
//! [`LinearMap`] says where memory is seen, and constructing a `LinearMap` is the only unsafe
//! promise.

use super::{IrqState, PinnedCpu, Platform};
use crate::units::NodeId;
use core::num::NonZeroU64;
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// A value to be undone. Only the manager's calls make one, each from what `pin` or `irq_save`
/// returned, so that safe code cannot undo a state that somebody relies on.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "undo it"]
pub struct Undo<T>(T);

impl<T> Undo<T> {
    /// The value that `pin` or `irq_save` returned.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// The methods of [`Platform`] that concern CPUs and tasks, in safe code: each method does what the
/// method of that name in [`Platform`] has to do. The defaults suit one CPU on which no interrupt
/// handler calls the manager, or a kernel that calls it under a lock of its own with interrupts
/// off.
///
/// The code that makes a [`LinearMap`] from an implementation vouches that it keeps the promises of
/// [`Platform`].
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
    /// The default panics when there are several CPUs: without a barrier, two of them could get the
    /// same page.
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

/// One caller at a time: every method is [`Cpu`]'s default.
#[derive(Clone, Copy, Default, Debug)]
pub struct OneAtATime;

impl Cpu for OneAtATime {}

/// A [`Platform`] for a kernel that sees all memory at one offset; only one expression, its
/// construction, is unsafe. Methods that [`Cpu`] does not have keep their defaults: there is no
/// vmemmap array, and no memory to accept.
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
    /// A platform on which physical address `pa` is seen at `base + pa`.
    ///
    /// # Safety
    /// The caller promises all that an implementer of [`Platform`] promises:
    /// * every frame that is declared usable is unused RAM while the manager owns it, and readable
    ///   and writable at `base + pa`, which is not null, does not wrap around, and stays so; `base`
    ///   is a multiple of the page size;
    /// * `cpu` keeps [`Platform`]'s promises about `pin`, `irq_save`, `cpus` and `cpu_barrier`: for
    ///   the defaults, there is one CPU and none of its handlers calls the manager, or only one
    ///   caller at a time calls the manager.
    pub const unsafe fn new(base: usize, cpu: C) -> Self {
        Self { base, limit: u64::MAX, cpu }
    }

    /// This platform with a direct map that ends before `limit`: see [`Platform::direct_limit`].
    #[must_use]
    pub const fn ending_at(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// The implementation of [`Cpu`].
    pub const fn cpu(&self) -> &C {
        &self.cpu
    }
}

// SAFETY: the caller of `new` promised all of this; an `Undo` is made only from a value that the
// caller of an unsafe method undoes.
unsafe impl<C: Cpu> Platform for LinearMap<C> {
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        #[expect(clippy::cast_possible_truncation, reason = "an address that is mapped")]
        let place = with_exposed_provenance_mut(self.base.wrapping_add(pa as usize));
        // Null can only come from an address that nobody may ask for: no managed frame is there.
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
