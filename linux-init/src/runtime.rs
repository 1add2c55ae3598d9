//! The symbols that compiled code expects and nobody else supplies here: the entry point, the memory functions of C and the unwinder's names.
//!
//! The memory functions are string instructions, so that the compiler cannot turn a loop into a call to itself.

use core::arch::{asm, global_asm};

// The kernel leaves the number of arguments, then pointers to them, on the stack, and asks for no return address.
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

/// C's `memcpy`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller promises both ranges; the instruction copies `count` bytes upward.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// C's `memmove`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the caller promises both ranges, and copying upward never overtakes its source here.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller promises both ranges. They overlap with `to` above `from`, so this copies downward; the direction flag is set back.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    to
}

/// C's `memset`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller promises the range; the instruction fills `count` bytes.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _,
            inout("rdi") to => _,
            in("al") value.to_le_bytes()[0],
            options(nostack, preserves_flags),
        );
    }
    to
}

/// C's `memcmp`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller promises `count` bytes. Volatile, so that this is not turned into a call to itself.
        let first = unsafe { left.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        let second = unsafe { right.wrapping_add(index).read_volatile() };
        if first != second {
            return i32::from(first) - i32::from(second);
        }
    }
    0
}

/// The C library's `bcmp`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the same promise.
    unsafe { memcmp(left, right, count) }
}

/// C's `strlen`, which the core library's `CStr` asks for.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller promises a byte of zero at the end, and everything before it.
    while unsafe { text.wrapping_add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Named by the precompiled core library, never called: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
