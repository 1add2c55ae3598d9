//! Requests for migrate types that no memory is kept for: every allocation path refuses them and
//! changes nothing.

use crate::common::{bring_up_with, gib, order, parameters};
use framewright::units::Pfn;
use framewright::zone::MigrateType;
use framewright::{AllocateError, Request};
use framewright_testkit::{FakeMachine, FakeVmemmap};

#[test]
fn a_refused_request_brings_no_withheld_memory_up() {
    let machine = FakeMachine::builder().ram(gib(0, 4)).build();
    FakeVmemmap::install_with(machine, false, false);
    let manager =
        bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("bring-up");
    let before = manager.totals();
    assert_ne!(before.deferred_pages, 0);
    for kind in [MigrateType::Isolate, MigrateType::Cma, MigrateType::MovableOnly] {
        let refused = AllocateError::BadType(kind);
        for order in (0..=18).map(order) {
            let request = Request { migrate_type: kind, ..Request::new(order) };
            assert_eq!(manager.allocate_order(order, kind), Err(refused));
            assert_eq!(manager.allocate_at(Pfn(1 << 18), order, kind), Err(refused));
            assert_eq!(manager.allocate(&request), Err(refused));
            assert_eq!(manager.allocate_bulk(&request, &mut [Pfn(0); 4]), Err(refused));
            assert_eq!(manager.totals(), before, "{order:?} of {kind:?}");
        }
    }
}
