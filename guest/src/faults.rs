//! Failing on purpose, so that tests can see how the guest fails (`fault=` on the command line).
//!
//! In assembly, because in Rust such accesses mean nothing and the compiler may do with them as it likes.

use crate::image;
use core::arch::asm;
use framewright_x86::cpu::registers;

/// A way to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Writes to address 0, where no page is.
    Null,
    /// Panics.
    Panic,
    /// Pushes until the stack ends.
    Stack,
    /// Writes to the program's constants.
    Constants,
    /// Says nothing any more and never ends.
    Hang,
}

impl Fault {
    /// The fault of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "panic" => Self::Panic,
            "stack" => Self::Stack,
            "rodata" => Self::Constants,
            "hang" => Self::Hang,
            _ => return None,
        })
    }

    /// Fails so; returns if the machine let it pass.
    pub fn raise(self) {
        match self {
            Self::Null => write_zero(0),
            Self::Panic => panic!("asked for by fault=panic"),
            Self::Stack => overflow(),
            Self::Constants => write_zero(image::constants().start),
            Self::Hang => registers::halt(),
        }
    }
}

fn write_zero(address: u64) {
    // SAFETY: the address is one that the page tables forbid to write, so that an exception ends the program here. If they do not, a byte
    // that nothing depends on any more is lost: the caller exits.
    unsafe { asm!("mov byte ptr [{}], 0", in(reg) address, options(nostack)) };
}

fn overflow() -> ! {
    // SAFETY: ends in the page below the stack, which is not mapped; the exception has a stack of its own.
    unsafe { asm!("2: push 0", "jmp 2b", options(noreturn)) };
}
