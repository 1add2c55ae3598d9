//! A common kind of hobby kernel, which gets its frames from Framewright: stable toolchain,
//! Multiboot 2, page tables of the crate `x86_64`, a heap of `talc` from the first line on.
//!
//! GRUB loads it, because GRUB is available everywhere and is what the crate `multiboot2` is made
//! for. `bootloader` and `limine` 0.6 need a nightly compiler, and QEMU's own loader supports only
//! Multiboot 1 and PVH.
//!
//! ```text
//! rustup target add x86_64-unknown-none
//! cargo build --release -p hobby-kernel --target x86_64-unknown-none
//! mkdir -p target/hobby/boot/grub
//! cp target/x86_64-unknown-none/release/hobby-kernel target/hobby/
//! cp examples/hobby-kernel/grub.cfg target/hobby/boot/grub/
//! grub-mkrescue -o target/hobby.iso target/hobby    # grub-pc-bin, xorriso
//! qemu-system-x86_64 -cpu max -m 256M -nographic -no-reboot \
//!     -device isa-debug-exit,iobase=0xf4,iosize=4 -cdrom target/hobby.iso
//! ```
#![no_std]
#![no_main]

extern crate alloc;

mod memory;

use alloc::{collections::BTreeMap, format, string::String, vec, vec::Vec};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::ptr::with_exposed_provenance;
use framewright::{Manager, Platform};
use memory::{DIRECT_MAP, Kernel};
use multiboot2::BootInformation;
use uart_16550::{Config, Uart16550Tty};
use x86_64::VirtAddr;
use x86_64::instructions::{hlt, port::Port, tlb};
use x86_64::registers::control::Cr3;
use x86_64::structures::paging::mapper::CleanUp;
use x86_64::structures::paging::page::PageRangeInclusive;
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageSize, PageTable,
    PageTableFlags, Size2MiB, Size4KiB, Translate,
};

core::arch::global_asm!(include_str!("../../minimal-kernel/src/boot.s"), options(att_syntax));

/// The header that GRUB looks for: magic number, i386, length, checksum, and the end tag.
#[repr(C, align(8))]
struct Header([u32; 6]);

#[used]
#[unsafe(link_section = ".multiboot2")]
static HEADER: Header = {
    let (magic, length): (u32, u32) = (0xe852_50d6, 24);
    Header([magic, 0, length, 0_u32.wrapping_sub(magic + length), 0, 8])
};

fn say(line: fmt::Arguments<'_>) {
    // SAFETY: this is the first serial port. There is one CPU, and nobody else uses the port.
    if let Ok(mut port) = unsafe { Uart16550Tty::new_port(0x3f8, Config::default()) } {
        let _ = writeln!(port, "{line}");
    }
}

/// Counts free pages while the CPU's cache is empty, and checks that all tables are in order.
fn free_pages(manager: &Manager<Kernel>) -> u64 {
    manager.drain().expect("the CPU's own pages can be freed");
    manager.verify().expect("all tables are in order").free_pages
}

/// Maps new frames at unused addresses, uses them, and gives everything back, including page
/// tables.
fn map<S: PageSize + fmt::Debug>(
    tables: &mut OffsetPageTable<'_>,
    mut manager: &Manager<Kernel>,
    pages: PageRangeInclusive<S>,
) where
    for<'a> OffsetPageTable<'a>: Mapper<S>,
{
    let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::NO_EXECUTE;
    let before = free_pages(manager);
    for page in pages {
        let frame = FrameAllocator::<S>::allocate_frame(&mut manager).expect("there is memory");
        // SAFETY: the frame is new, and nothing is mapped at the address.
        unsafe { tables.map_to(page, frame, flags, &mut manager) }.expect("free").flush();
        // SAFETY: mapped just now.
        unsafe { page.start_address().as_mut_ptr::<u64>().write(page.start_address().as_u64()) };
    }
    let taken = before - free_pages(manager);
    for page in pages {
        let address = page.start_address();
        let physical = tables.translate_addr(address).expect("mapped above");
        // SAFETY: this is the frame that was written above, through the direct map.
        let seen = unsafe { Kernel.direct(physical.as_u64()).cast::<u64>().read() };
        assert_eq!(seen, address.as_u64(), "another frame is mapped at {address:?}");
        let (frame, flush) = tables.unmap(page).expect("mapped above");
        flush.flush();
        // SAFETY: the frame is not mapped any more.
        unsafe { manager.deallocate_frame(frame) };
    }
    // SAFETY: these tables were made above, and nothing else is mapped there.
    unsafe {
        let first = Page::containing_address(pages.start.start_address());
        let last = Page::containing_address(pages.end.start_address() + (S::SIZE - 1));
        tables.clean_up_addr_range(Page::range_inclusive(first, last), &mut manager);
    }
    // CPUs cache page tables as well as pages, and could still walk tables that were freed.
    // Flushing after the free is early enough, because nothing allocates in between and nobody uses
    // free frames.
    tlb::flush_all();
    say(format_args!(
        "{} pages of {}: {taken} frames with their tables",
        pages.count(),
        S::DEBUG_STR
    ));
}

fn run(boot_information: usize) {
    let place = with_exposed_provenance(DIRECT_MAP + boot_information);
    // SAFETY: the boot loader named this address; `load` refuses what is no boot information.
    let info = unsafe { BootInformation::load(place) }.expect("started by Multiboot 2");
    // SAFETY: called once, before everything else.
    let manager = unsafe { memory::bring_up(&info) };
    let before = free_pages(manager);
    say(format_args!("{before} of {} pages are free", manager.totals().present_pages));

    let root = Cr3::read().0.start_address().as_u64();
    // SAFETY: this is the root that `boot.s` made and the CPU uses. There is no other reference to
    // it.
    let root = unsafe { Kernel.direct(root).cast::<PageTable>().as_mut() };
    // SAFETY: all memory is mapped there.
    let mut tables = unsafe { OffsetPageTable::new(root, VirtAddr::new(DIRECT_MAP as u64)) };
    let page = VirtAddr::new(0x4444_4444_0000);
    map(&mut tables, manager, {
        let first = Page::<Size4KiB>::containing_address(page);
        Page::range_inclusive(first, first + 99)
    });
    map(&mut tables, manager, {
        let first = Page::<Size2MiB>::containing_address(page);
        Page::range_inclusive(first, first + 2)
    });

    let mut words: Vec<String> = (0..10_000).map(|number| format!("word {number}")).collect();
    words.sort();
    let lengths: BTreeMap<&str, usize> = words.iter().map(|word| (&**word, word.len())).collect();
    let large = vec![7_u8; 100_000].into_boxed_slice();
    let taken = before - free_pages(manager);
    say(format_args!("the heap has {taken} pages; {} words, {}", lengths.len(), words[9_999]));
    assert!(lengths["word 77"] == 7 && large.iter().all(|&byte| byte == 7), "the heap is broken");
    drop((lengths, large));
    drop(words);

    let after = free_pages(manager);
    say(format_args!("{after} pages are free, the heap keeps {}", before - after));
}

/// Ends QEMU with an exit status of twice the code plus one.
fn exit(code: u32) -> ! {
    // SAFETY: the port belongs to QEMU's exit device or to nothing.
    unsafe { Port::new(0xf4).write(code) };
    loop {
        hlt();
    }
}

#[unsafe(no_mangle)]
extern "C" fn kernel_main(boot_information: usize) -> ! {
    run(boot_information);
    exit(0x10)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("{info}"));
    exit(0x11)
}
