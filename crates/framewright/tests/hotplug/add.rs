//! Adding memory.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use framewright::manager::tier::DRAM_TIER;
use framewright::manager::{
    Budget, Group, HotplugError, HotplugEvent, HotplugNotifier, Reserves, Veto, ZoneView,
};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PhysRange};
use framewright::zone::{Grade, MigrateType, Presence, Watermarks, ZoneId, ZoneKind};
use framewright::{AllocateError, Request};
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

const PER_MIB: u64 = 256;

pub fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// A machine of 256 MiB, with `spare` from 4 GiB on to be added.
pub fn machine(spare: PhysRange, line: &str) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, 256)).spare(spare).nodes(2).build();
    bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
}

pub fn add(manager: &Fake, range: PhysRange, on: usize, grade: Grade) -> Result<u64, HotplugError> {
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add(range, node(on), grade) }.map(|added| added.pages)
}

/// Allocates single pages until only so many MiB are free, pins those in `pinned`, and gives back
/// three of every four others.
pub fn with_one_page_of_four(
    manager: &Fake,
    free_mib: u64,
    pinned: PhysRange,
) -> Handles<'_, FakeMachine> {
    let handles = Handles::new(manager, 1 << 17).expect("memory");
    while manager.totals().free_pages > free_mib * PER_MIB {
        handles.allocate(Order::PAGE).expect("memory");
    }
    let pinned = pinned.whole_frames();
    let stays = |handle: &_| handles.range(*handle).is_some_and(|run| pinned.contains(run.start));
    let (pinned, others): (Vec<_>, Vec<_>) = handles.held().partition(stays);
    pinned.into_iter().for_each(|handle| handles.pin(handle, true).expect("held"));
    let most = others.into_iter().enumerate().filter(|(number, _)| number % 4 != 0);
    most.for_each(|(_, handle)| handles.free(handle).expect("held"));
    manager.drain().expect("in order");
    handles
}

/// Returns how many pages of a range are held.
pub fn pages_in(handles: &Handles<'_, FakeMachine>, range: PhysRange) -> usize {
    let frames = range.whole_frames();
    let is_in = |handle: &_| handles.range(*handle).is_some_and(|run| frames.contains(run.start));
    handles.held().filter(is_in).count()
}

#[test]
fn memory_that_was_added_is_handed_out() {
    for line in ["", "pages=inside", "pages=none", "page_alloc.shuffle=1"] {
        let manager = machine(gib(4, 6), line);
        let before = manager.totals();
        let metadata = manager.metadata_bytes();
        assert_eq!(manager.hotplug().presence_of(4 << 30), Presence::Absent);
        assert_eq!(add(&manager, gib(4, 6), 0, Grade::Any), Ok(2048 * PER_MIB));
        check(&manager);
        let after = manager.totals();
        assert_eq!(after.present_pages, before.present_pages + 2048 * PER_MIB);
        assert_eq!(after.managed_pages, before.managed_pages + 2048 * PER_MIB);
        assert!(after.free_pages > before.free_pages + 2046 * PER_MIB);
        assert!(manager.metadata_bytes() - metadata <= 1 << 20);
        assert_eq!(manager.hotplug().presence_of(5 << 30), Presence::Online);
        let normal = ZoneId { node: node(0), kind: ZoneKind::Normal };
        let view = manager.view(normal).expect("it has memory now");
        assert_eq!(view.span().to_phys(), gib(4, 6));
        // All of the added memory and all that was there before, in pages.
        let mut held = Vec::new();
        while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
            crate::fill(&manager, PhysRange::with_size(page.address(), 4096), 1);
            held.push(page);
        }
        assert!(held.len() as u64 > 2000 * PER_MIB, "{}", held.len());
        let mut sorted = held.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), held.len());
        check(&manager);
        for page in held {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        manager.drain().expect("good frames");
        check(&manager);
        assert_eq!(manager.totals().allocated_pages, after.allocated_pages);
    }
}

#[test]
fn one_gib_blocks_come_whole() {
    let manager = machine(gib(4, 8), "");
    add(&manager, gib(4, 8), 0, Grade::Any).expect("added");
    let mut starts: Vec<Pfn> = (0..3)
        .map(|_| manager.allocate_order(Order::MAX, MigrateType::Movable).expect("a GiB"))
        .collect();
    starts.sort_unstable();
    assert_eq!(starts, (4..7).map(|at| Pfn(at << 18)).collect::<Vec<_>>());
    // Above the mark no fourth run can be allocated.
    assert!(manager.allocate_order(Order::MAX, MigrateType::Movable).is_err());
    for start in starts {
        manager.give_back_order(start, Order::MAX).expect("ours");
    }
    check(&manager);
}

/// After memory was added, CPUs cache frames of the highest zone as if it had been there from the
/// beginning; once it is gone they cache frames of low memory again.
#[test]
fn caches_move_to_where_memory_is() {
    let machine = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 8)).cpus(3).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let page = |cpu| {
        let on = |cpu| {
            manager.platform().run_on(cpu, || {
                let page =
                    manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
                manager.give_back_order(page, Order::PAGE).expect("ours");
                page
            })
        };
        on(cpu)
    };
    let zone = |cpu| manager.caches().cpu(cpu).expect("a CPU").zone.kind;
    assert!((0..3).all(|cpu| zone(cpu) == ZoneKind::Dma32 && page(cpu) < Pfn(1 << 16)));
    let most = manager.caches().cpu(0).expect("a CPU").most_pages;
    add(&manager, gib(4, 8), 0, Grade::Any).expect("added");
    assert!((0..3).all(|cpu| zone(cpu) == ZoneKind::Normal && page(cpu) >= Pfn(4 << 18)));
    assert!(manager.caches().cpu(0).expect("a CPU").most_pages > most);
    check(&manager);
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(gib(4, 8), Budget::UNLIMITED) }.expect("free");
    assert!((0..3).all(|cpu| zone(cpu) == ZoneKind::Dma32 && page(cpu) < Pfn(1 << 16)));
    assert_eq!(manager.caches().cpu(0).expect("a CPU").most_pages, most);
    check(&manager);
}

/// A VM of 256 MiB gets 12 GiB more, which Linux cannot give it.
#[test]
fn a_small_machine_becomes_large() {
    let manager = machine(gib(4, 16), "pages=inside");
    let before = manager.totals();
    assert_eq!(add(&manager, gib(4, 16), 0, Grade::Any), Ok(12288 * PER_MIB));
    check(&manager);
    let lost = before.free_pages + 12288 * PER_MIB - manager.totals().free_pages;
    assert!(lost <= PER_MIB, "{lost} pages");
    assert_eq!(manager.hotplug().windows_left(), 7);
}

/// With the parameter that keeps tables out of added memory, all tables lie elsewhere, or the
/// memory is refused.
#[test]
fn tables_stay_out_of_what_comes_if_that_is_said() {
    let all = PhysRange::new(1 << 40, 65 << 40);
    let manager = machine(all, "memory_hotplug.memmap_on_memory=N");
    let before = manager.totals();
    let wrong = add(&manager, all, 0, Grade::Any);
    assert!(matches!(wrong, Err(HotplugError::NoRoomForTables { .. })), "{wrong:?}");
    assert_eq!(manager.totals(), before);
    assert_eq!(manager.hotplug().windows_left(), 8);
    let range = PhysRange::with_size(all.start, 1 << 40);
    // SAFETY: the machine has this memory and nobody else uses it.
    let added = unsafe { manager.hotplug().add(range, node(0), Grade::Any) }.expect("added");
    assert_eq!((added.pages, added.table_bytes), (1 << 28, 0));
    check(&manager);
    let tables = PhysRange::with_size(range.start, 2 << 20);
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(tables, Budget::UNLIMITED) }.expect("it holds none");
    check(&manager);
}

/// The tables of 1 TiB lie in the added memory; next to nothing is taken from the memory that was
/// there.
#[test]
fn a_tebibyte_holds_its_own_tables() {
    let range = gib(1024, 2048);
    let manager = machine(range, "");
    let before = manager.totals();
    // SAFETY: the machine has this memory and nobody else uses it.
    let added = unsafe { manager.hotplug().add(range, node(0), Grade::Any) }.expect("added");
    check(&manager);
    assert_eq!(added.pages + added.table_bytes / 4096, 1 << 28);
    assert!(added.table_bytes < 64 << 20, "{}", added.table_bytes);
    let after = manager.totals();
    let taken = before.free_pages + added.pages - after.free_pages;
    assert!(taken * 4096 <= 64 << 10, "{taken} pages");
    // The window goes as a whole or not at all: its tables describe memory in use.
    let tables = PhysRange::new(range.start, range.start + (2 << 20));
    // SAFETY: nothing looks up descriptors there.
    let removed = unsafe { manager.hotplug().remove(tables, Budget::UNLIMITED) };
    assert!(matches!(removed, Err(HotplugError::Tables(_))), "{removed:?}");
    let rest = PhysRange::new(range.end - (1 << 30), range.end);
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(rest, Budget::UNLIMITED) }.expect("free");
    check(&manager);
    let first = PhysRange::new(range.start, rest.start);
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(first, Budget::UNLIMITED) }.expect("free");
    check(&manager);
    assert_eq!(manager.totals().present_pages, before.present_pages);
    // It works whatever the memory holds when it comes back.
    crate::fill(&manager, PhysRange::with_size(range.start, added.table_bytes), 0xff);
    let wrong = add(&manager, rest, 0, Grade::Any);
    assert!(matches!(wrong, Err(HotplugError::Tables(_))), "{wrong:?}");
    assert_eq!(add(&manager, range, 0, Grade::Any), Ok(added.pages));
    check(&manager);
    assert_eq!(manager.totals(), after);
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let manager = machine(gib(4, 6), "hotplug_windows=1");
    let before = manager.totals();
    let wrong = [
        (PhysRange::new(4 << 30, (4 << 30) + 4096), 0),
        (PhysRange::new(5 << 30, 5 << 30), 0),
        (PhysRange::new((4 << 30) + 4096, 5 << 30), 0),
        (gib(4, 5), 2),
        (mib(0, 2), 0),
        (mib(254, 258), 0),
        (PhysRange::new(1 << 52, (1 << 52) + (2 << 20)), 0),
    ];
    for (range, on) in wrong {
        assert!(add(&manager, range, on, Grade::Any).is_err(), "{range}");
        assert_eq!(manager.totals(), before);
    }
    let missing = manager.hotplug().online(gib(4, 5), Grade::Any);
    assert!(matches!(missing, Err(HotplugError::Absent(_))), "{missing:?}");
    add(&manager, mib(4096, 4098), 0, Grade::Any).expect("the first 2 MiB");
    let twice = add(&manager, mib(4096, 4100), 0, Grade::Any);
    assert_eq!(twice, Err(HotplugError::Present(Pfn(4096 * PER_MIB))));
    let foreign = add(&manager, mib(4098, 4100), 1, Grade::Any);
    assert!(matches!(foreign, Err(HotplugError::OtherNode(..))), "{foreign:?}");
    // In the same window.
    add(&manager, mib(4100, 4102), 0, Grade::Any).expect("a place");
    let full = add(&manager, gib(5, 6), 0, Grade::Any);
    assert!(matches!(full, Err(HotplugError::NoWindow(_))), "{full:?}");
    check(&manager);
    assert_eq!(manager.totals().present_pages, before.present_pages + 4 * PER_MIB);
}

/// A device of 40 GiB adds 256 MiB at a time: it does not need a window for each GiB, and no step
/// takes more than 1 MiB. Other memory next to the device has windows of its own.
#[test]
fn a_device_grows_in_small_steps() {
    let manager = machine(gib(4, 46), "");
    let hotplug = manager.hotplug();
    let group = Group { region: gib(5, 45), node: node(0), unit_bytes: Some(2 << 20) };
    hotplug.register_group(group).expect("room");
    add(&manager, mib(4096, 4352), 1, Grade::Any).expect("before it");
    let mut metadata = manager.metadata_bytes();
    for start in (5 * 1024..45 * 1024).step_by(256) {
        add(&manager, mib(start, start + 256), 0, Grade::Removable).expect("a place");
        assert!(manager.metadata_bytes() - metadata <= 1 << 20);
        metadata = manager.metadata_bytes();
    }
    add(&manager, mib(45 * 1024, 45 * 1024 + 256), 1, Grade::Any).expect("behind it");
    check(&manager);
    assert_eq!(hotplug.windows_left(), 8 - 2 - 3);
}

/// The windows planned in one call for a device do not overlap: a small window first, which is
/// larger than the memory that it was planned for, then one for the rest.
#[test]
fn a_device_that_starts_within_a_gib_comes_at_once() {
    let all = mib(4608, 46_080);
    let manager = machine(all, "");
    let group = Group { region: all, node: node(0), unit_bytes: None };
    manager.hotplug().register_group(group).expect("room");
    // The tables of the second window lie in a block of that window, which is never handed out.
    assert_eq!(add(&manager, all, 0, Grade::Any), Ok((all.size() >> 12) - 2 * PER_MIB));
    check(&manager);
    // Each block of 2 MiB has one owner, and none of them holds tables.
    let mut held = Vec::new();
    while let Ok(block) = manager.allocate_order(Order::BLOCK, MigrateType::Movable) {
        crate::fill(&manager, PhysRange::with_size(block.address(), 4096), 0xff);
        held.push(block);
    }
    check(&manager);
    held.sort_unstable();
    assert!(held.windows(2).all(|pair| pair[0] < pair[1]));
    held.into_iter().for_each(|block| manager.give_back_order(block, Order::BLOCK).expect("ours"));
    check(&manager);
}

#[test]
fn a_node_without_memory_gets_some() {
    let manager = machine(gib(4, 5), "");
    let near = Request { node: NodeChoice::Exact(node(1)), ..Request::new(Order::PAGE) };
    assert!(manager.allocate(&near).is_err());
    assert_eq!(manager.nodes()[0].fallback.iter().count(), 1);
    add(&manager, gib(4, 5), 1, Grade::Any).expect("added");
    let page = manager.allocate(&near).expect("memory of its own");
    assert!(page.start >= Pfn(4 << 18));
    let order = |from: usize| manager.nodes()[from].fallback.iter().collect::<Vec<_>>();
    assert_eq!(order(0), [node(0), node(1)]);
    assert_eq!(order(1), [node(1), node(0)]);
    manager.give_back(page).expect("ours");
    // Requests on node 0 are served from there when node 0 has nothing.
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::BLOCK, MigrateType::Movable) {
        held.push(page);
    }
    assert!(held.iter().any(|page| *page >= Pfn(4 << 18)));
    for page in held {
        manager.give_back_order(page, Order::BLOCK).expect("ours");
    }
    check(&manager);
}

#[test]
fn a_node_that_gets_memory_stands_where_its_tier_says() {
    let order_with = |tier: u8| {
        let machine = FakeMachine::builder().ram(mib(0, 256)).node(mib(0, 256), 0);
        let machine = machine.ram(gib(8, 9)).node(gib(8, 9), 2).spare(gib(4, 5)).nodes(3).build();
        let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
        manager.numa().set_tier(node(1), tier).expect("a node");
        add(&manager, gib(4, 5), 1, Grade::Any).expect("added");
        manager.nodes()[0].fallback.iter().collect::<Vec<_>>()
    };
    assert_eq!(order_with(DRAM_TIER), [0, 1, 2].map(node));
    assert_eq!(order_with(22), [0, 2, 1].map(node));
}

#[test]
fn grades_come_with_the_memory() {
    let manager = machine(gib(4, 5), "");
    let kbytes = manager.sysctl().min_free_kbytes();
    let limits = || {
        let boot = manager.views().filter(|zone| zone.id().kind < ZoneKind::Normal);
        let of = |zone: &ZoneView<'_, _>| (zone.watermarks(), zone.lowmem_reserve()[2]);
        boot.map(|zone| of(&zone)).collect::<Vec<_>>()
    };
    let before = limits();
    let pages = unmovable_pages(&manager);
    add(&manager, mib(4096, 4608), 0, Grade::Removable).expect("added");
    add(&manager, mib(4608, 5120), 0, Grade::MovableOnly).expect("added");
    check(&manager);
    assert_eq!(manager.sysctl().min_free_kbytes(), kbytes, "movable memory does not raise it");
    // Neither does it lower the marks of other memory, nor has that to be kept from requests that
    // cannot have what was added (Linux: `mm/page_alloc.c`, `__setup_per_zone_wmarks`,
    // `setup_per_zone_lowmem_reserve`).
    assert_eq!(limits(), before);
    assert!(unmovable_pages(&manager) + 16 > pages, "a few pages are tables now");
    let normal = manager.views().find(|zone| zone.id().kind == ZoneKind::Normal).expect("added");
    assert_eq!(normal.watermarks(), Watermarks::default());
    // Both grades add to the marks for movable requests.
    assert_eq!(normal.movable_watermarks().min_pages, 2 * 512 * PER_MIB / 1024 / 2);
    let dma32 = manager.views().find(|zone| zone.id().kind == ZoneKind::Dma32).expect("at boot");
    assert_eq!(dma32.lowmem_reserve()[2..], [0, 512 * PER_MIB / 256]);
    // A zone that others cannot use keeps nothing from them.
    assert_eq!(normal.lowmem_reserve()[2..], [0, 0]);
    // What a grade is worth follows when it changes.
    let all = crate::common::blocks(2048, 512);
    manager.moving().set_grade(all, Grade::Any).expect("free");
    assert_ne!(normal.watermarks(), Watermarks::default());
    assert_eq!(normal.movable_watermarks(), Watermarks::default());
    assert_eq!(dma32.lowmem_reserve()[2..], [1024 * PER_MIB / 256; 2]);
}

/// How many pages requests for unmovable memory get, all from below 4 GiB.
fn unmovable_pages(manager: &Fake) -> usize {
    let unmovable = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    let mut held = Vec::new();
    loop {
        match manager.allocate(&unmovable) {
            Ok(page) => held.push(page),
            Err(AllocateError::OutOfMemory { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(held.iter().all(|page| page.start < Pfn(4 << 18)), "none of it cannot be moved");
    let pages = held.len();
    for page in held {
        manager.give_back(page).expect("ours");
    }
    check(manager);
    pages
}

/// Linux's formula: the square root of 16 times the memory that cannot be moved, in KiB.
#[test]
fn marks_follow_memory() {
    let manager = machine(gib(4, 8), "");
    let managed = manager.totals().managed_pages * 4;
    assert_eq!(manager.sysctl().min_free_kbytes(), (managed * 16).isqrt());
    add(&manager, gib(4, 8), 0, Grade::Any).expect("added");
    let managed = manager.totals().managed_pages * 4;
    assert_eq!(manager.sysctl().min_free_kbytes(), (managed * 16).isqrt());
    let sum: u64 = manager.views().map(|view| view.watermarks().min_pages).sum();
    assert!(sum * 4 <= (managed * 16).isqrt() && sum * 4 + 16 > (managed * 16).isqrt());
    manager.sysctl().set_min_free_kbytes(100_000).expect("possible");
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(gib(4, 5), Budget::UNLIMITED) }.expect("free");
    assert_eq!(manager.sysctl().min_free_kbytes(), 100_000, "somebody wants more");
    check(&manager);
}

/// Says which events the notifier vetoes.
pub type Refuses = fn(HotplugEvent) -> bool;

#[derive(Default)]
pub struct Log {
    pub seen: Mutex<Vec<HotplugEvent>>,
    pub refuse: Mutex<Option<Refuses>>,
}

impl HotplugNotifier for Log {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        self.seen.lock().expect("alive").push(event);
        let refuse = *self.refuse.lock().expect("alive");
        if refuse.is_some_and(|refuse| refuse(event)) { Err(Veto) } else { Ok(()) }
    }
}

#[test]
fn who_is_told_may_refuse_and_hears_of_everything() {
    use HotplugEvent as E;
    let manager = machine(gib(4, 5), "");
    let log: &'static Log = Box::leak(Box::default());
    manager.hotplug().set_notifier(Some(log));
    let (range, one) = (gib(4, 5), node(1));
    let seen = || std::mem::take(&mut *log.seen.lock().expect("alive"));
    let zoneinfo = || {
        let views = manager.views();
        views.map(|v| (v.id(), v.span(), v.present_pages(), v.watermarks())).collect::<Vec<_>>()
    };
    let before = (manager.totals(), zoneinfo());
    *log.refuse.lock().expect("alive") = Some(|event| matches!(event, E::GoingOnline(_)));
    assert_eq!(add(&manager, range, 1, Grade::Any), Err(HotplugError::Veto(Veto)));
    assert_eq!(
        seen(),
        [E::AddingFirst(one), E::GoingOnline(range), E::CancelOnline(range), E::CancelFirst(one)]
    );
    assert_eq!((manager.totals(), zoneinfo()), before);
    *log.refuse.lock().expect("alive") = None;
    add(&manager, range, 1, Grade::Any).expect("added");
    assert_eq!(
        seen(),
        [E::AddingFirst(one), E::GoingOnline(range), E::AddedFirst(one), E::Online(range)]
    );
    *log.refuse.lock().expect("alive") = Some(|event| matches!(event, E::GoingOffline(_)));
    // SAFETY: nothing looks up descriptors there.
    let refused = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    assert_eq!(refused, Err(HotplugError::Veto(Veto)));
    assert_eq!(
        seen(),
        [E::RemovingLast(one), E::GoingOffline(range), E::CancelOffline(range), E::CancelLast(one)]
    );
    *log.refuse.lock().expect("alive") = None;
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) }.expect("free");
    assert_eq!(
        seen(),
        [E::RemovingLast(one), E::GoingOffline(range), E::RemovedLast(one), E::Offline(range)]
    );
    check(&manager);
}

/// Tries with ever more free memory until there is enough, so that each table in turn finds no
/// memory.
#[test]
fn without_memory_for_tables_nothing_is_added() {
    for line in ["", "pages=inside", "page_owner=on pages=inside", "zone_parts=4"] {
        let small = mib(4096, 4224);
        let manager = machine(small, line);
        let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
        let mut held: Vec<_> =
            std::iter::from_fn(|| manager.allocate(&all).map(|page| page.start).ok()).collect();
        let (windows, present) = (manager.hotplug().windows_left(), manager.totals().present_pages);
        let mut refused = 0;
        loop {
            let free = manager.totals().free_pages;
            match add(&manager, small, 0, Grade::Any) {
                Ok(pages) => {
                    assert_eq!(pages, 128 * PER_MIB);
                    break;
                }
                Err(HotplugError::NoRoomForTables { bytes }) => {
                    assert!(bytes > 0 && bytes <= 1 << 20, "{bytes}");
                    check(&manager);
                    let now = manager.totals();
                    assert_eq!((now.present_pages, now.free_pages), (present, free), "{line}");
                    assert_eq!(manager.hotplug().windows_left(), windows);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            // The last ones are neighbours now and then.
            let page = held.pop().expect("there is enough in the end");
            manager.give_back_order(page, Order::PAGE).expect("held");
            manager.drain().expect("good frames");
        }
        assert!(refused > 0, "{line}");
        check(&manager);
        assert_eq!(manager.hotplug().presence_of(small.start), Presence::Online);
        held.into_iter().for_each(|page| manager.give_back_order(page, Order::PAGE).expect("held"));
        check(&manager);
    }
}
