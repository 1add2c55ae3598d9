//! Fails on purpose, so that tests can see how the guest fails (`fault=` on the command line).
//!
//! Written in assembly, because such accesses are undefined behaviour in Rust.

use crate::accept;
use crate::console::log;
use crate::exceptions;
use crate::exit::{Ending, exit};
use crate::image;
use crate::platform::{DIRECT_MAP, GuestPlatform};
use crate::smp;
use core::arch::asm;
use framewright::Manager;
use framewright::units::Order;
use framewright::zone::MigrateType;
use framewright_arch::x86_64::registers;

/// A way to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Writes to address 0, where no page is mapped.
    Null,
    /// Panics.
    Panic,
    /// Pushes until the stack overflows.
    Stack,
    /// Writes to the program's constants.
    Constants,
    /// Writes to data that only boot needed and that is released.
    Released,
    /// Frees a page twice.
    DoubleFree,
    /// Writes to memory that is not accepted yet.
    Unaccepted,
    /// Hangs without a message.
    Hang,
}

impl Fault {
    /// The fault with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "panic" => Self::Panic,
            "stack" => Self::Stack,
            "readonly" | "rodata" => Self::Constants,
            "released" => Self::Released,
            "double-free" => Self::DoubleFree,
            "unaccepted" => Self::Unaccepted,
            "hang" => Self::Hang,
            _ => return None,
        })
    }

    /// Fails in this way on this CPU. Returns if the machine does not notice.
    pub fn raise(self, manager: &Manager<GuestPlatform>) {
        match self {
            Self::Null => write_zero(0),
            Self::Panic => panic!("requested by fault=panic"),
            Self::Stack => overflow(),
            Self::Constants => write_zero(image::constants().start),
            Self::Released => write_zero(image::init().start),
            Self::DoubleFree => free_twice(manager),
            Self::Unaccepted => match accept::highest_unaccepted() {
                // Write in the middle of the unit.
                Some(unit) => write_zero(DIRECT_MAP + unit.start + unit.size() / 2 + 0x123),
                None => log!("Framewright: all memory is accepted"),
            },
            Self::Hang => registers::halt(),
        }
    }
}

fn write_zero(address: u64) {
    // SAFETY: the page tables forbid writing to this address, so an exception ends the program
    // here. If they do not, only a byte that nothing depends on any more is lost: the caller exits.
    unsafe { asm!("mov byte ptr [{}], 0", in(reg) address, options(nostack)) };
}

fn overflow() -> ! {
    // SAFETY: the pushes end in the page below the stack, which is not mapped. The exception has a
    // stack of its own.
    unsafe { asm!("2: push 0", "jmp 2b", options(noreturn)) };
}

fn free_twice(manager: &Manager<GuestPlatform>) {
    let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Unmovable) else { return };
    // SAFETY: allocated just now (invariant 42).
    let first = unsafe { manager.free_order(page, Order::PAGE) };
    // A CPU's cache is checked when it is drained, so the drain finds the second free at the
    // latest. SAFETY: none: this is the error that must be found, on a machine that ends with it.
    // The page is in this CPU's cache, and nobody else allocates.
    let second =
        unsafe { manager.free_order(page, Order::PAGE) }.and_then(|()| manager.drain().map(drop));
    if let (Ok(()), Err(error)) = (first, second) {
        exceptions::fail();
        log!("Double free of the frame at {:#x} on CPU {}: {error}", page.address(), smp::index());
        exit(Ending::Crash)
    }
}
