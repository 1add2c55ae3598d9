//! Everything at once: memory, CPUs and pools come and go, hosts take reports, and files are read
//! and written, while threads own memory in every form that the manager hands out. The test keeps
//! its own table of who owns each frame, and removed memory is overwritten or faults.

use crate::add::node;
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use crate::everything_owners::to_usize;
use crate::everything_owners::{Owners, lock};
use crate::everything_world::{BLOCK, Held, Place, Told, World};
use crate::files::read;
use framewright::hugetlb::PoolSize;
use framewright::manager::{Budget, HotplugError};
use framewright::memblock::NodeChoice;
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, Presence};
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::FakeHost;
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A small number.
fn index(random: &mut Random, below: u64) -> u32 {
    u32::try_from(random.below(below)).expect("small")
}

fn variable(name: &str, value: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(value)
}

struct Setting<'a> {
    line: &'a str,
    accepts: bool,
    forgets: bool,
    large: bool,
    reports: bool,
}

fn hammer(setting: &Setting<'_>, seed: u64, rounds: u64, ms: u64) {
    let small = [(mib(4096, 4224), 0), (mib(4224, 4352), 0), (mib(5120, 5248), 1)];
    let third = if setting.large { (gib(8, 36), 2) } else { (mib(8192, 8320), 2) };
    let places: Vec<_> = small.into_iter().chain([third]).collect();
    let mut builder = FakeMachine::builder()
        .ram(mib(0, 256))
        .node(mib(0, 256), 0)
        .ram(mib(1024, 1152))
        .node(mib(1024, 1152), 1)
        .nodes(3)
        .cpus_on(0, 3)
        .cpus_on(1, 3)
        .cpus_on(2, 3);
    for (range, _) in &places {
        builder = builder.spare(*range);
    }
    if setting.accepts {
        builder = builder.accepts();
    }
    let machine = builder.build();
    let parameters = parameters(setting.line);
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    let owners: &'static Owners = Box::leak(Box::new(Owners::new(manager, 36 << 30)));
    let (accepts, forgets) = (setting.accepts, setting.forgets);
    if accepts {
        machine.accept().set_forgets(forgets);
    }
    let world = World { manager, owners, accepts, forgets };
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for (range, on) in places {
        // SAFETY: the machine has it.
        let added = unsafe { manager.hotplug().add(range, node(on), Grade::Any) }.expect("added");
        let tables = range.size() / BLOCK - added.pages / 512;
        // SAFETY: nothing looks up descriptors meanwhile.
        unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) }.expect("free");
        let how = world.went(range, &mut random);
        let blocks = vec![(Presence::Absent, how); to_usize(range.size() / BLOCK)];
        all.push(Mutex::new(Place { range, node: on, tables, blocks }));
    }
    let places = all;
    let told: &'static Told = Box::leak(Box::default());
    *lock(&told.manager) = Some(manager);
    manager.hotplug().set_notifier(Some(told));
    manager.drain().expect("good");
    check(manager);
    let base = manager.totals();
    let mut reporter = setting.reports.then(|| {
        let (_, device) = FakeHost::new(machine, crate::common::reporting_rig::weightless());
        manager.register_reporting(device).map_err(|(error, _)| error).expect("the only device")
    });
    for round in 0..rounds {
        let ended = AtomicBool::new(false);
        let seed = random.below(1 << 40);
        if accepts {
            machine.accept().set_delay(Duration::from_micros(random.below(3) * 10));
        }
        thread::scope(|scope| {
            let (world, ended, places) = (&world, &ended, &places);
            for (number, cpu) in [4_u32, 3, 6, 1].into_iter().enumerate() {
                scope.spawn(move || {
                    machine.run_on(cpu, || {
                        let mut random = Random::new(seed + number as u64 + 1);
                        let mut held: Vec<Held> = Vec::new();
                        let most = 20 + 200 * number;
                        while !ended.load(Ordering::Relaxed) {
                            let grows = random.below(100) < 52;
                            if grows && held.len() < most {
                                world.allocate(&mut random, &mut held);
                            } else if !held.is_empty() {
                                let it = held.swap_remove(random.index(held.len()));
                                world.free(it, &mut random);
                            }
                            if random.one_in(3000) {
                                held.drain(..).for_each(|it| world.free(it, &mut random));
                            }
                        }
                        held.into_iter().for_each(|it| world.free(it, &mut random));
                    })
                });
            }
            for (number, cpu) in [2_u32, 7].into_iter().enumerate() {
                scope.spawn(move || {
                    machine.run_on(cpu, || {
                        let mut random = Random::new(seed + 50 + number as u64);
                        while !ended.load(Ordering::Relaxed) {
                            let place = &places[random.index(places.len())];
                            world.step(&mut lock(place), &mut random);
                        }
                    })
                });
            }
            // CPUs, pools, reports and files come and go.
            scope.spawn(move || {
                machine.run_on(5, || {
                    let mut random = Random::new(seed + 99);
                    let pool = manager.pool(PoolSize::TwoMib);
                    let mut pages = Vec::new();
                    while !ended.load(Ordering::Relaxed) {
                        let cpu = u32::try_from(random.below(7)).expect("few");
                        match random.below(9) {
                            6 => {
                                let place = random.choose(&[2048, 2112, 2560, 4096]);
                                let first = place.expect("some") + index(&mut random, 62);
                                let blocks =
                                    crate::common::blocks(first, 1 + index(&mut random, 3));
                                let isolation = manager.isolation();
                                if isolation.isolate(blocks).is_ok() {
                                    thread::yield_now();
                                    if random.one_in(2)
                                        && let Ok(got) = isolation.claim(blocks)
                                    {
                                        let owner = owners.take(got, false);
                                        let got = owners.give_up(owner);
                                        manager.give_back(got).expect("ours");
                                    } else {
                                        // Some memory may have gone and come back, or may be put
                                        // back.
                                        if isolation.unisolate(blocks).is_err() {
                                            for block in blocks.start.0..blocks.end.0 {
                                                let one = crate::common::blocks(block, 1);
                                                let _ = isolation.unisolate(one);
                                            }
                                        }
                                    }
                                }
                            }
                            7 => {
                                let place = random.choose(&[2048, 2112, 2560, 4096]);
                                let first = place.expect("some") + index(&mut random, 62);
                                let blocks =
                                    crate::common::blocks(first, 1 + index(&mut random, 3));
                                let grades = [Grade::Any, Grade::MovableOnly, Grade::Removable];
                                let grade = random.choose(&grades).expect("some");
                                let _ = manager.moving().set_grade(blocks, grade);
                            }
                            8 => {
                                let first = random.choose(&[2048_u64, 2112, 2560, 4096]);
                                let start = Pfn((first.expect("some") + random.below(62)) << 9);
                                let start = start.add(random.below(512));
                                let run = PfnRange { start, end: start.add(1 + random.below(900)) };
                                let moving = manager.moving().by(owners);
                                if let Ok(got) = moving.allocate_range(run, Budget::runs(50)) {
                                    let owner = owners.take(got, false);
                                    manager.give_back(owners.give_up(owner)).expect("ours");
                                }
                            }
                            0 => _ = manager.cpus().offline(cpu),
                            1 => _ = manager.cpus().online(cpu),
                            2 => _ = pool.resize(random.below(24), &NoHelpers),
                            3 => {
                                if let Ok(page) = pool.allocate(NodeChoice::Any, false) {
                                    pages.push(owners.take(page, false));
                                }
                                if pages.len() > 6 {
                                    let page = owners.give_up(pages.swap_remove(0)).start;
                                    pool.give_back_page(page).expect("ours");
                                }
                            }
                            4 => {
                                let block = random.choose(&[32, 33, 40, 64, 65]).expect("some");
                                let file = ["state", "online", "valid_zones", "removable"];
                                let file = random.choose(&file).expect("some");
                                let _ = read(
                                    manager,
                                    &format!("/sys/devices/system/memory/memory{block}/{file}"),
                                );
                                let _ = read(manager, "/proc/zoneinfo");
                            }
                            _ => {
                                let _ = manager.drain();
                                let _ = manager.caches().age();
                            }
                        }
                        thread::sleep(Duration::from_micros(200));
                    }
                    for page in pages {
                        pool.give_back_page(owners.give_up(page).start).expect("ours");
                    }
                    pool.resize(0, &NoHelpers).expect("nobody else");
                    (0..7).for_each(|cpu| _ = manager.cpus().online(cpu));
                })
            });
            if let Some(reporter) = reporter.as_mut() {
                scope.spawn(move || {
                    machine.run_on(8, || {
                        let mut now = (round + 1) * 1_000_000_000_000;
                        while !ended.load(Ordering::Relaxed) {
                            now = reporter.poll(now).unwrap_or(now + 1_000_000).max(now + 1000);
                            thread::sleep(Duration::from_micros(50));
                        }
                        // Memory that is out comes back.
                        for _ in 0..100 {
                            if reporter.out_pages() == 0 {
                                break;
                            }
                            now += 1_000_000;
                            reporter.poll(now);
                        }
                    })
                });
            }
            thread::sleep(Duration::from_millis(ms));
            ended.store(true, Ordering::Relaxed);
        });
        manager.drain().expect("good frames");
        check(manager);
        assert!(lock(&told.open).is_empty());
        assert_eq!(manager.hotplug().going(), PhysRange::new(0, 0));
        // Everything goes.
        manager.hotplug().set_notifier(None);
        for place in &places {
            let mut place = lock(place);
            world.compare(&place, place.range);
            while let Some(at) = place.blocks.iter().rposition(|it| it.0 != Presence::Absent) {
                let first = place.blocks[..=at]
                    .iter()
                    .rposition(|it| it.0 == Presence::Absent)
                    .map_or(0, |at| at + 1);
                let start = place.range.start + first as u64 * BLOCK;
                let range = PhysRange::with_size(start, (at - first + 1) as u64 * BLOCK);
                // SAFETY: nothing looks up descriptors meanwhile.
                let gone = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
                if let Err(HotplugError::Tables(_)) = gone {
                    // The tables go last.
                    let tables = place.tables * BLOCK;
                    let rest = PhysRange::new(place.range.start + tables, range.end);
                    // SAFETY: nothing looks up descriptors meanwhile.
                    unsafe { manager.hotplug().remove(rest, Budget::UNLIMITED) }.expect("free");
                    world.removed(&mut place, rest, &mut random);
                    continue;
                }
                gone.unwrap_or_else(|error| panic!("{range:?}: {error}"));
                world.removed(&mut place, range, &mut random);
            }
        }
        manager.hotplug().set_notifier(Some(told));
        manager.drain().expect("good");
        check(manager);
        let now = manager.totals();
        assert_eq!(
            (now.present_pages, now.managed_pages, now.reserved_pages, now.allocated_pages),
            (base.present_pages, base.managed_pages, base.reserved_pages, base.allocated_pages),
            "round {round}"
        );
        assert_eq!(
            now.free_pages + now.descriptor_pages,
            base.free_pages + base.descriptor_pages,
            "round {round}"
        );
    }
}

fn hammer_all(accepts: bool, forgets: bool, reports: bool) {
    let (seed, rounds) = (variable("HOTPLUG_SEED", 1), variable("HOTPLUG_ROUNDS", 1));
    let ms = variable("HOTPLUG_MS", 150);
    for (number, line) in
        (0..).zip(["", "pages=inside", "zone_parts=4", "page_alloc.shuffle=1", "page_owner=on"])
    {
        for large in [false, true] {
            let setting = Setting { line, accepts, forgets, large, reports };
            hammer(&setting, seed * 10 + number, rounds, ms);
        }
    }
}

#[test]
fn everything_at_once() {
    hammer_all(false, false, false);
}

#[test]
fn everything_at_once_with_reports() {
    hammer_all(false, false, true);
}

#[test]
fn everything_at_once_accepted() {
    hammer_all(true, false, false);
}

#[test]
fn everything_at_once_where_hosts_forget() {
    hammer_all(true, true, true);
}
