//! Which blocks are out of circulation.

use crate::units::PfnRange;

/// What is isolated, over all zones.
pub(crate) struct Isolations {
    /// Blocks with managed frames that are isolated.
    pub(crate) blocks: u64,
    /// From the first to the last since there was none.
    pub(crate) hull: PfnRange,
}

impl Isolations {
    pub(crate) const NONE: Self = Self { blocks: 0, hull: PfnRange::new(0, 0) };
}

/// The part of `span` that caches keep.
pub(crate) fn kept(span: PfnRange, hull: PfnRange) -> PfnRange {
    if hull.is_empty() {
        return span;
    }
    let below = PfnRange::new(span.start.0, span.end.0.min(hull.start.0));
    let above = PfnRange::new(span.start.0.max(hull.end.0), span.end.0);
    if below.pages() > above.pages() { below } else { above }
}
