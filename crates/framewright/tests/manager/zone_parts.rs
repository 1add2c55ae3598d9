//! Zones in several parts against the same zones in one part: both have as much memory, the same
//! watermarks, the same errors and the same views.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, settled};
use framewright::hugetlb::PoolSize;
use framewright::manager::{Budget, ContiguousRequest};
use framewright::memblock::NodeChoice;
use framewright::procfs::FileSystem;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeError, IsolateError, MigrateType, ZoneId, ZoneKind, watermarks};
use framewright::{Parameters, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};
use std::collections::BTreeSet;

const GIB: u64 = 1 << 18;

/// Two nodes with holes: some GiBs are whole, some have 64 MiB, and some have nothing.
fn machine(cpus: u32) -> &'static FakeMachine {
    let mut builder = FakeMachine::builder().ram(gib(0, 3)).ram(gib(4, 8));
    for gibibyte in [9, 10, 12, 13] {
        builder = builder.ram(mib(1024 * gibibyte + 480, 1024 * gibibyte + 544));
    }
    let builder = builder.ram(gib(14, 18)).node(gib(0, 10), 0).node(gib(10, 18), 1);
    builder.cpus_on(0, cpus).cpus_on(1, cpus).build()
}

/// One node whose `Normal` zone has 64 MiB on each of eight GiB borders, for tests that look at
/// every page.
fn thin(cpus: u32) -> &'static FakeMachine {
    let mut builder = FakeMachine::builder().ram(mib(0, 64));
    for border in 5..13 {
        builder = builder.ram(mib(1024 * border - 32, 1024 * border + 32));
    }
    builder.cpus(cpus).build()
}

fn divided(machine: &'static FakeMachine, line: &str) -> Fake {
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

fn normal(node: usize) -> ZoneId {
    ZoneId { node: NodeId::new(node).expect("a node"), kind: ZoneKind::Normal }
}

/// The zone and part that a frame belongs to.
fn part_of(manager: &Fake, pfn: Pfn) -> (ZoneId, u16) {
    let has = |range: PfnRange| range.contains(pfn);
    let zone = manager.zones().iter().find(|zone| has(zone.span()) && in_segments(zone, pfn));
    zone.map(|zone| (zone.id(), zone.part())).expect("somebody's frame")
}

fn in_segments(zone: &framewright::zone::Zone, pfn: Pfn) -> bool {
    let block = BlockNumber::containing(pfn);
    zone.segments().iter().any(|segment| (segment.start..segment.end()).contains(&block))
}

#[test]
fn parts_are_of_whole_gibs_and_alike() {
    for parts in [1, 2, 3, 4, 64] {
        let manager = divided(machine(1), &format!("zone_parts={parts}"));
        let one = divided(machine(1), "zone_parts=1");
        assert!(manager.views().map(|zone| zone.id()).eq(one.views().map(|zone| zone.id())));
        for (zone, whole) in manager.views().zip(one.views()) {
            let gibs: BTreeSet<u32> = whole
                .segments()
                .flat_map(|segment| segment.start.0 / 512..segment.end().0.div_ceil(512))
                .collect();
            assert_eq!(zone.parts().len(), parts.min(gibs.len()), "{}", zone.id());
            assert_eq!(zone.present_pages(), whole.present_pages());
            assert_eq!(zone.span(), whole.span());
            assert_eq!(whole.parts().len(), 1);
            let mut end = zone.span().start;
            for (number, part) in (0..).zip(zone.parts().iter()) {
                assert_eq!((part.part(), usize::from(part.parts())), (number, zone.parts().len()));
                assert_eq!(part.span().start, end, "spans leave nothing out");
                end = part.span().end;
                assert!(number == 0 || part.span().start.0.is_multiple_of(GIB));
                let own: BTreeSet<u32> = part
                    .segments()
                    .iter()
                    .flat_map(|segment| segment.start.0 / 512..segment.end().0.div_ceil(512))
                    .collect();
                let equal = gibs.len() / zone.parts().len();
                assert!((equal..=equal + 1).contains(&own.len()), "{own:?} of {gibs:?}");
                assert!(own.is_subset(&gibs));
            }
            assert_eq!(end, zone.span().end);
        }
    }
}

#[test]
fn there_are_as_many_parts_as_suit_the_cpus() {
    let little = [(1, 1), (4, 1), (5, 2), (8, 2), (9, 4), (16, 4), (17, 4)];
    let plenty = [(2, 1), (3, 3), (4, 4), (5, 5), (8, 8), (12, 12), (17, 12)];
    let cases = little.map(|case| (8, case)).into_iter().chain(plenty.map(|case| (52, case)));
    for (gibs, (cpus, parts)) in cases {
        let manager = divided(FakeMachine::builder().ram(gib(0, gibs)).cpus(cpus).build(), "");
        let normal = manager.view(normal(0)).expect("it has memory");
        assert_eq!(normal.parts().len(), parts, "{cpus} CPUs");
        // Each part is the home of some CPU, and of at most four.
        let homes = (0..cpus).map(|cpu| {
            manager.platform().run_on(cpu, || {
                let page = manager.allocate_order(Order::PAGE, MigrateType::Movable);
                part_of(&manager, page.expect("there is memory")).1
            })
        });
        let mut users = vec![0; parts];
        homes.for_each(|part| users[usize::from(part)] += 1);
        assert!(users.iter().all(|users| (1..=5).contains(users)), "{cpus} CPUs: {users:?}");
        check(&manager);
    }
}

#[test]
fn views_and_files_show_zones_as_if_they_had_one_part() {
    let (one, four) = (divided(machine(2), "zone_parts=1"), divided(machine(2), "zone_parts=4"));
    let tables = |manager: &Fake| manager.totals().reserved_pages;
    let total_pages: u64 = four.views().map(|zone| zone.managed_pages()).sum();
    let kbytes = four.sysctl().min_free_kbytes();
    for (zone, whole) in four.views().zip(one.views()) {
        // Tables are rounded to pages for each part.
        assert_eq!(
            zone.managed_pages() + zone.reserved_pages(),
            whole.managed_pages() + whole.reserved_pages()
        );
        assert!(zone.managed_pages().abs_diff(whole.managed_pages()) < 64);
        assert_eq!(zone.free_pages(), zone.managed_pages());
        assert_eq!(zone.free_areas().pages(), zone.free_pages());
        assert_eq!(zone.free_areas().by_order()[18], whole.free_areas().by_order()[18]);
        let marks = watermarks(zone.managed_pages(), total_pages, kbytes, 10);
        assert_eq!(zone.watermarks(), marks, "marks are the zone's as a whole");
        assert_eq!(zone.verify().expect("right").managed_pages, zone.managed_pages());
    }
    assert_eq!(
        four.totals().managed_pages + tables(&four),
        one.totals().managed_pages + tables(&one)
    );
    for path in ["/proc/zoneinfo", "/proc/buddyinfo", "/proc/pagetypeinfo", "/proc/vmstat"] {
        let names = |manager: &Fake| {
            let mut text = String::new();
            let table = manager.files();
            FileSystem::new(&[&table]).read(path, &mut text).expect("a file");
            // Compares everything but numbers, which the tables change a little together with the
            // blocks they are in.
            let is_number = |c: char| c.is_ascii_digit();
            text.lines()
                .map(|line| line.replace(is_number, " "))
                .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&four), names(&one), "{path}");
    }
}

/// Allocates all that requests get, from order `most` down.
fn take_all(manager: &Fake, request: &Request, most: u8) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for of in (0..=most).rev() {
        let request = Request { pages: order(of).pages(), ..*request };
        while let Ok(range) = manager.allocate(&request) {
            taken.push(range);
        }
    }
    taken
}

#[test]
fn one_cpu_gets_all_of_every_part_and_as_much_as_of_one() {
    for (most, parts) in [(0, vec![1, 4]), (9, vec![4]), (13, vec![1, 4, 16])] {
        for zone_parts in parts {
            let line = format!("zone_parts={zone_parts} min_free_kbytes=4096");
            let manager = divided(thin(4), &line);
            let free = manager.totals().free_pages;
            let ordinary = take_all(&manager, &Request::new(Order::PAGE), most);
            // All zones keep exactly what they must keep.
            for zone in manager.views() {
                let reserve = zone.lowmem_reserve()[ZoneKind::Normal as usize];
                let keeps = zone.watermarks().min_pages + reserve;
                assert_eq!(
                    zone.free_pages(),
                    keeps.min(zone.managed_pages()),
                    "{} in {zone_parts} parts, orders up to {most}",
                    zone.id()
                );
            }
            let last =
                take_all(&manager, &Request { reserves: Reserves::All, ..Request::pages(1) }, most);
            let pages = |all: &[PfnRange]| all.iter().map(|range| range.pages()).sum::<u64>();
            assert_eq!(pages(&ordinary) + pages(&last), free, "every page");
            assert_eq!(manager.totals().free_pages, 0);
            let mut all: Vec<&PfnRange> = ordinary.iter().chain(&last).collect();
            all.sort_unstable_by_key(|range| range.start);
            assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "each once");
            check(&manager);
            for range in ordinary.into_iter().chain(last) {
                manager.give_back(range).expect("it was allocated");
            }
            assert_eq!(settled(&manager).free_pages, free);
            check(&manager);
        }
    }
}

#[test]
fn a_cpu_whose_part_is_empty_takes_its_neighbours_without_a_drain() {
    let manager = divided(thin(4), "zone_parts=4");
    let mut parts = BTreeSet::new();
    let low = |manager: &Fake| {
        let zone = manager.view(normal(0)).expect("it has memory");
        zone.free_pages() > zone.watermarks().low_pages + 4096
    };
    while low(&manager) {
        let start = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
        parts.insert(part_of(&manager, start));
    }
    assert_eq!(parts, (0..4).map(|part| (normal(0), part)).collect());
    let events = manager.pressure().events();
    assert_eq!((events.drains, events.failures, events.stalls), (0, 0, [0; 3]));
    // Pages from neighbouring parts come in bulk.
    let zone = manager.view(normal(0)).expect("it has memory").events();
    assert!(zone.cache_refill_pages / zone.cache_refills > 256, "{zone:?}");
    check(&manager);
}

#[test]
fn what_is_freed_of_a_neighbour_is_kept_and_goes_back_to_it() {
    let manager = divided(thin(4), "zone_parts=4");
    let own = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
    let far = (8..13)
        .map(|gibibyte| Pfn(gibibyte * GIB))
        .find(|&pfn| part_of(&manager, pfn) != part_of(&manager, own));
    let far = manager.allocate_at(far.expect("it has parts"), order(9), MigrateType::Movable);
    let far = far.expect("it is free");
    let before = settled(&manager).free_pages;
    manager.give_back_order(far.start, order(9)).expect("it was allocated");
    assert_eq!(manager.totals().free_pages, before, "a cache has it");
    assert_eq!(manager.allocate_order(order(9), MigrateType::Movable), Ok(far.start));
    for page in far.start.0..far.end.0 {
        manager.give_back_order(Pfn(page), Order::PAGE).expect("it was allocated");
    }
    assert_eq!(settled(&manager).free_pages, before + 512);
    check(&manager);
}

#[test]
fn a_range_in_several_parts_is_freed_as_a_whole_or_not_at_all() {
    for line in ["zone_parts=4", "zone_parts=4 page_owner=on page_poison=1"] {
        let manager = divided(FakeMachine::builder().ram(gib(0, 8)).build(), line);
        let border = 5 * GIB;
        assert_ne!(part_of(&manager, Pfn(border - 1)), part_of(&manager, Pfn(border)));
        let before = settled(&manager);
        let take = |start: u64, of: u8| {
            manager.allocate_at(Pfn(start), order(of), MigrateType::Movable).expect("it is free")
        };
        let [low, high] = [border - 1024, border].map(|start| take(start, 10));
        let range = PfnRange { start: low.start, end: high.end };
        // The last page was freed before.
        manager.give_back_to_zone(PfnRange::new(range.end.0 - 1, range.end.0)).expect("allocated");
        let held = settled(&manager);
        let wrong = manager.give_back(range).expect_err("a page of it is free");
        assert!(matches!(wrong, FreeError::NotAllocated { .. }), "{wrong}");
        assert_eq!(settled(&manager), held, "nothing changed");
        check(&manager);
        take(range.end.0 - 1, 0);
        let with_end = PfnRange { start: range.start, end: range.end.add(GIB * 4) };
        assert!(manager.give_back(with_end).is_err());
        assert_eq!(settled(&manager).allocated_pages, before.allocated_pages + 2048);
        // All of it was allocated at one line, so that page owners accept the free.
        manager.give_back(range).expect("all of it is allocated");
        assert_eq!(settled(&manager).free_pages, before.free_pages);
        check(&manager);
        let two_zones = PfnRange::new(4 * GIB - 1, 4 * GIB + 1);
        assert_eq!(manager.give_back(two_zones), Err(FreeError::SpansZones(two_zones)));
    }
}

#[test]
fn isolation_claims_and_pools_reach_over_borders() {
    for (line, start, end) in [
        ("zone_parts=4", 5 * 512 - 3, 7 * 512 + 5),
        // A smaller range, because poison is written to all of it.
        ("zone_parts=4 page_owner=on page_poison=1", 7 * 512 - 3, 7 * 512 + 5),
    ] {
        let manager = divided(FakeMachine::builder().ram(gib(0, 2)).ram(gib(4, 9)).build(), line);
        let before = settled(&manager);
        let blocks = BlockRange::new(start, end);
        let pages = u64::from(blocks.blocks()) * 512;
        let ends = [blocks.start.start(), Pfn(blocks.end.start().0 - 1)];
        let [first, last] = ends.map(|pfn| part_of(&manager, pfn));
        assert_ne!(first, last);
        let isolated = manager.isolation().isolate(blocks).expect("one zone");
        assert_eq!(isolated.free_pages, pages);
        assert_eq!(manager.totals().isolated_pages, pages);
        check(&manager);
        assert_eq!(manager.isolation().survey(blocks), Ok(isolated));
        manager.isolation().unisolate(blocks).expect("isolated");
        assert_eq!(settled(&manager), before);
        // One block in use keeps the whole range from being claimed, whichever part it is in.
        let used = manager
            .allocate_at(Pfn(7 * GIB), Order::BLOCK, MigrateType::Movable)
            .expect("it is free");
        manager.isolation().isolate(blocks).expect("one zone");
        let refused = manager.isolation().claim(blocks).expect_err("a block is in use");
        assert!(!matches!(refused, IsolateError::Place(_)), "{refused}");
        assert_eq!(manager.totals().isolated_pages, pages - 512);
        manager.give_back(used).expect("allocated");
        let claimed = manager.isolation().claim(blocks).expect("all of it is free");
        assert_eq!(claimed, PfnRange { start: blocks.start.start(), end: blocks.end.start() });
        check(&manager);
        manager.give_back(claimed).expect("claimed");
        assert_eq!(settled(&manager), before);
        check(&manager);
    }
}

#[test]
fn pools_have_as_many_pages_as_with_one_part_and_give_all_back() {
    for size in PoolSize::ALL {
        for careful in ["", " page_owner=on"] {
            let reached = [1, 4, 16].map(|parts| {
                // More parts than a pool allocates from at once, or whole GiBs.
                let whole = || FakeMachine::builder().ram(gib(0, 1)).ram(gib(4, 8)).build();
                let machine = if size.is_gigantic() { whole() } else { thin(1) };
                let line = format!("zone_parts={parts} min_free_kbytes=4096{careful}");
                let manager = divided(machine, &line);
                let pool = manager.pool(size);
                let before = settled(&manager);
                let resized = pool.resize(1 << 20, &NoHelpers).expect("nobody else resizes");
                manager.hugetlb().verify().expect("right");
                check(&manager);
                // A page is allocated and given back.
                let page = pool.allocate(NodeChoice::Any, false).expect("there are pages");
                pool.give_back_page(page.start).expect("allocated");
                for pages in [resized.reached / 2, 0] {
                    pool.resize(pages, &NoHelpers).expect("nobody else resizes");
                    manager.hugetlb().verify().expect("right");
                }
                assert_eq!(settled(&manager).free_pages, before.free_pages);
                check(&manager);
                resized.reached
            });
            // The tables of the parts may take one more block.
            let most = reached.iter().max().expect("three");
            assert!(reached.iter().all(|pages| pages + 1 >= *most), "{size}: {reached:?}");
        }
    }
}

#[test]
fn named_nodes_and_addresses_are_kept_to() {
    let manager = divided(machine(2), "zone_parts=4");
    for node in [0, 1] {
        let id = NodeId::new(node).expect("a node");
        for round in 0..200 {
            let request =
                Request { node: NodeChoice::Exact(id), ..Request::new(order(round % 10)) };
            let taken = manager.allocate(&request).expect("there is memory");
            assert_eq!(part_of(&manager, taken.start).0.node, id);
            manager.give_back(taken).expect("allocated");
            let end = 5 * GIB * 4096;
            let taken = manager.allocate(&Request { max_address: end, ..request });
            assert!(taken.is_ok_and(|taken| taken.end.address() <= end) == (node == 0));
        }
    }
    check(&manager);
}

/// A run crosses parts, and if a zone has no place, the next zone serves.
#[test]
fn a_contiguous_run_lies_in_several_parts_or_in_another_zone() {
    let machine = FakeMachine::builder().ram(gib(2, 3)).ram(gib(4, 8)).cpus(4).build();
    let manager = divided(machine, "zone_parts=4 pages=none");
    let parts: Vec<PfnRange> =
        manager.view(normal(0)).expect("a zone").parts().iter().map(|part| part.span()).collect();
    assert_eq!(parts.len(), 4);
    let moving = manager.moving();
    // There is room only across the border of two parts: 300 MiB on both sides of the second
    // border.
    let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(18)) };
    let mut held: Vec<PfnRange> = Vec::new();
    while let Ok(run) = manager.allocate(&fixed) {
        held.push(run);
    }
    let small = Request { reserves: Reserves::All, ..Request::new(order(9)) };
    let mut rest: Vec<PfnRange> = Vec::new();
    while let Ok(run) = manager.allocate(&Request { migrate_type: MigrateType::Unmovable, ..small })
    {
        rest.push(run);
    }
    let border = parts[1].end.0;
    let window = PfnRange::new(border - 150 * 512, border + 150 * 512);
    for run in held.iter().chain(&rest).copied() {
        let inside = run.intersection(window);
        if !inside.is_empty() {
            manager.give_back_to_zone(inside).expect("ours");
        }
    }
    settled(&manager);
    let request = ContiguousRequest::new(290 * 512);
    let found = moving.find_contiguous(&request).expect("over the border");
    assert!(window.intersection(found) == found && found.contains(Pfn(border)), "{found:?}");
    let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED).expect("free");
    assert!(taken.contains(Pfn(border)));
    check(&manager);
    // Nothing is left in that zone, but the zone below has a place.
    let below = PfnRange::new((2 << 18) + 512 * 64, (2 << 18) + 512 * 128);
    for run in held.iter().chain(&rest).copied() {
        let inside = run.intersection(below);
        if !inside.is_empty() {
            manager.give_back_to_zone(inside).expect("ours");
        }
    }
    settled(&manager);
    let other = ContiguousRequest::new(60 * 512);
    let got = moving.allocate_contiguous(&other, Budget::UNLIMITED).expect("in the other zone");
    assert!(below.intersection(got) == got, "{got:?}");
    check(&manager);
}

/// Unmovable pages in the first zone do not end the search.
#[test]
fn what_is_in_the_way_in_one_zone_does_not_hide_another() {
    let machine = FakeMachine::builder().ram(mib(3072, 3200)).ram(mib(4096, 4224)).build();
    let manager = divided(machine, "pages=none");
    let handles = Handles::new(&manager, 1 << 16).expect("memory");
    let normal = manager.view(normal(0)).expect("a zone").span();
    // Everything in the upper zone is held and pinned; below it there is room.
    while let Ok(handle) =
        handles.adopt(&Request { reserves: Reserves::All, ..Request::new(order(8)) })
    {
        let run = handles.range(handle).expect("held");
        if normal.contains(run.start) {
            handles.pin(handle, true).expect("held");
        } else {
            handles.free(handle).expect("held");
            break;
        }
    }
    settled(&manager);
    let moving = manager.moving().by(&handles);
    let request = ContiguousRequest::new(16 * 512);
    let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED).expect("below");
    assert!(!normal.contains(taken.start));
    // A deadline that has passed ends the search.
    let late = moving.allocate_contiguous(&ContiguousRequest::new(56 * 512), Budget::until(0));
    assert!(late.is_err());
    check(&manager);
}
