//! Windows that hold their own tables, on hosts that leave memory accepted when they take it away.

use crate::add::{add, node};
use crate::common::{Descriptors, Fake, bring_up_with, check, gib, mib, parameters, settled};
use framewright::manager::{Budget, HotplugError};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeAccept, FakeMachine, Owner};

const BLOCK_BYTES: u64 = 2 << 20;

fn machine(spare: PhysRange) -> (Fake, &'static FakeAccept) {
    let builder = FakeMachine::builder().ram(PhysRange::new(0, 64 << 20)).spare(spare).nodes(2);
    let machine = builder.accepts().build();
    let parameters = parameters("hotplug_windows=4");
    (bring_up_with(machine, &[], &parameters).expect("bring-up"), machine.accept())
}

fn remove(manager: &Fake, range: PhysRange) -> u64 {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.expect("all is free").pages
}

/// The host takes memory away; reads of it fault.
fn take_away(manager: &Fake, range: PhysRange) {
    // SAFETY: it was removed.
    unsafe { manager.platform().unplug(range) };
}

/// The host gives back memory that it took; memory that was accepted still is.
fn bring_back(manager: &Fake, device: &FakeAccept, range: PhysRange) {
    for block in (range.start..range.end).step_by(2 << 20) {
        if device.is_accepted(Pfn::containing(block)) {
            // SAFETY: it is nobody's.
            unsafe { manager.platform().plug(PhysRange::with_size(block, BLOCK_BYTES), 0xff) };
        }
    }
}

#[test]
fn a_window_that_goes_half_accepted_comes_back_as_it_went() {
    let all = gib(4, 28);
    let (manager, device) = machine(all);
    let mut random = Random::new(7);
    let added = add(&manager, all, 0, Grade::Any).expect("added");
    for _ in 0..4 {
        // Blocks here and there, and a whole GiB.
        for _ in 0..40 {
            let at = all.start + random.below(24 * 512) * BLOCK_BYTES;
            let order = [Order::BLOCK, Order::PAGE, Order::MAX][(at / BLOCK_BYTES % 3) as usize];
            let start = Pfn(Pfn::containing(at).0 & !(order.pages() - 1));
            if let Ok(run) = manager.allocate_at(start, order, MigrateType::Movable) {
                for at in [run.start.address(), run.end.address() - 4096] {
                    crate::fill(&manager, PhysRange::with_size(at, 4096), 5);
                }
                manager.give_back(run).expect("ours");
            }
        }
        check(&manager);
        assert_eq!(remove(&manager, all), added);
        take_away(&manager, all);
        // Nobody looks there.
        check(&manager);
        settled(&manager);
        assert_eq!(manager.hotplug().presence_of(all.start), framewright::zone::Presence::Absent);
        let single = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
        manager.give_back_order(single, Order::PAGE).expect("ours");
        bring_back(&manager, device, all);
        // Nothing is accepted twice, or the device would panic; no memory is used before it is
        // accepted, or the access would fault.
        let accepted = device.accepted_pages();
        assert_eq!(add(&manager, all, 0, Grade::Any), Ok(added));
        // At most one block behind each accepted block.
        assert!(device.accepted_pages() < 2 * accepted);
        check(&manager);
        let mut held = Vec::new();
        for _ in 0..200 {
            held.push(manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("a block"));
        }
        for block in held {
            crate::fill(&manager, PhysRange::with_size(block.address(), BLOCK_BYTES), 1);
            manager.give_back_order(block, Order::BLOCK).expect("ours");
        }
    }
}

#[test]
fn tables_that_were_accepted_in_vain_are_not_accepted_again() {
    // Two windows that hold their own tables; the tables of the second cannot be accepted at first.
    let all = gib(4, 100);
    let (manager, device) = machine(all);
    let (first, second) = (gib(4, 36), gib(36, 100));
    let before = settled(&manager);
    // A known window none of whose memory is there.
    let pages = add(&manager, first, 0, Grade::Any).expect("added");
    assert_eq!(remove(&manager, first), pages);
    assert_eq!(device.accepted_pages() % PAGES_PER_BLOCK, 0);
    let failing = Pfn::containing(second.start + BLOCK_BYTES);
    device.fail_at(failing);
    for _ in 0..2 {
        let accepted = device.accepted_pages();
        let refused = add(&manager, all, 0, Grade::Any);
        assert_eq!(refused, Err(HotplugError::NotAccepted(failing)));
        check(&manager);
        let after = settled(&manager);
        assert_eq!(
            (after.present_pages, after.reserved_pages),
            (before.present_pages, before.reserved_pages)
        );
        assert!(device.accepted_pages() - accepted <= PAGES_PER_BLOCK);
        device.forget_asked(PhysRange::with_size(failing.address(), BLOCK_BYTES));
    }
    device.fail_no_more();
    let added = add(&manager, all, 0, Grade::Any).expect("added");
    check(&manager);
    assert!(added < 96 << 18);
}

/// Memory that a device refused to take is unchanged, even if the host forgets what it takes.
#[test]
fn a_window_with_its_tables_in_it_that_never_left_is_accepted_once() {
    for forgets in [false, true] {
        let all = gib(4, 100);
        let builder = FakeMachine::builder().ram(mib(0, 256)).nodes(1).spare(all).accepts();
        let machine = builder.build();
        let manager = Descriptors::Inside.bring_up(machine);
        machine.accept().set_forgets(forgets);
        let pages = add(&manager, all, 0, Grade::Any).expect("added");
        for _ in 0..2 {
            // SAFETY: no test looks up descriptors meanwhile.
            unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("free");
            // SAFETY: removed just now.
            let back = unsafe { manager.hotplug().put_back(all, node(0), Some(Grade::Any)) };
            assert_eq!(back.expect("removed").pages, pages);
            check(&manager);
        }
        // Where the host forgets, memory that it had is accepted anew.
        machine.accept().forget_calls();
        // SAFETY: as above.
        unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("free");
        if forgets {
            machine.accept().forget_asked(all);
        }
        add(&manager, all, 0, Grade::Any).expect("removed");
        check(&manager);
        assert_eq!(machine.accept().calls().is_empty(), !forgets);
    }
}
