//! An application on ArceOS: heap work, and a benchmark of its page allocator.
#![no_std]
#![no_main]

mod bench;

use axalloc::{UsageKind, global_allocator};
use axstd::collections::BTreeMap;
use axstd::format;
use axstd::println;
use axstd::string::String;
use axstd::vec::Vec;
use core::arch::asm;

/// Works with strings, a tree and a growing vector, as an application does.
fn heap_work() -> usize {
    let mut words: Vec<String> = (0..20_000).map(|number| format!("word {number}")).collect();
    words.sort();
    let mut by_length = BTreeMap::<usize, Vec<&str>>::new();
    for word in &words {
        by_length.entry(word.len()).or_default().push(word);
    }
    by_length.values().map(Vec::len).sum()
}

/// Checks that a run can be allocated by its address once, and not a second time.
fn place() -> Option<()> {
    let pages = global_allocator();
    let start = pages.alloc_pages(5, 4096, UsageKind::Global).ok()?;
    pages.dealloc_pages(start, 5, UsageKind::Global);
    let at = || pages.alloc_pages_at(start, 3, 4096, UsageKind::Global).ok();
    let taken = at()?;
    let is_refused = at().is_none();
    pages.dealloc_pages(taken, 3, UsageKind::Global);
    // An address inside a page is refused, whatever the alignment.
    let inside = pages.alloc_pages_at(start + 8, 1, 8, UsageKind::Global);
    (taken == start && is_refused && inside.is_err()).then_some(())
}

#[unsafe(no_mangle)]
fn main() {
    bench::run();
    if place().is_none() {
        println!("failed place");
    }
    let began = bench::ticks();
    let counted = heap_work();
    println!("bench heap {}", bench::ticks() - began);
    if counted != 20_000 {
        println!("failed heap with {counted} words");
    }
    println!("end");
    // SAFETY: this is the port of QEMU's exit device.
    unsafe { asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") 0x10) };
}
