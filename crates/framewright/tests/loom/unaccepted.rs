//! Unaccepted memory under every interleaving: no block is accepted twice, no caller waits for
//! memory that it does not need, and all memory that can be accepted can be allocated.

use crate::model::{BothWays, Shape, explore, on, order, run};
use framewright::Request;
use framewright::units::PfnRange;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_jobs::NoHelpers;

const fn unaccepted(blocks: u64, cpus: u32) -> Shape {
    Shape { unaccepted: blocks, ..Shape::new(blocks, cpus) }
}

#[test]
fn two_cpus_accept_a_block_each() {
    explore(unaccepted(2, 2), Some(3), |model| {
        let one = move || model.allocate_past_caches(&Request::new(order(9)));
        let other = on(model, 1, one);
        let mine = one().expect("there are two");
        vec![mine, other.join().expect("no panic").expect("there are two")]
    });
}

#[test]
fn two_cpus_want_the_only_block_in_halves() {
    explore(unaccepted(1, 2), Some(3), |model| {
        let half = move || model.allocate_past_caches(&Request::new(order(8)));
        let other = on(model, 1, half);
        let mine = half().expect("there is room for both");
        vec![mine, other.join().expect("no panic").expect("there is room for both")]
    });
}

#[test]
fn a_place_is_accepted_while_others_take_what_there_is() {
    static BOTH: BothWays = BothWays::new();
    explore(unaccepted(2, 2), Some(2), |model| {
        let place = run(512, 9);
        let at = move || model.allocate_at(place.start, order(9), MigrateType::Movable).ok();
        let other = on(model, 1, at);
        let mine = model.allocate_past_caches(&Request::new(order(9))).ok();
        let theirs = other.join().expect("no panic");
        assert!(mine.is_some(), "there are two blocks");
        BOTH.count(theirs.is_some());
        assert!(theirs.is_some() || mine.is_some_and(|range| range.start == place.start));
        mine.into_iter().chain(theirs).collect()
    });
    BOTH.assert_both();
}

#[test]
fn blocks_are_isolated_while_others_accept_them() {
    explore(unaccepted(2, 2), Some(2), |model| {
        let start = BlockNumber::containing(run(0, 9).start);
        let range = BlockRange { start, end: BlockNumber(start.0 + 2) };
        let other = on(model, 1, move || model.allocate_past_caches(&Request::new(order(9))).ok());
        let isolated = model.isolation().isolate(range);
        let theirs: Option<PfnRange> = other.join().expect("no panic");
        let pages = isolated.expect("it comes up, and what is in use is isolated as it is");
        assert_eq!(pages.free_pages + pages.in_use_pages, 1024);
        model.isolation().unisolate(range).expect("isolated");
        theirs.into_iter().collect()
    });
}

#[test]
fn one_block_fails_and_the_other_serves_one_of_two() {
    static MINE: BothWays = BothWays::new();
    explore(Shape { failing: Some(1), ..unaccepted(3, 2) }, Some(2), |model| {
        let one = move || model.allocate_past_caches(&Request::new(order(9))).ok();
        let other = on(model, 1, one);
        let mine = one();
        let theirs = other.join().expect("no panic");
        // The block before the one that fails is lost as well.
        assert!(mine.is_some() != theirs.is_some(), "{mine:?}, {theirs:?}");
        MINE.count(mine.is_some());
        assert_eq!(model.acceptance().lost_pages(), 1024);
        mine.into_iter().chain(theirs).collect()
    });
    MINE.assert_both();
}

#[test]
fn all_is_accepted_while_somebody_takes_a_block() {
    explore(unaccepted(3, 2), Some(2), |model| {
        let other = on(model, 1, move || model.allocate_past_caches(&Request::new(order(9))));
        model.acceptance().accept_all(&NoHelpers);
        let theirs = other.join().expect("no panic").expect("there are three");
        assert_eq!(model.acceptance().unaccepted_pages(), 0);
        vec![theirs]
    });
}
