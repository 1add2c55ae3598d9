//! Notifiers and movers that panic, call back into the manager or interfere with it; and calls that
//! name memory which does not exist.

use crate::add::{add, machine, node};
use crate::common::{Fake, blocks, bring_up_with, check, gib, mib, order, parameters, settled};
use crate::one_page::{Moment, OnePage};
use framewright::manager::{
    AreaName, Budget, Group, HotplugError, HotplugEvent, HotplugNotifier, ReleaseError, Removal,
    Veto,
};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{Grade, MigrateType, Presence};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::{FakeMachine, Owner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK: u64 = 2 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The region of another node's device that lies beyond all addresses does not matter to others.
#[test]
fn devices_may_lie_beyond_all_addresses() {
    for start in [1_u64 << 53, (1 << 53) + (4 << 30), u64::MAX - (1 << 30), 1 << 52] {
        let manager = machine(gib(4, 6), "");
        let region = PhysRange::new(start, start.saturating_add(1 << 30));
        let group = Group { region, node: node(1), unit_bytes: Some(BLOCK) };
        manager.hotplug().register_group(group).expect("the first");
        let added = add(&manager, mib(4096, 4224), 0, Grade::Any);
        assert_eq!(added, Ok(128 << 8), "{start:#x}");
        check(&manager);
        let _ = manager.hotplug().shares_of(region);
        let _ = manager.hotplug().presence_of(start);
    }
    let manager = machine(gib(4, 6), "");
    let region = PhysRange { start: 0, end: u64::MAX };
    let group = Group { region, node: node(0), unit_bytes: Some(BLOCK) };
    manager.hotplug().register_group(group).expect("the first");
    assert!(add(&manager, mib(4096, 4224), 0, Grade::Any).is_ok());
    check(&manager);
}

/// Memory begins at 0, and firmware leaves out its first block.
#[test]
fn the_block_of_frame_0_is_not_added() {
    let machine = FakeMachine::builder().ram(gib(1, 2)).spare(mib(0, 128)).build();
    let manager = bring_up_with(machine, &[], &parameters("pages=none")).expect("bring-up");
    for end in [2, 128] {
        assert_eq!(add(&manager, mib(0, end), 0, Grade::Any), Err(HotplugError::FrameZero));
    }
    assert_eq!(add(&manager, mib(2, 128), 0, Grade::Any), Ok(63 * 512));
    check(&manager);
}

/// A mover that panics when it has to move something.
struct Dies(Mutex<Vec<PfnRange>>);

// SAFETY: nothing is ever moved.
unsafe impl Mover for Dies {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        let own = lock(&self.0).iter().find(|run| run.contains(pfn)).copied();
        own.map_or(Occupant::Unknown, Occupant::Movable)
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        panic!("it dies");
    }

    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        Err(MoveFailed)
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

struct Listens(Mutex<Vec<HotplugEvent>>);

impl HotplugNotifier for Listens {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        lock(&self.0).push(event);
        Ok(())
    }
}

fn with_accepted(accepts: bool) -> Fake {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(mib(4096, 4352)).nodes(2);
    let builder = if accepts { builder.accepts() } else { builder };
    bring_up_with(builder.build(), &[], &parameters("")).expect("bring-up")
}

/// A mover that panics leaves no memory half removed.
#[test]
fn a_mover_that_dies_leaves_nothing_half_gone() {
    for (accepts, some) in [(false, false), (true, false), (false, true), (true, true)] {
        let manager = with_accepted(accepts);
        let all = mib(4096, 4352);
        add(&manager, all, 0, Grade::Any).expect("added");
        let at = Pfn(4200 << 8);
        let page = manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free");
        // A part is offline, so the range is taken in two runs.
        manager.hotplug().offline(mib(4128, 4130), Budget::UNLIMITED).expect("free");
        let before = manager.totals();
        let told: &'static Listens = Box::leak(Box::new(Listens(Mutex::default())));
        manager.hotplug().set_notifier(Some(told));
        let dies = Dies(Mutex::new(vec![page]));
        let died = catch_unwind(AssertUnwindSafe(|| {
            let hotplug = manager.hotplug().by(&dies);
            if some {
                // SAFETY: nothing looks up descriptors.
                let _ = unsafe {
                    hotplug.remove_some(mib(4200, 4204), 4 << 20, 4 << 20, Budget::UNLIMITED)
                };
            } else {
                // SAFETY: as above.
                let _ = unsafe { hotplug.remove(all, Budget::UNLIMITED) };
            }
        }));
        assert!(died.is_err());
        assert!(manager.hotplug().going().is_empty(), "{:?}", manager.hotplug().going());
        check(&manager);
        assert_eq!(manager.totals(), before, "accepts {accepts}, some {some}");
        let events = lock(&told.0).clone();
        if !some {
            assert!(events.contains(&HotplugEvent::CancelOffline(all)), "{events:?}");
        }
        // It can still go.
        manager.give_back(page).expect("ours");
        manager.hotplug().set_notifier(None);
        // SAFETY: as above.
        unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("all is free");
        check(&manager);
    }
}

struct Panics(HotplugEvent);

impl HotplugNotifier for Panics {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        assert_ne!(event, self.0, "it dies");
        Ok(())
    }
}

/// A notifier that panics loses no memory.
#[test]
fn a_notifier_that_dies_costs_nothing() {
    let range = mib(4096, 4224);
    for on in [0, 1] {
        let first = HotplugEvent::AddingFirst(node(1));
        let event = if on == 0 { HotplugEvent::GoingOnline(range) } else { first };
        let manager = machine(mib(4096, 4352), "");
        let before = manager.totals();
        let dies: &'static Panics = Box::leak(Box::new(Panics(event)));
        manager.hotplug().set_notifier(Some(dies));
        let died = catch_unwind(AssertUnwindSafe(|| add(&manager, range, on, Grade::Any)));
        assert!(died.is_err());
        check(&manager);
        assert_eq!(manager.totals(), before);
        manager.hotplug().set_notifier(None);
        add(&manager, range, on, Grade::Any).expect("nothing is there");
    }
}

/// Vacated memory goes back into circulation completely, even if another caller has put part of it
/// back already.
#[test]
fn what_others_put_back_keeps_nothing_out_of_use() {
    let manager: &'static Fake = Box::leak(Box::new(machine(mib(4096, 4224), "")));
    add(manager, mib(4096, 4224), 0, Grade::Any).expect("added");
    let order = Order::PAGE;
    let [page, other] = [4096_u64, 4110].map(|at| {
        let at = Pfn(at << 8);
        manager.allocate_at(at, order, MigrateType::Movable).expect("free")
    });
    let told: &'static Vetoes = &Vetoes;
    manager.hotplug().set_notifier(Some(told));
    let puts_back = |moment| {
        let Moment::Moves(run) = moment else { return };
        let next = BlockNumber(BlockNumber::containing(run.start).0 + 1);
        let put_back = manager.isolation().unisolate(blocks(next.0, 1));
        assert_eq!(put_back, Ok(()), "it was isolated with the page's block");
    };
    let mover = OnePage::new(manager, page, &puts_back);
    let hotplug = manager.hotplug().by(&mover);
    // SAFETY: nothing looks up descriptors.
    let some = unsafe { hotplug.remove_some(mib(4096, 4104), 8 << 20, 8 << 20, Budget::UNLIMITED) };
    assert!(!matches!(some, Ok(Removal::Run(_))), "{some:?}");
    let left = manager.totals().isolated_pages;
    assert_eq!(left, 0, "{some:?}");
    check(manager);
    manager.give_back(other).expect("ours");
    manager.give_back(mover.page()).expect("ours");
}

/// A notifier that makes a reserve area of memory that is about to go, and lets the memory go.
struct Reserves(&'static Fake);

impl HotplugNotifier for Reserves {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        if let HotplugEvent::GoingOffline(range) = event {
            let start = BlockNumber::containing(Pfn::containing(range.start));
            let name = AreaName::new("late").expect("short");
            let _ = self.0.moving().create_area(name, blocks(start.0, 2));
        }
        Ok(())
    }
}

/// Memory that stays because an area was made in it meanwhile is as free as before, whichever debug
/// aids track frees.
#[test]
fn memory_that_stays_for_an_area_is_free() {
    for line in ["", "page_owner=on", "page_owner=on page_poison=1"] {
        let fake = FakeMachine::builder().ram(mib(0, 512)).build();
        let manager = bring_up_with(fake, &[], &parameters(line)).expect("bring-up");
        let manager: &'static Fake = Box::leak(Box::new(manager));
        let range = mib(256, 384);
        // This makes the area's bitmap lie elsewhere.
        let going = blocks(128, 64);
        manager.moving().set_grade(going, Grade::MovableOnly).expect("free");
        let before = settled(manager);
        let told: &'static Reserves = Box::leak(Box::new(Reserves(manager)));
        manager.hotplug().set_notifier(Some(told));
        let gone = manager.hotplug().offline(range, Budget::UNLIMITED);
        assert_eq!(gone, Err(HotplugError::Area(Pfn(256 << 8))), "{line}");
        check(manager);
        // The area's bitmap takes one page.
        assert_eq!(settled(manager).allocated_pages, before.allocated_pages + 1, "{line}");
    }
}

struct Vetoes;

impl HotplugNotifier for Vetoes {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        if matches!(event, HotplugEvent::GoingOffline(_)) { Err(Veto) } else { Ok(()) }
    }
}

struct CallsBack(&'static Fake, Mutex<u32>);

impl HotplugNotifier for CallsBack {
    fn notify(&self, _: HotplugEvent) -> Result<(), Veto> {
        let (hotplug, at) = (self.0.hotplug(), mib(4224, 4352));
        assert_eq!(hotplug.online(at, Grade::Any), Err(HotplugError::Busy));
        assert_eq!(hotplug.offline(at, Budget::UNLIMITED), Err(HotplugError::Busy));
        assert_eq!(add(self.0, at, 0, Grade::Any), Err(HotplugError::Busy));
        let adopted = hotplug.adopt(PfnRange::new(0, 1));
        assert_eq!(adopted, Err(ReleaseError::Busy));
        *lock(&self.1) += 1;
        Ok(())
    }
}

/// A notifier, or an owner that gives up memory for a change, may not wait for the end of that
/// change.
#[test]
fn who_is_told_cannot_wait_for_himself() {
    let manager: &'static Fake = Box::leak(Box::new(machine(mib(4096, 4352), "")));
    let told: &'static CallsBack = Box::leak(Box::new(CallsBack(manager, Mutex::new(0))));
    manager.hotplug().set_notifier(Some(told));
    add(manager, mib(4096, 4224), 0, Grade::Any).expect("added");
    manager.hotplug().offline(mib(4096, 4224), Budget::UNLIMITED).expect("free");
    assert_eq!(*lock(&told.1), 4);
    manager.hotplug().set_notifier(None);
    manager.hotplug().online(mib(4096, 4224), Grade::Any).expect("nobody is at it");
    check(manager);
}

#[test]
fn policies_refuse_nodes_that_there_are_not() {
    let line = "memory_hotplug.online_policy=auto-movable memhp_default_state=online";
    let manager = machine(mib(4096, 4352), line);
    let (range, far) = (mib(4096, 4224), node(63));
    // SAFETY: the machine has this memory and nobody else uses it.
    let wrong = unsafe { manager.hotplug().add_by_policy(range, far) };
    assert_eq!(wrong, Err(HotplugError::NoNode(far)));
    let died = catch_unwind(AssertUnwindSafe(|| {
        manager.hotplug().change_settings(|settings| {
            settings.block_bytes = 0;
            panic!("half way");
        })
    }));
    assert!(died.is_err());
    assert_eq!(manager.hotplug().settings().block_bytes, 128 << 20);
    check(&manager);
}

/// Frames of removed memory, and numbers that are no frames, are refused by every call that frees.
#[test]
fn what_is_no_memory_cannot_be_freed() {
    for large in [false, true] {
        let all = if large { gib(8, 36) } else { mib(4096, 4224) };
        let manager = machine(all, "");
        add(&manager, all, 0, Grade::Any).expect("added");
        let page = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("there");
        manager.give_back_order(page, Order::PAGE).expect("ours");
        // SAFETY: nothing looks up descriptors meanwhile.
        unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("free");
        // SAFETY: it was removed.
        unsafe { manager.platform().unplug(all) };
        let before = manager.totals();
        let mut starts = vec![0, 1, 511, 512, 1 << 40, 1 << 43, 1 << 52, u64::MAX - 512];
        starts.extend([u64::MAX, u64::MAX - 1, u64::MAX - 511, u64::MAX - 1023, 1 << 63]);
        starts.extend([all.start, all.end - BLOCK, all.start + BLOCK].map(|at| at >> 12));
        starts.extend([all.end - 4096, all.end - 8192].map(|at| at >> 12));
        starts.push(page.0);
        for start in starts {
            for level in 0..=18 {
                let wrong = manager.give_back_order(Pfn(start), order(level));
                assert!(wrong.is_err() || start < 1 << 16, "{start:#x} of {level}");
            }
            for pages in [0, 1, 2, 3, 7, 500, 512, 513, 1 << 20, 1 << 50, u64::MAX] {
                let end = Pfn(start.wrapping_add(pages));
                let wrong = manager.give_back(PfnRange { start: Pfn(start), end });
                assert!(wrong.is_err(), "{start:#x} of {pages}");
                let wrong = manager.give_back_pages(Pfn(start), pages);
                assert!(wrong.is_err(), "{start:#x} of {pages}");
            }
            assert!(manager.give_back_bulk(&[Pfn(start)]).is_err());
        }
        assert_eq!(manager.totals(), before);
        check(&manager);
        assert_eq!(manager.hotplug().presence_of(all.start), Presence::Absent);
    }
}
