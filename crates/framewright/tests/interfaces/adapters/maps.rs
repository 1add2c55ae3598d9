//! Memory maps as other crates describe them: each kind of range maps to the right kind here, and
//! memory in use is named.
//!
//! Runs with `cargo test -p framewright --all-features`.

use ::limine::memory_map::{Entry, EntryType};
use ::multiboot2::{MemoryArea, MemoryAreaType};
use bootloader_api::info::{MemoryRegion, MemoryRegionKind};
use framewright::adapters::{bootloader_api as bootloader, limine, multiboot2, uefi};
use framewright::firmware::{MapBuilder, MapError, MapRange, MemoryKind};
use framewright::units::PhysRange;
use uefi_raw::table::boot::{MemoryAttribute, MemoryDescriptor, MemoryType};

const MIB: u64 = 1 << 20;

/// Returns the ranges of a map above 1 MiB, in MiB: first, one past the last, kind.
fn ranges(
    fill: impl FnOnce(&mut MapBuilder<'_>) -> Result<(), MapError>,
) -> Vec<(u64, u64, MemoryKind)> {
    let mut room = [MapRange::EMPTY; 64];
    let mut builder = MapBuilder::new(&mut room);
    fill(&mut builder).expect("it fits");
    let map = builder.finish().expect("a map");
    let of = |entry: &MapRange| (entry.range.start / MIB, entry.range.end / MIB, entry.kind);
    // Frame 0 and what lies below 1 MiB is never memory.
    map.ranges().iter().filter(|entry| entry.range.start >= MIB).map(of).collect()
}

fn mib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start * MIB, end * MIB)
}

/// What all four maps say here: usable memory with the kernel at its start, ACPI's, and another
/// kind.
const EXPECTED: [(u64, u64, MemoryKind); 4] = [
    (16, 64, MemoryKind::Conventional),
    (64, 65, MemoryKind::AcpiReclaimable),
    (65, 66, MemoryKind::AcpiNvs),
    (66, 80, MemoryKind::Reserved),
];

#[test]
fn regions_of_bootloader_api() {
    let region = |start, end, kind| MemoryRegion { start: start * MIB, end: end * MIB, kind };
    for (acpi, nvs, other) in [
        (
            MemoryRegionKind::UnknownBios(3),
            MemoryRegionKind::UnknownBios(4),
            MemoryRegionKind::UnknownBios(2),
        ),
        // Memory of boot services that the loader did not call usable is not used.
        (
            MemoryRegionKind::UnknownUefi(9),
            MemoryRegionKind::UnknownUefi(10),
            MemoryRegionKind::UnknownUefi(3),
        ),
    ] {
        let regions = [
            region(64, 65, acpi),
            region(16, 20, MemoryRegionKind::Bootloader),
            region(20, 64, MemoryRegionKind::Usable),
            region(65, 66, nvs),
            region(66, 80, other),
            region(90, 90, MemoryRegionKind::Bootloader),
        ];
        assert_eq!(ranges(|builder| bootloader::add(builder, &regions)), EXPECTED);
        assert_eq!(bootloader::in_use(&regions).collect::<Vec<_>>(), [mib(16, 20)]);
    }
    // A range that ends before its start is empty.
    let reversed = [region(9, 8, MemoryRegionKind::Bootloader)];
    let mut room = [MapRange::EMPTY; 8];
    assert_eq!(bootloader::add(&mut MapBuilder::new(&mut room), &reversed), Ok(()));
    assert_eq!(bootloader::in_use(&reversed).count(), 0);
}

#[test]
fn entries_of_limine() {
    let entry = |start: u64, end: u64, entry_type| Entry {
        base: start * MIB,
        length: (end - start) * MIB,
        entry_type,
    };
    let entries = [
        entry(16, 18, EntryType::EXECUTABLE_AND_MODULES),
        entry(18, 20, EntryType::BOOTLOADER_RECLAIMABLE),
        entry(20, 64, EntryType::USABLE),
        entry(64, 65, EntryType::ACPI_RECLAIMABLE),
        entry(65, 66, EntryType::ACPI_NVS),
        entry(66, 70, EntryType::RESERVED),
        entry(70, 80, EntryType::FRAMEBUFFER),
        entry(80, 81, EntryType::BAD_MEMORY),
    ];
    let entries: Vec<&Entry> = entries.iter().collect();
    let found = ranges(|builder| limine::add(builder, &entries));
    assert_eq!(found[..4], EXPECTED);
    assert_eq!(found[4..], [(80, 81, MemoryKind::Unusable)]);
    let used: Vec<PhysRange> = limine::in_use(&entries).collect();
    assert_eq!(used, [mib(16, 18), mib(18, 20)]);
}

#[test]
fn areas_of_multiboot2() {
    let area = |start: u64, end: u64, kind: MemoryAreaType| {
        MemoryArea::new(start * MIB, (end - start) * MIB, kind)
    };
    let areas = [
        area(16, 64, MemoryAreaType::Available),
        area(64, 65, MemoryAreaType::AcpiAvailable),
        area(65, 66, MemoryAreaType::ReservedHibernate),
        area(66, 80, MemoryAreaType::Reserved),
        area(80, 81, MemoryAreaType::Defective),
        area(81, 82, MemoryAreaType::Custom(77)),
    ];
    let found = ranges(|builder| multiboot2::add(builder, &areas));
    assert_eq!(found[..4], EXPECTED);
    assert_eq!(found[4..], [(80, 81, MemoryKind::Unusable), (81, 82, MemoryKind::Reserved)]);
}

#[test]
fn descriptors_of_uefi() {
    let descriptor = |start: u64, end: u64, ty, att| MemoryDescriptor {
        ty,
        padding: 0,
        phys_start: start * MIB,
        virt_start: 0,
        page_count: (end - start) * 256,
        att,
    };
    let cached = MemoryAttribute::WRITE_BACK;
    let entries = [
        descriptor(16, 20, MemoryType::LOADER_CODE, cached),
        descriptor(20, 24, MemoryType::LOADER_DATA, cached),
        descriptor(24, 28, MemoryType::BOOT_SERVICES_CODE, cached),
        descriptor(28, 32, MemoryType::BOOT_SERVICES_DATA, cached),
        descriptor(32, 64, MemoryType::CONVENTIONAL, cached | MemoryAttribute::MORE_RELIABLE),
        descriptor(64, 65, MemoryType::ACPI_RECLAIM, cached),
        descriptor(65, 66, MemoryType::ACPI_NON_VOLATILE, cached),
        descriptor(66, 67, MemoryType::RUNTIME_SERVICES_DATA, MemoryAttribute::MORE_RELIABLE),
        descriptor(67, 68, MemoryType::MMIO, MemoryAttribute::UNCACHEABLE),
        // Uncacheable memory is not used, and the other two kinds are unknown.
        descriptor(68, 70, MemoryType::CONVENTIONAL, MemoryAttribute::UNCACHEABLE),
        descriptor(70, 75, MemoryType(0x7000_0001), cached),
        descriptor(75, 80, MemoryType(0x8000_0000), cached),
        descriptor(80, 81, MemoryType::UNUSABLE, cached),
        descriptor(81, 82, MemoryType::PERSISTENT_MEMORY, cached),
        descriptor(82, 90, MemoryType::UNACCEPTED, cached),
        descriptor(90, 92, MemoryType::CONVENTIONAL, cached | MemoryAttribute::SPECIAL_PURPOSE),
    ];
    let found = ranges(|builder| uefi::add(builder, &entries));
    assert_eq!(found[..4], EXPECTED);
    assert_eq!(
        found[4..],
        [
            (80, 81, MemoryKind::Unusable),
            (81, 82, MemoryKind::Persistent),
            (82, 90, MemoryKind::Unaccepted),
            (90, 92, MemoryKind::SoftReserved),
        ]
    );
    let mirrored: Vec<_> = uefi::mirrored(&entries).collect();
    assert_eq!(mirrored, [mib(32, 64), mib(66, 67)]);
    let endless = MemoryDescriptor { phys_start: MIB, page_count: u64::MAX, ..entries[4] };
    assert_eq!(uefi::mirrored([&endless]).next(), Some(PhysRange::new(MIB, u64::MAX)));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut room = [MapRange::EMPTY; 8];
    let mut builder = MapBuilder::new(&mut room);
    let all = [MemoryRegion { start: 1, end: u64::MAX, kind: MemoryRegionKind::Usable }];
    let refused = bootloader::add(&mut builder, &all);
    assert!(matches!(refused, Err(MapError::BeyondAddressSpace { start: 1, .. })), "{refused:?}");
    let many = MemoryDescriptor { page_count: u64::MAX, ..MemoryDescriptor::default() };
    let refused = uefi::add(&mut builder, [&many]);
    assert!(matches!(refused, Err(MapError::BeyondAddressSpace { .. })), "{refused:?}");
    let odd = Entry { base: u64::MAX, length: u64::MAX, entry_type: EntryType::USABLE };
    let refused = limine::add(&mut builder, &[&odd]);
    assert!(matches!(refused, Err(MapError::BeyondAddressSpace { .. })), "{refused:?}");
}
