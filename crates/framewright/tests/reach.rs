//! Requests of devices that reach few addresses, on memory with zones for such devices and, without
//! the feature `dma-zones`, on memory without them: what the devices may get is the same.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{bring_up_with, check, parameters, settled};
use framewright::manager::{Budget, ContiguousRequest, Shortfall};
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::zone::ZoneKind;
use framewright::{AllocateError, Parameters, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};

const GIB: u64 = 1 << 30;
const PER_MIB: u64 = 256;

/// A machine without the first MiB, with the hole below 4 GiB that most machines have.
fn machine() -> &'static FakeMachine {
    FakeMachine::builder()
        .ram(PhysRange::new(1 << 20, 3 * GIB))
        .ram(PhysRange::new(4 * GIB, 6 * GIB))
        .cpus(2)
        .build()
}

fn plain() -> Parameters {
    let mut parameters = parameters("");
    parameters.pages = Pages::None;
    parameters
}

fn pages_of(ranges: &[PfnRange]) -> u64 {
    ranges.iter().map(|range| range.pages()).sum()
}

#[test]
fn all_that_is_in_reach_can_be_had_and_nothing_else() {
    let manager = bring_up_with(machine(), &[], &plain()).expect("bring-up");
    manager.sysctl().set_min_free_kbytes(0).expect("possible");
    manager.sysctl().set_lowmem_reserve_ratio([0; 4]);
    let before = settled(&manager);
    for (zone, all_pages) in [
        (ZoneKind::Dma, 15 * PER_MIB),
        (ZoneKind::Dma32, 3071 * PER_MIB),
        (ZoneKind::Normal, before.managed_pages),
    ] {
        for order in [Order::BLOCK, Order::new(3).expect("an order")] {
            let request = Request { zone, reserves: Reserves::All, ..Request::new(order) };
            let mut held = Vec::new();
            let refused = loop {
                match manager.allocate(&request) {
                    Ok(range) => held.push(range),
                    Err(error) => break error,
                }
            };
            assert_eq!(refused, AllocateError::OutOfMemory { order });
            let beyond = held.iter().find(|range| range.end > zone.reach());
            assert_eq!(beyond, None, "{zone} {order:?}");
            // All pages except tables and those of blocks in pieces.
            assert!(pages_of(&held) >= all_pages - 8 * PER_MIB, "{zone} {order:?}");
            let why = manager.shortfall(&request).expect("a request");
            assert!(!matches!(why, Shortfall::None | Shortfall::NoZone { .. }), "{zone}: {why}");
            // A limit below the first frame of the machine.
            let none = Request { max_address: 1 << 20, ..request };
            let why = manager.shortfall(&none).expect("a request");
            assert!(matches!(why, Shortfall::Address { .. }), "{zone}: {why}");
            if zone != ZoneKind::Normal {
                let other = manager.allocate(&Request::new(order)).expect("above there is memory");
                assert!(other.start >= Pfn(0x1000));
                held.push(other);
            }
            held.into_iter().for_each(|range| manager.give_back(range).expect("ours"));
            assert_eq!(settled(&manager).free_pages, before.free_pages);
        }
        check(&manager);
    }
}

/// This also holds for runs that are collected by moving pages out of the way, and for runs that
/// are longer than any block.
#[test]
fn runs_without_an_order_are_in_reach() {
    let manager = bring_up_with(machine(), &[], &plain()).expect("bring-up");
    manager.sysctl().set_min_free_kbytes(0).expect("possible");
    for (zone, pages) in [
        (ZoneKind::Dma, 2000),
        (ZoneKind::Dma32, 3000 * PER_MIB),
        (ZoneKind::Dma32, 77 * PER_MIB + 5),
        (ZoneKind::Normal, 2000 * PER_MIB),
    ] {
        for node in [NodeChoice::Any, NodeChoice::Exact(NodeId::ZERO)] {
            let wanted = ContiguousRequest { zone, node, ..ContiguousRequest::new(pages) };
            let run = manager.moving().allocate_contiguous(&wanted, Budget::UNLIMITED);
            let run = run.unwrap_or_else(|error| panic!("{zone} {pages}: {error}"));
            assert!(run.end <= zone.reach() && run.pages() == pages, "{zone}: {run:?}");
            manager.give_back(run).expect("ours");
        }
    }
    let wanted = ContiguousRequest { zone: ZoneKind::Dma, ..ContiguousRequest::new(0x1000) };
    let refused = manager.moving().allocate_contiguous(&wanted, Budget::UNLIMITED);
    assert!(refused.is_err(), "the first MiB is not there: {refused:?}");
    check(&manager);
}

/// Where no zone ends at 16 MiB, all memory but tables is one run.
#[test]
fn nearly_all_of_a_small_machine_is_one_run() {
    let machine = FakeMachine::builder().ram(PhysRange::new(1 << 20, 512 << 20)).build();
    let manager = bring_up_with(machine, &[], &plain()).expect("bring-up");
    manager.sysctl().set_min_free_kbytes(0).expect("possible");
    let mut sizes = (1..512 * PER_MIB).rev().step_by(16);
    let most = sizes.find_map(|pages| manager.allocate_pages(pages, Order::PAGE).ok());
    let most = most.expect("something");
    let least = if cfg!(feature = "dma-zones") { 494 } else { 510 };
    assert!(most.pages() > least * PER_MIB, "{most:?}");
    manager.give_back(most).expect("ours");
    let half = manager.allocate_pages(256 * PER_MIB, Order::new(16).expect("an order"));
    let half = half.expect("tables lie where they break less");
    assert_eq!(half, PfnRange::new(256 * PER_MIB, 512 * PER_MIB));
    manager.give_back(half).expect("ours");
    check(&manager);
}

/// The memory map and the lookup of a frame name the same zone.
#[test]
fn frames_are_of_the_kind_that_has_them() {
    for pfn in [0, 1, 0xfff, 0x1000, 0xf_ffff, 0x10_0000, 1 << 39].map(Pfn) {
        let kind = ZoneKind::of(pfn);
        assert!(kind.frames().contains(pfn) && pfn < kind.reach(), "{pfn:?}: {kind}");
        let others = ZoneKind::ALL.into_iter().filter(|other| other.frames().contains(pfn));
        assert_eq!(others.count(), 1, "{pfn:?}");
        assert_eq!(kind == ZoneKind::Normal, !cfg!(feature = "dma-zones") || pfn.0 >= 1 << 20);
    }
}
