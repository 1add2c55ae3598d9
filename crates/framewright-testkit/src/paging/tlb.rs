//! One CPU's cached translations, as stale as hardware allows.

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

/// The access to translate.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) cpu: u32,
    pub(super) address: usize,
    pub(super) section: u32,
    pub(super) page: u64,
}

/// Everything of the tables that a CPU may cache: large and small translations, and the table of
/// each section. Only a flush drops entries. Real TLBs also drop entries at other, unknown times,
/// so code that works with this TLB works with real ones.
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

    /// Returns the page's entry. `upper` is the section's entry in memory now, which is used only
    /// if none is cached.
    pub(super) fn translate(
        &mut self,
        access: Access,
        upper: Entry,
        machine: &FakeMachine,
        ledger: &FrameLedger,
    ) -> Result<Entry, AccessFault> {
        let page = (access.section, access.page);
        if let Some(&cached) = self.pages.get(&page) {
            return check(access, cached, ledger);
        }
        let cached = *self.upper.entry(access.section).or_insert_with(|| cache(upper, ledger));
        if cached.entry.is_large() {
            // The frames of a large mapping were taken together, so they have one generation.
            let entry = Entry::writable(cached.entry.frame().add(access.page));
            return check(access, Cached { entry, ..cached }, ledger);
        }
        let upper = check(access, cached, ledger)?;
        let entry = Table(upper.frame()).get(machine, access.page);
        assert!(
            entry.is_present(),
            "the table in frame {} has no entry {}",
            upper.frame(),
            access.page
        );
        check(access, *self.pages.entry(page).or_insert_with(|| cache(entry, ledger)), ledger)
    }
}

/// Caches an entry. Generation 0 is never used, so an entry that names a frame which was never
/// taken is found, too.
fn cache(entry: Entry, ledger: &FrameLedger) -> Cached {
    Cached { entry, generation: ledger.generation(entry.frame()).unwrap_or(0) }
}

fn check(access: Access, cached: Cached, ledger: &FrameLedger) -> Result<Entry, AccessFault> {
    let frame = cached.entry.frame();
    if ledger.generation(frame) == Some(cached.generation) {
        return Ok(cached.entry);
    }
    Err(AccessFault::Stale { cpu: access.cpu, address: access.address, frame })
}
