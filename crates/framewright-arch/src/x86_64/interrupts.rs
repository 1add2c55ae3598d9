//! Interrupts: entries that save everything that a Rust function may change, call one handler, and
//! return to the interrupted code.
//!
//! They run on an interrupt stack of their own, [`INTERRUPT_STACK`], because interrupted code keeps
//! values below its stack pointer. Interrupts are off there and must stay off until the handler
//! returns: a second interrupt would begin at the top of the same stack.
//!
//! Orders of memory: the handler is stored with Release and loaded with Acquire, so that a CPU that
//! calls it sees everything that was prepared for it.

use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The interrupt stack of all interrupts.
pub const INTERRUPT_STACK: u8 = 4;
/// The local controller's timer. The vector numbers are those of Linux.
pub const TIMER: u8 = 0xec;
/// Another CPU asks this one to call a function.
pub const CALL: u8 = 0xfb;
/// Another CPU asks this one to check for work.
pub const WAKE: u8 = 0xfd;
/// The local controller recorded an error.
pub const ERROR: u8 = 0xfe;
/// An interrupt was withdrawn.
pub const SPURIOUS: u8 = 0xff;

/// The function that handles every interrupt.
pub type Handler = fn(vector: u8);

static HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Makes `handler` the function that is called for every interrupt on every CPU.
pub fn set_handler(handler: Handler) {
    HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Turns interrupts on.
///
/// # Safety
/// The code runs at the highest privilege, with vectors and segments loaded, a handler set, and
/// without holding a lock that a handler takes.
pub unsafe fn enable() {
    // SAFETY: the caller promises that interrupts can be handled.
    unsafe { asm!("sti", options(nostack)) };
}

/// Whether interrupts are on.
#[must_use]
pub fn are_enabled() -> bool {
    let flags: u64;
    // SAFETY: this only reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & 1 << 9 != 0
}

/// Turns interrupts on, sleeps until one has come, and turns them off again. Must be called with
/// interrupts off. No interrupt is lost in between, because `sti` takes effect one instruction
/// late.
///
/// # Safety
/// Those of [`enable`].
pub unsafe fn wait() {
    // SAFETY: the caller promises that interrupts can be handled.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// The entries of the vectors that are used.
pub(super) const ENTRIES: [(u8, unsafe extern "C" fn()); 5] = [
    (TIMER, timer_entry),
    (CALL, call_entry),
    (WAKE, wake_entry),
    (ERROR, error_entry),
    (SPURIOUS, spurious_entry),
];

/// The Rust entry of all interrupts. Only `common_entry` calls it.
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

/// Saves the registers that a function may change: nine general registers, and the vector registers
/// with `fxsave64`, for which the stack is aligned.
#[unsafe(naked)]
unsafe extern "C" fn common_entry() {
    naked_asm!(
        // The vector is on top of the stack; rdi takes its place.
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

/// Defines one entry per vector.
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
