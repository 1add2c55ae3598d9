//! What the CPU can do, according to CPUID.

use core::arch::x86_64::{__cpuid, __cpuid_count};

/// The first extended leaf, which says what the highest one is.
const EXTENDED: u32 = 0x8000_0000;

/// Whether a hypervisor announces itself (Linux: `X86_FEATURE_HYPERVISOR`).
#[must_use]
pub fn has_hypervisor() -> bool {
    __cpuid(1).ecx & 1 << 31 != 0
}

/// Whether the CPU belongs to a hypervisor that calls itself `name`.
#[must_use]
pub fn hypervisor_is(name: [u8; 12]) -> bool {
    if !has_hypervisor() {
        return false;
    }
    let leaf = __cpuid(0x4000_0000);
    let words = [leaf.ebx, leaf.ecx, leaf.edx];
    words.iter().flat_map(|word| word.to_le_bytes()).eq(name)
}

/// Features that matter to memory management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Page-table entries can map 1 GiB.
    pub pages_1g: bool,
    /// Page-table entries can forbid execution, once EFER.NXE is set. The entries of this crate do
    /// so.
    pub no_execute: bool,
    /// Translations can survive a change of tables.
    pub global_pages: bool,
    /// The time-stamp counter always runs at the same rate, whatever the CPU does.
    pub invariant_tsc: bool,
    /// The number of bits in a physical address.
    pub physical_address_bits: u32,
    /// A hypervisor announces itself.
    pub hypervisor: bool,
}

impl Features {
    /// Reads the features of this CPU.
    #[must_use]
    pub fn read() -> Self {
        let highest = __cpuid(EXTENDED).eax;
        let extended = |number: u32| {
            if highest >= EXTENDED + number {
                Some(__cpuid_count(EXTENDED + number, 0))
            } else {
                None
            }
        };
        let basic = __cpuid(1);
        let flags = extended(1).map_or(0, |leaf| leaf.edx);
        Self {
            pages_1g: flags & 1 << 26 != 0,
            no_execute: flags & 1 << 20 != 0,
            global_pages: basic.edx & 1 << 13 != 0,
            invariant_tsc: extended(7).is_some_and(|leaf| leaf.edx & 1 << 8 != 0),
            physical_address_bits: extended(8).map_or(36, |leaf| leaf.eax & 0xff),
            hypervisor: basic.ecx & 1 << 31 != 0,
        }
    }
}
