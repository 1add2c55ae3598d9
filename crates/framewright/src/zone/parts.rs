//! The parts of one zone: those made at bring-up, then the windows of memory that was added later.

use super::{Zone, ZoneId};
use crate::platform::Platform;
use crate::units::PfnRange;
use core::slice;

/// See the module documentation.
#[derive(Clone, Copy)]
pub struct ZoneParts<'a> {
    id: ZoneId,
    /// The parts made at bring-up, ascending.
    first: &'a [Zone],
    /// The windows of all zones.
    windows: &'a [Zone],
}

impl<'a> ZoneParts<'a> {
    pub(crate) const fn new(id: ZoneId, first: &'a [Zone], windows: &'a [Zone]) -> Self {
        Self { id, first, windows: if cfg!(feature = "hotplug") { windows } else { &[] } }
    }

    /// The zone whose parts these are.
    #[must_use]
    pub const fn id(self) -> ZoneId {
        self.id
    }

    /// Iterates over the parts: those of bring-up ascending, then windows in the order they came.
    pub fn iter(self) -> impl Iterator<Item = &'a Zone> + Clone {
        self.first.iter().chain(self.windows())
    }

    /// The sum of `of` over all parts. Not inlined, so that all callers share one copy.
    #[inline(never)]
    pub(crate) fn sum(self, of: &dyn Fn(&Zone) -> u64) -> u64 {
        self.iter().map(of).sum()
    }

    /// Calls `each` with each part. Not inlined, like [`sum`](Self::sum).
    #[inline(never)]
    pub(crate) fn for_each(self, each: &mut dyn FnMut(&'a Zone)) {
        self.iter().for_each(each);
    }

    /// Runs of parts that follow one another by address: those of bring-up, then each window.
    pub(crate) fn runs(self) -> impl Iterator<Item = &'a [Zone]> + Clone {
        let first = Some(self.first).filter(|parts| !parts.is_empty());
        first.into_iter().chain(self.windows().map(slice::from_ref))
    }

    fn windows(self) -> impl Iterator<Item = &'a Zone> + Clone {
        self.windows.iter().filter(move |zone| zone.id() == self.id)
    }

    /// The parts of bring-up from number `first` on, then those before it, then windows.
    pub(crate) fn in_turn(self, first: usize) -> impl Iterator<Item = &'a Zone> + Clone {
        let (before, from) = self.first.split_at(first.checked_rem(self.first.len()).unwrap_or(0));
        from.iter().chain(before).chain(self.windows())
    }

    /// [`in_turn`](Self::in_turn) one part at a time: returns the part at `place` and advances
    /// `place`.
    pub(crate) fn turn(self, first: usize, place: &mut usize) -> Option<&'a Zone> {
        let count = self.first.len();
        if *place < count {
            *place += 1;
            return self.first.get((first + *place - 1) % count);
        }
        while cfg!(feature = "hotplug")
            && let Some(window) = self.windows.get(*place - count)
        {
            *place += 1;
            if window.id() == self.id {
                return Some(window);
            }
        }
        None
    }

    /// The frames that each part covers: a window, from the first to the last of its blocks that
    /// are memory; any other part, its span.
    pub(crate) fn spans<P: Platform>(
        self,
        platform: &'static P,
    ) -> impl Iterator<Item = PfnRange> + use<'a, P> {
        let first = self.first.iter().map(|part| part.present_span(platform, false));
        first.chain(self.windows().map(|part| part.present_span(platform, true)))
    }

    /// The number of parts.
    #[must_use]
    pub fn len(self) -> usize {
        self.first.len() + self.windows().count()
    }

    /// Whether the zone has no part.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.first.is_empty() && self.windows().next().is_none()
    }

    /// The first part.
    #[must_use]
    pub fn first(self) -> Option<&'a Zone> {
        self.iter().next()
    }
}
