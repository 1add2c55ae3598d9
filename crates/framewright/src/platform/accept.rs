//! Memory that a confidential guest has to accept before its first use: see [`AcceptMemory`].

use crate::units::PfnRange;
use core::fmt;

/// Accepts memory. TDX and SEV-SNP guests get most of their memory in a state in which the first
/// access ends the guest, and have to accept it range by range (Linux:
/// `drivers/firmware/efi/unaccepted_memory.c` and `arch_accept_memory`).
///
/// The manager accepts each frame once, with three exceptions: a frame that was removed and added
/// again, if the host [`forgets`](Self::forgets); a block in which accepting a frame failed and
/// which was removed and added again (it is then accepted as a whole, including its first frames
/// that are accepted already, but not if it never left the guest:
/// [`put_back`](crate::manager::Hotplug::put_back)); and memory that could not be added. It does
/// not know what the owners of reserved memory accept, and itself accepts reserved memory that
/// shares 2 MiB with tables of bring-up or lies right behind them: where accepting twice is an
/// error, the implementer keeps a record, as [`EfiAccept`](crate::firmware::EfiAccept) does.
/// Ranges are aligned to 2 MiB and at most 1 GiB long, except for pieces at the borders of what
/// firmware reported, which can be as small as a frame. Smaller or larger steps are up to the
/// implementer.
///
/// Contexts: any in which the manager is called, interrupt handlers included, with no lock held,
/// and pinned. Several CPUs may call at once, for ranges that have no frame in common.
///
/// # Safety
/// When [`accept`](Self::accept) reports frames as accepted, they are memory as
/// [`Platform`](super::Platform) describes it, and stay so.
pub unsafe trait AcceptMemory: Sync {
    /// Accepts all frames of `range`, which is not empty. None was accepted before, but for the
    /// exceptions that the [trait](Self) names.
    ///
    /// # Errors
    /// [`AcceptError`] says how many frames were accepted. The manager does not ask for the next
    /// frame again.
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError>;

    /// Whether memory loses its acceptance while the host has it. If so, memory that was removed
    /// and is added again, and memory that was reported to the host as free
    /// ([`reporting`](crate::reporting)), is accepted anew before its next use. Otherwise such
    /// memory stays as it was. Memory that is added for the first time is always accepted. The
    /// answer never changes.
    fn forgets(&self) -> bool {
        false
    }

    /// Whether the owner of a page may read past its end, as Linux does (`load_unaligned_zeropad`).
    /// If so, the manager accepts the next block before it hands out the last page of a block.
    /// Memory that is reserved and not accepted is its owner's to accept; that owner also reserves
    /// the page before it.
    fn reads_past_pages(&self) -> bool {
        true
    }
}

/// Part of a range could not be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptError {
    /// How many frames from the start of the range are accepted. Accepting the next one failed, and
    /// those after it were not tried.
    pub accepted_pages: u64,
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory could not be accepted after {} pages", self.accepted_pages)
    }
}

impl core::error::Error for AcceptError {}
