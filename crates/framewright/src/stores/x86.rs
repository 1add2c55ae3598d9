//! The stores of x86-64 that need no vector registers.

use super::Line;
use core::arch::asm;
use core::ptr::NonNull;

/// Orders stores past the caches before all stores that follow.
pub(super) fn fence() {
    // SAFETY: `sfence` is part of x86-64 and changes nothing (invariant 44).
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Writes a cache line at a time, without reading it. Zeros only.
///
/// # Safety
/// As for [`Store::write`](super::Store::write), with zeros, on a CPU that has the instruction.
pub(super) unsafe fn clzero(start: NonNull<u8>, lines: usize, _: &Line) {
    if lines == 0 {
        return;
    }
    // SAFETY: the caller owns these lines alone (invariant 28), and the CPU has the instruction
    // (invariant 44).
    unsafe {
        asm!(
            "2:",
            "clzero",
            "add rax, 64",
            "dec {lines}",
            "jnz 2b",
            lines = inout(reg) lines => _,
            inout("rax") start.as_ptr() => _,
            options(nostack),
        );
    }
}

/// Copies `line` a cache line at a time, and does not write to it meanwhile: each copy would have
/// to wait for a source line that was just written in parts.
///
/// # Safety
/// As for [`Store::write`](super::Store::write), on a CPU that has the instruction.
pub(super) unsafe fn movdir64b(start: NonNull<u8>, lines: usize, line: &Line) {
    // SAFETY: the caller owns these lines alone (invariant 28), and the CPU has the instruction
    // (invariant 44).
    unsafe {
        asm!(
            "test {odd}, {odd}",
            "jz 3f",
            "2:",
            "movdir64b {at}, [{line}]",
            "add {at}, 64",
            "dec {odd}",
            "jnz 2b",
            "3:",
            "test {fours}, {fours}",
            "jz 5f",
            "4:",
            "movdir64b {at}, [{line}]",
            "add {at}, 64",
            "movdir64b {at}, [{line}]",
            "add {at}, 64",
            "movdir64b {at}, [{line}]",
            "add {at}, 64",
            "movdir64b {at}, [{line}]",
            "add {at}, 64",
            "dec {fours}",
            "jnz 4b",
            "5:",
            at = inout(reg) start.as_ptr() => _,
            odd = inout(reg) lines % 4 => _,
            fours = inout(reg) lines / 4 => _,
            line = in(reg) line,
            options(nostack),
        );
    }
}

/// The code that writes one line, at an offset.
macro_rules! line {
    ($offset:literal) => {
        concat!(
            "movnti qword ptr [{at} + ",
            $offset,
            "], {a}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 8], {b}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 16], {c}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 24], {d}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 32], {e}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 40], {f}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 48], {g}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 56], {h}",
        )
    };
}

/// Writes a word at a time, from the last line to the first, four lines at a time. Hardware does
/// not mind the direction. An emulator, which turns these into ordinary stores, waits a quarter
/// less for memory than upwards (`docs/log/measurements.md`).
///
/// # Safety
/// As for [`Store::write`](super::Store::write).
pub(super) unsafe fn movnti(start: NonNull<u8>, lines: usize, line: &Line) {
    let [a, b, c, d, e, f, g, h] = line.0;
    // SAFETY: one past the caller's last line (invariant 28).
    let end = unsafe { start.add(lines * size_of::<Line>()) };
    // SAFETY: the caller owns these lines alone (invariant 28), and `movnti` is part of x86-64
    // (invariant 44).
    unsafe {
        asm!(
            "test {odd}, {odd}",
            "jz 3f",
            "2:",
            "sub {at}, 64",
            line!("0"),
            "dec {odd}",
            "jnz 2b",
            // A jump before the loop also makes an emulator translate it once, not together with
            // what comes before it and then again.
            "3:",
            "cmp {at}, {start}",
            "jbe 5f",
            "4:",
            "sub {at}, 256",
            line!("192"),
            line!("128"),
            line!("64"),
            line!("0"),
            "cmp {at}, {start}",
            "ja 4b",
            "5:",
            at = inout(reg) end.as_ptr() => _,
            odd = inout(reg) lines % 4 => _,
            start = in(reg) start.as_ptr(),
            a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, e = in(reg) e,
            f = in(reg) f, g = in(reg) g, h = in(reg) h,
            options(nostack),
        );
    }
}

/// Returns XCR0: which registers the system saves. Call it only where CPUID reports OSXSAVE.
pub(super) fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the system has turned on OSXSAVE, without which this would fault (invariant 44).
    unsafe {
        asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}
