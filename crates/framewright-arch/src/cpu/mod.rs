//! The CPU itself: identification, registers, ports, segments, exceptions and interrupts, its
//! interrupt controller, its translations.

pub mod entropy;
pub mod exceptions;
pub mod features;
pub mod interrupts;
pub mod local_apic;
pub mod msr;
pub mod port;
pub mod registers;
pub mod segments;
