//! Removed memory faults: nothing may access it, whatever else happens meanwhile, and it may come
//! back with any content.

use crate::add::{add, node};
use crate::common::reporting_rig::{usual, weightless};
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters, settled};
use framewright::hugetlb::PoolSize;
use framewright::manager::{Budget, ContiguousRequest, HotplugError};
use framewright::procfs::{FileSystem, Source};
use framewright::units::{Order, Pfn, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::{Answer, FakeHost};
use framewright_testkit::workload::{Handles, Random};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn blocks_of(range: PhysRange) -> BlockRange {
    let frames = range.whole_frames();
    BlockRange {
        start: BlockNumber::containing(frames.start),
        end: BlockNumber::containing(frames.end),
    }
}

fn unplug(manager: &Fake, range: PhysRange) {
    // SAFETY: it was removed, or never added.
    unsafe { manager.platform().unplug(range) };
}

fn plug(manager: &Fake, range: PhysRange, pattern: u8) {
    // SAFETY: as there.
    unsafe { manager.platform().plug(range, pattern) };
}

fn remove(manager: &Fake, range: PhysRange) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

fn read_all_files(manager: &Fake) {
    let table = manager.files();
    let sources: [&dyn Source; 1] = [&table];
    let files = FileSystem::new(&sources);
    for path in [
        "/proc/meminfo",
        "/proc/zoneinfo",
        "/proc/buddyinfo",
        "/proc/pagetypeinfo",
        "/proc/vmstat",
        "/sys/devices/system/memory/memory32/state",
        "/sys/devices/system/memory/memory32/valid_zones",
    ] {
        let mut text = String::new();
        let _ = files.read(path, &mut text);
    }
}

/// Makes every call that walks tables.
fn do_everything(manager: &Fake, gone: PhysRange, reports: bool) {
    check(manager);
    read_all_files(manager);
    let host = FakeHost::new(manager.platform(), usual()).0;
    if reports {
        let registered = manager.register_reporting(host.device());
        let mut reporter = registered.map_err(|(error, _)| error).expect("the only one");
        let mut now = 1;
        for _ in 0..50 {
            now = reporter.poll(now).unwrap_or(now + 1_000_000_000);
        }
        check(manager);
        loop {
            match reporter.unregister() {
                Ok(_) => break,
                Err(again) => reporter = again,
            }
            now = reporter.poll(now).unwrap_or(now + 1_000_000_000);
        }
    }
    {
        let handles = Handles::new(manager, 1 << 15).expect("memory");
        let held: Vec<_> =
            (0..3000).map(|_| handles.allocate(Order::PAGE).expect("memory")).collect();
        held.iter().step_by(2).for_each(|&handle| handles.free(handle).expect("held"));
        let moving = manager.moving().by(&handles);
        moving.compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
        for pages in [512, 5000, 20_000] {
            let request = ContiguousRequest::new(pages);
            if let Ok(taken) = moving.allocate_contiguous(&request, Budget::UNLIMITED) {
                manager.give_back_to_zone(taken).expect("ours");
            }
        }
        handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    }
    for node in manager.nodes() {
        let _ = manager.moving().fragmentation_score(node.id);
    }
    let mut held = Vec::new();
    for order in [18, 12, 9, 4, 0] {
        let request =
            Request { reserves: Reserves::All, ..Request::new(crate::common::order(order)) };
        while let Ok(run) = manager.allocate(&request) {
            held.push(run);
        }
    }
    for run in held {
        assert!(run.intersection(gone.whole_frames()).is_empty(), "{run:?}");
        manager.give_back(run).expect("ours");
    }
    manager.caches().age().expect("good frames");
    check(manager);
    for range in [gone, PhysRange::new(gone.start, gone.start + (2 << 20))] {
        let blocks = blocks_of(range);
        if manager.isolation().isolate(blocks).is_ok() {
            let _ = manager.isolation().survey(blocks);
            manager.isolation().unisolate(blocks).expect("isolated");
        }
        let _ = manager.moving().set_grade(blocks, Grade::Removable);
        let _ = manager.moving().set_grade(blocks, Grade::Any);
        let _ = manager.moving().grade_of(Pfn(range.start >> 12));
        let _ = manager.moving().vacate(blocks, Budget::UNLIMITED).map(|_| {
            manager.isolation().unisolate(blocks).expect("isolated");
        });
        let taken = manager.moving().allocate_range(range.whole_frames(), Budget::UNLIMITED);
        assert!(taken.is_err());
    }
    for order in [Order::PAGE, Order::BLOCK, Order::MAX] {
        assert!(manager.allocate_at(Pfn(gone.start >> 12), order, MigrateType::Movable).is_err());
        let wrong = manager.give_back_order(Pfn(gone.start >> 12), order);
        assert!(wrong.is_err(), "{wrong:?}");
        let wrong = manager.give_back_order(Pfn(gone.end >> 13 & !511), Order::PAGE);
        assert!(wrong.is_err(), "{wrong:?}");
    }
    manager.pool(PoolSize::TwoMib).resize(4, &NoHelpers).expect("possible");
    manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("possible");
    let frames = gone.whole_frames();
    // SAFETY: nothing uses this memory.
    assert!(unsafe { manager.hotplug().release(frames) }.is_err());
    manager.sysctl().set_min_free_kbytes(manager.sysctl().min_free_kbytes()).expect("as it is");
    settled(manager);
    check(manager);
}

#[test]
fn a_window_with_its_tables_in_it_is_left_alone_when_it_is_gone() {
    for line in ["", "pages=inside", "page_alloc.shuffle=1", "page_owner=on", "careful=5"] {
        let range = gib(4, 28);
        let machine = FakeMachine::builder().ram(mib(0, 256)).spare(range).nodes(2).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let before = settled(&manager);
        // Debug aids fill freed memory with a pattern that the device does not preserve.
        let reports = !line.starts_with("careful");
        unplug(&manager, range);
        do_everything(&manager, range, reports);
        let mut full = None;
        for pattern in [0xff, 0x00, 0x5a, 0x11, 0x33] {
            plug(&manager, range, pattern);
            add(&manager, range, 0, Grade::Any).expect("added");
            check(&manager);
            let totals = settled(&manager);
            assert_eq!(*full.get_or_insert(totals), totals, "{line} {pattern:#x}");
            let mut held = Vec::new();
            for order in (0..19).chain(0..10) {
                held.push(
                    manager.allocate(&Request::new(crate::common::order(order))).expect("memory"),
                );
            }
            assert!(held.iter().any(|run| run.start >= Pfn(range.start >> 12)));
            for run in held {
                manager.give_back(run).expect("ours");
            }
            check(&manager);
            remove(&manager, range).expect("all is free");
            unplug(&manager, range);
            let after = settled(&manager);
            assert_eq!(after.present_pages, before.present_pages);
            do_everything(&manager, range, reports);
            // A part that ends within a GiB.
            let part = mib(4096, 5632);
            plug(&manager, part, pattern);
            add(&manager, part, 0, Grade::Any).expect("added");
            remove(&manager, part).expect("all is free");
            unplug(&manager, part);
            do_everything(&manager, range, reports);
        }
    }
}

/// Small pieces come and go in any order beside threads that use all the memory there is.
#[test]
fn whoever_looks_while_memory_goes_finds_it_there() {
    for line in ["", "pages=inside", "page_owner=on pages=inside"] {
        hammer(line, false);
    }
    hammer("page_alloc.shuffle=1 page_alloc.shuffle_seed=3", true);
    hammer("pages=inside", true);
}

fn hammer(line: &str, reports: bool) {
    let (window, small) = (gib(4, 28), mib(256, 512));
    let machine =
        FakeMachine::builder().ram(mib(0, 256)).spare(small).spare(window).cpus(6).build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let manager = &manager;
    // Handles know the places of all windows that exist when they are made.
    for range in [window, small] {
        add(manager, range, 0, Grade::Any).expect("added");
        remove(manager, range).expect("free");
        unplug(manager, range);
    }
    let ended = &AtomicBool::new(false);
    // Pages that nobody can move are held back while the whole window is to go.
    let calm = &AtomicBool::new(false);
    let handles = &Handles::new(manager, 1 << 14).expect("memory");
    let rounds: u64 =
        std::env::var("HOTPLUG_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6);
    let seed: u64 =
        std::env::var("HOTPLUG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    thread::scope(|scope| {
        let mut others = Vec::new();
        for cpu in 1..3 {
            others.push(scope.spawn(move || {
                machine.run_on(cpu, || {
                    let mut random = Random::new(seed * 10 + u64::from(cpu));
                    let mut held = Vec::new();
                    while !ended.load(Ordering::Relaxed) {
                        if held.len() < 150 && random.one_in(2) {
                            let order =
                                random.choose(&[0, 0, 0, 0, 1, 2, 3, 4, 5, 9]).expect("some");
                            if let Ok(handle) = handles.allocate(crate::common::order(order)) {
                                held.push(handle);
                            }
                        } else if !held.is_empty() {
                            let handle = held.swap_remove(random.index(held.len()));
                            handles.check(handle).expect("intact");
                            handles.free(handle).expect("held");
                        }
                    }
                });
            }));
        }
        others.push(scope.spawn(move || {
            machine.run_on(3, || {
                let mut random = Random::new(seed * 10 + 3);
                while !ended.load(Ordering::Relaxed) {
                    let moving = manager.moving().by(handles);
                    let _ = moving.compact(None, random.below(30), Budget::UNLIMITED);
                    let is_calm = calm.load(Ordering::Relaxed);
                    if is_calm && !random.one_in(8) {
                        thread::yield_now();
                        continue;
                    }
                    let request = ContiguousRequest::new(1 + random.below(3000));
                    if let Ok(taken) = moving.allocate_contiguous(&request, Budget::UNLIMITED) {
                        manager.give_back_to_zone(taken).expect("ours");
                    }
                    let within = random.choose(&[window, small]).expect("some").whole_frames();
                    let start =
                        BlockNumber::containing(within.start.add(random.below(within.pages())));
                    let blocks = BlockRange::new(start.0, start.0 + 1);
                    let _ = moving.set_grade(blocks, Grade::Any);
                }
            });
        }));
        others.push(scope.spawn(move || {
            machine.run_on(4, || {
                let host = FakeHost::new(machine, usual()).0;
                let mut random = Random::new(seed * 10 + 4);
                let mut now = 1;
                while !ended.load(Ordering::Relaxed) {
                    if reports {
                        let registered = manager.register_reporting(host.device());
                        let mut reporter =
                            registered.map_err(|(error, _)| error).expect("the only one");
                        for _ in 0..random.below(60) {
                            now = reporter.poll(now).unwrap_or(now + 1_000_000_000);
                        }
                        loop {
                            match reporter.unregister() {
                                Ok(_) => break,
                                Err(again) => reporter = again,
                            }
                            now = reporter.poll(now).unwrap_or(now + 1_000_000_000);
                        }
                    }
                    read_all_files(manager);
                    let is_calm = calm.load(Ordering::Relaxed);
                    let pages = if is_calm { 0 } else { random.below(3) };
                    let _ = manager.pool(PoolSize::TwoMib).resize(pages, &NoHelpers);
                    thread::yield_now();
                }
            });
        }));
        let changer = scope.spawn(move || {
            machine.run_on(5, || {
                let mut random = Random::new(seed * 10 + 5);
                for round in 0..rounds {
                    plug(manager, window, [0xff, 0, 0x5a, 0x22][(round % 4) as usize]);
                    let grade = random.choose(&[Grade::Any, Grade::MovableOnly, Grade::Removable]);
                    add(manager, window, 0, grade.expect("some")).expect("added");
                    pieces(manager, handles, small, &mut random);
                    let mut tries = 0;
                    loop {
                        calm.store(tries > 3, Ordering::Relaxed);
                        // SAFETY: nothing looks up descriptors by number.
                        let removed = unsafe {
                            manager.hotplug().by(handles).remove(window, Budget::UNLIMITED)
                        };
                        match removed {
                            Ok(_) => break,
                            Err(HotplugError::Range(_)) => tries += 1,
                            Err(error) => panic!("{error}"),
                        }
                        assert!(tries < 3000, "{removed:?}");
                        thread::yield_now();
                    }
                    calm.store(false, Ordering::Relaxed);
                    unplug(manager, window);
                    read_all_files(manager);
                }
            });
        });
        let changed = changer.join();
        ended.store(true, Ordering::Relaxed);
        for other in others {
            other.join().expect("alive");
        }
        changed.expect("alive");
    });
    check(manager);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    handles.held().for_each(|handle| handles.free(handle).expect("held"));
    manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("nobody else resizes");
    check(manager);
}

/// Adds and removes pieces of a range in any order, and ends with none of it present.
fn pieces(
    manager: &Fake,
    handles: &Handles<'_, FakeMachine>,
    within: PhysRange,
    random: &mut Random,
) {
    const BLOCK: u64 = 2 << 20;
    let blocks = within.size() / BLOCK;
    let mut there = vec![false; usize::try_from(blocks).expect("small")];
    let mut offline = there.clone();
    for step in 0..30 {
        let first = random.below(blocks);
        let count = if step == 29 { blocks } else { 1 + random.below(blocks - first) };
        let first = if step == 29 { 0 } else { first };
        let range =
            PhysRange::new(within.start + first * BLOCK, within.start + (first + count) * BLOCK);
        let at =
            usize::try_from(first).expect("small")..usize::try_from(first + count).expect("small");
        let hotplug = manager.hotplug().by(handles);
        if there[at.clone()].iter().all(|there| !there) {
            plug(manager, range, 0x77);
            if random.one_in(3) {
                // SAFETY: nobody else uses it.
                unsafe { hotplug.add_offline(range, node(0)) }.expect("nothing there");
                offline[at.clone()].fill(true);
            } else {
                add(manager, range, 0, Grade::Any).expect("nothing there");
            }
            there[at].fill(true);
        } else if there[at.clone()].iter().all(|&there| there) {
            if offline[at.clone()].iter().all(|&offline| offline) && random.one_in(2) {
                hotplug.online(range, Grade::Removable).expect("offline");
                offline[at].fill(false);
            } else if offline[at.clone()].iter().all(|offline| !offline) && random.one_in(3) {
                if hotplug.offline(range, Budget::UNLIMITED).is_ok() {
                    offline[at].fill(true);
                }
            } else {
                // SAFETY: nothing looks up descriptors by number.
                let removed = unsafe { hotplug.remove(range, Budget::UNLIMITED) };
                if removed.is_ok() {
                    unplug(manager, range);
                    there[at.clone()].fill(false);
                    offline[at].fill(false);
                }
            }
        } else {
            let added = add(manager, range, 0, Grade::Any);
            assert!(matches!(added, Err(HotplugError::Present(_))), "{added:?}");
            // SAFETY: nothing looks up descriptors by number.
            let removed = unsafe { hotplug.remove(range, Budget::UNLIMITED) };
            assert!(matches!(removed, Err(HotplugError::Absent(_))), "{removed:?}");
        }
    }
    for (block, _) in there.iter().enumerate().filter(|(_, there)| **there) {
        let start = within.start + block as u64 * BLOCK;
        let range = PhysRange::new(start, start + BLOCK);
        let mut tries = 0;
        // SAFETY: nothing looks up descriptors by number.
        while let Err(error) =
            // SAFETY: nobody looks at descriptors by number meanwhile (invariant 49).
            unsafe { manager.hotplug().by(handles).remove(range, Budget::UNLIMITED) }
        {
            assert!(matches!(error, HotplugError::Range(_)) && tries < 10_000, "{error:?}");
            tries += 1;
            thread::yield_now();
        }
        unplug(manager, range);
    }
}

/// If there is no room elsewhere for the tables of the added memory, they lie in the memory itself:
/// whole GiBs of it hold their own tables, and the edges have windows of their own.
#[test]
fn a_window_without_room_for_its_tables_elsewhere_is_of_whole_gibs() {
    let whole = mib(4352, 12_544);
    let machine = FakeMachine::builder().ram(mib(0, 64)).spare(whole).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    // 64 neighbouring pages here and there, and no longer runs.
    let all = Request { reserves: Reserves::All, ..Request::new(crate::common::order(6)) };
    let mut held = Vec::new();
    while let Ok(run) = manager.allocate(&all) {
        held.push(run);
    }
    for _ in 0..2 {
        let single = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
        while let Ok(page) = manager.allocate(&single) {
            held.push(page);
        }
    }
    held.sort_unstable_by_key(|run| run.start);
    let (mut kept, mut freed) = (Vec::new(), 0);
    let mut last = 0;
    for run in held {
        if run.pages() == 64 && run.start.0 >= last + 256 && freed < 64 {
            (last, freed) = (run.start.0, freed + 1);
            manager.give_back_to_zone(run).expect("ours");
        } else {
            kept.push(run);
        }
    }
    manager.sysctl().set_min_free_kbytes(0).expect("possible");
    let present = manager.totals().present_pages;
    // SAFETY: the machine has this memory and nobody else uses it.
    let added = unsafe { manager.hotplug().add(whole, node(0), Grade::Any) }.expect("added");
    assert!(added.table_bytes != 0 && added.windows == 3, "{added:?}");
    check(&manager);
    assert_eq!(remove(&manager, whole), Ok(added.pages));
    check(&manager);
    unplug(&manager, whole);
    check(&manager);
    read_all_files(&manager);
    assert_eq!(manager.totals().present_pages, present);
    plug(&manager, whole, 0xff);
    assert_eq!(add(&manager, whole, 0, Grade::Any), Ok(added.pages));
    check(&manager);
    for run in kept {
        manager.give_back_to_zone(run).expect("ours");
    }
    check(&manager);
}

/// Memory that has gone keeps nothing of the marks: while the host has what was reported, the zone
/// is not below them.
#[test]
fn what_has_gone_has_no_share_of_the_marks() {
    let windows = (0..8).map(|number| mib(8192 + number * 1024, 8192 + number * 1024 + 128));
    let mut builder = FakeMachine::builder().ram(mib(4096, 4096 + 512));
    for window in windows.clone() {
        builder = builder.spare(window);
    }
    let line = parameters("min_free_kbytes=11264");
    let manager = bring_up_with(builder.build(), &[], &line).expect("bring-up");
    for window in windows.clone() {
        add(&manager, window, 0, Grade::Any).expect("added");
    }
    for window in windows {
        remove(&manager, window).expect("free");
    }
    // Less than the low mark, and what one call may take.
    let marks = manager.zones()[0].watermarks();
    let most = marks.low_pages + (64 << 8);
    let held: Vec<_> = (0..256)
        .take_while(|_| manager.totals().free_pages >= most)
        .map(|_| manager.allocate(&Request::new(Order::BLOCK)).expect("memory"))
        .collect();
    let (host, device) = FakeHost::new(manager.platform(), weightless());
    host.answer(Answer::Never);
    let mut reporter = manager.register_reporting(device).map_err(|(error, _)| error).expect("one");
    let mut now = 1;
    for _ in 0..50 {
        now = reporter.poll(now).unwrap_or(now + 1_000_000_000);
    }
    let totals = manager.totals();
    assert!(totals.free_pages >= marks.low_pages, "{totals:?} {marks:?}");
    held.into_iter().for_each(|block| manager.give_back(block).expect("ours"));
}
