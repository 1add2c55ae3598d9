//! More memory makes no call longer and keeps interrupts off for no longer. Both are counted in
//! instructions, on one machine and on one four times as large, in states that are the worst cases
//! for searches.

use crate::common::{gib, mib, order};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::{BringUp, Manager, Parameters, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner, SteppedMachine, Steps, count_steps, memblock_of};

type Stepped = Manager<SteppedMachine>;

/// The start of all memory of these machines.
const START: u64 = 4 << 30;
const MOVABLE: MigrateType = MigrateType::Movable;

fn bring_up(ram: PhysRange, line: &str) -> &'static Stepped {
    let machine = SteppedMachine::new(FakeMachine::builder().ram(ram).build());
    let inner = machine.inner();
    let early = memblock_of(machine, inner.map(), inner.topology(), &[]).expect("early");
    // Never careful: debug aids look at each page, so their cost grows with memory.
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let input = BringUp { parameters: &parameters, started_ns: None };
    Box::leak(Box::new(Manager::bring_up(early, &input).expect("bring-up")))
}

/// Allocates all blocks one by one in ascending order, and then all pages that are left.
fn take_all(manager: &Stepped) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for of in [Order::BLOCK, Order::PAGE] {
        let request = Request { reserves: Reserves::All, fail_fast: true, ..Request::new(of) };
        while let Ok(range) = manager.allocate(&request) {
            taken.push(range);
        }
    }
    manager.drain().expect("only good frames are cached");
    taken.sort_unstable_by_key(|range| (range.pages() == 1, range.start));
    taken
}

fn give_back(manager: &Stepped, range: PfnRange) {
    manager.give_back_to_zone(range).expect("it is held");
}

/// Frees every second page of a block.
fn every_second(manager: &Stepped, block: PfnRange) {
    for page in (block.start.0..block.end.0).step_by(2) {
        manager.give_back(PfnRange::new(page, page + 1)).expect("it is held");
    }
    manager.drain().expect("only good frames are cached");
}

/// Counts on a machine of this many MiB and on one four times as large.
fn counted(mibs: u64, count: impl Fn(u64) -> Steps) -> (Steps, Steps) {
    (count(mibs), count(4 * mibs))
}

/// Returns whether two counts are equal apart from noise.
fn is_as_long(small: u64, large: u64) -> bool {
    large <= small + small / 3 + 400
}

#[track_caller]
fn assert_same(what: &str, (small, large): (Steps, Steps)) {
    assert!(is_as_long(small.all, large.all), "{what}, the call: {small:?} {large:?}");
    assert_same_hold(what, (small, large));
}

#[track_caller]
fn assert_same_hold(what: &str, (small, large): (Steps, Steps)) {
    let (of_small, of_large) = (small.longest_hold, large.longest_hold);
    assert!(is_as_long(of_small, of_large), "{what}, a hold: {small:?} {large:?}");
}

fn ram(mibs: u64) -> PhysRange {
    mib(START >> 20, (START >> 20) + mibs)
}

#[test]
fn free_areas_are_not_counted_block_by_block() {
    let one_split = counted(512, |mibs| {
        let manager = bring_up(ram(mibs), "");
        let blocks = take_all(manager);
        every_second(manager, blocks[7]);
        let (areas, steps) =
            count_steps(|| manager.views().map(|zone| zone.free_areas().pages()).sum::<u64>());
        assert_eq!(areas, 256);
        steps
    });
    assert_same("free areas, one block is split", one_split);
    let all_split = counted(192, |mibs| {
        let manager = bring_up(ram(mibs), "");
        let blocks = take_all(manager);
        blocks.iter().filter(|block| block.pages() > 1).for_each(|&block| {
            every_second(manager, block);
        });
        count_steps(|| manager.views().map(|zone| zone.free_areas().pages()).sum::<u64>()).1
    });
    assert_same_hold("free areas, all blocks are split", all_split);
}

#[test]
fn a_search_below_a_limit_does_not_look_at_what_is_taken() {
    for of in [0, 3, 9, 10] {
        let steps = counted(1024, |mibs| {
            let manager = bring_up(ram(mibs), "");
            let blocks = take_all(manager);
            let limit = START + ((mibs - 128) << 20);
            let above = blocks.iter().filter(|block| block.start.address() >= limit);
            above.for_each(|&block| give_back(manager, block));
            let request = Request {
                max_address: limit,
                reserves: Reserves::All,
                fail_fast: true,
                ..Request::new(order(of))
            };
            let (got, steps) = count_steps(|| manager.allocate(&request));
            got.expect_err("all of it is taken");
            // A free block is found.
            let free = blocks[blocks.len() / 3].start;
            let free = free.0 & !1023;
            give_back(manager, PfnRange::new(free, free + 1024));
            let (got, found) = count_steps(|| manager.allocate(&request));
            assert_eq!(got.expect("it is free").start, Pfn(free));
            Steps {
                all: steps.all.max(found.all),
                longest_hold: steps.longest_hold.max(found.longest_hold),
            }
        });
        assert_same(&format!("below a limit, order {of}"), steps);
    }
}

#[test]
fn blocks_wait_to_be_merged_up_to_some_number() {
    let steps = counted(16 << 10, |mibs| {
        let manager = bring_up(ram(mibs), "");
        let blocks = take_all(manager);
        for block in blocks.iter().filter(|block| block.pages() > 1).step_by(2) {
            give_back(manager, *block);
        }
        let request =
            Request { reserves: Reserves::All, fail_fast: true, ..Request::new(order(10)) };
        let (got, steps) = count_steps(|| manager.allocate(&request));
        got.expect_err("no two neighbours are free");
        steps
    });
    assert_same("every second block is free, order 10", steps);
}

#[test]
fn a_gib_is_isolated_in_parts() {
    let steps = counted(256, |mibs| {
        let manager = bring_up(gib(4, 8), "");
        let blocks = take_all(manager);
        blocks.iter().filter(|block| block.pages() > 1).for_each(|&block| {
            every_second(manager, block);
        });
        let start = BlockNumber::containing(Pfn::containing(5 << 30));
        let blocks = u32::try_from(mibs / 2).expect("few");
        let range = BlockRange::new(start.0, start.0 + blocks);
        let (isolated, isolate) = count_steps(|| manager.isolation().isolate(range));
        isolated.expect("it can be");
        let (put_back, unisolate) = count_steps(|| manager.isolation().unisolate(range));
        put_back.expect("it is isolated");
        Steps { all: 0, longest_hold: isolate.longest_hold.max(unisolate.longest_hold) }
    });
    assert_same_hold("isolate", steps);
}

#[test]
fn many_blocks_are_freed_in_parts() {
    let steps = counted(256, |mibs| {
        let manager = bring_up(ram(2048), "");
        let blocks = take_all(manager);
        let first = blocks.iter().find(|block| block.start.address() >= START + (512 << 20));
        let start = first.expect("there are some").start;
        let range = PfnRange { start, end: start.add((mibs << 8) - 512) };
        let (freed, steps) = count_steps(|| manager.give_back(range));
        freed.expect("all of it is held");
        steps
    });
    assert_same_hold("free of many blocks", steps);
}

#[test]
fn a_shuffle_lets_the_lock_go() {
    let steps = counted(256, |mibs| {
        let manager = bring_up(ram(mibs), "page_alloc.shuffle=1 page_alloc.shuffle_seed=5");
        let (shuffled, steps) = count_steps(|| manager.views().all(|zone| zone.shuffle()));
        assert!(shuffled);
        manager.verify().expect("lists are whole");
        steps
    });
    assert_same_hold("shuffle", steps);
}

#[test]
fn a_search_for_pieces_looks_at_each_block_once() {
    // All blocks but the last of each place are free.
    let steps = counted(1024, |mibs| {
        let manager = bring_up(ram(mibs), "page_alloc.shuffle=1 page_alloc.shuffle_seed=5");
        let blocks = take_all(manager);
        let is_last = |block: &PfnRange| block.start.0 % (1 << 15) == (1 << 15) - 512;
        let free = blocks.iter().filter(|block| block.pages() > 1 && !is_last(block));
        free.for_each(|&block| give_back(manager, block));
        let request =
            Request { reserves: Reserves::All, fail_fast: true, ..Request::new(order(15)) };
        let (got, steps) = count_steps(|| manager.allocate(&request));
        got.expect_err("a block is missing everywhere");
        assert!(manager.allocate_order(Order::BLOCK, MOVABLE).is_ok());
        steps
    });
    assert_same_hold("gather", steps);
}
