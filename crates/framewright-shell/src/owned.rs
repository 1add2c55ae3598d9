//! Where the shell gives memory back: its one unsafe call.

use framewright::units::PfnRange;
use framewright::zone::FreeError;
use framewright::{Manager, Platform};

/// Frees what a command has: what it allocated itself, what stands under a handle, or what the
/// operator names by address and size. The last is the operator's own *unsafe*: whoever types at
/// the shell of a machine owns the machine.
pub(crate) fn give_back<P: Platform>(
    manager: &Manager<P>,
    range: PfnRange,
) -> Result<(), FreeError> {
    // SAFETY: allocated by the shell, which keeps each range in one place, writes to it only while
    // it has it and hands it to nobody; or the operator says that it is theirs (invariant 42).
    unsafe { manager.free(range) }
}
