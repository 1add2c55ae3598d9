//! A kernel on OSTD: a benchmark of its frame allocator, or OSTD's own tests on it.
#![no_std]
#![no_main]

extern crate alloc;

#[cfg(not(feature = "tests"))]
mod bench;
mod frames;

#[cfg(feature = "tests")]
extern crate osdk_test_kernel;

use ostd::mm::heap::SlotInfo;

#[ostd::global_heap_allocator]
static HEAP: osdk_heap_allocator::HeapAllocator = osdk_heap_allocator::HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_info(layout: core::alloc::Layout) -> Option<SlotInfo> {
    osdk_heap_allocator::type_from_layout(layout)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: OSTD or its test kernel defines this function.
    unsafe { __ostd_panic_handler(info) }
}

/// Runs all tests of the crates below.
#[cfg(feature = "tests")]
#[unsafe(no_mangle)]
pub static KTEST_TEST_WHITELIST: Option<&[&str]> = None;

/// Runs the tests of OSTD alone.
#[cfg(feature = "tests")]
#[unsafe(no_mangle)]
pub static KTEST_CRATE_WHITELIST: Option<&[&str]> = Some(&["ostd"]);
