//! Neighbours: nodes within one GiB, edges that cannot be accepted, tables that are all that is
//! left of a window, memory that a device does not take, and blocks with holes.

use crate::accepted::machine as accepting;
use crate::add::{Log, add, machine, node};
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters, settled};
use crate::files::{read, write};
use framewright::Request;
use framewright::manager::{
    AreaName, Budget, Group, HotplugError, HotplugEvent, HotplugNotifier, Removal, Veto, tier,
};
use framewright::memblock::NodeChoice;
use framewright::procfs::FileError;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, MigrateType, Presence};
use framewright_testkit::workload::Handles;
use framewright_testkit::{Builder, FakeMachine, Owner};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 2 << 20;

fn some(manager: &Fake, within: PhysRange, most: u64, align: u64) -> Removal {
    // SAFETY: nothing looks up descriptors by number.
    let removed = unsafe { manager.hotplug().remove_some(within, most, align, Budget::UNLIMITED) };
    removed.expect("a good question")
}

#[test]
fn two_nodes_share_a_gib() {
    let manager = machine(gib(4, 6), "");
    add(&manager, mib(4096, 4608), 0, Grade::Any).expect("added");
    add(&manager, mib(4608, 5120), 1, Grade::Any).expect("added");
    check(&manager);
    // A device of one node does not take memory that another node's device has beside it.
    let (first, second) = (mib(5120, 5376), mib(5376, 6144));
    for (region, of) in [(first, 1), (second, 0)] {
        let group = Group { region, node: node(of), unit_bytes: Some(BLOCK) };
        manager.hotplug().register_group(group).expect("room");
    }
    let left = manager.hotplug().windows_left();
    for start in [5120, 5122, 5200] {
        add(&manager, mib(start, start + 2), 1, Grade::Any).expect("added");
    }
    for start in [6000, 5376, 6142] {
        add(&manager, mib(start, start + 2), 0, Grade::Any).expect("added");
    }
    assert_eq!(manager.hotplug().windows_left(), left - 2, "one for each device");
    check(&manager);
}

#[test]
fn the_page_before_an_eager_addition_that_fails_is_kept() {
    for line in ["accept_memory=eager", "accept_memory=lazy"] {
        let (manager, device) = accepting(line);
        let (first, second) = (mib(4096, 4160), mib(4160, 4224));
        add(&manager, first, 0, Grade::Any).expect("added");
        let last = Pfn::containing(first.end - 1);
        // All of the block before it is allocated and then freed, so that it is accepted.
        let before = Pfn(last.0 + 1 - PAGES_PER_BLOCK);
        let taken = manager.allocate_at(before, Order::BLOCK, MigrateType::Movable);
        manager.give_back(taken.expect("nobody's")).expect("ours");
        device.fail_at(Pfn::containing(second.start));
        add(&manager, second, 0, Grade::Any).expect("added");
        manager.acceptance().accept_all(&framewright_jobs::NoHelpers);
        assert!(manager.acceptance().lost_pages() >= PAGES_PER_BLOCK, "{line}");
        assert!(
            manager.allocate_at(last, Order::PAGE, MigrateType::Movable).is_err(),
            "{line}: it can be read from this page"
        );
        check(&manager);
    }
}

#[test]
fn what_lies_before_memory_that_failed_can_go() {
    let (manager, device) = accepting("");
    let (first, second) = (mib(4096, 4160), mib(4160, 4224));
    add(&manager, first, 0, Grade::Any).expect("added");
    manager.acceptance().accept_all(&framewright_jobs::NoHelpers);
    device.fail_at(Pfn::containing(second.start));
    add(&manager, second, 0, Grade::Any).expect("added");
    manager.acceptance().accept_all(&framewright_jobs::NoHelpers);
    check(&manager);
    for range in [first, second] {
        // SAFETY: nothing looks up descriptors by number.
        let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
        removed.expect("nobody has any of it");
        check(&manager);
    }
    assert_eq!(manager.acceptance().lost_pages(), 0);
}

#[test]
fn a_window_goes_to_the_last_by_pieces() {
    // Pieces of the size of the window's tables, and pieces that share a GiB with other memory.
    for align in [BLOCK, 16 << 20, 64 << 20] {
        let manager = machine(gib(4, 100), "");
        let (before, all) = (settled(&manager), gib(4, 100));
        for _ in 0..2 {
            add(&manager, all, 0, Grade::Removable).expect("added");
            let mut left = all.size();
            while let Removal::Run(run) = some(&manager, all, 8 << 30, align) {
                left -= run.size();
                assert!(run.size().is_multiple_of(align) && run.start.is_multiple_of(align));
                check(&manager);
            }
            assert_eq!(left, 0, "of pieces of {align} bytes");
            let after = settled(&manager);
            assert_eq!(
                (after.present_pages, after.reserved_pages),
                (before.present_pages, before.reserved_pages)
            );
        }
        assert_eq!(some(&manager, all, 8 << 30, align), Removal::Nothing(None));
    }
}

#[test]
fn what_a_device_refused_is_accepted_still() {
    for (forgets, offline) in [(true, false), (false, false), (true, true)] {
        let (manager, device) = accepting("");
        device.set_forgets(forgets);
        let range = mib(4096, 4160);
        add(&manager, range, 0, Grade::Removable).expect("added");
        // Half of it is accepted.
        let taken = manager.allocate_at(
            Pfn(4128 << 8),
            Order::new(13).expect("32 MiB"),
            MigrateType::Movable,
        );
        manager.give_back(taken.expect("nobody's")).expect("ours");
        let accepted = device.accepted_pages();
        assert!((32 << 8..64 << 8).contains(&accepted));
        if offline {
            manager.hotplug().offline(range, Budget::UNLIMITED).expect("free");
        }
        assert_eq!(some(&manager, range, 64 << 20, BLOCK), Removal::Run(range));
        // SAFETY: it was removed, and nobody had it.
        unsafe { manager.hotplug().put_back(range, node(0), None) }.expect("removed");
        if offline {
            manager.hotplug().online(range, Grade::Removable).expect("offline");
        }
        manager.acceptance().accept_all(&framewright_jobs::NoHelpers);
        // The device panics if anything is accepted twice.
        assert_eq!(device.accepted_pages(), 64 << 8);
        check(&manager);
    }
}

/// When a device refuses memory, what was offline is offline again, and memory that only movable
/// requests get keeps that grade, although all of it is one run.
#[test]
fn what_a_device_refused_is_as_it_was() {
    for accepts in [false, true] {
        let manager = if accepts { accepting("").0 } else { machine(gib(4, 5), "") };
        let all = mib(4096, 4224);
        let grades = [Grade::Removable, Grade::Any, Grade::MovableOnly, Grade::Removable];
        // One window for all of it.
        let group = Group { region: all, node: node(0), unit_bytes: Some(BLOCK) };
        manager.hotplug().register_group(group).expect("room");
        let parts = (0..4).map(|number| mib(4096 + 32 * number, 4128 + 32 * number));
        for (part, grade) in parts.zip(grades) {
            add(&manager, part, 0, grade).expect("added");
        }
        // Of two grades.
        let off = mib(4144, 4176);
        manager.hotplug().offline(off, Budget::UNLIMITED).expect("free");
        let before = settled(&manager);
        let log: &'static Log = Box::leak(Box::default());
        manager.hotplug().set_notifier(Some(log));
        let is_told = |event: &HotplugEvent| matches!(event, HotplugEvent::Online(_));
        for (range, tells) in [(all, 1), (all, 1), (off, 0)] {
            assert_eq!(some(&manager, range, range.size(), BLOCK), Removal::Run(range));
            check(&manager);
            log.seen.lock().expect("alive").clear();
            // SAFETY: it was removed, and nobody had it.
            let back = unsafe { manager.hotplug().put_back(range, node(0), Some(Grade::Any)) };
            let online = if range == all { all.size() - off.size() } else { 0 };
            assert_eq!(back.map(|added| added.pages), Ok(online >> 12));
            let told = log.seen.lock().expect("alive").iter().filter(|&it| is_told(it)).count();
            assert_eq!(told, tells);
            check(&manager);
            for (number, at) in (0..64).map(|number| (number, all.start + number as u64 * BLOCK)) {
                let presence = manager.hotplug().presence_of(at);
                if (off.start..off.end).contains(&at) {
                    assert_eq!(presence, Presence::Offline, "{at:#x}");
                } else {
                    let grade = manager.moving().grade_of(Pfn::containing(at));
                    assert_eq!(presence, Presence::Online, "{at:#x}");
                    assert_eq!(grade, Some(grades[number / 16]), "{at:#x}");
                }
            }
            assert_eq!(settled(&manager).present_pages, before.present_pages);
        }
        manager.hotplug().set_notifier(None);
        // Memory that really comes back gets the grade that the caller names.
        assert_eq!(some(&manager, all, all.size(), BLOCK), Removal::Run(all));
        add(&manager, all, 0, Grade::Any).expect("removed");
        assert_eq!(manager.moving().grade_of(Pfn::containing(all.start)), Some(Grade::Any));
        assert_eq!(manager.hotplug().presence_of(off.start), Presence::Online);
        check(&manager);
    }
}

#[test]
fn a_block_with_a_hole_does_not_go_offline() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4224), 0, Grade::Any).expect("added");
    let state = "/sys/devices/system/memory/memory32/state";
    // One page of it stays in use.
    let page = manager.allocate_at(Pfn(4200 << 8), Order::PAGE, MigrateType::Unmovable);
    let page = page.expect("free");
    let before = settled(&manager);
    assert_eq!(write(&manager, state, "offline"), Err(FileError::Busy));
    assert_eq!(settled(&manager), before);
    // SAFETY: nothing looks up descriptors by number.
    unsafe { manager.hotplug().remove(mib(4160, 4162), Budget::UNLIMITED) }.expect("free");
    let before = settled(&manager);
    assert_eq!(write(&manager, state, "offline"), Err(FileError::Invalid));
    assert_eq!(settled(&manager), before);
    assert_eq!(read(&manager, state).as_deref(), Ok("online\n"));
    manager.give_back(page).expect("ours");
    assert!(matches!(
        manager.hotplug().offline(mib(4096, 4224), Budget::UNLIMITED),
        Err(HotplugError::Absent(_))
    ));
    check(&manager);
}

#[test]
fn what_is_on_a_nodes_last_memory_moves_to_another_node() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4160);
    add(&manager, range, 1, Grade::Any).expect("added");
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    let request = Request { node: NodeChoice::Exact(node(1)), ..Request::pages(1) };
    for _ in 0..100 {
        handles.adopt(&request).expect("memory");
    }
    let hotplug = manager.hotplug().by(&handles);
    // SAFETY: nothing looks up descriptors by number.
    unsafe { hotplug.remove(range, Budget::UNLIMITED) }.expect("there is memory elsewhere");
    for handle in handles.held() {
        handles.check(handle).expect("moved whole");
    }
    assert_eq!(handles.pages(), 100);
    check(&manager);
}

/// A notifier that is slow and records how many changes call it at the same time.
struct Slow {
    inside: AtomicU32,
    most: AtomicU32,
}

impl HotplugNotifier for Slow {
    fn notify(&self, _: HotplugEvent) -> Result<(), Veto> {
        let inside = self.inside.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(inside, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
        self.inside.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn one_change_at_a_time() {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 8)).cpus(4);
    let manager = bring_up_with(builder.build(), &[], &parameters("")).expect("bring-up");
    let slow: &'static Slow = Box::leak(Box::new(Slow { inside: 0.into(), most: 0.into() }));
    manager.hotplug().set_notifier(Some(slow));
    thread::scope(|scope| {
        for number in 4..7 {
            let manager = &manager;
            scope.spawn(move || {
                for _ in 0..4 {
                    let range = gib(number, number + 1);
                    add(manager, range, 0, Grade::Any).expect("added");
                    // SAFETY: nothing looks up descriptors by number.
                    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
                    removed.expect("free");
                }
            });
        }
    });
    manager.hotplug().set_notifier(None);
    assert_eq!(slow.most.load(Ordering::Relaxed), 1);
    check(&manager);
}

/// Two sockets with a slow node near each; one slow node goes (Linux: `mm/memory-tiers.c`,
/// `memtier_hotplug_callback`).
#[test]
fn targets_of_demotion_follow_memory_that_comes_and_goes() {
    let on = |index: u64| PhysRange::with_size((index + 1) << 32, 128 << 20);
    let own = |machine: Builder, index: u64| {
        machine.node(on(index), usize::try_from(index).expect("small")).ram(on(index))
    };
    let machine = FakeMachine::builder().nodes(4).cpus_on(0, 1).cpus_on(1, 1);
    let machine = [0, 1, 3].into_iter().fold(machine, own).spare(on(2));
    let machine = machine.distance(0, 1, 21).distance(0, 2, 14).distance(1, 3, 14);
    let machine = machine.distance(0, 3, 24).distance(1, 2, 24).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let numa = manager.numa();
    for index in [2, 3] {
        numa.set_tier(node(index), tier::tier_of(tier::UNKNOWN_DEVICE_DISTANCE)).expect("a node");
    }
    let targets = || [0, 1, 2, 3].map(|index| numa.demotion_targets(node(index)).to_string());
    assert_eq!(targets(), ["3", "3", "", ""]);
    for _ in 0..2 {
        add(&manager, on(2), 2, Grade::Any).expect("added");
        assert_eq!(targets(), ["2", "3", "", ""]);
        assert_eq!(numa.demotion_allowed(node(0)).to_string(), "2-3");
        // SAFETY: nothing looks up descriptors by number.
        unsafe { manager.hotplug().remove(on(2), Budget::UNLIMITED) }.expect("free");
        assert_eq!(targets(), ["3", "3", "", ""], "node 2 has no memory any more");
        assert_eq!(numa.demotion_allowed(node(0)).to_string(), "3");
    }
    check(&manager);
}

/// A notifier that makes an area of memory that is going offline keeps that memory.
#[test]
fn an_area_that_is_made_meanwhile_stays() {
    struct Makes(&'static Fake);
    impl HotplugNotifier for Makes {
        fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
            if let HotplugEvent::GoingOffline(range) = event {
                let name = AreaName::new("device").expect("a name");
                let number = |address: u64| u32::try_from(address >> 21).expect("small");
                let blocks = BlockRange::new(number(range.start), number(range.end));
                self.0.moving().create_area(name, blocks).expect("it is free still");
            }
            Ok(())
        }
    }
    let manager: &'static Fake = Box::leak(Box::new(machine(gib(4, 5), "")));
    let range = mib(4096, 4608);
    add(manager, range, 0, Grade::Any).expect("added");
    let before = settled(manager);
    manager.hotplug().set_notifier(Some(Box::leak(Box::new(Makes(manager)))));
    let upper = mib(4352, 4608);
    let wrong = HotplugError::Area(upper.whole_frames().start);
    let gone = manager.hotplug().offline(upper, Budget::UNLIMITED);
    assert_eq!(gone.err(), Some(wrong));
    manager.hotplug().set_notifier(None);
    assert_eq!(settled(manager).managed_pages, before.managed_pages);
    let number = manager.moving().area_named("device").expect("made");
    let all = manager.moving().allocate_in_area(number, 1024, Order::BLOCK, Budget::UNLIMITED);
    assert_eq!(all.expect("all of it is there").pages(), 1024);
    check(manager);
}

/// Blocks of an area are not taken away, whichever call asks for them.
#[test]
fn blocks_of_an_area_do_not_go() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4608), 0, Grade::Any).expect("added");
    let name = AreaName::new("device").expect("a name");
    let range = BlockRange::new(2048 + 64, 2048 + 128);
    manager.moving().create_area(name, range).expect("free");
    let before = settled(&manager);
    let hotplug = manager.hotplug();
    let first = Pfn((4096 + 128) << 8);
    let wrong = HotplugError::Area(first);
    let all = mib(4096, 4608);
    for part in [mib(4096 + 128, 4096 + 256), mib(4096, 4096 + 256), all] {
        assert_eq!(hotplug.offline(part, Budget::UNLIMITED).err(), Some(wrong));
        // SAFETY: nothing looks up descriptors by number.
        let removed = unsafe { hotplug.remove(part, Budget::UNLIMITED) };
        assert_eq!(removed.err(), Some(wrong));
    }
    for part in [mib(4096 + 128, 4096 + 256), mib(4096 + 130, 4096 + 132)] {
        let first = Pfn(part.start >> 12);
        // SAFETY: as above.
        let some = unsafe { hotplug.remove_some(part, 2 << 20, 2 << 20, Budget::UNLIMITED) };
        assert!(some == Err(HotplugError::Area(first)), "{some:?}");
    }
    assert_eq!(wrong.to_string(), format!("pfn {first} belongs to a reserve area"));
    assert_eq!(settled(&manager), before);
    assert_eq!(manager.moving().grade_of(first), Some(Grade::Removable));
    // The memory beside the area goes.
    hotplug.offline(mib(4096 + 256, 4096 + 384), Budget::UNLIMITED).expect("free");
    hotplug.online(mib(4096 + 256, 4096 + 384), Grade::Any).expect("offline");
    // A device that wants memory back gets all but the area, and not more than there is.
    let mut left = vec![mib(4096, 4096 + 128), mib(4096 + 256, 4608)];
    while let Removal::Run(run) = some(&manager, all, 64 << 20, 64 << 20) {
        let from = left.last_mut().expect("no more than there is");
        assert_eq!(run, PhysRange::new(from.end - (64 << 20), from.end), "from the top");
        from.end = run.start;
        left.retain(|range| range.start < range.end);
    }
    assert_eq!(left, [mib(4096, 4160)], "there are the tables of the rest");
    assert_eq!(manager.moving().grade_of(first), Some(Grade::Removable));
    check(&manager);
}

/// Weights that were never set by hand follow the nodes that have memory (Linux: `mm/mempolicy.c`).
#[test]
fn weights_follow_memory_that_comes_and_goes() {
    let manager = machine(gib(4, 5), "");
    let numa = manager.numa();
    for (index, bandwidth) in [(0, 300), (1, 100)] {
        numa.set_bandwidth(node(index), bandwidth).expect("a node");
    }
    let weights = || [0, 1].map(|index| numa.weight(node(index)));
    assert_eq!(weights(), [1, 1], "node 1 has no memory");
    for _ in 0..2 {
        add(&manager, mib(4096, 4224), 1, Grade::Any).expect("added");
        assert_eq!(weights(), [3, 1]);
        // SAFETY: nothing looks up descriptors by number.
        unsafe { manager.hotplug().remove(mib(4096, 4224), Budget::UNLIMITED) }.expect("free");
        assert_eq!(weights(), [1, 1]);
    }
    numa.set_weight(node(0), 9).expect("a weight");
    add(&manager, mib(4096, 4224), 1, Grade::Any).expect("added");
    assert_eq!(weights(), [9, 1], "somebody has set them");
    check(&manager);
}
