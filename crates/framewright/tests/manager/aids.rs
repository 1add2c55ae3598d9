//! Debug aids: each misuse is reported with the source lines that allocated and freed the page,
//! writes to free memory are found on every allocation path, clearing clears, and random placement
//! changes only what the interface leaves open.

use crate::common::{Fake, bring_up_with, check, gib, mib, order};
use framewright::debug::{Damage, POISON, PageHistory};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::zone::FreeError;
use framewright::zone::{MigrateType, State};
use framewright::{
    AllocateError, BringUp, BringUpError, BringUpFailed, Manager, Parameters, Platform, Request,
};
use framewright_testkit::{FakeMachine, Owner};
use std::panic::Location;
use std::sync::Barrier;
use std::thread;

type Taken = Result<PfnRange, AllocateError>;

/// Brings up a manager with exactly the aids of `line`, also when the run is careful.
fn up(machine: &'static FakeMachine, line: &str) -> Fake {
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

fn run(start: Pfn, pages: u64) -> PfnRange {
    PfnRange::new(start.0, start.0 + pages)
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

type Way = (&'static str, fn(&Fake) -> Taken);

/// Every way to allocate, by name.
const WAYS: [Way; 7] = [
    ("order 0", |manager| {
        manager.allocate_order(Order::PAGE, MigrateType::Movable).map(|start| run(start, 1))
    }),
    ("order 3", |manager| {
        manager.allocate_order(order(3), MigrateType::Unmovable).map(|start| run(start, 8))
    }),
    ("order 6", |manager| {
        manager.allocate_order(order(6), MigrateType::Movable).map(|start| run(start, 64))
    }),
    ("order 9", |manager| {
        manager.allocate_order(order(9), MigrateType::Movable).map(|start| run(start, 512))
    }),
    ("a run", |manager| manager.allocate(&Request::pages(1300))),
    ("many", |manager| {
        let mut pages = [Pfn(0); 40];
        manager.allocate_bulk(&Request::pages(1), &mut pages)?;
        pages[1..].iter().for_each(|&page| manager.give_back(run(page, 1)).expect("allocated"));
        Ok(run(pages[0], 1))
    }),
    ("a place", |manager| manager.allocate_at(Pfn(0x3000), order(10), MigrateType::Movable)),
];

/// Frees `range` by the call that matches its size.
fn give(manager: &Fake, range: PfnRange) -> Result<(), FreeError> {
    match Order::for_pages(range.pages()).filter(|order| order.pages() == range.pages()) {
        Some(order) => manager.give_back_order(range.start, order),
        None => manager.give_back(range),
    }
}

fn words(machine: &FakeMachine, range: PfnRange) -> impl Iterator<Item = u64> + '_ {
    // The first and the last word of each page.
    let pages = range.start.0..range.end.0;
    pages.flat_map(|page| [0, 4088].map(|offset| machine.load(page * PAGE_SIZE + offset)))
}

fn write(machine: &FakeMachine, range: PfnRange) {
    for page in range.start.0..range.end.0 {
        for offset in [0, 4088] {
            // SAFETY: nobody holds a reference into the machine's memory.
            unsafe { machine.store(page * PAGE_SIZE + offset, 0x1234_5678_9abc_def0) };
        }
    }
}

#[test]
fn owners_know_lines_cpus_and_times() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(3).build();
    let manager = up(machine, "page_owner=on");
    for (name, allocate) in WAYS {
        machine.advance_ns(5_000_000_000);
        let now = machine.now_ns().expect("a clock");
        let taken = machine.run_on(2, || allocate(&manager)).expect("there is memory");
        let last = Pfn(taken.end.0 - 1);
        for page in [taken.start, last] {
            let history = manager.debug().page_history(page).expect("it was allocated");
            assert!(history.allocated, "{name}");
            assert_eq!(history.order, Order::for_pages(taken.pages()).expect("an order"), "{name}");
            let place = history.allocated_at.expect("there are few places");
            assert!(place.file().ends_with("manager/aids.rs"), "{name}: {place}");
            assert_eq!(history.allocated_on, Some(2));
            assert!(
                history.last_ns.is_some_and(|ns| ns <= now && now - ns < 1 << 16),
                "{history:?} {now}"
            );
        }
        machine.advance_ns(1_000_000_000);
        let (freed, line) = (manager.give_back(taken), line!());
        freed.expect("allocated");
        let history = manager.debug().page_history(last).expect("it was allocated");
        assert!(!history.allocated);
        assert_eq!(history.freed_at.map(Location::line), Some(line));
        assert_eq!(history.freed_on, Some(machine.current_cpu()));
        let text = history.to_string();
        assert!(text.contains(concat!("on CPU 2, freed by ", file!())), "{text}");
        assert!(
            text.ends_with(&format!(
                "on CPU {} at {}.999 s",
                machine.current_cpu(),
                now / 1_000_000_000
            )),
            "{text}"
        );
    }
    check(&manager);
    assert_eq!(manager.debug().page_history(Pfn(0x2345_6789)), None, "no such page");
    assert_eq!(manager.debug().page_history(Pfn(u64::MAX)), None);
}

#[test]
fn a_page_that_no_machine_has_has_no_history() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).ram(mib(4096, 4128)).build();
    let manager = up(machine, "page_owner=on");
    while manager.allocate_order(Order::PAGE, MigrateType::Movable).is_ok() {}
    assert!(manager.debug().page_history(Pfn::containing(4 << 30)).is_some());
    let in_the_hole = Pfn::containing(3 << 30);
    for above in [0, 1 << 41, 1 << 51, 1 << 63] {
        assert_eq!(manager.debug().page_history(Pfn(in_the_hole.0 | above)), None, "{above:#x}");
    }
}

#[test]
fn a_double_free_is_found_at_once_with_both_lines() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = up(machine, "page_owner=on");
    for (name, allocate) in WAYS {
        let taken = allocate(&manager).expect("there is memory");
        let (freed, line) = (give(&manager, taken), here().line());
        freed.expect("allocated");
        let allocated = manager.totals().allocated_pages;
        for twice in [give(&manager, taken), manager.give_back(taken)] {
            let Err(
                error @ FreeError::NotAllocated {
                    pfn,
                    state: Some(State::Free),
                    history: Some(history),
                },
            ) = twice
            else {
                panic!("{name}: {twice:?}");
            };
            assert_eq!(pfn, taken.start, "{name}");
            assert!(history.freed_at.is_some_and(|place| place.line() < line), "{history:?}");
            let text = error.to_string();
            assert!(
                text.contains("double free") && text.matches("manager/aids.rs:").count() == 2,
                "{text}"
            );
            assert!(!text.contains('\n'));
        }
        assert_eq!(manager.totals().allocated_pages, allocated);
    }
    manager.drain().expect("no bad frame came into a cache");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(&manager);
}

#[test]
fn without_owners_a_double_free_is_found_when_the_cache_is_drained() {
    let manager = up(FakeMachine::builder().ram(mib(0, 256)).build(), "");
    let [one, other] =
        [(); 2].map(|()| manager.allocate_order(order(5), MigrateType::Movable).expect("memory"));
    for run in [one, other] {
        manager.give_back_order(run, order(5)).expect("held");
    }
    let cached = manager.caches().pages();
    assert!(cached >= 64, "both are in the cache");
    let expected = FreeError::NotAllocated { pfn: one, state: Some(State::Free), history: None };
    if cfg!(debug_assertions) {
        assert_eq!(manager.give_back_order(one, order(5)), Err(expected));
        assert_eq!(manager.drain(), Ok(cached));
    } else {
        manager.give_back_order(one, order(5)).expect("the cache does not look");
        assert_eq!(manager.drain(), Err(expected));
    }
    check(&manager);
}

#[test]
fn every_wrong_free_has_its_error() {
    let hole = PhysRange::new(0x200_5000, 0x200_6000);
    let machine = FakeMachine::builder()
        .ram(mib(0, 64))
        .memory(hole, framewright::firmware::MemoryKind::Reserved)
        .ram(mib(1024, 1088))
        .build();
    let parameters = Parameters::parse("page_owner=on", &mut |problem| panic!("{problem}"));
    let kernel = PhysRange::new(0x240_0000, 0x248_0000);
    let manager = bring_up_with(machine, &[kernel], &parameters).expect("bring-up");
    let take =
        |pfn, of| manager.allocate_at(Pfn(pfn), order(of), MigrateType::Movable).expect("free");
    let reserved = |pfn| FreeError::NotAllocated {
        pfn: Pfn(pfn),
        state: Some(State::Reserved),
        history: None,
    };
    let (dma, dma32) = (take(0xe00, 9), take(0x1000, 9));
    let line = line!() + 1;
    let (small, neighbour) = (take(0x3000, 0), take(0x3001, 0));
    let (before_hole, large) = (take(0x2004, 0), take(0x3100, 4));
    let both = PfnRange { start: dma.start, end: dma32.end };
    let cases = [
        (
            "free: never allocated",
            manager.give_back(run(Pfn(0x3200), 2)),
            FreeError::NeverAllocated(Pfn(0x3200)),
        ),
        ("a hole", manager.give_back(run(Pfn(0x2005), 1)), reserved(0x2005)),
        ("into a hole", manager.give_back(run(Pfn(0x2004), 2)), reserved(0x2005)),
        ("reserved", manager.give_back_order(Pfn(0x2400), Order::PAGE), reserved(0x2400)),
        (
            "no memory",
            manager.give_back(run(Pfn(0x9_0000), 1)),
            FreeError::NotManaged(Pfn(0x9_0000)),
        ),
        (
            "beyond all memory",
            manager.give_back_order(Pfn(1 << 40), order(9)),
            FreeError::NotManaged(Pfn(1 << 40)),
        ),
        ("across zones", manager.give_back(both), FreeError::SpansZones(both)),
        ("nothing", manager.give_back(run(Pfn(0x3000), 0)), FreeError::Empty(run(Pfn(0x3000), 0))),
        (
            "past the end",
            manager.give_back(run(large.start, 17)),
            FreeError::NeverAllocated(large.end),
        ),
        (
            "a part, past the end",
            manager.give_back(run(Pfn(0x310c), 8)),
            FreeError::NeverAllocated(large.end),
        ),
        (
            "unaligned",
            manager.give_back_order(Pfn(0x310c), order(3)),
            FreeError::NotAligned { start: Pfn(0x310c), order: order(3) },
        ),
    ];
    for (name, found, expected) in cases {
        assert_eq!(found, Err(expected), "{name}");
    }
    // More than was allocated: the second page belongs to another allocation.
    let error =
        manager.give_back_order(small.start, order(1)).expect_err("the second page is another's");
    let FreeError::WrongSize { range, allocation: Some(allocation), pfn } = error else {
        panic!("{error}")
    };
    assert_eq!((range, pfn, allocation.order), (run(small.start, 2), neighbour.start, Order::PAGE));
    let text = error.to_string();
    let place = allocation.allocated_at.expect("there are few places");
    assert!(
        text.contains("wrong size")
            && text.contains(&format!("{}:{}:", place.file(), place.line())),
        "{text}"
    );
    assert!(place.line() < line, "the closure allocates: {place}");
    // Neighbours that one line allocated may be freed together; those that several lines allocated
    // may not.
    let elsewhere =
        manager.allocate_at(Pfn(0x3002), Order::PAGE, MigrateType::Movable).expect("free");
    let three = run(small.start, 3);
    assert!(matches!(
        manager.give_back(three),
        Err(FreeError::WrongSize { pfn, .. }) if pfn == elsewhere.start
    ));
    manager.give_back(run(small.start, 2)).expect("one line made both");
    // Any part of an allocation may be freed, and the owners still know the rest.
    manager.give_back_order(Pfn(0x3104), order(2)).expect("a part");
    manager.give_back(run(Pfn(0x3109), 1)).expect("a part");
    let again = manager.give_back(large).expect_err("parts are free");
    // The second part is free in its zone, the first only in a cache. Builds with debug assertions
    // look at the zone first; other builds have only the page owners.
    let named = Pfn(if cfg!(debug_assertions) { 0x3109 } else { 0x3104 });
    assert!(
        matches!(again, FreeError::NotAllocated { pfn, history: Some(_), .. } if pfn == named),
        "{again}"
    );
    for rest in [
        run(Pfn(0x3100), 4),
        run(Pfn(0x3108), 1),
        run(Pfn(0x310a), 6),
        dma,
        dma32,
        before_hole,
        elsewhere,
    ] {
        manager.give_back(rest).expect("allocated");
    }
    manager.drain().expect("good frames");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(&manager);
}

#[test]
fn of_two_frees_at_once_one_fails() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(3).build();
    let manager = up(machine, "page_owner=on");
    let barrier = Barrier::new(2);
    let block = |round: u64| if round.is_multiple_of(2) { order(0) } else { order(7) };
    for round in 0..300 {
        let start =
            manager.allocate_order(block(round), MigrateType::Movable).expect("there is memory");
        let free = || {
            barrier.wait();
            manager.give_back_order(start, block(round)).is_ok()
        };
        let freed = thread::scope(|scope| {
            [scope.spawn(free), scope.spawn(free)].map(|one| one.join().expect("no panic"))
        });
        assert!(freed[0] != freed[1], "{freed:?} in round {round}");
    }
    manager.drain().expect("good frames");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(&manager);
}

#[test]
fn writing_to_free_memory_is_found_on_every_path() {
    for (line, owner) in
        [("page_poison=1 page_owner=on", true), ("page_poison=1", false), ("careful=9", true)]
    {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager = up(machine, line);
        for (name, allocate) in WAYS {
            // Repeats until the damaged memory is allocated again, which random placement may put
            // off for ever.
            let mut found = false;
            for _ in 0..300 {
                let taken = allocate(&manager).expect("not damaged yet");
                write(machine, taken);
                give(&manager, taken).expect("allocated");
                if name == "many" {
                    // A bulk request that gets many pages takes them from the zone.
                    manager.drain().expect("good frames");
                }
                assert!(
                    words(machine, run(taken.start, 1))
                        .all(|word| word == u64::from_ne_bytes([POISON; 8])),
                    "{name}"
                );
                let address = taken.start.address() + 8;
                // SAFETY: nobody holds a reference into the machine's memory.
                unsafe { machine.store(address, 0xaaaa_aaaa_aaaa_41aa) };
                let again = allocate(&manager);
                let Err(AllocateError::Damaged(damage)) = again else {
                    // The request got other memory. Allocating the damaged page by its place finds
                    // the damage as well.
                    give(&manager, again.expect("other memory is not damaged")).expect("allocated");
                    manager.drain().expect("good frames");
                    let at = manager.allocate_at(taken.start, Order::PAGE, MigrateType::Movable);
                    assert!(matches!(at, Err(AllocateError::Damaged(_))), "{name}: {at:?}");
                    continue;
                };
                assert_eq!((damage.address, damage.found), (address + 1, 0x41), "{name}");
                assert_eq!(damage.history.is_some(), owner);
                let text = AllocateError::Damaged(damage).to_string();
                assert_eq!(
                    text.matches("manager/aids.rs:").count(),
                    if owner { 2 } else { 0 },
                    "{text}"
                );
                assert_eq!(manager.debug().damage().map(|(_, last)| last), Some(damage));
                found = true;
                break;
            }
            assert!(found || line.contains("careful"), "{name}: the memory never came again");
            // The memory was filled with poison again and is free, so that it can be allocated.
            let taken = allocate(&manager).expect("repaired");
            give(&manager, taken).expect("allocated");
            manager.drain().expect("good frames");
            assert_eq!(manager.totals().allocated_pages, 0, "{name}");
            check(&manager);
        }
    }
}

#[test]
fn clearing_clears_on_every_path() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = up(machine, "init_on_alloc=1");
    for (name, allocate) in WAYS {
        for _ in 0..3 {
            let taken = allocate(&manager).expect("there is memory");
            assert!(words(machine, taken).all(|word| word == 0), "{name}");
            write(machine, taken);
            give(&manager, taken).expect("allocated");
        }
    }
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = up(machine, "init_on_free=1");
    for (name, allocate) in WAYS {
        let taken = allocate(&manager).expect("there is memory");
        write(machine, taken);
        give(&manager, taken).expect("allocated");
        assert!(words(machine, taken).all(|word| word == 0), "{name}");
        // A free that is refused clears nothing.
        let mine = allocate(&manager).expect("there is memory");
        write(machine, mine);
        assert!(manager.give_back(run(mine.start, 1 << 13)).is_err());
        assert!(words(machine, mine).all(|word| word != 0), "{name}");
        give(&manager, mine).expect("allocated");
    }
    check(&manager);
}

#[test]
fn zeroed_requests_are_zero_whatever_is_on() {
    for line in ["page_poison=1", "page_owner=on", "init_on_free=1", "careful=3", ""] {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager = up(machine, line);
        let request = Request { zeroed: true, ..Request::pages(700) };
        for _ in 0..5 {
            let taken = manager.allocate(&request).expect("there is memory");
            assert!(words(machine, taken).all(|word| word == 0), "{line}");
            write(machine, taken);
            manager.give_back(taken).expect("allocated");
            let mut pages = [Pfn(0); 70];
            let got = manager.allocate_bulk(&request, &mut pages).expect("there is memory");
            for page in &pages[..got] {
                assert!(words(machine, run(*page, 1)).all(|word| word == 0), "{line}");
                write(machine, run(*page, 1));
                manager.give_back_order(*page, Order::PAGE).expect("allocated");
            }
        }
        check(&manager);
    }
}

#[test]
fn a_whole_gib_is_poisoned_and_looked_at() {
    let machine = FakeMachine::builder().ram(gib(0, 4)).build();
    let manager = up(machine, "page_poison=1");
    let at = |pfn| manager.allocate_at(Pfn(pfn), Order::MAX, MigrateType::Movable);
    let taken = at(1 << 18).expect("free");
    manager.give_back_order(taken.start, Order::MAX).expect("allocated");
    let last = taken.end.address() - 8;
    assert_eq!(machine.load(last), u64::from_ne_bytes([POISON; 8]));
    // SAFETY: nobody holds a reference into the machine's memory.
    unsafe { machine.store(last, 0) };
    let damage = Damage { address: last, found: 0, history: None };
    assert_eq!(at(1 << 18), Err(AllocateError::Damaged(damage)));
    let taken = at(1 << 18).expect("repaired");
    manager.give_back(taken).expect("allocated");
    check(&manager);
    // SAFETY: the manager, the only user, is no longer used.
    unsafe { machine.retire() };
}

#[test]
fn memory_beyond_the_direct_map_is_left_alone() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).direct_limit(48 << 20).build();
    let manager = up(machine, "page_poison=1 page_owner=on");
    for pfn in [0x2800, 0x3000, 0x3400] {
        for _ in 0..2 {
            let taken =
                manager.allocate_at(Pfn(pfn), order(9), MigrateType::Movable).expect("free");
            manager.give_back(taken).expect("allocated");
        }
    }
    check(&manager);
}

#[test]
fn tables_of_aids_are_counted_and_given_back_when_there_is_no_room() {
    let plain = up(FakeMachine::builder().ram(mib(0, 256)).build(), "").metadata_bytes();
    let owners =
        up(FakeMachine::builder().ram(mib(0, 256)).build(), "page_owner=on").metadata_bytes();
    let poison =
        up(FakeMachine::builder().ram(mib(0, 256)).build(), "page_poison=1").metadata_bytes();
    // 16 bytes per page for the owners, one bit per page for the poison, and the table of source
    // lines.
    assert!((0x10_0000..0x11_0000).contains(&(owners - plain)), "{owners} {plain}");
    assert!((0x2000..0x1_2000).contains(&(poison - plain)), "{poison} {plain}");
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    let parameters =
        Parameters::parse("page_owner=on page_poison=1", &mut |problem| panic!("{problem}"));
    let mut failures = 0;
    for pages in (40..400).step_by(10) {
        let reserved =
            [PhysRange::new(0, 64 << 20), PhysRange::new((64 << 20) + pages * PAGE_SIZE, 1 << 52)];
        let early = machine.memblock(&reserved);
        let before: Vec<_> = early.reserved().to_vec();
        let input = BringUp { parameters: &parameters, started_ns: None };
        match Manager::bring_up(early, &input) {
            Ok(manager) => {
                check(&manager);
                assert!(failures > 5, "{pages} pages are enough");
            }
            Err(BringUpFailed { error, early }) => {
                assert_eq!(early.reserved(), before, "{error}");
                failures += u32::from(matches!(
                    error,
                    BringUpError::NoRoomForTables { what, .. } if what.contains("page owners")
                ));
            }
        }
    }
    assert!(failures < 36, "there was never enough");
}

#[test]
fn chance_decides_where_memory_is_taken_from() {
    let orders = [0, 2, 5, 9, 11].map(order);
    let sample =
        |line: &str| {
            let manager = up(FakeMachine::builder().ram(mib(0, 500)).build(), line);
            let mut taken = Vec::new();
            for round in 0..20 {
                taken.extend(orders.map(|order| {
                    manager.allocate_order(order, MigrateType::Movable).expect("memory")
                }));
                if round % 3 == 0 {
                    for (start, order) in taken.split_off(taken.len() - 5).into_iter().zip(orders) {
                        manager.give_back_order(start, order).expect("allocated");
                    }
                }
            }
            check(&manager);
            taken
        };
    assert_eq!(sample(""), sample(""));
    assert_eq!(sample("careful=4"), sample("careful=4"), "a seed repeats itself");
    let runs = ["", "careful=1", "careful=2", "careful=3"].map(sample);
    for (column, order) in orders.iter().enumerate() {
        let of = |run: &Vec<Pfn>| run.iter().skip(column).step_by(5).copied().collect::<Vec<_>>();
        let different: std::collections::BTreeSet<_> = runs.iter().map(of).collect();
        assert!(different.len() >= 3, "{order:?}: {}", different.len());
    }
}

#[test]
fn nothing_is_kept_when_nothing_is_on() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build(), "");
    let taken = manager.allocate(&Request::pages(1)).expect("memory");
    assert_eq!(manager.debug().page_history(taken.start), None::<PageHistory>);
    assert_eq!(manager.debug().damage(), None);
    assert!(!manager.debug().aids().watch());
}
