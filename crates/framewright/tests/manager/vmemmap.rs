//! The memory map under each policy: eager, deferred and on demand, on one allocator.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, retire, settled};
use framewright::internals::SectionState;
use framewright::parameters::Policy;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{DescriptorForm, MigrateType, State};
use framewright::{BringUp, Manager, Parameters, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, HelperPool, Owner};
use std::thread;

const SECTION: u64 = 32768;

fn policy(policy: Policy) -> Parameters {
    parameters(&format!("memmap_init={}", policy.name()))
}

fn with_array(machine: &'static FakeMachine) -> &'static FakeMachine {
    FakeVmemmap::install(machine);
    machine
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// Allocates every page, gets the descriptor of each, and frees all pages.
fn take_all(manager: &Fake) -> u64 {
    let mut taken = Vec::new();
    while let Ok(range) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        // SAFETY: the test owns the page and keeps it.
        let page = unsafe { manager.vmemmap().page(range.start) };
        let page = page.unwrap_or_else(|| panic!("pfn {} has no descriptor", range.start));
        assert!(page.is_clear(), "the descriptor of pfn {} is not initialised", range.start);
        taken.push(range);
    }
    check(manager);
    let pages = taken.len() as u64;
    taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    pages
}

#[test]
fn deferral_withholds_all_but_a_first_part_of_each_last_zone() {
    let machine = with_array(
        FakeMachine::builder()
            .ram(mib(0, 1024))
            .node(mib(0, 512), 0)
            .node(mib(512, 1024), 1)
            .cpus(4)
            .build(),
    );
    let manager = bring_up_with(machine, &[], &policy(Policy::Deferred)).expect("bring-up");
    assert_eq!(manager.vmemmap().policy(), Policy::Deferred);
    let before = manager.totals();
    // DMA32 of node 0 begins at 16 MiB, so its section 1 completes the first counted section; node
    // 1 begins on a section border.
    let withheld: Vec<_> = manager.vmemmap().deferred_nodes().collect();
    assert_eq!(withheld.len(), 2);
    for (zone, first) in [(1, 2), (2, 5)] {
        let zone = &manager.zones()[zone];
        assert_eq!(zone.section_state(first - 1), SectionState::Done);
        assert_eq!(zone.section_state(first), SectionState::Deferred);
        assert!(zone.deferred_pages() > SECTION);
    }
    assert_eq!(before.deferred_pages, withheld.iter().map(|node| node.pages).sum::<u64>());
    assert!(
        manager.block_state(BlockNumber(3 * 64)).is_some_and(|state| state.is(State::Deferred))
    );
    assert!(manager.times().bring_up_ns.is_some() && manager.times().all_memory_ns.is_none());
    let pool = HelperPool::on_nodes(&[0, 1, 1]);
    manager.vmemmap().initialise_deferred(&pool);
    check(&manager);
    let after = manager.totals();
    assert_eq!(
        (after.deferred_pages, after.managed_pages),
        (0, before.managed_pages + before.deferred_pages)
    );
    assert!(manager.times().all_memory_ns.is_some());
    for node in manager.vmemmap().deferred_nodes() {
        assert!(
            node.grown_pages == 0 && node.threads >= 1 && node.elapsed_ns.is_some(),
            "{node:?}"
        );
    }
    assert_eq!(take_all(&manager), after.free_pages);
    manager.vmemmap().initialise_deferred(&pool);
    check(&manager);
}

#[test]
fn what_policies_leave_is_the_same_memory() {
    let ram = || FakeMachine::builder().ram(mib(0, 700)).ram(mib(1024, 1900)).build();
    let reserved = [mib(100, 101), PhysRange::new(0x1800_3000, 0x1800_9000), mib(1300, 1400)];
    let mut all = Vec::new();
    for policy in Policy::ALL {
        let manager =
            bring_up_with(with_array(ram()), &reserved, &self::policy(policy)).expect("bring-up");
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check(&manager);
        let totals = settled(&manager);
        all.push((manager.vmemmap().bytes() / 4096, totals.free_pages + totals.reserved_pages));
        assert_eq!(manager.vmemmap().bytes() == 0, policy == Policy::OnDemand);
        assert_eq!(totals.descriptor_pages == 0, policy != Policy::OnDemand);
        if policy != Policy::OnDemand {
            assert_eq!(take_all(&manager), totals.free_pages);
        }
    }
    assert_eq!(all[0], all[1], "eager and deferred");
}

#[test]
fn a_request_brings_up_what_it_lacks() {
    let machine = with_array(FakeMachine::builder().ram(gib(0, 4)).build());
    let manager = bring_up_with(machine, &[], &policy(Policy::Deferred)).expect("bring-up");
    let idle = manager.totals();
    let mut held = Vec::new();
    // Page by page beyond the first part, then by whole GiB, inside and outside interrupts.
    while manager.totals().deferred_pages == idle.deferred_pages {
        held.push(manager.allocate(&Request::new(order(3))).expect("there is memory"));
    }
    check(&manager);
    let grown = idle.deferred_pages - manager.totals().deferred_pages;
    assert!(grown <= SECTION, "one section, not {grown} pages");
    held.push(
        machine.interrupt(|| manager.allocate(&Request::new(Order::MAX)).expect("there is memory")),
    );
    check(&manager);
    let place = manager
        .allocate_at(Pfn(3 << 18), Order::BLOCK, MigrateType::Movable)
        .expect("it is withheld");
    assert_eq!(manager.zones()[1].section_state(96 / 4), SectionState::Done);
    held.push(place);
    let mut pages = vec![Pfn(0); 300_000];
    assert_eq!(
        manager.allocate_bulk(&Request::new(Order::PAGE), &mut pages).expect("there is memory"),
        pages.len()
    );
    check(&manager);
    pages
        .iter()
        .for_each(|&page| manager.give_back(PfnRange::new(page.0, page.0 + 1)).expect("allocated"));
    held.drain(..).for_each(|range| manager.give_back(range).expect("allocated"));
    // All of the memory can be allocated without any job.
    assert_eq!(take_all(&manager), manager.totals().managed_pages - idle.allocated_pages);
    assert_eq!(manager.totals().deferred_pages, 0);
    assert!(manager.times().all_memory_ns.is_some());
    let node = manager.vmemmap().deferred_nodes().next().expect("one");
    assert_eq!(
        (node.pages, node.grown_pages, node.threads),
        (idle.deferred_pages, idle.deferred_pages, 0)
    );
}

#[test]
fn requests_race_with_the_jobs() {
    for round in 0..8 {
        let machine = FakeMachine::builder()
            .ram(gib(0, 3))
            .node(gib(0, 2), 0)
            .node(gib(2, 3), 1)
            .cpus(6)
            .build();
        let manager =
            bring_up_with(with_array(machine), &[], &policy(Policy::Deferred)).expect("bring-up");
        let idle = manager.totals();
        let all = idle.managed_pages + idle.deferred_pages;
        let pool = HelperPool::on_nodes(&[0, 1]);
        let taken: u64 = thread::scope(|scope| {
            let takers: Vec<_> = (0..3_u8)
                .map(|taker| {
                    let manager = &manager;
                    scope.spawn(move || {
                        let of = order([0, 9, 15][usize::from(taker)]);
                        let mut pages = 0;
                        for count in 0..200 {
                            let request = Request { fail_fast: count % 2 == 0, ..Request::new(of) };
                            let Ok(range) = manager.allocate(&request) else { break };
                            let pfn = range.start;
                            if of < Order::BLOCK {
                                // SAFETY: the test owns the page.
                                let page = unsafe { manager.vmemmap().page(pfn) }
                                    .expect("it has a descriptor");
                                assert!(
                                    page.is_clear(),
                                    "pfn {pfn} was handed out before its descriptor"
                                );
                            }
                            pages += range.pages();
                        }
                        pages
                    })
                })
                .collect();
            if round % 4 != 3 {
                manager.vmemmap().initialise_deferred(&pool);
            }
            takers.into_iter().map(|taker| taker.join().expect("no panic")).sum()
        });
        manager.vmemmap().initialise_deferred(&pool);
        manager.drain().expect("only good frames are cached");
        check(&manager);
        let totals = manager.totals();
        assert_eq!((totals.managed_pages, totals.deferred_pages), (all, 0));
        // The array is allocated memory, too.
        assert_eq!(totals.allocated_pages, idle.allocated_pages + taken);
        retire(&manager);
    }
}

#[test]
fn a_node_without_memory_for_the_array_does_without() {
    // Node 1 is full of reservations: it has no 2 MiB free in one piece.
    let machine =
        FakeMachine::builder().ram(mib(0, 768)).node(mib(0, 512), 0).node(mib(512, 768), 1).build();
    let array = FakeVmemmap::install(machine);
    let reserved: Vec<_> = (512..768).step_by(2).map(|at| mib(at, at + 1)).collect();
    let manager = bring_up_with(machine, &reserved, &policy(Policy::Deferred)).expect("bring-up");
    assert_eq!(array.counts().sections, 4);
    assert!(manager.nodes()[0].vmemmap_fallback.is_none());
    let cause = manager.nodes()[1].vmemmap_fallback.expect("no room");
    assert!(cause.to_string().contains("on node 1 alone"), "{cause}");
    let request = Request {
        node: framewright::memblock::NodeChoice::Exact(node(1)),
        ..Request::new(Order::PAGE)
    };
    let page = manager.allocate(&request).expect("there is memory");
    let state = manager.block_state(BlockNumber::containing(page.start)).expect("a block");
    assert_eq!(state.descriptor_form(), DescriptorForm::Inside);
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    let request = Request {
        node: framewright::memblock::NodeChoice::Exact(node(0)),
        ..Request::new(Order::PAGE)
    };
    let page = manager.allocate(&request).expect("there is memory");
    let state = manager.block_state(BlockNumber::containing(page.start)).expect("a block");
    assert_eq!(state.descriptor_form(), DescriptorForm::Array);
}

#[test]
fn tables_that_cannot_be_made_are_undone() {
    let build = || {
        FakeMachine::builder()
            .ram(mib(0, 1024))
            .node(mib(0, 512), 0)
            .node(mib(512, 1024), 1)
            .build()
    };
    let on_demand = bring_up_with(with_array(build()), &[], &policy(Policy::OnDemand))
        .expect("bring-up")
        .totals();
    for works in 0..9 {
        let machine = build();
        let array = FakeVmemmap::install(machine);
        array.fail_after(works);
        let manager =
            bring_up_with(machine, &[], &policy(Policy::Eager)).expect("bring-up goes on");
        check(&manager);
        let fallen = manager.nodes().iter().filter(|node| node.vmemmap_fallback.is_some()).count();
        assert_eq!(fallen, if works < 4 { 2 } else { usize::from(works < 8) }, "after {works}");
        assert_eq!(array.counts().sections, u64::from(works / 4 * 4).min(8), "after {works}");
        if fallen == 2 {
            // All memory that was allocated for the array is free again.
            assert_eq!(manager.vmemmap().policy(), Policy::OnDemand);
            assert!(on_demand.free_pages - manager.totals().free_pages <= 1, "after {works}");
        }
    }
}

/// The border of two nodes lies inside a section: the first node provides it for both, whatever the
/// second gets.
#[test]
fn what_one_node_lacks_takes_nothing_away_from_another() {
    for border in [192, 256] {
        let build = || {
            FakeMachine::builder()
                .ram(mib(0, 512))
                .node(mib(0, border), 0)
                .node(mib(border, 512), 1)
                .build()
        };
        let up = |machine| bring_up_with(machine, &[], &policy(Policy::Eager)).expect("bring-up");
        for works in 0..=4 {
            let machine = build();
            let array = FakeVmemmap::install(machine);
            array.fail_after(works);
            let manager = up(machine);
            check(&manager);
            let fallen = |node: usize| manager.nodes()[node].vmemmap_fallback.is_some();
            assert_eq!([fallen(0), fallen(1)], [works < 2, works < 4], "{border}: {works}");
        }
        // No section has memory twice.
        let whole = up(with_array(build())).totals();
        assert_eq!(whole.allocated_pages, 4 * 512, "{border}");
    }
}

#[test]
fn memory_that_is_just_enough_for_tables_goes_without_an_array() {
    let machine = FakeMachine::builder().ram(mib(0, 4)).build();
    let array = FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &policy(Policy::Deferred)).expect("bring-up");
    check(&manager);
    assert!(manager.totals().free_pages > 0);
    assert!(array.counts().sections <= 1);
}

#[test]
fn no_array_on_platforms_without_a_place_for_it() {
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    let manager = bring_up_with(machine, &[], &policy(Policy::Eager)).expect("bring-up");
    assert_eq!((manager.vmemmap().policy(), manager.vmemmap().bytes()), (Policy::OnDemand, 0));
}

#[test]
fn a_template_is_what_descriptors_begin_as() {
    let machine = with_array(FakeMachine::builder().ram(mib(0, 512)).build());
    let mut parameters = policy(Policy::Deferred);
    let words = [1, 2, 3, 4, 5, 6, 7];
    parameters.page_template = Some(words);
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    for _ in 0..1000 {
        let range = manager.allocate(&Request::new(Order::PAGE)).expect("there is memory");
        // SAFETY: the test owns the page.
        let page = unsafe { manager.vmemmap().page(range.start) }.expect("it has a descriptor");
        assert_eq!(page.flags().load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(page.owner_words()[5].load(std::sync::atomic::Ordering::Relaxed), 7);
        assert_eq!(page.references(), 0);
    }
}

#[test]
fn known_zero_memory_is_not_written() {
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    FakeVmemmap::install_with(machine, false, true);
    let manager = bring_up_with(machine, &[], &policy(Policy::Deferred)).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    assert_eq!(take_all(&manager), manager.totals().managed_pages);
}

#[test]
fn the_command_line_limits_threads() {
    for (line, most) in [
        ("memmap_init_threads=1", 1),
        ("memmap_init_threads=3", 3),
        ("memmap_init_threads=99", 12),
        ("", 12),
    ] {
        let machine = with_array(FakeMachine::builder().ram(gib(0, 4)).cpus(12).build());
        let early = machine.memblock(&[]);
        let parameters = parameters(line);
        let input = BringUp { parameters: &parameters, started_ns: None };
        let manager = Manager::bring_up(early, &input).expect("bring-up");
        manager.vmemmap().initialise_deferred(&HelperPool::new(8));
        assert!(manager.vmemmap().deferred_nodes().all(|node| (1..=most).contains(&node.threads)));
        check(&manager);
    }
}

#[test]
fn who_is_done_helps_unless_threads_were_named() {
    for named in [None, Some(1)] {
        // A CPU for the caller and one for each thread of the pool.
        let machine = FakeMachine::builder()
            .ram(gib(0, 5))
            .node(gib(0, 1), 0)
            .node(gib(1, 5), 1)
            .cpus(2)
            .cpus_on(1, 1)
            .build();
        let mut parameters = policy(Policy::Deferred);
        parameters.memmap_init_threads = named;
        let manager = bring_up_with(with_array(machine), &[], &parameters).expect("bring-up");
        manager.vmemmap().initialise_deferred(&HelperPool::on_nodes(&[0, 1]));
        check(&manager);
        let most = if named.is_some() { 1 } else { 3 };
        for node in manager.vmemmap().deferred_nodes() {
            assert!((1..=most).contains(&node.threads) && node.elapsed_ns.is_some(), "{node:?}");
        }
        assert_eq!(take_all(&manager), settled(&manager).free_pages);
        retire(&manager);
    }
}

/// More zones than a job has parts take turns, and none is left to the calling thread alone.
#[test]
fn helpers_bring_up_the_zones_of_any_number_of_nodes() {
    const NODES: usize = 70;
    let nodes = || (0..NODES).map(|node| (gib(node as u64 + 4, node as u64 + 5), node));
    let builder = FakeMachine::builder().nodes(NODES).cpus(2);
    let builder =
        nodes().fold(builder, |builder, (memory, node)| builder.ram(memory).node(memory, node));
    let machine = builder.build();
    FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("up");
    manager.vmemmap().initialise_deferred(&HelperPool::new(1));
    check(&manager);
    let threads: Vec<u32> = manager.vmemmap().deferred_nodes().map(|node| node.threads).collect();
    assert_eq!(threads.len(), NODES);
    assert!(threads.iter().all(|&threads| threads != 0), "{threads:?}");
}
