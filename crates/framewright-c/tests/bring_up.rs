//! The largest map that is promised, with all that a command line can add, on a stack that is
//! measured: kernels have little of it, and an overflow goes unreported. One test, because a
//! process has one manager. The test `c` measures the archive.

use framewright::units::MAX_NODES;
use framewright_c::{FW_VERSION, fw_error, fw_kind};
use framewright_c::{fw_bring_up, fw_get_counters, fw_platform, fw_range, fw_span, fw_verify};
use framewright_testkit::{PaintedStack, on_painted_stack};
use std::alloc::{Layout, alloc_zeroed};
use std::ffi::{CString, c_char, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const RAM: u64 = 128 * MIB;

/// What the header says: in builds where the compiler leaves everything on the stack, and in
/// optimised builds. More nodes than C can ask for, in tests of the whole workspace, take more.
const LIMIT_BYTES: usize =
    (if cfg!(debug_assertions) { 32 } else { 16 } + if MAX_NODES > 64 { 64 } else { 0 }) << 10;

unsafe extern "C" fn pin(_: *mut c_void) -> u32 {
    0
}

unsafe extern "C" fn irq_save(_: *mut c_void) -> usize {
    0
}

unsafe extern "C" fn irq_restore(_: *mut c_void, _: usize) {}

/// Takes no stack of its own, so that only the manager's is measured.
unsafe extern "C" fn log(_: *mut c_void, text: *const c_char, length: usize) {
    black_box((text, length));
}

fn platform() -> fw_platform {
    let bytes = usize::try_from(RAM).expect("64 bits");
    let layout = Layout::from_size_align(bytes, 2 << 20).expect("a power of two");
    // SAFETY: the layout has a size. The memory is never freed, because the manager stays.
    let direct_base = unsafe { alloc_zeroed(layout) };
    assert!(!direct_base.is_null());
    fw_platform {
        size: u32::try_from(size_of::<fw_platform>()).expect("small"),
        version: FW_VERSION,
        cpus: 1,
        flags: 0,
        direct_base: direct_base.cast(),
        direct_limit: RAM,
        context: null_mut(),
        pin: Some(pin),
        unpin: None,
        irq_save: Some(irq_save),
        irq_restore: Some(irq_restore),
        cpu_barrier: None,
        can_wait: None,
        yield_now: None,
        relax: None,
        current_task: None,
        now_ns: None,
        log: Some(log),
        halt: None,
    }
}

/// 255 reserved pages in one usable range, from the highest down, make 511 pieces, and each
/// `memmap=` two more.
fn map() -> Vec<fw_range> {
    let holes = (1..256).rev().map(|at| 2 * MIB + at * 2 * PAGE);
    let hole = |start| fw_range { start, bytes: PAGE, kind: fw_kind::FW_RESERVED as u32 };
    let whole = fw_range { start: 0, bytes: RAM, kind: fw_kind::FW_CONVENTIONAL as u32 };
    holes.map(hole).chain([whole]).collect()
}

fn command_line() -> CString {
    let cuts = (0..32).map(|at| format!("memmap=4K${:#x}", 8 * MIB + at * 2 * PAGE));
    let words = ["min_free_kbytes=256", "hugepages=1", "mem=120M", "nonsense=1"];
    let words: Vec<String> = words.into_iter().map(str::to_owned).chain(cuts).collect();
    CString::new(words.join(" ")).expect("no zero")
}

/// Brings memory up; returns the stack that took.
fn bring_up(stack: &PaintedStack) -> usize {
    let (platform, map, line) = (platform(), map(), command_line());
    let in_use: Vec<fw_span> =
        (0..64).map(|at| fw_span { start: 16 * MIB + at * 4 * PAGE, bytes: PAGE }).collect();
    // SAFETY: the memory is the manager's from now on; the arrays and the text are as is said.
    let (result, used) = stack.measure(|| unsafe {
        fw_bring_up(
            &raw const platform,
            map.as_ptr(),
            map.len(),
            in_use.as_ptr(),
            in_use.len(),
            line.as_ptr(),
        )
    });
    assert_eq!(result, fw_error::FW_OK as i32, "{} ranges, {} in use", map.len(), in_use.len());
    used
}

#[test]
fn the_largest_map_comes_up_on_a_small_stack() {
    let used = on_painted_stack(bring_up);
    println!("{used} bytes of stack");
    assert!(used <= LIMIT_BYTES, "{used} bytes of stack, {LIMIT_BYTES} are promised");
    let mut counters = MaybeUninit::uninit();
    // SAFETY: there is room for the counters.
    assert_eq!(unsafe { fw_get_counters(counters.as_mut_ptr()) }, 0);
    // SAFETY: they were written.
    let counters = unsafe { counters.assume_init() };
    assert_eq!(counters.present_pages, 120 * MIB / PAGE - 255 - 32 - 0x60 - 1);
    // SAFETY: no counters are wanted.
    assert_eq!(unsafe { fw_verify(null_mut()) }, 0);
}
