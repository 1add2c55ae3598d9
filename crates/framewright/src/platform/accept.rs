//! Memory that a confidential guest has to accept before its first use. See [`AcceptMemory`].

use crate::units::PfnRange;
use core::fmt;

/// Accepts memory: TDX and SEV-SNP guests get most of theirs in a state in which the first touch
/// ends the guest, and ask for it range by range (Linux: `drivers/firmware/efi/unaccepted_memory.c`
/// and `arch_accept_memory`).
///
/// Each frame is asked for once, unless it went and came back ([`forgets`](Self::forgets)); or its
/// block, in which a frame could not be accepted, did, which is then asked for whole, its first
/// frames that are accepted included, but not where it never left
/// ([`put_back`](crate::manager::Hotplug::put_back)); or adding it failed; in ranges that are
/// aligned to 2 MiB and up to 1 GiB, but for pieces at the borders of what firmware reported, which
/// are as small as a frame. Smaller or larger steps are the implementer's affair.
///
/// Contexts: any in which the manager is called, interrupt handlers included, without any lock, and
/// pinned. Several CPUs at once, for ranges that have no frame in common.
///
/// # Safety
/// When [`accept`](Self::accept) says that frames are accepted they are memory as
/// [`Platform`](super::Platform) describes it, and stay so.
pub unsafe trait AcceptMemory: Sync {
    /// Accepts all frames of `range`, which is not empty and of which none was accepted before.
    ///
    /// # Errors
    /// [`AcceptError`] says how far it came. Nobody asks for the frame after that again.
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError>;

    /// Whether the host takes acceptance away from memory that it has meanwhile: memory that was
    /// removed and is added again, and what was reported to it as free
    /// ([`reporting`](crate::reporting)), is accepted anew before its next use then. Otherwise it
    /// is as it was. Memory that comes for the first time is always accepted. Always the same.
    fn forgets(&self) -> bool {
        false
    }

    /// Whether who has a page may read past its end, as Linux does (`load_unaligned_zeropad`): then
    /// the block behind a block is accepted before the last page of that is handed out. Memory that
    /// is reserved and not accepted is its owner's to accept: he reserves the page before it, too.
    fn reads_past_pages(&self) -> bool {
        true
    }
}

/// Not all of a range could be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptError {
    /// Frames from the start of the range on that are accepted. The next one could not be, those
    /// after it were not tried.
    pub accepted_pages: u64,
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory could not be accepted after {} pages", self.accepted_pages)
    }
}

impl core::error::Error for AcceptError {}
