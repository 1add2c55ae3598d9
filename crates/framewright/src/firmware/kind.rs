//! What firmware says a range of addresses is.

use core::fmt;

/// The kind of a firmware range, from the least to the most restrictive.
///
/// Where ranges overlap the most restrictive kind wins. The kinds up to [`MemoryKind::Persistent`]
/// are memory and shrink inward to whole frames; the others are reservations and grow outward, so a
/// frame that one of them touches at all is theirs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MemoryKind {
    /// Ordinary usable memory (e820 type 1, EFI conventional memory).
    Conventional,
    /// Usable memory that may be removed later. Under `movable_node` the memblock allocator avoids
    /// it as long as it can.
    HotPluggable,
    /// Memory that a confidential guest must accept before its first use: present, not managed
    /// until then.
    Unaccepted,
    /// Memory set aside for a special purpose (EFI_MEMORY_SP): kept in the map, not present.
    SoftReserved,
    /// Persistent memory (e820 types 7 and 12): kept in the map, not present.
    Persistent,
    /// ACPI tables, usable once they have been read (e820 type 3). Not present until released.
    AcpiReclaimable,
    /// ACPI non-volatile storage (e820 type 4).
    AcpiNvs,
    /// Anything else that software must not touch (e820 type 2 and every unknown type).
    Reserved,
    /// Memory known to be bad (e820 type 5).
    Unusable,
}

impl MemoryKind {
    /// Every kind, least restrictive first.
    pub const ALL: [Self; 9] = [
        Self::Conventional,
        Self::HotPluggable,
        Self::Unaccepted,
        Self::SoftReserved,
        Self::Persistent,
        Self::AcpiReclaimable,
        Self::AcpiNvs,
        Self::Reserved,
        Self::Unusable,
    ];

    /// Returns whether the range is memory that a zone counts as present.
    #[must_use]
    pub const fn is_present(self) -> bool {
        matches!(self, Self::Conventional | Self::HotPluggable | Self::Unaccepted)
    }

    /// Returns whether the allocator may hand the memory out after bring-up.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Conventional | Self::HotPluggable)
    }

    /// Returns whether a frame must be covered wholly to be of this kind (memory), rather than
    /// merely touched.
    #[must_use]
    pub const fn shrinks(self) -> bool {
        (self as u8) <= (Self::Persistent as u8)
    }

    /// Returns the kind of an e820 or PVH memory-map type number; unknown numbers are reserved, as
    /// in Linux.
    #[must_use]
    pub const fn from_e820(kind: u32) -> Self {
        match kind {
            1 => Self::Conventional,
            3 => Self::AcpiReclaimable,
            4 => Self::AcpiNvs,
            5 => Self::Unusable,
            7 | 12 => Self::Persistent,
            0xefff_ffff => Self::SoftReserved,
            _ => Self::Reserved,
        }
    }

    /// Returns the kind of an EFI memory descriptor, by its type and attributes, once boot services
    /// have ended (Linux: `arch/x86/platform/efi/efi.c`, `do_add_efi_memmap`). Memory that the
    /// loader and boot services used is usable if it is cacheable; memory for a special purpose is
    /// set aside.
    #[must_use]
    pub const fn from_efi(kind: u32, attributes: u64) -> Self {
        /// EFI_MEMORY_WB and EFI_MEMORY_SP.
        const WRITE_BACK: u64 = 0x8;
        const SPECIAL_PURPOSE: u64 = 0x4_0000;
        match kind {
            1..=4 | 7 if attributes & SPECIAL_PURPOSE != 0 => Self::SoftReserved,
            1..=4 | 7 if attributes & WRITE_BACK != 0 => Self::Conventional,
            8 => Self::Unusable,
            9 => Self::AcpiReclaimable,
            10 => Self::AcpiNvs,
            14 => Self::Persistent,
            15 => Self::Unaccepted,
            _ => Self::Reserved,
        }
    }

    /// Returns the name of the kind in Linux's boot log (kinds that Linux lacks have names in its
    /// style).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conventional => "usable",
            Self::HotPluggable => "hot-pluggable",
            Self::Unaccepted => "unaccepted",
            Self::SoftReserved => "soft reserved",
            Self::Persistent => "persistent",
            Self::AcpiReclaimable => "ACPI data",
            Self::AcpiNvs => "ACPI NVS",
            Self::Reserved => "reserved",
            Self::Unusable => "unusable",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
