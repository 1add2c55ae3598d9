//! One CPU's view of the tables, as stale as hardware allows.

use super::table::{Entry, Table};
use crate::frames::FrameLedger;
use crate::machine::FakeMachine;
use framewright_workload::vmemmap_space::AccessFault;
use std::collections::HashMap;

/// An entry as it was when it was cached.
#[derive(Clone, Copy)]
struct Cached {
    entry: Entry,
    generation: u64,
}

/// Which access is being translated.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) cpu: u32,
    pub(super) address: usize,
    pub(super) section: u32,
    pub(super) page: u64,
}

/// Everything that a CPU may cache of the tables: large and small translations, and which table a
/// section has. It forgets nothing but in a flush: real ones forget earlier, at no known time, so
/// what works with this works with them.
#[derive(Default)]
pub(super) struct Tlb {
    upper: HashMap<u32, Cached>,
    pages: HashMap<(u32, u64), Cached>,
}

impl Tlb {
    pub(super) fn flush(&mut self) {
        self.upper.clear();
        self.pages.clear();
    }

    /// The page's entry; `upper` is what the section's entry in memory is now, used only when none
    /// is cached.
    pub(super) fn translate(
        &mut self,
        place: Place,
        upper: Entry,
        machine: &FakeMachine,
        ledger: &FrameLedger,
    ) -> Result<Entry, AccessFault> {
        let page = (place.section, place.page);
        if let Some(&cached) = self.pages.get(&page) {
            return check(place, cached, ledger);
        }
        let cached = *self.upper.entry(place.section).or_insert_with(|| cache(upper, ledger));
        if cached.entry.is_large() {
            // The frames of a large mapping were taken at once, so they have one generation.
            let entry = Entry::writable(cached.entry.frame().add(place.page));
            return check(place, Cached { entry, ..cached }, ledger);
        }
        let upper = check(place, cached, ledger)?;
        let entry = Table(upper.frame()).get(machine, place.page);
        assert!(
            entry.is_present(),
            "the table in frame {} has no entry {}",
            upper.frame(),
            place.page
        );
        check(place, *self.pages.entry(page).or_insert_with(|| cache(entry, ledger)), ledger)
    }
}

/// Generation 0 is never given, so an entry that names a free frame from the start is found too.
fn cache(entry: Entry, ledger: &FrameLedger) -> Cached {
    Cached { entry, generation: ledger.generation(entry.frame()).unwrap_or(0) }
}

fn check(place: Place, cached: Cached, ledger: &FrameLedger) -> Result<Entry, AccessFault> {
    let frame = cached.entry.frame();
    if ledger.generation(frame) == Some(cached.generation) {
        return Ok(cached.entry);
    }
    Err(AccessFault::Stale { cpu: place.cpu, address: place.address, frame })
}
