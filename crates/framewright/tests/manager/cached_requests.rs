//! `allocate` and `free` by way of the CPU's cache: which requests the cache serves, that memory
//! lies where the request wanted it, that runs of any size come out once, and that nothing is lost.

use super::HERE;
use crate::common::{Fake, bring_up_with, check, gib, idle_pages, mib, order, settled, with_pages};
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeError, MigrateType, ZoneKind};
use framewright::{AllocateError, Request};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// 3 GiB on node 0, all of it below 4 GiB, and 3 GiB on node 1; CPUs 0 to 2 are on node 0.
fn two_nodes() -> &'static FakeMachine {
    FakeMachine::builder()
        .ram(mib(0, 3072))
        .ram(gib(4, 7))
        .cpus_on(0, 3)
        .cpus_on(1, 2)
        .node(mib(0, 3072), 0)
        .node(gib(4, 7), 1)
        .build()
}

fn node(number: usize) -> NodeId {
    NodeId::new(number).expect("a node")
}

fn take(manager: &Fake, request: &Request) -> PfnRange {
    let range = manager.allocate(request).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    assert_eq!(range.pages(), request.pages);
    range
}

#[test]
fn what_was_freed_comes_again_without_the_zone() {
    if crate::common::is_careful() {
        // Debug aids check requests and frees on the way to the zone.
        return;
    }
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = idle_pages(&manager);
    let local = manager.platform().node_of_cpu(0);
    let nodes = [NodeChoice::Any, NodeChoice::Preferred(local), NodeChoice::Exact(local)];
    for pages in [1, 2, 3, 8, 100, 256, 280, 511, 512] {
        for node in nodes {
            for zeroed in [false, true] {
                let request = Request { node, zeroed, ..Request::pages(pages) };
                let first = take(&manager, &request);
                manager.give_back(first).expect("allocated");
                let (zone, cached) = (manager.totals().free_pages, manager.caches().pages());
                for _ in 0..20 {
                    let range = take(&manager, &request);
                    assert_eq!(manager.caches().pages(), cached - pages, "{request:?}");
                    manager.give_back(range).expect("allocated");
                }
                let after = (manager.totals().free_pages, manager.caches().pages());
                assert_eq!(after, (zone, cached), "{request:?}");
            }
        }
    }
    assert_eq!(settled(&manager).allocated_pages, 0);
    assert_eq!(idle_pages(&manager), free);
    check(&manager);
}

/// The cache compares numbers of pages in fewer bits than a request has.
#[test]
fn no_cached_run_serves_a_request_that_is_absurdly_large() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    for pages in [3, 280] {
        for bit in 10..64 {
            let absurd = 1 << bit | pages;
            let calls: [&dyn Fn() -> Result<PfnRange, AllocateError>; 2] =
                [&|| manager.allocate_pages(absurd, Order::PAGE), &|| {
                    manager.allocate(&Request::pages(absurd))
                }];
            for call in calls {
                // Requests that fail empty the cache.
                let range = take(&manager, &Request::pages(pages));
                manager.give_back(range).expect("allocated");
                if let Ok(taken) = call() {
                    assert!(absurd < 1 << 21 && taken.pages() == absurd, "{absurd:#x}: {taken:?}");
                    manager.give_back(taken).expect("allocated");
                }
            }
        }
    }
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn odd_runs_keep_to_their_type_and_their_alignment() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let stack = Request { migrate_type: MigrateType::Unmovable, ..Request::pages(280) };
    let first = take(&manager, &stack);
    manager.give_back(first).expect("allocated");
    let movable = take(&manager, &Request::pages(280));
    assert_ne!(movable, first, "its block is for unmovable memory");
    let again = take(&manager, &stack);
    // Careful runs keep no such run in a cache.
    assert!(again == first || crate::common::is_careful(), "{again:?} rather than {first:?}");
    // A part of the run has no alignment: no request for 24 pages gets it.
    let part = PfnRange { start: again.start.add(9), end: again.start.add(33) };
    manager.give_back(part).expect("allocated");
    for _ in 0..50 {
        let range =
            take(&manager, &Request { migrate_type: MigrateType::Unmovable, ..Request::pages(24) });
        assert!(range.start.is_aligned(order(5)), "{range:?}");
    }
    // Nor does a run that is aligned to its own size go to a request for a larger alignment.
    let small = take(&manager, &Request::pages(3));
    manager.give_back(small).expect("allocated");
    for _ in 0..50 {
        let range = take(&manager, &Request { align: order(6), ..Request::pages(3) });
        assert!(range.start.is_aligned(order(6)), "{range:?}");
    }
    check(&manager);
}

#[test]
fn many_odd_runs_are_all_different_and_all_come_back() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = idle_pages(&manager);
    for pages in [3, 7, 24, 280, 511] {
        for backwards in [false, true] {
            let mut held: Vec<_> =
                (0..300).map(|_| take(&manager, &Request::pages(pages))).collect();
            held.sort_unstable_by_key(|range| range.start);
            assert!(held.windows(2).all(|two| two[0].end <= two[1].start), "{pages}");
            if backwards {
                held.reverse();
            }
            held.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        }
        check(&manager);
        assert_eq!(settled(&manager).allocated_pages, 0);
        assert_eq!(idle_pages(&manager), free);
    }
}

#[test]
fn memory_lies_where_it_was_wanted_whatever_the_cache_has() {
    let manager = HERE.bring_up(two_nodes());
    for cpu in [0, 3] {
        manager.platform().run_on(cpu, || {
            for pages in [1, 3, 8, 64, 280, 512] {
                // Fills the cache with near memory.
                let some: Vec<_> =
                    (0..40).map(|_| take(&manager, &Request::pages(pages))).collect();
                some.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
                for number in [0, 1] {
                    let request =
                        Request { node: NodeChoice::Exact(node(number)), ..Request::pages(pages) };
                    let range = take(&manager, &request);
                    assert_eq!(range.end.0 > 0x10_0000, number == 1, "{request:?} got {range:?}");
                    manager.give_back(range).expect("allocated");
                }
                for (zone, max_address) in [
                    (ZoneKind::Dma32, u64::MAX),
                    (ZoneKind::Dma, u64::MAX),
                    (ZoneKind::Normal, 1 << 30),
                    (ZoneKind::Normal, 600 << 20),
                    (ZoneKind::Dma32, 5 << 30),
                ] {
                    let request = Request { zone, max_address, ..Request::pages(pages) };
                    let limit = max_address.min(zone.frames().end.address());
                    for _ in 0..3 {
                        let range = take(&manager, &request);
                        assert!(range.end.address() <= limit, "{request:?} got {range:?}");
                        manager.give_back(range).expect("allocated");
                    }
                }
            }
        });
    }
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn a_node_in_a_hole_of_another_is_not_taken_for_it() {
    // Node 1 lies between two parts of node 0.
    let machine = FakeMachine::builder()
        .ram(gib(4, 10))
        .cpus_on(0, 2)
        .node(gib(4, 6), 0)
        .node(gib(6, 8), 1)
        .node(gib(8, 10), 0)
        .build();
    let manager = HERE.bring_up(machine);
    let inner = PfnRange::new(6 << 18, 8 << 18);
    for pages in [1, 3, 8, 64, 280, 512] {
        let far = Request { node: NodeChoice::Exact(node(1)), ..Request::pages(pages) };
        let near = Request { node: NodeChoice::Exact(node(0)), ..far };
        let some: Vec<_> = (0..20).map(|_| take(&manager, &far)).collect();
        some.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        let held: Vec<_> = (0..20).map(|_| take(&manager, &near)).collect();
        for range in held {
            assert!(range.intersection(inner).is_empty(), "{range:?} is of node 1");
            manager.give_back(range).expect("allocated");
        }
    }
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn zeros_are_zeros_wherever_they_come_from() {
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    let manager = HERE.bring_up(machine);
    for pages in [1, 3, 8, 24] {
        let zeroed = Request { zeroed: true, ..Request::pages(pages) };
        for _ in 0..20 {
            let range = take(&manager, &zeroed);
            for page in range.start.0..range.end.0 {
                for offset in [0, PAGE_SIZE / 2, PAGE_SIZE - 8] {
                    assert_eq!(machine.load(page * PAGE_SIZE + offset), 0, "{range:?}");
                    // SAFETY: the test owns the page.
                    unsafe { machine.store(page * PAGE_SIZE + offset, 0x5a5a) };
                }
            }
            manager.give_back(range).expect("allocated");
        }
    }
}

#[test]
fn what_is_in_a_cache_can_be_had_by_its_place() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(mib(0, 256)).cpus(2).build());
    for pages in [1, 3, 8, 24, 512] {
        let range = take(&manager, &Request::pages(pages));
        manager.platform().run_on(1, || manager.give_back(range).expect("allocated"));
        for page in range.start.0..range.end.0 {
            manager
                .allocate_at(Pfn(page), Order::PAGE, MigrateType::Movable)
                .unwrap_or_else(|error| panic!("{range:?}, {page:#x}: {error}"));
        }
        manager.give_back(range).expect("allocated");
    }
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
}

#[test]
fn odd_runs_that_are_freed_twice_are_found() {
    for pages in [3, 24, 280] {
        let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
        let range = take(&manager, &Request::pages(pages));
        manager.give_back(range).expect("allocated");
        let again = manager.give_back(range).expect_err("it is free");
        assert!(
            matches!(again, FreeError::NotAllocated { pfn, .. } if pfn == range.start),
            "{again}"
        );
        let part = PfnRange { start: range.start.add(1), end: range.end };
        assert!(manager.give_back(part).is_err(), "a part of it is free as well");
        assert_eq!(settled(&manager).allocated_pages, 0);
        check(&manager);
    }
}

#[test]
fn odd_runs_of_isolated_blocks_are_nobodys() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let range = take(&manager, &Request::pages(280));
    let other = take(&manager, &Request::pages(280));
    manager.give_back(other).expect("allocated");
    let block = |pfn| BlockNumber::containing(pfn);
    let blocks =
        BlockRange { start: block(range.start), end: BlockNumber(block(range.start).0 + 1) };
    manager.isolation().isolate(blocks).expect("it is there");
    assert_eq!(manager.caches().pages(), 0, "what a cache had might have been of the block");
    manager.give_back(range).expect("allocated");
    for _ in 0..200 {
        let taken = take(&manager, &Request::pages(280));
        assert!(taken.intersection(range).is_empty(), "{taken:?} is isolated");
    }
    manager.isolation().unisolate(blocks).expect("it is isolated");
    check(&manager);
}

/// A small generator, so that threads need no crate and a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 32).expect("32 bits") % limit
    }
}

/// A random request, which a cache may or may not be able to serve.
fn any_request(random: &mut Random) -> Request {
    let pages = [1, 1, 2, 3, 4, 8, 24, 100, 280, 512, 600][random.below(11)];
    let node = [
        NodeChoice::Any,
        NodeChoice::Any,
        NodeChoice::Preferred(node(0)),
        NodeChoice::Exact(node(0)),
        NodeChoice::Exact(node(1)),
    ][random.below(5)];
    let types = [MigrateType::Movable, MigrateType::Unmovable, MigrateType::Reclaimable];
    Request {
        node,
        migrate_type: types[random.below(3)],
        zone: if random.below(4) == 0 { ZoneKind::Dma32 } else { ZoneKind::Normal },
        max_address: if random.below(6) == 0 { 2 << 30 } else { u64::MAX },
        align: order([0, 0, 0, 2, 9][random.below(5)]),
        ..Request::pages(pages)
    }
}

#[test]
fn no_page_is_owned_twice() {
    let manager = HERE.bring_up(two_nodes());
    let free = idle_pages(&manager);
    let owned: Vec<AtomicBool> = (0..7 << 18).map(|_| AtomicBool::new(false)).collect();
    let mark = |range: PfnRange, was: bool| {
        for page in range.start.0..range.end.0 {
            let before =
                owned[usize::try_from(page).expect("64 bits")].swap(!was, Ordering::Relaxed);
            assert_eq!(before, was, "{page:#x} of {range:?}");
        }
    };
    thread::scope(|scope| {
        for cpu in 1..5_u32 {
            let (manager, mark) = (&manager, &mark);
            scope.spawn(move || {
                let mut random = Random(u64::from(cpu) * 77 + 5);
                let mut held: Vec<PfnRange> = Vec::new();
                manager.platform().run_on(cpu, || {
                    for _ in 0..4000 {
                        if random.below(100) < 52 || held.is_empty() {
                            let request = any_request(&mut random);
                            let Ok(range) = manager.allocate(&request) else { continue };
                            assert!(range.end.address() <= request.max_address, "{request:?}");
                            assert!(range.start.is_aligned(request.align), "{request:?}");
                            mark(range, false);
                            held.push(range);
                        } else {
                            let range = held.swap_remove(random.below(held.len()));
                            let first = random.below(600) as u64 % range.pages();
                            let cut = if random.below(3) == 0 {
                                range.start.add(first)
                            } else {
                                range.end
                            };
                            mark(range, true);
                            for part in [
                                PfnRange { start: range.start, end: cut },
                                PfnRange { start: cut, end: range.end },
                            ] {
                                if !part.is_empty() {
                                    manager.give_back(part).expect("held");
                                }
                            }
                        }
                        if random.below(1000) == 0 {
                            manager.drain().expect("only good frames are cached");
                        }
                    }
                    for range in held.drain(..) {
                        mark(range, true);
                        manager.give_back(range).expect("held");
                    }
                });
            });
        }
    });
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn pages_in_pieces_have_descriptors_whatever_was_cut_before() {
    for pages in [Pages::Inside, Pages::None] {
        let machine = FakeMachine::builder().ram(mib(0, 256)).build();
        let manager = bring_up_with(machine, &[], &with_pages(pages)).expect("bring-up");
        for _ in 0..10 {
            // Parts of blocks that were allocated whole, freed with nothing but `free`.
            let whole = take(&manager, &Request::pages(512));
            for (first, end) in [(256, 512), (0, 128), (128, 131), (131, 132), (136, 256)] {
                let part = PfnRange { start: whole.start.add(first), end: whole.start.add(end) };
                manager.give_back(part).expect("it is held");
            }
            let held: Vec<_> = [256, 280, 3, 1, 8, 120, 128, 100]
                .map(|pages| take(&manager, &Request::pages(pages)))
                .into_iter()
                .collect();
            for page in held.iter().flat_map(|range| range.start.0..range.end.0) {
                // SAFETY: the test owns the page.
                let is_described = unsafe { manager.vmemmap().page(Pfn(page)) }.is_some();
                assert_eq!(is_described, pages == Pages::Inside, "{page:#x} of {held:?}");
            }
            held.into_iter().for_each(|range| manager.give_back(range).expect("it is held"));
            let rest = PfnRange { start: whole.start.add(132), end: whole.start.add(136) };
            manager.give_back(rest).expect("it is held");
        }
        check(&manager);
        assert_eq!(settled(&manager).allocated_pages, 0);
    }
}

/// A cache is refilled with every size that it keeps, however few entries that size has.
#[test]
fn what_is_kept_is_refilled() {
    for size_mib in [128, 192, 256, 320, 448, 512, 768, 900, 1536, 2000, 3072] {
        let manager = HERE.bring_up(FakeMachine::builder().ram(mib(4096, 4096 + size_mib)).build());
        for (of, migrate_type) in (4..=9).flat_map(|of| {
            [MigrateType::Movable, MigrateType::Unmovable].map(|migrate_type| (of, migrate_type))
        }) {
            let order = order(of);
            let get = || manager.allocate_order(order, migrate_type).expect("there is memory");
            let refills = || manager.views().map(|zone| zone.events().cache_refills).sum::<u64>();
            let run = get();
            manager.drain().expect("only good frames are cached");
            manager.give_back_order(run, order).expect("ours");
            let is_kept = manager.caches().pages() != 0;
            manager.drain().expect("only good frames are cached");
            let before = refills();
            let run = get();
            assert_eq!(refills() - before, u64::from(is_kept), "{size_mib} MiB, order {of}");
            manager.give_back_order(run, order).expect("ours");
        }
        check(&manager);
    }
}
