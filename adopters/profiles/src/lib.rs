//! What a kernel has before it has a memory manager: a start, a stack, memory, and a line to write
//! numbers to. The kernels of this package are Linux programs, so that they can run where they are
//! built. They start as a kernel does: at an address, with nothing set up.
//!
//! Each program in `src/bin` is a profile: all the code that an adopter of this part of Framewright
//! has to write. `cargo xtask sizes` counts its lines, links it, runs it, and reports what it
//! needed.
#![no_std]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::panic::Location;
use core::ptr::NonNull;

/// Bytes of memory that the machine has at first.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes of memory after it that can be added later.
pub const LATER_BYTES: u64 = 128 << 20;
const STACK_WORDS: usize = 64 << 10;
/// The content of stack words that were never used.
const UNUSED: u64 = 0x5aa5_f00f_5aa5_f00f;

#[repr(C, align(0x20_0000))]
struct Memory(UnsafeCell<[u8; ALL_BYTES]>);

// SAFETY: only this file names the static. The profiles' managers decide which code uses which
// part.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; ALL_BYTES]));

const ALL_BYTES: usize = (MEMORY_BYTES + LATER_BYTES) as usize;
const DESCRIPTORS_BYTES: usize = ALL_BYTES / 4096 * 64;

#[repr(C, align(0x20_0000))]
struct Descriptors(UnsafeCell<[u8; DESCRIPTORS_BYTES]>);

// SAFETY: as for `Memory`.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors(UnsafeCell::new([0; DESCRIPTORS_BYTES]));

#[repr(C, align(4096))]
struct Stack(UnsafeCell<[u64; STACK_WORDS]>);

// SAFETY: the only thread runs on it, and the words below are accessed only through raw pointers.
unsafe impl Sync for Stack {}

#[unsafe(no_mangle)]
static PROFILE_STACK: Stack = Stack(UnsafeCell::new([0; STACK_WORDS]));

global_asm!(
    ".global _start",
    "_start:",
    "lea rdi, [rip + PROFILE_STACK]",
    "mov rcx, {words}",
    "movabs rax, {unused}",
    "rep stosq",
    "mov rsp, rdi",
    "call profile_main",
    "ud2",
    words = const STACK_WORDS,
    unused = const UNUSED,
);

/// Returns where physical memory is mapped.
pub fn direct(pa: u64) -> NonNull<u8> {
    // SAFETY: the address of a static plus an offset is not null.
    unsafe { NonNull::new_unchecked(MEMORY.0.get().cast::<u8>().wrapping_add(pa as usize)) }
}

/// Returns where the descriptors of all frames may lie.
pub fn descriptors() -> NonNull<u8> {
    // SAFETY: the address of a static is not null.
    unsafe { NonNull::new_unchecked(DESCRIPTORS.0.get().cast()) }
}

/// Reads the processor's clock, in whatever units it counts.
pub fn now_ns() -> u64 {
    // SAFETY: every 64-bit processor has this instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A profile failed at this line.
#[derive(Debug)]
pub struct Failed(u32);

impl Failed {
    /// A failure at the caller's line.
    #[track_caller]
    pub const fn here() -> Self {
        Self(Location::caller().line())
    }
}

impl<E: core::error::Error> From<E> for Failed {
    #[track_caller]
    fn from(_: E) -> Self {
        Self::here()
    }
}

/// Fails if something is not as it should be.
///
/// # Errors
/// It is not.
#[track_caller]
pub const fn check(is_right: bool) -> Result<(), Failed> {
    if is_right { Ok(()) } else { Err(Failed::here()) }
}

/// Runs a profile and ends the program. Writes the bytes of metadata that the profile returns, or
/// the line where it failed, and how many bytes of stack it used.
pub fn run(profile: fn() -> Result<u64, Failed>) -> ! {
    let outcome = core::hint::black_box(profile)();
    let stack = PROFILE_STACK.0.get().cast::<u64>();
    let mut unused = 0;
    // SAFETY: the words are read one by one, never through a reference. The loop ends in this
    // function's own frame at the latest.
    while unsafe { stack.add(unused).read_volatile() } == UNUSED {
        unused += 1;
    }
    let (number, status) = match outcome {
        Ok(metadata_bytes) => (metadata_bytes, 0),
        Err(Failed(line)) => (line.into(), 1),
    };
    write_number(number, b' ');
    write_number(((STACK_WORDS - unused) * 8) as u64, b'\n');
    exit(status)
}

fn write_number(number: u64, end: u8) {
    let mut text = [end; 21];
    let (mut at, mut rest) = (20, number);
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    // SAFETY: this is `write` to the standard output.
    unsafe { system_call(1, 1, text[at..].as_ptr() as usize, 21 - at) };
}

/// Ends the program.
pub fn exit(status: usize) -> ! {
    // SAFETY: this is `exit_group`.
    unsafe { system_call(231, status, 0, 0) };
    loop {}
}

/// # Safety
/// As for the system call.
unsafe fn system_call(number: usize, first: usize, second: usize, third: usize) {
    // SAFETY: the caller upholds it. Linux changes rcx and r11, which are declared.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => _,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
}

/// Makes a program out of a profile.
#[macro_export]
macro_rules! program {
    ($profile:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn profile_main() -> ! {
            $crate::run($profile)
        }

        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            $crate::exit(101)
        }
    };
}
