//! Unaccepted memory beside memory that not every request may have.

use super::unaccepted::{BLOCK, check_all};
use crate::common::{bring_up_with, check, mib, parameters, unmovable};
use framewright::firmware::MemoryKind;
use framewright::units::Order;
use framewright::zone::Grade;
use framewright_testkit::{FakeMachine, Owner};

/// Accepted memory of a reserve area is of no use to unmovable requests: they accept up to the mark
/// all the same, in larger and larger steps.
#[test]
fn memory_out_of_reach_does_not_stand_in_for_accepted_memory() {
    let unaccepted = mib(4288, 8192);
    let machine = FakeMachine::builder()
        .ram(mib(0, 512))
        .ram(mib(4096, 4288))
        .memory(unaccepted, MemoryKind::Unaccepted)
        .accepts()
        .build();
    let manager = bring_up_with(machine, &[], &parameters("cma=64M@4G-4288M")).expect("bring-up");
    let normal = manager.zones().last().expect("a zone");
    let promo = normal.watermarks().promo_pages;
    assert!(normal.free_pages_of(Grade::Removable) > promo, "more than the mark is accepted");
    let calls = || machine.accept().calls().len();
    let before = calls();
    let take = || manager.allocate(&unmovable(Order::PAGE)).expect("there is memory");
    let mut held = Vec::new();
    while calls() == before {
        held.push(take());
    }
    held.extend((0..30_000).map(|_| take()));
    assert!(normal.free_pages_of(Grade::Removable) > promo, "and nobody has it");
    let calls = calls() - before;
    assert!(calls < 45, "{calls} calls");
    let free = normal.free_pages_of(Grade::Any);
    assert!(free < promo + 16 * BLOCK, "{free} pages are free, the mark is {promo}");
    check_all(&manager, unaccepted);
    held.into_iter().for_each(|range| manager.give_back(range).expect("ours"));
    check(&manager);
}
