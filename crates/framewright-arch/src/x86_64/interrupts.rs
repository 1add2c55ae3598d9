//! Interrupts: entries that save everything a Rust function may change, call one handler, and go
//! back to what was interrupted.
//!
//! They run on an interrupt stack of their own, [`INTERRUPT_STACK`], because interrupted code keeps
//! values below its stack pointer. Interrupts are off there and must stay off until the handler
//! returns: a second one would begin at the top of the same stack.
//!
//! Orders of memory: the handler is stored with Release and loaded with Acquire, so that a CPU that
//! calls it sees what was prepared for it.

use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Interrupt stack of all interrupts.
pub const INTERRUPT_STACK: u8 = 4;
/// The local controller's timer. Numbers as in Linux.
pub const TIMER: u8 = 0xec;
/// Another CPU asks this one to call a function.
pub const CALL: u8 = 0xfb;
/// Another CPU asks this one to look for work.
pub const WAKE: u8 = 0xfd;
/// The local controller noted an error.
pub const ERROR: u8 = 0xfe;
/// An interrupt was withdrawn.
pub const SPURIOUS: u8 = 0xff;

/// What handles every interrupt.
pub type Handler = fn(vector: u8);

static HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// From now on `handler` is called for every interrupt on every CPU.
pub fn set_handler(handler: Handler) {
    HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Turns interrupts on.
///
/// # Safety
/// The code runs at the highest privilege, with vectors and segments loaded, a handler set, and no
/// lock held that a handler takes.
pub unsafe fn enable() {
    // SAFETY: the caller promises that interrupts can be handled.
    unsafe { asm!("sti", options(nostack)) };
}

/// Whether interrupts are on.
#[must_use]
pub fn are_enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & 1 << 9 != 0
}

/// Called with interrupts off: turns them on, sleeps until one has come, and turns them off again.
/// None is lost in between, because `sti` takes effect one instruction late.
///
/// # Safety
/// As [`enable`].
pub unsafe fn wait() {
    // SAFETY: the caller promises that interrupts can be handled.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// The entry of each vector that is used.
pub(super) const ENTRIES: [(u8, unsafe extern "C" fn()); 5] = [
    (TIMER, timer_entry),
    (CALL, call_entry),
    (WAKE, wake_entry),
    (ERROR, error_entry),
    (SPURIOUS, spurious_entry),
];

/// Where all interrupts arrive. Called by `common_entry` alone.
extern "C" fn dispatch(vector: u64) {
    let handler = HANDLER.load(Ordering::Acquire);
    if handler.is_null() {
        return;
    }
    // SAFETY: the only pointer ever stored is a `Handler`, and function pointers have a data
    // pointer's size here.
    let handler = unsafe { core::mem::transmute::<*mut (), Handler>(handler) };
    handler(vector.to_le_bytes()[0]);
}

/// Saves what a function may change: nine registers, and the vector registers with `fxsave64`, for
/// which the stack is aligned.
#[unsafe(naked)]
unsafe extern "C" fn common_entry() {
    naked_asm!(
        // The vector is on top; its place will hold rdi.
        "xchg rdi, [rsp]",
        "push rax", "push rcx", "push rdx", "push rsi",
        "push r8", "push r9", "push r10", "push r11",
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 512",
        "and rsp, -16",
        "fxsave64 [rsp]",
        "cld",
        "call {dispatch}",
        "fxrstor64 [rsp]",
        "mov rsp, rbp",
        "pop rbp",
        "pop r11", "pop r10", "pop r9", "pop r8", "pop rsi", "pop rdx", "pop rcx", "pop rax",
        "pop rdi",
        "iretq",
        dispatch = sym dispatch,
    )
}

/// One entry per vector.
macro_rules! entries {
    ($($name:ident $vector:ident;)*) => {
        $(
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "push {vector}",
                    "jmp {common}",
                    vector = const $vector as i32,
                    common = sym common_entry,
                )
            }
        )*
    };
}

entries! {
    timer_entry TIMER; call_entry CALL; wake_entry WAKE; error_entry ERROR; spurious_entry SPURIOUS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_no_exceptions_and_distinct() {
        for (index, (vector, _)) in ENTRIES.iter().enumerate() {
            assert!(usize::from(*vector) >= super::super::exceptions::EXCEPTIONS);
            assert!(ENTRIES[..index].iter().all(|(other, _)| other != vector));
        }
    }
}
