//! What the manager needs from the machine below it. See [`Platform`].

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

/// The CPU on which the caller stays until it gives this back through [`Platform::unpin`].
///
/// It says something of the task that was pinned and of no other, so it stays there: it is neither
/// [`Send`] nor [`Sync`]. Anybody can make one, which proves nothing: what counts is that
/// [`Platform::pin`] returned it, and `unpin` is unsafe for that.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "give it back with Platform::unpin"]
pub struct PinnedCpu {
    /// In one register, as it is handed on with every free: the number, and [`NESTED`].
    word: u32,
    of_this_task: PhantomData<*const ()>,
}

/// The bit of [`PinnedCpu`] that says so. No machine has a CPU with such a number.
const NESTED: u32 = 1 << 31;

impl PinnedCpu {
    /// CPU `index`, 0..[`Platform::cpus`].
    pub const fn new(index: u32) -> Self {
        Self { word: index & !NESTED, of_this_task: PhantomData }
    }

    /// CPU `index`, for a caller that was pinned already, where the implementer wants to know it in
    /// [`Platform::unpin`].
    pub const fn nested(index: u32) -> Self {
        Self { word: index | NESTED, of_this_task: PhantomData }
    }

    /// Whether it came from [`PinnedCpu::nested`].
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.word & NESTED != 0
    }

    /// Which CPU.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.word & !NESTED
    }
}

/// Does `work`, which learns the number of the CPU, while the caller stays on it.
#[inline(always)]
pub(crate) fn pinned<P: Platform + ?Sized, R>(platform: &P, work: impl FnOnce(u32) -> R) -> R {
    let cpu = platform.pin();
    let result = work(cpu.index());
    // SAFETY: pinned here just now; what `work` pinned it has unpinned (invariant 16).
    unsafe { platform.unpin(cpu) };
    result
}

/// Does `work` with interrupts off: for what others wait for.
#[inline]
pub(crate) fn with_interrupts_off<P: Platform + ?Sized, R>(
    platform: &P,
    work: impl FnOnce() -> R,
) -> R {
    let irq = platform.irq_save();
    let result = work();
    // SAFETY: saved here just now; what `work` saved it has restored.
    unsafe { platform.irq_restore(irq) };
    result
}

/// What [`Platform::irq_save`] found; opaque to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it back with Platform::irq_restore"]
pub struct IrqState(pub usize);

/// The machine under the manager. A kernel with one CPU implements four methods.
///
/// # Order of work for an implementer
///
/// 1. [`direct`](Platform::direct): return the address at which you see physical memory. Identity
///    plus an offset is the usual answer. Until your direct map is whole, say how far it reaches
///    with [`direct_limit`](Platform::direct_limit).
/// 2. [`irq_save`](Platform::irq_save) and [`irq_restore`](Platform::irq_restore): `pushf; cli` and
///    `popf` on x86. The manager brackets every lock with them, so a handler that allocates never
///    waits for the code that it interrupted.
/// 3. [`pin`](Platform::pin): say on which CPU the caller runs and keep it there, and other tasks
///    of that CPU away, until [`unpin`](Platform::unpin). Disabling preemption is enough, keeping a
///    task from migrating is not; interrupts may stay on. A kernel without preemption returns its
///    CPU number.
/// 4. With more than one CPU also: [`cpus`](Platform::cpus),
///    [`cpu_barrier`](Platform::cpu_barrier) and [`can_wait`](Platform::can_wait). With preemption
///    also: [`unpin`](Platform::unpin) and [`yield_now`](Platform::yield_now).
/// 5. With a clock: [`now_ns`](Platform::now_ns), so that bring-up can say how long it took.
///
/// Contexts: the manager calls `direct`, `pin`, `unpin`, `irq_save`, `irq_restore`, `now_ns` and
/// `relax` from any context in which you call the manager, interrupt handlers included;
/// `cpu_barrier`, `yield_now` and everything on [`VmemmapSpace`] only where waiting is allowed, and
/// not pinned, so that they may sleep.
///
/// # Safety
/// The implementer promises that
/// * every frame that it declares usable, or unaccepted once
///   [`accept_memory`](Platform::accept_memory) accepted it, is unused RAM while the manager owns
///   it, and is readable and writable, with any content, at `direct(pa)` for every `pa` below
///   `direct_limit()`; equal addresses give equal pointers for ever, and `direct(pa + n)` is
///   `direct(pa) + n` as long as all between them is present memory; and `direct(pa)` is aligned
///   as `pa` is, up to a page: what is shown at the place of a page begins at a multiple of the
///   page size;
/// * between `irq_save` and the matching `irq_restore` no interrupt handler of this CPU calls the
///   manager;
/// * between `pin` and `unpin` the caller stays on the CPU that `pin` named, no other task of that
///   CPU calls the manager (interrupt handlers may), and no two CPUs that run at once have one
///   number;
/// * `cpus` always gives one number, from before bring-up on; a CPU whose number is not below it
///   has no cache, and where that number is above 1 there is none;
/// * when `cpu_barrier` returns, every CPU has executed a full memory barrier since it was called,
///   or it calls the manager no more: it is in none of its calls, and what it did there is visible
///   to the caller. One that comes back executes a full barrier first, after it is reached again.
pub unsafe trait Platform: Sync + 'static {
    /// Where the caller sees physical address `pa`, which is below
    /// [`direct_limit`](Self::direct_limit) and in usable memory.
    fn direct(&self, pa: u64) -> NonNull<u8>;

    /// Stays on this CPU until [`unpin`](Self::unpin), and lets no other task of it into the
    /// manager meanwhile: the caller goes on, because others may wait for it busily. Interrupts may
    /// come. Nests: what was pinned last is unpinned first.
    fn pin(&self) -> PinnedCpu;

    /// Turns interrupts off on this CPU and says whether they were on. Nests.
    fn irq_save(&self) -> IrqState;

    /// Undoes the matching [`irq_save`](Self::irq_save).
    ///
    /// # Safety
    /// `state` is what the last [`irq_save`](Self::irq_save) of this CPU returned that was not
    /// undone yet, and it is undone where it was called: otherwise interrupts come on where
    /// somebody relies on their being off.
    unsafe fn irq_restore(&self, state: IrqState);

    /// Ends what [`pin`](Self::pin) began.
    ///
    /// # Safety
    /// `_cpu` is what the last [`pin`](Self::pin) of the calling task returned that was not ended
    /// yet. Otherwise a CPU is given up on which another task relies on being alone (invariant
    /// 16).
    unsafe fn unpin(&self, _cpu: PinnedCpu) {}

    /// One past the highest physical address that `direct` reaches; raised while the direct map is
    /// being built, never lowered.
    fn direct_limit(&self) -> u64 {
        u64::MAX
    }

    /// How many CPUs the machine can have; their numbers are below it. At least 1, and always the
    /// same number: what there is for each CPU is laid out at bring-up.
    fn cpus(&self) -> u32 {
        1
    }

    /// The node whose memory is nearest to CPU `cpu`.
    fn cpu_node(&self, _cpu: u32) -> NodeId {
        NodeId::ZERO
    }

    /// How many threads of its own may initialise memory of `node` at boot. At least 1. Threads of
    /// other nodes, one of each, help when theirs is done.
    fn init_threads(&self, _node: NodeId) -> u32 {
        self.cpus()
    }

    /// Whether the calling context may wait for other CPUs and for other tasks: no lock is held,
    /// interrupts are on, and the task may lose its CPU in [`yield_now`](Self::yield_now), so that
    /// another, preempted in the middle of the manager, comes to its end.
    fn can_wait(&self) -> bool {
        false
    }

    /// Who the caller is: a number that a task keeps as long as it lives, whatever CPU it is on,
    /// and that no other has meanwhile. Asked only where waiting is allowed: before the reclaim
    /// hook is called ([`Reclaim`](crate::Reclaim)), so that a request inside the hook does not
    /// call it again, and before memory comes or goes, so that nobody waits for himself. `None`:
    /// tasks cannot be told apart, so one at a time is in the hook.
    fn current_task(&self) -> Option<NonZeroU64> {
        None
    }

    /// A request found `node` below its low watermarks, as none had since it was above the high
    /// ones, or since reclaim in the background left it short: wakes whoever calls
    /// [`Pressure::reclaim_in_background`](crate::manager::Pressure::reclaim_in_background) (Linux:
    /// `mm/vmscan.c`, `wakeup_kswapd`). Called in the midst of allocations, pinned and perhaps with
    /// interrupts off: it neither waits nor allocates nor frees. The default is for those who poll.
    fn wake_reclaim(&self, _node: NodeId) {}

    /// A full memory barrier on every CPU. Required when [`cpus`](Self::cpus) is above 1; bring-up
    /// calls it once then, where waiting is allowed.
    ///
    /// CPUs that do not run, not yet or not any more, are left out: nobody interrupts them or waits
    /// for them. Where they are a set in memory, a CPU that goes leaves it by a Release behind its
    /// last call of the manager; one that comes enters it, and then executes a full barrier before
    /// its first; and `cpu_barrier` executes one, and then reads it by an Acquire.
    ///
    /// # Panics
    /// The default, when there are several CPUs: without a barrier two of them could get one page.
    fn cpu_barrier(&self) {
        let cpus = self.cpus();
        assert!(cpus == 1, "Platform::cpu_barrier is not implemented, but {cpus} CPUs need it");
    }

    /// A monotonic clock in nanoseconds, when there is one.
    fn now_ns(&self) -> Option<u64> {
        None
    }

    /// 64 bits that nobody can foresee, from a source of the hardware or the system. Asked for a
    /// few times, at bring-up: the shuffle begins with it, so that nobody who knows the machine
    /// knows where memory will lie. `None`: there is none now.
    fn entropy(&self) -> Option<u64> {
        None
    }

    /// Called in every turn of a busy wait, from any context: what is waited for is a CPU that is
    /// at work, or a task on another CPU that is pinned or has interrupts off, and so comes soon.
    /// Must not sleep.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Called in every turn of a wait for another task, whatever CPU it is on and however long it
    /// takes: only where [`can_wait`](Self::can_wait) is true, and not pinned. A kernel with
    /// preemption lets others run here, those of lower priority included: it yields, or sleeps for
    /// a while. The default busily waits, which is right where no task ever takes the CPU from
    /// another.
    fn yield_now(&self) {
        self.relax();
    }

    /// Whether this is a guest of a hypervisor. From 64 GiB on memory blocks of the files are 2 GiB
    /// on bare metal, and what divides all memory in a guest (Linux: `X86_FEATURE_HYPERVISOR`).
    fn is_guest(&self) -> bool {
        true
    }

    /// Accepts memory that firmware reported as unaccepted, so that it is managed. `None`: it stays
    /// reserved. Always the same.
    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        None
    }

    /// The vmemmap's address range. `None`: there is no array; see `pages=inside`.
    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        None
    }
}
