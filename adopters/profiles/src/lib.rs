//! What a kernel has before it has a memory manager: a start, a stack, memory, and a line to write
//! numbers to. The kernels of this package are programs of Linux, so that they can be run where
//! they are built: they begin as a kernel does, at an address, with nothing.
//!
//! Each program in `src/bin` is a profile: all that an adopter of so much of Framewright writes.
//! `cargo xtask sizes` counts its lines, links it, runs it, and says what it needed.
#![no_std]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::panic::Location;
use core::ptr::NonNull;

/// Bytes of memory that the machine has.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes of memory behind it that can come later.
pub const LATER_BYTES: u64 = 128 << 20;
const STACK_WORDS: usize = 64 << 10;
/// What a word of the stack holds that was never used.
const UNUSED: u64 = 0x5aa5_f00f_5aa5_f00f;

#[repr(C, align(0x20_0000))]
struct Memory(UnsafeCell<[u8; ALL_BYTES]>);

// SAFETY: it is only named here; who uses what of it, the profiles' managers decide.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; ALL_BYTES]));

const ALL_BYTES: usize = (MEMORY_BYTES + LATER_BYTES) as usize;
const DESCRIPTORS_BYTES: usize = ALL_BYTES / 4096 * 64;

#[repr(C, align(0x20_0000))]
struct Descriptors(UnsafeCell<[u8; DESCRIPTORS_BYTES]>);

// SAFETY: as above.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors(UnsafeCell::new([0; DESCRIPTORS_BYTES]));

#[repr(C, align(4096))]
struct Stack(UnsafeCell<[u64; STACK_WORDS]>);

// SAFETY: the only thread is on it; what lies below is read and written through raw pointers.
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

/// Where physical memory is seen.
pub fn direct(pa: u64) -> NonNull<u8> {
    // SAFETY: the address of a static plus an offset is not null.
    unsafe { NonNull::new_unchecked(MEMORY.0.get().cast::<u8>().wrapping_add(pa as usize)) }
}

/// Where the descriptors of all frames may lie.
pub fn descriptors() -> NonNull<u8> {
    // SAFETY: the address of a static is not null.
    unsafe { NonNull::new_unchecked(DESCRIPTORS.0.get().cast()) }
}

/// The processor's clock, in whatever its units are.
pub fn now_ns() -> u64 {
    // SAFETY: any processor of 64 bits has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A profile failed at this line.
#[derive(Debug)]
pub struct Failed(u32);

impl Failed {
    /// Here.
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

/// What was not as it should be.
///
/// # Errors
/// It was not.
#[track_caller]
pub const fn check(is_right: bool) -> Result<(), Failed> {
    if is_right { Ok(()) } else { Err(Failed::here()) }
}

/// Runs a profile, writes the bytes of metadata that it says, or the line where it failed, and the
/// bytes of stack that it used, and ends the program.
pub fn run(profile: fn() -> Result<u64, Failed>) -> ! {
    let outcome = core::hint::black_box(profile)();
    let stack = PROFILE_STACK.0.get().cast::<u64>();
    let mut unused = 0;
    // SAFETY: the words are read one by one, and none by a reference; the one that ends the loop is
    // part of this function's frame at the latest.
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
    // SAFETY: `write` to the standard output.
    unsafe { system_call(1, 1, text[at..].as_ptr() as usize, 21 - at) };
}

/// Ends the program.
pub fn exit(status: usize) -> ! {
    // SAFETY: `exit_group`.
    unsafe { system_call(231, status, 0, 0) };
    loop {}
}

/// # Safety
/// Those of the call.
unsafe fn system_call(number: usize, first: usize, second: usize, third: usize) {
    // SAFETY: passed on to the caller; Linux changes rcx and r11.
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

/// Makes a program of a profile.
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
