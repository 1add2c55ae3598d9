//! Free graded blocks whose merge is deferred: every call that wants them merged, counts them,
//! moves them or takes them away finds all of them.

use crate::common::{
    Fake, blocks, bring_up_with, check, graded, is_in, mib, order, settled, unmovable,
};
use framewright::manager::Budget;
use framewright::manager::Reserves;
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{FreeError, Grade, MigrateType};
use framewright::{Parameters, Request};
use framewright_testkit::{FakeMachine, Owner};

const GRADES: [Grade; 2] = [Grade::MovableOnly, Grade::Removable];
/// 64 MiB of 256 MiB, half of a word of the set.
const BLOCKS: u64 = 32;

fn range() -> BlockRange {
    blocks(64, 32)
}

/// Never careful: the tests count which blocks come first and which are left.
fn parameters(line: &str) -> Parameters {
    Parameters::parse(line, &mut |problem| panic!("{problem}"))
}

/// Makes a machine on which all graded blocks are free, and in no list yet if the machine defers
/// merges. Also returns the other blocks, which the test holds.
fn machine(grade: Grade, line: &str) -> (Fake, Vec<PfnRange>) {
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    manager.moving().set_grade(range(), grade).expect("free");
    let (mut own, mut others) = (Vec::new(), Vec::new());
    // By the half rule removable memory is not the first choice. All of it, whatever the marks.
    let request = Request { reserves: Reserves::All, ..Request::new(Order::BLOCK) };
    while let Ok(run) = manager.allocate(&request) {
        if is_in(range(), run) { own.push(run) } else { others.push(run) }
    }
    settled(&manager);
    assert_eq!((own.len() as u64, graded(&manager)), (BLOCKS, 0), "{line}");
    for run in own.iter().step_by(2).chain(own.iter().skip(1).step_by(2)) {
        manager.give_back_to_zone(*run).expect("ours");
    }
    (manager, others)
}

fn end(manager: &Fake, others: Vec<PfnRange>) {
    others.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    assert_eq!(settled(manager).allocated_pages, 0);
    assert_eq!(manager.totals().isolated_pages, 0);
    check(manager);
}

fn free_pages_of(manager: &Fake, grade: Grade) -> u64 {
    manager.zones().iter().map(|zone| zone.free_pages_of(grade)).sum()
}

#[test]
fn they_are_counted_and_handed_out_again_the_lowest_first() {
    for grade in GRADES {
        let (manager, others) = machine(grade, "");
        // Before any call has merged the blocks.
        assert_eq!(free_pages_of(&manager, grade), BLOCKS * 512);
        assert_eq!(manager.totals().free_pages, free_pages_of(&manager, Grade::Any) + BLOCKS * 512);
        assert!(manager.allocate(&unmovable(Order::BLOCK)).is_err(), "nobody else's");
        let request = Request { fail_fast: true, ..Request::new(Order::BLOCK) };
        let first = manager.allocate(&request).expect("memory");
        assert_eq!(first.start, range().start.start());
        assert_eq!(manager.moving().grade_of(first.start), Some(grade));
        let page = manager.allocate(&Request::new(Order::PAGE)).expect("memory");
        assert!(is_in(range(), page), "{page:?}");
        manager.give_back_to_zone(page).expect("ours");
        manager.give_back_to_zone(first).expect("ours");
        assert_eq!(free_pages_of(&manager, grade), BLOCKS * 512);
        // A second free finds that the blocks are free although they were not merged.
        for run in [first, PfnRange { start: first.start, end: first.start.add(1) }] {
            let again = manager.give_back_to_zone(run);
            assert!(matches!(again, Err(FreeError::NotAllocated { .. })), "{again:?}");
        }
        end(&manager, others);
    }
}

#[test]
fn whoever_wants_larger_pieces_gets_them_merged() {
    for grade in GRADES {
        let (manager, others) = machine(grade, "");
        let all = Request { reserves: Reserves::All, ..Request::new(order(14)) };
        let large = manager.allocate(&all).expect("all of it");
        assert_eq!(large.start, range().start.start(), "{grade:?}");
        assert_eq!(graded(&manager), 0);
        manager.give_back_to_zone(large).expect("ours");
        check(&manager);
        end(&manager, others);
        // The graded range ends in the middle of a word: nothing merges across its end.
        let free = manager.views().map(|view| view.free_blocks()[5]).sum::<u32>();
        assert!(free >= 1, "{free}");
    }
}

#[test]
fn sixty_four_neighbours_are_one_block_at_once() {
    for grade in GRADES {
        let machine = FakeMachine::builder().ram(mib(0, 512)).build();
        let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
        let range = blocks(64, 128);
        manager.moving().set_grade(range, grade).expect("free");
        let mut held = Vec::new();
        while let Ok(run) = manager.allocate(&Request::new(Order::BLOCK)) {
            held.push(run);
        }
        settled(&manager);
        held.sort_unstable_by_key(|run| (run.start.0 / 512 * 7919 % 1009, run.start));
        held.into_iter().for_each(|run| manager.give_back_to_zone(run).expect("ours"));
        assert_eq!(graded(&manager), 128 * 512);
        check(&manager);
        assert_eq!(settled(&manager).allocated_pages, 0);
    }
}

#[test]
fn a_grade_changes_with_all_of_them() {
    for grade in GRADES {
        let (manager, mut others) = machine(grade, "");
        for to in [Grade::Removable, Grade::MovableOnly, Grade::Any] {
            manager.moving().set_grade(range(), to).expect("free");
            let expected = if to == Grade::Any { 0 } else { BLOCKS * 512 };
            assert_eq!(graded(&manager), expected, "{grade:?} {to:?}");
            check(&manager);
        }
        for _ in 0..BLOCKS {
            others.push(manager.allocate(&unmovable(Order::BLOCK)).expect("everybody's"));
        }
        check(&manager);
        end(&manager, others);
    }
}

#[test]
fn isolated_they_are_nobodys() {
    for grade in GRADES {
        let (manager, mut others) = machine(grade, "");
        let half = blocks(64, 16);
        manager.isolation().isolate(half).expect("free");
        let pages = manager.isolation().survey(half).expect("blocks");
        assert_eq!((pages.free_pages, pages.in_use_pages), (16 * 512, 0));
        assert_eq!(graded(&manager), 16 * 512, "{grade:?}");
        check(&manager);
        while let Ok(run) = manager.allocate(&Request::new(Order::BLOCK)) {
            assert!(!is_in(half, run), "{run:?}");
            others.push(run);
        }
        let claimed = manager.isolation().claim(half).expect("free");
        manager.give_back(claimed).expect("ours");
        end(&manager, others);
        assert_eq!(graded(&manager), BLOCKS * 512);
    }
}

#[test]
fn vacating_passes_them_by() {
    let (manager, others) = machine(Grade::MovableOnly, "");
    let moved = manager.moving().vacate(range(), Budget::UNLIMITED).expect("all of it is free");
    assert_eq!(moved.moved_pages, 0);
    manager.isolation().unisolate(range()).expect("isolated");
    end(&manager, others);
}

#[test]
#[cfg(feature = "hotplug")]
fn memory_goes_with_them() {
    let bytes = |blocks: BlockRange| {
        PhysRange::new(blocks.start.start().address(), blocks.end.start().address())
    };
    for grade in GRADES {
        let (manager, others) = machine(grade, "hotplug_windows=4");
        // SAFETY: there are no descriptors that anybody could read.
        let removed = unsafe { manager.hotplug().remove(bytes(range()), Budget::UNLIMITED) };
        assert_eq!(removed.expect("all of it is free").pages, BLOCKS * 512, "{grade:?}");
        assert_eq!(graded(&manager), 0);
        check(&manager);
        // Nothing of the removed memory is left to be handed out.
        assert!(manager.allocate(&Request::new(Order::BLOCK)).is_err());
        // SAFETY: the memory was there before.
        let added = unsafe { manager.hotplug().add(bytes(range()), others_node(), grade) };
        added.expect("it is back");
        check(&manager);
        end(&manager, others);
        assert_eq!(graded(&manager), BLOCKS * 512);
    }
}

#[cfg(feature = "hotplug")]
fn others_node() -> framewright::units::NodeId {
    framewright::units::NodeId::ZERO
}

/// Blocks of which many pieces were freed become whole, and their merge is deferred as well.
#[test]
fn pieces_that_become_whole_blocks_are_found() {
    for grade in GRADES {
        for of in [0, 3, 8] {
            let (manager, mut others) = machine(grade, "");
            let mut pieces = Vec::new();
            while let Ok(run) = manager.allocate(&Request::new(order(of))) {
                if is_in(range(), run) { pieces.push(run) } else { others.push(run) }
            }
            pieces.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
            settled(&manager);
            assert_eq!(graded(&manager), BLOCKS * 512, "{grade:?} {of}");
            let large = manager.allocate(&Request::new(order(13))).expect("half of it");
            assert!(is_in(range(), large));
            manager.give_back(large).expect("ours");
            check(&manager);
            end(&manager, others);
        }
    }
}

/// Blocks are counted by type as usual.
#[test]
fn blocks_are_counted_by_type() {
    for grade in GRADES {
        let (manager, others) = machine(grade, "");
        let state = manager.block_state(range().start).expect("memory");
        assert_eq!(state.migrate_type(), grade.migrate_type());
        assert_ne!(state.migrate_type(), MigrateType::Movable);
        let memory = manager.views().map(|view| view.graded_memory(grade).managed_pages);
        assert_eq!(memory.sum::<u64>(), BLOCKS * 512);
        let free = manager.views().map(|view| view.free_pages_of(grade)).sum::<u64>();
        assert_eq!(free, BLOCKS * 512);
        end(&manager, others);
    }
}
