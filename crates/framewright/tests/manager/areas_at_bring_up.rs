//! Areas that the command line puts at a given place: if the place is not free memory or not whole
//! blocks, no area is made, its size is reported as failed, and memory is managed as if the word
//! were absent.

use crate::common::{Fake, bring_up_with, check, graded, is_careful, mib, parameters, settled};
use framewright::manager::Budget;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_testkit::FakeMachine;
use proptest::prelude::*;

const MIB: u64 = 256;
/// The kernel image, and a reservation of an early caller.
const IMAGE: PhysRange = mib(64, 80);
const EARLY: PhysRange = mib(128, 144);

/// 256 MiB with a hole of 16 MiB.
fn up(line: &str) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, 192)).ram(mib(208, 256)).build();
    bring_up_with(machine, &[IMAGE, EARLY], &parameters(line)).expect("bring-up")
}

fn is_not_made(line: &str, bytes: u64) {
    let (plain, manager) = (up(""), up(line));
    let moving = manager.moving();
    assert!(moving.area_named("reserved").is_none() && moving.area(0).is_none(), "{line}");
    assert_eq!((moving.failed_area_bytes(), moving.area_pages()), (bytes, 0), "{line}");
    assert_eq!(settled(&manager), settled(&plain), "{line}");
    assert_eq!((settled(&manager).isolated_pages, graded(&manager)), (0, 0), "{line}");
    check(&manager);
}

fn is_made(line: &str, start: u64) {
    if is_careful() {
        // In careful runs the manager's tables, or the page of the area's own bitmap, may be
        // anywhere.
        return;
    }
    let manager = up(line);
    let moving = manager.moving();
    let number = moving.area_named("reserved").unwrap_or_else(|| panic!("{line}"));
    let (_, range, _) = moving.area(number).expect("made");
    assert_eq!(range, PfnRange::new(start * MIB, start * MIB + 16 * MIB), "{line}");
    assert_eq!((moving.failed_area_bytes(), moving.area_pages()), (0, 16 * MIB), "{line}");
    assert_eq!(graded(&manager), 16 * MIB, "{line}");
    check(&manager);
}

/// No area is made, whichever part of its place the kernel's image covers.
#[test]
fn no_area_lies_over_the_kernel() {
    for base in [50, 64, 66, 78] {
        is_not_made(&format!("cma=16M@{base}M"), 16 << 20);
    }
    // The image lies in the middle of the place.
    is_not_made("cma=48M@48M", 48 << 20);
    is_not_made("cma=4M@70M", 4 << 20);
    is_made("cma=16M@48M", 48);
    is_made("cma=16M@80M", 80);
}

/// Checks places that overlap an early reservation by whole blocks.
#[test]
fn no_area_lies_over_what_somebody_reserved_early() {
    for base in [114, 120, 128, 142] {
        is_not_made(&format!("cma=16M@{base}M"), 16 << 20);
    }
    is_made("cma=16M@112M", 112);
    is_made("cma=16M@144M", 144);
    // A range with more room: the area lies behind the reservation.
    is_made("cma=16M@120M-170M", 144);
}

/// Such an area is neither moved to where it fits nor made smaller.
#[test]
fn a_place_that_is_no_whole_blocks_is_none() {
    for place in ["16M@101M", "16M@0x6001000", "16M@104857601"] {
        is_not_made(&format!("cma={place}"), 16 << 20);
    }
    // The area needs half of its last block.
    is_not_made("cma=15M@100M", 15 << 20);
    is_made("cma=15M@100M-116M", 100);
    is_made("cma=16M@101M-118M", 102);
}

#[test]
fn no_area_lies_where_there_is_no_memory() {
    // Past the end of memory, in the hole, and over their edges.
    for base in ["256M", "1G", "242M", "254M"] {
        is_not_made(&format!("cma=16M@{base}"), 16 << 20);
    }
    is_not_made("cma=512M@0", 512 << 20);
    is_made("cma=16M@176M", 176);
    is_made("cma=16M@208M", 208);
}

/// The sizes of failed areas are added up, and the other areas are made.
#[test]
fn one_that_fails_is_in_the_way_of_no_other() {
    let manager = up("cma=16M@64M cma_pernuma=8M");
    let moving = manager.moving();
    assert_eq!((moving.failed_area_bytes(), moving.area_pages()), (16 << 20, 8 * MIB));
    assert!(moving.area_named("reserved").is_none());
    let number = moving.area_named("pernuma0").expect("made");
    let run = moving.allocate_in_area(number, 8 * MIB, Order::BLOCK, Budget::UNLIMITED);
    let run = run.expect("all of it is free");
    assert!(run.start >= Pfn(80 * MIB) || run.end <= Pfn(64 * MIB));
    // SAFETY: the area gave the run to this test, which no longer uses it.
    unsafe { moving.release_to_area(number, run) }.expect("ours");
    check(&manager);
}

/// The place is ordinary memory that any request may get.
#[test]
fn memory_of_a_place_that_failed_is_for_everybody() {
    let manager = up("cma=16M@72M");
    let at = Pfn(85 * MIB);
    let page = manager.allocate_at(at, Order::PAGE, MigrateType::Unmovable).expect("free");
    assert_eq!(page, PfnRange::of_order(at, Order::PAGE));
    // SAFETY: allocated just now, and nobody has used it.
    unsafe { manager.free(page) }.expect("ours");
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// An area gets the lowest run of blocks in its range, whichever others are taken.
    #[test]
    fn an_area_gets_the_lowest_run_that_is_there(
        taken in proptest::collection::vec((0_u64..100, 0_u64..512), 0..16),
        (first, blocks, more) in (0_u32..80, 1_u32..16, 0_u32..32),
    ) {
        let mut early: Vec<PhysRange> = taken
            .iter()
            .map(|&(block, page)| {
                let start = (block * 512 + page) * PAGE_SIZE;
                PhysRange { start, end: start + PAGE_SIZE }
            })
            .collect();
        early.sort_unstable_by_key(|range| range.start);
        early.dedup();
        let up = |line: &str| {
            let machine = FakeMachine::builder().ram(mib(0, 256)).build();
            bring_up_with(machine, &early, &parameters(line)).expect("bring-up")
        };
        let plain = up("");
        let is_fit = |block| {
            let [start, end] = [block, block + 1].map(BlockNumber);
            let pages = plain.isolation().survey(BlockRange { start, end }).expect("memory");
            pages.free_pages + pages.in_use_pages == 512
        };
        // No area crosses a zone border: ZONE_DMA ends at 16 MiB.
        let expected = (first..=first + more)
            .find(|&at| (at >= 8 || at + blocks <= 8) && (at..at + blocks).all(is_fit));
        let [size, start, end] = [blocks, first, first + blocks + more].map(|blocks| 2 * blocks);
        let line = format!("cma={size}M@{start}M-{end}M");
        let manager = up(&line);
        let found = manager.moving().area(0).map(|(_, range, _)| range.start);
        let found = found.map(|start| BlockNumber::containing(start).0);
        // In careful runs the manager's tables, or the page of the area's own bitmap, may be
        // anywhere.
        prop_assert!(found == expected || is_careful(), "{line}: {found:?}, not {expected:?}");
        check(&manager);
    }
}
