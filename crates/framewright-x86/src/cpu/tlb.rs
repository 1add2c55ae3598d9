//! Dropping translations that the CPU remembers, and what page tables ask of a kernel with several CPUs.

use core::arch::asm;
use framewright::units::PAGE_SIZE;

/// Above this many pages everything is dropped at once: refilling is then cheaper than naming each page. Linux's default.
pub const SINGLE_PAGE_CEILING: u64 = 33;

const GLOBAL_PAGES: u64 = 1 << 7;

/// Virtual addresses whose translations have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale {
    /// First byte, a multiple of 4096.
    pub start: u64,
    /// Pages of 4 KiB, or larger ones where `stride_bytes` says so.
    pub pages: u64,
    /// From one translation to the next: 4096, or 2 MiB where all of them are of that size.
    pub stride_bytes: u64,
}

impl Stale {
    /// `pages` pages of 4 KiB from `start` on.
    #[must_use]
    pub const fn pages(start: u64, pages: u64) -> Self {
        Self { start, pages, stride_bytes: PAGE_SIZE }
    }

    /// Everything.
    pub const ALL: Self = Self { start: 0, pages: u64::MAX, stride_bytes: PAGE_SIZE };
}

/// How a kernel with several CPUs has all of them drop translations.
pub trait Shootdown: Sync {
    /// Returns when every CPU that runs has dropped all translations in `stale`, remembered steps of the walk to them and global ones
    /// included, that were changed before the call (invariant 12). An empty list costs nothing.
    ///
    /// Several CPUs may be in it at once. It waits for the others, so it is called with interrupts on, no lock held, and never from an interrupt
    /// handler.
    fn flush_everywhere(&self, stale: &[Stale]);
}

/// How much [`flush_here`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flushed {
    /// Translations that were named one by one.
    pub single: u64,
    /// Times that everything was dropped: 0 or 1.
    pub whole: u64,
}

/// Drops all translations in `stale` on this CPU: one by one, or everything where there are more than [`SINGLE_PAGE_CEILING`].
///
/// # Safety
/// The code runs at the highest privilege. (Dropping a translation is always sound: the CPU walks the tables again.)
pub unsafe fn flush_here(stale: &[Stale]) -> Flushed {
    let single = stale.iter().fold(0, |sum: u64, range| sum.saturating_add(range.pages));
    if single > SINGLE_PAGE_CEILING {
        // SAFETY: the caller promises the privilege.
        unsafe { flush_all() };
        return Flushed { single: 0, whole: 1 };
    }
    for range in stale {
        for page in 0..range.pages {
            // SAFETY: as above.
            unsafe { flush_page(range.start.wrapping_add(page.wrapping_mul(range.stride_bytes))) };
        }
    }
    Flushed { single, whole: 0 }
}

/// Drops the translation of one page on this CPU, global or not, and all remembered steps of table walks.
///
/// # Safety
/// As [`flush_here`].
pub unsafe fn flush_page(address: u64) {
    // SAFETY: the caller promises the privilege. Accesses to memory must not move across, so no `nomem`.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Drops every translation on this CPU, global ones included, by turning global pages off and on again.
///
/// # Safety
/// As [`flush_here`].
pub unsafe fn flush_all() {
    // With interrupts off, so that a handler on the way does not find the bit cleared and take that for the rule.
    let flags = super::registers::disable_interrupts();
    // SAFETY: the caller promises the privilege; the register is as before at the end.
    unsafe {
        asm!(
            "mov {old}, cr4",
            "mov {new}, {old}",
            "xor {new}, {global}",
            "mov cr4, {new}",
            "mov cr4, {old}",
            old = out(reg) _,
            new = out(reg) _,
            global = const GLOBAL_PAGES,
            options(nostack),
        );
    }
    super::registers::restore_interrupts(flags);
}
