//! Who panics while a call has blocks isolated, where that does not end everything: they are in
//! circulation again.

use crate::common::{Fake, blocks, bring_up_with, check, mib, with_pages};
use framewright::manager::Budget;
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::{FakeMachine, Owner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

fn up(to_mib: u64) -> &'static Fake {
    let machine = FakeMachine::builder().ram(mib(0, to_mib)).build();
    Box::leak(Box::new(bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up")))
}

/// Says that a run can be moved, and while its move begins another call is told of an obstacle, as
/// another thread would be.
struct Tells {
    manager: &'static Fake,
    run: PfnRange,
    told: Mutex<Option<bool>>,
}

// SAFETY: nothing is moved.
unsafe impl Mover for Tells {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if self.run.contains(pfn) { Occupant::Movable(self.run) } else { Occupant::Unknown }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        let mut name = |_| panic!("told");
        let vacate =
            || self.manager.moving().vacate_naming(blocks(20, 1), Budget::runs(1), &mut name);
        let told = catch_unwind(AssertUnwindSafe(vacate)).is_err();
        *self.told.lock().unwrap() = Some(told);
        Err(NotNow::Pinned)
    }

    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        Err(MoveFailed)
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

/// Others move memory, so that nothing is told at first, and then nothing is left of the budget.
#[test]
fn who_dies_when_he_is_told_late_leaves_nothing_isolated() {
    let manager = up(64);
    let [run, in_the_way] = [24, 20].map(|block| {
        let at = Pfn(block * 512 + 7);
        manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free")
    });
    let tells = Tells { manager, run, told: Mutex::default() };
    let moving = manager.moving().by(&tells);
    moving.vacate(blocks(24, 1), Budget::UNLIMITED).expect_err("pinned");
    assert_eq!(*tells.told.lock().unwrap(), Some(true), "it was told");
    assert_eq!(manager.totals().isolated_pages, 0);
    [run, in_the_way].into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}
