//! Blocks and pages under every interleaving: split, merge, steal, and two CPUs that free parts of
//! one run while a third allocates.

use crate::model::{BothWays, Owner, Shape, explore, on, order, run, take, take_all, take_movable};
use framewright::Request;
use framewright::units::PfnRange;
use framewright::zone::MigrateType;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

const fn blocks(blocks: u64, cpus: u32) -> Shape {
    Shape::new(blocks, cpus)
}

fn join<T>(handle: loom::thread::JoinHandle<T>) -> T {
    handle.join().expect("no assertion failed")
}

#[test]
fn two_cpus_split_one_block() {
    explore(blocks(1, 2), Some(3), |model| {
        let other = on(model, 1, move || [take_movable(model, 8), take_movable(model, 6)]);
        let mine = [take_movable(model, 7), take_movable(model, 5)];
        let held: Vec<PfnRange> = mine.into_iter().chain(join(other)).flatten().collect();
        assert_eq!(held.len(), 4, "the block has room for all four");
        held
    });
}

#[test]
fn two_cpus_want_the_last_block_as_one_piece_and_as_pages() {
    static MINE: BothWays = BothWays::new();
    explore(blocks(1, 2), Some(3), |model| {
        // A zone without free pages is recognised by a counter that the model does not see. Without
        // an access that both CPUs make, the CPU that comes second would never come first.
        let turn = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&turn);
        let other = on(model, 1, move || {
            theirs.fetch_add(1, Ordering::Relaxed);
            take_movable(model, 8)
        });
        turn.fetch_add(1, Ordering::Relaxed);
        let mine = model.allocate_past_caches(&Request::new(order(9))).ok();
        let theirs = join(other);
        assert!(mine.is_some() != theirs.is_some(), "one of them gets it: {mine:?}, {theirs:?}");
        MINE.count(mine.is_some());
        mine.into_iter().chain(theirs).collect()
    });
    MINE.assert_both();
}

#[test]
fn halves_that_two_cpus_free_are_whole_again() {
    explore(blocks(1, 2), Some(3), |model| {
        let halves = [take_movable(model, 8), take_movable(model, 8)]
            .map(|half| half.expect("there is memory"));
        let other = on(model, 1, move || model.give_back(halves[0]).expect("it is held"));
        model.give_back(halves[1]).expect("it is held");
        join(other);
        // Not even a drain is needed.
        let whole =
            model.allocate_past_caches(&Request::new(order(9))).expect("all of the block is free");
        vec![whole]
    });
}

#[test]
fn blocks_that_two_cpus_free_merge_to_the_largest_order() {
    explore(blocks(4, 2), Some(3), |model| {
        let all = model.allocate_past_caches(&Request::new(order(11))).expect("there is memory");
        let part = move |first: u64, blocks: u64| {
            PfnRange::new(all.start.0 + first * 512, all.start.0 + (first + blocks) * 512)
        };
        let other = on(model, 1, move || {
            model.give_back(part(0, 1)).expect("it is held");
            model.give_back(part(2, 1)).expect("it is held");
        });
        model.give_back(part(3, 1)).expect("it is held");
        model.give_back(part(1, 1)).expect("it is held");
        join(other);
        vec![model.allocate_past_caches(&Request::new(order(11))).expect("all four merged")]
    });
}

#[test]
fn the_block_that_is_kept_split_is_given_up_when_it_is_the_last() {
    explore(blocks(2, 2), Some(3), |model| {
        // Two blocks become free at once: one is kept split, the other becomes whole.
        let held: Vec<PfnRange> =
            (0..4).map(|_| take_movable(model, 8).expect("there is memory")).collect();
        let (mine, theirs) = ([held[0], held[2]], [held[1], held[3]]);
        let other = on(model, 1, move || {
            theirs.into_iter().for_each(|half| model.give_back(half).expect("it is held"))
        });
        for half in mine {
            model.give_back(half).expect("it is held");
        }
        join(other);
        vec![model.allocate_past_caches(&Request::new(order(10))).expect("both are free")]
    });
}

#[test]
fn one_cpu_steals_a_split_block_while_another_fills_it() {
    explore(blocks(1, 2), Some(3), |model| {
        // The only block is split and of another type.
        let held = take(model, 7, MigrateType::Movable).expect("there is memory");
        let other = on(model, 1, move || {
            model.give_back(held).expect("it is held");
            take(model, 8, MigrateType::Movable)
        });
        let mine =
            [take(model, 6, MigrateType::Unmovable), take(model, 7, MigrateType::Reclaimable)];
        mine.into_iter().chain([join(other)]).flatten().collect()
    });
}

#[test]
fn two_types_want_the_only_free_blocks() {
    explore(blocks(2, 2), Some(3), |model| {
        let other = on(model, 1, move || {
            [take(model, 8, MigrateType::Unmovable), take(model, 5, MigrateType::Unmovable)]
        });
        let mine = [take(model, 8, MigrateType::Reclaimable), take(model, 4, MigrateType::Movable)];
        let held: Vec<PfnRange> = mine.into_iter().chain(join(other)).flatten().collect();
        assert_eq!(held.len(), 4);
        held
    });
}

#[test]
fn one_place_is_given_once() {
    static MINE: BothWays = BothWays::new();
    explore(blocks(1, 2), Some(3), |model| {
        let place = run(128, 6);
        let at = move || model.allocate_at(place.start, order(6), MigrateType::Movable).ok();
        let other = on(model, 1, at);
        let mine = at();
        let theirs = join(other);
        assert!(mine.is_some() != theirs.is_some());
        MINE.count(mine.is_some());
        mine.into_iter().chain(theirs).collect()
    });
    MINE.assert_both();
}

#[test]
fn a_run_freed_twice_at_once_is_taken_back_once() {
    static MINE: BothWays = BothWays::new();
    explore(blocks(1, 2), Some(3), |model| {
        let held = take_movable(model, 6).expect("there is memory");
        let other = on(model, 1, move || model.give_back(held).is_ok());
        let mine = model.give_back(held).is_ok();
        assert!(mine != join(other), "exactly one of two frees may succeed");
        MINE.count(mine);
        Vec::new()
    });
    MINE.assert_both();
}

/// Two CPUs free the halves of a run of `of` while a third allocates `wanted` from the same block.
/// With three CPUs the model tries only the interleavings with at most this many preemptions;
/// trying all of them would take hours.
fn parts(of: u8, wanted: u8, preemptions: usize) {
    let blocks_needed = if of > 9 { 1 << (of - 9) } else { 1 };
    let in_time: &'static BothWays = Box::leak(Box::new(BothWays::new()));
    explore(blocks(blocks_needed, 3), Some(preemptions), move |model| {
        let whole = model.allocate_past_caches(&Request::new(order(of))).expect("there is memory");
        // Nothing else is left, so the third CPU can only get memory out of the parts.
        let rest = if of < 9 { take_all(model) } else { Vec::new() };
        let middle = whole.start.add(whole.pages() / 2);
        // The third CPU finds an empty zone by a counter, too, so it has to be able to come last.
        let turn = Arc::new(AtomicU32::new(0));
        let free = |range: PfnRange| {
            let turn = Arc::clone(&turn);
            move || {
                model.give_back(range).expect("it is held");
                turn.fetch_add(1, Ordering::Relaxed);
            }
        };
        let one = on(model, 1, free(PfnRange { start: whole.start, end: middle }));
        let other = on(model, 2, free(PfnRange { start: middle, end: whole.end }));
        turn.fetch_add(1, Ordering::Relaxed);
        let mine = take_movable(model, wanted);
        join(one);
        join(other);
        in_time.count(mine.is_some());
        let late = if mine.is_none() {
            Some(
                model
                    .allocate_past_caches(&Request::new(order(wanted)))
                    .expect("both halves are back"),
            )
        } else {
            None
        };
        rest.into_iter().chain(mine).chain(late).collect()
    });
    in_time.assert_both();
}

#[test]
fn parts_of_a_run_within_a_block() {
    for of in 1..9 {
        parts(of, of, 2);
        parts(of, of - 1, 2);
    }
}

#[test]
fn parts_of_a_run_of_blocks() {
    for of in 9..=18 {
        parts(of, of, 2);
        parts(of, of - 1, 2);
    }
}

#[test]
fn parts_with_one_preemption_more() {
    parts(9, 9, 3);
}
