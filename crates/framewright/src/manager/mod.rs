//! The manager: bring-up and the front door.

use crate::early::EarlyAllocator;
use crate::firmware::{MemoryMap, Topology};
use crate::parameters::Parameters;
use crate::platform::Platform;
use core::fmt;

/// What bring-up works on.
#[derive(Clone, Copy, Debug)]
pub struct BringUp<'a> {
    /// The memory.
    pub map: MemoryMap<'a>,
    /// The nodes.
    pub topology: &'a Topology<'a>,
    /// The command line.
    pub parameters: &'a Parameters,
    /// `Platform::now_ns` when the adopter began with the intake; bring-up counts its times from there.
    pub started_ns: Option<u64>,
}

/// Why bring-up failed. The early allocator is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BringUpError {
    /// Placeholder.
    OutOfMemory,
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("placeholder")
    }
}

impl core::error::Error for BringUpError {}

/// All memory of a machine.
pub struct Manager<P: Platform> {
    #[expect(dead_code, reason = "placeholder")]
    platform: &'static P,
}

impl<P: Platform> Manager<P> {
    /// Brings all memory up.
    ///
    /// # Errors
    /// See [`BringUpError`].
    pub fn bring_up(_early: &mut EarlyAllocator<P>, _input: &BringUp<'_>) -> Result<Self, BringUpError> {
        unimplemented!()
    }
}
