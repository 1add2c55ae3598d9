//! Walks the page tables in use and compares them with what they should be.

use crate::accept;
use crate::image;
use crate::platform::{DIRECT_MAP, GuestPlatform, PLATFORM};
use crate::release;
use crate::vmemmap::GuestVmemmap;
use core::fmt;
use framewright::Manager;
use framewright::firmware::MemoryMap;
use framewright::platform::Platform;
use framewright::units::PhysRange;
use framewright::vmemmap_space::VmemmapSpace;
use framewright_arch::paging::{Access, Entry, Mapping, TableMemory, Visitor, walk};

/// Reads the tables in use.
pub struct InUse;

impl TableMemory for InUse {
    fn allocate(&mut self) -> Option<u64> {
        None
    }

    fn read(&self, table: u64, index: usize) -> Entry {
        assert!(index < 512, "a table has 512 entries");
        // SAFETY: the entry is within the frame of one table.
        let entry = unsafe { PLATFORM.direct(table).cast::<Entry>().add(index) };
        // SAFETY: only tables in use are read, through the direct map, and an entry is a number.
        // Volatile, because the CPU may mark it.
        unsafe { entry.read_volatile() }
    }

    fn write(&mut self, _table: u64, _index: usize, _entry: Entry) {}
}

/// What was found and is right.
#[derive(Clone, Copy, Default, Debug)]
pub struct Found {
    image_pages: u64,
    direct_bytes: u64,
    present_bytes: u64,
    absent_sections: u64,
    other_pages: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "tables are correct: image {} pages, direct map {} MiB, vmemmap {} MiB present and {} \
             sections absent, {} pages of others",
            self.image_pages,
            mib(self.direct_bytes),
            mib(self.present_bytes),
            self.absent_sections,
            self.other_pages,
        )
    }
}

/// A page that is not as it should be.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    mapping: Option<Mapping>,
    what: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mapping {
            Some(Mapping { address, physical, access, .. }) => {
                let (write, execute) = (access.write, access.execute);
                let what = self.what;
                write!(
                    f,
                    "{address:#x} leads to {physical:#x} (write {write}, execute {execute}): {what}"
                )
            }
            None => f.write_str(self.what),
        }
    }
}

/// Checks every page that is mapped.
struct Inspector<'a> {
    map: MemoryMap<'a>,
    vmemmap: &'a GuestVmemmap,
    found: Found,
    wrong: Option<Wrong>,
}

impl Inspector<'_> {
    fn fail(&mut self, mapping: Mapping, what: &'static str) {
        self.wrong = self.wrong.or(Some(Wrong { mapping: Some(mapping), what }));
    }

    /// Checks the image at its own addresses: each part has its rights and no more.
    fn image(&mut self, mapping: Mapping) {
        self.found.image_pages += mapping.size.bytes() >> 12;
        let page = PhysRange::with_size(mapping.address, mapping.size.bytes());
        let is_in = |part: PhysRange| part.start <= page.start && page.end <= part.end;
        let parts = [
            (image::code(), Access::CODE),
            (image::constants(), Access::CONSTANTS),
            (image::data(), Access::DATA),
            (image::boot_tables(), Access::DATA),
            (image::zeroed(), Access::DATA),
            (image::stack(), Access::DATA),
        ];
        match parts.into_iter().find(|(part, _)| is_in(*part)) {
            None => self.fail(mapping, "no part of the image"),
            Some(_) if mapping.physical != mapping.address => {
                self.fail(mapping, "the image is elsewhere")
            }
            Some((_, access)) if access != mapping.access => {
                self.fail(mapping, "wrong rights for this part")
            }
            Some(_) => {}
        }
    }

    /// Checks the direct map: memory is mapped at its address and never executable, and the image's
    /// read-only parts are not writable.
    fn direct(&mut self, mapping: Mapping) {
        self.found.direct_bytes += mapping.size.bytes();
        let page = PhysRange::with_size(mapping.physical, mapping.size.bytes());
        let fixed = PhysRange::new(image::code().start, image::constants().end);
        let is_present = |range: PhysRange| range.start <= page.start && page.end <= range.end;
        if mapping.address - DIRECT_MAP != mapping.physical {
            self.fail(mapping, "not at its place in the direct map");
        } else if mapping.access.execute {
            self.fail(mapping, "memory that may be executed");
        } else if mapping.access.write && !page.intersection(fixed).is_empty() {
            self.fail(mapping, "code or constants that may be written");
        } else if !self
            .map
            .ranges()
            .iter()
            .any(|entry| entry.kind.is_present() && is_present(entry.range))
        {
            self.fail(mapping, "no memory there");
        }
    }

    fn descriptors(&mut self, mapping: Mapping) {
        let is_zero = mapping.physical == self.vmemmap.zero_frame().address();
        if mapping.access.execute {
            self.fail(mapping, "descriptors that may be executed");
        } else if mapping.access.write == is_zero {
            self.fail(mapping, "present descriptors are writable and absent ones are not");
        }
        if !is_zero {
            self.found.present_bytes += mapping.size.bytes();
        }
    }
}

impl Visitor for Inspector<'_> {
    fn table(&mut self, _address: u64, level: u32, table: u64) -> bool {
        let is_absent = level == 1 && table == self.vmemmap.absent_table().address();
        self.found.absent_sections += u64::from(is_absent);
        !is_absent
    }

    fn page(&mut self, mapping: Mapping) {
        let vmemmap = self.vmemmap.range();
        let direct_end = DIRECT_MAP + self.map.present_end();
        if mapping.access.write && mapping.access.execute {
            self.fail(mapping, "may be written and executed");
        }
        match mapping.address {
            0..DIRECT_MAP => self.image(mapping),
            address if address < direct_end => self.direct(mapping),
            address if vmemmap.start <= address && address < vmemmap.end => {
                self.descriptors(mapping)
            }
            _ if mapping.access.execute => self.fail(mapping, "code outside the image"),
            _ => self.found.other_pages += mapping.size.bytes() >> 12,
        }
    }
}

/// Checks the absent table, which all absent sections share: each entry maps the zero frame
/// read-only.
fn check_absent_table(vmemmap: &GuestVmemmap) -> bool {
    let expected = vmemmap.zero_frame().address();
    let table = vmemmap.absent_table().address();
    (0..512).map(|index| InUse.read(table, index)).all(|entry| {
        let access = entry.access();
        entry.is_present() && entry.address() == expected && !access.write && !access.execute
    })
}

/// Compares everything that is mapped with the memory map, the image, and the vmemmap's own counts.
pub fn inspect(
    map: MemoryMap<'_>,
    vmemmap: &GuestVmemmap,
    manager: &Manager<GuestPlatform>,
) -> Result<Found, Wrong> {
    let mut inspector = Inspector { map, vmemmap, found: Found::default(), wrong: None };
    walk(&InUse, vmemmap.layout().root, &mut inspector);
    let Inspector { found, wrong, .. } = inspector;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let present: u64 = map
        .ranges()
        .iter()
        .filter(|entry| entry.kind.is_present())
        .map(|entry| entry.range.size())
        .sum();
    let data = [image::data(), image::zeroed(), image::stack()];
    let fixed = [image::code(), image::constants()];
    let parts = fixed.into_iter().chain(data).chain(release::kept_parts());
    let counts = vmemmap.counts();
    let described = (counts.populated_pages - counts.evicted_pages) << 12;
    let sums = [
        (
            found.direct_bytes == present - accept::unaccepted_bytes()[0],
            "the direct map does not have all memory",
        ),
        (
            found.image_pages == parts.map(|part| part.size() >> 12).sum(),
            "a part of the image is not mapped",
        ),
        (
            PLATFORM.direct_limit() >= map.present_end(),
            "the direct map's limit was not raised to the end of memory",
        ),
        (found.present_bytes == described, "the vmemmap does not hold what was populated"),
        (
            found.present_bytes <= manager.vmemmap().bytes(),
            "the vmemmap maps more than the manager knows of",
        ),
        (check_absent_table(vmemmap), "the absent table has changed"),
        (vmemmap.base().addr().get() as u64 == vmemmap.range().start, "the vmemmap is elsewhere"),
    ];
    match sums.into_iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(Wrong { mapping: None, what }),
        None => Ok(found),
    }
}
