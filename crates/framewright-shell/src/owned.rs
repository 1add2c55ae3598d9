//! Where the shell gives memory back: its two unsafe calls.

use framewright::manager::AreaError;
use framewright::units::PfnRange;
use framewright::{Manager, Platform};

/// A run that the shell has, and the number of the reserve area that handed it out: an area learns
/// of what comes back through it alone.
#[derive(Clone, Copy)]
pub(crate) struct Owned {
    pub range: PfnRange,
    pub area: Option<u8>,
}

impl From<PfnRange> for Owned {
    fn from(range: PfnRange) -> Self {
        Self { range, area: None }
    }
}

/// Frees what a command allocated, what a handle holds, or what the operator names by address and
/// size. The last is the operator's own *unsafe*, for whom whoever made the shell answers.
///
/// # Errors
/// [`AreaError::Free`], also where no area has to do with it; those of an area.
pub(crate) fn give_back<P: Platform>(
    manager: &Manager<P>,
    run: impl Into<Owned>,
) -> Result<(), AreaError> {
    let Owned { range, area } = run.into();
    if let Some(area) = area {
        // SAFETY: allocated by the shell, which keeps each range in one entry, writes to it only
        // until it is freed and gives it to nobody (invariant 42).
        return unsafe { manager.moving().release_to_area(area.into(), range) };
    }
    // SAFETY: allocated by the shell, which keeps each range in one entry, writes to it only until
    // it is freed and gives it to nobody; or it is the operator's,
    // as whoever made the shell says (invariant 42).
    unsafe { manager.free(range) }.map_err(AreaError::Free)
}
