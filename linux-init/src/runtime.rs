//! The symbols that compiled code expects and no other crate provides: the entry point, and what
//! the core library needs from C besides memory functions.

use core::arch::global_asm;
use framewright_freestanding as _;

// The kernel leaves the number of arguments and then pointers to them on the stack, and expects no
// return.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym crate::begin,
);

/// C's `strlen`, which the core library's `CStr` needs.
///
/// # Safety
/// The requirements of C's `strlen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller promises that the text ends in a zero byte and is readable up to it.
    while unsafe { text.wrapping_add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
