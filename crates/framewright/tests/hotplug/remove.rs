//! Removing memory.

use crate::add::{add, machine, node, pages_in};
use crate::common::{check, gib, idle_pages, mib, settled};
use framewright::Request;
use framewright::manager::{Budget, HotplugError, ObstacleKind, RangeError, Removal, VacateError};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType, Presence, ZoneId, ZoneKind};
use framewright_testkit::Owner;
use framewright_testkit::workload::Handles;

const PER_MIB: u64 = 256;

/// Present, managed and idle pages. A varying number of the idle pages holds descriptors.
fn books(manager: &crate::common::Fake) -> [u64; 5] {
    let counts = settled(manager);
    [
        counts.present_pages,
        counts.managed_pages,
        counts.reserved_pages,
        counts.allocated_pages,
        idle_pages(manager),
    ]
}

fn remove(manager: &crate::common::Fake, range: PhysRange) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

#[test]
fn what_is_free_goes_and_comes_back() {
    for line in ["", "pages=inside", "careful=3", "page_alloc.shuffle=1"] {
        let manager = machine(gib(4, 6), line);
        let before = settled(&manager);
        add(&manager, gib(4, 6), 0, Grade::Any).expect("added");
        let full = books(&manager);
        for range in [mib(4096, 4098), mib(5000, 6000), mib(4100, 5000), mib(6000, 6144)] {
            assert_eq!(remove(&manager, range), Ok(range.size() >> 12));
            check(&manager);
            assert_eq!(manager.hotplug().presence_of(range.start), Presence::Absent);
            assert_eq!(remove(&manager, range), Err(HotplugError::Absent(Pfn(range.start >> 12))));
        }
        remove(&manager, mib(4098, 4100)).expect("the rest");
        check(&manager);
        // The window's tables stay.
        let after = settled(&manager);
        assert_eq!(
            (after.present_pages, after.managed_pages),
            (before.present_pages, before.managed_pages)
        );
        add(&manager, gib(4, 6), 0, Grade::Any).expect("again");
        check(&manager);
        assert_eq!(books(&manager), full, "{line}");
    }
}

#[test]
fn memory_that_bring_up_knew_goes_and_comes_back() {
    for line in ["", "pages=inside", "page_owner=on", "page_poison=1", "careful=3"] {
        let manager = machine(gib(4, 5), line);
        let before = books(&manager);
        let present = manager.totals().present_pages;
        let range = mib(64, 192);
        assert_eq!(remove(&manager, range), Ok(128 * PER_MIB));
        check(&manager);
        assert_eq!(manager.totals().present_pages, present - 128 * PER_MIB);
        let mut held = Vec::new();
        while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
            assert!(!range.whole_frames().contains(page));
            held.push(page);
        }
        for page in held {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        // The content is lost.
        crate::fill(&manager, range, 0x5a);
        add(&manager, range, 0, Grade::Any).expect("again");
        check(&manager);
        assert_eq!(books(&manager), before, "{line}");
        let mut held = Vec::new();
        while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
            held.push(page);
        }
        assert!(held.iter().any(|page| range.whole_frames().contains(*page)));
        for page in held {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        check(&manager);
    }
}

#[test]
fn what_is_in_use_moves_and_what_is_pinned_is_named() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4352), 0, Grade::MovableOnly).expect("added");
    let range = mib(4096, 4352);
    let frames = range.whole_frames();
    let handles = Handles::new(&manager, 1 << 17).expect("memory");
    let mut inside = None;
    for _ in 0..40_000 {
        let handle = handles.allocate(Order::PAGE).expect("memory");
        if handles.range(handle).is_some_and(|run| frames.contains(run.start)) {
            inside = Some(handle);
        }
    }
    // Room to move pages to.
    let outside: Vec<_> = handles
        .held()
        .filter(|&handle| handles.range(handle).is_some_and(|run| !frames.contains(run.start)))
        .collect();
    for handle in outside.into_iter().step_by(2) {
        handles.free(handle).expect("held");
    }
    let pinned = inside.expect("removable memory serves what can be moved");
    handles.pin(pinned, true).expect("held");
    let before = settled(&manager);
    let remove = || {
        // SAFETY: nothing looks up descriptors meanwhile.
        unsafe { manager.hotplug().by(&handles).remove(range, Budget::UNLIMITED) }
    };
    let named = remove();
    let Err(HotplugError::Range(RangeError::Vacate(VacateError::Obstacles { obstacles, .. }))) =
        named
    else {
        panic!("{named:?}");
    };
    assert_eq!(obstacles.first.kind, ObstacleKind::Pinned);
    assert_eq!(Some(obstacles.first.run), handles.range(pinned));
    check(&manager);
    assert_eq!(settled(&manager).managed_pages, before.managed_pages);
    handles.pin(pinned, false).expect("held");
    remove().expect("all of it moves");
    check(&manager);
    for handle in handles.held() {
        handles.check(handle).expect("intact");
        assert!(!frames.contains(handles.range(handle).expect("held").start));
    }
}

#[test]
fn offline_memory_is_there_and_nobody_gets_it() {
    let manager = machine(gib(4, 5), "");
    let before = settled(&manager);
    // SAFETY: the machine has this memory and nobody else uses it.
    let added = unsafe { manager.hotplug().add_offline(gib(4, 5), node(0)) }.expect("added");
    assert_eq!(added.pages, 0);
    check(&manager);
    assert_eq!(settled(&manager).present_pages, before.present_pages);
    assert_eq!(manager.hotplug().presence_of(4 << 30), Presence::Offline);
    let twice = add(&manager, gib(4, 5), 0, Grade::Any);
    assert!(matches!(twice, Err(HotplugError::Present(_))), "{twice:?}");
    let online = manager.hotplug().online(mib(4096, 4224), Grade::MovableOnly).expect("there");
    assert_eq!(online.pages, 128 * PER_MIB);
    check(&manager);
    assert!(manager.hotplug().online(mib(4096, 4224), Grade::Any).is_err());
    let offline = manager.hotplug().offline(mib(4096, 4100), Budget::UNLIMITED).expect("free");
    assert_eq!(offline.pages, 4 * PER_MIB);
    assert_eq!(manager.hotplug().presence_of(4096 << 20), Presence::Offline);
    assert!(manager.hotplug().offline(mib(4096, 4104), Budget::UNLIMITED).is_err());
    check(&manager);
    // All of it, whether offline or not.
    assert_eq!(remove(&manager, gib(4, 5)), Ok(124 * PER_MIB));
    check(&manager);
    assert_eq!(settled(&manager).present_pages, before.present_pages);
}

#[test]
fn free_memory_goes_first_in_the_longest_runs() {
    let manager = machine(gib(4, 6), "");
    let within = gib(4, 6);
    add(&manager, within, 0, Grade::Removable).expect("added");
    let handles = Handles::new(&manager, 1 << 18).expect("memory");
    let some = |most: u64, budget| {
        let hotplug = manager.hotplug().by(&handles);
        // SAFETY: nothing looks up descriptors there.
        unsafe { hotplug.remove_some(within, most, 2 << 20, budget) }.expect("possible")
    };
    // All of it is free: one run, taken from the top.
    assert_eq!(some(512 << 20, Budget::UNLIMITED), Removal::Run(mib(5632, 6144)));
    check(&manager);
    for _ in 0..200_000 {
        handles.allocate(Order::PAGE).expect("memory");
    }
    let held: Vec<_> = handles.held().collect();
    for handle in held.into_iter().step_by(2) {
        handles.free(handle).expect("held");
    }
    let mut left = 768_u64 << 20;
    let mut runs = 0;
    while left != 0 {
        match some(left, Budget::UNLIMITED) {
            Removal::Run(run) => {
                assert!(run.size() <= left);
                left -= run.size();
                runs += 1;
            }
            other => panic!("{left} are left, {runs} runs: {other:?}"),
        }
        check(&manager);
    }
    assert_eq!(manager.totals().present_pages, (256 + 2048 - 512 - 768) * PER_MIB - 97);
    for handle in handles.held() {
        handles.check(handle).expect("intact");
    }
}

/// Without a mover no memory in use goes, and the error says so.
#[test]
fn without_a_mover_what_is_used_stays() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4128), 0, Grade::Removable).expect("added");
    let mut held = Vec::new();
    for block in (4096..4128_u64).step_by(2) {
        let at = Pfn(block * PER_MIB);
        held.push(manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free"));
    }
    // SAFETY: nothing looks up descriptors there.
    let some = unsafe {
        manager.hotplug().remove_some(mib(4096, 4128), 32 << 20, 2 << 20, Budget::UNLIMITED)
    };
    assert!(matches!(some, Ok(Removal::Nothing(Some(_)))), "{some:?}");
    check(&manager);
    for page in held {
        manager.give_back(page).expect("ours");
    }
    check(&manager);
}

#[test]
fn a_thousand_rounds_leave_nothing_behind() {
    let manager = machine(gib(4, 5), "pages=inside");
    let range = mib(4096, 4352);
    add(&manager, range, 0, Grade::Any).expect("added");
    remove(&manager, range).expect("free");
    let (books_before, metadata) = (books(&manager), manager.metadata_bytes());
    for round in 0..1000_u64 {
        add(&manager, range, 0, Grade::Any).expect("added");
        let mut held = Vec::new();
        for _ in 0..200 {
            held.push(manager.allocate_order(Order::PAGE, MigrateType::Unmovable).expect("memory"));
        }
        let block = manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("memory");
        for page in held {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        manager.give_back_order(block, Order::BLOCK).expect("ours");
        assert_eq!(remove(&manager, range), Ok(256 * PER_MIB), "round {round}");
        if round % 100 == 0 {
            check(&manager);
        }
    }
    check(&manager);
    assert_eq!(books(&manager), books_before);
    assert_eq!(manager.metadata_bytes(), metadata);
    assert_eq!(manager.hotplug().windows_left(), 7);
}

#[test]
fn blocks_that_are_gone_do_not_count_while_one_is_isolated() {
    let manager = machine(gib(4, 6), "");
    add(&manager, mib(4096, 4096 + 256), 0, Grade::Any).expect("added");
    remove(&manager, mib(4096 + 128, 4096 + 256)).expect("it is free");
    let normal = ZoneId { node: node(0), kind: ZoneKind::Normal };
    let counted = || manager.view(normal).expect("it has memory").free_areas().blocks;
    let before = counted();
    let first = BlockNumber::containing(Pfn((4096 << 20) / 4096));
    let one = BlockRange { start: first, end: BlockNumber(first.0 + 1) };
    manager.isolation().isolate(one).expect("it is free");
    assert_eq!(counted().iter().sum::<u64>(), before.iter().sum::<u64>());
    manager.isolation().unisolate(one).expect("it is isolated");
    assert_eq!(counted(), before);
    check(&manager);
}

/// What goes offline moves to another node, as in Linux, although its own node has room; only if
/// the other is full, it stays on its node. What a device gives back stays there, too.
#[test]
fn what_goes_offline_moves_to_another_node() {
    let manager = machine(gib(4, 6), "");
    let other = mib(5120, 5184);
    add(&manager, other, 1, Grade::Any).expect("added");
    let handles = Handles::new(&manager, 1 << 15).expect("memory");
    let on = |range: PhysRange| pages_in(&handles, range);
    let hotplug = manager.hotplug().by(&handles);
    let mut number = 0;
    let away = [mib(4096, 4112), mib(4112, 4128), mib(4128, 4144)].map(|range| {
        number += 1;
        add(&manager, range, 0, Grade::MovableOnly).expect("added");
        // Movable requests take this memory first.
        while on(range) < 1000 {
            handles.allocate(Order::PAGE).expect("memory");
        }
        let node = NodeChoice::Exact(node(1));
        let exact = Request { node, ..Request::new(Order::PAGE) };
        while number == 3 && handles.adopt(&exact).is_ok() {}
        let before = on(other);
        if number == 2 {
            // SAFETY: no test looks up descriptors meanwhile.
            let found =
                unsafe { hotplug.remove_some(range, 16 << 20, 16 << 20, Budget::UNLIMITED) };
            assert_eq!(found, Ok(Removal::Run(range)));
        } else {
            hotplug.offline(range, Budget::UNLIMITED).expect("it can be moved");
        }
        assert_eq!(on(range), 0);
        on(other) - before
    });
    assert_eq!(away, [1000, 0, 0]);
    check(&manager);
}
