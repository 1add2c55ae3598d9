//! Frees memory: the shell's two unsafe calls.

use framewright::manager::AreaError;
use framewright::units::PfnRange;
use framewright::{Manager, Platform};

/// A run that the shell owns, and the number of the reserve area that handed it out, if any. An
/// area's run must be freed through the area, which would not learn of it otherwise.
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
/// size. The operator's choice is *unsafe*: the creator of the shell answers for it.
///
/// # Errors
/// [`AreaError::Free`], even if no area is involved, and the errors of an area.
pub(crate) fn give_back<P: Platform>(
    manager: &Manager<P>,
    run: impl Into<Owned>,
) -> Result<(), AreaError> {
    let Owned { range, area } = run.into();
    if let Some(area) = area {
        // SAFETY: the shell allocated the range, keeps each range in one entry, writes to it only
        // until it is freed, and gives it to nobody (invariant 42).
        return unsafe { manager.moving().release_to_area(area.into(), range) };
    }
    // SAFETY: the shell allocated the range, keeps each range in one entry, writes to it only until
    // it is freed, and gives it to nobody; or the range is the operator's, as the creator of the
    // shell guarantees (invariant 42).
    unsafe { manager.free(range) }.map_err(AreaError::Free)
}
