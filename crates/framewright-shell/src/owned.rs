//! Where the shell gives memory back: its one unsafe call.

use framewright::units::PfnRange;
use framewright::zone::FreeError;
use framewright::{Manager, Platform};

/// Frees what a command allocated, what a handle holds, or what the operator names by address and
/// size. The last is the operator's own *unsafe*, for whom whoever made the shell answers.
pub(crate) fn give_back<P: Platform>(
    manager: &Manager<P>,
    range: PfnRange,
) -> Result<(), FreeError> {
    // SAFETY: allocated by the shell, which keeps each range in one entry, writes to it only until
    // it is freed and gives it to nobody; or it is the operator's,
    // as whoever made the shell says (invariant 42).
    unsafe { manager.free(range) }
}
