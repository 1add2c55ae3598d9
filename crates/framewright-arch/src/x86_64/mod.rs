//! The processor: identification, registers, ports, segments, exceptions and interrupts, its
//! interrupt controller, its page-table entries and its clocks; and two things that come with a PC:
//! the PVH boot protocol and the serial port.

pub mod clock;
pub mod entropy;
pub(crate) mod entry;
pub mod exceptions;
pub mod features;
pub mod interrupts;
pub mod local_apic;
pub mod msr;
pub mod port;
pub mod pvh;
pub mod registers;
pub mod segments;
pub mod serial;
pub(crate) mod tlb;
