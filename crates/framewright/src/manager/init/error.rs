//! Why bring-up failed, and what the caller gets back then.

use crate::manager::init::check::PlatformFault;
use crate::memblock::{Memblock, MemblockError};
use crate::platform::Platform;
use crate::units::NodeId;
use core::fmt;

/// Why bring-up failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BringUpError {
    /// There is not enough free memory for the manager's own tables.
    NoRoomForTables {
        /// What did not fit.
        what: &'static str,
        /// Its size.
        size_bytes: u64,
        /// The node that it was wanted on.
        node: NodeId,
        /// The memblock allocator's error.
        cause: MemblockError,
    },
    /// Nothing was left to hand out once the tables were placed.
    NothingToManage,
    /// The platform breaks its contract.
    Platform(PlatformFault),
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoomForTables { what, size_bytes, node, cause } => {
                write!(
                    f,
                    "too little memory: no room for {what} ({size_bytes} bytes, near node {node}): \
                     {cause}"
                )
            }
            Self::NothingToManage => {
                f.write_str("too little memory: the tables left no free frame")
            }
            Self::Platform(fault) => write!(f, "the platform breaks its contract: {fault}"),
        }
    }
}

impl core::error::Error for BringUpError {}

/// Bring-up failed; the memblock allocator is returned with all the memory that it had. It is small
/// (see [`Memblock`]), so returning it is no burden for a small stack. A caller that has no use for
/// it can convert this into a [`BringUpError`]; `?` does so in functions that return one.
pub struct BringUpFailed<'a, P: Platform> {
    /// The cause.
    pub error: BringUpError,
    /// The memblock allocator as it was before, except that it follows what the command line says
    /// about movable nodes, the place of tables and mirrored memory (without `kernelcore=mirror` no
    /// memory is marked as mirrored any more), and that pieces of unaccepted memory which do not
    /// fill their unit are accepted.
    pub early: Memblock<'a, P>,
}

impl<P: Platform> fmt::Debug for BringUpFailed<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<P: Platform> fmt::Display for BringUpFailed<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<P: Platform> core::error::Error for BringUpFailed<'_, P> {}

impl<P: Platform> From<BringUpFailed<'_, P>> for BringUpError {
    fn from(failed: BringUpFailed<'_, P>) -> Self {
        failed.error
    }
}
