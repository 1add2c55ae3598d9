//! What the manager needs from the machine below it: see [`Platform`].

mod accept;
mod linear;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use accept::{AcceptError, AcceptMemory};
pub use linear::{Cpu, LinearMap, OneAtATime, Undo};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{interrupts_back, interrupts_off};

use crate::units::NodeId;
use crate::vmemmap_space::VmemmapSpace;
use core::marker::PhantomData;
use core::num::NonZeroU64;
use core::ptr::NonNull;

/// The CPU on which the caller stays until it passes this value to [`Platform::unpin`].
///
/// The value describes the task that was pinned and no other task, so it is neither [`Send`] nor
/// [`Sync`]. Any code can construct one, and having one proves nothing: what counts is that
/// [`Platform::pin`] returned it, which is why `unpin` is unsafe.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "give it back with Platform::unpin"]
pub struct PinnedCpu {
    /// The CPU number and [`NESTED`], in one register because every free passes the value on.
    word: u32,
    of_this_task: PhantomData<*const ()>,
}

/// The bit of [`PinnedCpu`] that marks a nested pin. No machine has a CPU with so large a number.
const NESTED: u32 = 1 << 31;

impl PinnedCpu {
    /// CPU `index`, which is in 0..[`Platform::cpus`]. The highest bit of any other number is lost.
    pub const fn new(index: u32) -> Self {
        Self { word: index & !NESTED, of_this_task: PhantomData }
    }

    /// CPU `index`, for a caller that was pinned already, where the implementer needs to know this
    /// in [`Platform::unpin`].
    pub const fn nested(index: u32) -> Self {
        Self { word: index | NESTED, of_this_task: PhantomData }
    }

    /// Whether [`PinnedCpu::nested`] made this value.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.word & NESTED != 0
    }

    /// The number of the CPU.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.word & !NESTED
    }
}

/// Pins the caller and calls `work` with the number of its CPU.
#[inline(always)]
pub(crate) fn pinned<P: Platform + ?Sized, R>(platform: &P, work: impl FnOnce(u32) -> R) -> R {
    let cpu = platform.pin();
    let result = work(cpu.index());
    // SAFETY: `cpu` was pinned just above, and `work` has undone every pin of its own (invariant
    // 16).
    unsafe { platform.unpin(cpu) };
    result
}

/// Does `work` with interrupts off: for sections that other CPUs may wait for.
#[inline]
pub(crate) fn with_interrupts_off<P: Platform + ?Sized, R>(
    platform: &P,
    work: impl FnOnce() -> R,
) -> R {
    let irq = platform.irq_save();
    let result = work();
    // SAFETY: `irq` was saved just above, and `work` has restored everything that it saved.
    unsafe { platform.irq_restore(irq) };
    result
}

/// The interrupt state that [`Platform::irq_save`] found; opaque to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it back with Platform::irq_restore"]
pub struct IrqState(pub usize);

/// The machine under the manager. A kernel with one CPU implements four methods.
///
/// # Order of work for an implementer
///
/// 1. [`direct`](Platform::direct): return the address at which your kernel sees physical memory,
///    usually the physical address plus a fixed offset. Until the direct map is complete, report
///    how far it reaches with [`direct_limit`](Platform::direct_limit).
/// 2. [`irq_save`](Platform::irq_save) and [`irq_restore`](Platform::irq_restore): `pushf; cli` and
///    `popf` on x86. The manager brackets every lock with them, so an interrupt handler that
///    allocates never waits for the code that it interrupted.
/// 3. [`pin`](Platform::pin): return the CPU on which the caller runs, keep the caller there, and
///    keep other tasks off that CPU until [`unpin`](Platform::unpin). Disabling preemption is
///    enough; disabling only migration is not. Interrupts may stay on. A kernel without preemption
///    just returns its CPU number.
/// 4. With more than one CPU, also: [`cpus`](Platform::cpus),
///    [`cpu_barrier`](Platform::cpu_barrier) and [`can_wait`](Platform::can_wait). With preemption,
///    also: [`unpin`](Platform::unpin) and [`yield_now`](Platform::yield_now).
/// 5. With a clock: [`now_ns`](Platform::now_ns), so that bring-up can report how long it took.
///
/// Contexts: the manager calls `cpu_barrier`, `yield_now` and every method of [`VmemmapSpace`] only
/// where waiting is allowed and the caller is not pinned, so these may sleep. Bring-up is an
/// exception: it calls methods of `VmemmapSpace` whatever `can_wait` says. All other methods are
/// called from any context in which you call the manager, interrupt handlers included.
///
/// # Safety
/// The implementer promises that
/// * every frame that it declares usable, or unaccepted once
///   [`accept_memory`](Platform::accept_memory) accepted it, is unused RAM while the manager owns
///   it, and is readable and writable, with any content, at `direct(pa)` for every `pa` below
///   `direct_limit()`; equal addresses give equal pointers for ever; `direct(pa + n)` is
///   `direct(pa) + n` as long as everything between them is present memory; and `direct(pa)` is
///   aligned as `pa` is, up to a page, so the address at which a page is seen is a multiple of the
///   page size;
/// * between `irq_save` and the matching `irq_restore` no interrupt handler of this CPU calls the
///   manager;
/// * between `pin` and `unpin` the caller stays on the CPU that `pin` named, no other task of that
///   CPU calls the manager (interrupt handlers may), and no two CPUs that run at the same time have
///   the same number;
/// * `cpus` always returns one number, from before bring-up on; a CPU whose number is not below it
///   has no cache, and such CPUs exist only where `cpus` returns 1;
/// * when `cpu_barrier` returns, every CPU has executed a full memory barrier since the call began,
///   or has stopped calling the manager: such a CPU is inside none of the manager's calls, and
///   everything it did there is visible to the caller. A CPU that returns to the manager first
///   becomes reachable by `cpu_barrier` again and then executes a full barrier.
pub unsafe trait Platform: Sync + 'static {
    /// Returns the address at which the caller sees physical address `pa`, which is below
    /// [`direct_limit`](Self::direct_limit) and in usable memory.
    fn direct(&self, pa: u64) -> NonNull<u8>;

    /// Keeps the caller on this CPU until [`unpin`](Self::unpin), and lets no other task of this
    /// CPU into the manager meanwhile. A pinned caller must keep running, because others may busily
    /// wait for it. Interrupts may come. Pins nest: the last pin is undone first.
    fn pin(&self) -> PinnedCpu;

    /// Turns interrupts off on this CPU and returns whether they were on. Calls nest.
    fn irq_save(&self) -> IrqState;

    /// Undoes the matching [`irq_save`](Self::irq_save).
    ///
    /// # Safety
    /// `state` is what the last [`irq_save`](Self::irq_save) of this CPU returned that was not
    /// undone yet, and it is undone on the CPU that saved it: otherwise interrupts come on where
    /// somebody relies on their being off.
    unsafe fn irq_restore(&self, state: IrqState);

    /// Undoes the matching [`pin`](Self::pin).
    ///
    /// # Safety
    /// `_cpu` is what the last [`pin`](Self::pin) of the calling task returned that was not undone
    /// yet. Otherwise this gives up a CPU on which another task relies on being alone (invariant
    /// 16).
    unsafe fn unpin(&self, _cpu: PinnedCpu) {}

    /// One past the highest physical address that `direct` reaches. The limit may rise while the
    /// direct map is being built, and never falls.
    fn direct_limit(&self) -> u64 {
        u64::MAX
    }

    /// How many CPUs the machine can have; CPU numbers are below it. At least 1, and always the
    /// same number, because bring-up lays out the data of each CPU.
    fn cpus(&self) -> u32 {
        1
    }

    /// The node whose memory is nearest to CPU `cpu`.
    fn cpu_node(&self, _cpu: u32) -> NodeId {
        NodeId::ZERO
    }

    /// How many threads of `node` itself may initialise its memory at boot; at least 1. In
    /// addition, one thread of each other node helps once that node's own memory is done.
    fn init_threads(&self, _node: NodeId) -> u32 {
        self.cpus()
    }

    /// Whether the calling context may wait for other CPUs and other tasks: it holds no lock,
    /// interrupts are on, and the task may lose its CPU in [`yield_now`](Self::yield_now), so that
    /// a task that was preempted inside the manager can finish.
    fn can_wait(&self) -> bool {
        false
    }

    /// Identifies the calling task: a number that a task keeps for as long as it lives, whatever
    /// CPU it is on, and that no other living task has. The manager asks so that a request made
    /// inside the reclaim hook ([`Reclaim`](crate::Reclaim)) neither calls nor wakes it again, and
    /// so that a task that compacts, resizes a pool, or adds or removes memory does not wait for
    /// itself. `None`: tasks cannot be told apart, so only one at a time is in the hook.
    fn current_task(&self) -> Option<NonZeroU64> {
        None
    }

    /// Wakes the task that calls
    /// [`Pressure::reclaim_in_background`](crate::manager::Pressure::reclaim_in_background) (Linux:
    /// `mm/vmscan.c`, `wakeup_kswapd`). Called for the first request that finds `node` below its
    /// low watermarks since it was above the high ones, or since background reclaim left it short.
    /// The call comes in the middle of an allocation, pinned and perhaps with interrupts off, so it
    /// must not wait, allocate or free. The default does nothing, for kernels that poll.
    fn wake_reclaim(&self, _node: NodeId) {}

    /// Executes a full memory barrier on every CPU. Required when [`cpus`](Self::cpus) is above 1;
    /// bring-up then calls it once, where waiting is allowed.
    ///
    /// A CPU that does not run yet, or no longer runs, is left out: nobody interrupts it or waits
    /// for it. If the running CPUs are a set in memory, three rules apply. A CPU that stops leaves
    /// the set with a Release after its last call of the manager. A CPU that starts enters the set
    /// and then executes a full barrier before its first call. `cpu_barrier` itself executes a full
    /// barrier and then reads the set with an Acquire.
    ///
    /// # Panics
    /// The default panics when there are several CPUs: without a barrier, two of them could get the
    /// same page.
    fn cpu_barrier(&self) {
        let cpus = self.cpus();
        assert!(cpus == 1, "Platform::cpu_barrier is not implemented, but {cpus} CPUs need it");
    }

    /// The time of a monotonic clock in nanoseconds, if there is a clock.
    fn now_ns(&self) -> Option<u64> {
        None
    }

    /// Returns 64 unpredictable bits from a source of the hardware or the system. The manager asks
    /// a few times at bring-up: they seed the shuffle, so that nobody who knows the machine can
    /// predict where memory will lie. `None`: there are none at the moment.
    fn entropy(&self) -> Option<u64> {
        None
    }

    /// Called in every iteration of a busy wait, from any context. The wait is short: it is for a
    /// running CPU, or for a task on another CPU that is pinned or has interrupts off. Must not
    /// sleep.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Called in every iteration of a wait for another task, which may run on any CPU and take any
    /// time: only where [`can_wait`](Self::can_wait) is true, and not pinned. A kernel with
    /// preemption lets other tasks run here, those of lower priority included: it yields, or sleeps
    /// for a while. The default waits busily, which is right where no task ever takes the CPU from
    /// another.
    fn yield_now(&self) {
        self.relax();
    }

    /// Whether this is a guest of a hypervisor. This decides the size of the control files' memory
    /// blocks on machines of 64 GiB and more: 2 GiB on bare metal, and the largest size that
    /// divides all memory in a guest (Linux: `X86_FEATURE_HYPERVISOR`).
    fn is_guest(&self) -> bool {
        true
    }

    /// The interface that accepts memory which firmware reported as unaccepted, so that the manager
    /// can use it. `None`: such memory stays reserved. The answer never changes.
    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        None
    }

    /// The vmemmap's address range. `None`: there is no array of page descriptors; see
    /// `pages=inside`.
    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        None
    }
}
