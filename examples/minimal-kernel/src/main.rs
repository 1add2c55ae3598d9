//! The smallest kernel that boots with Framewright: one CPU, no ACPI, no interrupts, and only the
//! four required methods of `Platform`. `docs/porting.md` goes on from here.
#![no_std]
#![no_main]

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Order, Pfn, PhysRange};
use framewright::{BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform, Request};
use framewright_arch::x86_64::port::Port;
use framewright_arch::x86_64::pvh::StartInfo;
use framewright_arch::x86_64::registers::{disable_interrupts, halt, restore_interrupts};
use framewright_arch::x86_64::serial::Serial;

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));
core::arch::global_asm!(include_str!("memory.s"), options(att_syntax));

/// Where `boot.s` maps physical memory, and how much of it.
const DIRECT_MAP: usize = 0xffff_8000_0000_0000;
const DIRECT_BYTES: u64 = 512 << 30;

struct OneCpu;

// SAFETY: `boot.s` maps all memory below `DIRECT_BYTES` at one offset, the map is cut there, and
// memory in use is reserved (invariants 1 and 15). There is one CPU, and interrupts stay off.
unsafe impl Platform for OneCpu {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let offset = usize::try_from(pa).expect("addresses have 64 bits");
        NonNull::new(with_exposed_provenance_mut(DIRECT_MAP + offset))
            .expect("the direct map is not at 0")
    }
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    fn irq_save(&self) -> IrqState {
        IrqState(disable_interrupts())
    }
    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: the caller upholds it.
        unsafe { restore_interrupts(state.0) };
    }
}

// SAFETY: the first serial port or nothing is there, and nobody else uses it.
static SERIAL: Serial = unsafe { Serial::at(0x3f8) };

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        SERIAL.send(text.as_bytes());
        Ok(())
    }
}

fn say(line: fmt::Arguments<'_>) {
    // Writing to the port cannot fail.
    let _ = writeln!(Console, "{line}");
}

/// An error that has been reported.
struct Refused;

impl<E: core::error::Error> From<E> for Refused {
    fn from(error: E) -> Self {
        say(format_args!("cannot go on: {error}"));
        Self
    }
}

/// Copies what the boot loader left, for [`StartInfo`]. The accesses are volatile, because a host
/// may write there meanwhile.
fn physical(address: u64, to: &mut [u8]) -> bool {
    let end = address.checked_add(to.len() as u64);
    let (Ok(offset), true) = (usize::try_from(address), end.is_some_and(|end| end <= DIRECT_BYTES))
    else {
        return false;
    };
    for (place, byte) in (DIRECT_MAP + offset..).zip(to) {
        // SAFETY: `boot.s` maps this address, and no reference is made to it.
        *byte = unsafe { with_exposed_provenance::<u8>(place).read_volatile() };
    }
    true
}

fn image() -> PhysRange {
    unsafe extern "C" {
        static image_start: u8;
        static image_end: u8;
    }
    PhysRange::new((&raw const image_start).addr() as u64, (&raw const image_end).addr() as u64)
}

fn run(start_info: u64) -> Result<(), Refused> {
    // Take the firmware's memory map, with the command line's changes.
    let mut copies = [0; StartInfo::storage_bytes(256)];
    let start = StartInfo::read(&physical, start_info, &mut copies)?;
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 256], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    start
        .memory_map()
        .try_for_each(|entry| builder.add(entry.start, entry.size_bytes, entry.kind))?;
    builder.limit(DIRECT_BYTES)?;
    let parameters =
        Parameters::parse(start.command_line()?, &mut |problem| say(format_args!("{problem}")));
    parameters.apply(&mut builder)?;
    let map = builder.finish()?;
    let topology = Topology::new(&mut claims);

    // In use: the BIOS's data, this image with its stack, and what the boot loader left.
    let low = PhysRange::new(0, 64 << 10);
    let used = [low, image(), start.own_range, start.memory_map_range, start.command_line_range];
    let mut storage = MemblockStorage::new();
    // SAFETY: nobody uses memory that the boot loader calls usable and that is not among `used`,
    // and this runs once.
    let early = unsafe { Memblock::with_reserved(&OneCpu, &mut storage, map, &topology, &used) }?;
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
    let before = manager.totals();
    say(format_args!(
        "memory is up: {} of {} pages are free",
        before.free_pages, before.present_pages
    ));

    // Each of these values owns its frames and frees them when it is dropped.
    let page = manager.frames(&Request { zeroed: true, ..Request::new(Order::PAGE) })?;
    say(format_args!("a page: {}", page.range().to_phys()));
    let huge_page = manager.frames(&Request::new(Order::BLOCK))?;
    say(format_args!("a huge page: {}", huge_page.range().to_phys()));
    // Bulk allocation returns frame numbers, which prove no ownership, so freeing them is unsafe.
    let mut scattered = [Pfn(0); 1000];
    let count = manager.allocate_bulk(&Request::new(Order::PAGE), &mut scattered)?;
    say(format_args!("{count} pages at once, the first at {:#x}", scattered[0].address()));
    for &page in &scattered[..count] {
        // SAFETY: each page was allocated above, once, and nobody uses it.
        unsafe { manager.free_order(page, Order::PAGE) }?;
    }
    huge_page.free()?;
    page.free()?;
    // Freed pages wait in the CPU's cache for the next request, so drain it before comparing.
    let cached = manager.drain()?;
    let is_back = manager.verify()? == before;
    say(format_args!("{cached} pages were in the cache, all are back: {is_back}"));
    if is_back { Ok(()) } else { Err(Refused) }
}

/// Ends QEMU with an exit status of twice the code plus one.
fn exit(code: u32) -> ! {
    // SAFETY: the port belongs to QEMU's exit device or to nothing.
    unsafe { Port::new(0xf4) }.write_u32(code);
    halt()
}

#[unsafe(no_mangle)]
extern "C" fn kernel_main(start_info: u64) -> ! {
    SERIAL.begin();
    exit(if run(start_info).is_ok() { 0x10 } else { 0x12 })
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("{info}"));
    exit(0x11)
}
