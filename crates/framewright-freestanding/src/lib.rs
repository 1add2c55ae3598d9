//! The symbols that compiled code expects from a C library, for programs without one: memory
//! functions, and the name of the unwinder's personality function. Name the crate once
//! (`use framewright_freestanding as _;`) and link nothing else that defines these symbols.
//!
//! The compiler must not turn a loop into a call of the function itself. So those that write are in
//! assembly, and work in words, because an emulator takes one step per iteration of a string
//! instruction: there, words are seven times faster than bytes. Those that compare read byte by
//! byte, with volatile reads.
#![no_std]
#![cfg(all(target_arch = "x86_64", not(test)))]

use core::arch::asm;

/// C's `memcpy`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller promises both ranges; the two instructions copy count / 8 words, and then
    // the remaining bytes.
    unsafe {
        asm!(
            "rep movsq",
            "mov ecx, {rest:e}",
            "rep movsb",
            rest = in(reg) count & 7,
            inout("rcx") count >> 3 => _,
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
        // SAFETY: the caller promises both ranges, and here an upward copy never overwrites source
        // bytes that are not copied yet.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller promises both ranges. They overlap with `to` above `from`, so this copies
    // downward: the odd bytes at the end, then words. The direction flag is cleared again.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "sub rsi, 7",
            "sub rdi, 7",
            "mov rcx, {words}",
            "rep movsq",
            "cld",
            words = in(reg) count >> 3,
            inout("rcx") count & 7 => _,
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
    // A multiplication, because filling an array of eight bytes would call `memset`.
    let word = u64::from(value.to_le_bytes()[0]) * 0x0101_0101_0101_0101;
    // SAFETY: the caller promises the range; the two instructions fill count / 8 words, and then
    // the remaining bytes.
    unsafe {
        asm!(
            "rep stosq",
            "mov ecx, {rest:e}",
            "rep stosb",
            rest = in(reg) count & 7,
            inout("rcx") count >> 3 => _,
            inout("rdi") to => _,
            in("rax") word,
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
        // SAFETY: the caller promises `count` bytes. The reads are volatile, so that the compiler
        // cannot turn the loop into a call of `memcmp` itself.
        let first = unsafe { left.wrapping_add(index).read_volatile() };
        // SAFETY: as for the left byte.
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
    // SAFETY: `memcmp` requires the same promise.
    unsafe { memcmp(left, right, count) }
}

/// The precompiled core library refers to this symbol but never calls it: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
