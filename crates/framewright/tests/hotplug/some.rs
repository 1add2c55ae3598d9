//! Removing as much memory as possible: what is refused, what is not searched, and what happens
//! when time runs out; and what counts as a node's last memory.

use crate::add::{Log, add, machine, node, pages_in, with_one_page_of_four};
use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters};
use framewright::manager::{Budget, HotplugError, HotplugEvent, Removal, Veto};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{Frames, Request};
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};

fn remove_some(
    manager: &Fake,
    handles: &Handles<'_, FakeMachine>,
    within: PhysRange,
    most: u64,
    align: u64,
    budget: Budget,
) -> Result<Removal, HotplugError> {
    let hotplug = manager.hotplug().by(handles);
    // SAFETY: nothing looks up descriptors by number.
    unsafe { hotplug.remove_some(within, most, align, budget) }
}

#[test]
fn a_refusal_is_told() {
    let manager = machine(gib(4, 5), "");
    add(&manager, gib(4, 5), 0, Grade::Any).expect("added");
    let log: &'static Log = Box::leak(Box::default());
    *log.refuse.lock().expect("alive") =
        Some(|event| matches!(event, HotplugEvent::GoingOffline(_)));
    manager.hotplug().set_notifier(Some(log));
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    let some = || remove_some(&manager, &handles, gib(4, 5), 1 << 30, 2 << 20, Budget::UNLIMITED);
    assert_eq!(some(), Err(HotplugError::Veto(Veto)));
    *log.refuse.lock().expect("alive") = None;
    assert!(matches!(some(), Ok(Removal::Run(_))));
    manager.hotplug().set_notifier(None);
    check(&manager);
}

/// A notifier that keeps some memory keeps no more than the part in which that lies.
#[test]
fn a_refusal_keeps_nothing_else() {
    let manager = machine(gib(4, 6), "");
    add(&manager, gib(4, 6), 0, Grade::Any).expect("added");
    let log: &'static Log = Box::leak(Box::default());
    let kept = mib(6000, 6002);
    *log.refuse.lock().expect("alive") = Some(|event| {
        matches!(event, HotplugEvent::GoingOffline(range)
            if !range.intersection(mib(6000, 6002)).is_empty())
    });
    manager.hotplug().set_notifier(Some(log));
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    for (most, left) in [(2 << 30, 256 << 20), (2 << 20, 2 << 20)] {
        let some = || remove_some(&manager, &handles, gib(4, 6), most, 2 << 20, Budget::UNLIMITED);
        let removed = core::iter::from_fn(|| match some() {
            Ok(Removal::Run(run)) => Some(run.size()),
            other => {
                assert_eq!(other, Err(HotplugError::Veto(Veto)));
                None
            }
        });
        assert!(removed.sum::<u64>() != 0, "{most}");
        let known = manager.zones().iter().filter(|zone| zone.span().to_phys().start == 4 << 30);
        let present = known.map(|zone| zone.present_pages() << 12).sum::<u64>();
        // The tables stay, too.
        assert!((kept.size()..=left + (32 << 20)).contains(&present), "{most}: {present:#x}");
    }
    manager.hotplug().set_notifier(None);
    check(&manager);
}

#[test]
fn no_time_left_is_not_nothing_left() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4128);
    add(&manager, range, 0, Grade::Removable).expect("added");
    let handles = Handles::new(&manager, 1 << 17).expect("memory");
    while manager.totals().free_pages > 20 << 8 {
        handles.allocate(Order::PAGE).expect("memory");
    }
    let held: Vec<_> = handles.held().collect();
    held.into_iter().step_by(2).for_each(|handle| handles.free(handle).expect("held"));
    let some = |budget| remove_some(&manager, &handles, range, 32 << 20, 2 << 20, budget);
    let mut free = 0;
    let last = loop {
        match some(Budget::runs(0)).expect("possible") {
            Removal::Run(run) => free += run.size(),
            other => break other,
        }
    };
    assert!(free < range.size() && last == Removal::OutOfTime, "{free} {last:?}");
    assert!(matches!(some(Budget::UNLIMITED), Ok(Removal::Run(_))));
    check(&manager);
}

/// A range in several runs: the budget counts for all runs of the range together.
#[test]
fn a_budget_is_for_all_runs_of_a_range() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4104);
    add(&manager, range, 0, Grade::Removable).expect("added");
    manager.hotplug().offline(mib(4098, 4100), Budget::UNLIMITED).expect("free");
    let handles = Handles::new(&manager, 1 << 17).expect("memory");
    while manager.totals().free_pages > 20 << 8 {
        handles.allocate(Order::PAGE).expect("memory");
    }
    let first = mib(4096, 4098).whole_frames();
    let of_first = |handle: &_| handles.range(*handle).is_some_and(|run| first.contains(run.start));
    // Three pages are left in the first run, and one page in three of the other runs.
    let (first, others): (Vec<_>, Vec<_>) = handles.held().partition(of_first);
    assert!(first.len() > 3, "{}", first.len());
    first.into_iter().skip(3).for_each(|handle| handles.free(handle).expect("held"));
    let most = others.into_iter().enumerate().filter(|(number, _)| number % 3 != 0);
    most.for_each(|(_, handle)| handles.free(handle).expect("held"));
    let begun = || manager.moving().events().begun_runs;
    let before = begun();
    // SAFETY: nothing looks up descriptors by number.
    let removed = unsafe { manager.hotplug().by(&handles).remove(range, Budget::runs(4)) };
    assert!(removed.is_err(), "{removed:?}");
    assert!(begun() - before <= 4, "{}", begun() - before);
    let before = begun();
    let some = remove_some(&manager, &handles, range, 8 << 20, 8 << 20, Budget::runs(4));
    assert_eq!(some, Ok(Removal::OutOfTime));
    assert!(begun() - before <= 4, "{}", begun() - before);
    check(&manager);
}

/// Memory that was there and memory that was added form one run, wherever they meet.
#[test]
fn a_run_goes_over_the_border_of_a_window() {
    // Tables lie high.
    let builder = FakeMachine::builder().ram(mib(4096, 5632)).ram(gib(9, 10)).nodes(2);
    let builder = builder.spare(mib(5632, 8192)).node(mib(4096, 5632), 0).node(gib(9, 10), 0);
    let manager = bring_up_with(builder.build(), &[], &parameters("")).expect("bring-up");
    add(&manager, mib(5632, 8192), 0, Grade::Any).expect("added");
    let pages = 3 << 18;
    let run = manager.allocate_pages(pages, Order::PAGE).expect("there is so much in one run");
    assert_eq!(run.pages(), pages);
    check(&manager);
    manager.give_back(run).expect("ours");
    check(&manager);
}

/// A power-of-two run across such a border is freed like any other, by every call that frees.
#[test]
fn an_aligned_run_over_the_border_of_a_window_is_freed_whole() {
    for line in ["", "page_owner=on page_poison=1"] {
        // Tables lie high.
        let builder = FakeMachine::builder().ram(mib(4096, 4228)).ram(gib(9, 10));
        let machine = builder.spare(mib(4228, 4352)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        add(&manager, mib(4228, 4352), 0, Grade::Any).expect("added");
        let over = mib(4224, 4232).whole_frames();
        for way in 0..4 {
            let moving = manager.moving();
            assert_eq!(moving.allocate_range(over, Budget::UNLIMITED), Ok(over), "{line} {way}");
            check(&manager);
            let allocated = manager.totals().allocated_pages;
            match way {
                0 => manager.give_back(over).expect("ours"),
                1 => manager.give_back_pages(over.start, over.pages()).expect("ours"),
                2 => manager.give_back_order(over.start, order(11)).expect("ours"),
                _ => {
                    // SAFETY: allocated just now, and the test's.
                    let owned = unsafe { Frames::from_range(&manager, over) };
                    owned.expect("not empty").free().expect("ours");
                }
            }
            assert_eq!(manager.totals().allocated_pages, allocated - over.pages(), "{way}");
            check(&manager);
        }
    }
}

/// A device whose region is not aligned gets its memory, too.
#[test]
fn shares_are_of_all_blocks_that_have_some_of_a_region() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4104), 0, Grade::MovableOnly).expect("added");
    let all = manager.hotplug().shares_of(mib(4096, 4104));
    assert_eq!((all.kernel_pages, all.movable_pages), (0, 8 << 8));
    let region = PhysRange::new((4096 << 20) + 4096, (4104 << 20) - 4096);
    assert_eq!(manager.hotplug().shares_of(region), all);
    assert_eq!(manager.hotplug().shares_of(PhysRange::new(0, u64::MAX)).movable_pages, 8 << 8);
    let empty = PhysRange::new(1, 1);
    assert_eq!(manager.hotplug().shares_of(empty), framewright::manager::Shares::default());
    // No zone exists beyond the last address, whatever the lower bits of the frame number say.
    let added = Pfn::containing(4096 << 20);
    assert!(manager.numa().zone_of(added).is_some());
    assert_eq!(manager.numa().zone_of(Pfn(added.0 | 1 << 41)), None);
}

#[test]
fn what_is_offline_goes_first() {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4128), 0, Grade::Any).expect("added");
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add_offline(mib(4128, 4192), node(0)) }.expect("added");
    let page = manager.allocate_at(Pfn(4127 << 8), Order::PAGE, MigrateType::Movable);
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    let some =
        |most| remove_some(&manager, &handles, mib(4096, 4192), most, 2 << 20, Budget::UNLIMITED);
    assert_eq!(some(32 << 20), Ok(Removal::Run(mib(4160, 4192))));
    assert_eq!(some(1 << 30), Ok(Removal::Run(mib(4128, 4160))));
    assert!(matches!(some(1 << 30), Ok(Removal::Run(run)) if run.end <= 4126 << 20));
    check(&manager);
    manager.give_back(page.expect("free")).expect("ours");
}

#[test]
fn what_is_not_accepted_is_not_accepted_to_go() {
    let added = mib(4096, 4352);
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(added).nodes(2).accepts();
    let machine = builder.build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    add(&manager, added, 0, Grade::Any).expect("added");
    let mut held = Vec::new();
    for at in (added.start..added.end).step_by(8 << 20) {
        let page = manager.allocate_at(Pfn::containing(at), Order::PAGE, MigrateType::Movable);
        held.push(page.expect("nobody has it"));
    }
    let device = machine.accept();
    let (accepted, unaccepted) = (device.accepted_pages(), manager.totals().unaccepted_pages);
    let some = remove_some(&manager, &handles, added, 256 << 20, 16 << 20, Budget::UNLIMITED);
    assert!(matches!(some, Ok(Removal::Nothing(Some(_)))), "{some:?}");
    assert_eq!(device.accepted_pages(), accepted);
    assert_eq!(manager.totals().unaccepted_pages, unaccepted);
    check(&manager);
    for page in held {
        manager.give_back(page).expect("ours");
    }
    check(&manager);
}

#[test]
fn a_windows_own_tables_are_no_memory_of_a_node() {
    use HotplugEvent as E;
    let all = gib(4, 28);
    let builder = FakeMachine::builder().ram(mib(0, 64)).spare(all).nodes(2);
    let manager = bring_up_with(builder.build(), &[], &parameters("")).expect("bring-up");
    let log: &'static Log = Box::leak(Box::default());
    manager.hotplug().set_notifier(Some(log));
    let seen = || std::mem::take(&mut *log.seen.lock().expect("alive"));
    // SAFETY: nobody looks at descriptors there, and the machine has this memory.
    let (added, one) = (unsafe { manager.hotplug().add(all, node(1), Grade::Any) }, node(1));
    let tables = added.expect("added").table_bytes;
    assert!(tables > 0 && tables % (PAGES_PER_BLOCK << 12) == 0, "{tables}");
    assert!(seen().contains(&E::AddedFirst(one)));
    // All pages but the tables.
    let rest = PhysRange::new(all.start + tables, all.end);
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(rest, Budget::UNLIMITED) }.expect("free");
    assert_eq!(
        seen(),
        [E::RemovingLast(one), E::GoingOffline(rest), E::RemovedLast(one), E::Offline(rest)]
    );
    add(&manager, rest, 1, Grade::Any).expect("again");
    assert_eq!(
        seen(),
        [E::AddingFirst(one), E::GoingOnline(rest), E::AddedFirst(one), E::Online(rest)]
    );
    // SAFETY: nothing looks up descriptors there.
    unsafe { manager.hotplug().remove(all, Budget::UNLIMITED) }.expect("free");
    assert!(seen().contains(&E::RemovedLast(one)));
    check(&manager);
}

/// Most of the range belongs to owners that the mover does not know. One call does not ask for all
/// of it, and the next one goes on where the previous one ended.
#[test]
fn what_nobody_answers_for_is_asked_for_in_parts() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4608);
    add(&manager, range, 0, Grade::Removable).expect("added");
    let handles = Handles::new(&manager, 1 << 10).expect("memory");
    // One page of each block; those of the lowest 32 MiB are freed again.
    let frames = range.whole_frames();
    let border = frames.start.0 + (32 << 8);
    let mut held = Vec::new();
    for start in (frames.start.0..frames.end.0).step_by(512) {
        let place = |at| manager.allocate_at(Pfn(at), Order::PAGE, MigrateType::Movable);
        held.push(place(start + 7).expect("free"));
    }
    let (known, unknown): (Vec<_>, Vec<_>) = held.into_iter().partition(|run| run.start.0 < border);
    // The rest of the free memory is in use.
    let fill = Request { fail_fast: true, ..Request::new(Order::BLOCK) };
    let mut others = Vec::new();
    while let Ok(run) = manager.allocate(&fill) {
        others.push(run);
    }
    known.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    manager.drain().expect("in order");
    let some = |budget| remove_some(&manager, &handles, range, 32 << 20, 2 << 20, budget);
    // Free memory goes at once.
    let mut free = 0;
    while let Removal::Run(run) = some(Budget::runs(4)).expect("possible") {
        free += run.size();
    }
    assert!(free >= 30 << 20, "{free}");
    let asked = || manager.moving().events().failed_pages;
    let (mut calls, before) = (0, asked());
    let last = loop {
        let already = asked();
        let found = some(Budget::runs(4)).expect("possible");
        // 32 for each run, and those of one part of 32 MiB.
        assert!(asked() - already <= 4 * 32 + 16 * 2, "{}", asked() - already);
        calls += 1;
        assert!(calls < 100, "it begins again and again");
        if matches!(found, Removal::Nothing(_)) {
            break found;
        }
    };
    assert!(matches!(last, Removal::Nothing(Some(_))) && calls >= 3, "{last:?} after {calls}");
    assert!(asked() - before >= unknown.len() as u64);
    unknown.into_iter().chain(others).for_each(|run| manager.give_back(run).expect("ours"));
    check(&manager);
}

/// Much is wanted at once, the low end is pinned, and there is little time: the memory above still
/// comes.
#[test]
fn what_lies_behind_pins_comes_in_the_end() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4224);
    add(&manager, range, 0, Grade::Removable).expect("added");
    let low = mib(4096, 4100);
    let handles = with_one_page_of_four(&manager, 80, low);
    assert!(pages_in(&handles, low) > 500);
    let (mut gone, mut calls) = (0, 0);
    loop {
        let some = remove_some(&manager, &handles, range, 128 << 20, 2 << 20, Budget::runs(64));
        match some.expect("possible") {
            Removal::Run(run) => gone += run.size(),
            Removal::OutOfTime => {}
            Removal::Nothing(_) => break,
        }
        calls += 1;
        assert!(calls < 1000, "it begins again and again");
    }
    // All but the window's tables and the pinned pages.
    assert!(gone >= 96 << 20, "{gone} after {calls}");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(&manager);
}
