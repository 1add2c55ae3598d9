//! Interrupts at every point of an operation: between any two instructions of the compiled code.
//!
//! The processor's trap flag stops it after each instruction; the signal that the host then sends
//! acts as the interrupt. It is delivered where a machine could deliver one: not while interrupts
//! are off, and not inside the platform's methods, which stand for single instructions of a real
//! machine.

use crate::machine::FakeMachine;
use framewright::units::NodeId;
use framewright::vmemmap_space::VmemmapSpace;
use framewright::{IrqState, PinnedCpu, Platform};
use std::arch::asm;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Once;

/// The processor's trap flag.
const TRAP_FLAG: u64 = 1 << 8;

/// The interrupt that is pending.
#[derive(Clone, Copy)]
struct Pending {
    machine: &'static FakeMachine,
    handler: NonNull<dyn FnMut()>,
    /// The number of instructions until the interrupt.
    countdown: u64,
}

thread_local! {
    static PENDING: Cell<Option<Pending>> = const { Cell::new(None) };
    /// The number of instructions so far, while they are counted.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
    /// The count at which interrupts last went off, and the most instructions with interrupts off.
    static HOLD: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The instructions of an operation, without those of the machine's methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steps {
    /// All instructions.
    pub all: u64,
    /// The most instructions between interrupts going off and on again.
    pub longest_hold: u64,
}

/// Counts the instructions of an operation on a [`SteppedMachine`] in this thread, and those of its
/// longest part with interrupts off. These numbers do not depend on the load of the host.
pub fn count_steps<R>(operation: impl FnOnce() -> R) -> (R, Steps) {
    HOLD.set((0, 0));
    let (result, all) = count_instructions(operation);
    (result, Steps { all, longest_hold: HOLD.get().1 })
}

/// Counts the instructions of an operation in this thread, also with interrupts off: a measure of
/// its length that does not depend on the load of the host. Instructions in the methods of a
/// [`SteppedMachine`] are not counted.
pub fn count_instructions<R>(operation: impl FnOnce() -> R) -> (R, u64) {
    install();
    COUNT.set(Some(0));
    let _end = End;
    set_trap_flag(true);
    let result = operation();
    set_trap_flag(false);
    (result, COUNT.take().unwrap_or(0))
}

/// A [`FakeMachine`] whose operations can be interrupted anywhere.
#[derive(Debug)]
pub struct SteppedMachine {
    inner: &'static FakeMachine,
}

impl SteppedMachine {
    /// Wraps a machine, so that operations on it can be interrupted.
    #[must_use]
    pub fn new(inner: &'static FakeMachine) -> &'static Self {
        Box::leak(Box::new(Self { inner }))
    }

    /// The wrapped machine.
    #[must_use]
    pub fn inner(&self) -> &'static FakeMachine {
        self.inner
    }

    /// Runs `operation`, and once, after the `instruction`-th instruction that can be interrupted
    /// (counted from 1), runs `handler` as an interrupt handler on that CPU. Returns whether there
    /// were that many instructions; if not, `handler` did not run.
    ///
    /// `handler` runs inside a signal handler: it may use this machine and its own variables, but
    /// no heap, lock or output of the host. `operation` should do only what is to be interrupted.
    ///
    /// # Panics
    /// As [`FakeMachine::interrupt`] does; a panic of `handler` ends the process.
    pub fn interrupt_after<R>(
        &self,
        instruction: u64,
        operation: impl FnOnce() -> R,
        handler: &mut dyn FnMut(),
    ) -> (R, bool) {
        install();
        let handler: NonNull<dyn FnMut() + '_> = NonNull::from(handler);
        // SAFETY: only the lifetime changes; the pending interrupt is removed below, while the
        // reference still lives.
        let handler = unsafe {
            std::mem::transmute::<NonNull<dyn FnMut() + '_>, NonNull<dyn FnMut()>>(handler)
        };
        PENDING.set(Some(Pending { machine: self.inner, handler, countdown: instruction.max(1) }));
        let _end = End;
        set_trap_flag(true);
        let result = operation();
        set_trap_flag(false);
        (result, PENDING.get().is_none())
    }

    /// Runs a method of the machine without stops, and then stops as before; with interrupts off,
    /// nothing stops.
    fn call<R>(&self, method: impl FnOnce(&'static FakeMachine) -> R) -> R {
        if COUNT.get().is_some() {
            set_trap_flag(false);
            let result = method(self.inner);
            set_trap_flag(true);
            return result;
        }
        if PENDING.get().is_none() {
            return method(self.inner);
        }
        set_trap_flag(false);
        let result = method(self.inner);
        set_trap_flag(self.inner.can_wait());
        result
    }
}

/// Removes the pending interrupt, even if the operation panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        set_trap_flag(false);
        PENDING.set(None);
        COUNT.set(None);
    }
}

fn set_trap_flag(on: bool) {
    let flag = if on { TRAP_FLAG } else { 0 };
    // SAFETY: only the trap flag changes, and the handler of its signal is installed.
    unsafe {
        asm!(
            "pushfq",
            "and qword ptr [rsp], {others}",
            "or qword ptr [rsp], {flag}",
            "popfq",
            others = const !0x100_i32,
            flag = in(reg) flag,
        );
    }
}

/// Installs the handler of the trap signal, once.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let function: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_trap;
        action.sa_sigaction = function as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the action is complete, and its function takes three arguments, as the flag says.
        let result =
            unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) };
        assert_eq!(result, 0, "sigaction: {}", std::io::Error::last_os_error());
    });
}

/// Called after each instruction. The host has cleared the trap flag while this runs.
extern "C" fn on_trap(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    if let Some(count) = COUNT.get() {
        return COUNT.set(Some(count + 1));
    }
    if let Some(pending) = PENDING.get() {
        if pending.countdown > 1 {
            return PENDING.set(Some(Pending { countdown: pending.countdown - 1, ..pending }));
        }
        PENDING.set(None);
        // SAFETY: the pointer comes from `interrupt_after` of this thread, which still runs and
        // does not use the pointer meanwhile.
        let handler = unsafe { &mut *pending.handler.as_ptr() };
        pending.machine.interrupt(handler);
    }
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the host passes a context to a handler with three arguments, and the handler may
    // change it until it returns.
    let flags = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_EFL as usize] };
    // Clear the trap flag, as no other interrupt follows.
    *flags &= !0x100;
}

// SAFETY: the inner machine keeps the promises. Between `irq_save` and `irq_restore`, no
// instruction is followed by a stop.
unsafe impl Platform for SteppedMachine {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        self.call(|machine| machine.direct(pa))
    }

    fn pin(&self) -> PinnedCpu {
        self.call(Platform::pin)
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        // SAFETY: the obligation is passed on to the caller.
        self.call(|machine| unsafe { machine.unpin(cpu) });
    }

    fn irq_save(&self) -> IrqState {
        self.call(|machine| {
            if machine.can_wait() {
                HOLD.set((COUNT.get().unwrap_or(0), HOLD.get().1));
            }
            machine.irq_save()
        })
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        self.call(|machine| {
            // SAFETY: the obligation is passed on to the caller.
            unsafe { machine.irq_restore(state) };
            let (since, longest) = HOLD.get();
            if machine.can_wait() {
                let hold = COUNT.get().unwrap_or(0).saturating_sub(since);
                HOLD.set((since, longest.max(hold)));
            }
        });
    }

    fn direct_limit(&self) -> u64 {
        self.call(Platform::direct_limit)
    }

    fn cpus(&self) -> u32 {
        self.call(Platform::cpus)
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.call(|machine| machine.cpu_node(cpu))
    }

    fn init_threads(&self, node: NodeId) -> u32 {
        self.call(|machine| machine.init_threads(node))
    }

    fn can_wait(&self) -> bool {
        self.call(Platform::can_wait)
    }

    fn cpu_barrier(&self) {
        self.call(Platform::cpu_barrier);
    }

    fn now_ns(&self) -> Option<u64> {
        self.call(Platform::now_ns)
    }

    fn entropy(&self) -> Option<u64> {
        self.call(Platform::entropy)
    }

    fn relax(&self) {
        self.call(Platform::relax);
    }

    fn yield_now(&self) {
        self.call(Platform::yield_now);
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        self.call(Platform::vmemmap_space)
    }
}
