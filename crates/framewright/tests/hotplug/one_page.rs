//! A mover that owns one page, and interferes when it is asked or told to move that page.

use crate::common::Fake;
use framewright::units::{Pfn, PfnRange};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use std::sync::{Mutex, PoisonError};

/// When the mover interferes.
pub enum Moment {
    /// It is asked what a frame holds.
    Asked,
    /// It is about to move the page from this place.
    Moves(PfnRange),
}

type Meddle<'a> = &'a (dyn Fn(Moment) + Sync);

/// See the module documentation.
pub struct OnePage<'a> {
    manager: &'a Fake,
    page: Mutex<PfnRange>,
    meddle: Meddle<'a>,
}

impl<'a> OnePage<'a> {
    pub fn new(manager: &'a Fake, page: PfnRange, meddle: Meddle<'a>) -> Self {
        Self { manager, page: Mutex::new(page), meddle }
    }

    /// Where the page is now.
    pub fn page(&self) -> PfnRange {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the page is its own, and is copied whole.
unsafe impl Mover for OnePage<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        (self.meddle)(Moment::Asked);
        let own = self.page();
        if own.contains(pfn) { Occupant::Movable(own) } else { Occupant::Unknown }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Ok(MoveToken(0))
    }

    unsafe fn relocate(&self, _: MoveToken, run: PfnRange, to: PfnRange) -> Result<(), MoveFailed> {
        (self.meddle)(Moment::Moves(run));
        crate::copy(self.manager, run, to);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = to;
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}
