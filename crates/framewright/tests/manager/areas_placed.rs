//! What stands in the way of areas with a given place, and 1 GiB pages of the command line that are
//! isolated before a pool has them.

use crate::common::{blocks, bring_up_with, check, gib, is_careful, mib, parameters};
use framewright::hugetlb::PoolSize;
use framewright::units::{Order, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{BlockState, State};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap};

/// Frames that are reserved or no memory are in the way of an area with a given place.
#[test]
fn no_area_lies_over_reserved_frames_or_holes() {
    let early = PhysRange::new((128 << 20) + 0x3000, (128 << 20) + 0x5000);
    let mut made = Vec::new();
    for base in [114, 120, 128, 178, 192, 206] {
        let machine = FakeMachine::builder().ram(mib(0, 192)).ram(mib(208, 256)).build();
        let line = format!("cma=16M@{base}M");
        let manager = bring_up_with(machine, &[early], &parameters(&line)).expect("bring-up");
        let moving = manager.moving();
        if moving.area(0).is_some() || moving.failed_area_bytes() != 16 << 20 {
            made.push((base, moving.area_pages()));
        }
    }
    assert_eq!(made, []);
}

/// A 1 GiB page of the command line that is isolated before pools are filled is not lost.
#[test]
fn a_gib_of_the_command_line_outlives_an_isolation_before_it_is_a_pools() {
    if is_careful() {
        return;
    }
    let machine = FakeMachine::builder().ram(gib(4, 7)).build();
    FakeVmemmap::install(machine);
    let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepagesz=1G hugepages=1";
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let is_kept = |state: BlockState| {
        state.is(State::Whole) && state.has(BlockState::KEPT) && state.order() == Order::MAX
    };
    let kept = (2048..3584)
        .map(BlockNumber)
        .find(|&block| manager.block_state(block).is_some_and(is_kept));
    let kept = kept.expect("the page of the command line");
    let one = BlockRange { start: kept, end: BlockNumber(kept.0 + 512) };
    let before = manager.totals().free_pages;
    manager.isolation().isolate(one).expect("nothing is isolated");
    manager.isolation().unisolate(one).expect("isolated");
    let filled = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    assert_eq!(manager.pool(PoolSize::OneGib).counts().all.nr, 1);
    assert_eq!(filled.pools[1].without_vmemmap, 1, "the page is lost and another one taken");
    assert_eq!(manager.totals().free_pages, before);
    check(&manager);
}

/// The bitmap of an area with a given place is not put into that place.
#[test]
fn the_own_bitmap_of_an_area_is_not_in_its_way() {
    let up = |line: &str| {
        let machine = FakeMachine::builder().ram(mib(0, 192)).ram(mib(208, 256)).build();
        let reserved = [mib(64, 80), mib(128, 132)];
        bring_up_with(machine, &reserved, &parameters(line)).expect("bring-up")
    };
    let found = up("").isolation().survey(blocks(66, 8)).expect("memory");
    assert_eq!(found.free_pages, 8 * 512, "all of the place is free");
    let manager = up("cma=16M@132M");
    let kinds: Vec<_> = (66..74)
        .filter_map(|block| manager.block_state(BlockNumber(block)))
        .map(|state| (state.migrate_type(), state.is(State::Split), state.free_pages()))
        .collect();
    assert!(manager.moving().area(0).is_some(), "{kinds:?}");
    check(&manager);
}
