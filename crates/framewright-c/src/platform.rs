//! The platform as C describes it: a struct of numbers and function pointers.

use crate::error::*;
use core::ffi::{c_char, c_void};
use core::fmt::{self, Write};
use core::num::NonZeroU64;
use core::ptr::NonNull;
use framewright::units::PAGE_SIZE;
use framewright::{IrqState, PinnedCpu, Platform};

/// The version of this interface: what `fw_platform` says that it was written for.
pub const FW_VERSION: u32 = 1;

/// A flag of `fw_platform`: physical memory is seen where it is, and `direct_base` is null.
pub const FW_IDENTITY_MAP: u32 = 1;

/// The machine under the manager. All of it is copied by `fw_bring_up`; `context` and the functions
/// stay for ever. A kernel with one CPU that never takes it from a task fills in what is not marked
/// optional. Functions are called from any context in which the manager is called, but
/// `cpu_barrier` and `yield_now` only where `can_wait` is true and the caller is not pinned, so
/// that these two may sleep. They must not call the manager, and must not leave other than by
/// returning (no longjmp, no unwinding).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fw_platform {
    /// `sizeof(struct fw_platform)`.
    pub size: u32,
    /// `FW_VERSION`.
    pub version: u32,
    /// How many CPUs there can be, at least 1; their numbers are below it.
    pub cpus: u32,
    /// 0 or `FW_IDENTITY_MAP`.
    pub flags: u32,
    /// Where physical address 0 is seen; address `a` is seen `a` bytes behind it. A multiple of
    /// 4096.
    pub direct_base: *mut c_void,
    /// One past the highest physical address that is seen there, bytes.
    pub direct_limit: u64,
    /// The first argument of every function.
    pub context: *mut c_void,
    /// Keeps the caller on its CPU, keeps other tasks of that CPU away, and gives its number.
    /// Disabling preemption is enough; interrupts may stay on. Nests.
    pub pin: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// Ends what `pin` began. Optional where tasks never lose their CPU.
    pub unpin: Option<unsafe extern "C" fn(context: *mut c_void, cpu: u32)>,
    /// Turns interrupts off on this CPU and gives what `irq_restore` needs. Nests.
    pub irq_save: Option<unsafe extern "C" fn(context: *mut c_void) -> usize>,
    /// Undoes the matching `irq_save`.
    pub irq_restore: Option<unsafe extern "C" fn(context: *mut c_void, state: usize)>,
    /// Has every CPU execute a full memory barrier before it returns. Needed with more than one
    /// CPU.
    ///
    /// A CPU that does not run yet, or no longer runs, is left out: nobody interrupts it or waits
    /// for it. If the running CPUs are a set in memory, three rules apply. A CPU that stops leaves
    /// the set with a release after its last call of the manager. A CPU that starts enters the set
    /// and then executes a full barrier before its first call. `cpu_barrier` itself executes a full
    /// barrier and then reads the set with an acquire.
    pub cpu_barrier: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Whether the caller may wait for other CPUs and tasks: no lock held, interrupts on. Optional:
    /// it never may.
    pub can_wait: Option<unsafe extern "C" fn(context: *mut c_void) -> bool>,
    /// Lets other tasks run, those of lower priority included: it yields, or sleeps for a while.
    /// Optional where no task ever takes the CPU from another.
    pub yield_now: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// One turn of a busy wait. Optional.
    pub relax: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// A number of the calling task, never 0; 0: tasks cannot be told apart. Optional.
    pub current_task: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// A monotonic clock, nanoseconds. Optional.
    pub now_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Prints `length` bytes of text: what is wrong and where, in pieces of a line. Optional.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, text: *const c_char, length: usize)>,
    /// Stops the machine, after a defect of the manager was logged; must not return. Optional: the
    /// CPU spins.
    pub halt: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// A platform that was checked, so that what must be there is.
pub(crate) struct Checked {
    c: fw_platform,
    pin: unsafe extern "C" fn(*mut c_void) -> u32,
    irq_save: unsafe extern "C" fn(*mut c_void) -> usize,
    irq_restore: unsafe extern "C" fn(*mut c_void, usize),
}

// SAFETY: the context is only handed back to C, whose functions may be called on every CPU
// (invariant 51).
unsafe impl Sync for Checked {}

impl Checked {
    /// # Safety
    /// `platform` is null, or points to two numbers and to as much as the first of them says.
    pub(crate) unsafe fn read(platform: *const fw_platform) -> Result<Self, fw_error> {
        if platform.is_null() || !platform.is_aligned() {
            return Err(FW_NULL);
        }
        // SAFETY: the first two fields are there, says the caller (invariant 51).
        let [size, version] = unsafe { platform.cast::<[u32; 2]>().read() };
        if size as usize != size_of::<fw_platform>() {
            return Err(FW_WRONG_SIZE);
        }
        if version != FW_VERSION {
            return Err(FW_WRONG_VERSION);
        }
        // SAFETY: it has the size of the struct, says the caller (invariant 51).
        let c = unsafe { platform.read() };
        if c.cpus == 0 {
            return Err(FW_NO_CPUS);
        }
        if c.flags & !FW_IDENTITY_MAP != 0 {
            return Err(FW_WRONG_FLAGS);
        }
        let is_identity = c.flags & FW_IDENTITY_MAP != 0;
        let base = c.direct_base.addr() as u64;
        let last = base.checked_add(c.direct_limit.saturating_sub(1));
        if c.direct_base.is_null() != is_identity
            || !base.is_multiple_of(PAGE_SIZE)
            || last.is_none()
        {
            return Err(FW_WRONG_DIRECT_MAP);
        }
        let (Some(pin), Some(irq_save), Some(irq_restore)) = (c.pin, c.irq_save, c.irq_restore)
        else {
            return Err(FW_NULL_CALL);
        };
        if c.cpus > 1 && c.cpu_barrier.is_none() {
            return Err(FW_NULL_CALL);
        }
        Ok(Self { c, pin, irq_save, irq_restore })
    }

    /// Has C print a line.
    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        if self.c.log.is_some() {
            // C cannot refuse text.
            let _ = Log(self).write_fmt(format_args!("{line}\n"));
        }
    }

    /// Stops the machine.
    #[cfg_attr(not(framewright_archive), expect(dead_code, reason = "for the archive's panics"))]
    pub(crate) fn halt(&self) {
        if let Some(halt) = self.c.halt {
            // SAFETY: as the platform's contract in the header says (invariant 51).
            unsafe { halt(self.c.context) };
        }
    }
}

/// The platform's log.
struct Log<'a>(&'a Checked);

impl Write for Log<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Some(log) = self.0.c.log {
            // SAFETY: as the header says (invariant 51); the text lives until it returns.
            unsafe { log(self.0.c.context, text.as_ptr().cast(), text.len()) };
        }
        Ok(())
    }
}

// SAFETY: whoever called `fw_bring_up` promises of the functions and of the direct map what the
// header asks for, which is what this trait asks for (invariant 51).
unsafe impl Platform for Checked {
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        // Below the limit, which was checked. Page 0 is never used, so that an identity map has no
        // null.
        let offset = usize::try_from(pa).unwrap_or(usize::MAX);
        NonNull::new(self.c.direct_base.wrapping_byte_add(offset).cast())
            .unwrap_or(NonNull::dangling())
    }
    fn direct_limit(&self) -> u64 {
        self.c.direct_limit
    }
    #[inline]
    fn pin(&self) -> PinnedCpu {
        // SAFETY: as the header says (invariant 51).
        let number = unsafe { (self.pin)(self.c.context) };
        // An error's number stays too high for a CPU.
        PinnedCpu::new(number.min(i32::MAX.unsigned_abs()))
    }
    #[inline]
    unsafe fn unpin(&self, cpu: PinnedCpu) {
        if let Some(unpin) = self.c.unpin {
            // SAFETY: as the header says (invariant 51); the caller matches calls.
            unsafe { unpin(self.c.context, cpu.index()) };
        }
    }
    #[inline]
    fn irq_save(&self) -> IrqState {
        // SAFETY: as the header says (invariant 51).
        IrqState(unsafe { (self.irq_save)(self.c.context) })
    }
    #[inline]
    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: as the header says (invariant 51); the caller matches calls.
        unsafe { (self.irq_restore)(self.c.context, state.0) };
    }
    fn cpus(&self) -> u32 {
        self.c.cpus
    }
    fn cpu_barrier(&self) {
        if let Some(barrier) = self.c.cpu_barrier {
            // SAFETY: as the header says (invariant 51).
            unsafe { barrier(self.c.context) };
        }
    }
    fn can_wait(&self) -> bool {
        // SAFETY: as the header says (invariant 51).
        self.c.can_wait.is_some_and(|can_wait| unsafe { can_wait(self.c.context) })
    }
    fn current_task(&self) -> Option<NonZeroU64> {
        // SAFETY: as the header says (invariant 51).
        self.c.current_task.and_then(|task| NonZeroU64::new(unsafe { task(self.c.context) }))
    }
    fn now_ns(&self) -> Option<u64> {
        // SAFETY: as the header says (invariant 51).
        self.c.now_ns.map(|now_ns| unsafe { now_ns(self.c.context) })
    }
    fn relax(&self) {
        match self.c.relax {
            // SAFETY: as the header says (invariant 51).
            Some(relax) => unsafe { relax(self.c.context) },
            None => core::hint::spin_loop(),
        }
    }
    fn yield_now(&self) {
        match self.c.yield_now {
            // SAFETY: as the header says (invariant 51).
            Some(yield_now) => unsafe { yield_now(self.c.context) },
            None => self.relax(),
        }
    }
}

/// The version of this interface that the library has: `FW_VERSION` of its header.
#[unsafe(no_mangle)]
pub extern "C" fn fw_version() -> u32 {
    FW_VERSION
}

/// Whether `fw_bring_up` would accept this platform, as far as can be seen without calling it.
///
/// # Safety
/// `platform` is null, or points to a `fw_platform` whose `size` and `version` can be read, and to
/// as many bytes as `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fw_check_platform(platform: *const fw_platform) -> i32 {
    // SAFETY: passed on to the caller (invariant 51).
    number(unsafe { Checked::read(platform) }.map(drop))
}
