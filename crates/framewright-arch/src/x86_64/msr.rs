//! Model-specific registers.

use core::arch::asm;

/// Base address and mode of the local interrupt controller.
pub const APIC_BASE: u32 = 0x1b;
/// The base of the `gs` segment.
pub const GS_BASE: u32 = 0xc000_0101;

/// Reads a model-specific register.
///
/// # Safety
/// The code runs at the highest privilege and the CPU has the register.
#[must_use]
pub unsafe fn read(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller promises the register; reading changes no memory.
    unsafe {
        asm!(
            "rdmsr",
            in("ecx") register,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// As for [`read`]; in addition, the effect of writing `value` is what the caller wants. It may
/// redirect interrupts and addresses.
#[expect(clippy::cast_possible_truncation, reason = "the register takes its value in halves")]
pub unsafe fn write(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller promises all of this. Memory accesses must not move across, so there is no
    // `nomem`.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") register,
            in("eax") low,
            in("edx") high,
            options(nostack, preserves_flags),
        );
    }
}
