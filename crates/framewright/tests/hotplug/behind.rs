//! Memory that is offline, or about to go, right behind memory that comes up. Accesses may read
//! past the end of the memory that comes up, so the memory behind it is accepted while it is
//! offline.

use crate::add::{add, node};
use crate::common::{Fake, bring_up_with, check, mib, parameters, settled};
use framewright::manager::{Budget, HotplugError};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeAccept, FakeMachine, Owner};
use std::sync::Mutex;
use std::thread;

const BLOCK: u64 = 2 << 20;

fn machine(spare: PhysRange) -> (&'static FakeMachine, Fake, &'static FakeAccept) {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(spare).nodes(2).cpus(2).accepts();
    let machine = builder.build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    (machine, manager, machine.accept())
}

fn add_offline(manager: &Fake, range: PhysRange) {
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add_offline(range, node(0)) }.expect("nothing is there");
}

/// Writes to all free memory.
fn use_everything(manager: &Fake) {
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
        crate::fill(manager, PhysRange::with_size(page.address(), 4096), 7);
        held.push(page);
    }
    for page in held {
        manager.give_back_order(page, Order::PAGE).expect("ours");
    }
    check(manager);
}

#[test]
fn the_end_of_a_zone_that_waits_for_another_holds_nothing_else_up() {
    let (first, second) = (mib(4992, 5120), mib(5120, 5248));
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(mib(4992, 5248));
    let machine = builder.nodes(2).cpus(2).accepts().build();
    let manager =
        bring_up_with(machine, &[], &parameters("accept_memory=background")).expect("bring-up");
    add(&manager, first, 0, Grade::Any).expect("added");
    add(&manager, second, 1, Grade::Any).expect("added");
    let (device, held) = (machine.accept(), first_block(second));
    device.hold_at(held.start);
    thread::scope(|scope| {
        let (place, order) = (held.start, Order::BLOCK);
        let other = scope.spawn({
            let manager = &manager;
            move || manager.allocate_at(place, order, MigrateType::Movable)
        });
        while !device.calls().contains(&held) {
            thread::yield_now();
        }
        let mut acceptor = manager.acceptance().acceptor();
        for _ in 0..256 {
            acceptor.poll(0);
        }
        let accepted_pages = device.accepted_pages();
        device.let_go();
        // All memory of both zones except the block that the device holds up.
        assert_eq!(accepted_pages, (256 << 8) - PAGES_PER_BLOCK);
        let taken = other.join().expect("no panic").expect("nobody's");
        manager.give_back(taken).expect("ours");
    });
    manager.acceptance().accept_all(&NoHelpers);
    assert_eq!(device.accepted_pages(), 256 << 8);
    use_everything(&manager);
}

fn first_block(range: PhysRange) -> PfnRange {
    PhysRange::with_size(range.start, BLOCK).whole_frames()
}

#[test]
fn what_is_offline_is_accepted_before_it_can_be_read() {
    let (first, second) = (mib(4096, 4160), mib(4160, 4224));
    for is_first in [true, false] {
        let (_, manager, device) = machine(mib(4096, 4224));
        if is_first {
            add(&manager, first, 0, Grade::Any).expect("added");
            use_everything(&manager);
            add_offline(&manager, second);
        } else {
            add_offline(&manager, second);
            add(&manager, first, 0, Grade::Any).expect("added");
            use_everything(&manager);
        }
        assert!(device.calls().contains(&first_block(second)));
        assert_eq!(device.accepted_pages(), first.whole_frames().pages() + PAGES_PER_BLOCK);
        check(&manager);
        // The rest is accepted when it is handed out. The range goes and comes back.
        for _ in 0..2 {
            manager.hotplug().online(second, Grade::Any).expect("offline");
            check(&manager);
            use_everything(&manager);
            assert_eq!(device.accepted_pages(), 128 << 8);
            manager.hotplug().offline(second, Budget::UNLIMITED).expect("free");
        }
        assert_eq!(settled(&manager).unaccepted_pages, 0);
    }
}

#[test]
fn what_cannot_be_accepted_where_it_is_costs_the_block_before_it() {
    let (first, second) = (mib(4096, 4160), mib(4160, 4224));
    let (_, manager, device) = machine(mib(4096, 4224));
    add_offline(&manager, second);
    device.fail_at(first_block(second).start);
    add(&manager, first, 0, Grade::Any).expect("added");
    manager.acceptance().accept_all(&NoHelpers);
    check(&manager);
    assert_eq!(manager.acceptance().lost_pages(), PAGES_PER_BLOCK);
    use_everything(&manager);
}

#[test]
fn accepting_everything_ends_where_the_next_block_is_offline() {
    let (first, second) = (mib(4096, 4160), mib(4160, 4224));
    let (_, manager, device) = machine(mib(4096, 4224));
    add(&manager, mib(4096, 4224), 0, Grade::Any).expect("added");
    // The last block of the first half waits for the block behind it, which goes offline.
    let last = Pfn::containing(first.end - BLOCK);
    let before = Pfn(last.0 - PAGES_PER_BLOCK);
    let taken = manager.allocate_at(before, Order::BLOCK, MigrateType::Movable).expect("nobody's");
    manager.hotplug().offline(second, Budget::UNLIMITED).expect("free");
    manager.acceptance().accept_all(&NoHelpers);
    assert_eq!(manager.acceptance().unaccepted_pages(), 0);
    assert_eq!(device.accepted_pages(), first.whole_frames().pages() + PAGES_PER_BLOCK);
    manager.give_back(taken).expect("ours");
    check(&manager);
    manager.hotplug().online(second, Grade::Any).expect("offline");
    use_everything(&manager);
    assert_eq!(device.accepted_pages(), 128 << 8);
}

/// A mover that owns one page, and allocates the block before the range that goes when that page is
/// to be moved.
struct Interferer {
    machine: &'static FakeMachine,
    manager: &'static Fake,
    page: Mutex<Pfn>,
    wants: Pfn,
    taken: Mutex<Option<PfnRange>>,
    moves: bool,
}

// SAFETY: what `relocate` names is a page of this mover, and is copied whole.
unsafe impl Mover for Interferer {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if *self.page.lock().expect("alive") == pfn {
            Occupant::Movable(PfnRange::new(pfn.0, pfn.0 + 1))
        } else {
            Occupant::Unknown
        }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                self.machine.run_on(1, || {
                    self.manager.allocate_at(self.wants, Order::BLOCK, MigrateType::Movable)
                })
            });
            let run = other.join().expect("alive").expect("nobody has it");
            crate::fill(self.manager, run.to_phys(), 9);
            *self.taken.lock().expect("alive") = Some(run);
        });
        if self.moves { Ok(MoveToken(0)) } else { Err(NotNow::Pinned) }
    }

    unsafe fn relocate(&self, _: MoveToken, run: PfnRange, to: PfnRange) -> Result<(), MoveFailed> {
        crate::copy(self.manager, run, to);
        *self.page.lock().expect("alive") = to.start;
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn what_goes_is_accepted_before_it_can_be_read() {
    for moves in [true, false] {
        let (first, second) = (mib(4096, 4160), mib(4160, 4224));
        let (machine, manager, device) = machine(mib(4096, 4224));
        let manager: &'static Fake = Box::leak(Box::new(manager));
        add(manager, mib(4096, 4224), 0, Grade::Any).expect("added");
        let at = Pfn::containing(second.start + (16 << 20));
        let page = manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("nobody's");
        let mover: &'static Interferer = Box::leak(Box::new(Interferer {
            machine,
            manager,
            page: Mutex::new(page.start),
            wants: Pfn::containing(first.end - BLOCK),
            taken: Mutex::default(),
            moves,
        }));
        // SAFETY: nothing looks up descriptors by number.
        let removed = unsafe { manager.hotplug().by(mover).remove(second, Budget::UNLIMITED) };
        assert_eq!(removed.is_ok(), moves, "{removed:?}");
        assert!(moves || matches!(removed, Err(HotplugError::Range(_))), "{removed:?}");
        check(manager);
        let calls = device.calls();
        assert_eq!(calls.iter().filter(|&&call| call == first_block(second)).count(), 1);
        if moves {
            add(manager, second, 0, Grade::Any).expect("gone");
        }
        let held = *mover.page.lock().expect("alive");
        manager.give_back_order(held, Order::PAGE).expect("ours");
        let taken = mover.taken.lock().expect("alive").take().expect("it was asked");
        manager.give_back(taken).expect("ours");
        use_everything(manager);
        assert_eq!(device.accepted_pages(), 128 << 8);
    }
}

/// Memory lost beside a block that failed goes like any other memory, however often it comes and
/// goes.
#[test]
fn what_is_lost_for_its_neighbour_can_go() {
    for way in 0..2 {
        let (_, manager, device) = machine(mib(4096, 4160));
        let before = settled(&manager);
        let all = mib(4096, 4160);
        add(&manager, all, 0, Grade::Any).expect("added");
        device.fail_at(Pfn::containing(all.start + 8 * BLOCK + 4096));
        manager.acceptance().accept_all(&NoHelpers);
        for round in 0..3 {
            manager.hotplug().offline(all, Budget::UNLIMITED).expect("free");
            check(&manager);
            if way == 0 {
                manager.hotplug().online(all, Grade::Any).expect("offline");
            } else {
                let (low, high) = (mib(4096, 4112), mib(4112, 4160));
                manager.hotplug().online(low, Grade::Any).expect("offline");
                manager.hotplug().online(high, Grade::Any).expect("offline");
            }
            check(&manager);
            assert_eq!(manager.acceptance().lost_pages(), 2 * PAGES_PER_BLOCK, "{round}");
            use_everything(&manager);
        }
        // SAFETY: nothing looks up descriptors by number.
        unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("free");
        check(&manager);
        assert_eq!(settled(&manager).present_pages, before.present_pages);
        assert_eq!(manager.acceptance().lost_pages(), 0);
    }
}
