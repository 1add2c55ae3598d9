//! Which grade the policies give to memory, and what its tables are for.

use crate::add::{add, machine, node};
use crate::common::{bring_up_with, check, gib, mib, parameters};
use crate::files::{read, write};
use framewright::Request;
use framewright::manager::{Budget, Group, InterleaveCursor, NumaPolicy};
use framewright::parameters::OnlineType;
use framewright::units::{NodeMask, Order, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright_testkit::{FakeMachine, Owner};

/// A block that was movable at boot is movable again, although boot reserved memory above it.
#[test]
fn what_boot_keeps_in_movable_memory_makes_no_kernel_zone_of_it() {
    let machine = FakeMachine::builder().ram(mib(0, 1024)).build();
    let line = parameters("kernelcore=256M");
    let manager = bring_up_with(machine, &[mib(960, 1024)], &line).expect("bring-up");
    assert_eq!(manager.moving().grade_of(Pfn(1023 << 8)), Some(Grade::Any), "nobody may free it");
    let of = |file: &str| format!("/sys/devices/system/memory/memory4/{file}");
    write(&manager, &of("state"), "offline").expect("free");
    assert_eq!(read(&manager, &of("valid_zones")).as_deref(), Ok("Movable DMA32\n"));
    write(&manager, &of("state"), "online").expect("offline");
    assert_eq!(manager.moving().grade_of(Pfn(512 << 8)), Some(Grade::MovableOnly));
    check(&manager);
}

/// Memory that boot kept is like its neighbours once it is released, in whole blocks or in parts of
/// them: no other request gets it, and no kernel zone ends in it.
#[test]
fn what_boot_kept_is_movable_once_it_is_released() {
    let machine = FakeMachine::builder().ram(mib(0, 1024)).build();
    let line = parameters("kernelcore=256M");
    let [low, high] = [mib(32, 48), mib(960, 1024)];
    let manager = bring_up_with(machine, &[low, high], &line).expect("bring-up");
    let [low, high] = [low, high].map(|range| range.whole_frames());
    let (hotplug, moving) = (manager.hotplug(), manager.moving());
    let part = PfnRange { start: high.start, end: high.start.add(512 + 3) };
    // SAFETY: the test reserved them and uses them no more.
    let release = |range| unsafe { hotplug.release(range) };
    release(low).expect("reserved");
    release(part).expect("reserved");
    let rest = PfnRange { start: part.end, ..high };
    hotplug.adopt(rest).expect("reserved");
    for block in (high.start.0..high.end.0).step_by(512) {
        assert_eq!(moving.grade_of(Pfn(block)), Some(Grade::MovableOnly), "{block:#x}");
    }
    assert_eq!(moving.grade_of(low.start), Some(Grade::Any));
    let of = |file: &str| format!("/sys/devices/system/memory/memory4/{file}");
    write(&manager, &of("state"), "offline").expect("free");
    assert_eq!(read(&manager, &of("valid_zones")).as_deref(), Ok("Movable DMA32\n"));
    write(&manager, &of("state"), "online").expect("offline");
    assert_eq!(moving.grade_of(Pfn(512 << 8)), Some(Grade::MovableOnly));
    check(&manager);
    manager.give_back(rest).expect("adopted");
    check(&manager);
}

/// The tables in a module are of no grade, so they do not make it the kernel's.
#[test]
fn the_tables_of_a_module_leave_it_movable() {
    let line = "memory_hotplug.online_policy=auto-movable memory_hotplug.auto_movable_ratio=99999";
    let module = gib(8, 40);
    let block = PhysRange::with_size(module.start + (1 << 30), 128 << 20);
    for is_added_offline in [false, true] {
        let manager = machine(gib(4, 40), line);
        let hotplug = manager.hotplug();
        let group = Group { region: module, node: node(0), unit_bytes: None };
        hotplug.register_group(group).expect("room");
        if is_added_offline {
            // SAFETY: the machine has this memory and nobody else uses it.
            unsafe { hotplug.add_offline(module, node(0)) }.expect("added");
        } else {
            let pages = add(&manager, module, 0, Grade::MovableOnly).expect("added");
            assert!(pages < module.size() >> 12, "the tables are in it");
            hotplug.offline(block, Budget::UNLIMITED).expect("free");
        }
        assert_eq!(hotplug.shares_of(module).kernel_pages, 0);
        let grade = || hotplug.grade_for(block, node(0), OnlineType::Online);
        assert_eq!(grade(), Some(Grade::MovableOnly));
        // Once a part of it is the kernel's, all of it is.
        hotplug.online(block, Grade::Any).expect("offline");
        assert_eq!(grade(), Some(Grade::Any));
        check(&manager);
    }
}

/// The blocks of a device's unit follow its first block.
#[test]
fn a_unit_is_for_one_sort_as_a_whole() {
    let line = "memory_hotplug.online_policy=auto-movable memory_hotplug.auto_movable_ratio=130";
    let device = mib(4096, 6144);
    let manager = machine(device, line);
    let hotplug = manager.hotplug();
    let group = Group { region: device, node: node(0), unit_bytes: Some(256 << 20) };
    hotplug.register_group(group).expect("room");
    let block = |number: u64| PhysRange::with_size(device.start + (number << 27), 128 << 20);
    let grade = |number| hotplug.grade_for(block(number), node(0), OnlineType::Online);
    // There is room for 332 MiB.
    for (number, expected) in
        [Grade::MovableOnly, Grade::MovableOnly, Grade::Any].iter().enumerate()
    {
        let number = number as u64;
        assert_eq!(grade(number), Some(*expected), "{number}");
        add(&manager, block(number), 0, *expected).expect("added");
    }
    hotplug.change_settings(|settings| settings.auto_movable_ratio = 1000);
    assert_eq!(grade(3), Some(Grade::Any));
    assert_eq!(grade(4), Some(Grade::MovableOnly));
    check(&manager);
}

/// Areas lend their memory to movable requests but are part of a kernel zone.
#[test]
fn an_area_makes_nothing_behind_it_movable() {
    let (boot, window) = (mib(4096, 4608), gib(5, 6));
    let machine = FakeMachine::builder().ram(boot).spare(window).build();
    let line = parameters("cma=64M memory_hotplug.online_policy=contig-zones");
    let manager = bring_up_with(machine, &[], &line).expect("bring-up");
    assert_eq!(manager.moving().area_pages(), 64 << 8);
    let hotplug = manager.hotplug();
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { hotplug.add_offline(window, node(0)) }.expect("added");
    let [first, last] = [window.start, window.end - (128 << 20)]
        .map(|start| PhysRange::with_size(start, 128 << 20));
    hotplug.online(last, Grade::MovableOnly).expect("offline");
    let grade = |range| hotplug.grade_for(range, node(0), OnlineType::Online);
    assert_eq!(grade(first), Some(Grade::Any));
    // Other removable memory does.
    let second = PhysRange::with_size(first.end, 128 << 20);
    hotplug.online(second, Grade::Removable).expect("offline");
    assert_eq!(grade(PhysRange::with_size(second.end, 128 << 20)), Some(Grade::MovableOnly));
    check(&manager);
}

/// Boot memory that is for movable contents alone by now allows no more of it.
#[test]
fn movable_memory_follows_what_is_left_of_boot_memory() {
    let manager = machine(gib(4, 8), "memory_hotplug.online_policy=auto-movable");
    let hotplug = manager.hotplug();
    let grade = |range| hotplug.grade_for(range, node(0), OnlineType::Online);
    // Three times 256 MiB less a little, and one per cent of it.
    assert_eq!(grade(mib(4096, 4864)), Some(Grade::MovableOnly));
    let blocks = crate::common::blocks(64, 32);
    manager.moving().set_grade(blocks, Grade::MovableOnly).expect("free");
    // Three times 192 MiB, of which there are 64.
    assert_eq!(grade(mib(4096, 4608 + 16)), Some(Grade::Any));
    assert_eq!(grade(mib(4096, 4608 - 16)), Some(Grade::MovableOnly));
    manager.moving().set_grade(blocks, Grade::Any).expect("free");
    assert_eq!(grade(mib(4096, 4864)), Some(Grade::MovableOnly));
    check(&manager);
}

/// The tables in a window are no memory that requests for anything but movable contents could have,
/// so a node with nothing else binds none of these.
#[test]
fn tables_of_movable_memory_bind_nobody() {
    let manager = machine(gib(4, 36), "");
    let pages = add(&manager, gib(4, 36), 1, Grade::MovableOnly).expect("added");
    assert!(pages < 32 << 18, "its tables are in it");
    let policy = NumaPolicy::bind(NodeMask::EMPTY.with(node(1)));
    let placed = |migrate_type| {
        let request = Request { migrate_type, ..Request::new(Order::PAGE) };
        let mut cursor = InterleaveCursor::START;
        let placed = manager.numa().allocate(&request, &policy, &mut cursor);
        let placed = placed.expect("it is not bound, or there is memory");
        manager.give_back(placed.range).expect("ours");
        placed.node()
    };
    assert_eq!(placed(MigrateType::Movable), node(1));
    assert_eq!(placed(MigrateType::Unmovable), node(0));
    check(&manager);
}
