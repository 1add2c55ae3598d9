//! Which blocks are out of circulation.

use crate::units::PfnRange;

/// The isolated blocks of all zones.
pub(crate) struct Isolations {
    /// How many blocks with managed frames are isolated.
    pub(crate) blocks: u64,
    /// A range that covers all blocks that were isolated since there was last none.
    pub(crate) hull: PfnRange,
}

impl Isolations {
    pub(crate) const NONE: Self = Self { blocks: 0, hull: PfnRange::new(0, 0) };
}

/// Returns the part of `span` whose frames CPU caches may keep: the larger part on one side of
/// `hull`.
pub(crate) fn kept(span: PfnRange, hull: PfnRange) -> PfnRange {
    if hull.is_empty() {
        return span;
    }
    let below = PfnRange::new(span.start.0, span.end.0.min(hull.start.0));
    let above = PfnRange::new(span.start.0.max(hull.end.0), span.end.0);
    if below.pages() > above.pages() { below } else { above }
}
