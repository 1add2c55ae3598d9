//! Memory that has to be accepted comes and goes beside threads that use all the memory they get.
//! Memory that the host leaves accepted is accepted only once.

use crate::add::{add, node};
use crate::common::{Descriptors, Fake, bring_up_with, check, gib, mib, order, parameters};
use crate::tally::Tally;
use framewright::firmware::MemoryKind;
use framewright::manager::{Budget, HotplugError, Removal};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{Grade, MigrateType, Presence, State};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::{Handles, Random};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 2 << 20;

fn machine(spare: PhysRange, line: &str) -> Fake {
    let ram = mib(0, if line.contains("handles") { 512 } else { 64 });
    let line = line.trim_start_matches("handles");
    let builder = FakeMachine::builder().ram(ram).spare(spare).nodes(2).cpus(6).accepts();
    bring_up_with(builder.build(), &[], &parameters(line)).expect("bring-up")
}

fn add_offline(manager: &Fake, range: PhysRange) {
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add_offline(range, node(0)) }.expect("nothing is there");
}

fn remove(manager: &Fake, range: PhysRange) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors by number.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

/// Checks that each block behind memory in use is accepted if it is present. No other thread may
/// run.
fn check_borders(manager: &Fake, places: &[PhysRange]) {
    let device = manager.platform().accept();
    for place in places {
        for at in (place.start..place.end).step_by(2 << 20) {
            let before = manager.block_state(BlockNumber::containing(Pfn::containing(at - BLOCK)));
            let is_used = before.is_some_and(|state| match state.state() {
                Some(State::Split) => state.managed_pages() != 0,
                Some(State::Free | State::Whole | State::Pool) => true,
                _ => false,
            });
            if is_used && manager.hotplug().presence_of(at) != Presence::Absent {
                let is_accepted = device.is_accepted(Pfn::containing(at));
                assert!(is_accepted, "{at:#x} can be read from the page before it");
            }
        }
    }
}

#[test]
fn windows_that_were_planned_in_vain_keep_their_zones() {
    // A small window before one that holds its own tables, whose second block cannot be accepted.
    let all = PhysRange::new(gib(4, 5).start + (512 << 20), 100 << 30);
    let manager = machine(gib(4, 100), "hotplug_windows=4");
    let device = manager.platform().accept();
    let failing = Pfn::containing((5 << 30) + BLOCK);
    device.fail_at(failing);
    assert_eq!(add(&manager, all, 0, Grade::Any), Err(HotplugError::NotAccepted(failing)));
    check(&manager);
    device.fail_no_more();
    device.forget_asked(PhysRange::with_size(failing.address(), BLOCK));
    let pages = add(&manager, all, 0, Grade::Any).expect("added");
    check(&manager);
    assert!(pages > 95 << 18);
    for at in [all.start, 6 << 30, all.end - BLOCK] {
        let taken = manager.allocate_at(Pfn::containing(at), Order::BLOCK, MigrateType::Movable);
        let taken = taken.expect("nobody has it");
        crate::fill(&manager, taken.to_phys(), 3);
        manager.give_back(taken).expect("ours");
    }
    assert_eq!(remove(&manager, all), Ok(pages));
    check(&manager);
}

#[test]
fn what_failed_where_it_is_is_not_asked_for_again_while_it_stays() {
    for online in [false, true] {
        let (first, second) = (mib(4096, 4160), mib(4160, 4224));
        let manager = machine(mib(4096, 4224), "");
        let device = manager.platform().accept();
        add_offline(&manager, second);
        device.fail_at(Pfn::containing(second.start).add(5));
        add(&manager, first, 0, Grade::Any).expect("added");
        manager.acceptance().accept_all(&NoHelpers);
        check(&manager);
        if online {
            manager.hotplug().online(second, Grade::Any).expect("offline");
        } else {
            remove(&manager, first).expect("free");
            add(&manager, first, 0, Grade::Any).expect("gone");
        }
        manager.acceptance().accept_all(&NoHelpers);
        check(&manager);
    }
}

#[test]
fn what_failed_and_goes_offline_is_not_asked_for_again() {
    let range = mib(4096, 4160);
    let manager = machine(range, "");
    manager.platform().accept().fail_at(Pfn::containing(range.start + 8 * BLOCK).add(9));
    add(&manager, range, 0, Grade::Any).expect("added");
    manager.acceptance().accept_all(&NoHelpers);
    manager.hotplug().offline(range, Budget::UNLIMITED).expect("free");
    check(&manager);
    manager.hotplug().online(range, Grade::Any).expect("offline");
    manager.acceptance().accept_all(&NoHelpers);
    check(&manager);
    assert!(manager.acceptance().lost_pages() >= PAGES_PER_BLOCK);
}

#[test]
fn a_block_that_fails_costs_one_block_before_it() {
    let range = mib(4096, 4160);
    let manager = machine(range, "");
    manager.platform().accept().fail_at(Pfn::containing(range.end - BLOCK).add(9));
    add(&manager, range, 0, Grade::Any).expect("added");
    for at in (range.start..range.end).step_by(2 << 20).collect::<Vec<_>>().into_iter().rev() {
        let taken = manager.allocate_at(Pfn::containing(at), Order::BLOCK, MigrateType::Movable);
        let _ = taken.map(|taken| manager.give_back(taken).expect("ours"));
    }
    check(&manager);
    assert_eq!(manager.acceptance().lost_pages(), 2 * PAGES_PER_BLOCK);
}

#[test]
fn what_comes_behind_a_run_that_is_being_accepted_is_accepted() {
    for (offline, rounds) in [(true, 0..20), (false, 0..20)] {
        for _ in rounds {
            let (boot, spare) = (gib(4, 5), mib(5120, 5184));
            let builder = FakeMachine::builder().ram(mib(0, 256)).cpus(2).nodes(1).accepts();
            let machine = builder.memory(boot, MemoryKind::Unaccepted).spare(spare).build();
            let manager = Descriptors::Deferred.bring_up(machine);
            let (manager, device) = (&manager, machine.accept());
            let last = Pfn::containing(boot.end - 4096);
            // Makes a place now, so that later no memory is needed for tables.
            add(manager, spare, 0, Grade::Any).expect("added");
            remove(manager, spare).expect("free");
            thread::scope(|scope| {
                let accepts = scope.spawn(|| {
                    machine.run_on(1, || {
                        let start = Pfn::containing(boot.start);
                        let _ = manager.allocate_at(start, Order::MAX, MigrateType::Movable);
                    });
                });
                machine.run_on(0, || {
                    while !device.is_accepted(last) {
                        std::hint::spin_loop();
                    }
                    if offline {
                        add_offline(manager, spare);
                    } else {
                        add(manager, spare, 0, Grade::Any).expect("added");
                    }
                });
                accepts.join().expect("alive");
            });
            check(manager);
            check_borders(manager, &[spare]);
        }
    }
}

/// One frame in every this many blocks cannot be accepted, in runs with such frames.
const FAILING: u64 = 13;

fn fails(at: u64) -> bool {
    at / BLOCK % FAILING == 5
}

/// The host takes away memory that nobody owns and gives it back with other content. Blocks that
/// could not be accepted are tried again when the memory comes back.
fn exchange(manager: &Fake, range: PhysRange, pattern: u8) {
    let device = manager.platform().accept();
    // SAFETY: it was removed.
    unsafe { manager.platform().unplug(range) };
    for at in (range.start..range.end).step_by(2 << 20) {
        if fails(at) && !device.is_accepted(Pfn::containing(at + BLOCK - 4096)) {
            device.forget_asked(PhysRange::with_size(at, BLOCK));
        } else if device.is_accepted(Pfn::containing(at)) {
            // SAFETY: as above.
            unsafe { manager.platform().plug(PhysRange::with_size(at, BLOCK), pattern) };
        }
    }
}

fn change(
    manager: &Fake,
    handles: &Handles<'_, FakeMachine>,
    place: PhysRange,
    (random, tally): (&mut Random, &Tally),
) {
    let hotplug = manager.hotplug().by(handles);
    let blocks = place.size() / BLOCK;
    let first = random.below(blocks);
    let count = 1 + random.below((blocks - first).min(24));
    let range = PhysRange::with_size(place.start + first * BLOCK, count * BLOCK);
    // The tables of a large window come only with all of it.
    let is_large = place.size() > 1 << 30 && random.one_in(3);
    let range = if is_large { place } else { range };
    let grade = random.choose(&[Grade::Any, Grade::MovableOnly, Grade::Removable]).expect("some");
    let budget = Budget::runs(random.below(64));
    match random.below(7) {
        0 | 1 if add(manager, range, 0, grade).is_ok() => tally.count("added"),
        // SAFETY: the machine has this memory and nobody else uses it.
        2 if unsafe { hotplug.add_offline(range, node(0)) }.is_ok() => {
            tally.count("added offline");
        }
        3 if hotplug.online(range, grade).is_ok() => tally.count("online"),
        4 if hotplug.offline(range, budget).is_ok() => tally.count("offline"),
        0..=4 => {}
        5 => {
            // SAFETY: nothing looks up descriptors by number.
            if unsafe { hotplug.remove(range, budget) }.is_ok() {
                tally.count("removed");
                exchange(manager, range, 0x6d);
            }
        }
        _ => {
            let (most, align) = ((1 + random.below(16)) * BLOCK, BLOCK << random.below(2));
            // SAFETY: as above.
            let some = unsafe { hotplug.remove_some(place, most.max(align), align, budget) };
            if let Ok(Removal::Run(run)) = some {
                tally.count("some removed");
                exchange(manager, run, 0xa7);
            }
        }
    }
}

fn hammer(
    (line, places, some_fail): (&str, &[PhysRange], bool),
    seed: u64,
    steps: u32,
    tally: &Tally,
) {
    let spare = PhysRange::new(places[0].start, places[places.len() - 1].end);
    let manager = &machine(spare, &format!("handles{line}"));
    let device = manager.platform().accept();
    // Handles know the places of all windows that exist when they are made.
    for &place in places {
        add(manager, place, 0, Grade::Any).expect("added");
        remove(manager, place).expect("free");
    }
    let all_blocks = (spare.start..spare.end).step_by(2 << 20);
    for at in all_blocks.filter(|&at| some_fail && fails(at)) {
        device.fail_at(Pfn::containing(at).add(77));
    }
    let handles = &Handles::new(manager, 1 << 14).expect("memory");
    let mut random = Random::new(seed);
    device.set_delay(Duration::from_micros(random.below(3) * 15));
    for _ in 0..3 {
        let ended = &AtomicBool::new(false);
        let (seeds, platform) = (random.below(1 << 30), manager.platform());
        thread::scope(|scope| {
            for cpu in 1..3 {
                scope.spawn(move || {
                    platform.run_on(cpu, || {
                        let (mut random, mut held) =
                            (Random::new(seeds + u64::from(cpu)), Vec::new());
                        while !ended.load(Ordering::Relaxed) {
                            if held.len() < 60 && random.one_in(2) {
                                let level = random.choose(&[0, 0, 3, 9, 9, 10]).expect("some");
                                held.extend(handles.allocate(order(level)));
                            } else if !held.is_empty() {
                                let handle = held.swap_remove(random.index(held.len()));
                                handles.check(handle).expect("intact");
                                handles.free(handle).expect("held");
                            }
                        }
                        held.into_iter().for_each(|it| handles.free(it).expect("held"));
                    })
                });
            }
            scope.spawn(move || {
                platform.run_on(3, || {
                    let mut random = Random::new(seeds + 3);
                    while !ended.load(Ordering::Relaxed) {
                        let place = random.choose(places).expect("some");
                        let at = place.start + random.below(place.size() / BLOCK) * BLOCK;
                        let at =
                            (Pfn::containing(at), [Order::PAGE, Order::BLOCK][random.index(2)]);
                        if let Ok(run) = manager.allocate_at(at.0, at.1, MigrateType::Movable) {
                            crate::fill(manager, run.to_phys(), 0x91);
                            manager.give_back(run).expect("ours");
                        }
                        if random.one_in(200) {
                            manager.acceptance().accept_all(&NoHelpers);
                        }
                    }
                })
            });
            platform.run_on(4, || {
                for _ in 0..steps {
                    let place = random.choose(places).expect("some");
                    change(manager, handles, place, (&mut random, tally));
                }
            });
            ended.store(true, Ordering::Relaxed);
        });
        check(manager);
        check_borders(manager, places);
    }
}

#[test]
fn what_comes_and_goes_is_accepted_once_and_before_it_is_touched() {
    let variable =
        |name, value| std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(value);
    let (seed, steps) = (variable("HOTPLUG_SEED", 1), variable("HOTPLUG_STEPS", 150));
    let small = [mib(4096, 4160), mib(4160, 4224)];
    let large = [gib(4, 28), gib(28, 60)];
    let steps = u32::try_from(steps).expect("few");
    let tally =
        Tally::new(&["added", "added offline", "online", "offline", "removed", "some removed"]);
    for (number, line) in (0..).zip(["", "pages=inside", "pages=none", "page_alloc.shuffle=1"]) {
        for (place, some_fail) in [(0, false), (0, true), (1, false)] {
            let setting = (line, &[small, large][place][..], some_fail);
            hammer(setting, seed * 10 + number, steps, &tally);
        }
    }
    assert!(tally.missing().is_empty(), "never: {:?}", tally.missing());
}
