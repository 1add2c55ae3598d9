//! Per-CPU caches under every interleaving: get and put, refill, revoke, drain, bulk, and memory that is short while others keep some.
//!
//! What a cache holds is plain words; loom watches that no two threads touch them without order between them.
//! `RUSTFLAGS="--cfg loom" cargo test --release -p framewright --test loom_caches --target-dir target/loom`
#![cfg(loom)]

mod model;

use framewright::Request;
use framewright::block::MigrateType;
use framewright::units::{Pfn, PfnRange};
use model::{Model, Shape, explore, give, on, order, take, take_movable};

const fn blocks(blocks: u64, cpus: u32) -> Shape {
    Shape { blocks, cpus }
}

fn join<T>(handle: loom::thread::JoinHandle<T>) -> T {
    handle.join().expect("no assertion failed")
}

/// A pair through the cache.
fn use_cache(model: &Model, of: u8) {
    let held = take_movable(model, of).expect("there is memory");
    give(model, held);
}

/// Single frames, bypassing the caches.
fn bulk(model: &Model, count: usize) -> Vec<PfnRange> {
    let mut pages = vec![Pfn(0); count];
    let done = model.allocate_bulk(&Request::pages(1), &mut pages).unwrap_or(0);
    pages[..done].iter().map(|&start| PfnRange { start, end: start.add(1) }).collect()
}

fn drain(model: &Model) {
    model.drain().expect("only good frames are cached");
    model.platform().ring();
}

#[test]
fn owners_get_and_put_while_another_drains() {
    explore(blocks(1, 2), Some(3), |model| {
        use_cache(model, 0);
        let other = on(model, 1, move || drain(model));
        let held = take_movable(model, 0);
        give(model, held.expect("there is memory"));
        join(other);
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
        held.into_iter().flatten().collect()
    });
}

#[test]
fn an_empty_cache_refills_while_another_drains() {
    for of in [0, 3, 9] {
        explore(blocks(9, 2), Some(3), move |model| {
            let other = on(model, 1, move || {
                let held = take_movable(model, of);
                model.drain().expect("only good frames are cached");
                held
            });
            let mine = take_movable(model, of);
            mine.into_iter().chain(join(other)).collect()
        });
    }
}

#[test]
fn two_caches_refill_from_the_last_block() {
    explore(blocks(1, 2), Some(3), |model| {
        // 64 pages are left: one word, which one of them takes whole.
        let rest: Vec<PfnRange> = [8, 7, 6].map(|of| take_movable(model, of).expect("there is memory")).to_vec();
        let other = on(model, 1, move || take_movable(model, 0));
        let mine = take_movable(model, 0);
        let theirs = join(other);
        assert!(mine.is_some() && theirs.is_some(), "the one that comes late drains the other's cache");
        rest.into_iter().chain(mine).chain(theirs).collect()
    });
}

#[test]
fn each_type_has_a_word_of_its_own() {
    explore(blocks(2, 2), Some(3), |model| {
        let other =
            on(model, 1, move || [take(model, 1, MigrateType::Unmovable), take(model, 1, MigrateType::Movable)]);
        let mine = [take(model, 1, MigrateType::Reclaimable), take(model, 1, MigrateType::Unmovable)];
        let held: Vec<PfnRange> = mine.into_iter().chain(join(other)).flatten().collect();
        assert_eq!(held.len(), 4);
        held
    });
}

#[test]
fn what_one_cpu_allocated_another_frees_into_its_cache() {
    explore(blocks(1, 2), Some(3), |model| {
        let held: Vec<PfnRange> = (0..3).filter_map(|_| take_movable(model, 0)).collect();
        let (one, other, kept) = (held[0], held[1], held[2]);
        let theirs = on(model, 1, move || {
            give(model, one);
            take_movable(model, 0)
        });
        give(model, other);
        let mine = take_movable(model, 0);
        [kept].into_iter().chain(mine).chain(join(theirs)).collect()
    });
}

#[test]
fn two_drain_at_once_while_an_owner_goes_on() {
    explore(blocks(1, 3), Some(2), |model| {
        use_cache(model, 0);
        let (one, other) = (on(model, 1, move || drain(model)), on(model, 2, move || drain(model)));
        let mine = take_movable(model, 0);
        // One of the others may wait for what this CPU let go last.
        drain(model);
        join(one);
        join(other);
        mine.into_iter().collect()
    });
}

#[test]
fn memory_that_is_short_comes_out_of_a_cache_that_is_in_use() {
    explore(blocks(1, 2), Some(3), |model| {
        // All that is free lies in the cache of CPU 0.
        use_cache(model, 0);
        let rest = bulk(model, 448);
        let other = on(model, 1, move || model.allocate(&Request::pages(1)).ok());
        let mine = take_movable(model, 0);
        let theirs = join(other);
        // The other can miss it: no watermark keeps a refill from taking the whole word back.
        assert!(mine.is_some(), "sixty-four pages are free, in the cache, in the drainer's hands or in the zone");
        rest.into_iter().chain(mine).chain(theirs).collect()
    });
}

#[test]
fn bulk_meets_refill_and_what_one_keeps_the_other_gets() {
    explore(blocks(1, 2), Some(3), |model| {
        let rest: Vec<PfnRange> = [8, 7, 6].map(|of| take_movable(model, of).expect("there is memory")).to_vec();
        let other = on(model, 1, move || bulk(model, 40));
        let mine = take_movable(model, 0);
        let theirs = join(other);
        assert!(mine.is_some());
        // One may be in the cache while the other looks; no more than the word is.
        assert!(!theirs.is_empty() && theirs.len() <= 40);
        rest.into_iter().chain(mine).chain(theirs).collect()
    });
}

#[test]
fn a_full_stack_makes_room_while_another_drains() {
    explore(blocks(1, 2), Some(3), |model| {
        let mut held = bulk(model, 512);
        // One page of each word, so that each takes an entry of what was freed, of which a model has three.
        let mut given = held.iter().copied().step_by(64).take(4);
        let last = given.next().expect("there are some");
        for page in given {
            give(model, page);
        }
        assert_eq!(model.cached_pages(), 3);
        held = held
            .into_iter()
            .enumerate()
            .filter(|(index, _)| index % 64 != 0 || *index >= 4 * 64)
            .map(|(_, page)| page)
            .collect();
        let other = on(model, 1, move || drain(model));
        give(model, last);
        join(other);
        held
    });
}

#[test]
fn blocks_are_kept_while_another_wants_a_larger_one() {
    explore(blocks(8, 2), Some(3), |model| {
        // A refill takes eight blocks at once; draining merges them again.
        let other = on(model, 1, move || model.allocate(&Request::new(order(11))).ok());
        let mine = take_movable(model, 9).expect("there is memory");
        let theirs = join(other);
        give(model, mine);
        model.drain().expect("only good frames are cached");
        let rest = model.allocate(&Request::new(order(if theirs.is_some() { 11 } else { 12 }))).expect("all merged");
        theirs.into_iter().chain([rest]).collect()
    });
}

#[test]
fn a_second_free_is_found_when_the_cache_is_emptied() {
    explore(blocks(1, 2), Some(3), |model| {
        let held = take_movable(model, 5).expect("there is memory");
        let page = PfnRange { start: held.start, end: held.start.add(1) };
        let rest = PfnRange { start: page.end, end: held.end };
        // One frees it through the cache, which does not look, the other past it.
        let other = on(model, 1, move || model.free(page).is_ok());
        let mine = model.free_order(page.start, order(0)).is_ok();
        let theirs = join(other);
        let drained = model.drain().is_ok();
        let good = u32::from(mine && drained) + u32::from(theirs);
        assert_eq!(good, 1, "freed {mine}, {theirs}; drained {drained}");
        vec![rest]
    });
}
