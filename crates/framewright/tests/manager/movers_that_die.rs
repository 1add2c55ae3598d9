//! Movers and hooks that panic while a call has blocks isolated, on systems that survive a panic:
//! the blocks are put back into circulation, and what they were to become is forgotten.

use crate::common::{Fake, blocks, bring_up_with, check, filled, mib, with_pages};
use framewright::manager::{AreaName, Budget};
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Reclaim, Shortage};
use framewright_testkit::workload::Habits;
use framewright_testkit::{FakeMachine, Owner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

fn up(to_mib: u64) -> &'static Fake {
    let machine = FakeMachine::builder().ram(mib(0, to_mib)).build();
    Box::leak(Box::new(bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up")))
}

/// Making the area panics, and succeeds once the mover or hook no longer dies.
fn area_is_made_once_all_live(manager: &Fake, range: BlockRange, revive: impl FnOnce()) {
    let name = AreaName::new("area").expect("a name");
    let create = || manager.moving().create_area(name, range);
    assert!(catch_unwind(AssertUnwindSafe(create)).is_err(), "it was asked");
    assert_eq!(manager.totals().isolated_pages, 0);
    revive();
    // The place belongs to no area.
    manager.moving().set_grade(range, Grade::MovableOnly).expect("of no area");
    manager.moving().set_grade(range, Grade::Any).expect("of no area");
    assert_eq!(manager.moving().area_named("area"), None);
    let number = create().expect("nobody has the name or the place");
    assert_eq!(manager.moving().area_named("area"), Some(number));
    assert_eq!(manager.totals().isolated_pages, 0);
    check(manager);
}

/// The bitmap of the area needs more than a page, and memory has to be moved to make room for it.
#[test]
fn an_area_whose_bitmap_was_to_be_made_room_for_is_forgotten() {
    let manager = up(512);
    let range = blocks(64, 128);
    manager.isolation().isolate(range).expect("free");
    let handles = filled(manager, 1 << 17, |pfn| pfn % 2 == 0);
    manager.isolation().unisolate(range).expect("isolated");
    manager.moving().set_mover(Some(handles));
    handles.set_habits(Habits { die_from: 1, ..Habits::default() });
    area_is_made_once_all_live(manager, range, || handles.set_habits(Habits::default()));
}

#[test]
fn an_area_whose_bitmap_was_to_be_reclaimed_for_is_forgotten() {
    struct Dies;
    impl Reclaim for Dies {
        fn reclaim(&self, _: &Shortage) -> u64 {
            panic!("the hook dies")
        }
    }
    let manager = up(64);
    let range = blocks(16, 4);
    manager.isolation().isolate(range).expect("free");
    let handles = filled(manager, 1 << 17, |_| true);
    manager.isolation().unisolate(range).expect("isolated");
    manager.pressure().set_reclaim(Some(&Dies));
    area_is_made_once_all_live(manager, range, || {
        manager.pressure().set_reclaim(None);
        for handle in handles.held().take(1024).collect::<Vec<_>>() {
            handles.free(handle).expect("held");
        }
    });
}

/// Says that a run can be moved. While the move begins, it makes another call that is told of an
/// obstacle, as another thread could.
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

/// The outer call is moving memory, so that the inner call is not told at first; when it is told,
/// none of its budget is left.
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
