//! The CPU itself: identification, registers, ports, segments and exceptions.

pub mod exceptions;
pub mod features;
pub mod port;
pub mod registers;
pub mod segments;
