//! Per-CPU caches under every interleaving: get and put, refill, revoke, drain, bulk requests, and
//! memory shortage while other CPUs' caches keep some.
//!
//! The contents of a cache are plain words; loom checks that no two threads touch them without
//! ordering between the accesses. Caches are tiny in a model: two words of frees, one ready word, a
//! stack of four runs. A model with a preemption bound tries all interleavings with at most that
//! many preemptions; a model without a bound tries all of them.

use crate::model::{
    BothWays, Model, Owner, START, Shape, explore, give, on, order, take, take_all, take_movable,
    take_past,
};
use framewright::Request;
use framewright::units::{Pfn, PfnRange};
use framewright::zone::MigrateType;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

/// The number of order-3 runs in one word of a block's free map.
const RUNS_OF_A_WORD: usize = 8;
/// The number of words of frees of one order that a cache keeps in a model.
const FREED: usize = 2;
/// The number of runs of one order from 4 up that a cache keeps in a model.
const STACK: u64 = 4;

const fn blocks(blocks: u64, cpus: u32) -> Shape {
    Shape::new(blocks, cpus)
}

fn join<T>(handle: loom::thread::JoinHandle<T>) -> T {
    handle.join().expect("no assertion failed")
}

/// Returns run number `number` of order `of` within `whole`.
fn part(whole: PfnRange, of: u8, number: u64) -> PfnRange {
    let start = whole.start.add(number << of);
    PfnRange { start, end: start.add(1 << of) }
}

/// Allocates and frees through the cache.
fn use_cache(model: &Model, of: u8) {
    let held = take_movable(model, of).expect("there is memory");
    give(model, held);
}

/// Allocates and frees single frames past the caches.
fn bulk(model: &Model, count: usize) -> Vec<PfnRange> {
    let mut pages = vec![Pfn(0); count];
    let done = model.allocate_bulk(&Request::pages(1), &mut pages).unwrap_or(0);
    pages[..done].iter().map(|&start| PfnRange { start, end: start.add(1) }).collect()
}

/// Takes all of one block except one run of order `of`.
fn leave(model: &Model, of: u8) -> Vec<PfnRange> {
    (of..9).rev().map(|of| take_past(model, of)).collect()
}

fn drain(model: &Model) {
    model.drain().expect("only good frames are cached");
    model.platform().ring();
}

#[test]
fn owners_get_and_put_while_another_drains() {
    for of in [0, 6] {
        explore(blocks(1, 2), Some(4), move |model| {
            use_cache(model, of);
            let other = on(model, 1, move || drain(model));
            let held = take_movable(model, of);
            give(model, held.expect("there is memory"));
            join(other);
            Vec::new()
        });
    }
}

/// The cache keeps nothing afterwards, whatever it was doing.
#[test]
fn an_owner_gets_and_puts_while_another_says_that_it_is_away() {
    for of in [0, 6] {
        explore(blocks(1, 2), Some(3), move |model| {
            use_cache(model, of);
            let other = on(model, 1, move || {
                model.cpus().offline(0).expect("CPU 1 is there");
                assert_eq!(model.caches().cpu(0).expect("there").pages, 0);
                model.platform().ring();
            });
            let held = take_movable(model, of);
            give(model, held.expect("there is memory"));
            join(other);
            assert_eq!(model.caches().pages(), 0);
            use_cache(model, of);
            assert_eq!(model.caches().pages(), 0);
            model.cpus().online(0).expect("it is away");
            use_cache(model, of);
            assert_ne!(model.caches().pages(), 0);
            Vec::new()
        });
    }
}

#[test]
fn a_cpu_goes_and_comes_while_another_drains() {
    explore(blocks(1, 3), Some(2), |model| {
        use_cache(model, 0);
        let other = on(model, 1, move || drain(model));
        join(on(model, 2, move || {
            model.cpus().offline(0).expect("others are there");
            assert_eq!(model.caches().cpu(0).expect("there").pages, 0);
            model.cpus().online(0).expect("it is away");
            model.platform().ring();
        }));
        join(other);
        use_cache(model, 0);
        assert_ne!(model.caches().pages(), 0);
        Vec::new()
    });
}

#[test]
fn owners_get_twice_while_another_drains_twice() {
    explore(blocks(1, 2), Some(3), |model| {
        use_cache(model, 0);
        let other = on(model, 1, move || {
            drain(model);
            drain(model);
        });
        let held = [take_movable(model, 0), take_movable(model, 0)];
        join(other);
        held.map(|held| held.expect("there is memory")).to_vec()
    });
}

#[test]
fn an_empty_cache_refills_while_another_drains() {
    for of in [0, 3, 6, 9] {
        explore(blocks(9, 2), Some(4), move |model| {
            let other = on(model, 1, move || {
                let held = take_movable(model, of);
                model.drain().expect("only good frames are cached");
                held
            });
            let mine = take_movable(model, of);
            [mine, join(other)].map(|held| held.expect("there is memory")).to_vec()
        });
    }
}

#[test]
fn two_caches_refill_from_the_last_word() {
    explore(blocks(1, 2), None, |model| {
        let rest = leave(model, 6);
        let other = on(model, 1, move || take_movable(model, 0));
        let mine = take_movable(model, 0);
        let theirs = join(other);
        // While one CPU is in the middle of its refill, the word is in no list. A CPU that missed
        // it finds it in the other's cache the next time.
        let found = [mine, theirs]
            .map(|taken| taken.unwrap_or_else(|| take_movable(model, 0).expect("most of a word")));
        rest.into_iter().chain(found).collect()
    });
}

#[test]
fn a_word_that_is_ready_follows_one_that_is_used_up_while_another_drains() {
    explore(blocks(1, 2), Some(4), |model| {
        // The first refill takes two words; one run of the first word is left.
        let mut held: Vec<PfnRange> =
            (1..RUNS_OF_A_WORD).filter_map(|_| take_movable(model, 3)).collect();
        assert_eq!(model.caches().pages(), 8 + 64, "one run of one word, and a word that is ready");
        let other = on(model, 1, move || drain(model));
        held.extend([take_movable(model, 3), take_movable(model, 3)].into_iter().flatten());
        join(other);
        assert_eq!(held.len(), RUNS_OF_A_WORD + 1);
        held
    });
}

#[test]
fn what_was_freed_last_is_used_again_where_the_zone_has_nothing() {
    explore(blocks(1, 2), Some(3), |model| {
        let rest = leave(model, 3);
        let last = take_past(model, 3);
        give(model, part(last, 0, 0));
        give(model, part(last, 0, 1));
        assert_eq!((model.totals().free_pages, model.caches().pages()), (0, 2));
        let other = on(model, 1, move || take_movable(model, 0));
        let mine = [take_movable(model, 0), take_movable(model, 0)];
        let theirs = join(other);
        // A CPU that drains may lose the drained memory to the other CPU, but not both may lose.
        let mut held: Vec<PfnRange> = mine.into_iter().chain([theirs]).flatten().collect();
        assert!(!held.is_empty());
        held.extend((2..8).map(|page| part(last, 0, page)));
        rest.into_iter().chain(held).collect()
    });
}

#[test]
fn a_cache_refills_from_another_zone_while_that_is_drained() {
    explore(Shape { below: 1, ..blocks(1, 2) }, Some(4), |model| {
        // All memory of the near zone.
        let near = take_past(model, 9);
        assert!(near.start.0 >= START);
        let other = on(model, 1, move || {
            drain(model);
            take_movable(model, 3)
        });
        let mine = take_movable(model, 3);
        let held = [mine, join(other)].map(|held| held.expect("there is memory"));
        assert!(held.iter().all(|held| held.end.0 <= START));
        // The cache keeps no memory that lies far away.
        give(model, held[0]);
        let [_, kept] = held;
        vec![near, kept]
    });
}

/// Two parts of a zone, one block each; each of two CPUs asks a different part first.
const fn parts() -> Shape {
    Shape { below: 1, divided: true, ..blocks(1, 2) }
}

#[test]
fn a_cpu_whose_part_is_empty_takes_of_another_while_its_cpu_drains() {
    explore(parts(), Some(3), |model| {
        // All memory of this CPU's part.
        let own = take_past(model, 9);
        assert_eq!(own.end.0, START + (1 << 18));
        let other = on(model, 1, move || {
            let held = take_movable(model, 3);
            drain(model);
            held
        });
        let mine = take_movable(model, 3);
        let theirs = join(other);
        let held = [mine, theirs].map(|held| held.expect("there is memory"));
        assert!(held.iter().all(|held| held.start >= own.end));
        // The cache keeps memory of another part of the zone, and gives it back to that part.
        give(model, held[0]);
        vec![own, held[1]]
    });
}

#[test]
fn a_range_in_two_parts_is_freed_while_both_are_asked() {
    explore(parts(), Some(3), |model| {
        let [low, high] = [take_past(model, 9), take_past(model, 9)];
        assert_eq!(low.end, high.start);
        let other = on(model, 1, move || take_movable(model, 9));
        model.give_back(PfnRange { start: low.start, end: high.end }).expect("it is held");
        let mine = take_movable(model, 9);
        let held: Vec<PfnRange> = [mine, join(other)].into_iter().flatten().collect();
        assert!(!held.is_empty());
        held
    });
}

#[test]
fn each_type_has_a_word_of_its_own() {
    explore(blocks(2, 2), None, |model| {
        let other = on(model, 1, move || {
            [take(model, 1, MigrateType::Unmovable), take(model, 1, MigrateType::Movable)]
        });
        let mine =
            [take(model, 1, MigrateType::Reclaimable), take(model, 1, MigrateType::Unmovable)];
        let held: Vec<PfnRange> = mine.into_iter().chain(join(other)).flatten().collect();
        assert_eq!(held.len(), 4);
        held
    });
}

#[test]
fn what_one_cpu_allocated_another_frees_into_its_cache() {
    explore(blocks(1, 2), None, |model| {
        // The word goes back to the zone, so that both CPUs want it.
        let held: Vec<PfnRange> = (0..3).filter_map(|_| take_movable(model, 0)).collect();
        drain(model);
        let (one, other, kept) = (held[0], held[1], held[2]);
        let theirs = on(model, 1, move || {
            give(model, one);
            take_movable(model, 0)
        });
        give(model, other);
        let mine = take_movable(model, 0);
        let [mine, theirs] = [mine, join(theirs)].map(|held| held.expect("there is memory"));
        vec![kept, mine, theirs]
    });
}

#[test]
fn parts_that_two_caches_keep_merge_for_a_third() {
    for of in [3, 6] {
        explore(blocks(1, 3), Some(2), move |model| {
            let mut held = leave(model, of);
            let whole = take_past(model, of);
            let halves = [0, 1].map(|half| part(whole, of - 1, half));
            let third =
                on(model, 2, move || model.allocate_past_caches(&Request::new(order(of))).ok());
            let other = on(model, 1, move || give(model, halves[1]));
            give(model, halves[0]);
            model.platform().ring();
            join(other);
            let theirs = join(third);
            held.push(theirs.unwrap_or_else(|| take_past(model, of)));
            held
        });
    }
}

#[test]
fn two_drain_at_once_while_an_owner_goes_on() {
    // The owner drains after freeing, while the other CPU drains.
    explore(blocks(1, 2), Some(3), |model| {
        use_cache(model, 0);
        let other = on(model, 1, move || drain(model));
        let mine = take_movable(model, 0);
        drain(model);
        join(other);
        vec![mine.expect("there is memory")]
    });
}

#[test]
fn two_others_drain_at_once_while_an_owner_goes_on() {
    // Three CPUs that wait for one another: no run with two preemptions has been seen to finish.
    explore(blocks(1, 3), Some(1), |model| {
        use_cache(model, 0);
        let (one, other) = (on(model, 1, move || drain(model)), on(model, 2, move || drain(model)));
        let mine = take_movable(model, 0);
        model.platform().ring();
        join(one);
        join(other);
        mine.into_iter().collect()
    });
}

#[test]
fn memory_that_is_short_comes_out_of_a_cache_that_is_in_use() {
    explore(blocks(1, 2), Some(4), |model| {
        // All free memory lies in the cache of CPU 0: the rest of two words of runs.
        let mut rest = leave(model, 7);
        rest.extend(take_movable(model, 3));
        assert_eq!((model.totals().free_pages, model.caches().pages()), (0, 120));
        let other = on(model, 1, move || model.allocate_past_caches(&Request::pages(1)).ok());
        let mine = take_movable(model, 3);
        let theirs = join(other);
        // The other CPU can miss it because no watermark keeps a refill from taking both words
        // back.
        assert!(
            mine.is_some(),
            "runs are free, in the cache, in the drainer's hands or in the zone"
        );
        rest.into_iter().chain(mine).chain(theirs).collect()
    });
}

#[test]
fn bulk_meets_refill_and_what_one_keeps_the_other_gets() {
    static FOUND: BothWays = BothWays::new();
    explore(blocks(1, 2), None, |model| {
        let rest = leave(model, 6);
        let other = on(model, 1, move || bulk(model, 40));
        let mine = take_movable(model, 0);
        let theirs = join(other);
        assert!(mine.is_some());
        FOUND.count(!theirs.is_empty());
        // The other CPU may have missed the memory, so it asks again.
        let late = if theirs.is_empty() { bulk(model, 40) } else { Vec::new() };
        assert!(theirs.len() + late.len() > 0, "what CPU 0 keeps can be had");
        rest.into_iter().chain(mine).chain(theirs).chain(late).collect()
    });
    FOUND.assert_both();
}

#[test]
fn words_of_frees_that_are_full_go_back_while_another_drains() {
    explore(blocks(1, 2), None, |model| {
        let whole = take_past(model, 8);
        // One page of each word, so that each page is an entry of its own.
        let page = move |word: usize| part(whole, 0, 64 * word as u64);
        (0..FREED).for_each(|word| give(model, page(word)));
        assert_eq!(model.caches().pages(), FREED as u64);
        let other = on(model, 1, move || drain(model));
        give(model, page(FREED));
        join(other);
        (0..4)
            .map(|word| PfnRange { start: page(word).end, end: page(word).start.add(64) })
            .chain([page(3)])
            .collect()
    });
}

#[test]
fn a_full_stack_gives_its_older_half_back_while_another_drains() {
    // Runs of order 4 lie in one block, those of order 9 merge.
    for (shape, of) in [(blocks(1, 2), 4), (blocks(16, 2), 9)] {
        explore(shape, Some(4), move |model| {
            let runs: Vec<PfnRange> = (0..=STACK).map(|_| take_past(model, of)).collect();
            let (last, others) = runs.split_last().expect("a few");
            others.iter().for_each(|&run| give(model, run));
            assert_eq!(model.caches().pages(), STACK << of);
            let other = on(model, 1, move || drain(model));
            give(model, *last);
            join(other);
            Vec::new()
        });
    }
}

#[test]
fn blocks_are_kept_while_another_wants_a_larger_one() {
    explore(blocks(8, 2), None, |model| {
        // A refill takes two blocks at once; draining merges them again.
        let other = on(model, 1, move || model.allocate_past_caches(&Request::new(order(11))));
        let mine = take_movable(model, 9).expect("there is memory");
        assert!(model.caches().pages() <= 512);
        let theirs = join(other).expect("the two are of one half");
        give(model, mine);
        model.drain().expect("only good frames are cached");
        vec![theirs, take_past(model, 11)]
    });
}

#[test]
fn runs_of_any_size_are_kept_and_cut_while_another_drains() {
    explore(blocks(1, 2), Some(3), |model| {
        let other = on(model, 1, move || model.drain().is_ok());
        // Three pages out of four, of which the fourth stays; twice, so that what was freed is
        // there unless it was drained.
        for _ in 0..2 {
            let odd = model.allocate(&Request::pages(3)).expect("there is memory");
            model.give_back_any(odd).expect("it is held");
        }
        assert!(join(other), "only good frames are cached");
        model.drain().expect("only good frames are cached");
        vec![take_past(model, 9)]
    });
}

#[test]
fn what_was_freed_as_a_range_another_gets() {
    static MINE: BothWays = BothWays::new();
    explore(blocks(1, 2), Some(2), |model| {
        let held = model.allocate(&Request::pages(4)).expect("there is memory");
        model.drain().expect("only good frames are cached");
        let rest = take_all(model);
        // The cache's counter, which the model does not see, tells what the cache holds. Without an
        // access that both CPUs make, this CPU would always look first.
        let turn = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&turn);
        let other = on(model, 1, move || {
            model.give_back_any(held).expect("it is held");
            theirs.fetch_add(1, Ordering::Relaxed);
            model.allocate(&Request::pages(4)).ok()
        });
        turn.fetch_add(1, Ordering::Relaxed);
        // Nothing else is free, so this empties the other CPU's cache.
        let mine = model.allocate(&Request::pages(4)).ok();
        let theirs = join(other);
        assert!(mine.is_none() || theirs.is_none(), "one run for two");
        MINE.count(mine.is_some());
        rest.into_iter().chain(mine).chain(theirs).collect()
    });
    MINE.assert_both();
}

#[test]
fn a_second_free_is_found_when_the_cache_is_emptied() {
    static MINE: BothWays = BothWays::new();
    explore(blocks(1, 2), None, |model| {
        let held = take_past(model, 5);
        let page = part(held, 0, 0);
        let rest = PfnRange { start: page.end, end: held.end };
        // One CPU frees through the cache, which does not check; the other frees past it.
        let other = on(model, 1, move || model.give_back(page).is_ok());
        let mine = model.give_back_order(page.start, order(0)).is_ok() && model.drain().is_ok();
        let theirs = join(other);
        assert!(mine != theirs, "exactly one of two frees may succeed: {mine}, {theirs}");
        MINE.count(mine);
        vec![rest]
    });
    MINE.assert_both();
}
